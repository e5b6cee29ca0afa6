//! `lfm2` and `lfm2moe`: short convolutions, and some layers of attention with a norm of each head. `lfm2moe`
//! has dense networks in the first layers and experts weighted by sigmoids in the others.

use kernels::Activation;

use super::super::config::{Attention, Config, Convolution, FeedForward, Gating, HeadNorm, Mixer, Pairing};
use super::shapes::Shapes;
use super::{Keys, Names};

/// `lfm2`.
pub(super) fn read_dense(k: &Keys<'_>) -> (Config, Names) {
    read(k)
}

/// `lfm2moe`.
pub(super) fn read_experts(k: &Keys<'_>) -> (Config, Names) {
    k.size("expert_count");
    let leading = k.whole("leading_dense_block_count").unwrap_or(0);
    let dense = k.size("feed_forward_length");
    if k.whole("expert_gating_func").is_some_and(|function| function != SIGMOID) {
        k.refuse_value("expert_gating_func", "2");
    }
    let (mut config, names) = read(k);
    for network in config.networks_mut() {
        if let Some(router) = &mut network.router {
            router.gating = Gating::Sigmoid;
            router.selection_bias = k.has_tensor(&format!("blk.{leading}.exp_probs_b.bias"));
        }
    }
    for network in config.networks_mut().take(leading) {
        let (neurons, router, resident) = (dense, None, true);
        *network = FeedForward { neurons, router, resident, ..network.clone() };
    }
    (config, names)
}

/// The file's number for sigmoid gating.
const SIGMOID: usize = 2;

fn read(k: &Keys<'_>) -> (Config, Names) {
    // zero key and value heads mean a convolution
    let kv_heads = k.whole_of_layers("attention.head_count_kv", k.size("block_count"));
    let most = kv_heads.iter().copied().max().unwrap_or(0);
    if kv_heads.iter().any(|&heads| heads != 0 && heads != most) {
        k.refuse_value("attention.head_count_kv", "one number for all layers with attention");
    }
    let shapes = Shapes::with_kv_heads(k, most, "attention.layer_norm_rms_epsilon");
    let rope = shapes.rope(k, Pairing::Halves);
    let taps = k.size("shortconv.l_cache");
    let window = k.whole("attention.sliding_window").filter(|&window| window > 0);
    let network = shapes.feed_forward(k, k.activation(Activation::Silu));
    let blocks = shapes.blocks(&network, |layer| match kv_heads.get(layer) {
        None | Some(0) => Mixer::Convolution(Convolution { taps }),
        Some(_) => {
            let norm = Some(HeadNorm::Head);
            Mixer::Attention(Attention { norm, window, ..shapes.attention(k, layer) })
        }
    });
    let names = Names { output_norm: Some("token_embd_norm.weight"), ..Names::default() };
    (shapes.config(k, vec![rope], blocks), names)
}
