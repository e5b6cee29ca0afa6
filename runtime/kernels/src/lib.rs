//! The arithmetic of a token: rows of stored weights times vectors of `f32`.
//!
//! In reading order:
//!
//! * `block`, `interleaved`, `k_block` and `parts` define the storage formats, one value at a time; `parts`
//!   also has generic loops over an instruction set's operations on 32 bytes;
//! * `scalar` defines the kernels, on any processor;
//! * `packed` lays many vectors side by side, and `plain` defines products with them;
//! * `avx2`, `avx512` and `neon` compute the same results with vector instructions behind one trait; `tiles`
//!   cuts products into tiles of registers for two of them;
//! * `norm`, `rope`, `softmax` and `activation` are the steps between the matrices. They are plain Rust, the
//!   same on every processor, because they touch one vector where the matrices touch megabytes;
//! * `unit` is the door to a unit beside the processor, such as a GPU.
//!
//! Weights keep the format of their file, or the order that [`Kernels::stored`] names: the same bytes, but
//! faster to read. Kernels unpack them to `f32` in registers, or to bytes if many vectors have been rounded
//! to 8 bits. Nothing here knows of threads, neurons or files: callers loop. `docs/internals.md` says what
//! each optimisation brought.

mod activation;
mod block;
mod down;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod few;
mod finite;
pub mod format;
mod interleaved;
mod k_block;
mod norm;
mod packed;
mod parts;
mod plain;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod prefetch;
mod rope;
mod rounded;
mod scalar;
mod softmax;
mod tiles;
mod unit;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

pub use activation::Activation;
pub use block::{dequantise, quantise};
pub use down::{Down, TRANSPOSED_COLUMNS, rounds_factors};
use down::{TRANSPOSED_MOST, assert_added, assert_transposed, sum_of_four};
pub use finite::first_not_finite;
pub use norm::{rms_norm, rms_norm_in_place};
pub use packed::{Form, LANES, Packed, pack, pack_some, pack_transposed};
pub use parts::grid;
pub use rope::{Rotation, fill_rotations, rope, rope_frequency, rope_halves};
pub use rounded::{Input, Rounded, round_in_place};
pub use softmax::{exp, softmax};
pub use unit::{ProductUnit, UnitError};

pub use plans::engine::{ADDED, SHARING, sum_words};

pub use format::Format;

/// Prefetch distance in bytes for weights in order. Less leaves bandwidth unused; more gains nothing and
/// evicts the bytes being read.
const AHEAD_BYTES: usize = 4096;

/// A row of weights: its format and its bytes, of any alignment.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Storage format of the values.
    pub format: Format,
    /// Whole blocks, back to back.
    pub bytes: &'a [u8],
    /// The bytes to be read next. A kernel prefetches them line by line while it reads `bytes`; the result
    /// does not depend on them. Hardware prefetching follows consecutive rows, but cannot know a list of
    /// neurons.
    pub next: &'a [u8],
}

impl<'a> Row<'a> {
    /// A row without a known successor.
    #[inline]
    pub fn new(format: Format, bytes: &'a [u8]) -> Self {
        Self { format, bytes, next: bytes }
    }

    /// This row, with `next` as the bytes read after it.
    #[inline]
    #[must_use]
    pub fn before(self, next: &'a [u8]) -> Self {
        Self { next, ..self }
    }

    /// The row at `bytes[start..start + count]`, with the bytes a little behind it as `next`.
    #[inline]
    pub fn in_order(format: Format, bytes: &'a [u8], start: usize, count: usize) -> Self {
        let next = bytes.get(start + AHEAD_BYTES..).unwrap_or(&bytes[start..]);
        Self { format, bytes: &bytes[start..][..count], next }
    }

    /// Number of values in the row.
    #[inline]
    pub fn values(&self) -> usize {
        self.bytes.len() / self.format.block_bytes() * self.format.block_values()
    }

    /// Byte offset of the block that begins with value `index`; for an index inside a block, the proportional
    /// offset.
    #[inline]
    fn place(&self, index: usize) -> usize {
        index * self.format.block_bytes() / self.format.block_values()
    }

    /// Distance in bytes from the start of `bytes` to the start of `next`.
    #[inline]
    fn ahead(&self) -> usize {
        self.next.as_ptr().addr().wrapping_sub(self.bytes.as_ptr().addr())
    }

    /// Panics if the row has another length than the vector.
    #[inline]
    fn assert_values(&self, count: usize) {
        assert_eq!(
            self.bytes.len(),
            self.format.row_bytes(count),
            "{} bytes of {} are not a row of {count} values",
            self.bytes.len(),
            self.format
        );
    }
}

/// Weights `[rows, columns]`, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Storage format of the values.
    pub format: Format,
    /// Rows: the length of the output.
    pub rows: usize,
    /// Columns: the length of the input, a multiple of the format's block.
    pub columns: usize,
    /// `rows` rows of [`Format::row_bytes`]`(columns)`, back to back.
    pub bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Row `index`: `[columns]`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row(&self, index: usize) -> Row<'a> {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        let row_bytes = self.format.row_bytes(self.columns);
        Row::in_order(self.format, self.bytes, index * row_bytes, row_bytes)
    }
}

/// The kernels of one instruction set.
///
/// A call runs on the calling thread, allocates nothing, and returns the same bits for the same arguments.
/// Across instruction sets `dot` differs by rounding, because the order of its sum differs.
pub trait Kernels: Sync + fmt::Debug {
    /// The instruction set that the kernels need.
    fn instruction_set(&self) -> InstructionSet;

    /// `sum over i of w[i] * x[i]`.
    ///
    /// *Shapes*: `w: [n]`, `x: [n]`.
    ///
    /// # Panics
    /// If the lengths differ.
    fn dot(&self, w: Row<'_>, x: &[f32]) -> f32;

    /// [`Kernels::dot`] for rows in order, bit for bit: `out[i] = w[start + i] . x`. Avoids a call per row,
    /// which takes longer than a short row.
    ///
    /// *Shapes*: `w: [rows, n]`, `x: [n]`.
    ///
    /// # Panics
    /// If the lengths differ, or there are not as many rows as outputs.
    fn rows(&self, w: Matrix<'_>, start: usize, x: &[f32], out: &mut [f32]) {
        for (at, out) in (start..).zip(out) {
            *out = self.dot(w.row(at), x);
        }
    }

    /// Rows in order times few vectors, unpacking a row once for several: `out[t][r] = w[rows.start + r] .
    /// x[t]`. The order of each sum is fixed, whatever other rows and vectors a call has, but may differ from
    /// [`Kernels::dot`].
    ///
    /// *Shapes*: `w: [.., n]`, `x: [count, n]`, `out: [count, places]`; the first `rows.len()` of each
    /// vector's places are written.
    ///
    /// # Panics
    /// If lengths disagree.
    fn dots(&self, w: Matrix<'_>, rows: Range<usize>, x: &[f32], out: &mut [f32]) {
        dots_one_by_one(w, rows, x, out, |w, x| self.dot(w, x));
    }

    /// `y[i] += a * w[i]`.
    ///
    /// Each `y[i]` depends on `a`, `w[i]` and `y[i]` alone. So columns may be split between threads at any
    /// multiple of the format's block without changing a bit of the result.
    ///
    /// *Shapes*: `w: [n]`, `y: [n]`.
    ///
    /// # Panics
    /// If the lengths differ.
    fn axpy(&self, a: f32, w: Row<'_>, y: &mut [f32]);

    /// [`Kernels::dot`] with a vector of 8 bits, for rows of blocks. The sum of values under one scale is an
    /// integer sum, hence exact.
    ///
    /// *Shapes*: `w: [n]`, `x: [n]`.
    ///
    /// # Panics
    /// If the lengths differ, or the row has no blocks.
    fn dot_rounded(&self, w: Row<'_>, x: Rounded<'_>) -> f32;

    /// [`Kernels::dot_rounded`] for rows in order, bit for bit: `out[i] = w[start + i] . x`. Avoids a call
    /// per row, which takes longer than a row of few blocks.
    ///
    /// *Shapes*: `w: [rows, n]`, `x: [n]`.
    ///
    /// # Panics
    /// If the lengths differ, the rows have no blocks, or there are not as many as outputs.
    fn rows_rounded(&self, w: Matrix<'_>, start: usize, x: Rounded<'_>, out: &mut [f32]) {
        for (at, out) in (start..).zip(out) {
            *out = self.dot_rounded(w.row(at), x);
        }
    }

    /// Rows times many vectors: `out[r][t] = sum over i of w[r][i] * x[t][i]`.
    ///
    /// The order of each sum is fixed, whatever other rows and vectors a call has. [`Form::Q8`] supports the
    /// formats of blocks; the sum of values under one scale is an integer sum, hence exact.
    ///
    /// *Shapes*: `w: [rows]` of `[x.columns]`, one format; `out: [rows, x.count]`.
    ///
    /// # Panics
    /// If lengths or formats disagree.
    fn products(&self, w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]);

    /// [`Kernels::axpy`] many times: `y[t][i] += sum over k of a[k][t] * w[k][i]`, with `k` ascending. Every
    /// bit is as with `axpy` row after row. Weights must be finite.
    ///
    /// *Shapes*: `a: [w.len(), count]`, read at the columns `vectors`; `w: [w.len()]` of `[columns]`, one
    /// format; `y: [vectors.len(), columns]`.
    ///
    /// # Panics
    /// If lengths or formats disagree.
    fn add_products(&self, a: &[f32], count: usize, vectors: Range<usize>, w: &[Row<'_>], y: &mut [f32]);

    /// [`Kernels::add_products`] of rows in order for few vectors, bit for bit, where few factors are zero:
    /// `y[t] += sum over r of a[t][r] * w[rows.start + r]`.
    ///
    /// *Shapes*: `a: [count, places]`, with the first `rows.len()` of each vector used; `w: [.., n]`, `y:
    /// [count, n]`.
    ///
    /// # Panics
    /// If lengths disagree.
    fn add_few(&self, a: &[f32], w: Matrix<'_>, rows: Range<usize>, y: &mut [f32]) {
        add_some_at_a_time(self, a, w, rows, y);
    }

    /// The strategy for summing rows of down.
    fn down(&self) -> &dyn Down;

    /// `x[i] = exp(x[i] - largest)`, by [`exp`].
    fn exponentials(&self, x: &mut [f32], largest: f32) {
        softmax::exponentials(x, largest);
    }

    /// `values[i] = activation.apply(gates[i], ups[i])`, bit for bit, up to the shortest of the three slices.
    fn activate(&self, activation: Activation, gates: &[f32], ups: &[f32], values: &mut [f32]) {
        activation::activate(activation, gates, ups, values);
    }

    /// Number of bits that differ between two vectors of signs.
    ///
    /// *Shapes*: `a: [n / 64]`, `b: [n / 64]`, one bit per sign.
    ///
    /// # Panics
    /// If the lengths differ.
    fn sign_mismatch(&self, a: &[u64], b: &[u64]) -> u32;

    /// The format that these kernels read fastest for rows of `columns` values of `format`: the same values
    /// in the same number of bytes.
    fn stored(&self, format: Format, _columns: usize) -> Format {
        format
    }

    /// Reads a row with almost no computation: the exclusive or of its words of eight bytes, the last one
    /// padded with zeros. Measures the read bandwidth that bounds every kernel.
    fn read(&self, w: Row<'_>) -> u64 {
        // in lanes, which are independent
        let mut lanes = [0_u64; 16];
        let (chunks, rest) = w.bytes.as_chunks::<128>();
        for chunk in chunks.iter().chain([&padded(rest)]) {
            let words: &[[u8; 8]; 16] = bytemuck::cast_ref(chunk);
            lanes.iter_mut().zip(words).for_each(|(lane, word)| *lane ^= u64::from_le_bytes(*word));
        }
        lanes.iter().fold(0, |all, &word| all ^ word)
    }
}

/// Every kernel set that this processor supports: the reference first, the fastest last.
pub fn available() -> Vec<&'static dyn Kernels> {
    InstructionSet::ALL.into_iter().filter_map(by_name).collect()
}

/// The fastest kernels that this processor supports.
pub fn best() -> &'static dyn Kernels {
    InstructionSet::ALL.into_iter().rev().find_map(by_name).unwrap_or(&scalar::Scalar)
}

/// The kernels of `instruction_set`, if this processor supports it.
pub fn by_name(instruction_set: InstructionSet) -> Option<&'static dyn Kernels> {
    match instruction_set {
        InstructionSet::Scalar => Some(&scalar::Scalar),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => avx2::Avx2::detect().map(|kernels| kernels as &dyn Kernels),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => avx512::Avx512::detect().map(|kernels| kernels as &dyn Kernels),
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon | InstructionSet::Dotprod | InstructionSet::I8mm => {
            neon::Neon::detect(instruction_set).map(|kernels| kernels as &dyn Kernels)
        }
        // the instruction sets of another architecture
        #[cfg(not(target_arch = "x86_64"))]
        InstructionSet::Avx2 | InstructionSet::Avx512 => None,
        #[cfg(not(target_arch = "aarch64"))]
        InstructionSet::Neon | InstructionSet::Dotprod | InstructionSet::I8mm => None,
    }
}

/// [`Kernels::stored`] for kernels that load interleaved nibbles.
#[cfg(target_arch = "x86_64")]
fn stored_interleaved(format: Format, columns: usize) -> Format {
    let groups = columns.is_multiple_of(Format::Q4_0X4.block_values());
    if format == Format::Q4_0 && groups { Format::Q4_0X4 } else { format }
}

/// Repacks rows of `format` as `stored`, a format returned by [`Kernels::stored`], in place.
///
/// # Panics
/// If no kernels store one format as the other, or a row is not whole blocks of both.
pub fn repack(format: Format, stored: Format, rows: &mut [u8]) {
    match (format, stored) {
        (Format::Q4_0, Format::Q4_0X4) => interleaved::repack(rows),
        _ => assert_eq!(format, stored, "stored as it is"),
    }
}

/// `values`, padded with zeros.
fn padded<T: Default + Copy, const N: usize>(values: &[T]) -> [T; N] {
    let mut padded = [T::default(); N];
    padded[..values.len()].copy_from_slice(values);
    padded
}

/// The definition of [`Kernels::add_products`].
fn add_one_by_one(
    kernels: &dyn Kernels,
    a: &[f32],
    count: usize,
    vectors: Range<usize>,
    w: &[Row<'_>],
    y: &mut [f32],
) {
    let columns = assert_sums(a, count, &vectors, w, y);
    for (t, y) in vectors.zip(y.chunks_mut(columns.max(1))) {
        for (k, row) in w.iter().enumerate() {
            if a[k * count + t] != 0.0 {
                kernels.axpy(a[k * count + t], *row, y);
            }
        }
    }
}

/// Panics if there is no row for an output, or a row differs from the vector in length.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn assert_rows(w: Matrix<'_>, start: usize, x: &[f32], out: &[f32]) {
    assert!(start + out.len() <= w.rows, "a row for each output");
    if !out.is_empty() {
        w.row(start).assert_values(x.len());
    }
}

/// Panics if the shapes of rows, vectors and numbers (one per vector and row) do not match. Returns the
/// number of places of each vector.
fn assert_few(w: Matrix<'_>, rows: &Range<usize>, vectors: &[f32], numbers: &[f32]) -> usize {
    let count = vectors.len() / w.columns;
    let places = numbers.len() / count.max(1);
    assert_eq!(vectors.len(), count * w.columns, "few vectors: as long as rows");
    assert!(rows.start <= rows.end && rows.end <= w.rows, "few vectors: rows {rows:?} of {}", w.rows);
    assert_eq!(numbers.len(), count * places, "few vectors: as many numbers for each");
    assert!(count == 0 || places >= rows.len(), "few vectors: {places} numbers, {} rows", rows.len());
    places
}

/// [`Kernels::dots`], one row and one vector at a time.
fn dots_one_by_one(
    w: Matrix<'_>,
    rows: Range<usize>,
    x: &[f32],
    out: &mut [f32],
    dot: impl Fn(Row<'_>, &[f32]) -> f32,
) {
    let places = assert_few(w, &rows, x, out);
    for (x, out) in x.chunks_exact(w.columns).zip(out.chunks_exact_mut(places.max(1))) {
        for (at, out) in rows.clone().zip(out) {
            *out = dot(w.row(at), x);
        }
    }
}

/// [`Kernels::add_few`] by [`Kernels::add_products`], which takes factors row by row.
fn add_some_at_a_time<K: Kernels + ?Sized>(
    kernels: &K,
    a: &[f32],
    w: Matrix<'_>,
    rows: Range<usize>,
    y: &mut [f32],
) {
    const ROWS: usize = 64;
    const VECTORS: usize = 16;
    let places = assert_few(w, &rows, y, a);
    for start in rows.clone().step_by(ROWS) {
        let mut some = [Row::new(w.format, &[]); ROWS];
        let some = &mut some[..ROWS.min(rows.end - start)];
        some.iter_mut().zip(start..).for_each(|(row, at)| *row = w.row(at));
        for (a, y) in a.chunks(VECTORS * places.max(1)).zip(y.chunks_mut(VECTORS * w.columns)) {
            let (count, mut factors) = (y.len() / w.columns, [0.0; ROWS * VECTORS]);
            for (t, a) in a.chunks_exact(places).enumerate() {
                let a = &a[start - rows.start..][..some.len()];
                factors[t..].iter_mut().step_by(count).zip(a).for_each(|(factor, a)| *factor = *a);
            }
            kernels.add_products(&factors[..some.len() * count], count, 0..count, some, y);
        }
    }
}

/// Panics unless the rows have one format and length.
fn assert_uniform(w: &[Row<'_>], columns: usize) {
    let Some(first) = w.first() else { return };
    first.assert_values(columns);
    let alike = |row: &Row<'_>| row.format == first.format && row.bytes.len() == first.bytes.len();
    assert!(w.iter().all(alike), "rows of one format and length");
}

/// Panics if the shapes do not match; returns the number of columns.
fn assert_sums(a: &[f32], count: usize, vectors: &Range<usize>, w: &[Row<'_>], y: &[f32]) -> usize {
    assert_eq!(a.len(), w.len() * count, "add_products: one factor a row and vector");
    assert!(vectors.end <= count, "add_products: vectors {vectors:?} of {count}");
    let columns = y.len() / vectors.len().max(1);
    assert_eq!(y.len(), columns * vectors.len(), "add_products: vectors of one length");
    assert_uniform(w, columns);
    columns
}

/// An instruction set that has kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstructionSet {
    /// Plain Rust: the reference, on any processor.
    Scalar,
    /// AVX2, FMA and F16C: x86-64 since 2013.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: x86-64 servers since 2017, AMD since 2022.
    Avx512,
    /// NEON: every 64-bit Arm processor.
    Neon,
    /// NEON with products of four bytes (`sdot`): Arm since 2018.
    Dotprod,
    /// NEON with products of small matrices of bytes (`smmla`): Arm since 2021.
    I8mm,
}

impl InstructionSet {
    /// Every instruction set; for each architecture, the slowest first.
    pub const ALL: [Self; 6] =
        [Self::Scalar, Self::Avx2, Self::Avx512, Self::Neon, Self::Dotprod, Self::I8mm];

    /// The name in files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
            Self::Dotprod => "dotprod",
            Self::I8mm => "i8mm",
        }
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for InstructionSet {
    type Err = UnknownInstructionSet;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|set| set.name() == name)
            .ok_or_else(|| UnknownInstructionSet(name.to_owned()))
    }
}

/// A name that no [`InstructionSet`] has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there are no kernels for the instruction set `{0}`: choose one of {names}", names = InstructionSet::ALL.map(InstructionSet::name).join(", "))]
pub struct UnknownInstructionSet(String);
