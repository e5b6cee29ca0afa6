//! The scheduler's sets of processors.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Threads stay on their cores.
pub(crate) const PINS: bool = true;

/// Cores that a thread may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreSet(CpuSet);

impl CoreSet {
    /// The calling thread's cores.
    ///
    /// # Errors
    /// The system's.
    pub fn current() -> io::Result<Self> {
        Ok(Self(sched_getaffinity(None)?))
    }

    /// A set of these cores.
    ///
    /// # Errors
    /// The first core whose number no machine has.
    pub fn of(cores: &[u32]) -> Result<Self, u32> {
        let mut set = CpuSet::new();
        for &core in cores {
            if core as usize >= CpuSet::MAX_CPU {
                return Err(core);
            }
            set.set(core as usize);
        }
        Ok(Self(set))
    }

    /// Whether the core is in it.
    pub fn contains(&self, core: u32) -> bool {
        (core as usize) < CpuSet::MAX_CPU && self.0.is_set(core as usize)
    }

    /// All cores in it, ascending.
    pub fn cores(&self) -> Vec<u32> {
        (0..CpuSet::MAX_CPU as u32).filter(|&core| self.contains(core)).collect()
    }

    /// Restricts the calling thread to these cores. The kernel ignores missing cores as long as one is left.
    ///
    /// # Errors
    /// The system's.
    pub fn restrict_this_thread(&self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.0)?)
    }
}
