//! A row of blocks times one vector of 8 bits (VNNI).
//!
//! ```text
//! for 16 blocks:   s[16] = d[16] * scale[16]                        one gather of the row's scales
//!                  offset -= s * sum[16] * 8 (128)                  the weights' offset, for all at once
//!   for 2 of them: whole[16] = dpbusd(64 weights, 64 values)        eight sums of four products a block
//!                  sums += float(whole) * [s0 x 8 | s1 x 8]
//! ```
//!
//! Blocks beyond the last sixteen are taken one by one. The order of all sums is that of the blocks alone.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use super::super::avx2::{load_16, prefetch};
use super::super::{Matrix, Rounded, Row};
use super::{load_32, load_64};
use crate::format::Format;

/// Blocks whose scales are gathered together.
const BLOCKS: usize = 16;
/// What memory is asked for at a time.
const LINE_BYTES: usize = 64;

/// [`super::super::Kernels::dot_rounded`]; lengths and format have been checked.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) fn dot(w: Row<'_>, x: Rounded<'_>) -> f32 {
    if w.format == Format::Q4_0 {
        dot_with::<18>(w, x, 8.0, |q| nibbles(q), |a, b| two_of_nibbles(a, b))
    } else {
        dot_with::<34>(w, x, 128.0, |q| bytes(q), |a, b| two_of_bytes(a, b))
    }
}

/// [`super::super::Kernels::rows_rounded`]; lengths, format and rows have been checked.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) fn rows(w: Matrix<'_>, start: usize, x: Rounded<'_>, out: &mut [f32]) {
    for (at, out) in (start..).zip(out) {
        *out = dot(w.row(at), x);
    }
}

/// Over what a block's weights are, made unsigned by `offset`, for one block and for two.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn dot_with<const BYTES: usize>(
    row: Row<'_>,
    x: Rounded<'_>,
    offset: f32,
    one: impl Fn(&[u8; BYTES]) -> __m256i,
    two: impl Fn(&[u8; BYTES], &[u8; BYTES]) -> __m512i,
) -> f32 {
    let ahead = row.ahead();
    let (w, _) = row.bytes.as_chunks::<BYTES>();
    let (w16, w_rest) = w.as_chunks::<BLOCKS>();
    let (scales, scales_rest) = x.scales.as_chunks::<BLOCKS>();
    let (all_sums, sums_rest) = x.sums.as_chunks::<BLOCKS>();
    let (values, values_rest) = x.values.as_chunks::<{ 32 * BLOCKS }>();
    let places = _mm512_mullo_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        _mm512_set1_epi32(BYTES as i32),
    );
    let mut sums = [_mm512_setzero_ps(); 2];
    let mut offsets = _mm512_setzero_ps();
    for (((w, scales), block_sums), values) in w16.iter().zip(scales).zip(all_sums).zip(values) {
        let s = _mm512_mul_ps(row_scales(w, places), floats(scales));
        offsets = _mm512_fmadd_ps(s, floats(block_sums), offsets);
        let mut both = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        let pairs = w.as_chunks::<2>().0.iter().zip(values.as_chunks::<64>().0);
        for (i, ([a, b], values)) in pairs.enumerate() {
            prefetch(a, ahead);
            if 2 * BYTES > LINE_BYTES {
                prefetch(b, ahead);
            }
            let whole = _mm512_dpbusd_epi32(_mm512_setzero_si512(), two(a, b), bytes_64(values));
            let scale = _mm512_permutexvar_ps(both, s);
            sums[i % 2] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, sums[i % 2]);
            both = _mm512_add_epi32(both, _mm512_set1_epi32(2));
        }
    }
    let mut rest = 0.0;
    let values = values_rest.as_chunks::<32>().0;
    for (((w, scale), block_sum), values) in w_rest.iter().zip(scales_rest).zip(sums_rest).zip(values) {
        let d = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes([w[0], w[1], 0, 0]))));
        let whole = _mm256_dpbusd_epi32(_mm256_setzero_si256(), one(w), load_32(bytemuck::cast_ref(values)));
        let whole = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(whole)) as f32;
        rest = f32::mul_add(d * scale, f32::mul_add(-offset, *block_sum, whole), rest);
    }
    let sums = _mm512_fnmadd_ps(_mm512_set1_ps(offset), offsets, _mm512_add_ps(sums[0], sums[1]));
    _mm512_reduce_add_ps(sums) + rest
}

/// The scales of sixteen blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
fn row_scales<const BYTES: usize>(w: &[[u8; BYTES]; BLOCKS], places: __m512i) -> __m512 {
    // SAFETY: each of the sixteen reads is four bytes at the front of a block, which is longer.
    let words = unsafe { _mm512_i32gather_epi32::<1>(places, w.as_ptr().cast()) };
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))
}

/// 32 nibbles as bytes, in the order of their values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn nibbles([_, _, q @ ..]: &[u8; 18]) -> __m256i {
    let low = load_16(q);
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), _mm_srli_epi16::<4>(low));
    _mm256_and_si256(both, _mm256_set1_epi8(0xf))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn two_of_nibbles([_, _, a @ ..]: &[u8; 18], [_, _, b @ ..]: &[u8; 18]) -> __m512i {
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load_16(a)), load_16(b));
    // each block twice, the second time its high halves
    let twice =
        _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(both));
    let shifted = _mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
    _mm512_and_si512(shifted, _mm512_set1_epi8(0xf))
}

/// 32 signed bytes, 128 added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn bytes([_, _, q @ ..]: &[u8; 34]) -> __m256i {
    _mm256_xor_si256(load_32(q), _mm256_set1_epi8(i8::MIN))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn two_of_bytes([_, _, a @ ..]: &[u8; 34], [_, _, b @ ..]: &[u8; 34]) -> __m512i {
    let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(load_32(a)), load_32(b));
    _mm512_xor_si512(both, _mm512_set1_epi8(i8::MIN))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn bytes_64(values: &[i8; 64]) -> __m512i {
    load_64(bytemuck::cast_ref(values))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn floats(values: &[f32; BLOCKS]) -> __m512 {
    _mm512_castsi512_ps(load_64(bytemuck::cast_ref(values)))
}
