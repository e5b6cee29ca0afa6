//! Futexes.

use std::ops::Deref;
use std::sync::atomic::AtomicU32;

use rustix::thread::futex;

/// A number whose change threads sleep for.
#[derive(Debug, Default)]
pub struct Word(AtomicU32);

impl Deref for Word {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.0
    }
}

impl Word {
    /// Sleeps while the number is `value`, until a wake-up. May return early; the caller checks again.
    #[inline]
    pub fn wait_while(&self, value: u32) {
        // a signal, or the number has changed
        let _early = futex::wait(&self.0, futex::Flags::PRIVATE, value, None);
    }

    /// Wakes at most `most` sleeping threads.
    #[inline]
    pub fn wake(&self, most: u32) {
        let _woken = futex::wake(&self.0, futex::Flags::PRIVATE, most);
    }
}
