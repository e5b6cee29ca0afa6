//! The header of a safetensors file: which tensors lie where, compared with the file's length before anything is believed.
//!
//! ```text
//!  0              8                     8 + n
//!  +--------------+----------------------+------- - -
//!  | n: u64       | n bytes of JSON      | data
//!  +--------------+----------------------+------- - -
//!  {"NAME": {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
//! ```
//!
//! Offsets count from the data; tensors lie without gaps and fill the file.
//!
//! Source: the description of the format in Hugging Face's `safetensors`. Differs: that crate adds offsets of the header without a check, and
//! cannot be given a hostile one.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::{FolderError, quote};

/// Bytes of a header, at most; the bound of the format itself.
const HEADER_MAX: u64 = 100_000_000;
/// Bytes of data that a header may speak of where there are none.
const DATA_MAX: u64 = 1 << 60;
/// Dimensions of a tensor, at most.
const DIMENSIONS_MAX: usize = 8;

/// The type of a tensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F16,
    BF16,
    /// Bytes: the blocks and the scales of MXFP4.
    U8,
    /// One that is not read; bits of a value, 0 where they are not known.
    Other(u8),
}

impl Kind {
    fn of(name: &str) -> Self {
        match name {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::BF16,
            "U8" => Self::U8,
            "F64" | "I64" | "U64" | "C64" => Self::Other(64),
            "I32" | "U32" => Self::Other(32),
            "I16" | "U16" => Self::Other(16),
            "I8" | "BOOL" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => {
                Self::Other(8)
            }
            "F4" => Self::Other(4),
            _ => Self::Other(0),
        }
    }

    /// Bytes of a value.
    pub(crate) fn bytes(self) -> u64 {
        self.bits() / 8
    }

    /// Bits of a value; 0 where they are not known.
    fn bits(self) -> u64 {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::BF16 => 16,
            Self::U8 => 8,
            Self::Other(bits) => bits.into(),
        }
    }
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) kind: Kind,
    /// The kind's name in the file.
    pub(crate) kind_name: String,
    /// Outermost dimension first.
    pub(crate) shape: Vec<u64>,
    /// First byte in the file.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) bytes: u64,
}

impl Tensor {
    /// Its values, which the file holds.
    pub(crate) fn values(&self) -> u64 {
        self.shape.iter().fold(1, |values, &dim| values.saturating_mul(dim)) // of known kinds compared with the bytes
    }
}

/// Fills a buffer with a file's bytes from a place on.
pub(crate) type ReadAt<'f> = dyn Fn(u64, &mut [u8]) -> Result<(), FolderError> + 'f;

/// The tensors of a file by name.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

/// A tensor as the JSON has it.
#[derive(Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// An entry of the JSON.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Tensor(Info),
    Other(IgnoredAny),
}

impl Header {
    /// The header of a file of so many bytes.
    pub(crate) fn read(file_bytes: u64, path: &Path, read_at: &ReadAt<'_>) -> Result<Self, FolderError> {
        let damaged = |fact: String| FolderError::damaged(path, fact);
        let Some(after_length) = file_bytes.checked_sub(8) else {
            return Err(damaged(format!("its {file_bytes} bytes are no safetensors file")));
        };
        let mut length = [0; 8];
        read_at(0, &mut length)?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > HEADER_MAX || header_bytes > after_length {
            return Err(damaged(format!(
                "its header should have {header_bytes} bytes, and it has {after_length} after the length"
            )));
        }
        let mut header = vec![0; header_bytes as usize];
        read_at(8, &mut header)?;
        Self::of(&header, Some(after_length - header_bytes), path)
    }

    /// The header of these bytes, before so many bytes of data; `None`: as many as it says.
    pub(crate) fn of(header: &[u8], data_bytes: Option<u64>, path: &Path) -> Result<Self, FolderError> {
        let damaged = |fact: String| FolderError::damaged(path, fact);
        let entries: BTreeMap<String, Entry> = serde_json::from_slice(header)
            .map_err(|error| FolderError::Json { path: path.to_owned(), error })?;
        let ends = entries.values().filter_map(|entry| match entry {
            Entry::Tensor(info) => Some(info.data_offsets[1]),
            Entry::Other(_) => None,
        });
        let data_bytes = data_bytes.unwrap_or_else(|| ends.max().unwrap_or(0).min(DATA_MAX));
        let data = 8 + header.len() as u64;
        let mut tensors = BTreeMap::new();
        for (name, entry) in entries {
            match entry {
                Entry::Other(_) if name == "__metadata__" => {}
                Entry::Other(_) => {
                    return Err(damaged(format!("{} is not described as a tensor", quote(&name))));
                }
                Entry::Tensor(info) => {
                    let tensor = tensor(info, data_bytes)
                        .map_err(|fact| damaged(format!("tensor {} {fact}", quote(&name))))?;
                    tensors.insert(name, Tensor { start: tensor.start + data, ..tensor });
                }
            }
        }
        // without gaps: two tensors on the same bytes would be a trick, and bytes of none would be lost
        let mut places: Vec<_> =
            tensors.iter().map(|(name, tensor)| (tensor.start, tensor.bytes, name)).collect();
        places.sort_unstable();
        let mut end = data;
        for (start, bytes, name) in places {
            if start != end {
                return Err(damaged(format!(
                    "tensor {} begins at byte {start}, where {end} is next",
                    quote(name)
                )));
            }
            end += bytes;
        }
        if end != data + data_bytes {
            return Err(damaged(format!("its tensors end at byte {end} of {}", data + data_bytes)));
        }
        Ok(Self { tensors })
    }
}

/// A tensor whose bytes fit its shape, and lie within the data.
fn tensor(info: Info, data_bytes: u64) -> Result<Tensor, String> {
    let Info { dtype, shape, data_offsets: [start, end] } = info;
    if start > end || end > data_bytes {
        return Err(format!("has bytes {start} to {end} of {data_bytes}"));
    }
    if shape.len() > DIMENSIONS_MAX {
        return Err(format!("has {} dimensions", shape.len()));
    }
    let kind = Kind::of(&dtype);
    let values = shape.iter().try_fold(1_u64, |values, &dim| values.checked_mul(dim));
    let bytes = values.and_then(|values| values.checked_mul(kind.bits())).map(|bits| bits / 8);
    if kind.bits() > 0 && bytes != Some(end - start) {
        return Err(format!("has {} bytes for {dtype} of shape {shape:?}", end - start));
    }
    Ok(Tensor { kind, kind_name: dtype, shape, start, bytes: end - start })
}
