//! Predictors: four ways to select active neurons before their rows are read.
//!
//! A predictor belongs to one expert of one layer. Its input is the normalised input of the feed-forward
//! network. Its neurons are in the order of their ranks in the container.
//!
//! 1. *Exact gate*: computes the resident gate rows. Lossless where a neuron with `gate <= 0` contributes
//!    nothing. (PowerInfer-2, section 5.)
//! 2. *Gate threshold*: the same for activations that are never exactly zero: selects a neuron if its
//!    activated gate is at least its threshold in size. (CATS has one threshold a layer, *stated*; one a
//!    neuron is ours.)
//! 3. *Sign*: counts the values where the input and the gate row differ in sign; few differences mean active.
//!    No training. (`SparseInfer`.)
//! 4. *Low rank*: compares `fc2 . h(fc1 . x)` with a threshold for each neuron. `h` is [`Hidden::Relu`]
//!    (PowerInfer's form, *stated*) or [`Hidden::Linear`] (Deja Vu's). A threshold for each neuron is ours.

use serde::{Deserialize, Serialize};

use kernels::{Activation, Input, Kernels, Matrix};

/// The activation of a low-rank predictor's hidden layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hidden {
    /// Values below zero become zero.
    #[default]
    Relu,
    /// The identity: `fc2 . fc1` approximates the gate by a matrix of that rank. `ReLU` would need two hidden
    /// values for one here.
    Linear,
}

impl Hidden {
    /// Applies the activation to one value.
    pub fn apply(self, value: f32) -> f32 {
        match self {
            Self::Relu => value.max(0.0),
            Self::Linear => value,
        }
    }
}

/// The predictor of one expert, in memory.
#[derive(Debug, Clone, Copy)]
pub enum Predictor<'a> {
    /// Gate rows `[neurons, width]`.
    ExactGate {
        /// The rows.
        gate: Matrix<'a>,
    },
    /// Gate rows `[neurons, width]`, and a threshold for each.
    GateThreshold {
        /// The rows.
        gate: Matrix<'a>,
        /// The activation; its size is compared with the threshold.
        activation: Activation,
        /// `[neurons]`: a neuron is selected at or above its threshold.
        thresholds: &'a [f32],
    },
    /// Sign bits of the gate rows.
    Sign {
        /// `[neurons, words]`: bit set where the gate is negative; `words = width.div_ceil(64)`.
        signs: &'a [u64],
        /// `[neurons]`: most differences of an active neuron; -1 for never.
        differences_max: &'a [i32],
    },
    /// Two thin matrices.
    LowRank {
        /// `[rank, width]`.
        fc1: Matrix<'a>,
        /// `[neurons, rank]`.
        fc2: Matrix<'a>,
        /// The activation between the matrices.
        hidden: Hidden,
        /// `[neurons]`: a neuron is active at or above its threshold.
        thresholds: &'a [f32],
    },
}

impl Predictor<'_> {
    /// Number of neurons.
    pub fn neurons(&self) -> usize {
        match self {
            Self::ExactGate { gate } | Self::GateThreshold { gate, .. } => gate.rows,
            Self::Sign { differences_max, .. } => differences_max.len(),
            Self::LowRank { thresholds, .. } => thresholds.len(),
        }
    }

    /// Bytes in memory; a row's selection reads all of them.
    pub fn bytes(&self) -> u64 {
        let bytes = match *self {
            Self::ExactGate { gate } => gate.bytes.len(),
            Self::GateThreshold { gate, thresholds, .. } => gate.bytes.len() + size_of_val(thresholds),
            Self::Sign { signs, differences_max } => size_of_val(signs) + size_of_val(differences_max),
            Self::LowRank { fc1, fc2, thresholds, .. } => {
                fc1.bytes.len() + fc2.bytes.len() + size_of_val(thresholds)
            }
        };
        bytes as u64
    }

    /// Rows of the hidden layer, for low rank; 0 for the others.
    pub fn hidden(&self) -> usize {
        match self {
            Self::LowRank { fc1, .. } => fc1.rows,
            Self::ExactGate { .. } | Self::GateThreshold { .. } | Self::Sign { .. } => 0,
        }
    }

    /// Computes part of the hidden layer: `h(fc1 . x)` for rows `start..start + out.len()`.
    pub fn hide(&self, kernels: &dyn Kernels, x: Input<'_>, start: usize, out: &mut [f32]) {
        if let Self::LowRank { fc1, hidden, .. } = self {
            x.rows(kernels, *fc1, start, out);
            out.iter_mut().for_each(|value| *value = hidden.apply(*value));
        }
    }

    /// [`Predictor::score`] of neurons `start..start + out.len()`, with the same bits.
    pub fn scores(
        &self,
        kernels: &dyn Kernels,
        x: Input<'_>,
        hidden: Input<'_>,
        signs: &[u64],
        start: usize,
        out: &mut [f32],
    ) {
        match *self {
            Self::ExactGate { gate } => x.rows(kernels, gate, start, out),
            Self::GateThreshold { gate, activation, thresholds } => {
                x.rows(kernels, gate, start, out);
                let thresholds = &thresholds[start..][..out.len()];
                out.iter_mut()
                    .zip(thresholds)
                    .for_each(|(out, &least)| *out = counted(activation, *out, least));
            }
            Self::LowRank { fc2, thresholds, .. } => {
                hidden.rows(kernels, fc2, start, out);
                let thresholds = &thresholds[start..][..out.len()];
                out.iter_mut().zip(thresholds).for_each(|(out, &least)| *out = beyond(*out, least));
            }
            Self::Sign { .. } => {
                for (neuron, out) in (start..).zip(out) {
                    *out = self.score(kernels, x, hidden, signs, neuron);
                }
            }
        }
    }

    /// A neuron's score; [`Predictor::selects`] decides by it. Exact gate: the gate. Gate threshold: the gate
    /// if it reaches the threshold, else zero. The others: the distance beyond the threshold, above zero if
    /// selected; greater is surer.
    ///
    /// `x` is the input, `hidden` the hidden layer, `signs` the input's [`sign_bits`]; each predictor uses
    /// one of them.
    pub fn score(
        &self,
        kernels: &dyn Kernels,
        x: Input<'_>,
        hidden: Input<'_>,
        signs: &[u64],
        neuron: usize,
    ) -> f32 {
        match *self {
            Self::ExactGate { gate } => x.dot(kernels, gate.row(neuron)),
            Self::GateThreshold { gate, activation, thresholds } => {
                counted(activation, x.dot(kernels, gate.row(neuron)), thresholds[neuron])
            }
            Self::Sign { signs: rows, differences_max } => {
                let row = &rows[neuron * signs.len()..][..signs.len()];
                let differences = i64::from(kernels.sign_mismatch(row, signs));
                let spare = i64::from(differences_max[neuron]) - differences;
                (spare + 1).max(0) as f32
            }
            Self::LowRank { fc2, thresholds, .. } => {
                beyond(hidden.dot(kernels, fc2.row(neuron)), thresholds[neuron])
            }
        }
    }

    /// Whether a neuron with this score is selected.
    pub fn selects(&self, score: f32) -> bool {
        match self {
            Self::GateThreshold { .. } => score != 0.0,
            Self::ExactGate { .. } | Self::Sign { .. } | Self::LowRank { .. } => score > 0.0,
        }
    }
}

/// The gate if its activation reaches the threshold, else zero. A NaN is kept, so that it is not hidden.
fn counted(activation: Activation, gate: f32, least: f32) -> f32 {
    if activation.of_gate(gate).abs() < least { 0.0 } else { gate }
}

/// The distance of a score beyond a threshold, above zero if it reaches it; else zero.
fn beyond(score: f32, least: f32) -> f32 {
    if score >= least { (score - least).max(f32::MIN_POSITIVE) } else { 0.0 }
}

/// Packs one sign bit for each value, set if negative; pads the last word with zeros.
///
/// *Shapes*: `x: [n]`, `out: [n.div_ceil(64)]`.
pub fn sign_bits(x: &[f32], out: &mut [u64]) {
    assert_eq!(out.len(), x.len().div_ceil(64), "one bit for each value");
    for (word, values) in out.iter_mut().zip(x.chunks(64)) {
        *word = values.iter().enumerate().fold(0, |bits, (i, &v)| bits | (u64::from(v < 0.0) << i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transformer::tests::kernels_of_all_sets;
    use kernels::Format;
    use kernels::quantise;

    #[test]
    fn sign_bits_mark_the_negative_values_and_fill_with_zeros() {
        let mut out = [u64::MAX; 2];
        let mut x = [1.0f32; 70];
        (x[0], x[63], x[69]) = (-1.0, -0.5, -2.0);
        sign_bits(&x, &mut out);
        assert_eq!(out, [1 | 1 << 63, 1 << 5]);
    }

    #[test]
    fn each_form_names_the_neurons_that_its_definition_names() {
        let (width, neurons) = (64usize, 5usize);
        let gate: Vec<f32> = (0..neurons * width).map(|i| ((i * 37 % 19) as f32 - 9.0) / 9.0).collect();
        let x: Vec<f32> = (0..width).map(|i| ((i * 11 % 13) as f32 - 6.0) / 6.0).collect();
        let mut bytes = vec![0; Format::F32.row_bytes(gate.len())];
        quantise(Format::F32, &gate, &mut bytes);
        let rows = Matrix { format: Format::F32, rows: neurons, columns: width, bytes: &bytes };
        let exact: Vec<f32> =
            gate.chunks(width).map(|row| row.iter().zip(&x).map(|(g, x)| g * x).sum()).collect();
        let mut signs = vec![0; neurons];
        for (word, row) in signs.chunks_mut(1).zip(gate.chunks(width)) {
            sign_bits(row, word);
        }
        let mut input = [0u64];
        sign_bits(&x, &mut input);
        let differences: Vec<u32> = signs.iter().map(|row| (row ^ input[0]).count_ones()).collect();
        for kernels in kernels_of_all_sets() {
            let scores = |predictor: Predictor<'_>, signs: &[u64]| -> Vec<f32> {
                let (x, none) = (Input::plain(&x), Input::plain(&[]));
                let one_by_one: Vec<f32> =
                    (0..neurons).map(|i| predictor.score(kernels, x, none, signs, i)).collect();
                let mut scores = vec![f32::NAN; neurons - 1];
                predictor.scores(kernels, x, none, signs, 1, &mut scores);
                assert_eq!(scores, one_by_one[1..]);
                one_by_one
            };
            let out = scores(Predictor::ExactGate { gate: rows }, &[]);
            for (a, b) in out.iter().zip(&exact) {
                assert!((a - b).abs() < 1e-4, "{a} {b}");
            }
            let silu = Activation::Silu;
            let sizes: Vec<f32> = exact.iter().map(|&gate| silu.of_gate(gate).abs()).collect();
            let least = [sizes[0] + 1e-3, sizes[1] - 1e-3, f32::INFINITY, 0.0, sizes[4] * 1.01 + 1e-3];
            let cut = Predictor::GateThreshold { gate: rows, activation: silu, thresholds: &least };
            let cut_out = scores(cut, &[]);
            assert_eq!(cut_out, [0.0, out[1], 0.0, out[3], 0.0]);
            assert!([-1.0, 1.0, f32::NAN].iter().all(|&gate| cut.selects(gate)) && !cut.selects(0.0));
            let limits = [-1, 64, differences[2] as i32, differences[3] as i32 - 1, 0];
            let sign = Predictor::Sign { signs: &signs, differences_max: &limits };
            let out = scores(sign, &input);
            assert_eq!(out[..4], [0.0, 65.0 - differences[1] as f32, 1.0, 0.0]);
            for (hidden, least) in [(Hidden::Relu, 0.0), (Hidden::Linear, f32::MIN)] {
                let low = Predictor::LowRank { fc1: rows, fc2: rows, hidden, thresholds: &[0.0; 5] };
                assert_eq!((low.hidden(), low.neurons()), (5, 5));
                let mut values = vec![0.0; 5];
                low.hide(kernels, Input::plain(&x), 0, &mut values);
                assert!(
                    values.iter().zip(&exact).all(|(h, e)| (h - e.max(least)).abs() < 1e-4),
                    "{values:?}"
                );
            }
        }
    }
}
