//! Matrix products with the vectors of many tokens, and the shapes between them.

use flashplan::internals::model::source::Down;
use flashplan::internals::reference::{Products, Strided};
use kernels::{Matrix, dequantise, round_in_place};
use rayon::prelude::*;

use super::super::matrix::{Use, product_strided};

/// Products that unpack weights once for all vectors, on every thread.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fast {
    /// Whether vectors are rounded where they meet blocks of weights.
    pub rounds: bool,
}

impl Products for Fast {
    fn times(&self, w: Matrix<'_>, x: &[f32]) -> Vec<f32> {
        let times = if self.rounds { times_rounded } else { times };
        transposed(&times(w, None, x, Use::Transposed), x.len() / w.columns)
    }

    fn times_unrounded(&self, w: Matrix<'_>, x: &[f32]) -> Vec<f32> {
        Self { rounds: false }.times(w, x)
    }

    fn product(&self, (m, k, n): (usize, usize, usize), a: Strided<'_>, b: Strided<'_>) -> Vec<f32> {
        let mut out = vec![0.0; m * n];
        product_strided((m, k, n), a, b, &mut out);
        out
    }

    fn pieces<T: Send>(&self, count: usize, of: impl Fn(usize) -> T + Sync) -> Vec<T> {
        (0..count).into_par_iter().map(&of).collect()
    }

    fn each_row(&self, rows: &mut [f32], width: usize, change: impl Fn(usize, &mut [f32]) + Sync) {
        rows.par_chunks_mut(width).enumerate().for_each(|(at, row)| change(at, row));
    }
}

/// Rows of weights that a thread unpacks at a time: with fewer, packing the tokens takes longer than it gains. Whole blocks of any format.
const BLOCK_ROWS: usize = 256;
/// [`BLOCK_ROWS`] for few tokens, whose packing is nothing: the unpacked rows stay in the thread's cache.
const BLOCK_ROWS_FEW: usize = 16;
const FEW_TOKENS: usize = 32;

fn block_rows(tokens: usize) -> usize {
    if tokens < FEW_TOKENS { BLOCK_ROWS_FEW } else { BLOCK_ROWS }
}

/// `w x`: `[w.rows, tokens]`, or the rows that `rows` lists, in its order.
///
/// *Shapes*: `x: [tokens, w.columns]`, or `[w.columns, tokens]` with [`Use::Plain`].
pub fn times(w: Matrix<'_>, rows: Option<&[u32]>, x: &[f32], x_use: Use) -> Vec<f32> {
    let tokens = x.len() / w.columns;
    let count = rows.map_or(w.rows, <[u32]>::len);
    let mut out = vec![0.0; count * tokens];
    if tokens == 0 {
        return out;
    }
    let at_once = block_rows(tokens);
    out.par_chunks_mut(at_once * tokens).enumerate().for_each_init(Vec::new, |values, (block, out)| {
        let first = block * at_once;
        values.resize(out.len() / tokens * w.columns, 0.0);
        for (i, values) in values.chunks_mut(w.columns).enumerate() {
            let row = rows.map_or(first + i, |rows| rows[first + i] as usize);
            dequantise(w.format, w.row(row).bytes, values);
        }
        let a = Strided { values, row: w.columns, column: 1 };
        let b = match x_use {
            Use::Plain => Strided { values: x, row: tokens, column: 1 },
            Use::Transposed => Strided { values: x, row: 1, column: w.columns },
        };
        product_strided((out.len() / tokens, w.columns, tokens), a, b, out);
    });
    out
}

/// [`times`] with `x` rounded to 8 bits for weights in blocks, as in the engine with activations `q8`.
pub fn times_rounded(w: Matrix<'_>, rows: Option<&[u32]>, x: &[f32], x_use: Use) -> Vec<f32> {
    if !w.format.has_blocks() {
        return times(w, rows, x, x_use);
    }
    let mut x = match x_use {
        Use::Transposed => x.to_vec(),
        Use::Plain => transposed(x, x.len() / w.columns),
    };
    x.par_chunks_mut(w.columns).for_each(round_in_place);
    times(w, rows, &x, Use::Transposed)
}

/// `down h`: `[width, tokens]`; `h: [neurons, tokens]` has the neurons in the order of `neurons`.
pub fn times_down(down: Down<'_>, neurons: Option<&[u32]>, h: &[f32]) -> Vec<f32> {
    let (width, count) = match down {
        Down::Columns(w) => (w.rows, w.columns),
        Down::Rows(w) => (w.columns, w.rows),
    };
    let tokens = h.len() / count;
    let mut out = vec![0.0; width * tokens];
    if tokens == 0 {
        return out;
    }
    let source = |i: usize| neurons.map_or(i, |neurons| neurons[i] as usize);
    let b = Strided { values: h, row: tokens, column: 1 };
    let at_once = if matches!(down, Down::Rows(_)) { BLOCK_ROWS } else { block_rows(tokens) };
    out.par_chunks_mut(at_once * tokens).enumerate().for_each_init(
        || (Vec::new(), Vec::new()),
        |(values, row), (block, out)| {
            let (first, outputs) = (block * at_once, out.len() / tokens);
            values.resize(outputs * count, 0.0);
            let a = match down {
                Down::Columns(w) => {
                    row.resize(count, 0.0);
                    for (i, values) in values.chunks_mut(count).enumerate() {
                        dequantise(w.format, w.row(first + i).bytes, row);
                        values.iter_mut().enumerate().for_each(|(i, value)| *value = row[source(i)]);
                    }
                    Strided { values, row: count, column: 1 }
                }
                Down::Rows(w) => {
                    let (from, to) = (w.format.row_bytes(first), w.format.row_bytes(first + outputs));
                    for (i, values) in values.chunks_mut(outputs).enumerate() {
                        dequantise(w.format, &w.row(source(i)).bytes[from..to], values);
                    }
                    Strided { values, row: 1, column: outputs }
                }
            };
            product_strided((outputs, count, tokens), a, b, out);
        },
    );
    out
}

/// The Euclidean length of each neuron's row of down.
pub fn row_sizes(down: Down<'_>) -> Vec<f32> {
    let (Down::Columns(w) | Down::Rows(w)) = down;
    let mut squares = vec![0.0; if matches!(down, Down::Rows(_)) { w.rows } else { w.columns }];
    let mut values = vec![0.0; w.columns];
    for row in 0..w.rows {
        dequantise(w.format, w.row(row).bytes, &mut values);
        match down {
            Down::Rows(_) => squares[row] = values.iter().map(|v| v * v).sum(),
            Down::Columns(_) => squares.iter_mut().zip(&values).for_each(|(sum, v)| *sum += v * v),
        }
    }
    squares.into_iter().map(f32::sqrt).collect()
}

/// `[values, tokens]` as `[tokens, values]`.
pub(super) fn transposed(x: &[f32], tokens: usize) -> Vec<f32> {
    if tokens == 0 {
        return Vec::new();
    }
    let values = x.len() / tokens;
    let mut out = vec![0.0; x.len()];
    out.par_chunks_mut(values * TILE).enumerate().for_each(|(tile, out)| {
        for (value, x) in x.chunks(tokens).enumerate() {
            let x = &x[tile * TILE..];
            for (out, &x) in out.chunks_mut(values).zip(x) {
                out[value] = x;
            }
        }
    });
    out
}

/// Tokens that are transposed together: a cache line of them.
const TILE: usize = 16;
