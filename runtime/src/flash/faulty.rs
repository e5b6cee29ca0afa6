//! A device that misbehaves on purpose, for tests of whoever reads through it.

use std::collections::VecDeque;
use std::io;

use super::{Buffer, Completion, Counters, Flash, Request};

/// How a [`Faulty`] device misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The last read is the first to complete.
    Reordered,
    /// Nothing is there unless it is waited for.
    Late,
    /// Every so many reads one fails with an input/output error.
    Failing {
        /// How many.
        every: u64,
    },
    /// Every so many reads one bit of the data is flipped, and nobody says so.
    Flipped {
        /// How many.
        every: u64,
    },
}

/// A device behind which another one reads.
pub struct Faulty {
    inner: Box<dyn Flash>,
    fault: Fault,
    completed: u64,
    held: VecDeque<Completion>,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

impl Faulty {
    /// `inner`, misbehaving.
    pub fn new(inner: Box<dyn Flash>, fault: Fault) -> Self {
        Self { inner, fault, completed: 0, held: VecDeque::new() }
    }
}

impl Flash for Faulty {
    fn adopt(&mut self, buffers: &mut [Buffer]) {
        self.inner.adopt(buffers);
    }

    fn describe(&self) -> String {
        format!("{}, {:?}", self.inner.describe(), self.fault)
    }

    fn submit(&mut self, requests: &mut Vec<Request>) {
        self.inner.submit(requests);
    }

    fn reap(&mut self, wait: bool) -> Option<Completion> {
        match self.fault {
            Fault::Late if !wait => return None,
            Fault::Reordered => {
                while let Some(completion) = self.inner.reap(true) {
                    self.held.push_back(completion);
                }
                return self.held.pop_back();
            }
            Fault::Late | Fault::Failing { .. } | Fault::Flipped { .. } => {}
        }
        let mut completion = self.inner.reap(wait)?;
        self.completed += 1;
        match self.fault {
            Fault::Failing { every } if self.completed.is_multiple_of(every) => {
                completion.result = Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
            }
            Fault::Flipped { every } if self.completed.is_multiple_of(every) => {
                completion.buffer[completion.bytes / 2] ^= 1;
            }
            _ => {}
        }
        Some(completion)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}
