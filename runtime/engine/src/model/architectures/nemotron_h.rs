//! `nemotron_h` and `nemotron_h_moe`: each block is a state space, attention without positions, or a network
//! without gates.
//!
//! The networks are `down (relu(up x)^2)`.

use kernels::Activation;

use super::super::config::{Attention, Block, Config, FeedForward, Gating, Mixer, Role, Router, StateSpace};
use super::shapes::{Shapes, router, state_space};
use super::{Keys, Names};

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let layers = k.size("block_count");
    let kv_heads = k.whole_of_layers("attention.head_count_kv", layers);
    let neurons = k.whole_of_layers("feed_forward_length", layers);
    let one = |key: &str, of: &[usize]| {
        let most = of.iter().copied().max().unwrap_or(0);
        if of.iter().any(|&own| own != 0 && own != most) {
            k.refuse_value(key, "one number for all layers that have it");
        }
        most
    };
    let most = one("attention.head_count_kv", &kv_heads);
    let epsilon = match k.number("attention.layer_norm_rms_epsilon") {
        Some(_) => "attention.layer_norm_rms_epsilon",
        None => "attention.layer_norm_epsilon",
    };
    k.ignore("attention.layer_norm_epsilon");
    // no rotations
    k.ignore("rope.dimension_count");
    let shapes = Shapes::with_kv_heads(k, most, epsilon);
    // requested even if there are no such blocks
    let space = state_space(k);
    let has_bias = |block: usize| k.has_tensor(&format!("blk.{block}.ssm_conv1d.bias"));
    let network = network(k, &neurons, one("feed_forward_length", &neurons));
    let of = |of: &[usize], block: usize| of.get(block).copied().unwrap_or(0);
    let block = |block: usize| {
        let has_network = of(&neurons, block) > 0;
        let mixer = match of(&kv_heads, block) {
            _ if has_network => None,
            0 => Some(Mixer::StateSpace(StateSpace { bias: has_bias(block), ..space })),
            _ => Some(Mixer::Attention(Attention { rope: None, ..shapes.attention(k, block) })),
        };
        let feed_forward = Some(network.clone()).filter(|_| has_network);
        Block::plain(mixer, feed_forward)
    };
    let blocks = (0..shapes.layers).map(block).collect();
    let names = Names { others: vec![(Role::FfnNorm, "attn_norm.weight")], ..Names::default() };
    (shapes.config(k, Vec::new(), blocks), names)
}

/// The network, or experts, of the blocks that have one.
fn network(k: &Keys<'_>, neurons: &[usize], most: usize) -> FeedForward {
    let experts = k.whole("expert_count").unwrap_or(0);
    let first = neurons.iter().position(|&neurons| neurons > 0).unwrap_or(0);
    let shared = k.whole("expert_shared_feed_forward_length").filter(|&neurons| neurons > 0);
    k.ignore("expert_shared_count");
    for key in ["expert_group_count", "expert_group_used_count"] {
        if k.whole(key).is_some_and(|groups| groups > 1) {
            k.refuse_value(key, "1");
        }
    }
    // sigmoid, which such models have, is 2
    if experts > 1 && k.whole("expert_gating_func").is_some_and(|function| function != 2) {
        k.refuse_value("expert_gating_func", "2");
    }
    let renormalise = k.flag("expert_weights_norm").unwrap_or(false);
    let of_expert = k.whole("expert_feed_forward_length").filter(|_| experts > 1);
    let selection_bias = k.has_tensor(&format!("blk.{first}.exp_probs_b.bias"));
    let routed = || Router { gating: Gating::Sigmoid, renormalise, selection_bias, ..router(k, experts) };
    if experts <= 1 {
        k.ignore("expert_used_count");
        k.ignore("expert_weights_scale");
    }
    FeedForward {
        neurons: of_expert.unwrap_or(most),
        gate_cutoff: None,
        activation: k.activation(Activation::ReluSquared),
        biases: false,
        resident: false,
        router: (experts > 1).then(routed),
        shared_neurons: shared.filter(|_| experts > 1),
        shared_gate: false,
        shared_norms: false,
    }
}
