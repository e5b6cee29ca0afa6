//! The scratch file, nameless and filled with noise, and the proof that its reads reach the disk.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use flashplan::internals::arena::{Align, Arena};
use platform::file::{read_exact_at, write_all_at};
use platform::page_cache::{self, Access};
use platform::process::bytes_fetched;

use super::super::measure::Random;
use super::Pattern;
use crate::{Context, ProfileError};

/// Bytes of a write.
const PIECE_BYTES: usize = 4 << 20;
/// Bytes between two flushes to the disk, which keep the page cache small.
const SYNC_BYTES: u64 = 64 << 20;
/// Pages whose origin is probed.
const PROBES: u64 = 128;
/// Maximum share of directly read pages that come from the page cache.
const STRAY: f64 = 0.05;
const PAGE_BYTES: usize = 4096;

/// A file that vanishes with its last descriptor.
#[derive(Debug)]
pub(in crate::device) struct Scratch {
    file: File,
    size: u64,
    folder: PathBuf,
}

impl Scratch {
    /// Writes `size` bytes of noise, which no file system or disk can compress or share.
    pub(super) fn write(context: &Context, folder: &Path, size: u64) -> Result<Self, ProfileError> {
        let io = |source| ProfileError::Scratch { path: folder.to_owned(), source };
        let file = tempfile::tempfile_in(folder).map_err(io)?;
        let scratch = Self { file, size, folder: folder.to_owned() };
        let bar = context.bar(size >> 20, "scratch file, MiB");
        let mut piece = vec![0_u8; PIECE_BYTES];
        let mut random = Random::new(size);
        for at in (0..size).step_by(PIECE_BYTES) {
            context.stopped()?;
            for word in piece.chunks_exact_mut(8) {
                word.copy_from_slice(&random.below(u64::MAX).to_le_bytes());
            }
            write_all_at(&scratch.file, &piece, at).map_err(io)?;
            if (at + PIECE_BYTES as u64).is_multiple_of(SYNC_BYTES) {
                scratch.file.sync_data().map_err(io)?;
                scratch.forget().map_err(io)?;
            }
            bar.inc(PIECE_BYTES as u64 >> 20);
        }
        scratch.file.sync_all().map_err(io)?;
        scratch.forget().map_err(io)?;
        drop(bar);
        Ok(scratch)
    }

    /// Drops the file from the page cache.
    fn forget(&self) -> io::Result<()> {
        page_cache::drop_pages(&self.file, 0, None)
    }

    /// Drops the file from the page cache, and sets the read-ahead for a pattern.
    pub(super) fn drop_cache(&self, pattern: Pattern) -> Result<(), ProfileError> {
        let advice = match pattern {
            Pattern::Random => page_cache::Pattern::Random,
            Pattern::Sequential => page_cache::Pattern::Sequential,
        };
        let advise = || {
            self.forget()?;
            page_cache::advise(&self.file, advice)
        };
        advise().map_err(|source| self.error("empty the page cache of a file in", source))
    }

    /// The file for reads through the page cache, with the read-ahead of `drop_cache`.
    pub(super) fn buffered(&self) -> Result<File, ProfileError> {
        self.file.try_clone().map_err(|source| self.error("open again the scratch file in", source))
    }

    /// The file for direct reads, if they work and bypass the page cache; and warnings.
    ///
    /// Some pages are read twice directly, others twice through the page cache. By the kernel's count of fetched bytes the disk must give
    /// the first twice and the second once. Non-blocking reads would prove nothing: a fast disk answers before the call returns.
    pub(super) fn prove_direct(&self) -> Result<(Option<File>, Vec<String>), ProfileError> {
        let reading = |source| self.error("read the scratch file in", source);
        let direct = match page_cache::reopen(&self.file, Access::Read, true) {
            Ok(direct) => direct,
            Err(why) => {
                return Ok((None, vec![format!("direct reads are refused: {why}; reads are buffered")]));
            }
        };
        let mut arena = Arena::new(PAGE_BYTES as u64)?;
        let mut page = arena.take::<u8>(PAGE_BYTES, Align::Page)?;
        if let Err(why) = read_exact_at(&direct, &mut page, 0) {
            return Ok((None, vec![format!("direct reads are refused: {why}; reads are buffered")]));
        }
        self.drop_cache(Pattern::Random)?;
        // direct reads take the first half of the file, buffered ones the second
        let mut fetched_of_two = |file: &File, half: u64| {
            let step = self.size / 2 / PROBES;
            let before = bytes_fetched();
            for _ in 0..2 {
                for probe in 0..PROBES {
                    read_exact_at(file, &mut page, half * self.size / 2 + probe * step).map_err(reading)?;
                }
            }
            Ok::<_, ProfileError>(
                bytes_fetched().zip(before).map(|(after, before)| after.saturating_sub(before)),
            )
        };
        let counts = (fetched_of_two(&direct, 0)?, fetched_of_two(&self.file, 1)?);
        self.forget().map_err(|source| self.error("empty the page cache of a file in", source))?;
        Ok(match verdict(counts) {
            (true, fact) => (Some(direct), vec![fact]),
            (false, fact) => (None, vec![format!("{fact}; reads are buffered")]),
        })
    }

    fn error(&self, action: &'static str, source: io::Error) -> ProfileError {
        ProfileError::Io { action, path: self.folder.clone(), source }
    }
}

/// Whether direct reads bypass the page cache, and why.
///
/// It compares the bytes fetched for [`PROBES`] pages that were read twice directly, and twice through the page cache. Without counts
/// it trusts the system.
fn verdict((direct, buffered): (Option<u64>, Option<u64>)) -> (bool, String) {
    let requested = 2 * PROBES * PAGE_BYTES as u64;
    let (Some(direct), Some(buffered)) = (direct, buffered) else {
        return (
            true,
            "direct reads are taken for what they are called: this kernel counts no bytes".to_owned(),
        );
    };
    let bypass = direct as f64 >= requested as f64 * (1.0 - STRAY);
    let does = if bypass { "bypass" } else { "do not bypass" };
    let fact = format!(
        "pages read twice came from the disk with {direct} of {requested} bytes, others, read through it, with {buffered}"
    );
    (bypass, format!("direct reads {does} the page cache: {fact}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(folder: &Path) -> Scratch {
        let context = Context::new(folder.to_owned(), folder.to_owned(), true);
        Scratch::write(&context, folder, 8 << 20).unwrap()
    }

    #[test]
    fn it_has_no_name_and_no_two_equal_pages() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = scratch(folder.path());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let (mut a, mut b) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        read_exact_at(&scratch.file, &mut a, 0).unwrap();
        read_exact_at(&scratch.file, &mut b, PIECE_BYTES as u64).unwrap();
        assert_ne!(a, b);
    }

    #[test]
    fn memory_is_never_called_a_disk_read_directly() {
        let memory = Path::new("/dev/shm");
        let is_memory = platform::machine::disk(memory).is_ok_and(|disk| disk.file_system == "tmpfs");
        if is_memory {
            let (direct, notes) = scratch(memory).prove_direct().unwrap();
            assert!(direct.is_none(), "{notes:?}");
            assert!(notes[0].contains("reads are buffered"), "{notes:?}");
        }
    }

    #[test]
    fn the_bytes_that_the_kernel_counted_decide() {
        let requested = 2 * PROBES * PAGE_BYTES as u64;
        assert!(verdict((Some(requested), Some(requested / 2))).0);
        assert!(
            !verdict((Some(requested / 2), Some(requested / 2))).0,
            "the second time the page cache had it"
        );
        assert!(!verdict((Some(0), Some(0))).0, "no disk at all");
        assert!(verdict((None, Some(0))).0);
    }

    #[test]
    fn a_stop_while_writing_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let context = Context::new(folder.path().into(), folder.path().into(), true);
        context.stop_flag().store(true, std::sync::atomic::Ordering::Relaxed);
        let refused = Scratch::write(&context, folder.path(), 8 << 20).unwrap_err();
        assert!(matches!(refused, ProfileError::Stopped(_)), "{refused}");
    }
}
