//! Files that leave nothing in the page cache, because cached pages count as the memory of the process that caused them.
//!
//! All calls are advice. A system that ignores it keeps the pages; reads and writes are the same.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

/// Opens a file without the kernel's read-ahead, which can be megabytes.
///
/// # Errors
/// The system's.
pub fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    let _ = fadvise(&file, 0, None, Advice::Random);
    Ok(file)
}

/// Drops a file's clean pages that no other process uses.
pub fn forget(file: impl AsFd) {
    forget_part(file, 0, None);
}

/// Drops the clean pages of a part of a file; `None` reaches to the end.
pub fn forget_part(file: impl AsFd, offset: u64, bytes: Option<NonZeroU64>) {
    let _ = fadvise(file, offset, bytes, Advice::DontNeed);
}
