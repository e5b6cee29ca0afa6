//! `mellum`: experts, and a window on three of four layers, which have their own unscaled rotary base.

use kernels::Activation;

use super::super::config::{Attention, Config, HeadNorm, Pairing, Rope};
use super::shapes::Shapes;
use super::{Keys, Names};

/// The rotary embedding of layers without a window, and with one.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let mut shapes = Shapes::read(k);
    let left_out = shapes.leave_out_guesses(k);
    let global = shapes.rope(k, Pairing::Halves);
    let local_base = k.number("rope.freq_base_swa").unwrap_or(global.base);
    let local = Rope::plain(Pairing::Halves, global.width, local_base);
    let windows = shapes.windows(k, 4, None);
    let network = shapes.feed_forward(k, k.activation(Activation::Silu));
    let blocks = shapes.blocks(&network, |layer| {
        let (window, norm) = (windows[layer], Some(HeadNorm::Head));
        let rope = Some(if window.is_some() { LOCAL } else { GLOBAL });
        Attention { norm, window, rope, ..shapes.attention(k, layer) }
    });
    (shapes.config(k, vec![global, local], blocks), Names { left_out, ..Names::default() })
}
