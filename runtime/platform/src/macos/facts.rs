//! Facts by `sysctl`, `statfs` and `proc_pid_rusage`.
#![expect(unsafe_code, reason = "calls of the C library that have no safe wrapper")]

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::null_mut;

use crate::error::MachineError;
use crate::types::{Core, CoreClass, Disk, Footprint};

/// Capacity that efficient cores are taken for, relative to the class above them: macOS orders classes and does not compare them.
const NEXT_CLASS: f64 = 0.5;

/// The bytes of a fact of the kernel; `None` if it does not have that.
fn bytes(name: &CStr) -> Option<Vec<u8>> {
    let mut value = vec![0_u8; 256];
    let mut length = value.len();
    // SAFETY: the name ends with a zero, and the value is filled up to its length.
    let answer = unsafe {
        libc::sysctlbyname(name.as_ptr(), value.as_mut_ptr().cast(), &raw mut length, null_mut(), 0)
    };
    value.truncate(length);
    (answer == 0).then_some(value)
}

/// A number of the kernel, of four or eight bytes.
fn number(name: &CStr) -> Option<u64> {
    let value = bytes(name)?;
    match *value.as_slice() {
        [a, b, c, d] => Some(u32::from_le_bytes([a, b, c, d]).into()),
        _ => value.try_into().ok().map(u64::from_le_bytes),
    }
}

/// The processor's name.
///
/// # Errors
/// [`MachineError`] if the system does not say it.
pub fn cpu_name() -> Result<String, MachineError> {
    let name = bytes(c"machdep.cpu.brand_string").ok_or_else(|| MachineError::Refused {
        what: "the processor's name",
        source: io::Error::last_os_error(),
    })?;
    let name = String::from_utf8_lossy(&name);
    Ok(name.trim_matches(|c: char| c == '\0' || c.is_whitespace()).to_owned())
}

/// The classes of all cores, fastest first, numbered in this order, since threads are not pinned.
pub fn core_classes(allowed: &[u32]) -> Vec<CoreClass> {
    let counts = [number(c"hw.perflevel0.logicalcpu"), number(c"hw.perflevel1.logicalcpu")];
    let mut counts: Vec<u32> = counts.into_iter().flatten().map(|count| count as u32).collect();
    if counts.iter().sum::<u32>() as usize != allowed.len() {
        counts = vec![allowed.len() as u32];
    }
    let mut first = 0;
    let mut classes: Vec<CoreClass> = counts
        .iter()
        .zip(0..)
        .map(|(&count, place)| {
            let cores = (first..first + count).map(|id| Core { id, siblings: vec![id] }).collect();
            first += count;
            let capacity = (f64::from(CoreClass::CAPACITY_FULL) * NEXT_CLASS.powi(place)) as u32;
            CoreClass { name: String::new(), cores, capacity, clock_mhz: 0 }
        })
        .collect();
    CoreClass::finish(&mut classes);
    classes
}

/// The largest cache, in bytes; 0 if unknown.
pub fn largest_cache_bytes() -> u64 {
    [c"hw.l3cachesize", c"hw.l2cachesize", c"hw.perflevel0.l2cachesize"]
        .into_iter()
        .filter_map(number)
        .max()
        .unwrap_or(0)
}

/// RAM, all of it and the part that the kernel calls available.
///
/// # Errors
/// [`MachineError`] if the system does not say it.
pub fn ram() -> Result<(u64, u64), MachineError> {
    let wanted = |name, what| {
        number(name).ok_or_else(|| MachineError::Refused { what, source: io::Error::last_os_error() })
    };
    let all = wanted(c"hw.memsize", "how much memory there is")?;
    let percent = wanted(c"kern.memorystatus_level", "how much memory is free")?;
    Ok((all, all / 100 * percent.min(100)))
}

/// The disk that holds `path`: its file system and size.
///
/// # Errors
/// [`MachineError`] if `path` does not exist.
pub fn disk(path: &Path) -> Result<Disk, MachineError> {
    let unreadable =
        |source: rustix::io::Errno| MachineError::Read { path: path.to_owned(), source: source.into() };
    let found = rustix::fs::statfs(path).map_err(unreadable)?;
    let name: Vec<u8> =
        found.f_fstypename.iter().map(|&unit| unit as u8).take_while(|&unit| unit != 0).collect();
    let kind = String::from_utf8_lossy(&name).into_owned();
    Ok(Disk { file_system: kind.clone(), model: kind, size_bytes: found.f_blocks * u64::from(found.f_bsize) })
}

/// The footprint of this process (`None`) or of another of the same user.
///
/// # Errors
/// [`MachineError`] if there is no such process.
pub fn footprint(process: Option<u32>) -> Result<Footprint, MachineError> {
    let id = process.unwrap_or_else(std::process::id);
    let mut usage = MaybeUninit::<libc::rusage_info_v4>::uninit();
    // SAFETY: the struct is of the kind that is asked for, and is filled.
    let answer =
        unsafe { libc::proc_pid_rusage(id as c_int, libc::RUSAGE_INFO_V4, usage.as_mut_ptr().cast()) };
    if answer != 0 {
        return Err(MachineError::Refused {
            what: "how much memory a process holds",
            source: io::Error::last_os_error(),
        });
    }
    // SAFETY: the call has filled it.
    let usage = unsafe { usage.assume_init() };
    Ok(Footprint {
        resident_bytes: usage.ri_resident_size,
        resident_peak_bytes: usage.ri_lifetime_max_phys_footprint.max(usage.ri_resident_size),
        page_table_bytes: 0,
    })
}
