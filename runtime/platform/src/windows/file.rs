//! Files by handle.
#![expect(unsafe_code, reason = "system calls that fill structs and numbers")]

use std::fs::{self, File, FileType, OpenOptions, Permissions};
use std::io;
use std::mem::zeroed;
use std::os::windows::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, symlink_file};
use std::os::windows::io::{AsHandle as _, AsRawHandle as _};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::time::SystemTime;

use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT,
    FILE_READ_ATTRIBUTES, FILE_WRITE_ATTRIBUTES, GetDiskFreeSpaceExW, GetFileInformationByHandle,
};
use windows_sys::Win32::System::IO::DeviceIoControl;
use windows_sys::Win32::System::Ioctl::{FILE_ZERO_DATA_INFORMATION, FSCTL_SET_SPARSE, FSCTL_SET_ZERO_DATA};

use super::{done, wide};
use crate::types::FileId;

/// Reads at a place of a file, once.
///
/// # Errors
/// The system's.
#[inline]
pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(buffer, offset)
}

/// Writes at a place of a file, once.
///
/// # Errors
/// The system's.
#[inline]
pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.seek_write(bytes, offset)
}

fn information(file: &File) -> io::Result<BY_HANDLE_FILE_INFORMATION> {
    // SAFETY: the struct is made of numbers.
    let mut found: BY_HANDLE_FILE_INFORMATION = unsafe { zeroed() };
    // SAFETY: the handle is open, and the struct is filled.
    done(unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut found) })?;
    Ok(found)
}

/// Opens a file or folder for its attributes alone, with further flags.
fn attributes(path: &Path, flags: u32) -> io::Result<File> {
    OpenOptions::new()
        .access_mode(FILE_READ_ATTRIBUTES)
        .custom_flags(FILE_FLAG_BACKUP_SEMANTICS | flags)
        .open(path)
}

/// Identity of an open file.
///
/// # Errors
/// The system's.
pub fn id(file: &File) -> io::Result<FileId> {
    let found = information(file)?;
    let number = u64::from(found.nFileIndexHigh) << 32 | u64::from(found.nFileIndexLow);
    Ok(FileId { disk: found.dwVolumeSerialNumber.into(), number })
}

/// Identity of the file or folder at a path, links followed.
///
/// # Errors
/// The system's.
pub fn path_id(path: &Path) -> io::Result<FileId> {
    id(&attributes(path, 0)?)
}

/// Names (hard links) of the file at a path, a link not followed.
///
/// # Errors
/// The system's.
pub fn name_count(path: &Path) -> io::Result<u64> {
    Ok(information(&attributes(path, FILE_FLAG_OPEN_REPARSE_POINT)?)?.nNumberOfLinks.into())
}

/// State of a file on the disk, in a line: length, times of creation and of the last write, and number.
///
/// # Errors
/// The system's.
pub fn change_stamp(path: &Path) -> io::Result<String> {
    let file = fs::metadata(path)?;
    Ok(format!(
        "{} {} {} {}",
        file.len(),
        file.last_write_time(),
        file.creation_time(),
        path_id(path)?.number
    ))
}

/// No pipe has the name of a file.
pub fn is_pipe(_: FileType) -> bool {
    false
}

/// No socket has the name of a file.
pub fn is_socket(_: FileType) -> bool {
    false
}

/// Folders decide the permissions of new files.
pub fn new_file_permissions() -> Option<Permissions> {
    None
}

/// Creates a folder and those above it. Below the user's profile they are for their owner alone.
///
/// # Errors
/// The system's.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// Links a name to a file; where the user may not, the file gets a second name (hard link).
///
/// # Errors
/// The system's.
pub fn link(target: &Path, name: &Path) -> io::Result<()> {
    symlink_file(target, name).or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Err(error),
        _ => fs::hard_link(name.parent().unwrap_or(Path::new("")).join(target), name),
    })
}

/// Opens a file for reading; a link is not followed.
///
/// # Errors
/// The system's.
pub fn open_unfollowed(path: &Path) -> io::Result<File> {
    if fs::symlink_metadata(path)?.is_symlink() {
        return Err(io::Error::other("it is a link"));
    }
    OpenOptions::new().read(true).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT).open(path)
}

/// Opens or creates a file in a folder of the user. Where it may not be written, it is opened for reading.
///
/// # Errors
/// The system's.
pub fn open_shared(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    match options.clone().write(true).create(true).truncate(false).open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => options.open(path),
        opened => opened,
    }
}

/// No path leads to an open descriptor.
pub fn descriptor(_: &Path) -> Option<u32> {
    None
}

/// Standard output as a file of its own.
///
/// # Errors
/// The system's.
pub fn standard_output() -> io::Result<File> {
    Ok(io::stdout().as_handle().try_clone_to_owned()?.into())
}

/// Standard error as a file of its own.
///
/// # Errors
/// The system's.
pub fn standard_error() -> io::Result<File> {
    Ok(io::stderr().as_handle().try_clone_to_owned()?.into())
}

/// Free bytes for this user on the disk of a folder.
///
/// # Errors
/// The system's.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    Ok(space(path)?.0)
}

/// Bytes of the disk of a folder: free for this user, and all.
pub(super) fn space(path: &Path) -> io::Result<(u64, u64)> {
    // it takes folders only
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let (folder, mut free, mut all) = (wide(folder), 0, 0);
    // SAFETY: the name ends with a zero, both numbers are filled, and the third one is not asked for.
    done(unsafe { GetDiskFreeSpaceExW(folder.as_ptr(), &raw mut free, &raw mut all, null_mut()) })?;
    Ok((free, all))
}

/// Sets both times of a file, without following a link.
///
/// # Errors
/// The system's.
pub fn set_used(path: &Path, used: SystemTime) -> io::Result<()> {
    let file = OpenOptions::new()
        .access_mode(FILE_WRITE_ATTRIBUTES)
        .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS)
        .open(path)?;
    file.set_times(fs::FileTimes::new().set_accessed(used).set_modified(used))
}

/// Gives a part of a file back to the disk; it reads as zeros then.
///
/// # Errors
/// The system's; a file system without holes refuses.
pub fn punch_hole(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let hole =
        FILE_ZERO_DATA_INFORMATION { FileOffset: offset as i64, BeyondFinalZero: (offset + bytes) as i64 };
    let mut returned = 0;
    let mut control = |code, input: *const core::ffi::c_void, bytes| {
        // SAFETY: the handle is open, the input is `bytes` long or empty, and nothing but a number is returned.
        done(unsafe {
            DeviceIoControl(
                file.as_raw_handle(),
                code,
                input,
                bytes,
                null_mut(),
                0,
                &raw mut returned,
                null_mut(),
            )
        })
    };
    control(FSCTL_SET_SPARSE, null(), 0)?;
    control(FSCTL_SET_ZERO_DATA, (&raw const hole).cast(), size_of_val(&hole) as u32)
}
