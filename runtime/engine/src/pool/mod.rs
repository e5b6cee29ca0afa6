//! Compute threads, each pinned to a core, that run one closure at a time.
//!
//! A token is a few hundred short parallel steps with little sequential work between them, so the cost of a
//! step's start and end matters. Pseudo-code of the plain version, for each [`Pool::run`]:
//!
//! ```text
//! caller: job = f; pending = others; epoch += 1; f(0); wait until pending == 0
//! worker: wait until epoch changes; job(worker); pending -= 1
//! ```
//!
//! 1. Both waits spin for [`SPIN_TIME_MAX`], then sleep on a futex. A step that follows soon finds all
//!    threads awake, and a wait for flash frees the core.
//! 2. A wake-up is a system call, made only when a thread sleeps.
//! 3. With one thread, a run is a plain call.
//!
//! A run allocates nothing. Threads claim work piece by piece, so a slow core does not delay fast ones, and a
//! sleeping thread is not awaited. A piece gives the same result on any thread, so results do not depend on
//! timing.
//!
//! `workers` is compiled twice: over real threads, and in tests over `shuttle`'s threads, which explores
//! timings.

mod affinity;
mod sync;
mod workers;

#[cfg(test)]
mod modelled;
#[cfg(test)]
mod tests;

pub use plans::engine::ALONE;
pub use sync::SPIN_TIME_MAX;
pub use workers::{Columns, Pool, PoolError, part};
