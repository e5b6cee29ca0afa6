//! NEON for the shared kernels: 32 bytes in two registers and 32 floats in eight ([`super::super::parts`]).

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::aarch64::*;
use std::arch::asm;

use bytemuck::{cast, cast_ref};

use super::super::parts::{Multiply, Unpack, Values32};
use super::k_block::halves as load_32_bytes;
use super::{load, load_16, prefetch, scale, store};

/// Pairs of registers. `DOT` says whether one instruction sums four products of bytes (`sdot`). A value of
/// this type proves that the processor has NEON, and `dotprod` if `DOT` is true.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers<const DOT: bool>(());

impl Registers<false> {
    /// The proof: only code with these target features can call this.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn here() -> Self {
        Self(())
    }
}

impl Registers<true> {
    /// The proof: only code with these target features can call this.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    pub(super) fn here() -> Self {
        Self(())
    }
}

/// Thirty-two bytes.
type Bytes = [uint8x16_t; 2];
/// One float for each half of the values, in every lane.
type Pair = [float32x4_t; 2];

impl<const DOT: bool> Unpack for Registers<DOT> {
    type Bytes = Bytes;
    type Pair = Pair;

    #[inline(always)]
    fn load(self, bytes: &[u8; 32]) -> Bytes {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { load_32_bytes(bytes) }
    }

    #[inline(always)]
    fn store(self, bytes: Bytes) -> [u8; 32] {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { store_bytes(bytes) }
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 16]) -> Bytes {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { nibbles(bytes) }
    }

    #[inline(always)]
    fn shifted(self, bytes: Bytes, down: i32, mask: u8) -> Bytes {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { shifted(bytes, down, mask) }
    }

    #[inline(always)]
    fn spread(self, bits: [u8; 4], value: u8) -> Bytes {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { spread(bits, value) }
    }

    #[inline(always)]
    fn eights(self, groups: [u64; 4]) -> Bytes {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { eights(groups) }
    }

    #[inline(always)]
    fn plus(self, a: Bytes, b: Bytes) -> Bytes {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { plus(a, b) }
    }

    #[inline(always)]
    fn third(self, bytes: Bytes) -> Bytes {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { third(bytes) }
    }

    #[inline(always)]
    fn or(self, a: Bytes, b: Bytes) -> Bytes {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { or(a, b) }
    }

    #[inline(always)]
    fn less(self, bytes: Bytes, by: u8) -> Bytes {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { less(bytes, by) }
    }

    #[inline(always)]
    fn negated(self, bytes: Bytes, signs: Bytes) -> Bytes {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { negated(bytes, signs) }
    }

    #[inline(always)]
    fn look_up(self, table: &[i8; 16], at: Bytes) -> Bytes {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { look_up(table, at) }
    }

    #[inline(always)]
    fn half(self, bits: [u8; 2]) -> Pair {
        // SAFETY: `self` exists, so the processor has the instructions.
        [unsafe { scale(bits) }; 2]
    }

    #[inline(always)]
    fn pair(self, floats: [f32; 2]) -> Pair {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { pair(floats) }
    }

    #[inline(always)]
    fn floats(self, pair: Pair) -> [f32; 2] {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { floats(pair) }
    }
}

impl<const DOT: bool> Multiply for Registers<DOT> {
    type Floats = super::Registers;
    type Sums = Pair;

    #[inline(always)]
    fn prefetch<W>(self, weights: &W, ahead: usize) {
        prefetch(weights, ahead);
    }

    #[inline(always)]
    fn load_floats(self, from: &[f32; 32]) -> super::Registers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { load(from) }
    }

    #[inline(always)]
    fn store_floats(self, floats: super::Registers, to: &mut [f32; 32]) {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { store(to, floats) }
    }

    #[inline(always)]
    fn values(self, part: Values32<Self>, _: bool, minima: bool) -> super::Registers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { values(part.steps, part.scale, part.minimum, minima) }
    }

    #[inline(always)]
    fn multiply_add(self, a: super::Registers, b: super::Registers, c: super::Registers) -> super::Registers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { multiply_add(a, b, c) }
    }

    #[inline(always)]
    fn add_scaled(self, a: f32, w: super::Registers, y: super::Registers) -> super::Registers {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { super::add_scaled(y, a, w) }
    }

    #[inline(always)]
    fn total(self, floats: super::Registers) -> f32 {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { total(floats) }
    }

    #[inline(always)]
    fn times(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { times(a, b) }
    }

    #[inline(always)]
    fn pair_add(self, a: Pair, b: Pair, c: Pair) -> Pair {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { pair_add(a, b, c) }
    }

    #[inline(always)]
    fn no_sums(self) -> Pair {
        self.pair([0.0; 2])
    }

    #[inline(always)]
    fn add_whole(self, sums: Pair, steps: Bytes, x: &[i8; 32], worth: Pair, _: bool, halves: bool) -> Pair {
        // SAFETY: `self` exists, so the processor has the instructions.
        let x = unsafe { load_32_bytes(cast_ref(x)) };
        let whole = if DOT {
            // SAFETY: `self` exists, so the processor has the instructions, `dotprod` among them.
            unsafe { dots(steps, x) }
        } else {
            // SAFETY: `self` exists, so the processor has the instructions.
            unsafe { widened(steps, x) }
        };
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { add_whole(sums, whole, worth, halves) }
    }

    #[inline(always)]
    fn total_sums(self, sums: Pair) -> f32 {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { total_sums(sums) }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn store_bytes(bytes: Bytes) -> [u8; 32] {
    let [low, high] = bytes.map(|bytes| vreinterpretq_u64_u8(bytes));
    cast([
        vgetq_lane_u64::<0>(low),
        vgetq_lane_u64::<1>(low),
        vgetq_lane_u64::<0>(high),
        vgetq_lane_u64::<1>(high),
    ])
}

#[inline]
#[target_feature(enable = "neon")]
fn nibbles(bytes: &[u8; 16]) -> Bytes {
    let bytes = load_16(bytes);
    [vandq_u8(bytes, vdupq_n_u8(0xf)), vshrq_n_u8::<4>(bytes)]
}

#[inline]
#[target_feature(enable = "neon")]
fn shifted(bytes: Bytes, down: i32, mask: u8) -> Bytes {
    bytes.map(|bytes| vandq_u8(vshlq_u8(bytes, vdupq_n_s8(-down as i8)), vdupq_n_u8(mask)))
}

/// Each of four bytes repeated in eight bytes, each keeping a different bit.
#[inline]
#[target_feature(enable = "neon")]
fn spread([b0, b1, b2, b3]: [u8; 4], value: u8) -> Bytes {
    let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
    let set = |low: u8, high: u8| {
        let places = vcombine_u8(vdup_n_u8(low), vdup_n_u8(high));
        vandq_u8(vtstq_u8(places, bit), vdupq_n_u8(value))
    };
    [set(b0, b1), set(b2, b3)]
}

#[inline]
#[target_feature(enable = "neon")]
fn or(a: Bytes, b: Bytes) -> Bytes {
    [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])]
}

#[inline]
#[target_feature(enable = "neon")]
fn eights([a, b, c, d]: [u64; 4]) -> Bytes {
    let two = |low: u64, high: u64| vcombine_u8(vcreate_u8(low), vcreate_u8(high));
    [two(a, b), two(c, d)]
}

#[inline]
#[target_feature(enable = "neon")]
fn plus(a: Bytes, b: Bytes) -> Bytes {
    [vaddq_u8(a[0], b[0]), vaddq_u8(a[1], b[1])]
}

/// Three times a byte exceeds 256 from 86 on, and 512 from 171 on.
#[inline]
#[target_feature(enable = "neon")]
fn third(bytes: Bytes) -> Bytes {
    let from = |bytes, least: u8| vshrq_n_u8::<7>(vcgeq_u8(bytes, vdupq_n_u8(least)));
    bytes.map(|bytes| vaddq_u8(from(bytes, 86), from(bytes, 171)))
}

#[inline]
#[target_feature(enable = "neon")]
fn less(bytes: Bytes, by: u8) -> Bytes {
    bytes.map(|bytes| vsubq_u8(bytes, vdupq_n_u8(by)))
}

#[inline]
#[target_feature(enable = "neon")]
fn negated(bytes: Bytes, signs: Bytes) -> Bytes {
    let negated = |bytes, signs| vsubq_u8(veorq_u8(bytes, signs), signs);
    [negated(bytes[0], signs[0]), negated(bytes[1], signs[1])]
}

#[inline]
#[target_feature(enable = "neon")]
fn look_up(table: &[i8; 16], at: Bytes) -> Bytes {
    let table = load_16(cast_ref(table));
    at.map(|at| vqtbl1q_u8(table, at))
}

#[inline]
#[target_feature(enable = "neon")]
fn pair([low, high]: [f32; 2]) -> Pair {
    [vdupq_n_f32(low), vdupq_n_f32(high)]
}

#[inline]
#[target_feature(enable = "neon")]
fn floats([low, high]: Pair) -> [f32; 2] {
    [vgetq_lane_f32::<0>(low), vgetq_lane_f32::<0>(high)]
}

#[inline]
#[target_feature(enable = "neon")]
fn values(steps: Bytes, scale: Pair, minimum: Pair, minima: bool) -> super::Registers {
    let mut values = super::scaled(scale, steps.map(|steps| vreinterpretq_s8_u8(steps)));
    if minima {
        for i in 0..8 {
            values[i] = vsubq_f32(values[i], minimum[i / 4]); // of an exact product
        }
    }
    values
}

#[inline]
#[target_feature(enable = "neon")]
fn multiply_add(a: super::Registers, b: super::Registers, mut c: super::Registers) -> super::Registers {
    for i in 0..8 {
        c[i] = vfmaq_f32(c[i], a[i], b[i]);
    }
    c
}

#[inline]
#[target_feature(enable = "neon")]
fn total(floats: super::Registers) -> f32 {
    let pair = |i: usize| vaddq_f32(floats[i], floats[i + 1]);
    vaddvq_f32(vaddq_f32(vaddq_f32(pair(0), pair(2)), vaddq_f32(pair(4), pair(6))))
}

#[inline]
#[target_feature(enable = "neon")]
fn times(a: Pair, b: Pair) -> Pair {
    [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])]
}

#[inline]
#[target_feature(enable = "neon")]
fn pair_add(a: Pair, b: Pair, c: Pair) -> Pair {
    [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])]
}

/// Sums of four products, for each half.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dots([w0, w1]: Bytes, [x0, x1]: Bytes) -> [int32x4_t; 2] {
    let [mut low, mut high] = [vdupq_n_s32(0); 2];
    // SAFETY: the function has the target feature; the instructions read registers and change two.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {2:v}.16b, {3:v}.16b",
            "sdot {1:v}.4s, {4:v}.16b, {5:v}.16b",
            inout(vreg) low, inout(vreg) high, in(vreg) w0, in(vreg) x0, in(vreg) w1, in(vreg) x1,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    [low, high]
}

/// Sums of four products, each at most 127 times 127, for each half.
#[inline]
#[target_feature(enable = "neon")]
fn widened(w: Bytes, x: Bytes) -> [int32x4_t; 2] {
    let half = |w: uint8x16_t, x: uint8x16_t| {
        let (w, x) = (vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(x));
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
        vpadalq_s16(low, vmull_high_s8(w, x))
    };
    [half(w[0], x[0]), half(w[1], x[1])]
}

#[inline]
#[target_feature(enable = "neon")]
fn add_whole(sums: Pair, [low, high]: [int32x4_t; 2], worth: Pair, halves: bool) -> Pair {
    if halves {
        let add = |i: usize, whole| vfmaq_f32(sums[i], vcvtq_f32_s32(whole), worth[i]);
        [add(0, low), add(1, high)]
    } else {
        [vfmaq_f32(sums[0], vcvtq_f32_s32(vaddq_s32(low, high)), worth[0]), sums[1]]
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn total_sums([low, high]: Pair) -> f32 {
    vaddvq_f32(vaddq_f32(low, high))
}
