//! [`super::super::few`] with registers of 16 lanes and four vectors at once: 16 sums.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;
use std::ops::Range;

use bytemuck::{cast, cast_ref};

use super::super::{Matrix, few};
use super::{load_32, load_64, q4_0_weights, q8_0_weights, store_64};
use crate::format::Format;

/// Lanes of a register.
const LANES: usize = 16;
/// Vectors that share an unpacked row.
const VECTORS: usize = 4;
/// Registers of columns summed together.
const REGISTERS: usize = 4;
/// Registers of a block.
const BLOCK: usize = 32 / LANES;

/// Whether these kernels take such rows.
pub(super) fn takes(w: Matrix<'_>) -> bool {
    few::takes(w, LANES)
}

/// [`super::super::Kernels::dots`], with `places` outputs for each vector.
#[target_feature(enable = "avx512f,avx512dq,avx512vl,f16c")]
pub(super) fn dots(w: Matrix<'_>, rows: Range<usize>, x: &[f32], out: &mut [f32], places: usize) {
    let halves = |bytes: &_| [_mm512_cvtph_ps(load_32(bytes))];
    let floats = |bytes: &_| [_mm512_castsi512_ps(load_64(bytes))];
    let load = |x: &[f32; LANES]| _mm512_castsi512_ps(load_64(cast_ref(x)));
    let multiply = |a, b, c| _mm512_fmadd_ps(a, b, c);
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
#[target_feature(enable = "avx512f,avx512dq,avx512vl,f16c")]
pub(super) fn add(a: &[f32], places: usize, w: Matrix<'_>, rows: Range<usize>, y: &mut [f32]) {
    let halves = |bytes: &_| [_mm512_cvtph_ps(load_32(bytes))];
    let floats = |bytes: &_| [_mm512_castsi512_ps(load_64(bytes))];
    let load = |x: &[f32; LANES]| _mm512_castsi512_ps(load_64(cast_ref(x)));
    let store = |y: &mut [f32; LANES], sums| store_64(y, sums);
    let spread = |a| _mm512_set1_ps(a);
    let multiply = |a, b, c| _mm512_fmadd_ps(a, b, c);
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
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn add_up([s0, s1, s2, s3]: [__m512; few::ROWS]) -> [f32; few::ROWS] {
    let (even, odd) = (in_pairs(s0, s1), in_pairs(s2, s3));
    let (even, odd) = (_mm512_castps_pd(even), _mm512_castps_pd(odd));
    let (low, high) = (_mm512_unpacklo_pd(even, odd), _mm512_unpackhi_pd(even, odd));
    let groups = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    let eights = _mm256_add_ps(_mm512_castps512_ps256(groups), _mm512_extractf32x8_ps::<1>(groups));
    cast(_mm_add_ps(_mm256_castps256_ps128(eights), _mm256_extractf128_ps::<1>(eights)))
}

/// Sums of neighbouring pairs of lanes; sums of `first` and `second` alternate.
#[inline]
#[target_feature(enable = "avx512f")]
fn in_pairs(first: __m512, second: __m512) -> __m512 {
    _mm512_add_ps(_mm512_unpacklo_ps(first, second), _mm512_unpackhi_ps(first, second))
}
