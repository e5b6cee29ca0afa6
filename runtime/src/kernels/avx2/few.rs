//! Rows and few vectors of floats: one token's queries meet keys, and values are added up.
//!
//! ```text
//! dots      for 4 rows, for 2 vectors, for 8 columns:      sums[vector][row] += x * w      8 sums of 8 lanes
//!           the lanes of 4 sums are added in a tree, alike for every row and vector
//! add       for 32 columns, for 2 vectors, for each row:   sums[vector][column] += a * w   8 sums of 8 lanes
//! ```
//!
//! A row is unpacked once for two vectors, and as much is in flight as two multiplications a cycle need.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use bytemuck::{cast, cast_ref};

use super::super::Row;
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
const LINE: usize = 64;

/// Whether rows of a format, so many columns long, are met here.
pub(super) fn takes(format: Format, columns: usize) -> bool {
    matches!(format, Format::F16 | Format::F32) && columns.is_multiple_of(LANES)
}

/// [`super::Kernels::dots`]: `out[r][t] = w[r] . x[t]`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dots(w: &[Row<'_>], x: &[f32], out: &mut [f32]) {
    match w[0].format {
        Format::F16 => dots_with(w, x, out, |bytes| _mm256_cvtph_ps(load_16(bytes))),
        _ => dots_with(w, x, out, |bytes| load_32(bytes)),
    }
}

/// [`super::Kernels::add_few`]: `y[t] += sum over r of a[r][t] * w[r]`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add(a: &[f32], w: &[Row<'_>], y: &mut [f32]) {
    match w[0].format {
        Format::F16 => add_with(a, w, y, |bytes| _mm256_cvtph_ps(load_16(bytes))),
        _ => add_with(a, w, y, |bytes| load_32(bytes)),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dots_with<const BYTES: usize>(
    w: &[Row<'_>],
    x: &[f32],
    out: &mut [f32],
    unpack: impl Fn(&[u8; BYTES]) -> __m256,
) {
    let (columns, count) = (w[0].values(), out.len() / w.len());
    for (w, out) in w.chunks(ROWS).zip(out.chunks_mut(ROWS * count)) {
        // the last repeats where there are fewer
        let mut rows: [&[[u8; BYTES]]; ROWS] = [&[]; ROWS];
        for r in 0..ROWS {
            let row = w[r.min(w.len() - 1)];
            rows[r] = row.bytes.as_chunks().0;
            for line in row.bytes.as_chunks::<LINE>().0 {
                prefetch(line, row.ahead());
            }
        }
        let (pairs, last) = x.split_at(count / VECTORS * VECTORS * columns);
        for (at, pair) in pairs.chunks_exact(VECTORS * columns).enumerate() {
            let (first, second) = pair.split_at(columns);
            let sums = meet(rows, [first.as_chunks().0, second.as_chunks().0], &unpack);
            put(&sums, out, VECTORS * at, count);
        }
        if !last.is_empty() {
            put(&meet(rows, [last.as_chunks().0], &unpack), out, count - 1, count);
        }
    }
}

/// Sums of vectors from the first on, to their places `[row][vector]`; of rows that repeat there are none.
#[inline]
fn put<const T: usize>(sums: &[[f32; ROWS]; T], out: &mut [f32], first: usize, count: usize) {
    for (r, out) in out.chunks_exact_mut(count).enumerate() {
        for t in 0..T {
            out[first + t] = sums[t][r];
        }
    }
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
    w: &[Row<'_>],
    y: &mut [f32],
    unpack: impl Fn(&[u8; BYTES]) -> __m256,
) {
    let (columns, count) = (w[0].values(), a.len() / w.len());
    let registers = columns / LANES;
    for first in (0..registers).step_by(REGISTERS) {
        let whole = registers - first >= REGISTERS;
        for t in (0..count).step_by(VECTORS) {
            let place = (t, first);
            match (whole, count - t >= VECTORS) {
                (true, true) => add_piece::<BYTES, VECTORS, REGISTERS>(a, w, y, place, &unpack),
                (true, false) => add_piece::<BYTES, 1, REGISTERS>(a, w, y, place, &unpack),
                (false, _) => {
                    for (t, register) in (t..count.min(t + VECTORS))
                        .flat_map(|t| (first..registers).map(move |register| (t, register)))
                    {
                        add_piece::<BYTES, 1, 1>(a, w, y, (t, register), &unpack);
                    }
                }
            }
        }
    }
}

/// `T` vectors from the first on, `R` registers of columns from the first on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_piece<const BYTES: usize, const T: usize, const R: usize>(
    a: &[f32],
    w: &[Row<'_>],
    y: &mut [f32],
    (first_vector, first): (usize, usize),
    unpack: &impl Fn(&[u8; BYTES]) -> __m256,
) {
    let (columns, count) = (w[0].values(), a.len() / w.len());
    let start = first_vector * columns + first * LANES;
    let mut sums = [[_mm256_setzero_ps(); R]; T];
    for t in 0..T {
        let y = &y[start + t * columns..][..R * LANES];
        for r in 0..R {
            sums[t][r] = load_32(cast_ref(&y.as_chunks::<LANES>().0[r]));
        }
    }
    for (w, a) in w.iter().zip(a.chunks_exact(count)) {
        let (piece, a) = (&w.bytes[first * BYTES..][..R * BYTES], &a[first_vector..][..T]);
        let piece = piece.as_chunks::<BYTES>().0;
        if first_vector == 0 {
            prefetch(&piece[0], w.ahead());
        }
        let mut values = [_mm256_setzero_ps(); R];
        for r in 0..R {
            values[r] = unpack(&piece[r]);
        }
        for t in 0..T {
            let a = _mm256_set1_ps(a[t]);
            for r in 0..R {
                sums[t][r] = _mm256_fmadd_ps(a, values[r], sums[t][r]);
            }
        }
    }
    for t in 0..T {
        let y = &mut y[start + t * columns..][..R * LANES];
        for r in 0..R {
            store_32(&mut y.as_chunks_mut::<LANES>().0[r], sums[t][r]);
        }
    }
}
