//! Affinity masks of the first group of 64 processors.
#![expect(unsafe_code, reason = "system calls that take numbers and fill numbers")]

use std::io;

use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetCurrentThread, GetProcessAffinityMask, SetThreadAffinityMask,
};

use super::done;

/// Threads stay on their cores.
pub(crate) const PINS: bool = true;

/// Cores that a thread may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreSet(usize);

impl CoreSet {
    /// The calling thread's cores.
    ///
    /// # Errors
    /// The system's.
    pub fn current() -> io::Result<Self> {
        let process = process_mask()?;
        // only setting a mask tells the present one
        // SAFETY: the handle is this thread's own, and the mask is a number.
        let before = unsafe { SetThreadAffinityMask(GetCurrentThread(), process) };
        let set = Self(before);
        set.restrict_this_thread()?;
        Ok(set)
    }

    /// A set of these cores.
    ///
    /// # Errors
    /// The first core whose number a group has not.
    pub fn of(cores: &[u32]) -> Result<Self, u32> {
        cores.iter().try_fold(Self(0), |set, &core| match 1_usize.checked_shl(core) {
            Some(bit) => Ok(Self(set.0 | bit)),
            None => Err(core),
        })
    }

    /// Whether the core is in it.
    pub fn contains(&self, core: u32) -> bool {
        1_usize.checked_shl(core).is_some_and(|bit| self.0 & bit != 0)
    }

    /// All cores in it, ascending.
    pub fn cores(&self) -> Vec<u32> {
        (0..usize::BITS).filter(|&core| self.contains(core)).collect()
    }

    /// Restricts the calling thread to these cores.
    ///
    /// # Errors
    /// The system's: a core that the process may not use.
    pub fn restrict_this_thread(&self) -> io::Result<()> {
        // SAFETY: the handle is this thread's own, and the mask is a number.
        match unsafe { SetThreadAffinityMask(GetCurrentThread(), self.0) } {
            0 => Err(io::Error::last_os_error()),
            _before => Ok(()),
        }
    }
}

fn process_mask() -> io::Result<usize> {
    let (mut process, mut system) = (0, 0);
    // SAFETY: both numbers are filled; the handle is this process's own.
    done(unsafe { GetProcessAffinityMask(GetCurrentProcess(), &raw mut process, &raw mut system) })?;
    Ok(process)
}
