//! `gemma3`: norms before and after each part, and GELU. Five layers have a window and their own rotary base
//! for each one without a window.

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
    let local_base = k.number("rope.freq_base_swa").unwrap_or(10_000.0);
    let local = Rope::plain(Pairing::Halves, global.width, local_base);
    let window = k.whole("attention.sliding_window").filter(|&window| window > 0);
    let windowed = k.pattern("attention.sliding_window_pattern", shapes.layers, 6);
    // the largest model's scale uses a head width that it does not have
    let largest = shapes.layers == 62;
    let scaled_width =
        if largest { shapes.width.checked_div(shapes.heads).unwrap_or(1) } else { shapes.head_width };
    let scale = 1.0 / (scaled_width as f32).sqrt();

    let network = shapes.feed_forward(k, k.activation(Activation::Gelu));
    let mut blocks = shapes.blocks(&network, |layer| {
        let (window, rope) =
            if window.is_some() && windowed[layer] { (window, LOCAL) } else { (None, GLOBAL) };
        let norm = Some(HeadNorm::Head);
        Attention { window, rope: Some(rope), norm, scale, ..shapes.attention(k, layer) }
    });
    blocks.iter_mut().for_each(|block| block.norms = Norms::Both);
    let mut config = shapes.config(k, vec![global, local], blocks);
    config.embedding_scale = (shapes.width as f32).sqrt();
    config.logit_softcap = k.number_or_none("final_logit_softcapping");
    (config, Names::default())
}
