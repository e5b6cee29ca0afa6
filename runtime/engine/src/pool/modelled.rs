//! The pool over modelled threads: `shuttle` chooses the next thread at every atomic, lock and wait. No
//! wake-up is lost, a run returns only when all threads are done, and each piece is claimed once.
//!
//! The model is sequentially consistent and does not distinguish `Relaxed` from `SeqCst`. (`loom` does, but
//! treats `SeqCst` as acquire and release, which breaks the two-sided check before sleeping.)
#![allow(dead_code, unreachable_pub, reason = "the whole of `workers`, of which a part is modelled")]

use shuttle::Config;
use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler};

use self::sync::{AtomicUsize, Ordering};
use self::workers::Pool;

#[path = "workers.rs"]
#[allow(clippy::duplicate_mod, reason = "the other one is over real threads")]
mod workers;

/// A model without cores.
mod affinity {
    use std::io;

    pub(super) struct Affinity {
        pub(super) before: (),
    }

    impl Affinity {
        pub(super) fn current() -> io::Result<Self> {
            Ok(Self { before: () })
        }

        pub(super) fn restrict_to(&self, _cores: &[u32]) -> Result<(), (u32, io::Error)> {
            Ok(())
        }
    }
}

/// The items of [`crate::pool`]'s `sync`, over modelled threads.
mod sync {
    pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
    pub(super) use shuttle::sync::{Arc, Mutex};
    use shuttle::sync::{Condvar, PoisonError};
    pub(super) use shuttle::thread::{self, JoinHandle};

    /// A futex: compares and sleeps, or wakes, under one lock.
    #[derive(Default)]
    pub(super) struct Word {
        value: AtomicU32,
        lock: Mutex<()>,
        bell: Condvar,
    }

    impl std::ops::Deref for Word {
        type Target = AtomicU32;

        fn deref(&self) -> &AtomicU32 {
            &self.value
        }
    }

    impl Word {
        pub(super) fn wait_while(&self, value: u32) {
            let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            if self.value.load(Ordering::SeqCst) == value {
                drop(self.bell.wait(guard));
            }
        }

        pub(super) fn wake(&self, most: u32) {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            if most == 1 {
                self.bell.notify_one();
            } else {
                self.bell.notify_all();
            }
        }
    }

    /// Checks once more before giving up; `ready` may become true in between.
    pub(super) fn spin_until(ready: impl Fn() -> bool) -> bool {
        if ready() {
            return true;
        }
        thread::yield_now();
        ready()
    }
}

fn check(scheduler: impl Scheduler + 'static, body: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.silence_warnings = true; // that orderings are not told apart
    shuttle::Runner::new(scheduler, config).run(body);
}

/// Checks that the caller sees each of several runs complete.
fn runs(threads: usize, runs: usize) {
    let pool = Pool::new(&vec![0; threads]).unwrap();
    let calls: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
    for run in 1..=runs {
        pool.run(|worker| {
            calls[worker].fetch_add(1, Ordering::Relaxed);
        });
        let seen: Vec<_> = calls.iter().map(|calls| calls.load(Ordering::Relaxed)).collect();
        assert_eq!(seen, vec![run; threads]);
    }
}

/// Checks that each piece is claimed once, while thread 0 calls `between`.
fn shares(threads: usize, pieces: usize) {
    let pool = Pool::new(&vec![0; threads]).unwrap();
    for _ in 0..2 {
        let (mut out, mut looks) = (vec![0; pieces], 0);
        pool.share_mut(&mut out, 1, || looks += 1, |start, piece| piece[0] += start + 1);
        assert_eq!(out, (1..=pieces).collect::<Vec<_>>());
        assert!((1..=pieces + 1).contains(&looks));
        let ends: Vec<_> = (1..=pieces).collect();
        pool.share_pieces(&mut out, &ends, || (), |piece, part| part[0] -= piece);
        assert_eq!(out, vec![1; pieces]);
    }
}

#[test]
fn a_helper_that_is_late_is_not_waited_for_and_one_that_has_begun_is() {
    static FEWEST: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(usize::MAX);
    static MOST: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    check(RandomScheduler::new(1000), || {
        let pool = Pool::new(&[0; 3]).unwrap();
        let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.help(&pool.begin(), sync::thread::yield_now, &|_| {
            begun.fetch_add(1, Ordering::SeqCst);
            sync::thread::yield_now();
            done.fetch_add(1, Ordering::SeqCst);
        });
        let helped = begun.load(Ordering::SeqCst);
        assert_eq!(done.load(Ordering::SeqCst), helped);
        FEWEST.fetch_min(helped, Ordering::SeqCst);
        MOST.fetch_max(helped, Ordering::SeqCst);
    });
    assert_eq!((FEWEST.load(Ordering::SeqCst), MOST.load(Ordering::SeqCst)), (0, 2));
}

#[test]
fn nothing_is_lost_in_any_of_many_timings() {
    check(RandomScheduler::new(3000), || runs(3, 3));
    check(RandomScheduler::new(3000), || shares(3, 5));
    check(PctScheduler::new(3, 3000), || runs(2, 3));
    check(PctScheduler::new(3, 3000), || shares(2, 3));
}

#[test]
fn two_threads_meet_in_every_timing() {
    // the number of timings is finite: the search ends by itself or reports its progress
    check(DfsScheduler::new(Some(100_000), false), || runs(2, 1));
}
