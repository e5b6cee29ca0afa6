//! A gated delta net over rows of one sequence, from their projections to the input of the output matrix.
//!
//! ```text
//! row      [ q | k | v | gate | alpha and beta ]
//! state    [ previous values of each channel of q, k and v | a matrix for each value head, transposed ]
//!
//! q, k, v = silu(convolved(q, k, v))        threads share channels, all rows of a channel in one thread
//! q, k = q / |q|, k / |k|;  stays, rate     row by row
//! S' = stays S;  S' += k (rate (v - S'^T k))^T;  y = S'^T q / sqrt(width);  out = norm(y) silu(gate)    threads share heads
//! ```
//!
//! The matrices are transposed so that one row holds all products with one value. Every thread takes the rows
//! one after another, so chunks of a prompt, threads and other sequences change no bit.

use kernels::{Activation, Format, Kernels, Row, rms_norm};

use crate::convolution::convolve_rows;
use crate::model::config::{DeltaNet, Role};
use crate::pool::Pool;
use crate::weights::Weights;

/// A block's delta net.
#[derive(Debug)]
pub(crate) struct Net<'a> {
    config: DeltaNet,
    kernels: &'a dyn Kernels,
    epsilon: f32,
    /// `[channels, taps]`.
    taps: &'a [f32],
    /// `[value_heads]`, both.
    bias: &'a [f32],
    decay: &'a [f32],
    /// `[head_width]`.
    norm: &'a [f32],
}

impl<'a> Net<'a> {
    /// The delta net of a block that has one.
    pub(crate) fn new(
        config: DeltaNet,
        kernels: &'a dyn Kernels,
        epsilon: f32,
        weights: &'a Weights,
        block: usize,
    ) -> Self {
        let of = |role: Role| weights.values(block, role).unwrap_or_default();
        let [taps, bias, decay, norm] =
            [Role::StateTaps, Role::StateBias, Role::StateDecay, Role::StateNorm].map(of);
        Self { config, kernels, epsilon, taps, bias, decay, norm }
    }

    /// *Shapes*: `projected: [rows, projected_values]`, `state: [state_values]`, `out: [rows, value_width]`.
    pub(crate) fn run(&self, pool: &Pool, projected: &mut [f32], state: &mut [f32], out: &mut [f32]) {
        let DeltaNet { value_heads, head_width: width, .. } = self.config;
        let (channels, values) = (self.config.channels(), self.config.value_width());
        let stride = channels + values + 2 * value_heads;
        let (before, matrices) = state.split_at_mut(self.config.convolved_values());
        convolve_rows(pool, self.taps, None, before, projected, stride, 0..channels);
        projected.chunks_exact_mut(stride).for_each(|row| self.prepare(row));
        let projected = &*projected;
        pool.share_columns_with(out, values, 0..values, matrices, width, |columns, matrices| {
            let first = columns.range().start / width;
            for (row, projected) in projected.chunks_exact(stride).enumerate() {
                let outs = columns.row(row).chunks_exact_mut(width);
                let heads = outs.zip(matrices.chunks_exact_mut(width * width));
                for (head, (out, matrix)) in (first..).zip(heads) {
                    self.head(projected, head, matrix, out);
                }
            }
        });
    }

    /// Normalises a row's queries and keys, and computes how much of each head's matrix stays and how much is
    /// written.
    fn prepare(&self, row: &mut [f32]) {
        let (width, heads) = (self.config.head_width, self.config.value_heads);
        for head in row[..2 * self.config.key_width()].chunks_exact_mut(width) {
            let length = (self.kernels.dot(as_row(head), head) + DeltaNet::EPSILON).sqrt();
            head.iter_mut().for_each(|value| *value /= length);
        }
        let at = row.len() - 2 * heads;
        let both = &mut row[at..];
        for (head, (bias, decay)) in self.bias.iter().zip(self.decay).enumerate() {
            let (alpha, beta) = self.config.alpha_and_beta(head);
            both[alpha] = (decay * softplus(both[alpha] + bias)).exp();
            both[beta] = 1.0 / (1.0 + (-both[beta]).exp());
        }
    }

    /// Computes one head of a row: `matrix: [head_width, head_width]`, `out: [head_width]`.
    fn head(&self, row: &[f32], head: usize, matrix: &mut [f32], out: &mut [f32]) {
        let DeltaNet { value_heads, head_width: width, .. } = self.config;
        let key_head = self.config.key_head(head);
        let (keys, channels) = (self.config.key_width(), self.config.channels());
        let of = |first: usize, head: usize| &row[first + head * width..][..width];
        let (query, key) = (of(0, key_head), as_row(of(keys, key_head)));
        let (new, gate) = (of(2 * keys, head), of(channels, head));
        let both = &row[row.len() - 2 * value_heads..];
        let (alpha, beta) = self.config.alpha_and_beta(head);
        let (stays, rate) = (both[alpha], both[beta]);
        let root = (width as f32).sqrt();
        let mut read = [0.0; DeltaNet::HEAD_WIDTH_MAX];
        let read = &mut read[..width];
        for ((state, new), read) in matrix.chunks_exact_mut(width).zip(new).zip(&mut *read) {
            state.iter_mut().for_each(|state| *state *= stays);
            let known = self.kernels.dot(key, state);
            self.kernels.axpy(rate * (new - known), key, state);
            *read = self.kernels.dot(as_row(state), query) / root;
        }
        rms_norm(read, self.norm, self.epsilon, out);
        out.iter_mut().zip(gate).for_each(|(out, gate)| *out *= Activation::Silu.of_gate(*gate));
    }
}

/// `ln(1 + e^x)`.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// Views values as a row of weights.
pub(crate) fn as_row(values: &[f32]) -> Row<'_> {
    Row::new(Format::F32, bytemuck::cast_slice(values))
}
