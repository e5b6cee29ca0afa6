//! RAM, and the memory of this process.

use std::path::Path;

use super::proc::read;
use crate::error::MachineError;
use crate::types::Footprint;

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

/// The footprint in a status file of a process.
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
pub(super) fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}
