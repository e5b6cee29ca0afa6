//! Threads and kernels: the means of the stage that is on.

use kernels::{Form, Kernels};

use crate::pool::{Pool, PoolError};

/// The phases of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Rows one by one, sparse.
    Decode,
    /// All rows together, dense.
    Prefill,
}

/// What computes, and how.
#[derive(Debug)]
pub(super) struct Compute {
    pub(super) kernels: &'static dyn Kernels,
    /// How vectors meet blocks of weights.
    pub(super) form: Form,
    /// The cores of both stages, and the threads of the one that is on.
    pub(super) cores: [Vec<u32>; 2],
    pub(super) pool: Pool,
    pub(super) phase: Phase,
}

impl Compute {
    /// Starts the threads of a stage where the other one has other cores.
    pub(super) fn enter(&mut self, phase: Phase) -> Result<(), PoolError> {
        let [decode, prefill] = &self.cores;
        if phase != self.phase && decode != prefill {
            self.pool.move_to(if phase == Phase::Decode { decode } else { prefill })?;
        }
        self.phase = phase;
        Ok(())
    }
}
