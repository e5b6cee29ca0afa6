//! Rows of blocks times one vector of 8 bits (VNNI).
//!
//! ```text
//! for 16 blocks:   s[16] = d[16] * scale[16]                        words picked out of the bytes of all of them
//!                  offset += s * sum[16]                            for all at once: what weights were made unsigned by
//!   nibbles, of 4: whole[16] = dpbusd(64 low nibbles, first halves) + dpbusd(64 high ones, second halves)
//!                  sums += float(whole) * [s0 x 4 | s1 x 4 | s2 x 4 | s3 x 4]
//!   Q8_0, of 2:    whole[16] = dpbusd(64 weights, 64 values)        eight sums of four products a block
//!                  sums += float(whole) * [s0 x 8 | s1 x 8]
//! ```
//!
//! `Q4_1` uses its minima as the offset. `IQ4_NL` and `MXFP4` look their sixteen values up in a table made
//! unsigned; the added offset is subtracted again as an integer.
//!
//! A last, incomplete group of sixteen blocks takes the same path: missing blocks have a scale of zero and
//! repeat the last block. The order of all sums depends only on the blocks. Nibbles are limited by the
//! shuffle port; four blocks need one permutation.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use super::super::avx2::load_16;
use super::super::parts::{TWICE_E2M1, UNEVEN};
use super::super::prefetch::prefetch;
use super::super::rounded::HALVES;
use super::super::{AHEAD_BYTES, Matrix, Rounded, Row};
use super::products::{load_lanes, mask};
use super::{for_fours, interleaved, load_32, load_64, load_bytes};
use crate::format::Format;

/// Blocks whose scales are converted together.
pub(super) const BLOCKS: usize = 16;
/// Blocks of nibbles per pair of registers, and blocks of bytes per register.
const FOUR: usize = 4;
const TWO: usize = 2;

/// Whether these kernels take rows of `format`.
pub(super) fn takes(format: Format) -> bool {
    use Format::{Iq4Nl, Mxfp4, Q4_0, Q4_0X4, Q4_1, Q8_0};
    matches!(format, Q8_0 | Q4_0X4 | Q4_0 | Q4_1 | Iq4Nl | Mxfp4)
}

/// [`super::super::Kernels::dot_rounded`]; the caller has checked lengths and format.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) fn dot(w: Row<'_>, x: Rounded<'_>) -> f32 {
    let mut out = [0.0];
    each(w.format, w.bytes, w.bytes.len(), w.ahead(), x, &mut out);
    out[0]
}

/// [`super::super::Kernels::rows_rounded`]; the caller has checked lengths, format and rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) fn rows(w: Matrix<'_>, start: usize, x: Rounded<'_>, out: &mut [f32]) {
    let row_bytes = w.format.row_bytes(w.columns);
    each(w.format, &w.bytes[start * row_bytes..], row_bytes, AHEAD_BYTES, x, out);
}

/// A dot product for each of the first rows; prefetches `ahead` bytes ahead.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn each(format: Format, rows: &[u8], row_bytes: usize, ahead: usize, x: Rounded<'_>, out: &mut [f32]) {
    let x = Vector::new(format, x);
    match format {
        Format::Q8_0 => for_fours(rows, row_bytes, out, |row| q8_0(row, ahead, &x)),
        Format::Q4_0X4 => for_fours(rows, row_bytes, out, |row| interleaved::sum(row, ahead, x.x)),
        Format::Q4_1 => for_fours(rows, row_bytes, out, |row| q4_1(row, ahead, &x)),
        Format::Iq4Nl => for_fours(rows, row_bytes, out, |row| iq4_nl(row, ahead, &x)),
        Format::Mxfp4 => for_fours(rows, row_bytes, out, |row| mxfp4(row, ahead, &x)),
        _ => for_fours(rows, row_bytes, out, |row| q4_0(row, ahead, &x)),
    }
}

/// A rounded vector, with a padded copy of its end for a register that blocks fill only partly.
struct Vector<'a> {
    x: Rounded<'a>,
    last: [i8; HALVES],
}

impl<'a> Vector<'a> {
    #[inline]
    fn new(format: Format, x: Rounded<'a>) -> Self {
        let mut last = [0; HALVES];
        if format == Format::Q8_0 {
            let rest = x.values.as_chunks::<{ TWO * 32 }>().1;
            last[..rest.len()].copy_from_slice(rest);
        } else {
            let (to, from) = (last.as_chunks_mut::<16>().0, x.values.as_chunks::<HALVES>().1);
            for (block, halves) in from.as_chunks::<16>().0.as_chunks::<2>().0.iter().enumerate() {
                (to[block], to[FOUR + block]) = (halves[0], halves[1]);
            }
        }
        Self { x, last }
    }
}

// ---- the sums of a row, in lanes; each prefetches `ahead` bytes ahead ----

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn q8_0(row: &[u8], ahead: usize, x: &Vector<'_>) -> __m512 {
    let x_steps = (x.x.values.as_chunks().0, x.last.first_chunk().expect("half of it"));
    let scales = |w: &[u8]| [halves(words::<17>(w)); 2];
    let whole = |w: [&[u8; 34]; TWO], x: &[i8; TWO * 32]| {
        _mm512_dpbusd_epi32(_mm512_setzero_si512(), two_of_bytes(w), bytes_64(x))
    };
    sum_with(row, ahead, x.x, x_steps, -128.0, scales, whole)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn q4_0(row: &[u8], ahead: usize, x: &Vector<'_>) -> __m512 {
    let scales = |w: &[u8]| [halves(words::<9>(w)); 2];
    let whole = |w: [&[u8; 18]; FOUR], x: &_| multiply(four_of_nibbles(w), x);
    sum_with(row, ahead, x.x, (x.x.halves, &x.last), -8.0, scales, whole)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn q4_1(row: &[u8], ahead: usize, x: &Vector<'_>) -> __m512 {
    let scales = |w: &[u8]| scales_and_minima(w);
    let whole = |w: [&[u8; 20]; FOUR], x: &_| multiply(four_of_nibbles(w), x);
    sum_with(row, ahead, x.x, (x.x.halves, &x.last), 1.0, scales, whole)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn iq4_nl(row: &[u8], ahead: usize, x: &Vector<'_>) -> __m512 {
    let scales = |w: &[u8]| [halves(words::<9>(w)), _mm512_setzero_ps()];
    let whole = |w: [&[u8; 18]; FOUR], x: &_| look_up(&UNEVEN, four_of_nibbles(w), x);
    sum_with(row, ahead, x.x, (x.x.halves, &x.last), 0.0, scales, whole)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn mxfp4(row: &[u8], ahead: usize, x: &Vector<'_>) -> __m512 {
    let scales = |w: &[u8]| [half_powers(w), _mm512_setzero_ps()];
    let whole = |w: [&[u8; 17]; FOUR], x: &_| look_up(&TWICE_E2M1, four_of_nibbles(w), x);
    sum_with(row, ahead, x.x, (x.x.halves, &x.last), 0.0, scales, whole)
}

/// A row times a vector of 8 bits. `x_steps` holds the vector's values for each `STEP` blocks, and the padded
/// values for an incomplete last step. `scales` gives the scales of at most sixteen blocks, and the factors
/// of `offset` times a block's sum. `whole` multiplies `STEP` blocks and returns `16 / STEP` sums for each,
/// in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn sum_with<const BYTES: usize, const STEP: usize, const N: usize>(
    row: &[u8],
    ahead: usize,
    x: Rounded<'_>,
    (x_steps, x_last): (&[[i8; N]], &[i8; N]),
    offset: f32,
    scales: impl Fn(&[u8]) -> [__m512; 2],
    whole: impl Fn([&[u8; BYTES]; STEP], &[i8; N]) -> __m512i,
) -> __m512 {
    let (x_scales, scales_rest) = x.scales.as_chunks::<BLOCKS>();
    let (x_sums, sums_rest) = x.sums.as_chunks::<BLOCKS>();
    // bounds that do not depend on the row, so their branches are resolved once for many rows
    let (w_groups, w_rest) = row.as_chunks::<BYTES>().0.split_at(BLOCKS * x_scales.len());
    let (w_groups, w_rest) = (w_groups.as_chunks::<BLOCKS>().0, &w_rest[..scales_rest.len()]);
    let (x_groups, x_more) = x_steps.split_at(x_scales.len() * (BLOCKS / STEP));
    let first = if STEP == FOUR { lanes_of(2) } else { lanes_of(3) };
    let next = _mm512_set1_epi32(STEP as i32);
    let (mut sums, mut offsets) = ([_mm512_setzero_ps(); 2], _mm512_setzero_ps());
    let w_groups = w_groups.iter().zip(x_groups.chunks_exact(BLOCKS / STEP));
    for ((w, x_group), (x_scales, x_sums)) in w_groups.zip(x_scales.iter().zip(x_sums)) {
        prefetch(w, ahead);
        let [d, less] = scales(w.as_flattened());
        let (s, less) = (_mm512_mul_ps(d, floats(x_scales)), _mm512_mul_ps(less, floats(x_scales)));
        offsets = _mm512_fmadd_ps(less, floats(x_sums), offsets);
        let mut lanes = first;
        for (step, (w, x)) in w.as_chunks::<STEP>().0.iter().zip(x_group).enumerate() {
            let whole = _mm512_cvtepi32_ps(whole(w.each_ref(), x));
            sums[step % 2] = _mm512_fmadd_ps(whole, _mm512_permutexvar_ps(lanes, s), sums[step % 2]);
            lanes = _mm512_add_epi32(lanes, next);
        }
    }
    if !w_rest.is_empty() {
        w_rest.iter().for_each(|w| prefetch(w, ahead));
        let (x_scales, x_sums) = (load_lanes(scales_rest), load_lanes(sums_rest));
        let [d, less] = scales(w_rest.as_flattened());
        let (s, less) = (_mm512_mul_ps(d, x_scales), _mm512_mul_ps(less, x_scales));
        offsets = _mm512_fmadd_ps(less, x_sums, offsets);
        let (w_steps, some) = w_rest.as_chunks::<STEP>();
        let mut lanes = first;
        for (w, x) in w_steps.iter().zip(x_more) {
            let whole = _mm512_cvtepi32_ps(whole(w.each_ref(), x));
            sums[0] = _mm512_fmadd_ps(whole, _mm512_permutexvar_ps(lanes, s), sums[0]);
            sums.swap(0, 1);
            lanes = _mm512_add_epi32(lanes, next);
        }
        if let Some(last) = some.last() {
            let mut w = [last; STEP];
            for at in 0..STEP {
                w[at] = some.get(at).unwrap_or(last);
            }
            let whole = _mm512_cvtepi32_ps(whole(w, x_last));
            sums[0] = _mm512_fmadd_ps(whole, _mm512_permutexvar_ps(lanes, s), sums[0]);
        }
    }
    _mm512_fmadd_ps(_mm512_set1_ps(offset), offsets, _mm512_add_ps(sums[0], sums[1]))
}

/// The index of each lane without its last bits: the block that `1 << bits` lanes belong to.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes_of(bits: u32) -> __m512i {
    let lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_srlv_epi32(lane, _mm512_set1_epi32(bits.cast_signed()))
}

/// The first halves of four blocks times the vector's, plus the second halves: four sums of four products for
/// each block and half. The sums of both halves are added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn multiply([low, high]: [__m512i; 2], x: &[i8; HALVES]) -> __m512i {
    let [first, second]: &[[u8; 64]; 2] = bytemuck::cast_ref(x);
    _mm512_dpbusd_epi32(
        _mm512_dpbusd_epi32(_mm512_setzero_si512(), low, load_64(first)),
        high,
        load_64(second),
    )
}

/// [`multiply`] with the table entries at these indices.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn look_up(table: &[i8; 16], [low, high]: [__m512i; 2], x: &[i8; HALVES]) -> __m512i {
    let above = _mm512_set1_epi8(i8::MIN);
    let table = _mm512_broadcast_i32x4(load_16(bytemuck::cast_ref(table)));
    let table = _mm512_xor_si512(table, above);
    let unsigned = multiply([_mm512_shuffle_epi8(table, low), _mm512_shuffle_epi8(table, high)], x);
    _mm512_sub_epi32(unsigned, multiply([above; 2], x))
}

/// The bytes of a slice from `at` on, padded with zeros. A masked load that touches an unmapped page takes
/// hundreds of cycles, so an empty load reads from the slice's start.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn bytes_from(bytes: &[u8], at: usize) -> __m512i {
    load_bytes(bytes.get(at..).unwrap_or(&bytes[..0]))
}

/// The first word of each of sixteen blocks of `WORDS` words; zero for missing blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn words<const WORDS: usize>(blocks: &[u8]) -> __m256i {
    // the number of blocks that begin within two registers
    let some = if WORDS <= 9 { 8 } else { 4 };
    let places = _mm512_mullo_epi16(lanes_of_words(), _mm512_set1_epi16(WORDS as i16));
    let mut all = _mm512_setzero_si512();
    for first in (0..BLOCKS).step_by(some) {
        let (at, mask) = (2 * WORDS * first, ((1 << some) - 1) << first);
        if at >= blocks.len() {
            break;
        }
        let places = _mm512_sub_epi16(places, _mm512_set1_epi16((WORDS * first) as i16));
        let (low, high) = (bytes_from(blocks, at), bytes_from(blocks, at + 64));
        all = _mm512_or_si512(all, _mm512_maskz_permutex2var_epi16(mask, low, places, high));
    }
    _mm512_castsi512_si256(all)
}

/// The index of each lane of a word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn lanes_of_words() -> __m512i {
    _mm512_set_epi16(
        31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6,
        5, 4, 3, 2, 1, 0,
    )
}

/// Half-precision numbers, widened.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(words: __m256i) -> __m512 {
    _mm512_cvtph_ps(words)
}

/// The scales and minima of at most sixteen blocks of `Q4_1`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn scales_and_minima(blocks: &[u8]) -> [__m512; 2] {
    const WORDS: usize = 5;
    let mut all = _mm512_setzero_si512();
    for first in (0..BLOCKS).step_by(4) {
        let at = 4 * WORDS * first;
        if at >= blocks.len() {
            break;
        }
        let lane = _mm512_sub_epi32(lanes_of(0), _mm512_set1_epi32(first as i32));
        let places = _mm512_mullo_epi32(lane, _mm512_set1_epi32(WORDS as i32));
        let some = bytes_from(blocks, at);
        all = _mm512_mask_permutexvar_epi32(all, 0xf << first, places, some);
    }
    [halves(_mm512_cvtepi32_epi16(all)), halves(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(all)))]
}

/// `2^(e - 128)` for the first byte of each of at most sixteen blocks of `MXFP4`; zero for missing blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn half_powers(blocks: &[u8]) -> __m512 {
    const BYTES: usize = 17;
    let places = _mm512_mullo_epi16(lanes_of_words(), _mm512_set1_epi16(BYTES as i16));
    let mut all = _mm512_setzero_si512();
    for first in (0..BLOCKS).step_by(4) {
        let at = BYTES * first;
        if at >= blocks.len() {
            break;
        }
        let places = _mm512_srli_epi16::<1>(_mm512_sub_epi16(places, _mm512_set1_epi16(at as i16)));
        all = _mm512_mask_permutexvar_epi16(all, 0xf << first, places, bytes_from(blocks, at));
    }
    // the exponent of every second block is the upper byte of its word
    let all = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(all));
    let upper = _mm512_set1_epi64(8 << 32);
    let e = _mm512_and_si512(_mm512_srlv_epi32(all, upper), _mm512_set1_epi32(0xff));
    let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
    let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
    let power = _mm512_mask_mov_epi32(normal, _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2)), small);
    _mm512_castsi512_ps(_mm512_maskz_mov_epi32(mask(blocks.len() / BYTES), power))
}

/// The scales of sixteen blocks that begin with their scale.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn row_scales<const BYTES: usize>(w: &[[u8; BYTES]; BLOCKS]) -> __m512 {
    halves(if BYTES == 18 { words::<9>(w.as_flattened()) } else { words::<17>(w.as_flattened()) })
}

/// The low nibbles of four blocks as bytes, and the high ones; nibbles are a block's last bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn four_of_nibbles<const BYTES: usize>(blocks: [&[u8; BYTES]; FOUR]) -> [__m512i; 2] {
    let [a, b, c, d] = blocks.map(|block| block.last_chunk().expect("16 bytes of nibbles"));
    let all = _mm512_castsi128_si512(load_16(a));
    let all = _mm512_inserti32x4::<1>(all, load_16(b));
    let all = _mm512_inserti32x4::<2>(all, load_16(c));
    let all = _mm512_inserti32x4::<3>(all, load_16(d));
    low_and_high(all)
}

/// The low nibbles of 64 bytes, and the high ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn low_and_high(all: __m512i) -> [__m512i; 2] {
    let low_bits = _mm512_set1_epi8(0xf);
    [_mm512_and_si512(all, low_bits), _mm512_and_si512(_mm512_srli_epi16::<4>(all), low_bits)]
}

/// 64 signed bytes, plus 128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn two_of_bytes([[_, _, a @ ..], [_, _, b @ ..]]: [&[u8; 34]; TWO]) -> __m512i {
    let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(load_32(a)), load_32(b));
    _mm512_xor_si512(both, _mm512_set1_epi8(i8::MIN))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn bytes_64(values: &[i8; TWO * 32]) -> __m512i {
    load_64(bytemuck::cast_ref(values))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn floats(values: &[f32; BLOCKS]) -> __m512 {
    _mm512_castsi512_ps(load_64(bytemuck::cast_ref(values)))
}
