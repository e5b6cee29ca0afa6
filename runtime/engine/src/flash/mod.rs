//! Reads from flash: requests bring the buffer that they fill, completions return it.
//!
//! A request owns its buffer from [`Flash::submit`] until [`Flash::reap`] returns it, so nothing can see
//! bytes that may still change. Reads may complete late, in any order, or with an error. Short reads are
//! resumed before they count as completed.
//!
//! ```text
//! submit [tag, offset, bytes, buffer] -->  device  --> reap [tag, bytes, buffer, result]
//! ```
//!
//! Two back ends: positioned reads by a pool of threads ([`pread`]), which every system has, and asynchronous
//! reads by the compute thread ([`uring`]), which some systems refuse. A plan names one of them
//! ([`open_backend`]).

#[cfg(test)]
pub(crate) mod faulty;
mod files;
mod gather;
pub mod pread;
#[cfg_attr(not(all(target_os = "linux", not(flashplan_portable))), path = "no_uring.rs")]
pub mod uring;
mod write;

#[cfg(test)]
pub(crate) mod tests;

use std::fs::File;
use std::io;
use std::path::Path;

use plans::Backend;
use platform::page_cache::{self, Pattern};

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
    /// The caller's number of the read.
    pub tag: u32,
    /// Address of the first byte, on a page.
    pub offset: u64,
    /// Length, whole pages.
    pub bytes: usize,
    /// The buffer that is filled.
    pub buffer: Buffer,
    /// First byte to fill in the buffer, on a page; earlier bytes stay.
    pub at: usize,
}

impl ReadRequest {
    /// The part of the buffer that is filled.
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

/// A completed read.
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u32,
    /// The request's length.
    pub bytes: usize,
    /// The request's buffer; its contents are valid only if `result` is `Ok`.
    pub buffer: Buffer,
    /// `Ok` if all bytes were read, otherwise the error.
    pub result: io::Result<()>,
}

/// Counts of completed reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlashCounters {
    /// Reads completed.
    pub reads: u64,
    /// Bytes of all reads, whole pages.
    pub bytes: u64,
    /// Times that a short or interrupted read was resumed.
    pub resumed: u64,
}

impl FlashCounters {
    /// The counts since `earlier`.
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
    /// Offers the buffers of later requests, so that a device can prepare them. Other buffers work, too.
    fn adopt(&mut self, _buffers: &mut [Buffer]) {}

    /// The read method, in a few words for the report.
    fn describe(&self) -> String;

    /// Starts reads, in order, and leaves the list empty. Never blocks on the device.
    fn submit(&mut self, requests: &mut Vec<ReadRequest>);

    /// Lets reads that wait for room start after others completed. Never blocks on the device, and returns no
    /// completion.
    fn go_on(&mut self) {}

    /// The next completed read. With `wait`, `None` only if none is in flight.
    fn reap(&mut self, wait: bool) -> Option<Completion>;

    /// Requests whose completion has not been reaped.
    fn in_flight(&self) -> usize;

    /// Counts since the device was opened.
    fn counters(&self) -> FlashCounters;
}

/// Opens a file for reading past the page cache, or through it with the kernel's read-ahead off.
///
/// # Errors
/// The system's error; `InvalidInput` where the file system has no direct I/O.
pub fn open(path: &Path, direct: bool) -> io::Result<File> {
    if direct {
        return page_cache::open_direct(path);
    }
    let file = File::open(path)?;
    page_cache::advise(&file, Pattern::Random)?;
    Ok(file)
}

/// Opens the back end that a plan names over files from [`open`], with `depth` reads in flight and room for
/// `requests` requests. `pread` threads run on `cores`.
///
/// # Errors
/// The system's error: no thread, no such core, or `io_uring` refused.
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

/// A better error for a failed read: if the file has become shorter, says so.
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

/// Drops pages that were read through the page cache, because they count as this process's memory. Advice only:
/// a system that ignores it keeps the pages, and the report counts them.
fn forget_pages(files: &Files, address: u64, bytes: usize) {
    let (_, file, offset) = files.at(address);
    page_cache::forget_part(file, offset, std::num::NonZeroU64::new(bytes as u64));
}
