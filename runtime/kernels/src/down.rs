//! The down projection: sums the rows of the active neurons into the output.
//!
//! ```text
//! decode    add several rows at a time to a sum, each times its factor;  finally settle the sum into values
//! prefill   transposed: the rows of 32 neurons at a time meet all vectors, where few values are zero
//! ```
//!
//! Each kernel set has one strategy ([`Kernels::down`](super::Kernels::down)). The path depends on the format
//! of the rows and on whether the plan rounds vectors. Both follow from quality keys alone.

use super::{ADDED, Form, Format, Packed, Row, SHARING, packed, padded, plain, sum_words};

/// A kernel set's strategy for summing rows of down.
///
/// Callers use the methods of `dyn Down`; kernel sets implement the methods of the trait.
pub trait Down: Sync {
    /// Adds four rows, in order, to a sum that [`Down::settle`] turns into values. Each row gives the same
    /// bits as alone, and a row with a factor of zero is skipped. Until settled, the layout of a sum is
    /// private to the kernel set; sums are linear, so two sums may be added.
    ///
    /// *Shapes*: `w: [4]` of `[n]`, one format, `sum: [sum_words(n)]`, zeros at the beginning.
    ///
    /// # Panics
    /// If lengths or formats disagree.
    fn add_four(&self, a: [f32; 4], w: [Row<'_>; 4], sum: &mut [f32]);

    /// Adds at most [`ADDED`] rows of [`Format::Q4_0X4`] to a vector, with rounded factors. For every block,
    /// the factors times the rows' scales are rounded to 8 bits under one scale, so the sum is an integer
    /// sum.
    ///
    /// ```text
    /// for each block of 32 columns:   g[k] = a[k] * d[k];   s = max |g| / 127;   q[k] = round(g[k] / s)
    ///     for each column i:          y[i] += s * sum over k of q[k] * steps[k][i]
    /// ```
    ///
    /// *Shapes*: `a: [k]`, `w: [k]` of `[n]`, `y: [n]`.
    ///
    /// # Panics
    /// If lengths or formats disagree, or there are too many rows.
    fn add_rounded(&self, a: &[f32], w: &[Row<'_>], y: &mut [f32]) {
        plain::add_rounded(a, w, y);
    }

    /// Turns a sum of rows of `format` into values, in place. A part of a sum may be settled alone if it
    /// shares no word with the rest.
    ///
    /// *Shapes*: `sum: [n]` holds the first words of the sum, and `shared: [n / SHARING]`, rounded up, the
    /// last.
    ///
    /// # Panics
    /// If the lengths disagree.
    fn settle(&self, _format: Format, shared: &[f32], sum: &mut [f32]) {
        assert_eq!(shared.len(), sum.len().div_ceil(SHARING), "settle: a word for those that share it");
    }

    /// Whether [`Down::add_transposed`] supports rows of `format` and beats
    /// [`Kernels::add_products`](super::Kernels::add_products) when few factors are zero.
    fn transposes(&self, _format: Format) -> bool {
        false
    }

    /// Transposed rows of [`Format::Q4_0X4`] times many vectors of [`Form::Q8`]: `out[c][t] += sum over k of
    /// w[k][start + c] * x[t][k]`. The weights of a column in 32 rows are rounded to six bits under one
    /// scale.
    ///
    /// ```text
    /// for each block of 32 rows, for each column:     s = max |w| / 31;   q[k] = round(w[k] / s)
    ///     for each vector:                            out += s * scale of x * sum over k of q[k] * x[k]
    /// ```
    ///
    /// The order of each sum is fixed, whatever other columns and vectors a call has; the next call continues the sum.
    ///
    /// *Shapes*: `w: [k]` of `[n]`, `x: [count, k]`, `k` rounded up to whole blocks; `out: [columns, count]`; `start` and
    /// `columns` whole blocks.
    ///
    /// # Panics
    /// If lengths or formats disagree.
    fn add_transposed(&self, w: &[Row<'_>], start: usize, x: Packed<'_>, out: &mut [f32]) {
        plain::add_transposed(w, start, x, out);
    }
}

/// Whether factors are rounded for rows of `format` and vectors in `form`.
pub fn rounds_factors(form: Form, format: Format) -> bool {
    form == Form::Q8 && format == Format::Q4_0X4
}

impl dyn Down + '_ {
    /// Adds at most [`ADDED`] rows of one format to a sum, each times its factor: with rounded factors if
    /// [`rounds_factors`] says so, otherwise one row after another.
    ///
    /// *Shapes*: `a: [k]`, `w: [k]` of `[n]`, `sum: [sum_words(n)]`, zeros at the beginning.
    ///
    /// # Panics
    /// If lengths or formats disagree, or there are too many rows.
    #[inline]
    pub fn add_rows(&self, form: Form, a: &[f32], w: &[Row<'_>], sum: &mut [f32]) {
        let Some(&last) = w.last() else { return };
        if rounds_factors(form, last.format) {
            return self.add_rounded(a, w, &mut sum[..last.values()]);
        }
        for (a, w) in a.chunks(4).zip(w.chunks(4)) {
            // with fewer than four rows, the last row fills the missing places with a factor of zero
            let row = |k: usize| w.get(k).copied().unwrap_or(last);
            self.add_four(padded(a), [row(0), row(1), row(2), row(3)], sum);
        }
    }

    /// Turns the sum of `add_rows` into values, in place. A part of a sum may be converted alone if it shares
    /// no word with the rest.
    ///
    /// # Panics
    /// If the lengths disagree.
    pub fn values(&self, form: Form, format: Format, shared: &[f32], sum: &mut [f32]) {
        if !rounds_factors(form, format) {
            self.settle(format, shared, sum);
        }
    }
}

/// Splits a sum into its values and their shared words. Panics unless the four rows have one format and the
/// length of the sum.
#[inline]
pub(super) fn sum_of_four<'s>(w: [Row<'_>; 4], sum: &'s mut [f32]) -> (&'s mut [f32], &'s mut [f32]) {
    let columns = w[0].values();
    assert_eq!(sum.len(), sum_words(columns), "add_four: a sum of rows of {columns} values");
    for row in w {
        row.assert_values(columns);
        assert_eq!(row.format, w[0].format, "add_four: rows of one format");
    }
    sum.split_at_mut(columns)
}

/// Columns that are transposed together: the unit of work of one thread in [`Down::add_transposed`].
pub const TRANSPOSED_COLUMNS: usize = 96;

/// The largest integer of [`Down::add_transposed`]: six bits, one of them the sign.
pub(super) const TRANSPOSED_MOST: f32 = 31.0;

/// Panics if rows, vectors and sums do not match.
pub(super) fn assert_transposed(w: &[Row<'_>], start: usize, x: Packed<'_>, out: &[f32]) {
    let columns = out.len() / x.count.max(1);
    assert_eq!(x.form, Form::Q8, "add_transposed: vectors of bytes");
    assert_eq!(x.columns, w.len().next_multiple_of(packed::BLOCK), "add_transposed: a value for each row");
    assert_eq!(out.len(), columns * x.count, "add_transposed: a sum for each column and vector");
    assert!(
        start.is_multiple_of(packed::BLOCK) && columns.is_multiple_of(packed::BLOCK),
        "add_transposed: {columns} columns from {start} are not whole blocks"
    );
    for row in w {
        assert_eq!(row.format, Format::Q4_0X4, "add_transposed: rows of nibbles");
        assert!(start + columns <= row.values(), "add_transposed: columns of the rows");
    }
}

/// Panics if rows and vector differ in length, or if there are too many rows.
#[inline]
pub(super) fn assert_added(a: &[f32], w: &[Row<'_>], y: &[f32]) {
    assert!(a.len() == w.len() && w.len() <= ADDED, "add_rounded: {} factors of {} rows", a.len(), w.len());
    for row in w {
        row.assert_values(y.len());
        assert_eq!(row.format, Format::Q4_0X4, "add_rounded: rows of nibbles");
    }
}
