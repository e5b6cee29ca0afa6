//! `io_uring` where there is none: opening a ring is an error, and there is no other way to get one.

use std::convert::Infallible;
use std::io;

use super::{Completion, Files, Flash, FlashCounters, ReadRequest};

/// A ring that cannot exist.
#[derive(Debug)]
pub struct Uring(Infallible);

impl Uring {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn new(_: impl Into<Files>, _direct: bool, _depth: usize, _requests: usize) -> io::Result<Self> {
        let why = format!(
            "io_uring does not exist on {}; plan on this machine, which reads by `pread`",
            platform::NAME
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }
}

impl Flash for Uring {
    fn describe(&self) -> String {
        match self.0 {}
    }

    fn submit(&mut self, _: &mut Vec<ReadRequest>) {
        match self.0 {}
    }

    fn reap(&mut self, _wait: bool) -> Option<Completion> {
        match self.0 {}
    }

    fn in_flight(&self) -> usize {
        match self.0 {}
    }

    fn counters(&self) -> FlashCounters {
        match self.0 {}
    }
}
