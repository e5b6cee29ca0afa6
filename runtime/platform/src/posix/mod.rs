//! Any Unix, by POSIX and the C library alone: no pinned threads, no reads past the page cache, no facts of `/proc`.
//!
//! macOS takes its common parts from here. Linux is built from it with `--cfg flashplan_portable`.

pub(crate) mod facts;

use std::fs::File;
use std::io;
use std::path::Path;

use crate::Missing;
use crate::common::missing;
pub(crate) use crate::common::{sleep as wait, unpinned as affinity};
pub(crate) use crate::unix::terminal;

pub(crate) const NAME: &str = if cfg!(target_os = "linux") { "portable Linux" } else { "this Unix" };

pub(crate) const MISSING: &[Missing] = &[
    missing::AFFINITY,
    missing::PAGE_CACHE,
    missing::DIRECT,
    missing::URING,
    missing::HUGE_PAGES,
    missing::GROUP_MEMORY,
    missing::GROUP_PROCESSORS,
    missing::OTHERS,
];

pub(crate) mod file {
    pub use super::{descriptor, punch_hole};
    pub use crate::unix::file::*;
}

pub(crate) mod page_cache {
    pub use super::{advise, drop_pages, open_direct, reopen};
}

pub(crate) mod machine {
    pub(crate) use super::facts::cpu_times;
    #[cfg(not(target_os = "macos"))]
    pub use super::facts::ram;
    pub use super::facts::{
        core_classes, core_times, cpu_name, disk, disk_name, largest_cache_bytes, memory_group,
        processor_limit, setting,
    };
}

pub(crate) mod process {
    pub use super::facts::{
        bytes_fetched, footprint, forget_read_ahead, keep_small, kernel_stack_bytes, sleeps,
    };
    pub use crate::unix::{cpu_time, full_pipe, is_writable};
}

pub(crate) mod signal {
    pub use crate::unix::bus_error::end_with as end_at_bus_error;
    pub use crate::unix::signal::*;
}

pub(crate) mod memory {
    //! Anonymous memory, locked by `mlock`.
    #![expect(unsafe_code, reason = "locking")]

    use std::io;
    use std::ptr::NonNull;

    pub use crate::common::anonymous::Mapping;
    pub use crate::unix::{lockable_bytes, read_ahead};

    /// Bytes of a page.
    pub fn page_bytes() -> usize {
        rustix::param::page_size()
    }

    pub(crate) fn lock(base: NonNull<u8>, bytes: usize) -> io::Result<()> {
        // SAFETY: locking changes no contents and no addresses; what is not mapped is refused.
        Ok(unsafe { rustix::mm::mlock(base.as_ptr().cast(), bytes) }?)
    }
}

/// The number in `/dev/fd/NUMBER`; `None` for any other path.
pub fn descriptor(path: &Path) -> Option<u32> {
    match path.to_str()? {
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        path => path.strip_prefix("/dev/fd/")?.parse().ok(),
    }
}

/// Refuses: POSIX has no holes.
///
/// # Errors
/// `Unsupported`.
pub fn punch_hole(_: &File, _offset: u64, _bytes: u64) -> io::Result<()> {
    Err(refused("parts of files cannot be given back to the disk"))
}

/// Refuses: POSIX has no reads past the page cache.
///
/// # Errors
/// `Unsupported`, or the system's if there is no such file.
pub fn open_direct(path: &Path) -> io::Result<File> {
    File::open(path)?;
    Err(refused("reads do not bypass the page cache"))
}

/// Another descriptor of an open file; POSIX has none past the page cache.
///
/// # Errors
/// The system's; `Unsupported` for direct access.
pub fn reopen(file: &File, _: crate::types::Access, direct: bool) -> io::Result<File> {
    if direct { Err(refused("reads and writes do not bypass the page cache")) } else { file.try_clone() }
}

/// Changes nothing: the system alone decides on read-ahead.
///
/// # Errors
/// None here.
pub fn advise(_: &File, _: crate::types::Pattern) -> io::Result<()> {
    Ok(())
}

/// Changes nothing: the system keeps the pages of files; [`MISSING`] says so.
///
/// # Errors
/// None here.
pub fn drop_pages(_: &File, _offset: u64, _bytes: Option<std::num::NonZeroU64>) -> io::Result<()> {
    Ok(())
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("{what} on {}", crate::NAME))
}

/// Changes nothing: POSIX limits no unconfirmed bytes, and asking idle clients closes their connections later.
pub(crate) fn limit_unconfirmed(_: &socket2::Socket, _: std::time::Duration) -> io::Result<()> {
    Ok(())
}
