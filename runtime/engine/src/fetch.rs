//! Reads ahead of the computation.
//!
//! A layer requests neurons in ascending rank. Missing neurons are read as far ahead as there are free
//! buffers, close neighbours in one read. They may be computed in any order of completion. They are released
//! in the order of requests, so the cache's contents do not depend on timing.
//!
//! ```text
//! requested     . . H . . . . H H . . . . . . .      H: in memory
//! reads     [0--] [1----]     [2] [3--] [4]      at most one buffer each; gaps up to gap_bytes are read over
//!             |completed |in flight    |             <- cursor: later reads are not submitted yet
//! ```
//!
//! Neurons that the next list will probably request may be prefetched. Prefetch reads start, a few at a time,
//! when every demand read has completed, so no demand read waits behind many of them. `begin` hands them to
//! the next list, which uses the requested ones and drops the others.

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
    /// The system's reason, the end of the file included.
    pub source: io::Error,
}

/// Counts of reads since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FetchCounters {
    /// Completed reads, and their bytes.
    pub flash: flash::FlashCounters,
    /// Prefetch reads started.
    pub prefetch_reads: u64,
    /// Bytes of the prefetch reads.
    pub prefetch_bytes: u64,
    /// Prefetch reads whose neurons the next list requested.
    pub prefetch_reads_used: u64,
    /// Bytes of gaps: read because they lie between two neurons that were requested or prefetched.
    pub gap_bytes: u64,
    /// Time without compute because no read had completed.
    pub waited: Duration,
}

/// A device that executes a schedule of reads.
pub struct Fetcher {
    flash: Box<dyn Flash>,
    schedule: Schedule,
    /// Buffers by number; `None` while the device has the buffer.
    buffers: Vec<Option<Buffer>>,
    /// The error of the last read into each buffer.
    errors: Vec<Option<io::Error>>,
    /// Requests to be submitted.
    batch: Vec<ReadRequest>,
    waited: Duration,
    /// Reads that only measured the device.
    measured: flash::FlashCounters,
    /// The last reads that were started, if they are recorded.
    last: Option<Recorded>,
}

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher").field("schedule", &self.schedule).finish_non_exhaustive()
    }
}

impl Fetcher {
    /// Reads through `flash` into `buffers` of equal length, with at most `early_max` prefetch reads in
    /// flight. `steps` is for lists that are read in steps.
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

    /// Starts a new list. All reads of the last list must have been released. Prefetched neurons are for the
    /// new list.
    pub fn begin(&mut self, reads: Reads) {
        self.schedule.begin(reads);
    }

    /// Forms reads for the list of `count` neurons as far as buffers reach. Returns how far that is: every
    /// lower index is in memory or in a read. The next [`Fetcher::poll`] submits them; one thread may poll
    /// while others compute.
    ///
    /// # Panics
    /// If a neuron's pages are longer than a buffer; plans are checked for that.
    pub fn ahead<W: Wanted>(&mut self, wanted: &W, count: usize) -> usize {
        loop {
            if let Some(cursor) = self.schedule.ahead(wanted, count) {
                return cursor;
            }
            self.submit();
            self.reap();
        }
    }

    /// [`Fetcher::ahead`], at least up to `least`: drops prefetch reads, and waits for the buffers of
    /// unwanted reads.
    ///
    /// # Panics
    /// If all buffers together do not reach `least`; plans are checked for that.
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

    /// Queues prefetch reads of missing neurons that the next list will probably request, ascending. Call it
    /// once [`Fetcher::ahead`] has reached the end of this list.
    ///
    /// Scores are above zero; higher scores are read sooner. An infinite score is certain, and may be read
    /// beside this list's reads. At most as many as there are buffers are queued.
    pub fn prefetch(&mut self, probable: impl Iterator<Item = (Span, f32)>) {
        self.schedule.prefetch(probable);
    }

    /// Collects completions, submits formed reads, then prefetch reads.
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

    /// Forms prefetch reads too, and makes all formed reads ready for the device.
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

    /// The end of the compute window that starts at `start`: the first read in flight after `worth` neurons,
    /// at most `until`. If the device is idle for want of buffers, one neuron is enough.
    pub fn reach(&mut self, start: usize, worth: usize, until: usize) -> usize {
        self.poll();
        self.schedule.reach(start, worth, until)
    }

    /// The end of the compute window that leaves reads in flight. If all reads of the list are submitted, the
    /// end of the list; otherwise half of the reads.
    pub fn half(&self) -> usize {
        self.schedule.half()
    }

    /// Writes the indices of completed missing neurons whose reads start below `until`, each once; returns
    /// their number. 0 when all are given out, `None` until the next read completes.
    ///
    /// # Errors
    /// The first failed read; all reads are cancelled then.
    ///
    /// # Panics
    /// If `indices` is too short.
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

    /// [`Fetcher::completed_by_now`], but waits for a read if none has completed.
    ///
    /// # Errors
    /// As [`Fetcher::completed_by_now`].
    ///
    /// # Panics
    /// As [`Fetcher::completed_by_now`].
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

    /// The index, at most `until`, below which every missing neuron has been given out.
    pub fn given_below(&self, until: usize) -> usize {
        self.schedule.given_below(until)
    }

    /// Requests the rest of the neuron at `index`, whose gate was given out; it will be given out again.
    ///
    /// # Panics
    /// If its gate was not given out.
    pub fn go_on(&mut self, index: usize) {
        self.schedule.go_on(index);
    }

    /// Waits for one read, then prepares the reads that may start.
    pub fn wait(&mut self) {
        self.submit();
        let start = Instant::now();
        self.reap();
        self.waited += start.elapsed();
        self.look();
        self.prepare();
    }

    /// Waits for every read that starts below `until`.
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

    /// Returns a completed read's buffer and records its result.
    fn place(&mut self, done: Completion) {
        self.schedule.place(done.tag, done.result.is_ok());
        self.buffers[done.tag as usize] = Some(done.buffer);
        self.errors[done.tag as usize] = done.result.err();
    }

    /// Releases the buffers of all reads whose neurons are below `until`.
    pub fn release(&mut self, until: usize) {
        self.schedule.release(until);
    }

    /// Completed reads, until they are released; threads may share them.
    pub fn completed(&self) -> Completed<'_> {
        Completed { schedule: &self.schedule, buffers: &self.buffers }
    }

    /// The bytes of the neuron at `index`, as [`Completed::bytes`], to be rearranged in place.
    ///
    /// # Panics
    /// As [`Completed::bytes`].
    pub fn completed_mut(&mut self, index: usize, span: Span) -> &mut [u8] {
        let Start { number, pages, .. } = self.schedule.completed(index);
        let Some(buffer) = &mut self.buffers[number as usize] else {
            panic!("buffer {number} is with the device");
        };
        &mut buffer[within(pages, span)]
    }

    /// [`Fetcher::completed`], and the due reads, which one thread may submit while others compute.
    pub fn completed_and_due(&mut self) -> (Completed<'_>, Due<'_>) {
        let Self { flash, schedule, buffers, batch, .. } = self;
        (Completed { schedule, buffers }, Due { flash: &mut **flash, batch })
    }

    /// The read method, for the report.
    pub fn describe(&self) -> String {
        let phases = match self.schedule.steps().phases {
            Phases::Whole => "",
            Phases::TwoPhase => ", in two phases",
            Phases::Rows => ", row by row",
        };
        self.flash.describe() + phases
    }

    /// Counts since start, without [`Self::sustained`].
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

    /// Cancels all reads after an error: returns all buffers, with none in flight.
    pub fn abandon(&mut self) {
        self.schedule.forget();
        self.submit();
        while let Some(done) = self.flash.reap(true) {
            self.place(done);
        }
        self.schedule.release_all();
    }
}

/// Reads ready for the device, and reads that wait for room there. Each takes two microseconds of a call, so
/// one thread submits them while others compute.
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
    /// Submits the due reads, all in one call.
    pub fn submit(&mut self) {
        if !self.batch.is_empty() {
            self.flash.submit(self.batch);
        }
    }

    /// Submits the due reads, and lets reads waiting at the device start. The schedule does not change, so
    /// completed reads may be used meanwhile.
    pub fn go_on(&mut self) {
        self.submit();
        self.flash.go_on();
    }
}

/// Neurons in completed reads.
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

    /// Which parts of the neuron at `index`, which was given out, have completed.
    pub fn arrived(&self, index: usize) -> Arrived {
        self.schedule.arrived(index)
    }
}

/// The range of a span's bytes in a buffer that holds `pages`.
fn within(pages: Span, span: Span) -> std::ops::Range<usize> {
    let start = (span.offset - pages.offset) as usize;
    start..start + span.bytes as usize
}
