//! `granite` and `granitemoe`: a llama with factors of the embedding, of each block's output, of the scores and of the logits.
//! `granitehybrid` replaces attention by a state space on most layers.

use kernels::Activation;

use super::super::config::{Attention, Config, Mixer, Pairing, StateSpace};
use super::shapes::{Shapes, state_space};
use super::{Keys, Names};

/// `granite`.
pub(super) fn read_dense(k: &Keys<'_>) -> (Config, Names) {
    read(k)
}

/// `granitemoe`.
pub(super) fn read_experts(k: &Keys<'_>) -> (Config, Names) {
    k.size("expert_count");
    let shared = k.whole("expert_shared_feed_forward_length").filter(|&neurons| neurons > 0);
    let (mut config, names) = read(k);
    config.networks_mut().for_each(|network| network.shared_neurons = shared);
    (config, names)
}

/// `granitehybrid`.
pub(super) fn read_hybrid(k: &Keys<'_>) -> (Config, Names) {
    let shared = k.whole("expert_shared_feed_forward_length").filter(|&neurons| neurons > 0);
    let kv_heads = k.whole_of_layers("attention.head_count_kv", k.size("block_count"));
    let most = kv_heads.iter().copied().max().unwrap_or(0);
    if kv_heads.iter().any(|&heads| heads != 0 && heads != most) {
        k.refuse_value("attention.head_count_kv", "one number for all layers with attention");
    }
    let shapes = Shapes::with_kv_heads(k, most, "attention.layer_norm_rms_epsilon");
    let space = state_space(k);
    // this key, which elsewhere says how a context was extended, says here whether there are rotations
    let is_rotated = k.flag("rope.scaling.finetuned").unwrap_or(true);
    let attention = attention(k, &shapes);
    let (mut config, names) = scaled(k, &shapes, |layer| match kv_heads.get(layer) {
        None | Some(0) => {
            let bias = k.has_tensor(&format!("blk.{layer}.ssm_conv1d.bias"));
            Mixer::StateSpace(StateSpace { bias, ..space })
        }
        Some(_) => {
            let own = attention(layer);
            Mixer::Attention(Attention { rope: own.rope.filter(|_| is_rotated), ..own })
        }
    });
    for network in config.networks_mut().filter(|network| network.router.is_some()) {
        network.shared_neurons = shared;
    }
    (config, names)
}

fn read(k: &Keys<'_>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let attention = attention(k, &shapes);
    scaled(k, &shapes, attention)
}

fn attention<'k>(k: &'k Keys<'k>, shapes: &'k Shapes) -> impl Fn(usize) -> Attention + 'k {
    let scale = k.number_or_none("attention.scale");
    move |layer| {
        let plain = shapes.attention(k, layer);
        Attention { scale: scale.unwrap_or(plain.scale), ..plain }
    }
}

/// A model of these mixers, with its factors.
fn scaled<M: Into<Mixer>>(k: &Keys<'_>, shapes: &Shapes, mixer: impl Fn(usize) -> M) -> (Config, Names) {
    let rope = shapes.rope(k, Pairing::Adjacent);
    let network = shapes.feed_forward(k, k.activation(Activation::Silu));
    let mut blocks = shapes.blocks(&network, mixer);
    let residual_scale = k.number_or_none("residual_scale").unwrap_or(1.0);
    blocks.iter_mut().for_each(|block| block.residual_scale = residual_scale);
    let mut config = shapes.config(k, vec![rope], blocks);
    config.embedding_scale = k.number_or_none("embedding_scale").unwrap_or(1.0);
    config.logit_scale = 1.0 / k.required_number("logit_scale");
    (config, Names::default())
}
