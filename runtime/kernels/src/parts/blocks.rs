//! Definitions of the blocks.
//!
//! ```text
//!         0      2      4                         20     24  bytes
//! Q4_1    | d:f16 | m:f16 | q: nibbles             |          w = d * q + m
//! Q5_1    | d:f16 | m:f16 | fifth bits: 4 bytes | q: nibbles |  w = d * (q + 16 fifth) + m
//! Q5_0    | d:f16 | fifth bits: 4 bytes | q: nibbles |         w = d * (q + 16 fifth - 16)
//! IQ4_NL  | d:f16 | q: nibbles |                               w = d * UNEVEN[q]
//! MXFP4   | e:u8 | q: nibbles |                                w = 2^(e - 128) * TWICE_E2M1[q]
//!
//! Q5_K    | d:f16 | dmin:f16 | s[8] m[8]: 6 bits | fifth bits: 32 bytes | q: nibbles, 128 bytes |      176 bytes
//!         as Q4_K, the fifth bit of value j of part k being bit k of byte j
//! IQ4_XS  | d:f16 | upper 2 bits of s[8] | lower 4 bits of s[8] | q: nibbles, 16 bytes a part |         136 bytes
//!         w = d * (s[k] - 32) * UNEVEN[q]
//! Q3_K    | upper bits: 32 bytes | q: 2 bits, 64 bytes | s[16]: 6 bits | d:f16 |                       110 bytes
//!         q of part k = bits 2 (k % 4) of bytes 32 (k / 4) on; the upper bit is bit k of byte j
//!         w = d * (s[2 k + j / 16] - 32) * (q + 4 upper - 4)
//! Q2_K    | s[16] m[16]: nibbles of a byte | q: as in Q3_K | d:f16 | dmin:f16 |                         84 bytes
//!         w = d * s[2 k + j / 16] * q - dmin * m[2 k + j / 16]
//!
//!         in the formats of grids a value is a number of a point, one in 8 (16) of the file's; g is the index of a point
//! IQ2_XXS | d:f16 | a part: four g:u8, four times 7 signs, s: 4 bits |                                  66 bytes
//! IQ2_XS  | d:f16 | four a part: g: 9 bits, 7 signs | s[16]: 4 bits |                                   74 bytes
//! IQ2_S   | d:f16 | g:u8, 4 a part | signs, 4 a part | upper 2 bits of g | s[16]: 4 bits |               82 bytes
//! IQ3_XXS | d:f16 | g:u8, 8 a part | a part: four times 7 signs, s: 4 bits |                            98 bytes
//! IQ3_S   | d:f16 | g:u8, 8 a part | upper bit of g | signs, 4 a part | s[8]: 4 bits |                  110 bytes
//!         IQ2: w = d * (s + 1/2) / 4 * point;  IQ3_XXS: d * (s + 1/2) / 2 * point;  IQ3_S: d * (2 s + 1) * point
//!
//! IQ1_S   | d:f16 | g:u8, 4 a part | a part: four upper 3 bits of g, s: 3 bits, a sign |                50 bytes
//! IQ1_M   | g:u8, 4 a part | upper 3 bits of g and a sign, 4 a part | s[16]: 3 bits, d: 4 bits four times |  56 bytes
//!         w = d * (2 s + 1) / 8 * (8 point + sign): numbers of a point are -1, 0 and 1, and the sign shifts all of a part (IQ1_S)
//!         or of a point (IQ1_M)
//! TQ1_0   | q: five of a byte, 48 bytes | q: four of a byte, 4 bytes | d:f16 |                          54 bytes
//!         digit n of a byte is that of its product with 3^n;  w = d * (digit - 1)
//! TQ2_0   | q: as in Q3_K | d:f16 |          w = d * (q - 1)                                            66 bytes
//!
//! NVFP4   | e[4]: E4M3 | q: nibbles, 8 bytes a sixteen |    w = e[j / 16] / 2 * TWICE_E2M1[q]            64 values, 36 bytes
//! Q2_0    | d:f16 | q: 2 bits, four of a byte |             w = d * (q - 1)                              64 values, 18 bytes
//! Q1_0    | d:f16 | q: bits |                               w = d or, where the bit is zero, -d          128 values, 18 bytes
//! ```
//!
//! A byte of nibbles holds values `j` (lower half) and `j + 16`. Seven stored signs imply an eighth, which
//! makes the number of negative signs even.
//!
//! *Source*: ggml, `ggml-common.h` and the functions `dequantize_row_*` of `ggml-quants.c`.

use bytemuck::{Pod, Zeroable};

use super::super::k_block::six_bits;
use super::{Block, Traits, Unpack};

mod few_bits;
mod points;

pub(super) use few_bits::{Iq1M, Iq1S, Nvfp4, Q1_0, Q2_0, Tq1_0, Tq2_0};
pub(super) use points::{Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};

/// The steps of `IQ4_NL` and `IQ4_XS`.
pub(in super::super) const UNEVEN: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values of four-bit floats: two bits of exponent, one of mantissa.
pub(in super::super) const TWICE_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Unsigned steps of `bits` bits in a block that may have minima.
const fn unsigned(bits: u32, halves: bool) -> Traits {
    Traits { signed: false, bits, halves, minima: true }
}

/// Steps that may be negative.
const fn signed(halves: bool) -> Traits {
    Traits { signed: true, bits: 8, halves, minima: false }
}

// ---- 32 values ----

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Q4_1 {
    pub(super) d: [u8; 2],
    pub(super) m: [u8; 2],
    pub(super) q: [u8; 16],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Q5_1 {
    pub(super) d: [u8; 2],
    pub(super) m: [u8; 2],
    pub(super) fifth: [u8; 4],
    pub(super) q: [u8; 16],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Q5_0 {
    pub(super) d: [u8; 2],
    pub(super) fifth: [u8; 4],
    pub(super) q: [u8; 16],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Iq4Nl {
    d: [u8; 2],
    q: [u8; 16],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Mxfp4 {
    pub(super) e: u8,
    pub(super) q: [u8; 16],
}

/// The minimum of a format that adds `m`: `-m`, since minima are subtracted.
fn minimum<U: Unpack>(u: U, [m0, m1]: [u8; 2]) -> U::Pair {
    u.half([m0, m1 ^ 0x80])
}

impl Block for Q4_1 {
    const PARTS: usize = 1;
    const TRAITS: Traits = unsigned(4, false);
    type Begun<U: Unpack> = [U::Pair; 2];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [U::Pair; 2] {
        [u.half(self.d), minimum(u, self.m)]
    }

    #[inline(always)]
    fn scales<U: Unpack>(begun: &[U::Pair; 2], _: U, _: usize) -> [U::Pair; 2] {
        *begun
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, _: usize) -> U::Bytes {
        u.nibbles(&self.q)
    }
}

impl Block for Q5_1 {
    const PARTS: usize = 1;
    const TRAITS: Traits = unsigned(5, false);
    type Begun<U: Unpack> = [U::Pair; 2];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [U::Pair; 2] {
        [u.half(self.d), minimum(u, self.m)]
    }

    #[inline(always)]
    fn scales<U: Unpack>(begun: &[U::Pair; 2], _: U, _: usize) -> [U::Pair; 2] {
        *begun
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, _: usize) -> U::Bytes {
        u.or(u.nibbles(&self.q), u.spread(self.fifth, 16))
    }
}

impl Block for Q5_0 {
    const PARTS: usize = 1;
    const TRAITS: Traits = signed(false);
    type Begun<U: Unpack> = U::Pair;

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> U::Pair {
        u.half(self.d)
    }

    #[inline(always)]
    fn scales<U: Unpack>(begun: &U::Pair, u: U, _: usize) -> [U::Pair; 2] {
        [*begun, u.both(0.0)]
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, _: usize) -> U::Bytes {
        u.less(u.or(u.nibbles(&self.q), u.spread(self.fifth, 16)), 16)
    }
}

impl Block for Iq4Nl {
    const PARTS: usize = 1;
    const TRAITS: Traits = signed(false);
    type Begun<U: Unpack> = U::Pair;

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> U::Pair {
        u.half(self.d)
    }

    #[inline(always)]
    fn scales<U: Unpack>(begun: &U::Pair, u: U, _: usize) -> [U::Pair; 2] {
        [*begun, u.both(0.0)]
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, _: usize) -> U::Bytes {
        u.look_up(&UNEVEN, u.nibbles(&self.q))
    }
}

/// `2^(e - 128)` of each exponent; the first two values are subnormal.
static HALF_POWERS: [f32; 256] = {
    let (mut powers, mut e) = ([0.0; 256], 0);
    while e < 256 {
        powers[e] = f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e as u32 - 1) << 23 });
        e += 1;
    }
    powers
};

/// `2^(e - 128)`.
#[inline(always)]
pub(super) fn half_power(e: u8) -> f32 {
    HALF_POWERS[usize::from(e)]
}

impl Block for Mxfp4 {
    const PARTS: usize = 1;
    const TRAITS: Traits = signed(false);
    type Begun<U: Unpack> = U::Pair;

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> U::Pair {
        u.both(half_power(self.e))
    }

    #[inline(always)]
    fn scales<U: Unpack>(begun: &U::Pair, u: U, _: usize) -> [U::Pair; 2] {
        [*begun, u.both(0.0)]
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, _: usize) -> U::Bytes {
        u.look_up(&TWICE_E2M1, u.nibbles(&self.q))
    }
}

// ---- 256 values ----

/// Parts of a block.
const PARTS: usize = 8;
/// Halves of parts.
const HALVES: usize = 2 * PARTS;

/// A half-precision number.
#[inline(always)]
fn number<U: Unpack>(u: U, half: [u8; 2]) -> f32 {
    u.floats(u.half(half))[0]
}

/// `d * (s + plus)` of each `s`: exact, since all have few bits.
#[inline(always)]
fn scaled<const N: usize>(d: f32, s: [u8; N], plus: f32) -> [f32; N] {
    let mut scaled = [0.0; N];
    for i in 0..N {
        scaled[i] = d * (f32::from(s[i]) + plus);
    }
    scaled
}

/// The scale of part `k` of eight.
#[inline(always)]
fn scale_of_eight<U: Unpack>(scales: &[f32; PARTS], u: U, k: usize) -> [U::Pair; 2] {
    [u.both(scales[k]), u.both(0.0)]
}

/// The scales of the halves of part `k` of eight.
#[inline(always)]
fn scales_of_eight<U: Unpack>(scales: &[f32; HALVES], u: U, k: usize) -> [U::Pair; 2] {
    [u.pair([scales[2 * k], scales[2 * k + 1]]), u.both(0.0)]
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Q5K {
    pub(super) d: [u8; 2],
    pub(super) dmin: [u8; 2],
    pub(super) six_bits: [u8; 12],
    pub(super) fifth: [u8; 32],
    pub(super) q: [[u8; 32]; PARTS / 2],
}

impl Block for Q5K {
    const PARTS: usize = PARTS;
    const TRAITS: Traits = unsigned(5, false);
    type Begun<U: Unpack> = [[f32; PARTS]; 2];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [[f32; PARTS]; 2] {
        let ([scales, minima], mut begun) = (six_bits(&self.six_bits), [[0.0; PARTS]; 2]);
        let [d, dmin] = [number(u, self.d), number(u, self.dmin)];
        for k in 0..PARTS {
            (begun[0][k], begun[1][k]) = (d * f32::from(scales[k]), dmin * f32::from(minima[k]));
        }
        begun
    }

    #[inline(always)]
    fn scales<U: Unpack>([scales, minima]: &[[f32; PARTS]; 2], u: U, k: usize) -> [U::Pair; 2] {
        [u.both(scales[k]), u.both(minima[k])]
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        let low = u.shifted(u.load(&self.q[k / 2]), 4 * (k as i32 % 2), 0xf);
        u.or(low, u.shifted(u.load(&self.fifth), k as i32 - 4, 16))
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Iq4Xs {
    d: [u8; 2],
    upper: [u8; 2],
    lower: [u8; 4],
    q: [[u8; 16]; PARTS],
}

impl Block for Iq4Xs {
    const PARTS: usize = PARTS;
    const TRAITS: Traits = signed(false);
    type Begun<U: Unpack> = [f32; PARTS];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [f32; PARTS] {
        let (d, upper, mut scales) = (number(u, self.d), u16::from_le_bytes(self.upper), [0.0; PARTS]);
        for k in 0..PARTS {
            let lower = u16::from(self.lower[k / 2] >> (4 * (k % 2)) & 0xf);
            scales[k] = d * (f32::from(lower | (upper >> (2 * k) & 3) << 4) - 32.0);
        }
        scales
    }

    #[inline(always)]
    fn scales<U: Unpack>(scales: &[f32; PARTS], u: U, k: usize) -> [U::Pair; 2] {
        scale_of_eight(scales, u, k)
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        u.look_up(&UNEVEN, u.nibbles(&self.q[k]))
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Q3K {
    upper: [u8; 32],
    q: [[u8; 32]; 2],
    six_bits: [u8; 12],
    d: [u8; 2],
}

impl Block for Q3K {
    const PARTS: usize = PARTS;
    const TRAITS: Traits = signed(true);
    type Begun<U: Unpack> = [f32; HALVES];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [f32; HALVES] {
        const NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        const TWOS: u64 = 0x0303_0303_0303_0303;
        let [a, b, c, d, e, f, g, h, upper @ ..] = self.six_bits;
        let lower = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let upper = u64::from(u32::from_le_bytes(upper));
        // the upper bits of scale i are bits 2 (i / 4) on of byte i % 4
        let first = (lower & NIBBLES) | ((upper | upper << 30) & TWOS) << 4;
        let second = (lower >> 4 & NIBBLES) | ((upper >> 4 | upper << 26) & TWOS) << 4;
        let scales: [u8; HALVES] = bytemuck::cast([first.to_le(), second.to_le()]);
        scaled(number(u, self.d), scales, -32.0)
    }

    #[inline(always)]
    fn scales<U: Unpack>(scales: &[f32; HALVES], u: U, k: usize) -> [U::Pair; 2] {
        scales_of_eight(scales, u, k)
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        let low = u.shifted(u.load(&self.q[k / 4]), 2 * (k as i32 % 4), 3);
        u.less(u.or(low, u.shifted(u.load(&self.upper), k as i32 - 2, 4)), 4)
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Q2K {
    scales: [u8; HALVES],
    q: [[u8; 32]; 2],
    d: [u8; 2],
    dmin: [u8; 2],
}

impl Block for Q2K {
    const PARTS: usize = PARTS;
    const TRAITS: Traits = unsigned(2, true);
    type Begun<U: Unpack> = [[f32; HALVES]; 2];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [[f32; HALVES]; 2] {
        let (d, dmin, [mut scales, mut minima]) =
            (number(u, self.d), number(u, self.dmin), [[0.0; HALVES]; 2]);
        for i in 0..HALVES {
            scales[i] = d * f32::from(self.scales[i] & 0xf);
        }
        for i in 0..HALVES {
            minima[i] = dmin * f32::from(self.scales[i] >> 4);
        }
        [scales, minima]
    }

    #[inline(always)]
    fn scales<U: Unpack>([scales, minima]: &[[f32; HALVES]; 2], u: U, k: usize) -> [U::Pair; 2] {
        [u.pair([scales[2 * k], scales[2 * k + 1]]), u.pair([minima[2 * k], minima[2 * k + 1]])]
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        u.shifted(u.load(&self.q[k / 4]), 2 * (k as i32 % 4), 3)
    }
}

// The sizes of `Format::block_bytes`.
const _: () = {
    assert!(size_of::<Q4_1>() == 20 && size_of::<Q5_1>() == 24 && size_of::<Q5_0>() == 22, "the byte ruler");
    assert!(size_of::<Iq4Nl>() == 18 && size_of::<Mxfp4>() == 17, "the byte ruler");
    assert!(size_of::<Q5K>() == 176 && size_of::<Iq4Xs>() == 136, "the byte ruler");
    assert!(size_of::<Q3K>() == 110 && size_of::<Q2K>() == 84, "the byte ruler");
    assert!(
        size_of::<Iq2Xxs>() == 66 && size_of::<Iq2Xs>() == 74 && size_of::<Iq2S>() == 82,
        "the byte ruler"
    );
    assert!(size_of::<Iq1S>() == 50 && size_of::<Iq1M>() == 56, "the byte ruler");
    assert!(size_of::<Tq1_0>() == 54 && size_of::<Tq2_0>() == 66, "the byte ruler");
    assert!(size_of::<Nvfp4>() == 36 && size_of::<Q2_0>() == 18 && size_of::<Q1_0>() == 18, "the byte ruler");
    assert!(size_of::<Iq3Xxs>() == 98 && size_of::<Iq3S>() == 110, "the byte ruler");
};
