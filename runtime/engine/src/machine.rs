//! The machine, and the part of it that this process may use.
//!
//! `profile` writes [`Machine::identity`] into `device.toml`, and `run` compares it with the plan's. The
//! identity has nothing that changes from day to day: no current clock, free space, host name or kernel.
//! The facts come from `platform::machine`; nothing is measured here.

use std::path::Path;

use plans::device::Identity;
use platform::affinity::CoreSet;
use platform::machine::{self, gib};

pub use platform::machine::{Core, CoreClass, CpuTimes, Disk, MachineError, MemoryGroup};
pub use platform::process::{Footprint, footprint, forget_read_ahead, keep_small};

/// The CPU fraction of others that explains slowness.
pub const OTHERS_MAX: f64 = 0.1;

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
    /// [`MachineError`] if `storage_path` does not exist, or the system does not describe itself.
    pub fn here(storage_path: &Path) -> Result<Self, MachineError> {
        let allowed = CoreSet::current().map_err(|source| MachineError::Affinity { source })?.cores();
        let (ram_bytes, available_bytes) = machine::ram()?;
        Ok(Self {
            cpu: machine::cpu_name()?,
            classes: machine::core_classes(&allowed),
            ram_bytes,
            available_bytes,
            disk: machine::disk(storage_path)?,
            memory_group: machine::memory_group(),
            lockable_bytes: platform::memory::lockable_bytes(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_the_same_twice() {
        let here = || Machine::here(Path::new(".")).unwrap();
        let (first, second) = (here(), here());
        assert_eq!(first.identity(), second.identity());
        assert!(!first.allowed_classes().is_empty());
        assert!(first.identity().ram_gib <= gib(first.ram_bytes + (1 << 29)));
        assert!(footprint(None).unwrap().peak_bytes() > 0);
        let missing = Machine::here(Path::new("/no/such/folder")).unwrap_err();
        assert!(missing.to_string().contains("/no/such/folder"), "{missing}");
    }
}
