//! The schedule in every case of a few neurons and buffers, with every order of completions. [`run`] is the
//! specification:
//!
//! * Each missing neuron is given once, with its own bytes.
//! * Demand reads start before prefetch reads, and surer prefetch reads before others.
//! * A prefetched neuron is not read again, and a buffer has one read at a time.
//! * Prefetch reads in flight stay within the limit, and some step is always possible.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use plans::layout::Phases;

use super::*;

const PAGE: u64 = 4096;

impl Schedule {
    /// Whether every buffer is free and nothing is in flight.
    pub(in crate::fetch) fn is_idle(&self) -> bool {
        self.free.len() == self.states.len()
            && self.states.iter().all(|state| *state == State::Free)
            && (self.early_in_flight, self.wanted_in_flight) == (0, 0)
    }
}

/// Runs that differ in their choices, until every choice has been made in every state. A state seen before is
/// not explored again.
#[derive(Default)]
struct Search {
    /// The choices of this run, each with its number of options.
    path: Vec<(usize, usize)>,
    depth: usize,
    seen: HashSet<u64>,
}

/// This state was explored before: the run ends.
struct Seen;

impl Search {
    fn over_all(mut run: impl FnMut(&mut Self) -> Result<(), Seen>) {
        let mut search = Self::default();
        loop {
            search.depth = 0;
            let _seen = run(&mut search);
            while search.path.pop_if(|(choice, options)| *choice + 1 == *options).is_some() {}
            match search.path.last_mut() {
                Some((choice, _)) => *choice += 1,
                None => return,
            }
        }
    }

    /// Chooses one of `options`, in a state.
    fn choose(&mut self, options: usize, state: impl Hash) -> Result<usize, Seen> {
        if self.depth == self.path.len() {
            let mut hasher = DefaultHasher::new();
            state.hash(&mut hasher);
            if !self.seen.insert(hasher.finish()) {
                return Err(Seen);
            }
            self.path.push((0, options));
        }
        self.depth += 1;
        Ok(self.path[self.depth - 1].0)
    }
}

fn pages(first: u64, count: u64) -> Span {
    Span { offset: first * PAGE, bytes: count * PAGE }
}

/// The order of certainty among prefetched neurons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Sure {
    #[default]
    First,
    Last,
    /// All are certain.
    Certain,
}

/// A list: requested positions, some of them in memory, some with gates that fire, and prefetched positions
/// of the next list.
#[derive(Debug, Clone, Default)]
struct List {
    requested: Vec<u64>,
    in_memory: Vec<u64>,
    fires: Vec<u64>,
    prefetched: Vec<u64>,
    sure: Sure,
    /// Pages of a neuron.
    pages: u64,
    /// Whether its neurons are read whole, not in steps.
    whole: bool,
}

impl List {
    fn place(&self, rank: u64) -> Span {
        pages(rank * self.pages, self.pages)
    }

    /// The spans of the prefetched neurons, with their scores.
    fn probable(&self) -> impl Iterator<Item = (Span, f32)> + '_ {
        let score = |i: usize| match self.sure {
            Sure::First => (self.prefetched.len() - i) as f32,
            Sure::Last => (i + 1) as f32,
            Sure::Certain => f32::INFINITY,
        };
        self.prefetched.iter().enumerate().map(move |(i, &rank)| (self.place(rank), score(i)))
    }
}

impl Wanted for List {
    fn span(&self, index: usize) -> Option<Span> {
        let rank = self.requested[index];
        (!self.in_memory.contains(&rank)).then(|| self.place(rank))
    }
}

#[derive(Debug, Clone)]
struct Case {
    lists: Vec<List>,
    buffers: usize,
    buffer_pages: u64,
    gap_pages: u64,
    early_max: usize,
    /// Reads of this page fail.
    broken: Option<u64>,
    steps: Steps,
}

impl Case {
    /// Whether a span has the broken page.
    fn fails(&self, span: Span) -> bool {
        self.broken.is_some_and(|page| span.covers(pages(page, 1)))
    }

    /// Whether the gate decides if the rest of a neuron is read.
    fn asks(&self, list: &List) -> bool {
        self.steps.asks && !list.whole
    }

    /// The reads of a neuron, in order.
    fn reads_of(&self, list: &List, neuron: Span) -> Vec<Span> {
        match &self.steps.spans[..] {
            [] => vec![neuron],
            _ if list.whole => vec![neuron],
            steps => steps.iter().map(|step| step_of(step, neuron)).collect(),
        }
    }
}

/// The device: reads in flight, and the contents of each buffer.
struct Device<'a> {
    case: &'a Case,
    in_flight: Vec<Start>,
    holds: Vec<Vec<Span>>,
}

impl Device<'_> {
    /// Completes one of the reads in flight; may complete none unless `wait`.
    fn complete(
        &mut self,
        schedule: &mut Schedule,
        search: &mut Search,
        wait: bool,
        context: impl Hash,
    ) -> Result<bool, Seen> {
        let options = self.in_flight.len() + usize::from(!wait);
        assert!(options > 0, "nothing is in flight and something is waited for: {:?}", self.case);
        self.in_flight.sort_by_key(|start| start.number);
        let choice = search.choose(options, (&*schedule, &self.in_flight, wait, context))?;
        if choice == self.in_flight.len() {
            return Ok(false);
        }
        let Start { number, span, .. } = self.in_flight.remove(choice);
        let good = !self.case.fails(span);
        if good {
            self.holds[number as usize].push(span);
        }
        schedule.place(number, good);
        Ok(true)
    }

    /// The work of [`crate::fetch::Fetcher::poll`].
    fn poll(
        &mut self,
        schedule: &mut Schedule,
        search: &mut Search,
        list: &List,
        context: impl Hash + Copy,
    ) -> Result<(), Seen> {
        while self.complete(schedule, search, false, context)? {}
        self.submit(schedule, list);
        Ok(())
    }

    fn submit(&mut self, schedule: &mut Schedule, list: &List) {
        let urgent = schedule.formed.len();
        schedule.start_prefetches();
        let sure = |start: &Start| {
            let of_it = list.probable().filter(|(span, _)| start.pages.covers(*span));
            of_it.map(|(_, score)| score.to_bits()).max()
        };
        let started = &schedule.formed[urgent..];
        if let Some(least) = started.iter().map(sure).min() {
            let surer = schedule.queued.iter().any(|prefetched| Some(prefetched.sure) > least);
            assert!(!surer, "what is surer is left: {:?}", self.case);
        }
        assert!(started.is_sorted_by_key(|start| start.span.offset), "out of order: {:?}", self.case);
        let wanted =
            |state: &&State| matches!(state, State::InFlight(why) | State::Unwanted(why) if why.is_wanted());
        let wanted = schedule.states.iter().filter(wanted).count();
        assert_eq!(wanted, schedule.wanted_in_flight, "{:?}", self.case);
        let delays = wanted > 0 && !started.is_empty() && list.sure != Sure::Certain;
        assert!(!delays, "what is wanted waits for what may be: {:?}", self.case);
        for (i, start) in schedule.formed.drain(..).enumerate() {
            if i >= urgent {
                let formed = schedule.cursor == list.requested.len();
                assert!(formed, "a read was prefetched before all demand reads were formed: {:?}", self.case);
            }
            assert!(
                start.pages.bytes <= self.case.buffer_pages * PAGE,
                "longer than a buffer: {:?}",
                self.case
            );
            let again = schedule.early.iter().any(|read| read.start.pages.covers(start.pages));
            assert!(!again, "read though it was prefetched: {:?}", self.case);
            let twice = self.in_flight.iter().any(|other| other.number == start.number);
            assert!(!twice, "a buffer is with the device already: {:?}", self.case);
            assert!(start.pages.covers(start.span), "beyond its buffer: {:?}", self.case);
            let mut reads = schedule.window.iter();
            if !reads.any(|read| read.start.number == start.number && read.step > 0) {
                self.holds[start.number as usize].clear();
            }
            self.in_flight.push(start);
        }
        let early = |start: &&Start| {
            let state = schedule.states[start.number as usize];
            matches!(state, State::InFlight(why) | State::Unwanted(why) if why.was_prefetched())
        };
        let early = self.in_flight.iter().filter(early).count();
        assert!(early <= self.case.early_max && early == schedule.early_in_flight, "{:?}", self.case);
    }
}

/// Checks that a dropped prefetch read had no buffer left and is not surer than any that has one.
fn remembers_the_surest(schedule: &Schedule, list: &List, case: &Case) {
    let runs = &schedule.queued;
    let forgotten = |span: Span| !runs.iter().any(|prefetched| prefetched.run.pages.covers(span));
    let surest = list.probable().filter(|&(span, _)| forgotten(span)).map(|(_, score)| score.to_bits()).max();
    let full = case.early_max == 0 || runs.len() == case.buffers;
    assert!(surest.is_none() || full, "dropped though there is room: {case:?}");
    let least = runs.iter().map(|prefetched| prefetched.sure).min();
    assert!(least.is_none() || surest <= least, "a surer read is dropped: {case:?}");
}

/// Runs the lists through a schedule as decoding does.
fn run(case: &Case, search: &mut Search) -> Result<(), Seen> {
    let (room, gap, steps) = (case.buffer_pages * PAGE, case.gap_pages * PAGE, case.steps.clone());
    let schedule = &mut Schedule::new(case.buffers, room, gap, case.early_max, steps);
    let mut device = Device { case, in_flight: Vec::new(), holds: vec![Vec::new(); case.buffers] };
    'lists: for (number, list) in case.lists.iter().enumerate() {
        let count = list.requested.len();
        let (mut start, mut given, mut prefetched) = (0, vec![[false; 2]; count], false);
        let mut indices = vec![0; count];
        schedule.begin(if list.whole { Reads::Together } else { Reads::InSteps });
        loop {
            let formed = loop {
                match schedule.ahead(list, count) {
                    Some(formed) => break formed,
                    None => device.complete(schedule, search, true, (number, start))?,
                };
            };
            if formed == count && !prefetched {
                schedule.prefetch(list.probable());
                remembers_the_surest(schedule, list, case);
                prefetched = true;
            }
            if start == count {
                break;
            }
            let end = schedule.half();
            assert!(start < end && end <= formed, "every turn computes something: {case:?}");
            device.poll(schedule, search, list, (number, start, prefetched))?;
            loop {
                match schedule.give(list, end, &mut indices) {
                    NextRead::Neurons(completed) => {
                        for index in indices[..completed].iter().map(|&index| index as usize) {
                            let wanted = list.span(index).unwrap();
                            let steps = case.reads_of(list, wanted);
                            let arrived = schedule.arrived(index);
                            let needed = if arrived == Arrived::Gate { &steps[..1] } else { &steps[..] };
                            let held = &device.holds[schedule.completed(index).number as usize];
                            let holds = |step: &Span| held.iter().any(|held| held.covers(*step));
                            assert!(needed.iter().all(holds), "{arrived:?} without its bytes: {case:?}");
                            assert_eq!(arrived == Arrived::Whole, !case.asks(list), "{case:?}");
                            let given = &mut given[index][usize::from(arrived != Arrived::Gate)];
                            assert!(!std::mem::replace(given, true), "given twice: {case:?}");
                            if arrived == Arrived::Gate && list.fires.contains(&list.requested[index]) {
                                schedule.go_on(index);
                            }
                        }
                    }
                    NextRead::Pending => {
                        device.submit(schedule, list);
                        device.complete(schedule, search, true, (number, start, &given))?;
                        device.poll(schedule, search, list, (number, start, prefetched))?;
                    }
                    NextRead::Done => break,
                    NextRead::Failed(start) => {
                        assert!(case.fails(start.span));
                        break 'lists;
                    }
                }
            }
            for index in start..end {
                let (missing, asks) = (list.span(index).is_some(), case.asks(list));
                let whole = missing && (!asks || list.fires.contains(&list.requested[index]));
                assert_eq!(given[index], [missing && asks, whole], "{index} of {case:?}");
            }
            schedule.release(end);
            start = end;
        }
        // prefetch reads go on during other compute
        device.poll(schedule, search, list, (number, "after it"))?;
        // a read of several neurons fails with any of them
        let touched = |&rank: &u64| {
            let steps = case.reads_of(list, list.place(rank));
            let ends = if case.asks(list) && !list.fires.contains(&rank) { 1 } else { steps.len() };
            !list.in_memory.contains(&rank) && steps[..ends].iter().any(|&step| case.fails(step))
        };
        assert!(!list.requested.iter().any(touched), "computed what could not be read: {case:?}");
    }
    // after the last token, and after an error
    schedule.forget();
    device.in_flight.append(&mut schedule.formed);
    while !device.in_flight.is_empty() {
        device.complete(schedule, search, true, "the end")?;
    }
    schedule.release_all();
    assert!(schedule.is_idle(), "a buffer is lost: {case:?}");
    Ok(())
}

/// Every subset of `0..positions`.
fn subsets(ranks: u64) -> impl Iterator<Item = Vec<u64>> + Clone {
    (0..1_u64 << ranks).map(move |bits| (0..ranks).filter(|p| bits >> p & 1 == 1).collect())
}

/// Buffers of one neuron, of two without a gap, and of three pages with a gap between two.
const SIZES: [(u64, u64); 3] = [(1, 0), (2, 0), (3, 1)];

#[test]
fn any_list_is_computed_whole_in_any_order_of_completions() {
    for requested in subsets(4) {
        for mut in_memory in subsets(4) {
            in_memory.retain(|rank| requested.contains(rank));
            for (buffers, (buffer_pages, gap_pages)) in (1..=4).flat_map(|b| SIZES.map(|room| (b, room))) {
                for broken in [None, Some(1)] {
                    let (requested, in_memory) = (requested.clone(), in_memory.clone());
                    let lists = vec![List { requested, in_memory, pages: 1, ..List::default() }];
                    let (early_max, steps) = (0, Steps::default());
                    let case = Case { lists, buffers, buffer_pages, gap_pages, early_max, broken, steps };
                    Search::over_all(|search| run(&case, search));
                }
            }
        }
    }
}

#[test]
fn every_prefetched_neuron_is_used_or_dropped_and_never_in_the_way() {
    for ((requested, prefetched), next) in subsets(3)
        .flat_map(|a| subsets(3).map(move |f| (a.clone(), f)))
        .flat_map(|(a, f)| subsets(3).map(move |next| ((a.clone(), f.clone()), next)))
    {
        let first = List { requested, prefetched, pages: 1, ..List::default() };
        let second = List { requested: next, pages: 1, ..List::default() };
        for buffers in 1..=3 {
            for (early_max, sure) in [1, 2]
                .into_iter()
                .flat_map(|most| [Sure::First, Sure::Last, Sure::Certain].map(|sure| (most, sure)))
            {
                let first = List { sure, ..first.clone() };
                for (buffer_pages, gap_pages) in [SIZES[0], SIZES[2]] {
                    let lists = vec![first.clone(), second.clone()];
                    let (broken, steps) = (None, Steps::default());
                    let case = Case { lists, buffers, buffer_pages, gap_pages, early_max, broken, steps };
                    Search::over_all(|search| run(&case, search));
                }
            }
        }
    }
}

#[test]
fn a_gate_is_given_out_before_the_rest_and_the_rest_only_on_request() {
    let two_phase = Steps { phases: Phases::TwoPhase, spans: vec![pages(0, 1), pages(1, 1)], asks: true };
    let rows = Steps { phases: Phases::Rows, spans: vec![pages(0, 1), pages(0, 2), pages(1, 1)], asks: true };
    let up_down = Steps { phases: Phases::Rows, spans: vec![pages(0, 2), pages(1, 1)], asks: false };
    for (requested, fires) in
        subsets(3).flat_map(|requested| subsets(3).map(move |fires| (requested.clone(), fires)))
    {
        for steps in [&two_phase, &rows, &up_down] {
            for (buffers, broken) in [(1, None), (2, None), (3, None), (2, Some(2)), (3, Some(3))] {
                for (prefetched, whole) in [(vec![], false), (vec![0, 2], false), (vec![0, 2], true)] {
                    // the second list requests all neurons, prefetched or not
                    let list = List {
                        requested: requested.clone(),
                        fires: fires.clone(),
                        pages: 2,
                        ..List::default()
                    };
                    let next = List { requested: vec![0, 1, 2], whole, ..list.clone() };
                    let early_max = prefetched.len().min(1);
                    let lists = vec![List { prefetched, ..list }, next];
                    let (buffer_pages, gap_pages, steps) = (4, 2, steps.clone());
                    let case = Case { lists, buffers, buffer_pages, gap_pages, early_max, broken, steps };
                    Search::over_all(|search| run(&case, search));
                }
            }
        }
    }
}
