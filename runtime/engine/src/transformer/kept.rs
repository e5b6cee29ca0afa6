//! What the engine keeps of sequences: keys and values of every position, and recurrent states.

use std::ops::Range;

use super::Token;
use crate::kv::{At, KeyValues};
use crate::recurrent::States;

/// Keys, values and states of all sequences, and where the rows of the current step stand.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) kv: KeyValues,
    /// States of layers without keys and values.
    pub(super) states: Option<States>,
    /// The number of each block among the blocks that keep the same kind.
    pub(super) at: Box<[usize]>,
    /// Sequences, and rows of a step, that there is room for.
    pub(super) sequences: usize,
    pub(super) step_rows: usize,
    /// Where the rows of the current step stand.
    pub(super) rows: Vec<At>,
}

impl Kept {
    /// Lets a sequence begin with the first `positions` of another one.
    pub(super) fn share(&mut self, from: usize, to: usize, positions: usize) {
        self.kv.share(from, to, positions);
        if let Some(states) = &mut self.states {
            states.share(from, to, positions);
        }
    }

    /// Bytes from `at` on of what a sequence keeps of `positions`: their keys and values, then the recurrent state that is kept.
    pub(super) fn copy_out(&mut self, sequence: usize, positions: Range<usize>, at: usize, out: &mut [u8]) {
        let (of_kv, state_at) = self.parts(&positions, at, out.len());
        let (kv, state) = out.split_at_mut(of_kv);
        self.kv.copy_out(sequence, positions, at, kv);
        if let Some(states) = self.states.as_mut().filter(|_| !state.is_empty()) {
            states.copy_out(sequence, state_at, state);
        }
    }

    /// Puts back what [`Kept::copy_out`] gave.
    pub(super) fn copy_in(&mut self, sequence: usize, positions: Range<usize>, at: usize, bytes: &[u8]) {
        let (of_kv, state_at) = self.parts(&positions, at, bytes.len());
        let ((kv, state), tokens) = (bytes.split_at(of_kv), positions.end);
        self.kv.copy_in(sequence, positions, at, kv);
        if let Some(states) = self.states.as_mut().filter(|_| !state.is_empty()) {
            states.copy_in(sequence, tokens, state_at, state);
        }
    }

    /// How many of `count` bytes from `at` on are keys and values of `positions`, and where the others begin in the state.
    fn parts(&self, positions: &Range<usize>, at: usize, count: usize) -> (usize, usize) {
        let all = positions.len() * self.kv.bytes_per_token() as usize;
        (all.saturating_sub(at).min(count), at.saturating_sub(all))
    }

    /// Makes the states of the rows' sequences those of before the rows, each the first of its sequence.
    pub(super) fn begin(&mut self, rows: &[Token]) {
        let Some(states) = &mut self.states else { return };
        for row in rows {
            states.begin(row.sequence as usize, row.position);
        }
    }

    /// The states of the rows' sequences are those of after the rows, each the last of its sequence.
    pub(super) fn end(&mut self, rows: &[Token]) {
        let Some(states) = &mut self.states else { return };
        for row in rows {
            states.end(row.sequence as usize, row.position + 1);
        }
    }
}
