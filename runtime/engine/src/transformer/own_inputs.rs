//! A block's own input of each token, from the per-layer embedding.
//!
//! ```text
//! input = (norm(projection embedded / sqrt(width)) + sqrt(own) * own embedding) / sqrt(2)
//! x += post_norm(output (gelu(gate x) * input))
//! ```
//!
//! With several residual streams, the output is added to all but the first.

use super::Transformer;
use super::matrices::multiply;
use super::vectors::{add, post_normed, scale};
use crate::model::config::Role;
use kernels::{Activation, rms_norm_in_place};

/// The vectors that a matrix of the block multiplies.
#[derive(Clone, Copy)]
enum Of {
    /// The tokens' scaled embeddings.
    Embeddings,
    /// The residual stream.
    Stream,
}

impl Transformer {
    /// Adds to the residual stream what a block makes of its own inputs, each of width `own`.
    pub(super) fn own_input_block(&mut self, block: usize, own: usize, rows: usize) {
        // projections: [rows, own] of the embeddings, then [rows, own] of the stream
        self.narrow(block, Role::PerLayerProjection, Of::Embeddings, rows, 0..rows * own);
        self.narrow(block, Role::PerLayerGate, Of::Stream, rows, rows * own..2 * rows * own);
        let (c, w) = (&self.config, &self.weights);
        let (projected, gates) = self.buffers.projections.split_at_mut(rows * own);
        scale(projected, 1.0 / (c.width as f32).sqrt());
        let weight = w.values(block, Role::PerLayerNorm).unwrap_or_default();
        let values = self.buffers.own_inputs[rows * c.width..].chunks_exact(c.per_layer_values());
        let inputs = projected.chunks_exact_mut(own).zip(gates.chunks_exact(own)).zip(values);
        for ((projected, gates), values) in inputs {
            rms_norm_in_place(projected, c.norm_epsilon);
            let embedding = &values[block * own..][..own];
            for (((value, &weight), embedding), &gate) in
                projected.iter_mut().zip(weight).zip(embedding).zip(gates)
            {
                let input = (*value * weight + (own as f32).sqrt() * embedding) / 2_f32.sqrt();
                *value = Activation::Gelu.apply(gate, input);
            }
        }
        self.widen_inputs(block, own, rows);
        let c = &self.config;
        let out = &self.buffers.block_output[..rows * c.width];
        let weight = self.weights.values(block, Role::PerLayerPostNorm);
        let out = post_normed(c, weight, out, &mut self.buffers.normed);
        match c.streams {
            None => add(&mut self.buffers.residual, out, 1.0),
            Some(streams) => {
                let all = self.buffers.streams.chunks_exact_mut(streams.count * c.width);
                for (all, out) in all.zip(out.chunks_exact(c.width)) {
                    all.chunks_exact_mut(c.width).skip(1).for_each(|stream| add(stream, out, 1.0));
                }
            }
        }
    }

    /// Multiplies rows of the model's width by a matrix, into a part of `projections`.
    fn narrow(&mut self, block: usize, role: Role, of: Of, rows: usize, to: std::ops::Range<usize>) {
        let elements = rows * self.config.width;
        // a prompt's product leaves its input packed
        let x = &mut self.buffers.normed[..elements];
        x.copy_from_slice(match of {
            Of::Embeddings => &self.buffers.own_inputs[..elements],
            Of::Stream => &self.buffers.residual[..elements],
        });
        let (parts, out) = ([self.weights.matrix(block, role)], &mut self.buffers.projections[to]);
        let words = &mut self.layers.feed_forward.rounded[0];
        let spare = &mut self.buffers.block_output;
        multiply(&self.compute, &mut self.fetcher, words, &parts, x, spare, (out, 0));
    }

    /// Multiplies the gated inputs, the front of `projections`, by the output matrix: `block_output: [rows,
    /// width]`.
    fn widen_inputs(&mut self, block: usize, own: usize, rows: usize) {
        let parts = [self.weights.matrix(block, Role::PerLayerOutput)];
        let (x, spare) = self.buffers.projections.split_at_mut(rows * own);
        let out = &mut self.buffers.block_output[..rows * self.config.width];
        let words = &mut self.layers.feed_forward.rounded[0];
        multiply(&self.compute, &mut self.fetcher, words, &parts, x, spare, (out, 0));
    }
}
