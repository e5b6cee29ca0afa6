//! A cache allocates only when it is made.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use flashplan::internals::cache::{LayerCache, Place};
use plans::Policy;

/// The system's allocator, which counts requests of this thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged; counting only changes a cell of this thread, which is made
// without allocating and needs no destructor, so it exists whenever an allocation happens.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller promised what this call requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller promised what this call requires.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn nothing_is_allocated_for_a_token() {
    for policy in Policy::ALL {
        let mut cache = LayerCache::new(policy, 1000, 100, 300);
        let (mut places, mut dice) = ([Place::Missing; 150], 1_u32);
        let before = ALLOCATIONS.get();
        // long enough for scores to be scaled down
        for stamp in 0..2500 {
            let mut requested = [0; 150];
            for (i, requested) in requested.iter_mut().enumerate() {
                dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *requested = i as u32 * 6 + (dice >> 16) % 6;
            }
            cache.look_up(&requested, stamp, &mut places);
            for (&neuron, _) in requested.iter().zip(&places).filter(|(_, place)| **place == Place::Missing) {
                cache.insert(neuron, stamp);
            }
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "{policy}");
        assert!(cache.counters().evicted > 100, "{policy}: {:?}", cache.counters());
    }
}
