//! The disk under a folder.

use std::path::{Path, PathBuf};

use super::proc::{read, read_number, read_trimmed};
use crate::error::MachineError;
use crate::types::Disk;

/// The most nested device mappers; more than a phone's encryption over its integrity check.
const LAYERS_MAX: usize = 8;

/// The disk that holds `path`.
pub(super) fn disk(root: &Path, path: &Path) -> Result<Disk, MachineError> {
    let refused =
        |source: rustix::io::Errno| MachineError::Read { path: path.to_owned(), source: source.into() };
    let stat = rustix::fs::stat(path).map_err(refused)?;
    let file_system = rustix::fs::statfs(path).map_err(refused)?;
    let space = rustix::fs::statvfs(path).map_err(refused)?;
    let kind = kind(file_system.f_type as u64 & 0xffff_ffff);
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let device = device_folder(root, major, minor).or_else(|| {
        // file systems such as btrfs have their own device numbers; their mount names the device
        let source = mount_source(&read(root, "/proc/self/mountinfo").ok()?, &path.canonicalize().ok()?)?;
        let name = source.strip_prefix("/dev").ok()?.file_name()?.to_owned();
        root.join("sys/class/block").join(name).canonicalize().ok()
    });
    let described = device.and_then(|folder| describe(&folder));
    let (model, size_bytes) = described.unwrap_or_else(|| (kind.clone(), space.f_blocks * space.f_frsize));
    Ok(Disk { file_system: kind, model, size_bytes })
}

/// A short name of the disk under a folder: the block device's, or the file system's kind where there is none.
pub(super) fn name(root: &Path, folder: &Path) -> Option<String> {
    let stat = rustix::fs::stat(folder).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let device = device_folder(root, major, minor);
    let device = device.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    device.or_else(|| {
        let mounts = read(root, "/proc/self/mountinfo").ok()?;
        let number = format!("{major}:{minor}");
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number))?;
        Some(mount.split_once(" - ")?.1.split(' ').next()?.to_owned())
    })
}

/// The name of a file system by its number in `statfs`.
fn kind(magic: u64) -> String {
    let name = match magic {
        0xef53 => "ext4",
        0xf2f5_2010 => "f2fs",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x2fc1_2fc1 => "zfs",
        0xca45_1a4e => "bcachefs",
        0xe0f5_e1e2 => "erofs",
        0x2011_bab0 => "exfat",
        0x4d44 => "vfat",
        0x0102_1994 => "tmpfs",
        0x8584_58f6 => "ramfs",
        0x794c_7630 => "overlay",
        0x6573_5546 => "fuse",
        0x6969 => "nfs",
        0xff53_4d42 | 0xfe53_4d42 => "cifs",
        0x0102_1997 => "9p",
        other => return format!("{other:#x}"),
    };
    name.to_owned()
}

/// The folder behind `/sys/dev/block/MAJOR:MINOR`.
pub(super) fn device_folder(root: &Path, major: u32, minor: u32) -> Option<PathBuf> {
    root.join(format!("sys/dev/block/{major}:{minor}")).canonicalize().ok()
}

/// Model (or name) and size of the disk under a block device: up from a partition, down from a mapping over a
/// single device.
pub(super) fn describe(folder: &Path) -> Option<(String, u64)> {
    let mut folder = folder.to_owned();
    for _ in 0..LAYERS_MAX {
        if folder.join("partition").exists() {
            folder = folder.parent()?.to_owned();
            continue;
        }
        let below: Vec<PathBuf> = std::fs::read_dir(folder.join("slaves"))
            .map(|entries| entries.filter_map(|entry| entry.ok()?.path().canonicalize().ok()).collect())
            .unwrap_or_default();
        let [only] = below.as_slice() else { break };
        folder = only.clone();
    }
    let size_bytes = read_number(&folder.join("size"))? * 512;
    let model = ["device/model", "device/name", "dm/name"]
        .iter()
        .find_map(|file| read_trimmed(&folder.join(file)))
        .or_else(|| Some(folder.file_name()?.to_string_lossy().into_owned()))?;
    Some((model, size_bytes))
}

/// The device mounted at the deepest mount point above `path`.
pub(super) fn mount_source(mountinfo: &str, path: &Path) -> Option<PathBuf> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let point = PathBuf::from(super::cgroup::unescape(before.split(' ').nth(4)?));
            let source = super::cgroup::unescape(after.split(' ').nth(1)?);
            path.starts_with(&point).then_some((point.components().count(), PathBuf::from(source)))
        })
        // the last of equals is mounted over the others
        .max_by_key(|(depth, _)| *depth)
        .map(|(_, source)| source)
}
