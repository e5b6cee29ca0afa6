//! Block formats without kernels of their own. A *part* is 32 values of a block as integers of a byte, with a
//! scale and a minimum for every sixteen of them.
//!
//! ```text
//! w[j] = scale[j / 16] * step[j] - minimum[j / 16]
//! ```
//!
//! Three things are written once each and combined here:
//!
//! * a format defines how a part is unpacked from its bytes ([`Block`]; `blocks` has the definitions);
//! * an instruction set defines operations on 32 bytes ([`Unpack`]) and 32 floats ([`Multiply`]);
//! * the loops below.
//!
//! A scale times a step is exact in `f32`, and so is a minimum. So a value is rounded once, by the
//! subtraction, and not at all without minima. [`Plain`] is an instruction set for any processor: with it,
//! these loops are the definitions.

use std::ops::Range;

use super::{Rounded, Row};
use crate::format::Format;

mod blocks;
mod grids;
mod plain;
mod write;

#[cfg(target_arch = "x86_64")]
pub(super) use blocks::{TWICE_E2M1, UNEVEN};
pub(super) use plain::Plain;
pub(super) use write::{write_mxfp4, write_q4_1, write_q5_0, write_q5_1, write_q5_k};

/// Values of a part.
const PART: usize = 32;

/// The operations of an instruction set for unpacking 32 bytes. A value of such a type proves that the
/// processor has the instructions.
pub(super) trait Unpack: Copy {
    /// Thirty-two bytes.
    type Bytes: Copy;
    /// A float for each half of the 32 values.
    type Pair: Copy;

    /// Loads bytes.
    fn load(self, bytes: &[u8; PART]) -> Self::Bytes;
    /// Stores bytes.
    fn store(self, bytes: Self::Bytes) -> [u8; PART];
    /// The low nibbles of sixteen bytes, then their high nibbles.
    fn nibbles(self, bytes: &[u8; PART / 2]) -> Self::Bytes;
    /// Shifts each byte down (or up, if `down` is negative) and applies `mask`.
    fn shifted(self, bytes: Self::Bytes, down: i32, mask: u8) -> Self::Bytes;
    /// `value` for each bit that is set, zero for each that is not; starts at the lowest bit of the first
    /// byte.
    fn spread(self, bits: [u8; 4], value: u8) -> Self::Bytes;
    /// Four groups of eight bytes; the lowest byte of a number is the first of its group.
    fn eights(self, groups: [u64; 4]) -> Self::Bytes;
    /// Each sum of two bytes, modulo 256.
    fn plus(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// The first digit after the point of each byte over 256, to base three.
    fn third(self, bytes: Self::Bytes) -> Self::Bytes;
    /// Bitwise or.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Each byte minus `by`.
    fn less(self, bytes: Self::Bytes, by: u8) -> Self::Bytes;
    /// Negates each byte whose byte of `signs` is all ones; a byte of zero keeps it.
    fn negated(self, bytes: Self::Bytes, signs: Self::Bytes) -> Self::Bytes;
    /// Looks up each byte, an index of four bits, in `table`.
    fn look_up(self, table: &[i8; 16], at: Self::Bytes) -> Self::Bytes;

    /// A half-precision number for both halves.
    fn half(self, bits: [u8; 2]) -> Self::Pair;
    /// A float for each half.
    fn pair(self, floats: [f32; 2]) -> Self::Pair;
    /// A float for both halves.
    fn both(self, float: f32) -> Self::Pair {
        self.pair([float; 2])
    }
    /// The floats.
    fn floats(self, pair: Self::Pair) -> [f32; 2];
}

/// The operations of an instruction set for multiplying 32 values.
pub(super) trait Multiply: Unpack {
    /// Thirty-two floats.
    type Floats: Copy;
    /// Partial sums of integer products times their scales.
    type Sums: Copy;

    /// Prefetches `ahead` bytes ahead of these weights.
    fn prefetch<W>(self, weights: &W, ahead: usize);

    /// Loads floats.
    fn load_floats(self, from: &[f32; PART]) -> Self::Floats;
    /// Stores floats.
    fn store_floats(self, floats: Self::Floats, to: &mut [f32; PART]);
    /// The values of a part. `minima`: the format has minima. `halves`: the halves differ in scale and
    /// minimum.
    fn values(self, part: Values32<Self>, halves: bool, minima: bool) -> Self::Floats;
    /// `a * b + c` elementwise, rounded once.
    fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `a * w + y` elementwise, rounded once.
    fn add_scaled(self, a: f32, w: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// The sum of all values.
    fn total(self, floats: Self::Floats) -> f32;

    /// `a * b` for each half.
    fn times(self, a: Self::Pair, b: Self::Pair) -> Self::Pair;
    /// `a * b + c` for each half, rounded once.
    fn pair_add(self, a: Self::Pair, b: Self::Pair, c: Self::Pair) -> Self::Pair;
    /// Empty sums.
    fn no_sums(self) -> Self::Sums;
    /// Adds the products of `steps` and the integers `x`, times a scale. `signed`: steps may be negative.
    /// `halves`: the halves differ in their scale.
    fn add_whole(
        self,
        sums: Self::Sums,
        steps: Self::Bytes,
        x: &[i8; PART],
        worth: Self::Pair,
        signed: bool,
        halves: bool,
    ) -> Self::Sums;
    /// The sum of all partial sums.
    fn total_sums(self, sums: Self::Sums) -> f32;
}

/// Thirty-two values in the registers of an instruction set.
#[derive(Clone, Copy)]
pub(super) struct Values32<U: Unpack> {
    /// The integers.
    pub(super) steps: U::Bytes,
    /// The scale of each half.
    pub(super) scale: U::Pair,
    /// The minimum of each half; zero in formats without minima.
    pub(super) minimum: U::Pair,
}

/// A block of a format, in the layout of the file.
pub(super) trait Block: bytemuck::Pod {
    /// Parts of a block.
    const PARTS: usize;
    /// The traits of the format.
    const TRAITS: Traits;
    /// A block's unpacked scales and minima, the state for unpacking its parts.
    type Begun<U: Unpack>: Copy;

    /// Unpacks a block's scales and minima.
    fn begin<U: Unpack>(&self, unpack: U) -> Self::Begun<U>;
    /// The scales of part `k`.
    fn scales<U: Unpack>(begun: &Self::Begun<U>, unpack: U, k: usize) -> [U::Pair; 2];
    /// The integers of part `k`.
    fn steps<U: Unpack>(&self, unpack: U, k: usize) -> U::Bytes;

    /// Part `k`.
    #[inline(always)]
    fn part<U: Unpack>(&self, begun: &Self::Begun<U>, unpack: U, k: usize) -> Values32<U> {
        let [scale, minimum] = Self::scales(begun, unpack, k);
        Values32 { steps: self.steps(unpack, k), scale, minimum }
    }
}

/// Traits of a format: its steps, scales and minima.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traits {
    /// Whether steps may be negative; otherwise they are unsigned, of `bits` bits.
    pub(super) signed: bool,
    /// Bits of an unsigned step.
    pub(super) bits: u32,
    /// Whether the halves of a part have scales of their own.
    pub(super) halves: bool,
    /// Whether the format has minima.
    pub(super) minima: bool,
}

/// A loop over rows of one format.
trait RowKernel {
    type Result;

    fn with<B: Block>(self) -> Self::Result;
}

/// Runs `work` with the block type of `format`.
#[inline(always)]
fn with_blocks<W: RowKernel>(format: Format, work: W) -> W::Result {
    match format {
        Format::Q5_1 => work.with::<blocks::Q5_1>(),
        Format::Q5_0 => work.with::<blocks::Q5_0>(),
        Format::Q5K => work.with::<blocks::Q5K>(),
        Format::Q4_1 => work.with::<blocks::Q4_1>(),
        Format::Iq4Nl => work.with::<blocks::Iq4Nl>(),
        Format::Mxfp4 => work.with::<blocks::Mxfp4>(),
        Format::Iq4Xs => work.with::<blocks::Iq4Xs>(),
        Format::Q3K => work.with::<blocks::Q3K>(),
        Format::Iq3S => work.with::<blocks::Iq3S>(),
        Format::Iq3Xxs => work.with::<blocks::Iq3Xxs>(),
        Format::Q2K => work.with::<blocks::Q2K>(),
        Format::Iq2S => work.with::<blocks::Iq2S>(),
        Format::Iq2Xs => work.with::<blocks::Iq2Xs>(),
        Format::Iq2Xxs => work.with::<blocks::Iq2Xxs>(),
        Format::Nvfp4 => work.with::<blocks::Nvfp4>(),
        Format::Q2_0 => work.with::<blocks::Q2_0>(),
        Format::Tq2_0 => work.with::<blocks::Tq2_0>(),
        Format::Iq1M => work.with::<blocks::Iq1M>(),
        Format::Tq1_0 => work.with::<blocks::Tq1_0>(),
        Format::Iq1S => work.with::<blocks::Iq1S>(),
        Format::Q1_0 => work.with::<blocks::Q1_0>(),
        Format::F32 | Format::F16 | Format::BF16 | Format::Q8_0 | Format::Q6K | Format::Q4_0 => {
            unreachable!("{format} has kernels of its own")
        }
        Format::Q4_0X4 | Format::Q4K => unreachable!("{format} has kernels of its own"),
    }
}

/// Traits of `format`.
pub(super) fn traits(format: Format) -> Traits {
    struct Ask;
    impl RowKernel for Ask {
        type Result = Traits;

        #[inline(always)]
        fn with<B: Block>(self) -> Traits {
            B::TRAITS
        }
    }
    with_blocks(format, Ask)
}

/// `sum of w[i] * x[i]`, 32 sums in flight.
#[inline(always)]
pub(super) fn dot<M: Multiply>(multiply: M, row: Row<'_>, x: &[f32]) -> f32 {
    struct Dot<'a, M>(M, Row<'a>, &'a [f32]);
    impl<M: Multiply> RowKernel for Dot<'_, M> {
        type Result = f32;

        #[inline(always)]
        fn with<B: Block>(self) -> f32 {
            let Self(m, row, x) = self;
            let Traits { halves, minima, .. } = B::TRAITS;
            let ahead = row.ahead();
            let mut sums = m.load_floats(&[0.0; PART]);
            let blocks = bytemuck::cast_slice::<_, B>(row.bytes).iter();
            for (block, x) in blocks.zip(x.as_chunks::<PART>().0.chunks_exact(B::PARTS)) {
                m.prefetch(block, ahead);
                let begun = block.begin(m);
                for k in 0..B::PARTS {
                    let w = m.values(block.part(&begun, m, k), halves, minima);
                    sums = m.multiply_add(w, m.load_floats(&x[k]), sums);
                }
            }
            m.total(sums)
        }
    }
    with_blocks(row.format, Dot(multiply, row, x))
}

/// `y[i] += a * w[i]`, rounded once.
#[inline(always)]
pub(super) fn axpy<M: Multiply>(multiply: M, a: f32, row: Row<'_>, y: &mut [f32]) {
    struct Axpy<'a, M>(M, f32, Row<'a>, &'a mut [f32]);
    impl<M: Multiply> RowKernel for Axpy<'_, M> {
        type Result = ();

        #[inline(always)]
        fn with<B: Block>(self) {
            let Self(m, a, row, y) = self;
            let Traits { halves, minima, .. } = B::TRAITS;
            let ahead = row.ahead();
            let blocks = bytemuck::cast_slice::<_, B>(row.bytes).iter();
            for (block, y) in blocks.zip(y.as_chunks_mut::<PART>().0.chunks_exact_mut(B::PARTS)) {
                m.prefetch(block, ahead);
                let begun = block.begin(m);
                for k in 0..B::PARTS {
                    let w = m.values(block.part(&begun, m, k), halves, minima);
                    let sums = m.add_scaled(a, w, m.load_floats(&y[k]));
                    m.store_floats(sums, &mut y[k]);
                }
            }
        }
    }
    with_blocks(row.format, Axpy(multiply, a, row, y));
}

/// Values `start..start + out.len()` of a row, in whole parts.
#[inline(always)]
pub(super) fn unpack<M: Multiply>(multiply: M, row: &Row<'_>, start: usize, out: &mut [f32]) {
    struct Values<'a, M>(M, &'a [u8], usize, &'a mut [f32]);
    impl<M: Multiply> RowKernel for Values<'_, M> {
        type Result = ();

        #[inline(always)]
        fn with<B: Block>(self) {
            let Self(m, row, start, out) = self;
            let Traits { halves, minima, .. } = B::TRAITS;
            let blocks: &[B] = bytemuck::cast_slice(row);
            let (mut at, mut k) = (start / PART / B::PARTS, start / PART % B::PARTS);
            let mut begun = blocks.get(at).map(|block| block.begin(m));
            for out in out.as_chunks_mut::<PART>().0 {
                if k == B::PARTS {
                    (at, k) = (at + 1, 0);
                    begun = Some(blocks[at].begin(m));
                }
                if let Some(begun) = &begun {
                    m.store_floats(m.values(blocks[at].part(begun, m, k), halves, minima), out);
                }
                k += 1;
            }
        }
    }
    with_blocks(row.format, Values(multiply, row.bytes, start, out));
}

/// Partial sums of a row's parts. Parts alternate between two sums, so that a part never waits for its
/// predecessor's sum.
struct Sums<M: Multiply> {
    whole: [M::Sums; 2],
    /// Partial sums of the vector's values times the minima.
    less: [M::Pair; 2],
}

impl<M: Multiply> Sums<M> {
    /// Adds the products of a block with the vector's parts from `place` on; the first part is added to sums
    /// `to`.
    #[inline(always)]
    fn add<B: Block>(&mut self, m: M, block: &B, ahead: usize, x: Rounded<'_>, [place, to]: [usize; 2]) {
        let Traits { signed, halves, minima, .. } = B::TRAITS;
        m.prefetch(block, ahead);
        let begun = block.begin(m);
        let values = &x.values.as_chunks::<PART>().0[place..][..B::PARTS];
        let (scales, all) = (&x.scales[place..][..B::PARTS], &x.sums[place..][..B::PARTS]);
        for k in 0..B::PARTS {
            let (to, Values32 { steps, scale, minimum }) = ((to + k) % 2, block.part(&begun, m, k));
            let worth = m.times(scale, m.both(scales[k]));
            self.whole[to] = m.add_whole(self.whole[to], steps, &values[k], worth, signed, halves);
            if minima && halves {
                // the vector has sums of whole parts only
                let (ones, worth) = (m.load(&[1; PART]), m.times(minimum, m.both(-scales[k])));
                self.whole[to] = m.add_whole(self.whole[to], ones, &values[k], worth, false, true);
            } else if minima {
                self.less[to] = m.pair_add(minimum, m.both(scales[k] * all[k]), self.less[to]);
            }
        }
    }
}

/// [`super::Kernels::dot_rounded`]; the caller has checked lengths and format.
#[inline(always)]
pub(super) fn dot_rounded<M: Multiply>(multiply: M, row: Row<'_>, x: Rounded<'_>) -> f32 {
    struct DotRounded<'a, M>(M, Row<'a>, Rounded<'a>);
    impl<M: Multiply> RowKernel for DotRounded<'_, M> {
        type Result = f32;

        #[inline(always)]
        fn with<B: Block>(self) -> f32 {
            let Self(m, row, x) = self;
            let mut sums = Sums { whole: [m.no_sums(); 2], less: [m.both(0.0); 2] };
            let (pairs, last) = bytemuck::cast_slice::<_, B>(row.bytes).as_chunks::<2>();
            for (at, [first, second]) in pairs.iter().enumerate() {
                sums.add(m, first, row.ahead(), x, [2 * at * B::PARTS, 0]);
                sums.add(m, second, row.ahead(), x, [(2 * at + 1) * B::PARTS, 1]);
            }
            for block in last {
                sums.add(m, block, row.ahead(), x, [2 * pairs.len() * B::PARTS, 0]);
            }
            let Sums { whole: [whole, more], less } = sums;
            let [less, more_less] = less.map(|less| m.floats(less)[0]);
            m.total_sums(whole) + m.total_sums(more) - (less + more_less)
        }
    }
    with_blocks(row.format, DotRounded(multiply, row, x))
}

/// Calls `each` for some parts of a row, in order, with their index among them.
#[inline(always)]
pub(super) fn for_parts<U: Unpack>(
    unpack: U,
    format: Format,
    row: &[u8],
    parts: Range<usize>,
    each: impl FnMut(usize, Values32<U>),
) {
    struct Each<'a, U, E>(U, &'a [u8], Range<usize>, E);
    impl<U: Unpack, E: FnMut(usize, Values32<U>)> RowKernel for Each<'_, U, E> {
        type Result = ();

        #[inline(always)]
        fn with<B: Block>(self) {
            let Self(u, row, parts, mut each) = self;
            let blocks = bytemuck::cast_slice::<_, B>(row).iter().enumerate();
            let last = parts.end.div_ceil(B::PARTS);
            for (at, block) in blocks.take(last).skip(parts.start / B::PARTS) {
                let begun = block.begin(u);
                for k in 0..B::PARTS {
                    let place = at * B::PARTS + k;
                    if parts.contains(&place) {
                        each(place - parts.start, block.part(&begun, u, k));
                    }
                }
            }
        }
    }
    with_blocks(format, Each(unpack, row, parts, each));
}

/// A part in memory.
pub(super) struct Stored {
    /// The integers.
    pub(super) steps: [i8; PART],
    /// The scale of each half.
    pub(super) scales: [f32; 2],
    /// The minimum of each half; zero in formats without minima.
    pub(super) minima: [f32; 2],
}

impl<U: Unpack> Values32<U> {
    /// Stores the part to memory.
    #[inline(always)]
    pub(super) fn stored(self, unpack: U) -> Stored {
        Stored {
            steps: bytemuck::cast(unpack.store(self.steps)),
            scales: unpack.floats(self.scale),
            minima: unpack.floats(self.minimum),
        }
    }
}

/// Part `at` of a row.
#[inline(always)]
pub(super) fn stored<U: Unpack>(unpack: U, format: Format, row: &[u8], at: usize) -> Stored {
    struct Store<'a, U>(U, &'a [u8], usize);
    impl<U: Unpack> RowKernel for Store<'_, U> {
        type Result = Stored;

        #[inline(always)]
        fn with<B: Block>(self) -> Stored {
            let Self(u, row, at) = self;
            let block = &bytemuck::cast_slice::<_, B>(row)[at / B::PARTS];
            block.part(&block.begin(u), u, at % B::PARTS).stored(u)
        }
    }
    with_blocks(format, Store(unpack, row, at))
}

/// The values of a row, by definition.
pub(super) fn read(format: Format, row: &[u8], out: &mut [f32]) {
    for (at, out) in out.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
        let Stored { steps, scales, minima } = stored(Plain, format, row, at);
        for (j, out) in out.iter_mut().enumerate() {
            *out = scales[j / 16] * f32::from(steps[j]) - minima[j / 16];
        }
    }
}

/// The grid of a format, point after point, a signed byte a number; empty for formats without a grid. The
/// numbers of `IQ1_*` are -8, 0 and 8.
pub fn grid(format: Format) -> &'static [u8] {
    match format {
        Format::Iq1M | Format::Iq1S => bytemuck::cast_slice(&grids::IQ1),
        Format::Iq2Xxs => bytemuck::cast_slice(&grids::IQ2_XXS),
        Format::Iq2Xs => bytemuck::cast_slice(&grids::IQ2_XS),
        Format::Iq2S => bytemuck::cast_slice(&grids::IQ2_S),
        Format::Iq3Xxs => bytemuck::cast_slice(&grids::IQ3_XXS),
        Format::Iq3S => bytemuck::cast_slice(&grids::IQ3_S),
        _ => &[],
    }
}
