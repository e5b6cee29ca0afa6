//! The matrix product of the profiler, with a safe interface.

use flashplan::internals::reference::Strided;
use rayon::prelude::*;

/// The orientation of a factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// As stored.
    Plain,
    /// Transposed.
    Transposed,
}

/// A matrix that fills its slice: `[rows, columns]`, or `[columns, rows]` transposed.
fn whole(values: &[f32], rows: usize, columns: usize, how: Use) -> Strided<'_> {
    assert_eq!(Some(values.len()), rows.checked_mul(columns), "product: a length is not its shape's");
    match how {
        Use::Plain => Strided { values, row: columns, column: 1 },
        Use::Transposed => Strided { values, row: 1, column: rows },
    }
}

/// Whether a matrix's slice has every element of `[rows, columns]`.
fn holds(matrix: Strided<'_>, rows: usize, columns: usize) -> bool {
    let (Some(last_row), Some(last_column)) = (rows.checked_sub(1), columns.checked_sub(1)) else {
        return true;
    };
    let (rows, columns) = (last_row.checked_mul(matrix.row), last_column.checked_mul(matrix.column));
    rows.zip(columns)
        .and_then(|(row, column)| row.checked_add(column))
        .is_some_and(|last| last < matrix.values.len())
}

/// Minimum multiplications of a thread's piece.
const WORK_OF_A_PIECE: usize = 1 << 20;
/// Minimum rows of a piece: with fewer, packing the second factor costs more than a thread gains.
const ROWS_OF_A_PIECE: usize = 32;

/// `c = a b`, or `c = a b` with either factor transposed first, on every thread.
///
/// The result does not depend on the number of threads: each element is summed in order of `k`.
///
/// *Shapes*: `c: [m, n]`; `a: [m, k]`, stored `[k, m]` if transposed; `b: [k, n]`, stored `[n, k]` if transposed.
///
/// # Panics
/// If a length is not its shape's.
pub fn product(
    (m, k, n): (usize, usize, usize),
    a: &[f32],
    a_use: Use,
    b: &[f32],
    b_use: Use,
    c: &mut [f32],
) {
    assert_eq!(Some(c.len()), m.checked_mul(n), "product: a length is not its shape's");
    let (a, b) = (whole(a, m, k, a_use), whole(b, k, n, b_use));
    let rows = (WORK_OF_A_PIECE / k.saturating_mul(n).max(1)).max(m / 16).max(ROWS_OF_A_PIECE);
    c.par_chunks_mut(rows.saturating_mul(n).max(1)).enumerate().for_each(|(piece, c)| {
        let a = Strided { values: &a.values[piece * rows * a.row..], ..a };
        product_strided((c.len() / n, k, n), a, b, c);
    });
}

/// `c = a b` on this thread.
///
/// *Shapes*: `a: [m, k]`, `b: [k, n]`, `c: [m, n]`, whole.
///
/// # Panics
/// If a slice ends before its matrix.
pub fn product_strided((m, k, n): (usize, usize, usize), a: Strided<'_>, b: Strided<'_>, c: &mut [f32]) {
    assert!(
        holds(a, m, k) && holds(b, k, n) && m.checked_mul(n) == Some(c.len()),
        "product: a slice ends before its matrix"
    );
    #[allow(unsafe_code, reason = "the product takes pointers and strides")]
    // SAFETY: the last element that each matrix addresses was checked, without overflow, to lie in its slice, and `c`, which is
    // borrowed mutably, is another slice. A stride is a distance inside a slice, which fits an `isize`, or is not used.
    unsafe {
        matrixmultiply::sgemm(
            m,
            k,
            n,
            1.0,
            a.values.as_ptr(),
            a.row as isize,
            a.column as isize,
            b.values.as_ptr(),
            b.row as isize,
            b.column as isize,
            0.0,
            c.as_mut_ptr(),
            n as isize,
            1,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_use_of_the_factors_gives_the_sum_of_products() {
        for (m, k, n) in [(3, 4, 5), (70, 3, 2), (1, 1, 1)] {
            let a: Vec<f32> = (0..m * k).map(|i| i as f32 - 5.0).collect();
            let b: Vec<f32> = (0..k * n).map(|i| (i * 7 % 11) as f32).collect();
            let flip = |x: &[f32], rows: usize, columns: usize| -> Vec<f32> {
                (0..columns).flat_map(|j| (0..rows).map(move |i| x[i * columns + j])).collect()
            };
            let mut expected = vec![0.0; m * n];
            for i in 0..m {
                for j in 0..n {
                    expected[i * n + j] = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
                }
            }
            let (a_flipped, b_flipped) = (flip(&a, m, k), flip(&b, k, n));
            for (a, a_use) in [(&a, Use::Plain), (&a_flipped, Use::Transposed)] {
                for (b, b_use) in [(&b, Use::Plain), (&b_flipped, Use::Transposed)] {
                    let mut c = vec![1.0; m * n];
                    product((m, k, n), a, a_use, b, b_use, &mut c);
                    assert_eq!(c, expected, "{a_use:?} {b_use:?}");
                }
            }
        }
    }

    #[test]
    fn a_part_of_a_wider_matrix_is_multiplied_in_place() {
        // Columns 1 and 2 of a [2, 3] matrix, times their own transpose.
        let x = [9.0, 1.0, 2.0, 9.0, 3.0, 4.0];
        let part = Strided { values: &x[1..], row: 3, column: 1 };
        let transposed = Strided { values: &x[1..], row: 1, column: 3 };
        let mut c = [0.0; 4];
        product_strided((2, 2, 2), part, transposed, &mut c);
        assert_eq!(c, [5.0, 11.0, 11.0, 25.0]);
    }

    #[test]
    #[should_panic(expected = "ends before its matrix")]
    fn a_slice_that_is_too_short_is_refused() {
        let x = [0.0; 5];
        let x = Strided { values: &x, row: 3, column: 1 };
        product_strided((2, 3, 1), x, x, &mut [0.0; 2]);
    }

    #[test]
    fn shapes_whose_sizes_overflow_are_refused() {
        let refused = |shape, a, b, length: usize| {
            let product = || product_strided(shape, a, b, &mut vec![0.0; length]);
            std::panic::catch_unwind(product).is_err()
        };
        let at = |row, column| Strided { values: &[1.0], row, column };
        // 2^64 elements of an output that has none
        assert!(refused((1 << 32, 1, 1 << 32), at(0, 0), at(0, 0), 0));
        // the last element of a factor at 2^64, which is 0
        assert!(refused((3, 1, 1), at(1 << 63, 0), at(0, 0), 3));
        assert!(refused((1, 3, 1), at(0, 1 << 63), at(0, 0), 1));
        assert!(refused((2, 2, 1), at(1 << 63, 1 << 63), at(0, 0), 2));
        let whole =
            |shape| std::panic::catch_unwind(|| product(shape, &[], Use::Plain, &[], Use::Plain, &mut []));
        assert!(whole((1 << 32, 1 << 32, 1 << 32)).is_err());
        assert!(whole((0, 0, 0)).is_ok());
    }
}
