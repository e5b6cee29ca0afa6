//! This machine's name, a disk's name, and free memory: facts that need no measurement.

use std::path::Path;

use platform::{file, machine};

/// The folder name of this machine and the disk under `folder`, e.g. `amd-epyc-9b45-2c-24g-vda1`.
///
/// A machine that changes gets another name, and is measured again.
pub(crate) fn name(folder: &Path) -> String {
    let cpu = machine::cpu_name().unwrap_or_default();
    let cpu = model_name(&cpu).unwrap_or(std::env::consts::ARCH).to_owned();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let memory = machine::ram().map_or(0, |(all, _)| all).div_ceil(1 << 30);
    slug(&format!("{cpu} {cores}c {memory}g {}", machine::disk_name(folder).as_deref().unwrap_or("disk")))
}

/// The processor's name without its clock; `None` for a name of parts, which no reader knows.
fn model_name(cpu: &str) -> Option<&str> {
    let name = cpu.split(" @ ").next().unwrap_or(cpu).trim();
    Some(name).filter(|name| !name.is_empty() && !name.starts_with("ARM 0x"))
}

/// Bytes of memory that are free, or can be freed at once.
pub(crate) fn available_bytes() -> Option<u64> {
    machine::ram().ok().map(|(_, available)| available)
}

/// Bytes free on the disk under a folder.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    file::free_bytes(folder).ok()
}

/// Whether two paths are on the same disk.
pub(crate) fn same_disk(a: &Path, b: &Path) -> bool {
    let of = |path: &Path| file::path_id(path).map(|id| id.disk).ok();
    of(a).is_some() && of(a) == of(b)
}

/// Lower-case letters and digits with single hyphens between: a name for a folder.
pub(crate) fn slug(text: &str) -> String {
    let mut slug = String::new();
    for c in text.chars() {
        match c {
            c if c.is_ascii_alphanumeric() => slug.push(c.to_ascii_lowercase()),
            '.' | '_' if !slug.is_empty() => slug.push(c),
            _ if slug.ends_with('-') || slug.is_empty() => {}
            _ => slug.push('-'),
        }
    }
    slug.trim_end_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_say_processor_cores_memory_and_disk() {
        assert_eq!(
            slug("AMD EPYC 9B45 64-Core Processor  2c 24g vda1"),
            "amd-epyc-9b45-64-core-processor-2c-24g-vda1"
        );
        assert_eq!(slug("Intel(R) Xeon(R)"), "intel-r-xeon-r");
        assert_eq!(slug("../../etc"), "etc");
        let found = name(Path::new("/"));
        assert!(found.contains("c-") && !found.contains(['/', ' ']), "{found}");
    }

    #[test]
    fn a_processor_is_named_as_the_system_names_it_without_its_clock() {
        assert_eq!(model_name("Intel(R) Xeon(R) CPU @ 2.20GHz"), Some("Intel(R) Xeon(R) CPU"));
        assert_eq!((model_name("ARM 0x41/0xd80"), model_name("")), (None, None));
    }

    #[test]
    fn memory_and_disks_are_those_of_the_system() {
        let (all, free) = (machine::ram().expect("memory").0, available_bytes().expect("memory"));
        assert!(free <= all && free > 1 << 20, "{free} of {all}");
        assert!(
            same_disk(Path::new("/proc/self"), Path::new("/proc"))
                && !same_disk(Path::new("/proc"), Path::new("/nowhere"))
        );
    }
}
