//! `F_NOCACHE`, `F_RDAHEAD` and `F_PUNCHHOLE`.
#![expect(unsafe_code, reason = "requests of fcntl that have no safe wrapper")]

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use crate::types::{Access, Pattern};

/// Opens a file for reads past the page cache: bytes that are not in it do not enter it.
///
/// # Errors
/// The system's.
pub fn open_direct(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

/// Another descriptor of an open file, past the page cache if `direct`. The setting holds for both descriptors, and changes no bytes.
///
/// # Errors
/// The system's.
pub fn reopen(file: &File, _: Access, direct: bool) -> io::Result<File> {
    let again = file.try_clone()?;
    if direct {
        rustix::fs::fcntl_nocache(&again, true)?;
    }
    Ok(again)
}

/// Sets the read-ahead of a file for a pattern of reads.
///
/// # Errors
/// The system's.
pub fn advise(file: &File, pattern: Pattern) -> io::Result<()> {
    let ahead = i32::from(pattern == Pattern::Sequential);
    // SAFETY: the descriptor is open, and the request takes a number.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_RDAHEAD, ahead) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Changes nothing: macOS drops no pages on request; [`crate::MISSING`] says so.
///
/// # Errors
/// None here.
pub fn drop_pages(_: &File, _offset: u64, _bytes: Option<NonZeroU64>) -> io::Result<()> {
    Ok(())
}

/// Gives a part of a file back to the disk, whole blocks; it reads as zeros then.
///
/// # Errors
/// The system's; a file system without holes refuses.
pub fn punch_hole(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let block = rustix::fs::fstatvfs(file)?.f_frsize;
    let first = offset.next_multiple_of(block);
    let end = (offset + bytes) / block * block;
    if end <= first {
        return Ok(());
    }
    let hole = libc::fpunchhole_t {
        fp_flags: 0,
        reserved: 0,
        fp_offset: first as libc::off_t,
        fp_length: (end - first) as libc::off_t,
    };
    // SAFETY: the descriptor is open, and the request reads the struct.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_PUNCHHOLE, &raw const hole) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
