//! Reads ahead of the computation.
//!
//! A layer asks for neurons in ascending position; those that are not in memory are read, close ones together, as far
//! ahead as there are free buffers. They may be computed as they land, in any order; they are released in the order in
//! which they were asked for, so that the cache's contents do not depend on timing.
//!
//! ```text
//! asked     . . H . . . . H H . . . . . . .      H: in memory
//! reads     [0--] [1----]     [2] [3--] [4]      at most a buffer each; gaps up to gap_bytes are read over
//!             |landed |in flight    |             <- cursor: what lies behind is not submitted yet
//! ```
//!
//! What the next list will ask for may be foretold. Foretold reads start when every read of this list has, a few at a
//! time, so that no urgent read waits behind many of them; `begin` hands them to the next list, which takes those that
//! it asks for and drops the others.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use plans::layout::Span;

use crate::flash::{self, Buffer, Completion, Flash, Request};

#[cfg(test)]
mod tests;

/// Who wants neurons, by index in the list of those asked for.
pub trait Wanted {
    /// Where the neuron lies in the file; `None` if it is in memory. Spans ascend with the index.
    fn span(&self, index: usize) -> Option<Span>;
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

/// What has been read, and what became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads completed, and their bytes.
    pub flash: flash::Counters,
    /// Foretold reads that were started.
    pub foretold: u64,
    /// Their bytes.
    pub foretold_bytes: u64,
    /// Those of them that the next list asked for.
    pub foretold_used: u64,
    /// Bytes that were read because they lie between two neurons that were wanted or foretold.
    pub gap_bytes: u64,
    /// Time in which nothing was computed because nothing had landed.
    pub waited: Duration,
}

/// Reads in flight and landed.
pub struct Fetcher {
    flash: Box<dyn Flash>,
    /// Buffers that no read owns, with their numbers.
    free: Vec<(u32, Buffer)>,
    /// What became of the read that owns a buffer, by the buffer's number.
    states: Vec<State>,
    /// The list's reads, ascending.
    window: VecDeque<Read>,
    /// Foretold reads that this list has not come to yet, ascending.
    early: VecDeque<Read>,
    /// Foretold reads for the next list, ascending; and those of them that have not been started.
    next: VecDeque<Read>,
    queued: VecDeque<Run>,
    /// Foretold reads in flight, and the most there may be.
    early_in_flight: usize,
    early_max: usize,
    /// Reads formed and not yet submitted.
    batch: Vec<Request>,
    /// The first index that is not covered by the window or found in memory.
    cursor: usize,
    /// Whether every read of the list has been formed.
    all_formed: bool,
    gap_bytes: u64,
    buffer_bytes: u64,
    counters: Counters,
}

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher")
            .field("window", &self.window)
            .field("early", &self.early)
            .field("next", &self.next)
            .field("free", &self.free.len())
            .finish_non_exhaustive()
    }
}

/// One read, for the missing among the indices `first..end`.
#[derive(Debug)]
struct Read {
    /// Its buffer's number.
    number: u32,
    first: usize,
    end: usize,
    pages: Span,
    /// Its neurons have been given out.
    given: bool,
}

/// Neighbours that one read brings.
#[derive(Debug, Clone, Copy)]
struct Run {
    pages: Span,
    /// Of them between neurons.
    gap_bytes: u64,
}

impl Run {
    /// Of one neuron.
    fn of(pages: Span) -> Self {
        Self { pages, gap_bytes: 0 }
    }

    /// Takes the next neuron in, if it is close enough and the read stays within a buffer.
    fn join(&mut self, next: Span, gap_max: u64, buffer_bytes: u64) -> bool {
        let gap = next.offset.saturating_sub(self.pages.end());
        let bytes = next.end() - self.pages.offset;
        let joins = gap <= gap_max && bytes <= buffer_bytes;
        if joins {
            self.pages.bytes = self.pages.bytes.max(bytes);
            self.gap_bytes += gap;
        }
        joins
    }
}

#[derive(Debug)]
enum State {
    /// No read owns the buffer.
    Free,
    InFlight {
        early: bool,
    },
    /// In flight, and nobody wants it any more.
    Unwanted {
        early: bool,
    },
    Landed(Buffer),
    Failed(io::Error, Buffer),
}

impl Fetcher {
    /// Reads through `flash` into `buffers`, which are all of one length; at most `early_max` foretold reads in flight.
    ///
    /// # Panics
    /// If there is no buffer.
    pub fn new(
        mut flash: Box<dyn Flash>,
        mut buffers: Vec<Buffer>,
        gap_bytes: u64,
        early_max: usize,
    ) -> Self {
        assert!(!buffers.is_empty(), "reads need a buffer");
        flash.adopt(&mut buffers);
        let count = buffers.len();
        let deque = || VecDeque::with_capacity(count);
        Self {
            flash,
            buffer_bytes: buffers[0].len() as u64,
            free: (0..).zip(buffers).collect(),
            states: (0..count).map(|_| State::Free).collect(),
            window: deque(),
            early: deque(),
            next: deque(),
            queued: VecDeque::with_capacity(count),
            early_in_flight: 0,
            early_max,
            batch: Vec::with_capacity(count),
            cursor: 0,
            all_formed: true,
            gap_bytes,
            counters: Counters::default(),
        }
    }

    /// A new list; everything of the last one has been released. What was foretold is for this one.
    pub fn begin(&mut self) {
        debug_assert!(self.window.is_empty() && self.early.is_empty(), "the last list is done");
        self.cursor = 0;
        self.all_formed = false;
        self.queued.clear();
        std::mem::swap(&mut self.early, &mut self.next);
    }

    /// Forms reads for the list of `count` neurons as far as buffers reach, and says how far that is: every index
    /// below is in memory or in a read. They are submitted by the next [`Fetcher::poll`], which one thread may do while
    /// others compute.
    ///
    /// # Panics
    /// If a neuron's pages are longer than a buffer: plans are checked for that.
    pub fn ahead<W: Wanted>(&mut self, wanted: &W, count: usize) -> usize {
        while self.cursor < count {
            let Some(pages) = wanted.span(self.cursor).map(Span::pages) else {
                self.cursor += 1;
                continue;
            };
            while self.early.front().is_some_and(|read| read.pages.end() <= pages.offset) {
                self.drop_early();
            }
            let first = self.cursor;
            self.cursor += 1;
            if let Some(mut read) = self.early.pop_front_if(|read| read.pages.covers(pages)) {
                self.counters.foretold_used += 1;
                let end = self.extend(wanted, count, first, |next| read.pages.covers(next));
                (read.first, read.end) = (first, end);
                self.window.push_back(read);
                continue;
            }
            let Some((number, buffer)) = self.free.pop() else {
                self.cursor = first;
                if !self.window.is_empty() {
                    break;
                }
                // foretold reads have all the buffers: those that are wanted last give way
                match self.early.pop_back() {
                    Some(read) => self.let_go(read.number),
                    None => self.reap(),
                }
                continue;
            };
            assert!(pages.bytes <= self.buffer_bytes, "a bundle fits a buffer");
            let mut run = Run::of(pages);
            let (gap_max, buffer_bytes) = (self.gap_bytes, self.buffer_bytes);
            let end = self.extend(wanted, count, first, |next| run.join(next, gap_max, buffer_bytes));
            let pages = run.pages;
            self.counters.gap_bytes += run.gap_bytes;
            self.states[number as usize] = State::InFlight { early: false };
            self.batch.push(Request {
                tag: number,
                offset: pages.offset,
                bytes: pages.bytes as usize,
                buffer,
            });
            self.window.push_back(Read { number, first, end, pages, given: false });
        }
        self.all_formed = self.cursor == count;
        while self.all_formed && !self.early.is_empty() {
            self.drop_early();
        }
        self.cursor
    }

    /// Moves the cursor over what is in memory or joins the read that begins at `first`; says where the read ends.
    fn extend<W: Wanted>(
        &mut self,
        wanted: &W,
        count: usize,
        first: usize,
        mut joins: impl FnMut(Span) -> bool,
    ) -> usize {
        let mut end = first + 1;
        while self.cursor < count {
            if let Some(next) = wanted.span(self.cursor).map(Span::pages) {
                if !joins(next) {
                    break;
                }
                end = self.cursor + 1;
            }
            self.cursor += 1;
        }
        end
    }

    /// What the next list will probably ask for and is not in memory, ascending. As much as there are buffers for is
    /// remembered.
    pub fn foretell(&mut self, spans: impl Iterator<Item = Span>) {
        self.queued.clear();
        if self.early_max == 0 {
            return;
        }
        for pages in spans.map(Span::pages) {
            let last = self.queued.back_mut();
            if last.is_some_and(|last| last.join(pages, self.gap_bytes, self.buffer_bytes)) {
                continue;
            }
            if self.queued.len() == self.states.len() {
                break;
            }
            self.queued.push_back(Run::of(pages));
        }
    }

    /// Looks what has landed, submits what has been formed, and foretold reads if nothing is more urgent.
    pub fn poll(&mut self) {
        while let Some(done) = self.flash.reap(false) {
            self.place(done);
        }
        self.submit();
    }

    fn submit(&mut self) {
        // a call costs as much as a read: half of the foretold ones land before others start
        let most = if self.early_in_flight <= self.early_max / 2 { self.early_max } else { 0 };
        while self.all_formed && self.early_in_flight < most && !self.queued.is_empty() {
            let Some((number, buffer)) = self.free.pop() else { break };
            let Some(Run { pages, gap_bytes }) = self.queued.pop_front() else { break };
            self.states[number as usize] = State::InFlight { early: true };
            self.early_in_flight += 1;
            self.counters.foretold += 1;
            self.counters.foretold_bytes += pages.bytes;
            self.counters.gap_bytes += gap_bytes;
            self.batch.push(Request {
                tag: number,
                offset: pages.offset,
                bytes: pages.bytes as usize,
                buffer,
            });
            self.next.push_back(Read { number, first: 0, end: 0, pages, given: false });
        }
        if !self.batch.is_empty() {
            self.flash.submit(&mut self.batch);
        }
    }

    /// How far between `start` and `until` to compute now: up to the first read that is still in flight, but over
    /// `worth` neurons if they are worth waiting for. They are not while the device has nothing to do because every
    /// buffer is taken.
    pub fn reach(&mut self, start: usize, worth: usize, until: usize) -> usize {
        self.poll();
        let least = if self.free.is_empty() { start + 1 } else { start + worth };
        let in_flight = |read: &&Read| {
            read.first >= least && matches!(self.states[read.number as usize], State::InFlight { .. })
        };
        self.window.iter().find(in_flight).map_or(until, |read| read.first.min(until))
    }

    /// How far to compute now if reads are to go on meanwhile: all that is submitted if that is the whole list, else
    /// half of the reads.
    pub fn half(&self) -> usize {
        match self.window.get(self.window.len() / 2) {
            Some(read) if !self.all_formed && self.window.len() > 1 => read.first,
            _ => self.cursor,
        }
    }

    /// Gives out, once, the missing neurons that have landed and whose reads begin below `until`; says how many.
    ///
    /// # Errors
    /// The first read that failed; nothing is in flight then, and the list is gone.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn landed_below<W: Wanted>(
        &mut self,
        wanted: &W,
        until: usize,
        indices: &mut [u32],
    ) -> Result<usize, FetchError> {
        let mut count = 0;
        for read in self.window.iter_mut().take_while(|read| read.first < until).filter(|read| !read.given) {
            match &mut self.states[read.number as usize] {
                State::Landed(_) => {
                    read.given = true;
                    for index in (read.first..read.end).filter(|&index| wanted.span(index).is_some()) {
                        indices[count] = index as u32;
                        count += 1;
                    }
                }
                State::Failed(source, _) => {
                    let source = std::mem::replace(source, io::ErrorKind::Other.into());
                    let (offset, bytes) = (read.pages.offset, read.pages.bytes as usize);
                    self.abandon();
                    return Err(FetchError { offset, bytes, source });
                }
                _ => {}
            }
        }
        Ok(count)
    }

    /// Whether reads that begin below `until` have not been given out.
    pub fn awaits(&self, until: usize) -> bool {
        self.window.iter().take_while(|read| read.first < until).any(|read| !read.given)
    }

    /// Waits for any one read.
    pub fn wait(&mut self) {
        let start = Instant::now();
        self.reap();
        self.counters.waited += start.elapsed();
        self.poll();
    }

    /// Waits for every read that begins below `until`.
    pub fn wait_below(&mut self, until: usize) {
        self.poll();
        while self.in_flight_below(until) {
            self.wait();
        }
    }

    fn in_flight_below(&self, until: usize) -> bool {
        let in_flight = |read: &Read| matches!(self.states[read.number as usize], State::InFlight { .. });
        self.window.iter().take_while(|read| read.first < until).any(in_flight)
    }

    fn reap(&mut self) {
        if let Some(done) = self.flash.reap(true) {
            self.place(done);
        }
    }

    /// Puts a completed read where it belongs.
    fn place(&mut self, done: Completion) {
        let state = &mut self.states[done.tag as usize];
        if matches!(state, State::InFlight { early: true } | State::Unwanted { early: true }) {
            self.early_in_flight -= 1;
        }
        *state = match (&*state, done.result) {
            (State::Unwanted { .. }, _) => {
                self.free.push((done.tag, done.buffer));
                State::Free
            }
            (_, Ok(())) => State::Landed(done.buffer),
            (_, Err(source)) => State::Failed(source, done.buffer),
        };
    }

    /// Gives back the buffers of all reads whose neurons are below `until`: they have been computed.
    pub fn release(&mut self, until: usize) {
        while let Some(read) = self.window.pop_front_if(|read| read.end <= until) {
            self.let_go(read.number);
        }
    }

    /// The first of the foretold reads is for nothing.
    fn drop_early(&mut self) {
        if let Some(read) = self.early.pop_front() {
            self.let_go(read.number);
        }
    }

    /// Nobody wants a buffer's contents any more.
    fn let_go(&mut self, number: u32) {
        let state = &mut self.states[number as usize];
        match std::mem::replace(state, State::Free) {
            State::Landed(buffer) | State::Failed(_, buffer) => self.free.push((number, buffer)),
            State::InFlight { early } | State::Unwanted { early } => *state = State::Unwanted { early },
            State::Free => debug_assert!(false, "a read owns a buffer"),
        }
    }

    /// What has landed and stays until it is released; threads may look at it.
    pub fn landed(&self) -> Landed<'_> {
        Landed { window: &self.window, states: &self.states }
    }

    /// How the device reads, for the report.
    pub fn describe(&self) -> String {
        self.flash.describe()
    }

    /// Totals since start.
    pub fn counters(&self) -> Counters {
        Counters { flash: self.flash.counters(), ..self.counters }
    }

    /// After an error: everything back, nothing in flight.
    pub fn abandon(&mut self) {
        self.queued.clear();
        self.submit();
        while let Some(done) = self.flash.reap(true) {
            self.place(done);
        }
        while let Some(read) =
            (self.window.pop_front()).or_else(|| self.early.pop_front()).or_else(|| self.next.pop_front())
        {
            self.let_go(read.number);
        }
    }
}

/// Neurons that are computed where they landed.
#[derive(Debug, Clone, Copy)]
pub struct Landed<'a> {
    window: &'a VecDeque<Read>,
    states: &'a [State],
}

impl<'a> Landed<'a> {
    /// The bytes of the neuron at `index`, whose span is `span`.
    ///
    /// # Panics
    /// If its read has not landed or was released.
    pub fn bytes(&self, index: usize, span: Span) -> &'a [u8] {
        let read = &self.window[self.window.partition_point(|read| read.end <= index)];
        let State::Landed(buffer) = &self.states[read.number as usize] else {
            panic!("neuron {index} of the list has not landed");
        };
        &buffer[(span.offset - read.pages.offset) as usize..][..span.bytes as usize]
    }
}
