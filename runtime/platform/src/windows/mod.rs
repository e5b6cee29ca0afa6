//! Windows.

pub(crate) mod affinity;
pub(crate) mod file;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod page_cache;
pub(crate) mod process;
pub(crate) mod signal;
pub(crate) mod terminal;

use std::io;

use crate::Missing;
use crate::common::missing;
pub(crate) use crate::common::sleep as wait;

pub(crate) const NAME: &str = "Windows";

pub(crate) const MISSING: &[Missing] = &[
    missing::PAGE_CACHE,
    missing::URING,
    missing::HUGE_PAGES,
    missing::GROUP_MEMORY,
    missing::GROUP_PROCESSORS,
];

/// Windows closes a connection after unanswered questions only.
pub(crate) fn limit_unconfirmed(_: &socket2::Socket, _: std::time::Duration) -> io::Result<()> {
    Ok(())
}

/// The last error, where a call answered 0.
fn done(answer: i32) -> io::Result<()> {
    if answer == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A path or name as Windows reads it, with a zero at its end.
fn wide(text: impl AsRef<std::ffi::OsStr>) -> Vec<u16> {
    std::os::windows::ffi::OsStrExt::encode_wide(text.as_ref()).chain([0]).collect()
}
