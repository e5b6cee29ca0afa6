//! Sleep on a number with the standard library's own locks, for platforms without public futexes.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// A number whose change threads sleep for.
#[derive(Debug, Default)]
pub struct Word {
    number: AtomicU32,
    /// Held between a sleeper's last look at the number and its sleep, and before a wake-up, so that none falls between.
    door: Mutex<()>,
    changed: Condvar,
}

impl Deref for Word {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.number
    }
}

impl Word {
    /// Sleeps while the number is `value`, until a wake-up. May return early; the caller checks again.
    pub fn wait_while(&self, value: u32) {
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        if self.number.load(Ordering::SeqCst) == value {
            let _door = self.changed.wait(door).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes at most `most` sleeping threads.
    pub fn wake(&self, most: u32) {
        drop(self.door.lock().unwrap_or_else(PoisonError::into_inner));
        if most == 1 {
            self.changed.notify_one();
        } else {
            self.changed.notify_all();
        }
    }
}
