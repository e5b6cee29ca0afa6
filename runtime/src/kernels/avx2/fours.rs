//! `Q4_0` in fours: the same arithmetic as `Q4_0`, from other places.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use super::super::fours::{BLOCKS, Four, VALUES, part};
use super::super::{Rounded, Row};
use super::{load, nibble_weights, prefetch, scale, store, sum_lanes, whole_of_nibbles};

/// `sum of w[i] * x[i]`, four sums of eight lanes in flight.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot(row: Row<'_>, x: &[f32]) -> f32 {
    let ahead = row.ahead();
    let mut sums = [_mm256_setzero_ps(); 4];
    for (four, x) in row.bytes.as_chunks().0.iter().zip(x.as_chunks::<VALUES>().0) {
        prefetch(four, ahead);
        for (block, x) in x.as_chunks().0.iter().enumerate() {
            let (w, x) = (weights(four, block), load(x));
            for i in 0..4 {
                sums[i] = _mm256_fmadd_ps(w[i], x[i], sums[i]);
            }
        }
    }
    sum_lanes(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])))
}

/// `y[i] += a * w[i]`, rounded once.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn axpy(a: f32, row: Row<'_>, y: &mut [f32]) {
    let (ahead, a) = (row.ahead(), _mm256_set1_ps(a));
    for (four, y) in row.bytes.as_chunks().0.iter().zip(y.as_chunks_mut::<VALUES>().0) {
        prefetch(four, ahead);
        for (block, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
            let ([w0, w1, w2, w3], [y0, y1, y2, y3]) = (weights(four, block), load(y));
            let low = [_mm256_fmadd_ps(a, w0, y0), _mm256_fmadd_ps(a, w1, y1)];
            let high = [_mm256_fmadd_ps(a, w2, y2), _mm256_fmadd_ps(a, w3, y3)];
            store(y, low, high);
        }
    }
}

/// Eight sums of a block's products in a register; one multiplication by both scales.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_rounded(row: Row<'_>, x: Rounded<'_>) -> f32 {
    let ahead = row.ahead();
    let mut sums = _mm256_setzero_ps();
    let values = x.values.as_chunks::<32>().0.as_chunks::<BLOCKS>().0;
    let blocks = values.iter().zip(x.scales.as_chunks::<BLOCKS>().0);
    for (four, (values, scales)) in row.bytes.as_chunks().0.iter().zip(blocks) {
        prefetch(four, ahead);
        for block in 0..BLOCKS {
            let (d, q) = part(four, block);
            let worth = _mm256_mul_ps(scale(d), _mm256_set1_ps(scales[block]));
            sums = _mm256_fmadd_ps(whole_of_nibbles(q, &values[block]), worth, sums);
        }
    }
    sum_lanes(sums)
}

/// Values `start..start + out.len()` of a row, whole thirty-twos.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(row: &Row<'_>, start: usize, out: &mut [f32]) {
    let fours = row.bytes.as_chunks().0;
    for (at, out) in (start / 32..).zip(out.as_chunks_mut().0) {
        let [w0, w1, w2, w3] = weights(&fours[at / BLOCKS], at % BLOCKS);
        store(out, [w0, w1], [w2, w3]);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn weights(four: &Four, block: usize) -> [__m256; 4] {
    let (d, q) = part(four, block);
    nibble_weights(scale(d), q)
}
