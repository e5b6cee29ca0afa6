use std::fs;
use std::os::unix::fs::symlink;

use std::path::Path;

use super::*;
use crate::machine::{CoreClass, CpuTimes, gib};

/// A root folder with these files.
fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn phone() -> tempfile::TempDir {
    let mut files = vec![
        (
            "proc/cpuinfo".to_owned(),
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd80\n".to_owned(),
        ),
        ("sys/devices/system/cpu/present".to_owned(), "0-7\n".to_owned()),
    ];
    for id in 0..8 {
        let (capacity, clock) = match id {
            0..2 => (379, 2_265_600),
            2..5 => (906, 3_148_800),
            5..7 => (850, 2_956_800),
            _ => (1024, 3_302_400),
        };
        let folder = format!("sys/devices/system/cpu/cpu{id}");
        files.push((format!("{folder}/cpu_capacity"), format!("{capacity}\n")));
        files.push((format!("{folder}/cpufreq/cpuinfo_max_freq"), format!("{clock}\n")));
        files.push((format!("{folder}/topology/thread_siblings_list"), format!("{id}\n")));
    }
    root(&files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>())
}

fn ids(class: &CoreClass) -> Vec<u32> {
    class.cores.iter().map(|core| core.id).collect()
}

#[test]
fn a_phone_has_three_classes_the_fastest_first() {
    let phone = phone();
    let classes = cores::classes(phone.path(), &[0]);
    let described: Vec<_> = classes
        .iter()
        .map(|class| (class.name.as_str(), ids(class), class.describe(), class.capacity))
        .collect();
    assert_eq!(
        described,
        [
            ("big", vec![7], "1 x 3302 MHz".to_owned(), 1024),
            ("mid", vec![2, 3, 4, 5, 6], "5 x 3148 MHz".to_owned(), 906),
            ("little", vec![0, 1], "2 x 2265 MHz".to_owned(), 379),
        ]
    );
    assert_eq!(cores::cpu_model(phone.path()).unwrap(), "ARM 0x41/0xd80");
}

#[test]
fn equal_cores_with_unknown_clock_are_one_class_and_second_hardware_threads_come_last() {
    let cpu = "sys/devices/system/cpu";
    let root = root(&[
        (&format!("{cpu}/present"), "0-3\n"),
        (&format!("{cpu}/cpu0/topology/thread_siblings_list"), "0-1\n"),
        (&format!("{cpu}/cpu1/topology/thread_siblings_list"), "0-1\n"),
        (&format!("{cpu}/cpu2/topology/thread_siblings_list"), "2,3\n"),
        (&format!("{cpu}/cpu3/topology/thread_siblings_list"), "2,3\n"),
        ("proc/cpuinfo", "model name\t: Some  CPU @ 2.0GHz\ncpu MHz\t\t: 1234.5\n"),
    ]);
    let classes = cores::classes(root.path(), &[]);
    assert_eq!(classes.len(), 1);
    assert_eq!((classes[0].name.as_str(), ids(&classes[0])), ("core", vec![0, 2, 1, 3]));
    assert_eq!(classes[0].describe(), "4 x unknown MHz", "the current clock is not requested");
    assert_eq!(cores::cpu_model(root.path()).unwrap(), "Some CPU @ 2.0GHz");
}

#[test]
fn without_any_file_the_allowed_cores_are_equally_fast() {
    let root = root(&[("proc/cpuinfo", "processor : 0\n")]);
    let classes = cores::classes(root.path(), &[4, 5]);
    assert_eq!((classes.len(), ids(&classes[0]), classes[0].capacity), (1, vec![4, 5], 1024));
    assert_eq!(cores::cpu_model(root.path()).unwrap(), std::env::consts::ARCH);
}

#[test]
fn the_processor_is_named_by_chip_or_board_before_its_parts() {
    let chip =
        root(&[("proc/cpuinfo", "model name : ARMv8 Processor rev 1 (v8l)\nHardware : Qualcomm SM8650\n")]);
    assert_eq!(cores::cpu_model(chip.path()).unwrap(), "Qualcomm SM8650");
    let board = root(&[
        ("proc/cpuinfo", "CPU implementer : 0x41\nCPU part : 0xd0b\n"),
        ("proc/device-tree/model", "Raspberry Pi 5 Model B\0"),
    ]);
    assert_eq!(cores::cpu_model(board.path()).unwrap(), "Raspberry Pi 5 Model B");
}

#[test]
fn a_missing_proc_is_an_error_that_names_the_file() {
    let empty = root(&[]);
    assert!(cores::cpu_model(empty.path()).unwrap_err().to_string().contains("proc/cpuinfo"));
    assert!(ram::ram(empty.path()).unwrap_err().to_string().contains("proc/meminfo"));
    assert_eq!(cgroup::memory_group(empty.path()), None);
    let wrong = root(&[("proc/meminfo", "MemFree: 5 kB\n")]);
    assert!(ram::ram(wrong.path()).unwrap_err().to_string().contains("MemTotal"));
}

#[test]
fn ram_and_footprint_are_read_in_bytes() {
    let root = root(&[
        ("proc/meminfo", "MemTotal:       24684092 kB\nMemFree: 5 kB\nMemAvailable:   23973960 kB\n"),
        ("proc/self/status", "Name:\tx\nVmHWM:\t    1768 kB\nVmRSS:\t    1000 kB\nVmPTE:\t      40 kB\n"),
    ]);
    assert_eq!(ram::ram(root.path()).unwrap(), (24_684_092 << 10, 23_973_960 << 10));
    assert_eq!(gib(24_684_092 << 10), 24);
    let footprint = ram::footprint_of(root.path(), "/proc/self/status").unwrap();
    assert_eq!((footprint.resident_bytes, footprint.peak_bytes()), (1000 << 10, 1808 << 10));
}

#[test]
fn the_smallest_limit_up_the_tree_counts_in_version_1() {
    let mount = "35 31 0:32 / /odd\\040place/memory rw - cgroup cgroup rw,memory\n\
                 41 31 0:38 / /odd\\040place/unified rw - cgroup2 cgroup2 rw\n";
    let root = root(&[
        ("proc/self/cgroup", "5:devices:/x\n4:memory:/outer/inner\n0::/\n"),
        ("proc/self/mountinfo", mount),
        ("odd place/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("odd place/memory/outer/memory.limit_in_bytes", "2147483648\n"),
        ("odd place/memory/outer/inner/memory.limit_in_bytes", "9223372036854771712\n"),
        ("odd place/memory/outer/inner/memory.usage_in_bytes", "4096\n"),
        ("odd place/unified/cgroup.procs", ""),
    ]);
    let group = cgroup::memory_group(root.path()).unwrap();
    assert_eq!((group.version, group.limit_bytes), (1, Some(2 << 30)));
    assert_eq!(group.usage_bytes(), Some(4096));
    assert_eq!(group.peak_bytes(), None);
}

#[test]
fn the_smallest_limit_up_the_tree_counts_in_version_2() {
    let root = root(&[
        ("proc/self/cgroup", "0::/user.slice/a:b.scope\n"),
        ("proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
        ("sys/fs/cgroup/cgroup.procs", ""),
        ("sys/fs/cgroup/user.slice/memory.max", "max\n"),
        ("sys/fs/cgroup/user.slice/memory.high", "1073741824\n"),
        ("sys/fs/cgroup/user.slice/a:b.scope/memory.max", "3221225472\n"),
        ("sys/fs/cgroup/user.slice/a:b.scope/memory.current", "8192\n"),
    ]);
    let group = cgroup::memory_group(root.path()).unwrap();
    assert_eq!((group.version, group.limit_bytes, group.usage_bytes()), (2, Some(1 << 30), Some(8192)));
    assert!(group.folder.ends_with("a:b.scope"), "{group:?}");
}

#[test]
fn a_container_that_sees_only_its_own_group_uses_the_mount_itself() {
    for path in ["/docker/abc", "/docker/abc/../..", "/somewhere/else"] {
        let root = root(&[
            ("proc/self/cgroup", &format!("4:memory:{path}\n")),
            (
                "proc/self/mountinfo",
                "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
        ]);
        assert_eq!(cgroup::memory_group(root.path()).unwrap().limit_bytes, Some(512 << 20), "{path}");
    }
}

#[test]
fn a_partition_under_encryption_is_its_disk() {
    let root = root(&[
        ("sys/devices/ufs/block/sda/size", "500117504\n"),
        ("sys/devices/ufs/block/sda/device/model", "KLUEG8UHDC-B0E1 \n"),
        ("sys/devices/ufs/block/sda/sda17/partition", "17\n"),
        ("sys/devices/ufs/block/sda/sda17/size", "400000000\n"),
        ("sys/devices/virtual/block/dm-5/size", "400000000\n"),
        ("sys/devices/virtual/block/dm-5/dm/name", "userdata\n"),
        ("sys/devices/virtual/block/dm-5/slaves/none", ""),
        ("sys/dev/block/none", ""),
    ]);
    let slaves = root.path().join("sys/devices/virtual/block/dm-5/slaves");
    fs::remove_file(slaves.join("none")).unwrap();
    symlink("../../../../ufs/block/sda/sda17", slaves.join("sda17")).unwrap();
    symlink("../../devices/virtual/block/dm-5", root.path().join("sys/dev/block/253:5")).unwrap();
    let folder = disk::device_folder(root.path(), 253, 5).unwrap();
    let (model, size_bytes) = disk::describe(&folder).unwrap();
    assert_eq!((model.as_str(), gib(size_bytes)), ("KLUEG8UHDC-B0E1", 238));
    assert_eq!(disk::device_folder(root.path(), 1, 1), None);
}

#[test]
fn a_mount_is_found_by_its_deepest_point() {
    let mounts = "20 1 0:5 / / rw - ext4 /dev/sda1 rw\n21 1 0:6 /@home /home rw - btrfs /dev/nvme0n1p2 rw\n";
    let source = |path| disk::mount_source(mounts, Path::new(path)).unwrap();
    assert_eq!(source("/home/me/model"), Path::new("/dev/nvme0n1p2"));
    assert_eq!(source("/homes"), Path::new("/dev/sda1"));
}

fn times_of(stat: &str, own: &str) -> Option<CpuTimes> {
    times::read(root(&[("proc/stat", stat), ("proc/self/stat", own)]).path())
}

#[test]
fn time_that_is_neither_idle_nor_ours_belongs_to_others() {
    let own = "7 (a b) c) R 1 2 3 4 5 6 7 8 9 10 30 20 0 0";
    let before =
        times_of("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 1\n", "7 (x) R 1 2 3 4 5 6 7 8 9 10 0 0 0").unwrap();
    // 60 of users, 30 of the system, 10 stolen; 50 of all are ours
    let after = times_of("cpu  60 0 30 90 10 0 0 10 0 0\n", own).unwrap();
    assert_eq!(after, CpuTimes { all: 200.0, idle: 100.0, own: 50.0, stolen: 10.0 });
    assert_eq!(before.others_until(after), 0.25);
    assert_eq!(after.others_until(after), 0.0);
    assert_eq!((before.stolen_until(after), after.stolen_until(after)), (0.05, 0.0));
    assert_eq!(times_of("nonsense", own), None);
}

#[test]
fn the_largest_cache_is_found_and_none_is_zero() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(cores::cache_bytes(root.path()), 0);
    for (index, size) in [(0, "32K\n"), (3, "480M\n")] {
        let folder = root.path().join(format!("sys/devices/system/cpu/cpu0/cache/index{index}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("size"), size).unwrap();
    }
    assert_eq!(cores::cache_bytes(root.path()), 480 << 20);
}
