//! `O_DIRECT`, `posix_fadvise` and `fallocate`.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{Advice, FallocateFlags, Mode, OFlags, fadvise, fallocate};

use crate::types::{Access, Pattern};

/// Opens a file for reads past the page cache, in whole pages.
///
/// # Errors
/// The system's; `InvalidInput` where the file system has no direct I/O.
pub fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path)
}

/// Opens an open file again, past the page cache if `direct`. The file may have been renamed, or have no name.
///
/// # Errors
/// The system's.
pub fn reopen(file: &File, access: Access, direct: bool) -> io::Result<File> {
    // the descriptor's own path
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let access = match access {
        Access::Read => OFlags::RDONLY,
        Access::Write => OFlags::WRONLY,
    };
    let direct = if direct { OFlags::DIRECT } else { OFlags::empty() };
    Ok(File::from(rustix::fs::open(path, access | direct | OFlags::CLOEXEC, Mode::empty())?))
}

/// Sets the read-ahead of a file for a pattern of reads.
///
/// # Errors
/// The system's.
pub fn advise(file: &File, pattern: Pattern) -> io::Result<()> {
    let advice = match pattern {
        Pattern::Random => Advice::Random,
        Pattern::Sequential => Advice::Sequential,
    };
    Ok(fadvise(file, 0, None, advice)?)
}

/// Drops the clean pages of a part of a file that no other process uses; `None` reaches to the end.
///
/// # Errors
/// The system's.
pub fn drop_pages(file: &File, offset: u64, bytes: Option<NonZeroU64>) -> io::Result<()> {
    Ok(fadvise(file, offset, bytes, Advice::DontNeed)?)
}

/// Gives a part of a file back to the disk; it reads as zeros then.
///
/// # Errors
/// The system's; a file system without holes refuses.
pub fn punch_hole(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)?)
}
