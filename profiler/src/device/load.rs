//! The share of the machine that other programs took during a measurement.

use std::time::{Duration, Instant};

use flashplan::internals::machine::{CpuTimes, OTHERS_MAX};
use plans::device::Provenance;

use crate::Context;

/// Maximum tries of a disturbed measurement, and the pause between two.
const TRIES: usize = 4;
const PAUSE: Duration = Duration::from_millis(150);

/// Processor time since a moment, ours and other programs'.
#[derive(Debug)]
pub(super) struct Watch {
    before: Option<CpuTimes>,
}

impl Watch {
    pub(super) fn start() -> Self {
        Self { before: CpuTimes::now() }
    }

    /// The share of processor time that other programs took; `None` if not counted.
    fn others(&self) -> Option<f64> {
        self.before?.others()
    }

    /// Steal time: the share of processor time that the host gave to others; `None` if not counted.
    fn stolen(&self) -> Option<f64> {
        self.before?.stolen()
    }

    /// A warning if other programs or the host took much of the processor time.
    pub(super) fn verdict(&self) -> Option<String> {
        let others = self.others()?;
        (others > OTHERS_MAX).then(|| {
            format!(
                "{} {:.0} % of the machine's processor time during the measurement",
                Provenance::DISTURBED,
                others * 100.0
            )
        })
    }
}

/// The least disturbed of a few measurements.
///
/// A measurement is repeated while other programs take too much time and the context has patience. The host of a virtual machine takes
/// processors away for a second now and then.
///
/// # Errors
/// As `measure`.
pub(super) fn undisturbed<T, E>(context: &Context, measure: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    least_disturbed(context, Watch::others, measure)
}

/// [`undisturbed`] for measurements with kernel work, which would count as other programs': only steal time disturbs them.
///
/// # Errors
/// As `measure`.
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
