//! The loop of byte-pair encoding: join the best pair of neighbours, again and again.
//!
//! Plainly: look at all neighbours, join the best pair (the leftmost of equals), repeat until no pair joins. That is
//! quadratic in the text; a heap of candidates gives the same result in `n log n`. A candidate whose neighbours have
//! meanwhile been joined otherwise is stale, and recognised when it comes up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A run of bytes that stays together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    /// The piece's first byte.
    pub start: usize,
    /// The piece's length in bytes.
    pub bytes: usize,
    /// The token it is, if it is one.
    pub token: Option<u32>,
}

impl Symbol {
    /// The byte after its last.
    pub(super) fn end(&self) -> usize {
        self.start + self.bytes
    }
}

/// Join neighbours; `join` gives the priority (the greatest first) and the token of two that can be joined.
pub(super) fn merge<P: Ord>(
    mut symbols: Vec<Symbol>,
    mut join: impl FnMut(Symbol, Symbol) -> Option<(P, u32)>,
) -> Vec<Symbol> {
    const NONE: usize = usize::MAX;
    let count = symbols.len();
    let mut previous: Vec<usize> = (0..count).map(|i| i.checked_sub(1).unwrap_or(NONE)).collect();
    let mut next: Vec<usize> = (1..=count).map(|i| if i < count { i } else { NONE }).collect();
    let mut candidates = BinaryHeap::new();
    let mut propose = |candidates: &mut BinaryHeap<_>, symbols: &[Symbol], left: usize, right: usize| {
        if left != NONE
            && right != NONE
            && let Some((priority, token)) = join(symbols[left], symbols[right])
        {
            let bytes = symbols[left].bytes + symbols[right].bytes;
            candidates.push((priority, Reverse(left), right, bytes, token));
        }
    };
    for left in 1..count {
        propose(&mut candidates, &symbols, left - 1, left);
    }
    while let Some((_, Reverse(left), right, bytes, token)) = candidates.pop() {
        let stale = next[left] != right
            || symbols[left].bytes + symbols[right].bytes != bytes
            || symbols[left].bytes == 0;
        if stale {
            continue;
        }
        symbols[left].bytes = bytes;
        symbols[left].token = Some(token);
        symbols[right].bytes = 0; // joined to its left
        let after = std::mem::replace(&mut next[right], NONE);
        next[left] = after;
        if after != NONE {
            previous[after] = left;
        }
        propose(&mut candidates, &symbols, previous[left], left);
        propose(&mut candidates, &symbols, left, after);
    }
    symbols.retain(|symbol| symbol.bytes > 0);
    symbols
}
