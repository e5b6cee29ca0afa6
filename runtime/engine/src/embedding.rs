//! Rows of the token embedding that stay in the container until they are used.
//!
//! A token needs one row of many thousand. If the embedding is not also the head, its memory is better spent
//! on neurons. The embedding is the first tensor of the fixed part. At start its bytes are hashed for the
//! part's checksum, and each row's checksum is kept to verify every later read.

use plans::memory::{embedding_buffer_bytes, embedding_left_bytes};
use plans::{PAGE_BYTES, layout::Span};
use xxhash_rust::xxh3::Xxh3;

use crate::arena::Slab;
use crate::container::{Container, TensorEntry};
use crate::fetch::FetchError;
use crate::flash::{self, Files};
use kernels::Format;
use kernels::Row;

/// Reads rows of the embedding.
pub(crate) struct EmbeddingRows {
    files: Files,
    format: Format,
    row_bytes: usize,
    rows: usize,
    /// Address of the first row.
    offset: u64,
    /// Checksums of the rows that were read at start.
    checksums: Vec<u32>,
    seeing: Xxh3,
    /// Bytes missing from the row being hashed.
    lacks: usize,
    buffer: Slab<u8>,
    counters: flash::FlashCounters,
}

impl std::fmt::Debug for EmbeddingRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddingRows").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// Why a row cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddingError {
    /// The read failed.
    #[error(transparent)]
    Read(#[from] FetchError),
    /// The bytes differ from those at start.
    #[error(
        "row {token} of the token embedding ({}) does not match its checksum: the file is damaged or was changed; copy or make it again",
        flash::place(*offset)
    )]
    Row {
        /// The token.
        token: u32,
        /// First byte of the row.
        offset: u64,
    },
}

impl EmbeddingRows {
    /// Rows of the embedding of `container`, read through `files` into `buffer`; `None` if the embedding must
    /// stay in memory.
    pub(crate) fn new(container: &Container, files: Files, buffer: Slab<u8>) -> Option<Self> {
        let entry = apart(container)?;
        let row_bytes = entry.format.row_bytes(entry.columns);
        Some(Self {
            files,
            format: entry.format,
            row_bytes,
            rows: entry.rows,
            offset: container.embedding_address(),
            checksums: Vec::with_capacity(entry.rows),
            seeing: Xxh3::new(),
            lacks: row_bytes,
            buffer,
            counters: flash::FlashCounters::default(),
        })
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
        embedding_left_bytes((self.rows * self.row_bytes) as u64)
    }

    /// Hashes the next bytes of the fixed part; ignores bytes after the last row.
    pub(crate) fn see(&mut self, mut bytes: &[u8]) {
        while self.checksums.len() < self.rows && !bytes.is_empty() {
            let (row, rest) = bytes.split_at(self.lacks.min(bytes.len()));
            self.seeing.update(row);
            self.lacks -= row.len();
            bytes = rest;
            if self.lacks == 0 {
                self.checksums.push(self.seeing.digest() as u32);
                self.seeing.reset();
                self.lacks = self.row_bytes;
            }
        }
    }

    /// Reads the row of a token: `[width]`.
    ///
    /// # Errors
    /// If the read fails or the bytes differ from those at start.
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
        if xxhash_rust::xxh3::xxh3_64(row) as u32 != self.checksums[token as usize] {
            return Err(EmbeddingError::Row { token, offset: span.offset });
        }
        Ok(Row::new(self.format, row))
    }

    /// Counts of rows read, and their pages.
    pub(crate) fn counters(&self) -> flash::FlashCounters {
        self.counters
    }
}

/// The embedding, if it is not also the head and is first in the fixed part.
fn apart(container: &Container) -> Option<&TensorEntry> {
    container.tensor("output.weight")?;
    container.tensor("token_embd.weight").filter(|entry| entry.offset == 0)
}
