//! Initial predictors of a wide model: the gate rows, projected onto a few directions.
//!
//! A large model leaves time for a few thousand tokens, and a predictor of rank 512 has 9 million weights: random ones would learn little.
//! But the gate `G` is known. `Y: [neurons, tokens]` has the gates of the calibration text, and `U: [neurons, d]` the directions of their
//! largest variance. `U U^T G x` is then the best approximation of `G x` with `d` numbers on these tokens (reduced-rank regression).
//!
//! A few hundred tokens show only a few hundred directions. Random inputs are added: normal numbers with the mean square of each coordinate
//! in the text. This shrinks the covariance towards its diagonal, and the gate rows decide the directions that the text does not show.
//!
//! The error of the estimate, on other tokens, is taken as normal. The expected open gate is `deviation * r(estimate / deviation)`, where
//! `r` is the mean of a rectified normal. `ln r(z)` is approximated by a line through its value at 0. A neuron's addition is
//! proportional to its open gate.
//!
//! *Source*: reduced-rank regression: Izenman, 1975. Directions by subspace iteration: Halko, Martinsson, Tropp, "Finding structure with
//! randomness", 2011, algorithm 4.4. Shrinking: Ledoit, Wolf, 2004.

use flashplan::internals::model::source::Down;
use flashplan::internals::predictor::Hidden;
use kernels::Matrix;

use super::batch::{times, times_down};
use super::matrix::{Use, product};
use super::observe::Samples;
use super::train::{Random, Trained, logits, validates};

/// Maximum tokens of real text for the directions.
const TOKENS: usize = 1024;
/// Random inputs for each direction.
const MADE_UP: f64 = 1.25;
/// One token in this many measures the error of the estimates, and not the directions.
const JUDGING: usize = 4;
/// Multiplications with `Y Y^T`.
const ITERATIONS: usize = 2;
/// The mean of a rectified standard normal.
const RECTIFIED: f32 = 0.398_942_3;
/// Slope of the mean's logarithm over the normal's mean; it is steeper below 0 and flatter above.
const RECTIFIED_SLOPE: f32 = 1.5;
/// Minimum deviation of a gate from its estimate, as a share of its size.
const DEVIATION_MIN: f32 = 0.1;

/// A linear predictor of `rank` from the gate rows `[neurons, width]`; equal seeds give equal predictors.
pub fn from_gate(gate: Matrix<'_>, samples: &Samples, rank: usize, seed: u64) -> Trained {
    let mut random = Random(seed);
    let (width, neurons) = (gate.columns, gate.rows);
    // validation tokens set thresholds, which must not depend on the directions
    let learnt: Vec<usize> = (0..samples.real).filter(|&row| !validates(samples, row)).collect();
    let rows = learnt.iter().copied().step_by(learnt.len().div_ceil(TOKENS).max(1)).enumerate();
    let (judging, showing): (Vec<_>, Vec<_>) = rows.partition(|(i, _)| i % JUDGING == JUDGING - 1);
    let inputs_of = |rows: &[(usize, usize)]| -> Vec<f32> {
        rows.iter().flat_map(|&(_, row)| samples.input(row)).copied().collect()
    };
    let directions = rank.min(neurons).min(width);
    let mut inputs = inputs_of(&showing);
    let size: Vec<f32> = match showing.is_empty() {
        true => vec![1.0; width],
        false => mean_squares(&inputs, width).into_iter().map(f32::sqrt).collect(),
    };
    for _ in 0..(MADE_UP * directions as f64) as usize {
        inputs.extend(size.iter().map(|size| size * random.normal()));
    }
    let tokens = inputs.len() / width;

    let gates = times(gate, None, &inputs, Use::Transposed);
    let mut u: Vec<f32> = vec![0.0; neurons * directions];
    let mut seen: Vec<f32> = (0..tokens * directions).map(|_| random.normal()).collect();
    for iteration in 0..=ITERATIONS {
        if iteration > 0 {
            product((tokens, neurons, directions), &gates, Use::Transposed, &u, Use::Plain, &mut seen);
        }
        product((neurons, tokens, directions), &gates, Use::Plain, &seen, Use::Plain, &mut u);
        orthonormal(&mut u, directions);
    }

    // unit size, so that all directions learn at similar rates
    let projected = times_down(Down::Rows(gate), None, &u);
    let mut values = vec![0.0; tokens * directions];
    product((tokens, neurons, directions), &gates, Use::Transposed, &u, Use::Plain, &mut values);
    let sizes: Vec<f32> = mean_squares(&values, directions).into_iter().map(f32::sqrt).collect();
    let mut fc1 = vec![0.0; rank * width];
    let mut fc2 = vec![0.0; neurons * rank];
    for (d, &size) in sizes.iter().enumerate() {
        let size = size.max(f32::MIN_POSITIVE);
        for (i, value) in fc1[d * width..][..width].iter_mut().enumerate() {
            *value = projected[i * directions + d] / size;
        }
        for (u, fc2) in u.chunks(directions).zip(fc2.chunks_mut(rank)) {
            fc2[d] = u[d] * size;
        }
    }

    // with too short a text all tokens measure the error
    let judging = if judging.is_empty() { inputs } else { inputs_of(&judging) };
    let judges = judging.len() / width;
    let gates = times(gate, None, &judging, Use::Transposed);
    let estimates = logits(width, rank, neurons, &fc1, &fc2, Hidden::Linear, &judging);
    let worths = worth_of_open_gates(samples);
    let mut bias = Vec::with_capacity(neurons);
    for (neuron, fc2) in fc2.chunks_mut(rank).enumerate() {
        let (gates, estimates) =
            (&gates[neuron * judges..][..judges], &estimates[neuron * judges..][..judges]);
        let left = rms(gates.iter().zip(estimates).map(|(gate, estimate)| gate - estimate));
        let deviation = left.max(DEVIATION_MIN * rms(gates.iter().copied())).max(f32::MIN_POSITIVE);
        fc2.iter_mut().for_each(|value| *value *= RECTIFIED_SLOPE / deviation);
        bias.push((RECTIFIED * deviation * worths[neuron]).max(f32::MIN_POSITIVE).ln());
    }
    Trained { rank, fc1, fc2, bias, validation_loss: f64::NAN }
}

/// The worth of each neuron for a unit of its open gate, on real text.
///
/// Every neuron counts as open once more with the mean worth of all: a prior for gates that were seldom open.
fn worth_of_open_gates(samples: &Samples) -> Vec<f32> {
    let sums = samples.worth_sums(0..samples.real);
    let gates: f32 = samples.gate_sums.iter().sum();
    let opened: f32 = samples.gate_counts.iter().map(|&count| count as f32).sum();
    let (rate, once) = (sums.iter().sum::<f32>() / gates.max(f32::MIN_POSITIVE), gates / opened.max(1.0));
    let of = |(sum, gate): (&f32, &f32)| (sum + rate * once) / (gate + once).max(f32::MIN_POSITIVE);
    sums.iter().zip(&samples.gate_sums).map(of).collect()
}

/// Mean squares of the columns of `rows: [rows, columns]`; 0 for no rows.
fn mean_squares(rows: &[f32], columns: usize) -> Vec<f32> {
    let mut sums = vec![0.0f32; columns];
    for row in rows.chunks(columns) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * value);
    }
    let count = (rows.len() / columns).max(1) as f32;
    sums.into_iter().map(|sum| sum / count).collect()
}

/// Orthonormalises the columns of `u: [rows, columns]`, by Cholesky factors of the Gram matrix.
///
/// It repeats once, because one pass is inexact for nearly dependent columns.
fn orthonormal(u: &mut [f32], columns: usize) {
    let rows = u.len() / columns;
    let mut gram = vec![0.0; columns * columns];
    let mut out = vec![0.0; u.len()];
    for _ in 0..2 {
        product((columns, rows, columns), u, Use::Transposed, u, Use::Plain, &mut gram);
        let inverse = inverse_cholesky(&gram, columns);
        product((rows, columns, columns), u, Use::Plain, &inverse, Use::Transposed, &mut out);
        u.copy_from_slice(&out);
    }
}

/// `L^-1`, where `L L^T` is the matrix `[n, n]` with a slightly larger diagonal.
fn inverse_cholesky(matrix: &[f32], n: usize) -> Vec<f32> {
    let largest = (0..n).map(|i| f64::from(matrix[i * n + i])).fold(f64::MIN_POSITIVE, f64::max);
    let mut l = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let (of_i, of_j) = (&l[i * n..][..j], &l[j * n..][..j]);
            let sum: f64 = of_i.iter().zip(of_j).map(|(a, b)| a * b).sum();
            let left = f64::from(matrix[i * n + j]) - sum;
            l[i * n + j] =
                if i == j { (left + 1e-7 * largest).max(1e-9 * largest).sqrt() } else { left / l[j * n + j] };
        }
    }
    // Row i of the inverse: (e_i - sum over j < i of l[i][j] inverse[j]) / l[i][i].
    let mut inverse = vec![0.0; n * n];
    for i in 0..n {
        let (done, row) = inverse.split_at_mut(i * n);
        let row = &mut row[..n];
        row[i] = 1.0;
        for (j, of_j) in done.chunks(n).enumerate() {
            let factor = l[i * n + j];
            row[..=j].iter_mut().zip(of_j).for_each(|(value, of_j)| *value -= factor * of_j);
        }
        row.iter_mut().for_each(|value| *value /= l[i * n + i]);
    }
    inverse.into_iter().map(|value| value as f32).collect()
}

/// The root of the mean square; 0 for none.
fn rms(values: impl Iterator<Item = f32>) -> f32 {
    let (mut sum, mut count) = (0.0, 0u32);
    for value in values {
        sum += f64::from(value) * f64::from(value);
        count += 1;
    }
    (sum / f64::from(count.max(1))).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use kernels::Format;
    use kernels::quantise;

    use super::super::observe::{Bits, Worths};
    use super::*;

    #[test]
    fn columns_become_orthonormal_and_keep_their_space() {
        let (rows, columns) = (50, 7);
        let mut random = Random(1);
        let mut u: Vec<f32> = (0..rows * columns).map(|_| random.normal()).collect();
        // Two columns that are nearly one.
        for row in u.chunks_mut(columns) {
            row[6] = row[5] + 1e-2 * row[6];
        }
        let before = u.clone();
        orthonormal(&mut u, columns);
        let dot = |a: &[f32], i: usize, b: &[f32], j: usize| -> f32 {
            (0..rows).map(|row| a[row * columns + i] * b[row * columns + j]).sum()
        };
        for i in 0..columns {
            for j in 0..columns {
                assert!((dot(&u, i, &u, j) - f32::from(u8::from(i == j))).abs() < 1e-3, "{i} {j}");
            }
            let kept: f32 = (0..columns).map(|j| dot(&before, i, &u, j).powi(2)).sum();
            assert!((kept / dot(&before, i, &before, i) - 1.0).abs() < 1e-3, "column {i}");
        }
    }

    /// Inputs in few directions, and twice as large a rank: the predictor knows the gates.
    #[test]
    fn gates_of_low_rank_are_known_without_training() {
        let (width, neurons, directions, tokens) = (32, 64, 6, 200);
        let mut random = Random(2);
        let mut normal = |count: usize| -> Vec<f32> { (0..count).map(|_| random.normal()).collect() };
        let (span, gate) = (normal(directions * width), normal(neurons * width));
        let mut inputs = vec![0.0; tokens * width];
        product(
            (tokens, directions, width),
            &normal(tokens * directions),
            Use::Plain,
            &span,
            Use::Plain,
            &mut inputs,
        );
        let mut gates = vec![0.0; neurons * tokens];
        product((neurons, width, tokens), &gate, Use::Plain, &inputs, Use::Transposed, &mut gates);
        let mut active = Bits::new(neurons);
        // the first half of the tokens is real text; the rest is ignored
        active.push(tokens, |_| true, |neuron, token| gates[neuron * tokens + token] > 0.0);
        let gate_counts = active.counts(tokens / 2);
        let (worths, gate_sums) = (Worths::of(&active, |_, _| 1.0), vec![1.0; neurons]);
        let samples =
            Samples { width, real: tokens / 2, inputs, active, worths, gate_counts, gate_sums, gates: None };
        let mut bytes = vec![0; Format::F32.row_bytes(gate.len())];
        quantise(Format::F32, &gate, &mut bytes);
        let matrix = Matrix { format: Format::F32, rows: neurons, columns: width, bytes: &bytes };
        let made = from_gate(matrix, &samples, 2 * directions, 3);
        let logits = logits(width, made.rank, neurons, &made.fc1, &made.fc2, Hidden::Linear, &samples.inputs);
        let wrong =
            logits.iter().zip(&gates).filter(|(logit, gate)| (**logit > 0.0) != (**gate > 0.0)).count();
        assert!(wrong * 100 < logits.len(), "{wrong} of {} wrong", logits.len());
    }
}
