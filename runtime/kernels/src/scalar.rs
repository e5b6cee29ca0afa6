//! The kernels by definition: dequantise, then sum in the order of the indices, in single precision.
//!
//! The reference for the vector kernels, and the kernels of processors without any.

use std::ops::Range;

use super::{
    Down, InstructionSet, Kernels, Packed, Rounded, Row, add_one_by_one, dequantise, plain, sum_of_four,
};
use crate::format::Format;

/// Plain Rust; needs no processor feature.
#[derive(Debug)]
pub(super) struct Scalar;

impl Kernels for Scalar {
    fn instruction_set(&self) -> InstructionSet {
        InstructionSet::Scalar
    }

    fn dot(&self, w: Row<'_>, x: &[f32]) -> f32 {
        w.assert_values(x.len());
        let mut sum = 0.0;
        for (w, x) in chunks(w).zip(x.chunks(CHUNK)) {
            let mut values = [0.0; CHUNK];
            dequantise(w.format, w.bytes, &mut values[..x.len()]);
            for i in 0..x.len() {
                sum += values[i] * x[i];
            }
        }
        sum
    }

    fn axpy(&self, a: f32, w: Row<'_>, y: &mut [f32]) {
        w.assert_values(y.len());
        for (w, y) in chunks(w).zip(y.chunks_mut(CHUNK)) {
            let mut values = [0.0; CHUNK];
            dequantise(w.format, w.bytes, &mut values[..y.len()]);
            for i in 0..y.len() {
                y[i] += a * values[i];
            }
        }
    }

    fn dot_rounded(&self, w: Row<'_>, x: Rounded<'_>) -> f32 {
        plain::dot_rounded(w, x, |a, b, c| a * b + c)
    }

    fn products(&self, w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]) {
        plain::products(w, x, out, |a, b, c| a * b + c);
    }

    fn add_products(&self, a: &[f32], count: usize, vectors: Range<usize>, w: &[Row<'_>], y: &mut [f32]) {
        add_one_by_one(self, a, count, vectors, w, y);
    }

    fn down(&self) -> &dyn Down {
        self
    }

    fn sign_mismatch(&self, a: &[u64], b: &[u64]) -> u32 {
        assert_eq!(a.len(), b.len(), "sign_mismatch: lengths differ");
        a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum()
    }
}

impl Down for Scalar {
    fn add_four(&self, a: [f32; 4], w: [Row<'_>; 4], sum: &mut [f32]) {
        let (values, _) = sum_of_four(w, sum);
        a.into_iter().zip(w).for_each(|(a, w)| self.axpy(a, w, values));
    }

    fn transposes(&self, format: Format) -> bool {
        format == Format::Q4_0X4
    }
}

/// Values dequantised at a time, on the stack: whole blocks of every format.
const CHUNK: usize = 256;

fn chunks(w: Row<'_>) -> impl Iterator<Item = Row<'_>> {
    w.bytes.chunks(w.format.row_bytes(CHUNK)).map(move |bytes| Row::new(w.format, bytes))
}
