//! Alternating residual streams of each row, and the low-rank branch beside a mixer: see
//! [`Mixing`](crate::model::config::Mixing).
//!
//! ```text
//! buffer   residual           streams
//! open     x                  [x | open[i] x, as long as x]
//! predict  s[0]               [s[i] + sum over j of P[i, j] s[j]]
//! correct  scale * s[0]       [s[i] + (1 + C[i]) (x - s[0])]        x: the residual stream after the block
//! join     mean of s[0] and of join[i] s[i], as long as s[0]
//! ```

use super::Transformer;
use super::matrices::multiply;
use super::vectors::{add, post_normed, scale};
use crate::delta_net::as_row;
use crate::model::config::{Config, Role, Streams, as_long, mean_square};
use crate::weights::Weights;
use kernels::{Kernels, Matrix, rms_norm};

/// Values of each stream that are predicted together.
const TOGETHER: usize = 64;

/// A block's router of streams.
struct Router<'a> {
    kernels: &'a dyn Kernels,
    epsilon: f32,
    norm: &'a [f32],
    /// `[streams, width]`.
    weights: &'a [f32],
    /// `[coefficients, streams]`.
    coefficients: &'a [f32],
}

impl<'a> Router<'a> {
    /// A block's router with the coefficients of a role.
    fn of(
        c: &Config,
        weights: &'a Weights,
        kernels: &'a dyn Kernels,
        (block, coefficients): (usize, Role),
    ) -> Self {
        let values = |role| weights.values(block, role).unwrap_or_default();
        Self {
            kernels,
            epsilon: c.norm_epsilon,
            norm: values(Role::StreamsRouterNorm),
            weights: values(Role::StreamsRouter),
            coefficients: values(coefficients),
        }
    }

    /// Calls `each` with the coefficients of one row, in order. `spare` is as long as `x`.
    fn route(&self, x: &[f32], spare: &mut [f32], mut each: impl FnMut(usize, f32)) {
        rms_norm(x, self.norm, self.epsilon, spare);
        let mut route = [0.0; Streams::COUNT_MAX];
        let count = self.weights.len() / x.len();
        for (value, weights) in route.iter_mut().zip(self.weights.chunks_exact(x.len())) {
            *value = (self.kernels.dot(as_row(weights), spare) / x.len() as f32).tanh();
        }
        for (at, row) in self.coefficients.chunks_exact(count).enumerate() {
            each(at, row.iter().zip(&route).map(|(weight, value)| weight * value).sum());
        }
    }
}

impl Transformer {
    /// Makes the streams of embeddings, which are the rows of the residual stream. Gated streams begin equal.
    pub(super) fn open_streams(&mut self, streams: Streams, rows: usize) {
        let (width, stride) = (self.config.width, streams.count * self.config.width);
        if streams.are_gated() {
            let all = self.buffers.streams[..rows * stride].chunks_exact_mut(stride);
            for (all, x) in all.zip(self.buffers.residual.chunks_exact(width)) {
                all.chunks_exact_mut(width).for_each(|stream| stream.copy_from_slice(x));
            }
            return;
        }
        let x = &mut self.buffers.normed[..rows * width];
        x.copy_from_slice(&self.buffers.residual[..rows * width]);
        let (parts, words) =
            ([self.weights.matrix(0, Role::StreamsOpen)], &mut self.layers.feed_forward.rounded[0]);
        let (spare, out) = (&mut self.buffers.block_output, &mut self.buffers.streams[..rows * stride]);
        multiply(&self.compute, &mut self.fetcher, words, &parts, x, spare, (&mut *out, width));
        for (all, x) in out.chunks_exact_mut(stride).zip(self.buffers.residual.chunks_exact(width)) {
            let (first, others) = all.split_at_mut(width);
            first.copy_from_slice(x);
            let square = mean_square(x);
            for stream in others.chunks_exact_mut(width) {
                scale(stream, as_long(mean_square(stream), square));
            }
        }
    }

    /// Replaces streams by their predictions. The first becomes the residual stream.
    pub(super) fn predict_streams(&mut self, block: usize, streams: Streams, rows: usize) {
        let (count, width) = (streams.count, self.config.width);
        let router =
            Router::of(&self.config, &self.weights, self.compute.kernels, (block, Role::StreamsPredict));
        let spare = &mut self.buffers.normed[..width];
        let all = self.buffers.streams[..rows * count * width].chunks_exact_mut(count * width);
        for (all, x) in all.zip(self.buffers.residual.chunks_exact_mut(width)) {
            let mut coefficients = [0.0; Streams::COUNT_MAX * Streams::COUNT_MAX];
            router.route(&all[..width], spare, |at, coefficient| coefficients[at] = coefficient);
            for first in (0..width).step_by(TOGETHER) {
                let values = TOGETHER.min(width - first);
                let mut before = [[0.0; TOGETHER]; Streams::COUNT_MAX];
                for (stream, before) in before[..count].iter_mut().enumerate() {
                    before[..values].copy_from_slice(&all[stream * width + first..][..values]);
                }
                for (stream, row) in coefficients[..count * count].chunks_exact(count).enumerate() {
                    let out = &mut all[stream * width + first..][..values];
                    row.iter().zip(&before).for_each(|(&by, other)| add(out, &other[..values], by));
                }
            }
            x.copy_from_slice(&all[..width]);
        }
    }

    /// Corrects streams by the residual stream that a block has computed. The residual stream becomes what the
    /// gate of the block's own inputs reads.
    pub(super) fn correct_streams(&mut self, block: usize, streams: Streams, rows: usize) {
        let (count, width) = (streams.count, self.config.width);
        let router =
            Router::of(&self.config, &self.weights, self.compute.kernels, (block, Role::StreamsCorrect));
        let factors = self.weights.values(block, Role::StreamsScale);
        let spare = &mut self.buffers.normed[..width];
        let all = self.buffers.streams[..rows * count * width].chunks_exact_mut(count * width);
        for (all, x) in all.zip(self.buffers.residual.chunks_exact_mut(width)) {
            let mut coefficients = [0.0; Streams::COUNT_MAX];
            router.route(x, spare, |at, coefficient| coefficients[at] = 1.0 + coefficient);
            x.iter_mut().zip(&*all).for_each(|(x, predicted)| *x -= predicted);
            for (stream, &by) in all.chunks_exact_mut(width).zip(&coefficients) {
                add(stream, x, by);
            }
            x.copy_from_slice(&all[..width]);
            x.iter_mut().zip(factors.unwrap_or_default()).for_each(|(x, factor)| *x *= factor);
        }
    }

    /// Makes the residual stream of all streams, after the last block.
    pub(super) fn join_streams(&mut self, streams: Streams, rows: usize) {
        let (count, width) = (streams.count, self.config.width);
        let elements = rows * width;
        let joined = self.weights.matrix(self.config.blocks.len() - 1, Role::StreamsJoin);
        let (x, made) = (&mut self.buffers.normed[..elements], &mut self.buffers.block_output[..elements]);
        let all = &self.buffers.streams[..rows * count * width];
        let of = |stream: usize| all.chunks_exact(width).skip(stream).step_by(count);
        for (x, first) in self.buffers.residual.chunks_exact_mut(width).zip(of(0)) {
            x.copy_from_slice(first);
        }
        for stream in 1..count {
            x.chunks_exact_mut(width).zip(of(stream)).for_each(|(x, stream)| x.copy_from_slice(stream));
            let bytes = joined.bytes.len() / (count - 1);
            let bytes = &joined.bytes[(stream - 1) * bytes..][..bytes];
            let parts = [Matrix { rows: width, bytes, ..joined }];
            let words = &mut self.layers.feed_forward.rounded[0];
            let spare = &mut self.buffers.projections;
            multiply(&self.compute, &mut self.fetcher, words, &parts, x, spare, (&mut *made, 0));
            let rows = self.buffers.residual.chunks_exact_mut(width).zip(made.chunks_exact(width));
            for ((x, made), first) in rows.zip(of(0)) {
                add(x, made, as_long(mean_square(made), mean_square(first)));
            }
        }
        scale(&mut self.buffers.residual[..elements], 1.0 / count as f32);
    }

    /// Adds the branch beside the mixer to the residual stream, which has the mixer's output. The mixer has read
    /// the first of the streams.
    pub(super) fn branch_block(&mut self, block: usize, streams: Streams, rank: usize, rows: usize) {
        let (c, w) = (&self.config, &self.weights);
        let elements = rows * c.width;
        let normed = &mut self.buffers.normed[..elements];
        let norm = w.values(block, Role::AttentionNorm).unwrap_or_default();
        let first = self.buffers.streams.chunks_exact(c.width).step_by(streams.count);
        for (normed, stream) in normed.chunks_exact_mut(c.width).zip(first) {
            rms_norm(stream, norm, c.norm_epsilon, normed);
        }
        add(&mut self.buffers.residual, normed, 1.0);
        let (low, spare) = self.buffers.projections.split_at_mut(rows * rank);
        let out = &mut self.buffers.block_output[..elements];
        let words = &mut self.layers.feed_forward.rounded[0];
        let (down, up) = ([w.matrix(block, Role::BranchDown)], [w.matrix(block, Role::BranchUp)]);
        multiply(&self.compute, &mut self.fetcher, words, &down, normed, out, (&mut *low, 0));
        multiply(&self.compute, &mut self.fetcher, words, &up, low, spare, (&mut *out, 0));
        let out = post_normed(c, w.values(block, Role::BranchNorm), out, &mut self.buffers.normed);
        add(&mut self.buffers.residual, out, 1.0);
        scale(&mut self.buffers.residual[..elements], std::f32::consts::FRAC_1_SQRT_2);
    }
}
