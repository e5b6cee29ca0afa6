//! The cost of waking threads after a wait for reads: idle threads go to sleep.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use flashplan::internals::pool::{Pool, SPIN_TIME_MAX};
use plans::file::significant;

use crate::device::load::undisturbed;
use crate::device::measure::{fill_between, median, thread_counts};
use crate::{Context, ProfileError, Stopped};

/// A wait, after which all threads of the pool sleep.
const WAIT: Duration = SPIN_TIME_MAX.saturating_mul(3);
/// Steps of a window after a wait each, and as many without.
const STEPS: usize = 32;
const WINDOWS: usize = 5;

/// Extra seconds of a step after a wait, by number of `cores`, fastest first.
pub(super) fn measure(context: &Context, cores: &[u32]) -> Result<Vec<f64>, ProfileError> {
    let counts = thread_counts(cores.len());
    let mut seconds = Vec::with_capacity(counts.len());
    for &threads in &counts {
        let pool = Pool::new(&cores[..threads])?;
        let window = || {
            context.stopped()?;
            Ok::<_, Stopped>(longer_after_a_wait(&pool))
        };
        let windows: Vec<f64> = undisturbed(context, || (0..WINDOWS).map(|_| window()).collect())?;
        seconds.push(median(&windows));
    }
    Ok(fill_between(&counts, &seconds).into_iter().map(significant).collect())
}

fn longer_after_a_wait(pool: &Pool) -> f64 {
    let step = || {
        let start = Instant::now();
        pool.run(|worker| {
            black_box(worker);
        });
        start.elapsed().as_secs_f64()
    };
    step();
    let at_once: Vec<f64> = (0..STEPS).map(|_| step()).collect();
    let waited = || {
        thread::sleep(WAIT);
        step()
    };
    let after: Vec<f64> = (0..STEPS).map(|_| waited()).collect();
    (median(&after) - median(&at_once)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_wake_a_thread_takes_time_and_one_thread_is_never_woken() {
        let machine = flashplan::internals::machine::Machine::here(".".as_ref()).unwrap();
        let cores: Vec<u32> = machine
            .allowed_classes()
            .iter()
            .flat_map(|class| class.cores.iter().map(|core| core.id))
            .collect();
        // other programs can disturb any window, but not all
        let some = |threads: usize, range: std::ops::Range<f64>| {
            let pool = Pool::new(&cores[..threads]).unwrap();
            let windows: Vec<f64> = (0..10).map(|_| longer_after_a_wait(&pool)).collect();
            assert!(
                windows.iter().any(|seconds| range.contains(seconds)),
                "{threads} threads: {windows:?} s"
            );
        };
        some(1, 0.0..50e-6);
        if cores.len() > 1 {
            some(2, 1e-7..10e-3);
        }
    }
}
