//! Reading flash: requests go in with the buffer they fill, completions come back with it.
//!
//! A buffer belongs to its request from [`Flash::submit`] until [`Flash::reap`] gives it back, so that nobody can
//! look at bytes that are still to change. Reads may complete in any order, late, short or not at all; a completion
//! says which, and a short read has been retried to its end before it is one.
//!
//! ```text
//! submit [tag, offset, bytes, buffer] -->  device  --> reap [tag, bytes, buffer, result]
//! ```
//!
//! One back end so far: positioned reads by a pool of threads ([`pread`]), which every system has.

pub mod faulty;
pub mod pread;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::arena::Slab;

/// A page-aligned buffer of the arena.
pub type Buffer = Slab<u8>;

/// A read to be done.
#[derive(Debug)]
pub struct Request {
    /// The caller's name for it.
    pub tag: u32,
    /// First byte, on a page.
    pub offset: u64,
    /// Length, whole pages, at most the buffer.
    pub bytes: usize,
    /// Where they go.
    pub buffer: Buffer,
}

/// A read that is over.
#[derive(Debug)]
pub struct Completion {
    /// As in the request.
    pub tag: u32,
    /// As in the request.
    pub bytes: usize,
    /// The request's buffer; its contents mean something only if `result` is good.
    pub buffer: Buffer,
    /// All bytes are there, or why not.
    pub result: io::Result<()>,
}

/// What has been read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads completed.
    pub reads: u64,
    /// Their bytes, whole pages.
    pub bytes: u64,
}

/// A device that reads one file.
pub trait Flash: Send {
    /// Starts reads, in order, and leaves the list empty. Never blocks on the device.
    fn submit(&mut self, requests: &mut Vec<Request>);

    /// The next read that is over. With `wait`, `None` only if none is in flight.
    fn reap(&mut self, wait: bool) -> Option<Completion>;

    /// Requests whose completion has not been reaped.
    fn in_flight(&self) -> usize;

    /// Totals since it was opened.
    fn counters(&self) -> Counters;
}

/// Opens a file for reading past the page cache, or through it with the kernel's read-ahead off.
///
/// # Errors
/// The system's; `InvalidInput` where the file system has no direct I/O.
pub fn open(path: &Path, direct: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    if direct {
        options.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
    }
    let file = options.open(path)?;
    if !direct {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    }
    Ok(file)
}
