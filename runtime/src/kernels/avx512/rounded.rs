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
/// Short rows in order that meet a vector together, so that one begins while another's sum is taken.
const ROWS: usize = 4;
/// The longest of them: several long ones at a time come more slowly from memory than one.
const SHORT_BYTES: usize = 1024;
/// What memory is asked for at a time.
const LINE_BYTES: usize = 64;

/// [`super::super::Kernels::dot_rounded`]; lengths and format have been checked.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) fn dot(w: Row<'_>, x: Rounded<'_>) -> f32 {
    let [sum] = dots([w], x);
    sum
}

/// [`super::super::Kernels::rows_rounded`]; lengths, format and rows have been checked.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) fn rows(w: Matrix<'_>, start: usize, x: Rounded<'_>, out: &mut [f32]) {
    let short = w.format.row_bytes(w.columns) <= SHORT_BYTES;
    let (together, rest) = out.split_at_mut(if short { out.len() / ROWS * ROWS } else { 0 });
    let mut at = start;
    for out in together.as_chunks_mut::<ROWS>().0 {
        *out = dots([w.row(at), w.row(at + 1), w.row(at + 2), w.row(at + 3)], x);
        at += ROWS;
    }
    for (at, out) in (at..).zip(rest) {
        *out = dot(w.row(at), x);
    }
}

/// Rows of one format, each to the bit as if it were alone.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn dots<const R: usize>(w: [Row<'_>; R], x: Rounded<'_>) -> [f32; R] {
    if w[0].format == Format::Q4_0 {
        dots_with::<18, R>(w, x, 8.0, |q| nibbles(q), |a, b| two_of_nibbles(a, b))
    } else {
        dots_with::<34, R>(w, x, 128.0, |q| bytes(q), |a, b| two_of_bytes(a, b))
    }
}

/// Over what a block's weights are, made unsigned by `offset`, for one block and for two.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn dots_with<const BYTES: usize, const R: usize>(
    rows: [Row<'_>; R],
    x: Rounded<'_>,
    offset: f32,
    one: impl Fn(&[u8; BYTES]) -> __m256i,
    two: impl Fn(&[u8; BYTES], &[u8; BYTES]) -> __m512i,
) -> [f32; R] {
    let aheads = rows.map(|row| row.ahead());
    let (scales, scales_rest) = x.scales.as_chunks::<BLOCKS>();
    let (all_sums, sums_rest) = x.sums.as_chunks::<BLOCKS>();
    let (values, values_rest) = x.values.as_chunks::<{ 32 * BLOCKS }>();
    let groups = scales.len();
    let mut w16: [&[[[u8; BYTES]; BLOCKS]]; R] = [&[]; R];
    let mut w_rest: [&[[u8; BYTES]]; R] = [&[]; R];
    for r in 0..R {
        let (w, rest) = rows[r].bytes.as_chunks::<BYTES>().0.as_chunks();
        (w16[r], w_rest[r]) = (&w[..groups], rest);
    }
    let places = _mm512_mullo_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        _mm512_set1_epi32(BYTES as i32),
    );
    let mut sums = [[_mm512_setzero_ps(); 2]; R];
    let mut offsets = [_mm512_setzero_ps(); R];
    for group in 0..groups {
        let mut s = [_mm512_setzero_ps(); R];
        for r in 0..R {
            s[r] = _mm512_mul_ps(row_scales(&w16[r][group], places), floats(&scales[group]));
            offsets[r] = _mm512_fmadd_ps(s[r], floats(&all_sums[group]), offsets[r]);
        }
        let mut both = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        for (i, values) in values[group].as_chunks::<64>().0.iter().enumerate() {
            let values = bytes_64(values);
            for r in 0..R {
                let [a, b] = &w16[r][group].as_chunks::<2>().0[i];
                prefetch(a, aheads[r]);
                if 2 * BYTES > LINE_BYTES {
                    prefetch(b, aheads[r]);
                }
                let whole = _mm512_dpbusd_epi32(_mm512_setzero_si512(), two(a, b), values);
                let scale = _mm512_permutexvar_ps(both, s[r]);
                sums[r][i % 2] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, sums[r][i % 2]);
            }
            both = _mm512_add_epi32(both, _mm512_set1_epi32(2));
        }
    }
    let mut out = [0.0; R];
    for r in 0..R {
        let mut rest = 0.0;
        let values = values_rest.as_chunks::<32>().0;
        for (((w, scale), block_sum), values) in w_rest[r].iter().zip(scales_rest).zip(sums_rest).zip(values)
        {
            let d = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes([w[0], w[1], 0, 0]))));
            let whole =
                _mm256_dpbusd_epi32(_mm256_setzero_si256(), one(w), load_32(bytemuck::cast_ref(values)));
            let whole = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(whole)) as f32;
            rest = f32::mul_add(d * scale, f32::mul_add(-offset, *block_sum, whole), rest);
        }
        let both = _mm512_add_ps(sums[r][0], sums[r][1]);
        let sum = _mm512_fnmadd_ps(_mm512_set1_ps(offset), offsets[r], both);
        out[r] = _mm512_reduce_add_ps(sum) + rest;
    }
    out
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
