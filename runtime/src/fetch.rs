//! Reads ahead of the computation, landed in order.
//!
//! A layer asks for neurons in ascending position; those that are not in memory are read, close ones together, as far
//! ahead as there are free buffers. Whatever order the device answers in, neurons are handed over in the order in which
//! they were asked for: sums and the cache's contents then do not depend on timing.
//!
//! ```text
//! asked     . . H . . . . H H . . . . . . .      H: in memory
//! reads     [0--] [1----]     [2] [3--] [4]      at most a buffer each; gaps up to gap_bytes are read over
//!             |landed |in flight    |             <- cursor: what lies behind is not submitted yet
//! ```

use std::collections::VecDeque;
use std::io;

use plans::layout::Span;

use crate::flash::{Buffer, Completion, Counters, Flash, Request};

/// Who wants neurons, by index in the list of those asked for.
pub trait Wanted {
    /// Why a neuron is not accepted.
    type Error: From<FetchError>;

    /// Where the neuron lies in the file; `None` if it is in memory. Spans ascend with the index.
    fn span(&self, index: usize) -> Option<Span>;

    /// The neuron's bytes, as long as its span. Answers whether they must stay where they are until
    /// [`Fetcher::release`].
    ///
    /// # Errors
    /// If the bytes are not those of the neuron.
    fn accept(&mut self, index: usize, bytes: &[u8]) -> Result<bool, Self::Error>;
}

/// A read that failed.
#[derive(Debug, thiserror::Error)]
#[error("reading {bytes} bytes at {offset} of the container failed: {source}")]
pub struct FetchError {
    /// First byte.
    pub offset: u64,
    /// Length.
    pub bytes: usize,
    /// The system's reason; the end of the file is one.
    pub source: io::Error,
}

/// Reads in flight and landed.
pub struct Fetcher {
    flash: Box<dyn Flash>,
    free: Vec<Buffer>,
    window: VecDeque<Read>,
    /// Reads formed and not yet submitted; empty between calls.
    batch: Vec<Request>,
    /// The first index that is not covered by the window or found in memory.
    cursor: usize,
    next_tag: u32,
    gap_bytes: u64,
}

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher").field("window", &self.window).field("free", &self.free.len()).finish()
    }
}

/// One read, for the missing among the indices `first..end`.
#[derive(Debug)]
struct Read {
    tag: u32,
    first: usize,
    end: usize,
    pages: Span,
    state: State,
}

#[derive(Debug)]
enum State {
    InFlight,
    Landed { buffer: Buffer, handed_over: bool },
    Failed(FetchError),
    Released,
}

impl Fetcher {
    /// Reads through `flash` into `buffers`, which are all of one length.
    ///
    /// # Panics
    /// If there is no buffer.
    pub fn new(mut flash: Box<dyn Flash>, mut buffers: Vec<Buffer>, gap_bytes: u64) -> Self {
        assert!(!buffers.is_empty(), "reads need a buffer");
        flash.adopt(&mut buffers);
        let window = VecDeque::with_capacity(buffers.len());
        let batch = Vec::with_capacity(buffers.len());
        Self { flash, free: buffers, window, batch, cursor: 0, next_tag: 0, gap_bytes }
    }

    /// Forgets the last list; everything of it has been released.
    pub fn begin(&mut self) {
        debug_assert!(self.window.is_empty(), "the last list is done");
        self.cursor = 0;
    }

    /// Submits reads for the list of `count` neurons as far as buffers reach, and says how far that is: every index
    /// below is in memory or in a read.
    ///
    /// # Panics
    /// If a neuron's pages are longer than a buffer: plans are checked for that.
    pub fn ahead<W: Wanted>(&mut self, wanted: &W, count: usize) -> usize {
        while self.cursor < count {
            let Some(span) = wanted.span(self.cursor) else {
                self.cursor += 1;
                continue;
            };
            let Some(buffer) = self.free.pop() else { break };
            let mut pages = span.pages();
            assert!(pages.bytes <= buffer.len() as u64, "a bundle fits a buffer");
            let first = self.cursor;
            let mut end = first + 1;
            self.cursor = end;
            while self.cursor < count {
                let Some(next) = wanted.span(self.cursor).map(Span::pages) else {
                    self.cursor += 1;
                    continue;
                };
                let reach = next.offset + next.bytes - pages.offset;
                let gap = next.offset.saturating_sub(pages.offset + pages.bytes);
                if gap > self.gap_bytes || reach > buffer.len() as u64 {
                    break;
                }
                pages.bytes = pages.bytes.max(reach);
                self.cursor += 1;
                end = self.cursor;
            }
            let tag = self.next_tag;
            self.next_tag = self.next_tag.wrapping_add(1);
            let (offset, bytes) = (pages.offset, pages.bytes as usize);
            self.batch.push(Request { tag, offset, bytes, buffer });
            self.window.push_back(Read { tag, first, end, pages, state: State::InFlight });
        }
        if !self.batch.is_empty() {
            self.flash.submit(&mut self.batch);
        }
        self.cursor
    }

    /// How far between `start` and `until` to compute now: up to the first read that is still in flight, but over
    /// `worth` neurons if they are worth waiting for in [`Fetcher::land`]. They are not while the device has nothing to
    /// do because every buffer is taken.
    pub fn reach(&mut self, start: usize, worth: usize, until: usize) -> usize {
        while let Some(done) = self.flash.reap(false) {
            self.place(done);
        }
        let least = if self.free.is_empty() { start + 1 } else { start + worth };
        let in_flight = |read: &&Read| read.first >= least && matches!(read.state, State::InFlight);
        self.window.iter().find(in_flight).map_or(until, |read| read.first.min(until))
    }

    /// Waits for every read that begins below `until` and hands its neurons over, in order.
    ///
    /// # Errors
    /// The first read that failed or neuron that was not accepted; nothing is in flight then.
    pub fn land<W: Wanted>(&mut self, wanted: &mut W, until: usize) -> Result<(), W::Error> {
        let landed = self.land_in_order(wanted, until);
        if landed.is_err() {
            self.abandon();
        }
        landed
    }

    fn land_in_order<W: Wanted>(&mut self, wanted: &mut W, until: usize) -> Result<(), W::Error> {
        for i in 0..self.window.len() {
            if self.window[i].first >= until {
                break;
            }
            while matches!(self.window[i].state, State::InFlight) {
                self.reap();
            }
            let Read { first, end, pages, state, .. } = &mut self.window[i];
            if let State::Failed(_) = state
                && let State::Failed(error) = std::mem::replace(state, State::Released)
            {
                return Err(error.into());
            }
            let State::Landed { buffer, handed_over } = state else { continue };
            if *handed_over {
                continue;
            }
            let mut keep = false;
            for index in *first..*end {
                if let Some(span) = wanted.span(index) {
                    let bytes = &buffer[(span.offset - pages.offset) as usize..][..span.bytes as usize];
                    keep |= wanted.accept(index, bytes)?;
                }
            }
            *handed_over = true;
            if !keep && let State::Landed { buffer, .. } = std::mem::replace(state, State::Released) {
                self.free.push(buffer);
            }
        }
        Ok(())
    }

    /// Waits for any one read.
    fn reap(&mut self) {
        if let Some(done) = self.flash.reap(true) {
            self.place(done);
        }
    }

    /// Puts a completed read where it belongs.
    fn place(&mut self, done: Completion) {
        let front = self.window.front().map_or(done.tag, |read| read.tag);
        let read = &mut self.window[done.tag.wrapping_sub(front) as usize];
        read.state = match done.result {
            Ok(()) => State::Landed { buffer: done.buffer, handed_over: false },
            Err(source) => {
                self.free.push(done.buffer);
                State::Failed(FetchError { offset: read.pages.offset, bytes: done.bytes, source })
            }
        };
    }

    /// Gives back the buffers of all reads whose neurons are below `until`: they have been computed.
    pub fn release(&mut self, until: usize) {
        while self.window.front().is_some_and(|read| read.end <= until) {
            match self.window.pop_front().map(|read| read.state) {
                Some(State::Landed { buffer, .. }) => self.free.push(buffer),
                Some(State::Released | State::Failed(_)) | None => {}
                Some(State::InFlight) => debug_assert!(false, "released before it landed"),
            }
        }
    }

    /// What has landed and stays until it is released; threads may look at it.
    pub fn landed(&self) -> Landed<'_> {
        Landed { window: &self.window }
    }

    /// How the device reads, for the report.
    pub fn describe(&self) -> String {
        self.flash.describe()
    }

    /// What the device has read.
    pub fn counters(&self) -> Counters {
        self.flash.counters()
    }

    /// After an error: everything back, nothing in flight.
    fn abandon(&mut self) {
        while let Some(done) = self.flash.reap(true) {
            self.free.push(done.buffer);
        }
        for read in self.window.drain(..) {
            if let State::Landed { buffer, .. } = read.state {
                self.free.push(buffer);
            }
        }
    }
}

/// Neurons that are computed where they landed.
#[derive(Debug, Clone, Copy)]
pub struct Landed<'a> {
    window: &'a VecDeque<Read>,
}

impl<'a> Landed<'a> {
    /// The bytes of the neuron at `index`, whose span is `span`.
    ///
    /// # Panics
    /// If its read has not landed or was released.
    pub fn bytes(&self, index: usize, span: Span) -> &'a [u8] {
        let read = &self.window[self.window.partition_point(|read| read.end <= index)];
        let State::Landed { buffer, .. } = &read.state else {
            panic!("neuron {index} of the list has not landed");
        };
        &buffer[(span.offset - read.pages.offset) as usize..][..span.bytes as usize]
    }
}
