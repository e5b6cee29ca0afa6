//! One vector rounded to 8 bits, for rows of blocks: products of bytes instead of floats.
//!
//! ```text
//! [scales: f32 a block] [sums: f32 a block] [values: i8] [halves: i8]
//! ```
//!
//! A block is 32 integers in -127..127 and a scale: the largest magnitude over 127. The stored sum of the
//! integers corrects for the offset of stored weights. [`super::Packed`] holds equal numbers.
//!
//! The halves repeat the values of every four blocks in the order of the nibbles in 64 bytes of `Q4_0`. These
//! are the first sixteen of each block, then the second sixteen of each.

use bytemuck::{cast_slice, cast_slice_mut};
use plans::engine::rounded_words;

use super::packed::{BLOCK, round_block};
use super::{Kernels, Matrix, Row};

/// A rounded vector.
#[derive(Clone, Copy, Debug)]
pub struct Rounded<'a> {
    /// The scale of each block.
    pub(super) scales: &'a [f32],
    /// The sum of each block's integers.
    pub(super) sums: &'a [f32],
    /// The integers.
    pub(super) values: &'a [i8],
    /// The integers of whole groups of four blocks, by halves of blocks.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "no kernel there takes four blocks at once")
    )]
    pub(super) halves: &'a [[i8; HALVES]],
}

/// Values of four blocks.
pub(super) const HALVES: usize = 4 * BLOCK;

impl<'a> Rounded<'a> {
    /// Words that a rounded vector occupies.
    pub const fn words(values: usize) -> usize {
        rounded_words(values)
    }

    /// Rounds `x` into the start of `words`.
    ///
    /// # Panics
    /// If `x` is not whole blocks, or there are too few words.
    pub fn new(x: &[f32], words: &'a mut [f32]) -> Self {
        let (blocks, rest) = x.as_chunks::<BLOCK>();
        assert!(rest.is_empty(), "{} values are not whole blocks", x.len());
        let (scales, words) = words.split_at_mut(blocks.len());
        let (sums, words) = words.split_at_mut(blocks.len());
        let (values, words) = words.split_at_mut(x.len() / 4);
        let values: &mut [i8] = cast_slice_mut(values);
        let halves: &mut [[i8; HALVES]] = cast_slice_mut(&mut words[..x.len() / HALVES * (HALVES / 4)]);
        let places = scales.iter_mut().zip(&mut *sums).zip(values.as_chunks_mut::<BLOCK>().0);
        for (block, ((scale, sum), values)) in blocks.iter().zip(places) {
            *scale = round_block(block, values);
            *sum = values.iter().map(|&q| i32::from(q)).sum::<i32>() as f32;
        }
        let values: &[i8] = values;
        for (halves, values) in halves.iter_mut().zip(values.as_chunks::<HALVES>().0) {
            let (to, from) =
                (halves.as_chunks_mut::<{ BLOCK / 2 }>().0, values.as_chunks::<{ BLOCK / 2 }>().0);
            for block in 0..4 {
                (to[block], to[4 + block]) = (from[2 * block], from[2 * block + 1]);
            }
        }
        Self { scales, sums, values, halves }
    }

    /// Views a vector of `values` values that [`Rounded::new`] has written to the start of `words`.
    ///
    /// # Panics
    /// If there are too few words.
    pub fn made(values: usize, words: &'a [f32]) -> Self {
        let blocks = values / BLOCK;
        let (scales, words) = words.split_at(blocks);
        let (sums, words) = words.split_at(blocks);
        let (whole, words) = words.split_at(values / 4);
        let halves = &words[..values / HALVES * (HALVES / 4)];
        Self { scales, sums, values: cast_slice(whole), halves: cast_slice(halves) }
    }

    /// Panics if the row has another length or no blocks.
    #[inline]
    pub(super) fn assert_meets(&self, w: Row<'_>) {
        assert!(w.format.has_blocks(), "rows of {} meet floats", w.format);
        w.assert_values(self.values.len());
    }
}

/// Replaces whole blocks of a vector by their rounded values; a remainder is unchanged.
pub fn round_in_place(x: &mut [f32]) {
    for block in x.as_chunks_mut::<BLOCK>().0 {
        let mut rounded = [0; BLOCK];
        let scale = round_block(block, &mut rounded);
        block.iter_mut().zip(rounded).for_each(|(value, q)| *value = scale * f32::from(q));
    }
}

/// A vector as the plan multiplies it with weights: floats, with their rounded form if the plan rounds
/// vectors.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    plain: &'a [f32],
    rounded: Option<Rounded<'a>>,
}

impl<'a> Input<'a> {
    /// The floats.
    pub fn plain(plain: &'a [f32]) -> Self {
        Self { plain, rounded: None }
    }

    /// The floats and, if `round` is set and they are whole blocks, their rounded form in the start of
    /// `words`.
    ///
    /// # Panics
    /// If there are too few words.
    pub fn new(plain: &'a [f32], round: bool, words: &'a mut [f32]) -> Self {
        let round = round && plain.len().is_multiple_of(BLOCK);
        Self { plain, rounded: round.then(|| Rounded::new(plain, words)) }
    }

    /// The floats and, if there are `words`, the rounded vector that [`Rounded::new`] has written there.
    ///
    /// # Panics
    /// If there are too few words.
    pub fn made(plain: &'a [f32], words: Option<&'a [f32]>) -> Self {
        Self { plain, rounded: words.map(|words| Rounded::made(plain.len(), words)) }
    }

    /// The floats.
    pub fn floats(&self) -> &'a [f32] {
        self.plain
    }

    /// `w . x`: rows of blocks use the rounded vector, if there is one.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn dot(&self, kernels: &dyn Kernels, w: Row<'_>) -> f32 {
        match self.rounded {
            Some(x) if w.format.has_blocks() => kernels.dot_rounded(w, x),
            _ => kernels.dot(w, self.plain),
        }
    }

    /// [`Input::dot`] for rows in order: `out[i] = w[start + i] . x`.
    ///
    /// # Panics
    /// If the lengths differ, or there are not as many rows as outputs.
    pub fn rows(&self, kernels: &dyn Kernels, w: Matrix<'_>, start: usize, out: &mut [f32]) {
        match self.rounded {
            Some(x) if w.format.has_blocks() => kernels.rows_rounded(w, start, x, out),
            _ => kernels.rows(w, start, self.plain, out),
        }
    }
}
