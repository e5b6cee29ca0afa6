//! Windows, medians and rates.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use flashplan::internals::pool::Pool;
pub use flashplan::internals::walks::Random;

use super::load::undisturbed;
use crate::{Context, Stopped};

/// Length and number of timing windows.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Length of a window.
    pub window: Duration,
    /// Number of windows; their median counts.
    pub repeats: usize,
}

impl Timing {
    /// The timing of `points` with `repeats` windows each within `budget`; a window has at least 3 ms.
    pub fn share(budget: Duration, points: usize, repeats: usize) -> Self {
        let window = budget.as_secs_f64() / (points.max(1) * repeats) as f64;
        Self { window: Duration::from_secs_f64(window.max(0.003)), repeats }
    }
}

/// The time of a section, shared among its points as they come. Later points get shorter windows after a slow one.
#[derive(Debug)]
pub struct Budget {
    end: Instant,
    points: usize,
    repeats: usize,
}

impl Budget {
    /// A budget that starts now, for `points` points of `repeats` windows.
    pub fn start(time: Duration, points: usize, repeats: usize) -> Self {
        Self { end: Instant::now() + time, points, repeats }
    }

    /// The windows of the next point.
    pub fn next_point(&mut self) -> Timing {
        let left = self.end.saturating_duration_since(Instant::now());
        let timing = Timing::share(left, self.points, self.repeats);
        self.points = self.points.saturating_sub(1);
        timing
    }
}

/// The median; for an even number the mean of the middle two, and zero for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The spread of measurements: distance of the quartiles over the median; zero for fewer than two.
pub fn spread_fraction(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = median(values);
    if sorted.len() < 2 || middle <= 0.0 {
        return 0.0;
    }
    // interpolated linearly
    let quantile = |share: f64| {
        let at = share * (sorted.len() - 1) as f64;
        let (below, part) = (at as usize, at.fract());
        let above = (below + 1).min(sorted.len() - 1);
        sorted[below] + part * (sorted[above] - sorted[below])
    };
    (quantile(0.75) - quantile(0.25)) / middle
}

/// Calls `step`, which returns an amount of work, through all windows, and returns the amount per second of each.
///
/// A first step does not count, and disturbed windows are repeated.
///
/// # Errors
/// [`Stopped`].
pub fn rates(context: &Context, timing: Timing, mut step: impl FnMut() -> f64) -> Result<Vec<f64>, Stopped> {
    step();
    let mut window = || {
        context.stopped()?;
        let start = Instant::now();
        let mut work = 0.0;
        loop {
            work += black_box(step());
            let elapsed = start.elapsed();
            if elapsed >= timing.window {
                return Ok(work / elapsed.as_secs_f64());
            }
        }
    };
    undisturbed(context, || (0..timing.repeats).map(|_| window()).collect())
}

/// [`rates`] with every worker of the pool calling `step(worker)` on its own for the whole window.
///
/// # Errors
/// [`Stopped`].
pub fn parallel_rates(
    context: &Context,
    timing: Timing,
    pool: &Pool,
    step: impl Fn(usize) -> f64 + Sync,
) -> Result<Vec<f64>, Stopped> {
    let window = || {
        context.stopped()?;
        let rates: Vec<OnceLock<f64>> = vec![OnceLock::new(); pool.threads()];
        pool.run(|worker| {
            let start = Instant::now();
            let mut work = 0.0;
            let rate = loop {
                work += black_box(step(worker));
                let elapsed = start.elapsed();
                if elapsed >= timing.window {
                    break work / elapsed.as_secs_f64();
                }
            };
            rates[worker].get_or_init(|| rate);
        });
        Ok(rates.iter().filter_map(OnceLock::get).sum())
    };
    undisturbed(context, || (0..timing.repeats).map(|_| window()).collect())
}

/// The timed thread counts for `cores`: all up to eight, then fewer and fewer, and always the last.
pub fn thread_counts(cores: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = (1..=cores.min(8)).collect();
    let mut next = 12;
    while next < cores {
        counts.push(next);
        next = next * 4 / 3;
    }
    if cores > 8 {
        counts.push(cores);
    }
    counts
}

/// A value for every thread count from one on: timed values, interpolated linearly.
pub fn fill_between(counts: &[usize], values: &[f64]) -> Vec<f64> {
    let mut filled: Vec<f64> = Vec::new();
    for (&count, &value) in counts.iter().zip(values) {
        let before = filled.len();
        let from = filled.last().copied().unwrap_or(value);
        let steps = (count - before) as f64;
        filled.extend((1..=count - before).map(|step| from + (value - from) * step as f64 / steps));
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_not_moved_by_an_outlier() {
        assert_eq!(median(&[3.0, 1.0, 1000.0]), 3.0);
        assert_eq!(median(&[1.0, 3.0]), 2.0);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn a_spread_is_that_of_the_middle_half() {
        assert_eq!(spread_fraction(&[1.0, 2.0, 3.0, 4.0, 5.0]), 2.0 / 3.0);
        assert_eq!(spread_fraction(&[4.0, 4.0, 4.0, 4.0, 1000.0]), 0.0, "one outlier of five");
        assert_eq!(spread_fraction(&[1.0, 3.0]), 0.5);
        assert_eq!((spread_fraction(&[7.0]), spread_fraction(&[])), (0.0, 0.0));
    }

    #[test]
    fn a_budget_is_shared_by_the_points_that_are_left() {
        let mut budget = Budget::start(Duration::from_secs(60), 2, 3);
        let first = budget.next_point().window.as_secs_f64();
        assert!((first - 10.0).abs() < 0.5, "{first}");
        let second = budget.next_point().window.as_secs_f64();
        assert!((second - 20.0).abs() < 0.5, "no time was used: {second}");
        let mut over = Budget::start(Duration::ZERO, 5, 3);
        assert_eq!(over.next_point().window, Duration::from_millis(3));
    }

    #[test]
    fn every_thread_count_gets_a_value_and_the_timed_ones_keep_theirs() {
        for cores in [1, 2, 8, 9, 12, 13, 64, 200] {
            let counts = thread_counts(cores);
            assert_eq!(counts.last(), Some(&cores));
            assert!(counts.is_sorted_by(|a, b| a < b), "{counts:?}");
            let values: Vec<f64> = counts.iter().map(|&n| n as f64 * 2.0).collect();
            let filled = fill_between(&counts, &values);
            assert_eq!(filled.len(), cores);
            assert!(filled.iter().enumerate().all(|(at, v)| (v - 2.0 * (at + 1) as f64).abs() < 1e-9));
        }
    }

    #[test]
    fn a_rate_is_work_over_time() {
        let context = Context::new(".".into(), ".".into(), true);
        let timing = Timing { window: Duration::from_millis(5), repeats: 3 };
        let rates = rates(&context, timing, || {
            std::thread::sleep(Duration::from_millis(1));
            1.0
        });
        assert!(rates.unwrap().iter().all(|&rate| rate > 1.0 && rate <= 1000.0));
        context.stop_flag().store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(super::rates(&context, timing, || 1.0).is_err());
    }
}
