//! `gemma4`: layers with a window and narrow heads, and a few without a window and with wide heads. It has
//! norms of queries, keys and values, and a factor after each layer. Models are dense, or have experts beside
//! a dense network, with norms of their own. The smallest models have an embedding for each layer, and last layers
//! that read the keys and values of others.

use kernels::Activation;

use super::super::config::{
    Attention, Config, ConfigError, HeadNorm, Norms, Pairing, Role, Rope, RouterInput,
};
use super::shapes::Shapes;
use super::{Keys, Names};

/// The rotary embedding of layers without a window, and with one.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let kv_heads = k.whole_of_layers("attention.head_count_kv", k.size("block_count"));
    let first = kv_heads.first().copied().unwrap_or(1);
    let shapes = Shapes::with_kv_heads(k, first, "attention.layer_norm_rms_epsilon");
    let windowed = k.pattern("attention.sliding_window_pattern", shapes.layers, 6);
    let window = k.size("attention.sliding_window");
    let local_width = k.whole("attention.key_length_swa").unwrap_or(shapes.head_width);
    if k.whole("attention.value_length_swa").is_some_and(|width| width != local_width) {
        k.refuse_value("attention.value_length_swa", &format!("{local_width}, as for keys,"));
    }
    let global = shapes.rope(k, Pairing::Halves);
    if global.divisors.is_empty() && windowed.contains(&false) {
        let (what, rule) = (
            "the number of divisors of rotary frequencies",
            "layers without a window need `rope_freqs.weight`",
        );
        k.refuse(ConfigError::Contradiction { what, found: 0, rule: rule.to_owned() });
    }
    let rotated = k.whole("rope.dimension_count_swa").unwrap_or(local_width);
    let local = Rope::plain(Pairing::Halves, rotated, k.number("rope.freq_base_swa").unwrap_or(10_000.0));

    let neurons = k.whole_of_layers("feed_forward_length", shapes.layers);
    let most = neurons.iter().copied().max().unwrap_or(0);
    let mut network = shapes.feed_forward_of(k, k.activation(Activation::Gelu), most);
    if let Some(router) = &mut network.router {
        router.input = RouterInput::Normed;
        router.expert_scales = k.has_tensor("blk.0.ffn_down_exps.scale");
        network.shared_neurons = Some(k.size("feed_forward_length"));
        network.shared_norms = true;
    }
    let owners = owners(k, &windowed);
    let mut blocks = shapes.blocks(&network, |layer| {
        let has = |name: &str| k.has_tensor(&format!("blk.{layer}.{name}.weight"));
        let shares = owners[layer];
        let plain = Attention {
            kv_heads: kv_heads.get(layer).copied().unwrap_or(first),
            scale: 1.0,
            norm: Some(HeadNorm::Head),
            shares,
            value_norm: shares.is_none(),
            values_are_keys: shares.is_none() && !has("attn_v") && !has("attn_qkv"),
            ..shapes.attention(k, layer)
        };
        match windowed[layer] {
            true => Attention { head_width: local_width, window: Some(window), rope: Some(LOCAL), ..plain },
            false => Attention { rope: Some(GLOBAL), ..plain },
        }
    });
    for (layer, block) in blocks.iter_mut().enumerate() {
        block.norms = Norms::Both;
        if let (Some(network), Some(&own)) = (&mut block.feed_forward, neurons.get(layer))
            && own < most
        {
            // all layers whose neurons are read have one width: the widest
            (network.neurons, network.resident) = (own, true);
        }
        block.output_scale = k.has_tensor(&format!("blk.{layer}.layer_output_scale.weight"));
    }
    let has_experts = network.router.is_some();
    let mut config = shapes.config(k, vec![global, local], blocks);
    config.embedding_scale = (shapes.width as f32).sqrt();
    config.logit_softcap = k.number_or_none("final_logit_softcapping");
    config.per_layer_width = k.whole("embedding_length_per_layer_input").filter(|&width| width > 0);
    // a mixture's dense network beside the experts
    let shared = [
        (Role::SharedGate, "ffn_gate.weight"),
        (Role::SharedUp, "ffn_up.weight"),
        (Role::SharedDown, "ffn_down.weight"),
    ];
    let others = if has_experts { shared.to_vec() } else { Vec::new() };
    let unused = unused(&owners);
    (config, Names { others, unused, ..Names::default() })
}

/// The layer whose keys and values each layer reads, if they are not its own. A last layer with a window reads
/// the last earlier layer with one, and a layer without a window the last earlier layer without.
pub(super) fn owners(k: &Keys<'_>, windowed: &[bool]) -> Vec<Option<usize>> {
    let shared = k.whole("attention.shared_kv_layers").unwrap_or(0);
    let own = windowed.len().saturating_sub(shared);
    let owner_of = |layer: usize| {
        let owner = (0..own).rev().find(|&owner| windowed[owner] == windowed[layer]);
        if owner.is_none() {
            k.refuse_value("attention.shared_kv_layers", "a number that leaves layers of each kind");
        }
        owner
    };
    (0..windowed.len()).map(|layer| if layer < own { None } else { owner_of(layer) }).collect()
}

/// Keys and values of layers that share, which published files have.
pub(super) fn unused(owners: &[Option<usize>]) -> Vec<String> {
    let of_layer =
        |layer: usize| ["attn_k", "attn_v", "attn_k_norm"].map(|name| format!("blk.{layer}.{name}.weight"));
    let sharing = (0..owners.len()).filter(|&layer| owners[layer].is_some());
    sharing.flat_map(of_layer).collect()
}
