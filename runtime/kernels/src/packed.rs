//! Many vectors side by side, the layout for products with matrices: a register holds one column of sixteen
//! vectors.
//!
//! ```text
//! group of g <= 16 vectors, one group after another:
//! F32   [column][g]                                                         : f32
//! Q8    [block of 32 columns] [g scales : f32] [g sums : i32] [8][g] [4 : i8]
//! ```
//!
//! In `Q8`, a vector's block is 32 integers in -127..127 and a scale: the largest magnitude over 127. The
//! stored sum of the integers corrects for the offset of stored weights. Both forms fit in the space of the
//! unpacked vectors, since a word of `Q8` holds four values.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use plans::engine::{TRANSPOSED, TRANSPOSED_WORDS};

/// Vectors in a group.
pub const LANES: usize = 16;
/// Columns under one scale of [`Form::Q8`], as in the stored formats.
pub(super) const BLOCK: usize = 32;
/// Words of a block of one vector: scale, sum, and four values each.
pub(super) const BLOCK_WORDS: usize = 2 + BLOCK / 4;

const _: () = assert!(
    TRANSPOSED == BLOCK && TRANSPOSED_WORDS == BLOCK + BLOCK_WORDS,
    "plans turn one block of neurons"
);

/// The number format of packed vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Values as `f32`.
    F32,
    /// Rounded to 8 bits, with a scale for every 32 columns.
    Q8,
}

/// A piece of a group: the number of vectors, and its words, register by register.
pub(super) type PackedVectors<'a> = (usize, &'a [[f32; LANES]]);

/// `[count, columns]` values in groups of [`LANES`] vectors.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// The number format of the values.
    pub form: Form,
    /// Values per vector; for [`Form::Q8`], a multiple of 32.
    pub columns: usize,
    /// Number of vectors.
    pub count: usize,
    words: &'a [f32],
}

impl<'a> Packed<'a> {
    /// Views vectors that [`pack`] has written to the start of `words`.
    ///
    /// # Panics
    /// If there are too few words.
    pub fn new(form: Form, columns: usize, count: usize, words: &'a [f32]) -> Self {
        Self { form, columns, count, words: &words[..count * form.vector_words(columns)] }
    }

    /// Vectors `start..start + count`; `start` must be the first vector of a group.
    ///
    /// # Panics
    /// If `start` is not the first of a group, or there are too few vectors.
    #[must_use]
    pub fn part(self, start: usize, count: usize) -> Self {
        assert!(start.is_multiple_of(LANES), "vector {start} is inside a group");
        assert!(count.is_multiple_of(LANES) || start + count == self.count, "a part is whole groups");
        let vector = self.form.vector_words(self.columns);
        Self { count, words: &self.words[start * vector..][..count * vector], ..self }
    }

    /// The number of vectors and the words of each group.
    pub(super) fn groups(self) -> impl Iterator<Item = (usize, &'a [f32])> {
        let vector = self.form.vector_words(self.columns);
        self.words.chunks(LANES * vector).map(move |words| (words.len() / vector, words))
    }

    /// Words `piece` of the vectors of each group. If the last group has fewer than sixteen vectors, it is
    /// padded with zeros at the start of `filled`, so that every register is full.
    ///
    /// # Panics
    /// If the last group is not full and `filled` is shorter than the piece.
    pub(super) fn whole_groups<'b>(
        self,
        piece: Range<usize>,
        filled: &'b mut [[f32; LANES]],
    ) -> impl Iterator<Item = PackedVectors<'b>>
    where
        'a: 'b,
    {
        if let Some((g, words)) = self.groups().last().filter(|(g, _)| *g != LANES) {
            for (to, from) in
                filled[..piece.len()].iter_mut().zip(words[piece.start * g..piece.end * g].chunks_exact(g))
            {
                to[..g].copy_from_slice(from);
            }
        }
        let filled = filled.get(..piece.len()).unwrap_or_default();
        let groups: Packed<'b> = self;
        groups
            .groups()
            .map(move |(g, words)| (g, if g == LANES { &words.as_chunks().0[piece.clone()] } else { filled }))
    }

    /// One vector's value.
    #[cfg(test)]
    pub(super) fn value(&self, vector: usize, column: usize) -> f32 {
        let (group, lane) = (vector / LANES, vector % LANES);
        let (g, words) = self.groups().nth(group).expect("a vector is in a group");
        match self.form {
            Form::F32 => words[column * g + lane],
            Form::Q8 => {
                let block = &words[column / BLOCK * BLOCK_WORDS * g..][..BLOCK_WORDS * g];
                let bytes: &[[i8; 4]] = cast_slice(&block[2 * g..]);
                block[lane] * f32::from(bytes[column % BLOCK / 4 * g + lane][column % 4])
            }
        }
    }
}

impl Form {
    /// Words per vector.
    pub const fn vector_words(self, columns: usize) -> usize {
        match self {
            Self::F32 => columns,
            Self::Q8 => columns / BLOCK * BLOCK_WORDS,
        }
    }
}

/// Packs vectors. A call for some whole groups writes the same words as a call for all vectors.
///
/// *Shapes*: `rows: [count, columns]`, `words: [count * form.vector_words(columns)]`.
///
/// # Panics
/// If the lengths disagree, or [`Form::Q8`] would split a block.
pub fn pack(form: Form, columns: usize, rows: &[f32], words: &mut [f32]) {
    assert_eq!(
        words.len() * columns,
        rows.len() * form.vector_words(columns),
        "pack: as many words as vectors"
    );
    pack_some(form, columns, |vector| &rows[vector * columns..][..columns], words);
}

/// [`pack`] for vectors at any address: as many as `words` has space for.
///
/// *Shapes*: `row(vector): [columns]`, `words: [count * form.vector_words(columns)]`.
///
/// # Panics
/// The panics of [`pack`].
pub fn pack_some<'r>(form: Form, columns: usize, row: impl Fn(usize) -> &'r [f32], words: &mut [f32]) {
    let vector = form.vector_words(columns);
    assert!(
        form == Form::F32 || columns.is_multiple_of(BLOCK),
        "pack: {columns} columns are not whole blocks"
    );
    for (group, words) in words.chunks_mut(LANES * vector).enumerate() {
        let g = words.len() / vector;
        for lane in 0..g {
            let row = row(group * LANES + lane);
            assert_eq!(row.len(), columns, "pack: vectors of one length");
            match form {
                Form::F32 => {
                    for (value, words) in row.iter().zip(words.chunks_exact_mut(g)) {
                        words[lane] = *value;
                    }
                }
                Form::Q8 => {
                    for (values, words) in
                        row.as_chunks().0.iter().zip(words.chunks_exact_mut(BLOCK_WORDS * g))
                    {
                        pack_block(values, lane, g, words);
                    }
                }
            }
        }
    }
}

/// Packs vectors that lie side by side, in whole groups from vector `first` on: as many as `words` has space
/// for. As bytes, values missing from the last block are zero.
///
/// *Shapes*: `values: [columns, count]`, `words: [some * form.vector_words(columns)]`; for [`Form::Q8`],
/// `columns` is rounded up to whole blocks.
///
/// # Panics
/// If `first` is inside a group, or `words` has space for more vectors than there are.
pub fn pack_transposed(form: Form, values: &[f32], count: usize, first: usize, words: &mut [f32]) {
    let columns = values.len() / count;
    let vector = match form {
        Form::F32 => columns,
        Form::Q8 => form.vector_words(columns.next_multiple_of(BLOCK)),
    };
    assert!(first.is_multiple_of(LANES), "pack: vector {first} is inside a group");
    for (group, words) in words.chunks_mut(LANES * vector).enumerate() {
        let (g, first) = (words.len() / vector, first + group * LANES);
        if form == Form::F32 {
            for (values, words) in values.chunks_exact(count).zip(words.chunks_exact_mut(g)) {
                words.copy_from_slice(&values[first..first + g]);
            }
            continue;
        }
        for (values, words) in values.chunks(BLOCK * count).zip(words.chunks_exact_mut(BLOCK_WORDS * g)) {
            let mut transposed = [[0.0; BLOCK]; LANES];
            for (k, values) in values.chunks_exact(count).enumerate() {
                transposed
                    .iter_mut()
                    .zip(&values[first..first + g])
                    .for_each(|(transposed, value)| transposed[k] = *value);
            }
            for (lane, values) in transposed[..g].iter().enumerate() {
                pack_block(values, lane, g, words);
            }
        }
    }
}

/// Packs one block of vector `lane` of `g`.
fn pack_block(values: &[f32; BLOCK], lane: usize, g: usize, words: &mut [f32]) {
    let mut rounded = [0_i8; BLOCK];
    words[lane] = round_block(values, &mut rounded);
    let words: &mut [u32] = cast_slice_mut(words);
    words[g + lane] = rounded.iter().map(|&q| i32::from(q)).sum::<i32>().cast_unsigned();
    for (j, four) in cast_slice::<i8, [u8; 4]>(&rounded).iter().enumerate() {
        words[(2 + j) * g + lane] = u32::from_le_bytes(*four);
    }
}

/// A block with a smaller largest magnitude is rounded to zero: the inverse of its scale would be infinite.
pub(super) const LEAST: f32 = 1e-35;

/// Rounds a block to integers of at most 127; returns their scale.
pub(super) fn round_block<const N: usize>(values: &[f32; N], rounded: &mut [i8; N]) -> f32 {
    round_block_to(127.0, values, rounded)
}

/// Rounds a block to integers of at most `most`; returns their scale.
#[inline]
pub(super) fn round_block_to<const N: usize>(most: f32, values: &[f32; N], rounded: &mut [i8; N]) -> f32 {
    // in independent lanes; NaNs are skipped
    let larger = |largest: f32, v: f32| if v > largest { v } else { largest };
    let (eights, rest) = values.as_chunks::<8>();
    let mut lanes = [0.0_f32; 8];
    for values in eights {
        lanes.iter_mut().zip(values).for_each(|(lane, v)| *lane = larger(*lane, v.abs()));
    }
    let largest = lanes.into_iter().chain(rest.iter().map(|v| v.abs())).fold(0.0, larger);
    let (scale, inverse) = if largest < LEAST { (0.0, 0.0) } else { (largest / most, most / largest) };
    for (rounded, value) in rounded.iter_mut().zip(values) {
        *rounded = round(value * inverse);
    }
    scale
}

/// Rounds to the nearest integer, halves to even, by adding a number whose last bit is worth one.
fn round(value: f32) -> i8 {
    const BASE: f32 = 12_582_912.0; // 1.5 * 2^23
    (value + BASE).to_bits() as i8
}
