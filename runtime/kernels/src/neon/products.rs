//! Products of floats with many vectors. Tiles have 6 rows and 16 vectors with 24 registers of sums. Single
//! vectors have 64 columns in 16 registers.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::aarch64::*;

use bytemuck::{cast_mut, cast_ref};

use super::super::Row;
use super::super::packed::{LANES, Packed};
use super::super::tiles::{self, COLUMNS, PANEL, rows_of};
use super::{load_4, prefetch_line, store_4, unpack};

/// Rows of a tile.
const ROWS: usize = 6;
/// Tiles of a panel: 24 rows.
const TILES: usize = 4;

/// Sixteen floats.
type Sixteen = [float32x4_t; 4];

/// [`super::Kernels::products`] for [`super::Form::F32`].
#[target_feature(enable = "neon")]
pub(super) fn products(w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]) {
    let empty = [[0.0; COLUMNS]; ROWS];
    tiles::products::<_, ROWS, TILES>(
        w,
        x,
        out,
        COLUMNS,
        empty,
        |rows, columns, tile| {
            for (row, values) in rows.iter().zip(tile) {
                unpack(row, columns.start, &mut values[..columns.len()]);
                prefetch_piece(row, columns.end, COLUMNS);
            }
        },
        |tile, words, sums| multiply(tile, words, sums),
    );
}

/// Prefetches the next piece of a row. The piece is short and far from the next row's, so hardware
/// prefetching misses it.
#[inline]
pub(super) fn prefetch_piece(row: &Row<'_>, start: usize, columns: usize) {
    let (start, bytes) = (row.place(start), row.place(columns));
    for line in (0..bytes).step_by(64) {
        prefetch_line(row.bytes.as_ptr().wrapping_add(start + line));
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn multiply(tile: &[[f32; COLUMNS]; ROWS], words: &[[f32; LANES]], out: &mut [[f32; LANES]; ROWS]) {
    let mut sums = out.each_ref().map(|out| load_sixteen(out));
    for (column, x) in words.iter().enumerate().take(COLUMNS) {
        let x = load_sixteen(x);
        for row in 0..ROWS {
            sums[row] = add_scaled(sums[row], x, tile[row][column]);
        }
    }
    for (out, sums) in out.iter_mut().zip(sums) {
        store_sixteen(out, sums);
    }
}

/// [`super::Kernels::add_products`].
#[target_feature(enable = "neon")]
pub(super) fn add_products(
    a: &[f32],
    count: usize,
    first: usize,
    w: &[Row<'_>],
    y: &mut [f32],
    columns: usize,
) {
    tiles::add_products(
        a,
        count,
        first,
        w,
        y,
        columns,
        |row, start, values| unpack(row, start, values),
        |panel, mark, factors, sums| add(panel, mark, factors, sums),
        |panel, factors, sums| add_three(panel, factors, sums),
    );
}

/// One vector: its 64 columns stay in registers.
#[inline]
#[target_feature(enable = "neon")]
fn add(panel: &[[f32; PANEL]; PANEL], mark: u64, factors: &[f32; PANEL], out: &mut [f32; PANEL]) {
    let out: &mut [[f32; LANES]; PANEL / LANES] = cast_mut(out);
    let mut sums = out.each_ref().map(|out| load_sixteen(out));
    for row in rows_of(mark) {
        let w: &[[f32; LANES]; PANEL / LANES] = cast_ref(&panel[row]);
        for part in 0..PANEL / LANES {
            sums[part] = add_scaled(sums[part], load_sixteen(&w[part]), factors[row]);
        }
    }
    for (out, sums) in out.iter_mut().zip(sums) {
        store_sixteen(out, sums);
    }
}

/// Three vectors, each half of the columns in turn.
#[inline]
#[target_feature(enable = "neon")]
fn add_three(panel: &[[f32; PANEL]], factors: [&[f32; PANEL]; 3], out: [&mut [f32; PANEL]; 3]) {
    for half in 0..2 {
        let mut sums = [[[vdupq_n_f32(0.0); 4]; 2]; 3];
        for t in 0..3 {
            let place: &[[f32; LANES]; PANEL / LANES] = cast_ref(&*out[t]);
            sums[t] = [load_sixteen(&place[2 * half]), load_sixteen(&place[2 * half + 1])];
        }
        for (row, w) in panel.iter().enumerate() {
            let w: &[[f32; LANES]; PANEL / LANES] = cast_ref(w);
            for part in 0..2 {
                let w = load_sixteen(&w[2 * half + part]);
                for t in 0..3 {
                    sums[t][part] = add_scaled(sums[t][part], w, factors[t][row]);
                }
            }
        }
        for t in 0..3 {
            let place: &mut [[f32; LANES]; PANEL / LANES] = cast_mut(&mut *out[t]);
            for part in 0..2 {
                store_sixteen(&mut place[2 * half + part], sums[t][part]);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn add_scaled(mut sums: Sixteen, x: Sixteen, a: f32) -> Sixteen {
    for i in 0..4 {
        sums[i] = vfmaq_n_f32(sums[i], x[i], a);
    }
    sums
}

#[inline]
#[target_feature(enable = "neon")]
fn load_sixteen(values: &[f32; LANES]) -> Sixteen {
    let (groups, _) = values.as_chunks::<4>();
    [load_4(&groups[0]), load_4(&groups[1]), load_4(&groups[2]), load_4(&groups[3])]
}

#[inline]
#[target_feature(enable = "neon")]
fn store_sixteen(values: &mut [f32; LANES], new: Sixteen) {
    for (four, new) in values.as_chunks_mut::<4>().0.iter_mut().zip(new) {
        store_4(four, new);
    }
}
