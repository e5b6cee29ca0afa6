//! Blocks of 256 weights, as in `avx2::k_block`: 32 weights in two registers. With a vector of 8 bits (VNNI),
//! 64 weights in one.
//!
//! ```text
//! Q4_K   parts 2 i, 2 i + 1 are the low and the high halves of 32 bytes, which a register holds twice
//!        all[16]  = [s0-3 m0-3 s4-7 m4-7] * [d, dmin] * scales of the vector
//!        minima  += all * sums of the vector, in the lanes of m
//!        sums    += float(dpbusd(64 weights, 64 values)) * [s of 2 i x 8 | s of 2 i + 1 x 8]
//! Q6_K   parts 2 i, 2 i + 1 share the 32 bytes of upper bits; a sixteen is four lanes
//!        sums    += float(dpbusd(64 weights, 64 values) - dpbusd(32, 64 values)) * [four scales, four lanes each]
//! ```

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use bytemuck::{cast_ref, cast_slice};

use super::super::avx2::k_block::{q4_k_scales, q6_k_scales, q6_k_steps};
use super::super::k_block::{self, PARTS, Q4K, Q6K, VALUES, six_bits};
use super::super::prefetch::prefetch;
use super::super::{Rounded, Row};
use super::{load, load_16, load_32, load_64, scale, store};
use crate::format::Format;

/// `sum of w[i] * x[i]`. Two sums in flight suffice: unpacking takes longer than a multiplication.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn dot(row: Row<'_>, x: &[f32]) -> f32 {
    let x = x.as_chunks::<32>().0;
    let [mut sum0, mut sum1] = [_mm512_setzero_ps(); 2];
    each_part(row, 0, x.len(), |at, [w0, w1]| {
        let [x0, x1] = load(&x[at]);
        sum0 = _mm512_fmadd_ps(w0, x0, sum0);
        sum1 = _mm512_fmadd_ps(w1, x1, sum1);
    });
    _mm512_reduce_add_ps(_mm512_add_ps(sum0, sum1))
}

/// `R` times axpy, in order for each value; `y` stays in registers.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn axpy<const R: usize>(a: [f32; R], rows: [Row<'_>; R], y: &mut [f32]) {
    if rows[0].format == Format::Q4K {
        axpy_with(a, rows, y, |w: &Q4K| q4_k_scales(w), |w, scales, k| q4_k_weights(w, scales, k));
    } else {
        axpy_with(a, rows, y, |w: &Q6K| q6_k_scales(w), |w, scales, k| q6_k_weights(w, scales, k));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn axpy_with<B: bytemuck::Pod, S: Copy + Default, const R: usize>(
    a: [f32; R],
    rows: [Row<'_>; R],
    y: &mut [f32],
    begin: impl Fn(&B) -> S,
    weights: impl Fn(&B, &S, usize) -> [__m512; 2],
) {
    let aheads = rows.map(|row| row.ahead());
    let y = y.as_chunks_mut::<VALUES>().0;
    let w = rows.map(|row| &cast_slice::<_, B>(row.bytes)[..y.len()]);
    for (at, y) in y.iter_mut().enumerate() {
        let mut begun = [S::default(); R];
        for r in 0..R {
            prefetch(&w[r][at], aheads[r]);
            begun[r] = begin(&w[r][at]);
        }
        for (k, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
            let [mut y0, mut y1] = load(y);
            for r in 0..R {
                let [w0, w1] = weights(&w[r][at], &begun[r], k);
                y0 = _mm512_fmadd_ps(_mm512_set1_ps(a[r]), w0, y0);
                y1 = _mm512_fmadd_ps(_mm512_set1_ps(a[r]), w1, y1);
            }
            store(y, [y0, y1]);
        }
    }
}

/// Values `start..start + out.len()` of a row, in whole groups of 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn unpack(row: &Row<'_>, start: usize, out: &mut [f32]) {
    let out = out.as_chunks_mut::<32>().0;
    each_part(*row, start / 32, out.len(), |at, w| store(&mut out[at], w));
}

/// Parts `first..first + count` of a row: groups of 32 values, counted from zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn each_part(row: Row<'_>, first: usize, count: usize, part: impl FnMut(usize, [__m512; 2])) {
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

/// Part `k` of a `Q4_K` block; its sixteen possible values are looked up.
#[inline]
#[target_feature(enable = "avx512f")]
fn q4_k_weights(block: &Q4K, [scales, minima]: &[[f32; PARTS]; 2], k: usize) -> [__m512; 2] {
    let steps = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
    let values = _mm512_fmsub_ps(steps, _mm512_set1_ps(scales[k]), _mm512_set1_ps(minima[k]));
    let [low, high]: &[[u8; 16]; 2] = cast_ref(&block.q[k / 2]);
    let look_up = |q: &[u8; 16]| {
        let q = _mm512_cvtepu8_epi32(load_16(q));
        // the permutation reads the low four bits of an index and ignores the rest
        let q = if k.is_multiple_of(2) { q } else { _mm512_srli_epi32::<4>(q) };
        _mm512_permutexvar_ps(q, values)
    };
    [look_up(low), look_up(high)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn q6_k_weights(block: &Q6K, scales: &[f32; 2 * PARTS], k: usize) -> [__m512; 2] {
    let steps = _mm256_sub_epi8(q6_k_steps(block, k), _mm256_set1_epi8(32));
    let [low, high] = [_mm256_castsi256_si128(steps), _mm256_extracti128_si256::<1>(steps)];
    let scaled =
        |steps, scale| _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(steps)), _mm512_set1_ps(scale));
    [scaled(low, scales[2 * k]), scaled(high, scales[2 * k + 1])]
}

// ---- a vector of 8 bits ----

/// [`super::super::Kernels::dot_rounded`]; the caller has checked lengths and format.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) fn dot_rounded(row: Row<'_>, x: Rounded<'_>) -> f32 {
    if row.format == Format::Q4K { dot_q4_k(row, x) } else { dot_q6_k(row, x) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn dot_q4_k(row: Row<'_>, x: Rounded<'_>) -> f32 {
    // lanes of scales and minima, in the order of `six_bits`, and lanes of the vector's scales and sums
    let factors = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    let of_vector = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
    let shifts = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    let ahead = row.ahead();
    let blocks = cast_slice::<_, Q4K>(row.bytes).iter().zip(x.values.as_chunks::<VALUES>().0);
    let of_blocks = x.scales.as_chunks::<PARTS>().0.iter().zip(x.sums.as_chunks::<PARTS>().0);
    let (mut sums, mut minima) = ([_mm512_setzero_ps(); 2], _mm512_setzero_ps());
    for ((block, values), (scales, all)) in blocks.zip(of_blocks) {
        prefetch(block, ahead);
        let halves = i32::from_le_bytes([block.d[0], block.d[1], block.dmin[0], block.dmin[1]]);
        let d = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(halves)));
        let numbers: [u8; 16] = bytemuck::cast(six_bits(&block.six_bits));
        let numbers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16(&numbers)));
        let scales = _mm512_permutexvar_ps(of_vector, eight(scales));
        let worth = _mm512_mul_ps(numbers, _mm512_mul_ps(_mm512_permutexvar_ps(factors, d), scales));
        let all = _mm512_permutexvar_ps(of_vector, eight(all));
        minima = _mm512_mask3_fmadd_ps(worth, all, minima, 0xff00);
        let mut lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        for (i, (q, values)) in block.q.iter().zip(values.as_chunks::<64>().0).enumerate() {
            let q = _mm512_srlv_epi64(_mm512_broadcast_i64x4(load_32(q)), shifts);
            let q = _mm512_and_si512(q, _mm512_set1_epi8(0xf));
            let whole = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q, load_64(cast_ref(values)));
            let worth = _mm512_permutexvar_ps(lanes, worth);
            sums[i % 2] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), worth, sums[i % 2]);
            lanes = _mm512_add_epi32(lanes, _mm512_set1_epi32(2));
        }
    }
    _mm512_reduce_add_ps(_mm512_sub_ps(_mm512_add_ps(sums[0], sums[1]), minima))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn dot_q6_k(row: Row<'_>, x: Rounded<'_>) -> f32 {
    let of_vector = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    // bits 0-1, 2-3 (4-5, 6-7) of the upper bytes become bits 4-5 of a weight
    let (up, down) = (_mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2), _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2));
    let (low_bits, high_bits) = (_mm512_set1_epi8(0xf), _mm512_set1_epi8(0x30));
    let ahead = row.ahead();
    let blocks = cast_slice::<_, Q6K>(row.bytes).iter().zip(x.values.as_chunks::<VALUES>().0);
    let mut sums = [_mm512_setzero_ps(); 2];
    for ((block, values), scales) in blocks.zip(x.scales.as_chunks::<PARTS>().0) {
        prefetch(block, ahead);
        let numbers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(cast_ref(&block.scales))));
        let scales = _mm512_permutexvar_ps(of_vector, eight(scales));
        let worth = _mm512_mul_ps(numbers, _mm512_mul_ps(scale(block.d), scales));
        let mut lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        let lows: &[[u8; 64]; 2] = cast_ref(&block.low);
        let halves = lows.iter().zip(&block.high).zip(values.as_chunks::<128>().0);
        for ((low, high), values) in halves {
            let (low, high) = (load_64(low), _mm512_broadcast_i64x4(load_32(high)));
            let first = joined(low, low_bits, _mm512_sllv_epi64(high, up), high_bits);
            let second =
                joined(_mm512_srli_epi16::<4>(low), low_bits, _mm512_srlv_epi64(high, down), high_bits);
            for (i, (q, values)) in [first, second].into_iter().zip(values.as_chunks::<64>().0).enumerate() {
                let (zero, values) = (_mm512_setzero_si512(), load_64(cast_ref(values)));
                let offset = _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(32), values);
                let whole = _mm512_sub_epi32(_mm512_dpbusd_epi32(zero, q, values), offset);
                let worth = _mm512_permutexvar_ps(lanes, worth);
                sums[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), worth, sums[i]);
                lanes = _mm512_add_epi32(lanes, _mm512_set1_epi32(4));
            }
        }
    }
    _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]))
}

/// `a` where `a_bits` is set, `b` where `b_bits` is set.
#[inline]
#[target_feature(enable = "avx512f")]
fn joined(a: __m512i, a_bits: __m512i, b: __m512i, b_bits: __m512i) -> __m512i {
    _mm512_or_si512(_mm512_and_si512(a, a_bits), _mm512_and_si512(b, b_bits))
}

/// Eight floats in the lower half of a register.
#[inline]
#[target_feature(enable = "avx512f")]
fn eight(values: &[f32; PARTS]) -> __m512 {
    _mm512_castsi512_ps(_mm512_castsi256_si512(load_32(cast_ref(values))))
}
