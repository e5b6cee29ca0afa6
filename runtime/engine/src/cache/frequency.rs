//! Frequency first: evicts the least used neuron, and only for one that is used more.
//!
//! Each neuron that is not pinned has a score, the number of its uses. A use loses half its weight every
//! [`HALF_LIFE_TOKENS`] tokens:
//!
//! ```text
//! score = sum over uses of 2^(-age / half-life)
//! ```
//!
//! A neuron keeps its score while it is not in memory. A rarely requested neuron arrives with a score of 1
//! and is computed from its read buffer. It gets a slot only if the evicted neuron's score is lower. A token
//! that requests many rare neurons therefore evicts no frequent ones, and most misses need no copy.
//!
//! Old uses are not scaled down: each token's uses count more than the last token's (`unit`), until all
//! scores are scaled down together. Then time changes no order, and a score only rises. The slots wait in a
//! heap under the score of their last look-up. A key at the root whose score has risen is moved back down. A
//! use costs an addition, and a replacement looks at about as many keys as were used since the last one.
//!
//! *Source*: scores as in LRFU (Lee et al., "LRFU: a spectrum of policies", 1999). LRFU becomes LRU with a
//! short half-life and LFU with a long one. Insertion as in `TinyLFU` (Einziger et al., 2017); growing units
//! as in SAT solvers (VSIDS).

use super::{Eviction, Residents};

/// Tokens after which a use has half its weight. Half or twice as many change the misses of the measured
/// models by 2 %; more tokens mean fewer insertions.
pub(super) const HALF_LIFE_TOKENS: f32 = 32.0;
/// The `unit` above which all scores are divided by it. A power of two, so that only negligible scores are
/// rounded.
pub(super) const UNIT_MAX: f32 = 18_446_744_073_709_551_616.0;

/// The scores of a layer's neurons, and its slots by score.
#[derive(Debug)]
pub(super) struct Frequency {
    /// Pinned neurons; they have no score.
    hot: u32,
    /// The score that a use adds now.
    unit: f32,
    /// Growth of `unit` per token, as a factor.
    growth: f32,
    /// `[neurons - hot]`: the scores, in units of the current scale.
    scores: Box<[f32]>,
    /// `[slots]`: first a heap of `waiting` keys, the least first, none above its neuron's score; then the
    /// current token's neurons, which cannot be evicted.
    heap: Box<[Key]>,
    waiting: usize,
    used: usize,
}

/// A score's bits above the inverted rank; positive floats order as their bits do. The least key is evicted
/// first; among equal scores, the last in the layer's order, which profiling saw least.
type Key = u64;

impl Frequency {
    /// Scores over `slots` free slots, in a layer of `neurons` neurons, the first `hot` of them pinned.
    pub(super) fn new(neurons: u32, hot: u32, slots: u32) -> Self {
        let scored = if slots > 0 { neurons - hot } else { 0 };
        Self {
            hot,
            unit: 1.0,
            growth: (1.0 / HALF_LIFE_TOKENS).exp2(),
            scores: vec![0.0; scored as usize].into_boxed_slice(),
            heap: vec![0; slots as usize].into_boxed_slice(),
            waiting: 0,
            used: 0,
        }
    }

    fn used(&mut self, neuron: u32) {
        if let Some(score) = self.scores.get_mut((neuron - self.hot) as usize) {
            *score += self.unit;
        }
    }

    fn key(&self, neuron: u32) -> Key {
        u64::from(self.scores[(neuron - self.hot) as usize].to_bits()) << 32 | u64::from(!neuron)
    }

    /// Moves a key towards the root until none above it is greater.
    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.heap[at] < self.heap[(at - 1) / 2] {
            self.heap.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    /// Moves the root's key down until none below it is less.
    fn sink(&mut self) {
        let heap = &mut self.heap[..self.waiting];
        let mut at = 0;
        while let Some(&left) = heap.get(2 * at + 1) {
            let right = heap.get(2 * at + 2).copied().unwrap_or(Key::MAX);
            let (least, child) = if right < left { (right, 2 * at + 2) } else { (left, 2 * at + 1) };
            if heap[at] <= least {
                return;
            }
            heap.swap(at, child);
            at = child;
        }
    }

    /// Moves the root out of the heap, to the first place behind it.
    fn set_aside(&mut self) {
        self.waiting -= 1;
        self.heap.swap(0, self.waiting);
        self.sink();
    }
}

fn neuron_of(key: Key) -> u32 {
    !(key as u32)
}

impl Eviction for Frequency {
    fn begin_token(&mut self) {
        self.unit *= self.growth;
        if self.unit > UNIT_MAX {
            self.unit /= UNIT_MAX;
            self.scores.iter_mut().for_each(|score| *score /= UNIT_MAX);
            // and the heap is rebuilt
            self.waiting = 0;
        }
        while self.waiting < self.used {
            self.heap[self.waiting] = self.key(neuron_of(self.heap[self.waiting]));
            self.rise(self.waiting);
            self.waiting += 1;
        }
    }

    fn found(&mut self, neuron: u32, _slot: u32) {
        self.used(neuron);
    }

    fn missed(&mut self, neuron: u32) {
        self.used(neuron);
    }

    fn fill(&mut self, neuron: u32, _slot: u32) {
        self.heap[self.used] = self.key(neuron);
        self.used += 1;
    }

    fn replace(&mut self, neuron: u32, residents: &Residents<'_>) -> Option<u32> {
        let score = self.key(neuron) >> 32;
        while self.waiting > 0 {
            let least = neuron_of(self.heap[0]);
            let slot = residents.slot_of(least);
            let key = self.key(least);
            if residents.is_current(slot) {
                self.set_aside();
            } else if key > self.heap[0] {
                self.heap[0] = key;
                self.sink();
            } else if key >> 32 < score {
                self.set_aside();
                self.heap[self.waiting] = self.key(neuron);
                return Some(slot);
            } else {
                return None;
            }
        }
        None
    }

    fn clear(&mut self) {
        (self.unit, self.waiting, self.used) = (1.0, 0, 0);
        self.scores.fill(0.0);
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.scores) + size_of_val(&*self.heap)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_score_counts_uses_that_fade(uses in prop::collection::vec(prop::bool::weighted(0.2), 1..5000)) {
            let mut frequency = Frequency::new(1, 0, 1);
            let mut expected = 0.0;
            for used in uses {
                frequency.begin_token();
                expected *= (-1.0 / f64::from(HALF_LIFE_TOKENS)).exp2();
                if used {
                    frequency.missed(0);
                    expected += 1.0;
                }
                let score = f64::from(frequency.scores[0] / frequency.unit);
                let error = (score - expected).abs();
                prop_assert!(error <= 1e-4 * expected + 1e-15, "{score} is {error:e} off {expected}");
            }
        }
    }
}
