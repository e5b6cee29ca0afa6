//! Opening a container: nothing is believed before it is checked.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use plans::PAGE_BYTES;
use plans::layout::BundleLayout;
use plans::model::LevelKind;

use crate::model::config::Part;
use crate::model::tokenizer::TokenizerData;

use super::{
    BYTE_ORDER, Directory, HEADER_CHECKED, LevelEntry, MAGIC, Section, Stored, TABLE_WORDS, TensorEntry,
    VERSION, write,
};

/// A directory holds shapes and a vocabulary: no model's comes near this.
const DIRECTORY_BYTES_MAX: u64 = 1 << 28;
/// Sections are read in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// Why a container is refused.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The operating system refused.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The path is a folder.
    #[error("{path} is a folder; name the .bundle file inside it")]
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
    /// Shorter or longer than it says.
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
    /// Checksums match, but it makes no sense.
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
            | Self::Invalid { path, .. } => path,
        }
    }
}

impl Container {
    /// Opens and checks everything but the sections' contents, which are checked as they are read.
    ///
    /// # Errors
    /// Every [`ContainerError`].
    pub fn open(path: &Path) -> Result<Self, ContainerError> {
        let io = |source| ContainerError::Io { path: path.to_owned(), source };
        let metadata = std::fs::metadata(path).map_err(io)?;
        if metadata.is_dir() {
            return Err(ContainerError::Folder { path: path.to_owned() });
        }
        let file = File::open(path).map_err(io)?;
        let mut header = [0; HEADER_CHECKED + 8];
        let begun = (metadata.len() as usize).min(header.len());
        file.read_exact_at(&mut header[..begun], 0).map_err(io)?;
        if begun < 8 || header[..8] != MAGIC {
            return Err(ContainerError::Magic { path: path.to_owned() });
        }
        let length =
            |expected| ContainerError::Length { path: path.to_owned(), expected, found: metadata.len() };
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
        if file_bytes != metadata.len() {
            return Err(length(file_bytes));
        }
        let invalid = |problem: String| ContainerError::Invalid { path: path.to_owned(), problem };
        if bytes > DIRECTORY_BYTES_MAX || offset.checked_add(bytes).is_none_or(|end| end > file_bytes) {
            return Err(invalid(format!("a directory of {bytes} bytes at {offset} does not fit the file")));
        }
        let mut json = vec![0; bytes as usize];
        file.read_exact_at(&mut json, offset).map_err(io)?;
        if blake3::hash(&json).as_bytes()[..] != header[40..72] {
            return Err(checksum("directory"));
        }
        let directory: Directory = serde_json::from_slice(&json)
            .map_err(|error| invalid(format!("its directory cannot be read: {error}")))?;
        let container = Self {
            path: path.to_owned(),
            fingerprint: write::fingerprint(&json),
            directory,
            bytes: file_bytes,
        };
        container.check().map_err(invalid)?;
        Ok(container)
    }

    /// The tokenizer, which the container then no longer has: a vocabulary need not be in memory twice.
    pub(crate) fn take_tokenizer(&mut self) -> TokenizerData {
        std::mem::take(&mut self.directory.tokenizer)
    }

    /// Reads a section into `out` and checks its hash. `file` may be open for direct I/O if `out` lies on a page.
    ///
    /// # Errors
    /// [`ContainerError::Io`] and [`ContainerError::Checksum`], which names `part`.
    ///
    /// # Panics
    /// If `out` has another length than the section.
    pub fn read_section(
        &self,
        file: &File,
        section: &Section,
        part: &str,
        out: &mut [u8],
    ) -> Result<(), ContainerError> {
        self.read_section_past(file, section, part, &mut [], 0, |_| (), out)
    }

    /// [`Container::read_section`] without its first `past` bytes, which go through `scratch` and are passed to `see`.
    /// `file` may be open for direct I/O if these are whole pages and `scratch` lies on one, too.
    ///
    /// # Errors
    /// Those of [`Container::read_section`].
    ///
    /// # Panics
    /// If `out` is not the rest of the section.
    pub fn read_section_past(
        &self,
        file: &File,
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
            file.read_exact_at(piece, section.offset + at)
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

    /// Resident bytes of a level: its predictor set and thresholds, or every gate row.
    pub fn level_resident_bytes(&self, level: &LevelEntry) -> u64 {
        match level.kind {
            LevelKind::Dense => 0,
            LevelKind::ExactGate => {
                let gate_bytes = |layer| self.directory.stored(layer).bundle.gate_bytes;
                self.neurons() as u64 * (0..self.directory.config.layers()).map(gate_bytes).sum::<u64>()
            }
            LevelKind::Sign | LevelKind::LowRank => {
                level.set.map_or(0, |set| self.directory.sets[set].section.bytes)
                    + level.thresholds.as_ref().map_or(0, |section| section.bytes)
            }
        }
    }

    /// Every section in the file, every tensor in its section, every list as long as the model says.
    fn check(&self) -> Result<(), String> {
        let d = &self.directory;
        d.config.check().map_err(|error| error.to_string())?;
        let section = |what: &str, s: &Section| {
            let inside = s.offset.checked_add(s.bytes).is_some_and(|end| end <= self.bytes);
            if inside && s.offset.is_multiple_of(PAGE_BYTES) && s.bytes.is_multiple_of(PAGE_BYTES) {
                Ok(())
            } else {
                Err(format!(
                    "the {what} at {} of {} bytes does not lie on pages of the file",
                    s.offset, s.bytes
                ))
            }
        };
        section("fixed part", &d.fixed)?;
        section("neuron tables", &d.tables)?;
        for tensor in &d.tensors {
            let end = tensor.bytes().and_then(|bytes| tensor.offset.checked_add(bytes));
            if end.is_none_or(|end| end > d.fixed.bytes) || !tensor.offset.is_multiple_of(super::TENSOR_ALIGN)
            {
                return Err(format!("the tensor {} lies outside the fixed part", tensor.name));
            }
        }
        self.check_shapes()?;
        let (layers, experts, neurons) = (d.config.layers(), d.config.experts(), self.neurons() as u64);
        if d.tables.bytes < layers as u64 * neurons * (size_of::<u32>() * TABLE_WORDS) as u64 {
            return Err("the neuron tables are too short".to_owned());
        }
        let slice = d.bundle.slice_neurons;
        if slice == 0 || !(d.config.ffn_width() as u64).is_multiple_of(slice) {
            return Err(format!("its experts are not cut into slices of {slice} neurons"));
        }
        if d.layer_offsets.len() != layers || !(d.layers.is_empty() || d.layers.len() == layers) {
            return Err(format!("it has {} layers of {layers}", d.layer_offsets.len().min(d.layers.len())));
        }
        for (layer, &offset) in d.layer_offsets.iter().enumerate() {
            let stored = d.stored(layer);
            check_stored(d, &stored)?;
            let layer_bytes = stored.bundle.layer_bytes(neurons);
            if !offset.is_multiple_of(PAGE_BYTES)
                || offset.checked_add(layer_bytes).is_none_or(|end| end > self.bytes)
            {
                return Err(format!("the layer at {offset} does not fit the file"));
            }
        }
        for set in &d.sets {
            section("predictor set", &set.section)?;
            let square = |lens: Vec<usize>| lens.len() == layers && lens.iter().all(|&len| len == experts);
            if !square(set.ranks.iter().map(Vec::len).collect())
                || !square(set.offsets.iter().map(Vec::len).collect())
            {
                return Err(format!("the predictor set {} does not cover the layers", set.name));
            }
            for (layer, expert) in
                (0..layers).flat_map(|layer| (0..experts).map(move |expert| (layer, expert)))
            {
                let end = set
                    .expert_bytes(&d.config, layer, expert)
                    .and_then(|b| b.checked_add(set.offsets[layer][expert]));
                let aligned = set.offsets[layer][expert].is_multiple_of(super::TENSOR_ALIGN);
                if !aligned || end.is_none_or(|end| end > set.section.bytes) {
                    return Err(format!("the predictor set {} does not fit its section", set.name));
                }
            }
        }
        for level in &d.levels {
            if level.always_on.len() != layers || level.always_on.iter().any(|&n| u64::from(n) > neurons) {
                return Err(format!("the level {} names impossible always-on neurons", level.name));
            }
            let predicting = matches!(level.kind, LevelKind::Sign | LevelKind::LowRank);
            let set = level.set.and_then(|set| d.sets.get(set));
            let fits = set.is_some_and(|set| set.kind == level.kind)
                && level.thresholds.as_ref().is_some_and(|s| s.bytes >= layers as u64 * neurons * 4);
            if predicting != fits || (!predicting && (level.set.is_some() || level.thresholds.is_some())) {
                return Err(format!("the level {} has no predictor of its kind", level.name));
            }
            if let Some(thresholds) = &level.thresholds {
                section("thresholds", thresholds)?;
            }
        }
        Ok(())
    }

    /// Every tensor that a token meets, in its shape.
    fn check_shapes(&self) -> Result<(), String> {
        let c = &self.directory.config;
        let expect = |name: String, is_plain: bool, rows: usize, columns: usize| match self.tensor(&name) {
            Some(t) if is_plain && t.format != kernels::Format::F32 => {
                Err(format!("the tensor {name} is {}, not F32", t.format))
            }
            Some(t) if (t.rows, t.columns) == (rows, columns) => Ok(()),
            Some(t) => {
                Err(format!("the tensor {name} is {} x {}, not {rows} x {columns}", t.rows, t.columns))
            }
            None => Err(format!("the tensor {name} is missing")),
        };
        expect("token_embd.weight".to_owned(), false, c.vocabulary, c.width)?;
        expect("output_norm.weight".to_owned(), true, 1, c.width)?;
        if self.tensor("output.weight").is_some() {
            expect("output.weight".to_owned(), false, c.vocabulary, c.width)?;
        }
        for layer in 0..c.layers() {
            for Part { role, rows, columns } in c.parts(layer) {
                expect(format!("blk.{layer}.{}", role.name()), role.is_plain(), rows, columns)?;
            }
        }
        Ok(())
    }
}

/// Rows of whole blocks, and a bundle of their shape.
fn check_stored(d: &Directory, stored: &Stored) -> Result<(), String> {
    let formats = [("gate", stored.gate_format), ("up", stored.up_format), ("down", stored.down_format)];
    for (which, format) in formats {
        if !d.config.width.is_multiple_of(format.block_values()) {
            return Err(format!("the {which} rows are not whole blocks"));
        }
    }
    let [gate, up, down] = formats.map(|(_, format)| format.row_bytes(d.config.width) as u64);
    if stored.bundle != BundleLayout::in_slices(gate, up, down, d.bundle.slice_neurons) {
        return Err("its bundles have another shape than the model's rows".to_owned());
    }
    Ok(())
}

impl super::SetEntry {
    /// Bytes of one expert's matrices; nothing when they cannot be counted.
    fn expert_bytes(
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

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
