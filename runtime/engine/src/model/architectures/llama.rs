//! `llama`, also used for Mistral and Mixtral, and its relatives.
//!
//! `bamboo` has dReLU, `arcee` no gates, and `smollm3` no rotations on every fourth layer. `mistral3` may
//! scale late queries. `internlm2` differs only in name.

use kernels::Activation;

use super::super::config::{Attention, Config, Mixer, Pairing, Temperature};
use super::shapes::Shapes;
use super::{Keys, Names};

/// `llama`; `ReLU` if the magic is `PowerInfer`'s, its only sign.
pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    read_with(k, if k.is_powerinfer() { Activation::Relu } else { Activation::Silu }, None)
}

/// `bamboo`: dReLU with either magic.
pub(super) fn read_bamboo(k: &Keys<'_>) -> (Config, Names) {
    read_with(k, Activation::Drelu, None)
}

/// `internlm2`.
pub(super) fn read_internlm2(k: &Keys<'_>) -> (Config, Names) {
    read_with(k, Activation::Silu, None)
}

/// `arcee`: networks without gates, `down (relu(up x)^2)`.
pub(super) fn read_arcee(k: &Keys<'_>) -> (Config, Names) {
    read_with(k, Activation::ReluSquared, None)
}

/// `smollm3`: every fourth layer has no rotations.
pub(super) fn read_smollm3(k: &Keys<'_>) -> (Config, Names) {
    let (mut config, names) = read_with(k, Activation::Silu, None);
    for block in config.blocks.iter_mut().skip(3).step_by(4) {
        if let Some(Mixer::Attention(attention)) = &mut block.mixer {
            attention.rope = None;
        }
    }
    (config, names)
}

/// `mistral3`: queries of late positions may be scaled.
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
