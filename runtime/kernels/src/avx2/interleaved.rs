//! Interleaved `Q4_0`: 32 bytes of nibbles fill a register, the low nibbles of two blocks and the high ones
//! of two.
//!
//! ```text
//! for 8 blocks:       s[8] = d[8] * scale[8]                               two loads of four scales
//!                     offset += s * sum[8]                                 the weights' offset of 8, for all at once
//!   for each of 2:    whole[8] = 32 low nibbles * first halves + 32 high ones * second halves, by groups
//!                     sums += float(whole) * [s0 x 4 | s1 x 4]
//! ```

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use bytemuck::{cast, cast_mut, cast_ref};

use super::super::interleaved::{BLOCKS, Interleaved, VALUES, early, part};
use super::super::packed::LEAST;
use super::super::{ADDED, Rounded, Row};
use super::{load, load_8, load_32, nibble_weights, prefetch, scale, store, sum_lanes};

/// Interleaved groups whose scales are converted at once.
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

/// `y[i] += a * w[i]`, rounded once.
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

/// [`super::super::Kernels::add_four`]. Sums whole bytes and low nibbles: their difference is `16 * high`.
/// The offset of 8 is summed once per block and subtracted at the end.
///
/// ```text
/// for each row, of a block under ad = a * d:
///     sum[0..16]   += ad * (byte & 15)        low
///     sum[16..32]  += ad * byte               low + 16 * high
///     shared       += ad
/// ```
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_four(a: [f32; 4], rows: [Row<'_>; 4], sum: &mut [f32], shared: &mut [f32]) {
    let mut w: [&[Interleaved]; 4] = [&[]; 4];
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

/// [`super::super::Kernels::add_rounded`]. The bytes of two rows are interleaved, so that the two nibbles of
/// a column meet the pair of their factors. An odd last row is repeated with a factor of zero.
///
/// ```text
/// for 8 blocks:       round the factors of the next 8                      nothing here waits for that
///   for each 4:       pairs[0..128] = -8 * sum of q                        one sum of 16 bits a column, low nibbles and high
///     for 2 rows:     pairs += [n0 of k, n0 of k + 1, n1 of k, ...] * [q of k, q of k + 1, q of k, ...]
///                     y += s * pairs
/// ```
///
/// The sum of a column is at most `16 * 127 * 8`; intermediate overflow wraps around and cancels.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn add_rounded(a: [f32; ADDED], rows: &[Row<'_>], y: &mut [f32]) {
    let (pairs, length) = (rows.len().div_ceil(2), y.len() / VALUES);
    if length == 0 {
        return;
    }
    let (mut w, mut aheads): ([&[Interleaved]; ADDED], _) = ([&[]; ADDED], [[0; 2]; ADDED / 2]);
    for k in 0..2 * pairs {
        let row = rows[k.min(rows.len() - 1)];
        (w[k], aheads[k / 2][k % 2]) = (&row.bytes.as_chunks().0[..length], row.ahead());
    }
    let w = &w.as_chunks::<2>().0[..pairs];
    // broadcasts the lower two bytes of a block's word over its lane; the compiler would use three
    // instructions for each
    let first = [_mm_set1_epi16(0x0100), _mm_set1_epi16(0x0908)];
    let second = [_mm_set1_epi16(0x0504), _mm_set1_epi16(0x0d0c)];
    let picks =
        [opaque(_mm256_set_m128i(second[0], first[0])), opaque(_mm256_set_m128i(second[1], first[1]))];
    let mut next = Factors::rounded(&a, w, 0);
    for (at, y) in (0..).step_by(PAIR).zip(y.chunks_mut(PAIR * VALUES)) {
        let these = next;
        if at + PAIR < length {
            next = Factors::rounded(&a, w, at + PAIR);
        }
        for (i, y) in y.as_chunks_mut::<VALUES>().0.iter_mut().enumerate() {
            let at = at + i;
            let offsets = _mm256_broadcastsi128_si256(these.offsets[i]);
            let mut sums =
                [[_mm256_shuffle_epi8(offsets, picks[0]); 4], [_mm256_shuffle_epi8(offsets, picks[1]); 4]];
            for ((w, ahead), factors) in w.iter().zip(&aheads).zip(&these.pairs[i]) {
                prefetch(&w[0][at], early(at, length, ahead[0]));
                prefetch(&w[1][at], early(at, length, ahead[1]));
                let (one, other) = (nibbles_of(&w[0][at]), nibbles_of(&w[1][at]));
                let factors = _mm256_broadcastsi128_si256(*factors);
                for half in 0..2 {
                    let factors = _mm256_shuffle_epi8(factors, picks[half]);
                    let one = _mm256_castps_si256(load_32(&one[half]));
                    let other = _mm256_castps_si256(load_32(&other[half]));
                    let quads = [_mm256_unpacklo_epi8(one, other), _mm256_unpackhi_epi8(one, other)];
                    let low = _mm256_set1_epi8(0xf);
                    for k in 0..2 {
                        let lows = _mm256_maddubs_epi16(_mm256_and_si256(quads[k], low), factors);
                        let highs = _mm256_and_si256(_mm256_srli_epi16::<4>(quads[k]), low);
                        sums[half][k] = _mm256_add_epi16(sums[half][k], lows);
                        sums[half][2 + k] =
                            _mm256_add_epi16(sums[half][2 + k], _mm256_maddubs_epi16(highs, factors));
                    }
                }
            }
            for (block, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let (mut values, scale) = (load(y), _mm256_set1_ps(these.scales[i][block]));
                for k in 0..4 {
                    let lanes: [__m128i; 2] = cast(sums[block / 2][k]);
                    let whole = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(lanes[block % 2]));
                    values[k] = _mm256_fmadd_ps(whole, scale, values[k]);
                }
                let [v0, v1, v2, v3] = values;
                store(y, [v0, v1], [v2, v3]);
            }
        }
    }
}

/// The rounded factors of some rows for eight blocks.
#[derive(Clone, Copy)]
struct Factors {
    /// The scale of each block.
    scales: [[f32; BLOCKS]; PAIR],
    /// The sum of the nibble offsets of each block, in the lower half of a word.
    offsets: [__m128i; PAIR],
    /// Two 8-bit factors for each pair of rows and each block, in the lower half of a word.
    pairs: [[__m128i; ADDED / 2]; PAIR],
}

impl Factors {
    /// Rounds the factors for groups `at` and `at + 1`; past the end, the last group is repeated.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn rounded(a: &[f32; ADDED], w: &[[&[Interleaved]; 2]], at: usize) -> Self {
        let (mut factors, mut largest) = ([[_mm256_setzero_ps(); 2]; ADDED / 2], _mm256_setzero_ps());
        for ((w, a), factors) in w.iter().zip(a.as_chunks::<2>().0).zip(&mut factors) {
            for k in 0..2 {
                let (four, next) = (&w[k][at], w[k].get(at + 1).unwrap_or(&w[k][at]));
                let d = _mm256_cvtph_ps(_mm_set_epi64x(scales_of(next), scales_of(four)));
                factors[k] = _mm256_mul_ps(d, _mm256_set1_ps(a[k]));
                largest = _mm256_max_ps(largest, _mm256_andnot_ps(_mm256_set1_ps(-0.0), factors[k]));
            }
        }
        let counts = _mm256_cmp_ps::<_CMP_GE_OQ>(largest, _mm256_set1_ps(LEAST));
        let scales = _mm256_and_ps(counts, _mm256_div_ps(largest, _mm256_set1_ps(127.0)));
        let inverse = _mm256_and_ps(counts, _mm256_div_ps(_mm256_set1_ps(127.0), largest));
        let (mut pairs, mut all) = ([[_mm_setzero_si128(); ADDED / 2]; PAIR], _mm256_setzero_si256());
        for (pair, factors) in factors[..w.len()].iter().enumerate() {
            let first = _mm256_cvtps_epi32(_mm256_mul_ps(factors[0], inverse));
            let second = _mm256_cvtps_epi32(_mm256_mul_ps(factors[1], inverse));
            all = _mm256_add_epi32(all, _mm256_add_epi32(first, second));
            let lower = _mm256_and_si256(first, _mm256_set1_epi32(0xff));
            let both: [__m128i; PAIR] = cast(_mm256_or_si256(lower, _mm256_slli_epi32::<8>(second)));
            (pairs[0][pair], pairs[1][pair]) = (both[0], both[1]);
        }
        let offsets = cast(_mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32::<3>(all)));
        Self { scales: cast(scales), offsets, pairs }
    }
}

/// A register whose contents are hidden from the optimiser.
#[inline]
#[target_feature(enable = "avx2")]
fn opaque(mut x: __m256i) -> __m256i {
    // SAFETY: emits no instruction.
    unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) x, options(pure, nomem, nostack, preserves_flags)) };
    x
}

/// [`super::super::Kernels::settle`] for the sums of [`add_four`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn settle(shared: &[f32], sum: &mut [f32]) {
    for (shared, sum) in shared.iter().zip(sum.as_chunks_mut().0) {
        let ([low0, low1, both0, both1], offset) = (load(sum), _mm256_set1_ps(8.0 * shared));
        let high = |both, low| _mm256_fmsub_ps(_mm256_sub_ps(both, low), _mm256_set1_ps(1.0 / 16.0), offset);
        let lows = [_mm256_sub_ps(low0, offset), _mm256_sub_ps(low1, offset)];
        store(sum, lows, [high(both0, low0), high(both1, low1)]);
    }
}

/// [`super::super::Kernels::dot_rounded`] for rows of equal length; each result has the same bits as alone.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dots<const R: usize>(rows: [Row<'_>; R], x: Rounded<'_>) -> [f32; R] {
    let (scales, scales_rest) = x.scales.as_chunks::<{ PAIR * BLOCKS }>();
    let (block_sums, sums_rest) = x.sums.as_chunks::<{ PAIR * BLOCKS }>();
    let (halves, halves_rest) = x.halves.as_chunks::<PAIR>();
    let (mut w, mut w_rest): ([&[[Interleaved; PAIR]]; R], [&[Interleaved]; R]) = ([&[]; R], [&[]; R]);
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

/// Adds the products of an interleaved group with a vector. The scales of its two halves begin at `lanes` of
/// `s`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_products(
    four: &Interleaved,
    halves: &[i8; VALUES],
    s: __m256,
    lanes: [i32; 2],
    mut sums: [__m256; 2],
) -> [__m256; 2] {
    let nibbles = nibbles_of(four);
    let x: &[[u8; 32]; 4] = cast_ref(halves);
    for pair in 0..2 {
        let whole = _mm256_cvtepi32_ps(whole(&nibbles[pair], &x[pair], &x[2 + pair]));
        let second = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
        let scale = _mm256_permutevar8x32_ps(s, _mm256_add_epi32(second, _mm256_set1_epi32(lanes[pair])));
        sums[pair] = _mm256_fmadd_ps(whole, scale, sums[pair]);
    }
    sums
}

/// The sums of two blocks' nibbles times the vector's integers, four lanes per block.
/// Pairs stay below `2 * 2 * 15 * 127`.
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

/// The nibbles of an interleaved group, two blocks to a register.
#[inline]
fn nibbles_of(four: &Interleaved) -> &[[u8; 32]; 2] {
    cast_ref(&four[2 * BLOCKS..].as_chunks::<64>().0[0])
}

/// The four scales of an interleaved group, as stored.
#[inline]
fn scales_of(four: &Interleaved) -> i64 {
    i64::from_le_bytes(four.as_chunks().0[0])
}

#[inline]
#[target_feature(enable = "avx")]
fn first_lanes(&[a, b, c, d]: &[f32; BLOCKS]) -> __m256 {
    _mm256_setr_ps(a, b, c, d, 0.0, 0.0, 0.0, 0.0)
}

/// Values `start..start + out.len()` of a row, in whole groups of 32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(row: &Row<'_>, start: usize, out: &mut [f32]) {
    let groups = row.bytes.as_chunks().0;
    for (at, out) in (start / 32..).zip(out.as_chunks_mut().0) {
        let [w0, w1, w2, w3] = weights(&groups[at / BLOCKS], at % BLOCKS);
        store(out, [w0, w1], [w2, w3]);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn weights(four: &Interleaved, block: usize) -> [__m256; 4] {
    let (d, q) = part(four, block);
    nibble_weights(scale(d), q)
}
