//! Files that leave nothing in the page cache: what a process causes to be cached there counts as its memory.
//!
//! All of it is advice. A system that does not follow it keeps pages, and reads and writes are the same.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

/// Opens a file of which no more is read than is asked for: devices may be set to read megabytes ahead.
///
/// # Errors
/// The system's.
pub fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    let _ = fadvise(&file, 0, None, Advice::Random);
    Ok(file)
}

/// Drops a file's pages that are on the disk and in no other use.
pub fn forget(file: impl AsFd) {
    forget_part(file, 0, None);
}

/// Drops those of a part of it, of so many bytes; `None` goes to the end.
pub fn forget_part(file: impl AsFd, offset: u64, bytes: Option<NonZeroU64>) {
    let _ = fadvise(file, offset, bytes, Advice::DontNeed);
}
