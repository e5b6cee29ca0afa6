//! `phi3`: queries, keys and values in one tensor, gate and up in another. It has divisors of rotary
//! frequencies for a short and a long context.

use kernels::Activation;

use super::super::config::{Attention, Config, Pairing};
use super::shapes::Shapes;
use super::{Keys, Names};

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let rope = shapes.rope(k, Pairing::Halves);
    let window = k.whole("attention.sliding_window").filter(|&window| window > 0 && window < shapes.context);
    let network = shapes.feed_forward(k, k.activation(Activation::Silu));
    let blocks = shapes.blocks(&network, |layer| Attention { window, ..shapes.attention(k, layer) });
    (shapes.config(k, vec![rope], blocks), Names { gate_up: Some("ffn_up.weight"), ..Names::default() })
}
