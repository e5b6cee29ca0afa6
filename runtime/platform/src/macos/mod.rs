//! macOS: POSIX, and what Darwin has beyond it.

mod facts;
pub(crate) mod page_cache;

use std::io;

use crate::Missing;
use crate::common::missing;
pub(crate) use crate::common::{sleep as wait, unpinned as affinity};
pub(crate) use crate::posix::{memory, signal};
pub(crate) use crate::unix::terminal;

pub(crate) const NAME: &str = "macOS";

pub(crate) const MISSING: &[Missing] = &[
    missing::AFFINITY,
    missing::PAGE_CACHE,
    missing::URING,
    missing::HUGE_PAGES,
    missing::GROUP_MEMORY,
    missing::GROUP_PROCESSORS,
    missing::OTHERS,
];

pub(crate) mod file {
    pub use super::page_cache::punch_hole;
    pub use crate::posix::descriptor;
    pub use crate::unix::file::*;
}

pub(crate) mod machine {
    pub use super::facts::{core_classes, cpu_name, disk, largest_cache_bytes, ram};
    pub use crate::common::absent::{core_times, memory_group, processor_limit, setting};
    pub(crate) use crate::posix::facts::cpu_times;
    pub use crate::posix::facts::disk_name;
}

pub(crate) mod process {
    pub use super::facts::footprint;
    pub use crate::common::absent::{
        bytes_fetched, forget_read_ahead, keep_small, kernel_stack_bytes, sleeps,
    };
    pub use crate::unix::{cpu_time, full_pipe, is_writable};
}

/// macOS closes a connection after unanswered questions only.
pub(crate) fn limit_unconfirmed(_: &socket2::Socket, _: std::time::Duration) -> io::Result<()> {
    Ok(())
}
