//! The cache: which neurons of a layer are in memory, and where.
//!
//! A layer's neurons are numbered by rank, most used first. The first `hot` are pinned: resident from start
//! to end. The others share the layer's cold slots and evict each other by the plan's policy. A neuron of the
//! current token is never evicted, because it may not have been computed yet. (PowerInfer-2's segmented
//! neuron cache, *stated*, is least recently used.)
//!
//! The tables hold numbers only. The caller decides what slot `n` holds.
//!
//! # Which policy
//!
//! The planner chooses the policy with the fewest misses in the profile. The table shows misses per 100
//! requested neurons over all tokens of a text, replayed with nothing pinned; *best* knows the future:
//!
//! | model, level, tokens | slots, % of neurons | lru | clock | frequency | best |
//! |---|---|---|---|---|---|
//! | oxide-dense, exact gate, 1500 | 5 | 85.7 | 85.7 | 78.9 | 73.0 |
//! | | 10 | 71.2 | 71.2 | 64.2 | 52.1 |
//! | | 20 | 51.8 | 50.3 | 44.1 | 30.1 |
//! | | 40 | 25.7 | 24.4 | 20.9 | 11.5 |
//! | oxide-dense, low rank 90, 1500 | 10 | 72.1 | 71.7 | 69.3 | 54.9 |
//! | | 20 | 54.3 | 52.9 | 48.8 | 32.6 |
//! | | 40 | 26.8 | 25.3 | 22.1 | 11.8 |
//! | oxide-moe, exact gate, 1500 | 5 | 84.1 | 83.9 | 79.6 | 64.3 |
//! | | 10 | 73.1 | 71.8 | 66.1 | 47.4 |
//! | | 20 | 53.1 | 51.6 | 46.8 | 28.6 |
//! | | 40 | 26.8 | 25.9 | 23.3 | 11.9 |
//! | Mistral's 7B shape, generated, low rank 95, 318 | 10 | 42.8 | 42.8 | 42.7 | 34.1 |
//! | | 20 | 24.0 | 22.8 | 19.0 | 11.6 |
//! | | 40 | 4.60 | 4.37 | 3.32 | 1.74 |
//!
//! With a quarter or half of the cache pinned, the policies are closer, in the same order. Where the slots
//! hold the neurons of one token, frequency first misses 12 to 25 % less than LRU. It copies at most half as
//! many neurons into slots, often a tenth, for four more bytes a neuron. A plan uses frequency first wherever
//! it was measured. The other policies remain for comparison (`plan --without policy`), and for texts whose
//! topics change within a half-life.
//!
//! Memory: four bytes per neuron (its slot), plus [`plans::Policy::tables_bytes`] for the slots. The planner
//! prices exactly these bytes.

mod clock;
mod frequency;
mod lru;

use std::fmt;

use clock::Clock;
use frequency::Frequency;
use lru::Lru;
use plans::Policy;

/// A neuron without a slot, and a slot without a neuron.
const NONE: u32 = u32::MAX;

/// A cache policy: decides which neuron is evicted. The cache reports every use, and consults the policy when
/// no slot is free.
///
/// Decisions are deterministic: equal calls have equal answers, on every machine and in every run.
trait Eviction: fmt::Debug + Send + Sync {
    /// Starts a token; neurons of the previous token may be evicted from now on.
    fn begin_token(&mut self) {}

    /// Reports a requested neuron that is in a slot.
    fn found(&mut self, neuron: u32, slot: u32);

    /// Reports a requested neuron that has no slot.
    fn missed(&mut self, _neuron: u32) {}

    /// Reports a neuron that gets a free slot.
    fn fill(&mut self, neuron: u32, slot: u32);

    /// Chooses the slot to give to a neuron when all are in use; `None` if every resident is worth more.
    /// Never a slot of the current token; there are others.
    fn replace(&mut self, neuron: u32, residents: &Residents<'_>) -> Option<u32>;

    /// Frees all slots, as at start.
    fn clear(&mut self);

    /// Bytes of the policy's tables.
    fn bytes(&self) -> usize;
}

/// The neurons in the slots.
#[derive(Debug, Clone, Copy)]
struct Residents<'a> {
    slot_of: &'a [u32],
    stamp_of: &'a [u32],
    stamp: u32,
}

impl Residents<'_> {
    /// The slot of a resident neuron.
    fn slot_of(&self, neuron: u32) -> u32 {
        self.slot_of[neuron as usize]
    }

    /// Whether the current token uses a slot.
    fn is_current(&self, slot: u32) -> bool {
        self.stamp_of[slot as usize] == self.stamp
    }
}

/// The place of a neuron's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The neuron is in the hot region, at this index.
    Hot(u32),
    /// The neuron is in this cold slot.
    Cold(u32),
    /// The neuron is only in the container.
    Missing,
}

/// Counts of a cache since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Neurons looked up: the sum of the next three counts.
    pub requested: u64,
    /// Neurons found in the hot region.
    pub hot_hits: u64,
    /// Neurons found in a slot.
    pub cold_hits: u64,
    /// Neurons not in memory.
    pub missing: u64,
    /// Neurons that were given a slot.
    pub inserted: u64,
    /// Neurons evicted for another.
    pub evicted: u64,
    /// Neurons that got no slot: the layer has none, or all residents are the current token's or worth more.
    pub refused: u64,
}

/// The cache of one layer.
#[derive(Debug)]
pub struct LayerCache {
    hot: u32,
    /// `[neurons]`: the cold slot that holds it, or `NONE`.
    slot_of: Box<[u32]>,
    /// `[slots]`: the neuron in it; meaningless for free slots.
    neuron_in: Box<[u32]>,
    /// `[slots]`: the token that last used it; meaningless for free slots.
    stamp_of: Box<[u32]>,
    /// First free slot: all below are in use.
    used: u32,
    /// The current token, and how many slots it uses.
    current: Option<(u32, u32)>,
    eviction: Box<dyn Eviction>,
    counters: CacheCounters,
}

impl LayerCache {
    /// A cache for `neurons` ranks, the first `hot` of them pinned, with `slots` cold slots.
    ///
    /// # Panics
    /// If `hot` is more than `neurons`, or either or `slots` is `u32::MAX`.
    pub fn new(policy: Policy, neurons: u32, hot: u32, slots: u32) -> Self {
        assert!(hot <= neurons && neurons < NONE, "{hot} pinned of {neurons} neurons");
        assert!(slots < NONE, "slot numbers end before {NONE}");
        let table = |entries: u32| vec![NONE; entries as usize].into_boxed_slice();
        Self {
            hot,
            slot_of: table(neurons),
            neuron_in: table(slots),
            stamp_of: table(slots),
            used: 0,
            current: None,
            eviction: match policy {
                Policy::Lru => Box::new(Lru::new(slots)),
                Policy::Clock => Box::new(Clock::new(slots)),
                Policy::Frequency => Box::new(Frequency::new(neurons, hot, slots)),
            },
            counters: CacheCounters::default(),
        }
    }

    /// Looks up the places of all requested neurons in one pass. A neuron that is found counts as used now by
    /// token `stamp`, and is not evicted while `stamp` is current.
    ///
    /// # Panics
    /// If `places` is not as long as `requested`, or a neuron is not of this layer.
    pub fn look_up(&mut self, requested: &[u32], stamp: u32, places: &mut [Place]) {
        assert_eq!(requested.len(), places.len(), "look_up: lengths differ");
        let mut current = self.begin(stamp);
        let (mut hot_hits, mut cold_hits) = (0, 0);
        for (&neuron, place) in requested.iter().zip(places) {
            *place = if neuron < self.hot {
                hot_hits += 1;
                Place::Hot(neuron)
            } else {
                match self.slot_of[neuron as usize] {
                    NONE => {
                        self.eviction.missed(neuron);
                        Place::Missing
                    }
                    slot => {
                        cold_hits += 1;
                        self.eviction.found(neuron, slot);
                        let last = std::mem::replace(&mut self.stamp_of[slot as usize], stamp);
                        current += u32::from(last != stamp);
                        Place::Cold(slot)
                    }
                }
            };
        }
        self.current = Some((stamp, current));
        let requested = requested.len() as u64;
        self.counters.requested += requested;
        self.counters.hot_hits += hot_hits;
        self.counters.cold_hits += cold_hits;
        self.counters.missing += requested - hot_hits - cold_hits;
    }

    /// Looks up the places of all requested neurons without changing order, stamps or counters.
    ///
    /// # Panics
    /// If `places` is not as long as `requested`, or a neuron is not the layer's.
    pub fn find(&self, requested: &[u32], places: &mut [Place]) {
        assert_eq!(requested.len(), places.len(), "find: lengths differ");
        for (&neuron, place) in requested.iter().zip(places) {
            *place = match self.slot_of[neuron as usize] {
                _ if neuron < self.hot => Place::Hot(neuron),
                NONE => Place::Missing,
                slot => Place::Cold(slot),
            };
        }
    }

    /// Counts the requests of a prompt's token as [`Self::look_up`] would, without places. A prompt's tokens
    /// pass together, so none of them becomes the current one.
    ///
    /// # Panics
    /// If a neuron is not of this layer.
    pub fn count(&mut self, requested: impl Iterator<Item = u32>) {
        self.current = None;
        self.eviction.begin_token();
        for neuron in requested.filter(|&neuron| neuron >= self.hot) {
            match self.slot_of[neuron as usize] {
                NONE => self.eviction.missed(neuron),
                slot => self.eviction.found(neuron, slot),
            }
        }
    }

    /// Whether a neuron is not in memory; nothing changes.
    pub fn is_missing(&self, neuron: u32) -> bool {
        neuron >= self.hot && self.slot_of[neuron as usize] == NONE
    }

    /// Gives a missing neuron a slot: a free one, or one that the policy empties. `None` if token `stamp`
    /// uses all slots or the policy refuses; the caller then computes from its read buffer.
    ///
    /// From here on the cache says that the slot holds the neuron. Insert only bytes that were read and
    /// verified, and fill the slot before the next look-up.
    ///
    /// # Panics
    /// If the neuron is pinned or in a slot already, or not of this layer.
    pub fn insert(&mut self, neuron: u32, stamp: u32) -> Option<u32> {
        assert!(neuron >= self.hot, "neuron {neuron} is pinned");
        assert_eq!(self.slot_of[neuron as usize], NONE, "neuron {neuron} has a slot");
        let current = self.begin(stamp);
        let Some(slot) = self.slot_for(neuron, stamp, current) else {
            self.counters.refused += 1;
            return None;
        };
        self.slot_of[neuron as usize] = slot;
        self.neuron_in[slot as usize] = neuron;
        self.stamp_of[slot as usize] = stamp;
        self.current = Some((stamp, current + 1));
        self.counters.inserted += 1;
        Some(slot)
    }

    /// A free slot, or one that the policy empties; `None` if the current token uses all.
    fn slot_for(&mut self, neuron: u32, stamp: u32, current: u32) -> Option<u32> {
        if self.used < self.slots() {
            let slot = self.used;
            self.used += 1;
            self.eviction.fill(neuron, slot);
            return Some(slot);
        }
        if current == self.used {
            return None;
        }
        let residents = Residents { slot_of: &self.slot_of, stamp_of: &self.stamp_of, stamp };
        let slot = self.eviction.replace(neuron, &residents)?;
        self.slot_of[self.neuron_in[slot as usize] as usize] = NONE;
        self.counters.evicted += 1;
        Some(slot)
    }

    /// Number of slots that token `stamp` uses; zero for a new token.
    fn begin(&mut self, stamp: u32) -> u32 {
        match self.current {
            Some((current, slots)) if current == stamp => slots,
            _ => {
                self.current = Some((stamp, 0));
                self.eviction.begin_token();
                0
            }
        }
    }

    /// Frees all cold slots, as at start; keeps the counters.
    pub fn clear_cold(&mut self) {
        for &neuron in &self.neuron_in[..self.used as usize] {
            self.slot_of[neuron as usize] = NONE;
        }
        (self.used, self.current) = (0, None);
        self.eviction.clear();
    }

    /// Neurons of the layer.
    pub fn neurons(&self) -> u32 {
        // `new` was given as many
        u32::try_from(self.slot_of.len()).unwrap_or(NONE)
    }

    /// Pinned ranks.
    pub fn hot(&self) -> u32 {
        self.hot
    }

    /// Cold slots, used and free.
    pub fn slots(&self) -> u32 {
        // `new` was given as many
        u32::try_from(self.stamp_of.len()).unwrap_or(NONE)
    }

    /// Cold slots in use.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Counts since the cache was made.
    pub fn counters(&self) -> CacheCounters {
        self.counters
    }

    /// Bytes of all tables.
    pub fn tables_bytes(&self) -> usize {
        size_of_val(&*self.slot_of)
            + size_of_val(&*self.neuron_in)
            + size_of_val(&*self.stamp_of)
            + self.eviction.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;

    /// The specification of all policies: a list of resident neurons, their slots and ages, and each policy's
    /// state, searched from first to last.
    #[derive(Debug)]
    struct Model {
        policy: Policy,
        hot: u32,
        slots: u32,
        /// Neuron, slot, stamp and whether it was found again: for the hand, the next it comes to first; else oldest
        /// use first.
        entries: Vec<(u32, u32, u32, bool)>,
        /// Scores by neuron, and what a use counts.
        scores: BTreeMap<u32, f32>,
        unit: f32,
    }

    impl Model {
        fn new(policy: Policy, hot: u32, slots: u32) -> Self {
            Self { policy, hot, slots, entries: Vec::new(), scores: BTreeMap::new(), unit: 1.0 }
        }

        fn begin_token(&mut self) {
            self.unit *= (1.0 / frequency::HALF_LIFE_TOKENS).exp2();
            if self.unit > frequency::UNIT_MAX {
                self.unit /= frequency::UNIT_MAX;
                self.scores.values_mut().for_each(|score| *score /= frequency::UNIT_MAX);
            }
        }

        fn look_up(&mut self, neuron: u32, stamp: u32) -> Place {
            if neuron < self.hot {
                return Place::Hot(neuron);
            }
            *self.scores.entry(neuron).or_default() += self.unit;
            let Some(at) = self.entries.iter().position(|entry| entry.0 == neuron) else {
                return Place::Missing;
            };
            let slot = self.entries[at].1;
            if self.policy == Policy::Clock {
                self.entries[at] = (neuron, slot, stamp, true);
            } else {
                self.entries.remove(at);
                self.entries.push((neuron, slot, stamp, true));
            }
            Place::Cold(slot)
        }

        /// Counts a prompt's token; no neuron becomes the current token's.
        fn count(&mut self, requested: &[u32]) {
            self.begin_token();
            for &neuron in requested {
                let stamp = self.entries.iter().find(|entry| entry.0 == neuron).map(|entry| entry.2);
                self.look_up(neuron, stamp.unwrap_or(0));
            }
        }

        fn score(&self, neuron: u32) -> f32 {
            self.scores.get(&neuron).copied().unwrap_or(0.0)
        }

        /// The index of the evicted entry.
        fn leaves(&mut self, neuron: u32, stamp: u32) -> Option<usize> {
            let mut others = (0..self.entries.len()).filter(|&at| self.entries[at].2 != stamp);
            match self.policy {
                Policy::Lru => others.next(),
                Policy::Clock => {
                    others.next()?;
                    while self.entries[0].2 == stamp || self.entries[0].3 {
                        let (neuron, slot, used, found) = self.entries.remove(0);
                        self.entries.push((neuron, slot, used, found && used == stamp));
                    }
                    Some(0)
                }
                Policy::Frequency => {
                    let worth = |&at: &usize| {
                        let neuron = self.entries[at].0;
                        (self.score(neuron).to_bits(), std::cmp::Reverse(neuron))
                    };
                    others.min_by_key(worth).filter(|&at| self.score(self.entries[at].0) < self.score(neuron))
                }
            }
        }

        fn insert(&mut self, neuron: u32, stamp: u32) -> Option<u32> {
            let free = (0..self.slots).find(|slot| self.entries.iter().all(|entry| entry.1 != *slot));
            let slot = match free {
                Some(slot) => slot,
                None => {
                    let at = self.leaves(neuron, stamp)?;
                    self.entries.remove(at).1
                }
            };
            self.entries.push((neuron, slot, stamp, false));
            Some(slot)
        }

        fn clear(&mut self) {
            *self = Self::new(self.policy, self.hot, self.slots);
        }
    }

    /// Everything in the model is in the cache, and everything in the cache is in the model.
    fn agree(cache: &LayerCache, model: &Model) -> Result<(), TestCaseError> {
        let in_model: BTreeMap<u32, u32> = model.entries.iter().map(|&(n, slot, ..)| (n, slot)).collect();
        let in_cache: BTreeMap<u32, u32> = (0..cache.neurons())
            .filter_map(|n| Some((n, cache.slot_of[n as usize])).filter(|&(_, slot)| slot != NONE))
            .collect();
        prop_assert_eq!(&in_model, &in_cache);
        for (neuron, slot) in in_cache {
            prop_assert_eq!(cache.neuron_in[slot as usize], neuron);
        }
        Ok(())
    }

    /// One token through cache and model: equal places, equal slots, and no neuron of the token replaced.
    fn token(
        cache: &mut LayerCache,
        model: &mut Model,
        active: &[u32],
        stamp: u32,
    ) -> Result<(), TestCaseError> {
        let mut places = vec![Place::Missing; active.len()];
        cache.look_up(active, stamp, &mut places);
        model.begin_token();
        let expected: Vec<Place> = active.iter().map(|&n| model.look_up(n, stamp)).collect();
        prop_assert_eq!(&places, &expected);
        agree(cache, model)?;

        let mut missing: Vec<u32> =
            active.iter().zip(&places).filter(|(_, p)| **p == Place::Missing).map(|(&n, _)| n).collect();
        missing.sort_unstable();
        missing.dedup();
        for neuron in missing {
            let current: Vec<u32> =
                model.entries.iter().filter(|entry| entry.2 == stamp).map(|entry| entry.0).collect();
            prop_assert_eq!(cache.insert(neuron, stamp), model.insert(neuron, stamp));
            agree(cache, model)?;
            for kept in current {
                prop_assert_ne!(cache.slot_of[kept as usize], NONE, "{} is the current token's", kept);
            }
        }
        Ok(())
    }

    fn policy() -> impl Strategy<Value = Policy> {
        prop::sample::select(&Policy::ALL[..])
    }

    proptest! {
        #[test]
        fn a_cache_is_a_map_that_forgets_as_its_policy_says(
            policy in policy(),
            (neurons, hot) in (1_u32..24).prop_flat_map(|n| (Just(n), 0..=n)),
            slots in 0_u32..10,
            tokens in prop::collection::vec((prop::collection::vec(any::<u32>(), 0..12), 0..40_u8), 0..60),
        ) {
            let mut cache = LayerCache::new(policy, neurons, hot, slots);
            let mut model = Model::new(policy, hot, slots);
            for (stamp, (active, dice)) in (0_u32..).zip(tokens) {
                if dice == 0 {
                    cache.clear_cold();
                    model.clear();
                }
                let active: Vec<u32> = active.into_iter().map(|n| n % neurons).collect();
                if dice < 4 {
                    cache.count(active.iter().copied());
                    model.count(&active);
                } else {
                    token(&mut cache, &mut model, &active, stamp)?;
                }
            }
            let c = cache.counters();
            prop_assert_eq!(c.requested, c.hot_hits + c.cold_hits + c.missing);
            prop_assert!(c.inserted - c.evicted >= u64::from(cache.used()));
        }
    }

    #[test]
    fn frequencies_stay_in_order_when_they_are_scaled_down() -> Result<(), TestCaseError> {
        let mut cache = LayerCache::new(Policy::Frequency, 40, 3, 12);
        let mut model = Model::new(Policy::Frequency, 3, 12);
        let mut scaled = 0;
        for stamp in 0..5000_u32 {
            // neuron n every (n + 1)th token, and each for some time not at all
            let active: Vec<u32> =
                (0..40).filter(|n| stamp % (n + 1) == 0 && stamp / 700 % 5 != n % 5).collect();
            let unit = model.unit;
            token(&mut cache, &mut model, &active, stamp)?;
            scaled += u32::from(model.unit < unit);
        }
        assert_eq!(scaled, 2, "twice in 5000 tokens");
        Ok(())
    }

    #[test]
    fn tables_take_the_bytes_that_plans_count() {
        for policy in Policy::ALL {
            for (neurons, hot, slots) in [(0, 0, 0), (1, 0, 1), (11_008, 2000, 3001), (14_336, 14_336, 0)] {
                let cache = LayerCache::new(policy, neurons, hot, slots);
                let of_slots = policy.tables_bytes(u64::from(neurons), u64::from(hot), u64::from(slots));
                assert_eq!(cache.tables_bytes() as u64, 4 * u64::from(neurons) + of_slots, "{policy}");
            }
        }
    }

    /// Requests `active` and inserts the missing ones; returns their number.
    fn ask(cache: &mut LayerCache, active: Range<u32>, stamp: u32) -> usize {
        let active: Vec<u32> = active.collect();
        let mut places = vec![Place::Missing; active.len()];
        cache.look_up(&active, stamp, &mut places);
        let missing = active.iter().zip(places).filter(|(_, place)| *place == Place::Missing);
        missing.map(|(&neuron, _)| cache.insert(neuron, stamp)).count()
    }

    /// 100 neurons that every other token uses, and one token that requests 1000 others: five times the slots.
    #[test]
    fn a_rare_token_does_not_flush_neurons_that_are_used_all_the_time() {
        let after = |policy| {
            let mut cache = LayerCache::new(policy, 2000, 0, 200);
            for stamp in (0..40).step_by(2) {
                ask(&mut cache, 0..50, stamp);
                ask(&mut cache, 50..100, stamp + 1);
            }
            assert_eq!(ask(&mut cache, 1000..2000, 40), 1000);
            ask(&mut cache, 0..50, 41) + ask(&mut cache, 50..100, 42)
        };
        assert_eq!(after(Policy::Lru), 100, "the order of use forgets all of them");
        assert_eq!(after(Policy::Frequency), 0, "each was used 20 times, the others once");
    }

    #[test]
    fn a_neuron_that_begins_to_be_used_all_the_time_is_inserted_soon() {
        let mut cache = LayerCache::new(Policy::Frequency, 300, 0, 100);
        for stamp in 0..200 {
            ask(&mut cache, 0..100, stamp);
        }
        let tokens = (200..300).position(|stamp| ask(&mut cache, 100..200, stamp) == 0);
        // the old ones' score halves every half-life, while the new ones' grows towards what it was
        assert_eq!(tokens, Some(frequency::HALF_LIFE_TOKENS as usize));
    }

    #[test]
    fn the_current_tokens_neurons_are_not_replaced() {
        let mut cache = LayerCache::new(Policy::Lru, 8, 2, 2);
        assert_eq!(cache.insert(2, 1), Some(0));
        assert_eq!(cache.insert(3, 1), Some(1));
        assert_eq!(cache.insert(4, 1), None);
        let mut places = [Place::Missing; 3];
        cache.look_up(&[0, 3, 4], 2, &mut places);
        assert_eq!(places, [Place::Hot(0), Place::Cold(1), Place::Missing]);
        assert_eq!(cache.insert(4, 2), Some(0), "neuron 2 is the only one of an earlier token");
        assert_eq!(cache.insert(5, 2), None);
        let expected = CacheCounters {
            requested: 3,
            hot_hits: 1,
            cold_hits: 1,
            missing: 1,
            inserted: 3,
            evicted: 1,
            refused: 2,
        };
        assert_eq!(cache.counters(), expected);
    }

    #[test]
    fn nothing_cold_is_found_after_clearing_and_slots_are_free_again() {
        let mut cache = LayerCache::new(Policy::Lru, 4, 1, 2);
        let (first, second) = (cache.insert(1, 0), cache.insert(2, 0));
        cache.clear_cold();
        let mut places = [Place::Missing; 3];
        cache.look_up(&[0, 1, 2], 0, &mut places);
        assert_eq!(places, [Place::Hot(0), Place::Missing, Place::Missing]);
        assert_eq!((cache.insert(3, 0), cache.insert(1, 0)), (first, second));
        assert_eq!(cache.counters().evicted, 0);
    }

    #[test]
    #[should_panic(expected = "neuron 1 has a slot")]
    fn a_neuron_has_one_slot() {
        let mut cache = LayerCache::new(Policy::Lru, 4, 1, 2);
        cache.insert(1, 0);
        cache.insert(1, 0);
    }
}
