//! `qwen2`, `qwen3`, their mixtures and the text parts of their vision models; `seed_oss`.
//!
//! Qwen 2 has biases of queries, keys and values; Qwen 3 has a norm of each head instead.

use kernels::Activation;

use super::super::config::{Attention, Config, HeadNorm, Pairing, Role};
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

/// `qwen2moe`: the chosen weights are not divided by their sum, and the shared expert has a gate.
pub(super) fn read_qwen2moe(k: &Keys<'_>) -> (Config, Names) {
    k.size("expert_count");
    let shared = k.whole("expert_shared_feed_forward_length").filter(|&neurons| neurons > 0);
    let shared = shared.or_else(|| k.whole("feed_forward_length"));
    if k.flag("expert_weights_norm").is_some_and(|norm| norm) {
        k.refuse_value("expert_weights_norm", "false");
    }
    let (mut config, names) = read(k, None);
    for network in config.networks_mut() {
        (network.shared_neurons, network.shared_gate) = (shared, true);
        network.router.iter_mut().for_each(|router| router.renormalise = false);
    }
    (config, names)
}

/// `qwen2vl`: for text all sections of a head have the same position.
pub(super) fn read_qwen2vl(k: &Keys<'_>) -> (Config, Names) {
    k.ignore("rope.dimension_sections");
    read(k, None)
}

/// `qwen3vl` and `qwen3vlmoe`; only images are added to the first layers' residual streams.
pub(super) fn read_qwen3vl(k: &Keys<'_>) -> (Config, Names) {
    ["rope.dimension_sections", "n_deepstack_layers"].into_iter().for_each(|key| k.ignore(key));
    read(k, Some(HeadNorm::Head))
}

/// `seed_oss`: the norm before the network has another name.
pub(super) fn read_seed_oss(k: &Keys<'_>) -> (Config, Names) {
    let (config, names) = read(k, None);
    (config, Names { others: vec![(Role::FfnNorm, "post_attention_norm.weight")], ..names })
}

fn read(k: &Keys<'_>, norm: Option<HeadNorm>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let rope = shapes.rope(k, Pairing::Halves);
    let network = shapes.feed_forward(k, k.activation(Activation::Silu));
    let blocks = shapes.blocks(&network, |layer| Attention { norm, ..shapes.attention(k, layer) });
    (shapes.config(k, vec![rope], blocks), Names::default())
}
