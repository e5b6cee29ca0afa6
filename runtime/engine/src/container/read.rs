//! Opens containers, and checks everything before it is used.

use std::io;
use std::path::{Path, PathBuf};

use plans::PAGE_BYTES;
use plans::layout::{PARTS, Span};
use plans::model::LevelKind;
use platform::page_cache;

use crate::model::tokenizer::TokenizerData;

use super::index::{Piece, Source};
use super::{
    BYTE_ORDER, Directory, HEADER_CHECKED, LevelEntry, MAGIC, RowsEntry, Section, TensorEntry, VERSION, write,
};
use crate::arena::LINE_BYTES;
use crate::flash::{self, Files, LayerSlices};

/// Far above the size of any model's directory, which holds shapes and a vocabulary.
const DIRECTORY_BYTES_MAX: u64 = 1 << 28;
/// Sections are read in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// Why the system did not read a container, and what to do.
fn unreadable(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::NotFound => {
            "there is no such file; name a container or index, or make one with `profile --model`".to_owned()
        }
        io::ErrorKind::PermissionDenied => "you may not read it; give yourself the right to".to_owned(),
        _ => format!("{source}; look after its disk, or make it again with `profile --model`"),
    }
}

/// Why a container is refused.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The operating system refused.
    #[error("cannot read {path}: {}", unreadable(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The path is a folder.
    #[error("{path} is a folder; name the .bundle or .index file inside it")]
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// Another kind of file.
    #[error(
        "{path} is not a flashplan container (it does not begin with `flashpln`); make one with `profile --model`"
    )]
    Magic {
        /// The file.
        path: PathBuf,
    },
    /// Another version of the format.
    #[error(
        "{path} has container version {found}, this program reads {VERSION}; make it again with `profile --model`"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u32,
    },
    /// Written on a machine of the other byte order.
    #[error(
        "{path} was written in another byte order; make it again with `profile --model` on this kind of machine"
    )]
    ByteOrder {
        /// The file.
        path: PathBuf,
    },
    /// Its length differs from its header.
    #[error(
        "{path} has {found} bytes and should have {expected}: it was cut short or changed; copy or make it again"
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Length in the header.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
    /// A checksum does not match.
    #[error("{path}: the checksum of its {part} does not match: the file is damaged; copy or make it again")]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The damaged part.
        part: String,
    },
    /// A model file is in none of the folders searched.
    #[error(
        "{name}, whose weights {index} leaves where they are, is neither in {folders}: put it beside the index, or name it with --model"
    )]
    NoSource {
        /// The index.
        index: PathBuf,
        /// The name of the model's first file.
        name: String,
        /// The folders searched.
        folders: String,
    },
    /// The model's file is not the one that was profiled.
    #[error(
        "{path} is not the file that {index} was made of: {problem}; get that file again, or make the index again with `profile --model`"
    )]
    OtherSource {
        /// The model's file.
        path: PathBuf,
        /// The index.
        index: PathBuf,
        /// The difference.
        problem: String,
    },
    /// The fixed part, assembled from the model's files, does not match.
    #[error(
        "{path}: attention, embeddings or head do not match their checksum: the file is damaged or was changed since it was profiled; get it again, or make {index} again with `profile --model`"
    )]
    ChangedSource {
        /// The model's file.
        path: PathBuf,
        /// The index.
        index: PathBuf,
    },
    /// Its checksums match, but its contents contradict each other.
    #[error("{path}: {problem}; make it again with `profile --model`")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        problem: String,
    },
}

/// An open container whose directory has been checked.
#[derive(Debug, Clone)]
pub struct Container {
    /// The file.
    pub path: PathBuf,
    /// The table of contents.
    pub directory: Directory,
    /// BLAKE3 of the directory, 32 hexadecimal digits.
    pub fingerprint: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// An index's model files, in order; empty for a container.
    pub model_files: Vec<PathBuf>,
}

impl ContainerError {
    /// The file that is refused.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. }
            | Self::Folder { path }
            | Self::Magic { path }
            | Self::Version { path, .. }
            | Self::ByteOrder { path }
            | Self::Length { path, .. }
            | Self::Checksum { path, .. }
            | Self::NoSource { index: path, .. }
            | Self::OtherSource { path, .. }
            | Self::ChangedSource { path, .. }
            | Self::Invalid { path, .. } => path,
        }
    }
}

/// Checks that [`Container::open`] will accept a container of this directory after `bytes` bytes; its tables
/// have no hash yet.
///
/// # Errors
/// `InvalidData` with the message of [`Container::open`] for `path`.
pub(super) fn believed(path: &Path, directory: &Directory, bytes: u64) -> io::Result<()> {
    let json = serde_json::to_vec(directory)?;
    let invalid = |problem: String| {
        let error = ContainerError::Invalid { path: path.to_owned(), problem };
        io::Error::new(io::ErrorKind::InvalidData, error)
    };
    let container = Container {
        path: path.to_owned(),
        directory: read_directory(&json).map_err(invalid)?,
        fingerprint: String::new(),
        bytes,
        model_files: Vec::new(),
    };
    container.check().map_err(invalid)
}

/// Parses a directory as the file has it.
fn read_directory(json: &[u8]) -> Result<Directory, String> {
    if json.len() as u64 > DIRECTORY_BYTES_MAX {
        return Err(format!("a directory of {} bytes is not read", json.len()));
    }
    serde_json::from_slice(json).map_err(|error| format!("its directory cannot be read: {error}"))
}

impl Container {
    /// Opens a container and checks all but the contents of its sections, which are checked as they are read.
    /// An index's model files are searched beside it, then where they were profiled.
    ///
    /// # Errors
    /// Every [`ContainerError`].
    pub fn open(path: &Path) -> Result<Self, ContainerError> {
        Self::open_with(path, None)
    }

    /// Opens a container as [`Self::open`]. If `model_folder` is given, an index's model files are searched
    /// only there.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(path: &Path, model_folder: Option<&Path>) -> Result<Self, ContainerError> {
        let io = |source| ContainerError::Io { path: path.to_owned(), source };
        let metadata = std::fs::metadata(path).map_err(io)?;
        if metadata.is_dir() {
            return Err(ContainerError::Folder { path: path.to_owned() });
        }
        let file = page_cache::open(path).map_err(io)?;
        let read =
            Self::read(path, metadata.len(), &|buffer, at| platform::file::read_exact_at(&file, buffer, at));
        page_cache::forget(&file);
        let mut container = read?;
        if let Some(source) = &container.directory.source {
            container.model_files = source.find(path, model_folder)?;
        }
        Ok(container)
    }

    /// Reads and checks header and directory of a file of `file_length` bytes; `read_at` fills a buffer from
    /// an offset.
    fn read(
        path: &Path,
        file_length: u64,
        read_at: &dyn Fn(&mut [u8], u64) -> io::Result<()>,
    ) -> Result<Self, ContainerError> {
        let io = |source| ContainerError::Io { path: path.to_owned(), source };
        let mut header = [0; HEADER_CHECKED + 8];
        let begun = file_length.min(header.len() as u64) as usize;
        read_at(&mut header[..begun], 0).map_err(io)?;
        if begun < 8 || header[..8] != MAGIC {
            return Err(ContainerError::Magic { path: path.to_owned() });
        }
        let length =
            |expected| ContainerError::Length { path: path.to_owned(), expected, found: file_length };
        if begun < header.len() {
            return Err(length(PAGE_BYTES));
        }
        let (u32_at, u64_at) = (|at: usize| u32_at(&header, at), |at: usize| u64_at(&header, at));
        if u32_at(12) != BYTE_ORDER {
            return Err(ContainerError::ByteOrder { path: path.to_owned() });
        }
        if u32_at(8) != VERSION {
            return Err(ContainerError::Version { path: path.to_owned(), found: u32_at(8) });
        }
        let checksum = |part: &str| ContainerError::Checksum { path: path.to_owned(), part: part.to_owned() };
        if xxhash_rust::xxh3::xxh3_64(&header[..HEADER_CHECKED]) != u64_at(HEADER_CHECKED) {
            return Err(checksum("header"));
        }
        let (offset, bytes, file_bytes) = (u64_at(16), u64_at(24), u64_at(32));
        if file_bytes != file_length {
            return Err(length(file_bytes));
        }
        let invalid = |problem: String| ContainerError::Invalid { path: path.to_owned(), problem };
        if bytes > DIRECTORY_BYTES_MAX || offset.checked_add(bytes).is_none_or(|end| end > file_bytes) {
            return Err(invalid(format!("a directory of {bytes} bytes at {offset} does not fit the file")));
        }
        let mut json = vec![0; bytes as usize];
        read_at(&mut json, offset).map_err(io)?;
        if blake3::hash(&json).as_bytes()[..] != header[40..72] {
            return Err(checksum("directory"));
        }
        let mut directory = read_directory(&json).map_err(invalid)?;
        // later fields are counted by its layers
        directory.config.check().map_err(|error| invalid(error.to_string()))?;
        if directory.source.is_some() {
            directory.layer_offsets = (0..directory.config.layers()).map(LayerSlices::address).collect();
        }
        let container = Self {
            path: path.to_owned(),
            fingerprint: write::fingerprint(&json),
            directory,
            bytes: file_bytes,
            model_files: Vec::new(),
        };
        container.check().map_err(invalid)?;
        Ok(container)
    }

    /// Reads bytes as a container or index, for fuzzing. All parts read before a plan is known are used or
    /// refused, without a panic. Corrects header checksums and length first.
    #[doc(hidden)]
    pub fn read_any(bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let mut length = bytes.len() as u64;
        if bytes.len() >= HEADER_CHECKED + 8 {
            length = u64_at(&bytes, 32);
            let json = part_of(&bytes, u64_at(&bytes, 16), u64_at(&bytes, 24)).map(blake3::hash);
            if let Some(hash) = json {
                bytes[40..72].copy_from_slice(hash.as_bytes());
            }
            let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..HEADER_CHECKED]);
            bytes[HEADER_CHECKED..][..8].copy_from_slice(&sum.to_le_bytes());
        }
        let read_at = |buffer: &mut [u8], at: u64| {
            let part = part_of(&bytes, at, buffer.len() as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(part);
            Ok(())
        };
        let Ok(mut container) = Self::read(Path::new("file"), length, &read_at) else { return };
        let d = &container.directory;
        let addresses = (container.embedding_address(), container.per_layer_address());
        drop((d.architecture(), d.mean_bundle(), addresses, container.groups()));
        for level in &d.levels {
            let most = length.saturating_mul(2).saturating_add(LINE_BYTES as u64);
            assert!(container.level_resident_bytes(level) <= most, "gates and thresholds are in the file");
        }
        drop(container.take_tokenizer().into_tokenizer());
    }

    /// Opens the file, and an index's model files, for reading as [`flash::open`] does.
    ///
    /// # Errors
    /// The system's error, with the file's name.
    pub fn files(&self, direct: bool) -> Result<Files, ContainerError> {
        let open = |path: &PathBuf| {
            flash::open(path, direct).map_err(|source| ContainerError::Io { path: path.clone(), source })
        };
        Ok(Files::new(
            std::iter::once(&self.path).chain(&self.model_files).map(open).collect::<Result<_, _>>()?,
        ))
    }

    /// The file that neurons are read from: the container, or the first file of an index's model.
    pub fn weights_path(&self) -> &Path {
        self.model_files.first().unwrap_or(&self.path)
    }

    /// The file with most weights: the container, or the longest file of an index's model.
    pub(crate) fn weights(&self) -> Span {
        let files = self.directory.source.iter().flat_map(|source| (1..).zip(&source.files));
        let longest = files.max_by_key(|(_, file)| file.bytes);
        longest.map_or(Span { offset: 0, bytes: self.bytes }, |(number, file)| Span {
            offset: number * flash::FILE_BYTES_MAX,
            bytes: file.bytes,
        })
    }

    /// Layers whose slices have separate parts: all layers of an index, none of a container.
    pub(crate) fn groups(&self) -> Vec<LayerSlices> {
        let d = &self.directory;
        let of_layer = |source: &Source, layer| {
            let bundle = d.stored(layer).bundle;
            // `open` checked it
            let slices = source.slices(layer, self.parts_bytes(layer)).unwrap_or_default();
            LayerSlices { at: bundle.parts_at(), slices }
        };
        let layers = 0..d.config.layers();
        d.source.iter().flat_map(|source| layers.clone().map(move |layer| of_layer(source, layer))).collect()
    }

    /// Bytes of an expert's gate, up and down in the model's file.
    pub(super) fn parts_bytes(&self, layer: usize) -> [u64; PARTS] {
        let stored = self.directory.stored(layer);
        let [gate, up, _] = stored.bundle.parts_bytes();
        let row = stored.down_format.row_bytes(self.directory.config.ffn_width());
        [gate, up, (self.directory.config.width * row) as u64]
    }

    /// Takes the tokenizer out of the container, so that a vocabulary is in memory once.
    pub(crate) fn take_tokenizer(&mut self) -> TokenizerData {
        std::mem::take(&mut self.directory.tokenizer)
    }

    /// Reads a section into `out` and checks its hash. `files` may be open for direct I/O if `out` starts on
    /// a page.
    ///
    /// # Errors
    /// [`ContainerError::Io`] and [`ContainerError::Checksum`], which names `part`.
    ///
    /// # Panics
    /// If `out` has another length than the section.
    pub fn read_section(
        &self,
        files: &Files,
        section: &Section,
        part: &str,
        out: &mut [u8],
    ) -> Result<(), ContainerError> {
        self.read_section_past(files, section, part, &mut [], 0, |_| (), out)
    }

    /// Reads as [`Container::read_section`] but passes the first `past` bytes through `scratch` to `see`.
    /// `files` may be open for direct I/O if `past` is whole pages and `scratch` starts on a page, too.
    ///
    /// # Errors
    /// As [`Container::read_section`].
    ///
    /// # Panics
    /// If `out` is not the rest of the section.
    pub fn read_section_past(
        &self,
        files: &Files,
        section: &Section,
        part: &str,
        scratch: &mut [u8],
        past: u64,
        mut see: impl FnMut(&[u8]),
        out: &mut [u8],
    ) -> Result<(), ContainerError> {
        assert_eq!(past + out.len() as u64, section.bytes, "a section is read whole");
        let mut hasher = blake3::Hasher::new();
        let mut read = |piece: &mut [u8], at: u64| {
            files
                .read_exact_at(piece, section.offset + at)
                .map_err(|source| ContainerError::Io { path: self.path.clone(), source })?;
            hasher.update(piece);
            Ok::<_, ContainerError>(())
        };
        let mut at = 0;
        while at < past {
            let bytes = (past - at).min(scratch.len() as u64);
            let piece = &mut scratch[..bytes as usize];
            read(piece, at)?;
            see(piece);
            at += bytes;
        }
        for piece in out.chunks_mut(PIECE_BYTES) {
            read(piece, at)?;
            at += piece.len() as u64;
        }
        if hasher.finalize().to_hex().as_str() != section.hash {
            return Err(ContainerError::Checksum { path: self.path.clone(), part: part.to_owned() });
        }
        Ok(())
    }

    /// Reads the fixed part as [`Container::read_section_past`]; an index's part is assembled from its
    /// pieces.
    ///
    /// # Errors
    /// As [`Container::read_section_past`], and [`ContainerError::ChangedSource`].
    ///
    /// # Panics
    /// As [`Container::read_section_past`]; also if `scratch` has less than two pages.
    pub(crate) fn read_fixed(
        &self,
        files: &Files,
        scratch: &mut [u8],
        past: u64,
        mut see: impl FnMut(&[u8]),
        out: &mut [u8],
    ) -> Result<(), ContainerError> {
        let fixed = &self.directory.fixed;
        let Some(source) = &self.directory.source else {
            return self.read_section_past(files, fixed, "fixed part", scratch, past, see, out);
        };
        assert_eq!(past + out.len() as u64, fixed.bytes, "a section is read whole");
        // `open` checked it
        let pieces = source.pieces(&self.directory.tensors, fixed.offset, fixed.bytes).unwrap_or_default();
        let (mut hasher, mut at, mut rest) = (blake3::Hasher::new(), 0, out);
        let mut take = |mut bytes: &[u8]| {
            hasher.update(bytes);
            let passing = past.saturating_sub(at).min(bytes.len() as u64) as usize;
            see(&bytes[..passing]);
            at += bytes.len() as u64;
            bytes = &bytes[passing..];
            let (here, others) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            rest = others;
        };
        for piece in pieces {
            match piece {
                Piece::Zeros(bytes) => take(&[0; PAGE_BYTES as usize][..bytes as usize]),
                Piece::Bytes(span) => {
                    let mut read = 0;
                    while read < span.bytes {
                        let offset = span.offset + read;
                        let within = offset % PAGE_BYTES;
                        let bytes = (span.bytes - read).min(scratch.len() as u64 - PAGE_BYTES);
                        let pages = Span { offset, bytes }.pages();
                        let buffer = &mut scratch[..pages.bytes as usize];
                        files.read_exact_at(buffer, pages.offset).map_err(|source| ContainerError::Io {
                            path: self.weights_path().to_owned(),
                            source,
                        })?;
                        take(&buffer[within as usize..][..bytes as usize]);
                        read += bytes;
                    }
                }
            }
        }
        if hasher.finalize().to_hex().as_str() != fixed.hash {
            let (path, index) = (self.weights_path().to_owned(), self.path.clone());
            return Err(ContainerError::ChangedSource { path, index });
        }
        Ok(())
    }

    /// The address of the token embedding's first row.
    pub(crate) fn embedding_address(&self) -> u64 {
        let place =
            self.directory.source.as_ref().and_then(|source| source.address((*source.tensors.first()?)?));
        place.unwrap_or(self.directory.fixed.offset)
    }

    /// The address of the per-layer embedding's first row; 0 without one.
    pub(crate) fn per_layer_address(&self) -> u64 {
        let Some(RowsEntry { table, .. }) = &self.directory.per_layer_rows else { return 0 };
        match &self.directory.source {
            None => table.offset,
            // `open` checked it
            Some(source) => source.address(table.offset).unwrap_or(0),
        }
    }

    /// The level of that name.
    pub fn level(&self, name: &str) -> Option<&LevelEntry> {
        self.directory.levels.iter().find(|level| level.name == name)
    }

    /// The tensor of that name in the fixed part.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.directory.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Neurons of a layer, all experts together.
    pub fn neurons(&self) -> usize {
        self.directory.config.experts() * self.directory.config.ffn_width()
    }

    /// Resident bytes of a level: its predictor set and thresholds, or every gate row and its thresholds.
    pub fn level_resident_bytes(&self, level: &LevelEntry) -> u64 {
        match level.kind {
            LevelKind::Dense => 0,
            LevelKind::ExactGate | LevelKind::GateThreshold => {
                let gate_bytes = |layer| self.directory.stored(layer).bundle.gate_bytes;
                let gates =
                    self.neurons() as u64 * (0..self.directory.config.layers()).map(gate_bytes).sum::<u64>();
                match &level.thresholds {
                    None => gates,
                    Some(thresholds) => gates.next_multiple_of(LINE_BYTES as u64) + thresholds.bytes,
                }
            }
            LevelKind::Sign | LevelKind::LowRank => {
                level.set.map_or(0, |set| self.directory.sets[set].section.bytes)
                    + level.thresholds.as_ref().map_or(0, |section| section.bytes)
            }
        }
    }
}

impl super::SetEntry {
    /// Bytes of one expert's matrices; `None` on overflow.
    pub(super) fn expert_bytes(
        &self,
        config: &crate::model::config::Config,
        layer: usize,
        expert: usize,
    ) -> Option<u64> {
        if self.kind == LevelKind::Sign {
            return Some(config.ffn_width() as u64 * config.width.div_ceil(64) as u64 * 8);
        }
        let rank = self.ranks[layer][expert];
        let blocks = self.format.block_values();
        if rank == 0
            || rank > 2 * config.width.max(4096)
            || !rank.is_multiple_of(blocks)
            || !config.width.is_multiple_of(blocks)
        {
            return None;
        }
        let fc1 = (rank * self.format.row_bytes(config.width)) as u64;
        Some(
            fc1.next_multiple_of(super::TENSOR_ALIGN)
                + (config.ffn_width() * self.format.row_bytes(rank)) as u64,
        )
    }
}

/// Part of a file in memory, if the file has it.
fn part_of(bytes: &[u8], at: u64, length: u64) -> Option<&[u8]> {
    let start = usize::try_from(at).ok()?;
    bytes.get(start..start.checked_add(usize::try_from(length).ok()?)?)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
