//! AVX2, FMA and F16C: 32 weights at a time, in four registers.
//!
//! ```text
//! for 32 weights w, stored in BYTES bytes:
//!     w0..w3 = weights(bytes)              the values of the format's definition, to the bit
//!     dot:   sum0 += w0 * x0 ... sum3 += w3 * x3
//!     axpy:  y0 += a * w0    ... y3 += a * w3
//! ```
//!
//! 1. A format is one function from its bytes to four registers of `f32`; the loops are written once, over
//!    that function. Four sums in flight hide the latency of the fused multiply-add.
//! 2. `Q4_0` subtracts its offset in the multiplication by the scale: `q * d - 8 * d`, rounded once, and
//!    exact.
//! 3. Only formats without blocks can leave a remainder shorter than 32. It is padded with zeros and takes
//!    the same path, so a result does not depend on where a row is cut.
//! 4. Weights are prefetched a little ahead of their use. Unpacking `Q4_0` fills the reorder buffer after a
//!    few hundred bytes, so few memory reads are in flight without prefetching. On a Xeon of 2023,
//!    prefetching doubled one core's throughput for `Q4_0`, from 4.4 to 8.5 GB/s, and raised F16's by a
//!    fifth. The prefetched bytes are [`Row::next`]: the following rows of a matrix, or the next neuron of a
//!    list.
//!
//! Formats without kernels of their own here use the shared loops of [`super::parts`].
//!
//! A scale times a quantised value has at most 19 significant bits, so the product is exact in `f32`.
#![expect(unsafe_code, reason = "vector loads and stores, and entering a target_feature context")]

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use std::ops::Range;

use bytemuck::{cast_mut, cast_ref};

use super::prefetch::prefetch;
use super::{
    Activation, Down, Form, InstructionSet, Kernels, Matrix, Packed, Rounded, Row, SHARING, activation,
    add_some_at_a_time, assert_added, assert_few, assert_rows, assert_sums, assert_transposed,
    dots_one_by_one, padded, parts, softmax, stored_interleaved, sum_of_four,
};
use crate::format::Format;

mod few;
mod interleaved;
pub(super) mod k_block;
pub(super) mod products;
pub(super) mod registers;
mod transposed;

pub(super) use interleaved::add_rounded;
use registers::Registers;
pub(super) use transposed::add_transposed;

/// Short rows multiplied together.
const ROWS: usize = 2;
/// The longest row that counts as short: reading several long rows at once is slower than one at a time.
const SHORT_BYTES: usize = 1024;

/// Proof that the processor has AVX2, FMA, F16C and POPCNT; only [`Avx2::detect`] makes one.
#[derive(Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    /// The proof, if the processor has the instructions.
    pub(super) fn detect() -> Option<&'static Self> {
        let has_all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("popcnt");
        has_all.then_some(&Self(()))
    }
}

impl Kernels for Avx2 {
    fn instruction_set(&self) -> InstructionSet {
        InstructionSet::Avx2
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

    fn exponentials(&self, x: &mut [f32], largest: f32) {
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { exponentials(x, largest) }
    }

    fn activate(&self, activation: Activation, gates: &[f32], ups: &[f32], values: &mut [f32]) {
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { activate(activation, gates, ups, values) }
    }

    fn add_few(&self, a: &[f32], w: Matrix<'_>, rows: Range<usize>, y: &mut [f32]) {
        if !few::takes(w) {
            return add_some_at_a_time(self, a, w, rows, y);
        }
        let places = assert_few(w, &rows, y, a);
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { few::add(a, places, w, rows, y) }
    }

    fn axpy(&self, a: f32, w: Row<'_>, y: &mut [f32]) {
        w.assert_values(y.len());
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { axpy(a, w, y) }
    }

    fn dot_rounded(&self, w: Row<'_>, x: Rounded<'_>) -> f32 {
        x.assert_meets(w);
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { dot_rounded(w, x) }
    }

    fn rows_rounded(&self, w: Matrix<'_>, start: usize, x: Rounded<'_>, out: &mut [f32]) {
        assert!(start + out.len() <= w.rows, "rows_rounded: a row for each output");
        if !out.is_empty() {
            x.assert_meets(w.row(start));
        }
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { rows_rounded(w, start, x, out) }
    }

    fn products(&self, w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]) {
        match x.form {
            // SAFETY: `self` exists, so `detect` has seen the features.
            Form::F32 => unsafe { products::products(w, x, out) },
            // SAFETY: as above.
            Form::Q8 => unsafe { products::byte_products(w, x, out) },
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
        assert_eq!(a.len(), b.len(), "sign_mismatch: lengths differ");
        // SAFETY: `self` exists, so `detect` has seen the features.
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

impl Down for Avx2 {
    fn add_four(&self, a: [f32; 4], w: [Row<'_>; 4], sum: &mut [f32]) {
        let (sum, shared) = sum_of_four(w, sum);
        if w[0].format == Format::Q4_0X4 {
            // SAFETY: `self` exists, so `detect` has seen the features.
            unsafe { interleaved::add_four(a, w, sum, shared) }
        } else {
            a.into_iter().zip(w).for_each(|(a, w)| self.axpy(a, w, sum));
        }
    }

    fn add_rounded(&self, a: &[f32], w: &[Row<'_>], y: &mut [f32]) {
        assert_added(a, w, y);
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { add_rounded(padded(a), w, y) }
    }

    fn settle(&self, format: Format, shared: &[f32], sum: &mut [f32]) {
        assert_eq!(shared.len(), sum.len().div_ceil(SHARING), "settle: a word for those that share it");
        if format == Format::Q4_0X4 {
            // SAFETY: `self` exists, so `detect` has seen the features.
            unsafe { interleaved::settle(shared, sum) }
        }
    }

    fn transposes(&self, format: Format) -> bool {
        format == Format::Q4_0X4
    }

    fn add_transposed(&self, w: &[Row<'_>], start: usize, x: Packed<'_>, out: &mut [f32]) {
        assert_transposed(w, start, x, out);
        // SAFETY: `self` exists, so `detect` has seen the features.
        unsafe { add_transposed(w, start, x, out) }
    }
}

#[inline]
/// Rows in order, without a function call for each.
#[target_feature(enable = "avx2,fma,f16c")]
fn rows(w: Matrix<'_>, start: usize, x: &[f32], out: &mut [f32]) {
    for (at, out) in (start..).zip(out) {
        *out = dot(w.row(at), x);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
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

#[target_feature(enable = "avx2,fma,f16c")]
fn axpy(a: f32, w: Row<'_>, y: &mut [f32]) {
    match w.format {
        Format::F32 => axpy_with(a, w, y, |w| f32_weights(w)),
        Format::F16 => axpy_with(a, w, y, |w| f16_weights(w)),
        Format::BF16 => axpy_with(a, w, y, |w| bf16_weights(w)),
        Format::Q8_0 => axpy_with(a, w, y, |w| q8_0_weights(w)),
        Format::Q4_0 => axpy_with(a, w, y, |w| q4_0_weights(w)),
        Format::Q4_0X4 => interleaved::axpy(a, w, y),
        Format::Q6K | Format::Q4K => k_block::axpy(a, w, y),
        _ => parts::axpy(Registers::<false>::here(), a, w, y),
    }
}

/// [`Kernels::dot_rounded`]; the caller has checked lengths and format.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_rounded(row: Row<'_>, x: Rounded<'_>) -> f32 {
    match row.format {
        Format::Q8_0 | Format::Q4_0 => dot_blocks(row, x),
        Format::Q4_0X4 => {
            let [sum] = interleaved::dots([row], x);
            sum
        }
        Format::Q6K | Format::Q4K => k_block::dot_rounded(row, x),
        _ => parts::dot_rounded(Registers::<false>::here(), row, x),
    }
}

/// Eight partial sums of a block's products in a register, then one multiplication by both scales.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_blocks(row: Row<'_>, x: Rounded<'_>) -> f32 {
    let ahead = row.ahead();
    let blocks = x.values.as_chunks::<32>().0.iter().zip(x.scales);
    let mut sums = _mm256_setzero_ps();
    if row.format == Format::Q4_0 {
        for (w, (x, scale_x)) in row.bytes.as_chunks::<18>().0.iter().zip(blocks) {
            prefetch(w, ahead);
            let [d0, d1, q @ ..] = w;
            let worth = _mm256_mul_ps(scale([*d0, *d1]), _mm256_set1_ps(*scale_x));
            sums = _mm256_fmadd_ps(whole_of_nibbles(q, x), worth, sums);
        }
    } else {
        for (w, (x, scale_x)) in row.bytes.as_chunks::<34>().0.iter().zip(blocks) {
            prefetch(w, ahead);
            let [d0, d1, q @ ..] = w;
            let (w, x) = (_mm256_castps_si256(load_32(q)), load_bytes(x));
            // the sign moves to the vector; at most 2 * 128 * 127: no sum of two saturates
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
            let whole = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            let worth = _mm256_mul_ps(scale([*d0, *d1]), _mm256_set1_ps(*scale_x));
            sums = _mm256_fmadd_ps(whole, worth, sums);
        }
    }
    sum_lanes(sums)
}

/// Short interleaved rows are multiplied together: one starts while the lanes of another are summed.
#[target_feature(enable = "avx2,fma,f16c")]
fn rows_rounded(w: Matrix<'_>, start: usize, x: Rounded<'_>, out: &mut [f32]) {
    let short = w.format == Format::Q4_0X4 && w.format.row_bytes(w.columns) <= SHORT_BYTES;
    let (together, rest) = out.split_at_mut(if short { out.len() / ROWS * ROWS } else { 0 });
    let mut at = start;
    for out in together.as_chunks_mut::<ROWS>().0 {
        *out = interleaved::dots([w.row(at), w.row(at + 1)], x);
        at += ROWS;
    }
    for (at, out) in (at..).zip(rest) {
        *out = dot_rounded(w.row(at), x);
    }
}

/// Eight partial sums of the products of integers with a block's nibbles, less their offset.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn whole_of_nibbles(q: &[u8; 16], x: &[i8; 32]) -> __m256 {
    let (steps, x) = (steps_of_nibbles(q), load_bytes(x));
    // at most 2 * 15 * 127 and 2 * 8 * 127: no sum of two saturates
    let offset = _mm256_maddubs_epi16(_mm256_set1_epi8(8), x);
    let pairs = _mm256_sub_epi16(_mm256_maddubs_epi16(steps, x), offset);
    _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// The nibbles of a block, in the order of their values.
#[inline]
#[target_feature(enable = "avx2")]
fn steps_of_nibbles(q: &[u8; 16]) -> __m256i {
    let low = load_16(q);
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), _mm_srli_epi16::<4>(low));
    _mm256_and_si256(both, _mm256_set1_epi8(0xf))
}

#[inline]
#[target_feature(enable = "f16c")]
fn half_to_single([d0, d1]: [u8; 2]) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes([d0, d1, 0, 0]))))
}

#[inline]
#[target_feature(enable = "avx")]
fn load_bytes(bytes: &[i8; 32]) -> __m256i {
    _mm256_castps_si256(load_32(cast_ref(bytes)))
}

/// `sum of w[i] * x[i]`, four sums of eight lanes in flight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_with<const BYTES: usize>(
    row: Row<'_>,
    x: &[f32],
    weights: impl Fn(&[u8; BYTES]) -> [__m256; 4],
) -> f32 {
    let ahead = row.ahead();
    let (w, w_rest) = row.bytes.as_chunks::<BYTES>();
    let (x, x_rest) = x.as_chunks::<32>();
    let mut sums = [_mm256_setzero_ps(); 4];
    for (w, x) in w.iter().zip(x) {
        prefetch(w, ahead);
        sums = add_products(weights(w), load(x), sums);
    }
    if !x_rest.is_empty() {
        sums = add_products(weights(&padded(w_rest)), load(&padded(x_rest)), sums);
    }
    let [sum0, sum1, sum2, sum3] = sums;
    sum_lanes(_mm256_add_ps(_mm256_add_ps(sum0, sum1), _mm256_add_ps(sum2, sum3)))
}

#[inline]
#[target_feature(enable = "fma")]
fn add_products(w: [__m256; 4], x: [__m256; 4], mut sums: [__m256; 4]) -> [__m256; 4] {
    for i in 0..4 {
        sums[i] = _mm256_fmadd_ps(w[i], x[i], sums[i]);
    }
    sums
}

/// `y[i] += a * w[i]`, rounded once.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn axpy_with<const BYTES: usize>(
    a: f32,
    row: Row<'_>,
    y: &mut [f32],
    weights: impl Fn(&[u8; BYTES]) -> [__m256; 4],
) {
    let ahead = row.ahead();
    let (w, w_rest) = row.bytes.as_chunks::<BYTES>();
    let (y, y_rest) = y.as_chunks_mut::<32>();
    let a = _mm256_set1_ps(a);
    let add = |w: &[u8; BYTES], y: &mut [f32; 32]| {
        let ([w0, w1, w2, w3], [y0, y1, y2, y3]) = (weights(w), load(y));
        let low = [_mm256_fmadd_ps(a, w0, y0), _mm256_fmadd_ps(a, w1, y1)];
        let high = [_mm256_fmadd_ps(a, w2, y2), _mm256_fmadd_ps(a, w3, y3)];
        store(y, low, high);
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

#[inline]
#[target_feature(enable = "avx,sse3")]
fn sum_lanes(sums: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

// ---- thirty-two weights of each format ----

#[inline]
#[target_feature(enable = "avx")]
fn f32_weights(bytes: &[u8; 128]) -> [__m256; 4] {
    let [b0, b1, b2, b3] = cast_ref::<_, [[u8; 32]; 4]>(bytes);
    [load_32(b0), load_32(b1), load_32(b2), load_32(b3)]
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn f16_weights(bytes: &[u8; 64]) -> [__m256; 4] {
    let [b0, b1, b2, b3] = cast_ref::<_, [[u8; 16]; 4]>(bytes);
    [
        _mm256_cvtph_ps(load_16(b0)),
        _mm256_cvtph_ps(load_16(b1)),
        _mm256_cvtph_ps(load_16(b2)),
        _mm256_cvtph_ps(load_16(b3)),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
fn bf16_weights(bytes: &[u8; 64]) -> [__m256; 4] {
    let [b0, b1, b2, b3] = cast_ref::<_, [[u8; 16]; 4]>(bytes);
    [upper_halves(b0), upper_halves(b1), upper_halves(b2), upper_halves(b3)]
}

/// A BF16 is the upper half of an `f32`.
#[inline]
#[target_feature(enable = "avx2")]
fn upper_halves(bytes: &[u8; 16]) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_16(bytes))))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q8_0_weights([d0, d1, q @ ..]: &[u8; 34]) -> [__m256; 4] {
    let d = scale([*d0, *d1]);
    let [q0, q1, q2, q3] = cast_ref::<_, [[u8; 8]; 4]>(q);
    [scaled(d, q0), scaled(d, q1), scaled(d, q2), scaled(d, q3)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn scaled(d: __m256, q: &[u8; 8]) -> __m256 {
    _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8(q))))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_0_weights([d0, d1, q @ ..]: &[u8; 18]) -> [__m256; 4] {
    nibble_weights(scale([*d0, *d1]), q)
}

/// The 32 weights of a `Q4_0` block: its nibbles, less 8, times its scale.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn nibble_weights(d: __m256, q: &[u8; 16]) -> [__m256; 4] {
    let offset = _mm256_mul_ps(d, _mm256_set1_ps(8.0));
    let [q0, q1] = cast_ref::<_, [[u8; 8]; 2]>(q);
    let (q0, q1) = (_mm256_cvtepu8_epi32(load_8(q0)), _mm256_cvtepu8_epi32(load_8(q1)));
    let low = _mm256_set1_epi32(0xf);
    let (w0, w1) = (_mm256_and_si256(q0, low), _mm256_and_si256(q1, low));
    let (w2, w3) = (_mm256_srli_epi32::<4>(q0), _mm256_srli_epi32::<4>(q1));
    [
        _mm256_fmsub_ps(_mm256_cvtepi32_ps(w0), d, offset),
        _mm256_fmsub_ps(_mm256_cvtepi32_ps(w1), d, offset),
        _mm256_fmsub_ps(_mm256_cvtepi32_ps(w2), d, offset),
        _mm256_fmsub_ps(_mm256_cvtepi32_ps(w3), d, offset),
    ]
}

/// A block's scale in every lane. Converting one lane alone (`half_to_single`) leaves the other lanes
/// undefined. The compiler may take them from any register, such as a sum, and then the next block's scale
/// waits for that sum.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn scale(d: [u8; 2]) -> __m256 {
    _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(d)))
}

// ---- activations and exponentials ----

/// [`Kernels::exponentials`], eight at a time.
#[target_feature(enable = "avx2")]
pub(super) fn exponentials(x: &mut [f32], largest: f32) {
    softmax::exponentials(x, largest);
}

/// [`Kernels::activate`], eight at a time.
#[target_feature(enable = "avx2")]
pub(super) fn activate(activation: Activation, gates: &[f32], ups: &[f32], values: &mut [f32]) {
    activation::activate(activation, gates, ups, values);
}

// ---- signs ----

#[target_feature(enable = "popcnt")]
fn sign_mismatch(a: &[u64], b: &[u64]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum()
}

#[target_feature(enable = "avx2")]
fn read(w: Row<'_>) -> u64 {
    let (chunks, rest) = w.bytes.as_chunks::<128>();
    let ahead = w.ahead();
    let mut lanes = [[0_u64; 4]; 4];
    let take = |chunk: &[u8; 128], lanes: &mut [[u64; 4]; 4]| {
        let words: &[[[u8; 8]; 4]; 4] = cast_ref(chunk);
        for (lane, word) in lanes.as_flattened_mut().iter_mut().zip(words.as_flattened()) {
            *lane ^= u64::from_le_bytes(*word);
        }
    };
    for chunk in chunks {
        prefetch(chunk, ahead);
        take(chunk, &mut lanes);
    }
    take(&padded(rest), &mut lanes);
    lanes.as_flattened().iter().fold(0, |all, &word| all ^ word)
}

// ---- memory to registers and back ----

#[inline]
#[target_feature(enable = "avx")]
fn load(x: &[f32; 32]) -> [__m256; 4] {
    f32_weights(cast_ref(x))
}

#[inline]
#[target_feature(enable = "avx")]
fn store(y: &mut [f32; 32], [new0, new1]: [__m256; 2], [new2, new3]: [__m256; 2]) {
    let [y0, y1, y2, y3] = cast_mut::<_, [[f32; 8]; 4]>(y);
    store_32(y0, new0);
    store_32(y1, new1);
    store_32(y2, new2);
    store_32(y3, new3);
}

#[inline]
#[target_feature(enable = "avx")]
fn load_32(bytes: &[u8; 32]) -> __m256 {
    // SAFETY: the reference is valid for 32 bytes; the load needs no alignment.
    unsafe { _mm256_loadu_ps(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx")]
fn store_32(y: &mut [f32; 8], new: __m256) {
    // SAFETY: the reference is valid for 32 bytes; the store needs no alignment.
    unsafe { _mm256_storeu_ps(y.as_mut_ptr(), new) }
}

#[inline]
#[target_feature(enable = "sse2")]
pub(super) fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference is valid for 16 bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn load_8(bytes: &[u8; 8]) -> __m128i {
    _mm_cvtsi64_si128(i64::from_le_bytes(*bytes))
}
