//! The index `<model>.index`: a container that leaves a model's weights where they are, in its own files.
//!
//! It has the container's header and directory, and few bytes besides. The directory's [`Source`] says which files those are and
//! where in them everything lies:
//!
//! ```text
//! fixed part      put together when it is loaded: matrices from the model's files, vectors (as F32, by rank) from the index
//! neuron tables   per layer: source slice of each slice u32[slices], checksums of its gate, up and down u32[slices][3]
//! layers          each slice is a whole expert: its gate, up and down are three runs of bytes of the model's files
//! ```
//!
//! A file is taken for the one that was profiled if it has its length and its beginning, up to the first tensor. All other
//! bytes have checksums, and are compared when they are read.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use plans::layout::{PARTS, Span};
use plans::page_cache;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::read::ContainerError;
use super::{TENSOR_ALIGN, TensorEntry};
use crate::flash::FILE_BYTES_MAX;
use crate::model::gguf::{Gguf, TensorInfo};
use crate::model::source::{Down, SourceModel};

/// Words of `u32` that the tables of an index have for each slice: its number in the source, and checksums.
pub(crate) const SLICE_WORDS: usize = 1 + PARTS;

/// Checksums of a slice: of its gate, up and down.
pub type SliceSums = [u32; PARTS];

/// Where an index has its model's bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The folder in which the files were profiled: where they are if they are not beside the index.
    pub folder: PathBuf,
    /// The files, in order. Places are counted over all of them, as if they lay one after another.
    pub files: Vec<SourceFile>,
    /// The place of each tensor of the fixed part, as they stand in the directory; absent: in the index itself, where those
    /// follow each other, each on 64 bytes.
    pub tensors: Vec<Option<u64>>,
    /// By layer, for each slice in order the places of gate, up and down.
    pub slices: Vec<Vec<[u64; PARTS]>>,
}

/// A file of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// Name of the file, without a folder.
    pub name: String,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// Bytes before the file's first tensor.
    pub head_bytes: u64,
    /// BLAKE3 of the bytes before the file's first tensor, hexadecimal.
    pub head_hash: String,
}

/// Where a fixed part's bytes come from, piece by piece, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Zeros between tensors.
    Zeros(u64),
    /// A run of bytes, by address.
    Bytes(Span),
}

impl Source {
    /// The files of a model, before anything is said of what lies in them.
    ///
    /// # Errors
    /// If the model is not in files, or they are in no folder that can be named.
    pub(super) fn of(gguf: &Gguf<'_>) -> io::Result<Self> {
        let mut folder = PathBuf::new();
        let mut files = Vec::new();
        for (path, start, bytes) in gguf.files() {
            let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "an index is of a model in files");
            // a link's own name: the hub's cache calls the file that it names by a checksum
            let parent = path.parent().ok_or_else(invalid)?;
            folder = if parent == Path::new("") { Path::new(".") } else { parent }.canonicalize()?;
            let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(invalid)?.to_owned();
            let inside =
                |tensor: &&TensorInfo| (start..start + bytes.len()).contains(&(tensor.offset as usize));
            let first = gguf.tensors().iter().filter(inside).map(|tensor| tensor.offset as usize).min();
            let head = &bytes[..first.map_or(bytes.len(), |first| first - start)];
            files.push(SourceFile {
                name,
                bytes: bytes.len() as u64,
                head_bytes: head.len() as u64,
                head_hash: super::write::hex(blake3::hash(head)),
            });
        }
        Ok(Self { folder, files, tensors: Vec::new(), slices: Vec::new() })
    }

    /// The address of a place; those of the index itself come before.
    pub(crate) fn address(&self, place: u64) -> Option<u64> {
        let mut start = 0;
        for (number, file) in (1..).zip(&self.files) {
            if place - start < file.bytes {
                return Some(number * FILE_BYTES_MAX + place - start);
            }
            start += file.bytes;
        }
        None
    }

    /// The run of so many bytes from a place on, if one file has all of them.
    pub(crate) fn span(&self, place: u64, bytes: u64) -> Option<Span> {
        let offset = self.address(place)?;
        let file = &self.files[(offset / FILE_BYTES_MAX) as usize - 1];
        let fits = (offset % FILE_BYTES_MAX).checked_add(bytes)? <= file.bytes;
        fits.then_some(Span { offset, bytes })
    }

    /// A layer's slices by address, if the files have all of their bytes.
    pub(crate) fn slices(&self, layer: usize, parts_bytes: [u64; PARTS]) -> Option<Box<[[Span; PARTS]]>> {
        let of_slice = |places: &[u64; PARTS]| {
            let mut spans = [Span { offset: 0, bytes: 0 }; PARTS];
            for (span, (&place, bytes)) in spans.iter_mut().zip(places.iter().zip(parts_bytes)) {
                *span = self.span(place, bytes)?;
            }
            Some(spans)
        };
        self.slices.get(layer)?.iter().map(of_slice).collect()
    }

    /// The pieces that a fixed part of these tensors and so many bytes is put together from; the index's own begin at `own`. `None`
    /// where a tensor is nowhere.
    pub(crate) fn pieces(&self, tensors: &[TensorEntry], own: u64, bytes: u64) -> Option<Vec<Piece>> {
        let (mut pieces, mut end, mut own) = (Vec::new(), 0, own);
        for (tensor, place) in tensors.iter().zip(&self.tensors) {
            let length = tensor.bytes()?;
            pieces.push(Piece::Zeros(tensor.offset.checked_sub(end)?));
            pieces.push(Piece::Bytes(match place {
                Some(place) => self.span(*place, length)?,
                None => Span { offset: own, bytes: length },
            }));
            if place.is_none() {
                own = own.checked_add(length)?.checked_next_multiple_of(TENSOR_ALIGN)?;
            }
            end = tensor.offset.checked_add(length)?;
        }
        pieces.push(Piece::Zeros(bytes.checked_sub(end)?));
        (tensors.len() == self.tensors.len()).then_some(pieces)
    }

    /// The files, in `folder` or, if that is not given, beside the index or else where they were profiled.
    ///
    /// # Errors
    /// If one is in none of these, or is another file.
    pub(super) fn find(&self, index: &Path, folder: Option<&Path>) -> Result<Vec<PathBuf>, ContainerError> {
        let beside = index.parent().unwrap_or(Path::new("")).to_owned();
        let folders =
            folder.map_or_else(|| vec![beside, self.folder.clone()], |folder| vec![folder.to_owned()]);
        let first = self.files.first().map(|file| &*file.name).unwrap_or_default();
        let missing = || ContainerError::NoSource {
            index: index.to_owned(),
            name: first.to_owned(),
            folders: folders
                .iter()
                .map(|folder| folder.display().to_string())
                .collect::<Vec<_>>()
                .join(" nor in "),
        };
        let folder = folders.iter().find(|folder| folder.join(first).exists()).ok_or_else(missing)?;
        self.files
            .iter()
            .map(|file| {
                let path = folder.join(&file.name);
                file.check(&path).map_err(|problem| ContainerError::OtherSource {
                    path: path.clone(),
                    index: index.to_owned(),
                    problem,
                })?;
                Ok(path)
            })
            .collect()
    }
}

impl SourceFile {
    /// Says how a file differs from the one that was profiled.
    fn check(&self, path: &Path) -> Result<(), String> {
        let refused = |error: io::Error| error.to_string();
        let found = fs::metadata(path).map_err(refused)?.len();
        if found != self.bytes {
            return Err(format!("it has {found} bytes and not {}", self.bytes));
        }
        let mut hasher = blake3::Hasher::new();
        let mut file = page_cache::open(path).map_err(refused)?;
        let head = io::copy(&mut (&mut file).take(self.head_bytes), &mut hasher);
        page_cache::forget(&file);
        head.map_err(refused)?;
        if super::write::hex(hasher.finalize()) != self.head_hash {
            return Err("its beginning, up to the first tensor, is another".to_owned());
        }
        Ok(())
    }
}

/// Checksum of a part of a slice.
pub(crate) fn part_checksum(layer: usize, slice: usize, part: usize, bytes: &[u8]) -> u32 {
    let seed = (layer as u64) << 32 | slice as u64;
    xxh3_64_with_seed(bytes, seed ^ (part as u64) << 62) as u32
}

/// Gate, up and down of an expert, as the source has them, or without gates up, nothing and down; `None` where down is by neurons.
pub(super) fn parts<'a>(
    source: &'a SourceModel<'_>,
    layer: usize,
    expert: usize,
) -> Option<[&'a [u8]; PARTS]> {
    let Down::Columns(down) = source.ffn_down(layer, expert) else { return None };
    let gated = source.config().activation().is_gated();
    let up = if gated { source.ffn_up(layer, expert).bytes } else { &[] };
    Some([source.ffn_gate(layer, expert).bytes, up, down.bytes])
}

/// Checksums of a layer's slices, each an expert, in this order: one pass over its bytes.
pub(super) fn sums(source: &SourceModel<'_>, layer: usize, experts: &[usize]) -> Vec<SliceSums> {
    experts
        .par_iter()
        .enumerate()
        .map(|(slice, &expert)| {
            let parts = parts(source, layer, expert).unwrap_or_default();
            std::array::from_fn(|part| part_checksum(layer, slice, part, parts[part]))
        })
        .collect()
}
