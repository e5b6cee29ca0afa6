//! RAM, and what this process holds of it.

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
    // kernels before 3.14 have no estimate of what is available
    let available = value("MemAvailable:", "").or_else(|_| value("MemFree:", "what is free (MemFree)"))?;
    Ok((total, available))
}

/// The memory that a process holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Resident pages now: anonymous, of files, shared (`VmRSS`).
    pub resident_bytes: u64,
    /// Highest number of resident bytes so far (`VmHWM`).
    pub resident_peak_bytes: u64,
    /// Page tables (`VmPTE`).
    pub page_table_bytes: u64,
}

impl Footprint {
    /// The peak of pages and page tables together. Needs no control group. It counts pages that are shared
    /// with other processes, such as the C library's, in full; it does not count page cache that reads
    /// caused, nor buffers that the kernel holds for the process: a control group counts these, too.
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
