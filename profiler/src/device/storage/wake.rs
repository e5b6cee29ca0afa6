//! What it costs to go on after a wait for reads: threads that had nothing to do for long enough sleep, and must be woken.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use flashplan::internals::pool::{Pool, SPIN_TIME_MAX};
use plans::file::significant;

use crate::device::load::undisturbed;
use crate::device::measure::{fill_between, median, thread_counts};
use crate::{Context, ProfileError, Stopped};

/// A wait: no thread of the pool looks for work any more at its end.
const WAIT: Duration = SPIN_TIME_MAX.saturating_mul(3);
/// Steps after a wait in a window, and as many at once after one another.
const STEPS: usize = 32;
const WINDOWS: usize = 5;

/// By number of `cores`, fastest first: seconds that a step of all threads takes longer after a wait.
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
        // whoever else computes can hold up any window, but not all of them
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
