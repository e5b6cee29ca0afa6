//! The pool over real threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use platform::affinity::{CoreSet, PINS};
use proptest::prelude::*;

use super::*;

/// Any core that this thread may use.
fn some_core() -> u32 {
    CoreSet::current().unwrap().cores()[0]
}

/// Allows more threads than cores, if slowly, so that every test runs on any machine.
fn pool(threads: usize) -> Pool {
    Pool::new(&vec![some_core(); threads]).unwrap()
}

#[test]
fn columns_are_shared_out_and_every_element_belongs_to_one_thread() {
    for threads in 1..4 {
        let (pool, mut out) = (pool(threads), vec![0; 5 * 37]);
        pool.share_columns(
            &mut out,
            37,
            8,
            || (),
            |columns| {
                let range = columns.range();
                assert!(range.start.is_multiple_of(8), "parts begin at the grain");
                for row in 0..5 {
                    for (element, column) in columns.row(row).iter_mut().zip(range.clone()) {
                        *element += 100 * row + column;
                    }
                }
            },
        );
        assert_eq!(out, (0..5 * 37).map(|at| 100 * (at / 37) + at % 37).collect::<Vec<_>>());
    }
}

#[test]
fn columns_are_shared_out_with_what_belongs_to_each() {
    for threads in 1..4 {
        // columns 5 to 34 of rows of 37, each with two values in `beside`
        let (pool, mut out, mut beside) = (pool(threads), vec![0; 5 * 37], vec![0; 29 * 2]);
        pool.share_columns_with(&mut out, 37, 5..34, &mut beside, 8, |columns, beside| {
            let range = columns.range();
            assert!((range.start - 5).is_multiple_of(8) && beside.len() == 2 * range.len());
            for row in 0..5 {
                for (element, column) in columns.row(row).iter_mut().zip(range.clone()) {
                    *element += 100 * row + column + 1;
                }
            }
            for (value, at) in beside.iter_mut().zip(2 * (range.start - 5)..) {
                *value += at + 1;
            }
        });
        let expected =
            |at: usize| if (5..34).contains(&(at % 37)) { 100 * (at / 37) + at % 37 + 1 } else { 0 };
        assert_eq!(out, (0..5 * 37).map(expected).collect::<Vec<_>>());
        assert_eq!(beside, (1..=29 * 2).collect::<Vec<_>>());
    }
}

#[test]
fn every_worker_runs_once_per_run() {
    for threads in 1..5 {
        let pool = pool(threads);
        let calls: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
        for run in 1..200 {
            pool.run(|worker| {
                calls[worker].fetch_add(1, Ordering::Relaxed);
            });
            assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == run));
            if run % 50 == 0 {
                thread::sleep(Duration::from_millis(1)); // let them fall asleep
            }
        }
    }
}

#[test]
fn the_caller_waits_for_a_slow_worker() {
    let pool = pool(3);
    let done = AtomicUsize::new(0);
    for _ in 0..5 {
        pool.run(|worker| {
            thread::sleep(Duration::from_millis(worker as u64));
            done.fetch_add(1, Ordering::Relaxed);
        });
    }
    assert_eq!(done.into_inner(), 15);
}

proptest! {
    #[test]
    fn parts_are_disjoint_ordered_and_whole(items in 0_usize..300, grain in 1_usize..40, threads in 1_usize..9) {
        let parts: Vec<_> = (0..threads).map(|worker| part(items, grain, worker, threads)).collect();
        let mut next = 0;
        for part in &parts {
            prop_assert_eq!(part.start, next);
            prop_assert!(part.start % grain == 0 || part.is_empty());
            next = part.end;
        }
        prop_assert_eq!(next, items);
        let longest = parts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        prop_assert!(longest <= items.div_ceil(grain).div_ceil(threads) * grain);
    }
}

#[test]
fn split_mut_writes_every_element_once() {
    let pool = pool(3);
    for len in [0, 1, 7, 64, 1000] {
        let mut out = vec![0.0_f32; len];
        pool.split_mut(&mut out, 16, |start, part| {
            for (at, value) in part.iter_mut().enumerate() {
                *value += (start + at) as f32;
            }
        });
        assert!(out.iter().enumerate().all(|(at, &value)| value == at as f32));
    }
}

#[test]
fn share_mut_gives_every_piece_to_one_thread_and_looks_up_in_between() {
    for threads in [1, 3] {
        let pool = pool(threads);
        for len in [0, 1, 16, 17, 1000] {
            let (mut out, mut looks) = (vec![0_u32; len], 0);
            pool.share_mut(
                &mut out,
                16,
                || looks += 1,
                |start, piece| {
                    assert!(start.is_multiple_of(16) && piece.len() <= 16);
                    piece.iter_mut().zip(start as u32..).for_each(|(value, at)| *value += at);
                },
            );
            assert!(out.iter().zip(0..).all(|(&value, at)| value == at));
            let most = 1 + len.div_ceil(16);
            assert!((1..=most).contains(&looks) && (threads > 1 || looks == most));
        }
    }
}

#[test]
fn share_pieces_gives_every_piece_to_one_thread_and_leaves_the_rest() {
    let ends = [3, 3, 10, 11, 40];
    for threads in [1, 3] {
        let mut out = [0; 42];
        pool(threads).share_pieces(
            &mut out,
            &ends,
            || (),
            |i, piece| piece.iter_mut().for_each(|v| *v += i + 1),
        );
        let whose = |at: usize| ends.iter().position(|&end| at < end).map_or(0, |piece| piece + 1);
        assert!(out.iter().enumerate().all(|(at, &piece)| piece == whose(at)), "{out:?}");
    }
    for bad in [[2, 1], [0, 43]] {
        let share = || pool(1).share_pieces(&mut [0; 42], &bad, || (), |_, _| ());
        assert!(catch_unwind(AssertUnwindSafe(share)).is_err(), "{bad:?}");
    }
}

#[test]
fn split_rows_counts_rows() {
    let mut out = vec![0_u32; 5 * 3];
    pool(2).split_rows(&mut out, 3, |first, rows| {
        for (row, values) in (first as u32..).zip(rows.chunks_mut(3)) {
            values.fill(row);
        }
    });
    assert_eq!(out, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]);
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_works_on() {
    let pool = pool(3);
    for guilty in 0..3 {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(|worker| assert_ne!(worker, guilty, "worker {worker} fell"));
        }));
        let message = caught.unwrap_err();
        let message = message.downcast_ref::<String>().unwrap();
        assert!(message.contains(&format!("worker {guilty} fell")), "{message}");
        let runs = AtomicUsize::new(0);
        pool.run(|_| {
            runs.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(runs.into_inner(), 3);
    }
}

/// Whether `run` panics because a run is started inside a run.
fn refuses_nesting(run: impl FnOnce()) -> bool {
    let panic = catch_unwind(AssertUnwindSafe(run)).err();
    let message = panic.as_ref().and_then(|panic| panic.downcast_ref::<&str>());
    message.is_some_and(|message| message.contains("another run of the same pool"))
}

#[test]
fn a_run_inside_a_run_is_refused_and_the_pool_works_on() {
    let whole = |pool: &Pool| {
        let mut out = [0; 40];
        pool.share_mut(&mut out, 1, || (), |start, piece| piece[0] += start);
        out.iter().enumerate().all(|(at, &value)| value == at)
    };
    for threads in [1, 3] {
        let pool = pool(threads);
        // `between` may hold the pool, so every method can be called inside every other
        let inner: [&dyn Fn(); 3] = [&|| pool.run(|_| ()), &|| pool.claim(1, || (), |_| ()), &|| {
            pool.split_mut(&mut [0; 40], 1, |_, _| ());
        }];
        for run in inner {
            for pieces in [0, 1, 40] {
                assert!(refuses_nesting(|| pool.claim(pieces, run, |_| ())), "{threads} threads");
                assert!(refuses_nesting(|| pool.share_mut(&mut vec![0; pieces], 1, run, |_, _| ())));
            }
            assert!(refuses_nesting(|| pool.share_columns(&mut [0; 40], 8, 1, run, |_| ())));
            assert!(whole(&pool), "{threads} threads");
        }
    }
}

#[test]
fn a_run_inside_a_run_is_refused_where_the_pool_belongs_to_the_thread() {
    thread_local! {
        static POOL: Pool = pool(3);
    }
    // the closure of the pieces is `Sync`, but still reaches the pool on thread 0
    let caller = thread::current().id();
    let nested = |worker: usize| {
        if worker == 0 && thread::current().id() == caller {
            POOL.with(|pool| pool.run(|_| ()));
        }
    };
    POOL.with(|pool| {
        assert!(refuses_nesting(|| pool.run(nested)));
        let runs = AtomicUsize::new(0);
        pool.run(|_| {
            runs.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(runs.into_inner(), 3);
    });
}

#[test]
fn a_core_that_does_not_exist_is_an_error_and_the_caller_stays_where_it_was() {
    let before = CoreSet::current().unwrap();
    for core in [1000, 5_000_000] {
        let refused = Pool::new(&[some_core(), core]).unwrap_err();
        assert!(matches!(refused, PoolError::Core { core: c, .. } if c == core), "{refused}");
    }
    assert!(matches!(Pool::new(&[]), Err(PoolError::NoCores)));
    assert_eq!(CoreSet::current().unwrap(), before);
}

#[test]
fn threads_are_pinned_until_the_pool_is_dropped() {
    let before = CoreSet::current().unwrap();
    let pool = pool(2);
    pool.run(|_| assert!(!PINS || CoreSet::current().unwrap().cores().len() == 1));
    drop(pool);
    assert_eq!(CoreSet::current().unwrap(), before);
}
