//! Anonymous mappings, huge pages and locking.
#![expect(unsafe_code, reason = "one anonymous mapping, and advice on it")]

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};

pub use crate::unix::{lockable_bytes, read_ahead};

/// Bytes of a page.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Mapped addresses, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to the thread that made it, and `Mapping` itself
// never reads or writes it unless it is borrowed mutably.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared `Mapping` gives out nothing but numbers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes`, a nonzero multiple of the page size, zeroed, from a multiple of `align` on, a power of two of at least a page.
    ///
    /// # Errors
    /// The system's.
    pub fn new(bytes: usize, align: usize) -> io::Result<Self> {
        let spare = if align > page_bytes() { align } else { 0 };
        let mapped = bytes.checked_add(spare).ok_or(io::ErrorKind::OutOfMemory)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is requested, so that no mapping of anyone else is replaced.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, protection, MapFlags::PRIVATE) }?;
        let whole =
            Self { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, bytes: mapped };
        let before = if spare == 0 { 0 } else { whole.base.addr().get().wrapping_neg() % align };
        Ok(whole.cut(before, bytes))
    }

    /// Unmaps all but `bytes` after the first `before` bytes; all three are whole pages.
    fn cut(self, before: usize, bytes: usize) -> Self {
        let whole = std::mem::ManuallyDrop::new(self);
        for (start, length) in [(0, before), (before + bytes, whole.bytes - before - bytes)] {
            if length > 0 {
                let first = whole.base.as_ptr().wrapping_add(start);
                // SAFETY: the range is inside this mapping, and nobody has been given any of it.
                let _cannot_fail = unsafe { munmap(first.cast(), length) };
            }
        }
        // SAFETY: `before + bytes <= whole.bytes`.
        Self { base: unsafe { whole.base.add(before) }, bytes }
    }

    fn address(&self) -> *mut c_void {
        self.base.as_ptr().cast()
    }

    /// The first byte.
    pub fn first(&self) -> NonNull<u8> {
        self.base
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `bytes` long, initialised by the kernel, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }

    /// Makes every page present, as huge pages where wanted and possible.
    ///
    /// # Errors
    /// The system's, if it has no such memory.
    pub fn populate(&mut self, huge: bool) -> io::Result<()> {
        if huge {
            // SAFETY: the range is this mapping's; the advice changes no contents. Kernels without
            // huge pages refuse it, which costs speed only.
            let _refused = unsafe { madvise(self.address(), self.bytes, Advice::LinuxHugepage) };
        }
        // SAFETY: the range is this mapping's; populating leaves it zero.
        match unsafe { madvise(self.address(), self.bytes, Advice::LinuxPopulateWrite) } {
            // Linux before 5.14
            Err(Errno::INVAL) => {
                crate::types::touch(self.as_mut_slice());
                Ok(())
            }
            refused_or_done => Ok(refused_or_done?),
        }
    }

    /// Locks all of it in memory.
    ///
    /// # Errors
    /// The system's.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping's; locking changes no contents.
        Ok(unsafe { mlock(self.address(), self.bytes) }?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping has no other owner, and whoever was given its address is gone with it.
        let _cannot_fail = unsafe { munmap(self.address(), self.bytes) };
    }
}
