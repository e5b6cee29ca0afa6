//! `Q4_0` in fours: thirty-two bytes of nibbles are a register, two blocks' low nibbles and two blocks' high ones.
//!
//! ```text
//! for 8 blocks:       s[8] = d[8] * scale[8]                               two loads of four scales
//!                     offset += s * sum[8]                                 the weights' offset of 8, for all at once
//!   for each of 2:    whole[8] = 32 low nibbles * first halves + 32 high ones * second halves, by fours
//!                     sums += float(whole) * [s0 x 4 | s1 x 4]
//! ```

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use bytemuck::{cast, cast_mut, cast_ref};

use super::super::fours::{BLOCKS, Four, VALUES, part};
use super::super::{Rounded, Row};
use super::{load, load_8, load_32, nibble_weights, prefetch, scale, store, sum_lanes};

/// Fours whose scales are converted at once.
const PAIR: usize = 2;

/// `sum of w[i] * x[i]`, four sums of eight lanes in flight.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot(row: Row<'_>, x: &[f32]) -> f32 {
    let ahead = row.ahead();
    let mut sums = [_mm256_setzero_ps(); 4];
    for (four, x) in row.bytes.as_chunks().0.iter().zip(x.as_chunks::<VALUES>().0) {
        prefetch(four, ahead);
        for (block, x) in x.as_chunks().0.iter().enumerate() {
            let (w, x) = (weights(four, block), load(x));
            for i in 0..4 {
                sums[i] = _mm256_fmadd_ps(w[i], x[i], sums[i]);
            }
        }
    }
    sum_lanes(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])))
}

/// Each `y[i]` rounded once.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn axpy(a: f32, row: Row<'_>, y: &mut [f32]) {
    let ahead = row.ahead();
    for (four, y) in row.bytes.as_chunks().0.iter().zip(y.as_chunks_mut::<VALUES>().0) {
        prefetch(four, ahead);
        for (block, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
            let (w, mut sums) = (weights(four, block), load(y));
            for i in 0..4 {
                sums[i] = _mm256_fmadd_ps(_mm256_set1_ps(a), w[i], sums[i]);
            }
            let [y0, y1, y2, y3] = sums;
            store(y, [y0, y1], [y2, y3]);
        }
    }
}

/// [`super::super::Kernels::add_four`]. Whole bytes are added up, and low nibbles: of an unsigned nibble less its offset,
/// `16 * high` is the difference, and what all of a block lose is added up once.
///
/// ```text
/// for each row, of a block under ad = a * d:
///     sum[0..16]   += ad * (byte & 15)        low
///     sum[16..32]  += ad * byte               low + 16 * high
///     shared       += ad
/// ```
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_four(a: [f32; 4], rows: [Row<'_>; 4], sum: &mut [f32], shared: &mut [f32]) {
    let mut w: [&[Four]; 4] = [&[]; 4];
    for r in 0..4 {
        w[r] = &rows[r].bytes.as_chunks().0[..sum.len() / VALUES];
    }
    let sums = sum.as_chunks_mut::<VALUES>().0.iter_mut().zip(shared.as_chunks_mut::<BLOCKS>().0);
    for (at, (sum, shared)) in sums.enumerate() {
        let mut factors = [[0.0; BLOCKS]; 4];
        let mut all = cast::<[f32; BLOCKS], __m128>(*shared);
        for r in 0..4 {
            prefetch(&w[r][at], rows[r].ahead());
            let d = _mm_cvtph_ps(_mm_cvtsi64_si128(scales_of(&w[r][at])));
            let ad = _mm_mul_ps(d, _mm_set1_ps(a[r]));
            all = _mm_add_ps(all, ad);
            factors[r] = cast(ad);
        }
        *shared = cast(all);
        for (pair, sum) in sum.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let sum: &mut [[f32; 32]; 2] = cast_mut(sum);
            let mut sums = [load(&sum[0]), load(&sum[1])];
            for r in 0..4 {
                for i in 0..2 {
                    let block = 2 * pair + i;
                    let ad = _mm256_set1_ps(factors[r][block]);
                    let [q0, q1] = cast_ref::<_, [[u8; 8]; 2]>(part(&w[r][at], block).1);
                    let [q0, q1] =
                        [opaque(_mm256_cvtepu8_epi32(load_8(q0))), opaque(_mm256_cvtepu8_epi32(load_8(q1)))];
                    let low = _mm256_set1_epi32(0xf);
                    let steps = [_mm256_and_si256(q0, low), _mm256_and_si256(q1, low), q0, q1];
                    for k in 0..4 {
                        sums[i][k] = _mm256_fmadd_ps(ad, _mm256_cvtepi32_ps(steps[k]), sums[i][k]);
                    }
                }
            }
            for i in 0..2 {
                let [low0, low1, both0, both1] = sums[i];
                store(&mut sum[i], [low0, low1], [both0, both1]);
            }
        }
    }
}

/// The same, of which the compiler knows nothing.
#[inline]
#[target_feature(enable = "avx2")]
fn opaque(mut x: __m256i) -> __m256i {
    // SAFETY: no instruction at all.
    unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) x, options(pure, nomem, nostack, preserves_flags)) };
    x
}

/// [`super::super::Kernels::settle`] of what [`add_four`] added up.
#[target_feature(enable = "avx2,fma")]
pub(super) fn settle(shared: &[f32], sum: &mut [f32]) {
    for (shared, sum) in shared.iter().zip(sum.as_chunks_mut().0) {
        let ([low0, low1, both0, both1], offset) = (load(sum), _mm256_set1_ps(8.0 * shared));
        let high = |both, low| _mm256_fmsub_ps(_mm256_sub_ps(both, low), _mm256_set1_ps(1.0 / 16.0), offset);
        let lows = [_mm256_sub_ps(low0, offset), _mm256_sub_ps(low1, offset)];
        store(sum, lows, [high(both0, low0), high(both1, low1)]);
    }
}

/// [`super::super::Kernels::dot_rounded`] of rows of one length, each to the bit as if it were alone.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dots<const R: usize>(rows: [Row<'_>; R], x: Rounded<'_>) -> [f32; R] {
    let (scales, scales_rest) = x.scales.as_chunks::<{ PAIR * BLOCKS }>();
    let (block_sums, sums_rest) = x.sums.as_chunks::<{ PAIR * BLOCKS }>();
    let (halves, halves_rest) = x.halves.as_chunks::<PAIR>();
    let (mut w, mut w_rest): ([&[[Four; PAIR]]; R], [&[Four]; R]) = ([&[]; R], [&[]; R]);
    for r in 0..R {
        let (pairs, rest) = rows[r].bytes.as_chunks::<72>().0.as_chunks();
        (w[r], w_rest[r]) = (&pairs[..halves.len()], rest);
    }
    let (mut sums, mut offsets) = ([[_mm256_setzero_ps(); 2]; R], [_mm256_setzero_ps(); R]);
    for (at, halves) in halves.iter().enumerate() {
        for r in 0..R {
            let w = &w[r][at];
            prefetch(w, rows[r].ahead());
            let d = _mm256_cvtph_ps(_mm_set_epi64x(scales_of(&w[1]), scales_of(&w[0])));
            let s = _mm256_mul_ps(d, load_32(cast_ref(&scales[at])));
            offsets[r] = _mm256_fmadd_ps(s, load_32(cast_ref(&block_sums[at])), offsets[r]);
            sums[r] = add_products(&w[0], &halves[0], s, [0, 2], sums[r]);
            sums[r] = add_products(&w[1], &halves[1], s, [4, 6], sums[r]);
        }
    }
    let rest = scales_rest.as_chunks().0.iter().zip(sums_rest.as_chunks().0).zip(halves_rest);
    for (at, ((scales, block_sums), halves)) in rest.enumerate() {
        for r in 0..R {
            let w = &w_rest[r][at];
            let d = _mm256_cvtph_ps(_mm_cvtsi64_si128(scales_of(w)));
            let s = _mm256_mul_ps(d, first_lanes(scales));
            offsets[r] = _mm256_fmadd_ps(s, first_lanes(block_sums), offsets[r]);
            sums[r] = add_products(w, halves, s, [0, 2], sums[r]);
        }
    }
    let mut out = [0.0; R];
    for r in 0..R {
        let both = _mm256_add_ps(sums[r][0], sums[r][1]);
        out[r] = sum_lanes(_mm256_fnmadd_ps(_mm256_set1_ps(8.0), offsets[r], both));
    }
    out
}

/// A four's products, of whose two halves the scales begin in these lanes of `s`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_products(
    four: &Four,
    halves: &[i8; VALUES],
    s: __m256,
    lanes: [i32; 2],
    mut sums: [__m256; 2],
) -> [__m256; 2] {
    let (_, nibbles) = four.split_at(2 * BLOCKS);
    let nibbles: &[[u8; 32]; 2] = cast_ref(&nibbles.as_chunks::<64>().0[0]);
    let x: &[[u8; 32]; 4] = cast_ref(halves);
    for pair in 0..2 {
        let whole = _mm256_cvtepi32_ps(whole(&nibbles[pair], &x[pair], &x[2 + pair]));
        let second = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
        let scale = _mm256_permutevar8x32_ps(s, _mm256_add_epi32(second, _mm256_set1_epi32(lanes[pair])));
        sums[pair] = _mm256_fmadd_ps(whole, scale, sums[pair]);
    }
    sums
}

/// Of each of two blocks, in four lanes: the sum of its nibbles times the vector's whole numbers. Pairs stay below
/// `2 * 2 * 15 * 127`.
#[inline]
#[target_feature(enable = "avx2")]
fn whole(nibbles: &[u8; 32], first: &[u8; 32], second: &[u8; 32]) -> __m256i {
    let (all, low_bits) = (_mm256_castps_si256(load_32(nibbles)), _mm256_set1_epi8(0xf));
    let (low, high) =
        (_mm256_and_si256(all, low_bits), _mm256_and_si256(_mm256_srli_epi16::<4>(all), low_bits));
    let first = _mm256_maddubs_epi16(low, _mm256_castps_si256(load_32(first)));
    let second = _mm256_maddubs_epi16(high, _mm256_castps_si256(load_32(second)));
    _mm256_madd_epi16(_mm256_add_epi16(first, second), _mm256_set1_epi16(1))
}

/// The four scales as they lie.
#[inline]
fn scales_of(four: &Four) -> i64 {
    i64::from_le_bytes(four.as_chunks().0[0])
}

#[inline]
#[target_feature(enable = "avx")]
fn first_lanes(&[a, b, c, d]: &[f32; BLOCKS]) -> __m256 {
    _mm256_setr_ps(a, b, c, d, 0.0, 0.0, 0.0, 0.0)
}

/// Values `start..start + out.len()` of a row, whole thirty-twos.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(row: &Row<'_>, start: usize, out: &mut [f32]) {
    let fours = row.bytes.as_chunks().0;
    for (at, out) in (start / 32..).zip(out.as_chunks_mut().0) {
        let [w0, w1, w2, w3] = weights(&fours[at / BLOCKS], at % BLOCKS);
        store(out, [w0, w1], [w2, w3]);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn weights(four: &Four, block: usize) -> [__m256; 4] {
    let (d, q) = part(four, block);
    nibble_weights(scale(d), q)
}
