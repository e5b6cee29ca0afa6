//! GGUF files: bytes in, checked metadata and the places of tensors out.
//!
//! Versions 2 and 3, little-endian, and `PowerInfer`'s variant, which differs in its magic alone:
//!
//! ```text
//!  0        4         8              16             24
//!  +--------+---------+--------------+--------------+--------- - -
//!  | magic  | version | tensor count | key count    | keys, then tensors, then padding, then data
//!  +--------+---------+--------------+--------------+--------- - -
//!  key:     length u64, UTF-8 | type u32 | value            (array: type u32, count u64, elements)
//!  tensor:  length u64, UTF-8 | dims u32 | dim u64 ... | type u32 | offset u64 from the data
//! ```
//!
//! A model file is a stranger's file. Nothing in it is believed, followed or allocated before it is compared with
//! what the file can hold, so memory stays within a small multiple of the file's length and no input panics.
//!
//! Source: ggml's `docs/gguf.md` and `ggml.h` (type numbers and block sizes).

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use thiserror::Error;

use crate::format::Format;

#[cfg(test)]
mod tests;

/// Arrays within arrays deeper than this are refused; no known key nests at all.
const ARRAY_DEPTH_MAX: usize = 4;
/// Where `general.alignment` is absent.
const ALIGNMENT_DEFAULT: u64 = 32;
/// The fewest bytes a key can take: an empty name, a type and one byte of value.
const KEY_BYTES_MIN: u64 = 8 + 4 + 1;
/// The fewest bytes a tensor's description can take: an empty name and one dimension.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;

/// What is wrong with a GGUF file.
#[derive(Debug, Error)]
pub enum GgufError {
    /// The file could not be read.
    #[error("{} cannot be read: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's word on it.
        error: io::Error,
    },
    /// The path names a folder.
    #[error("{} is a folder: name the .gguf file inside it", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// The path names a pipe or a device, which cannot be mapped.
    #[error("{} is not a regular file: copy the model to a disk first", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
    },
    /// Something is wrong inside the file at `path`.
    #[error("{}: {error}", path.display())]
    Inside {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: Box<Self>,
    },
    /// No bytes at all.
    #[error("the file is empty: fetch the model again")]
    Empty,
    /// The magic is neither `GGUF` nor `PWRI`.
    #[error("not a GGUF file: it begins with {first}{}; give a model in GGUF format", looks_like(first))]
    NotGguf {
        /// The first bytes (at most eight).
        first: FirstBytes,
    },
    /// A version of the format that is not read here.
    #[error("GGUF version {found} is not supported: convert the model again to version 3")]
    Version {
        /// The version found.
        found: u32,
    },
    /// A big-endian file.
    #[error("the GGUF file is big-endian: convert the model again on, or for, a little-endian machine")]
    BigEndian,
    /// The file ends too early.
    #[error(
        "the file ends inside {what}: {needed} bytes are needed at offset {offset} and the file has {length}; fetch it again"
    )]
    Truncated {
        /// What was being read.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Where they should begin.
        offset: u64,
        /// The file's length.
        length: u64,
    },
    /// More things announced than the rest of the file can hold.
    #[error(
        "the file announces {count} {what} at offset {offset}, but its remaining {left} bytes cannot hold them; fetch it again"
    )]
    Count {
        /// What is counted.
        what: String,
        /// The count announced.
        count: u64,
        /// Where it stands.
        offset: u64,
        /// Bytes left after it.
        left: u64,
    },
    /// A string that is not UTF-8.
    #[error("{what} at offset {offset} is not UTF-8: the file is damaged, fetch it again")]
    NotUtf8 {
        /// Which string.
        what: String,
        /// Where it begins.
        offset: u64,
    },
    /// A type number of a metadata value that does not exist.
    #[error("{what} has value type {found}, and GGUF has only 0 to 12: the file is damaged, fetch it again")]
    ValueType {
        /// Which value.
        what: String,
        /// The number found.
        found: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("{what} is a boolean of value {found}, neither 0 nor 1: the file is damaged, fetch it again")]
    Boolean {
        /// Which value.
        what: String,
        /// The byte found.
        found: u8,
    },
    /// Arrays nested too deeply.
    #[error("{what} nests arrays more than {ARRAY_DEPTH_MAX} deep, which no model needs: remove the key")]
    Depth {
        /// Which value.
        what: String,
    },
    /// One key twice.
    #[error(
        "key {} appears twice, so its value is unclear: write the file again with one of them",
        quote(key)
    )]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A key of the format itself has the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An alignment that is not a power of two.
    #[error("general.alignment is {found}, not a power of two: write the file again with 32")]
    Alignment {
        /// The alignment found.
        found: u64,
    },
    /// One tensor name twice.
    #[error(
        "tensor {} appears twice, so its values are unclear: write the file again with one of them",
        quote(name)
    )]
    DuplicateTensor {
        /// The tensor.
        name: String,
    },
    /// No dimensions, or more than four.
    #[error("tensor {} has {found} dimensions, and GGUF allows 1 to 4: write the file again", quote(name))]
    DimensionCount {
        /// The tensor.
        name: String,
        /// The number found.
        found: u32,
    },
    /// A dimension of zero.
    #[error("tensor {} has dimensions {dims:?}, and none may be 0: write the file again", quote(name))]
    DimensionZero {
        /// The tensor.
        name: String,
        /// Its dimensions, the contiguous one first.
        dims: Vec<u64>,
    },
    /// Dimensions whose product is beyond 64 bits.
    #[error(
        "tensor {} has dimensions {dims:?}, more values than can be counted: the file is damaged, fetch it again",
        quote(name)
    )]
    SizeOverflow {
        /// The tensor.
        name: String,
        /// Its dimensions, the contiguous one first.
        dims: Vec<u64>,
    },
    /// A row that is not whole blocks.
    #[error(
        "tensor {} has rows of {row} values, not whole {kind} blocks of {block}: convert the model again",
        quote(name)
    )]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Values in a row.
        row: u64,
        /// How they are stored.
        kind: TensorType,
        /// Values in a block.
        block: u64,
    },
    /// An offset that is not aligned.
    #[error(
        "tensor {} begins at {offset} of the data, not a multiple of {alignment}: write the file again",
        quote(name)
    )]
    Misaligned {
        /// The tensor.
        name: String,
        /// Its offset within the data.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor that reaches past the end of the file.
    #[error(
        "tensor {} takes {bytes} bytes from offset {offset}, and the file has {length}: it is truncated, fetch it again",
        quote(name)
    )]
    TensorBeyond {
        /// The tensor.
        name: String,
        /// Its size.
        bytes: u64,
        /// Its absolute offset.
        offset: u64,
        /// The file's length.
        length: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "tensors {} and {} overlap at offset {offset}: write the file again",
        quote(first),
        quote(second)
    )]
    Overlap {
        /// The earlier tensor.
        first: String,
        /// The one that begins inside it.
        second: String,
        /// Where the second begins.
        offset: u64,
    },
    /// A tensor that is needed and stored in a type that is not read here.
    #[error(
        "tensor {} is stored as {kind}, which is not read here: convert the model to F32, F16, BF16, Q8_0 or Q4_0",
        quote(name)
    )]
    UnsupportedType {
        /// The tensor.
        name: String,
        /// How it is stored.
        kind: TensorType,
    },
}

/// What is wrong with a key of the metadata.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// A key that must be there is not.
    #[error("key `{key}` is missing: convert the model again with a current converter")]
    Missing {
        /// The key.
        key: String,
    },
    /// A value of another type or range than the key has.
    #[error("key `{key}` should be {expected}, but is {found}: convert the model again")]
    Type {
        /// The key.
        key: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
}

/// The first bytes of a file, at most eight of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstBytes(Vec<u8>);

impl Display for FirstBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// What a file with these first bytes probably is, as the end of a clause.
fn looks_like(first: &FirstBytes) -> &'static str {
    match first.0.as_slice() {
        [b'P', b'K', 3, 4, ..] => " (a zip archive or a PyTorch checkpoint)",
        [0x1f, 0x8b, ..] => " (a gzip archive)",
        [b'l' | b't' | b'f', ..] if matches!(&first.0[1..], [b'm' | b'j', b'g', b'g', ..]) => {
            " (an old GGML file, from before GGUF)"
        }
        [_, _, _, _, _, 0, 0, 0] => " (perhaps safetensors)",
        bytes if bytes.starts_with(b"version ") => " (a Git LFS pointer: the model itself was not fetched)",
        bytes if bytes.starts_with(b"<") => " (a web page: the download failed)",
        _ => "",
    }
}

/// A name out of a file, fit for a message: in backquotes, printable, and not too long.
pub(super) fn quote(name: &str) -> String {
    const SHOWN_MAX: usize = 96;
    let shown: String = name.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    let more = if name.chars().nth(SHOWN_MAX).is_some() { "..." } else { "" };
    format!("`{shown}{more}`")
}

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any of the eight integer types.
    Integer(i128),
    /// Single or double precision.
    Float(f64),
    /// True or false.
    Boolean(bool),
    /// Text.
    String(String),
    /// Many of one type.
    Array(Array),
}

/// An array of the metadata, its elements of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Unsigned bytes.
    U8(Vec<u8>),
    /// Signed bytes.
    I8(Vec<i8>),
    /// 16 bits.
    U16(Vec<u16>),
    /// 16 bits, signed.
    I16(Vec<i16>),
    /// 32 bits.
    U32(Vec<u32>),
    /// 32 bits, signed.
    I32(Vec<i32>),
    /// Single precision.
    F32(Vec<f32>),
    /// True or false.
    Boolean(Vec<bool>),
    /// Text.
    String(Vec<String>),
    /// Arrays again.
    Array(Vec<Self>),
    /// 64 bits.
    U64(Vec<u64>),
    /// 64 bits, signed.
    I64(Vec<i64>),
    /// Double precision.
    F64(Vec<f64>),
}

impl Value {
    /// What kind of value it is, for messages.
    fn describe(&self) -> String {
        match self {
            Self::Integer(value) => format!("the integer {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::Boolean(value) => format!("the boolean {value}"),
            Self::String(value) => format!("the text {}", quote(value)),
            Self::Array(_) => "an array".to_owned(),
        }
    }
}

/// How a tensor's values are stored, by ggml's number: also the types that are named but not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorType(u32);

impl TensorType {
    /// Name, values in a block, bytes of a block; sizes are zero where the number is unknown or has been withdrawn.
    fn known(self) -> (&'static str, u64, u64) {
        match self.0 {
            0 => ("F32", 1, 4),
            1 => ("F16", 1, 2),
            2 => ("Q4_0", 32, 18),
            3 => ("Q4_1", 32, 20),
            6 => ("Q5_0", 32, 22),
            7 => ("Q5_1", 32, 24),
            8 => ("Q8_0", 32, 34),
            9 => ("Q8_1", 32, 36),
            10 => ("Q2_K", 256, 84),
            11 => ("Q3_K", 256, 110),
            12 => ("Q4_K", 256, 144),
            13 => ("Q5_K", 256, 176),
            14 => ("Q6_K", 256, 210),
            15 => ("Q8_K", 256, 292),
            16 => ("IQ2_XXS", 256, 66),
            17 => ("IQ2_XS", 256, 74),
            18 => ("IQ3_XXS", 256, 98),
            19 => ("IQ1_S", 256, 50),
            20 => ("IQ4_NL", 32, 18),
            21 => ("IQ3_S", 256, 110),
            22 => ("IQ2_S", 256, 82),
            23 => ("IQ4_XS", 256, 136),
            24 => ("I8", 1, 1),
            25 => ("I16", 1, 2),
            26 => ("I32", 1, 4),
            27 => ("I64", 1, 8),
            28 => ("F64", 1, 8),
            29 => ("IQ1_M", 256, 56),
            30 => ("BF16", 1, 2),
            34 => ("TQ1_0", 256, 54),
            35 => ("TQ2_0", 256, 66),
            39 => ("MXFP4", 32, 17),
            _ => ("", 0, 0),
        }
    }

    /// The format, if it is one that is read here.
    pub fn format(self) -> Option<Format> {
        match self.0 {
            0 => Some(Format::F32),
            1 => Some(Format::F16),
            2 => Some(Format::Q4_0),
            8 => Some(Format::Q8_0),
            30 => Some(Format::BF16),
            _ => None,
        }
    }
}

impl Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known().0 {
            "" => write!(f, "ggml type {}", self.0),
            name => f.write_str(name),
        }
    }
}

/// A tensor: its name and shape, and where its bytes lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// As in the file.
    pub name: String,
    /// In ggml's `ne` order, the contiguous dimension first; those the file does not give are 1.
    pub dims: [u64; 4],
    /// How the values are stored.
    pub kind: TensorType,
    /// From the beginning of the file.
    pub offset: u64,
    /// Bytes stored; 0 where `kind` has no known size.
    pub bytes: u64,
}

impl TensorInfo {
    /// The format of a tensor that is needed.
    ///
    /// # Errors
    /// [`GgufError::UnsupportedType`], where the type is not one of [`Format`].
    pub fn format(&self) -> Result<Format, GgufError> {
        self.kind
            .format()
            .ok_or_else(|| GgufError::UnsupportedType { name: self.name.clone(), kind: self.kind })
    }
}

/// Where the bytes of a file are.
#[derive(Debug)]
enum Bytes<'a> {
    Mapped(Mmap),
    Borrowed(&'a [u8]),
}

/// A checked GGUF file.
#[derive(Debug)]
pub struct Gguf<'a> {
    bytes: Bytes<'a>,
    contents: Contents,
}

/// A checked GGUF file on a disk, memory-mapped.
pub type GgufFile = Gguf<'static>;

/// What a file says of itself.
#[derive(Debug)]
struct Contents {
    version: u32,
    powerinfer: bool,
    keys: BTreeMap<String, Value>,
    tensors: Vec<TensorInfo>,
    /// From a name to its place in `tensors`.
    places: BTreeMap<String, usize>,
}

impl Gguf<'static> {
    /// Map a file into memory and check it.
    ///
    /// The file is read as it is used, not here. It must not change while it is mapped: a change of its bytes changes
    /// the weights, and cutting it short ends the process with a bus error when the missing part is next used. So a
    /// model is replaced by renaming a new file over it, never by writing into it.
    ///
    /// # Errors
    /// Everything [`GgufError`] names; the message begins with the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let unreadable = |error| GgufError::Read { path: path.to_owned(), error };
        let kind = fs::metadata(path).map_err(unreadable)?.file_type();
        if kind.is_dir() {
            return Err(GgufError::Folder { path: path.to_owned() });
        }
        if !kind.is_file() {
            return Err(GgufError::NotRegular { path: path.to_owned() });
        }
        let file = File::open(path).map_err(unreadable)?;
        let inside = |error| GgufError::Inside { path: path.to_owned(), error: Box::new(error) };
        if file.metadata().map_err(unreadable)?.len() == 0 {
            return Err(inside(GgufError::Empty));
        }
        let map = map(&file).map_err(unreadable)?;
        let contents = Contents::read(&map).map_err(inside)?;
        Ok(Self { bytes: Bytes::Mapped(map), contents })
    }
}

/// The whole file, read-only.
#[expect(unsafe_code, reason = "a mapping is memory that another process could change")]
fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is read-only and as long as the file is now, and every access stays within it. That nobody
    // changes the file meanwhile cannot be enforced on Linux; `Gguf::open` states it as the user's part. The parser
    // copies what it checks (names, sizes, offsets), so a change can alter weights but not lead a read out of the
    // mapping.
    unsafe { Mmap::map(file) }
}

impl<'a> Gguf<'a> {
    /// Check the bytes of a whole file.
    ///
    /// # Errors
    /// Everything [`GgufError`] names, but for the reading itself.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GgufError> {
        Ok(Self { bytes: Bytes::Borrowed(bytes), contents: Contents::read(bytes)? })
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Borrowed(bytes) => bytes,
        }
    }

    /// The version of the format.
    pub fn version(&self) -> u32 {
        self.contents.version
    }

    /// Whether the magic is `PowerInfer`'s. It is then the only sign that a `llama` was trained with `ReLU`.
    pub fn powerinfer(&self) -> bool {
        self.contents.powerinfer
    }

    /// Every key, in alphabetic order.
    pub fn keys(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.contents.keys.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Every tensor, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.contents.tensors
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.place_of(name).and_then(|place| self.contents.tensors.get(place))
    }

    /// The place of a name's tensor in [`Self::tensors`].
    pub(super) fn place_of(&self, name: &str) -> Option<usize> {
        self.contents.places.get(name).copied()
    }

    /// The bytes of a tensor; none where its type has no known size.
    ///
    /// # Panics
    /// If the tensor is of another, longer file.
    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        // both were compared with the length of a slice, so they fit
        let start = tensor.offset as usize;
        &self.bytes()[start..start + tensor.bytes as usize]
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.contents.keys.get(key)
    }

    /// The value of a key of text.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn text(&self, key: &str) -> Result<Option<&str>, KeyError> {
        self.typed(key, "text", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// The value of a key of a whole number that is not negative.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, KeyError> {
        self.typed(key, "a whole number of 0 or more", |value| match value {
            Value::Integer(value) => u64::try_from(*value).ok(),
            _ => None,
        })
    }

    /// The value of a key of a finite number, in single precision.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn number(&self, key: &str) -> Result<Option<f32>, KeyError> {
        self.typed(key, "a finite number", |value| match value {
            Value::Float(value) => Some(*value as f32).filter(|value| value.is_finite()),
            _ => None,
        })
    }

    /// The value of a key of true or false.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, KeyError> {
        self.typed(key, "true or false", |value| match value {
            Value::Boolean(value) => Some(*value),
            _ => None,
        })
    }

    /// The value of a key of an array of text.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>, KeyError> {
        self.typed(key, "an array of text", |value| match value {
            Value::Array(Array::String(texts)) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// The value of a key, if `pick` accepts it.
    pub(super) fn typed<'v, T>(
        &'v self,
        key: &str,
        expected: &'static str,
        pick: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Result<Option<T>, KeyError> {
        self.contents.typed(key, expected, pick)
    }
}

impl Contents {
    fn typed<'v, T>(
        &'v self,
        key: &str,
        expected: &'static str,
        pick: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Result<Option<T>, KeyError> {
        let Some(value) = self.keys.get(key) else {
            return Ok(None);
        };
        match pick(value) {
            Some(picked) => Ok(Some(picked)),
            None => Err(KeyError::Type { key: key.to_owned(), expected, found: value.describe() }),
        }
    }

    /// Read and check everything up to the data.
    fn read(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut reader = Reader { bytes, at: 0 };
        let powerinfer = read_magic(bytes)?;
        reader.at = 4;
        let version = reader.u32(&"the version")?;
        match version {
            2 | 3 => {}
            other if matches!(other.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian),
            found => return Err(GgufError::Version { found }),
        }
        let tensor_count = reader.u64(&"the number of tensors")?;
        let key_count = reader.u64(&"the number of keys")?;
        reader.holds(&"keys", key_count, KEY_BYTES_MIN)?;
        reader.holds(&"tensors", tensor_count, TENSOR_BYTES_MIN)?;

        let mut contents =
            Self { version, powerinfer, keys: BTreeMap::new(), tensors: Vec::new(), places: BTreeMap::new() };
        for index in 0..key_count {
            let key = reader.string(&format_args!("the name of key {index}"))?;
            if contents.keys.contains_key(key) {
                return Err(GgufError::DuplicateKey { key: key.to_owned() });
            }
            let value = reader.value(key)?;
            contents.keys.insert(key.to_owned(), value);
        }
        reader.holds(&"tensors", tensor_count, TENSOR_BYTES_MIN)?;
        for index in 0..tensor_count {
            let tensor = reader.tensor(index)?;
            if contents.places.insert(tensor.name.clone(), contents.tensors.len()).is_some() {
                return Err(GgufError::DuplicateTensor { name: tensor.name });
            }
            contents.tensors.push(tensor);
        }
        let alignment =
            contents.typed("general.alignment", "a whole number of 0 or more", |value| match value {
                Value::Integer(value) => u64::try_from(*value).ok(),
                _ => None,
            })?;
        contents.place(reader.at as u64, alignment.unwrap_or(ALIGNMENT_DEFAULT), bytes.len() as u64)?;
        Ok(contents)
    }

    /// Turn offsets within the data into offsets within the file, and check that each tensor has its own bytes of it.
    fn place(&mut self, header_end: u64, alignment: u64, length: u64) -> Result<(), GgufError> {
        if !alignment.is_power_of_two() {
            return Err(GgufError::Alignment { found: alignment });
        }
        // without tensors there need be no data; with them, an alignment beyond the file puts them beyond it as well
        let data = header_end.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        for tensor in &mut self.tensors {
            if !tensor.offset.is_multiple_of(alignment) {
                return Err(GgufError::Misaligned {
                    name: tensor.name.clone(),
                    offset: tensor.offset,
                    alignment,
                });
            }
            let offset = data.saturating_add(tensor.offset);
            if offset.checked_add(tensor.bytes).is_none_or(|end| end > length) {
                return Err(GgufError::TensorBeyond {
                    name: tensor.name.clone(),
                    bytes: tensor.bytes,
                    offset,
                    length,
                });
            }
            tensor.offset = offset;
        }
        let mut by_offset: Vec<&TensorInfo> = self.tensors.iter().filter(|tensor| tensor.bytes > 0).collect();
        by_offset.sort_by_key(|tensor| tensor.offset);
        for pair in by_offset.windows(2) {
            if let [first, second] = pair
                && first.offset + first.bytes > second.offset
            {
                return Err(GgufError::Overlap {
                    first: first.name.clone(),
                    second: second.name.clone(),
                    offset: second.offset,
                });
            }
        }
        Ok(())
    }
}

/// Whether the magic is `PowerInfer`'s.
fn read_magic(bytes: &[u8]) -> Result<bool, GgufError> {
    match bytes {
        [] => Err(GgufError::Empty),
        [b'G', b'G', b'U', b'F', ..] => Ok(false),
        [b'P', b'W', b'R', b'I', ..] => Ok(true),
        _ => Err(GgufError::NotGguf { first: FirstBytes(bytes.iter().take(8).copied().collect()) }),
    }
}

/// A place in the bytes of a file, and what can be read there.
///
/// `what` is only made into text when something is wrong with it.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// Check that `count` things of at least `bytes_min` bytes each can follow.
    fn holds(&self, what: &dyn Display, count: u64, bytes_min: u64) -> Result<(), GgufError> {
        if count.checked_mul(bytes_min).is_none_or(|bytes| bytes > self.left()) {
            let (offset, left) = (self.at as u64, self.left());
            return Err(GgufError::Count { what: what.to_string(), count, offset, left });
        }
        Ok(())
    }

    fn take(&mut self, count: u64, what: &dyn Display) -> Result<&'a [u8], GgufError> {
        if count > self.left() {
            let (offset, length) = (self.at as u64, self.bytes.len() as u64);
            return Err(GgufError::Truncated { what: what.to_string(), needed: count, offset, length });
        }
        let start = self.at;
        self.at += count as usize; // not more than what is left
        Ok(&self.bytes[start..self.at])
    }

    fn fixed<const N: usize>(&mut self, what: &dyn Display) -> Result<[u8; N], GgufError> {
        let mut fixed = [0; N];
        fixed.copy_from_slice(self.take(N as u64, what)?);
        Ok(fixed)
    }

    fn u32(&mut self, what: &dyn Display) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.fixed(what)?))
    }

    fn u64(&mut self, what: &dyn Display) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.fixed(what)?))
    }

    fn boolean(&mut self, what: &dyn Display) -> Result<bool, GgufError> {
        match self.fixed(what)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [found] => Err(GgufError::Boolean { what: what.to_string(), found }),
        }
    }

    fn string(&mut self, what: &dyn Display) -> Result<&'a str, GgufError> {
        let count = self.u64(&format_args!("the length of {what}"))?;
        let offset = self.at as u64;
        std::str::from_utf8(self.take(count, what)?)
            .map_err(|_| GgufError::NotUtf8 { what: what.to_string(), offset })
    }

    fn value(&mut self, key: &str) -> Result<Value, GgufError> {
        let name = quote(key);
        let what: &dyn Display = &format_args!("the value of key {name}");
        Ok(match self.u32(&format_args!("the type of key {name}"))? {
            0 => Value::Integer(u8::from_le_bytes(self.fixed(what)?).into()),
            1 => Value::Integer(i8::from_le_bytes(self.fixed(what)?).into()),
            2 => Value::Integer(u16::from_le_bytes(self.fixed(what)?).into()),
            3 => Value::Integer(i16::from_le_bytes(self.fixed(what)?).into()),
            4 => Value::Integer(u32::from_le_bytes(self.fixed(what)?).into()),
            5 => Value::Integer(i32::from_le_bytes(self.fixed(what)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.fixed(what)?).into()),
            7 => Value::Boolean(self.boolean(what)?),
            8 => Value::String(self.string(what)?.to_owned()),
            9 => Value::Array(self.array(what, 1)?),
            10 => Value::Integer(u64::from_le_bytes(self.fixed(what)?).into()),
            11 => Value::Integer(i64::from_le_bytes(self.fixed(what)?).into()),
            12 => Value::Float(f64::from_le_bytes(self.fixed(what)?)),
            found => {
                return Err(GgufError::ValueType { what: what.to_string(), found });
            }
        })
    }

    fn array(&mut self, what: &dyn Display, depth: usize) -> Result<Array, GgufError> {
        if depth > ARRAY_DEPTH_MAX {
            return Err(GgufError::Depth { what: what.to_string() });
        }
        let kind = self.u32(&format_args!("the element type of {what}"))?;
        let count = self.u64(&format_args!("the length of {what}"))?;
        Ok(match kind {
            0 => Array::U8(self.numbers(what, count, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(what, count, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(what, count, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(what, count, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(what, count, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(what, count, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(what, count, f32::from_le_bytes)?),
            7 => Array::Boolean(self.elements(what, count, 1, |reader, what| reader.boolean(what))?),
            8 => Array::String(
                self.elements(what, count, 8, |reader, what| Ok(reader.string(what)?.to_owned()))?,
            ),
            9 => Array::Array(self.elements(what, count, 12, |reader, what| reader.array(what, depth + 1))?),
            10 => Array::U64(self.numbers(what, count, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(what, count, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(what, count, f64::from_le_bytes)?),
            found => {
                return Err(GgufError::ValueType { what: format!("an element of {what}"), found });
            }
        })
    }

    fn numbers<T, const N: usize>(
        &mut self,
        what: &dyn Display,
        count: u64,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        self.elements(what, count, N as u64, |reader, what| Ok(decode(reader.fixed(what)?)))
    }

    /// `count` elements of at least `bytes_min` bytes each; room is made for them once the file can hold them.
    fn elements<T>(
        &mut self,
        what: &dyn Display,
        count: u64,
        bytes_min: u64,
        read: impl Fn(&mut Self, &dyn Display) -> Result<T, GgufError>,
    ) -> Result<Vec<T>, GgufError> {
        self.holds(&format_args!("elements of {what}"), count, bytes_min)?;
        let mut elements = Vec::with_capacity(count as usize);
        for index in 0..count {
            elements.push(read(self, &format_args!("element {index} of {what}"))?);
        }
        Ok(elements)
    }

    /// A tensor's description; its offset is still within the data.
    fn tensor(&mut self, index: u64) -> Result<TensorInfo, GgufError> {
        let name = self.string(&format_args!("the name of tensor {index}"))?.to_owned();
        let shown = quote(&name);
        let found = self.u32(&format_args!("the number of dimensions of tensor {shown}"))?;
        if !(1..=4).contains(&found) {
            return Err(GgufError::DimensionCount { name, found });
        }
        let mut dims = [1; 4];
        for dim in &mut dims[..found as usize] {
            *dim = self.u64(&format_args!("the dimensions of tensor {shown}"))?;
        }
        let kind = TensorType(self.u32(&format_args!("the type of tensor {shown}"))?);
        let offset = self.u64(&format_args!("the offset of tensor {shown}"))?;
        let bytes = size(&name, dims, kind)?;
        Ok(TensorInfo { name, dims, kind, offset, bytes })
    }
}

/// Bytes of a tensor; 0 where its type has no known size.
fn size(name: &str, dims: [u64; 4], kind: TensorType) -> Result<u64, GgufError> {
    let name = || name.to_owned();
    if dims.contains(&0) {
        return Err(GgufError::DimensionZero { name: name(), dims: dims.to_vec() });
    }
    let (_, block, block_bytes) = kind.known();
    let [row, ..] = dims;
    if block > 0 && !row.is_multiple_of(block) {
        return Err(GgufError::PartialBlock { name: name(), row, kind, block });
    }
    dims.iter()
        .try_fold(1_u64, |values, &dim| values.checked_mul(dim))
        .and_then(|values| values.checked_div(block).unwrap_or(0).checked_mul(block_bytes))
        .ok_or_else(|| GgufError::SizeOverflow { name: name(), dims: dims.to_vec() })
}
