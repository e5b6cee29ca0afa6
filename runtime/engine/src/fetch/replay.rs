//! The last reads once more, alone: what the device takes for them when nothing is computed beside them. Profiles
//! tell what a device gave at another time, from another file; this is measured after the run, with its own reads,
//! through the same back end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use plans::layout::Span;

use super::{FetchError, Fetcher};
use crate::flash::ReadRequest;

/// Reads that are remembered: a second's worth where a device does tens of thousands.
const RECORDED_MAX: usize = 1 << 15;

/// The last reads that were started.
#[derive(Debug)]
pub(super) struct Recorded(VecDeque<Span>);

impl Recorded {
    /// Adds a read, and drops the oldest of too many.
    pub(super) fn push(&mut self, span: Span) {
        if self.0.len() == RECORDED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(span);
    }
}

/// The time of recorded reads, done again alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replay {
    /// Number of reads, as the device counts them: several of a slice whose parts lie apart.
    pub reads: u64,
    /// Time of all reads together.
    pub time: Duration,
}

impl Fetcher {
    /// Records the last reads from now on, and none from before; takes half a megabyte.
    pub fn record(&mut self) {
        self.last.get_or_insert_with(|| Recorded(VecDeque::with_capacity(RECORDED_MAX))).0.clear();
    }

    /// Does the recorded reads once more, in the same order, with twice `depth` reads waiting or in flight; `None` if
    /// that is nothing. What is in flight or has completed is given up, and nothing is recorded any more.
    ///
    /// # Errors
    /// The first read that failed.
    pub fn replay(&mut self, depth: usize) -> Result<Option<Replay>, FetchError> {
        self.abandon();
        let Some(Recorded(spans)) = self.last.take().filter(|last| !last.0.is_empty()) else {
            return Ok(None);
        };
        let before = self.flash.counters();
        let queued = (2 * depth).min(self.buffers.len());
        let (mut of_buffer, mut waiting, mut failed) = (vec![spans[0]; queued], spans.iter(), None);
        let start = Instant::now();
        loop {
            // calls for half of them, so that they are few and the device always has the other half
            if self.flash.in_flight() <= queued / 2 && failed.is_none() {
                let free = self.buffers.iter_mut().zip(&mut of_buffer).enumerate();
                for (number, (buffer, span)) in free.filter(|(_, (buffer, _))| buffer.is_some()) {
                    let Some(&next) = waiting.next() else { break };
                    *span = next;
                    let (tag, offset, bytes) = (number as u32, next.offset, next.bytes as usize);
                    let request = |buffer| ReadRequest { tag, offset, bytes, buffer, at: 0 };
                    self.batch.extend(buffer.take().map(request));
                }
                self.flash.submit(&mut self.batch);
            }
            let Some(done) = self.flash.reap(true) else { break };
            let Span { offset, bytes } = of_buffer[done.tag as usize];
            self.buffers[done.tag as usize] = Some(done.buffer);
            if let Err(source) = done.result {
                failed.get_or_insert(FetchError { offset, bytes: bytes as usize, source });
            }
        }
        match failed {
            Some(failed) => Err(failed),
            None => {
                let reads = self.flash.counters().since(before).reads;
                Ok(Some(Replay { reads, time: start.elapsed() }))
            }
        }
    }
}
