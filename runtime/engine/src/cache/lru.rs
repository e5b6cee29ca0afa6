//! Least recently used.
//!
//! A doubly linked list in two arrays of slot numbers. A found or filled slot becomes the newest; the oldest
//! is evicted. Every use moves a slot to the newest end, so the current token's neurons are never the oldest
//! while there are others.

use super::{Eviction, NONE, Residents};

/// Slots ordered by last use.
#[derive(Debug)]
pub(super) struct Lru {
    /// The next older slot.
    previous: Box<[u32]>,
    /// The next newer slot.
    next: Box<[u32]>,
    oldest: u32,
    newest: u32,
}

impl Lru {
    /// An order over `slots` slots, all free; eight bytes each.
    pub(super) fn new(slots: u32) -> Self {
        let links = || vec![NONE; slots as usize].into_boxed_slice();
        Self { previous: links(), next: links(), oldest: NONE, newest: NONE }
    }

    fn push_newest(&mut self, slot: u32) {
        self.previous[slot as usize] = self.newest;
        self.next[slot as usize] = NONE;
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.next[newest as usize] = slot,
        }
        self.newest = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let (previous, next) = (self.previous[slot as usize], self.next[slot as usize]);
        match previous {
            NONE => self.oldest = next,
            previous => self.next[previous as usize] = next,
        }
        match next {
            NONE => self.newest = previous,
            next => self.previous[next as usize] = previous,
        }
    }
}

impl Eviction for Lru {
    fn found(&mut self, _neuron: u32, slot: u32) {
        if slot != self.newest {
            self.unlink(slot);
            self.push_newest(slot);
        }
    }

    fn fill(&mut self, _neuron: u32, slot: u32) {
        self.push_newest(slot);
    }

    fn replace(&mut self, neuron: u32, residents: &Residents<'_>) -> Option<u32> {
        let slot = self.oldest;
        debug_assert!(!residents.is_current(slot), "the oldest is the current token's");
        self.found(neuron, slot);
        Some(slot)
    }

    fn clear(&mut self) {
        (self.oldest, self.newest) = (NONE, NONE);
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.previous) + size_of_val(&*self.next)
    }
}
