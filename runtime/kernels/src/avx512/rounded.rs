//! A row of blocks times one vector of 8 bits (VNNI).
//!
//! ```text
//! for 16 blocks:   s[16] = d[16] * scale[16]                        one gather of the row's scales
//!                  offset -= s * sum[16] * 8 (128)                  the weights' offset, for all at once
//!   Q4_0, for 4:   whole[16] = dpbusd(64 low nibbles, first halves) + dpbusd(64 high ones, second halves)
//!                  sums += float(whole) * [s0 x 4 | s1 x 4 | s2 x 4 | s3 x 4]
//!   Q8_0, for 2:   whole[16] = dpbusd(64 weights, 64 values)        eight sums of four products a block
//!                  sums += float(whole) * [s0 x 8 | s1 x 8]
//! ```
//!
//! Blocks beyond the last sixteen are taken so, too, as far as they are whole groups (twos), the scales of those that are
//! not there being zero; what is left is taken one by one. The order of all sums is that of the blocks alone. The port that
//! moves bytes between lanes is what limits `Q4_0`; of four blocks it sees one permutation.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use super::super::avx2::load_16;
use super::super::prefetch::prefetch;
use super::super::rounded::HALVES;
use super::super::{Matrix, Rounded, Row};
use super::{interleaved, load_32, load_64};
use crate::format::Format;

/// Blocks whose scales are gathered together.
pub(super) const BLOCKS: usize = 16;
/// Short rows in order that meet a vector together, so that one begins while another's sum is taken.
const ROWS: usize = 4;
/// The longest of them: several long ones at a time come more slowly from memory than one.
const SHORT_BYTES: usize = 1024;

/// Whether rows of `format` are met here.
pub(super) fn takes(format: Format) -> bool {
    matches!(format, Format::Q8_0 | Format::Q4_0 | Format::Q4_0X4)
}

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
    if w[0].format == Format::Q4_0X4 {
        return interleaved::dots(w, x);
    }
    let rest = x.scales.len() / BLOCKS * BLOCKS;
    if w[0].format == Format::Q4_0 {
        let halves = (x.halves.as_chunks::<{ BLOCKS / 4 }>().0, &x.halves[rest / 4..]);
        dots_with::<_, 4, _>(
            w,
            x,
            8.0,
            |q| nibbles(q),
            |w, at, s, sums| some_of_nibbles(w, &halves.0[at], s, sums),
            |w, s, sums| some_of_nibbles(w, halves.1, s, sums),
        )
    } else {
        let values = (x.values.as_chunks::<{ 32 * BLOCKS }>().0, &x.values[32 * rest..]);
        dots_with::<_, 2, _>(
            w,
            x,
            128.0,
            |q| bytes(q),
            |w, at, s, sums| some_of_bytes(w, &values.0[at], s, sums),
            |w, s, sums| some_of_bytes(w, values.1, s, sums),
        )
    }
}

/// Rows times one vector of 8 bits. `one` gives a block's weights, made unsigned by `offset`; `sixteen` adds sixteen
/// blocks under their scales to two sums; `fewer` adds whole `STEP`s of the blocks beyond the last sixteen.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn dots_with<const BYTES: usize, const STEP: usize, const R: usize>(
    rows: [Row<'_>; R],
    x: Rounded<'_>,
    offset: f32,
    one: impl Fn(&[u8; BYTES]) -> __m256i,
    sixteen: impl Fn(&[[u8; BYTES]; BLOCKS], usize, __m512, [__m512; 2]) -> [__m512; 2],
    fewer: impl Fn(&[[u8; BYTES]], __m512, [__m512; 2]) -> [__m512; 2],
) -> [f32; R] {
    let aheads = rows.map(|row| row.ahead());
    let (scales, _) = x.scales.as_chunks::<BLOCKS>();
    let (all_sums, _) = x.sums.as_chunks::<BLOCKS>();
    let groups = scales.len();
    let mut w16: [&[[[u8; BYTES]; BLOCKS]]; R] = [&[]; R];
    let mut w_rest: [&[[u8; BYTES]]; R] = [&[]; R];
    for r in 0..R {
        let (w, rest) = rows[r].bytes.as_chunks::<BYTES>().0.as_chunks();
        (w16[r], w_rest[r]) = (&w[..groups], rest);
    }
    let places = places::<BYTES>();
    let mut sums = [[_mm512_setzero_ps(); 2]; R];
    let mut offsets = [_mm512_setzero_ps(); R];
    for group in 0..groups {
        for r in 0..R {
            let w = &w16[r][group];
            prefetch(w, aheads[r]);
            let s = _mm512_mul_ps(row_scales(w, places), floats(&scales[group]));
            offsets[r] = _mm512_fmadd_ps(s, floats(&all_sums[group]), offsets[r]);
            sums[r] = sixteen(w, group, s, sums[r]);
        }
    }
    let mut out = [0.0; R];
    for r in 0..R {
        let rest = if w_rest[r].is_empty() {
            0.0
        } else {
            dot_of_rest::<_, STEP>(w_rest[r], aheads[r], x, offset, &one, &fewer)
        };
        let both = _mm512_add_ps(sums[r][0], sums[r][1]);
        let sum = _mm512_fnmadd_ps(_mm512_set1_ps(offset), offsets[r], both);
        out[r] = _mm512_reduce_add_ps(sum) + rest;
    }
    out
}

/// The dot product of the blocks beyond the last sixteen. Not inlined: rows of whole sixteens are a sixth slower with
/// it among them.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn dot_of_rest<const BYTES: usize, const STEP: usize>(
    w: &[[u8; BYTES]],
    ahead: usize,
    x: Rounded<'_>,
    offset: f32,
    one: &impl Fn(&[u8; BYTES]) -> __m256i,
    fewer: &impl Fn(&[[u8; BYTES]], __m512, [__m512; 2]) -> [__m512; 2],
) -> f32 {
    let first = x.scales.len() - w.len();
    let (scales, sums, values) = (&x.scales[first..], &x.sums[first..], &x.values[32 * first..]);
    w.iter().for_each(|w| prefetch(w, ahead));
    let whole = w.len() / STEP * STEP;
    let s = _mm512_mul_ps(first_scales(&w[..whole], places::<BYTES>()), first_floats(&scales[..whole]));
    let [a, b] = fewer(&w[..whole], s, [_mm512_setzero_ps(); 2]);
    let offsets = _mm512_mul_ps(_mm512_mul_ps(s, first_floats(&sums[..whole])), _mm512_set1_ps(offset));
    let mut rest = _mm512_reduce_add_ps(_mm512_sub_ps(_mm512_add_ps(a, b), offsets));
    let blocks = w.iter().zip(scales).zip(sums).zip(values.as_chunks::<32>().0);
    for (((w, scale), block_sum), values) in blocks.skip(whole) {
        let d = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes([w[0], w[1], 0, 0]))));
        let whole = _mm256_dpbusd_epi32(_mm256_setzero_si256(), one(w), load_32(bytemuck::cast_ref(values)));
        let whole = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(whole)) as f32;
        rest = f32::mul_add(d * scale, f32::mul_add(-offset, *block_sum, whole), rest);
    }
    rest
}

/// Blocks of nibbles times those of the vector, four at a time: four sums of four products in whole numbers for each block
/// and half, the sums of both halves together.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn some_of_nibbles(w: &[[u8; 18]], halves: &[[i8; HALVES]], s: __m512, mut sums: [__m512; 2]) -> [__m512; 2] {
    let mut four = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    for (i, (w, halves)) in w.as_chunks::<4>().0.iter().zip(halves).enumerate() {
        let [first, second]: &[[u8; 64]; 2] = bytemuck::cast_ref(halves);
        let [low, high] = four_of_nibbles(w);
        let whole = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low, load_64(first));
        let whole = _mm512_dpbusd_epi32(whole, high, load_64(second));
        let scale = _mm512_permutexvar_ps(four, s);
        sums[i % 2] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, sums[i % 2]);
        four = _mm512_add_epi32(four, _mm512_set1_epi32(4));
    }
    sums
}

/// Blocks of bytes times those of the vector, two at a time.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn some_of_bytes(w: &[[u8; 34]], values: &[i8], s: __m512, mut sums: [__m512; 2]) -> [__m512; 2] {
    let mut two = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    for (i, ([a, b], values)) in w.as_chunks().0.iter().zip(values.as_chunks::<64>().0).enumerate() {
        let whole = _mm512_dpbusd_epi32(_mm512_setzero_si512(), two_of_bytes(a, b), bytes_64(values));
        let scale = _mm512_permutexvar_ps(two, s);
        sums[i % 2] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, sums[i % 2]);
        two = _mm512_add_epi32(two, _mm512_set1_epi32(2));
    }
    sums
}

/// Offsets of the first bytes of sixteen blocks.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn places<const BYTES: usize>() -> __m512i {
    let blocks = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_mullo_epi32(blocks, _mm512_set1_epi32(BYTES as i32))
}

/// The scales of sixteen blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) fn row_scales<const BYTES: usize>(w: &[[u8; BYTES]; BLOCKS], places: __m512i) -> __m512 {
    // SAFETY: each of the sixteen reads is four bytes at the front of a block, which is longer.
    let words = unsafe { _mm512_i32gather_epi32::<1>(places, w.as_ptr().cast()) };
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))
}

/// The scales of at most sixteen blocks, the others zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
fn first_scales<const BYTES: usize>(w: &[[u8; BYTES]], places: __m512i) -> __m512 {
    let (zero, first) = (_mm512_setzero_si512(), first(w.len()));
    // SAFETY: each of the reads that the mask lets through is four bytes at the front of a block, which is longer.
    let words = unsafe { _mm512_mask_i32gather_epi32::<1>(zero, first, places, w.as_ptr().cast()) };
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))
}

/// A register of at most sixteen floats, then zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn first_floats(values: &[f32]) -> __m512 {
    // SAFETY: the mask lets through as many as there are.
    unsafe { _mm512_maskz_loadu_ps(first(values.len()), values.as_ptr()) }
}

/// The first `count` of sixteen lanes.
#[inline]
fn first(count: usize) -> __mmask16 {
    ((1u32 << count.min(BLOCKS)) - 1) as __mmask16
}

/// 32 nibbles as bytes, in the order of their values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn nibbles([_, _, q @ ..]: &[u8; 18]) -> __m256i {
    let low = load_16(q);
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), _mm_srli_epi16::<4>(low));
    _mm256_and_si256(both, _mm256_set1_epi8(0xf))
}

/// The first halves of four blocks as bytes, and the second ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn four_of_nibbles(
    [[_, _, a @ ..], [_, _, b @ ..], [_, _, c @ ..], [_, _, d @ ..]]: &[[u8; 18]; 4],
) -> [__m512i; 2] {
    let all = _mm512_castsi128_si512(load_16(a));
    let all = _mm512_inserti32x4::<1>(all, load_16(b));
    let all = _mm512_inserti32x4::<2>(all, load_16(c));
    let all = _mm512_inserti32x4::<3>(all, load_16(d));
    let low_bits = _mm512_set1_epi8(0xf);
    [_mm512_and_si512(all, low_bits), _mm512_and_si512(_mm512_srli_epi16::<4>(all), low_bits)]
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
pub(super) fn floats(values: &[f32; BLOCKS]) -> __m512 {
    _mm512_castsi512_ps(load_64(bytemuck::cast_ref(values)))
}
