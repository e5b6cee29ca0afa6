//! Blocks of points of grids: `IQ2_*` and `IQ3_*`.

use bytemuck::{Pod, Zeroable};

use super::super::grids::{IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use super::super::{Block, Traits, Unpack};
use super::{HALVES, PARTS, number, scale_of_eight, scales_of_eight, signed};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Iq2Xxs {
    d: [u8; 2],
    parts: [[[u8; 4]; 2]; PARTS],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Iq2Xs {
    d: [u8; 2],
    q: [[[u8; 2]; 4]; PARTS],
    scales: [u8; PARTS],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Iq2S {
    d: [u8; 2],
    q: [[u8; 4]; PARTS],
    signs: [[u8; 4]; PARTS],
    upper: [u8; PARTS],
    scales: [u8; PARTS],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Iq3Xxs {
    d: [u8; 2],
    q: [[u8; 8]; PARTS],
    signs: [[u8; 4]; PARTS],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Iq3S {
    d: [u8; 2],
    q: [[u8; 8]; PARTS],
    upper: [u8; PARTS],
    signs: [[u8; 4]; PARTS],
    scales: [u8; PARTS / 2],
}

/// Points of eight numbers; the numbers whose sign is set are negative.
#[inline(always)]
fn with_signs<U: Unpack>(u: U, points: [u64; 4], signs: [u8; 4]) -> U::Bytes {
    u.negated(u.eights(points), u.spread(signs, 0xff))
}

/// [`with_signs`] of four groups of seven signs, in the lower bits of a word.
#[inline(always)]
fn with_seven_signs<U: Unpack>(u: U, points: [u64; 4], word: u32) -> U::Bytes {
    let signs = |group: u32| EIGHT_SIGNS[(word >> (7 * group) & 0x7f) as usize];
    u.negated(u.eights(points), u.eights([signs(0), signs(1), signs(2), signs(3)]))
}

/// A byte of ones for each set sign: seven stored ones and the eighth, which makes their number even.
static EIGHT_SIGNS: [u64; 128] = {
    let (mut signs, mut seven) = ([0; 128], 0_u32);
    while seven < 128 {
        let eight = seven | (seven.count_ones() & 1) << 7;
        let mut j = 0;
        while j < 8 {
            signs[seven as usize] |= (if eight >> j & 1 == 1 { 0xff } else { 0 }) << (8 * j);
            j += 1;
        }
        seven += 1;
    }
    signs
};

/// `d * (s + 1/2) / 4` for both nibbles of each part's byte.
#[inline(always)]
fn scales_of_nibbles(d: f32, nibbles: &[u8; PARTS]) -> [f32; HALVES] {
    let mut scales = [0.0; HALVES];
    for k in 0..PARTS {
        scales[2 * k] = d * (f32::from(nibbles[k] & 0xf) + 0.5) * 0.25;
        scales[2 * k + 1] = d * (f32::from(nibbles[k] >> 4) + 0.5) * 0.25;
    }
    scales
}

impl Block for Iq2Xxs {
    const PARTS: usize = PARTS;
    const TRAITS: Traits = signed(false);
    type Begun<U: Unpack> = [f32; PARTS];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [f32; PARTS] {
        let (d, mut scales) = (number(u, self.d), [0.0; PARTS]);
        for k in 0..PARTS {
            scales[k] = d * (f32::from(self.parts[k][1][3] >> 4) + 0.5) * 0.25;
        }
        scales
    }

    #[inline(always)]
    fn scales<U: Unpack>(scales: &[f32; PARTS], u: U, k: usize) -> [U::Pair; 2] {
        scale_of_eight(scales, u, k)
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        let [[g0, g1, g2, g3], signs] = self.parts[k];
        let point = |g: u8| IQ2_XXS[usize::from(g)];
        with_seven_signs(u, [point(g0), point(g1), point(g2), point(g3)], u32::from_le_bytes(signs))
    }
}

impl Block for Iq2Xs {
    const PARTS: usize = PARTS;
    const TRAITS: Traits = signed(true);
    type Begun<U: Unpack> = [f32; HALVES];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [f32; HALVES] {
        scales_of_nibbles(number(u, self.d), &self.scales)
    }

    #[inline(always)]
    fn scales<U: Unpack>(scales: &[f32; HALVES], u: U, k: usize) -> [U::Pair; 2] {
        scales_of_eight(scales, u, k)
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        let (mut points, mut signs) = ([0; 4], [0; 4]);
        for l in 0..4 {
            let q = u16::from_le_bytes(self.q[k][l]);
            (points[l], signs[l]) = (IQ2_XS[usize::from(q & 511)], EIGHT_SIGNS[usize::from(q >> 9)]);
        }
        u.negated(u.eights(points), u.eights(signs))
    }
}

impl Block for Iq2S {
    const PARTS: usize = PARTS;
    const TRAITS: Traits = signed(true);
    type Begun<U: Unpack> = [f32; HALVES];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [f32; HALVES] {
        scales_of_nibbles(number(u, self.d), &self.scales)
    }

    #[inline(always)]
    fn scales<U: Unpack>(scales: &[f32; HALVES], u: U, k: usize) -> [U::Pair; 2] {
        scales_of_eight(scales, u, k)
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        let (mut points, upper) = ([0; 4], usize::from(self.upper[k]));
        for l in 0..4 {
            points[l] = IQ2_S[usize::from(self.q[k][l]) | (upper >> (2 * l) & 3) << 8];
        }
        with_signs(u, points, self.signs[k])
    }
}

/// Joins two points of four numbers.
#[inline(always)]
fn two(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

impl Block for Iq3Xxs {
    const PARTS: usize = PARTS;
    const TRAITS: Traits = signed(false);
    type Begun<U: Unpack> = [f32; PARTS];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [f32; PARTS] {
        let (d, mut scales) = (number(u, self.d), [0.0; PARTS]);
        for k in 0..PARTS {
            scales[k] = d * (f32::from(self.signs[k][3] >> 4) + 0.5) * 0.5;
        }
        scales
    }

    #[inline(always)]
    fn scales<U: Unpack>(scales: &[f32; PARTS], u: U, k: usize) -> [U::Pair; 2] {
        scale_of_eight(scales, u, k)
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        let (mut points, q) = ([0; 4], self.q[k]);
        for l in 0..4 {
            points[l] = two(IQ3_XXS[usize::from(q[2 * l])], IQ3_XXS[usize::from(q[2 * l + 1])]);
        }
        with_seven_signs(u, points, u32::from_le_bytes(self.signs[k]))
    }
}

impl Block for Iq3S {
    const PARTS: usize = PARTS;
    const TRAITS: Traits = signed(false);
    type Begun<U: Unpack> = [f32; PARTS];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [f32; PARTS] {
        let (d, mut scales) = (number(u, self.d), [0.0; PARTS]);
        for k in 0..PARTS {
            let s = self.scales[k / 2] >> (4 * (k % 2)) & 0xf;
            scales[k] = d * (2.0 * f32::from(s) + 1.0);
        }
        scales
    }

    #[inline(always)]
    fn scales<U: Unpack>(scales: &[f32; PARTS], u: U, k: usize) -> [U::Pair; 2] {
        scale_of_eight(scales, u, k)
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        let (mut points, q, upper) = ([0; 4], self.q[k], usize::from(self.upper[k]));
        for l in 0..4 {
            let point = |i: usize| IQ3_S[usize::from(q[i]) | (upper >> i & 1) << 8];
            points[l] = two(point(2 * l), point(2 * l + 1));
        }
        with_signs(u, points, self.signs[k])
    }
}
