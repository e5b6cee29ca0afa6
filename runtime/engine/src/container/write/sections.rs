//! A file written section by section.

use std::fs::File;
use std::io::{self, Write as _};

use plans::PAGE_BYTES;

use crate::container::{Section, TENSOR_ALIGN};
use crate::flash::DirectWriter;

/// A hash in hexadecimal.
pub(in crate::container) fn hex(hash: blake3::Hash) -> String {
    hash.to_hex().to_string()
}

/// A file that is written section by section, each on a page and each hashed.
pub(super) struct Sections<'a> {
    file: DirectWriter<'a>,
    pub(super) position: u64,
    start: u64,
    hasher: blake3::Hasher,
    progress: &'a mut dyn FnMut(u64) -> bool,
}

impl<'a> Sections<'a> {
    pub(super) fn new(file: &'a File, progress: &'a mut dyn FnMut(u64) -> bool) -> io::Result<Self> {
        let file = DirectWriter::new(file)?;
        Ok(Self { file, position: 0, start: 0, hasher: blake3::Hasher::new(), progress })
    }

    pub(super) fn begin(&mut self) {
        self.start = self.position;
        self.hasher.reset();
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.write_unhashed(bytes)
    }

    /// Writes bytes outside any section's hash: bundles have checksums of their own.
    pub(super) fn write_unhashed(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.position += bytes.len() as u64;
        if (self.progress)(self.position) { Ok(()) } else { Err(io::Error::from(io::ErrorKind::Interrupted)) }
    }

    pub(super) fn align_to(&mut self, align: u64) -> io::Result<()> {
        let zeros = [0; PAGE_BYTES as usize];
        self.write(&zeros[..(self.position.next_multiple_of(align) - self.position) as usize])
    }

    /// Goes to the next cache line, and returns its offset from the section's start.
    pub(super) fn align(&mut self) -> io::Result<u64> {
        self.align_to(TENSOR_ALIGN)?;
        Ok(self.position - self.start)
    }

    pub(super) fn pad(&mut self) -> io::Result<()> {
        self.align_to(PAGE_BYTES)
    }

    pub(super) fn end(&mut self) -> io::Result<Section> {
        self.pad()?;
        let hash = hex(self.hasher.finalize());
        Ok(Section { offset: self.start, bytes: self.position - self.start, hash })
    }

    pub(super) fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.position += bytes;
        self.file.go_to(self.position)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
