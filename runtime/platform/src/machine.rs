//! Facts about this machine: processor, cores, RAM, disk, control group. Nothing is measured.

pub use crate::error::MachineError;
pub use crate::system::machine::{
    core_classes, core_times, cpu_name, disk, disk_name, largest_cache_bytes, memory_group, processor_limit,
    ram, setting,
};
pub use crate::types::{Core, CoreClass, CoreTimes, CpuTimes, Disk, MemoryGroup, gib};
