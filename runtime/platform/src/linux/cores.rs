//! The processor's name, and its cores in classes.

use std::path::Path;

use super::proc::{read, read_number, read_trimmed};
use crate::error::MachineError;
use crate::types::{Core, CoreClass};

/// Cores within this share of their class's fastest are equal: selected cores of one kind are often allowed a
/// slightly higher clock.
const SAME_SPEED_MIN: f64 = 0.9;
/// The processor's name: on x86 from `/proc/cpuinfo`; on ARM the chip (`Hardware`, older kernels), the device
/// tree's model, or implementer and part numbers.
pub(super) fn cpu_model(root: &Path) -> Result<String, MachineError> {
    let info = read(root, "/proc/cpuinfo")?;
    let values = |key: &'static str| {
        info.lines()
            .filter_map(|line| line.split_once(':'))
            .filter(move |(name, _)| name.trim() == key)
            .map(|(_, value)| value.split_whitespace().collect::<Vec<_>>().join(" "))
            .filter(|value| !value.is_empty())
    };
    // "ARMv8 Processor rev 1 (v8l)" names the architecture only
    let named = values("Hardware").chain(values("model name")).find(|name| !name.starts_with("ARMv"));
    let board = || {
        ["proc/device-tree/model", "sys/firmware/devicetree/base/model"]
            .iter()
            .find_map(|path| read_trimmed(&root.join(path)))
    };
    let parts = || {
        let mut parts = Vec::new();
        for (implementer, part) in values("CPU implementer").zip(values("CPU part")) {
            let both = format!("{implementer}/{part}");
            if !parts.contains(&both) {
                parts.push(both);
            }
        }
        (!parts.is_empty()).then(|| format!("ARM {}", parts.join(" ")))
    };
    Ok(named.or_else(board).or_else(parts).unwrap_or_else(|| std::env::consts::ARCH.to_owned()))
}

/// The classes of all cores present, fastest first; `allowed` replaces an unreadable list of cores.
pub(super) fn classes(root: &Path, allowed: &[u32]) -> Vec<CoreClass> {
    let folder = root.join("sys/devices/system/cpu");
    let ids = read_trimmed(&folder.join("present"))
        .map(|list| parse_list(&list))
        .filter(|ids| !ids.is_empty())
        .unwrap_or_else(|| allowed.to_vec());
    let of = |id: u32, file: &str| read_number(&folder.join(format!("cpu{id}/{file}")));
    let capacities: Vec<u64> = ids.iter().map(|&id| of(id, "cpu_capacity").unwrap_or(0)).collect();
    let clocks: Vec<u64> =
        ids.iter().map(|&id| of(id, "cpufreq/cpuinfo_max_freq").unwrap_or(0) / 1000).collect();
    // clocks may still distinguish cores of equal capacity
    let equal = capacities.iter().all(|capacity| *capacity == capacities[0]);
    let speeds = if equal { &clocks } else { &capacities };

    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(speeds[at]), ids[at]));
    let fastest = order.first().map_or(0, |&at| speeds[at]);
    let mut classes: Vec<CoreClass> = Vec::new();
    let mut first_speed = 0;
    for at in order {
        if classes.is_empty() || (speeds[at] as f64) < first_speed as f64 * SAME_SPEED_MIN {
            first_speed = speeds[at];
            let capacity = match fastest {
                0 => CoreClass::CAPACITY_FULL,
                fastest => (first_speed * u64::from(CoreClass::CAPACITY_FULL)).div_ceil(fastest) as u32,
            };
            classes.push(CoreClass { name: String::new(), cores: Vec::new(), capacity, clock_mhz: 0 });
        }
        let siblings = read_trimmed(&folder.join(format!("cpu{}/topology/thread_siblings_list", ids[at])))
            .map(|list| parse_list(&list))
            .filter(|list| list.contains(&ids[at]))
            .unwrap_or_else(|| vec![ids[at]]);
        if let Some(class) = classes.last_mut() {
            class.clock_mhz = class.clock_mhz.max(u32::try_from(clocks[at]).unwrap_or(0));
            class.cores.push(Core { id: ids[at], siblings });
        }
    }
    CoreClass::finish(&mut classes);
    classes
}

/// The largest cache of core 0, in bytes; 0 if unknown.
pub(super) fn cache_bytes(root: &Path) -> u64 {
    let sizes = |index: u32| {
        let path = root.join(format!("sys/devices/system/cpu/cpu0/cache/index{index}/size"));
        let text = std::fs::read_to_string(path).ok()?;
        kibibytes(text.trim())
    };
    (0..8).filter_map(sizes).max().unwrap_or(0)
}

/// A size of a cache, `32K` or `8M`, in bytes.
fn kibibytes(text: &str) -> Option<u64> {
    let unit = match text.as_bytes().last()? {
        b'K' => 1 << 10,
        b'M' => 1 << 20,
        b'G' => 1 << 30,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(unit)
}

/// Parses `0-3,6`; ignores invalid parts.
fn parse_list(text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            ids.extend((first..=last).take(4096));
        }
    }
    ids
}
