//! `kimi-linear` and `bailingmoe3`: Kimi delta attention, latent attention on every fourth or sixth layer, and
//! a mixture.

use super::super::config::{Attention, ChannelDecay, Config, DeltaNet, Latent, Mixer, Pairing, Role};
use super::mixture::{Mixture, Usual};
use super::shapes::Shapes;
use super::{Keys, Names, deepseek2};

/// `kimi-linear`, whose attention has no positions.
pub(super) fn read_kimi(k: &Keys<'_>) -> (Config, Names) {
    let attention = Attention { rope: None, ..deepseek2::latent(k) };
    k.ignore("rope.freq_base");
    k.ignore("attention.value_length"); // a width without a meaning here
    let shapes = Shapes::with_heads(k, 1, attention.head_width, "attention.layer_norm_rms_epsilon");
    let net = delta_net(k, ChannelDecay { rank: Some(k.size("kda.head_dim")), bound: None });
    let mixture = Mixture::read(k, &shapes, Usual::SIGMOID.renormalised());
    let mixers = mixers(k, &shapes, net, &attention);
    let blocks = mixture.blocks(&shapes, |layer| mixers[layer].clone());
    let others = vec![
        (Role::DeltaGate, "ssm_g_b.weight"),
        (Role::DeltaAlpha, "ssm_f_b.weight"),
        (Role::StateOutput, "attn_output.weight"),
    ];
    (shapes.config(k, Vec::new(), blocks), Names { others, ..Names::default() })
}

/// `bailingmoe3`: bounded decays, and gates of latent attention's heads.
pub(super) fn read_bailingmoe3(k: &Keys<'_>) -> (Config, Names) {
    let attention = deepseek2::latent(k);
    k.ignore("attention.value_length"); // a width without a meaning here
    let mut shapes = Shapes::with_heads(k, 1, attention.head_width, "attention.layer_norm_rms_epsilon");
    let left_out = shapes.leave_out_guesses(k);
    let mut rope = shapes.rope(k, Pairing::Adjacent);
    let growth = deepseek2::growth(k, &mut rope);
    let gated = attention.latent.map(|latent| Latent { gate: true, ..latent });
    let attention = Attention { scale: growth * growth * attention.scale, latent: gated, ..attention };
    if k.flag("kda.safe_gate") == Some(false) {
        k.refuse_value("kda.safe_gate", "true");
    }
    let bound = -k.required_number("kda.gate_lower_bound");
    if bound <= 0.0 && k.number("kda.gate_lower_bound").is_some() {
        k.refuse_value("kda.gate_lower_bound", "a number below 0");
    }
    let net = delta_net(k, ChannelDecay { rank: None, bound: Some(bound) });
    let mixture = Mixture::read(k, &shapes, Usual::SIGMOID);
    let mixers = mixers(k, &shapes, net, &attention);
    let blocks = mixture.blocks(&shapes, |layer| mixers[layer].clone());
    let others = vec![
        (Role::DeltaGate, "ssm_g_a.weight"),
        (Role::DeltaAlpha, "ssm_f_a.weight"),
        (Role::StateOutput, "attn_output.weight"),
    ];
    (shapes.config(k, vec![rope], blocks), Names { others, left_out, ..Names::default() })
}

/// Kimi delta attention with as many heads as attention.
fn delta_net(k: &Keys<'_>, decay: ChannelDecay) -> DeltaNet {
    let heads = k.size("attention.head_count");
    DeltaNet {
        key_heads: heads,
        value_heads: heads,
        head_width: k.size("kda.head_dim"),
        taps: k.size("ssm.conv_kernel"),
        grouped: false,
        sigmoid_gate: false,
        channel_decay: Some(decay),
    }
}

/// The mixer of each layer: attention has a key and value head, delta attention none.
fn mixers(k: &Keys<'_>, shapes: &Shapes, net: DeltaNet, attention: &Attention) -> Vec<Mixer> {
    let kv_heads = k.whole_of_layers("attention.head_count_kv", shapes.layers);
    if kv_heads.iter().any(|&heads| heads > 1) {
        k.refuse_value("attention.head_count_kv", "0 or 1, of one vector for all heads,");
    }
    let mixer = |layer: usize| match kv_heads.get(layer) {
        None | Some(0) => Mixer::DeltaNet(net),
        Some(_) => attention.clone().into(),
    };
    (0..shapes.layers).map(mixer).collect()
}
