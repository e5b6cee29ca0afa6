//! The facts that all platforms describe in the same words.

use std::path::PathBuf;

/// Ticks below which a difference may be a counting error.
const TICKS_MIN: f64 = 2.0;

/// A core as the scheduler counts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// The core's number.
    pub id: u32,
    /// The hardware threads of the physical core, this one included; one without SMT.
    pub siblings: Vec<u32>,
}

/// Cores of equal speed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreClass {
    /// `big`, `mid`, `little`, or `core` where all are equal.
    pub name: String,
    /// One hardware thread of every physical core first, then the second ones.
    pub cores: Vec<Core>,
    /// Relative capacity, 1024 for the fastest.
    pub capacity: u32,
    /// Highest clock in MHz, never the current one; 0 if unknown.
    pub clock_mhz: u32,
}

impl CoreClass {
    /// The capacity of the fastest core.
    pub(crate) const CAPACITY_FULL: u32 = 1024;

    /// `4 x 2600 MHz`, or `4 x unknown MHz`.
    pub fn describe(&self) -> String {
        match self.clock_mhz {
            0 => format!("{} x unknown MHz", self.cores.len()),
            clock => format!("{} x {clock} MHz", self.cores.len()),
        }
    }

    /// Names classes that are sorted by speed, and puts first hardware threads before second ones.
    pub(crate) fn finish(classes: &mut [Self]) {
        let count = classes.len();
        for (index, class) in classes.iter_mut().enumerate() {
            class.name = match index {
                _ if count == 1 => "core".to_owned(),
                0 => "big".to_owned(),
                index if index + 1 == count => "little".to_owned(),
                _ if count == 3 => "mid".to_owned(),
                index => format!("mid{index}"),
            };
            let thread = |core: &Core| core.siblings.iter().position(|&id| id == core.id);
            class.cores.sort_by_key(|core| (thread(core), core.id));
        }
    }
}

/// A file system and its block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The file system's kind, e.g. `ext4`.
    pub file_system: String,
    /// Model of the block device, or its name; without a device the file system's kind.
    pub model: String,
    /// Size of the whole block device in bytes; without a device the file system's.
    pub size_bytes: u64,
}

impl Disk {
    /// `Samsung SSD 990 PRO, 1863 GiB`.
    pub fn describe(&self) -> String {
        format!("{}, {} GiB", self.model, gib(self.size_bytes))
    }
}

/// Bytes in whole GiB, rounded to nearest.
pub fn gib(bytes: u64) -> u64 {
    (bytes + (1 << 29)) >> 30
}

/// The control group that limits this process's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryGroup {
    /// 1 or 2.
    pub version: u32,
    /// The group's folder.
    pub folder: PathBuf,
    /// The smallest limit from the group up to the root, if any.
    pub limit_bytes: Option<u64>,
}

impl MemoryGroup {
    /// Bytes that the group holds now, page cache and kernel memory included.
    pub fn usage_bytes(&self) -> Option<u64> {
        self.number(if self.version == 1 { "memory.usage_in_bytes" } else { "memory.current" })
    }

    /// The group's peak; version 2 has it since Linux 5.19.
    pub fn peak_bytes(&self) -> Option<u64> {
        self.number(if self.version == 1 { "memory.max_usage_in_bytes" } else { "memory.peak" })
    }

    fn number(&self, file: &str) -> Option<u64> {
        std::fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }
}

/// The memory of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Resident bytes now: anonymous, file-backed, shared (Linux: `VmRSS`). The peak where only that is known.
    pub resident_bytes: u64,
    /// Peak of resident bytes (Linux: `VmHWM`).
    pub resident_peak_bytes: u64,
    /// Page tables (Linux: `VmPTE`); 0 where the platform does not count them.
    pub page_table_bytes: u64,
}

impl Footprint {
    /// The peak of resident pages and page tables together; needs no control group. It counts shared pages,
    /// such as the C library's, in full. It misses page cache and kernel buffers of the process, which a
    /// control group counts.
    pub fn peak_bytes(&self) -> u64 {
        self.resident_peak_bytes + self.page_table_bytes
    }
}

/// CPU time since the machine's start, in ticks of one length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuTimes {
    /// All processors together, idle or not.
    pub(crate) all: f64,
    pub(crate) idle: f64,
    /// Time of this process.
    pub(crate) own: f64,
    /// Time that the host of a virtual machine gave to others while this machine had work.
    pub(crate) stolen: f64,
}

impl CpuTimes {
    /// The times until now; `None` if the system does not count them.
    pub fn now() -> Option<Self> {
        crate::system::machine::cpu_times()
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
    pub(crate) fn stolen_until(self, after: Self) -> f64 {
        let (all, stolen) = (after.all - self.all, after.stolen - self.stolen);
        if all <= 0.0 || stolen < TICKS_MIN { 0.0 } else { (stolen / all).clamp(0.0, 1.0) }
    }

    /// [`CpuTimes::others`] from here to `after`.
    pub(crate) fn others_until(self, after: Self) -> f64 {
        let all = after.all - self.all;
        if all <= 0.0 {
            return 0.0;
        }
        let busy = all - (after.idle - self.idle) - (after.own - self.own);
        if busy < TICKS_MIN { 0.0 } else { (busy / all).clamp(0.0, 1.0) }
    }
}

/// Time of one core since the machine's start, in ticks of one length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CoreTimes {
    /// All of it.
    pub all: f64,
    /// Idle time.
    pub idle: f64,
}

impl CoreTimes {
    /// The busy share of the core's time since `earlier`.
    pub fn share_since(&self, earlier: &Self) -> f64 {
        1.0 - (self.idle - earlier.idle) / (self.all - earlier.all).max(1.0)
    }
}

/// The use of a file that is opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading.
    Read,
    /// For writing.
    Write,
}

/// The order of reads through the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Anywhere: nothing is read ahead.
    Random,
    /// One after another.
    Sequential,
}

/// The identity of a file, whatever its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Number of the file's disk.
    pub disk: u64,
    /// Number of the file on that disk.
    pub number: u64,
}

/// Writes a zero to the first byte of every page of zeroed memory, which makes it present.
pub(crate) fn touch(memory: &mut [u8]) {
    for page in memory.chunks_mut(4096) {
        page[0] = std::hint::black_box(0);
    }
}
