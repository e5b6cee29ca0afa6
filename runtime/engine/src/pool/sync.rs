//! Synchronisation of the pool's threads: the standard library's atomics, and a wait that spins before it sleeps on a
//! futex.

pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
pub(super) use std::sync::{Arc, Mutex};
pub(super) use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// Time that a wait keeps its core before it sleeps: longer than the sequential work between two steps, and than most
/// reads.
///
/// Measured on two cores of a virtual machine, where a wake-up takes some 50 us: a model of 4 million weights in
/// memory decodes 217 to 524 tok/s when waits spin for 8 us and 1785 to 2030 when they spin for this long, six runs
/// of each, alternating; while the machine was busy with others 134 to 181 and 660 to 1581. `pread`'s threads on the
/// same two cores lose nothing by it (240 at 8 us, 320 at 60 and at 200).
pub const SPIN_TIME_MAX: Duration = Duration::from_micros(100);
/// Spins between two looks at the clock.
const SPINS_PER_LOOK: u32 = 16;

/// A number that threads wait for to change.
#[derive(Debug, Default)]
pub(super) struct Word(AtomicU32);

impl std::ops::Deref for Word {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.0
    }
}

impl Word {
    /// Sleeps if the number is `value`, until a wake-up; may return early, so that the caller looks again.
    pub(super) fn wait_while(&self, value: u32) {
        // a signal, or a number that has changed
        let _early = futex::wait(&self.0, futex::Flags::PRIVATE, value, None);
    }

    /// Wakes at most so many of those that sleep.
    pub(super) fn wake(&self, most: u32) {
        let _woken = futex::wake(&self.0, futex::Flags::PRIVATE, most);
    }
}

/// Whether `ready` came true within [`SPIN_TIME_MAX`].
pub(super) fn spin_until(ready: impl Fn() -> bool) -> bool {
    for _ in 0..SPINS_PER_LOOK {
        if ready() {
            return true;
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    while start.elapsed() < SPIN_TIME_MAX {
        for _ in 0..SPINS_PER_LOOK {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    ready()
}
