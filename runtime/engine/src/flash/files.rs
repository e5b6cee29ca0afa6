//! The files of a model as one address space.
//!
//! ```text
//! address   0            FILE_BYTES_MAX      2 * FILE_BYTES_MAX            APART
//!           | file 0 ... | file 1 ...        | ...                         | reads joined from several places, see gather.rs
//! ```
//!
//! A container is file 0. An index is file 0, too, followed by the files of its model.

use std::fs::File;
use std::io;
use std::sync::Arc;

use platform::{file, page_cache};

use crate::arena::PAGE_BYTES;

/// The distance of two files' first addresses.
pub const FILE_BYTES_MAX: u64 = 1 << 44;
/// The first address beyond all files.
pub const APART: u64 = 1 << 62;

/// Files open for reading, past the page cache or through it; clones share them.
#[derive(Debug, Clone)]
pub struct Files(Arc<[SplitFile]>);

/// An open file.
#[derive(Debug)]
struct SplitFile {
    file: File,
    /// Length of the file when it was opened, in bytes.
    bytes: u64,
}

impl From<File> for Files {
    fn from(file: File) -> Self {
        Self::new(vec![file])
    }
}

impl Files {
    /// Places these files one after another.
    pub fn new(files: Vec<File>) -> Self {
        // without a known length, every byte of a read is required
        let part =
            |file: File| SplitFile { bytes: file.metadata().map_or(u64::MAX, |found| found.len()), file };
        Self(files.into_iter().map(part).collect())
    }

    /// The files, in order.
    pub fn each(&self) -> impl Iterator<Item = &File> {
        self.0.iter().map(|part| &part.file)
    }

    /// The number of an address's file, the file, and the offset in it.
    ///
    /// # Panics
    /// If there is no such file.
    pub(super) fn at(&self, address: u64) -> (usize, &File, u64) {
        let number = (address / FILE_BYTES_MAX) as usize;
        (number, &self.0[number].file, address % FILE_BYTES_MAX)
    }

    /// The bytes that a read must bring: all, except that a last page may end where the file ended when
    /// opened.
    pub(super) fn needed(&self, address: u64, bytes: usize) -> usize {
        let (number, _, offset) = self.at(address);
        let (end, length) = (offset + bytes as u64, self.0[number].bytes);
        let beyond = end.saturating_sub(length);
        if (beyond as usize) < PAGE_BYTES.min(bytes) { bytes - beyond as usize } else { bytes }
    }

    /// Fills `buffer` from an address. A read of the file's last page may end with the file, and leaves the
    /// rest of the buffer unchanged.
    ///
    /// # Errors
    /// The system's error, and `UnexpectedEof`.
    pub fn read_exact_at(&self, buffer: &mut [u8], address: u64) -> io::Result<()> {
        let (_, part, offset) = self.at(address);
        let (needed, mut done) = (self.needed(address, buffer.len()), 0);
        while done < needed {
            match file::read_at(part, &mut buffer[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Drops the files' pages from the page cache.
    pub(crate) fn forget(&self) {
        self.each().for_each(page_cache::forget);
    }
}

/// Describes an address for people.
pub(crate) fn place(address: u64) -> String {
    match address / FILE_BYTES_MAX {
        0 => format!("at {address} of the container"),
        _ if address >= APART => "of a slice of the model's file".to_owned(),
        number => format!("at {} of the model's file {number}", address % FILE_BYTES_MAX),
    }
}
