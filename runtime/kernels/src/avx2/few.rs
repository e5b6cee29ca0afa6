//! [`super::super::few`] with registers of 8 lanes and two vectors at once: 8 sums.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;
use std::ops::Range;

use bytemuck::{cast, cast_ref};

use super::super::{Matrix, few};
use super::{load_16, load_32, q4_0_weights, q8_0_weights, store_32};
use crate::format::Format;

/// Lanes of a register.
const LANES: usize = 8;
/// Vectors that share an unpacked row.
const VECTORS: usize = 2;
/// Registers of columns summed together.
const REGISTERS: usize = 4;
/// Registers of a block.
const BLOCK: usize = 32 / LANES;

/// Whether these kernels take such rows.
pub(super) fn takes(w: Matrix<'_>) -> bool {
    few::takes(w, LANES)
}

/// [`super::super::Kernels::dots`], with `places` outputs for each vector.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dots(w: Matrix<'_>, rows: Range<usize>, x: &[f32], out: &mut [f32], places: usize) {
    let halves = |bytes: &_| [_mm256_cvtph_ps(load_16(bytes))];
    let floats = |bytes: &_| [load_32(bytes)];
    let load = |x: &[f32; LANES]| load_32(cast_ref(x));
    let multiply = |a, b, c| _mm256_fmadd_ps(a, b, c);
    let add_up = |sums| add_up(sums);
    match w.format {
        Format::F16 => {
            few::dots::<_, _, 1, _, VECTORS>(w, rows, x, out, places, halves, load, multiply, add_up);
        }
        Format::Q8_0 => {
            let unpack = |bytes: &_| q8_0_weights(bytes);
            few::dots::<_, _, BLOCK, _, VECTORS>(w, rows, x, out, places, unpack, load, multiply, add_up);
        }
        Format::Q4_0 => {
            let unpack = |bytes: &_| q4_0_weights(bytes);
            few::dots::<_, _, BLOCK, _, VECTORS>(w, rows, x, out, places, unpack, load, multiply, add_up);
        }
        _ => few::dots::<_, _, 1, _, VECTORS>(w, rows, x, out, places, floats, load, multiply, add_up),
    }
}

/// [`super::super::Kernels::add_few`], with `places` factors for each vector.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add(a: &[f32], places: usize, w: Matrix<'_>, rows: Range<usize>, y: &mut [f32]) {
    let halves = |bytes: &_| [_mm256_cvtph_ps(load_16(bytes))];
    let floats = |bytes: &_| [load_32(bytes)];
    let load = |x: &[f32; LANES]| load_32(cast_ref(x));
    let store = |y: &mut [f32; LANES], sums| store_32(y, sums);
    let spread = |a| _mm256_set1_ps(a);
    let multiply = |a, b, c| _mm256_fmadd_ps(a, b, c);
    match w.format {
        Format::F16 => few::add::<_, _, 1, _, VECTORS, REGISTERS>(
            a, places, w, rows, y, halves, load, store, spread, multiply,
        ),
        Format::Q8_0 => {
            let unpack = |bytes: &_| q8_0_weights(bytes);
            few::add::<_, _, BLOCK, _, VECTORS, { REGISTERS / BLOCK }>(
                a, places, w, rows, y, unpack, load, store, spread, multiply,
            );
        }
        Format::Q4_0 => {
            let unpack = |bytes: &_| q4_0_weights(bytes);
            few::add::<_, _, BLOCK, _, VECTORS, { REGISTERS / BLOCK }>(
                a, places, w, rows, y, unpack, load, store, spread, multiply,
            );
        }
        _ => few::add::<_, _, 1, _, VECTORS, REGISTERS>(
            a, places, w, rows, y, floats, load, store, spread, multiply,
        ),
    }
}

/// The sum of the lanes of each register.
#[inline]
#[target_feature(enable = "avx")]
fn add_up([s0, s1, s2, s3]: [__m256; few::ROWS]) -> [f32; few::ROWS] {
    let groups = _mm256_hadd_ps(_mm256_hadd_ps(s0, s1), _mm256_hadd_ps(s2, s3));
    cast(_mm_add_ps(_mm256_castps256_ps128(groups), _mm256_extractf128_ps::<1>(groups)))
}
