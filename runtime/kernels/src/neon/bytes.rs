//! Vectors of 8 bits: rows of blocks times one vector, and times many in tiles of 8 rows and 4 vectors.
//!
//! ```text
//! dot        for 4 blocks: whole[4] = sums of 32 products;  sums += float(whole) * d[4] * scale[4]
//! products   for 4 vectors, for each block: whole[row][4] = sums of 32 products
//!                                           sums[row] += float(whole[row]) * d[row] * scale[4]
//! ```
//!
//! The instruction sets differ in how they compute `whole`, which is exact in each:
//!
//! * widened: two products of bytes, of at most 128 * 127 each, are added in 16 bits, then pairs of these in
//!   32;
//! * `sdot`: four products to a lane. A lane is a vector; the row's four bytes come from a lane of a
//!   register;
//! * `smmla`: two rows of eight bytes times two vectors of eight. The rows' bytes are interleaved in memory
//!   once for all vectors, and the vectors' bytes in registers.
//!
//! The standard library's functions for `sdot` and `smmla` are unstable, hence the assembly.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use bytemuck::{cast_ref, cast_slice};

use super::super::interleaved::block;
use super::super::k_block::{PARTS, Q4K, Q6K};
use super::super::packed::{BLOCK, BLOCK_WORDS, LANES, Packed};
use super::super::parts::{self, Traits};
use super::super::tiles;
use super::super::{Rounded, Row};
use super::products::prefetch_piece;
use super::registers::Registers;
use super::{interleaved, k_block, load_4, load_16, prefetch, q4_0_steps, q8_0_steps, scale, store_4};
use crate::format::Format;

// ---- one vector ----

/// [`super::Kernels::dot_rounded`]; the caller has checked lengths and format.
#[target_feature(enable = "neon")]
pub(super) fn dot_widened(row: Row<'_>, x: Rounded<'_>) -> f32 {
    let whole = |[w0, w1]: [int8x16_t; 2], [x0, x1]: [int8x16_t; 2]| {
        let low = vmlal_s8(vmull_s8(vget_low_s8(w0), vget_low_s8(x0)), vget_low_s8(w1), vget_low_s8(x1));
        let high = vmlal_high_s8(vmull_high_s8(w0, x0), w1, x1);
        vpadalq_s16(vpaddlq_s16(low), high)
    };
    match row.format {
        Format::Q4_0 => dot_with(row, x, |w| q4_0_steps(w), whole),
        Format::Q4_0X4 => interleaved::dot_rounded(row, x, whole),
        Format::Q6K | Format::Q4K => k_block::dot_rounded(row, x, whole),
        Format::Q8_0 => dot_with(row, x, |w| q8_0_steps(w), whole),
        _ => parts::dot_rounded(Registers::<false>::here(), row, x),
    }
}

/// [`super::Kernels::dot_rounded`] with `sdot`.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn dot_dotprod(row: Row<'_>, x: Rounded<'_>) -> f32 {
    let whole = |[w0, w1]: [int8x16_t; 2], [x0, x1]: [int8x16_t; 2]| {
        let mut sums = vdupq_n_s32(0);
        // SAFETY: the function has the target feature; the instruction reads two registers and changes one.
        unsafe {
            asm!(
                "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
                "sdot {0:v}.4s, {3:v}.16b, {4:v}.16b",
                inout(vreg) sums, in(vreg) w0, in(vreg) x0, in(vreg) w1, in(vreg) x1,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sums
    };
    match row.format {
        Format::Q4_0 => dot_with(row, x, |w| q4_0_steps(w), whole),
        Format::Q4_0X4 => interleaved::dot_rounded(row, x, whole),
        Format::Q6K | Format::Q4K => k_block::dot_rounded(row, x, whole),
        Format::Q8_0 => dot_with(row, x, |w| q8_0_steps(w), whole),
        _ => parts::dot_rounded(Registers::<true>::here(), row, x),
    }
}

/// A row times one vector. `steps` returns the integers of a block; `whole` returns the sum of their products
/// with the vector's integers, in four parts.
#[inline]
#[target_feature(enable = "neon")]
fn dot_with<const BYTES: usize>(
    row: Row<'_>,
    x: Rounded<'_>,
    steps: impl Fn(&[u8; BYTES]) -> [int8x16_t; 2],
    whole: impl Fn([int8x16_t; 2], [int8x16_t; 2]) -> int32x4_t,
) -> f32 {
    let ahead = row.ahead();
    let (w, w_rest) = row.bytes.as_chunks::<BYTES>().0.as_chunks::<4>();
    let (scales, scales_rest) = x.scales.as_chunks::<4>();
    let (values, values_rest) = x.values.as_chunks::<BLOCK>().0.as_chunks::<4>();
    let block = |w: &[u8; BYTES], values: &[i8; BLOCK]| {
        prefetch(w, ahead);
        let values = cast_ref::<_, [[u8; 16]; 2]>(values);
        whole(steps(w), values.each_ref().map(|x| vreinterpretq_s8_u8(load_16(x))))
    };
    let mut sums = vdupq_n_f32(0.0);
    for ((w, scales), values) in w.iter().zip(scales).zip(values) {
        let part = |i: usize| block(&w[i], &values[i]);
        let whole = vpaddq_s32(vpaddq_s32(part(0), part(1)), vpaddq_s32(part(2), part(3)));
        let d = w.each_ref().map(|w| u16::from_le_bytes([w[0], w[1]]));
        // SAFETY: the array is valid for 8 bytes; the load needs no alignment.
        let d = vcvt_f32_f16(vreinterpret_f16_u16(unsafe { vld1_u16(d.as_ptr()) }));
        sums = vfmaq_f32(sums, vcvtq_f32_s32(whole), vmulq_f32(d, load_4(scales)));
    }
    let mut sum = vaddvq_f32(sums);
    for ((w, scale_x), values) in w_rest.iter().zip(scales_rest).zip(values_rest) {
        let whole = vaddvq_s32(block(w, values)) as f32;
        sum = f32::mul_add(whole, vgetq_lane_f32::<0>(scale([w[0], w[1]])) * scale_x, sum);
    }
    sum
}

// ---- many vectors ----

/// Rows of a tile: eight registers of integers and eight of floats.
pub(super) const ROWS: usize = 8;
/// Tiles of a panel: 24 rows.
const TILES: usize = 3;
/// Blocks of a tile: 4 KiB.
pub(super) const BLOCKS: usize = 16;

/// Sixteen integers.
pub(super) type Steps = [i8; 16];

/// A piece of some rows. A block with two scales, one for each half, appears twice, each time with zeros for
/// the other half. A block with two minima as well appears four times: the last two have ones as weights and
/// negative minima as scales.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// The halves of each block, row after row or, for `smmla`, in groups of two rows and eight columns.
    pub(super) steps: [[Steps; 2 * ROWS]; BLOCKS],
    /// The rows' scales of each block.
    pub(super) scales: [[f32; ROWS]; BLOCKS],
    /// The rows' minima of each block, for formats with minima.
    minima: [[f32; ROWS]; BLOCKS],
}

pub(super) const EMPTY: Tile = Tile {
    steps: [[[0; 16]; 2 * ROWS]; BLOCKS],
    scales: [[0.0; ROWS]; BLOCKS],
    minima: [[0.0; ROWS]; BLOCKS],
};

/// How many times a block of the rows appears in a tile, and the columns of a tile.
fn times_and_columns(w: &[Row<'_>]) -> (usize, usize) {
    let times = match w.first().map(|row| row.format) {
        Some(Format::Q6K) => 2,
        Some(Format::Q8_0 | Format::Q4_0 | Format::Q4_0X4 | Format::Q4K) => 1,
        Some(format) if format.has_blocks() => match parts::traits(format) {
            Traits { halves: true, minima: true, .. } => 4,
            Traits { halves: true, minima: false, .. } => 2,
            Traits { halves: false, .. } => 1,
        },
        _ => 1,
    };
    (times, BLOCKS * BLOCK / times)
}

/// [`super::Kernels::products`] for [`super::Form::Q8`].
#[target_feature(enable = "neon")]
pub(super) fn products_widened(w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]) {
    let (times, columns) = times_and_columns(w);
    tiles::products::<_, ROWS, TILES>(
        w,
        x,
        out,
        columns,
        EMPTY,
        |rows, columns, tile| unpack(rows, columns, tile),
        |tile, words, sums| multiply(tile, times, words, sums, |steps, x| widened(steps, x)),
    );
}

/// [`super::Kernels::products`] for [`super::Form::Q8`], with `sdot`.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn products_dotprod(w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]) {
    let (times, columns) = times_and_columns(w);
    tiles::products::<_, ROWS, TILES>(
        w,
        x,
        out,
        columns,
        EMPTY,
        |rows, columns, tile| unpack(rows, columns, tile),
        |tile, words, sums| multiply(tile, times, words, sums, |steps, x| dotprod(steps, x)),
    );
}

/// [`super::Kernels::products`] for [`super::Form::Q8`], with `smmla`.
#[target_feature(enable = "neon,i8mm")]
pub(super) fn products_i8mm(w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]) {
    let (times, columns) = times_and_columns(w);
    tiles::products::<_, ROWS, TILES>(
        w,
        x,
        out,
        columns,
        EMPTY,
        |rows, columns, tile| {
            unpack(rows, columns, tile);
            interleave(tile);
        },
        |tile, words, sums| multiply(tile, times, words, sums, |steps, x| i8mm(steps, x)),
    );
}

/// Unpacks the blocks of some rows into integers and scales.
#[inline]
#[target_feature(enable = "neon")]
fn unpack(rows: &[Row<'_>], columns: Range<usize>, tile: &mut Tile) {
    for (at, row) in rows.iter().enumerate() {
        match row.format {
            Format::Q4_0 => unpack_with(row, &columns, at, tile, |w| q4_0_steps(w)),
            Format::Q4_0X4 => {
                for (to, from) in (columns.start / BLOCK..columns.end / BLOCK).enumerate() {
                    let block = block(row.bytes, from);
                    let d = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
                    tile.put(to, at, q4_0_steps(&block), d);
                }
            }
            Format::Q4K => {
                for (to, block) in (columns.start / BLOCK..columns.end / BLOCK).enumerate() {
                    let (w, k) = (&cast_slice::<_, Q4K>(row.bytes)[block / PARTS], block % PARTS);
                    let [scales, minima] = w.scales();
                    tile.put(to, at, k_block::q4_k_steps(w, k), scales[k]);
                    tile.minima[to][at] = minima[k];
                }
            }
            Format::Q6K => {
                for (to, block) in (columns.start / BLOCK..columns.end / BLOCK).enumerate() {
                    let (w, k) = (&cast_slice::<_, Q6K>(row.bytes)[block / PARTS], block % PARTS);
                    let (scales, [first, second]) = (w.scales(), k_block::q6_k_steps(w, k));
                    tile.put(2 * to, at, [first, vdupq_n_s8(0)], scales[2 * k]);
                    tile.put(2 * to + 1, at, [vdupq_n_s8(0), second], scales[2 * k + 1]);
                }
            }
            Format::Q8_0 => unpack_with(row, &columns, at, tile, |w| q8_0_steps(w)),
            _ => unpack_part(row, &columns, at, tile),
        }
        prefetch_piece(row, columns.end, columns.len());
    }
}

/// Blocks of the other formats.
#[inline]
#[target_feature(enable = "neon")]
fn unpack_part(row: &Row<'_>, columns: &Range<usize>, at: usize, tile: &mut Tile) {
    let Traits { halves, minima, .. } = parts::traits(row.format);
    let (zero, one) = (vdupq_n_s8(0), vdupq_n_s8(1));
    let (u, of_row) = (Registers::<false>::here(), columns.start / BLOCK..columns.end / BLOCK);
    parts::for_parts(u, row.format, row.bytes, of_row, |to, part| {
        let part = part.stored(u);
        let [first, second] =
            cast_ref::<_, [Steps; 2]>(&part.steps).each_ref().map(|steps| load_steps(steps));
        match (halves, minima) {
            (false, _) => {
                tile.put(to, at, [first, second], part.scales[0]);
                tile.minima[to][at] = part.minima[0];
            }
            (true, false) => {
                tile.put(2 * to, at, [first, zero], part.scales[0]);
                tile.put(2 * to + 1, at, [zero, second], part.scales[1]);
            }
            (true, true) => {
                tile.put(4 * to, at, [first, zero], part.scales[0]);
                tile.put(4 * to + 1, at, [zero, second], part.scales[1]);
                tile.put(4 * to + 2, at, [one, zero], -part.minima[0]);
                tile.put(4 * to + 3, at, [zero, one], -part.minima[1]);
            }
        }
    });
}

impl Tile {
    /// Row `at` of block `block`.
    #[inline]
    #[target_feature(enable = "neon")]
    fn put(&mut self, block: usize, at: usize, [first, second]: [int8x16_t; 2], scale: f32) {
        store_steps(&mut self.steps[block][2 * at], first);
        store_steps(&mut self.steps[block][2 * at + 1], second);
        self.scales[block][at] = scale;
        self.minima[block][at] = 0.0;
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn unpack_with<const BYTES: usize>(
    row: &Row<'_>,
    columns: &Range<usize>,
    at: usize,
    tile: &mut Tile,
    steps: impl Fn(&[u8; BYTES]) -> [int8x16_t; 2],
) {
    let blocks = &row.bytes.as_chunks::<BYTES>().0[columns.start / BLOCK..columns.end / BLOCK];
    for (to, w) in blocks.iter().enumerate() {
        tile.put(to, at, steps(w), vgetq_lane_f32::<0>(scale([w[0], w[1]])));
    }
}

/// Interleaves each pair of rows: eight columns of one, then of the other.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn interleave(tile: &mut Tile) {
    for pair in tile.steps.as_flattened_mut().as_chunks_mut::<4>().0 {
        let [a0, a1, b0, b1] = pair.each_ref().map(|steps| vreinterpretq_s64_s8(load_steps(steps)));
        let both = [vzip1q_s64(a0, b0), vzip2q_s64(a0, b0), vzip1q_s64(a1, b1), vzip2q_s64(a1, b1)];
        for (to, steps) in pair.iter_mut().zip(both) {
            store_steps(to, vreinterpretq_s8_s64(steps));
        }
    }
}

/// A tile times a group of vectors. `whole` returns the sums of 32 products of a block's rows with four
/// vectors; a word holds four columns of a vector.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn multiply(
    tile: &Tile,
    times: usize,
    words: &[[f32; LANES]],
    out: &mut [[f32; LANES]; ROWS],
    whole: impl Fn(&[Steps; 2 * ROWS], [int8x16_t; BLOCK / 4]) -> [int32x4_t; ROWS],
) {
    let (blocks, _) = words.as_chunks::<BLOCK_WORDS>();
    for four in 0..LANES / 4 {
        let word = |words: &[f32; LANES]| load_4(&words.as_chunks().0[four]);
        let mut sums = out.each_ref().map(word);
        let stored = tile.steps.iter().zip(&tile.scales).zip(&tile.minima);
        let taken = blocks.iter().flat_map(|block| std::iter::repeat_n(block, times));
        for (block, ((steps, scales), minima)) in taken.zip(stored) {
            let [scale, all, x @ ..] = block;
            let whole = whole(steps, x.each_ref().map(|x| vreinterpretq_s8_f32(word(x))));
            let scale = word(scale);
            for row in 0..ROWS {
                sums[row] = vfmaq_f32(sums[row], vcvtq_f32_s32(whole[row]), vmulq_n_f32(scale, scales[row]));
            }
            if *minima != [0.0; ROWS] {
                let all = vmulq_f32(scale, vcvtq_f32_s32(vreinterpretq_s32_f32(word(all))));
                for row in 0..ROWS {
                    sums[row] = vfmsq_n_f32(sums[row], all, minima[row]);
                }
            }
        }
        for (out, sums) in out.iter_mut().zip(sums) {
            store_4(&mut out.as_chunks_mut().0[four], sums);
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn widened(steps: &[Steps; 2 * ROWS], x: [int8x16_t; BLOCK / 4]) -> [int32x4_t; ROWS] {
    let mut all = [vdupq_n_s32(0); ROWS];
    for row in 0..ROWS {
        let (mut low, mut high) = (vdupq_n_s32(0), vdupq_n_s32(0));
        for half in 0..2 {
            let w = vreinterpretq_s32_s8(load_steps(&steps[2 * row + half]));
            let mut add = |w0: int32x4_t, w1: int32x4_t, x0: int8x16_t, x1: int8x16_t| {
                let (w0, w1) = (vreinterpretq_s8_s32(w0), vreinterpretq_s8_s32(w1));
                let first = vmull_s8(vget_low_s8(w0), vget_low_s8(x0));
                low = vpadalq_s16(low, vmlal_s8(first, vget_low_s8(w1), vget_low_s8(x1)));
                high = vpadalq_s16(high, vmlal_high_s8(vmull_high_s8(w0, x0), w1, x1));
            };
            let x = &x[4 * half..];
            add(vdupq_laneq_s32::<0>(w), vdupq_laneq_s32::<1>(w), x[0], x[1]);
            add(vdupq_laneq_s32::<2>(w), vdupq_laneq_s32::<3>(w), x[2], x[3]);
        }
        all[row] = vpaddq_s32(low, high);
    }
    all
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn dotprod(steps: &[Steps; 2 * ROWS], x: [int8x16_t; BLOCK / 4]) -> [int32x4_t; ROWS] {
    let mut all = [vdupq_n_s32(0); ROWS];
    for half in 0..2 {
        let [x0, x1, x2, x3] = [x[4 * half], x[4 * half + 1], x[4 * half + 2], x[4 * half + 3]];
        for row in 0..ROWS {
            let w = load_steps(&steps[2 * row + half]);
            // SAFETY: the function has the target feature; the instructions read registers and change one.
            unsafe {
                asm!(
                    "sdot {0:v}.4s, {2:v}.16b, {1:v}.4b[0]",
                    "sdot {0:v}.4s, {3:v}.16b, {1:v}.4b[1]",
                    "sdot {0:v}.4s, {4:v}.16b, {1:v}.4b[2]",
                    "sdot {0:v}.4s, {5:v}.16b, {1:v}.4b[3]",
                    inout(vreg) all[row], in(vreg) w, in(vreg) x0, in(vreg) x1, in(vreg) x2, in(vreg) x3,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
        }
    }
    all
}

#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(super) fn i8mm(steps: &[Steps; 2 * ROWS], x: [int8x16_t; BLOCK / 4]) -> [int32x4_t; ROWS] {
    // for each pair of rows: the products with the first two vectors, and with the other two
    let mut all = [[vdupq_n_s32(0); 2]; ROWS / 2];
    for eight in 0..BLOCK / 8 {
        let (even, odd) = (vreinterpretq_s32_s8(x[2 * eight]), vreinterpretq_s32_s8(x[2 * eight + 1]));
        let [first, others] = [vzip1q_s32(even, odd), vzip2q_s32(even, odd)];
        for pair in 0..ROWS / 2 {
            let w = load_steps(&steps[4 * pair + eight]);
            let [whole0, whole1] = &mut all[pair];
            // SAFETY: the function has the target feature; the instructions read registers and change two.
            unsafe {
                asm!(
                    "smmla {0:v}.4s, {2:v}.16b, {3:v}.16b",
                    "smmla {1:v}.4s, {2:v}.16b, {4:v}.16b",
                    inout(vreg) *whole0, inout(vreg) *whole1, in(vreg) w, in(vreg) first, in(vreg) others,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
        }
    }
    let mut rows = [vdupq_n_s32(0); ROWS];
    for pair in 0..ROWS / 2 {
        let [first, others] = all[pair].map(|whole| vreinterpretq_s64_s32(whole));
        rows[2 * pair] = vreinterpretq_s32_s64(vzip1q_s64(first, others));
        rows[2 * pair + 1] = vreinterpretq_s32_s64(vzip2q_s64(first, others));
    }
    rows
}

#[inline]
#[target_feature(enable = "neon")]
fn load_steps(steps: &Steps) -> int8x16_t {
    vreinterpretq_s8_u8(load_16(cast_ref(steps)))
}

#[inline]
#[target_feature(enable = "neon")]
fn store_steps(steps: &mut Steps, new: int8x16_t) {
    // SAFETY: the reference is valid for 16 bytes; the store needs no alignment.
    unsafe { vst1q_s8(steps.as_mut_ptr(), new) }
}
