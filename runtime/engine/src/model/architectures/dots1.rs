//! Mixtures after plain attention with a norm of each head: `dots1`, `hy_v3`, and `bailingmoe2` (Ling 2).

use super::super::config::{Attention, Config, HeadNorm, Pairing, Role};
use super::mixture::{Mixture, Usual};
use super::shapes::Shapes;
use super::{Keys, Names};

/// `dots1`.
pub(super) fn read_dots1(k: &Keys<'_>) -> (Config, Names) {
    read(k, Usual::SOFTMAX)
}

/// `bailingmoe2`.
pub(super) fn read_bailingmoe2(k: &Keys<'_>) -> (Config, Names) {
    read(k, Usual::SIGMOID)
}

/// `hy_v3`. Its files have no key for the dense layers; their tensors show which they are.
pub(super) fn read_hy_v3(k: &Keys<'_>) -> (Config, Names) {
    let (config, mut names) = read(k, Usual::SIGMOID);
    names.others.push((Role::SelectionBias, "exp_probs_b"));
    (config, names)
}

fn read(k: &Keys<'_>, usual: Usual) -> (Config, Names) {
    let mut shapes = Shapes::read(k);
    let left_out = shapes.leave_out_guesses(k);
    let rope = shapes.rope(k, Pairing::Halves);
    let norm = Some(HeadNorm::Head);
    let mixture = Mixture::read(k, &shapes, usual);
    let blocks = mixture.blocks(&shapes, |layer| Attention { norm, ..shapes.attention(k, layer) });
    (shapes.config(k, vec![rope], blocks), Names { left_out, ..Names::default() })
}
