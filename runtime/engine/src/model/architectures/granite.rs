//! `granite` and `granitemoe`: a llama with factors of the embedding, of each block's output, of the scores and of the logits.

use kernels::Activation;

use super::super::config::{Attention, Config, Pairing};
use super::shapes::Shapes;
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

fn read(k: &Keys<'_>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let rope = shapes.rope(k, Pairing::Adjacent);
    let scale = k.number_or_none("attention.scale");
    let network = shapes.feed_forward(k, k.activation(Activation::Silu));
    let mut blocks = shapes.blocks(&network, |layer| {
        let plain = shapes.attention(k, layer);
        Attention { scale: scale.unwrap_or(plain.scale), ..plain }
    });
    let residual_scale = k.number_or_none("residual_scale").unwrap_or(1.0);
    blocks.iter_mut().for_each(|block| block.residual_scale = residual_scale);
    let mut config = shapes.config(k, vec![rope], blocks);
    config.embedding_scale = k.number_or_none("embedding_scale").unwrap_or(1.0);
    config.logit_scale = 1.0 / k.required_number("logit_scale");
    (config, Names::default())
}
