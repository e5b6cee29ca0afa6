//! Facts from the registry, the memory manager, the scheduler and volumes.
#![expect(unsafe_code, reason = "system calls that fill structs, numbers and texts")]

use std::ffi::OsString;
use std::io;
use std::mem::zeroed;
use std::os::windows::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::Storage::FileSystem::{GetVolumeInformationW, GetVolumePathNameW};
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RegGetValueW};
use windows_sys::Win32::System::SystemInformation::{
    GetSystemCpuSetInformation, GlobalMemoryStatusEx, MEMORYSTATUSEX, SYSTEM_CPU_SET_INFORMATION,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, GetSystemTimes};

use super::{done, process, wide};
pub use crate::common::absent::{core_times, memory_group, processor_limit, setting};
use crate::error::MachineError;
use crate::types::{Core, CoreClass, CpuTimes, Disk};

/// Characters of a name, at most.
const NAME_MAX: usize = 256;
/// Capacity that a class of efficient cores is taken for, relative to the class above it: Windows orders classes and does not compare them.
const NEXT_CLASS: f64 = 0.5;

/// A text with a zero at its end.
fn text(wide: &[u16]) -> String {
    let end = wide.iter().position(|&unit| unit == 0).unwrap_or(wide.len());
    String::from_utf16_lossy(&wide[..end]).trim().to_owned()
}

/// The processor's name.
///
/// # Errors
/// [`MachineError`] if the registry has none.
pub fn cpu_name() -> Result<String, MachineError> {
    let (key, value) = (wide(r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"), wide("ProcessorNameString"));
    let mut name = [0_u16; NAME_MAX];
    let mut bytes = size_of_val(&name) as u32;
    // SAFETY: both names end with a zero, and the text is filled up to its length in bytes.
    let error = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            key.as_ptr(),
            value.as_ptr(),
            RRF_RT_REG_SZ,
            null_mut(),
            name.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    match error {
        0 => Ok(text(&name).split_whitespace().collect::<Vec<_>>().join(" ")),
        error => Err(MachineError::Refused {
            what: "the processor's name",
            source: io::Error::from_raw_os_error(error.cast_signed()),
        }),
    }
}

/// The classes of all cores present, fastest first, without clocks; one class of the `allowed` ones where the system tells none.
pub fn core_classes(allowed: &[u32]) -> Vec<CoreClass> {
    let mut found = processors();
    if found.is_empty() {
        found = allowed.iter().map(|&id| Processor { id, core: id, class: 0 }).collect();
    }
    let mut kinds: Vec<u8> = found.iter().map(|one| one.class).collect();
    kinds.sort_unstable_by(|a, b| b.cmp(a));
    kinds.dedup();
    let mut classes: Vec<CoreClass> = kinds
        .iter()
        .zip(0..)
        .map(|(&kind, place)| {
            let of_kind = || found.iter().filter(|one| one.class == kind);
            let siblings = |core| of_kind().filter(|one| one.core == core).map(|one| one.id).collect();
            CoreClass {
                name: String::new(),
                cores: of_kind().map(|one| Core { id: one.id, siblings: siblings(one.core) }).collect(),
                capacity: (f64::from(CoreClass::CAPACITY_FULL) * NEXT_CLASS.powi(place)) as u32,
                clock_mhz: 0,
            }
        })
        .collect();
    CoreClass::finish(&mut classes);
    classes
}

/// A hardware thread.
struct Processor {
    id: u32,
    core: u32,
    /// The higher, the faster.
    class: u8,
}

/// The processors of the first group; none where the system does not tell.
fn processors() -> Vec<Processor> {
    let entry = size_of::<SYSTEM_CPU_SET_INFORMATION>();
    let mut bytes = 0;
    // SAFETY: without a buffer, only the number of bytes is filled.
    unsafe { GetSystemCpuSetInformation(null_mut(), 0, &raw mut bytes, GetCurrentProcess(), 0) };
    // SAFETY: the struct is made of numbers.
    let mut found = vec![unsafe { zeroed::<SYSTEM_CPU_SET_INFORMATION>() }; (bytes as usize).div_ceil(entry)];
    let length = size_of_val(&*found) as u32;
    // SAFETY: the buffer is `length` bytes long.
    let answer = unsafe {
        GetSystemCpuSetInformation(found.as_mut_ptr(), length, &raw mut bytes, GetCurrentProcess(), 0)
    };
    // larger entries would be those of a newer Windows, at other places
    if answer == 0 || found.iter().any(|one| one.Size as usize != entry) {
        return Vec::new();
    }
    found
        .iter()
        .map(|one| {
            // SAFETY: every entry that Windows has is of this kind.
            unsafe { one.Anonymous.CpuSet }
        })
        .filter(|set| set.Group == 0)
        .map(|set| Processor {
            id: set.LogicalProcessorIndex.into(),
            core: set.CoreIndex.into(),
            class: set.EfficiencyClass,
        })
        .collect()
}

/// Unknown.
pub fn largest_cache_bytes() -> u64 {
    0
}

/// RAM that the system manages, and RAM available, in bytes.
///
/// # Errors
/// [`MachineError`] if the system does not say it.
pub fn ram() -> Result<(u64, u64), MachineError> {
    // SAFETY: the struct is made of numbers.
    let mut status: MEMORYSTATUSEX = unsafe { zeroed() };
    status.dwLength = size_of_val(&status) as u32;
    // SAFETY: the struct is filled, and says its length.
    done(unsafe { GlobalMemoryStatusEx(&raw mut status) })
        .map_err(|source| MachineError::Refused { what: "how much memory there is", source })?;
    Ok((status.ullTotalPhys, status.ullAvailPhys))
}

/// The disk that holds `path`: its file system and size.
///
/// # Errors
/// [`MachineError`] if `path` does not exist.
pub fn disk(path: &Path) -> Result<Disk, MachineError> {
    let unreadable = |source| MachineError::Read { path: path.to_owned(), source };
    let path = path.canonicalize().map_err(unreadable)?;
    let (_, size_bytes) = super::file::space(&path).map_err(unreadable)?;
    let kind = file_system(&path).map_err(unreadable)?;
    Ok(Disk { file_system: kind.clone(), model: kind, size_bytes })
}

fn file_system(path: &Path) -> io::Result<String> {
    let (root, mut kind) = (wide(root_of(path)?), [0_u16; NAME_MAX]);
    // SAFETY: the name ends with a zero, the text is filled up to its length, and nothing else is asked for.
    done(unsafe {
        GetVolumeInformationW(
            root.as_ptr(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            null_mut(),
            kind.as_mut_ptr(),
            NAME_MAX as u32,
        )
    })?;
    Ok(text(&kind))
}

/// The mount point above a path, such as `C:\`.
fn root_of(path: &Path) -> io::Result<PathBuf> {
    let (path, mut root) = (wide(path), [0_u16; NAME_MAX]);
    // SAFETY: the name ends with a zero, and the text is filled up to its length.
    done(unsafe { GetVolumePathNameW(path.as_ptr(), root.as_mut_ptr(), NAME_MAX as u32) })?;
    let end = root.iter().position(|&unit| unit == 0).unwrap_or(NAME_MAX);
    Ok(PathBuf::from(OsString::from_wide(&root[..end])))
}

/// The letter of the disk under a folder.
pub fn disk_name(folder: &Path) -> Option<String> {
    let root = root_of(&folder.canonicalize().ok()?).ok()?;
    let name: String = root.to_string_lossy().chars().filter(char::is_ascii_alphanumeric).collect();
    (!name.is_empty()).then_some(name)
}

/// CPU times until now, in steps of 100 ns; time stolen from a virtual machine is unknown.
pub(crate) fn cpu_times() -> Option<CpuTimes> {
    let [mut idle, mut kernel, mut user] = [FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 }; 3];
    // SAFETY: all three are filled.
    done(unsafe { GetSystemTimes(&raw mut idle, &raw mut kernel, &raw mut user) }).ok()?;
    let own = process::cpu_time().as_secs_f64() * 1e7;
    // time in the kernel includes idle time
    let all = (process::steps(kernel) + process::steps(user)) as f64;
    Some(CpuTimes { all, idle: process::steps(idle) as f64, own, stolen: 0.0 })
}
