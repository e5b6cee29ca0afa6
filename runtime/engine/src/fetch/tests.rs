//! The fetcher over a device that completes reads in any order, or fails. Each requested neuron is given out
//! once, with its own bytes, whatever was prefetched and however few buffers there are.

use proptest::prelude::*;

use super::*;
use crate::arena::{Align, Arena};
use crate::flash::Buffer;

const PAGE: u64 = 4096;
/// A neuron's bytes; two share a page.
const NEURON: u64 = 2048;

/// Pages hold their own number. Completes reads when awaited or by chance, in an order drawn from `dice`.
#[derive(Debug)]
struct Device {
    held: Vec<ReadRequest>,
    dice: Vec<u8>,
    draws: usize,
    /// Reads of this page fail.
    broken: Option<u64>,
    counters: flash::FlashCounters,
}

impl Device {
    fn new(dice: Vec<u8>, broken: Option<u64>) -> Box<Self> {
        let counters = flash::FlashCounters::default();
        Box::new(Self { held: Vec::new(), dice, draws: 0, broken, counters })
    }

    fn draw(&mut self) -> usize {
        self.draws += 1;
        usize::from(self.dice[self.draws % self.dice.len()])
    }
}

impl Flash for Device {
    fn describe(&self) -> String {
        "a test".to_owned()
    }

    fn submit(&mut self, requests: &mut Vec<ReadRequest>) {
        self.held.append(requests);
    }

    fn reap(&mut self, wait: bool) -> Option<Completion> {
        if self.held.is_empty() || !wait && self.draw().is_multiple_of(2) {
            return None;
        }
        let at = self.draw() % self.held.len();
        let ReadRequest { tag, offset, bytes, mut buffer, at } = self.held.swap_remove(at);
        for (page, out) in (offset / PAGE..).zip(buffer[at..][..bytes].chunks_mut(PAGE as usize)) {
            out.fill(page as u8);
        }
        let broken =
            self.broken.is_some_and(|page| (offset / PAGE..(offset + bytes as u64) / PAGE).contains(&page));
        self.counters.reads += 1;
        self.counters.bytes += bytes as u64;
        let result = if broken { Err(io::ErrorKind::Other.into()) } else { Ok(()) };
        Some(Completion { tag, bytes, buffer, result })
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }

    fn counters(&self) -> flash::FlashCounters {
        self.counters
    }
}

/// Neurons by rank; `in_memory` are not read.
struct List<'a> {
    ranks: &'a [u64],
    in_memory: &'a [u64],
}

fn span(rank: u64) -> Span {
    Span { offset: rank * NEURON, bytes: NEURON }
}

impl Wanted for List<'_> {
    fn span(&self, index: usize) -> Option<Span> {
        let rank = self.ranks[index];
        (!self.in_memory.contains(&rank)).then(|| span(rank))
    }
}

fn buffers(count: usize, pages: usize) -> Vec<Buffer> {
    let mut arena = Arena::new((count * pages) as u64 * PAGE).unwrap();
    (0..count).map(|_| arena.take(pages * PAGE as usize, Align::Page).unwrap()).collect()
}

/// Runs one list through the fetcher as decoding does; returns the ranks given out.
fn run(fetcher: &mut Fetcher, list: &List<'_>, prefetched: &[u64]) -> Result<Vec<u64>, FetchError> {
    let count = list.ranks.len();
    let (mut given, mut out, mut seen) = (vec![0; count], Vec::new(), vec![false; count]);
    fetcher.begin(Reads::Together);
    let mut prefetched = Some(prefetched);
    let mut start = 0;
    loop {
        let submitted = fetcher.ahead(list, count);
        if submitted == count
            && let Some(prefetched) = prefetched.take()
        {
            fetcher.prefetch(prefetched.iter().map(|&rank| (span(rank), 1.0 + (rank * 7 % 5) as f32)));
        }
        if start == count {
            return Ok(out);
        }
        let end = fetcher.half();
        assert!(end > start, "every turn computes something");
        fetcher.poll();
        loop {
            let count = fetcher.next_completed(list, end, &mut given)?;
            if count == 0 {
                break;
            }
            // due reads start while completed ones are used
            let (completed, mut due) = fetcher.completed_and_due();
            due.submit();
            for &index in &given[..count] {
                let rank = list.ranks[index as usize];
                let bytes = completed.bytes(index as usize, span(rank));
                assert_eq!(bytes, [(span(rank).offset / PAGE) as u8; NEURON as usize]);
                out.push(rank);
                seen[index as usize] = true;
            }
            let below = fetcher.given_below(end);
            assert!(below <= end && (start..below).all(|index| seen[index] || list.span(index).is_none()));
            assert!(below == end || list.span(below).is_some() && !seen[below], "and no further");
        }
        assert_eq!(fetcher.given_below(end), end);
        fetcher.release(end);
        start = end;
    }
}

fn sorted(ranks: Vec<u64>) -> Vec<u64> {
    let mut ranks: Vec<u64> = ranks.into_iter().collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

prop_compose! {
    fn positions()(ranks in prop::collection::vec(0_u64..120, 0..40)) -> Vec<u64> {
        sorted(ranks)
    }
}

#[test]
fn a_list_that_must_reach_far_takes_the_buffers_of_prefetch_reads() {
    let device = Device::new(vec![1, 3, 5], None);
    let mut fetcher = Fetcher::new(device, buffers(3, 1), 0, 2, Steps::default());
    let first = List { ranks: &[0], in_memory: &[] };
    let mut indices = [0; 8];
    fetcher.begin(Reads::Together);
    assert_eq!(fetcher.ahead(&first, 1), 1);
    fetcher.prefetch([100, 102].into_iter().map(|rank| (span(rank), 1.0)));
    while fetcher.next_completed(&first, 1, &mut indices).unwrap() > 0 {}
    fetcher.release(1);
    // prefetch reads own two of three buffers, and are not requested
    let next = List { ranks: &[10, 12, 14, 16], in_memory: &[] };
    fetcher.begin(Reads::Together);
    assert_eq!(fetcher.ahead_to(&next, 4, 3), 3);
    let completed = std::iter::from_fn(|| match fetcher.next_completed(&next, 3, &mut indices).unwrap() {
        0 => None,
        count => Some(count),
    });
    assert_eq!(completed.sum::<usize>(), 3);
}

proptest! {
    #[test]
    fn every_missing_neuron_is_given_out_once_and_no_buffer_is_lost(
        lists in prop::collection::vec((positions(), positions(), positions()), 1..6),
        count in 1_usize..9,
        pages in 1_usize..4,
        gap_pages in 0_u64..3,
        early_max in 0_usize..9,
        depth in 1_usize..9,
        dice in prop::collection::vec(any::<u8>(), 1..50),
    ) {
        let device = Device::new(dice, None);
        let mut fetcher = Fetcher::new(device, buffers(count, pages), gap_pages * PAGE, early_max, Steps::default());
        fetcher.record();
        for (requested, in_memory, prefetched) in &lists {
            let list = List { ranks: requested, in_memory };
            let given = run(&mut fetcher, &list, prefetched).unwrap();
            let missing: Vec<u64> = requested.iter().copied().filter(|p| !in_memory.contains(p)).collect();
            prop_assert_eq!(sorted(given.clone()), missing);
            prop_assert_eq!(given.len(), sorted(given).len());
        }
        fetcher.abandon();
        prop_assert!(fetcher.schedule.is_idle() && fetcher.buffers.iter().all(Option::is_some));
        let counters = fetcher.counters();
        prop_assert!(counters.prefetch_reads_used <= counters.prefetch_reads);

        // every read once more, then none
        let again = fetcher.replay(depth).unwrap().map_or(0, |alone| alone.reads);
        prop_assert_eq!(again, counters.flash.reads);
        let twice = fetcher.counters().flash;
        prop_assert_eq!((twice.reads, twice.bytes), (2 * counters.flash.reads, 2 * counters.flash.bytes));
        prop_assert!(fetcher.buffers.iter().all(Option::is_some));
        prop_assert_eq!(fetcher.replay(depth).unwrap(), None);
    }

    #[test]
    fn reads_are_the_missing_pages_and_the_gaps_between_them(
        requested in positions(),
        in_memory in positions(),
        count in 1_usize..9,
        pages in 1_usize..4,
        gap_pages in 0_u64..3,
    ) {
        let device = Device::new(vec![1], None);
        let mut fetcher = Fetcher::new(device, buffers(count, pages), gap_pages * PAGE, 0, Steps::default());
        let list = List { ranks: &requested, in_memory: &in_memory };
        let missing = run(&mut fetcher, &list, &[]).unwrap();
        let pages = sorted(missing.iter().map(|&rank| span(rank).offset / PAGE).collect());
        let counters = fetcher.counters();
        prop_assert_eq!(counters.flash.bytes, pages.len() as u64 * PAGE + counters.gap_bytes);
        prop_assert!(gap_pages > 0 || counters.gap_bytes == 0);
    }

    #[test]
    fn a_read_that_fails_is_an_error_and_all_buffers_come_back(
        (requested, prefetched) in (positions(), positions()),
        count in 1_usize..9,
        page in 0_u64..60,
        dice in prop::collection::vec(any::<u8>(), 1..50),
    ) {
        let device = Device::new(dice, Some(page));
        let mut fetcher = Fetcher::new(device, buffers(count, 1), 0, 2, Steps::default());
        fetcher.record();
        let list = List { ranks: &requested, in_memory: &[] };
        // the second list may use prefetched reads, failed or not
        let results = [run(&mut fetcher, &list, &prefetched), run(&mut fetcher, &list, &[])];
        let touched = requested.iter().any(|&rank| span(rank).offset / PAGE == page);
        for result in results {
            prop_assert_eq!(result.is_err(), touched);
            if let Err(error) = result {
                prop_assert_eq!(error.offset / PAGE, page);
            }
        }
        match fetcher.replay(2) {
            Err(error) => prop_assert_eq!(error.offset / PAGE, page),
            Ok(_) => prop_assert!(!touched),
        }
        prop_assert!(fetcher.schedule.is_idle() && fetcher.buffers.iter().all(Option::is_some));
    }
}

#[test]
fn prefetched_neurons_are_used_and_wrong_ones_are_dropped() {
    let device = Device::new(vec![1], None);
    let mut fetcher = Fetcher::new(device, buffers(8, 1), 0, 8, Steps::default());
    run(&mut fetcher, &List { ranks: &[0], in_memory: &[] }, &[10, 20, 30]).unwrap();
    let given = run(&mut fetcher, &List { ranks: &[10, 15, 30], in_memory: &[] }, &[]).unwrap();
    assert_eq!(sorted(given), [10, 15, 30]);
    let counters = fetcher.counters();
    assert_eq!((counters.prefetch_reads, counters.prefetch_reads_used), (3, 2));
    assert_eq!((counters.prefetch_bytes, counters.gap_bytes), (3 * PAGE, 0));
}

#[test]
fn a_gap_between_two_prefetched_neurons_counts_when_they_are_read() {
    let mut fetcher = Fetcher::new(Device::new(vec![1], None), buffers(8, 3), PAGE, 1, Steps::default());
    // pages 5 and 7 in one read; page 20, whose read is not started any more
    fetcher.begin(Reads::Together);
    fetcher.ahead(&List { ranks: &[], in_memory: &[] }, 0);
    fetcher.prefetch([10, 14, 40].into_iter().map(|rank| (span(rank), 1.0)));
    assert_eq!(fetcher.counters().gap_bytes, 0);
    fetcher.poll();
    let counters = fetcher.counters();
    assert_eq!((counters.prefetch_reads, counters.prefetch_bytes, counters.gap_bytes), (1, 3 * PAGE, PAGE));
    fetcher.abandon();
}

#[test]
fn reads_that_measure_the_device_are_no_tokens_and_what_was_in_flight_is() {
    let mut fetcher = Fetcher::new(Device::new(vec![1], None), buffers(8, 1), 0, 8, Steps::default());
    run(&mut fetcher, &List { ranks: &[0], in_memory: &[] }, &[10, 20]).unwrap();
    let rate = fetcher.sustained(PAGE as usize, 4, Duration::from_millis(2), || 0).unwrap();
    assert!(rate.is_some());
    let counted = fetcher.counters().flash;
    assert_eq!((counted.reads, counted.bytes), (3, 3 * PAGE));
    run(&mut fetcher, &List { ranks: &[2], in_memory: &[] }, &[]).unwrap();
    assert_eq!(fetcher.counters().flash.reads, 4);
}
