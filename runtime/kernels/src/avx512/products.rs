//! Many vectors at once: every weight is unpacked once for all of them.
//!
//! ```text
//! products      for 24 rows, for a piece of the columns: unpack it into a panel
//!                   for each pair of groups (32 vectors), for R of the rows, for each column:
//!                       sums[row][vector] += w[row] * x[vector]       R x 2 registers, w broadcast from the panel
//! add_products  for 128 columns, for 64 rows: unpack them into a panel
//!                   for a vector, for each row whose factor is not zero: sums[column] += a * w[column]   8 registers
//!                   or, where most are not zero, for six vectors, for each row:
//!                       sums[vector][column] += a[vector] * w[column]                         6 x 4 registers
//! ```
//!
//! 1. Between two pieces, sums wait in `out` (or `y`), which rounds nothing. The order of a sum does not
//!    depend on what is computed beside it.
//! 2. The last group of vectors is padded with zeros, and loops have constant lengths. Thus sums stay in
//!    registers, and no load needs a mask or a check.
//! 3. The next piece of a row is prefetched during the current one.
//! 4. [`super::Form::Q8`]: `vpdpbusd` multiplies unsigned by signed bytes, four columns to a lane. An offset
//!    (8, 32 or 128) makes weights unsigned. Sums start at minus the offset times the sum of the vector's
//!    values.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;
use std::ops::Range;

use bytemuck::cast_slice;

use super::super::avx2::k_block::{q4_k_scales, q4_k_steps, q6_k_scales, q6_k_steps};
use super::super::avx2::registers::Registers;
use super::super::interleaved::part;
use super::super::k_block::PARTS;
use super::super::packed::{BLOCK, BLOCK_WORDS, LANES, Packed, PackedVectors};
use super::super::parts::{self, Traits, Unpack as _};
use super::super::tiles::{Lined, mark};
use super::super::{Row, padded, plain};
use super::{
    bf16_weights, f16_weights, f32_weights, interleaved, k_block, load_16, load_32, q4_0_weights,
    q8_0_weights, store,
};
use crate::format::Format;

/// Rows of a panel: a panel and two groups of vectors stay in the L1 cache while all rows are multiplied.
const PANEL_ROWS: usize = 24;
/// Rows with sums in flight: 24 sums with two groups.
const ROWS: usize = 12;
/// Columns of a float panel: 12 KiB, and 16 KiB of vectors.
const COLUMNS: usize = 128;
/// Byte rows with sums in flight: 12 registers of integers and 12 of floats.
const BYTE_ROWS: usize = 6;
/// Blocks of a byte panel: 14 KiB, and 20 KiB of vectors.
const BLOCKS: usize = 16;

/// [`super::Kernels::products`] for [`super::Form::F32`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn products(w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]) {
    plain::assert_shapes(w, x, out);
    out.fill(0.0);
    let mut panel = [[0.0; COLUMNS]; PANEL_ROWS];
    for (w, out) in w.chunks(PANEL_ROWS).zip(out.chunks_mut(PANEL_ROWS * x.count)) {
        for start in (0..x.columns).step_by(COLUMNS) {
            let width = COLUMNS.min(x.columns - start);
            for (row, panel) in w.iter().zip(&mut panel) {
                unpack(row, start, &mut panel[..width]);
                ask_for(row, row.place(start + width), row.place(COLUMNS));
            }
            for_pairs(x, start..start + width, |first, pair| {
                let (panel, _) = panel.as_chunks::<ROWS>();
                for (panel, out) in panel.iter().zip(out.chunks_mut(ROWS * x.count)) {
                    match pair {
                        (group, Some(second)) => multiply(panel, [group, second], first, x.count, out),
                        (group, None) => multiply(panel, [group], first, x.count, out),
                    }
                }
            });
        }
    }
}

/// Prefetches the next piece of a row, or the bytes after the row. The piece is short and far from the next
/// row's, so hardware prefetching misses it.
#[inline]
#[target_feature(enable = "sse")]
fn ask_for(row: &Row<'_>, start: usize, bytes: usize) {
    let from =
        if start < row.bytes.len() { row.bytes.as_ptr().wrapping_add(start) } else { row.next.as_ptr() };
    for line in (0..bytes).step_by(64) {
        _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(line).cast());
    }
}

/// The most words of a piece.
const PIECE: usize = if COLUMNS > BLOCKS * BLOCK_WORDS { COLUMNS } else { BLOCKS * BLOCK_WORDS };

/// Calls `each` with the first vector of every pair of groups and words `piece` of each of their vectors.
#[inline(always)]
pub(super) fn for_pairs(
    x: Packed<'_>,
    piece: Range<usize>,
    mut each: impl FnMut(usize, (PackedVectors<'_>, Option<PackedVectors<'_>>)),
) {
    // filling with zeros costs as much as a small product
    let mut zeros;
    let filled: &mut [_] = if x.count.is_multiple_of(LANES) {
        &mut []
    } else {
        zeros = [[0.0; LANES]; PIECE];
        &mut zeros
    };
    let mut groups = x.whole_groups(piece, filled);
    let mut first = 0;
    while let Some(group) = groups.next() {
        each(first, (group, groups.next()));
        first += 2 * LANES;
    }
}

/// `out[r][first..] += panel[r] * x`, for the rows of `out` and the vectors of the groups.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn multiply<const GROUPS: usize>(
    panel: &[[f32; COLUMNS]; ROWS],
    x: [PackedVectors<'_>; GROUPS],
    first: usize,
    count: usize,
    out: &mut [f32],
) {
    let rows = out.len() / count;
    // loops of constant length: arrays indexed by a variable do not stay in registers
    let mut sums = [[_mm512_setzero_ps(); GROUPS]; ROWS];
    for row in 0..ROWS {
        for group in 0..GROUPS {
            if row < rows {
                sums[row][group] = load_lanes(&out[row * count + first + group * LANES..][..x[group].0]);
            }
        }
    }
    let words = x.map(|(_, words)| words);
    for column in 0..words[0].len().min(COLUMNS) {
        let mut values = [_mm512_setzero_ps(); GROUPS];
        for group in 0..GROUPS {
            values[group] = load_lanes(&words[group][column]);
        }
        for row in 0..ROWS {
            let weight = _mm512_set1_ps(panel[row][column]);
            for group in 0..GROUPS {
                sums[row][group] = _mm512_fmadd_ps(weight, values[group], sums[row][group]);
            }
        }
    }
    for row in 0..ROWS {
        for group in 0..GROUPS {
            if row < rows {
                store_lanes(&mut out[row * count + first + group * LANES..][..x[group].0], sums[row][group]);
            }
        }
    }
}

/// Values `start..start + out.len()` of a row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn unpack(row: &Row<'_>, start: usize, out: &mut [f32]) {
    let bytes = &row.bytes[row.place(start)..row.place(start + out.len())];
    match row.format {
        Format::F32 => unpack_with(bytes, out, |w| f32_weights(w)),
        Format::F16 => unpack_with(bytes, out, |w| f16_weights(w)),
        Format::BF16 => unpack_with(bytes, out, |w| bf16_weights(w)),
        Format::Q8_0 => unpack_with(bytes, out, |w| q8_0_weights(w)),
        Format::Q4_0 => unpack_with(bytes, out, |w| q4_0_weights(w)),
        Format::Q4_0X4 => interleaved::unpack(row, start, out),
        Format::Q6K | Format::Q4K => k_block::unpack(row, start, out),
        _ => parts::unpack(Registers::<false>::here(), row, start, out),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn unpack_with<const BYTES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    weights: impl Fn(&[u8; BYTES]) -> [__m512; 2],
) {
    let (w, w_rest) = bytes.as_chunks::<BYTES>();
    let (out, out_rest) = out.as_chunks_mut::<32>();
    for (w, out) in w.iter().zip(out) {
        store(out, weights(w));
    }
    if !out_rest.is_empty() {
        let mut all = [0.0; 32];
        store(&mut all, weights(&padded(w_rest)));
        out_rest.copy_from_slice(&all[..out_rest.len()]);
    }
}

// ---- bytes ----

/// A piece of a row: unsigned bytes, with scales and minima.
#[derive(Clone, Copy)]
struct Bytes {
    steps: [[u8; 4]; BLOCKS * BLOCK / 4],
    /// The scale of each block, or of each of its halves.
    scales: [f32; 2 * BLOCKS],
    /// The minimum for each scale, in formats with minima.
    minima: [f32; 2 * BLOCKS],
}

const EMPTY: Bytes =
    Bytes { steps: [[0; 4]; BLOCKS * BLOCK / 4], scales: [0.0; 2 * BLOCKS], minima: [0.0; 2 * BLOCKS] };

/// [`super::Kernels::products`] for [`super::Form::Q8`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) fn byte_products(w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]) {
    plain::assert_shapes(w, x, out);
    out.fill(0.0);
    match w.first().map(|row| row.format) {
        Some(Format::Q4_0 | Format::Q4_0X4) => byte_products_of::<{ BLOCK / 4 }, false>(w, x, out, 8),
        Some(Format::Q4K) => byte_products_of::<{ BLOCK / 4 }, true>(w, x, out, 0),
        Some(Format::Q6K) => byte_products_of::<{ BLOCK / 8 }, false>(w, x, out, 32),
        Some(Format::Q8_0) | None => byte_products_of::<{ BLOCK / 4 }, false>(w, x, out, 128),
        Some(format) => match parts::traits(format) {
            Traits { signed: true, halves: false, .. } => {
                byte_products_of::<{ BLOCK / 4 }, false>(w, x, out, 128);
            }
            Traits { signed: true, halves: true, .. } => {
                byte_products_of::<{ BLOCK / 8 }, false>(w, x, out, 128);
            }
            Traits { halves: false, .. } => byte_products_of::<{ BLOCK / 4 }, true>(w, x, out, 0),
            Traits { halves: true, .. } => byte_products_of::<{ BLOCK / 8 }, true>(w, x, out, 0),
        },
    }
}

/// Products with weights made unsigned by `offset`. `SCALED` groups of four values share a scale and, with
/// `MINIMA`, a minimum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn byte_products_of<const SCALED: usize, const MINIMA: bool>(
    w: &[Row<'_>],
    x: Packed<'_>,
    out: &mut [f32],
    offset: u8,
) {
    let mut panel = [EMPTY; PANEL_ROWS];
    let blocks = x.columns / BLOCK;
    for (w, out) in w.chunks(PANEL_ROWS).zip(out.chunks_mut(PANEL_ROWS * x.count)) {
        for start in (0..blocks).step_by(BLOCKS) {
            let end = (start + BLOCKS).min(blocks);
            for (row, panel) in w.iter().zip(&mut panel) {
                let (from, to) = (row.place(start * BLOCK), row.place(end * BLOCK));
                unpack_bytes(row.format, &row.bytes[from..to], panel);
                ask_for(row, to, row.place(BLOCKS * BLOCK));
            }
            for_pairs(x, start * BLOCK_WORDS..end * BLOCK_WORDS, |first, pair| {
                let (panel, _) = panel.as_chunks::<BYTE_ROWS>();
                for (panel, out) in panel.iter().zip(out.chunks_mut(BYTE_ROWS * x.count)) {
                    match pair {
                        (group, Some(second)) => {
                            let both = [group, second];
                            multiply_bytes::<2, SCALED, MINIMA>(panel, offset, both, first, x.count, out);
                        }
                        (group, None) => {
                            multiply_bytes::<1, SCALED, MINIMA>(panel, offset, [group], first, x.count, out);
                        }
                    }
                }
            });
        }
    }
}

/// [`multiply`] with integers under each scale.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn multiply_bytes<const GROUPS: usize, const SCALED: usize, const MINIMA: bool>(
    panel: &[Bytes; BYTE_ROWS],
    offset: u8,
    x: [PackedVectors<'_>; GROUPS],
    first: usize,
    count: usize,
    out: &mut [f32],
) {
    const { assert!((BLOCK / 4).is_multiple_of(SCALED), "a block is whole scales") };
    let rows = out.len() / count;
    // loops of constant length: arrays indexed by a variable do not stay in registers
    let mut sums = [[_mm512_setzero_ps(); GROUPS]; BYTE_ROWS];
    for row in 0..BYTE_ROWS {
        for group in 0..GROUPS {
            if row < rows {
                sums[row][group] = load_lanes(&out[row * count + first + group * LANES..][..x[group].0]);
            }
        }
    }
    let taken = _mm512_set1_epi32(-i32::from(offset));
    let blocks = x.map(|(_, words)| words.as_chunks::<BLOCK_WORDS>().0);
    for block in 0..blocks[0].len().min(BLOCKS) {
        // no `map`: its closure would not be inlined, and the sums would spill
        let mut words: [&[_; BLOCK_WORDS]; GROUPS] = [&blocks[0][block]; GROUPS];
        for group in 1..GROUPS {
            words[group] = &blocks[group][block];
        }
        let word = |group: usize, at: usize| load_lanes(&words[group][at]);
        let values = |group: usize, four: usize| _mm512_castps_si512(word(group, 2 + four));
        for part in 0..BLOCK / 4 / SCALED {
            let mut whole = [[_mm512_setzero_si512(); GROUPS]; BYTE_ROWS];
            for group in 0..GROUPS {
                let mut begin = _mm512_mullo_epi32(taken, _mm512_castps_si512(word(group, 1)));
                if SCALED < BLOCK / 4 {
                    // the scale covers the whole block, and so does its sum
                    let mut all = _mm512_setzero_si512();
                    for four in part * SCALED..(part + 1) * SCALED {
                        all = _mm512_dpbusd_epi32(
                            all,
                            _mm512_set1_epi8(offset.cast_signed()),
                            values(group, four),
                        );
                    }
                    begin = _mm512_sub_epi32(_mm512_setzero_si512(), all);
                }
                for row in 0..BYTE_ROWS {
                    whole[row][group] = begin;
                }
            }
            for four in part * SCALED..(part + 1) * SCALED {
                let mut x = [_mm512_setzero_si512(); GROUPS];
                for group in 0..GROUPS {
                    x[group] = values(group, four);
                }
                for row in 0..BYTE_ROWS {
                    let steps = i32::from_le_bytes(panel[row].steps[block * (BLOCK / 4) + four]);
                    let steps = _mm512_set1_epi32(steps);
                    for group in 0..GROUPS {
                        whole[row][group] = _mm512_dpbusd_epi32(whole[row][group], steps, x[group]);
                    }
                }
            }
            for group in 0..GROUPS {
                let scale = word(group, 0);
                for row in 0..BYTE_ROWS {
                    let stored = panel[row].scales[block * (BLOCK / 4 / SCALED) + part];
                    let scale = _mm512_mul_ps(_mm512_set1_ps(stored), scale);
                    let whole = _mm512_cvtepi32_ps(whole[row][group]);
                    sums[row][group] = _mm512_fmadd_ps(whole, scale, sums[row][group]);
                }
                if MINIMA {
                    let mut all = _mm512_castps_si512(word(group, 1));
                    if SCALED < BLOCK / 4 {
                        all = _mm512_setzero_si512();
                        for four in part * SCALED..(part + 1) * SCALED {
                            all = _mm512_dpbusd_epi32(all, _mm512_set1_epi8(1), values(group, four));
                        }
                    }
                    let all = _mm512_mul_ps(word(group, 0), _mm512_cvtepi32_ps(all));
                    for row in 0..BYTE_ROWS {
                        let minimum = panel[row].minima[block * (BLOCK / 4 / SCALED) + part];
                        sums[row][group] = _mm512_fnmadd_ps(_mm512_set1_ps(minimum), all, sums[row][group]);
                    }
                }
            }
        }
    }
    for row in 0..BYTE_ROWS {
        for group in 0..GROUPS {
            if row < rows {
                store_lanes(&mut out[row * count + first + group * LANES..][..x[group].0], sums[row][group]);
            }
        }
    }
}

/// The integers of a row's blocks, made unsigned, with scales and minima.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
fn unpack_bytes(format: Format, bytes: &[u8], panel: &mut Bytes) {
    let (steps, _) = bytemuck::cast_slice_mut::<_, u8>(&mut panel.steps).as_chunks_mut::<32>();
    let scales = &mut panel.scales;
    let scale =
        |d0: u8, d1: u8| _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes([d0, d1, 0, 0]))));
    match format {
        Format::Q4_0 => {
            for (([d0, d1, q @ ..], steps), to) in bytes.as_chunks::<18>().0.iter().zip(steps).zip(scales) {
                *to = scale(*d0, *d1);
                store_32(steps, nibbles(q));
            }
        }
        Format::Q4_0X4 => {
            let (steps, to) = (steps.as_chunks_mut::<4>().0, scales.as_chunks_mut::<4>().0);
            for ((four, steps), to) in bytes.as_chunks().0.iter().zip(steps).zip(to) {
                *to = interleaved::scales(four);
                for (block, steps) in steps.iter_mut().enumerate() {
                    store_32(steps, nibbles(part(four, block).1));
                }
            }
        }
        Format::Q4K => {
            let (eights, to) = (steps.as_chunks_mut::<PARTS>().0, scales.as_chunks_mut::<PARTS>().0);
            let to = to.iter_mut().zip(panel.minima.as_chunks_mut::<PARTS>().0);
            for ((block, eight), (scales, minima)) in cast_slice(bytes).iter().zip(eights).zip(to) {
                [*scales, *minima] = q4_k_scales(block);
                for k in 0..PARTS {
                    store_32(&mut eight[k], q4_k_steps(block, k));
                }
            }
        }
        Format::Q6K => {
            let eights = steps.as_chunks_mut::<PARTS>().0.iter_mut().zip(scales.as_chunks_mut().0);
            for (block, (eight, scales)) in cast_slice(bytes).iter().zip(eights) {
                *scales = q6_k_scales(block);
                for k in 0..PARTS {
                    store_32(&mut eight[k], q6_k_steps(block, k));
                }
            }
        }
        Format::Q8_0 => {
            let sign = _mm256_set1_epi8(i8::MIN);
            for (([d0, d1, q @ ..], steps), to) in bytes.as_chunks::<34>().0.iter().zip(steps).zip(scales) {
                *to = scale(*d0, *d1);
                store_32(steps, _mm256_xor_si256(load_32(q), sign));
            }
        }
        _ => {
            let Traits { signed, halves, minima, .. } = parts::traits(format);
            let (u, each) = (Registers::<false>::here(), 1 + usize::from(halves));
            let sign = _mm256_set1_epi8(if signed { i8::MIN } else { 0 });
            let minima = minima.then_some(&mut panel.minima);
            let mut minima = minima.map(|minima| &mut minima[..]);
            let count = bytes.len() / format.block_bytes() * format.block_values() / BLOCK;
            parts::for_parts(u, format, bytes, 0..count, |at, part| {
                store_32(&mut steps[at], _mm256_xor_si256(part.steps, sign));
                scales[each * at..][..each].copy_from_slice(&u.floats(part.scale)[..each]);
                if let Some(minima) = &mut minima {
                    minima[each * at..][..each].copy_from_slice(&u.floats(part.minimum)[..each]);
                }
            });
        }
    }
}

/// 32 nibbles as bytes, in the order of their values.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(q: &[u8; 16]) -> __m256i {
    let low = load_16(q);
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), _mm_srli_epi16::<4>(low));
    _mm256_and_si256(both, _mm256_set1_epi8(0xf))
}

#[inline]
#[target_feature(enable = "avx")]
fn store_32(bytes: &mut [u8; 32], new: __m256i) {
    // SAFETY: the reference is valid for 32 bytes; the store needs no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), new) }
}

// ---- sums ----

/// Rows of a panel of [`add_products`]: one bit each in a mark.
const SUM_ROWS: usize = 64;
/// Columns of a panel of [`add_products`]: 32 KiB, the size of an L1 cache.
const SUM_COLUMNS: usize = 128;
/// Panels that vectors meet in one pass; the sums stay in the L2 cache meanwhile.
const SUM_PANELS: usize = 4;
/// Vectors of a pass: a multiple of six.
const PASS: usize = 192;
/// Vectors with sums in flight where most factors are not zero.
const VECTORS: usize = 6;
/// Columns of a step with six vectors.
const COLUMNS_OF_SIX: usize = 64;

/// [`super::Kernels::add_products`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn add_products(
    a: &[f32],
    count: usize,
    first: usize,
    w: &[Row<'_>],
    y: &mut [f32],
    columns: usize,
) {
    let mut panel = Lined([[0.0; SUM_COLUMNS]; SUM_ROWS]);
    let mut marks = [[0_u64; PASS]; SUM_PANELS];
    for (w, a) in w.chunks(SUM_PANELS * SUM_ROWS).zip(a.chunks(SUM_PANELS * SUM_ROWS * count)) {
        for (pass, y) in y.chunks_mut(PASS * columns).enumerate() {
            let first = first + pass * PASS;
            for (a, marks) in a.chunks(SUM_ROWS * count).zip(&mut marks) {
                mark(a, count, first, &mut marks[..y.len() / columns]);
            }
            for start in (0..columns).step_by(SUM_COLUMNS) {
                let width = SUM_COLUMNS.min(columns - start);
                for ((w, a), marks) in w.chunks(SUM_ROWS).zip(a.chunks(SUM_ROWS * count)).zip(&marks) {
                    for (row, panel) in w.iter().zip(&mut panel.0) {
                        unpack(row, start, &mut panel[..width]);
                        ask_for(row, row.place(start + width), row.place(SUM_COLUMNS));
                    }
                    let sixes = y.chunks_mut(VECTORS * columns).zip(marks.chunks(VECTORS));
                    for (six, (y, marks)) in sixes.enumerate() {
                        let a = &a[first + six * VECTORS..];
                        let counts: u32 = marks.iter().map(|mark| mark.count_ones()).sum();
                        if y.len() == VECTORS * columns && MOST_OF * counts > (VECTORS * w.len()) as u32 {
                            for from in (0..width).step_by(COLUMNS_OF_SIX) {
                                let width = COLUMNS_OF_SIX.min(width - from);
                                add_six(&panel.0[..w.len()], from, a, count, y, columns, start + from, width);
                            }
                        } else {
                            for (t, (y, &mark)) in y.chunks_mut(columns).zip(marks).enumerate() {
                                add_marked(&panel.0, mark, &a[t..], count, &mut y[start..start + width]);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// If more than `1 / MOST_OF` of the factors are not zero, six vectors at once are faster than skipping
/// zeros.
const MOST_OF: u32 = 2;

/// `y += sum over the marked k of a[k * count] * panel[k]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_marked(panel: &[[f32; SUM_COLUMNS]; SUM_ROWS], mut mark: u64, a: &[f32], count: usize, y: &mut [f32]) {
    const REGISTERS: usize = SUM_COLUMNS / LANES;
    if mark == 0 {
        return;
    }
    let (mut sums, len) = ([_mm512_setzero_ps(); REGISTERS], y.len());
    let place = |register: usize| (register * LANES).min(len)..((register + 1) * LANES).min(len);
    for register in 0..REGISTERS {
        sums[register] = load_lanes(&y[place(register)]);
    }
    while mark != 0 {
        let k = mark.trailing_zeros() as usize % SUM_ROWS;
        mark &= mark - 1;
        let (a, w) = (_mm512_set1_ps(a[k * count]), panel[k].as_chunks::<LANES>().0);
        for register in 0..REGISTERS {
            sums[register] = _mm512_fmadd_ps(a, load_lanes(&w[register]), sums[register]);
        }
    }
    for register in 0..REGISTERS {
        store_lanes(&mut y[place(register)], sums[register]);
    }
}

/// `y[t][start..start + width] += sum over k of a[k][t] * panel[k][from..]` for six vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_six(
    panel: &[[f32; SUM_COLUMNS]],
    from: usize,
    a: &[f32],
    count: usize,
    y: &mut [f32],
    columns: usize,
    start: usize,
    width: usize,
) {
    const REGISTERS: usize = COLUMNS_OF_SIX / LANES;
    let lanes = |register: usize| width.saturating_sub(register * LANES).min(LANES);
    let place =
        |t: usize, register: usize| (t * columns + start + register * LANES).min(t * columns + start + width);
    let mut sums = [[_mm512_setzero_ps(); REGISTERS]; VECTORS];
    for t in 0..VECTORS {
        for register in 0..REGISTERS {
            sums[t][register] = load_lanes(&y[place(t, register)..][..lanes(register)]);
        }
    }
    for (k, w) in panel.iter().enumerate() {
        let a: &[f32; VECTORS] = a[k * count..].first_chunk().expect("a value for each vector");
        let (w, _) = w[from..].as_chunks::<LANES>();
        for register in 0..REGISTERS {
            let weights = load_lanes(&w[register]);
            for t in 0..VECTORS {
                sums[t][register] = _mm512_fmadd_ps(_mm512_set1_ps(a[t]), weights, sums[t][register]);
            }
        }
    }
    for t in 0..VECTORS {
        for register in 0..REGISTERS {
            store_lanes(&mut y[place(t, register)..][..lanes(register)], sums[t][register]);
        }
    }
}

// ---- part of a register ----

/// The first values, sixteen at most, padded with zeros.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_lanes(values: &[f32]) -> __m512 {
    // SAFETY: a masked lane is not read, and the mask has no more lanes than there are values.
    unsafe { _mm512_maskz_loadu_ps(mask(values.len()), values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_lanes(values: &mut [f32], new: __m512) {
    // SAFETY: a masked lane is not written, and the mask has no more lanes than there are values.
    unsafe { _mm512_mask_storeu_ps(values.as_mut_ptr(), mask(values.len()), new) }
}

/// A mask of the first `lanes` of sixteen.
pub(super) fn mask(lanes: usize) -> __mmask16 {
    ((1_u32 << lanes.min(LANES)) - 1) as __mmask16
}
