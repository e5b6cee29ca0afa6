//! A tensor of the GGUF file as rows of tensors of the folder.
//!
//! Whatever a converter does to weights (joins experts, takes fused matrices apart, turns rotated heads, transposes) is an order in
//! which values are read: every row of the new tensor is a run of values of an old one, `column_step` apart. The exceptions are
//! Gemma's norms, which lack 1, and blocks of MXFP4, whose bytes are woven otherwise in GGUF.

use std::io::{self, Write};

use half::{bf16, f16};
use kernels::{Format, quantise};

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

/// What a tensor is made of.
#[derive(Debug)]
pub(crate) enum Content {
    /// Rows of tensors, one part after another, and what is added to every value.
    Rows { parts: Vec<Rows>, plus: f32 },
    /// Rows of MXFP4, of every `step`-th row of these tensors from `first` on.
    Blocks { blocks: String, scales: String, first: u64, step: u64 },
    /// Values that were computed.
    Values(Vec<f32>),
}

/// Rows of one tensor: value `c` of row `r` lies at `start + order(r) row_step + c column_step`.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    pub(crate) tensor: String,
    pub(crate) start: u64,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) row_step: u64,
    pub(crate) column_step: u64,
    /// Heads whose rows are turned: the two halves of each, which rotate together, become neighbours.
    pub(crate) turned_heads: Option<u64>,
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
            rows,
            columns,
            row_step: columns,
            column_step: 1,
            turned_heads: None,
        }
    }

    /// Whether all of it lies within so many values, and heads have two halves.
    pub(crate) fn fits(&self, values: u64) -> bool {
        let Self { start, rows, columns, row_step, column_step, turned_heads, .. } = *self;
        let last = || {
            let row = rows.checked_sub(1)?.checked_mul(row_step)?;
            let column = columns.checked_sub(1)?.checked_mul(column_step)?;
            start.checked_add(row)?.checked_add(column)
        };
        let halves = turned_heads.is_none_or(|heads| {
            heads > 0 && heads.checked_mul(2).is_some_and(|halves| rows.is_multiple_of(halves))
        });
        last().is_some_and(|last| last < values) && halves
    }

    /// The row of the tensor that is the `row`-th.
    fn order(&self, row: u64) -> u64 {
        let Some(heads) = self.turned_heads else { return row };
        let of_head = self.rows / heads;
        let (head, within) = (row / of_head, row % of_head);
        head * of_head + within % 2 * (of_head / 2) + within / 2
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

    /// Writes the tensor's bytes. `None`: a value is not finite, or not any more when it is stored. `go_on` is told the bytes written.
    ///
    /// # Errors
    /// Those of writing.
    pub(crate) fn write(
        &self,
        weights: &Weights,
        to: &mut dyn Write,
        go_on: &dyn Fn(u64) -> bool,
    ) -> io::Result<Option<()>> {
        match &self.content {
            Content::Values(values) => {
                let mut bytes = vec![0; self.format.row_bytes(values.len())];
                quantise(self.format, values, &mut bytes);
                to.write_all(&bytes).map(Some)
            }
            Content::Blocks { blocks, scales, first, step } => {
                let columns = self.columns() as usize / BLOCK;
                let rows = self.shape.iter().product::<u64>() / self.columns();
                blocks_of(weights.bytes(blocks), weights.bytes(scales), columns, *first, *step, rows, to)
                    .map(Some)
            }
            Content::Rows { parts, plus } => {
                let mut written = 0;
                for part in parts {
                    // as many as a row of the tensor; of a bias whose heads are turned, one
                    let columns = part.columns as usize;
                    let mut values = vec![0.0_f32; columns];
                    let mut stored = vec![0; self.format.row_bytes(columns)];
                    let Some(tensor) = weights.tensor(&part.tensor) else { continue };
                    let bytes = weights.bytes(&part.tensor);
                    for row in 0..part.rows {
                        if row % 1024 == 0 && !go_on(written) {
                            return Err(io::ErrorKind::Interrupted.into());
                        }
                        if let Some(same) =
                            stored_alike(tensor.kind, bytes, part, row, self.format).filter(|_| *plus == 0.0)
                        {
                            if !all_finite(tensor.kind, same) {
                                return Ok(None);
                            }
                            to.write_all(same)?;
                            written += same.len() as u64;
                            continue;
                        }
                        read(tensor.kind, bytes, part, row, &mut values);
                        values.iter_mut().for_each(|value| *value += plus);
                        if !values.iter().all(|value| value.is_finite()) {
                            return Ok(None);
                        }
                        if self.format == Format::F16
                            && values.iter().any(|&value| f16::from_f32(value).is_infinite())
                        {
                            return Ok(None);
                        }
                        quantise(self.format, &values, &mut stored);
                        to.write_all(&stored)?;
                        written += stored.len() as u64;
                    }
                }
                Ok(Some(()))
            }
        }
    }
}

/// The bytes of a row of a part, where they are those of the format and lie together.
fn stored_alike<'b>(kind: Kind, bytes: &'b [u8], part: &Rows, row: u64, format: Format) -> Option<&'b [u8]> {
    let value_bytes = match (kind, format) {
        (Kind::F32, Format::F32) => 4,
        (Kind::F16, Format::F16) | (Kind::BF16, Format::BF16) => 2,
        _ => return None,
    };
    let start = (part.start + part.order(row) * part.row_step) as usize;
    (part.column_step == 1).then(|| &bytes[start * value_bytes..][..part.columns as usize * value_bytes])
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

/// Reads a row of a part.
fn read(kind: Kind, bytes: &[u8], part: &Rows, row: u64, values: &mut [f32]) {
    let start = part.start + part.order(row) * part.row_step;
    // within the tensor: `Rows::fits` was asked when the recipe was made
    let at = |column: usize| (start + column as u64 * part.column_step) as usize;
    match kind {
        Kind::F32 => gather(bytes, at, values, f32::from_le_bytes),
        Kind::F16 => gather(bytes, at, values, |value| f16::from_le_bytes(value).to_f32()),
        Kind::BF16 => gather(bytes, at, values, |value| bf16::from_le_bytes(value).to_f32()),
        Kind::U8 | Kind::Other(_) => unreachable!("recipes are made of floating-point tensors"),
    }
}

fn gather<const N: usize>(
    bytes: &[u8],
    at: impl Fn(usize) -> usize,
    values: &mut [f32],
    decode: impl Fn([u8; N]) -> f32,
) {
    let (all, _) = bytes.as_chunks::<N>();
    for (column, value) in values.iter_mut().enumerate() {
        *value = decode(all[at(column)]);
    }
}

/// Values of a block of MXFP4.
pub(crate) const BLOCK: usize = 32;
/// Bytes of a block's values.
const BLOCK_BYTES: usize = 16;

/// Rows of blocks, each as its scale and then its values.
///
/// A byte of the folder's holds two neighbours, the first one in its low half; of GGUF's, the values `j` and `j + 16`.
fn blocks_of(
    blocks: &[u8],
    scales: &[u8],
    of_row: usize,
    first: u64,
    step: u64,
    rows: u64,
    to: &mut dyn Write,
) -> io::Result<()> {
    for row in 0..rows {
        let row = (first + row * step) as usize;
        for block in row * of_row..(row + 1) * of_row {
            let own = &blocks[block * BLOCK_BYTES..][..BLOCK_BYTES];
            let value = |j: usize| own[j / 2] >> (4 * (j % 2)) & 0xf;
            let mut out = [0; 1 + BLOCK_BYTES];
            out[0] = scales[block];
            for j in 0..BLOCK_BYTES {
                out[1 + j] = value(j) | value(j + BLOCK_BYTES) << 4;
            }
            to.write_all(&out)?;
        }
    }
    Ok(())
}
