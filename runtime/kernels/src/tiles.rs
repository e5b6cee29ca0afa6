//! Products with many vectors, cut into tiles that fit the registers; an instruction set supplies the loop
//! inside a tile.
//!
//! ```text
//! products      for 24 rows, for a piece of the columns: unpack it into tiles of some rows
//!                   for each group of 16 vectors, for each tile: multiply                    rows x 16 sums
//! add_products  for 64 columns, for 64 rows: unpack them into a panel
//!                   for each vector: add the rows whose factor is not zero                         64 sums
//! ```
//!
//! 1. A weight is unpacked once for all vectors; a panel and a group of vectors stay in the L1 cache
//!    meanwhile.
//! 2. Between two pieces, sums wait in `out` (or `y`), which rounds nothing. The order of a sum does not
//!    depend on what is computed beside it.
//! 3. Ragged ends are padded with zeros here, so that the innermost loops have constant lengths and no
//!    checks.
//!
//! `avx512` has loops of its own: it keeps two groups in registers and uses masks.

use std::ops::Range;

use super::packed::{BLOCK, BLOCK_WORDS, LANES, Packed};
use super::{Row, padded, plain};

/// Columns of floats unpacked at a time: 12 KiB for 24 rows, and 8 KiB of vectors.
pub(super) const COLUMNS: usize = 128;
/// The most words of a piece of one vector: 512 columns as bytes.
const PIECE_WORDS: usize = 512 / BLOCK * BLOCK_WORDS;
/// Rows and columns of a panel of [`add_products`]: 16 KiB.
pub(super) const PANEL: usize = 64;

/// A value aligned to a cache line: a register load across a line boundary takes two reads.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Lined<T>(pub(super) T);

/// [`super::Kernels::products`], with `TILES` tiles of `ROWS` rows and `columns` columns.
///
/// `unpack(rows, columns, tile)` fills a tile; if it gets fewer rows, the other rows of the tile are ignored.
/// `multiply(tile, words, sums)` adds the products of a tile with a group of vectors.
#[inline(always)]
pub(super) fn products<T: Copy, const ROWS: usize, const TILES: usize>(
    w: &[Row<'_>],
    x: Packed<'_>,
    out: &mut [f32],
    columns: usize,
    empty: T,
    unpack: impl Fn(&[Row<'_>], Range<usize>, &mut T),
    multiply: impl Fn(&T, &[[f32; LANES]], &mut [[f32; LANES]; ROWS]),
) {
    plain::assert_shapes(w, x, out);
    out.fill(0.0);
    let mut panel = [empty; TILES];
    let mut filled = Lined([[0.0; LANES]; PIECE_WORDS]);
    for (w, out) in w.chunks(TILES * ROWS).zip(out.chunks_mut(TILES * ROWS * x.count)) {
        for start in (0..x.columns).step_by(columns) {
            let end = (start + columns).min(x.columns);
            for (w, tile) in w.chunks(ROWS).zip(&mut panel) {
                unpack(w, start..end, tile);
            }
            let words = x.form.vector_words(start)..x.form.vector_words(end);
            for (group, (g, words)) in x.whole_groups(words, &mut filled.0).enumerate() {
                for (tile, out) in panel.iter().zip(out.chunks_mut(ROWS * x.count)) {
                    let mut sums = Lined([[0.0; LANES]; ROWS]);
                    for (sums, out) in sums.0.iter_mut().zip(out.chunks(x.count)) {
                        copy::<LANES>(&out[group * LANES..][..g], sums);
                    }
                    multiply(tile, words, &mut sums.0);
                    for (sums, out) in sums.0.iter().zip(out.chunks_mut(x.count)) {
                        copy::<LANES>(sums, &mut out[group * LANES..][..g]);
                    }
                }
            }
        }
    }
}

/// Vectors whose marks and transposed factors are made together.
const PASS: usize = 192;
/// Vectors of a small pass, such as the heads of one token: a large pass takes longer to set up than the work
/// itself.
const SMALL_PASS: usize = 16;
/// Takes three vectors at once if together they have more than this many nonzero factors for each row of a
/// panel (of three).
const MOST_OF_THREE: u32 = 2;

/// [`super::Kernels::add_products`] for vectors from `first` on.
///
/// `unpack(row, start, values)` returns values of a row from `start` on. For one vector, `add(panel, mark,
/// factors, sums)` adds the rows marked in `mark` times their factors, ascending. `add_three(panel, factors,
/// sums)` adds every row for three vectors, which is faster if most factors are not zero.
#[inline(always)]
pub(super) fn add_products(
    a: &[f32],
    count: usize,
    first: usize,
    w: &[Row<'_>],
    y: &mut [f32],
    columns: usize,
    unpack: impl Fn(&Row<'_>, usize, &mut [f32]),
    add: impl Fn(&[[f32; PANEL]; PANEL], u64, &[f32; PANEL], &mut [f32; PANEL]),
    add_three: impl Fn(&[[f32; PANEL]], [&[f32; PANEL]; 3], [&mut [f32; PANEL]; 3]),
) {
    if y.len() <= SMALL_PASS * columns {
        add_in_passes::<SMALL_PASS>(a, count, first, w, y, columns, unpack, add, add_three);
    } else {
        add_in_passes::<PASS>(a, count, first, w, y, columns, unpack, add, add_three);
    }
}

#[inline(always)]
fn add_in_passes<const PASS: usize>(
    a: &[f32],
    count: usize,
    first: usize,
    w: &[Row<'_>],
    y: &mut [f32],
    columns: usize,
    unpack: impl Fn(&Row<'_>, usize, &mut [f32]),
    add: impl Fn(&[[f32; PANEL]; PANEL], u64, &[f32; PANEL], &mut [f32; PANEL]),
    add_three: impl Fn(&[[f32; PANEL]], [&[f32; PANEL]; 3], [&mut [f32; PANEL]; 3]),
) {
    let mut panel = Lined([[0.0; PANEL]; PANEL]);
    let (mut marks, mut factors) = ([0; PASS], [[0.0; PANEL]; PASS]);
    for (w, a) in w.chunks(PANEL).zip(a.chunks(PANEL * count)) {
        for (pass, y) in y.chunks_mut(PASS * columns).enumerate() {
            let first = first + pass * PASS;
            let vectors = y.len() / columns;
            mark(a, count, first, &mut marks[..vectors]);
            turn(a, count, first, &mut factors[..vectors]);
            for start in (0..columns).step_by(PANEL) {
                let width = PANEL.min(columns - start);
                for (row, panel) in w.iter().zip(&mut panel.0) {
                    unpack(row, start, &mut panel[..width]);
                }
                let threes = y.chunks_mut(3 * columns).zip(marks.chunks(3).zip(factors.chunks(3)));
                for (y, (marks, factors)) in threes {
                    let marked: u32 = marks.iter().map(|mark| mark.count_ones()).sum();
                    if marked > MOST_OF_THREE * w.len() as u32
                        && let Some(y) = three_of(y, columns, start)
                    {
                        add_three(&panel.0[..w.len()], [&factors[0], &factors[1], &factors[2]], y);
                        continue;
                    }
                    let vectors = y.chunks_mut(columns).zip(marks).zip(factors);
                    for ((y, &mark), factors) in vectors.filter(|((_, mark), _)| **mark != 0) {
                        let y = &mut y[start..][..width];
                        if let Some(y) = y.first_chunk_mut() {
                            add(&panel.0, mark, factors, y);
                        } else {
                            let mut sums = padded(y);
                            add(&panel.0, mark, factors, &mut sums);
                            y.copy_from_slice(&sums[..width]);
                        }
                    }
                }
            }
        }
    }
}

/// Columns of a panel from `start` on, for three vectors; `None` if there are fewer of either.
fn three_of(y: &mut [f32], columns: usize, start: usize) -> Option<[&mut [f32; PANEL]; 3]> {
    let mut vectors = y.chunks_exact_mut(columns).map(|y| y[start..].first_chunk_mut());
    Some([vectors.next()??, vectors.next()??, vectors.next()??])
}

/// Marks the nonzero factors of each vector from `first` on: one bit for each row of `a: [rows, count]`.
pub(super) fn mark(a: &[f32], count: usize, first: usize, marks: &mut [u64]) {
    marks.fill(0);
    for (k, a) in a.chunks_exact(count).enumerate() {
        for (mark, a) in marks.iter_mut().zip(&a[first..]) {
            *mark |= u64::from(*a != 0.0) << k;
        }
    }
}

/// Copies the factors of each vector from `first` on side by side; in `a: [rows, count]` they lie a cache
/// line or more apart.
fn turn(a: &[f32], count: usize, first: usize, factors: &mut [[f32; PANEL]]) {
    for (k, a) in a.chunks_exact(count).enumerate() {
        for (factors, a) in factors.iter_mut().zip(&a[first..]) {
            factors[k] = *a;
        }
    }
}

/// The rows marked in `mark`, ascending.
pub(super) fn rows_of(mut mark: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let row = mark.trailing_zeros() as usize;
        mark &= mark.wrapping_sub(1);
        (row < PANEL).then_some(row)
    })
}

/// Copies as many values as both have; a whole array in one copy.
#[inline(always)]
pub(super) fn copy<const N: usize>(from: &[f32], to: &mut [f32]) {
    if let (Some(from), Some(to)) = (from.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
        *to = *from;
    } else {
        let count = from.len().min(to.len());
        to[..count].copy_from_slice(&from[..count]);
    }
}
