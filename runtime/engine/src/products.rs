//! Products of matrices and a prompt's vectors: one thread's part of `weights x vectors`, tile by tile.
//!
//! A prompt's vectors pass a layer together, so that a weight is read and unpacked once for all. They are
//! packed first ([`pack_in_place`]). Products are computed in tiles of [`ROWS`] rows and [`VECTORS`] vectors,
//! on the stack.

use std::ops::Range;

use crate::pool::{Columns, Pool};
use kernels::Format;
use kernels::{Form, Input, Kernels, LANES, Packed, Rounded, Row, pack};

/// Rows of a tile.
pub const ROWS: usize = 24;
/// Vectors of a tile: whole groups.
pub const VECTORS: usize = 128;

/// Products of a tile: `[rows, vectors]`.
pub type Tile = [f32; ROWS * VECTORS];

/// A few vectors in the plan's form, used one by one.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    values: &'a [f32],
    columns: usize,
    /// Rounded vectors, contiguous.
    words: Option<&'a [f32]>,
}

impl<'a> Inputs<'a> {
    /// Vectors of `columns` values. If the form rounds and the vectors are whole blocks, also their rounded
    /// values, at the front of `words`.
    ///
    /// # Panics
    /// If there are too few words.
    pub fn new(values: &'a [f32], columns: usize, form: Form, words: &'a mut [f32]) -> Self {
        let each = Rounded::words(columns);
        let round = form == Form::Q8 && columns.is_multiple_of(Format::Q8_0.block_values());
        if round {
            let words = &mut words[..values.len() / columns * each];
            for (values, words) in values.chunks_exact(columns).zip(words.chunks_exact_mut(each)) {
                Rounded::new(values, words);
            }
        }
        Self { values, columns, words: round.then_some(words) }
    }

    /// Number of vectors.
    pub fn count(&self) -> usize {
        self.values.len() / self.columns
    }

    /// One of the vectors.
    pub fn row(&self, row: usize) -> Input<'a> {
        let each = Rounded::words(self.columns);
        let words = self.words.map(|words| &words[row * each..][..each]);
        Input::made(&self.values[row * self.columns..][..self.columns], words)
    }
}

/// The form of vectors for weights of these formats: `wanted` if all formats have blocks, otherwise `F32`.
pub fn form_for(wanted: Form, formats: impl IntoIterator<Item = Format>) -> Form {
    let blocks = formats.into_iter().all(|format| format.has_blocks());
    if blocks { wanted } else { Form::F32 }
}

/// Packs vectors of `columns` values in place; `spare` must be at least as long.
///
/// *Shapes*: `vectors: [count, columns]`, `spare`: at least as many.
pub fn pack_in_place<'a>(
    pool: &Pool,
    form: Form,
    columns: usize,
    vectors: &'a mut [f32],
    spare: &mut [f32],
) -> Packed<'a> {
    let (count, words) = (vectors.len() / columns, form.vector_words(columns));
    let spare = &mut spare[..count * words];
    let rows = &*vectors;
    pool.split_mut(spare, LANES * words, |start, words_of| {
        let (first, some) = (start / words, words_of.len() / words);
        pack(form, columns, &rows[first * columns..][..some * columns], words_of);
    });
    vectors[..spare.len()].copy_from_slice(spare);
    Packed::new(form, columns, count, vectors)
}

/// Computes a thread's columns of `out[t][at] = row(at) . x[t]`.
pub fn write_products<'w>(
    kernels: &dyn Kernels,
    row: impl Fn(usize) -> Row<'w>,
    x: Packed<'_>,
    out: &mut Columns<'_, f32>,
) {
    each_tile(kernels, row, x, out.range(), |t, at, products| {
        let start = at - out.range().start;
        let out = &mut out.row(t)[start..][..products.len()];
        out.iter_mut().zip(products).for_each(|(out, product)| *out = *product);
    });
}

/// Computes a thread's columns of `out[first + t][at] += row(at) . x[t]`.
pub fn add_products<'w>(
    kernels: &dyn Kernels,
    row: impl Fn(usize) -> Row<'w>,
    x: Packed<'_>,
    first: usize,
    out: &mut Columns<'_, f32>,
) {
    each_tile(kernels, row, x, out.range(), |t, at, products| {
        let start = at - out.range().start;
        let out = &mut out.row(first + t)[start..][..products.len()];
        out.iter_mut().zip(products).for_each(|(out, product)| *out += *product);
    });
}

/// Computes the products of rows `range` with each vector, some rows at a time; calls `put(vector, first row,
/// products)`.
fn each_tile<'w>(
    kernels: &dyn Kernels,
    row: impl Fn(usize) -> Row<'w>,
    x: Packed<'_>,
    range: Range<usize>,
    mut put: impl FnMut(usize, usize, std::iter::StepBy<std::slice::Iter<'_, f32>>),
) {
    let mut at = range.start;
    while at < range.end {
        let mut batch = [row(at); ROWS];
        let mut rows = 1;
        while rows < ROWS.min(range.end - at) && row(at + rows).format == batch[0].format {
            batch[rows] = row(at + rows);
            rows += 1;
        }
        for first in (0..x.count).step_by(VECTORS) {
            let count = VECTORS.min(x.count - first);
            let mut tile: Tile = [0.0; _];
            let tile = &mut tile[..rows * count];
            kernels.products(&batch[..rows], x.part(first, count), tile);
            for t in 0..count {
                put(first + t, at, tile[t..].iter().step_by(count));
            }
        }
        at += rows;
    }
}
