//! Interleaved `Q4_0`: 64 bytes of nibbles fill a register without moving any byte.
//!
//! ```text
//! for 16 blocks:   s[16] = d[16] * scale[16]                        four loads of four scales
//!                  offset += s * sum[16]                            the weights' offset of 8, for all at once
//!   for each four: whole[16] = dpbusd(64 low nibbles, first halves) + dpbusd(64 high ones, second halves)
//!                  sums += float(whole) * [s0 x 4 | s1 x 4 | s2 x 4 | s3 x 4]
//! ```

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use super::super::interleaved::{BLOCKS, Interleaved, VALUES, part};
use super::super::prefetch::prefetch;
use super::super::{Rounded, Row};
use super::rounded::{floats, low_and_high, multiply};
use super::{load, load_64, q4_0_scaled, scale, store};

/// Interleaved groups whose scales are converted at once.
const GROUPS: usize = 4;

/// `sum of w[i] * x[i]`, four sums in flight.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn dot(row: Row<'_>, x: &[f32]) -> f32 {
    let ahead = row.ahead();
    let mut sums = [_mm512_setzero_ps(); 4];
    for (four, x) in row.bytes.as_chunks().0.iter().zip(x.as_chunks::<VALUES>().0) {
        prefetch(four, ahead);
        for (block, x) in x.as_chunks().0.iter().enumerate() {
            let ([w0, w1], [x0, x1]) = (weights(four, block), load(x));
            let pair = 2 * (block % 2);
            sums[pair] = _mm512_fmadd_ps(w0, x0, sums[pair]);
            sums[pair + 1] = _mm512_fmadd_ps(w1, x1, sums[pair + 1]);
        }
    }
    _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])))
}

/// `R` times axpy, in order for each value; `y` stays in registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) fn axpy<const R: usize>(a: [f32; R], rows: [Row<'_>; R], y: &mut [f32]) {
    let aheads = rows.map(|row| row.ahead());
    let a = a.map(|a| _mm512_set1_ps(a));
    let w = rows.map(|row| row.bytes.as_chunks::<72>().0.as_chunks::<GROUPS>());
    let (y, y_rest) = y.as_chunks_mut::<{ GROUPS * VALUES }>();
    for (group, y) in y.iter_mut().enumerate() {
        let mut all = [[0.0; GROUPS * BLOCKS]; R];
        for r in 0..R {
            let scales = scales_of_all(&w[r].0[group]);
            // SAFETY: the array is valid for 64 bytes; the store needs no alignment.
            unsafe { _mm512_storeu_ps(all[r].as_mut_ptr(), scales) };
        }
        for (at, y) in y.as_chunks_mut::<VALUES>().0.iter_mut().enumerate() {
            for r in 0..R {
                prefetch(&w[r].0[group][at], aheads[r]);
            }
            for (block, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
                let [mut y0, mut y1] = load(y);
                for r in 0..R {
                    let d = _mm512_set1_ps(all[r][BLOCKS * at + block]);
                    let [w0, w1] = q4_0_scaled(d, part(&w[r].0[group][at], block).1);
                    y0 = _mm512_fmadd_ps(a[r], w0, y0);
                    y1 = _mm512_fmadd_ps(a[r], w1, y1);
                }
                store(y, [y0, y1]);
            }
        }
    }
    for (at, y) in y_rest.as_chunks_mut().0.iter_mut().enumerate() {
        let [mut y0, mut y1] = load(y);
        for r in 0..R {
            let four = &w[r].1[at / BLOCKS];
            if at % BLOCKS == 0 {
                prefetch(four, aheads[r]);
            }
            let [w0, w1] = weights(four, at % BLOCKS);
            y0 = _mm512_fmadd_ps(a[r], w0, y0);
            y1 = _mm512_fmadd_ps(a[r], w1, y1);
        }
        store(y, [y0, y1]);
    }
}

/// Values `start..start + out.len()` of a row, in whole groups of 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn unpack(row: &Row<'_>, start: usize, out: &mut [f32]) {
    let groups = row.bytes.as_chunks().0;
    for (at, out) in (start / 32..).zip(out.as_chunks_mut().0) {
        store(out, weights(&groups[at / BLOCKS], at % BLOCKS));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
pub(super) fn weights(four: &Interleaved, block: usize) -> [__m512; 2] {
    let (d, q) = part(four, block);
    q4_0_scaled(scale(d), q)
}

/// A row times a vector of 8 bits, as sums in lanes. Prefetches `ahead` bytes ahead of the weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) fn sum(row: &[u8], ahead: usize, x: Rounded<'_>) -> __m512 {
    let (w, w_rest) = row.as_chunks::<72>().0.as_chunks::<GROUPS>();
    let (scales, scales_rest) = x.scales.as_chunks::<{ GROUPS * BLOCKS }>();
    let (block_sums, sums_rest) = x.sums.as_chunks::<{ GROUPS * BLOCKS }>();
    let (halves, halves_rest) = x.halves.as_chunks::<GROUPS>();
    let (mut sums, mut offsets) = ([_mm512_setzero_ps(); 2], _mm512_setzero_ps());
    for (((w, halves), scales), block_sums) in w.iter().zip(halves).zip(scales).zip(block_sums) {
        prefetch(w, ahead);
        let s = _mm512_mul_ps(scales_of_all(w), floats(scales));
        offsets = _mm512_fmadd_ps(s, floats(block_sums), offsets);
        let mut lanes = lanes_of_four();
        for i in 0..GROUPS {
            let whole = _mm512_cvtepi32_ps(whole(&w[i], &halves[i]));
            sums[i % 2] = _mm512_fmadd_ps(whole, _mm512_permutexvar_ps(lanes, s), sums[i % 2]);
            lanes = _mm512_add_epi32(lanes, _mm512_set1_epi32(BLOCKS as i32));
        }
    }
    let x_rest = scales_rest.as_chunks().0.iter().zip(sums_rest.as_chunks().0).zip(halves_rest);
    for (w, ((scales, block_sums), halves)) in w_rest.iter().zip(x_rest) {
        prefetch(w, ahead);
        let s = _mm512_mul_ps(first_lanes(&self::scales(w)), first_lanes(scales));
        offsets = _mm512_fmadd_ps(s, first_lanes(block_sums), offsets);
        let scale = _mm512_permutexvar_ps(lanes_of_four(), s);
        sums[0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole(w, halves)), scale, sums[0]);
    }
    _mm512_fnmadd_ps(_mm512_set1_ps(8.0), offsets, _mm512_add_ps(sums[0], sums[1]))
}

/// The sums of four blocks' nibbles times the vector's integers, four lanes per block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn whole(four: &Interleaved, halves: &[i8; VALUES]) -> __m512i {
    let (_, nibbles) = four.split_at(2 * BLOCKS);
    multiply(low_and_high(load_64(&nibbles.as_chunks().0[0])), halves)
}

/// Lane indices that repeat each of the first four lanes four times.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn lanes_of_four() -> __m512i {
    _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn first_lanes(&[a, b, c, d]: &[f32; BLOCKS]) -> __m512 {
    _mm512_zextps128_ps512(_mm_setr_ps(a, b, c, d))
}

/// The scales of an interleaved group.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,f16c")]
pub(super) fn scales(four: &Interleaved) -> [f32; BLOCKS] {
    let d = _mm_cvtph_ps(_mm_cvtsi64_si128(scales_of(four)));
    let mut scales = [0.0; BLOCKS];
    // SAFETY: the array is valid for 16 bytes; the store needs no alignment.
    unsafe { _mm_storeu_ps(scales.as_mut_ptr(), d) };
    scales
}

/// The scales of four interleaved groups.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn scales_of_all(groups: &[Interleaved; GROUPS]) -> __m512 {
    let front = |at: usize| scales_of(&groups[at]);
    _mm512_cvtph_ps(_mm256_setr_epi64x(front(0), front(1), front(2), front(3)))
}

/// The four scales of an interleaved group, as stored.
#[inline]
pub(super) fn scales_of(four: &Interleaved) -> i64 {
    i64::from_le_bytes(four.as_chunks().0[0])
}
