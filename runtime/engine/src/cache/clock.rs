//! Clock: second chance.
//!
//! A hand goes round the slots. A neuron found since the hand last passed keeps its slot for one more round;
//! the first neuron not found loses it. A new neuron must be found before the hand comes round, so one that
//! is requested once leaves within one round, before those used twice. This approximates LRU with one byte a
//! slot instead of eight.
//!
//! *Source*: Corbató, "A paging experiment with the Multics system", 1968.

use super::{Eviction, Residents};

/// The hand, and the slots found since it passed.
#[derive(Debug)]
pub(super) struct Clock {
    /// `[slots]`: found since the hand passed.
    found: Box<[bool]>,
    /// The next slot of the hand.
    hand: u32,
}

impl Clock {
    /// A clock over `slots` slots, all free.
    pub(super) fn new(slots: u32) -> Self {
        Self { found: vec![false; slots as usize].into_boxed_slice(), hand: 0 }
    }
}

impl Eviction for Clock {
    fn found(&mut self, _neuron: u32, slot: u32) {
        self.found[slot as usize] = true;
    }

    fn fill(&mut self, _neuron: u32, slot: u32) {
        self.found[slot as usize] = false;
    }

    /// At most two rounds, since the current token does not use every slot.
    fn replace(&mut self, _neuron: u32, residents: &Residents<'_>) -> Option<u32> {
        loop {
            let slot = self.hand;
            self.hand = if slot as usize + 1 < self.found.len() { slot + 1 } else { 0 };
            let leaves = !residents.is_current(slot) && !std::mem::take(&mut self.found[slot as usize]);
            if leaves {
                return Some(slot);
            }
        }
    }

    fn clear(&mut self) {
        self.hand = 0;
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.found)
    }
}
