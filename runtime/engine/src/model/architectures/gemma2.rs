//! `gemma2`: norms before and after each part, GELU, a bound of scores, and a window on every other layer.

use kernels::Activation;

use super::super::config::{Attention, Config, Norms, Pairing};
use super::shapes::Shapes;
use super::{Keys, Names};

/// Layers of the largest model, whose scale uses a head width that it does not have.
const LARGEST: usize = 46;

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let rope = shapes.rope(k, Pairing::Halves);
    let windows = shapes.windows(k, 2, Some(4096));
    let scaled_width = match shapes.layers {
        LARGEST => shapes.width.checked_div(shapes.heads).unwrap_or(1),
        _ => shapes.head_width,
    };
    let scale = 1.0 / (scaled_width as f32).sqrt();
    let softcap = bound(k, "attn_logit_softcapping", 50.0);
    let network = shapes.feed_forward(k, k.activation(Activation::Gelu));
    let mut blocks = shapes.blocks(&network, |layer| Attention {
        window: windows[layer],
        softcap,
        scale,
        ..shapes.attention(k, layer)
    });
    blocks.iter_mut().for_each(|block| block.norms = Norms::Both);
    let mut config = shapes.config(k, vec![rope], blocks);
    config.embedding_scale = (shapes.width as f32).sqrt();
    config.logit_softcap = bound(k, "final_logit_softcapping", 30.0);
    (config, Names::default())
}

/// A bound of scores or logits: the usual one where the file has no key, and none where it says 0.
fn bound(k: &Keys<'_>, key: &str, usual: f32) -> Option<f32> {
    Some(k.number(key).unwrap_or(usual)).filter(|&bound| bound != 0.0)
}
