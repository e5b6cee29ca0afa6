//! Anonymous memory through `memmap2`, for platforms other than Linux: no huge pages, and pages made present by writing to them.

use std::io;
use std::ptr::NonNull;

use memmap2::MmapMut;

use crate::system::memory::{lock, page_bytes};

/// Mapped addresses, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    pages: MmapMut,
    /// The first byte, after what an alignment beyond a page has left over.
    base: NonNull<u8>,
    before: usize,
    bytes: usize,
}

#[expect(unsafe_code, reason = "an address beside the mapping that it points into")]
mod shared {
    // SAFETY: the mapping may cross threads, and its address belongs to it; it is written only where the mapping is borrowed mutably.
    unsafe impl Send for super::Mapping {}
    // SAFETY: as above; a shared `Mapping` gives out nothing but numbers.
    unsafe impl Sync for super::Mapping {}
}

impl Mapping {
    /// Maps `bytes`, a nonzero multiple of the page size, zeroed, from a multiple of `align` on, a power of two of at least a page.
    ///
    /// # Errors
    /// The system's.
    pub fn new(bytes: usize, align: usize) -> io::Result<Self> {
        let spare = if align > page_bytes() { align } else { 0 };
        let mapped = bytes.checked_add(spare).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut pages = MmapMut::map_anon(mapped)?;
        let before = if spare == 0 { 0 } else { pages.as_ptr().addr().wrapping_neg() % align };
        let base = NonNull::from(&mut pages[before..][..bytes]).cast();
        Ok(Self { pages, base, before, bytes })
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
        &mut self.pages[self.before..][..self.bytes]
    }

    /// Makes every page present. Huge pages are the system's own decision here.
    ///
    /// # Errors
    /// None here: a system without memory ends the process.
    pub fn populate(&mut self, _huge: bool) -> io::Result<()> {
        crate::types::touch(self.as_mut_slice());
        Ok(())
    }

    /// Locks all of it in memory.
    ///
    /// # Errors
    /// The system's.
    pub fn lock(&self) -> io::Result<()> {
        lock(self.base, self.bytes)
    }
}
