//! Networks that are always in memory: shared experts, and dense ones beside experts.
//!
//! A token's shared expert is computed while missing routed experts are read. Its output is added after
//! theirs, so sums do not depend on timing.

use crate::fetch::Fetcher;
use crate::model::config::{Config, Role};
use crate::products::Inputs;
use crate::weights::Weights;
use kernels::Activation;

use super::compute::Compute;
use super::matrices::{times, times_prompt};
use super::vectors::{add, post_normed};

/// A resident network of a block.
#[derive(Clone, Copy)]
pub(super) struct Resident<'a> {
    config: &'a Config,
    weights: &'a Weights,
    compute: &'a Compute,
    block: usize,
    /// Gate, up and down.
    roles: [Role; 3],
    activation: Activation,
    /// Deviations above the mean of a row's gates that a gate must exceed.
    cutoff: Option<f32>,
    /// Neurons.
    count: usize,
}

impl<'a> Resident<'a> {
    /// A network of a block, if the block has a feed-forward part.
    pub(super) fn of(
        config: &'a Config,
        weights: &'a Weights,
        compute: &'a Compute,
        block: usize,
        roles: [Role; 3],
        count: usize,
    ) -> Option<Self> {
        let network = config.blocks[block].feed_forward.as_ref()?;
        let (activation, cutoff) = (network.activation, network.gate_cutoff);
        Some(Self { config, weights, compute, block, roles, activation, cutoff, count })
    }

    /// Computes the factor of each row's output.
    fn gates(&self, x: &[f32], gates: &mut [f32]) {
        let Some(weights) = self.weights.values(self.block, Role::SharedOutputGate) else {
            return gates.fill(1.0);
        };
        let weights = crate::delta_net::as_row(weights);
        for (gate, x) in gates.iter_mut().zip(x.chunks_exact(self.config.width)) {
            *gate = 1.0 / (1.0 + (-self.compute.kernels.dot(weights, x)).exp());
        }
    }

    /// Replaces each row's gates and ups by its values; without gates there are only ups.
    fn activate(&self, values: &mut [f32], rows: usize) {
        let (count, each) = (self.count, self.inputs() * self.count);
        for row in 0..rows {
            if let Some(cutoff) = self.cutoff {
                cut_off(&mut values[row * each..][..count], cutoff);
            }
            for neuron in 0..count {
                let [gate, up] = [0, each - count].map(|half| values[row * each + half + neuron]);
                values[row * count + neuron] = self.activation.apply(gate, up);
            }
        }
    }

    /// Number of input matrices.
    fn inputs(&self) -> usize {
        if self.activation.is_gated() { 2 } else { 1 }
    }

    /// Computes the output of single tokens, to the front of `room`: `[rows, width]`. The rest of `room`
    /// needs `2 * count` values for each row.
    ///
    /// *Shapes*: `x: [rows, width]`, `gates: [rows]`.
    pub(super) fn decode(
        &self,
        fetcher: &mut Fetcher,
        words: &mut [f32],
        x: &[f32],
        gates: &mut [f32],
        room: &mut [f32],
    ) {
        let Self { weights, compute, block, count, .. } = *self;
        let Compute { pool, kernels, form, .. } = compute;
        let (width, rows, [gate, up, down]) = (self.config.width, gates.len(), self.roles);
        self.gates(x, gates);
        let gated = if self.activation.is_gated() { gate } else { up };
        let matrices = [gated, up].map(|role| weights.matrix(block, role));
        let matrices = &matrices[2 - self.inputs()..];
        let (out, values) = room.split_at_mut(rows * width);
        let inputs = Inputs::new(x, width, *form, words);
        times(pool, fetcher, *kernels, matrices, inputs, (&mut values[..rows * self.inputs() * count], 0));
        self.activate(values, rows);
        let inputs = Inputs::new(&values[..rows * count], count, *form, words);
        times(pool, fetcher, *kernels, &[weights.matrix(block, down)], inputs, (out, 0));
    }

    /// [`Self::decode`] for a prompt's rows; the output replaces `x`.
    pub(super) fn prefill(&self, x: &mut [f32], gates: &mut [f32], room: &mut [f32]) {
        let Self { weights, compute, block, count, .. } = *self;
        let (width, rows, [gate, up, down]) = (self.config.width, gates.len(), self.roles);
        // compute gates before the input is packed
        self.gates(x, gates);
        let gated = if self.activation.is_gated() { gate } else { up };
        let matrices = [gated, up].map(|role| weights.matrix(block, role));
        let (packed, values) = room.split_at_mut(rows * width);
        // for gates and ups, or for ups and their packed copy
        let values = &mut values[..rows * 2 * count];
        let each = self.inputs() * count;
        let matrices = &matrices[2 - self.inputs()..];
        times_prompt(compute, matrices, x, packed, (&mut values[..rows * each], 0));
        self.activate(values, rows);
        let (values, spare) = values.split_at_mut(rows * count);
        times_prompt(compute, &[weights.matrix(block, down)], values, spare, (x, 0));
    }

    /// Adds a network's output to the block's; `spare` is as long.
    ///
    /// *Shapes*: `made, out, spare: [rows, width]`.
    pub(super) fn add_to(&self, out: &mut [f32], made: &[f32], gates: &[f32], spare: &mut [f32]) {
        let width = self.config.width;
        let made =
            post_normed(self.config, self.weights.values(self.block, Role::SharedPostNorm), made, spare);
        for ((out, made), &gate) in out.chunks_exact_mut(width).zip(made.chunks_exact(width)).zip(gates) {
            add(out, made, gate);
        }
    }
}

/// Replaces gates by what they exceed `cutoff` standard deviations above their mean by, or zero.
fn cut_off(gates: &mut [f32], cutoff: f32) {
    let count = gates.len() as f32;
    let mean = gates.iter().sum::<f32>() / count;
    let variance = gates.iter().map(|gate| (gate - mean) * (gate - mean)).sum::<f32>() / count;
    let least = mean + cutoff * variance.sqrt();
    gates.iter_mut().for_each(|gate| *gate = (*gate - least).max(0.0));
}
