//! The loop of byte-pair encoding: joins the best pair of neighbours repeatedly.
//!
//! The definition: join the best pair of all neighbours, leftmost in a tie, until none joins. That is
//! quadratic in the text. A heap of candidates gives the same result in `n log n`. Candidates whose
//! neighbours were joined otherwise are stale, and recognised when popped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A run of joined bytes. Texts are below 4 GiB, so a symbol takes 16 bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    start: u32,
    bytes: u32,
    /// The symbol's token, if it is one.
    pub token: Option<u32>,
}

impl Symbol {
    /// A run of `bytes` bytes from `start`.
    ///
    /// # Panics
    /// If it ends beyond 4 GiB.
    pub(super) fn new(start: usize, bytes: usize, token: Option<u32>) -> Self {
        assert!(start.saturating_add(bytes) < u32::MAX as usize, "a text of less than 4 GiB");
        Self { start: start as u32, bytes: bytes as u32, token }
    }

    /// First byte of the symbol.
    pub(super) fn start(&self) -> usize {
        self.start as usize
    }

    /// Length of the symbol in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// The byte after the symbol.
    pub(super) fn end(&self) -> usize {
        self.start() + self.bytes()
    }
}

/// Upper bound of the bytes per symbol while joining: the symbol, its two neighbours, and a heap of
/// candidates.
///
/// The first pass proposes one candidate a symbol. Each join proposes two for the one that it removes, so
/// there are at most two a symbol. A growing heap has twice the capacity, and half as much again while it is
/// copied.
pub(super) const SYMBOL_BYTES: usize = size_of::<Symbol>() + 2 * 4 + 3 * 2 * 20;

/// Joins neighbours; `join` returns the priority (greatest first) and the token of a pair that can be joined.
pub(super) fn merge<P: Ord>(
    mut symbols: Vec<Symbol>,
    mut join: impl FnMut(Symbol, Symbol) -> Option<(P, u32)>,
) -> Vec<Symbol> {
    const NONE: u32 = u32::MAX;
    let count = symbols.len() as u32; // no more than bytes
    let mut previous: Vec<u32> = (0..count).map(|i| i.checked_sub(1).unwrap_or(NONE)).collect();
    let mut next: Vec<u32> = (1..=count).map(|i| if i < count { i } else { NONE }).collect();
    let mut candidates = BinaryHeap::new();
    let mut propose = |candidates: &mut BinaryHeap<_>, symbols: &[Symbol], left: u32, right: u32| {
        if left != NONE
            && right != NONE
            && let Some((priority, token)) = join(symbols[left as usize], symbols[right as usize])
        {
            let bytes = symbols[left as usize].bytes + symbols[right as usize].bytes;
            candidates.push((priority, Reverse(left), right, bytes, token));
        }
    };
    for left in 1..count {
        propose(&mut candidates, &symbols, left - 1, left);
    }
    while let Some((_, Reverse(left), right, bytes, token)) = candidates.pop() {
        let (at, other) = (left as usize, right as usize);
        let stale =
            next[at] != right || symbols[at].bytes + symbols[other].bytes != bytes || symbols[at].bytes == 0;
        if stale {
            continue;
        }
        symbols[at].bytes = bytes;
        symbols[at].token = Some(token);
        symbols[other].bytes = 0; // joined to its left
        let after = std::mem::replace(&mut next[other], NONE);
        next[at] = after;
        if after != NONE {
            previous[after as usize] = left;
        }
        propose(&mut candidates, &symbols, previous[at], left);
        propose(&mut candidates, &symbols, left, after);
    }
    symbols.retain(|symbol| symbol.bytes > 0);
    symbols
}
