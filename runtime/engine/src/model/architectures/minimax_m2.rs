//! `minimax-m2`: norms of queries and keys over the whole width, partial rotations of heads, experts weighted
//! by sigmoids.

use super::super::config::{Attention, Config, HeadNorm, Pairing};
use super::mixture::{Mixture, Usual};
use super::shapes::Shapes;
use super::{Keys, Names};

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let rope = shapes.rope(k, Pairing::Halves);
    let norm = Some(HeadNorm::Width);
    let mixture = Mixture::read(k, &shapes, Usual::SIGMOID.renormalised());
    let blocks = mixture.blocks(&shapes, |layer| Attention { norm, ..shapes.attention(k, layer) });
    (shapes.config(k, vec![rope], blocks), Names::default())
}
