//! Cores by number alone, for platforms that pin no threads.

use std::io;
use std::num::NonZero;
use std::thread::available_parallelism;

/// Threads move between cores.
pub(crate) const PINS: bool = false;

/// Cores of a plan; the system chooses among all, whatever they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreSet(Vec<u32>);

impl CoreSet {
    /// All cores of this process.
    ///
    /// # Errors
    /// The system's.
    pub fn current() -> io::Result<Self> {
        available_parallelism().map(NonZero::get).map(|count| Self((0..count as u32).collect()))
    }

    /// A set of these cores.
    ///
    /// # Errors
    /// The first core that this machine has not.
    pub fn of(cores: &[u32]) -> Result<Self, u32> {
        let count = available_parallelism().map_or(1, NonZero::get) as u32;
        let mut set = cores.to_vec();
        set.sort_unstable();
        set.dedup();
        cores.iter().find(|&&core| core >= count).map_or(Ok(Self(set)), |&missing| Err(missing))
    }

    /// Whether the core is in it.
    pub fn contains(&self, core: u32) -> bool {
        self.0.contains(&core)
    }

    /// All cores in it, ascending.
    pub fn cores(&self) -> Vec<u32> {
        self.0.clone()
    }

    /// Changes nothing, see [`PINS`].
    ///
    /// # Errors
    /// None here.
    pub fn restrict_this_thread(&self) -> io::Result<()> {
        Ok(())
    }
}
