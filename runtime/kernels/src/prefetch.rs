//! Prefetch hints for weights.
#![expect(unsafe_code, reason = "instructions that only hint")]

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Prefetches the lines `ahead` bytes ahead of these weights.
#[inline]
pub(super) fn prefetch<W>(weights: &W, ahead: usize) {
    for line in 0..size_of::<W>().div_ceil(LINE) {
        prefetch_line(std::ptr::from_ref(weights).cast::<u8>().wrapping_add(ahead.wrapping_add(LINE * line)));
    }
}

/// Prefetches one line; any address is allowed.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn prefetch_line(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every processor of this architecture has SSE; a prefetch never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

/// Prefetches one line; any address is allowed.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(super) fn prefetch_line(address: *const u8) {
    // SAFETY: `prfm` changes neither memory nor registers, and never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
}
