//! Definitions of the storage formats: reading and writing a row of values, one value at a time.
//!
//! Everything faster is tested against this file, and this file against values from ggml's Python package.
//! All numbers are little-endian.
//!
//! ```text
//!        0      2                                 18              34  bytes
//! Q8_0   | d:f16 | q[0] q[1] ... q[31]: i8                         |  w[j] = d * q[j]
//! Q4_0   | d:f16 | q[0]|q[16]<<4 ... q[15]|q[31]<<4 |                 w[j] = d * (q[j] - 8)
//! ```
//!
//! `k_block` defines `Q4_K` and `Q6_K`, `interleaved` our own order of `Q4_0`, and `parts` every other block
//! format.
//!
//! *Source*: ggml, `ggml-quants.c`, `quantize_row_q8_0_ref`, `quantize_row_q4_0_ref` and their inverses.
//! *Differs*: rounding to a step of `Q4_0` fuses the multiplication and the addition, as ggml's Python
//! package does. ggml's C code fuses them only where its compiler does.

use half::{bf16, f16};

use super::interleaved;
use super::k_block::{self, Q4K, Q6K};
use super::parts;
use crate::format::Format;

/// Unpacks the bytes of a row to values.
///
/// *Shapes*: `bytes: [format.row_bytes(n)]`, `out: [n]`.
///
/// # Panics
/// If the lengths disagree.
pub fn dequantise(format: Format, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), format.row_bytes(out.len()), "dequantise: bytes of a {format} row");
    match format {
        Format::F32 => read(bytes, out, f32::from_le_bytes),
        Format::F16 => read(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        Format::BF16 => read(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        Format::Q8_0 => read_blocks(bytes, out, read_q8_0),
        Format::Q4_0 => read_blocks(bytes, out, read_q4_0),
        Format::Q4_0X4 => read_blocks(bytes, out, interleaved::read),
        Format::Q6K => k_block::read(bytes, out, Q6K::read),
        Format::Q4K => k_block::read(bytes, out, Q4K::read),
        _ => parts::read(format, bytes, out),
    }
}

/// Packs values into the bytes of a row, each rounded to the nearest value of the format.
///
/// F16 and BF16 round halves to even. Values must be finite; a value too large for F16 becomes infinite.
///
/// *Shapes*: `values: [n]`, `out: [format.row_bytes(n)]`.
///
/// # Panics
/// If the lengths disagree, or the format is not [written](Format::is_written).
pub fn quantise(format: Format, values: &[f32], out: &mut [u8]) {
    assert_eq!(out.len(), format.row_bytes(values.len()), "quantise: bytes of a {format} row");
    match format {
        Format::F32 => write(values, out, f32::to_le_bytes),
        Format::F16 => write(values, out, |v| f16::from_f32(v).to_le_bytes()),
        Format::BF16 => write(values, out, |v| bf16::from_f32(v).to_le_bytes()),
        Format::Q8_0 => write_blocks(values, out, write_q8_0),
        Format::Q4_0 => write_blocks(values, out, write_q4_0),
        Format::Q4_0X4 => write_blocks(values, out, interleaved::write),
        Format::Q6K => k_block::write(values, out, Q6K::write),
        Format::Q4K => k_block::write(values, out, Q4K::write),
        Format::Q5_1 => write_blocks(values, out, parts::write_q5_1),
        Format::Q5_0 => write_blocks(values, out, parts::write_q5_0),
        Format::Q5K => write_blocks(values, out, parts::write_q5_k),
        Format::Q4_1 => write_blocks(values, out, parts::write_q4_1),
        Format::Mxfp4 => write_blocks(values, out, parts::write_mxfp4),
        _ => panic!("quantise: {format} is read only"),
    }
}

fn read_q8_0([d0, d1, q @ ..]: &[u8; 34], values: &mut [f32; 32]) {
    let d = f16::from_le_bytes([*d0, *d1]).to_f32();
    for j in 0..32 {
        values[j] = d * f32::from(q[j].cast_signed());
    }
}

fn write_q8_0(values: &[f32; 32], [d0, d1, q @ ..]: &mut [u8; 34]) {
    let largest = values.iter().fold(0.0_f32, |largest, v| largest.max(v.abs()));
    let d = largest / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    [*d0, *d1] = f16::from_f32(d).to_le_bytes();
    for j in 0..32 {
        q[j] = ((values[j] * inverse).round() as i8).cast_unsigned();
    }
}

pub(super) fn read_q4_0([d0, d1, q @ ..]: &[u8; 18], values: &mut [f32; 32]) {
    let d = f16::from_le_bytes([*d0, *d1]).to_f32();
    for j in 0..16 {
        values[j] = d * (f32::from(q[j] & 0xf) - 8.0);
        values[j + 16] = d * (f32::from(q[j] >> 4) - 8.0);
    }
}

/// The value of largest magnitude (the first of equals) becomes exactly -8: there are eight negative steps,
/// but seven positive ones.
pub(super) fn write_q4_0(values: &[f32; 32], [d0, d1, q @ ..]: &mut [u8; 18]) {
    let extreme =
        values.iter().fold(values[0], |extreme, &v| if v.abs() > extreme.abs() { v } else { extreme });
    let d = extreme / -8.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    [*d0, *d1] = f16::from_f32(d).to_le_bytes();
    let step = |v: f32| (v.mul_add(inverse, 8.5) as u8).min(15);
    for j in 0..16 {
        q[j] = step(values[j]) | step(values[j + 16]) << 4;
    }
}

/// Values of `N` bytes each.
fn read<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = value(*bytes);
    }
}

fn write<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *out = bytes(*value);
    }
}

/// Blocks of `V` values in `N` bytes.
fn read_blocks<const N: usize, const V: usize>(
    bytes: &[u8],
    out: &mut [f32],
    read_block: impl Fn(&[u8; N], &mut [f32; V]),
) {
    for (values, block) in out.as_chunks_mut().0.iter_mut().zip(bytes.as_chunks().0) {
        read_block(block, values);
    }
}

fn write_blocks<const N: usize, const V: usize>(
    values: &[f32],
    out: &mut [u8],
    write_block: impl Fn(&[f32; V], &mut [u8; N]),
) {
    for (block, values) in out.as_chunks_mut().0.iter_mut().zip(values.as_chunks().0) {
        write_block(values, block);
    }
}
