//! `qwen2`, `qwen3` and `qwen3moe`: biases of queries, keys and values; later a norm of each head instead.

use kernels::Activation;

use super::super::config::{Attention, Config, HeadNorm, Pairing};
use super::shapes::Shapes;
use super::{Keys, Names};

/// `qwen2`.
pub(super) fn read_qwen2(k: &Keys<'_>) -> (Config, Names) {
    read(k, None)
}

/// `qwen3`.
pub(super) fn read_qwen3(k: &Keys<'_>) -> (Config, Names) {
    read(k, Some(HeadNorm::Head))
}

/// `qwen3moe`.
pub(super) fn read_qwen3moe(k: &Keys<'_>) -> (Config, Names) {
    k.size("expert_count");
    read(k, Some(HeadNorm::Head))
}

fn read(k: &Keys<'_>, norm: Option<HeadNorm>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let rope = shapes.rope(k, Pairing::Halves);
    let network = shapes.feed_forward(k, k.activation(Activation::Silu));
    let blocks = shapes.blocks(&network, |layer| Attention { norm, ..shapes.attention(k, layer) });
    (shapes.config(k, vec![rope], blocks), Names::default())
}
