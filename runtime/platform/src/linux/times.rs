//! CPU time by user: this process, others, idle.

use std::path::Path;

use crate::types::{CoreTimes, CpuTimes};

/// The times in `proc` under `root`.
pub(super) fn read(root: &Path) -> Option<CpuTimes> {
    let total = std::fs::read_to_string(root.join("proc/stat")).ok()?;
    // user, nice, system, idle, iowait, irq, softirq, steal; user includes guests
    let ticks = ticks(total.lines().next()?.strip_prefix("cpu ")?);
    let own = std::fs::read_to_string(root.join("proc/self/stat")).ok()?;
    // the name in brackets may have blanks; state and ten numbers follow, then user and system time
    let mut fields = own.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok();
    let own = next()? + next()?;
    let idle = ticks.get(3)? + ticks.get(4)?;
    let stolen = ticks.get(7).copied().unwrap_or(0.0);
    Some(CpuTimes { all: ticks.iter().sum(), idle, own, stolen })
}

/// The times of one core in `proc` under `root`.
pub(super) fn of_core(root: &Path, core: u32) -> Option<CoreTimes> {
    let total = std::fs::read_to_string(root.join("proc/stat")).ok()?;
    let ticks = ticks(total.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")))?);
    Some(CoreTimes { all: ticks.iter().sum(), idle: ticks.get(3)? + ticks.get(4)? })
}

fn ticks(line: &str) -> Vec<f64> {
    line.split_whitespace().take(8).filter_map(|number| number.parse().ok()).collect()
}
