//! Whether the machine was ours while it was measured.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::Context;

/// From this share of the machine's time on, other work is worth a warning.
const OTHERS_MAX: f64 = 0.1;
/// Ticks of the kernel's clock that may be somebody's by the way they are counted.
const TICKS_MIN: f64 = 2.0;
/// How often something is measured at most that others disturb, and for how long they are given way.
const TRIES: usize = 4;
const PAUSE: Duration = Duration::from_millis(150);

/// The processors' time since a moment, ours and that of others.
#[derive(Debug)]
pub(super) struct Watch {
    before: Option<Times>,
}

/// In ticks of the kernel's clock, since the start of the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Times {
    /// All processors together, idle or not.
    all: f64,
    idle: f64,
    /// This process.
    own: f64,
}

impl Watch {
    pub(super) fn start() -> Self {
        Self { before: Times::read(Path::new("/")) }
    }

    /// Others' share of the machine's time; none where it is not counted.
    fn others(&self) -> Option<f64> {
        Some(self.before?.others_since(Times::read(Path::new("/"))?))
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

/// What was measured while others had least of the machine: it is measured again, a few times at most and as long as the
/// context has patience, while they have too much of it. A virtual machine's host takes its processors away for a second
/// now and then.
///
/// # Errors
/// Those of `measure`.
pub(super) fn undisturbed<T, E>(
    context: &Context,
    mut measure: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let (mut watch, start) = (Watch::start(), Instant::now());
    let (mut best, mut least) = (measure()?, watch.others().unwrap_or(0.0));
    let once = start.elapsed() + PAUSE;
    for _ in 1..TRIES {
        if least <= OTHERS_MAX || !context.has_patience(once) {
            break;
        }
        std::thread::sleep(PAUSE);
        watch = Watch::start();
        let (again, others) = (measure()?, watch.others().unwrap_or(0.0));
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

/// What one core has done so far, if the kernel counts it.
pub(super) fn core_busy(core: u32) -> Option<CoreTimes> {
    let total = std::fs::read_to_string("/proc/stat").ok()?;
    let line = total.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")))?;
    let ticks: Vec<f64> = line.split_whitespace().take(8).filter_map(|number| number.parse().ok()).collect();
    Some(CoreTimes { all: ticks.iter().sum(), idle: ticks.get(3)? + ticks.get(4)? })
}

impl Times {
    fn read(root: &Path) -> Option<Self> {
        let total = std::fs::read_to_string(root.join("proc/stat")).ok()?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user already
        let ticks: Vec<f64> = total
            .lines()
            .next()?
            .strip_prefix("cpu ")?
            .split_whitespace()
            .take(8)
            .filter_map(|number| number.parse().ok())
            .collect();
        let own = std::fs::read_to_string(root.join("proc/self/stat")).ok()?;
        // the name in brackets may hold blanks; then come the state and ten numbers, user and system time
        let mut fields = own.rsplit_once(')')?.1.split_whitespace().skip(11);
        let mut next = || fields.next()?.parse::<f64>().ok();
        let own = next()? + next()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { all: ticks.iter().sum(), idle, own })
    }

    /// Their share of the time from `self` to `after`.
    fn others_since(self, after: Self) -> f64 {
        let all = after.all - self.all;
        if all <= 0.0 {
            return 0.0;
        }
        let busy = all - (after.idle - self.idle) - (after.own - self.own);
        if busy < TICKS_MIN { 0.0 } else { (busy / all).clamp(0.0, 1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(stat: &str, own: &str) -> Option<Times> {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        std::fs::write(root.path().join("proc/stat"), stat).unwrap();
        std::fs::write(root.path().join("proc/self/stat"), own).unwrap();
        Times::read(root.path())
    }

    #[test]
    fn others_have_what_is_neither_idle_nor_ours() {
        let own = "7 (a b) c) R 1 2 3 4 5 6 7 8 9 10 30 20 0 0";
        let before =
            times("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 1\n", "7 (x) R 1 2 3 4 5 6 7 8 9 10 0 0 0").unwrap();
        let after = times("cpu  60 0 30 90 10 0 0 10 0 0\n", own).unwrap();
        assert_eq!(after, Times { all: 200.0, idle: 100.0, own: 50.0 });
        assert_eq!(before.others_since(after), 0.25);
        assert_eq!(times("nonsense", own), None);
    }

    #[test]
    fn what_disturbs_is_waited_for_a_few_times_and_a_failure_is_not() {
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
