//! Counts of the experts that decoded tokens visit in a layer, for `learned.toml`.
//!
//! A list of all experts, the most recently visited first, gives each visit its *stack distance*: the experts visited more recently.
//! A token's experts are looked up together and then move to the front together, as in the cache. At start the list is in the order
//! of ranks, as if the cache were full.
//!
//! The counts have a fixed size, 18 bytes an expert. [`plans::memory::tables_bytes`] covers them: it has eight bytes for each neuron's
//! checksums, and layers that count have checksums of slices instead.

use plans::learned::{LayerVisits, PREFIXES, after_prefix};

/// Visits of one layer's experts.
#[derive(Debug)]
pub(crate) struct Visits {
    /// `[experts]`: the expert of each rank; the first ranks are the first to be pinned.
    experts: Box<[u16]>,
    /// `[experts]`: ranks, the most recently visited first.
    recent: Box<[u16]>,
    /// Counted tokens.
    tokens: u64,
    /// `[experts]`: visits by rank.
    visits: Box<[u32]>,
    /// Visits by distance, without the first ranks.
    distances: [Box<[u32]>; PREFIXES],
}

impl Visits {
    /// No visits yet; `experts` by rank.
    pub(crate) fn new(experts: Box<[u16]>) -> Self {
        let count = experts.len();
        let zeros = |length: usize| vec![0; length].into_boxed_slice();
        Self {
            recent: (0..count).map(|rank| rank as u16).collect(),
            experts,
            tokens: 0,
            visits: zeros(count),
            distances: std::array::from_fn(|prefix| zeros(count - after_prefix(count, prefix))),
        }
    }

    /// Lets one token pass, and counts it if `counted`. An expert with a weight is visited.
    ///
    /// *Shapes*: `weights: [experts]`.
    pub(crate) fn pass(&mut self, weights: &[f32], counted: bool) {
        let Self { experts, recent, tokens, visits, distances } = self;
        *tokens += u64::from(counted);
        let is_visited = |rank: u16| weights[usize::from(experts[usize::from(rank)])] != 0.0;
        let count = weights.iter().filter(|weight| **weight != 0.0).count();
        let (mut before, mut found, mut end) = ([0; PREFIXES], 0, 0);
        while found < count {
            let rank = recent[end];
            let visited = is_visited(rank);
            for (prefix, before) in before.iter_mut().enumerate() {
                if usize::from(rank) < after_prefix(experts.len(), prefix) {
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
        let visited = (0..experts.len()).rev().map(|rank| rank as u16).filter(|&rank| is_visited(rank));
        recent.iter_mut().zip(visited).for_each(|(place, rank)| *place = rank);
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
    fn a_token_that_repeats_itself_is_found_at_once() {
        let counts = counted(&vec![vec![2, 5]; 10], 6, 1);
        assert_eq!(counts.visits, [0, 0, 9, 0, 0, 9]);
        assert_eq!(counts.distances[0], [9, 9, 0, 0, 0, 0]);
        assert_eq!(counts.distances[3], [9, 0], "only rank 5 is left behind three quarters");
    }
}
