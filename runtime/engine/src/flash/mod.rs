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
//! Two back ends: positioned reads by a pool of threads ([`pread`]), which every system has, and asynchronous reads by
//! the computing thread itself ([`uring`]), which some refuse. A plan names one of them ([`open_backend`]).

#[cfg(test)]
pub(crate) mod faulty;
mod files;
mod gather;
pub mod pread;
#[expect(unsafe_code, reason = "the kernel writes into buffers behind the compiler's back")]
pub mod uring;
mod write;

#[cfg(test)]
pub(crate) mod tests;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use plans::Backend;

use crate::arena::Slab;

pub(crate) use files::place;
pub use files::{APART, FILE_BYTES_MAX, Files};
pub use gather::{Gather, LayerSlices};
pub use write::DirectWriter;

/// A page-aligned buffer of the arena.
pub type Buffer = Slab<u8>;

/// A read to be done.
#[derive(Debug)]
pub struct ReadRequest {
    /// The caller's name for the read.
    pub tag: u32,
    /// Address of the first byte, on a page.
    pub offset: u64,
    /// Length, whole pages.
    pub bytes: usize,
    /// The buffer that is filled.
    pub buffer: Buffer,
    /// The place in the buffer, on a page; the bytes before it stay.
    pub at: usize,
}

impl ReadRequest {
    /// The part of the buffer that is read into.
    ///
    /// # Panics
    /// If the buffer is shorter.
    fn target(&mut self) -> &mut [u8] {
        &mut self.buffer[self.at..][..self.bytes]
    }

    fn fits(&self) -> bool {
        self.at.checked_add(self.bytes).is_some_and(|end| end <= self.buffer.len())
    }
}

/// A read that is over.
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u32,
    /// The request's length.
    pub bytes: usize,
    /// The request's buffer; its contents mean something only if `result` is good.
    pub buffer: Buffer,
    /// All bytes are there, or why not.
    pub result: io::Result<()>,
}

/// Counts of completed reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlashCounters {
    /// Reads completed.
    pub reads: u64,
    /// Bytes of all reads, whole pages.
    pub bytes: u64,
    /// Times that one came back short or interrupted, and went on where it had ended.
    pub resumed: u64,
}

impl FlashCounters {
    /// What was counted since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            bytes: self.bytes - earlier.bytes,
            resumed: self.resumed - earlier.resumed,
        }
    }
}

impl std::ops::AddAssign for FlashCounters {
    fn add_assign(&mut self, more: Self) {
        self.reads += more.reads;
        self.bytes += more.bytes;
        self.resumed += more.resumed;
    }
}

/// A device that reads files.
pub trait Flash: Send {
    /// The buffers that requests will bring, before the first: a device may prepare them. Others are read all the same.
    fn adopt(&mut self, _buffers: &mut [Buffer]) {}

    /// The way it reads, in a few words for the report.
    fn describe(&self) -> String;

    /// Starts reads, in order, and leaves the list empty. Never blocks on the device.
    fn submit(&mut self, requests: &mut Vec<ReadRequest>);

    /// Lets reads that wait for room begin where others have completed. Never blocks on the device, and hands nothing out.
    fn go_on(&mut self) {}

    /// The next read that is over. With `wait`, `None` only if none is in flight.
    fn reap(&mut self, wait: bool) -> Option<Completion>;

    /// Requests whose completion has not been reaped.
    fn in_flight(&self) -> usize;

    /// Totals since it was opened.
    fn counters(&self) -> FlashCounters;
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

/// The back end that a plan names, over files opened with [`open`]: `depth` reads in flight, room for `requests`
/// requests; threads of `pread` may run on `cores`.
///
/// # Errors
/// The system's: it gives no thread or has not these cores, or refuses `io_uring`.
pub fn open_backend(
    backend: Backend,
    files: impl Into<Files>,
    direct: bool,
    depth: usize,
    requests: usize,
    cores: &[u32],
) -> io::Result<Box<dyn Flash>> {
    Ok(match backend {
        Backend::Pread => Box::new(pread::Pread::new(files, direct, depth, requests, cores)?),
        Backend::IoUring => Box::new(uring::Uring::new(files, direct, depth, requests)?),
    })
}

/// Why a read failed: that the file ends before it says more than what the system says of it.
pub(crate) fn explain(files: &Files, address: u64, bytes: usize, error: io::Error) -> io::Error {
    let ((_, file, offset), bytes) = (files.at(address), files.needed(address, bytes));
    match file.metadata() {
        Ok(now) if now.len() < offset + bytes as u64 => {
            let why = format!("the file has become shorter: it ends at {} now", now.len());
            io::Error::new(io::ErrorKind::UnexpectedEof, why)
        }
        _ => error,
    }
}

/// Drops from the page cache what was read through it: it counts as ours.
fn forget_pages(files: &Files, address: u64, bytes: usize) {
    let (_, file, offset) = files.at(address);
    let bytes = std::num::NonZeroU64::new(bytes as u64);
    // advice: a kernel that does not follow it keeps the pages, and the report shows them
    let _ = rustix::fs::fadvise(file, offset, bytes, rustix::fs::Advice::DontNeed);
}
