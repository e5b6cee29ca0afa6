//! `deepseek2`: latent attention, and a mixture: `DeepSeek` V2, V3 and R1, Kimi K2, GLM 4.7 Flash.

use super::super::config::{Attention, Config, Latent, Pairing, Rope, RopeScaling};
use super::mixture::{Mixture, Usual};
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
    let mixture = Mixture::read(k, &shapes, usual(&shapes));
    let blocks = mixture.blocks(&shapes, |_| attention.clone());
    (shapes.config(k, vec![rope], blocks), Names { left_out, ..Names::default() })
}

/// [`latent`] in all layers.
fn attention(k: &Keys<'_>) -> Attention {
    let attention = latent(k);
    let rank = attention.latent.map_or(0, |latent| latent.rank);
    keeps(k, &[("attention.head_count_kv", 1), ("attention.value_length", rank)]);
    attention
}

/// Refuses other values of keys that describe the stored vector.
fn keeps(k: &Keys<'_>, expected: &[(&str, usize)]) {
    // without this key one matrix makes keys and values, and its blocks are in the wrong order for queries
    let is_absorbed = k.whole("attention.key_length_mla").is_some();
    for &(key, expected) in expected {
        if k.whole(key).is_some_and(|found| is_absorbed && found != expected) {
            k.refuse_value(key, &format!("{expected}, of one vector for all heads,"));
        }
    }
}

/// Attention over the stored latent vector; its scale excludes the rotary embedding's.
pub(super) fn latent(k: &Keys<'_>) -> Attention {
    let heads = k.size("attention.head_count");
    let (rank, rotated) = (k.size("attention.kv_lora_rank"), k.size("rope.dimension_count"));
    let (width, value) = (k.size("attention.key_length_mla"), k.size("attention.value_length_mla"));
    let head_width = rank.saturating_add(rotated);
    keeps(k, &[("attention.key_length", head_width)]);
    // light models have an unused rank of queries in their files
    let query_rank = k.whole("attention.q_lora_rank").filter(|&rank| rank > 0);
    let query_rank = query_rank.filter(|_| !k.has_tensor("blk.0.attn_q.weight"));
    let plain = width.saturating_sub(rotated);
    let latent = Latent { query_rank, rank, plain, rotated, value, gate: false };
    Attention {
        scale: 1.0 / (width as f32).sqrt(),
        rope: Some(0),
        latent: Some(latent),
        ..Attention::plain(heads, 1, head_width)
    }
}

/// The growth of queries and keys with `YaRN`'s factor. It replaces the growth of cosines and sines, which
/// stay unscaled.
pub(super) fn growth(k: &Keys<'_>, rope: &mut Rope) -> f32 {
    rope.magnitude = 1.0;
    // a tenth of `mscale_all_dim` in configurations
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

/// The default gating of files that do not name one. Early files of GLM 4.7 Flash use sigmoids; their number
/// of layers and vocabulary identify them.
fn usual(shapes: &Shapes) -> Usual {
    let is_glm = matches!(shapes.layers, 47 | 48) && shapes.vocabulary == 154_880;
    if is_glm { Usual::SIGMOID } else { Usual::SOFTMAX }
}
