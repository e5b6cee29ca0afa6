//! Anonymous memory, locked by `VirtualLock` in a working set that is large enough.
#![expect(unsafe_code, reason = "system calls on this process's own memory")]

use std::io;
use std::mem::zeroed;
use std::ptr::NonNull;

use windows_sys::Win32::System::Memory::{PrefetchVirtualMemory, VirtualLock, WIN32_MEMORY_RANGE_ENTRY};
use windows_sys::Win32::System::SystemInformation::{GetSystemInfo, SYSTEM_INFO};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetProcessWorkingSetSize, SetProcessWorkingSetSize,
};

use super::done;
pub use crate::common::anonymous::Mapping;

/// Bytes of a page.
pub fn page_bytes() -> usize {
    // SAFETY: the struct is made of numbers and addresses, for which zero is a value.
    let mut info: SYSTEM_INFO = unsafe { zeroed() };
    // SAFETY: the struct is filled.
    unsafe { GetSystemInfo(&raw mut info) };
    info.dwPageSize as usize
}

/// No fixed limit: locking raises the working set first, and is refused if it cannot.
pub fn lockable_bytes() -> Option<u64> {
    None
}

/// Asks the system to read a part of a mapped file soon, without waiting for it; a wish, which it may refuse.
pub fn read_ahead(map: &memmap2::Mmap, offset: usize, bytes: usize) {
    let Some(part) = map.get(offset..).and_then(|rest| rest.get(..bytes)) else { return };
    let range =
        WIN32_MEMORY_RANGE_ENTRY { VirtualAddress: part.as_ptr().cast_mut().cast(), NumberOfBytes: bytes };
    // SAFETY: the range is mapped, and reading ahead changes no contents.
    let _refused = unsafe { PrefetchVirtualMemory(GetCurrentProcess(), 1, &raw const range, 0) };
}

pub(crate) fn lock(base: NonNull<u8>, bytes: usize) -> io::Result<()> {
    let (mut least, mut most) = (0, 0);
    // SAFETY: both numbers are filled; the handle is this process's own.
    done(unsafe { GetProcessWorkingSetSize(GetCurrentProcess(), &raw mut least, &raw mut most) })?;
    // SAFETY: numbers alone.
    done(unsafe { SetProcessWorkingSetSize(GetCurrentProcess(), least + bytes, most.max(least) + bytes) })?;
    // SAFETY: locking changes no contents and no addresses; what is not mapped is refused.
    done(unsafe { VirtualLock(base.as_ptr().cast(), bytes) })
}
