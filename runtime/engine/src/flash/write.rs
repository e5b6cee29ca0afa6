//! A writer of large files past the page cache.
//!
//! The page cache would copy the data, write it late, and evict other programs' pages. On the measured
//! machines it reached a tenth of the disk's speed.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;

use platform::file::write_all_at;
use platform::page_cache::{Access, reopen};

use super::Buffer;
use crate::arena::{Align, Arena, PAGE_BYTES};

/// Bytes of one write.
const BUFFER_BYTES: usize = 8 << 20;

/// Writes a file from one place on, in whole buffers past the page cache. A flush writes a partial buffer
/// through the page cache; without direct I/O, all data goes through it. Dropping the writer writes nothing.
#[derive(Debug)]
pub struct DirectWriter<'a> {
    file: &'a File,
    /// The file opened again for direct writes.
    direct: Option<File>,
    buffer: Buffer,
    /// Offset of the buffer's first byte in the file, on a page.
    offset: u64,
    /// The part of the buffer to be written.
    filled: Range<usize>,
}

impl<'a> DirectWriter<'a> {
    /// Starts at the first byte of a writable file.
    ///
    /// # Errors
    /// If the system has no memory for a buffer.
    pub fn new(file: &'a File) -> io::Result<Self> {
        let mut arena = Arena::new(BUFFER_BYTES as u64).map_err(io::Error::other)?;
        let buffer = arena.take(BUFFER_BYTES, Align::Page).map_err(io::Error::other)?;
        let direct = reopen(file, Access::Write, true).ok();
        Ok(Self { file, direct, buffer, offset: 0, filled: 0..0 })
    }

    /// Flushes, then continues at another place.
    ///
    /// # Errors
    /// As writing.
    pub fn go_to(&mut self, position: u64) -> io::Result<()> {
        self.flush()?;
        self.begin_at(position);
        Ok(())
    }

    fn begin_at(&mut self, position: u64) {
        let in_page = position % PAGE_BYTES as u64;
        self.offset = position - in_page;
        self.filled = in_page as usize..in_page as usize;
    }

    /// Writes a full buffer, directly from its first whole page on.
    fn write_full(&mut self) -> io::Result<()> {
        let first_page = self.filled.start.next_multiple_of(PAGE_BYTES);
        if let Some(direct) = &self.direct {
            match write_all_at(direct, &self.buffer[first_page..], self.offset + first_page as u64) {
                Ok(()) => self.filled.end = first_page,
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.direct = None,
                Err(error) => return Err(error),
            }
        }
        self.write_filled()?;
        self.begin_at(self.offset + self.buffer.len() as u64);
        Ok(())
    }

    /// Writes the filled part of the buffer through the page cache.
    fn write_filled(&self) -> io::Result<()> {
        let bytes = &self.buffer[self.filled.clone()];
        write_all_at(self.file, bytes, self.offset + self.filled.start as u64)
    }
}

impl Write for DirectWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = &mut self.buffer[self.filled.end..];
        let taken = bytes.len().min(room.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        self.filled.end += taken;
        if self.filled.end == self.buffer.len() {
            self.write_full()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_filled()?;
        self.begin_at(self.offset + self.filled.end as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An operation on a writer.
    #[derive(Debug, Clone)]
    enum Step {
        Write(usize),
        Flush,
        GoTo(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let page = PAGE_BYTES;
        let bytes = prop_oneof![0..3 * page, Just(page), BUFFER_BYTES - page..2 * BUFFER_BYTES + page];
        let place = prop_oneof![0..4 * page as u64, (0..8_u64).prop_map(|pages| pages * PAGE_BYTES as u64)];
        let step = prop_oneof![4 => bytes.prop_map(Step::Write), 1 => Just(Step::Flush), 1 => place.prop_map(Step::GoTo)];
        prop::collection::vec(step, 1..8)
    }

    /// The contents after these steps, on a plain vector.
    fn expected(steps: &[Step], pattern: &dyn Fn(usize, usize) -> Vec<u8>) -> Vec<u8> {
        let (mut all, mut at) = (Vec::new(), 0);
        for (number, step) in steps.iter().enumerate() {
            match *step {
                Step::Flush => {}
                Step::GoTo(place) => at = place as usize,
                Step::Write(bytes) => {
                    all.resize(all.len().max(at + bytes), 0);
                    all[at..at + bytes].copy_from_slice(&pattern(number, bytes));
                    at += bytes;
                }
            }
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_file_holds_what_was_written(steps in steps(), direct in any::<bool>()) {
            let pattern = |number: usize, bytes: usize| -> Vec<u8> {
                (0..bytes).map(|at| (at / 3 + 7 * number + 1) as u8).collect()
            };
            let file = tempfile::tempfile_in(".").unwrap(); // a disk, which has direct writes
            let mut writer = DirectWriter::new(&file).unwrap();
            if !direct {
                writer.direct = None;
            }
            for (number, step) in steps.iter().enumerate() {
                match *step {
                    Step::Write(bytes) => writer.write_all(&pattern(number, bytes)).unwrap(),
                    Step::Flush => writer.flush().unwrap(),
                    Step::GoTo(place) => writer.go_to(place).unwrap(),
                }
            }
            writer.flush().unwrap();
            let expected = expected(&steps, &pattern);
            let mut found = vec![0; file.metadata().unwrap().len() as usize];
            platform::file::read_exact_at(&file, &mut found, 0).unwrap();
            prop_assert!(found == expected, "{} bytes for {}", found.len(), expected.len());
        }
    }

    #[test]
    fn what_the_system_refuses_is_an_error_and_not_a_hole() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let file = File::open(named.path()).unwrap(); // not for writing
        let mut writer = DirectWriter::new(&file).unwrap();
        writer.write_all(b"some").unwrap();
        assert!(writer.flush().is_err());
        assert_eq!(writer.filled, 0..4, "it is still there");
    }
}
