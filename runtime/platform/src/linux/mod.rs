//! Linux: everything that flashplan is measured with.

mod cgroup;
mod cores;
mod disk;
mod maps;
mod proc;
mod ram;
mod times;

pub(crate) mod affinity;
pub(crate) mod memory;
pub(crate) mod page_cache;
pub(crate) mod wait;

#[cfg(test)]
mod tests;

use crate::Missing;
pub(crate) use crate::unix::terminal;

pub(crate) const NAME: &str = "Linux";
pub(crate) const MISSING: &[Missing] = &[];

pub(crate) mod file {
    pub use super::page_cache::punch_hole;
    pub use super::proc::descriptor;
    pub use crate::unix::file::*;
}

pub(crate) mod machine {
    pub use super::proc::machine::*;
}

pub(crate) mod process {
    pub use super::maps::{forget_read_ahead, keep_small};
    pub use super::proc::process::*;
    pub use crate::unix::{cpu_time, full_pipe, is_writable};
}

pub(crate) mod signal {
    pub use crate::unix::bus_error::end_with as end_at_bus_error;
    pub use crate::unix::signal::*;
}

/// Limits how long sent bytes stay unconfirmed.
pub(crate) fn limit_unconfirmed(
    stream: &socket2::Socket,
    patience: std::time::Duration,
) -> std::io::Result<()> {
    stream.set_tcp_user_timeout(Some(patience))
}
