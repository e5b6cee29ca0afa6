//! Miss rates of caches of every size under each policy, from a level's requests replayed through the engine's own cache.
//!
//! The first ranks of the layer are pinned. A token's neurons are looked up together, then the policy inserts the missing ones. The cache
//! begins full, as after a long run: with the neurons of lowest rank, the lowest the most recent. Their use counts are unknown, so a short
//! trace underrates the policy `frequency`.
//!
//! With a recording's prompt the cache begins empty, as in `run`. The prompt passes before misses are counted: its tokens count as uses,
//! and their requests fill free slots.
//!
//! A large layer is replayed in miniature: one block of neighbours stands for several, in a cache that is smaller by the same factor. The
//! text stays as long, because use counts need several half-lives (Waldspurger et al., "Cache modeling and optimization using miniature
//! simulations", 2017). Blocks, and not single ranks, keep co-active neighbours, whose misses share a read.
//!
//! Stack distances (Mattson et al., 1970) would give all sizes in one pass, but only for `lru`, and cost more than a few sizes.

use std::collections::BTreeSet;

use flashplan::internals::cache::{LayerCache, Place};
use plans::Policy;
use plans::model::{GAP_RANKS, WIDE_GAP_RANKS};

use super::missing::Missing;

/// Approximate maximum of replayed neurons of a layer.
const REPLAYED_NEURONS: usize = 2048;
/// Neighbours that are replayed together.
const BLOCK: u32 = 32;
/// Maximum ranks of the gaps that a read goes over.
const RUNS_GAPS: [u32; 2] = [GAP_RANKS, WIDE_GAP_RANKS];

/// The replayed ranks of a layer; a slice is replayed as its first rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miniature {
    neurons: u32,
    /// Neurons of a slice.
    slice: u32,
    /// Blocks for each replayed one, which is their middle.
    stride: u32,
}

impl Miniature {
    /// The miniature of a layer of `neurons`. Slices of several neurons are few, and all are replayed.
    pub fn of(neurons: usize, slice: usize) -> Self {
        let stride = if slice > 1 { 1 } else { (neurons / REPLAYED_NEURONS).max(1) as u32 };
        Self { neurons: neurons as u32, slice: slice as u32, stride }
    }

    /// The slice that begins at a rank.
    pub fn slice(self, position: u32) -> Option<u32> {
        position.is_multiple_of(self.slice).then_some(position / self.slice)
    }

    /// The place of a rank in the miniature, if it is replayed.
    pub fn place(self, position: u32) -> Option<u32> {
        let position = self.slice(position)?;
        let (block, stride) = (position / BLOCK, self.stride);
        (block % stride == stride / 2).then_some(block / stride * BLOCK + position % BLOCK)
    }

    /// Neurons, or slices, that are replayed.
    pub fn neurons(self) -> usize {
        let places = (0..self.neurons).rev().find_map(|last| self.place(last));
        places.map_or(0, |last| last as usize + 1)
    }
}

/// The neurons that a level requested in one layer: one list of ranks for each token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    positions: Vec<u32>,
    /// The end of each token's list.
    ends: Vec<usize>,
    /// Each token's number in all layers; `None` for tokens that are not compared.
    numbers: Vec<Option<u32>>,
    /// Tokens of the prompt, which come first and do not count.
    prompt: usize,
}

impl Trace {
    /// Adds requests of the current token.
    pub fn ask(&mut self, positions: impl Iterator<Item = u32>) {
        self.positions.extend(positions);
    }

    /// Ends the current token, with its number in all layers if it is compared.
    pub fn end_token(&mut self, number: Option<u32>) {
        self.ends.push(self.positions.len());
        self.numbers.push(number);
    }

    /// Marks all tokens so far as the prompt, whose hits and misses do not count.
    pub fn end_prompt(&mut self) {
        self.prompt = self.ends.len();
    }

    /// Neurons requested, all tokens after the prompt.
    pub fn requested(&self) -> usize {
        self.tokens().map(<[u32]>::len).sum()
    }

    /// The lists of the prompt, token by token.
    pub fn prompt(&self) -> impl Iterator<Item = &[u32]> {
        self.all().take(self.prompt)
    }

    /// The lists after the prompt, token by token.
    pub fn tokens(&self) -> impl Iterator<Item = &[u32]> {
        self.all().skip(self.prompt)
    }

    fn all(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.positions[start..end])
    }

    /// The number of each token after the prompt.
    fn numbers(&self) -> &[Option<u32>] {
        &self.numbers[self.prompt..]
    }
}

/// Counts of missing neurons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Misses {
    /// Neurons.
    pub neurons: u64,
    /// Missing neurons that have a neighbour before them in their block.
    pub known: u64,
    /// Missing neurons whose neighbour before them is not missing.
    pub alone: u64,
    /// Missing neurons that have more ranks before them in their block than each of [`GAP_RANKS`] and [`WIDE_GAP_RANKS`].
    pub known_far: [u64; 2],
    /// Missing neurons with none missing within so many ranks and the one before them.
    pub far: [u64; 2],
}

impl Misses {
    /// Misses of a token, by ascending rank.
    fn of(missing: impl Iterator<Item = u32>) -> Self {
        let (mut of, mut before) = (Self::default(), None);
        for position in missing {
            let (place, step) = (position % BLOCK, before.map_or(u32::MAX, |before| position - before));
            of.neurons += 1;
            of.known += u64::from(place > 0);
            of.alone += u64::from(place > 0 && step > 1);
            for (at, gap) in RUNS_GAPS.into_iter().enumerate() {
                of.known_far[at] += u64::from(place > gap);
                of.far[at] += u64::from(place > gap && step > gap + 1);
            }
            before = Some(position);
        }
        of
    }

    /// The sum over tokens.
    fn sum(tokens: &[Self]) -> Self {
        let sum = |of: fn(&Self) -> u64| tokens.iter().map(of).sum();
        Self {
            neurons: sum(|token| token.neurons),
            known: sum(|token| token.known),
            alone: sum(|token| token.alone),
            known_far: [0, 1].map(|at| tokens.iter().map(|token| token.known_far[at]).sum()),
            far: [0, 1].map(|at| tokens.iter().map(|token| token.far[at]).sum()),
        }
    }

    /// Reads of a missing neuron if neighbours share one; 1 where nothing is known.
    fn runs_fraction(self) -> f64 {
        if self.known == 0 { 1.0 } else { self.alone as f64 / self.known as f64 }
    }

    /// Reads of a missing neuron if reads go over gaps of [`GAP_RANKS`], and of [`WIDE_GAP_RANKS`].
    fn runs_over_gaps_fraction(self) -> [f64; 2] {
        let of = |at: usize| self.far[at] as f64 / self.known_far[at] as f64;
        [0, 1].map(|at| if self.known_far[at] == 0 { 1.0 } else { of(at) })
    }
}

/// The misses of each token after the prompt, in a layer with `pinned` resident neurons and `slots` slots.
pub fn misses(trace: &Trace, policy: Policy, neurons: usize, pinned: usize, slots: usize) -> Vec<Misses> {
    let [neurons, pinned, slots] = [neurons, pinned, slots].map(|count| count as u32);
    if slots == 0 {
        let beyond = |&neuron: &u32| neuron >= pinned;
        return trace.tokens().map(|asked| Misses::of(asked.iter().copied().filter(beyond))).collect();
    }
    let mut replay = Replay::new(policy, neurons, pinned, slots);
    let from_full = trace.prompt == 0;
    for neuron in (pinned..pinned + slots).rev().filter(|_| from_full) {
        replay.cache.insert(neuron, 0);
    }
    if !from_full {
        replay.prompt(trace.prompt());
    }
    trace.tokens().map(|asked| Misses::of(replay.token(asked).iter().copied())).collect()
}

/// A replay of a layer's cache, token by token.
#[derive(Debug)]
pub struct Replay {
    cache: LayerCache,
    stamp: u32,
    places: Vec<Place>,
    missing: Vec<u32>,
}

impl Replay {
    /// A cache with empty slots.
    pub fn new(policy: Policy, neurons: u32, pinned: u32, slots: u32) -> Self {
        let cache = LayerCache::new(policy, neurons, pinned, slots);
        Self { cache, stamp: 0, places: Vec::new(), missing: Vec::new() }
    }

    /// Takes a prompt's requests: each counts as a use, and they fill free slots by ascending number.
    pub fn prompt<'t>(&mut self, tokens: impl Iterator<Item = &'t [u32]>) {
        let mut requested = BTreeSet::new();
        for token in tokens {
            self.cache.count(token.iter().copied());
            requested.extend(token);
        }
        self.stamp += 1;
        for &neuron in requested {
            if self.cache.is_missing(neuron) && self.cache.used() < self.cache.slots() {
                self.cache.insert(neuron, self.stamp);
            }
        }
    }

    /// Takes a token's requests, and returns the missing ones, which the policy then inserts.
    pub fn token(&mut self, requested: &[u32]) -> &[u32] {
        self.stamp += 1;
        self.places.resize(requested.len(), Place::Missing);
        self.cache.look_up(requested, self.stamp, &mut self.places);
        let missing = requested.iter().zip(&self.places).filter(|(_, place)| **place == Place::Missing);
        self.missing.clear();
        self.missing.extend(missing.map(|(&neuron, _)| neuron));
        for &neuron in &self.missing {
            self.cache.insert(neuron, self.stamp);
        }
        &self.missing
    }
}

/// Surfaces `[share][cached]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Surfaces {
    /// The share of requested neurons that miss.
    pub miss_fraction: Vec<Vec<f64>>,
    /// Reads of a missing neuron if neighbours share one.
    pub runs_fraction: Vec<Vec<f64>>,
    /// Reads of a missing neuron if reads go over gaps of [`GAP_RANKS`], and of [`WIDE_GAP_RANKS`].
    pub runs_over_gaps_fraction: [Vec<Vec<f64>>; 2],
    /// Missing neurons of the compared tokens, by cache.
    pub missing: Missing,
}

/// Miss rates of caches of `cached_fraction` of the layer, with `pinned_share` of it pinned and the rest in slots of a policy.
pub fn surfaces(
    trace: &Trace,
    policy: Policy,
    neurons: usize,
    pinned_share: &[f64],
    cached_fraction: &[f64],
) -> Surfaces {
    let requested = trace.requested().max(1) as f64;
    let mut missing = Missing::new(trace.numbers().iter().copied().flatten().collect());
    let mut cell = |share: f64, cached: f64| {
        let total = (cached * neurons as f64).round() as usize;
        let pinned = (share * total as f64).round() as usize;
        let tokens = if total == neurons {
            vec![Misses::default(); trace.numbers().len()]
        } else {
            misses(trace, policy, neurons, pinned, total - pinned)
        };
        let compared = tokens.iter().zip(trace.numbers()).filter(|(_, number)| number.is_some());
        missing.push(compared.map(|(token, _)| token.neurons as u32).collect());
        Misses::sum(&tokens)
    };
    let mut row =
        |share: f64| -> Vec<Misses> { cached_fraction.iter().map(|&cached| cell(share, cached)).collect() };
    let cells: Vec<Vec<Misses>> = pinned_share.iter().map(|&share| row(share)).collect();
    let each = |of: &dyn Fn(&Misses) -> f64| -> Vec<Vec<f64>> {
        cells.iter().map(|row| row.iter().map(of).collect()).collect()
    };
    Surfaces {
        miss_fraction: each(&|misses| misses.neurons as f64 / requested),
        runs_fraction: each(&|misses| misses.runs_fraction()),
        runs_over_gaps_fraction: [0, 1].map(|at| each(&|misses| misses.runs_over_gaps_fraction()[at])),
        missing,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tokens that each request about a third of the neurons.
    fn tokens(neurons: usize) -> impl Strategy<Value = Vec<Vec<bool>>> {
        prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.3), neurons), 1..60)
    }

    fn trace(tokens: &[Vec<bool>]) -> Trace {
        let mut trace = Trace::default();
        for token in tokens {
            trace.ask((0..token.len() as u32).filter(|&p| token[p as usize]));
            trace.end_token(None);
        }
        trace
    }

    proptest! {
        #[test]
        fn the_order_of_use_misses_as_often_as_a_naive_cache(tokens in tokens(13), pinned in 0usize..13) {
            let trace = trace(&tokens);
            let most = trace.tokens().map(<[u32]>::len).max().unwrap_or(0);
            for slots in most.min(13 - pinned)..=13 - pinned {
                // neurons by recent use, the most recent first; a token's own all stay
                let mut recent: Vec<u32> = (pinned as u32..(pinned + slots) as u32).collect();
                let mut missing = Vec::new();
                for requested in trace.tokens() {
                    let mine = || requested.iter().filter(|&&p| p as usize >= pinned);
                    let (found, missed): (Vec<u32>, Vec<u32>) = mine().partition(|&p| recent.contains(p));
                    missing.push(missed.len() as u64);
                    for p in found.into_iter().chain(missed) {
                        recent.retain(|&q| q != p);
                        recent.insert(0, p);
                    }
                    recent.truncate(slots);
                }
                let replayed = misses(&trace, Policy::Lru, 13, pinned, slots);
                let replayed: Vec<u64> = replayed.iter().map(|token| token.neurons).collect();
                prop_assert_eq!(replayed, missing, "{} slots", slots);
            }
        }

        #[test]
        fn nothing_cached_misses_all_a_whole_layer_nothing_and_pinned_neurons_know_no_policy(
            tokens in tokens(40), policy in prop::sample::select(&Policy::ALL[..]),
        ) {
            let trace = trace(&tokens);
            let axes = (&[0.0, 0.5, 1.0], &[0.0, 0.25, 0.5, 0.75, 1.0]);
            let surface = surfaces(&trace, policy, 40, axes.0, axes.1).miss_fraction;
            for row in &surface {
                prop_assert!(row[0] == f64::from(u8::from(trace.requested() > 0)) && row[4] == 0.0, "{:?}", row);
            }
            let beyond = |cached: u32| trace.tokens().flatten().filter(|&&p| p >= cached).count() as u64;
            prop_assert_eq!(Misses::sum(&misses(&trace, policy, 40, 10, 0)).neurons, beyond(10));
            prop_assert!(surface[2].is_sorted_by(|a, b| a >= b), "{:?}", surface[2]);
        }
    }

    #[test]
    fn a_miniature_misses_as_often_as_the_layer() {
        const NEURONS: usize = 8192;
        // neurons that fire the less the later they stand, and half of the time again when they did just now
        let (mut dice, mut fired) = (1_u32, vec![false; NEURONS]);
        let (mut whole, mut miniature) = (Trace::default(), Trace::default());
        let small = Miniature::of(NEURONS, 1);
        assert_eq!((small.stride, small.neurons()), (4, NEURONS / 4));
        for _ in 0..300 {
            for (position, fired) in fired.iter_mut().enumerate() {
                let mut chance = || {
                    dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    f64::from(dice >> 8) / f64::from(1 << 24)
                };
                *fired = *fired && chance() < 0.5 || chance() < 0.6 * (-(position as f64) / 1500.0).exp();
            }
            let active = || (0..NEURONS).filter(|&position| fired[position]);
            whole.ask(active().map(|position| position as u32));
            miniature.ask(active().filter_map(|position| small.place(position as u32)));
            whole.end_token(None);
            miniature.end_token(None);
        }
        for policy in Policy::ALL {
            let of = |trace, neurons| surfaces(trace, policy, neurons, &[0.0, 0.5], &[0.125, 0.25, 0.5]);
            let (whole, miniature) = (of(&whole, NEURONS), of(&miniature, small.neurons()));
            // that a miss has none near it is told of fewer misses: of those that stand far enough into their block
            for (whole, miniature, close) in [
                (whole.miss_fraction, miniature.miss_fraction, 0.01),
                (whole.runs_fraction, miniature.runs_fraction, 0.01),
                (whole.runs_over_gaps_fraction.concat(), miniature.runs_over_gaps_fraction.concat(), 0.015),
            ] {
                for (whole, miniature) in whole.concat().into_iter().zip(miniature.concat()) {
                    assert!((whole - miniature).abs() < close, "{policy}: {whole} and {miniature}");
                }
            }
        }
    }

    #[test]
    fn co_active_neurons_that_miss_together_share_a_read() {
        // pairs side by side fire together, one pair in ten tokens each
        let rows: Vec<Vec<bool>> =
            (0..200).map(|t| (0..64).map(|p| (p / 2 * 7 + t) % 10 == 0).collect()).collect();
        let trace = trace(&rows);
        let runs = |policy, pinned, slots| Misses::sum(&misses(&trace, policy, 64, pinned, slots));
        let pairs = runs(Policy::Lru, 0, 0);
        // of 64 neurons, two begin a block and are not told: both are the first of a pair
        assert_eq!(pairs.alone * 62 / 30, pairs.known);
        // pinned ones take none; an odd number of them leaves a co-active one alone
        assert_eq!(runs(Policy::Lru, 62, 0).alone, 20);
        assert_eq!(runs(Policy::Lru, 63, 0).alone, 20);
        let none = Misses::default();
        assert_eq!((none.runs_fraction(), none.runs_over_gaps_fraction()), (1.0, [1.0; 2]));
        // one rank in four: three lie between, and one in five: four do
        for (each, over_gaps) in [(4, [0.0, 0.0]), (5, [1.0, 0.0]), (10, [1.0, 0.0]), (20, [1.0, 1.0])] {
            let rows: Vec<Vec<bool>> = (0..20).map(|_| (0..320).map(|p| p % each == 0).collect()).collect();
            let found = Misses::sum(&misses(&self::trace(&rows), Policy::Lru, 320, 0, 0));
            assert_eq!(
                (found.runs_fraction(), found.runs_over_gaps_fraction()),
                (1.0, over_gaps),
                "{found:?}"
            );
        }
    }

    #[test]
    fn what_the_prompt_brought_is_not_missing_after_it() {
        // twenty of sixty neurons, of high rank, which a full cache does not begin with
        let rows: Vec<Vec<bool>> =
            (0..8).map(|t| (0..60).map(|p| p >= 40 && p % 4 == t % 4).collect()).collect();
        for policy in Policy::ALL {
            let mut trace = trace(&rows[..4]);
            trace.end_prompt();
            rows[4..].iter().for_each(|row| {
                trace.ask((0..60).filter(|&p| row[p as usize]));
                trace.end_token(None);
            });
            assert_eq!((trace.prompt().count(), trace.tokens().count(), trace.requested()), (4, 4, 20));
            let missed = |slots| Misses::sum(&misses(&trace, policy, 60, 0, slots)).neurons;
            assert_eq!((missed(0), missed(30)), (20, 0), "{policy}");
            let without = Misses::sum(&misses(&self::trace(&rows[4..]), policy, 60, 0, 30)).neurons;
            assert_eq!(without, 20, "{policy}");
            // a neuron that nobody has requested yet is missing, even with free slots
            let mut other = self::trace(&rows[..1]);
            other.end_prompt();
            other.ask(0..10);
            other.end_token(None);
            assert_eq!(Misses::sum(&misses(&other, policy, 60, 0, 59)).neurons, 10, "{policy}");
        }
    }

    #[test]
    fn tokens_come_back_in_order() {
        let a = trace(&[vec![true, false], vec![], vec![true, true]]);
        assert_eq!(a.tokens().collect::<Vec<_>>(), [&[0][..], &[], &[0, 1]]);
    }
}
