//! Rows in order and few vectors of floats: one token's queries meet keys, and values are added up.
//!
//! ```text
//! dots      for 4 rows, for 2 vectors, for 8 columns:     sums[vector][row] += x * w      8 sums of 8 lanes
//!           the lanes of 4 sums are added in a tree, alike for every row and vector
//! add       for 32 columns, for 2 vectors, for each row:  sums[vector][column] += a * w   8 sums of 8 lanes
//! ```
//!
//! A row is unpacked once for two vectors, and as much is in flight as two multiplications a cycle need.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;
use std::ops::Range;

use bytemuck::{cast, cast_ref};

use super::super::Matrix;
use super::{load_16, load_32, prefetch, store_32};
use crate::format::Format;

/// Rows that meet vectors together.
const ROWS: usize = 4;
/// Vectors that share an unpacked row.
const VECTORS: usize = 2;
/// Lanes of a register.
const LANES: usize = 8;
/// Registers of columns that are added to together.
const REGISTERS: usize = 4;
/// Bytes that are asked for at once.
const LINE: usize = 64;

/// Whether these rows are met here.
pub(super) fn takes(w: Matrix<'_>) -> bool {
    matches!(w.format, Format::F16 | Format::F32) && w.columns.is_multiple_of(LANES)
}

/// [`super::Kernels::dots`], with room for so many numbers of each vector.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dots(w: Matrix<'_>, rows: Range<usize>, x: &[f32], out: &mut [f32], places: usize) {
    match w.format {
        Format::F16 => dots_with(w, rows, x, out, places, |bytes| _mm256_cvtph_ps(load_16(bytes))),
        _ => dots_with(w, rows, x, out, places, |bytes| load_32(bytes)),
    }
}

/// [`super::Kernels::add_few`], with so many numbers of each vector.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add(a: &[f32], places: usize, w: Matrix<'_>, rows: Range<usize>, y: &mut [f32]) {
    match w.format {
        Format::F16 => add_with(a, places, w, rows, y, |bytes| _mm256_cvtph_ps(load_16(bytes))),
        _ => add_with(a, places, w, rows, y, |bytes| load_32(bytes)),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dots_with<const BYTES: usize>(
    w: Matrix<'_>,
    rows: Range<usize>,
    x: &[f32],
    out: &mut [f32],
    places: usize,
    unpack: impl Fn(&[u8; BYTES]) -> __m256,
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
#[target_feature(enable = "avx2,fma,f16c")]
fn meet<const BYTES: usize, const T: usize>(
    rows: [&[[u8; BYTES]]; ROWS],
    x: [&[[f32; LANES]]; T],
    unpack: &impl Fn(&[u8; BYTES]) -> __m256,
) -> [[f32; ROWS]; T] {
    let length = rows[0].len();
    let [r0, r1, r2, r3] = rows;
    let rows = [&r0[..length], &r1[..length], &r2[..length], &r3[..length]];
    for x in x {
        assert_eq!(x.len(), length, "dots: vectors as long as rows");
    }
    let mut sums = [[_mm256_setzero_ps(); ROWS]; T];
    for i in 0..length {
        let mut w = [_mm256_setzero_ps(); ROWS];
        for r in 0..ROWS {
            w[r] = unpack(&rows[r][i]);
        }
        for t in 0..T {
            let x = load_32(cast_ref(&x[t][i]));
            for r in 0..ROWS {
                sums[t][r] = _mm256_fmadd_ps(w[r], x, sums[t][r]);
            }
        }
    }
    let mut out = [[0.0; ROWS]; T];
    for t in 0..T {
        let [s0, s1, s2, s3] = sums[t];
        let fours = _mm256_hadd_ps(_mm256_hadd_ps(s0, s1), _mm256_hadd_ps(s2, s3));
        let sum = _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps::<1>(fours));
        out[t] = cast(sum);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_with<const BYTES: usize>(
    a: &[f32],
    places: usize,
    w: Matrix<'_>,
    rows: Range<usize>,
    y: &mut [f32],
    unpack: impl Fn(&[u8; BYTES]) -> __m256,
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
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add<const BYTES: usize, const T: usize, const R: usize>(
        &self,
        y: &mut [f32],
        unpack: &impl Fn(&[u8; BYTES]) -> __m256,
    ) -> usize {
        let columns = self.w.columns;
        let mut sums = [[_mm256_setzero_ps(); R]; T];
        for t in 0..T {
            let y = &y[t * columns..][..R * LANES];
            for r in 0..R {
                sums[t][r] = load_32(cast_ref(&y.as_chunks::<LANES>().0[r]));
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
            let mut values = [_mm256_setzero_ps(); R];
            for r in 0..R {
                values[r] = unpack(&piece[r]);
            }
            for t in 0..T {
                let a = _mm256_set1_ps(factors[t][k]);
                for r in 0..R {
                    sums[t][r] = _mm256_fmadd_ps(a, values[r], sums[t][r]);
                }
            }
        }
        for t in 0..T {
            let y = &mut y[t * columns..][..R * LANES];
            for r in 0..R {
                store_32(&mut y.as_chunks_mut::<LANES>().0[r], sums[t][r]);
            }
        }
        T
    }
}
