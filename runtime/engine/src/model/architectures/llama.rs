//! `llama`, which is also what Mistral and Mixtral are in GGUF; `bamboo`, a llama with dReLU; `mistral3`.

use kernels::Activation;

use super::super::config::{Attention, Config, Pairing, Temperature};
use super::shapes::Shapes;
use super::{Keys, Names};

/// `llama`: `ReLU` where the magic is `PowerInfer`'s, which is the only sign of it.
pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    read_with(k, if k.is_powerinfer() { Activation::Relu } else { Activation::Silu }, None)
}

/// `bamboo`: dReLU by either magic.
pub(super) fn read_bamboo(k: &Keys<'_>) -> (Config, Names) {
    read_with(k, Activation::Drelu, None)
}

/// `mistral3`: queries of late positions may have a factor.
pub(super) fn read_mistral3(k: &Keys<'_>) -> (Config, Names) {
    let slope = k.number_or_none("attention.temperature_scale");
    let temperature = slope.map(|slope| Temperature {
        slope,
        original_context: k
            .whole("rope.scaling.original_context_length")
            .unwrap_or_else(|| k.size("context_length")),
    });
    read_with(k, Activation::Silu, temperature)
}

fn read_with(k: &Keys<'_>, activation: Activation, temperature: Option<Temperature>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let rope = shapes.rope(k, Pairing::Adjacent);
    let scale = k.number_or_none("attention.scale");
    let window = k.whole("attention.sliding_window").filter(|&window| window > 0 && window < shapes.context);
    let blocks = shapes.blocks(&shapes.feed_forward(k, k.activation(activation)), |layer| {
        let plain = shapes.attention(k, layer);
        Attention { window, temperature, scale: scale.unwrap_or(plain.scale), ..plain }
    });
    (shapes.config(k, vec![rope], blocks), Names::default())
}
