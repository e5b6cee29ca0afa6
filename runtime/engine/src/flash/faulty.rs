//! A device that misbehaves on purpose, for tests of its readers.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::{Buffer, Completion, Flash, FlashCounters, ReadRequest};
use crate::arena::PAGE_BYTES;

/// A fault of a [`Faulty`] device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The last read is the first to complete.
    Reordered,
    /// A read completes only when it is awaited.
    Late,
    /// Every `every`-th read takes longer.
    Slowed {
        /// Reads from one fault to the next.
        every: u64,
        /// The delay.
        by: Duration,
    },
    /// Every `every`-th read brings only its first page, and is resumed.
    Short {
        /// Reads from one fault to the next.
        every: u64,
    },
    /// Every `every`-th read fails with an input/output error.
    Failing {
        /// Reads from one fault to the next.
        every: u64,
    },
    /// Every `every`-th read has one bit flipped, silently.
    Flipped {
        /// Reads from one fault to the next.
        every: u64,
    },
    /// Every `every`-th read completes without filling its buffer.
    Stale {
        /// Reads from one fault to the next.
        every: u64,
    },
}

/// The number of an input/output error; a system without it has another name for the number.
const EIO: i32 = 5;

/// A faulty device over another device.
pub(crate) struct Faulty {
    inner: Box<dyn Flash>,
    fault: Fault,
    /// Reads so far.
    submitted: u64,
    /// Reads in flight at the inner device, by tag.
    in_flight: HashMap<u32, InFlight>,
    /// Completions held back until their time.
    held: VecDeque<(Instant, Completion)>,
}

/// A read in flight at the inner device.
struct InFlight {
    /// When it was submitted.
    since: Instant,
    /// Number of the read among all.
    number: u64,
    offset: u64,
    at: usize,
    /// The bytes requested here; the inner device may have been given fewer.
    bytes: usize,
    /// The contents of a stale buffer.
    before: Vec<u8>,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

impl Faulty {
    /// Makes `inner` faulty.
    pub(crate) fn new(inner: Box<dyn Flash>, fault: Fault) -> Self {
        Self { inner, fault, submitted: 0, in_flight: HashMap::new(), held: VecDeque::new() }
    }

    /// The next completion of the inner device, with its fault; a short read is resumed first.
    fn reap_inner(&mut self, wait: bool) -> Option<(Instant, Completion)> {
        loop {
            let mut done = self.inner.reap(wait)?;
            let read = self.in_flight.remove(&done.tag)?;
            if done.bytes < read.bytes && done.result.is_ok() {
                let InFlight { offset, bytes, at, .. } = read;
                self.inner.submit(&mut vec![ReadRequest {
                    tag: done.tag,
                    offset,
                    bytes,
                    buffer: done.buffer,
                    at,
                }]);
                self.in_flight.insert(done.tag, read);
                continue;
            }
            done.bytes = read.bytes;
            match self.fault {
                Fault::Failing { every } if read.number.is_multiple_of(every) => {
                    done.result = Err(io::Error::from_raw_os_error(EIO));
                }
                Fault::Flipped { every } if read.number.is_multiple_of(every) => {
                    done.buffer[read.at + done.bytes / 2] ^= 1;
                }
                Fault::Stale { every } if read.number.is_multiple_of(every) => {
                    done.buffer[read.at..][..read.bytes].copy_from_slice(&read.before);
                }
                _ => {}
            }
            let due = match self.fault {
                Fault::Slowed { every, by } if read.number.is_multiple_of(every) => read.since + by,
                _ => read.since,
            };
            return Some((due, done));
        }
    }
}

impl Flash for Faulty {
    fn adopt(&mut self, buffers: &mut [Buffer]) {
        self.inner.adopt(buffers);
    }

    fn describe(&self) -> String {
        format!("{}, {:?}", self.inner.describe(), self.fault)
    }

    fn submit(&mut self, requests: &mut Vec<ReadRequest>) {
        for request in &mut *requests {
            self.submitted += 1;
            let before = match self.fault {
                Fault::Stale { .. } => request.target().to_vec(),
                _ => Vec::new(),
            };
            let read = InFlight {
                since: Instant::now(),
                number: self.submitted,
                offset: request.offset,
                at: request.at,
                bytes: request.bytes,
                before,
            };
            self.in_flight.insert(request.tag, read);
            if matches!(self.fault, Fault::Short { every } if self.submitted.is_multiple_of(every)) {
                request.bytes = PAGE_BYTES;
            }
        }
        self.inner.submit(requests);
    }

    fn go_on(&mut self) {
        self.inner.go_on();
    }

    fn reap(&mut self, wait: bool) -> Option<Completion> {
        match self.fault {
            Fault::Late if !wait => None,
            Fault::Reordered => {
                while let Some(done) = self.reap_inner(true) {
                    self.held.push_back(done);
                }
                self.held.pop_back().map(|(_, done)| done)
            }
            Fault::Slowed { .. } => loop {
                while let Some(done) = self.reap_inner(wait && self.held.is_empty()) {
                    self.held.push_back(done);
                }
                let next = (0..self.held.len()).min_by_key(|&i| self.held[i].0)?;
                let early = self.held[next].0.saturating_duration_since(Instant::now());
                if early.is_zero() {
                    return self.held.remove(next).map(|(_, done)| done);
                }
                if !wait {
                    return None;
                }
                thread::sleep(early);
            },
            _ => self.reap_inner(wait).map(|(_, done)| done),
        }
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }

    fn counters(&self) -> FlashCounters {
        self.inner.counters()
    }
}
