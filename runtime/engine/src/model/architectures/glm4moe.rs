//! `glm4moe`: GLM 4.5 to 4.7, with partial rotations of heads, norms of heads in the largest, and a mixture
//! weighted by sigmoids.

use super::super::config::{Attention, Config, HeadNorm, Pairing, Role};
use super::mixture::{Mixture, Usual};
use super::shapes::Shapes;
use super::{Keys, Names};

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let mut shapes = Shapes::read(k);
    let left_out = shapes.leave_out_guesses(k);
    // for text all sections have the same position
    k.ignore("rope.dimension_sections");
    let rope = shapes.rope(k, Pairing::Halves);
    let norm = Some(HeadNorm::Head).filter(|_| k.has_tensor("blk.0.attn_q_norm.weight"));
    let mixture = Mixture::read(k, &shapes, Usual::SIGMOID);
    let blocks = mixture.blocks(&shapes, |layer| Attention { norm, ..shapes.attention(k, layer) });
    let others = vec![(Role::FfnNorm, "post_attention_norm.weight")];
    (shapes.config(k, vec![rope], blocks), Names { others, left_out, ..Names::default() })
}
