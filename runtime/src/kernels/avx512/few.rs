//! Rows in order and few vectors of floats: one token's queries meet keys, and values are added up.
//!
//! ```text
//! dots      for 4 rows, for 4 vectors, for 16 columns:     sums[vector][row] += x * w      16 sums of 16 lanes
//!           the lanes of 4 sums are added in a tree, alike for every row and vector
//! add       for 64 columns, for 4 vectors, for each row:  sums[vector][column] += a * w   16 sums of 16 lanes
//! ```
//!
//! As with AVX2, of twice the width and for twice as many vectors: there are registers for it.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;
use std::ops::Range;

use bytemuck::{cast, cast_ref};

use super::super::Matrix;
use super::{load_32, load_64, prefetch, store_64};
use crate::format::Format;

/// Rows that meet vectors together.
const ROWS: usize = 4;
/// Vectors that share an unpacked row.
const VECTORS: usize = 4;
/// Lanes of a register.
const LANES: usize = 16;
/// Registers of columns that are added to together.
const REGISTERS: usize = 4;
/// Bytes that are asked for at once.
const LINE: usize = 64;

/// Whether these rows are met here.
pub(super) fn takes(w: Matrix<'_>) -> bool {
    matches!(w.format, Format::F16 | Format::F32) && w.columns.is_multiple_of(LANES)
}

/// [`super::Kernels::dots`], with room for so many numbers of each vector.
#[target_feature(enable = "avx512f,avx512dq,avx512vl,f16c")]
pub(super) fn dots(w: Matrix<'_>, rows: Range<usize>, x: &[f32], out: &mut [f32], places: usize) {
    match w.format {
        Format::F16 => dots_with(w, rows, x, out, places, |bytes| _mm512_cvtph_ps(load_32(bytes))),
        _ => dots_with(w, rows, x, out, places, |bytes| _mm512_castsi512_ps(load_64(bytes))),
    }
}

/// [`super::Kernels::add_few`], with so many numbers of each vector.
#[target_feature(enable = "avx512f,avx512dq,avx512vl,f16c")]
pub(super) fn add(a: &[f32], places: usize, w: Matrix<'_>, rows: Range<usize>, y: &mut [f32]) {
    match w.format {
        Format::F16 => add_with(a, places, w, rows, y, |bytes| _mm512_cvtph_ps(load_32(bytes))),
        _ => add_with(a, places, w, rows, y, |bytes| _mm512_castsi512_ps(load_64(bytes))),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,f16c")]
fn dots_with<const BYTES: usize>(
    w: Matrix<'_>,
    rows: Range<usize>,
    x: &[f32],
    out: &mut [f32],
    places: usize,
    unpack: impl Fn(&[u8; BYTES]) -> __m512,
) {
    let count = x.len() / w.columns;
    for at in (0..rows.len()).step_by(ROWS) {
        let some = ROWS.min(rows.len() - at);
        // the last repeats where there are fewer
        let mut four: [&[[u8; BYTES]]; ROWS] = [&[]; ROWS];
        for r in 0..ROWS {
            let row = w.row(rows.start + at + r.min(some - 1));
            four[r] = row.bytes.as_chunks().0;
            for line in row.bytes.chunks(LINE) {
                prefetch(&line[0], row.ahead());
            }
        }
        let vector = |t: usize| x[t * w.columns..][..w.columns].as_chunks().0;
        let mut t = 0;
        while t < count {
            let out = &mut out[t * places + at..];
            t += match count - t {
                4.. => put(&meet(four, [0, 1, 2, 3].map(|i| vector(t + i)), &unpack), out, places, some),
                2.. => put(&meet(four, [vector(t), vector(t + 1)], &unpack), out, places, some),
                _ => put(&meet(four, [vector(t)], &unpack), out, places, some),
            };
        }
    }
}

/// Sums of the first `some` rows, to their places; says of how many vectors.
#[inline]
fn put<const T: usize>(sums: &[[f32; ROWS]; T], out: &mut [f32], places: usize, some: usize) -> usize {
    for t in 0..T {
        out[t * places..][..some].copy_from_slice(&sums[t][..some]);
    }
    T
}

/// `[vector][row]`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,f16c")]
fn meet<const BYTES: usize, const T: usize>(
    rows: [&[[u8; BYTES]]; ROWS],
    x: [&[[f32; LANES]]; T],
    unpack: &impl Fn(&[u8; BYTES]) -> __m512,
) -> [[f32; ROWS]; T] {
    let length = rows[0].len();
    let [r0, r1, r2, r3] = rows;
    let rows = [&r0[..length], &r1[..length], &r2[..length], &r3[..length]];
    for x in x {
        assert_eq!(x.len(), length, "dots: vectors as long as rows");
    }
    let mut sums = [[_mm512_setzero_ps(); ROWS]; T];
    for i in 0..length {
        let mut w = [_mm512_setzero_ps(); ROWS];
        for r in 0..ROWS {
            w[r] = unpack(&rows[r][i]);
        }
        for t in 0..T {
            let x = _mm512_castsi512_ps(load_64(cast_ref(&x[t][i])));
            for r in 0..ROWS {
                sums[t][r] = _mm512_fmadd_ps(w[r], x, sums[t][r]);
            }
        }
    }
    let mut out = [[0.0; ROWS]; T];
    for t in 0..T {
        let [s0, s1, s2, s3] = sums[t];
        let (even, odd) = (in_pairs(s0, s1), in_pairs(s2, s3));
        let (even, odd) = (_mm512_castps_pd(even), _mm512_castps_pd(odd));
        let (low, high) = (_mm512_unpacklo_pd(even, odd), _mm512_unpackhi_pd(even, odd));
        let fours = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
        let eights = _mm256_add_ps(_mm512_castps512_ps256(fours), _mm512_extractf32x8_ps::<1>(fours));
        let sum = _mm_add_ps(_mm256_castps256_ps128(eights), _mm256_extractf128_ps::<1>(eights));
        out[t] = cast(sum);
    }
    out
}

/// Of each four lanes: the first's even and odd pairs, the second's between them.
#[inline]
#[target_feature(enable = "avx512f")]
fn in_pairs(first: __m512, second: __m512) -> __m512 {
    _mm512_add_ps(_mm512_unpacklo_ps(first, second), _mm512_unpackhi_ps(first, second))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,f16c")]
fn add_with<const BYTES: usize>(
    a: &[f32],
    places: usize,
    w: Matrix<'_>,
    rows: Range<usize>,
    y: &mut [f32],
    unpack: impl Fn(&[u8; BYTES]) -> __m512,
) {
    let (registers, count) = (w.columns / LANES, y.len() / w.columns);
    let mut first = 0;
    while first < registers {
        let whole = registers - first >= REGISTERS;
        let mut t = 0;
        while t < count {
            let (a, y) = (&a[t * places..], &mut y[t * w.columns + first * LANES..]);
            let piece = Piece { a, places, w, rows: rows.clone(), first, asks: t == 0 };
            t += match (whole, count - t) {
                (true, VECTORS..) => piece.add::<BYTES, VECTORS, REGISTERS>(y, &unpack),
                (true, 2..) => piece.add::<BYTES, 2, REGISTERS>(y, &unpack),
                (true, _) => piece.add::<BYTES, 1, REGISTERS>(y, &unpack),
                (false, _) => piece.add::<BYTES, 1, 1>(y, &unpack),
            };
        }
        first += if whole { REGISTERS } else { 1 };
    }
}

/// Some registers of columns, from the first on, for some vectors.
struct Piece<'a> {
    a: &'a [f32],
    places: usize,
    w: Matrix<'a>,
    rows: Range<usize>,
    first: usize,
    /// What is added next is asked for.
    asks: bool,
}

impl Piece<'_> {
    /// `T` vectors, `R` registers; says how many vectors.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,f16c")]
    fn add<const BYTES: usize, const T: usize, const R: usize>(
        &self,
        y: &mut [f32],
        unpack: &impl Fn(&[u8; BYTES]) -> __m512,
    ) -> usize {
        let columns = self.w.columns;
        let mut sums = [[_mm512_setzero_ps(); R]; T];
        for t in 0..T {
            let y = &y[t * columns..][..R * LANES];
            for r in 0..R {
                sums[t][r] = _mm512_castsi512_ps(load_64(cast_ref(&y.as_chunks::<LANES>().0[r])));
            }
        }
        let mut factors: [&[f32]; T] = [&[]; T];
        for t in 0..T {
            factors[t] = &self.a[t * self.places..][..self.rows.len()];
        }
        for (k, at) in self.rows.clone().enumerate() {
            let row = self.w.row(at);
            let piece = row.bytes[self.first * BYTES..][..R * BYTES].as_chunks::<BYTES>().0;
            if self.asks {
                for line in piece.as_flattened().chunks(LINE) {
                    prefetch(&line[0], row.ahead());
                }
            }
            let mut values = [_mm512_setzero_ps(); R];
            for r in 0..R {
                values[r] = unpack(&piece[r]);
            }
            for t in 0..T {
                let a = _mm512_set1_ps(factors[t][k]);
                for r in 0..R {
                    sums[t][r] = _mm512_fmadd_ps(a, values[r], sums[t][r]);
                }
            }
        }
        for t in 0..T {
            let y = &mut y[t * columns..][..R * LANES];
            for r in 0..R {
                store_64(&mut y.as_chunks_mut::<LANES>().0[r], sums[t][r]);
            }
        }
        T
    }
}
