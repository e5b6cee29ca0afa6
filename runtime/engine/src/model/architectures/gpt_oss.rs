//! `gpt-oss`: a window on every other layer, attention sinks, biases everywhere, and a clamped `SwiGLU`.

use kernels::Activation;

use super::super::config::{Attention, Config, Gating, Pairing, Role};
use super::shapes::Shapes;
use super::{Keys, Names};

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let rope = shapes.rope(k, Pairing::Halves);
    let local_base = k.number("rope.freq_base_swa");
    if local_base.is_some_and(|base| base != rope.base) {
        k.refuse_value("rope.freq_base_swa", &format!("{}, as for all layers,", rope.base));
    }
    let window = k.size("attention.sliding_window");
    let windowed = k.pattern("attention.sliding_window_pattern", shapes.layers, 2);
    let mut network = shapes.feed_forward(k, k.activation(Activation::SwigluOai));
    network.biases = true;
    if let Some(router) = &mut network.router {
        (router.gating, router.renormalise, router.bias) = (Gating::SelectedSoftmax, false, true);
    }
    let blocks = shapes.blocks(&network, |layer| Attention {
        window: Some(window).filter(|_| windowed[layer]),
        sinks: true,
        ..shapes.attention(k, layer)
    });
    let names = vec![(Role::FfnNorm, "post_attention_norm.weight")];
    (shapes.config(k, vec![rope], blocks), Names { others: names, ..Names::default() })
}
