//! `gemma3n`: several residual streams, a low-rank branch beside attention, an embedding for each layer, and last
//! layers that read the keys and values of others. The first layers keep only their highest gates; their networks
//! are always in memory. Layers with a window have a rotary embedding of their own.

use kernels::Activation;

use super::super::config::{Attention, Config, HeadNorm, Mixing, Norms, Pairing, Rope, Streams};
use super::gemma4::{owners, unused};
use super::shapes::Shapes;
use super::{Keys, Names};

/// The rotary embedding of layers without a window, and with one.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let shapes = Shapes::read(k);
    let windowed = k.pattern("attention.sliding_window_pattern", shapes.layers, 5);
    let window = k.size("attention.sliding_window");
    let global = shapes.rope(k, Pairing::Halves);
    let local =
        Rope::plain(Pairing::Halves, global.width, k.number("rope.freq_base_swa").unwrap_or(10_000.0));
    // the key decides how many layers have keys and values
    k.size("attention.shared_kv_layers");
    let owners = owners(k, &windowed);

    let neurons = k.whole_of_layers("feed_forward_length", shapes.layers);
    let cutoffs = k.numbers_of_layers("activation_sparsity_scale", shapes.layers);
    let cutoff = |layer: usize| {
        let found = cutoffs.as_ref().map(|cutoffs| cutoffs[layer]);
        found.filter(|&cutoff| cutoff != f32::NEG_INFINITY)
    };
    let of = |layer: usize| neurons.get(layer).copied().unwrap_or(0);
    let read = (0..shapes.layers).filter(|&layer| cutoff(layer).is_none());
    let most = read.map(of).max().unwrap_or(0);
    let network = shapes.feed_forward_of(k, k.activation(Activation::Gelu), most);
    let mut blocks = shapes.blocks(&network, |layer| {
        let plain = Attention {
            scale: 1.0,
            norm: Some(HeadNorm::Head),
            shares: owners[layer],
            value_norm: owners[layer].is_none(),
            ..shapes.attention(k, layer)
        };
        match windowed[layer] {
            true => Attention { window: Some(window), rope: Some(LOCAL), ..plain },
            false => Attention { rope: Some(GLOBAL), ..plain },
        }
    });
    for (layer, block) in blocks.iter_mut().enumerate() {
        block.norms = Norms::Both;
        block.branch_rank = k.rows(&format!("blk.{layer}.laurel_l.weight"));
        if let Some(network) = &mut block.feed_forward
            && (cutoff(layer).is_some() || of(layer) < most)
        {
            (network.gate_cutoff, network.neurons, network.resident) = (cutoff(layer), of(layer), true);
        }
    }
    let mut config = shapes.config(k, vec![global, local], blocks);
    config.embedding_scale = (shapes.width as f32).sqrt();
    config.logit_softcap = k.number_or_none("final_logit_softcapping");
    config.per_layer_width = k.whole("embedding_length_per_layer_input").filter(|&width| width > 0);
    config.streams = Some(Streams { count: k.size("altup.num_inputs"), mixing: Mixing::Alternating });
    if k.size("altup.active_idx") != 0 {
        k.refuse_value("altup.active_idx", "0, the first of the streams,");
    }
    (config, Names { unused: unused(&owners), ..Names::default() })
}
