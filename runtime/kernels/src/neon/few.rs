//! [`super::super::few`] with registers of 4 lanes and four vectors at once: 16 sums.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::aarch64::*;
use std::ops::Range;

use bytemuck::cast_ref;

use super::super::{Matrix, few};
use super::{load_16, q4_0_weights, q8_0_weights, store_4};
use crate::format::Format;

/// Lanes of a register.
const LANES: usize = 4;
/// Vectors that share an unpacked row.
const VECTORS: usize = 4;
/// Registers of columns summed together.
const REGISTERS: usize = 4;
/// Registers of a block.
const BLOCK: usize = 32 / LANES;
/// Vectors that share an unpacked block, if every column of the block has a sum of its own.
const VECTORS_OF_BLOCKS: usize = 2;

/// Whether these kernels take such rows.
pub(super) fn takes(w: Matrix<'_>) -> bool {
    few::takes(w, LANES)
}

/// [`super::super::Kernels::dots`], with `places` outputs for each vector.
#[target_feature(enable = "neon")]
pub(super) fn dots(w: Matrix<'_>, rows: Range<usize>, x: &[f32], out: &mut [f32], places: usize) {
    let load = |x: &[f32; LANES]| vreinterpretq_f32_u8(load_16(cast_ref(x)));
    let multiply = |a, b, c| vfmaq_f32(c, a, b);
    let add_up =
        |[s0, s1, s2, s3]: [float32x4_t; few::ROWS]| four(vpaddq_f32(vpaddq_f32(s0, s1), vpaddq_f32(s2, s3)));
    match w.format {
        Format::F16 => {
            let unpack = |bytes: &_| [halves(bytes)];
            few::dots::<_, _, 1, _, VECTORS>(w, rows, x, out, places, unpack, load, multiply, add_up);
        }
        Format::Q8_0 => {
            let unpack = |bytes: &_| q8_0_weights(bytes);
            few::dots::<_, _, BLOCK, _, VECTORS>(w, rows, x, out, places, unpack, load, multiply, add_up);
        }
        Format::Q4_0 => {
            let unpack = |bytes: &_| q4_0_weights(bytes);
            few::dots::<_, _, BLOCK, _, VECTORS>(w, rows, x, out, places, unpack, load, multiply, add_up);
        }
        _ => {
            let unpack = |bytes: &_| [floats(bytes)];
            few::dots::<_, _, 1, _, VECTORS>(w, rows, x, out, places, unpack, load, multiply, add_up);
        }
    }
}

/// [`super::super::Kernels::add_few`], with `places` factors for each vector.
#[target_feature(enable = "neon")]
pub(super) fn add(a: &[f32], places: usize, w: Matrix<'_>, rows: Range<usize>, y: &mut [f32]) {
    let load = |x: &[f32; LANES]| vreinterpretq_f32_u8(load_16(cast_ref(x)));
    let store = |y: &mut [f32; LANES], sums| store_4(y, sums);
    let spread = |a| vdupq_n_f32(a);
    let multiply = |a, b, c| vfmaq_f32(c, a, b);
    match w.format {
        Format::F16 => {
            let unpack = |bytes: &_| [halves(bytes)];
            few::add::<_, _, 1, _, VECTORS, REGISTERS>(
                a, places, w, rows, y, unpack, load, store, spread, multiply,
            );
        }
        Format::Q8_0 => {
            let unpack = |bytes: &_| q8_0_weights(bytes);
            few::add::<_, _, BLOCK, _, VECTORS_OF_BLOCKS, 1>(
                a, places, w, rows, y, unpack, load, store, spread, multiply,
            );
        }
        Format::Q4_0 => {
            let unpack = |bytes: &_| q4_0_weights(bytes);
            few::add::<_, _, BLOCK, _, VECTORS_OF_BLOCKS, 1>(
                a, places, w, rows, y, unpack, load, store, spread, multiply,
            );
        }
        _ => {
            let unpack = |bytes: &_| [floats(bytes)];
            few::add::<_, _, 1, _, VECTORS, REGISTERS>(
                a, places, w, rows, y, unpack, load, store, spread, multiply,
            );
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn halves(bytes: &[u8; 8]) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(u64::from_le_bytes(*bytes))))
}

#[inline]
#[target_feature(enable = "neon")]
fn floats(bytes: &[u8; 16]) -> float32x4_t {
    vreinterpretq_f32_u8(load_16(bytes))
}

#[inline]
#[target_feature(enable = "neon")]
fn four(lanes: float32x4_t) -> [f32; few::ROWS] {
    let mut out = [0.0; few::ROWS];
    store_4(&mut out, lanes);
    out
}
