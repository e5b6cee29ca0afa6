//! Blocks of one to two bits a value, and of floats under float scales.

use bytemuck::{Pod, Zeroable};

use super::super::grids::IQ1;
use super::super::{Block, PART, Traits, Unpack};
use super::{HALVES, PARTS, TWICE_E2M1, number, scale_of_eight, scales_of_eight, signed};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Iq1S {
    d: [u8; 2],
    q: [[u8; 4]; PARTS],
    upper: [[u8; 2]; PARTS],
}

impl Block for Iq1S {
    const PARTS: usize = PARTS;
    const TRAITS: Traits = signed(false);
    type Begun<U: Unpack> = [f32; PARTS];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [f32; PARTS] {
        let (d, mut scales) = (number(u, self.d), [0.0; PARTS]);
        for k in 0..PARTS {
            scales[k] = d * (f32::from(self.upper[k][1] >> 4 & 7) * 2.0 + 1.0) * 0.125;
        }
        scales
    }

    #[inline(always)]
    fn scales<U: Unpack>(scales: &[f32; PARTS], u: U, k: usize) -> [U::Pair; 2] {
        scale_of_eight(scales, u, k)
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        let (upper, mut points) = (u16::from_le_bytes(self.upper[k]), [0; 4]);
        for l in 0..4 {
            points[l] = IQ1[usize::from(self.q[k][l]) | usize::from(upper >> (3 * l) & 7) << 8];
        }
        let shift = if upper >> 15 == 1 { 1 } else { u8::MAX };
        u.less(u.load(bytemuck::cast_ref(&points)), shift)
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Iq1M {
    q: [[u8; 4]; PARTS],
    upper: [[u8; 2]; PARTS],
    scales: [[u8; 2]; PARTS / 2],
}

impl Block for Iq1M {
    const PARTS: usize = PARTS;
    const TRAITS: Traits = signed(true);
    type Begun<U: Unpack> = [f32; HALVES];

    #[inline(always)]
    fn begin<U: Unpack>(&self, u: U) -> [f32; HALVES] {
        let words = self.scales.map(u16::from_le_bytes);
        let [a, b, c, d] = words.map(|word| word >> 12);
        let d = number(u, (a | b << 4 | c << 8 | d << 12).to_le_bytes());
        let mut scales = [0.0; HALVES];
        for i in 0..HALVES {
            scales[i] = d * (f32::from((words[i / 4] >> (3 * (i % 4)) & 7) as u8) * 2.0 + 1.0) * 0.125;
        }
        scales
    }

    #[inline(always)]
    fn scales<U: Unpack>(scales: &[f32; HALVES], u: U, k: usize) -> [U::Pair; 2] {
        scales_of_eight(scales, u, k)
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        let mut points = [[0; 8]; 4];
        for l in 0..4 {
            let upper = self.upper[k][l / 2] >> (4 * (l % 2));
            let point = IQ1[usize::from(self.q[k][l]) | usize::from(upper & 7) << 8].to_le_bytes();
            let shift = if upper & 8 == 0 { 1 } else { u8::MAX };
            points[l] = point.map(|number| number.wrapping_add(shift));
        }
        u.load(bytemuck::cast_ref(&points))
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Tq1_0 {
    fives: [u8; 48],
    fours: [u8; 4],
    d: [u8; 2],
}

/// Base-three digit `n` of a byte; the byte's value is a fraction.
#[inline(always)]
fn digit(byte: u8, n: usize) -> u8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    ((u16::from(byte.wrapping_mul(POWERS[n])) * 3) >> 8) as u8
}

impl Block for Tq1_0 {
    const PARTS: usize = PARTS;
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

    /// Five parts of 32 bytes, then five halves of 16 bytes, and a half of four.
    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        let steps: [u8; PART] =
            std::array::from_fn(|j| match (k, 2 * k + j / 16 - 10 * usize::from(k > 4)) {
                (0..5, _) => digit(self.fives[j], k),
                (_, half @ 0..5) => digit(self.fives[32 + j % 16], half),
                _ => digit(self.fours[j % 4], j % 16 / 4),
            });
        u.less(u.load(&steps), 1)
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Tq2_0 {
    q: [[u8; 32]; 2],
    d: [u8; 2],
}

impl Block for Tq2_0 {
    const PARTS: usize = PARTS;
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
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        u.less(u.shifted(u.load(&self.q[k / 4]), 2 * (k as i32 % 4), 3), 1)
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Nvfp4 {
    e: [u8; 4],
    q: [[u8; 16]; 2],
}

/// Half of an E4M3 float (four exponent bits, three mantissa bits), ignoring its sign; 0x7f is read as zero,
/// as in ggml.
#[inline(always)]
fn half_e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(bits >> 3 & 0xf), u32::from(bits & 7));
    match (bits, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa as f32 / 1024.0,
        _ => f32::from_bits((exponent + 119) << 23 | mantissa << 20),
    }
}

impl Block for Nvfp4 {
    const PARTS: usize = 2;
    const TRAITS: Traits = signed(true);
    type Begun<U: Unpack> = [f32; 4];

    #[inline(always)]
    fn begin<U: Unpack>(&self, _: U) -> [f32; 4] {
        self.e.map(half_e4m3)
    }

    #[inline(always)]
    fn scales<U: Unpack>(scales: &[f32; 4], u: U, k: usize) -> [U::Pair; 2] {
        [u.pair([scales[2 * k], scales[2 * k + 1]]), u.both(0.0)]
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        // the nibbles of eight bytes are a group of sixteen
        let [a, b, c, d, e, f, g, h, i, j, l, m, n, o, p, q] = self.q[k];
        let low = |x: u8, y: u8| x & 0xf | y << 4;
        let high = |x: u8, y: u8| x >> 4 | y & 0xf0;
        let firsts = [low(a, i), low(b, j), low(c, l), low(d, m), low(e, n), low(f, o), low(g, p), low(h, q)];
        let lasts =
            [high(a, i), high(b, j), high(c, l), high(d, m), high(e, n), high(f, o), high(g, p), high(h, q)];
        u.look_up(&TWICE_E2M1, u.nibbles(bytemuck::cast_ref(&[firsts, lasts])))
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Q2_0 {
    d: [u8; 2],
    q: [[u8; 8]; 2],
}

impl Block for Q2_0 {
    const PARTS: usize = 2;
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
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        let steps: [u8; PART] = std::array::from_fn(|j| self.q[k][j / 4] >> (2 * (j % 4)) & 3);
        u.less(u.load(&steps), 1)
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Q1_0 {
    d: [u8; 2],
    q: [[u8; 4]; 4],
}

impl Block for Q1_0 {
    const PARTS: usize = 4;
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
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        u.less(u.spread(self.q[k], 2), 1)
    }
}
