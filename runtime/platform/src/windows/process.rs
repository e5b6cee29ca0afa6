//! Memory and time of a process.
#![expect(unsafe_code, reason = "system calls that fill structs")]

use std::io;
use std::mem::zeroed;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::path::Path;
use std::time::Duration;

use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetProcessTimes, OpenProcess, PROCESS_QUERY_LIMITED_INFORMATION,
};

use super::done;
pub use crate::common::absent::{bytes_fetched, forget_read_ahead, keep_small, kernel_stack_bytes, sleeps};
use crate::error::MachineError;
use crate::types::Footprint;

/// The footprint of this process (`None`) or of another of the same user.
///
/// # Errors
/// [`MachineError`] if there is no such process.
pub fn footprint(process: Option<u32>) -> Result<Footprint, MachineError> {
    let refused = |source| MachineError::Refused { what: "how much memory a process holds", source };
    // SAFETY: the struct is made of numbers.
    let mut found: PROCESS_MEMORY_COUNTERS = unsafe { zeroed() };
    found.cb = size_of_val(&found) as u32;
    let mut ask = |handle| {
        // SAFETY: the handle is open during the call, and the struct is filled, which says its length.
        done(unsafe {
            K32GetProcessMemoryInfo(handle, &raw mut found, size_of::<PROCESS_MEMORY_COUNTERS>() as u32)
        })
    };
    let answer = match process {
        // SAFETY: it returns a number that stands for this process.
        None => ask(unsafe { GetCurrentProcess() }),
        Some(id) => open(id).and_then(|handle| ask(handle.as_raw_handle())),
    };
    answer.map_err(refused)?;
    Ok(Footprint {
        resident_bytes: found.WorkingSetSize as u64,
        resident_peak_bytes: found.PeakWorkingSetSize as u64,
        page_table_bytes: 0,
    })
}

fn open(id: u32) -> io::Result<OwnedHandle> {
    // SAFETY: numbers alone.
    let handle = unsafe { OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, 0, id) };
    if handle.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is new, valid and owned by nobody else.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
}

/// Steps of 100 ns in a time.
pub(super) fn steps(time: FILETIME) -> u64 {
    u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime)
}

/// Processor time of this process so far, all threads.
pub fn cpu_time() -> Duration {
    let [mut created, mut ended, mut kernel, mut user] =
        [FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 }; 4];
    // SAFETY: all four are filled. The call cannot fail for the process itself; it would leave zeros.
    let _cannot_fail = unsafe {
        GetProcessTimes(GetCurrentProcess(), &raw mut created, &raw mut ended, &raw mut kernel, &raw mut user)
    };
    Duration::from_nanos(100 * (steps(kernel) + steps(user)))
}

/// Refuses: a pipe of Windows takes what it is given, or waits.
///
/// # Errors
/// `Unsupported`.
pub fn full_pipe() -> io::Result<(io::PipeReader, io::PipeWriter)> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether this user may create files in a folder.
pub fn is_writable(folder: &Path) -> bool {
    std::fs::metadata(folder).is_ok_and(|found| !found.permissions().readonly())
}
