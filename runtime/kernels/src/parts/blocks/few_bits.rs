//! Blocks of one to two bits a value, and of floats under float scales.

use bytemuck::{Pod, Zeroable};

use super::super::grids::IQ1;
use super::super::{Block, PART, Traits, Unpack};
use super::{HALVES, PARTS, TWICE_E2M1, number, scale_of_eight, scaled, scales_of_eight, signed};

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
        scaled(0.25 * number(u, self.d), self.upper.map(|[_, upper]| upper >> 4 & 7), 0.5)
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
        u.less(u.eights(points), shift)
    }
}

/// One in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// The four lowest numbers of three bits of two words, the lowest first, a byte each.
#[inline(always)]
fn eight_of_three_bits(first: u64, second: u64) -> u64 {
    let both = first | second << 32;
    let number = |n: u32| (both << (5 * n)) & 0x0000_0007_0000_0007 << (8 * n);
    number(0) | number(1) | number(2) | number(3)
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
        let [a, b, c, e] = words.map(u64::from);
        let scales = [eight_of_three_bits(a, b).to_le(), eight_of_three_bits(c, e).to_le()];
        scaled(0.25 * d, bytemuck::cast(scales), 0.5)
    }

    #[inline(always)]
    fn scales<U: Unpack>(scales: &[f32; HALVES], u: U, k: usize) -> [U::Pair; 2] {
        scales_of_eight(scales, u, k)
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        let (mut points, mut shifts) = ([0; 4], [0; 4]);
        for l in 0..4 {
            let upper = self.upper[k][l / 2] >> (4 * (l % 2));
            points[l] = IQ1[usize::from(self.q[k][l]) | usize::from(upper & 7) << 8];
            shifts[l] = if upper & 8 == 0 { ONES } else { u64::MAX }; // 1 or -1 in each byte
        }
        u.plus(u.eights(points), u.eights(shifts))
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in super::super) struct Tq1_0 {
    fives: [u8; 48],
    fours: [u8; 4],
    d: [u8; 2],
}

/// Each byte times `3^n`, modulo 256.
#[inline(always)]
fn tripled(bytes: u64, n: usize) -> u64 {
    let mut all = bytes;
    for _ in 0..n {
        let [even, odd] = [all & 0x00ff_00ff_00ff_00ff, all >> 8 & 0x00ff_00ff_00ff_00ff];
        all = ((even * 3) & 0x00ff_00ff_00ff_00ff) | ((odd * 3) & 0x00ff_00ff_00ff_00ff) << 8;
    }
    all
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
        let (first, last) = self.fives.split_at(PART);
        let half = |n: usize| {
            let [a, b] = bytemuck::pod_read_unaligned::<[u64; 2]>(last).map(u64::from_le);
            [tripled(a, n), tripled(b, n)]
        };
        let fours = |n: usize| tripled(u64::from(u32::from_le_bytes(self.fours)), n);
        let two = |n: usize| fours(n) | fours(n + 1) << 32;
        let [[a, b], [c, d]] = match k {
            0..5 => {
                let mut bytes = u.load(bytemuck::from_bytes(first));
                for _ in 0..k {
                    bytes = u.plus(u.plus(bytes, bytes), bytes);
                }
                return u.less(u.third(bytes), 1);
            }
            5 => [half(0), half(1)],
            6 => [half(2), half(3)],
            _ => [half(4), [two(0), two(2)]],
        };
        u.less(u.third(u.eights([a, b, c, d])), 1)
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

/// Half of each E4M3 float (four exponent bits, three mantissa bits), ignoring its sign; 0x7f is read as
/// zero, as in ggml.
static HALF_E4M3: [f32; 256] = {
    let (mut halves, mut bits) = ([0.0; 256], 0);
    while bits < 256_u32 {
        let (exponent, mantissa) = (bits >> 3 & 0xf, bits & 7);
        halves[bits as usize] = match (bits, exponent) {
            (0x7f, _) => 0.0,
            (_, 0) => mantissa as f32 / 1024.0,
            _ => f32::from_bits((exponent + 119) << 23 | mantissa << 20),
        };
        bits += 1;
    }
    halves
};

impl Block for Nvfp4 {
    const PARTS: usize = 2;
    const TRAITS: Traits = signed(true);
    type Begun<U: Unpack> = [f32; 4];

    #[inline(always)]
    fn begin<U: Unpack>(&self, _: U) -> [f32; 4] {
        self.e.map(|bits| HALF_E4M3[usize::from(bits)])
    }

    #[inline(always)]
    fn scales<U: Unpack>(scales: &[f32; 4], u: U, k: usize) -> [U::Pair; 2] {
        [u.pair([scales[2 * k], scales[2 * k + 1]]), u.both(0.0)]
    }

    #[inline(always)]
    fn steps<U: Unpack>(&self, u: U, k: usize) -> U::Bytes {
        // the nibbles of eight bytes are a group of sixteen
        let [a, b] = bytemuck::cast::<_, [u64; 2]>(self.q[k]).map(u64::from_le);
        let nibbles = [a, a >> 4, b, b >> 4].map(|bytes| bytes & (0xf * ONES));
        u.look_up(&TWICE_E2M1, u.eights(nibbles))
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
