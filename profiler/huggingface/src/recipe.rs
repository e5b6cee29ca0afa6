//! A tensor of the GGUF file as rows of tensors of the folder.
//!
//! A converter joins experts, splits fused matrices, permutes rotated heads and transposes. All of these only reorder values. A row of the
//! new tensor is a run of values of an old one, `column_step` apart, or alternating runs. The exceptions are norms that lack 1, decays
//! that are stored as logarithms, and blocks of MXFP4, whose bytes GGUF interleaves in another way.

use std::io::{self, Write};

use half::{bf16, f16};
use kernels::{Format, dequantise, quantise};

use crate::error::FolderError;
use crate::index::Weights;
use crate::safetensors::{Kind, Tensor};

/// A tensor to be written.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) name: String,
    /// Outermost dimension first.
    pub(crate) shape: Vec<u64>,
    /// How its values are stored.
    pub(crate) format: Format,
    pub(crate) content: Content,
}

/// Contents of a tensor.
#[derive(Debug)]
pub(crate) enum Content {
    /// Rows of tensors, one part after another, then rows of zeros, and what is done to every value.
    Rows { parts: Vec<Rows>, zeros: u64, change: ValueChange },
    /// Rows of MXFP4, of every `step`-th row of these tensors from `first` on.
    Blocks { blocks: String, scales: String, first: u64, step: u64 },
    /// Values that were computed.
    Values(Vec<f32>),
}

/// Transformation of every value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ValueChange {
    /// Nothing.
    None,
    /// 1 is added: norms lack it.
    PlusOne,
    /// `-exp(x)`: a decay is stored as the logarithm of its size.
    MinusExp,
    /// `exp(x)`: a bounded decay's slope is stored as its logarithm.
    Exp,
}

impl ValueChange {
    fn of(self, value: f32) -> f32 {
        match self {
            Self::None => value,
            Self::PlusOne => value + 1.0,
            // rounded once, so that all machines agree
            Self::MinusExp => -f64::from(value).exp() as f32,
            Self::Exp => f64::from(value).exp() as f32,
        }
    }
}

/// Another order of rows or columns: runs of `width` of them, which lie as `[first][second]`, come as `[second][first]`, again and
/// again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct HeadOrder {
    pub(crate) first: u64,
    pub(crate) second: u64,
    pub(crate) width: u64,
}

impl HeadOrder {
    /// The two halves of each head, which rotate together, become neighbours; `None`: the rows are no such heads.
    pub(crate) fn halves(rows: u64, heads: u64) -> Option<Self> {
        let halves = heads.checked_mul(2).filter(|&halves| halves > 0 && rows.is_multiple_of(halves))?;
        Some(Self { first: 2, second: rows / halves, width: 1 })
    }

    /// Reorders heads that lie group by group: the first of each group, then the second of each, and so on.
    ///
    /// `None` if the rows or columns are no such heads.
    pub(crate) fn groups(count: u64, groups: u64, heads: u64) -> Option<Self> {
        let whole = groups > 0 && heads > 0 && heads.is_multiple_of(groups) && count.is_multiple_of(heads);
        whole.then(|| Self { first: groups, second: heads / groups, width: count / heads })
    }

    /// Whether so many rows or columns are whole turns.
    fn fits(self, count: u64) -> bool {
        let turn = self.first.checked_mul(self.second).and_then(|runs| runs.checked_mul(self.width));
        turn.is_some_and(|turn| turn > 0 && count.is_multiple_of(turn))
    }

    /// Where the one lies that comes at a place.
    fn place(self, at: u64) -> u64 {
        let Self { first, second, width } = self;
        let turn = first * second * width;
        let (before, run, within) = (at / turn * turn, at % turn / width, at % width);
        before + (run % first * second + run / first) * width + within
    }
}

/// Why a tensor is not written.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A value is not finite, or not any more when it is stored.
    NotFinite,
    /// The file cannot be written.
    Write(io::Error),
    /// The folder cannot be read, or the user wants no more.
    Read(FolderError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

impl From<FolderError> for Failure {
    fn from(error: FolderError) -> Self {
        Self::Read(error)
    }
}

/// Rows of the matrices of one tensor.
///
/// Value `c` of row `r` of matrix `m` lies at `start + m matrix_step + r row_step + c column_step`; turns map `r` and `c` first.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    pub(crate) tensor: String,
    pub(crate) start: u64,
    pub(crate) matrices: u64,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) matrix_step: u64,
    pub(crate) row_step: u64,
    pub(crate) column_step: u64,
    pub(crate) row_order: Option<HeadOrder>,
    pub(crate) column_order: Option<HeadOrder>,
}

impl Rows {
    /// All rows of a tensor as they lie; its last dimension is a row.
    pub(crate) fn all(name: &str, tensor: &Tensor) -> Self {
        let columns = tensor.shape.last().copied().unwrap_or(1).max(1);
        Self::run(name, 0, tensor.values() / columns, columns)
    }

    /// Rows one after another.
    pub(crate) fn run(name: &str, start: u64, rows: u64, columns: u64) -> Self {
        Self {
            tensor: name.to_owned(),
            start,
            matrices: 1,
            rows,
            columns,
            matrix_step: 0,
            row_step: columns,
            column_step: 1,
            row_order: None,
            column_order: None,
        }
    }

    /// Whether all of it lies within so many values, and turns are whole.
    pub(crate) fn fits(&self, values: u64) -> bool {
        let Self { start, matrices, rows, columns, .. } = *self;
        let steps = [(matrices, self.matrix_step), (rows, self.row_step), (columns, self.column_step)];
        let last = steps.into_iter().try_fold(start, |last, (count, step)| {
            last.checked_add(count.checked_sub(1)?.checked_mul(step)?)
        });
        let whole = |order: Option<HeadOrder>, count| order.is_none_or(|order| order.fits(count));
        last.is_some_and(|last| last < values)
            && whole(self.row_order, rows)
            && whole(self.column_order, columns)
    }

    /// Where the row of a matrix lies that is the `row`-th.
    fn row_place(&self, row: u64) -> u64 {
        self.row_order.map_or(row, |order| order.place(row)) * self.row_step
    }

    /// Where the value of a row lies that is the `column`-th.
    fn column_place(&self, column: u64) -> u64 {
        self.column_order.map_or(column, |order| order.place(column)) * self.column_step
    }
}

impl Recipe {
    /// Values of a row.
    pub(crate) fn columns(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Bytes of the tensor in the file.
    pub(crate) fn bytes(&self) -> u64 {
        let columns = self.columns();
        let rows = self.shape.iter().product::<u64>() / columns.max(1);
        rows * self.format.row_bytes(columns as usize) as u64
    }

    /// Writes the tensor's bytes. `go_on` gets the bytes written so far, and returns whether to go on.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub(crate) fn write(
        &self,
        weights: &Weights,
        to: &mut dyn Write,
        go_on: &dyn Fn(u64) -> bool,
    ) -> Result<(), Failure> {
        let wanted = |written| if go_on(written) { Ok(()) } else { Err(Failure::Read(FolderError::Stopped)) };
        match &self.content {
            Content::Values(values) => {
                let mut bytes = vec![0; self.format.row_bytes(values.len())];
                quantise(self.format, values, &mut bytes);
                Ok(to.write_all(&bytes)?)
            }
            Content::Blocks { blocks, scales, first, step } => {
                let columns = self.columns() as usize;
                let rows = self.shape.iter().product::<u64>() / self.columns();
                let mut blocks = Blocks::new(weights, [blocks, scales], columns / BLOCK);
                let mut values = vec![0.0; columns];
                for row in 0..rows {
                    if row % ROWS_AT_ONCE == 0 {
                        wanted(row * self.format.row_bytes(columns) as u64)?;
                        let count = ROWS_AT_ONCE.min(rows - row);
                        blocks.read(first + row * step, (count - 1) * step + 1)?;
                    }
                    let stored = blocks.row(row % ROWS_AT_ONCE * step).ok_or(Failure::NotFinite)?;
                    check(self.format, stored, &mut values)?;
                    to.write_all(stored)?;
                }
                Ok(())
            }
            Content::Rows { parts, zeros, change } => {
                let mut written = 0;
                for part in parts {
                    // as many as a row of the tensor; of a bias whose heads take turns, one
                    let columns = part.columns as usize;
                    let mut values = vec![0.0_f32; columns];
                    let mut stored = vec![0; self.format.row_bytes(columns)];
                    let Some(tensor) = weights.tensor(&part.tensor) else { continue };
                    let mut source = Source::new(weights, part, tensor.kind);
                    for row in 0..part.matrices * part.rows {
                        if row % ROWS_AT_ONCE == 0 {
                            wanted(written)?;
                        }
                        let bytes = source.row(row)?;
                        let in_order = part.column_step == 1 && part.column_order.is_none();
                        let alike = is_alike(tensor.kind, self.format) && in_order;
                        let bytes = if alike && *change == ValueChange::None {
                            if !all_finite(tensor.kind, bytes) {
                                return Err(Failure::NotFinite);
                            }
                            bytes
                        } else {
                            decode(tensor.kind, bytes, part, &mut values);
                            values.iter_mut().for_each(|value| *value = change.of(*value));
                            if !values.iter().all(|value| value.is_finite()) {
                                return Err(Failure::NotFinite);
                            }
                            quantise(self.format, &values, &mut stored);
                            check(self.format, &stored, &mut values)?;
                            stored.as_slice()
                        };
                        to.write_all(bytes)?;
                        written += bytes.len() as u64;
                    }
                }
                let zero = vec![0.0; self.columns() as usize];
                let mut stored = vec![0; self.format.row_bytes(zero.len())];
                quantise(self.format, &zero, &mut stored);
                for _ in 0..*zeros {
                    to.write_all(&stored)?;
                }
                Ok(())
            }
        }
    }
}

/// Rows between two looks at whether to stop, and rows of blocks that are read at once.
const ROWS_AT_ONCE: u64 = 1024;

/// The rows of a part, read on demand; a whole matrix at once where its rows overlap.
struct Source<'w> {
    weights: &'w Weights,
    part: &'w Rows,
    value_bytes: u64,
    /// The matrix that was read, where matrices are.
    matrix: Option<u64>,
    /// A row, or a matrix: from its first value to its last.
    bytes: Vec<u8>,
}

impl<'w> Source<'w> {
    fn new(weights: &'w Weights, part: &'w Rows, kind: Kind) -> Self {
        let value_bytes = kind.bytes();
        let of_row = (part.columns - 1) * part.column_step + 1;
        let of_matrix = (part.rows - 1) * part.row_step + of_row;
        let values = if is_woven(part) { of_matrix } else { of_row };
        // within the tensor, and so in the file: `Rows::fits` was asked when the recipe was made
        let bytes = vec![0; (values * value_bytes) as usize];
        Self { weights, part, value_bytes, matrix: None, bytes }
    }

    /// Bytes that begin with a row's first value.
    fn row(&mut self, row: u64) -> Result<&[u8], FolderError> {
        let (matrix, row) = (row / self.part.rows, row % self.part.rows);
        let start = self.part.start + matrix * self.part.matrix_step;
        let place = self.part.row_place(row);
        if !is_woven(self.part) {
            self.weights.read(&self.part.tensor, (start + place) * self.value_bytes, &mut self.bytes)?;
            return Ok(&self.bytes);
        }
        if self.matrix != Some(matrix) {
            self.weights.read(&self.part.tensor, start * self.value_bytes, &mut self.bytes)?;
            self.matrix = Some(matrix);
        }
        Ok(&self.bytes[(place * self.value_bytes) as usize..])
    }
}

/// Whether rows lie within each other.
fn is_woven(part: &Rows) -> bool {
    part.column_step > 1
}

/// Whether values of a kind are stored as they are.
fn is_alike(kind: Kind, format: Format) -> bool {
    matches!((kind, format), (Kind::F32, Format::F32) | (Kind::F16, Format::F16) | (Kind::BF16, Format::BF16))
}

/// Requires finite values in a stored row: its source was finite, but the scale of a block may be too large for F16.
fn check(format: Format, stored: &[u8], values: &mut [f32]) -> Result<(), Failure> {
    dequantise(format, stored, values);
    if values.iter().all(|value| value.is_finite()) { Ok(()) } else { Err(Failure::NotFinite) }
}

/// Whether no value is infinite or none, which all have every bit of their exponent set.
fn all_finite(kind: Kind, bytes: &[u8]) -> bool {
    let halves =
        |exponent: u16| bytes.as_chunks().0.iter().all(|&it| u16::from_le_bytes(it) & exponent != exponent);
    match kind {
        Kind::F16 => halves(0x7c00),
        Kind::BF16 => halves(0x7f80),
        _ => bytes.as_chunks().0.iter().all(|&it| f32::from_le_bytes(it).is_finite()),
    }
}

/// The values of a row.
fn decode(kind: Kind, bytes: &[u8], part: &Rows, values: &mut [f32]) {
    match kind {
        Kind::F32 => gather(bytes, part, values, f32::from_le_bytes),
        Kind::F16 => gather(bytes, part, values, |value| f16::from_le_bytes(value).to_f32()),
        Kind::BF16 => gather(bytes, part, values, |value| bf16::from_le_bytes(value).to_f32()),
        Kind::U8 | Kind::Other(_) => unreachable!("recipes are made of floating-point tensors"),
    }
}

fn gather<const N: usize>(bytes: &[u8], part: &Rows, values: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    let (all, _) = bytes.as_chunks::<N>();
    for (column, value) in (0..).zip(values) {
        *value = decode(all[part.column_place(column) as usize]);
    }
}

/// Values of a block of MXFP4.
pub(crate) const BLOCK: usize = 32;
/// Bytes of a block's values.
const BLOCK_BYTES: usize = 16;
/// The scale that is none (OCP's specification of microscaling formats, 5.4.1: E8M0 has a NaN).
const NO_SCALE: u8 = 0xff;

/// Rows of MXFP4; the folder has values and scales in two tensors.
///
/// A byte of the folder's holds two neighbours, the first one in its low half; of GGUF's, the values `j` and `j + 16`.
struct Blocks<'w> {
    weights: &'w Weights,
    /// The values and the scales.
    tensors: [&'w str; 2],
    of_row: usize,
    values: Vec<u8>,
    scales: Vec<u8>,
    /// A row as GGUF has it.
    stored: Vec<u8>,
}

impl<'w> Blocks<'w> {
    fn new(weights: &'w Weights, tensors: [&'w String; 2], of_row: usize) -> Self {
        let tensors = tensors.map(String::as_str);
        Self { weights, tensors, of_row, values: Vec::new(), scales: Vec::new(), stored: Vec::new() }
    }

    /// Reads so many rows from one on.
    fn read(&mut self, first: u64, rows: u64) -> Result<(), FolderError> {
        let of_row = self.of_row as u64;
        for (tensor, bytes, of_block) in
            [(self.tensors[0], &mut self.values, BLOCK_BYTES as u64), (self.tensors[1], &mut self.scales, 1)]
        {
            bytes.resize((rows * of_row * of_block) as usize, 0);
            self.weights.read(tensor, first * of_row * of_block, bytes)?;
        }
        Ok(())
    }

    /// A row, each block as its scale and then its values; `None` for an invalid scale.
    fn row(&mut self, row: u64) -> Option<&[u8]> {
        self.stored.clear();
        let first = row as usize * self.of_row;
        for block in first..first + self.of_row {
            let own = &self.values[block * BLOCK_BYTES..][..BLOCK_BYTES];
            let value = |j: usize| own[j / 2] >> (4 * (j % 2)) & 0xf;
            let scale = self.scales[block];
            if scale == NO_SCALE {
                return None;
            }
            self.stored.push(scale);
            self.stored.extend((0..BLOCK_BYTES).map(|j| value(j) | value(j + BLOCK_BYTES) << 4));
        }
        Some(&self.stored)
    }
}
