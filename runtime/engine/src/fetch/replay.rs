//! Replay of the last reads without compute, to time the device alone. A profile measured the device at
//! another time, on another file. A replay repeats the run's own reads through the same back end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use plans::layout::Span;

use super::{FetchError, Fetcher};
use crate::flash::ReadRequest;

/// The most reads that are recorded: a second of a device with tens of thousands a second.
const RECORDED_MAX: usize = 1 << 15;

/// The last reads that were started.
#[derive(Debug)]
pub(super) struct Recorded(VecDeque<Span>);

impl Recorded {
    /// Adds a read; drops the oldest beyond the limit.
    pub(super) fn push(&mut self, span: Span) {
        if self.0.len() == RECORDED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(span);
    }
}

/// The time of repeated reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replay {
    /// Number of reads, as the device counts them: a slice with separate parts is several.
    pub reads: u64,
    /// Time of all reads together.
    pub time: Duration,
}

impl Fetcher {
    /// Records reads from now on, and forgets earlier ones; takes half a megabyte.
    pub fn record(&mut self) {
        self.last.get_or_insert_with(|| Recorded(VecDeque::with_capacity(RECORDED_MAX))).0.clear();
    }

    /// Repeats the recorded reads in order, with twice `depth` reads waiting or in flight; `None` if none
    /// were recorded. Cancels all other reads and stops recording.
    ///
    /// # Errors
    /// The first failed read.
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
            // one call for half of the reads: calls stay few, and the device always has the other half
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
