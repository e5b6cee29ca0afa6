//! The cores of the calling thread.

use std::io;
use std::thread::{self, ThreadId};

use platform::affinity::CoreSet;

/// The affinity of the calling thread, restored when dropped.
///
/// A new thread inherits its creator's affinity, so threads spawned under this guard start on its cores.
#[derive(Debug)]
pub(super) struct Affinity {
    pub(super) before: CoreSet,
    thread: ThreadId,
}

impl Affinity {
    /// The calling thread's current affinity.
    pub(super) fn current() -> io::Result<Self> {
        Ok(Self { before: CoreSet::current()?, thread: thread::current().id() })
    }

    /// Restricts the calling thread to these cores; the error names the refused one.
    pub(super) fn restrict_to(&self, cores: &[u32]) -> Result<(), (u32, io::Error)> {
        let first = cores.first().copied().unwrap_or(0);
        let missing = |core| (core, io::ErrorKind::InvalidInput.into());
        let set = CoreSet::of(cores).map_err(missing)?;
        set.restrict_this_thread().map_err(|why| (first, why))?;
        // the system may ignore missing cores as long as one is left
        let got = CoreSet::current().map_err(|why| (first, why))?;
        cores.iter().find(|&&core| !got.contains(core)).map_or(Ok(()), |&refused| Err(missing(refused)))
    }
}

impl Drop for Affinity {
    fn drop(&mut self) {
        if thread::current().id() == self.thread {
            // restore the former affinity; if refused, the thread stays on its cores
            let _refused = self.before.restrict_this_thread();
        }
    }
}
