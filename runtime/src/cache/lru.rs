//! Least recently used, over slot numbers.
//!
//! A doubly linked list in two arrays of slot numbers; nothing is allocated after [`Lru::new`], and
//! nothing here knows what a slot holds. Slots are handed out in order until all are used; from then
//! on the oldest is used again.

/// No neighbour.
const NONE: u32 = u32::MAX;

/// The order in which slots were last used.
#[derive(Debug)]
pub struct Lru {
    /// Towards the oldest.
    previous: Box<[u32]>,
    /// Towards the newest.
    next: Box<[u32]>,
    oldest: u32,
    newest: u32,
    /// Slots below are in the list, slots from here on are free.
    used: u32,
}

impl Lru {
    /// `slots` free slots; eight bytes each.
    ///
    /// # Panics
    /// If `slots` is `u32::MAX`: that number means no slot.
    pub fn new(slots: u32) -> Self {
        assert!(slots < NONE, "slot numbers end before {NONE}");
        let links = || vec![NONE; slots as usize].into_boxed_slice();
        Self { previous: links(), next: links(), oldest: NONE, newest: NONE, used: 0 }
    }

    /// All slots, used and free.
    pub fn slots(&self) -> u32 {
        // as many as `new` was asked for
        u32::try_from(self.next.len()).unwrap_or(NONE)
    }

    /// Slots in use.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Bytes of the two arrays.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.previous) + size_of_val(&*self.next)
    }

    /// A free slot, which becomes the newest; `None` when all are used.
    pub fn insert(&mut self) -> Option<u32> {
        let slot = self.used;
        if slot == self.slots() {
            return None;
        }
        self.used += 1;
        self.push_newest(slot);
        Some(slot)
    }

    /// The slot that was not used for longest.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Makes a used slot the newest.
    ///
    /// # Panics
    /// If the slot is not in use.
    pub fn touch(&mut self, slot: u32) {
        assert!(slot < self.used, "slot {slot} is not in use");
        if slot != self.newest {
            self.unlink(slot);
            self.push_newest(slot);
        }
    }

    /// The oldest slot, which becomes the newest, to be filled anew.
    pub fn evict_oldest(&mut self) -> Option<u32> {
        let slot = self.oldest()?;
        self.touch(slot);
        Some(slot)
    }

    /// Frees every slot.
    pub fn clear(&mut self) {
        (self.oldest, self.newest, self.used) = (NONE, NONE, 0);
    }

    /// Used slots, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let after = |&slot: &u32| Some(self.next[slot as usize]).filter(|&next| next != NONE);
        std::iter::successors(self.oldest(), after)
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert,
        Touch(u32),
        Evict,
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => Just(Step::Insert),
            12 => any::<u32>().prop_map(Step::Touch),
            6 => Just(Step::Evict),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn order_is_that_of_a_plain_queue(slots in 0_u32..9, steps in prop::collection::vec(step(), 0..200)) {
            let mut lru = Lru::new(slots);
            let mut queue = VecDeque::new();
            for step in steps {
                match step {
                    Step::Insert => {
                        let free = (queue.len() < slots as usize).then_some(lru.used());
                        prop_assert_eq!(lru.insert(), free);
                        queue.extend(free);
                    }
                    Step::Touch(which) if !queue.is_empty() => {
                        let slot = queue.remove(which as usize % queue.len()).unwrap();
                        queue.push_back(slot);
                        lru.touch(slot);
                    }
                    Step::Touch(_) => {}
                    Step::Evict => {
                        let oldest = queue.pop_front();
                        queue.extend(oldest);
                        prop_assert_eq!(lru.evict_oldest(), oldest);
                    }
                    Step::Clear => {
                        queue.clear();
                        lru.clear();
                    }
                }
                prop_assert_eq!(lru.iter().collect::<VecDeque<_>>(), queue.clone());
                prop_assert_eq!(lru.oldest(), queue.front().copied());
                prop_assert_eq!(lru.used() as usize, queue.len());
            }
        }
    }
}
