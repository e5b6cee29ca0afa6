//! The operations of a forward pass: matrix products, and loops over pieces that do not depend on each other.

use kernels::{Kernels, Matrix};

/// Matrix products, and loops over independent pieces. The methods given here are the obvious loops.
pub trait Products: Copy + Sync {
    /// `w x` of each vector: `[tokens, w.rows]`.
    ///
    /// *Shapes*: `x: [tokens, w.columns]`.
    fn times(&self, w: Matrix<'_>, x: &[f32]) -> Vec<f32>;

    /// [`Products::times`] where the engine rounds no vectors, even with activations `q8`.
    fn times_unrounded(&self, w: Matrix<'_>, x: &[f32]) -> Vec<f32> {
        self.times(w, x)
    }

    /// `a b`: `[m, n]`.
    ///
    /// *Shapes*: `a: [m, k]`, `b: [k, n]`.
    fn product(&self, (m, k, n): (usize, usize, usize), a: Strided<'_>, b: Strided<'_>) -> Vec<f32> {
        let element = |row, column| (0..k).map(|i| a.at(row, i) * b.at(i, column)).sum();
        (0..m * n).map(|at| element(at / n, at % n)).collect()
    }

    /// The results of pieces `0..count`.
    fn pieces<T: Send>(&self, count: usize, of: impl Fn(usize) -> T + Sync) -> Vec<T> {
        (0..count).map(of).collect()
    }

    /// Changes each row of `width` values; `change` gets its number, too.
    fn each_row(&self, rows: &mut [f32], width: usize, change: impl Fn(usize, &mut [f32]) + Sync) {
        rows.chunks_mut(width).enumerate().for_each(|(at, row)| change(at, row));
    }
}

/// One vector after another on one thread, by the kernels of an instruction set.
#[derive(Debug, Clone, Copy)]
pub struct Plain<'a>(pub &'a dyn Kernels);

impl Products for Plain<'_> {
    fn times(&self, w: Matrix<'_>, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len() / w.columns * w.rows];
        for (x, out) in x.chunks(w.columns).zip(out.chunks_mut(w.rows)) {
            self.0.rows(w, 0, x, out);
        }
        out
    }
}

/// A matrix inside a slice: element `(i, j)` is `values[i * row + j * column]`.
#[derive(Debug, Clone, Copy)]
pub struct Strided<'a> {
    /// The elements, beginning with row 0 and column 0.
    pub values: &'a [f32],
    /// Distance from a row to the next.
    pub row: usize,
    /// Distance from a column to the next.
    pub column: usize,
}

impl Strided<'_> {
    fn at(self, row: usize, column: usize) -> f32 {
        self.values[row * self.row + column * self.column]
    }
}
