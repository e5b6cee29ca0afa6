//! The machine, and the part of it that this process may use, from `/proc` and `/sys`.
//!
//! `profile` writes [`Machine::identity`] into `device.toml`, and `run` compares it with the plan's. The
//! identity has nothing that changes from day to day: no current clock, free space, host name or kernel.
//! day to day goes into it: no current clock, no free space, no host name, no kernel.
//! All functions below [`Machine::here`] take the root folder of `/proc` and `/sys`, so that tests can
//! provide one. Nothing is measured here.
//! one that they wrote. It measures nothing.

mod cgroup;
mod cores;
mod memory;
mod process;
mod storage;
mod times;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use plans::device::Identity;
use rustix::process::{Resource, getrlimit};
use rustix::thread::sched_getaffinity;

pub use cgroup::{MemoryGroup, memory_group};
pub use cores::{Core, CoreClass, cache_bytes};
pub use memory::{Footprint, footprint};
pub use process::{forget_read_ahead, keep_small};
pub use storage::Disk;
pub use times::{CpuTimes, OTHERS_MAX};

/// Why the machine cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A file or folder could not be read.
    #[error("cannot read {path}: {source}; flashplan needs it to identify the machine")]
    Read {
        /// The file's path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file of the system lacks an expected fact.
    #[error("{path} does not say {what}; flashplan needs it to identify the machine")]
    Meaningless {
        /// The file's path.
        path: PathBuf,
        /// The expected fact.
        what: &'static str,
    },
    /// The system does not name the cores of this process.
    #[error("the cores of this process are unknown: {source}")]
    Affinity {
        /// The cause.
        source: io::Error,
    },
}

/// A machine as one process sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// CPU model as the system names it.
    pub cpu: String,
    /// All cores present, in classes, fastest first.
    pub classes: Vec<CoreClass>,
    /// The cores that this process may use.
    pub allowed: Vec<u32>,
    /// RAM that the kernel manages.
    pub ram_bytes: u64,
    /// RAM available without swapping, by the kernel's estimate.
    pub available_bytes: u64,
    /// The disk of the given folder.
    pub disk: Disk,
    /// The memory control group of this process, if any.
    pub memory_group: Option<MemoryGroup>,
    /// Bytes that this process may lock in memory; `None` means no limit.
    pub lockable_bytes: Option<u64>,
}

impl Machine {
    /// Describes this machine, with the disk of `storage_path`.
    ///
    /// # Errors
    /// [`MachineError`] if `storage_path` does not exist, or `/proc` is missing.
    pub fn here(storage_path: &Path) -> Result<Self, MachineError> {
        let root = Path::new("/");
        let set =
            sched_getaffinity(None).map_err(|source| MachineError::Affinity { source: source.into() })?;
        let allowed: Vec<u32> =
            (0..).take(rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core as usize)).collect();
        let (ram_bytes, available_bytes) = memory::ram(root)?;
        Ok(Self {
            cpu: cores::cpu_model(root)?,
            classes: cores::classes(root, &allowed),
            ram_bytes,
            available_bytes,
            disk: storage::disk(root, storage_path)?,
            memory_group: memory_group(root),
            lockable_bytes: getrlimit(Resource::Memlock).current,
            allowed,
        })
    }

    /// The facts that identify the machine. Cores that this process may not use count.
    pub fn identity(&self) -> Identity {
        Identity {
            cpu: self.cpu.clone(),
            core_classes: self.classes.iter().map(CoreClass::describe).collect(),
            instruction_sets: kernels::available()
                .iter()
                .map(|kernels| kernels.instruction_set().name().to_owned())
                .collect(),
            ram_gib: gib(self.ram_bytes),
            storage: self.disk.describe(),
        }
    }

    /// The core classes, restricted to the cores that this process may use; no class is empty.
    pub fn allowed_classes(&self) -> Vec<CoreClass> {
        let mut classes = self.classes.clone();
        for class in &mut classes {
            class.cores.retain(|core| self.allowed.contains(&core.id));
        }
        classes.retain(|class| !class.cores.is_empty());
        classes
    }
}

/// Bytes in whole GiB, rounded to nearest.
fn gib(bytes: u64) -> u64 {
    (bytes + (1 << 29)) >> 30
}

/// A file of the system under `root`, as text.
fn read(root: &Path, path: &str) -> Result<String, MachineError> {
    let path = root.join(path.trim_start_matches('/'));
    std::fs::read_to_string(&path).map_err(|source| MachineError::Read { path, source })
}

/// The trimmed contents of an optional file; `None` also if it is empty.
fn read_trimmed(path: &Path) -> Option<String> {
    let text = std::fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text);
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn read_number(path: &Path) -> Option<u64> {
    read_trimmed(path)?.parse().ok()
}
