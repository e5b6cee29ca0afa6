//! Products with packed vectors in plain Rust: the definition, and, compiled for an instruction set, its vectors.
//!
//! ```text
//! for 4 rows, for 256 columns: unpack them once
//!     for each group of 16 vectors, for each column: sums[row][lane] += w[row] * x[lane]
//! ```

use super::packed::{BLOCK, BLOCK_WORDS, Form, LANES, Packed};
use super::{Rounded, Row, dequantise};
use crate::format::Format;

/// Rows whose sums are in flight together.
const ROWS: usize = 4;
/// Columns unpacked at a time.
const COLUMNS: usize = 256;

/// Stops the programmer who pairs rows with vectors of another length, or blocks that do not meet.
pub(super) fn assert_shapes(w: &[Row<'_>], x: Packed<'_>, out: &[f32]) {
    assert_eq!(out.len(), w.len() * x.count, "products: one output a row and vector");
    for row in w {
        row.assert_values(x.columns);
        assert_eq!(row.format, w[0].format, "products: rows of one format");
    }
    if let (Form::Q8, Some(row)) = (x.form, w.first()) {
        assert_eq!(row.format.block_values(), BLOCK, "products: {} meets vectors of 8 bits", row.format);
    }
}

/// [`super::Kernels::products`], where `multiply_add(a, b, c)` is `a * b + c`.
#[inline(always)]
pub(super) fn products(
    w: &[Row<'_>],
    x: Packed<'_>,
    out: &mut [f32],
    multiply_add: impl Fn(f32, f32, f32) -> f32 + Copy,
) {
    assert_shapes(w, x, out);
    out.fill(0.0);
    let Some(format) = w.first().map(|row| row.format) else { return };
    for (w, out) in w.chunks(ROWS).zip(out.chunks_mut(ROWS * x.count)) {
        for start in (0..x.columns).step_by(COLUMNS) {
            let width = COLUMNS.min(x.columns - start);
            let mut panel = Panel {
                values: [[0.0; COLUMNS]; ROWS],
                steps: [[0; COLUMNS]; ROWS],
                scales: [[0.0; _]; ROWS],
            };
            for (at, row) in w.iter().enumerate() {
                let bytes = &row.bytes[format.row_bytes(start)..][..format.row_bytes(width)];
                match x.form {
                    Form::F32 => dequantise(format, bytes, &mut panel.values[at][..width]),
                    Form::Q8 => panel.unpack(at, format, bytes),
                }
            }
            for (group, (g, words)) in x.groups().enumerate() {
                for (at, out) in out.chunks_exact_mut(x.count).enumerate() {
                    let out = &mut out[group * LANES..][..g];
                    let mut sums = [0.0; LANES];
                    sums[..g].copy_from_slice(out);
                    match x.form {
                        Form::F32 => {
                            let columns = words[start * g..].chunks_exact(g);
                            for (w, x) in panel.values[at][..width].iter().zip(columns) {
                                for lane in 0..g {
                                    sums[lane] = multiply_add(*w, x[lane], sums[lane]);
                                }
                            }
                        }
                        Form::Q8 => {
                            let blocks =
                                words[start / BLOCK * BLOCK_WORDS * g..].chunks_exact(BLOCK_WORDS * g);
                            for (block, x) in blocks.take(width / BLOCK).enumerate() {
                                let steps = &panel.steps[at][block * BLOCK..][..BLOCK];
                                let fours: &[[i8; 4]] = bytemuck::cast_slice(&x[2 * g..]);
                                for lane in 0..g {
                                    let mut sum = 0;
                                    for (j, step) in steps.iter().enumerate() {
                                        sum += i32::from(*step) * i32::from(fours[j / 4 * g + lane][j % 4]);
                                    }
                                    let scale = panel.scales[at][block] * x[lane];
                                    sums[lane] = multiply_add(sum as f32, scale, sums[lane]);
                                }
                            }
                        }
                    }
                    out.copy_from_slice(&sums[..g]);
                }
            }
        }
    }
}

/// [`super::Kernels::dot_rounded`], where `multiply_add(a, b, c)` is `a * b + c`.
#[inline(always)]
pub(super) fn dot_rounded(
    w: Row<'_>,
    x: Rounded<'_>,
    multiply_add: impl Fn(f32, f32, f32) -> f32 + Copy,
) -> f32 {
    x.assert_meets(w);
    let (mut sum, mut steps) = (0.0, [0; BLOCK]);
    let blocks = w.bytes.chunks_exact(w.format.block_bytes()).zip(x.values.as_chunks::<BLOCK>().0);
    for ((bytes, values), scale) in blocks.zip(x.scales) {
        let stored = unpack_block(w.format, bytes, &mut steps);
        let whole: i32 = steps.iter().zip(values).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum();
        sum = multiply_add(whole as f32, stored * scale, sum);
    }
    sum
}

/// The whole numbers of a block; gives their scale.
fn unpack_block(format: Format, bytes: &[u8], steps: &mut [i8; BLOCK]) -> f32 {
    for (j, q) in bytes[2..].iter().enumerate() {
        if format == Format::Q4_0 {
            steps[j] = (q & 0xf).cast_signed() - 8;
            steps[j + 16] = (q >> 4).cast_signed() - 8;
        } else {
            steps[j] = q.cast_signed();
        }
    }
    half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// A piece of some rows, unpacked.
struct Panel {
    values: [[f32; COLUMNS]; ROWS],
    steps: [[i8; COLUMNS]; ROWS],
    scales: [[f32; COLUMNS / BLOCK]; ROWS],
}

impl Panel {
    /// Whole numbers and scales of a row's blocks.
    fn unpack(&mut self, at: usize, format: Format, bytes: &[u8]) {
        for (block, bytes) in bytes.chunks_exact(format.block_bytes()).enumerate() {
            let steps = self.steps[at].as_chunks_mut().0;
            self.scales[at][block] = unpack_block(format, bytes, &mut steps[block]);
        }
    }
}
