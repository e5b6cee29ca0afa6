//! CPU time by user: this process, others, idle.

use std::path::Path;

/// The CPU fraction of others that explains slowness.
pub const OTHERS_MAX: f64 = 0.1;
/// Ticks below which a difference may be a counting error.
const TICKS_MIN: f64 = 2.0;

/// CPU time since the machine's start, in kernel clock ticks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuTimes {
    /// All processors together, idle or not.
    pub(super) all: f64,
    pub(super) idle: f64,
    /// Time of this process.
    pub(super) own: f64,
    /// Time that the host of a virtual machine gave to others while this machine had work.
    pub(super) stolen: f64,
}

impl CpuTimes {
    /// The times until now; `None` if the system does not count them.
    pub fn now() -> Option<Self> {
        Self::read(Path::new("/"))
    }

    /// The times in `proc` under `root`.
    pub(super) fn read(root: &Path) -> Option<Self> {
        let total = std::fs::read_to_string(root.join("proc/stat")).ok()?;
        // user, nice, system, idle, iowait, irq, softirq, steal; user includes guests
        let ticks: Vec<f64> = total
            .lines()
            .next()?
            .strip_prefix("cpu ")?
            .split_whitespace()
            .take(8)
            .filter_map(|number| number.parse().ok())
            .collect();
        let own = std::fs::read_to_string(root.join("proc/self/stat")).ok()?;
        // the name in brackets may have blanks; state and ten numbers follow, then user and system time
        let mut fields = own.rsplit_once(')')?.1.split_whitespace().skip(11);
        let mut next = || fields.next()?.parse::<f64>().ok();
        let own = next()? + next()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        let stolen = ticks.get(7).copied().unwrap_or(0.0);
        Some(Self { all: ticks.iter().sum(), idle, own, stolen })
    }

    /// The CPU fraction that others took since then: other processes, interrupts, the host of a virtual
    /// machine.
    pub fn others(self) -> Option<f64> {
        Some(self.others_until(Self::now()?))
    }

    /// The steal time since then, as a fraction.
    pub fn stolen(self) -> Option<f64> {
        Some(self.stolen_until(Self::now()?))
    }

    /// [`CpuTimes::stolen`] from here to `after`.
    pub(super) fn stolen_until(self, after: Self) -> f64 {
        let (all, stolen) = (after.all - self.all, after.stolen - self.stolen);
        if all <= 0.0 || stolen < TICKS_MIN { 0.0 } else { (stolen / all).clamp(0.0, 1.0) }
    }

    /// [`CpuTimes::others`] from here to `after`.
    pub(super) fn others_until(self, after: Self) -> f64 {
        let all = after.all - self.all;
        if all <= 0.0 {
            return 0.0;
        }
        let busy = all - (after.idle - self.idle) - (after.own - self.own);
        if busy < TICKS_MIN { 0.0 } else { (busy / all).clamp(0.0, 1.0) }
    }
}
