//! Transposed rows times many vectors of bytes: the down projection of a prompt, summed over neurons.
//!
//! ```text
//! for 32 columns, for 512 rows: transpose into four tiles of 8 columns      32 rows at a time, a scale for each column
//!     for each group of 16 vectors, for each tile: as `bytes` multiplies it
//! ```

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::aarch64::*;

use super::super::interleaved::block;
use super::super::packed::{BLOCK, BLOCK_WORDS, Form, LANES, LEAST, Packed};
use super::super::tiles::{Lined, copy};
use super::super::{Row, TRANSPOSED_MOST};
use super::bytes::{
    BLOCKS, EMPTY, ROWS as COLUMNS, Steps, Tile, dotprod, i8mm, interleave, multiply, widened,
};
use super::{load, q4_0_weights, store, store_4, whole_numbers};

/// Tiles of the columns that are transposed together.
const TILES: usize = BLOCK / COLUMNS;

/// [`super::Kernels::add_transposed`].
#[target_feature(enable = "neon")]
pub(super) fn add_widened(w: &[Row<'_>], start: usize, x: Packed<'_>, out: &mut [f32]) {
    add_with(w, start, x, out, |_tile| (), |steps, x| widened(steps, x));
}

/// [`super::Kernels::add_transposed`] with `sdot`.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn add_dotprod(w: &[Row<'_>], start: usize, x: Packed<'_>, out: &mut [f32]) {
    add_with(w, start, x, out, |_tile| (), |steps, x| dotprod(steps, x));
}

/// [`super::Kernels::add_transposed`] with `smmla`.
#[target_feature(enable = "neon,i8mm")]
pub(super) fn add_i8mm(w: &[Row<'_>], start: usize, x: Packed<'_>, out: &mut [f32]) {
    add_with(w, start, x, out, |tile| interleave(tile), |steps, x| i8mm(steps, x));
}

#[inline]
#[target_feature(enable = "neon")]
fn add_with(
    w: &[Row<'_>],
    start: usize,
    x: Packed<'_>,
    out: &mut [f32],
    arrange: impl Fn(&mut Tile),
    whole: impl Fn(&[Steps; 2 * COLUMNS], [int8x16_t; BLOCK / 4]) -> [int32x4_t; COLUMNS],
) {
    let mut tiles = [EMPTY; TILES];
    let mut filled = Lined([[0.0; LANES]; BLOCKS * BLOCK_WORDS]);
    for (at, out) in (start / BLOCK..).zip(out.chunks_exact_mut(BLOCK * x.count)) {
        for (piece, w) in w.chunks(BLOCKS * BLOCK).enumerate() {
            for (block, w) in w.chunks(BLOCK).enumerate() {
                turn(w, at, block, &mut tiles);
            }
            tiles.iter_mut().for_each(&arrange);
            let words = Form::Q8.vector_words(piece * BLOCKS * BLOCK);
            let words = words..words + Form::Q8.vector_words(w.len().next_multiple_of(BLOCK));
            for (group, (g, words)) in x.whole_groups(words, &mut filled.0).enumerate() {
                for (tile, out) in tiles.iter().zip(out.chunks_exact_mut(COLUMNS * x.count)) {
                    let mut sums = [[0.0; LANES]; COLUMNS];
                    let place = |column: usize| column * x.count + group * LANES;
                    for (column, sums) in sums.iter_mut().enumerate() {
                        copy::<LANES>(&out[place(column)..][..g], sums);
                    }
                    multiply(tile, 1, words, &mut sums, &whole);
                    for (column, sums) in sums.iter().enumerate() {
                        copy::<LANES>(sums, &mut out[place(column)..][..g]);
                    }
                }
            }
        }
    }
}

/// Transposes block `at` of the columns of up to 32 rows into block `to` of the tiles; missing rows are zero.
#[inline]
#[target_feature(enable = "neon")]
fn turn(w: &[Row<'_>], at: usize, to: usize, tiles: &mut [Tile; TILES]) {
    let (mut values, mut largest) = ([[0.0; BLOCK]; BLOCK], [vdupq_n_f32(0.0); BLOCK / 4]);
    for (row, values) in w.iter().zip(&mut values) {
        let w = q4_0_weights(&block(row.bytes, at));
        for j in 0..BLOCK / 4 {
            largest[j] = vmaxq_f32(largest[j], vabsq_f32(w[j]));
        }
        store(values, w);
    }
    let (most, mut inverse) = (vdupq_n_f32(TRANSPOSED_MOST), [vdupq_n_f32(0.0); BLOCK / 4]);
    for j in 0..BLOCK / 4 {
        let counts = vcgeq_f32(largest[j], vdupq_n_f32(LEAST));
        let where_it_counts = |x| vreinterpretq_f32_u32(vandq_u32(counts, vreinterpretq_u32_f32(x)));
        inverse[j] = where_it_counts(vdivq_f32(most, largest[j]));
        let scales = tiles[4 * j / COLUMNS].scales[to].as_chunks_mut::<4>().0;
        store_4(&mut scales[j % (COLUMNS / 4)], where_it_counts(vdivq_f32(largest[j], most)));
    }
    for (four, rows) in values.as_chunks::<4>().0.iter().enumerate() {
        // a lane is a column; each of its bytes is a row
        let mut bytes = [vdupq_n_s32(0); BLOCK / 4];
        for (row, place) in rows.iter().zip([0, 8, 16, 24]) {
            let w = load(row);
            for j in 0..BLOCK / 4 {
                let whole = vcvtnq_s32_f32(vmulq_f32(w[j], inverse[j]));
                let byte = vandq_s32(whole, vdupq_n_s32(0xff));
                bytes[j] = vorrq_s32(bytes[j], vshlq_s32(byte, vdupq_n_s32(place)));
            }
        }
        for (column, four_rows) in bytes.into_iter().flat_map(|bytes| whole_numbers(bytes)).enumerate() {
            let steps = &mut tiles[column / COLUMNS].steps[to][2 * (column % COLUMNS) + four / 4];
            steps.as_chunks_mut::<4>().0[four % 4] = four_rows.to_le_bytes().map(u8::cast_signed);
        }
    }
}
