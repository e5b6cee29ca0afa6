//! NEON: 32 weights at a time, in eight registers; products of bytes by the fastest instruction of the
//! processor.
//!
//! ```text
//! for 32 weights w, stored in BYTES bytes:
//!     w0..w7 = weights(bytes)              the values of the format's definition, to the bit
//!     dot:   sum0 += w0 * x0 ... sum7 += w7 * x7
//!     axpy:  y0 += a * w0    ... y7 += a * w7
//! ```
//!
//! 1. A format is one function from its bytes to eight registers of `f32`; the loops are written once, over
//!    that function.
//! 2. Only formats without blocks can leave a remainder shorter than 32. It is padded with zeros and takes
//!    the same path, so a result does not depend on where a row is cut.
//! 3. Weights are prefetched a little ahead, as `avx2` explains.
//! 4. Three instruction sets share these loops. They differ in how four or eight bytes are multiplied and
//!    summed (`neon/bytes.rs`). Integers are exact, so all three return the same bits.
//!
//! Formats without kernels of their own here use the shared loops of [`super::parts`].
//!
//! A scale times a quantised value has at most 19 significant bits, so the product is exact in `f32`.
#![expect(unsafe_code, reason = "vector loads and stores, and entering a target_feature context")]

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;
use std::ops::Range;

use bytemuck::{cast, cast_ref};

use super::prefetch::{prefetch, prefetch_line};
use super::scalar::Scalar;
use super::{
    Down, Form, InstructionSet, Kernels, Matrix, Packed, Rounded, Row, add_some_at_a_time, assert_added,
    assert_few, assert_rows, assert_sums, assert_transposed, dots_one_by_one, padded, parts, sum_of_four,
};
use crate::format::Format;

mod bytes;
mod few;
mod interleaved;
mod k_block;
mod products;
mod registers;
mod transposed;

/// Thirty-two floats.
type Registers = [float32x4_t; 8];

/// Proof that the processor has NEON and this multiplication of bytes; only [`Neon::detect`] makes one.
#[derive(Debug)]
pub(super) struct Neon {
    bytes: Bytes,
}

/// The instructions that multiply bytes.
#[derive(Clone, Copy, Debug)]
enum Bytes {
    /// Products in 16 bits, summed in 32 (`smull`).
    Widened,
    /// Four products of bytes summed by one instruction (`sdot`).
    Dot,
    /// A 2x8 times an 8x2 matrix of bytes (`smmla`); a single vector uses [`Bytes::Dot`].
    Matrix,
}

impl Neon {
    /// The proof for this instruction set, if the processor has it.
    pub(super) fn detect(instruction_set: InstructionSet) -> Option<&'static Self> {
        let neon = is_aarch64_feature_detected!("neon");
        let dotprod = neon && is_aarch64_feature_detected!("dotprod");
        match instruction_set {
            InstructionSet::Neon if neon => Some(&Self { bytes: Bytes::Widened }),
            InstructionSet::Dotprod if dotprod => Some(&Self { bytes: Bytes::Dot }),
            InstructionSet::I8mm if dotprod && is_aarch64_feature_detected!("i8mm") => {
                Some(&Self { bytes: Bytes::Matrix })
            }
            _ => None,
        }
    }
}

impl Kernels for Neon {
    fn instruction_set(&self) -> InstructionSet {
        match self.bytes {
            Bytes::Widened => InstructionSet::Neon,
            Bytes::Dot => InstructionSet::Dotprod,
            Bytes::Matrix => InstructionSet::I8mm,
        }
    }

    fn dot(&self, w: Row<'_>, x: &[f32]) -> f32 {
        w.assert_values(x.len());
        // SAFETY: `self` exists, so `detect` has seen NEON.
        unsafe { dot(w, x) }
    }

    fn rows(&self, w: Matrix<'_>, start: usize, x: &[f32], out: &mut [f32]) {
        assert_rows(w, start, x, out);
        // SAFETY: `self` exists, so `detect` has seen NEON.
        unsafe { rows(w, start, x, out) }
    }

    fn dots(&self, w: Matrix<'_>, rows: Range<usize>, x: &[f32], out: &mut [f32]) {
        if !few::takes(w) {
            return dots_one_by_one(w, rows, x, out, |w, x| self.dot(w, x));
        }
        let places = assert_few(w, &rows, x, out);
        // SAFETY: `self` exists, so `detect` has seen NEON.
        unsafe { few::dots(w, rows, x, out, places) }
    }

    fn add_few(&self, a: &[f32], w: Matrix<'_>, rows: Range<usize>, y: &mut [f32]) {
        if !few::takes(w) {
            return add_some_at_a_time(self, a, w, rows, y);
        }
        let places = assert_few(w, &rows, y, a);
        // SAFETY: `self` exists, so `detect` has seen NEON.
        unsafe { few::add(a, places, w, rows, y) }
    }

    fn axpy(&self, a: f32, w: Row<'_>, y: &mut [f32]) {
        w.assert_values(y.len());
        // SAFETY: `self` exists, so `detect` has seen NEON.
        unsafe { axpy([a], [w], y) }
    }

    fn dot_rounded(&self, w: Row<'_>, x: Rounded<'_>) -> f32 {
        x.assert_meets(w);
        match self.bytes {
            // SAFETY: `self` exists, so `detect` has seen NEON.
            Bytes::Widened => unsafe { bytes::dot_widened(w, x) },
            // SAFETY: both variants exist only where `detect` has seen `dotprod`.
            Bytes::Dot | Bytes::Matrix => unsafe { bytes::dot_dotprod(w, x) },
        }
    }

    fn products(&self, w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]) {
        match (x.form, self.bytes) {
            // SAFETY: `self` exists, so `detect` has seen NEON.
            (Form::F32, _) => unsafe { products::products(w, x, out) },
            // SAFETY: as above.
            (Form::Q8, Bytes::Widened) => unsafe { bytes::products_widened(w, x, out) },
            // SAFETY: the variant exists only where `detect` has seen `dotprod`.
            (Form::Q8, Bytes::Dot) => unsafe { bytes::products_dotprod(w, x, out) },
            // SAFETY: the variant exists only where `detect` has seen `i8mm`.
            (Form::Q8, Bytes::Matrix) => unsafe { bytes::products_i8mm(w, x, out) },
        }
    }

    fn add_products(&self, a: &[f32], count: usize, vectors: Range<usize>, w: &[Row<'_>], y: &mut [f32]) {
        let columns = assert_sums(a, count, &vectors, w, y);
        // SAFETY: `self` exists, so `detect` has seen NEON.
        unsafe { products::add_products(a, count, vectors.start, w, y, columns) }
    }

    /// Every 64-bit Arm compiler counts bits in vectors.
    fn down(&self) -> &dyn Down {
        self
    }

    fn sign_mismatch(&self, a: &[u64], b: &[u64]) -> u32 {
        Scalar.sign_mismatch(a, b)
    }
}

impl Down for Neon {
    fn add_four(&self, a: [f32; 4], w: [Row<'_>; 4], sum: &mut [f32]) {
        let (sum, _) = sum_of_four(w, sum);
        // SAFETY: `self` exists, so `detect` has seen NEON.
        unsafe { axpy(a, w, sum) }
    }

    fn add_rounded(&self, a: &[f32], w: &[Row<'_>], y: &mut [f32]) {
        assert_added(a, w, y);
        // SAFETY: `self` exists, so `detect` has seen NEON.
        unsafe { interleaved::add_rounded(a, w, y) }
    }

    fn transposes(&self, format: Format) -> bool {
        format == Format::Q4_0X4
    }

    fn add_transposed(&self, w: &[Row<'_>], start: usize, x: Packed<'_>, out: &mut [f32]) {
        assert_transposed(w, start, x, out);
        match self.bytes {
            // SAFETY: `self` exists, so `detect` has seen NEON.
            Bytes::Widened => unsafe { transposed::add_widened(w, start, x, out) },
            // SAFETY: the variant exists only where `detect` has seen `dotprod`.
            Bytes::Dot => unsafe { transposed::add_dotprod(w, start, x, out) },
            // SAFETY: the variant exists only where `detect` has seen `i8mm`.
            Bytes::Matrix => unsafe { transposed::add_i8mm(w, start, x, out) },
        }
    }
}

/// Rows in order, without a function call for each.
#[target_feature(enable = "neon")]
fn rows(w: Matrix<'_>, start: usize, x: &[f32], out: &mut [f32]) {
    for (at, out) in (start..).zip(out) {
        *out = dot(w.row(at), x);
    }
}

#[target_feature(enable = "neon")]
fn dot(w: Row<'_>, x: &[f32]) -> f32 {
    match w.format {
        Format::F32 => dot_with(w, x, |w| f32_weights(w)),
        Format::F16 => dot_with(w, x, |w| f16_weights(w)),
        Format::BF16 => dot_with(w, x, |w| bf16_weights(w)),
        Format::Q8_0 => dot_with(w, x, |w| q8_0_weights(w)),
        Format::Q4_0 => dot_with(w, x, |w| q4_0_weights(w)),
        Format::Q4_0X4 => interleaved::dot(w, x),
        Format::Q6K | Format::Q4K => k_block::dot(w, x),
        _ => parts::dot(registers::Registers::<false>::here(), w, x),
    }
}

/// `R` times axpy, in order for each value.
#[target_feature(enable = "neon")]
fn axpy<const R: usize>(a: [f32; R], w: [Row<'_>; R], y: &mut [f32]) {
    match w[0].format {
        Format::F32 => axpy_with(a, w, y, |w| f32_weights(w)),
        Format::F16 => axpy_with(a, w, y, |w| f16_weights(w)),
        Format::BF16 => axpy_with(a, w, y, |w| bf16_weights(w)),
        Format::Q8_0 => axpy_with(a, w, y, |w| q8_0_weights(w)),
        Format::Q4_0 => axpy_with(a, w, y, |w| q4_0_weights(w)),
        Format::Q4_0X4 => interleaved::axpy(a, w, y),
        Format::Q6K | Format::Q4K => k_block::axpy(a, w, y),
        _ => {
            for k in 0..R {
                parts::axpy(registers::Registers::<false>::here(), a[k], w[k], y);
            }
        }
    }
}

/// Values `start..start + out.len()` of a row.
#[inline]
#[target_feature(enable = "neon")]
fn unpack(row: &Row<'_>, start: usize, out: &mut [f32]) {
    let bytes = &row.bytes[row.place(start)..row.place(start + out.len())];
    match row.format {
        Format::F32 => unpack_with(bytes, out, |w| f32_weights(w)),
        Format::F16 => unpack_with(bytes, out, |w| f16_weights(w)),
        Format::BF16 => unpack_with(bytes, out, |w| bf16_weights(w)),
        Format::Q8_0 => unpack_with(bytes, out, |w| q8_0_weights(w)),
        Format::Q4_0 => unpack_with(bytes, out, |w| q4_0_weights(w)),
        Format::Q4_0X4 => interleaved::unpack(row, start, out),
        Format::Q6K | Format::Q4K => k_block::unpack(row, start, out),
        _ => parts::unpack(registers::Registers::<false>::here(), row, start, out),
    }
}

/// `sum of w[i] * x[i]`, eight sums of four lanes in flight.
#[inline]
#[target_feature(enable = "neon")]
fn dot_with<const BYTES: usize>(row: Row<'_>, x: &[f32], weights: impl Fn(&[u8; BYTES]) -> Registers) -> f32 {
    let ahead = row.ahead();
    let (w, w_rest) = row.bytes.as_chunks::<BYTES>();
    let (x, x_rest) = x.as_chunks::<32>();
    let mut sums = [vdupq_n_f32(0.0); 8];
    let mut add = |w: &[u8; BYTES], x: &[f32; 32]| {
        let (w, x) = (weights(w), load(x));
        for i in 0..8 {
            sums[i] = vfmaq_f32(sums[i], w[i], x[i]);
        }
    };
    for (w, x) in w.iter().zip(x) {
        prefetch(w, ahead);
        add(w, x);
    }
    if !x_rest.is_empty() {
        add(&padded(w_rest), &padded(x_rest));
    }
    let pair = |i: usize| vaddq_f32(sums[i], sums[i + 1]);
    vaddvq_f32(vaddq_f32(vaddq_f32(pair(0), pair(2)), vaddq_f32(pair(4), pair(6))))
}

/// `y[i] += a[k] * w[k][i]` for ascending `k`, each rounded once; `y` stays in registers.
#[inline]
#[target_feature(enable = "neon")]
fn axpy_with<const BYTES: usize, const R: usize>(
    a: [f32; R],
    rows: [Row<'_>; R],
    y: &mut [f32],
    weights: impl Fn(&[u8; BYTES]) -> Registers,
) {
    let aheads = rows.map(|row| row.ahead());
    let rests = rows.map(|row| row.bytes.as_chunks::<BYTES>().1);
    let (y, y_rest) = y.as_chunks_mut::<32>();
    let w = rows.map(|row| &row.bytes.as_chunks::<BYTES>().0[..y.len()]);
    for (at, y) in y.iter_mut().enumerate() {
        let mut sums = load(y);
        for k in 0..R {
            prefetch(&w[k][at], aheads[k]);
            sums = add_scaled(sums, a[k], weights(&w[k][at]));
        }
        store(y, sums);
    }
    if !y_rest.is_empty() {
        let mut y = padded(y_rest);
        let mut sums = load(&y);
        for k in 0..R {
            sums = add_scaled(sums, a[k], weights(&padded(rests[k])));
        }
        store(&mut y, sums);
        y_rest.copy_from_slice(&y[..y_rest.len()]);
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn add_scaled(mut sums: Registers, a: f32, w: Registers) -> Registers {
    for i in 0..8 {
        sums[i] = vfmaq_n_f32(sums[i], w[i], a);
    }
    sums
}

#[inline]
#[target_feature(enable = "neon")]
fn unpack_with<const BYTES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    weights: impl Fn(&[u8; BYTES]) -> Registers,
) {
    let (w, w_rest) = bytes.as_chunks::<BYTES>();
    let (out, out_rest) = out.as_chunks_mut::<32>();
    for (w, out) in w.iter().zip(out) {
        store(out, weights(w));
    }
    if !out_rest.is_empty() {
        let mut all = [0.0; 32];
        store(&mut all, weights(&padded(w_rest)));
        out_rest.copy_from_slice(&all[..out_rest.len()]);
    }
}

// ---- 32 weights of each format ----

#[inline]
#[target_feature(enable = "neon")]
fn f32_weights(bytes: &[u8; 128]) -> Registers {
    cast_ref::<_, [[u8; 16]; 8]>(bytes).each_ref().map(|bytes| vreinterpretq_f32_u8(load_16(bytes)))
}

#[inline]
#[target_feature(enable = "neon")]
fn f16_weights(bytes: &[u8; 64]) -> Registers {
    let eight = |bytes: &[u8; 16]| {
        let halves = vreinterpretq_f16_u8(load_16(bytes));
        [vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)]
    };
    joined(cast_ref::<_, [[u8; 16]; 4]>(bytes).each_ref().map(eight))
}

/// A BF16 is the upper half of an `f32`.
#[inline]
#[target_feature(enable = "neon")]
fn bf16_weights(bytes: &[u8; 64]) -> Registers {
    let eight = |bytes: &[u8; 16]| {
        let halves = vreinterpretq_u16_u8(load_16(bytes));
        let [low, high] = [vshll_n_u16::<16>(vget_low_u16(halves)), vshll_high_n_u16::<16>(halves)];
        [vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)]
    };
    joined(cast_ref::<_, [[u8; 16]; 4]>(bytes).each_ref().map(eight))
}

#[inline]
#[target_feature(enable = "neon")]
fn q8_0_weights(block: &[u8; 34]) -> Registers {
    scaled([scale([block[0], block[1]]); 2], q8_0_steps(block))
}

#[inline]
#[target_feature(enable = "neon")]
fn q4_0_weights(block: &[u8; 18]) -> Registers {
    scaled([scale([block[0], block[1]]); 2], q4_0_steps(block))
}

/// The integers of a block.
#[inline]
#[target_feature(enable = "neon")]
fn q8_0_steps([_, _, q @ ..]: &[u8; 34]) -> [int8x16_t; 2] {
    cast_ref::<_, [[u8; 16]; 2]>(q).each_ref().map(|q| vreinterpretq_s8_u8(load_16(q)))
}

/// The integers of a block, in the order of their values.
#[inline]
#[target_feature(enable = "neon")]
fn q4_0_steps([_, _, q @ ..]: &[u8; 18]) -> [int8x16_t; 2] {
    let q = load_16(q);
    let signed = |q| vsubq_s8(vreinterpretq_s8_u8(q), vdupq_n_s8(8));
    [signed(vandq_u8(q, vdupq_n_u8(0xf))), signed(vshrq_n_u8::<4>(q))]
}

/// Values of a block: integers times the scale of their half.
#[inline]
#[target_feature(enable = "neon")]
fn scaled([d0, d1]: [float32x4_t; 2], steps: [int8x16_t; 2]) -> Registers {
    let wide = |steps: int8x16_t| [vmovl_s8(vget_low_s8(steps)), vmovl_high_s8(steps)];
    let eight = |d: float32x4_t, steps: int16x8_t| {
        let [low, high] = [vmovl_s16(vget_low_s16(steps)), vmovl_high_s16(steps)];
        [vmulq_f32(d, vcvtq_f32_s32(low)), vmulq_f32(d, vcvtq_f32_s32(high))]
    };
    let [[s0, s1], [s2, s3]] = steps.map(wide);
    joined([eight(d0, s0), eight(d0, s1), eight(d1, s2), eight(d1, s3)])
}

/// A block's scale in every lane.
#[inline]
#[target_feature(enable = "neon")]
fn scale(d: [u8; 2]) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(u16::from_le_bytes(d))))
}

#[inline]
#[target_feature(enable = "neon")]
fn joined([[w0, w1], [w2, w3], [w4, w5], [w6, w7]]: [[float32x4_t; 2]; 4]) -> Registers {
    [w0, w1, w2, w3, w4, w5, w6, w7]
}

// ---- memory to registers and back ----

#[inline]
#[target_feature(enable = "neon")]
fn load(x: &[f32; 32]) -> Registers {
    f32_weights(cast_ref(x))
}

#[inline]
#[target_feature(enable = "neon")]
fn store(y: &mut [f32; 32], new: Registers) {
    for (y, new) in y.as_chunks_mut::<4>().0.iter_mut().zip(new) {
        store_4(y, new);
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_4(x: &[f32; 4]) -> float32x4_t {
    vreinterpretq_f32_u8(load_16(cast_ref(x)))
}

#[inline]
#[target_feature(enable = "neon")]
fn store_4(y: &mut [f32; 4], new: float32x4_t) {
    // SAFETY: the reference is valid for 16 bytes; the store needs no alignment.
    unsafe { vst1q_f32(y.as_mut_ptr(), new) }
}

/// Four integers.
#[inline]
#[target_feature(enable = "neon")]
fn whole_numbers(numbers: int32x4_t) -> [i32; 4] {
    let mut bits = [0.0; 4];
    store_4(&mut bits, vreinterpretq_f32_s32(numbers));
    cast(bits)
}

#[inline]
#[target_feature(enable = "neon")]
fn load_16(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the reference is valid for 16 bytes; the load needs no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}
