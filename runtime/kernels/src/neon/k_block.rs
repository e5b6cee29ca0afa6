//! Blocks of 256 weights: the scales of a block are unpacked once, then its weights 32 at a time.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::aarch64::*;

use bytemuck::{Pod, cast_ref, cast_slice};

use super::super::k_block::{self, PARTS, Q4K, Q6K, VALUES};
use super::super::{Rounded, Row};
use super::{Registers, add_scaled, load, load_16, prefetch, scaled, store};
use crate::format::Format;

/// `sum of w[i] * x[i]`, eight sums of four lanes in flight.
#[target_feature(enable = "neon")]
pub(super) fn dot(row: Row<'_>, x: &[f32]) -> f32 {
    let x = x.as_chunks::<32>().0;
    let mut sums = [vdupq_n_f32(0.0); 8];
    each_part(row, 0, x.len(), |at, w| {
        let x = load(&x[at]);
        for i in 0..8 {
            sums[i] = vfmaq_f32(sums[i], w[i], x[i]);
        }
    });
    let pair = |i: usize| vaddq_f32(sums[i], sums[i + 1]);
    vaddvq_f32(vaddq_f32(vaddq_f32(pair(0), pair(2)), vaddq_f32(pair(4), pair(6))))
}

/// `R` times axpy, in order for each value; `y` stays in registers.
#[target_feature(enable = "neon")]
pub(super) fn axpy<const R: usize>(a: [f32; R], rows: [Row<'_>; R], y: &mut [f32]) {
    if rows[0].format == Format::Q4K {
        axpy_with(a, rows, y, Q4K::scales, |w, scales, k| q4_k_weights(w, scales, k));
    } else {
        axpy_with(a, rows, y, Q6K::scales, |w, scales, k| q6_k_weights(w, scales, k));
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn axpy_with<B: Pod, S: Copy + Default, const R: usize>(
    a: [f32; R],
    rows: [Row<'_>; R],
    y: &mut [f32],
    begin: impl Fn(&B) -> S,
    weights: impl Fn(&B, &S, usize) -> Registers,
) {
    let aheads = rows.map(|row| row.ahead());
    let y = y.as_chunks_mut::<VALUES>().0;
    let w = rows.map(|row| &cast_slice::<_, B>(row.bytes)[..y.len()]);
    for (at, y) in y.iter_mut().enumerate() {
        let mut begun = [S::default(); R];
        for r in 0..R {
            prefetch(&w[r][at], aheads[r]);
            begun[r] = begin(&w[r][at]);
        }
        for (k, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
            let mut sums = load(y);
            for r in 0..R {
                sums = add_scaled(sums, a[r], weights(&w[r][at], &begun[r], k));
            }
            store(y, sums);
        }
    }
}

/// Values `start..start + out.len()` of a row, in whole groups of 32.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn unpack(row: &Row<'_>, start: usize, out: &mut [f32]) {
    let out = out.as_chunks_mut::<32>().0;
    each_part(*row, start / 32, out.len(), |at, w| store(&mut out[at], w));
}

/// Parts `first..first + count` of a row: groups of 32 values, counted from zero.
#[inline]
#[target_feature(enable = "neon")]
fn each_part(row: Row<'_>, first: usize, count: usize, part: impl FnMut(usize, Registers)) {
    let ahead = row.ahead();
    if row.format == Format::Q4K {
        let begin = |block: &Q4K| {
            prefetch(block, ahead);
            block.scales()
        };
        k_block::each_part(row.bytes, first, count, begin, |w, scales, k| q4_k_weights(w, scales, k), part);
    } else {
        let begin = |block: &Q6K| {
            prefetch(block, ahead);
            block.scales()
        };
        k_block::each_part(row.bytes, first, count, begin, |w, scales, k| q6_k_weights(w, scales, k), part);
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn q4_k_weights(block: &Q4K, [scales, minima]: &[[f32; PARTS]; 2], k: usize) -> Registers {
    let mut weights = scaled([vdupq_n_f32(scales[k]); 2], q4_k_steps(block, k));
    for w in &mut weights {
        *w = vsubq_f32(*w, vdupq_n_f32(minima[k])); // of an exact product
    }
    weights
}

/// Part `k` of a `Q4_K` block as integers, 0 to 15.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_k_steps(block: &Q4K, k: usize) -> [int8x16_t; 2] {
    halves(&block.q[k / 2]).map(|q| vreinterpretq_s8_u8(shifted(q, 4 * (k % 2), 0xf)))
}

#[inline]
#[target_feature(enable = "neon")]
fn q6_k_weights(block: &Q6K, scales: &[f32; 2 * PARTS], k: usize) -> Registers {
    scaled([vdupq_n_f32(scales[2 * k]), vdupq_n_f32(scales[2 * k + 1])], q6_k_steps(block, k))
}

/// Part `k` of a `Q6_K` block as integers, -32 to 31.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q6_k_steps(block: &Q6K, k: usize) -> [int8x16_t; 2] {
    let (half, quarter) = (k / 4, k % 4);
    let (low, high) = (halves(&block.low[2 * half + quarter % 2]), halves(&block.high[half]));
    let joined = |i: usize| {
        let high = vshlq_n_u8::<4>(shifted(high[i], 2 * quarter, 3));
        let steps = vorrq_u8(shifted(low[i], 4 * (quarter / 2), 0xf), high);
        vsubq_s8(vreinterpretq_s8_u8(steps), vdupq_n_s8(32))
    };
    [joined(0), joined(1)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn halves(bytes: &[u8; 32]) -> [uint8x16_t; 2] {
    cast_ref::<_, [[u8; 16]; 2]>(bytes).each_ref().map(|bytes| load_16(bytes))
}

/// Shifts each byte down and masks it.
#[inline]
#[target_feature(enable = "neon")]
fn shifted(bytes: uint8x16_t, down: usize, bits: u8) -> uint8x16_t {
    vandq_u8(vshlq_u8(bytes, vdupq_n_s8(-(down as i8))), vdupq_n_u8(bits))
}

/// [`super::Kernels::dot_rounded`]. `whole` returns the sum of products of twice sixteen bytes, in four
/// parts.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn dot_rounded(
    row: Row<'_>,
    x: Rounded<'_>,
    whole: impl Fn([int8x16_t; 2], [int8x16_t; 2]) -> int32x4_t,
) -> f32 {
    let ahead = row.ahead();
    let values = x.values.as_chunks::<32>().0.as_chunks::<PARTS>().0;
    let values = values.iter().zip(x.scales.as_chunks::<PARTS>().0);
    let mut sums = vdupq_n_f32(0.0);
    let mut minimum = 0.0;
    if row.format == Format::Q4K {
        let blocks = cast_slice::<_, Q4K>(row.bytes).iter().zip(values).zip(x.sums.as_chunks::<PARTS>().0);
        for ((block, (values, scales_x)), all) in blocks {
            prefetch(block, ahead);
            let [scales, minima] = block.scales();
            for k in 0..PARTS {
                let whole = whole(q4_k_steps(block, k), signed(&values[k]));
                sums = vfmaq_n_f32(sums, vcvtq_f32_s32(whole), scales[k] * scales_x[k]);
                minimum = f32::mul_add(minima[k], scales_x[k] * all[k], minimum);
            }
        }
    } else {
        let zero = vdupq_n_s8(0);
        for (block, (values, scales_x)) in cast_slice::<_, Q6K>(row.bytes).iter().zip(values) {
            prefetch(block, ahead);
            let scales = block.scales();
            for k in 0..PARTS {
                let ([w0, w1], x) = (q6_k_steps(block, k), signed(&values[k]));
                for (w, scale) in [([w0, zero], scales[2 * k]), ([zero, w1], scales[2 * k + 1])] {
                    sums = vfmaq_n_f32(sums, vcvtq_f32_s32(whole(w, x)), scale * scales_x[k]);
                }
            }
        }
    }
    vaddvq_f32(sums) - minimum
}

#[inline]
#[target_feature(enable = "neon")]
fn signed(values: &[i8; 32]) -> [int8x16_t; 2] {
    halves(cast_ref(values)).map(|values| vreinterpretq_s8_u8(values))
}
