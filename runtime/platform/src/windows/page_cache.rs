//! `FILE_FLAG_NO_BUFFERING`. Windows drops no pages on request.
#![expect(unsafe_code, reason = "opening a file again by its handle")]

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::windows::fs::OpenOptionsExt as _;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _};
use std::path::Path;

use windows_sys::Win32::Foundation::{GENERIC_READ, GENERIC_WRITE, INVALID_HANDLE_VALUE};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_NO_BUFFERING, FILE_FLAG_RANDOM_ACCESS, FILE_SHARE_DELETE, FILE_SHARE_READ, FILE_SHARE_WRITE,
    ReOpenFile,
};

use crate::types::{Access, Pattern};

/// Opens a file for reads past the page cache, in whole pages.
///
/// # Errors
/// The system's.
pub fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(FILE_FLAG_NO_BUFFERING).open(path)
}

/// Opens an open file again, past the page cache if `direct`.
///
/// # Errors
/// The system's: a file that was opened for nobody else, as temporary files are, cannot be opened again.
pub fn reopen(file: &File, access: Access, direct: bool) -> io::Result<File> {
    let access = match access {
        Access::Read => GENERIC_READ,
        Access::Write => GENERIC_WRITE,
    };
    let share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    let flags = if direct { FILE_FLAG_NO_BUFFERING } else { FILE_FLAG_RANDOM_ACCESS };
    // SAFETY: the handle is open as long as the file lives.
    let handle = unsafe { ReOpenFile(file.as_raw_handle(), access, share, flags) };
    if handle == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is new, valid and owned by nobody else.
    Ok(unsafe { File::from_raw_handle(handle) })
}

/// Changes nothing: the pattern is set when a file is opened.
///
/// # Errors
/// None here.
pub fn advise(_: &File, _: Pattern) -> io::Result<()> {
    Ok(())
}

/// Changes nothing: Windows keeps pages of files; [`crate::MISSING`] says so.
///
/// # Errors
/// None here.
pub fn drop_pages(_: &File, _offset: u64, _bytes: Option<NonZeroU64>) -> io::Result<()> {
    Ok(())
}
