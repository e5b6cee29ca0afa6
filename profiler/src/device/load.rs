//! The share of the machine that other programs had while it was measured.

use std::time::{Duration, Instant};

use flashplan::internals::machine::{CpuTimes, OTHERS_MAX};

use crate::Context;

/// Most tries of a measurement that other programs disturb, and the time that they are given between two.
const TRIES: usize = 4;
const PAUSE: Duration = Duration::from_millis(150);

/// The processors' time since a moment, ours and that of others.
#[derive(Debug)]
pub(super) struct Watch {
    before: Option<CpuTimes>,
}

impl Watch {
    pub(super) fn start() -> Self {
        Self { before: CpuTimes::now() }
    }

    /// The share of the machine's time that others had; `None` where it is not counted.
    fn others(&self) -> Option<f64> {
        self.before?.others()
    }

    /// The share of the machine's time that its host gave to others; `None` where it is not counted.
    fn stolen(&self) -> Option<f64> {
        self.before?.stolen()
    }

    /// A sentence if others had much of the machine, or a hypervisor gave it away.
    pub(super) fn verdict(&self) -> Option<String> {
        let others = self.others()?;
        (others > OTHERS_MAX).then(|| {
            format!(
                "other work took {:.0} % of the machine's processor time during the measurement; measure again when it \
                 is quiet",
                others * 100.0
            )
        })
    }
}

/// The measurement during which others had least of the machine. It is repeated, a few times at most and as long as the
/// context has patience, while they have too much of it. A virtual machine's host takes its processors away for a second
/// now and then.
///
/// # Errors
/// Those of `measure`.
pub(super) fn undisturbed<T, E>(context: &Context, measure: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    least_disturbed(context, Watch::others, measure)
}

/// [`undisturbed`] of what the kernel works for as well, whose time counts as that of others: only what the host of a virtual
/// machine took disturbs it.
///
/// # Errors
/// Those of `measure`.
pub(super) fn unstolen<T, E>(context: &Context, measure: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    least_disturbed(context, Watch::stolen, measure)
}

fn least_disturbed<T, E>(
    context: &Context,
    disturbance: fn(&Watch) -> Option<f64>,
    mut measure: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let (mut watch, start) = (Watch::start(), Instant::now());
    let (mut best, mut least) = (measure()?, disturbance(&watch).unwrap_or(0.0));
    let once = start.elapsed() + PAUSE;
    for _ in 1..TRIES {
        if least <= OTHERS_MAX || !context.has_patience(once) {
            break;
        }
        std::thread::sleep(PAUSE);
        watch = Watch::start();
        let (again, others) = (measure()?, disturbance(&watch).unwrap_or(0.0));
        if others < least {
            (best, least) = (again, others);
        }
    }
    Ok(best)
}

/// One core's time, in ticks of the kernel's clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CoreTimes {
    all: f64,
    idle: f64,
}

impl CoreTimes {
    /// The share of the time since `earlier` in which the core was not idle.
    pub(super) fn share_since(&self, earlier: &Self) -> f64 {
        1.0 - (self.idle - earlier.idle) / (self.all - earlier.all).max(1.0)
    }
}

/// The times of one core so far, if the kernel counts them.
pub(super) fn core_busy(core: u32) -> Option<CoreTimes> {
    let total = std::fs::read_to_string("/proc/stat").ok()?;
    let line = total.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")))?;
    let ticks: Vec<f64> = line.split_whitespace().take(8).filter_map(|number| number.parse().ok()).collect();
    Some(CoreTimes { all: ticks.iter().sum(), idle: ticks.get(3)? + ticks.get(4)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbance_is_waited_for_a_few_times_and_a_failure_is_not() {
        let context = Context::new(".".into(), ".".into(), true);
        let mut calls = 0;
        let measured = undisturbed(&context, || {
            calls += 1;
            Ok::<_, ()>(calls)
        });
        assert!(measured.is_ok_and(|at| (1..=TRIES).contains(&at)) && (1..=TRIES).contains(&calls));
        assert_eq!(undisturbed(&context, || Err::<(), _>("stopped")), Err("stopped"));
    }
}
