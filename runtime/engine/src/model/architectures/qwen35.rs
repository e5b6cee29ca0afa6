//! `qwen3next`, `qwen35` and `qwen35moe`: gated delta nets, and gated attention with a norm of each head on
//! every fourth layer.

use kernels::Activation;

use super::super::config::{Attention, Config, DeltaNet, HeadNorm, Mixer, Pairing, Role};
use super::shapes::Shapes;
use super::{Keys, Names};

/// `qwen35`.
pub(super) fn read_dense(k: &Keys<'_>) -> (Config, Names) {
    read(k)
}

/// `qwen35moe`.
pub(super) fn read_experts(k: &Keys<'_>) -> (Config, Names) {
    k.size("expert_count");
    let shared = k.whole("expert_shared_feed_forward_length").filter(|&neurons| neurons > 0);
    let (mut config, names) = read(k);
    for network in config.networks_mut() {
        (network.shared_neurons, network.shared_gate) = (shared, shared.is_some());
    }
    (config, names)
}

/// `qwen3next`: as `qwen35moe`, with adjacent value heads for each key head.
pub(super) fn read_next(k: &Keys<'_>) -> (Config, Names) {
    let (mut config, names) = read_experts(k);
    for block in &mut config.blocks {
        if let Some(Mixer::DeltaNet(net)) = &mut block.mixer {
            net.grouped = true;
        }
    }
    (config, names)
}

fn read(k: &Keys<'_>) -> (Config, Names) {
    let mut shapes = Shapes::read(k);
    let left_out = shapes.leave_out_guesses(k);
    // for text all sections have the same position
    k.ignore("rope.dimension_sections");
    let rope = shapes.rope(k, Pairing::Halves);
    let net = DeltaNet {
        key_heads: k.size("ssm.group_count"),
        value_heads: k.size("ssm.time_step_rank"),
        head_width: k.size("ssm.state_size"),
        taps: k.size("ssm.conv_kernel"),
        grouped: false,
        sigmoid_gate: false,
        channel_decay: None,
    };
    if k.size("ssm.inner_size") != net.value_heads.saturating_mul(net.head_width) {
        k.refuse_value("ssm.inner_size", "as many values as heads of `ssm.state_size` have");
    }
    let period = k.whole("full_attention_interval").unwrap_or(4);
    let is_recurrent = k.pattern("attention.recurrent_layers", shapes.layers, period);
    let network = shapes.feed_forward(k, k.activation(Activation::Silu));
    let blocks = shapes.blocks(&network, |layer| {
        if is_recurrent[layer] {
            return Mixer::DeltaNet(net);
        }
        Mixer::Attention(Attention { norm: Some(HeadNorm::Head), gate: true, ..shapes.attention(k, layer) })
    });
    let others = vec![(Role::FfnNorm, "post_attention_norm.weight")];
    (shapes.config(k, vec![rope], blocks), Names { others, left_out, ..Names::default() })
}
