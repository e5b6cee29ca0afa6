//! Products with packed vectors in plain Rust: the definition, vectorised by the compiler for any instruction
//! set.
//!
//! ```text
//! for 4 rows, for 256 columns: unpack them once
//!     for each group of 16 vectors, for each column: sums[row][lane] += w[row] * x[lane]
//! ```

use super::k_block::{Q4K, Q6K};
use super::packed::{BLOCK, BLOCK_WORDS, Form, LANES, Packed, round_block, round_block_to};
use super::parts::{self, Plain};
use super::{ADDED, Rounded, Row, TRANSPOSED_MOST, assert_added, assert_transposed, dequantise, interleaved};
use crate::format::Format;

/// Rows with sums in flight.
const ROWS: usize = 4;
/// Columns unpacked at a time: whole blocks of every format.
const COLUMNS: usize = 256;
/// The smallest number of values under one scale.
const SIXTEEN: usize = 16;

/// Panics if rows and vectors differ in length, or if their blocks do not match.
pub(super) fn assert_shapes(w: &[Row<'_>], x: Packed<'_>, out: &[f32]) {
    assert_eq!(out.len(), w.len() * x.count, "products: one output a row and vector");
    for row in w {
        row.assert_values(x.columns);
        assert_eq!(row.format, w[0].format, "products: rows of one format");
    }
    if let (Form::Q8, Some(row)) = (x.form, w.first()) {
        assert!(row.format.has_blocks(), "products: {} meets vectors of 8 bits", row.format);
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
    let group_values = group_values(format);
    for (w, out) in w.chunks(ROWS).zip(out.chunks_mut(ROWS * x.count)) {
        for start in (0..x.columns).step_by(COLUMNS) {
            let width = COLUMNS.min(x.columns - start);
            let mut panel = Panel {
                values: [[0.0; COLUMNS]; ROWS],
                steps: [[0; COLUMNS]; ROWS],
                scales: [[0.0; _]; ROWS],
                minima: [[0.0; _]; ROWS],
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
                                let groups: &[[i8; 4]] = bytemuck::cast_slice(&x[2 * g..]);
                                for lane in 0..g {
                                    for (i, steps) in steps.chunks(group_values).enumerate() {
                                        let (mut sum, mut all) = (0, 0);
                                        for (j, step) in (i * group_values..).zip(steps) {
                                            let four = groups[j / 4 * g + lane];
                                            sum += i32::from(*step) * i32::from(four[j % 4]);
                                            all += i32::from(four[j % 4]);
                                        }
                                        let (stored, minimum) = (
                                            panel.scales[at][block * 2 + i],
                                            panel.minima[at][block * 2 + i],
                                        );
                                        sums[lane] = multiply_add(sum as f32, stored * x[lane], sums[lane]);
                                        sums[lane] = multiply_add(-minimum, x[lane] * all as f32, sums[lane]);
                                    }
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
    let (mut sum, mut steps, group_values) = (0.0, [0; BLOCK], group_values(w.format));
    for (at, (values, scale)) in x.values.as_chunks::<BLOCK>().0.iter().zip(x.scales).enumerate() {
        let Scales { scales, minima } = unpack_block(w.format, w.bytes, at, &mut steps);
        let groups = steps.chunks(group_values).zip(values.chunks(group_values));
        for ((w, x), (stored, minimum)) in groups.zip(scales.into_iter().zip(minima)) {
            let whole: i32 = w.iter().zip(x).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum();
            let all: i32 = x.iter().map(|x| i32::from(*x)).sum();
            sum = multiply_add(whole as f32, stored * scale, sum);
            sum = multiply_add(-minimum, all as f32 * scale, sum);
        }
    }
    sum
}

/// The definition of [`super::Kernels::add_rounded`].
pub(super) fn add_rounded(a: &[f32], w: &[Row<'_>], y: &mut [f32]) {
    assert_added(a, w, y);
    for (at, y) in y.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let (mut factors, mut rounded) = ([0.0; ADDED], [0; ADDED]);
        let mut steps = [[0; BLOCK]; ADDED];
        for (k, row) in w.iter().enumerate() {
            let Scales { scales: [scale, _], .. } = unpack_block(row.format, row.bytes, at, &mut steps[k]);
            factors[k] = a[k] * scale;
        }
        let scale = round_block(&factors, &mut rounded);
        for (i, y) in y.iter_mut().enumerate() {
            let whole: i32 =
                rounded.iter().zip(&steps).map(|(q, steps)| i32::from(*q) * i32::from(steps[i])).sum();
            *y += whole as f32 * scale;
        }
    }
}

/// The definition of [`super::Kernels::add_transposed`].
pub(super) fn add_transposed(w: &[Row<'_>], start: usize, x: Packed<'_>, out: &mut [f32]) {
    assert_transposed(w, start, x, out);
    for (column, out) in (start..).zip(out.chunks_exact_mut(x.count)) {
        for (block, rows) in w.chunks(BLOCK).enumerate() {
            let (mut weights, mut steps) = ([0.0; BLOCK], [0; BLOCK]);
            for (weight, row) in weights.iter_mut().zip(rows) {
                let Scales { scales, .. } = unpack_block(row.format, row.bytes, column / BLOCK, &mut steps);
                *weight = scales[0] * f32::from(steps[column % BLOCK]);
            }
            let scale = round_block_to(TRANSPOSED_MOST, &weights, &mut steps);
            for (group, (g, words)) in x.groups().enumerate() {
                let words = &words[block * BLOCK_WORDS * g..][..BLOCK_WORDS * g];
                let groups: &[[i8; 4]] = bytemuck::cast_slice(&words[2 * g..]);
                for lane in 0..g {
                    let x = |k: usize| i32::from(groups[k / 4 * g + lane][k % 4]);
                    let whole: i32 = (0..BLOCK).map(|k| i32::from(steps[k]) * x(k)).sum();
                    out[group * LANES + lane] += whole as f32 * (scale * words[lane]);
                }
            }
        }
    }
}

/// Number of values under one scale.
fn group_values(format: Format) -> usize {
    match format {
        Format::Q6K => SIXTEEN,
        Format::Q8_0 | Format::Q4_0 | Format::Q4_0X4 | Format::Q4K => BLOCK,
        _ if format.has_blocks() && parts::traits(format).halves => SIXTEEN,
        _ => BLOCK,
    }
}

/// How 32 integers become values: `scale * step - minimum`, with a scale and a minimum for each half.
struct Scales {
    scales: [f32; 2],
    minima: [f32; 2],
}

/// Unpacks the integers of a row of blocks from `32 at` on.
fn unpack_block(format: Format, row: &[u8], at: usize, steps: &mut [i8; BLOCK]) -> Scales {
    let per_block = format.block_values() / BLOCK;
    let bytes = &row[at / per_block * format.block_bytes()..][..format.block_bytes()];
    let (k, d) = (at % per_block, || half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32());
    let alike = |scale: f32| Scales { scales: [scale; 2], minima: [0.0; 2] };
    match format {
        Format::Q4K => {
            let block: &Q4K = bytemuck::from_bytes(bytes);
            let [scales, minima] = block.scales();
            *steps = block.steps(k).map(u8::cast_signed);
            Scales { minima: [minima[k]; 2], ..alike(scales[k]) }
        }
        Format::Q6K => {
            let block: &Q6K = bytemuck::from_bytes(bytes);
            let scales = block.scales();
            *steps = block.steps(k).map(|q| q.cast_signed() - 32);
            Scales { scales: [scales[2 * k], scales[2 * k + 1]], minima: [0.0; 2] }
        }
        Format::Q4_0 | Format::Q4_0X4 => {
            let block = if format == Format::Q4_0 {
                bytes.try_into().unwrap_or([0; 18])
            } else {
                interleaved::block(bytes, k)
            };
            let [d0, d1, q @ ..] = block;
            for (j, q) in q.iter().enumerate() {
                (steps[j], steps[j + 16]) = ((q & 0xf).cast_signed() - 8, (q >> 4).cast_signed() - 8);
            }
            alike(half::f16::from_le_bytes([d0, d1]).to_f32())
        }
        Format::Q8_0 => {
            steps.copy_from_slice(bytemuck::cast_slice(&bytes[2..]));
            alike(d())
        }
        _ => {
            let part = parts::stored(Plain, format, bytes, k);
            *steps = part.steps;
            Scales { scales: part.scales, minima: part.minima }
        }
    }
}

/// A piece of some rows, unpacked.
struct Panel {
    values: [[f32; COLUMNS]; ROWS],
    steps: [[i8; COLUMNS]; ROWS],
    scales: [[f32; COLUMNS / SIXTEEN]; ROWS],
    minima: [[f32; COLUMNS / SIXTEEN]; ROWS],
}

impl Panel {
    /// Unpacks a row's blocks into integers and scales.
    fn unpack(&mut self, at: usize, format: Format, bytes: &[u8]) {
        let blocks = bytes.len() / format.block_bytes() * format.block_values() / BLOCK;
        for (block, steps) in self.steps[at].as_chunks_mut().0.iter_mut().enumerate().take(blocks) {
            let Scales { scales, minima } = unpack_block(format, bytes, block, steps);
            self.scales[at][2 * block..][..2].copy_from_slice(&scales);
            self.minima[at][2 * block..][..2].copy_from_slice(&minima);
        }
    }
}
