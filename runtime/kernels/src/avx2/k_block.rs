//! Blocks of 256 weights: the scales of a block are unpacked once, then its weights 32 at a time.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use bytemuck::{cast_ref, cast_slice};

use super::super::k_block::{self, PARTS, Q4K, Q6K, VALUES, six_bits};
use super::super::{Rounded, Row};
use super::{load, load_8, load_16, load_32, load_bytes, prefetch, scale, store, store_32, sum_lanes};
use crate::format::Format;

/// `sum of w[i] * x[i]`, four sums of eight lanes in flight.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot(row: Row<'_>, x: &[f32]) -> f32 {
    let x = x.as_chunks::<32>().0;
    let mut sums = [_mm256_setzero_ps(); 4];
    each_part(row, 0, x.len(), |at, w| {
        let x = load(&x[at]);
        for i in 0..4 {
            sums[i] = _mm256_fmadd_ps(w[i], x[i], sums[i]);
        }
    });
    sum_lanes(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])))
}

/// `y[i] += a * w[i]`, rounded once.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn axpy(a: f32, row: Row<'_>, y: &mut [f32]) {
    let (a, y) = (_mm256_set1_ps(a), y.as_chunks_mut::<32>().0);
    each_part(row, 0, y.len(), |at, w| {
        let mut sums = load(&y[at]);
        for i in 0..4 {
            sums[i] = _mm256_fmadd_ps(a, w[i], sums[i]);
        }
        let [y0, y1, y2, y3] = sums;
        store(&mut y[at], [y0, y1], [y2, y3]);
    });
}

/// Values `start..start + out.len()` of a row, in whole groups of 32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(row: &Row<'_>, start: usize, out: &mut [f32]) {
    let out = out.as_chunks_mut::<32>().0;
    each_part(*row, start / 32, out.len(), |at, [w0, w1, w2, w3]| store(&mut out[at], [w0, w1], [w2, w3]));
}

/// Parts `first..first + count` of a row: groups of 32 values, counted from zero.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn each_part(row: Row<'_>, first: usize, count: usize, part: impl FnMut(usize, [__m256; 4])) {
    let ahead = row.ahead();
    if row.format == Format::Q4K {
        let begin = |block: &Q4K| {
            prefetch(block, ahead);
            q4_k_scales(block)
        };
        k_block::each_part(row.bytes, first, count, begin, |w, scales, k| q4_k_weights(w, scales, k), part);
    } else {
        let begin = |block: &Q6K| {
            prefetch(block, ahead);
            q6_k_scales(block)
        };
        k_block::each_part(row.bytes, first, count, begin, |w, scales, k| q6_k_weights(w, scales, k), part);
    }
}

// ---- 32 weights ----

/// The scales and minima of the groups.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn q4_k_scales(block: &Q4K) -> [[f32; PARTS]; 2] {
    let factors = [scale(block.d), scale(block.dmin)];
    let (six_bits, mut scales) = (six_bits(&block.six_bits), [[0.0; PARTS]; 2]);
    for i in 0..2 {
        let numbers = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(&six_bits[i])));
        store_32(&mut scales[i], _mm256_mul_ps(factors[i], numbers));
    }
    scales
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_k_weights(block: &Q4K, [scales, minima]: &[[f32; PARTS]; 2], k: usize) -> [__m256; 4] {
    let (scale, minimum) = (_mm256_set1_ps(scales[k]), _mm256_set1_ps(minima[k]));
    let mut weights = wide(q4_k_steps(block, k));
    for w in &mut weights {
        *w = _mm256_fmsub_ps(*w, scale, minimum);
    }
    weights
}

/// Part `k` of a `Q4_K` block as integers, 0 to 15.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn q4_k_steps(block: &Q4K, k: usize) -> __m256i {
    let q = load_32_bytes(&block.q[k / 2]);
    _mm256_and_si256(shifted(q, 4 * (k % 2)), _mm256_set1_epi8(0xf))
}

/// The scales of the groups of 16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn q6_k_scales(block: &Q6K) -> [f32; 2 * PARTS] {
    let (d, mut scales) = (scale(block.d), [0.0; 2 * PARTS]);
    let eights: &[[u8; PARTS]; 2] = cast_ref(&block.scales);
    for (to, eight) in scales.as_chunks_mut().0.iter_mut().zip(eights) {
        store_32(to, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8(eight)))));
    }
    scales
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q6_k_weights(block: &Q6K, scales: &[f32; 2 * PARTS], k: usize) -> [__m256; 4] {
    let scales = [_mm256_set1_ps(scales[2 * k]), _mm256_set1_ps(scales[2 * k + 1])];
    let mut weights = wide(_mm256_sub_epi8(q6_k_steps(block, k), _mm256_set1_epi8(32)));
    for i in 0..4 {
        weights[i] = _mm256_mul_ps(weights[i], scales[i / 2]);
    }
    weights
}

/// Part `k` of a `Q6_K` block as integers, 0 to 63.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn q6_k_steps(block: &Q6K, k: usize) -> __m256i {
    let (half, quarter) = (k / 4, k % 4);
    let low = shifted(load_32_bytes(&block.low[2 * half + quarter % 2]), 4 * (quarter / 2));
    let high = shifted(load_32_bytes(&block.high[half]), 2 * quarter);
    let high = _mm256_slli_epi16::<4>(_mm256_and_si256(high, _mm256_set1_epi8(3)));
    _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(0xf)), high)
}

/// Shifts pairs of bytes down; the upper bits of a byte then hold bits of its neighbour.
#[inline]
#[target_feature(enable = "avx2")]
fn shifted(bytes: __m256i, bits: usize) -> __m256i {
    _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(bits as i32))
}

/// Signed bytes converted to floats.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn wide(bytes: __m256i) -> [__m256; 4] {
    let (low, high) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
    [
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)),
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(low))),
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)),
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(high))),
    ]
}

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn load_32_bytes(bytes: &[u8; 32]) -> __m256i {
    _mm256_castps_si256(load_32(bytes))
}

// ---- a vector of 8 bits ----

/// One in each of eight bytes; times a number below 256, it broadcasts the number.
const EIGHT_BYTES: i64 = 0x0101_0101_0101_0101;

/// Eight partial sums of a part's products in a register. The integer scale of a group multiplies sums of
/// pairs, which stay in 16 bits: at most `2 * 32 * 127` in `Q6_K`, less in `Q4_K`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_rounded(row: Row<'_>, x: Rounded<'_>) -> f32 {
    let ahead = row.ahead();
    let values = x.values.as_chunks::<VALUES>().0.iter().zip(x.scales.as_chunks::<PARTS>().0);
    let mut sums = _mm256_setzero_ps();
    if row.format == Format::Q4K {
        let mut minima = _mm256_setzero_ps();
        let blocks = cast_slice::<_, Q4K>(row.bytes).iter().zip(values).zip(x.sums.as_chunks::<PARTS>().0);
        for ((block, (values, scales)), all) in blocks {
            prefetch(block, ahead);
            let [numbers, depths] = six_bits(&block.six_bits);
            let scales = load_eight(scales);
            let depths = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(&depths)));
            let by_scale = _mm256_mul_ps(scale(block.dmin), scales);
            minima = _mm256_fmadd_ps(_mm256_mul_ps(depths, by_scale), load_eight(all), minima);
            let worth = worths(scale(block.d), scales);
            for (k, values) in values.as_chunks().0.iter().enumerate() {
                let pairs = _mm256_maddubs_epi16(q4_k_steps(block, k), load_bytes(values));
                let whole = _mm256_madd_epi16(pairs, _mm256_set1_epi16(i16::from(numbers[k])));
                sums = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(worth[k]), sums);
            }
        }
        sums = _mm256_sub_ps(sums, minima);
    } else {
        let offset = _mm256_set1_epi8(32);
        for (block, (values, scales)) in cast_slice::<_, Q6K>(row.bytes).iter().zip(values) {
            prefetch(block, ahead);
            let worth = worths(scale(block.d), load_eight(scales));
            let numbers = load_16(cast_ref(&block.scales));
            for (k, values) in values.as_chunks().0.iter().enumerate() {
                let values = load_bytes(values);
                let whole = _mm256_maddubs_epi16(q6_k_steps(block, k), values);
                let pairs = _mm256_sub_epi16(whole, _mm256_maddubs_epi16(offset, values));
                let both = _mm_set_epi64x(EIGHT_BYTES * (2 * k as i64 + 1), EIGHT_BYTES * 2 * k as i64);
                let number = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(numbers, both));
                let whole = _mm256_madd_epi16(pairs, number);
                sums = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(worth[k]), sums);
            }
        }
    }
    sum_lanes(sums)
}

#[inline]
#[target_feature(enable = "avx")]
fn load_eight(values: &[f32; PARTS]) -> __m256 {
    load_32(cast_ref(values))
}

/// The value of one step in each part: the block's scale times the part's scale.
#[inline]
#[target_feature(enable = "avx")]
fn worths(d: __m256, scales: __m256) -> [f32; PARTS] {
    let mut worth = [0.0; PARTS];
    store_32(&mut worth, _mm256_mul_ps(d, scales));
    worth
}
