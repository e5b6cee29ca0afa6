//! Errors of GGUF files, each with a remedy.

use std::fmt::{self, Display, Write as _};
use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::contents::ARRAY_DEPTH_MAX;
use super::value::TensorType;
use kernels::Format;

/// The first few names, and the number of others.
fn listed(names: &[String]) -> String {
    const SHOWN_MAX: usize = 3;
    let shown =
        names.iter().take(SHOWN_MAX).map(|name| quote(name).to_string()).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} (and {more} more)"),
    }
}

/// Why the system did not read a model's file, and what to do.
fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file; name one that is there".to_owned(),
        io::ErrorKind::PermissionDenied => "you may not read it; give yourself the right to".to_owned(),
        _ => format!("{error}; copy the model to another disk"),
    }
}

/// An error of a GGUF file.
#[derive(Debug, Error)]
pub enum GgufError {
    /// The file could not be read.
    #[error("{} cannot be read: {}", path.display(), unreadable(error))]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
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
    /// An error inside the file at `path`.
    #[error("{}: {error}", path.display())]
    Inside {
        /// The file.
        path: PathBuf,
        /// The error.
        error: Box<Self>,
    },
    /// The file is empty.
    #[error("the file is empty: fetch the model again")]
    Empty,
    /// The magic is neither `GGUF` nor `PWRI`.
    #[error("not a GGUF file: it begins with {first}{}; give a model in GGUF format", looks_like(first))]
    NotGguf {
        /// The first bytes (at most eight).
        first: FirstBytes,
    },
    /// An unsupported version of the format.
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
        /// The part that was being read.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Start of the missing bytes.
        offset: u64,
        /// The file's length.
        length: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error(
        "the file announces {count} {what} at offset {offset}, but its remaining {left} bytes cannot hold them; fetch it again"
    )]
    Count {
        /// The counted items.
        what: String,
        /// The announced count.
        count: u64,
        /// Offset of the count in the file.
        offset: u64,
        /// Bytes left after it.
        left: u64,
    },
    /// A string that is not UTF-8.
    #[error("{what} at offset {offset} is not UTF-8: the file is damaged, fetch it again")]
    NotUtf8 {
        /// The string.
        what: String,
        /// Offset of the string's first byte in the file.
        offset: u64,
    },
    /// An unknown type of a metadata value.
    #[error("{what} has value type {found}, and GGUF has only 0 to 12: the file is damaged, fetch it again")]
    ValueType {
        /// The value.
        what: String,
        /// The number found.
        found: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("{what} is a boolean of value {found}, neither 0 nor 1: the file is damaged, fetch it again")]
    Boolean {
        /// The value.
        what: String,
        /// The byte found.
        found: u8,
    },
    /// Arrays nested too deeply.
    #[error("{what} nests arrays more than {ARRAY_DEPTH_MAX} deep, which no model needs: remove the key")]
    Depth {
        /// The value.
        what: String,
    },
    /// A key that appears twice.
    #[error(
        "key {} appears twice, so its value is unclear: write the file again with one of them",
        quote(key)
    )]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A key of the format with a wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An alignment that is not a power of two.
    #[error("general.alignment is {found}, not a power of two: write the file again with 32")]
    Alignment {
        /// The alignment found.
        found: u64,
    },
    /// A tensor that appears twice.
    #[error(
        "tensor {} appears twice, so its values are unclear: write the file again with one of them",
        quote(name)
    )]
    DuplicateTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor without dimensions, or with more than four.
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
        /// The tensor's dimensions, the contiguous one first.
        dims: Vec<u64>,
    },
    /// A tensor whose size exceeds 64 bits.
    #[error(
        "tensor {} has dimensions {dims:?}, more values than can be counted: the file is damaged, fetch it again",
        quote(name)
    )]
    SizeOverflow {
        /// The tensor.
        name: String,
        /// The tensor's dimensions, the contiguous one first.
        dims: Vec<u64>,
    },
    /// Rows that are not whole blocks.
    #[error(
        "tensor {} has rows of {row} values, not whole {kind} blocks of {block}: convert the model again",
        quote(name)
    )]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Values in a row.
        row: u64,
        /// Their storage type.
        kind: TensorType,
        /// Values in a block.
        block: u64,
    },
    /// A misaligned offset.
    #[error(
        "tensor {} begins at {offset} of the data, not a multiple of {alignment}: write the file again",
        quote(name)
    )]
    Misaligned {
        /// The tensor.
        name: String,
        /// The tensor's offset within the data.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor that extends past the end of the file.
    #[error(
        "tensor {} takes {bytes} bytes from offset {offset}, and the file has {length}: it is truncated, fetch it again",
        quote(name)
    )]
    TensorBeyond {
        /// The tensor.
        name: String,
        /// The tensor's size.
        bytes: u64,
        /// The tensor's absolute offset.
        offset: u64,
        /// The file's length.
        length: u64,
    },
    /// A type number with another meaning in another program, as the next tensor's offset shows.
    #[error(
        "tensor {} is stored as {kind}, in {found} bytes instead of {bytes}: another program gives this type \
         number another meaning; convert the model with llama.cpp",
        quote(name)
    )]
    OtherType {
        /// The tensor.
        name: String,
        /// The type of this number here.
        kind: TensorType,
        /// Bytes of a tensor of that type.
        bytes: u64,
        /// Bytes up to the next tensor.
        found: u64,
    },
    /// Two tensors that overlap.
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
        /// First byte of the second tensor.
        offset: u64,
    },
    /// Impossible keys about the model's files.
    #[error("{what}, which is impossible: fetch it again")]
    Split {
        /// The problem.
        what: String,
    },
    /// A file of a split model whose name does not lead to the other files.
    #[error(
        "this is file {number} of {count} of its model: put all of them into one folder, named as they were, NAME-{number:05}-of-{count:05}.gguf"
    )]
    SplitName {
        /// The file, from 1.
        number: u64,
        /// Number of files.
        count: u64,
    },
    /// Files of a split model are missing.
    #[error(
        "of the model's {count} files {} is missing: fetch the model's other files into this folder, too",
        listed(missing)
    )]
    SplitMissing {
        /// Their names.
        missing: Vec<String>,
        /// Files of the model.
        count: u64,
    },
    /// A file whose keys contradict its name.
    #[error("its keys do not say that it is file {number} of {count}, as its name does: fetch it again")]
    SplitOther {
        /// The file, from 1.
        number: u64,
        /// Number of files.
        count: u64,
    },
    /// Files whose tensors are not as many as the first file says.
    #[error("the model's files should have {announced} tensors together and have {found}: fetch them again")]
    SplitTensors {
        /// Tensors by the first file.
        announced: u64,
        /// Tensors found.
        found: u64,
    },
    /// A required tensor of an unsupported type.
    #[error(
        "tensor {} is stored as {kind}, which is not supported: convert the model to one of {}",
        quote(name),
        formats()
    )]
    UnsupportedType {
        /// The tensor.
        name: String,
        /// The tensor's storage type.
        kind: TensorType,
    },
}

/// An error of a metadata key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// A required key is missing.
    #[error("key `{key}` is missing: convert the model again with a current converter")]
    Missing {
        /// The key.
        key: String,
    },
    /// A value of the wrong type or range.
    #[error("key `{key}` should be {expected}, but is {found}: convert the model again")]
    Type {
        /// The key.
        key: String,
        /// The expected type.
        expected: &'static str,
        /// The type found.
        found: String,
    },
}

impl KeyError {
    /// The key.
    pub fn key(&self) -> &str {
        let (Self::Missing { key } | Self::Type { key, .. }) = self;
        key
    }
}

/// The first bytes of a file, at most eight of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstBytes(pub(super) Vec<u8>);

impl Display for FirstBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// The probable kind of a file with these first bytes, as the end of a clause.
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

/// The names of supported formats.
fn formats() -> String {
    let read = Format::ALL.into_iter().filter(|format| format.ggml_type().is_some());
    read.map(Format::name).collect::<Vec<_>>().join(", ")
}

/// Quotes a name from a file for a message: in backquotes, printable, and not too long.
pub(in crate::model) fn quote(name: &str) -> impl Display {
    const SHOWN_MAX: usize = 96;
    fmt::from_fn(move |f| {
        f.write_char('`')?;
        for letter in name.chars().take(SHOWN_MAX) {
            write!(f, "{}", letter.escape_debug())?;
        }
        f.write_str(if name.chars().nth(SHOWN_MAX).is_some() { "...`" } else { "`" })
    })
}
