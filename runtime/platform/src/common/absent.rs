//! Facts that only Linux tells; each function says so by `None` or 0.

use std::path::PathBuf;

use crate::types::{CoreTimes, MemoryGroup};

/// No control group.
pub fn memory_group() -> Option<MemoryGroup> {
    None
}

/// No quota of processors.
pub fn processor_limit(_: &MemoryGroup) -> Option<(PathBuf, String)> {
    None
}

/// No setting of a kernel by path.
pub fn setting(_path: &str) -> Option<String> {
    None
}

/// No times of single cores.
pub fn core_times(_core: u32) -> Option<CoreTimes> {
    None
}

/// Unknown.
pub fn sleeps(_process: u32) -> Option<bool> {
    None
}

/// Unknown.
pub fn kernel_stack_bytes() -> u64 {
    0
}

/// Unknown.
pub fn bytes_fetched() -> Option<u64> {
    None
}

/// Changes nothing: the allocator's and the loader's choices stand.
pub fn keep_small() {}

/// Changes nothing: pages of a program are not counted against it.
pub fn forget_read_ahead() {}
