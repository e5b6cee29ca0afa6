//! A gated delta net over rows of one sequence, from their projections to the input of the output matrix.
//!
//! ```text
//! row      [ q | k | v | alpha and beta, or beta | low gate | low alpha | gate | alpha of each channel ]
//! state    [ previous values of each channel of q, k and v | a matrix for each value head, transposed ]
//!
//! q, k, v = silu(convolved(q, k, v))        threads share channels, all rows of a channel in one thread
//! q, k = q / |q|, k / |k|;  stays, rate     row by row; of channels, head by head
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
    /// `[channels, taps]` of all channels, or of queries, keys and values.
    taps: [&'a [f32]; 3],
    /// `[value_heads]`, or of each channel.
    bias: &'a [f32],
    /// `[value_heads]`.
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
        let [bias, decay, norm] = [Role::StateBias, Role::StateDecay, Role::StateNorm].map(of);
        let mut taps: [&[f32]; 3] = [&[]; 3];
        taps.iter_mut().zip(config.taps_roles()).for_each(|(taps, role)| *taps = of(*role));
        Self { config, kernels, epsilon, taps, bias, decay, norm }
    }

    /// *Shapes*: `projected: [rows, projected_values]`, `state: [state_values]`, `out: [rows, value_width]`.
    pub(crate) fn run(&self, pool: &Pool, projected: &mut [f32], state: &mut [f32], out: &mut [f32]) {
        let (width, values) = (self.config.head_width, self.config.value_width());
        let stride = self.config.projected_values();
        let (mut before, matrices) = state.split_at_mut(self.config.convolved_values());
        let mut first = 0;
        for taps in self.taps.into_iter().filter(|taps| !taps.is_empty()) {
            let channels = first..first + taps.len() / self.config.taps;
            let (own, rest) =
                std::mem::take(&mut before).split_at_mut(channels.len() * (self.config.taps - 1));
            (first, before) = (channels.end, rest);
            convolve_rows(pool, taps, None, own, projected, stride, channels);
        }
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

    /// Normalises a row's queries and keys, and computes how much of each head's matrix is written and, without
    /// decays of channels, how much stays.
    fn prepare(&self, row: &mut [f32]) {
        let (width, channels) = (self.config.head_width, self.config.channels());
        for head in row[..2 * self.config.key_width()].chunks_exact_mut(width) {
            let length = (self.kernels.dot(as_row(head), head) + DeltaNet::EPSILON).sqrt();
            head.iter_mut().for_each(|value| *value /= length);
        }
        let of_heads = &mut row[channels..][..self.config.head_values()];
        for (head, decay) in self.decay.iter().enumerate() {
            let (alpha, beta) = self.config.alpha_and_beta(head);
            if self.config.channel_decay.is_none() {
                of_heads[alpha] = self.config.decay(*decay, of_heads[alpha] + self.bias[head]);
            }
            of_heads[beta] = sigmoid(of_heads[beta]);
        }
    }

    /// Computes one head of a row: `matrix: [head_width, head_width]`, `out: [head_width]`.
    fn head(&self, row: &[f32], head: usize, matrix: &mut [f32], out: &mut [f32]) {
        let (width, key_head) = (self.config.head_width, self.config.key_head(head));
        let (keys, channels) = (self.config.key_width(), self.config.channels());
        let gates = row.len() - self.config.wide_values();
        let of = |first: usize, head: usize| &row[first + head * width..][..width];
        let (query, key) = (of(0, key_head), as_row(of(keys, key_head)));
        let (new, gate) = (of(2 * keys, head), of(gates, head));
        let (alpha, beta) = self.config.alpha_and_beta(head);
        let rate = row[channels + beta];
        let mut stays = [0.0; DeltaNet::HEAD_WIDTH_MAX];
        let stays = &mut stays[..width];
        if self.config.channel_decay.is_some() {
            let channels = of(gates + self.config.value_width(), head).iter().zip(&self.bias[head * width..]);
            let of_channel = |(x, bias): (&f32, &f32)| self.config.decay(self.decay[head], x + bias);
            stays.iter_mut().zip(channels).for_each(|(stays, channel)| *stays = of_channel(channel));
        } else {
            stays.fill(row[channels + alpha]);
        }
        let root = (width as f32).sqrt();
        let mut read = [0.0; DeltaNet::HEAD_WIDTH_MAX];
        let read = &mut read[..width];
        for ((state, new), read) in matrix.chunks_exact_mut(width).zip(new).zip(&mut *read) {
            state.iter_mut().zip(&*stays).for_each(|(state, stays)| *state *= stays);
            let known = self.kernels.dot(key, state);
            self.kernels.axpy(rate * (new - known), key, state);
            *read = self.kernels.dot(as_row(state), query) / root;
        }
        rms_norm(read, self.norm, self.epsilon, out);
        let open: fn(f32) -> f32 = match self.config.has_sigmoid_gate() {
            false => |gate| Activation::Silu.of_gate(gate),
            true => sigmoid,
        };
        out.iter_mut().zip(gate).for_each(|(out, gate)| *out *= open(*gate));
    }
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Views values as a row of weights.
pub(crate) fn as_row(values: &[f32]) -> Row<'_> {
    Row::new(Format::F32, bytemuck::cast_slice(values))
}
