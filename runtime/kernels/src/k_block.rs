//! Definitions of `Q4_K` and `Q6_K`: blocks of 256 values in groups, whose few-bit scales are multiplied by
//! one scale of the block.
//!
//! ```text
//!        0      2         4                  16                                    144 bytes
//! Q4_K   | d:f16 | dmin:f16 | s[8] m[8]: 6 bits | q: nibbles, 32 bytes of two groups |
//!        group k of 32: q = byte[j] of the 32 from 16 + 32 (k / 2), low half of group k even, high half of k odd
//!        w = d * s[k] * q - dmin * m[k]
//!
//!        0                 128              192         208     210 bytes
//! Q6_K   | low: nibbles    | high: 2 bits   | s[16]: i8 | d:f16 |
//!        32 values k, of half n = k / 4 and quarter i = k % 4 in it:
//!        q = low[64 n + 32 (i % 2) + j] >> 4 (i / 2) & 15 | (high[32 n + j] >> 2 i & 3) << 4
//!        w = d * s[2 k + j / 16] * (q - 32)
//! ```
//!
//! Of the twelve bytes of six-bit numbers, the first four hold `s[0..4]` and the next four `m[0..4]`. Their
//! upper two bits belong to `s[4..8]` and `m[4..8]`, whose lower four bits are nibbles of the last four
//! bytes.
//!
//! A scale times an integer is exact in `f32`, and so is the product of a block's and a group's scale. So a
//! value of `Q4_K` is rounded once, by its subtraction, and a value of `Q6_K` not at all.
//!
//! *Source*: ggml, `ggml-quants.c`, `dequantize_row_q4_K`, `dequantize_row_q6_K` and the functions that they invert.
//! *Differs*: ggml tries 21 (19) scales for a group, [`Q4K::write`] tries five and [`Q6K::write`] one. For
//! normally distributed values the root mean square error of `Q4_K` is 1 % larger.

use bytemuck::{Pod, Zeroable};
use half::f16;

/// Values of a block.
pub(super) const VALUES: usize = 256;
/// Parts of a block: groups of 32 values.
pub(super) const PARTS: usize = VALUES / 32;

/// A block of `Q4_K`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Q4K {
    pub(super) d: [u8; 2],
    pub(super) dmin: [u8; 2],
    pub(super) six_bits: [u8; 12],
    pub(super) q: [[u8; 32]; 4],
}

/// A block of `Q6_K`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Q6K {
    pub(super) low: [[u8; 32]; 4],
    pub(super) high: [[u8; 32]; 2],
    pub(super) scales: [i8; 16],
    pub(super) d: [u8; 2],
}

const _: () = assert!(size_of::<Q4K>() == 144 && align_of::<Q4K>() == 1, "the byte ruler");
const _: () = assert!(size_of::<Q6K>() == 210 && align_of::<Q6K>() == 1, "the byte ruler");

/// Unpacks the values of a row.
pub(super) fn read<B: Pod>(row: &[u8], out: &mut [f32], value: impl Fn(&B, &mut [f32; VALUES])) {
    for (block, values) in bytemuck::cast_slice(row).iter().zip(out.as_chunks_mut().0) {
        value(block, values);
    }
}

/// The inverse of [`read`].
pub(super) fn write<B: Pod>(values: &[f32], row: &mut [u8], block: impl Fn(&[f32; VALUES]) -> B) {
    for (to, values) in bytemuck::cast_slice_mut(row).iter_mut().zip(values.as_chunks().0) {
        *to = block(values);
    }
}

/// Calls `part(0, weights), part(1, weights), ...` for parts `first..first + count` of a row (groups of 32
/// values). `begin` prepares a block; `weights(block, begun, k)` unpacks its part `k`.
#[inline(always)]
pub(super) fn each_part<B: Pod, S, W>(
    row: &[u8],
    first: usize,
    count: usize,
    begin: impl Fn(&B) -> S,
    weights: impl Fn(&B, &S, usize) -> W,
    mut part: impl FnMut(usize, W),
) {
    let (mut at, mut k) = (0, first % PARTS);
    for block in &bytemuck::cast_slice(row)[first / PARTS..] {
        let begun = begin(block);
        let end = PARTS.min(k + count - at);
        if end - k == PARTS {
            // a loop of constant length has constant shifts
            for k in 0..PARTS {
                part(at + k, weights(block, &begun, k));
            }
        } else {
            (k..end).for_each(|part_k| part(at + part_k - k, weights(block, &begun, part_k)));
        }
        (at, k) = (at + end - k, 0);
        if at == count {
            break;
        }
    }
}

/// Six-bit scales and minima of the eight groups.
#[inline(always)]
pub(super) fn six_bits(packed: &[u8; 12]) -> [[u8; 8]; 2] {
    let [a, b, c, d, e, f, g, h, quads @ ..] = *packed;
    let [sixes, quads] = [u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from(u32::from_le_bytes(quads))];
    let first = sixes & 0x3f3f_3f3f_3f3f_3f3f;
    let lower = (quads & 0x0f0f_0f0f) | (quads << 28 & 0x0f0f_0f0f_0000_0000);
    let second = lower | (sixes >> 2 & 0x3030_3030_3030_3030);
    let scales = (first & 0xffff_ffff) | second << 32;
    let minima = first >> 32 | (second & 0xffff_ffff_0000_0000);
    [scales.to_le_bytes(), minima.to_le_bytes()]
}

/// The inverse of [`six_bits`].
fn pack_six_bits([scales, minima]: [[u8; 8]; 2]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..4 => scales[i] | scales[i + 4] >> 4 << 6,
        4..8 => minima[i - 4] | minima[i] >> 4 << 6,
        _ => (scales[i - 4] & 0xf) | minima[i - 4] << 4,
    })
}

impl Q4K {
    /// The integers of group `k`, 0 to 15.
    pub(super) fn steps(&self, k: usize) -> [u8; 32] {
        self.q[k / 2].map(|q| q >> (4 * (k % 2)) & 0xf)
    }

    /// Scales and minima of the groups.
    pub(super) fn scales(&self) -> [[f32; PARTS]; 2] {
        let [d, dmin] = [self.d, self.dmin].map(|half| f16::from_le_bytes(half).to_f32());
        let [scales, minima] = six_bits(&self.six_bits);
        [scales.map(|s| d * f32::from(s)), minima.map(|m| dmin * f32::from(m))]
    }

    pub(super) fn read(&self, values: &mut [f32; VALUES]) {
        let [scales, minima] = self.scales();
        for (k, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            *values = self.steps(k).map(|q| scales[k] * f32::from(q) - minima[k]);
        }
    }

    pub(super) fn write(values: &[f32; VALUES]) -> Self {
        let Lines { d, dmin, six_bits, scales, minima } = Lines::through(values, 15.0);
        let mut block = Self { d, dmin, six_bits, q: [[0; 32]; 4] };
        for (at, value) in values.iter().enumerate() {
            let (k, j) = (at / 32, at % 32);
            let q = nearest(value + minima[k], scales[k], 0.0, 15.0) as u8;
            block.q[k / 2][j] |= q << (4 * (k % 2));
        }
        block
    }
}

/// Six-bit scales and minima of the groups.
pub(super) struct Lines {
    pub(super) d: [u8; 2],
    pub(super) dmin: [u8; 2],
    pub(super) six_bits: [u8; 12],
    /// Scales after rounding to six bits.
    pub(super) scales: [f32; PARTS],
    pub(super) minima: [f32; PARTS],
}

impl Lines {
    /// Scales and minima for values whose integers go up to `most`.
    pub(super) fn through(values: &[f32; VALUES], most: f32) -> Self {
        let groups = values.as_chunks::<32>().0;
        let lines: [_; PARTS] = std::array::from_fn(|k| line_through(&groups[k], most));
        let [largest, deepest] =
            lines.iter().fold([0.0_f32; 2], |[s, m], line| [s.max(line.0), m.max(line.1)]);
        let six = |v: f32, largest: f32| if largest > 0.0 { (v * (63.0 / largest)).round() as u8 } else { 0 };
        let scales = lines.map(|(scale, _)| six(scale, largest));
        let minima = lines.map(|(_, minimum)| six(minimum, deepest));
        let block = Q4K {
            d: f16::from_f32(largest / 63.0).to_le_bytes(),
            dmin: f16::from_f32(deepest / 63.0).to_le_bytes(),
            six_bits: pack_six_bits([scales, minima]),
            q: [[0; 32]; 4],
        };
        let [scales, minima] = block.scales();
        Self { d: block.d, dmin: block.dmin, six_bits: block.six_bits, scales, minima }
    }
}

impl Q6K {
    /// The 32 integers from `32 k` on, 0 to 63.
    pub(super) fn steps(&self, k: usize) -> [u8; 32] {
        let (half, quarter) = (k / 4, k % 4);
        let (low, high) = (&self.low[2 * half + quarter % 2], &self.high[half]);
        std::array::from_fn(|j| (low[j] >> (4 * (quarter / 2)) & 0xf) | (high[j] >> (2 * quarter) & 3) << 4)
    }

    /// The scales of the groups of 16.
    pub(super) fn scales(&self) -> [f32; 2 * PARTS] {
        let d = f16::from_le_bytes(self.d).to_f32();
        self.scales.map(|scale| d * f32::from(scale))
    }

    pub(super) fn read(&self, values: &mut [f32; VALUES]) {
        let scales = self.scales();
        for (k, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let steps = self.steps(k);
            *values = std::array::from_fn(|j| scales[2 * k + j / 16] * (f32::from(steps[j]) - 32.0));
        }
    }

    pub(super) fn write(values: &[f32; VALUES]) -> Self {
        let sixteens = values.as_chunks::<16>().0;
        let best: [f32; 2 * PARTS] = std::array::from_fn(|i| scale_of(&sixteens[i]));
        let largest =
            best.iter().fold(0.0_f32, |largest, &s| if s.abs() > largest.abs() { s } else { largest });
        let inverse = if largest == 0.0 { 0.0 } else { -128.0 / largest };
        let mut block = Self {
            low: [[0; 32]; 4],
            high: [[0; 32]; 2],
            scales: best.map(|scale| (scale * inverse).round() as i8),
            d: f16::from_f32(largest / -128.0).to_le_bytes(),
        };
        let scales = block.scales();
        for (at, value) in values.iter().enumerate() {
            let q = (nearest(*value, scales[at / 16], -32.0, 31.0) + 32.0) as u8;
            let (half, quarter, j) = (at / 128, at % 128 / 32, at % 32);
            block.low[2 * half + quarter % 2][j] |= (q & 0xf) << (4 * (quarter / 2));
            block.high[half][j] |= q >> 4 << (2 * quarter);
        }
        block
    }
}

/// `value / step`, rounded to an integer from `least` to `most`; zero if `step` is zero.
pub(super) fn nearest(value: f32, step: f32, least: f32, most: f32) -> f32 {
    if step == 0.0 { 0.0_f32.max(least) } else { (value / step).round().clamp(least, most) }
}

/// Fits `scale * q - minimum`, with integer `q` up to `most`, to 32 values; returns scale and minimum. Tries
/// five scales around the one of the range: each gives `q`, and least squares give scale and minimum.
fn line_through(values: &[f32; 32], most: f32) -> (f32, f32) {
    let low = values.iter().fold(0.0_f32, |low, v| low.min(*v));
    let range = values.iter().fold(f32::MIN, |high, v| high.max(*v)) - low;
    let (mut best, mut least) = ((0.0, -low), f32::INFINITY);
    if range <= 0.0 {
        return best; // all are the minimum
    }
    for more in [-1.0, -0.6, -0.2, 0.2, 0.6] {
        let q = values.map(|v| nearest(v - low, range / (most + more), 0.0, most));
        let [mut sum_q, mut sum_qq, mut sum_v, mut sum_qv] = [0.0; 4];
        for (q, v) in q.iter().zip(values) {
            (sum_q, sum_qq, sum_v, sum_qv) = (sum_q + q, sum_qq + q * q, sum_v + v, sum_qv + q * v);
        }
        let spread = 32.0 * sum_qq - sum_q * sum_q;
        let mut line = ((32.0 * sum_qv - sum_v * sum_q) / spread, (sum_q * sum_qv - sum_qq * sum_v) / spread);
        if spread <= 0.0 || line.1 < 0.0 {
            line = (sum_qv / sum_qq, 0.0); // minima are not negative
        }
        let error = q.iter().zip(values).map(|(q, v)| (line.0 * q - line.1 - v).powi(2)).sum();
        if error < least {
            (best, least) = (line, error);
        }
    }
    best
}

/// Fits six-bit integers times a scale to 16 values; returns the scale. The integers come from the scale that
/// maps the value of largest magnitude to the last integer; least squares then give the scale.
fn scale_of(values: &[f32; 16]) -> f32 {
    let extreme =
        values.iter().fold(0.0_f32, |extreme, &v| if v.abs() > extreme.abs() { v } else { extreme });
    let first = extreme / -32.0;
    let [mut sum_qq, mut sum_qv] = [0.0; 2];
    for v in values {
        let q = nearest(*v, first, -32.0, 31.0);
        (sum_qq, sum_qv) = (sum_qq + q * q, sum_qv + q * v);
    }
    if sum_qq > 0.0 { sum_qv / sum_qq } else { 0.0 }
}
