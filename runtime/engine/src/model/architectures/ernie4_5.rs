//! `ernie4_5` and `ernie4_5-moe`: a llama, and a mixture after a llama's attention, weighted by a softmax.

use super::super::config::{Config, Pairing};
use super::mixture::{Mixture, Usual};
use super::shapes::Shapes;
use super::{Keys, Names};

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let rope = shapes.rope(k, Pairing::Adjacent);
    let mixture = Mixture::read(k, &shapes, Usual::SOFTMAX.renormalised());
    let blocks = mixture.blocks(&shapes, |layer| shapes.attention(k, layer));
    (shapes.config(k, vec![rope], blocks), Names::default())
}
