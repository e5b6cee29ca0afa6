//! Products with many vectors, cut into tiles that fit the registers; an instruction set brings what happens in one.
//!
//! ```text
//! products      for 24 rows, for a piece of the columns: unpack it into tiles of some rows
//!                   for each group of 16 vectors, for each tile: multiply                    rows x 16 sums
//! add_products  for 64 columns, for 64 rows: unpack them into a panel
//!                   for some vectors: add                                                     vectors x 64 sums
//!                   or, where most factors are zero, for each of them: add_marked                   1 x 64 sums
//! ```
//!
//! 1. A weight is unpacked once for all vectors; a panel and a group stay in the first-level cache while they meet.
//! 2. Sums wait in `out` (or `y`) between two pieces, which rounds nothing: a sum is taken in one order, whatever is
//!    computed beside it.
//! 3. What is ragged is filled up with zeros here, so that the innermost loops have constant lengths and no checks.
//!
//! `avx512` has loops of its own: it keeps two groups in registers, and masks.

use std::ops::Range;

use super::packed::{BLOCK, BLOCK_WORDS, LANES, Packed};
use super::{Row, plain};

/// Columns of floats unpacked at a time: 12 KiB for 24 rows, and 8 of vectors.
pub(super) const COLUMNS: usize = 128;
/// Words of a piece of one vector, at most: 512 columns as bytes.
const PIECE_WORDS: usize = 512 / BLOCK * BLOCK_WORDS;
/// Rows and columns of a panel of [`add_products`]: 16 KiB.
pub(super) const PANEL: usize = 64;

/// [`super::Kernels::products`], by `TILES` tiles of `ROWS` rows and `columns` columns.
///
/// `unpack(rows, columns, tile)` fills a tile; it may have fewer rows, the others are not looked at.
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
    let mut filled = [[0.0; LANES]; PIECE_WORDS];
    for (w, out) in w.chunks(TILES * ROWS).zip(out.chunks_mut(TILES * ROWS * x.count)) {
        for start in (0..x.columns).step_by(columns) {
            let end = (start + columns).min(x.columns);
            for (w, tile) in w.chunks(ROWS).zip(&mut panel) {
                unpack(w, start..end, tile);
            }
            let words = x.form.vector_words(start)..x.form.vector_words(end);
            for (group, (g, words)) in x.whole_groups(words, &mut filled).enumerate() {
                for (tile, out) in panel.iter().zip(out.chunks_mut(ROWS * x.count)) {
                    let mut sums = [[0.0; LANES]; ROWS];
                    for (sums, out) in sums.iter_mut().zip(out.chunks(x.count)) {
                        copy::<LANES>(&out[group * LANES..][..g], sums);
                    }
                    multiply(tile, words, &mut sums);
                    for (sums, out) in sums.iter().zip(out.chunks_mut(x.count)) {
                        copy::<LANES>(sums, &mut out[group * LANES..][..g]);
                    }
                }
            }
        }
    }
}

/// Groups of vectors whose factors are laid out together.
const GROUPS: usize = 16;
/// Where more than `1 / MOST_OF` of the factors count, all vectors of a group at once are faster than those that count.
const MOST_OF: u32 = 2;

/// What some rows are multiplied by for a group of vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors<const VECTORS: usize> {
    /// By row.
    pub(super) values: [[f32; VECTORS]; PANEL],
    /// For each vector, the rows whose factor is not zero: a bit each.
    pub(super) marks: [u64; VECTORS],
}

impl<const VECTORS: usize> Factors<VECTORS> {
    /// Of vectors `first..first + vectors`; the others have no marks.
    fn lay_out(&mut self, a: &[f32], count: usize, first: usize, vectors: usize) {
        self.marks.fill(0);
        for (k, (values, a)) in self.values.iter_mut().zip(a.chunks_exact(count)).enumerate() {
            copy::<VECTORS>(&a[first..][..vectors], values);
            for (mark, value) in self.marks[..vectors].iter_mut().zip(values) {
                *mark |= u64::from(*value != 0.0) << k;
            }
        }
    }
}

/// [`super::Kernels::add_products`] for vectors from `first` on, `VECTORS` at a time.
///
/// `unpack(row, start, values)` gives values of a row from `start` on. `add(panel, factors, sums)` adds each row of a panel
/// times its factors, in the order of the rows; `add_marked(panel, factors, vector, sums)` those that count for one vector.
#[inline(always)]
pub(super) fn add_products<const VECTORS: usize>(
    a: &[f32],
    count: usize,
    first: usize,
    w: &[Row<'_>],
    y: &mut [f32],
    columns: usize,
    unpack: impl Fn(&Row<'_>, usize, &mut [f32]),
    add: impl Fn(&[[f32; PANEL]], &Factors<VECTORS>, &mut [[f32; PANEL]; VECTORS]),
    add_marked: impl Fn(&[[f32; PANEL]; PANEL], &Factors<VECTORS>, usize, &mut [f32; PANEL]),
) {
    let mut panel = [[0.0; PANEL]; PANEL];
    let mut factors = [Factors { values: [[0.0; VECTORS]; PANEL], marks: [0; VECTORS] }; GROUPS];
    for (w, a) in w.chunks(PANEL).zip(a.chunks(PANEL * count)) {
        for (pass, y) in y.chunks_mut(GROUPS * VECTORS * columns).enumerate() {
            for (at, (y, factors)) in y.chunks(VECTORS * columns).zip(&mut factors).enumerate() {
                factors.lay_out(a, count, first + (pass * GROUPS + at) * VECTORS, y.len() / columns);
            }
            for start in (0..columns).step_by(PANEL) {
                let width = PANEL.min(columns - start);
                for (row, panel) in w.iter().zip(&mut panel) {
                    unpack(row, start, &mut panel[..width]);
                }
                for (y, factors) in y.chunks_mut(VECTORS * columns).zip(&factors) {
                    let mut sums = [[0.0; PANEL]; VECTORS];
                    for (sums, y) in sums.iter_mut().zip(y.chunks(columns)) {
                        copy::<PANEL>(&y[start..][..width], sums);
                    }
                    let counts: u32 = factors.marks.iter().map(|mark| mark.count_ones()).sum();
                    if MOST_OF * counts > (VECTORS * w.len()) as u32 {
                        add(&panel[..w.len()], factors, &mut sums);
                    } else {
                        for (vector, sums) in sums.iter_mut().enumerate() {
                            add_marked(&panel, factors, vector, sums);
                        }
                    }
                    for (sums, y) in sums.iter().zip(y.chunks_mut(columns)) {
                        copy::<PANEL>(sums, &mut y[start..][..width]);
                    }
                }
            }
        }
    }
}

/// The rows of a mark, ascending.
pub(super) fn rows_of(mut mark: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let row = mark.trailing_zeros() as usize;
        mark &= mark.wrapping_sub(1);
        (row < PANEL).then_some(row)
    })
}

/// As many values as both have; a whole array in one go.
#[inline(always)]
fn copy<const N: usize>(from: &[f32], to: &mut [f32]) {
    if let (Some(from), Some(to)) = (from.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
        *to = *from;
    } else {
        let count = from.len().min(to.len());
        to[..count].copy_from_slice(&from[..count]);
    }
}
