//! `lfm2`: short convolutions, and now and then a layer of attention with a norm of each head.

use kernels::Activation;

use super::super::config::{Attention, Config, Convolution, HeadNorm, Mixer, Pairing};
use super::shapes::Shapes;
use super::{Keys, Names};

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    // no heads of keys and values: a convolution
    let kv_heads = k.whole_of_layers("attention.head_count_kv", k.size("block_count"));
    let most = kv_heads.iter().copied().max().unwrap_or(0);
    if kv_heads.iter().any(|&heads| heads != 0 && heads != most) {
        k.refuse_value("attention.head_count_kv", "one number for all layers with attention");
    }
    let shapes = Shapes::with_kv_heads(k, most);
    let rope = shapes.rope(k, Pairing::Halves);
    let taps = k.size("shortconv.l_cache");
    let window = k.whole("attention.sliding_window").filter(|&window| window > 0);
    let network = shapes.feed_forward(k, k.activation(Activation::Silu));
    let blocks = shapes.blocks(&network, |layer| match kv_heads.get(layer) {
        None | Some(0) => Mixer::Convolution(Convolution { taps }),
        Some(_) => {
            let norm = Some(HeadNorm::Head);
            Mixer::Attention(Attention { norm, window, ..shapes.attention(k, layer) })
        }
    });
    let names = Names { output_norm: Some("token_embd_norm.weight"), ..Names::default() };
    (shapes.config(k, vec![rope], blocks), names)
}
