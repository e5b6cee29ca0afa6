//! Interleaved `Q4_0`: the kernels of `Q4_0`, with scale and nibbles loaded from their interleaved offsets.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::aarch64::*;

use bytemuck::cast_ref;

use super::super::interleaved::{BLOCKS, Interleaved, VALUES, block};
use super::super::packed::{BLOCK, LEAST};
use super::super::{ADDED, Rounded, Row};
use super::{
    add_scaled, load, load_16, prefetch, q4_0_steps, q4_0_weights, scale, store, store_4, whole_numbers,
};

/// `sum of w[i] * x[i]`, eight sums of four lanes in flight.
#[target_feature(enable = "neon")]
pub(super) fn dot(row: Row<'_>, x: &[f32]) -> f32 {
    let ahead = row.ahead();
    let mut sums = [vdupq_n_f32(0.0); 8];
    for (four, x) in row.bytes.as_chunks::<72>().0.iter().zip(x.as_chunks::<VALUES>().0) {
        prefetch(four, ahead);
        for (at, x) in x.as_chunks().0.iter().enumerate() {
            let (w, x) = (q4_0_weights(&block(four, at)), load(x));
            for i in 0..8 {
                sums[i] = vfmaq_f32(sums[i], w[i], x[i]);
            }
        }
    }
    let pair = |i: usize| vaddq_f32(sums[i], sums[i + 1]);
    vaddvq_f32(vaddq_f32(vaddq_f32(pair(0), pair(2)), vaddq_f32(pair(4), pair(6))))
}

/// `R` times axpy, in order for each value.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn axpy<const R: usize>(a: [f32; R], rows: [Row<'_>; R], y: &mut [f32]) {
    let aheads = rows.map(|row| row.ahead());
    let w = rows.map(|row| row.bytes.as_chunks::<72>().0);
    for (at, y) in y.as_chunks_mut::<VALUES>().0.iter_mut().enumerate() {
        for r in 0..R {
            prefetch(&w[r][at], aheads[r]);
        }
        for (part, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
            let mut sums = load(y);
            for r in 0..R {
                sums = add_scaled(sums, a[r], q4_0_weights(&block(&w[r][at], part)));
            }
            store(y, sums);
        }
    }
}

/// [`super::super::Kernels::add_rounded`]: a 16-bit sum for each column of a block, at most `16 * 127 * 8`.
#[target_feature(enable = "neon")]
pub(super) fn add_rounded(a: &[f32], rows: &[Row<'_>], y: &mut [f32]) {
    let (mut w, length): ([&[Interleaved]; ADDED], _) = ([&[]; ADDED], y.len() / VALUES);
    for (w, row) in w.iter_mut().zip(rows) {
        *w = &row.bytes.as_chunks().0[..length];
    }
    for (at, y) in y.as_chunks_mut::<VALUES>().0.iter_mut().enumerate() {
        let (mut factors, mut largest) = ([vdupq_n_f32(0.0); ADDED], vdupq_n_f32(0.0));
        for k in 0..rows.len() {
            prefetch(&w[k][at], rows[k].ahead());
            let scales = u64::from_le_bytes(w[k][at].as_chunks().0[0]);
            factors[k] = vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(scales))), a[k]);
            largest = vmaxq_f32(largest, vabsq_f32(factors[k]));
        }
        let counts = vcgeq_f32(largest, vdupq_n_f32(LEAST));
        let where_it_counts =
            |values| vreinterpretq_f32_u32(vandq_u32(counts, vreinterpretq_u32_f32(values)));
        let mut scales = [0.0; BLOCKS];
        store_4(&mut scales, where_it_counts(vdivq_f32(largest, vdupq_n_f32(127.0))));
        let inverse = where_it_counts(vdivq_f32(vdupq_n_f32(127.0), largest));
        let mut rounded = [[0_i32; BLOCKS]; ADDED];
        for k in 0..rows.len() {
            rounded[k] = whole_numbers(vcvtnq_s32_f32(vmulq_f32(factors[k], inverse)));
        }
        for (part, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
            let mut sums = [vdupq_n_s16(0); 4];
            for k in 0..rows.len() {
                let factor = vdupq_n_s8(rounded[k][part] as i8);
                let steps = q4_0_steps(&block(&w[k][at], part));
                for half in 0..2 {
                    sums[2 * half] = vmlal_s8(sums[2 * half], vget_low_s8(steps[half]), vget_low_s8(factor));
                    sums[2 * half + 1] = vmlal_high_s8(sums[2 * half + 1], steps[half], factor);
                }
            }
            let mut values = load(y);
            for i in 0..4 {
                let wide = [vmovl_s16(vget_low_s16(sums[i])), vmovl_high_s16(sums[i])];
                for k in 0..2 {
                    values[2 * i + k] = vfmaq_n_f32(values[2 * i + k], vcvtq_f32_s32(wide[k]), scales[part]);
                }
            }
            store(y, values);
        }
    }
}

/// Values `start..start + out.len()` of a row, in whole groups of 32.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn unpack(row: &Row<'_>, start: usize, out: &mut [f32]) {
    for (at, out) in (start / BLOCK..).zip(out.as_chunks_mut().0) {
        store(out, q4_0_weights(&block(row.bytes, at)));
    }
}

/// A row times one vector. `whole` returns the sum of products of a block's integers with the vector's, in
/// four parts.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn dot_rounded(
    row: Row<'_>,
    x: Rounded<'_>,
    whole: impl Fn([int8x16_t; 2], [int8x16_t; 2]) -> int32x4_t,
) -> f32 {
    let ahead = row.ahead();
    let mut sums = vdupq_n_f32(0.0);
    let values = x.values.as_chunks::<BLOCK>().0.as_chunks::<BLOCKS>().0;
    let blocks = values.iter().zip(x.scales.as_chunks::<BLOCKS>().0);
    for (four, (values, scales)) in row.bytes.as_chunks::<72>().0.iter().zip(blocks) {
        prefetch(four, ahead);
        let part = |at: usize| -> float32x4_t {
            let (block, values) = (block(four, at), cast_ref::<_, [[u8; 16]; 2]>(&values[at]));
            let x = values.each_ref().map(|x| vreinterpretq_s8_u8(load_16(x)));
            let worth = vmulq_f32(scale([block[0], block[1]]), vdupq_n_f32(scales[at]));
            vmulq_f32(vcvtq_f32_s32(whole(q4_0_steps(&block), x)), worth)
        };
        sums = vaddq_f32(sums, vaddq_f32(vaddq_f32(part(0), part(1)), vaddq_f32(part(2), part(3))));
    }
    vaddvq_f32(sums)
}
