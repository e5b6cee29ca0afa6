//! The operations of [`super::super::parts`] in AVX2: 32 bytes in a register and 32 floats in four. With VNNI,
//! which AVX-512 adds, one instruction multiplies and sums bytes.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use super::super::parts::{Multiply, Unpack, Values32};
use super::k_block::{load_32_bytes, wide};
use super::{load, load_16, load_bytes, scale, steps_of_nibbles, store, sum_lanes};

/// Registers of 32 bytes, with or without `VNNI`. A value of this type proves that the processor has AVX2,
/// FMA and F16C, and VNNI if the parameter is true.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Registers<const VNNI: bool>(());

impl Registers<false> {
    /// The proof: only code with these target features can call this.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(in super::super) fn here() -> Self {
        Self(())
    }
}

impl Registers<true> {
    /// The proof: only code with these target features can call this.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512vl,avx512vnni")]
    pub(in super::super) fn here() -> Self {
        Self(())
    }
}

impl<const VNNI: bool> Unpack for Registers<VNNI> {
    type Bytes = __m256i;
    type Pair = __m256;

    #[inline(always)]
    fn load(self, bytes: &[u8; 32]) -> __m256i {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { load_32_bytes(bytes) }
    }

    #[inline(always)]
    fn store(self, bytes: __m256i) -> [u8; 32] {
        bytemuck::cast(bytes)
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 16]) -> __m256i {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { steps_of_nibbles(bytes) }
    }

    #[inline(always)]
    fn shifted(self, bytes: __m256i, down: i32, mask: u8) -> __m256i {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { shifted(bytes, down, mask) }
    }

    #[inline(always)]
    fn spread(self, bits: [u8; 4], value: u8) -> __m256i {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { spread(bits, value) }
    }

    #[inline(always)]
    fn eights(self, groups: [u64; 4]) -> __m256i {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { eights(groups) }
    }

    #[inline(always)]
    fn plus(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { plus(a, b) }
    }

    #[inline(always)]
    fn third(self, bytes: __m256i) -> __m256i {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { third(bytes) }
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    fn less(self, bytes: __m256i, by: u8) -> __m256i {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { less(bytes, by) }
    }

    #[inline(always)]
    fn negated(self, bytes: __m256i, signs: __m256i) -> __m256i {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { negated(bytes, signs) }
    }

    #[inline(always)]
    fn look_up(self, table: &[i8; 16], at: __m256i) -> __m256i {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { look_up(table, at) }
    }

    #[inline(always)]
    fn half(self, bits: [u8; 2]) -> __m256 {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { scale(bits) }
    }

    #[inline(always)]
    fn pair(self, [low, high]: [f32; 2]) -> __m256 {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { pair(low, high) }
    }

    #[inline(always)]
    fn both(self, float: f32) -> __m256 {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm256_set1_ps(float) }
    }

    #[inline(always)]
    fn floats(self, pair: __m256) -> [f32; 2] {
        let [low, _, _, _, high, _, _, _]: [f32; 8] = bytemuck::cast(pair);
        [low, high]
    }
}

impl<const VNNI: bool> Multiply for Registers<VNNI> {
    type Floats = [__m256; 4];
    type Sums = __m256;

    #[inline(always)]
    fn prefetch<W>(self, weights: &W, ahead: usize) {
        super::prefetch(weights, ahead);
    }

    #[inline(always)]
    fn load_floats(self, from: &[f32; 32]) -> [__m256; 4] {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { load(from) }
    }

    #[inline(always)]
    fn store_floats(self, [f0, f1, f2, f3]: [__m256; 4], to: &mut [f32; 32]) {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { store(to, [f0, f1], [f2, f3]) }
    }

    #[inline(always)]
    fn values(self, part: Values32<Self>, halves: bool, minima: bool) -> [__m256; 4] {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { values(part.steps, part.scale, part.minimum, halves, minima) }
    }

    #[inline(always)]
    fn multiply_add(self, a: [__m256; 4], b: [__m256; 4], c: [__m256; 4]) -> [__m256; 4] {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { super::add_products(a, b, c) }
    }

    #[inline(always)]
    fn add_scaled(self, a: f32, w: [__m256; 4], y: [__m256; 4]) -> [__m256; 4] {
        self.multiply_add([self.both(a); 4], w, y)
    }

    #[inline(always)]
    fn total(self, floats: [__m256; 4]) -> f32 {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { total(floats) }
    }

    #[inline(always)]
    fn times(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn pair_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn no_sums(self) -> __m256 {
        self.both(0.0)
    }

    #[inline(always)]
    fn add_whole(
        self,
        sums: __m256,
        steps: __m256i,
        x: &[i8; 32],
        worth: __m256,
        signed: bool,
        _: bool,
    ) -> __m256 {
        if VNNI {
            // SAFETY: `self` exists, so the processor has the instructions, VNNI among them.
            unsafe { add_dots(sums, steps, x, worth, signed) }
        } else {
            // SAFETY: `self` exists, so the processor has the instructions.
            unsafe { add_pairs(sums, steps, x, worth, signed) }
        }
    }

    #[inline(always)]
    fn total_sums(self, sums: __m256) -> f32 {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { sum_lanes(sums) }
    }
}

/// Shifts pairs of bytes and applies `mask`, which must exclude the bits that cross a byte boundary.
#[inline]
#[target_feature(enable = "avx2")]
fn shifted(bytes: __m256i, down: i32, mask: u8) -> __m256i {
    let moved = if down < 0 {
        _mm256_sll_epi16(bytes, _mm_cvtsi32_si128(-down))
    } else {
        _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(down))
    };
    _mm256_and_si256(moved, _mm256_set1_epi8(mask.cast_signed()))
}

/// Each of four bytes repeated in eight bytes, each keeping a different bit.
#[inline]
#[target_feature(enable = "avx2")]
fn spread(bits: [u8; 4], value: u8) -> __m256i {
    let all = _mm256_set1_epi32(i32::from_le_bytes(bits));
    let places = _mm256_setr_epi8(
        0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3,
    );
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(all, places), bit), bit);
    _mm256_and_si256(set, _mm256_set1_epi8(value.cast_signed()))
}

/// In registers: a load of 32 bytes would wait for stores of eight.
#[inline]
#[target_feature(enable = "avx2")]
fn eights([a, b, c, d]: [u64; 4]) -> __m256i {
    _mm256_set_epi64x(d.cast_signed(), c.cast_signed(), b.cast_signed(), a.cast_signed())
}

#[inline]
#[target_feature(enable = "avx2")]
fn plus(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi8(a, b)
}

/// Three times a byte exceeds 256 from 86 on, and 512 from 171 on.
#[inline]
#[target_feature(enable = "avx2")]
fn third(bytes: __m256i) -> __m256i {
    let from =
        |least: u8| _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, _mm256_set1_epi8(least.cast_signed())), bytes);
    _mm256_sub_epi8(_mm256_sub_epi8(_mm256_setzero_si256(), from(86)), from(171))
}

#[inline]
#[target_feature(enable = "avx2")]
fn less(bytes: __m256i, by: u8) -> __m256i {
    _mm256_sub_epi8(bytes, _mm256_set1_epi8(by.cast_signed()))
}

#[inline]
#[target_feature(enable = "avx2")]
fn negated(bytes: __m256i, signs: __m256i) -> __m256i {
    _mm256_sub_epi8(_mm256_xor_si256(bytes, signs), signs)
}

#[inline]
#[target_feature(enable = "avx2")]
fn look_up(table: &[i8; 16], at: __m256i) -> __m256i {
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_16(bytemuck::cast_ref(table))), at)
}

#[inline]
#[target_feature(enable = "avx")]
fn pair(low: f32, high: f32) -> __m256 {
    _mm256_set_m128(_mm_set1_ps(high), _mm_set1_ps(low))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn values(steps: __m256i, scale: __m256, minimum: __m256, halves: bool, minima: bool) -> [__m256; 4] {
    let spread = |pair: __m256| {
        if halves {
            [_mm256_permute2f128_ps::<0x00>(pair, pair), _mm256_permute2f128_ps::<0x11>(pair, pair)]
        } else {
            [pair; 2]
        }
    };
    let (mut values, scales, less) = (wide(steps), spread(scale), spread(minimum));
    for i in 0..4 {
        values[i] = if minima {
            _mm256_fmsub_ps(values[i], scales[i / 2], less[i / 2])
        } else {
            _mm256_mul_ps(values[i], scales[i / 2])
        };
    }
    values
}

#[inline]
#[target_feature(enable = "avx,sse3")]
fn total([f0, f1, f2, f3]: [__m256; 4]) -> f32 {
    sum_lanes(_mm256_add_ps(_mm256_add_ps(f0, f1), _mm256_add_ps(f2, f3)))
}

/// Unsigned bytes, and the vector's bytes with the signs moved onto them.
#[inline]
#[target_feature(enable = "avx2")]
fn unsigned(steps: __m256i, x: __m256i, signed: bool) -> [__m256i; 2] {
    if signed { [_mm256_abs_epi8(steps), _mm256_sign_epi8(x, steps)] } else { [steps, x] }
}

/// At most `2 * 127 * 127`: no sum of two products saturates.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_pairs(sums: __m256, steps: __m256i, x: &[i8; 32], worth: __m256, signed: bool) -> __m256 {
    let [w, x] = unsigned(steps, load_bytes(x), signed);
    let whole = _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
    _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), worth, sums)
}

#[inline]
#[target_feature(enable = "avx2,fma,avx512vl,avx512vnni")]
fn add_dots(sums: __m256, steps: __m256i, x: &[i8; 32], worth: __m256, signed: bool) -> __m256 {
    let [w, x] = unsigned(steps, load_bytes(x), signed);
    let whole = _mm256_dpbusd_epi32(_mm256_setzero_si256(), w, x);
    _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), worth, sums)
}
