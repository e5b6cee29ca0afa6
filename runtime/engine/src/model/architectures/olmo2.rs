//! `olmo2`, also used for `OLMo` 3: norms only after each part, and norms of queries and keys over the whole
//! width.
//!
//! `OLMo` 3 has a window on three of four layers; only the fourth is scaled for a longer context.

use kernels::Activation;

use super::super::config::{Attention, Config, HeadNorm, Norms, Pairing, Rope};
use super::shapes::Shapes;
use super::{Keys, Names};

/// The rotary embedding of layers without a window, and with one.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let global = shapes.rope(k, Pairing::Halves);
    let local_base = k.number("rope.freq_base_swa").unwrap_or(global.base);
    let local = Rope::plain(Pairing::Halves, global.width, local_base);
    let windows = shapes.windows(k, 4, None);
    let network = shapes.feed_forward(k, k.activation(Activation::Silu));
    let mut blocks = shapes.blocks(&network, |layer| {
        let (window, norm) = (windows[layer], Some(HeadNorm::Width));
        let rope = Some(if window.is_some() { LOCAL } else { GLOBAL });
        Attention { norm, window, rope, ..shapes.attention(k, layer) }
    });
    blocks.iter_mut().for_each(|block| block.norms = Norms::After);
    (shapes.config(k, vec![global, local], blocks), Names::default())
}
