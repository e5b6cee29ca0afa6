//! The down projection: what active neurons add to the output, row by row.
//!
//! ```text
//! decode    add some rows at a time to a sum, each by its factor;  at the end the sum is settled into values
//! prefill   transposed: 32 neurons' rows at a time meet the values of all vectors, where few of these are zero
//! ```
//!
//! A kernel set has one strategy ([`Kernels::down`](super::Kernels::down)). Which of its ways is taken follows from the format of the rows and
//! from whether the plan lets vectors be rounded, hence from quality keys alone.

use super::{ADDED, Form, Format, Packed, Row, SHARING, packed, padded, plain, sum_words};

/// How a kernel set adds up rows of down.
///
/// Callers use the methods of `dyn Down`; those of the trait are what a kernel set provides.
pub trait Down: Sync {
    /// Adds four rows to a sum that [`Down::settle`] makes into values: each to the bit as if alone, one after another,
    /// and by a factor of zero not at all. Between the two a sum is this set's own; sums may be added up, for they are
    /// linear.
    ///
    /// *Shapes*: `w: [4]` of `[n]`, one format, `sum: [sum_words(n)]`, zeros at the beginning.
    ///
    /// # Panics
    /// If lengths or formats disagree.
    fn add_four(&self, a: [f32; 4], w: [Row<'_>; 4], sum: &mut [f32]);

    /// Adds some rows of [`Format::Q4_0X4`], at most [`ADDED`], to a vector, each by its factor, rounded: of every
    /// block the factors times the rows' scales are rounded to 8 bits under one scale, so that its sum is one of
    /// whole numbers.
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

    /// The values of a sum of rows of `format`, in place, or of some of it that shares no word with the rest.
    ///
    /// *Shapes*: `sum: [n]`, the sum's first words, of which `shared: [n / SHARING]` are the last, rounded up.
    ///
    /// # Panics
    /// If the lengths disagree.
    fn settle(&self, _format: Format, shared: &[f32], sum: &mut [f32]) {
        assert_eq!(shared.len(), sum.len().div_ceil(SHARING), "settle: a word for those that share it");
    }

    /// Whether [`Down::add_transposed`] takes rows of `format` and is faster than [`Kernels::add_products`](super::Kernels::add_products) where
    /// few factors are zero.
    fn transposes(&self, _format: Format) -> bool {
        false
    }

    /// Transposed rows of [`Format::Q4_0X4`] times many vectors of [`Form::Q8`]: `out[c][t] += sum over k of
    /// w[k][start + c] * x[t][k]`, where 32 rows' weights of a column are rounded to six bits under one scale.
    ///
    /// ```text
    /// for each block of 32 rows, for each column:     s = max |w| / 31;   q[k] = round(w[k] / s)
    ///     for each vector:                            out += s * scale of x * sum over k of q[k] * x[k]
    /// ```
    ///
    /// Each sum is taken in one order, whatever columns and vectors stand beside it, and goes on from one call to the next.
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

/// Whether rows of `format` are added with rounded factors where vectors meet weights in `form`.
pub fn rounds_factors(form: Form, format: Format) -> bool {
    form == Form::Q8 && format == Format::Q4_0X4
}

impl dyn Down + '_ {
    /// Adds rows of one format, at most [`ADDED`], to a sum, each by its factor: rounded where [`rounds_factors`] says so,
    /// else one after another.
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
            // with fewer than four rows the last fills the missing places, with a factor of zero
            let row = |k: usize| w.get(k).copied().unwrap_or(last);
            self.add_four(padded(a), [row(0), row(1), row(2), row(3)], sum);
        }
    }

    /// The values of a sum that `add_rows` added up, in place, or of a part of it that shares no word with
    /// the rest.
    ///
    /// # Panics
    /// If the lengths disagree.
    pub fn values(&self, form: Form, format: Format, shared: &[f32], sum: &mut [f32]) {
        if !rounds_factors(form, format) {
            self.settle(format, shared, sum);
        }
    }
}

/// A sum's values and the words that they share; stops the programmer who adds four rows that are not of one format, or of
/// another length.
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

/// Columns that are transposed together where rows are: what one thread takes of [`Down::add_transposed`].
pub const TRANSPOSED_COLUMNS: usize = 96;

/// Six bits, of which one is the sign: the largest whole number of [`Down::add_transposed`].
pub(super) const TRANSPOSED_MOST: f32 = 31.0;

/// Stops the programmer whose rows, vectors and sums do not meet.
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

/// Stops the programmer who adds rows to a vector of another length, or more than there is room for.
#[inline]
pub(super) fn assert_added(a: &[f32], w: &[Row<'_>], y: &[f32]) {
    assert!(a.len() == w.len() && w.len() <= ADDED, "add_rounded: {} factors of {} rows", a.len(), w.len());
    for row in w {
        row.assert_values(y.len());
        assert_eq!(row.format, Format::Q4_0X4, "add_rounded: rows of nibbles");
    }
}
