//! Kernels against the scalar ones, over formats and ragged shapes; and what a unit refuses or survives.
//!
//! Without a GPU, Mesa's lavapipe runs the shaders on the processor: `make setup-gpu` installs it.

mod beside;
mod faults;
mod formats;

use std::time::Duration;

use kernels::{Format, InstructionSet, Matrix, dequantise, first_not_finite};
use skipped::skipped;

use crate::unit::Choices;
use crate::{Adapter, GpuError, Limits, Unit, adapters, listed};

/// The unit roundoff of `f32`: one rounding changes a number by at most this share of it.
const ROUNDOFF: f64 = f32::EPSILON as f64 / 2.0;

/// Limits that no test of a kernel reaches.
const LIMITS: Limits =
    Limits { memory_bytes: 256 << 20, transfer_bytes: 1 << 20, patience: Duration::from_secs(60) };

/// The first adapter; `None`, and the test is listed as skipped, where there is none.
#[track_caller]
fn adapter() -> Option<Adapter> {
    let first = adapters().into_iter().next();
    if first.is_none() {
        skipped("gpu", "no Vulkan driver; `make setup-gpu` installs one for the processor");
    }
    first
}

/// A unit on the first adapter, if there is one.
#[track_caller]
fn unit(limits: Limits, choices: Choices) -> Option<Unit> {
    Some(Unit::open_with(&adapter()?, limits, choices).expect("an open unit"))
}

#[test]
fn adapters_are_listed_a_line_each() {
    assert_eq!(listed(&[]), "There is no GPU: no Vulkan driver answers on this machine.", "none");
    let Some(first) = adapter() else { return };
    let list = listed(&adapters());
    let line = list.lines().nth(1).expect("a line");
    assert!(line.starts_with(&format!("  {} (", first.name)), "{list}");
    assert!(line.contains(" lanes, ") && line.ends_with(" MiB a binding)"), "{list}");
    assert!(first.binding_bytes >= 1 << 20 && first.buffer_bytes >= first.binding_bytes, "{first:?}");
}

/// Numbers of 64 bits, the same for the same seed.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Numbers in -1..1.
    fn vectors(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }
}

/// Weights in the layout of a file.
#[derive(Debug)]
struct Weights {
    format: Format,
    rows: usize,
    columns: usize,
    bytes: Vec<u8>,
}

impl Weights {
    /// Blocks of random bytes that `keep` accepts by their largest magnitude.
    fn random(
        noise: &mut Noise,
        format: Format,
        rows: usize,
        columns: usize,
        keep: impl Fn(f32) -> bool,
    ) -> Self {
        let mut bytes = Vec::new();
        let mut values = vec![0.0; format.block_values()];
        for _ in 0..rows * columns / format.block_values() {
            let block = loop {
                let block: Vec<u8> = (0..format.block_bytes()).map(|_| noise.next() as u8).collect();
                if first_not_finite(format, &block).is_some() {
                    continue;
                }
                dequantise(format, &block, &mut values);
                if keep(values.iter().fold(0.0, |largest, value| value.abs().max(largest))) {
                    break block;
                }
            };
            bytes.extend(block);
        }
        Self { format, rows, columns, bytes }
    }

    /// Weights of moderate size, so that no block hides the errors of others.
    fn moderate(noise: &mut Noise, format: Format, rows: usize, columns: usize) -> Self {
        Self::random(noise, format, rows, columns, |largest| (1.0 / 64.0..64.0).contains(&largest))
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix { format: self.format, rows: self.rows, columns: self.columns, bytes: &self.bytes }
    }

    fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.columns];
        dequantise(self.format, &self.bytes, &mut values);
        values
    }
}

/// Compares products with the scalar kernels. The tolerance bounds all roundings of a term:
/// `roundings` under test; one a column and one of each product in the scalar kernel.
#[track_caller]
fn assert_products(weights: &Weights, x: &[f32], found: &[f32], roundings: usize, what: &str) {
    let Weights { format, rows, columns, .. } = *weights;
    let scalar = kernels::by_name(InstructionSet::Scalar).expect("scalar kernels");
    let (matrix, values) = (weights.matrix(), weights.values());
    assert_eq!(found.len() * columns, x.len() * rows, "an output for each row and vector");
    let mut expected = vec![0.0; rows];
    for (t, (x, found)) in x.chunks_exact(columns).zip(found.chunks_exact(rows)).enumerate() {
        scalar.rows(matrix, 0, x, &mut expected);
        for row in 0..rows {
            let terms = values[row * columns..][..columns].iter().zip(x);
            let size: f64 = terms.map(|(w, x)| f64::from(w * x).abs()).sum();
            let tolerance = (roundings + 1 + columns + 1) as f64 * ROUNDOFF * size;
            let apart = (f64::from(found[row]) - f64::from(expected[row])).abs();
            assert!(
                apart <= tolerance,
                "{format} {what}, {rows} rows of {columns}: row {row} and vector {t} is {}, not {}: {apart} apart, {tolerance} allowed",
                found[row],
                expected[row]
            );
        }
    }
}
