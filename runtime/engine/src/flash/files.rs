//! The files that are read, as one space of addresses.
//!
//! ```text
//! address   0            FILE_BYTES_MAX      2 * FILE_BYTES_MAX            APART
//!           | file 0 ... | file 1 ...        | ...                         | what is read from several places, see gather.rs
//! ```
//!
//! A container is file 0. An index is, too, and the files of its model follow.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use crate::arena::PAGE_BYTES;

/// From the first byte of one file to that of the next.
pub const FILE_BYTES_MAX: u64 = 1 << 44;
/// The first address that is in no file.
pub const APART: u64 = 1 << 62;

/// Files that are open for reading, past the page cache or through it; clones share them.
#[derive(Debug, Clone)]
pub struct Files(Arc<[SplitFile]>);

/// One of them.
#[derive(Debug)]
struct SplitFile {
    file: File,
    /// Bytes that it had when it was opened.
    bytes: u64,
}

impl From<File> for Files {
    fn from(file: File) -> Self {
        Self::new(vec![file])
    }
}

impl Files {
    /// These files, one after another.
    pub fn new(files: Vec<File>) -> Self {
        // of a file that does not say its length every byte is expected
        let part =
            |file: File| SplitFile { bytes: file.metadata().map_or(u64::MAX, |found| found.len()), file };
        Self(files.into_iter().map(part).collect())
    }

    /// Each file.
    pub fn each(&self) -> impl Iterator<Item = &File> {
        self.0.iter().map(|part| &part.file)
    }

    /// The number of the file that has an address, it, and the place in it.
    ///
    /// # Panics
    /// If there is no such file.
    pub(super) fn at(&self, address: u64) -> (usize, &File, u64) {
        let number = (address / FILE_BYTES_MAX) as usize;
        (number, &self.0[number].file, address % FILE_BYTES_MAX)
    }

    /// Bytes that a read of so many must bring: all of them, but of a last page what the file had of it when it was opened.
    pub(super) fn needed(&self, address: u64, bytes: usize) -> usize {
        let (number, _, offset) = self.at(address);
        let (end, length) = (offset + bytes as u64, self.0[number].bytes);
        let beyond = end.saturating_sub(length);
        if (beyond as usize) < PAGE_BYTES.min(bytes) { bytes - beyond as usize } else { bytes }
    }

    /// Fills `buffer` from an address on. It may end within the page that the file ends in; the rest of the buffer stays then.
    ///
    /// # Errors
    /// The system's, and `UnexpectedEof`.
    pub fn read_exact_at(&self, buffer: &mut [u8], address: u64) -> io::Result<()> {
        let (_, file, offset) = self.at(address);
        let (needed, mut done) = (self.needed(address, buffer.len()), 0);
        while done < needed {
            match file.read_at(&mut buffer[done..], offset + done as u64) {
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
        for file in self.each() {
            // advice: a kernel that does not follow it keeps the pages, and the report shows them
            let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
}

/// Where an address is, in words.
pub(crate) fn place(address: u64) -> String {
    match address / FILE_BYTES_MAX {
        0 => format!("at {address} of the container"),
        _ if address >= APART => "of a slice of the model's file".to_owned(),
        number => format!("at {} of the model's file {number}", address % FILE_BYTES_MAX),
    }
}
