//! AVX-512: 32 weights at a time, in two registers.
//!
//! ```text
//! for 32 weights w, stored in BYTES bytes:
//!     w0, w1 = weights(bytes)              the values of the format's definition, to the bit
//!     dot:   sum0 += w0 * x0;  sum1 += w1 * x1
//!     axpy:  y0 += a * w0;     y1 += a * w1
//! ```
//!
//! 1. A format is one function from its bytes to two registers of `f32`; the loops are written once, over
//!    that function.
//! 2. `dot` takes two such steps per iteration: four sums in flight hide the latency of the fused
//!    multiply-add.
//! 3. `Q4_0` looks its sixteen values up in a register already multiplied by the block's scale. The lookup
//!    reads only four bits, so there is no masking, no conversion and no subtraction.
//! 4. Only formats without blocks can leave a remainder shorter than 32. It is padded with zeros and takes
//!    the same path, so a result does not depend on where a row is cut.
//! 5. Weights are prefetched a little ahead, as `avx2` explains.
//!
//! Formats without kernels of their own here use the shared loops of [`super::parts`], in registers of 32
//! bytes.
//!
//! A scale times a quantised value has at most 19 significant bits, so the product is exact in `f32`.
#![expect(unsafe_code, reason = "vector loads and stores, and entering a target_feature context")]

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::OnceLock;

use bytemuck::{cast_mut, cast_ref};

use super::avx2::registers::Registers;
use super::avx2::{self, load_16};
use super::prefetch::prefetch;
use super::scalar::Scalar;
use super::{
    AHEAD_BYTES, Activation, Down, Form, InstructionSet, Kernels, Matrix, Packed, Rounded, Row,
    add_some_at_a_time, assert_added, assert_few, assert_rows, assert_sums, assert_transposed,
    dots_one_by_one, padded, parts, stored_interleaved, sum_of_four,
};
use crate::format::Format;

mod added;
mod few;
mod interleaved;
mod k_block;
mod products;
mod rounded;
mod transposed;

use rounded::BLOCKS;

/// Proof that the processor has AVX-512 F, BW, DQ and VL; only [`Avx512::detect`] makes one.
#[derive(Debug)]
pub(super) struct Avx512 {
    /// Whether the processor counts bits in vectors (VPOPCNTDQ).
    counts_bits: bool,
    /// Whether the processor multiplies and sums bytes (VNNI).
    multiplies_bytes: bool,
}

impl Avx512 {
    /// The proof, if the processor has the instructions.
    pub(super) fn detect() -> Option<&'static Self> {
        static DETECTED: OnceLock<Option<Avx512>> = OnceLock::new();
        let detect = || {
            let has_all = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            has_all.then(|| Self {
                counts_bits: is_x86_feature_detected!("avx512vpopcntdq"),
                multiplies_bytes: is_x86_feature_detected!("avx512vnni"),
            })
        };
        DETECTED.get_or_init(detect).as_ref()
    }
}

impl Kernels for Avx512 {
    fn instruction_set(&self) -> InstructionSet {
        InstructionSet::Avx512
    }

    fn dot(&self, w: Row<'_>, x: &[f32]) -> f32 {
        w.assert_values(x.len());
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { dot(w, x) }
    }

    fn rows(&self, w: Matrix<'_>, start: usize, x: &[f32], out: &mut [f32]) {
        assert_rows(w, start, x, out);
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { rows(w, start, x, out) }
    }

    fn dots(&self, w: Matrix<'_>, rows: Range<usize>, x: &[f32], out: &mut [f32]) {
        if !few::takes(w) {
            return dots_one_by_one(w, rows, x, out, |w, x| self.dot(w, x));
        }
        let places = assert_few(w, &rows, x, out);
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { few::dots(w, rows, x, out, places) }
    }

    fn add_few(&self, a: &[f32], w: Matrix<'_>, rows: Range<usize>, y: &mut [f32]) {
        if !few::takes(w) {
            return add_some_at_a_time(self, a, w, rows, y);
        }
        let places = assert_few(w, &rows, y, a);
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { few::add(a, places, w, rows, y) }
    }

    fn exponentials(&self, x: &mut [f32], largest: f32) {
        // SAFETY: `self` exists, so `detect` has seen AVX2, too.
        unsafe { avx2::exponentials(x, largest) }
    }

    fn activate(&self, activation: Activation, gates: &[f32], ups: &[f32], values: &mut [f32]) {
        // SAFETY: `self` exists, so `detect` has seen AVX2, too.
        unsafe { avx2::activate(activation, gates, ups, values) }
    }

    fn axpy(&self, a: f32, w: Row<'_>, y: &mut [f32]) {
        w.assert_values(y.len());
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { axpy(a, w, y) }
    }

    fn dot_rounded(&self, w: Row<'_>, x: Rounded<'_>) -> f32 {
        x.assert_meets(w);
        if !self.multiplies_bytes {
            // SAFETY: `self` exists, so `detect` has seen the features, AVX2 and FMA among them.
            return unsafe { avx2::dot_rounded(w, x) };
        }
        // SAFETY: `self.multiplies_bytes`, so `detect` has seen the features.
        unsafe { dot_rounded(w, x) }
    }

    fn rows_rounded(&self, w: Matrix<'_>, start: usize, x: Rounded<'_>, out: &mut [f32]) {
        assert!(start + out.len() <= w.rows, "rows_rounded: a row for each output");
        if self.multiplies_bytes && !out.is_empty() {
            x.assert_meets(w.row(start));
            // SAFETY: `self.multiplies_bytes`, so `detect` has seen the features.
            return unsafe { rows_rounded(w, start, x, out) };
        }
        for (at, out) in (start..).zip(out) {
            *out = self.dot_rounded(w.row(at), x);
        }
    }

    fn products(&self, w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]) {
        match x.form {
            // SAFETY: `self` exists, so `detect` has seen the features.
            Form::F32 => unsafe { products::products(w, x, out) },
            // SAFETY: `self.multiplies_bytes`, so `detect` has seen the features.
            Form::Q8 if self.multiplies_bytes => unsafe { products::byte_products(w, x, out) },
            // SAFETY: `self` exists, so `detect` has seen the features, AVX2 and FMA among them.
            Form::Q8 => unsafe { avx2::products::byte_products(w, x, out) },
        }
    }

    fn add_products(&self, a: &[f32], count: usize, vectors: Range<usize>, w: &[Row<'_>], y: &mut [f32]) {
        let columns = assert_sums(a, count, &vectors, w, y);
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { products::add_products(a, count, vectors.start, w, y, columns) }
    }

    fn down(&self) -> &dyn Down {
        self
    }

    fn sign_mismatch(&self, a: &[u64], b: &[u64]) -> u32 {
        if !self.counts_bits {
            return Scalar.sign_mismatch(a, b);
        }
        assert_eq!(a.len(), b.len(), "sign_mismatch: lengths differ");
        // SAFETY: `self.counts_bits`, so `detect` has seen the features.
        unsafe { sign_mismatch(a, b) }
    }

    fn stored(&self, format: Format, columns: usize) -> Format {
        stored_interleaved(format, columns)
    }

    fn read(&self, w: Row<'_>) -> u64 {
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { read(w) }
    }
}

impl Down for Avx512 {
    fn add_four(&self, a: [f32; 4], w: [Row<'_>; 4], sum: &mut [f32]) {
        let (sum, _) = sum_of_four(w, sum);
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { axpy_4(a, w, sum) }
    }

    fn add_rounded(&self, a: &[f32], w: &[Row<'_>], y: &mut [f32]) {
        assert_added(a, w, y);
        if self.multiplies_bytes {
            // SAFETY: `self.multiplies_bytes`, so `detect` has seen the features.
            return unsafe { added::add_rounded(padded(a), w, y) };
        }
        // SAFETY: `self` exists, so `detect` has seen the features, AVX2, FMA and F16C among them.
        unsafe { avx2::add_rounded(padded(a), w, y) }
    }

    fn transposes(&self, format: Format) -> bool {
        format == Format::Q4_0X4
    }

    fn add_transposed(&self, w: &[Row<'_>], start: usize, x: Packed<'_>, out: &mut [f32]) {
        assert_transposed(w, start, x, out);
        if self.multiplies_bytes {
            // SAFETY: `self.multiplies_bytes`, so `detect` has seen the features.
            return unsafe { transposed::add_transposed(w, start, x, out) };
        }
        // SAFETY: `self` exists, so `detect` has seen the features, of which AVX2's are some.
        unsafe { avx2::add_transposed(w, start, x, out) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn dot_rounded(w: Row<'_>, x: Rounded<'_>) -> f32 {
    match w.format {
        Format::Q6K | Format::Q4K => k_block::dot_rounded(w, x),
        format if rounded::takes(format) => rounded::dot(w, x),
        _ => parts::dot_rounded(Registers::<true>::here(), w, x),
    }
}

/// Rows in order; formats without a joint path are multiplied one by one, without a function call for each.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
fn rows_rounded(w: Matrix<'_>, start: usize, x: Rounded<'_>, out: &mut [f32]) {
    if rounded::takes(w.format) {
        return rounded::rows(w, start, x, out);
    }
    for (at, out) in (start..).zip(out) {
        *out = dot_rounded(w.row(at), x);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
fn axpy_4(a: [f32; 4], w: [Row<'_>; 4], y: &mut [f32]) {
    match w[0].format {
        Format::F32 => axpy_4_with(a, w, y, |w| f32_weights(w)),
        Format::F16 => axpy_4_with(a, w, y, |w| f16_weights(w)),
        Format::BF16 => axpy_4_with(a, w, y, |w| bf16_weights(w)),
        Format::Q8_0 => axpy_4_blocks(a, w, y, |d, w: &[u8; 34]| q8_0_scaled(d, w)),
        Format::Q4_0 => axpy_4_blocks(a, w, y, |d, [_, _, q @ ..]: &[u8; 18]| q4_0_scaled(d, q)),
        Format::Q4_0X4 => interleaved::axpy(a, w, y),
        Format::Q6K | Format::Q4K => k_block::axpy(a, w, y),
        _ => {
            for k in 0..4 {
                parts::axpy(Registers::<false>::here(), a[k], w[k], y);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn dot(w: Row<'_>, x: &[f32]) -> f32 {
    match w.format {
        Format::F32 => dot_with(w, x, |w| f32_weights(w)),
        Format::F16 => dot_with(w, x, |w| f16_weights(w)),
        Format::BF16 => dot_with(w, x, |w| bf16_weights(w)),
        Format::Q8_0 => dot_with(w, x, |w| q8_0_weights(w)),
        Format::Q4_0 => dot_with(w, x, |w| q4_0_weights(w)),
        Format::Q4_0X4 => interleaved::dot(w, x),
        Format::Q6K | Format::Q4K => k_block::dot(w, x),
        _ => parts::dot(Registers::<false>::here(), w, x),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn axpy(a: f32, w: Row<'_>, y: &mut [f32]) {
    match w.format {
        Format::F32 => axpy_with(a, w, y, |w| f32_weights(w)),
        Format::F16 => axpy_with(a, w, y, |w| f16_weights(w)),
        Format::BF16 => axpy_with(a, w, y, |w| bf16_weights(w)),
        Format::Q8_0 => axpy_with(a, w, y, |w| q8_0_weights(w)),
        Format::Q4_0 => axpy_with(a, w, y, |w| q4_0_weights(w)),
        Format::Q4_0X4 => interleaved::axpy([a], [w], y),
        Format::Q6K | Format::Q4K => k_block::axpy([a], [w], y),
        _ => parts::axpy(Registers::<false>::here(), a, w, y),
    }
}

/// Rows in order; for plain formats, the lanes of four rows are summed together.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn rows(w: Matrix<'_>, start: usize, x: &[f32], out: &mut [f32]) {
    match w.format {
        Format::F32 => rows_with(w, start, x, out, |w| f32_weights(w)),
        Format::F16 => rows_with(w, start, x, out, |w| f16_weights(w)),
        Format::BF16 => rows_with(w, start, x, out, |w| bf16_weights(w)),
        _ => {
            for (at, out) in (start..).zip(out) {
                *out = dot(w.row(at), x);
            }
        }
    }
}

/// [`dot_with`] for rows in order, bit for bit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn rows_with<const BYTES: usize>(
    w: Matrix<'_>,
    start: usize,
    x: &[f32],
    out: &mut [f32],
    weights: impl Fn(&[u8; BYTES]) -> [__m512; 2],
) {
    let row_bytes = w.format.row_bytes(w.columns);
    let rows = &w.bytes[start * row_bytes..];
    for_fours(rows, row_bytes, out, |row| sum_with(row, AHEAD_BYTES, x, &weights));
}

/// Calls `sum` with each row and sums the lanes of four results at a time. Rows are read one after another:
/// reading several at once from memory is slower.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn for_fours(rows: &[u8], row_bytes: usize, out: &mut [f32], sum: impl Fn(&[u8]) -> __m512) {
    let mut rows = rows.chunks_exact(row_bytes.max(1));
    for out in out.chunks_mut(4) {
        let mut sums = [_mm512_setzero_ps(); 4];
        for (all, row) in sums.iter_mut().zip(rows.by_ref().take(out.len())) {
            *all = sum(row);
        }
        out.copy_from_slice(&add_up(sums)[..out.len()]);
    }
}

/// `sum of w[i] * x[i]`, with the lanes summed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn dot_with<const BYTES: usize>(
    row: Row<'_>,
    x: &[f32],
    weights: impl Fn(&[u8; BYTES]) -> [__m512; 2],
) -> f32 {
    _mm512_reduce_add_ps(sum_with(row.bytes, row.ahead(), x, &weights))
}

/// `sum of w[i] * x[i]`, four sums of sixteen lanes in flight; prefetches `ahead` bytes ahead of the weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn sum_with<const BYTES: usize>(
    row: &[u8],
    ahead: usize,
    x: &[f32],
    weights: &impl Fn(&[u8; BYTES]) -> [__m512; 2],
) -> __m512 {
    let (w, w_rest) = row.as_chunks::<BYTES>();
    let (w_pairs, w_last) = w.as_chunks::<2>();
    let (x, x_rest) = x.as_chunks::<32>();
    let (x_pairs, x_last) = x.as_chunks::<2>();

    let mut sums = [_mm512_setzero_ps(); 4];
    for ([w01, w23], [x01, x23]) in w_pairs.iter().zip(x_pairs) {
        prefetch(w01, ahead);
        prefetch(w23, ahead);
        let ([w0, w1], [w2, w3]) = (weights(w01), weights(w23));
        let ([x0, x1], [x2, x3]) = (load(x01), load(x23));
        sums[0] = _mm512_fmadd_ps(w0, x0, sums[0]);
        sums[1] = _mm512_fmadd_ps(w1, x1, sums[1]);
        sums[2] = _mm512_fmadd_ps(w2, x2, sums[2]);
        sums[3] = _mm512_fmadd_ps(w3, x3, sums[3]);
    }
    for (w01, x01) in w_last.iter().zip(x_last) {
        let ([w0, w1], [x0, x1]) = (weights(w01), load(x01));
        sums[0] = _mm512_fmadd_ps(w0, x0, sums[0]);
        sums[1] = _mm512_fmadd_ps(w1, x1, sums[1]);
    }
    if !x_rest.is_empty() {
        let ([w0, w1], [x0, x1]) = (weights(&padded(w_rest)), load(&padded(x_rest)));
        sums[2] = _mm512_fmadd_ps(w0, x0, sums[2]);
        sums[3] = _mm512_fmadd_ps(w1, x1, sums[3]);
    }
    let [sum0, sum1, sum2, sum3] = sums;
    _mm512_add_ps(_mm512_add_ps(sum0, sum1), _mm512_add_ps(sum2, sum3))
}

/// `y[i] += a * w[i]`, rounded once.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn axpy_with<const BYTES: usize>(
    a: f32,
    row: Row<'_>,
    y: &mut [f32],
    weights: impl Fn(&[u8; BYTES]) -> [__m512; 2],
) {
    let ahead = row.ahead();
    let (w, w_rest) = row.bytes.as_chunks::<BYTES>();
    let (y, y_rest) = y.as_chunks_mut::<32>();
    let a = _mm512_set1_ps(a);
    let add = |w: &[u8; BYTES], y: &mut [f32; 32]| {
        let ([w0, w1], [y0, y1]) = (weights(w), load(y));
        store(y, [_mm512_fmadd_ps(a, w0, y0), _mm512_fmadd_ps(a, w1, y1)]);
    };
    for (w, y) in w.iter().zip(y) {
        prefetch(w, ahead);
        add(w, y);
    }
    if !y_rest.is_empty() {
        let mut y = padded(y_rest);
        add(&padded(w_rest), &mut y);
        y_rest.copy_from_slice(&y[..y_rest.len()]);
    }
}

/// Four rows; `y` stays in registers between them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn axpy_4_with<const BYTES: usize>(
    a: [f32; 4],
    rows: [Row<'_>; 4],
    y: &mut [f32],
    weights: impl Fn(&[u8; BYTES]) -> [__m512; 2],
) {
    let aheads = rows.map(|row| row.ahead());
    let (w, rests): ([&[[u8; BYTES]]; 4], [&[u8]; 4]) =
        (rows.map(|row| row.bytes.as_chunks().0), rows.map(|row| row.bytes.as_chunks::<BYTES>().1));
    let (y, y_rest) = y.as_chunks_mut::<32>();
    let w = w.map(|w| &w[..y.len()]);
    let a = a.map(|a| _mm512_set1_ps(a));
    for (at, y) in y.iter_mut().enumerate() {
        let [mut y0, mut y1] = load(y);
        for k in 0..4 {
            prefetch(&w[k][at], aheads[k]);
            let [w0, w1] = weights(&w[k][at]);
            y0 = _mm512_fmadd_ps(a[k], w0, y0);
            y1 = _mm512_fmadd_ps(a[k], w1, y1);
        }
        store(y, [y0, y1]);
    }
    if !y_rest.is_empty() {
        let mut y = padded(y_rest);
        let [mut y0, mut y1] = load(&y);
        for k in 0..4 {
            let [w0, w1] = weights(&padded(rests[k]));
            y0 = _mm512_fmadd_ps(a[k], w0, y0);
            y1 = _mm512_fmadd_ps(a[k], w1, y1);
        }
        store(&mut y, [y0, y1]);
        y_rest.copy_from_slice(&y[..y_rest.len()]);
    }
}

/// [`axpy_4_with`] over blocks that begin with their scale; sixteen scales are converted at once.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
fn axpy_4_blocks<const BYTES: usize>(
    a: [f32; 4],
    rows: [Row<'_>; 4],
    y: &mut [f32],
    weights: impl Fn(__m512, &[u8; BYTES]) -> [__m512; 2],
) {
    let aheads = rows.map(|row| row.ahead());
    let (y16, y_rest) = y.as_chunks_mut::<{ 32 * BLOCKS }>();
    let w16 = rows.map(|row| &row.bytes.as_chunks::<BYTES>().0.as_chunks::<BLOCKS>().0[..y16.len()]);
    let of_rows = a.map(|a| _mm512_set1_ps(a));
    for (group, y) in y16.iter_mut().enumerate() {
        let mut scales = [[0.0; BLOCKS]; 4];
        for k in 0..4 {
            let converted = rounded::row_scales(&w16[k][group]);
            // SAFETY: the array is valid for 64 bytes; the store needs no alignment.
            unsafe { _mm512_storeu_ps(scales[k].as_mut_ptr(), converted) };
        }
        for (at, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let [mut y0, mut y1] = load(y);
            for k in 0..4 {
                let w = &w16[k][group][at];
                prefetch(w, aheads[k]);
                let [w0, w1] = weights(_mm512_set1_ps(scales[k][at]), w);
                y0 = _mm512_fmadd_ps(of_rows[k], w0, y0);
                y1 = _mm512_fmadd_ps(of_rows[k], w1, y1);
            }
            store(y, [y0, y1]);
        }
    }
    let done = y16.len() * BLOCKS * BYTES;
    let rests = rows.map(|row| {
        let next = row.next.get(done..).unwrap_or(row.next);
        Row { bytes: &row.bytes[done..], next, ..row }
    });
    axpy_4_with(a, rests, y_rest, |w: &[u8; BYTES]| weights(scale([w[0], w[1]]), w));
}

// ---- 32 weights of each format ----

#[inline]
#[target_feature(enable = "avx512f")]
fn f32_weights(bytes: &[u8; 128]) -> [__m512; 2] {
    let [low, high] = cast_ref::<_, [[u8; 64]; 2]>(bytes);
    [_mm512_castsi512_ps(load_64(low)), _mm512_castsi512_ps(load_64(high))]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn f16_weights(bytes: &[u8; 64]) -> [__m512; 2] {
    let [low, high] = cast_ref::<_, [[u8; 32]; 2]>(bytes);
    [_mm512_cvtph_ps(load_32(low)), _mm512_cvtph_ps(load_32(high))]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn bf16_weights(bytes: &[u8; 64]) -> [__m512; 2] {
    let [low, high] = cast_ref::<_, [[u8; 32]; 2]>(bytes);
    [upper_halves(low), upper_halves(high)]
}

/// A BF16 is the upper half of an `f32`.
#[inline]
#[target_feature(enable = "avx512f")]
fn upper_halves(bytes: &[u8; 32]) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load_32(bytes))))
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn q8_0_weights(block: &[u8; 34]) -> [__m512; 2] {
    q8_0_scaled(scale([block[0], block[1]]), block)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn q8_0_scaled(d: __m512, [_, _, q @ ..]: &[u8; 34]) -> [__m512; 2] {
    let [low, high] = cast_ref::<_, [[u8; 16]; 2]>(q);
    [scaled(d, low), scaled(d, high)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn scaled(d: __m512, q: &[u8; 16]) -> __m512 {
    _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(q))))
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn q4_0_weights([d0, d1, q @ ..]: &[u8; 18]) -> [__m512; 2] {
    q4_0_scaled(scale([*d0, *d1]), q)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn q4_0_scaled(d: __m512, q: &[u8; 16]) -> [__m512; 2] {
    let steps = _mm512_setr_ps(-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.);
    let values = _mm512_mul_ps(d, steps);
    let low = _mm512_cvtepu8_epi32(load_16(q));
    let high = _mm512_srli_epi32::<4>(low);
    // the permutation reads the low four bits of an index and ignores the rest
    [_mm512_permutexvar_ps(low, values), _mm512_permutexvar_ps(high, values)]
}

/// A block's scale in every lane.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn scale(d: [u8; 2]) -> __m512 {
    _mm512_cvtph_ps(_mm256_set1_epi16(i16::from_le_bytes(d)))
}

// ---- signs ----

#[target_feature(enable = "avx512f,avx512vpopcntdq")]
fn sign_mismatch(a: &[u64], b: &[u64]) -> u32 {
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    let mut sums = _mm512_setzero_si512();
    for (a, b) in a8.iter().zip(b8) {
        let differ = _mm512_xor_si512(load_64(cast_ref(a)), load_64(cast_ref(b)));
        sums = _mm512_add_epi64(sums, _mm512_popcnt_epi64(differ));
    }
    _mm512_reduce_add_epi64(sums) as u32 + Scalar.sign_mismatch(a_rest, b_rest)
}

#[target_feature(enable = "avx512f")]
fn read(w: Row<'_>) -> u64 {
    let (chunks, rest) = w.bytes.as_chunks::<256>();
    let ahead = w.ahead();
    let mut lanes = [_mm512_setzero_si512(); 4];
    let take = |chunk: &[u8; 256], lanes: &mut [__m512i; 4]| {
        let registers: &[[u8; 64]; 4] = cast_ref(chunk);
        for i in 0..4 {
            lanes[i] = _mm512_xor_si512(lanes[i], load_64(&registers[i]));
        }
    };
    for chunk in chunks {
        prefetch(chunk, ahead);
        take(chunk, &mut lanes);
    }
    take(&padded(rest), &mut lanes);
    let all = _mm512_xor_si512(_mm512_xor_si512(lanes[0], lanes[1]), _mm512_xor_si512(lanes[2], lanes[3]));
    let mut words = [0_u64; 8];
    // SAFETY: the array is valid for 64 bytes; the store needs no alignment.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), all) };
    words.into_iter().fold(0, |all, word| all ^ word)
}

// ---- sums of lanes ----

/// The sum of the lanes of each, in the order of [`_mm512_reduce_add_ps`]: halves, then quarters, then pairs.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn add_up([a, b, c, d]: [__m512; 4]) -> [f32; 4] {
    let halves = |a, b| {
        let (low, high) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
        _mm512_add_ps(low, high)
    };
    let (ab, cd) = (halves(a, b), halves(c, d));
    let (even, odd) = (_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
    let quarters = _mm512_add_ps(even, odd);
    let pairs = _mm512_add_ps(quarters, _mm512_permute_ps::<0x4e>(quarters));
    let ones = _mm512_add_ps(pairs, _mm512_permute_ps::<0xb1>(pairs));
    let first =
        _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), ones);
    bytemuck::cast(_mm512_castps512_ps128(first))
}

// ---- memory to registers and back ----

/// At most 64 bytes, padded with zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_bytes(bytes: &[u8]) -> __m512i {
    let mask = if bytes.len() < 64 { (1 << bytes.len()) - 1 } else { u64::MAX };
    // SAFETY: a masked lane is not read, and the mask has no more lanes than there are bytes.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(x: &[f32; 32]) -> [__m512; 2] {
    f32_weights(cast_ref(x))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(y: &mut [f32; 32], [low, high]: [__m512; 2]) {
    let [y_low, y_high] = cast_mut::<_, [[f32; 16]; 2]>(y);
    store_64(y_low, low);
    store_64(y_high, high);
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_64(y: &mut [f32; 16], new: __m512) {
    // SAFETY: the reference is valid for 64 bytes; the store needs no alignment.
    unsafe { _mm512_storeu_ps(y.as_mut_ptr(), new) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_64(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the reference is valid for 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx")]
fn load_32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference is valid for 32 bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}
