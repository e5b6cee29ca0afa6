//! Writers of the block formats: `Q5_K` works as `Q4_K` does; the others equal ggml's byte for byte.
//!
//! *Source*: ggml, `ggml-quants.c`, `quantize_row_q4_1_ref`, `quantize_row_q5_0_ref`, `quantize_row_q5_1_ref`,
//! `quantize_row_mxfp4_ref`.

use half::f16;

use super::super::k_block::{Lines, VALUES, nearest};
use super::PART;
use super::blocks::{Mxfp4, Q4_1, Q5_0, Q5_1, Q5K, TWICE_E2M1, half_power};

/// Packs values into a block of `Q4_1`.
pub(in super::super) fn write_q4_1(values: &[f32; PART], block: &mut [u8; size_of::<Q4_1>()]) {
    let (d, m, steps) = from_least(values, 15);
    *block = bytemuck::cast(Q4_1 { d, m, q: nibbles(&steps) });
}

/// Packs values into a block of `Q5_1`.
pub(in super::super) fn write_q5_1(values: &[f32; PART], block: &mut [u8; size_of::<Q5_1>()]) {
    let (d, m, steps) = from_least(values, 31);
    *block = bytemuck::cast(Q5_1 { d, m, fifth: fifth_bits(&steps), q: nibbles(&steps) });
}

/// The value of largest magnitude (the first of equals) becomes exactly -16.
pub(in super::super) fn write_q5_0(values: &[f32; PART], block: &mut [u8; size_of::<Q5_0>()]) {
    let extreme =
        values.iter().fold(values[0], |extreme, &v| if v.abs() > extreme.abs() { v } else { extreme });
    let d = extreme / -16.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let steps = values.map(|v| (v.mul_add(inverse, 16.5) as u8).min(31));
    let d = f16::from_f32(d).to_le_bytes();
    *block = bytemuck::cast(Q5_0 { d, fifth: fifth_bits(&steps), q: nibbles(&steps) });
}

/// The scale is the power of two under which the largest magnitude is 4 to 8; the largest step is 6. Each
/// value becomes the nearest of the sixteen steps, the first of equals.
pub(in super::super) fn write_mxfp4(values: &[f32; PART], block: &mut [u8; size_of::<Mxfp4>()]) {
    let largest = values.iter().fold(0.0_f32, |largest, v| largest.max(v.abs()));
    let e = if largest > 0.0 { (largest.log2().floor() as i32 - 2 + 127).clamp(0, 254) as u8 } else { 0 };
    let d = half_power(e);
    let steps = values.map(|v| {
        let off = |step: &u8| (f32::from(TWICE_E2M1[usize::from(*step)]) * d - v).abs();
        (1..16).fold(0, |best, step| if off(&step) < off(&best) { step } else { best })
    });
    *block = bytemuck::cast(Mxfp4 { e, q: nibbles(&steps) });
}

/// The scale and minimum that map steps to the range of the values, and the steps.
fn from_least(values: &[f32; PART], most: u8) -> ([u8; 2], [u8; 2], [u8; PART]) {
    let least = values.iter().fold(f32::MAX, |least, v| least.min(*v));
    let largest = values.iter().fold(f32::MIN, |largest, v| largest.max(*v));
    let d = (largest - least) / f32::from(most);
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let steps = values.map(|v| (((v - least) * inverse + 0.5) as u8).min(most));
    (f16::from_f32(d).to_le_bytes(), f16::from_f32(least).to_le_bytes(), steps)
}

fn nibbles(steps: &[u8; PART]) -> [u8; PART / 2] {
    std::array::from_fn(|j| (steps[j] & 0xf) | (steps[j + PART / 2] & 0xf) << 4)
}

fn fifth_bits(steps: &[u8; PART]) -> [u8; 4] {
    let mut bits = 0;
    steps.iter().enumerate().for_each(|(j, step)| bits |= u32::from(step >> 4) << j);
    bits.to_le_bytes()
}

/// Packs values into a block of `Q5_K`.
pub(in super::super) fn write_q5_k(values: &[f32; VALUES], block: &mut [u8; size_of::<Q5K>()]) {
    let Lines { d, dmin, six_bits, scales, minima } = Lines::through(values, 31.0);
    let mut written = Q5K { d, dmin, six_bits, fifth: [0; 32], q: [[0; 32]; 4] };
    for (at, value) in values.iter().enumerate() {
        let (k, j) = (at / PART, at % PART);
        let step = nearest(value + minima[k], scales[k], 0.0, 31.0) as u8;
        written.q[k / 2][j] |= (step & 0xf) << (4 * (k % 2));
        written.fifth[j] |= step >> 4 << k;
    }
    block.copy_from_slice(bytemuck::bytes_of(&written));
}
