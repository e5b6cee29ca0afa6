//! Facts by `sysconf`, `statvfs` and `getrusage`.
#![expect(unsafe_code, reason = "calls of the C library that have no safe wrapper")]

use std::io;
use std::mem::MaybeUninit;
use std::path::Path;

pub use crate::common::absent::*;
use crate::error::MachineError;
use crate::types::{Core, CoreClass, CpuTimes, Disk, Footprint};

/// The architecture: POSIX does not name processors.
///
/// # Errors
/// None here.
pub fn cpu_name() -> Result<String, MachineError> {
    Ok(std::env::consts::ARCH.to_owned())
}

/// One class of all cores: POSIX does not tell them apart.
pub fn core_classes(allowed: &[u32]) -> Vec<CoreClass> {
    let cores = allowed.iter().map(|&id| Core { id, siblings: vec![id] }).collect();
    let mut classes =
        vec![CoreClass { name: String::new(), cores, capacity: CoreClass::CAPACITY_FULL, clock_mhz: 0 }];
    CoreClass::finish(&mut classes);
    classes
}

/// Unknown.
pub fn largest_cache_bytes() -> u64 {
    0
}

/// Unknown.
pub(crate) fn cpu_times() -> Option<CpuTimes> {
    None
}

/// RAM, all of it and what is free; macOS has no name for the second.
///
/// # Errors
/// [`MachineError`] if the system does not say it.
#[cfg(not(target_os = "macos"))]
pub fn ram() -> Result<(u64, u64), MachineError> {
    let value = |name, what| {
        // SAFETY: it takes a number and returns one.
        u64::try_from(unsafe { libc::sysconf(name) })
            .map_err(|_| MachineError::Refused { what, source: io::Error::last_os_error() })
    };
    let page = rustix::param::page_size() as u64;
    let all = value(libc::_SC_PHYS_PAGES, "how much memory there is")? * page;
    let free = value(libc::_SC_AVPHYS_PAGES, "how much memory is free")? * page;
    Ok((all, free))
}

/// The disk that holds `path`, by its size alone.
///
/// # Errors
/// [`MachineError`] if `path` does not exist.
pub fn disk(path: &Path) -> Result<Disk, MachineError> {
    let space = rustix::fs::statvfs(path)
        .map_err(|source| MachineError::Read { path: path.to_owned(), source: source.into() })?;
    let kind = "disk".to_owned();
    Ok(Disk { file_system: kind.clone(), model: kind, size_bytes: space.f_blocks * space.f_frsize })
}

/// Unknown.
pub fn disk_name(_folder: &Path) -> Option<String> {
    None
}

/// The peak of this process, which stands for its present memory, too. POSIX does not tell the memory of others.
///
/// # Errors
/// [`MachineError`] for another process.
pub fn footprint(process: Option<u32>) -> Result<Footprint, MachineError> {
    let refused = |source| MachineError::Refused { what: "how much memory a process holds", source };
    if process.is_some_and(|id| id != std::process::id()) {
        return Err(refused(io::ErrorKind::Unsupported.into()));
    }
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: it fills the struct that it is given.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return Err(refused(io::Error::last_os_error()));
    }
    // SAFETY: the call has filled it.
    let usage = unsafe { usage.assume_init() };
    let bytes = usage.ru_maxrss as u64 * 1024;
    Ok(Footprint { resident_bytes: bytes, resident_peak_bytes: bytes, page_table_bytes: 0 })
}
