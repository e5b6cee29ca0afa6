//! `Q4_0x4`, interleaved `Q4_0`: four blocks as one group, their scales in front.
//!
//! ```text
//!        0                       8                                      72  bytes
//! Q4_0   | d0 q0[16] | d1 q1[16] | d2 q2[16] | d3 q3[16] |
//! Q4_0x4 | d0 d1 d2 d3: f16      | q0[16] q1[16] q2[16] q3[16]          |
//! ```
//!
//! A group holds the bits of four `Q4_0` blocks in another order, without loss. A register of 64 bytes loads
//! the nibbles of all four blocks at once.

use super::block::{read_q4_0, write_q4_0};

/// Blocks in an interleaved group.
pub(super) const BLOCKS: usize = 4;
/// Values of an interleaved group.
pub(super) const VALUES: usize = 32 * BLOCKS;

/// An interleaved group: four blocks of `Q4_0`, their scales first.
pub(super) type Interleaved = [u8; 72];

/// Prefetch distance in groups where sixteen rows are summed side by side. That much of sixteen rows fits the
/// L1 cache beside the sums; whole rows do not.
#[cfg(target_arch = "x86_64")]
const EARLY: usize = 12;

/// Distance in bytes from group `at` of a row of `length` groups to the group to prefetch. The target is in
/// the same row or, near its end, in the row that begins `ahead` bytes further on.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn early(at: usize, length: usize, ahead: usize) -> usize {
    let behind = size_of::<Interleaved>() * EARLY;
    if at + EARLY < length {
        behind
    } else {
        ahead.wrapping_add(behind).wrapping_sub(size_of::<Interleaved>() * length)
    }
}

/// A block's scale and its nibbles.
#[inline(always)]
pub(super) fn part(four: &Interleaved, block: usize) -> ([u8; 2], &[u8; 16]) {
    let (scales, nibbles) = four.split_at(2 * BLOCKS);
    (scales.as_chunks().0[block], &nibbles.as_chunks().0[block])
}

/// Block `at` of a row, in the layout of `Q4_0`.
#[inline(always)]
pub(super) fn block(row: &[u8], at: usize) -> [u8; 18] {
    let ([d0, d1], q) = part(&row.as_chunks().0[at / BLOCKS], at % BLOCKS);
    let mut block = [0; 18];
    (block[0], block[1]) = (d0, d1);
    block[2..].copy_from_slice(q);
    block
}

/// Repacks rows of `Q4_0` in place; every row must be whole groups.
///
/// # Panics
/// If the bytes are not whole groups.
pub(super) fn repack(rows: &mut [u8]) {
    let (groups, rest) = rows.as_chunks_mut::<72>();
    assert!(rest.is_empty(), "rows of whole groups");
    for four in groups {
        *four = joined(&four.as_chunks().0.as_chunks().0[0]);
    }
}

fn joined(blocks: &[[u8; 18]; BLOCKS]) -> Interleaved {
    let mut four = [0; 72];
    let (scales, nibbles) = four.split_at_mut(2 * BLOCKS);
    let places = scales.as_chunks_mut::<2>().0.iter_mut().zip(nibbles.as_chunks_mut::<16>().0);
    for ([d0, d1, q @ ..], (scale, nibbles)) in blocks.iter().zip(places) {
        (*scale, *nibbles) = ([*d0, *d1], *q);
    }
    four
}

pub(super) fn read(four: &Interleaved, values: &mut [f32; VALUES]) {
    for (at, values) in values.as_chunks_mut().0.iter_mut().enumerate() {
        read_q4_0(&block(four, at), values);
    }
}

pub(super) fn write(values: &[f32; VALUES], four: &mut Interleaved) {
    let mut blocks = [[0; 18]; BLOCKS];
    for (block, values) in blocks.iter_mut().zip(values.as_chunks().0) {
        write_q4_0(values, block);
    }
    *four = joined(&blocks);
}
