//! GGUF files, parsed into checked metadata and tensor places.
//!
//! Reads versions 2 and 3, little-endian, and `PowerInfer`'s variant, which differs only in its magic:
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
//! A model may consist of several files (`split.rs`). Their bytes count as one file: a tensor's place counts
//! from the first file's start.
//!
//! Model files are untrusted. Every number is compared with the file's size before it is used or allocated
//! for. Memory therefore stays within a small multiple of the file's size, and no input panics.
//!
//! Source: ggml's `docs/gguf.md` and `ggml.h` (type numbers and block sizes).

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

mod error;
mod split;
mod value;

mod contents;

#[cfg(test)]
mod tests;

pub(super) use error::quote;
pub use error::{FirstBytes, GgufError, KeyError};
pub use split::model_name;
pub use value::{Array, TensorInfo, TensorType, Value};

use contents::Contents;
use split::Split;

/// The bytes of a file: mapped, or in memory.
#[derive(Debug)]
enum Bytes<'a> {
    Mapped(Mmap),
    Borrowed(&'a [u8]),
}

impl Bytes<'_> {
    fn all(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Borrowed(bytes) => bytes,
        }
    }
}

/// One file of a model.
#[derive(Debug)]
struct SplitFile<'a> {
    /// Empty for bytes in memory.
    path: PathBuf,
    /// Bytes of the files before it.
    start: usize,
    bytes: Bytes<'a>,
}

/// A checked GGUF model, in one file or several.
#[derive(Debug)]
pub struct Gguf<'a> {
    /// One or more files, in order.
    parts: Vec<SplitFile<'a>>,
    /// Keys of the first file, tensors of all.
    contents: Contents,
}

/// A checked GGUF model on a disk, memory-mapped.
pub type GgufFile = Gguf<'static>;

impl Gguf<'static> {
    /// Maps a file into memory and checks it; any file of a split model opens all of them.
    ///
    /// Contents are read when they are used. The file must not change while it is mapped. Changed bytes
    /// change the weights; a truncated file ends the process with a bus error when the missing part is used.
    /// To replace a model, rename a new file over it.
    ///
    /// # Errors
    /// Every [`GgufError`]; the message starts with the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let (part, contents) = open(path.as_ref(), 0)?;
        let inside = |error| GgufError::Inside { path: part.path.clone(), error: Box::new(error) };
        match Split::of(&contents).map_err(inside)? {
            None => Ok(Self { parts: vec![part], contents }),
            Some(split) => Self::join(&split::paths(&part.path, split).map_err(inside)?, split.count),
        }
    }

    /// Opens all `count` files of a model.
    fn join(paths: &[PathBuf], count: u64) -> Result<Self, GgufError> {
        let (there, missing): (Vec<&PathBuf>, Vec<_>) = paths.iter().partition(|path| path.exists());
        if let (Some(path), false) = (there.first(), missing.is_empty()) {
            let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let error = GgufError::SplitMissing { missing: missing.into_iter().map(name).collect(), count };
            return Err(GgufError::Inside { path: path.to_path_buf(), error: Box::new(error) });
        }
        let mut parts: Vec<SplitFile<'static>> = Vec::new();
        let mut joined: Option<Contents> = None;
        for (number, path) in (0..).zip(paths) {
            let start = parts.last().map_or(0, |last| last.start + last.bytes.all().len());
            let (part, contents) = open(path, start)?;
            let inside = |error| GgufError::Inside { path: path.clone(), error: Box::new(error) };
            let found = Split::of(&contents).map_err(inside)?;
            if found != Some(Split { number, count }) {
                return Err(inside(GgufError::SplitOther { number: number + 1, count }));
            }
            match &mut joined {
                None => joined = Some(contents),
                Some(first) => first.append(contents, start as u64).map_err(inside)?,
            }
            parts.push(part);
        }
        // there are at least two files
        let contents = joined.ok_or(GgufError::Empty)?;
        if let Some(announced) = split::tensors(&contents)?
            && announced != contents.tensors.len() as u64
        {
            let found = contents.tensors.len() as u64;
            return Err(GgufError::Inside {
                path: paths[0].clone(),
                error: Box::new(GgufError::SplitTensors { announced, found }),
            });
        }
        Ok(Self { parts, contents })
    }
}

/// Maps and checks one file, which starts at byte `start` of the model.
fn open(path: &Path, start: usize) -> Result<(SplitFile<'static>, Contents), GgufError> {
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
    Ok((SplitFile { path: path.to_owned(), start, bytes: Bytes::Mapped(map) }, contents))
}

/// The whole file, read-only.
#[expect(unsafe_code, reason = "a mapping is memory that another process could change")]
fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is read-only and as long as the file is now, and every access stays within it.
    // Unix cannot prevent others from changing the file; `Gguf::open` makes that the user's duty. The parser
    // copies what it checks (names, sizes, offsets), so a change can alter weights but cannot cause a read
    // outside the mapping.
    unsafe { Mmap::map(file) }
}

impl<'a> Gguf<'a> {
    /// Checks the bytes of a whole file.
    ///
    /// # Errors
    /// Every [`GgufError`] except failed reads.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GgufError> {
        let contents = Contents::read(bytes)?;
        if let Some(Split { number, count }) = Split::of(&contents)? {
            return Err(GgufError::SplitName { number: number + 1, count });
        }
        let part = SplitFile { path: PathBuf::new(), start: 0, bytes: Bytes::Borrowed(bytes) };
        Ok(Self { parts: vec![part], contents })
    }

    /// Bytes of all files together.
    pub fn file_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.all().len()).sum()
    }

    /// The files in order: path, start in the model, bytes. The path is empty for bytes in memory.
    pub fn files(&self) -> impl Iterator<Item = (&Path, usize, &[u8])> {
        self.parts.iter().map(|part| (part.path.as_path(), part.start, part.bytes.all()))
    }

    /// Bytes of one file, by their range in the model.
    ///
    /// # Panics
    /// If the range is not within one file.
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        let after = self.parts.partition_point(|part| part.start <= range.start);
        let part = &self.parts[after.saturating_sub(1)];
        &part.bytes.all()[range.start - part.start..range.end - part.start]
    }

    /// Asks the system to read bytes of a mapped file soon, without waiting for them; a wish, which it may refuse.
    pub fn read_ahead(&self, bytes: &[u8]) {
        let Some(place) = self.place_of_bytes(bytes) else { return };
        let after = self.parts.partition_point(|part| part.start as u64 <= place);
        let part = &self.parts[after.saturating_sub(1)];
        if let Bytes::Mapped(map) = &part.bytes {
            platform::memory::read_ahead(map, place as usize - part.start, bytes.len());
        }
    }

    /// The place of a file's bytes in the model; `None` for bytes from elsewhere.
    pub fn place_of_bytes(&self, bytes: &[u8]) -> Option<u64> {
        let address = bytes.as_ptr().addr();
        self.parts.iter().find_map(|part| {
            let all = part.bytes.all();
            let within = address.checked_sub(all.as_ptr().addr())?;
            (within + bytes.len() <= all.len()).then_some((part.start + within) as u64)
        })
    }

    /// The version of the format.
    pub fn version(&self) -> u32 {
        self.contents.version
    }

    /// Whether the magic is `PowerInfer`'s; the only sign of a `llama` trained with `ReLU`.
    pub fn powerinfer(&self) -> bool {
        self.contents.powerinfer
    }

    /// Every key, in alphabetic order.
    pub fn keys(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.contents.keys.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Every tensor, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.contents.tensors
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.place_of(name).and_then(|place| self.contents.tensors.get(place))
    }

    /// The index of a tensor in [`Self::tensors`].
    pub(super) fn place_of(&self, name: &str) -> Option<usize> {
        self.contents.places.get(name).copied()
    }

    /// The bytes of a tensor; empty if its type has no known size.
    ///
    /// # Panics
    /// If the tensor is from another, longer file.
    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        // both were checked against a slice's length
        let start = tensor.offset as usize;
        self.bytes(start..start + tensor.bytes as usize)
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.contents.keys.get(key)
    }

    /// The value of a text key.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn text(&self, key: &str) -> Result<Option<&str>, KeyError> {
        self.typed(key, "text", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// The value of a key that is a non-negative integer.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, KeyError> {
        self.typed(key, "a whole number of 0 or more", |value| match value {
            Value::Integer(value) => u64::try_from(*value).ok(),
            _ => None,
        })
    }

    /// The value of a key that is a finite number, in single precision.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn number(&self, key: &str) -> Result<Option<f32>, KeyError> {
        self.typed(key, "a finite number", |value| match value {
            Value::Float(value) => Some(*value as f32).filter(|value| value.is_finite()),
            _ => None,
        })
    }

    /// The value of a boolean key.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, KeyError> {
        self.typed(key, "true or false", |value| match value {
            Value::Boolean(value) => Some(*value),
            _ => None,
        })
    }

    /// The value of a key that is an array of texts.
    ///
    /// # Errors
    /// If the value has another type.
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
