//! Decisions of the fetcher: the next read, and the neurons that can be computed. No device, bytes or clock.
//!
//! Buffers are numbers here. A read owns a buffer from when it is formed until its neurons are released, or
//! if unwanted until it completes. Demand reads are formed as far ahead as there are buffers. Prefetch reads
//! start, the surest first, once all demand reads have completed. A device may work through a batch in order
//! and report it at its end, so demand reads would wait for them. A certain prefetch read starts as soon as
//! every demand read has started.
//!
//! In a list that is read in [`Steps`], each read is of one neuron. When the first step was the gate, the
//! neuron is given out for its gate alone. [`Schedule::go_on`] reads the rest into the same buffer, and the
//! neuron is given out again.

use std::cmp::Reverse;
use std::collections::VecDeque;

use plans::layout::{Span, Steps};

#[cfg(test)]
mod tests;

/// The list of requested neurons, by index.
pub trait Wanted {
    /// The neuron's span in the file; `None` if it is in memory. Spans ascend.
    fn span(&self, index: usize) -> Option<Span>;
}

/// How the neurons of a list are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Whole bundles, neighbours in one read.
    Together,
    /// Single neurons, in the plan's steps if it has several.
    InSteps,
}

/// The part of a neuron that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrived {
    /// All rows at once.
    Whole,
    /// The gate row.
    Gate,
    /// The up and down rows.
    Rest,
}

/// A read to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Start {
    /// The buffer's number.
    pub(super) number: u32,
    /// The pages that the buffer is for.
    pub(super) pages: Span,
    /// The part of the pages that is read.
    pub(super) span: Span,
}

/// The neurons that may be computed next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextRead {
    /// This number of completed missing neurons.
    Neurons(usize),
    /// None until a read completes.
    Pending,
    /// None: no read is left.
    Done,
    /// None: this read failed.
    Failed(Start),
}

/// One read, of the missing neurons among the indices `first..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Read {
    start: Start,
    first: usize,
    end: usize,
    /// Number of earlier steps.
    step: usize,
    /// Whether its neurons have been given out.
    given: bool,
}

impl Read {
    /// A read that starts before a list requests it.
    fn new(start: Start) -> Self {
        Self { start, first: 0, end: 0, step: 0, given: false }
    }
}

/// The state of the read that owns a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    /// No read owns the buffer.
    Free,
    InFlight(Why),
    /// The read is in flight, and no list wants it any more.
    Unwanted(Why),
    Completed,
    Failed,
}

/// Why a read was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Why {
    /// A demand read.
    Urgent,
    /// It is a prefetch read.
    Early,
    /// A prefetch read that the list has requested since.
    Late,
}

impl Why {
    fn was_prefetched(self) -> bool {
        self != Self::Urgent
    }

    fn is_wanted(self) -> bool {
        self != Self::Early
    }
}

/// Neighbours in one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Run {
    pages: Span,
    /// Bytes between the neurons.
    gap_bytes: u64,
}

impl Run {
    /// The run of one neuron.
    fn of(pages: Span) -> Self {
        Self { pages, gap_bytes: 0 }
    }

    /// Adds the next neuron, if it is close enough and the read still fits a buffer.
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

/// A prefetch read that has not been started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Prefetched {
    run: Run,
    /// The bits of its highest score; positive floats order as their bits do.
    sure: u32,
}

impl Prefetched {
    /// Whether it is certain to be requested.
    fn is_certain(&self) -> bool {
        self.sure == f32::INFINITY.to_bits()
    }

    /// Order of prefetch reads: the surest is highest, then the first.
    fn key(&self) -> (u32, Reverse<u64>) {
        (self.sure, Reverse(self.run.pages.offset))
    }
}

/// Counts of formed reads, as in [`super::FetchCounters`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Formed {
    pub(super) prefetch_reads: u64,
    pub(super) prefetch_bytes: u64,
    pub(super) prefetch_reads_used: u64,
    pub(super) gap_bytes: u64,
}

/// Reads in flight and completed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Schedule {
    /// Buffers that no read owns.
    free: Vec<u32>,
    /// States of the reads that own buffers, by the buffer's number.
    states: Vec<State>,
    /// The list's reads, ascending.
    window: VecDeque<Read>,
    /// Prefetch reads that this list has not reached, ascending.
    early: VecDeque<Read>,
    /// Prefetch reads for the next list, ascending.
    next: VecDeque<Read>,
    /// Prefetch reads for the next list that are not started, the surest last.
    queued: Vec<Prefetched>,
    /// Number of prefetch reads in flight, and the limit.
    early_in_flight: usize,
    early_max: usize,
    /// Reads in flight that the list requested.
    wanted_in_flight: usize,
    /// Reads to be started, in order; the caller drains them.
    pub(super) formed: Vec<Start>,
    /// The first index that is not covered by the window or found in memory.
    cursor: usize,
    /// Whether every read of the list has been formed.
    all_formed: bool,
    gap_bytes: u64,
    buffer_bytes: u64,
    steps: Steps,
    /// Whether this list is read in steps.
    stepwise: bool,
    counts: Formed,
}

impl Schedule {
    /// A schedule for `count` buffers of `buffer_bytes`. It reads over gaps up to `gap_bytes` and has at most
    /// `early_max` prefetch reads in flight; `steps` is for lists that are read in steps.
    pub(super) fn new(
        count: usize,
        buffer_bytes: u64,
        gap_bytes: u64,
        early_max: usize,
        steps: Steps,
    ) -> Self {
        let deque = || VecDeque::with_capacity(count);
        Self {
            free: (0..count as u32).collect(),
            states: vec![State::Free; count],
            window: deque(),
            early: deque(),
            next: deque(),
            queued: Vec::with_capacity(2 * count),
            early_in_flight: 0,
            early_max,
            wanted_in_flight: 0,
            formed: Vec::with_capacity(count),
            cursor: 0,
            all_formed: true,
            gap_bytes,
            buffer_bytes,
            steps,
            stepwise: false,
            counts: Formed::default(),
        }
    }

    /// Starts a new list. All reads of the last list must have been released. Prefetched reads are for the
    /// new list.
    pub(super) fn begin(&mut self, reads: Reads) {
        let stepwise = reads == Reads::InSteps && self.steps.spans.len() > 1;
        let before = std::mem::replace(&mut self.stepwise, stepwise);
        debug_assert!(self.window.is_empty() && self.early.is_empty(), "the last list is done");
        self.cursor = 0;
        self.all_formed = false;
        self.queued.clear();
        std::mem::swap(&mut self.early, &mut self.next);
        // a list without steps cannot use first steps
        while before != self.stepwise && !self.early.is_empty() {
            self.drop_early();
        }
    }

    /// Forms reads for the list of `count` neurons as far as buffers reach. Returns how far that is: every
    /// lower index is in memory or in a read. `None` if unwanted reads own all buffers: one must complete
    /// first.
    ///
    /// # Panics
    /// If a neuron's pages are longer than a buffer; plans are checked for that.
    pub(super) fn ahead<W: Wanted>(&mut self, wanted: &W, count: usize) -> Option<usize> {
        while self.cursor < count {
            let Some(pages) = wanted.span(self.cursor).map(Span::pages) else {
                self.cursor += 1;
                continue;
            };
            while self.early.front().is_some_and(|read| read.start.pages.end() <= pages.offset) {
                self.drop_early();
            }
            let first = self.cursor;
            if let Some(mut read) = self.early.pop_front_if(|read| read.start.pages.covers(pages)) {
                self.counts.prefetch_reads_used += 1;
                let state = &mut self.states[read.start.number as usize];
                if *state == State::InFlight(Why::Early) {
                    *state = State::InFlight(Why::Late);
                    self.wanted_in_flight += 1;
                }
                let end = self.extend(wanted, count, |next| read.start.pages.covers(next));
                (read.first, read.end) = (first, end);
                self.window.push_back(read);
                continue;
            }
            let Some(number) = self.free.pop() else {
                if !self.window.is_empty() {
                    break;
                }
                // prefetch reads have all the buffers
                if !self.give_way() {
                    return None;
                }
                continue;
            };
            assert!(pages.bytes <= self.buffer_bytes, "a bundle fits a buffer");
            let mut run = Run::of(pages);
            let (gap_max, buffer_bytes, alone) = (self.gap_bytes, self.buffer_bytes, self.stepwise);
            let end = self.extend(wanted, count, |next| !alone && run.join(next, gap_max, buffer_bytes));
            self.counts.gap_bytes += run.gap_bytes;
            self.states[number as usize] = State::InFlight(Why::Urgent);
            self.wanted_in_flight += 1;
            let start = self.start(number, run.pages);
            self.window.push_back(Read { first, end, ..Read::new(start) });
        }
        self.all_formed = self.cursor == count;
        while self.all_formed && !self.early.is_empty() {
            self.drop_early();
        }
        Some(self.cursor)
    }

    /// Moves the cursor from the first neuron of a read over neurons in memory or in the same read; returns
    /// the read's end.
    fn extend<W: Wanted>(&mut self, wanted: &W, count: usize, mut joins: impl FnMut(Span) -> bool) -> usize {
        let mut end = self.cursor + 1;
        self.cursor = end;
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

    /// Queues prefetch reads of missing neurons that the next list will probably request, ascending. Call it
    /// once every read of this list is formed. Higher scores, above zero, are surer; infinity is certain.
    /// Keeps the surest, at most as many as there are buffers.
    pub(super) fn prefetch(&mut self, probable: impl Iterator<Item = (Span, f32)>) {
        debug_assert!(self.all_formed, "demand reads come first");
        self.queued.clear();
        if self.early_max == 0 {
            return;
        }
        for (span, score) in probable {
            let (pages, sure) = (span.pages(), score.max(0.0).to_bits());
            // an earlier prefetch may have started
            let started = self.next.partition_point(|read| read.start.pages.offset <= pages.offset);
            if started > 0 && self.next[started - 1].start.pages.end() >= pages.end() {
                continue;
            }
            if let Some(last) = self.queued.last_mut().filter(|_| !self.stepwise)
                && last.run.join(pages, self.gap_bytes, self.buffer_bytes)
            {
                last.sure = last.sure.max(sure);
                continue;
            }
            if self.queued.len() == 2 * self.states.len() {
                self.keep_surest();
            }
            self.queued.push(Prefetched { run: Run::of(pages), sure });
        }
        self.keep_surest();
        self.queued.sort_unstable_by_key(Prefetched::key);
    }

    /// Drops queued prefetch reads beyond the number of buffers, the least sure first.
    fn keep_surest(&mut self) {
        let buffers = self.states.len();
        if self.queued.len() > buffers {
            self.queued.select_nth_unstable_by_key(buffers, |prefetched| Reverse(prefetched.key()));
            self.queued.truncate(buffers);
        }
    }

    /// Drops all queued prefetch reads.
    pub(super) fn forget(&mut self) {
        self.queued.clear();
    }

    /// Forms prefetch reads, the surest first: there is time for only some, and two in five of the less sure
    /// half are useless. A device call costs as much as a read, so new ones start once half of those in
    /// flight have completed.
    pub(super) fn start_prefetches(&mut self) {
        let delays =
            self.wanted_in_flight > 0 && self.queued.last().is_some_and(|surest| !surest.is_certain());
        if delays || self.early_in_flight > self.early_max / 2 {
            return;
        }
        let formed = self.formed.len();
        while self.early_in_flight < self.early_max && !self.queued.is_empty() {
            let Some(number) = self.free.pop() else { break };
            let Some(Prefetched { run: Run { pages, gap_bytes }, .. }) = self.queued.pop() else { break };
            self.states[number as usize] = State::InFlight(Why::Early);
            self.early_in_flight += 1;
            self.counts.prefetch_reads += 1;
            self.counts.gap_bytes += gap_bytes;
            let start = self.start(number, pages);
            self.counts.prefetch_bytes += start.span.bytes;
            let before = self.next.partition_point(|read| read.start.pages.offset < pages.offset);
            self.next.insert(before, Read::new(start));
        }
        self.formed[formed..].sort_unstable_by_key(|start| start.span.offset);
    }

    /// Forms a read of `pages`, or its first step.
    fn start(&mut self, number: u32, pages: Span) -> Start {
        let span = if self.stepwise { step_of(&self.steps.spans[0], pages) } else { pages };
        let start = Start { number, pages, span };
        self.formed.push(start);
        start
    }

    /// Records the end of a read.
    pub(super) fn place(&mut self, number: u32, good: bool) {
        let state = &mut self.states[number as usize];
        if let State::InFlight(why) | State::Unwanted(why) = *state {
            self.early_in_flight -= usize::from(why.was_prefetched());
            self.wanted_in_flight -= usize::from(why.is_wanted());
        }
        *state = match state {
            State::Unwanted(_) => {
                self.free.push(number);
                State::Free
            }
            _ if good => State::Completed,
            _ => State::Failed,
        };
    }

    /// The end of the compute window that starts at `start`: the first read in flight after `worth` neurons,
    /// at most `until`. If no buffer is free, one neuron is enough.
    pub(super) fn reach(&self, start: usize, worth: usize, until: usize) -> usize {
        let least = if self.free.is_empty() { start + 1 } else { start + worth };
        let first = self.window.iter().find(|read| read.first >= least && self.in_flight(read));
        first.map_or(until, |read| read.first.min(until))
    }

    /// The end of the compute window that leaves reads in flight. If all reads of the list are formed, the
    /// end of the list; otherwise half of the reads.
    pub(super) fn half(&self) -> usize {
        match self.window.get(self.window.len() / 2) {
            Some(read) if !self.all_formed && self.window.len() > 1 => read.first,
            _ => self.cursor,
        }
    }

    /// Gives out completed missing neurons whose reads start below `until`, each once.
    ///
    /// # Panics
    /// If `indices` is too short.
    pub(super) fn give<W: Wanted>(&mut self, wanted: &W, until: usize, indices: &mut [u32]) -> NextRead {
        let (mut count, mut awaited) = (0, false);
        let last = if self.stepwise { self.steps.spans.len() - 1 } else { 0 };
        for read in self.window.iter_mut().take_while(|read| read.first < until).filter(|read| !read.given) {
            let state = &mut self.states[read.start.number as usize];
            match *state {
                State::Completed if read.step < last && !(self.steps.asks && read.step == 0) => {
                    *state = next_step(read, &self.steps, &mut self.formed);
                    self.wanted_in_flight += 1;
                    awaited = true;
                }
                State::Completed => {
                    read.given = true;
                    for index in (read.first..read.end).filter(|&index| wanted.span(index).is_some()) {
                        indices[count] = index as u32;
                        count += 1;
                    }
                }
                State::Failed => return NextRead::Failed(read.start),
                _ => awaited = true,
            }
        }
        match count {
            0 if awaited => NextRead::Pending,
            0 => NextRead::Done,
            count => NextRead::Neurons(count),
        }
    }

    /// The index, at most `until`, below which every missing neuron has been given out.
    pub(super) fn given_below(&self, until: usize) -> usize {
        let first = self.window.iter().find(|read| !read.given);
        first.map_or(until, |read| read.first.min(until))
    }

    /// Forms the rest of the neuron at `index`, whose gate was given out.
    ///
    /// # Panics
    /// If its gate was not given out.
    pub(super) fn go_on(&mut self, index: usize) {
        assert_eq!(self.arrived(index), Arrived::Gate, "only a gate is followed by the rest");
        let at = self.window.partition_point(|read| read.end <= index);
        let read = &mut self.window[at];
        self.states[read.start.number as usize] = next_step(read, &self.steps, &mut self.formed);
        self.wanted_in_flight += 1;
    }

    /// Whether a read that starts below `until` is in flight.
    pub(super) fn in_flight_below(&self, until: usize) -> bool {
        self.window.iter().take_while(|read| read.first < until).any(|read| self.in_flight(read))
    }

    fn in_flight(&self, read: &Read) -> bool {
        matches!(self.states[read.start.number as usize], State::InFlight(_))
    }

    /// Releases the buffers of all reads whose neurons are below `until`.
    pub(super) fn release(&mut self, until: usize) {
        while let Some(read) = self.window.pop_front_if(|read| read.end <= until) {
            self.let_go(read.start.number);
        }
    }

    /// Releases all buffers.
    pub(super) fn release_all(&mut self) {
        while let Some(read) =
            (self.window.pop_front()).or_else(|| self.early.pop_front()).or_else(|| self.next.pop_front())
        {
            self.let_go(read.start.number);
        }
    }

    /// Drops the last prefetch read that this list has not reached; returns whether there was one.
    pub(super) fn give_way(&mut self) -> bool {
        let last = self.early.pop_back();
        if let Some(read) = last {
            self.let_go(read.start.number);
        }
        last.is_some()
    }

    /// Drops the first prefetch read.
    fn drop_early(&mut self) {
        if let Some(read) = self.early.pop_front() {
            self.let_go(read.start.number);
        }
    }

    /// Marks a buffer's contents as unwanted.
    fn let_go(&mut self, number: u32) {
        let state = &mut self.states[number as usize];
        match *state {
            State::Completed | State::Failed => {
                *state = State::Free;
                self.free.push(number);
            }
            State::InFlight(why) | State::Unwanted(why) => *state = State::Unwanted(why),
            State::Free => debug_assert!(false, "a read owns a buffer"),
        }
    }

    /// The steps of lists that are read in steps.
    pub(super) fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Counts of formed reads.
    pub(super) fn counts(&self) -> Formed {
        self.counts
    }

    /// The read of the neuron at `index`.
    ///
    /// # Panics
    /// If it has not completed or was released.
    pub(super) fn completed(&self, index: usize) -> Start {
        let start = self.read_of(index).start;
        let state = self.states[start.number as usize];
        assert_eq!(state, State::Completed, "neuron {index} of the list has not completed");
        start
    }

    /// Whether gates of this list are given out before the rest.
    pub(super) fn asks(&self) -> bool {
        self.stepwise && self.steps.asks
    }

    /// Which parts of the neuron at `index`, which was given out, have completed.
    pub(super) fn arrived(&self, index: usize) -> Arrived {
        match self.asks() {
            false => Arrived::Whole,
            true if self.read_of(index).step == 0 => Arrived::Gate,
            true => Arrived::Rest,
        }
    }

    fn read_of(&self, index: usize) -> &Read {
        &self.window[self.window.partition_point(|read| read.end <= index)]
    }
}

/// A step as a span of the file.
fn step_of(step: &Span, pages: Span) -> Span {
    Span { offset: pages.offset + step.offset, bytes: step.bytes }
}

/// Forms the next step of a read whose last step has completed.
fn next_step(read: &mut Read, steps: &Steps, formed: &mut Vec<Start>) -> State {
    read.step += 1;
    read.given = false;
    read.start.span = step_of(&steps.spans[read.step], read.start.pages);
    formed.push(read.start);
    State::InFlight(Why::Urgent)
}
