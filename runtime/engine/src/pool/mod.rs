//! Compute threads, each on its core, that run one closure at a time.
//!
//! A token is a few hundred short parallel steps with a little sequential work between them, so the
//! price of starting and ending a step counts. Pseudo-code of the plain version, once per [`Pool::run`]:
//!
//! ```text
//! caller: job = f; pending = others; epoch += 1; f(0); wait until pending == 0
//! worker: wait until epoch changes; job(worker); pending -= 1
//! ```
//!
//! 1. Both waits spin for [`SPIN_TIME_MAX`], then sleep on a futex: a step that follows soon finds
//!    everyone awake, and a wait for flash leaves the core to others.
//! 2. A wake-up is a system call, so it is made only when someone sleeps.
//! 3. One thread: a plain call.
//!
//! Nothing is allocated per run. The engine's work is in pieces that threads take as they come to them: a slow core holds
//! no fast one up, and one that sleeps is not waited for. A piece is computed alike by whoever takes it, so that results
//! do not depend on timing.
//!
//! `workers` is compiled twice: over real threads, and in the tests over those of `shuttle`, which tries what timing
//! could do.

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
