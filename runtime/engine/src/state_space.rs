//! A state space (Mamba-2) over rows of one sequence, from their projections to the input of the output
//! matrix.
//!
//! ```text
//! row      [ z | x | B | C | dt ]
//! state    [ previous values of each channel of x, B and C | a state for each value of each head ]
//!
//! x, B, C = silu(convolved(x, B, C) + bias)                               threads share channels
//! dt = softplus(dt + bias)                                                row by row
//! s = exp(dt a) s;  s += dt x B;  y = s . C + d x;  out = norm(y silu(z))     threads share groups of heads
//! ```
//!
//! Every thread takes the rows one after another, so chunks of a prompt, threads and other sequences change
//! no bit.

use kernels::{Activation, Kernels, rms_norm};

use crate::convolution::convolve_rows;
use crate::delta_net::as_row;
use crate::model::config::{Role, StateSpace, softplus};
use crate::pool::Pool;
use crate::weights::Weights;

/// A block's state space.
#[derive(Debug)]
pub(crate) struct Space<'a> {
    config: StateSpace,
    kernels: &'a dyn Kernels,
    epsilon: f32,
    /// `[channels, taps]`.
    taps: &'a [f32],
    /// `[channels]`.
    taps_bias: Option<&'a [f32]>,
    /// `[heads]`, all three.
    bias: &'a [f32],
    decay: &'a [f32],
    skip: &'a [f32],
    /// `[groups, group width]`.
    norm: &'a [f32],
}

impl<'a> Space<'a> {
    /// The state space of a block that has one.
    pub(crate) fn new(
        config: StateSpace,
        kernels: &'a dyn Kernels,
        epsilon: f32,
        weights: &'a Weights,
        block: usize,
    ) -> Self {
        let of = |role: Role| weights.values(block, role).unwrap_or_default();
        let [taps, bias, decay, skip, norm] =
            [Role::StateTaps, Role::StateBias, Role::StateDecay, Role::StateSkip, Role::StateNorm].map(of);
        let taps_bias = weights.values(block, Role::StateTapsBias);
        Self { config, kernels, epsilon, taps, taps_bias, bias, decay, skip, norm }
    }

    /// *Shapes*: `projected: [rows, projected_values]`, `state: [state_values]`, `out: [rows, inner_width]`.
    pub(crate) fn run(&self, pool: &Pool, projected: &mut [f32], state: &mut [f32], out: &mut [f32]) {
        let StateSpace { heads, head_width, groups, .. } = self.config;
        let (inner, channels) = (self.config.inner_width(), self.config.channels());
        let stride = inner + channels + heads;
        let (before, states) = state.split_at_mut(self.config.convolved_values());
        convolve_rows(pool, self.taps, self.taps_bias, before, projected, stride, inner..inner + channels);
        for row in projected.chunks_exact_mut(stride) {
            for (step, bias) in row[stride - heads..].iter_mut().zip(self.bias) {
                *step = softplus(*step + bias);
            }
        }
        let (projected, group_width) = (&*projected, inner / groups);
        let of_group = heads / groups;
        pool.share_columns_with(out, inner, 0..inner, states, group_width, |columns, states| {
            let first = columns.range().start / group_width;
            for (row, projected) in projected.chunks_exact(stride).enumerate() {
                let outs = columns.row(row).chunks_exact_mut(group_width);
                let states = states.chunks_exact_mut(group_width * self.config.state);
                for (group, (out, states)) in (first..).zip(outs.zip(states)) {
                    let outs = out.chunks_exact_mut(head_width);
                    let states = states.chunks_exact_mut(head_width * self.config.state);
                    for (head, (out, states)) in (group * of_group..).zip(outs.zip(states)) {
                        self.head(projected, group, head, states, out);
                    }
                    self.gate(projected, group, out);
                }
            }
        });
    }

    /// Computes one head of a row: `states: [head_width, state]`, `out: [head_width]`.
    fn head(&self, row: &[f32], group: usize, head: usize, states: &mut [f32], out: &mut [f32]) {
        let StateSpace { heads, head_width, groups, state: width, .. } = self.config;
        let inner = self.config.inner_width();
        let along = |at: usize| &row[2 * inner + (at * groups + group) * width..][..width];
        let (written, read) = (as_row(along(0)), along(1));
        let step = row[row.len() - heads + head];
        let stays = (step * self.decay[head]).exp();
        let values = &row[inner + head * head_width..][..head_width];
        for ((state, &x), out) in states.chunks_exact_mut(width).zip(values).zip(out) {
            state.iter_mut().for_each(|state| *state *= stays);
            self.kernels.axpy(step * x, written, state);
            *out = self.kernels.dot(as_row(state), read) + self.skip[head] * x;
        }
    }

    /// Gates the output of a group's states, then normalises it.
    fn gate(&self, row: &[f32], group: usize, out: &mut [f32]) {
        let width = out.len();
        let mut gated = [0.0; StateSpace::GROUP_WIDTH_MAX];
        let gated = &mut gated[..width];
        let gates = &row[group * width..][..width];
        for ((gated, y), gate) in gated.iter_mut().zip(&*out).zip(gates) {
            *gated = Activation::Silu.apply(*gate, *y);
        }
        rms_norm(gated, &self.norm[group * width..][..width], self.epsilon, out);
    }
}
