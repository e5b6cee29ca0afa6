//! Which neurons of a layer are in memory, and where.
//!
//! A layer's neurons are numbered by position, most used first. The first `hot` are pinned: resident
//! from start to end, nothing to look up. The others share the layer's cold slots and replace each
//! other, least recently used first (PowerInfer-2, segmented neuron cache, *stated*), except that a
//! neuron of the token being computed is never replaced: it may not have been computed yet.
//!
//! The tables know numbers only: no bytes, no files. The caller keeps what slot `n` means.
//!
//! Memory: exactly four bytes per neuron (its slot) and sixteen per slot (its neuron, its stamp, its
//! neighbours in the order of use); a plan counts on it.

mod lru;

pub use lru::Lru;

/// A neuron without a slot, and a slot without a neuron.
const NONE: u32 = u32::MAX;

/// Where a neuron's weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the pinned region, at this index.
    Hot(u32),
    /// In this cold slot.
    Cold(u32),
    /// In the container only.
    Missing,
}

/// What a cache has seen since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Neurons looked up; the sum of the next three.
    pub asked: u64,
    /// Found pinned.
    pub hot_hits: u64,
    /// Found in a slot.
    pub cold_hits: u64,
    /// Not found.
    pub missing: u64,
    /// Given a slot.
    pub admitted: u64,
    /// Deprived of one for it.
    pub evicted: u64,
    /// Not given a slot: all belong to the current token, or there are none.
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
    order: Lru,
    counters: Counters,
}

impl LayerCache {
    /// A cache for `neurons` positions, the first `hot` of them pinned, with `slots` cold slots.
    ///
    /// # Panics
    /// If `hot` is more than `neurons`, or either or `slots` is `u32::MAX`.
    pub fn new(neurons: u32, hot: u32, slots: u32) -> Self {
        assert!(hot <= neurons && neurons < NONE, "{hot} pinned of {neurons} neurons");
        let table = |entries: u32| vec![NONE; entries as usize].into_boxed_slice();
        Self {
            hot,
            slot_of: table(neurons),
            neuron_in: table(slots),
            stamp_of: table(slots),
            order: Lru::new(slots),
            counters: Counters::default(),
        }
    }

    /// Where each of `asked` is, the whole active set in one pass. What is found is used now, by token
    /// `stamp`, and is not replaced while `stamp` is current.
    ///
    /// # Panics
    /// If `places` is not as long as `asked`, or a neuron is not of this layer.
    pub fn look_up(&mut self, asked: &[u32], stamp: u32, places: &mut [Place]) {
        assert_eq!(asked.len(), places.len(), "look_up: lengths differ");
        let (mut hot_hits, mut cold_hits) = (0, 0);
        for (&neuron, place) in asked.iter().zip(places) {
            *place = if neuron < self.hot {
                hot_hits += 1;
                Place::Hot(neuron)
            } else {
                match self.slot_of[neuron as usize] {
                    NONE => Place::Missing,
                    slot => {
                        cold_hits += 1;
                        self.order.touch(slot);
                        self.stamp_of[slot as usize] = stamp;
                        Place::Cold(slot)
                    }
                }
            };
        }
        let asked = asked.len() as u64;
        self.counters.asked += asked;
        self.counters.hot_hits += hot_hits;
        self.counters.cold_hits += cold_hits;
        self.counters.missing += asked - hot_hits - cold_hits;
    }

    /// Where each of `asked` is, leaving order, stamps and counters as they are.
    ///
    /// # Panics
    /// As [`LayerCache::look_up`].
    pub fn find(&self, asked: &[u32], places: &mut [Place]) {
        assert_eq!(asked.len(), places.len(), "find: lengths differ");
        for (&neuron, place) in asked.iter().zip(places) {
            *place = match self.slot_of[neuron as usize] {
                _ if neuron < self.hot => Place::Hot(neuron),
                NONE => Place::Missing,
                slot => Place::Cold(slot),
            };
        }
    }

    /// Whether a neuron is not in memory; nothing changes.
    pub fn is_missing(&self, neuron: u32) -> bool {
        neuron >= self.hot && self.slot_of[neuron as usize] == NONE
    }

    /// A slot for a neuron that was missing: a free one, or else the least recently used unless token
    /// `stamp` has used it. `None` then, and the caller computes from the buffer that it holds.
    ///
    /// From here on the cache says that the slot holds the neuron: fill it before the next look-up,
    /// and admit only what has arrived and been checked.
    ///
    /// # Panics
    /// If the neuron is pinned or in a slot already, or not of this layer.
    pub fn admit(&mut self, neuron: u32, stamp: u32) -> Option<u32> {
        assert!(neuron >= self.hot, "neuron {neuron} is pinned");
        assert_eq!(self.slot_of[neuron as usize], NONE, "neuron {neuron} has a slot");
        let slot = self.order.insert().or_else(|| self.evict(stamp));
        let Some(slot) = slot else {
            self.counters.refused += 1;
            return None;
        };
        self.slot_of[neuron as usize] = slot;
        self.neuron_in[slot as usize] = neuron;
        self.stamp_of[slot as usize] = stamp;
        self.counters.admitted += 1;
        Some(slot)
    }

    /// Empties and returns the oldest slot, unless the current token has used it. Every use moves a
    /// slot to the newest end, so that all others are the current token's too then.
    fn evict(&mut self, stamp: u32) -> Option<u32> {
        let oldest = self.order.oldest()?;
        if self.stamp_of[oldest as usize] == stamp {
            return None;
        }
        let slot = self.order.evict_oldest()?;
        self.slot_of[self.neuron_in[slot as usize] as usize] = NONE;
        self.counters.evicted += 1;
        Some(slot)
    }

    /// Forgets the cold neurons, as at start. Counters stay.
    pub fn clear_cold(&mut self) {
        for slot in 0..self.order.used() {
            self.slot_of[self.neuron_in[slot as usize] as usize] = NONE;
        }
        self.order.clear();
    }

    /// Positions in the layer.
    pub fn neurons(&self) -> u32 {
        // as many as `new` was asked for
        u32::try_from(self.slot_of.len()).unwrap_or(NONE)
    }

    /// Pinned positions.
    pub fn hot(&self) -> u32 {
        self.hot
    }

    /// Cold slots, used and free.
    pub fn slots(&self) -> u32 {
        self.order.slots()
    }

    /// Cold slots in use.
    pub fn used(&self) -> u32 {
        self.order.used()
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes of all tables: `4 * neurons + 16 * slots`.
    pub fn tables_bytes(&self) -> usize {
        size_of_val(&*self.slot_of)
            + size_of_val(&*self.neuron_in)
            + size_of_val(&*self.stamp_of)
            + self.order.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// The specification: a list of (neuron, slot, stamp), oldest use first.
    #[derive(Debug)]
    struct Model {
        hot: u32,
        slots: u32,
        entries: Vec<(u32, u32, u32)>,
    }

    impl Model {
        fn look_up(&mut self, neuron: u32, stamp: u32) -> Place {
            if neuron < self.hot {
                return Place::Hot(neuron);
            }
            let Some(at) = self.entries.iter().position(|entry| entry.0 == neuron) else {
                return Place::Missing;
            };
            let (_, slot, _) = self.entries.remove(at);
            self.entries.push((neuron, slot, stamp));
            Place::Cold(slot)
        }

        fn admit(&mut self, neuron: u32, stamp: u32) -> Option<u32> {
            let free = (0..self.slots).find(|slot| self.entries.iter().all(|entry| entry.1 != *slot));
            let slot = match free {
                Some(slot) => slot,
                None => {
                    let oldest = self.entries.iter().position(|entry| entry.2 != stamp)?;
                    self.entries.remove(oldest).1
                }
            };
            self.entries.push((neuron, slot, stamp));
            Some(slot)
        }
    }

    /// In the model and in the cache, in both directions.
    fn agree(cache: &LayerCache, model: &Model) -> Result<(), TestCaseError> {
        let in_model: BTreeMap<u32, u32> = model.entries.iter().map(|&(n, slot, _)| (n, slot)).collect();
        let in_cache: BTreeMap<u32, u32> = (0..cache.neurons())
            .filter_map(|n| Some((n, cache.slot_of[n as usize])).filter(|&(_, slot)| slot != NONE))
            .collect();
        prop_assert_eq!(&in_model, &in_cache);
        for (neuron, slot) in in_cache {
            prop_assert_eq!(cache.neuron_in[slot as usize], neuron);
        }
        let order: Vec<u32> = model.entries.iter().map(|entry| entry.1).collect();
        prop_assert_eq!(cache.order.iter().collect::<Vec<_>>(), order);
        Ok(())
    }

    proptest! {
        #[test]
        fn a_cache_is_a_map_that_forgets_the_oldest(
            (neurons, hot) in (1_u32..24).prop_flat_map(|n| (Just(n), 0..=n)),
            slots in 0_u32..10,
            tokens in prop::collection::vec((prop::collection::vec(any::<u32>(), 0..12), 0..40_u8), 0..30),
        ) {
            let mut cache = LayerCache::new(neurons, hot, slots);
            let mut model = Model { hot, slots, entries: Vec::new() };
            for (stamp, (active, dice)) in (0_u32..).zip(tokens) {
                if dice == 0 {
                    cache.clear_cold();
                    model.entries.clear();
                }
                let active: Vec<u32> = active.into_iter().map(|n| n % neurons).collect();
                let mut places = vec![Place::Missing; active.len()];
                cache.look_up(&active, stamp, &mut places);
                let expected: Vec<Place> = active.iter().map(|&n| model.look_up(n, stamp)).collect();
                prop_assert_eq!(&places, &expected);
                agree(&cache, &model)?;

                let mut missing: Vec<u32> =
                    active.iter().zip(&places).filter(|(_, p)| **p == Place::Missing).map(|(&n, _)| n).collect();
                missing.sort_unstable();
                missing.dedup();
                for neuron in missing {
                    let current: Vec<u32> =
                        model.entries.iter().filter(|entry| entry.2 == stamp).map(|entry| entry.0).collect();
                    prop_assert_eq!(cache.admit(neuron, stamp), model.admit(neuron, stamp));
                    agree(&cache, &model)?;
                    for kept in current {
                        prop_assert_ne!(cache.slot_of[kept as usize], NONE, "{} is the current token's", kept);
                    }
                }
            }
            let c = cache.counters();
            prop_assert_eq!(c.asked, c.hot_hits + c.cold_hits + c.missing);
            prop_assert!(c.admitted - c.evicted >= u64::from(cache.used()));
        }
    }

    #[test]
    fn tables_take_four_bytes_a_neuron_and_sixteen_a_slot() {
        for (neurons, hot, slots) in [(0, 0, 0), (1, 0, 1), (11_008, 2000, 3001), (14_336, 14_336, 0)] {
            let cache = LayerCache::new(neurons, hot, slots);
            assert_eq!(cache.tables_bytes(), 4 * neurons as usize + 16 * slots as usize);
        }
    }

    #[test]
    fn the_current_tokens_neurons_are_not_replaced() {
        let mut cache = LayerCache::new(8, 2, 2);
        assert_eq!(cache.admit(2, 1), Some(0));
        assert_eq!(cache.admit(3, 1), Some(1));
        assert_eq!(cache.admit(4, 1), None);
        let mut places = [Place::Missing; 3];
        cache.look_up(&[0, 3, 4], 2, &mut places);
        assert_eq!(places, [Place::Hot(0), Place::Cold(1), Place::Missing]);
        assert_eq!(cache.admit(4, 2), Some(0), "neuron 2 is the only one of an earlier token");
        assert_eq!(cache.admit(5, 2), None);
        let expected =
            Counters { asked: 3, hot_hits: 1, cold_hits: 1, missing: 1, admitted: 3, evicted: 1, refused: 2 };
        assert_eq!(cache.counters(), expected);
    }

    #[test]
    fn nothing_cold_is_found_after_clearing_and_slots_are_free_again() {
        let mut cache = LayerCache::new(4, 1, 2);
        let (first, second) = (cache.admit(1, 0), cache.admit(2, 0));
        cache.clear_cold();
        let mut places = [Place::Missing; 3];
        cache.look_up(&[0, 1, 2], 0, &mut places);
        assert_eq!(places, [Place::Hot(0), Place::Missing, Place::Missing]);
        assert_eq!((cache.admit(3, 0), cache.admit(1, 0)), (first, second));
        assert_eq!(cache.counters().evicted, 0);
    }

    #[test]
    #[should_panic(expected = "neuron 1 has a slot")]
    fn a_neuron_has_one_slot() {
        let mut cache = LayerCache::new(4, 1, 2);
        cache.admit(1, 0);
        cache.admit(1, 0);
    }
}
