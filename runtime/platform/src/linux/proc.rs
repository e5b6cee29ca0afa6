//! The facts of `/proc` and `/sys` under their names. The modules beside take a root folder, so that tests can provide one.

use std::path::Path;

use crate::error::MachineError;

/// A file of the system under `root`, as text.
pub(super) fn read(root: &Path, path: &str) -> Result<String, MachineError> {
    let path = root.join(path.trim_start_matches('/'));
    std::fs::read_to_string(&path).map_err(|source| MachineError::Read { path, source })
}

/// The trimmed contents of an optional file; `None` also if it is empty.
pub(super) fn read_trimmed(path: &Path) -> Option<String> {
    let text = std::fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text);
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.split_whitespace().collect::<Vec<_>>().join(" "))
}

pub(super) fn read_number(path: &Path) -> Option<u64> {
    read_trimmed(path)?.parse().ok()
}

/// The descriptor of this process at a path such as `/dev/stdout` leads to; `None` for any other path.
pub fn descriptor(path: &Path) -> Option<u32> {
    let number = path.file_name()?.to_str()?.parse().ok()?;
    let descriptors = std::fs::canonicalize("/proc/self/fd").ok()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    (std::fs::canonicalize(folder).ok()? == descriptors).then_some(number)
}

pub(crate) mod machine {
    //! Facts about the machine.

    use std::path::{Path, PathBuf};

    use super::super::{cgroup, cores, disk, ram, times};
    use crate::error::MachineError;
    use crate::types::{CoreClass, CoreTimes, CpuTimes, Disk, MemoryGroup};

    fn root() -> &'static Path {
        Path::new("/")
    }

    /// The processor's name.
    ///
    /// # Errors
    /// [`MachineError`] if `/proc` is missing.
    pub fn cpu_name() -> Result<String, MachineError> {
        cores::cpu_model(root())
    }

    /// The classes of all cores present, fastest first; `allowed` replaces an unreadable list of cores.
    pub fn core_classes(allowed: &[u32]) -> Vec<CoreClass> {
        cores::classes(root(), allowed)
    }

    /// The largest cache of core 0, in bytes; 0 if unknown.
    pub fn largest_cache_bytes() -> u64 {
        cores::cache_bytes(root())
    }

    /// RAM that the system manages, and RAM available without swapping, in bytes.
    ///
    /// # Errors
    /// [`MachineError`] if `/proc` is missing.
    pub fn ram() -> Result<(u64, u64), MachineError> {
        ram::ram(root())
    }

    /// The disk that holds `path`.
    ///
    /// # Errors
    /// [`MachineError`] if `path` does not exist.
    pub fn disk(path: &Path) -> Result<Disk, MachineError> {
        disk::disk(root(), path)
    }

    /// A short name of the disk under a folder: the block device's, or the file system's kind where there is none.
    pub fn disk_name(folder: &Path) -> Option<String> {
        disk::name(root(), folder)
    }

    /// The memory control group of this process, if any.
    pub fn memory_group() -> Option<MemoryGroup> {
        cgroup::memory_group(root())
    }

    /// The file with the processor quota of a control group, and its text.
    pub fn processor_limit(group: &MemoryGroup) -> Option<(PathBuf, String)> {
        let path = group.folder.join("cpu.max");
        let text = std::fs::read_to_string(&path).ok()?;
        Some((path, text))
    }

    /// A setting of the kernel, by its path; `None` if there is none.
    pub fn setting(path: &str) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }

    /// CPU times until now.
    pub(crate) fn cpu_times() -> Option<CpuTimes> {
        times::read(root())
    }

    /// The times of one core so far, if the kernel counts them.
    pub fn core_times(core: u32) -> Option<CoreTimes> {
        times::of_core(root(), core)
    }
}

pub(crate) mod process {
    //! Facts about processes.

    use std::path::Path;

    use super::super::ram;
    use crate::error::MachineError;
    use crate::types::Footprint;

    /// The footprint of this process (`None`) or of another of the same user.
    ///
    /// # Errors
    /// [`MachineError`] if there is no such process or `/proc` is missing.
    pub fn footprint(process: Option<u32>) -> Result<Footprint, MachineError> {
        let path = process.map_or_else(|| "/proc/self/status".to_owned(), |id| format!("/proc/{id}/status"));
        ram::footprint_of(Path::new("/"), &path)
    }

    /// Whether a process sleeps, and waits for neither a processor nor a disk; `None` if the system does not say it.
    pub fn sleeps(process: u32) -> Option<bool> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        Some(status.lines().any(|line| line.starts_with("State:\tS")))
    }

    /// Bytes of the kernel stacks of all threads; 0 if unknown.
    pub fn kernel_stack_bytes() -> u64 {
        let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        ram::kibibytes(&info, "KernelStack:").unwrap_or(0)
    }

    /// Bytes that this thread has fetched from disks, if the kernel counts them.
    pub fn bytes_fetched() -> Option<u64> {
        let counts = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        counts.lines().find_map(|line| line.strip_prefix("read_bytes:"))?.trim().parse().ok()
    }
}
