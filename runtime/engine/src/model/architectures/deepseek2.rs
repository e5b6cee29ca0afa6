//! `deepseek2`: latent attention, dense networks first and then experts beside shared ones: `DeepSeek` V2 and V3, GLM 4.7 Flash.

use kernels::Activation;

use super::super::config::{
    Attention, Config, FeedForward, Gating, Latent, Pairing, Rope, RopeScaling, Router,
};
use super::shapes::Shapes;
use super::{Keys, Names};

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let attention = attention(k);
    let epsilon = "attention.layer_norm_rms_epsilon";
    let mut shapes = Shapes::with_heads(k, attention.kv_heads, attention.head_width, epsilon);
    let left_out = shapes.leave_out_guesses(k);
    let mut rope = shapes.rope(k, Pairing::Adjacent);
    let growth = growth(k, &mut rope);
    let attention = Attention { scale: growth * growth * attention.scale, ..attention };
    let leading = k.whole("leading_dense_block_count").unwrap_or(0);
    let network = network(k, &shapes, leading);
    let mut blocks = shapes.blocks(&network, |_| attention.clone());
    if network.router.is_some() {
        let dense = if leading > 0 { k.size("feed_forward_length") } else { 1 };
        for network in blocks.iter_mut().take(leading).filter_map(|block| block.feed_forward.as_mut()) {
            let (router, resident, shared_neurons) = (None, true, None);
            *network = FeedForward { neurons: dense, router, resident, shared_neurons, ..network.clone() };
        }
    }
    (shapes.config(k, vec![rope], blocks), Names { left_out, ..Names::default() })
}

/// Attention over what is kept, its scale without that of the rotary embedding.
fn attention(k: &Keys<'_>) -> Attention {
    let heads = k.size("attention.head_count");
    let (rank, rotated) = (k.size("attention.kv_lora_rank"), k.size("rope.dimension_count"));
    // without it keys and values are made by one matrix, whose blocks lie the wrong way for queries
    let is_absorbed = k.whole("attention.key_length_mla").is_some();
    let (width, value) = (k.size("attention.key_length_mla"), k.size("attention.value_length_mla"));
    let head_width = rank.saturating_add(rotated);
    let kept = [
        ("attention.head_count_kv", 1),
        ("attention.key_length", head_width),
        ("attention.value_length", rank),
    ];
    for (key, expected) in kept {
        if k.whole(key).is_some_and(|found| is_absorbed && found != expected) {
            k.refuse_value(key, &format!("{expected}, of one vector for all heads,"));
        }
    }
    // light models have a rank of queries in their files, and no use for it
    let query_rank = k.whole("attention.q_lora_rank").filter(|&rank| rank > 0);
    let query_rank = query_rank.filter(|_| !k.has_tensor("blk.0.attn_q.weight"));
    let latent = Latent { query_rank, rank, plain: width.saturating_sub(rotated), rotated, value };
    Attention {
        scale: 1.0 / (width as f32).sqrt(),
        rope: Some(0),
        latent: Some(latent),
        ..Attention::plain(heads, 1, head_width)
    }
}

/// The growth of queries and of keys with `YaRN`'s factor, which is not that of cosines and sines: these stay as they are.
fn growth(k: &Keys<'_>, rope: &mut Rope) -> f32 {
    rope.magnitude = 1.0;
    // a tenth of what configurations call `mscale_all_dim`
    let slope = k.number_or_none("rope.scaling.yarn_log_multiplier");
    if k.number("rope.scaling.attn_factor").is_some_and(|factor| factor != 1.0) {
        k.refuse_value("rope.scaling.attn_factor", "1");
    }
    match (rope.scaling, slope) {
        (RopeScaling::None, _) => 1.0,
        (RopeScaling::Yarn { factor, .. }, Some(slope)) => 1.0 + slope * factor.ln(),
        (RopeScaling::Yarn { .. }, None) => {
            // implementations disagree about such files
            k.refuse_value("rope.scaling.yarn_log_multiplier", "YaRN with a number other than 0");
            1.0
        }
        (RopeScaling::Linear { .. }, _) => {
            k.refuse_value("rope.scaling.type", "none or yarn");
            1.0
        }
    }
}

/// The experts with those that every token visits, or the dense network where there are none.
fn network(k: &Keys<'_>, shapes: &Shapes, leading: usize) -> FeedForward {
    let network = shapes.feed_forward(k, k.activation(Activation::Silu));
    if k.whole("expert_group_count").is_some_and(|groups| groups > 1) {
        k.refuse_value("expert_group_count", "1");
    }
    k.ignore("expert_group_used_count");
    k.ignore("expert_weights_scale"); // the router's, where there is one
    let renormalise = k.flag("expert_weights_norm").unwrap_or(false);
    let shared = k.whole("expert_shared_count").unwrap_or(0);
    let gating = gating(k, shapes);
    let selection_bias = k.has_tensor(&format!("blk.{leading}.exp_probs_b.bias"));
    match network.router {
        None => network,
        Some(router) => FeedForward {
            shared_neurons: Some(shared.saturating_mul(network.neurons)).filter(|&neurons| neurons > 0),
            router: Some(Router { gating, renormalise, selection_bias, ..router }),
            ..network
        },
    }
}

/// How experts are weighed. Early files do not say it: those of GLM 4.7 Flash, which its layers and vocabulary tell, by sigmoids, others
/// by a softmax.
fn gating(k: &Keys<'_>, shapes: &Shapes) -> Gating {
    match k.whole("expert_gating_func").unwrap_or(0) {
        0 if matches!(shapes.layers, 47 | 48) && shapes.vocabulary == 154_880 => Gating::Sigmoid,
        0 | 1 => Gating::Softmax,
        2 => Gating::Sigmoid,
        _ => {
            k.refuse_value("expert_gating_func", "1 or 2");
            Gating::Softmax
        }
    }
}
