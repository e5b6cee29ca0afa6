//! Threads and kernels of the current phase.

use kernels::{Form, Kernels};

use super::TransformerError;
use super::unit::Beside;
use crate::pool::{Pool, PoolError};

/// The phases of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Few rows, sparse.
    Decode,
    /// Rows of a prompt together, dense.
    Prefill,
}

/// The means of computing.
#[derive(Debug)]
pub(super) struct Compute {
    pub(super) kernels: &'static dyn Kernels,
    /// The form of vectors for products with blocks.
    pub(super) form: Form,
    /// The cores of both phases, and the threads of the current one.
    pub(super) cores: [Vec<u32>; 2],
    pub(super) pool: Pool,
    pub(super) phase: Phase,
    /// A unit that computes a part of prompts' products.
    pub(super) unit: Option<Beside>,
}

impl Compute {
    /// Starts the threads of a phase if its cores differ from the other's.
    pub(super) fn enter(&mut self, phase: Phase) -> Result<(), PoolError> {
        let [decode, prefill] = &self.cores;
        if phase != self.phase && decode != prefill {
            self.pool.move_to(if phase == Phase::Decode { decode } else { prefill })?;
        }
        self.phase = phase;
        Ok(())
    }

    /// The fault of the unit since the last check.
    pub(super) fn check(&self) -> Result<(), TransformerError> {
        self.unit.as_ref().map_or(Ok(()), Beside::check)
    }
}
