//! This machine's name, a disk's name, and free memory: facts that need no measurement.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{major, minor};

/// The folder name of this machine and the disk under `folder`, e.g. `amd-epyc-9b45-2c-24g-vda1`.
///
/// A machine that changes gets another name, and is measured again.
pub(crate) fn name(folder: &Path) -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = model_name(&cpu).unwrap_or(std::env::consts::ARCH).to_owned();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let memory = memory_bytes("MemTotal").unwrap_or(0).div_ceil(1 << 30);
    slug(&format!("{cpu} {cores}c {memory}g {}", disk(folder)))
}

/// The processor's name in `/proc/cpuinfo`.
fn model_name(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    let name = line.split_once(':')?.1;
    Some(name.split(" @ ").next().unwrap_or(name).trim()).filter(|name| !name.is_empty())
}

/// The block device under a folder, or the name of its file system where there is none.
fn disk(folder: &Path) -> String {
    let Ok(metadata) = fs::metadata(folder) else { return "disk".to_owned() };
    let number = format!("{}:{}", major(metadata.dev()), minor(metadata.dev()));
    let device = fs::canonicalize(format!("/sys/dev/block/{number}")).ok();
    let device = device.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    device.or_else(|| file_system(&number)).unwrap_or_else(|| "disk".to_owned())
}

/// The type of a mounted file system, by its device number.
fn file_system(number: &str) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(number))?;
    Some(mount.split_once(" - ")?.1.split(' ').next()?.to_owned())
}

/// Bytes of memory that are free, or can be freed at once.
pub(crate) fn available_bytes() -> Option<u64> {
    memory_bytes("MemAvailable")
}

/// A line of `/proc/meminfo`, in bytes.
fn memory_bytes(key: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Bytes free on the disk under a folder.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail * found.f_frsize)
}

/// Whether two paths are on the same disk.
pub(crate) fn same_disk(a: &Path, b: &Path) -> bool {
    let of = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
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
        let text = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU @ 2.20GHz\n";
        assert_eq!(model_name(text), Some("Intel(R) Xeon(R) CPU"));
        assert_eq!(model_name("processor\t: 0\nBogoMIPS\t: 48\n"), None);
    }

    #[test]
    fn memory_and_disks_are_those_of_the_system() {
        let (all, free) = (memory_bytes("MemTotal").expect("memory"), available_bytes().expect("memory"));
        assert!(free <= all && free > 1 << 20, "{free} of {all}");
        assert!(
            same_disk(Path::new("/proc/self"), Path::new("/proc"))
                && !same_disk(Path::new("/proc"), Path::new("/nowhere"))
        );
    }
}
