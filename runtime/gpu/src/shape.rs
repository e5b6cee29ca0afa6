//! Sizes, checked before anything is allocated; and the parts of a matrix.

use kernels::{Format, Matrix};

use crate::error::GpuError;

/// Bytes behind a part's weights, which are zero: a kernel reads whole words, and whole groups of eight values.
pub(crate) const PADDING_BYTES: u64 = 32;

/// The checked shape of a matrix. Rows and columns are not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) format: Format,
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    pub(crate) row_bytes: u32,
    /// Rows of a part; the last part may have fewer.
    pub(crate) part_rows: u32,
}

impl Shape {
    /// Checks the sizes of a matrix, and cuts it into parts of at most `binding_bytes`.
    ///
    /// # Errors
    /// If the shape has another number of bytes, there are none, or a row exceeds a part.
    pub(crate) fn new(matrix: &Matrix<'_>, binding_bytes: u64) -> Result<Self, GpuError> {
        let Matrix { format, rows, columns, bytes } = *matrix;
        let shape = GpuError::Shape { format, rows, columns, bytes: bytes.len() };
        let whole = columns.is_multiple_of(format.block_values());
        let row_bytes = (columns / format.block_values()).checked_mul(format.block_bytes());
        let all = row_bytes.and_then(|row_bytes| row_bytes.checked_mul(rows));
        let (Some(row_bytes), true) = (row_bytes, whole && all == Some(bytes.len()) && !bytes.is_empty())
        else {
            return Err(shape);
        };
        // offsets in a part are numbers of 32 bits
        let binding_bytes = binding_bytes.min(u64::from(u32::MAX)) / 4 * 4;
        let part_rows = binding_bytes.saturating_sub(PADDING_BYTES) / row_bytes as u64;
        if part_rows == 0 {
            return Err(GpuError::RowTooLong { row_bytes: row_bytes as u64 + PADDING_BYTES, binding_bytes });
        }
        let number = |of: usize| u32::try_from(of).map_err(|_| shape.clone());
        let rows = number(rows)?;
        Ok(Self {
            format,
            rows,
            columns: number(columns)?,
            row_bytes: number(row_bytes)?,
            part_rows: u32::try_from(part_rows).map_or(rows, |part_rows| part_rows.min(rows)),
        })
    }

    /// Groups of eight values of a row.
    pub(crate) fn eights(self) -> u32 {
        self.columns.div_ceil(8)
    }

    /// The first row of each part.
    pub(crate) fn part_starts(self) -> impl Iterator<Item = u32> {
        (0..self.rows).step_by(self.part_rows as usize)
    }

    /// Rows of the part that begins at this row.
    pub(crate) fn rows_from(self, start: u32) -> u32 {
        self.part_rows.min(self.rows - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(
        format: Format,
        rows: usize,
        columns: usize,
        bytes: usize,
        binding: u64,
    ) -> Result<Shape, GpuError> {
        Shape::new(&Matrix { format, rows, columns, bytes: &vec![0; bytes] }, binding)
    }

    #[test]
    fn a_matrix_is_cut_between_rows() {
        let cut = shape(Format::Q4_0, 10, 64, 360, 150).expect("a shape");
        assert_eq!((cut.row_bytes, cut.part_rows, cut.eights()), (36, 3, 8), "three rows and the padding");
        let parts: Vec<_> = cut.part_starts().map(|start| (start, cut.rows_from(start))).collect();
        assert_eq!(parts, [(0, 3), (3, 3), (6, 3), (9, 1)], "all rows, once");
        let whole = shape(Format::F16, 3, 5, 30, u64::MAX).expect("a shape");
        assert_eq!((whole.part_rows, whole.eights()), (3, 1), "five values are a group of eight");
    }

    #[test]
    fn sizes_that_contradict_each_other_are_refused() {
        for (rows, columns, bytes) in [
            (2, 64, 71),
            (2, 64, 73),
            (2, 65, 72),
            (0, 64, 0),
            (2, 0, 0),
            (usize::MAX, 64, 36),
            (1, usize::MAX - 31, 18),
        ] {
            let refused = shape(Format::Q4_0, rows, columns, bytes, 1 << 20).expect_err("no shape");
            assert_eq!(
                refused,
                GpuError::Shape { format: Format::Q4_0, rows, columns, bytes },
                "by its sizes"
            );
        }
    }

    #[test]
    fn a_row_that_no_binding_holds_is_refused() {
        let refused = shape(Format::F32, 2, 64, 512, 287).expect_err("too long");
        assert_eq!(refused, GpuError::RowTooLong { row_bytes: 288, binding_bytes: 284 }, "in whole words");
        assert!(shape(Format::F32, 2, 64, 512, 288).is_ok(), "a row and its padding");
        assert!(shape(Format::F32, 2, 64, 512, 0).is_err(), "no binding at all");
    }
}
