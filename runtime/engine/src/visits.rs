//! Counts of the experts that decoded tokens visit in a layer, for `learned.toml`.
//!
//! A list of all experts, the most recently visited first, gives each visit its *stack distance*: the experts visited more recently.
//! A token's experts are looked up together and then move to the front together, as in the cache. Caches of the policy `frequency`
//! hold nothing and count their misses. At start the list and the caches are in the order of ranks, as if full.
//!
//! The counts have a fixed size, about 160 bytes an expert. [`plans::memory::tables_bytes`] covers them: it has eight bytes for each
//! neuron's checksums, and layers that count have checksums of slices instead.

use plans::Policy;
use plans::learned::{LayerVisits, PREFIXES, SIZES, after_prefix, slots_of};

use crate::cache::{LayerCache, Place};
use crate::model::config::EXPERTS_USED_MAX;

/// Visits of one layer's experts.
#[derive(Debug)]
pub(crate) struct Visits {
    /// `[experts]`: the expert of each rank; the first ranks are the first to be pinned.
    experts: Box<[u16]>,
    /// `[experts]`: ranks, the most recently visited first.
    recent: Box<[u16]>,
    /// `[experts]`: visits by rank.
    visits: Box<[u32]>,
    /// Visits by distance, without the first ranks.
    distances: [Box<[u32]>; PREFIXES],
    /// Caches of the policy `frequency`, and their misses.
    caches: Box<[(LayerCache, u32)]>,
    /// Tokens, and how many of them were counted.
    passed: u32,
    tokens: u64,
}

impl Visits {
    /// No visits yet; `experts` by rank.
    pub(crate) fn new(experts: Box<[u16]>) -> Self {
        let count = experts.len();
        let zeros = |length: usize| vec![0; length].into_boxed_slice();
        let cache = |sixteenths| {
            let slots = slots_of(count, sixteenths) as u32;
            let mut cache = LayerCache::new(Policy::Frequency, count as u32, 0, slots);
            for rank in 0..slots {
                let _slot = cache.insert(rank, 0);
            }
            (cache, 0)
        };
        Self {
            recent: (0..count).map(|rank| rank as u16).collect(),
            experts,
            visits: zeros(count),
            distances: std::array::from_fn(|prefix| zeros(count - after_prefix(count, prefix))),
            caches: SIZES.into_iter().map(cache).collect(),
            passed: 0,
            tokens: 0,
        }
    }

    /// Lets one token pass, and counts it if `counted`. An expert with a weight is visited.
    ///
    /// *Shapes*: `weights: [experts]`.
    pub(crate) fn pass(&mut self, weights: &[f32], counted: bool) {
        let (mut ranks, mut count) = ([0; EXPERTS_USED_MAX], 0);
        for (rank, &expert) in (0..).zip(&self.experts) {
            if weights[usize::from(expert)] != 0.0 && count < EXPERTS_USED_MAX {
                ranks[count] = rank;
                count += 1;
            }
        }
        let visited = &ranks[..count];
        self.passed = self.passed.wrapping_add(1);
        self.tokens += u64::from(counted);
        self.find_distances(visited, weights, counted);
        self.look_up(visited, counted);
    }

    /// Counts the distances of the visited ranks, and moves them to the front.
    fn find_distances(&mut self, visited: &[u32], weights: &[f32], counted: bool) {
        let Self { experts, recent, visits, distances, .. } = self;
        let is_visited = |rank: u16| weights[usize::from(experts[usize::from(rank)])] != 0.0;
        let starts: [usize; PREFIXES] = std::array::from_fn(|prefix| after_prefix(experts.len(), prefix));
        let (mut before, mut found, mut end) = ([0; PREFIXES], 0, 0);
        while found < visited.len() {
            let rank = recent[end];
            let visited = is_visited(rank);
            for (prefix, before) in before.iter_mut().enumerate() {
                if usize::from(rank) < starts[prefix] {
                    break;
                }
                if visited && counted {
                    distances[prefix][*before] += 1;
                }
                *before += 1;
            }
            visits[usize::from(rank)] += u32::from(visited && counted);
            found += usize::from(visited);
            end += 1;
        }
        // the others move back, and the visited ones come to the front, the highest rank first
        let mut to = end;
        for from in (0..end).rev() {
            if !is_visited(recent[from]) {
                to -= 1;
                recent[to] = recent[from];
            }
        }
        recent.iter_mut().zip(visited.iter().rev()).for_each(|(place, &rank)| *place = rank as u16);
    }

    /// Looks the visited ranks up in every cache.
    fn look_up(&mut self, visited: &[u32], counted: bool) {
        let mut places = [Place::Missing; EXPERTS_USED_MAX];
        let places = &mut places[..visited.len()];
        for (cache, misses) in &mut self.caches {
            cache.look_up(visited, self.passed, places);
            for (&rank, _) in visited.iter().zip(&*places).filter(|(_, place)| **place == Place::Missing) {
                *misses += u32::from(counted);
                let _slot = cache.insert(rank, self.passed);
            }
        }
    }

    /// Counted tokens.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> LayerVisits {
        let wide = |counts: &[u32]| counts.iter().copied().map(u64::from).collect();
        LayerVisits {
            visits: wide(&self.visits),
            distances: self.distances.iter().map(|counts| wide(counts)).collect(),
            frequency_misses: self.caches.iter().map(|&(_, misses)| u64::from(misses)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Misses of an LRU cache of `slots` experts with the ranks before `first` pinned: an oracle that keeps a list.
    fn misses(tokens: &[Vec<u16>], experts: u16, first: u16, slots: usize) -> u64 {
        let mut recent: Vec<u16> = (first..experts).take(slots).collect();
        let mut missed = 0;
        for visited in tokens {
            let cached = || visited.iter().filter(|rank| **rank >= first);
            missed += cached().filter(|rank| !recent.contains(rank)).count() as u64;
            for &rank in cached() {
                recent.retain(|&other| other != rank);
                recent.insert(0, rank);
            }
            recent.truncate(slots);
        }
        missed
    }

    /// Tokens that each visit `used` of so many experts, ascending; every other one repeats an earlier token.
    fn tokens(experts: u16, used: usize) -> impl Strategy<Value = Vec<Vec<u16>>> {
        let one = proptest::sample::subsequence((0..experts).collect::<Vec<_>>(), used);
        let all = prop::collection::vec((one, prop::bool::ANY, 0usize..4), 1..80);
        all.prop_map(|drawn| {
            let mut tokens: Vec<Vec<u16>> = Vec::new();
            for (token, repeats, back) in drawn {
                let earlier = tokens.len().checked_sub(back + 1).filter(|_| repeats);
                let token = earlier.map_or(token, |at| tokens[at].clone());
                tokens.push(token);
            }
            tokens
        })
    }

    /// Counts of these tokens, the first `uncounted` of them not counted; ranks are experts in reverse.
    fn counted(tokens: &[Vec<u16>], experts: u16, uncounted: usize) -> LayerVisits {
        let mut visits = Visits::new((0..experts).rev().collect());
        for (index, token) in tokens.iter().enumerate() {
            let mut weights = vec![0.0; usize::from(experts)];
            token.iter().for_each(|&rank| weights[usize::from(experts - 1 - rank)] = 0.5);
            visits.pass(&weights, index >= uncounted);
        }
        assert_eq!(visits.tokens(), (tokens.len() - uncounted) as u64);
        visits.counts()
    }

    proptest! {
        #[test]
        fn distances_tell_the_misses_of_every_lru_cache(tokens in tokens(13, 3)) {
            let counts = counted(&tokens, 13, 0);
            for (prefix, distances) in counts.distances.iter().enumerate() {
                let first = after_prefix(13, prefix);
                for slots in 3..=13 - first {
                    let told: u64 = distances[slots..].iter().sum();
                    prop_assert_eq!(told, misses(&tokens, 13, first as u16, slots), "{} pinned, {} slots", first, slots);
                }
                let beyond: u64 = counts.visits[first..].iter().sum();
                prop_assert_eq!(distances.iter().sum::<u64>(), beyond, "without slots all of them miss");
            }
        }

        #[test]
        fn tokens_that_are_not_counted_still_count_as_recent(tokens in tokens(8, 2), part in 0.0f64..1.0) {
            let first = (tokens.len() as f64 * part) as usize;
            let (all, before) = (counted(&tokens, 8, 0), counted(&tokens[..first], 8, 0));
            let after = counted(&tokens, 8, first);
            let minus = |a: &[u64], b: &[u64]| a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>();
            prop_assert_eq!(&after.visits, &minus(&all.visits, &before.visits));
            for prefix in 0..PREFIXES {
                let difference = minus(&all.distances[prefix], &before.distances[prefix]);
                prop_assert_eq!(&after.distances[prefix], &difference);
            }
        }
    }

    #[test]
    fn counts_fit_where_neurons_would_have_checksums() {
        // experts and their neurons: the fixtures, Qwen3-30B-A3B, gpt-oss-120b, and an expert as narrow as any
        for (experts, neurons) in [(4, 288), (32, 64), (128, 768), (128, 2880), (512, 64)] {
            let visits = Visits::new((0..experts).collect());
            let words = visits.experts.len() / 2
                + visits.recent.len() / 2
                + visits.visits.len()
                + visits.distances.iter().map(|counts| counts.len()).sum::<usize>();
            let caches = visits.caches.iter().map(|(cache, _)| cache.tables_bytes() + 256).sum::<usize>();
            let bytes = 4 * words + caches + size_of::<Visits>();
            assert!(bytes < 8 * usize::from(experts) * neurons, "{bytes} bytes for {experts} of {neurons}");
        }
    }

    #[test]
    fn a_token_takes_microseconds() {
        // as many experts as Qwen3-30B-A3B has, eight of them visited
        let mut visits = Visits::new((0..128).collect());
        let (mut weights, tokens) = (vec![0.0; 128], 20_000_usize);
        let started = std::time::Instant::now();
        for token in 0..tokens {
            weights.fill(0.0);
            (0..8).for_each(|at| weights[(token * (at + 3) * 37 + at * at * 11) % 128] = 1.0);
            visits.pass(&weights, true);
        }
        let each = started.elapsed() / tokens as u32;
        println!("{each:?} a token and layer");
        // unoptimised builds and a busy machine are slower
        assert!(each < std::time::Duration::from_micros(200), "{each:?}");
    }

    #[test]
    fn a_token_that_repeats_itself_is_found_at_once() {
        let counts = counted(&vec![vec![2, 5]; 10], 6, 1);
        assert_eq!(counts.visits, [0, 0, 9, 0, 0, 9]);
        assert_eq!(counts.distances[0], [9, 9, 0, 0, 0, 0]);
        assert_eq!(counts.distances[3], [9, 0], "only rank 5 is left behind three quarters");
        // no slots below three sixteenths of six experts, then one, two from six on, all found with both
        assert_eq!(counts.frequency_misses, [18, 18, 9, 9, 9, 0, 0, 0, 0, 0]);
    }
}
