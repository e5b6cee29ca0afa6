//! How often a cache of any size misses: stack distances of the neurons that a level asks for.
//!
//! Mattson's observation: a least-recently-used cache of `C` neurons holds the `C` last used, so one pass that finds
//! for every asked neuron how many others were used more recently gives the misses of every size at once.
//!
//! The cache is the runtime's: a token's neurons are looked up together, against what the tokens before it left, and
//! become the most recent in their order (ascending position). Pinned positions are the first of the
//! layer and take no part. The cache begins full, as after a long run: with the neurons of lowest position, the
//! lowest the most recent.
//!
//! *Source*: Mattson et al., "Evaluation techniques for storage hierarchies", 1970; the Fenwick tree over time is
//! Bennett and Kruskal's, 1975.

/// The neurons that a level asked for in one layer: one list of positions for each token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    positions: Vec<u32>,
    /// For each token, where its list ends.
    ends: Vec<usize>,
}

impl Trace {
    /// Adds to the list of the token at hand.
    pub fn ask(&mut self, positions: impl Iterator<Item = u32>) {
        self.positions.extend(positions);
    }

    /// Ends the token at hand.
    pub fn end_token(&mut self) {
        self.ends.push(self.positions.len());
    }

    /// Neurons asked for, all tokens.
    pub fn asked(&self) -> usize {
        self.positions.len()
    }

    /// The lists, token by token.
    pub fn tokens(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.positions[start..end])
    }
}

/// How many asked neurons at positions `pinned..neurons` had exactly `d` others used more recently: `histogram[d]`.
pub fn distances(trace: &Trace, neurons: usize, pinned: usize) -> Vec<u64> {
    let cached = neurons - pinned;
    let mut histogram = vec![0; cached];
    // Time runs to `slots`, then the uses are renumbered in their order.
    let slots = 2 * cached.max(1);
    let mut used_at: Vec<u32> = (0..cached).rev().map(|time| time as u32).collect();
    let mut at_time: Vec<u32> = (0..cached as u32).rev().collect();
    at_time.resize(slots, FREE);
    let mut tree = Fenwick::new(slots);
    (0..cached).for_each(|time| tree.add(time, 1));
    let mut now = cached;
    for asked in trace.tokens() {
        let mine = || asked.iter().filter(|&&p| p as usize >= pinned).map(|&p| p as usize - pinned);
        for neuron in mine() {
            histogram[cached - tree.sum(used_at[neuron] as usize) as usize] += 1;
        }
        for neuron in mine() {
            if now == slots {
                now = 0;
                for time in 0..slots {
                    if at_time[time] != FREE {
                        let neuron = std::mem::replace(&mut at_time[time], FREE);
                        at_time[now] = neuron;
                        used_at[neuron as usize] = now as u32;
                        now += 1;
                    }
                }
                tree = Fenwick::new(slots);
                (0..now).for_each(|time| tree.add(time, 1));
            }
            let before = used_at[neuron] as usize;
            at_time[before] = FREE;
            tree.add(before, -1);
            at_time[now] = neuron as u32;
            tree.add(now, 1);
            used_at[neuron] = now as u32;
            now += 1;
        }
    }
    histogram
}

/// No neuron was last used at this time.
const FREE: u32 = u32::MAX;

/// The share of asked neurons that miss, for caches of `cached_fraction` of the layer, of which `pinned_share` is
/// pinned and the rest least recently used: `[share][cached]`.
pub fn surface(
    trace: &Trace,
    neurons: usize,
    pinned_share: &[f64],
    cached_fraction: &[f64],
) -> Vec<Vec<f64>> {
    let asked = trace.asked().max(1) as f64;
    let mut known: std::collections::BTreeMap<usize, Vec<u64>> = std::collections::BTreeMap::new();
    let mut surface = Vec::with_capacity(pinned_share.len());
    for share in pinned_share {
        let row = cached_fraction.iter().map(|cached| {
            let total = (cached * neurons as f64).round() as usize;
            let pinned = (share * total as f64).round() as usize;
            let histogram = known.entry(pinned).or_insert_with(|| distances(trace, neurons, pinned));
            histogram[total - pinned..].iter().sum::<u64>() as f64 / asked
        });
        surface.push(row.collect());
    }
    surface
}

/// Prefix sums over counts that change.
struct Fenwick {
    sums: Vec<i32>,
}

impl Fenwick {
    fn new(len: usize) -> Self {
        Self { sums: vec![0; len + 1] }
    }

    fn add(&mut self, index: usize, change: i32) {
        let mut i = index + 1;
        while i < self.sums.len() {
            self.sums[i] += change;
            i += i & i.wrapping_neg();
        }
    }

    /// Sum of the counts up to and with `index`.
    fn sum(&self, index: usize) -> i32 {
        let mut i = index + 1;
        let mut sum = 0;
        while i > 0 {
            sum += self.sums[i];
            i &= i - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The specification: a list of neurons, the most recent first.
    fn misses_of_a_naive_cache(trace: &Trace, neurons: usize, pinned: usize, slots: usize) -> u64 {
        let mut recent: Vec<u32> = (pinned as u32..neurons as u32).collect();
        recent.truncate(slots);
        let mut misses = 0;
        for asked in trace.tokens() {
            let mine: Vec<u32> = asked.iter().copied().filter(|&p| p as usize >= pinned).collect();
            misses += mine.iter().filter(|p| !recent.contains(p)).count() as u64;
            for p in mine {
                recent.retain(|&q| q != p);
                recent.insert(0, p);
            }
            recent.truncate(slots);
        }
        misses
    }

    fn trace(tokens: &[Vec<bool>]) -> Trace {
        let mut trace = Trace::default();
        for token in tokens {
            trace.ask((0..token.len() as u32).filter(|&p| token[p as usize]));
            trace.end_token();
        }
        trace
    }

    proptest! {
        #[test]
        fn every_cache_misses_as_often_as_a_naive_one(
            tokens in prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.3), 13), 0..60),
            pinned in 0usize..13,
        ) {
            let trace = trace(&tokens);
            let histogram = distances(&trace, 13, pinned);
            for slots in 0..=13 - pinned {
                let misses: u64 = histogram[slots..].iter().sum();
                prop_assert_eq!(misses, misses_of_a_naive_cache(&trace, 13, pinned, slots), "{} slots", slots);
            }
        }

        #[test]
        fn more_cache_never_misses_more(
            tokens in prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.3), 40), 1..30),
        ) {
            for row in surface(&trace(&tokens), 40, &[0.0, 0.5, 1.0], &[0.0, 0.25, 0.5, 0.75, 1.0]) {
                prop_assert!(row.is_sorted_by(|a, b| a >= b), "{:?}", row);
                prop_assert!(row.last() == Some(&0.0), "a whole layer misses nothing: {:?}", row);
            }
        }
    }

    #[test]
    fn tokens_come_back_in_order() {
        let a = trace(&[vec![true, false], vec![], vec![true, true]]);
        assert_eq!(a.tokens().collect::<Vec<_>>(), [&[0][..], &[], &[0, 1]]);
    }
}
