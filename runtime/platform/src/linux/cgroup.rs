//! The memory control group of this process, version 1 or 2, wherever it is mounted.

use std::path::{Path, PathBuf};

use super::proc::{read, read_trimmed};
use crate::types::MemoryGroup;

/// The least value of version 1 that means no limit.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// Finds the memory control group of this process, with `/proc` and `/sys` under `root`.
///
/// `None` if there is none, or this process cannot see its mount.
pub(super) fn memory_group(root: &Path) -> Option<MemoryGroup> {
    let groups = read(root, "/proc/self/cgroup").ok()?;
    let mounts = read(root, "/proc/self/mountinfo").ok()?;
    // `4:memory:/a/b` where version 1 has the memory controller, `0::/a/b` for version 2
    let path_of = |wanted: fn(&str, &str) -> bool| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            wanted(id, controllers).then(|| path.to_owned())
        })
    };
    let one = path_of(|_, controllers| controllers.split(',').any(|name| name == "memory"));
    let two = path_of(|id, controllers| id == "0" && controllers.is_empty());
    one.and_then(|path| group(root, &mounts, 1, &path)).or_else(|| group(root, &mounts, 2, &two?))
}

fn group(root: &Path, mounts: &str, version: u32, path: &str) -> Option<MemoryGroup> {
    let (mount_root, mount_point) = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, _source, options) = (after.next()?, after.next()?, after.next()?);
        let right = match version {
            1 => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
            _ => kind == "cgroup2",
        };
        let mut before = before.split(' ').skip(3);
        right.then_some((unescape(before.next()?), unescape(before.next()?)))
    })?;
    let top = root.join(mount_point.trim_start_matches('/'));
    // In a container the mount may start at its own group, while the path counts from the host's root.
    let below = Path::new(path).strip_prefix(&mount_root).unwrap_or(Path::new("")).to_owned();
    let below = if below.components().any(|part| part.as_os_str() == "..") { PathBuf::new() } else { below };
    let mut folder = top.join(below.strip_prefix("/").unwrap_or(&below));
    if !folder.is_dir() {
        folder.clone_from(&top);
    }
    if version == 2 && !folder.join("memory.current").exists() && folder != top {
        return None; // the memory controller is not switched on here
    }
    let limit_bytes = folder
        .ancestors()
        .take_while(|ancestor| ancestor.starts_with(&top))
        .flat_map(|ancestor| {
            // beyond `memory.high` the kernel throttles the process until it is useless
            let files: &[&str] =
                if version == 1 { &["memory.limit_in_bytes"] } else { &["memory.max", "memory.high"] };
            files.iter().filter_map(|file| read_trimmed(&ancestor.join(file))).collect::<Vec<_>>()
        })
        .filter_map(|text| text.parse::<u64>().ok()) // "max" is no number
        .filter(|&limit| limit < UNLIMITED_BYTES)
        .min();
    Some(MemoryGroup { version, folder, limit_bytes })
}

/// Decodes octal escapes of blanks and backslashes in mount tables.
pub(super) fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octal = (first == b'\\' && after.len() >= 3)
            .then(|| std::str::from_utf8(&after[..3]).ok())
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
