//! Reads ahead of the computation.
//!
//! A layer requests neurons in ascending rank; those that are not in memory are read, close ones together, as far
//! ahead as there are free buffers. They may be computed as they complete, in any order; they are released in the order in
//! which they were requested, so that the cache's contents do not depend on timing.
//!
//! ```text
//! requested     . . H . . . . H H . . . . . . .      H: in memory
//! reads     [0--] [1----]     [2] [3--] [4]      at most a buffer each; gaps up to gap_bytes are read over
//!             |completed |in flight    |             <- cursor: what lies behind is not submitted yet
//! ```
//!
//! Neurons that the next list will probably request may be prefetched. Prefetch reads start when every demand read
//! has completed, a few at a time, so that no demand read waits behind many of them; `begin` hands them to the next
//! list, which takes those that it requests and drops the others.

use std::io;
use std::time::{Duration, Instant};

use plans::layout::{Phases, Span, Steps};

use crate::flash::{self, Buffer, Completion, Flash, ReadRequest};

mod replay;
mod schedule;
mod sustained;
#[cfg(test)]
mod tests;

use replay::Recorded;
pub use replay::Replay;
pub use schedule::{Arrived, Reads, Wanted};
use schedule::{Formed, NextRead, Schedule, Start};

/// A read that failed.
#[derive(Debug, thiserror::Error)]
#[error("reading {bytes} bytes {} failed: {source}", flash::place(*offset))]
pub struct FetchError {
    /// Address of the first byte.
    pub offset: u64,
    /// Length.
    pub bytes: usize,
    /// The system's reason; the end of the file is one.
    pub source: io::Error,
}

/// Counts of reads since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FetchCounters {
    /// Reads completed, and their bytes.
    pub flash: flash::FlashCounters,
    /// Prefetch reads that were started.
    pub prefetch_reads: u64,
    /// Bytes of the prefetch reads.
    pub prefetch_bytes: u64,
    /// Prefetch reads whose neurons the next list requested.
    pub prefetch_reads_used: u64,
    /// Bytes of gaps: read because they lie between two neurons that were wanted or prefetched.
    pub gap_bytes: u64,
    /// Time in which nothing was computed because nothing had completed.
    pub waited: Duration,
}

/// A device that reads what a schedule says.
pub struct Fetcher {
    flash: Box<dyn Flash>,
    schedule: Schedule,
    /// Buffers by number; `None` while the device has one.
    buffers: Vec<Option<Buffer>>,
    /// Why the last read into a buffer failed, by number.
    errors: Vec<Option<io::Error>>,
    /// Requests on their way to the device.
    batch: Vec<ReadRequest>,
    waited: Duration,
    /// Reads that measured the device, which are no token's.
    measured: flash::FlashCounters,
    /// The last reads that were started, if they are remembered.
    last: Option<Recorded>,
}

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher").field("schedule", &self.schedule).finish_non_exhaustive()
    }
}

impl Fetcher {
    /// Reads through `flash` into `buffers`, which are all of one length; at most `early_max` prefetch reads in flight;
    /// in `steps` where a list is read so.
    ///
    /// # Panics
    /// If there is no buffer.
    pub fn new(
        mut flash: Box<dyn Flash>,
        mut buffers: Vec<Buffer>,
        gap_bytes: u64,
        early_max: usize,
        steps: Steps,
    ) -> Self {
        assert!(!buffers.is_empty(), "reads need a buffer");
        flash.adopt(&mut buffers);
        let (count, buffer_bytes) = (buffers.len(), buffers[0].len() as u64);
        Self {
            flash,
            schedule: Schedule::new(count, buffer_bytes, gap_bytes, early_max, steps),
            buffers: buffers.into_iter().map(Some).collect(),
            errors: (0..count).map(|_| None).collect(),
            batch: Vec::with_capacity(count),
            waited: Duration::ZERO,
            measured: flash::FlashCounters::default(),
            last: None,
        }
    }

    /// Begins a new list; everything of the last one has been released. Prefetched neurons are for this one.
    pub fn begin(&mut self, reads: Reads) {
        self.schedule.begin(reads);
    }

    /// Forms reads for the list of `count` neurons as far as buffers reach, and says how far that is: every index
    /// below is in memory or in a read. They are submitted by the next [`Fetcher::poll`], which one thread may do while
    /// others compute.
    ///
    /// # Panics
    /// If a neuron's pages are longer than a buffer: plans are checked for that.
    pub fn ahead<W: Wanted>(&mut self, wanted: &W, count: usize) -> usize {
        loop {
            if let Some(cursor) = self.schedule.ahead(wanted, count) {
                return cursor;
            }
            self.submit();
            self.reap();
        }
    }

    /// [`Fetcher::ahead`] as far as `least` at least: prefetch reads give way, and buffers of unwanted reads are
    /// waited for.
    ///
    /// # Panics
    /// If all buffers together do not reach so far: plans are checked for that.
    pub fn ahead_to<W: Wanted>(&mut self, wanted: &W, count: usize, least: usize) -> usize {
        loop {
            let cursor = self.ahead(wanted, count);
            if cursor >= least {
                return cursor;
            }
            if self.schedule.give_way() {
                continue;
            }
            self.submit();
            match self.flash.reap(true) {
                Some(done) => self.place(done),
                None => panic!("the buffers reach neuron {cursor}, and {least} is wanted"),
            }
        }
    }

    /// Neurons that the next list will probably request and that are not in memory, ascending, once
    /// [`Fetcher::ahead`] has come to the end of this list. The higher a neuron's score, which is above zero, the
    /// sooner it is read; it is read beside this list's reads if the score is infinite, that is certain. As many are
    /// remembered as there are buffers for.
    pub fn prefetch(&mut self, probable: impl Iterator<Item = (Span, f32)>) {
        self.schedule.prefetch(probable);
    }

    /// Looks what has completed, submits what has been formed, and then prefetched reads.
    pub fn poll(&mut self) {
        self.look();
        self.submit();
    }

    fn look(&mut self) {
        while let Some(done) = self.flash.reap(false) {
            self.place(done);
        }
    }

    fn submit(&mut self) {
        self.prepare();
        Due { flash: &mut *self.flash, batch: &mut self.batch }.submit();
    }

    /// Forms prefetched reads, too, and has everything that is formed ready for the device.
    fn prepare(&mut self) {
        self.schedule.start_prefetches();
        for Start { number, pages, span } in self.schedule.formed.drain(..) {
            let Some(buffer) = self.buffers[number as usize].take() else {
                panic!("buffer {number} is with the device already");
            };
            let (offset, bytes, at) =
                (span.offset, span.bytes as usize, (span.offset - pages.offset) as usize);
            self.last.iter_mut().for_each(|last| last.push(span));
            self.batch.push(ReadRequest { tag: number, offset, bytes, buffer, at });
        }
    }

    /// The index between `start` and `until` up to which to compute now: the first read that is still in flight, or
    /// beyond it over `worth` neurons if they are worth waiting for. They are not while the device has nothing to do
    /// because every buffer is taken.
    pub fn reach(&mut self, start: usize, worth: usize, until: usize) -> usize {
        self.poll();
        self.schedule.reach(start, worth, until)
    }

    /// The index up to which to compute now if reads are to go on meanwhile: all that is submitted if that is the
    /// whole list, else half of the reads.
    pub fn half(&self) -> usize {
        self.schedule.half()
    }

    /// Gives out, once, the missing neurons that have completed and whose reads begin below `until`; says how many. 0 when all have
    /// been given, `None` before the next read completes.
    ///
    /// # Errors
    /// The first read that failed; nothing is in flight then, and the list is gone.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn completed_by_now<W: Wanted>(
        &mut self,
        wanted: &W,
        until: usize,
        indices: &mut [u32],
    ) -> Result<Option<usize>, FetchError> {
        match self.schedule.give(wanted, until, indices) {
            NextRead::Neurons(count) => Ok(Some(count)),
            NextRead::Done => Ok(Some(0)),
            NextRead::Pending => Ok(None),
            NextRead::Failed(Start { number, span, .. }) => {
                let source = self.errors[number as usize].take();
                self.abandon();
                Err(FetchError {
                    offset: span.offset,
                    bytes: span.bytes as usize,
                    source: source.unwrap_or_else(|| io::ErrorKind::Other.into()),
                })
            }
        }
    }

    /// [`Fetcher::completed_by_now`], after a wait if none has completed.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn next_completed<W: Wanted>(
        &mut self,
        wanted: &W,
        until: usize,
        indices: &mut [u32],
    ) -> Result<usize, FetchError> {
        loop {
            if let Some(count) = self.completed_by_now(wanted, until, indices)? {
                return Ok(count);
            }
            self.wait();
        }
    }

    /// The index up to which, `until` at most, every missing neuron has been given out.
    pub fn given_below(&self, until: usize) -> usize {
        self.schedule.given_below(until)
    }

    /// The neuron at `index`, which was given out for its gate, is needed whole; it is given out again.
    ///
    /// # Panics
    /// If it was not.
    pub fn go_on(&mut self, index: usize) {
        self.schedule.go_on(index);
    }

    /// Waits for any one read. What may start then is due.
    pub fn wait(&mut self) {
        self.submit();
        let start = Instant::now();
        self.reap();
        self.waited += start.elapsed();
        self.look();
        self.prepare();
    }

    /// Waits for every read that begins below `until`.
    pub fn wait_below(&mut self, until: usize) {
        self.poll();
        while self.schedule.in_flight_below(until) {
            self.wait();
        }
    }

    fn reap(&mut self) {
        if let Some(done) = self.flash.reap(true) {
            self.place(done);
        }
    }

    /// Puts a completed read where it belongs.
    fn place(&mut self, done: Completion) {
        self.schedule.place(done.tag, done.result.is_ok());
        self.buffers[done.tag as usize] = Some(done.buffer);
        self.errors[done.tag as usize] = done.result.err();
    }

    /// Gives back the buffers of all reads whose neurons are below `until`: they have been computed.
    pub fn release(&mut self, until: usize) {
        self.schedule.release(until);
    }

    /// Completed reads, which stay until they are released; threads may look at them.
    pub fn completed(&self) -> Completed<'_> {
        Completed { schedule: &self.schedule, buffers: &self.buffers }
    }

    /// The bytes of the neuron at `index`, as [`Completed::bytes`], for whoever puts them into another order.
    ///
    /// # Panics
    /// As there.
    pub fn completed_mut(&mut self, index: usize, span: Span) -> &mut [u8] {
        let Start { number, pages, .. } = self.schedule.completed(index);
        let Some(buffer) = &mut self.buffers[number as usize] else {
            panic!("buffer {number} is with the device");
        };
        &mut buffer[within(pages, span)]
    }

    /// [`Fetcher::completed`], and the reads that are due, which one thread may submit while others compute.
    pub fn completed_and_due(&mut self) -> (Completed<'_>, Due<'_>) {
        let Self { flash, schedule, buffers, batch, .. } = self;
        (Completed { schedule, buffers }, Due { flash: &mut **flash, batch })
    }

    /// The way the device reads, for the report.
    pub fn describe(&self) -> String {
        let phases = match self.schedule.steps().phases {
            Phases::Whole => "",
            Phases::TwoPhase => ", in two phases",
            Phases::Rows => ", row by row",
        };
        self.flash.describe() + phases
    }

    /// Totals since start, without [`Self::sustained`].
    pub fn counters(&self) -> FetchCounters {
        let Formed { prefetch_reads, prefetch_bytes, prefetch_reads_used, gap_bytes } =
            self.schedule.counts();
        let flash = self.flash.counters().since(self.measured);
        FetchCounters {
            flash,
            prefetch_reads,
            prefetch_bytes,
            prefetch_reads_used,
            gap_bytes,
            waited: self.waited,
        }
    }

    /// After an error: everything back, nothing in flight.
    pub fn abandon(&mut self) {
        self.schedule.forget();
        self.submit();
        while let Some(done) = self.flash.reap(true) {
            self.place(done);
        }
        self.schedule.release_all();
    }
}

/// Reads that are ready for the device, and those that wait there for room. A call takes two microseconds for each, which is why it
/// is made beside others' work.
pub struct Due<'a> {
    flash: &'a mut dyn Flash,
    batch: &'a mut Vec<ReadRequest>,
}

impl std::fmt::Debug for Due<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Due").field("batch", &self.batch).finish_non_exhaustive()
    }
}

impl Due<'_> {
    /// Starts the due reads, all with one call.
    pub fn submit(&mut self) {
        if !self.batch.is_empty() {
            self.flash.submit(self.batch);
        }
    }

    /// [`Due::submit`], and those that wait at the device begin as others complete: nothing of the schedule changes, so that
    /// completed reads may be looked at meanwhile.
    pub fn go_on(&mut self) {
        self.submit();
        self.flash.go_on();
    }
}

/// Neurons that are computed where they completed.
#[derive(Debug, Clone, Copy)]
pub struct Completed<'a> {
    schedule: &'a Schedule,
    buffers: &'a [Option<Buffer>],
}

impl<'a> Completed<'a> {
    /// The bytes of the neuron at `index`, whose span is `span`.
    ///
    /// # Panics
    /// If its read has not completed or was released.
    pub fn bytes(&self, index: usize, span: Span) -> &'a [u8] {
        let Start { number, pages, .. } = self.schedule.completed(index);
        let Some(buffer) = &self.buffers[number as usize] else {
            panic!("buffer {number} is with the device");
        };
        &buffer[within(pages, span)]
    }

    /// The part of the neuron at `index`, which was given out, that has completed.
    pub fn arrived(&self, index: usize) -> Arrived {
        self.schedule.arrived(index)
    }
}

/// Where in a buffer the bytes of a span lie, of which it holds these pages.
fn within(pages: Span, span: Span) -> std::ops::Range<usize> {
    let start = (span.offset - pages.offset) as usize;
    start..start + span.bytes as usize
}
