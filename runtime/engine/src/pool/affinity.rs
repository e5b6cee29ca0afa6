//! The cores of the calling thread.

use std::io;
use std::thread::{self, ThreadId};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The affinity of the calling thread, restored when dropped.
///
/// A new thread inherits its creator's affinity, so threads spawned under this guard start on its cores.
#[derive(Debug)]
pub(super) struct Affinity {
    pub(super) before: CpuSet,
    thread: ThreadId,
}

impl Affinity {
    /// The calling thread's current affinity.
    pub(super) fn current() -> io::Result<Self> {
        Ok(Self { before: sched_getaffinity(None)?, thread: thread::current().id() })
    }

    /// Restricts the calling thread to these cores; the error names the refused one.
    pub(super) fn restrict_to(&self, cores: &[u32]) -> Result<(), (u32, io::Error)> {
        let mut set = CpuSet::new();
        for &core in cores {
            let index = core as usize;
            if index >= CpuSet::MAX_CPU {
                return Err((core, io::Error::from(io::ErrorKind::InvalidInput)));
            }
            set.set(index);
        }
        let first = cores.first().copied().unwrap_or(0);
        sched_setaffinity(None, &set).map_err(|why| (first, why.into()))?;
        // The kernel ignores missing cores as long as one is left.
        let got = sched_getaffinity(None).map_err(|why| (first, why.into()))?;
        match cores.iter().find(|&&core| !got.is_set(core as usize)) {
            Some(&refused) => Err((refused, io::ErrorKind::InvalidInput.into())),
            None => Ok(()),
        }
    }
}

impl Drop for Affinity {
    fn drop(&mut self) {
        if thread::current().id() == self.thread {
            // restore the former affinity; if refused, the thread stays on its cores
            let _refused = sched_setaffinity(None, &self.before);
        }
    }
}
