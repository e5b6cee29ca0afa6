//! The one matrix product of predictor training, behind a safe door.

/// Whether a factor is used as it lies in memory or transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// As stored.
    Plain,
    /// Rows for columns.
    Transposed,
}

/// `c = a b`, or `c = a b` with either factor transposed first.
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
    assert_eq!((a.len(), b.len(), c.len()), (m * k, k * n, m * n), "product: a length is not its shape's");
    let strides = |rows: usize, columns: usize, how: Use| match how {
        Use::Plain => (columns as isize, 1),
        Use::Transposed => (1, rows as isize),
    };
    let ((rsa, csa), (rsb, csb)) = (strides(m, k, a_use), strides(k, n, b_use));
    #[allow(unsafe_code, reason = "the product takes pointers and strides")]
    // SAFETY: the lengths are checked above, and the strides address exactly the elements of those shapes.
    unsafe {
        matrixmultiply::sgemm(
            m,
            k,
            n,
            1.0,
            a.as_ptr(),
            rsa,
            csa,
            b.as_ptr(),
            rsb,
            csb,
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
        let (m, k, n) = (3, 4, 5);
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
