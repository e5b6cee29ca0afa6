//! The index `<model>.index`: a container that leaves a model's weights in the model's own files.
//!
//! It has the container's header and directory, and little else. The directory's [`Source`] names the files
//! and the place of everything in them:
//!
//! ```text
//! fixed part      assembled at load: matrices from the model's files, vectors (as F32, by rank) from the index
//! neuron tables   per layer: source slice of each slice u32[slices], checksums of its gate, up and down u32[slices][3]
//! layers          each slice is a whole expert: its gate, up and down are three byte ranges of the model's files
//! ```
//!
//! A file is accepted as the profiled one if its length and its bytes up to the first tensor are equal. All
//! other bytes have checksums, compared at every read.

use std::fs;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use plans::layout::{PARTS, Span};
use platform::page_cache;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::read::ContainerError;
use super::{TENSOR_ALIGN, TensorEntry};
use crate::flash::FILE_BYTES_MAX;
use crate::model::gguf::{Gguf, TensorInfo};
use crate::model::source::{Down, SourceModel};

/// Words of `u32` per slice in an index's tables: its number in the source, and checksums.
pub(crate) const SLICE_WORDS: usize = 1 + PARTS;

/// Checksums of a slice: gate, up and down.
pub type SliceSums = [u32; PARTS];

/// The places of an index's weights in the model's own files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The folder of the files when they were profiled; searched if they are not beside the index.
    pub folder: PathBuf,
    /// The files, in order. Places count bytes over all of them, as if they were one file.
    pub files: Vec<SourceFile>,
    /// The place of each tensor of the fixed part, in the directory's order. `None`: the tensor is in the
    /// index itself; such tensors follow each other, aligned to 64 bytes.
    pub tensors: Vec<Option<u64>>,
    /// By layer and slice: the places of gate, up and down.
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

/// The source of a piece of a fixed part, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Zeros between tensors.
    Zeros(u64),
    /// A run of bytes at an address.
    Bytes(Span),
}

impl Source {
    /// A source of the model's files, with no places yet.
    ///
    /// # Errors
    /// If the model is not in files, or they are in no folder that can be named.
    pub(super) fn of(gguf: &Gguf<'_>) -> io::Result<Self> {
        let mut folder = PathBuf::new();
        let mut files = Vec::new();
        for (path, start, bytes) in gguf.files() {
            let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "an index needs a model in files");
            // the link's own name: the hub's cache names the linked file by checksum
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

    /// The address of a place; addresses of the index itself are lower.
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

    /// The span of `bytes` bytes from a place, if one file has all of them.
    pub(crate) fn span(&self, place: u64, bytes: u64) -> Option<Span> {
        let offset = self.address(place)?;
        let file = &self.files[(offset / FILE_BYTES_MAX) as usize - 1];
        let fits = (offset % FILE_BYTES_MAX).checked_add(bytes)? <= file.bytes;
        fits.then_some(Span { offset, bytes })
    }

    /// A layer's slices by address, if the files have all their bytes.
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

    /// The pieces of a fixed part of `bytes` bytes with these tensors; the index's own bytes start at `own`.
    /// `None` if a tensor is in no file.
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

    /// The files: in `folder` if given, otherwise beside the index or in the profiled folder.
    ///
    /// # Errors
    /// If a file is in none of these, or is not the profiled one.
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
    /// Checks that a file is the one that was profiled; the error names the difference.
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

/// The checksum of a part of a slice.
pub(crate) fn part_checksum(layer: usize, slice: usize, part: usize, bytes: &[u8]) -> u32 {
    xxh3_64_with_seed(bytes, seed(layer, slice, part)) as u32
}

fn seed(layer: usize, slice: usize, part: usize) -> u64 {
    let seed = (layer as u64) << 32 | slice as u64;
    seed ^ (part as u64) << 62
}

/// A part of an expert in the model's files: gate, up or down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Layer of the expert.
    pub layer: usize,
    /// The slice, which is the expert's number as stored.
    pub slice: usize,
    /// Which of gate, up and down.
    pub part: usize,
    /// Place over all files, as if they were one.
    pub range: Range<u64>,
}

/// The checksum of a part whose bytes come in pieces.
#[derive(Clone)]
pub struct PartSum(Xxh3);

impl std::fmt::Debug for PartSum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PartSum")
    }
}

impl PartSum {
    /// The checksum of no bytes.
    pub fn new(part: &Part) -> Self {
        Self(Xxh3::with_seed(seed(part.layer, part.slice, part.part)))
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    pub fn finish(&self) -> u32 {
        self.0.digest() as u32
    }
}

/// All parts of the experts in the order of the files, without empty ones. `None` if weights are in no file, or two parts share bytes.
pub fn parts_in_files(source: &SourceModel<'_>) -> Option<Vec<Part>> {
    let mut all = Vec::new();
    for layer in 0..source.config().layers() {
        for slice in 0..source.config().experts() {
            let of_slice = parts(source, layer, slice)?.into_iter().enumerate();
            for (part, bytes) in of_slice.filter(|(_, bytes)| !bytes.is_empty()) {
                let start = source.gguf().place_of_bytes(bytes)?;
                all.push(Part { layer, slice, part, range: start..start + bytes.len() as u64 });
            }
        }
    }
    all.sort_by_key(|part| part.range.start);
    all.is_sorted_by(|a, b| a.range.end <= b.range.start).then_some(all)
}

/// Gate, up and down of an expert as the source has them; without gates: up, nothing, down. `None` where down
/// is stored by neurons.
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

/// The checksums of a layer's slices, one expert each, in this order: one pass over its bytes.
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
