//! Rows of embeddings that stay in the file until they are used.
//!
//! A token needs one row of many thousand, so an embedding's memory is better spent on neurons. Two kinds of
//! embeddings are read so, each row verified by its checksum:
//!
//! * the token embedding, if the plan says so and it is not also the head. It is the first tensor of the fixed
//!   part, whose bytes are hashed at start; the checksums are kept then;
//! * per-layer embeddings and n-grams, always. They are no part of the fixed part, and the container has the checksums.

use plans::memory::{embedding_buffer_bytes, embedding_left_bytes};
use plans::{PAGE_BYTES, layout::Span};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::arena::{Align, Arena, ArenaError, Slab};
use crate::container::{Container, ContainerError, TensorEntry};
use crate::fetch::FetchError;
use crate::flash::{self, Files};
use kernels::Format;
use kernels::Row;

/// The rows of an embedding in a file.
pub(crate) struct RowTable {
    /// The embedding, for messages.
    name: &'static str,
    files: Files,
    format: Format,
    row_bytes: usize,
    /// Address of the first row.
    offset: u64,
    /// A checksum for each row.
    checksums: Vec<u32>,
    buffer: Slab<u8>,
    counters: flash::FlashCounters,
}

impl std::fmt::Debug for RowTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowTable").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why a row cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddingError {
    /// The read failed.
    #[error(transparent)]
    Read(#[from] FetchError),
    /// The checksums cannot be read.
    #[error(transparent)]
    Checksums(#[from] ContainerError),
    /// There is no memory for the checksums.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The bytes do not match the row's checksum.
    #[error(
        "row {token} of the {name} ({}) does not match its checksum: the file is damaged or was changed; copy or make it again",
        flash::place(*offset)
    )]
    Row {
        /// The embedding.
        name: &'static str,
        /// The token.
        token: u32,
        /// First byte of the row.
        offset: u64,
    },
}

/// The checksum of a row.
pub(crate) fn row_checksum(row: &[u8]) -> u32 {
    xxh3_64(row) as u32
}

impl RowTable {
    /// Rows of the per-layer embedding or n-grams of `container`, with their checksums, read through `files` into
    /// `buffer`; `None` if it has none.
    ///
    /// # Errors
    /// If the checksums cannot be read, or do not match their hash.
    pub(crate) fn per_layer(
        container: &Container,
        files: &Files,
        buffer: Slab<u8>,
    ) -> Result<Option<Self>, EmbeddingError> {
        let Some(rows) = &container.directory.per_layer_rows else { return Ok(None) };
        let bytes = rows.checksums.bytes;
        let mut section: Slab<u8> = Arena::new(bytes)?.take(bytes as usize, Align::Page)?;
        container.read_section(
            files,
            &rows.checksums,
            "checksums of the per-layer embedding",
            &mut section,
        )?;
        let checksums: &[u32] = bytemuck::cast_slice(&section[..]);
        let table = &rows.table;
        Ok(Some(Self {
            name: if container.directory.config.ngrams.is_some() { "n-grams" } else { "per-layer embedding" },
            files: files.clone(),
            format: table.format,
            row_bytes: table.format.row_bytes(table.columns),
            offset: container.per_layer_address(),
            checksums: checksums[..table.rows].to_vec(),
            buffer,
            counters: flash::FlashCounters::default(),
        }))
    }

    /// Reads the row of a token.
    ///
    /// # Errors
    /// If the read fails or the bytes do not match the checksum.
    ///
    /// # Panics
    /// If there is no such token.
    pub(crate) fn read(&mut self, token: u32) -> Result<Row<'_>, EmbeddingError> {
        let span = Span {
            offset: self.offset + u64::from(token) * self.row_bytes as u64,
            bytes: self.row_bytes as u64,
        };
        let pages = span.pages();
        let buffer = &mut self.buffer[..pages.bytes as usize];
        let (offset, bytes) = (pages.offset, buffer.len());
        self.files.read_exact_at(buffer, offset).map_err(|error| FetchError {
            offset,
            bytes,
            source: flash::explain(&self.files, offset, bytes, error),
        })?;
        (self.counters.reads, self.counters.bytes) =
            (self.counters.reads + 1, self.counters.bytes + pages.bytes);
        let row = &buffer[(span.offset % PAGE_BYTES) as usize..][..self.row_bytes];
        if row_checksum(row) != self.checksums[token as usize] {
            return Err(EmbeddingError::Row { name: self.name, token, offset: span.offset });
        }
        Ok(Row::new(self.format, row))
    }

    /// Counts of rows read, and their pages.
    pub(crate) fn counters(&self) -> flash::FlashCounters {
        self.counters
    }
}

/// The rows of the token embedding, whose checksums are made at start.
#[derive(Debug)]
pub(crate) struct EmbeddingRows {
    table: RowTable,
    rows: usize,
    seeing: Seeing,
}

/// The row that is being hashed.
struct Seeing {
    hasher: Xxh3,
    /// Bytes missing from the row.
    lacks: usize,
}

impl std::fmt::Debug for Seeing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seeing").field("lacks", &self.lacks).finish_non_exhaustive()
    }
}

impl EmbeddingRows {
    /// Rows of the embedding of `container`, read through `files` into `buffer`; `None` if the embedding must
    /// stay in memory.
    pub(crate) fn new(container: &Container, files: Files, buffer: Slab<u8>) -> Option<Self> {
        let entry = apart(container)?;
        let row_bytes = entry.format.row_bytes(entry.columns);
        let table = RowTable {
            name: "token embedding",
            files,
            format: entry.format,
            row_bytes,
            offset: container.embedding_address(),
            checksums: Vec::with_capacity(entry.rows),
            buffer,
            counters: flash::FlashCounters::default(),
        };
        let seeing = Seeing { hasher: Xxh3::new(), lacks: row_bytes };
        Some(Self { table, rows: entry.rows, seeing })
    }

    /// Bytes left in the file, and bytes of the buffer for a row; `None` if the embedding must stay in
    /// memory.
    pub(crate) fn needs(container: &Container) -> Option<(u64, u64)> {
        let entry = apart(container)?;
        let row_bytes = entry.format.row_bytes(entry.columns) as u64;
        Some((embedding_left_bytes(entry.rows as u64 * row_bytes), embedding_buffer_bytes(row_bytes)))
    }

    /// Bytes of the fixed part that stay in the file: whole pages from its front.
    pub(crate) fn left_bytes(&self) -> u64 {
        embedding_left_bytes((self.rows * self.table.row_bytes) as u64)
    }

    /// Hashes the next bytes of the fixed part; ignores bytes after the last row.
    pub(crate) fn see(&mut self, mut bytes: &[u8]) {
        let (checksums, seeing) = (&mut self.table.checksums, &mut self.seeing);
        while checksums.len() < self.rows && !bytes.is_empty() {
            let (row, rest) = bytes.split_at(seeing.lacks.min(bytes.len()));
            seeing.hasher.update(row);
            seeing.lacks -= row.len();
            bytes = rest;
            if seeing.lacks == 0 {
                checksums.push(seeing.hasher.digest() as u32);
                seeing.hasher.reset();
                seeing.lacks = self.table.row_bytes;
            }
        }
    }

    /// The rows, whose bytes have all been seen.
    pub(crate) fn table(&mut self) -> &mut RowTable {
        &mut self.table
    }

    /// Counts of rows read, and their pages.
    pub(crate) fn counters(&self) -> flash::FlashCounters {
        self.table.counters()
    }
}

/// The embedding, if it is not also the head and is first in the fixed part.
fn apart(container: &Container) -> Option<&TensorEntry> {
    container.tensor("output.weight")?;
    container.tensor("token_embd.weight").filter(|entry| entry.offset == 0)
}
