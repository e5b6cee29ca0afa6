//! `exaone4` and `exaone-moe`: layers with a window have rotations; the others see all positions and have
//! none. `exaone4` has norms after each part, `exaone-moe` is a mixture.

use kernels::Activation;

use super::super::config::{Attention, Config, HeadNorm, Norms, Pairing};
use super::mixture::{Mixture, Usual};
use super::shapes::Shapes;
use super::{Keys, Names};

/// Layers of the larger `exaone4`, the only one that has windows.
const LARGEST: usize = 64;

/// `exaone4`.
pub(super) fn read_dense(k: &Keys<'_>) -> (Config, Names) {
    let mut shapes = Shapes::read(k);
    let left_out = shapes.leave_out_guesses(k);
    let network = shapes.feed_forward(k, k.activation(Activation::Silu));
    let usual = (shapes.layers == LARGEST).then_some(4096);
    let mut blocks = shapes.blocks(&network, attention(k, &shapes, usual));
    blocks.iter_mut().for_each(|block| block.norms = Norms::After);
    let rope = shapes.rope(k, Pairing::Halves);
    (shapes.config(k, vec![rope], blocks), Names { left_out, ..Names::default() })
}

/// `exaone-moe`.
pub(super) fn read_experts(k: &Keys<'_>) -> (Config, Names) {
    let mut shapes = Shapes::read(k);
    let left_out = shapes.leave_out_guesses(k);
    let mixture = Mixture::read(k, &shapes, Usual::SIGMOID);
    let window = k.size("attention.sliding_window");
    let blocks = mixture.blocks(&shapes, attention(k, &shapes, Some(window)));
    let rope = shapes.rope(k, Pairing::Halves);
    (shapes.config(k, vec![rope], blocks), Names { left_out, ..Names::default() })
}

/// The attention of each layer. If no layer has a window, all have rotations.
fn attention<'k>(
    k: &'k Keys<'k>,
    shapes: &'k Shapes,
    usual: Option<usize>,
) -> impl Fn(usize) -> Attention + 'k {
    let windows = shapes.windows(k, 4, usual);
    let has_windows = windows.iter().any(Option::is_some);
    move |layer| {
        let (window, norm) = (windows[layer], Some(HeadNorm::Head));
        let rope = Some(0).filter(|_| window.is_some() || !has_windows);
        Attention { norm, window, rope, ..shapes.attention(k, layer) }
    }
}
