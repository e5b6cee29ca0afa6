//! RAM, and the memory of this process.

use std::path::Path;

use super::{MachineError, read};

/// `MemTotal` and `MemAvailable`, in bytes.
pub(super) fn ram(root: &Path) -> Result<(u64, u64), MachineError> {
    let info = read(root, "/proc/meminfo")?;
    let value = |key, what| {
        kibibytes(&info, key)
            .ok_or_else(|| MachineError::Meaningless { path: root.join("proc/meminfo"), what })
    };
    let total = value("MemTotal:", "how much memory there is (MemTotal)")?;
    // kernels before 3.14 do not estimate available memory
    let available = value("MemAvailable:", "").or_else(|_| value("MemFree:", "what is free (MemFree)"))?;
    Ok((total, available))
}

/// The memory of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Resident bytes now: anonymous, file-backed, shared (`VmRSS`).
    pub resident_bytes: u64,
    /// Peak of resident bytes (`VmHWM`).
    pub resident_peak_bytes: u64,
    /// Page tables (`VmPTE`).
    pub page_table_bytes: u64,
}

impl Footprint {
    /// The peak of resident pages and page tables together; needs no control group. It counts shared pages,
    /// such as the C library's, in full. It misses page cache and kernel buffers of the process, which a
    /// control group counts.
    pub fn peak_bytes(&self) -> u64 {
        self.resident_peak_bytes + self.page_table_bytes
    }
}

/// The footprint of this process (`None`) or of another of the same user.
///
/// # Errors
/// [`MachineError`] if there is no such process or `/proc` is missing.
pub fn footprint(process: Option<u32>) -> Result<Footprint, MachineError> {
    let path = process.map_or_else(|| "/proc/self/status".to_owned(), |id| format!("/proc/{id}/status"));
    footprint_of(Path::new("/"), &path)
}

pub(super) fn footprint_of(root: &Path, path: &str) -> Result<Footprint, MachineError> {
    let status = read(root, path)?;
    let value = |key| {
        kibibytes(&status, key).ok_or_else(|| MachineError::Meaningless {
            path: root.join(path.trim_start_matches('/')),
            what: "how much memory the process holds",
        })
    };
    Ok(Footprint {
        resident_bytes: value("VmRSS:")?,
        resident_peak_bytes: value("VmHWM:")?,
        page_table_bytes: value("VmPTE:")?,
    })
}

/// The bytes in a line such as `VmRSS:    1768 kB`.
fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}
