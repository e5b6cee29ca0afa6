//! Gated residual streams of each row: what a mixer, a network and the head read of them, and what mixers and
//! networks add. See [`Mixing`](crate::model::config::Mixing).
//!
//! ```text
//! buffer   projections                                   residual
//! mix      [normalised streams | gates | low]            mean of gate * normalised stream
//! inject                                                 streams += 2 sigmoid(inject n / count) * block_output
//! ```

use super::Transformer;
use super::matrices::multiply;
use super::vectors::add;
use crate::delta_net::{as_row, sigmoid};
use crate::model::config::{Role, Streams};
use kernels::{Activation, rms_norm};

/// Who reads the streams.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// The mixer of a block.
    Mixer(usize),
    /// The network of a block.
    Network(usize),
    /// The head.
    Head,
}

impl Transformer {
    /// Makes the residual stream of what is read at a place.
    pub(super) fn mix_streams(&mut self, place: Place, streams: Streams, rows: usize) {
        let (c, w) = (&self.config, &self.weights);
        let (count, width, all) = (streams.count, c.width, streams.count * c.width);
        let last = c.blocks.len() - 1;
        let (block, norm, [down, up]) = match place {
            Place::Mixer(block) => {
                (block, w.values(block, Role::MixerGateNorm), [Role::MixerGateDown, Role::MixerGateUp])
            }
            Place::Network(block) => {
                (block, w.values(block, Role::NetworkGateNorm), [Role::NetworkGateDown, Role::NetworkGateUp])
            }
            Place::Head => (last, Some(w.output_norm()), [Role::OutputGateDown, Role::OutputGateUp]),
        };
        let norm = norm.unwrap_or_default();
        let (down, up) = ([w.matrix(block, down)], [w.matrix(block, up)]);
        let (normed, rest) = self.buffers.projections.split_at_mut(rows * all);
        let (gates, low) = rest.split_at_mut(rows * all);
        let low = &mut low[..rows * down[0].rows];
        let of_rows = self.buffers.streams[..rows * all].chunks_exact(all);
        for (row, normed) in of_rows.clone().zip(normed.chunks_exact_mut(all)) {
            let streams = row.chunks_exact(width).zip(norm.chunks_exact(width));
            for ((stream, weight), normed) in streams.zip(normed.chunks_exact_mut(width)) {
                rms_norm(stream, weight, c.norm_epsilon, normed);
            }
        }
        let words = &mut self.layers.feed_forward.rounded[0];
        multiply(&self.compute, &mut self.fetcher, words, &down, normed, gates, (&mut *low, 0));
        low.iter_mut().for_each(|value| *value = Activation::Silu.of_gate(*value / count as f32));
        let spare = &mut self.buffers.block_output;
        multiply(&self.compute, &mut self.fetcher, words, &up, low, spare, (&mut *gates, 0));
        // a prompt's product has packed the normalised streams
        let spare = &mut self.buffers.normed[..width];
        let of_rows = of_rows.zip(gates.chunks_exact(all)).zip(self.buffers.residual.chunks_exact_mut(width));
        for ((row, gates), x) in of_rows {
            x.fill(0.0);
            let streams = row.chunks_exact(width).zip(norm.chunks_exact(width));
            for ((stream, weight), gates) in streams.zip(gates.chunks_exact(width)) {
                rms_norm(stream, weight, c.norm_epsilon, spare);
                for ((x, gate), value) in x.iter_mut().zip(gates).zip(&*spare) {
                    *x += sigmoid(*gate) * value / count as f32;
                }
            }
        }
    }

    /// Adds the block's output to all streams, each with the weight that `norm` and `inject` give it.
    pub(super) fn inject(&mut self, block: usize, [norm, inject]: [Role; 2], streams: Streams, rows: usize) {
        let (c, kernels) = (&self.config, self.compute.kernels);
        let (count, width, all) = (streams.count, c.width, streams.count * c.width);
        let values = |role| self.weights.values(block, role).unwrap_or_default();
        let (norm, inject) = (values(norm), values(inject));
        let normed = &mut self.buffers.normed[..width];
        let of_rows = self.buffers.streams[..rows * all].chunks_exact_mut(all);
        for (row, out) in of_rows.zip(self.buffers.block_output.chunks_exact(width)) {
            let mut weights = [0.0; Streams::COUNT_MAX];
            let streams = row.chunks_exact(width).zip(norm.chunks_exact(width)).enumerate();
            for (at, (stream, weight)) in streams {
                rms_norm(stream, weight, c.norm_epsilon, normed);
                for (sum, inject) in weights[..count].iter_mut().zip(inject.chunks_exact(all)) {
                    *sum += kernels.dot(as_row(&inject[at * width..][..width]), normed);
                }
            }
            for (stream, weight) in row.chunks_exact_mut(width).zip(weights) {
                add(stream, out, 2.0 * sigmoid(weight / count as f32));
            }
        }
    }
}
