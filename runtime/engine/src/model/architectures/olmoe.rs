//! `olmoe`: norms of queries and keys over the whole width; experts weighted by their probabilities.

use kernels::Activation;

use super::super::config::{Attention, Config, HeadNorm, Pairing};
use super::shapes::Shapes;
use super::{Keys, Names};

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let rope = shapes.rope(k, Pairing::Halves);
    let mut network = shapes.feed_forward(k, k.activation(Activation::Silu));
    if k.flag("expert_weights_norm").is_some_and(|norm| norm) {
        k.refuse_value("expert_weights_norm", "false");
    }
    if let Some(router) = &mut network.router {
        router.renormalise = false;
    }
    let norm = Some(HeadNorm::Width);
    let blocks = shapes.blocks(&network, |layer| Attention { norm, ..shapes.attention(k, layer) });
    (shapes.config(k, vec![rope], blocks), Names::default())
}
