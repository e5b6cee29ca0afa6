//! State of sequences: keys and values of every position, and recurrent states.

use std::ops::Range;

use super::Token;
use crate::kv::{At, KeyValues};
use crate::recurrent::States;

/// Keys, values and states of all sequences, and the positions of the current step's rows.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) kv: KeyValues,
    /// States of layers without keys and values.
    pub(super) states: Option<States>,
    /// The place of each block's keys and values, or of its state.
    pub(super) at: Box<[usize]>,
    /// The plan's sequences, and rows of a step.
    pub(super) sequences: usize,
    pub(super) step_rows: usize,
    /// Sequence and position of each row of the current step.
    pub(super) rows: Vec<At>,
}

impl Kept {
    /// Starts a sequence with the first `positions` tokens of another.
    pub(super) fn share(&mut self, from: usize, to: usize, positions: usize) {
        self.kv.share(from, to, positions);
        if let Some(states) = &mut self.states {
            states.share(from, to, positions);
        }
    }

    /// Copies bytes from offset `at` of a sequence's state of `positions`: keys and values, then the kept
    /// recurrent state.
    pub(super) fn copy_out(&mut self, sequence: usize, positions: Range<usize>, at: usize, out: &mut [u8]) {
        let (of_kv, state_at) = self.parts(&positions, at, out.len());
        let (kv, state) = out.split_at_mut(of_kv);
        self.kv.copy_out(sequence, positions, at, kv);
        if let Some(states) = self.states.as_mut().filter(|_| !state.is_empty()) {
            states.copy_out(sequence, state_at, state);
        }
    }

    /// Restores bytes from [`Kept::copy_out`].
    pub(super) fn copy_in(&mut self, sequence: usize, positions: Range<usize>, at: usize, bytes: &[u8]) {
        let (of_kv, state_at) = self.parts(&positions, at, bytes.len());
        let ((kv, state), tokens) = (bytes.split_at(of_kv), positions.end);
        self.kv.copy_in(sequence, positions, at, kv);
        if let Some(states) = self.states.as_mut().filter(|_| !state.is_empty()) {
            states.copy_in(sequence, tokens, state_at, state);
        }
    }

    /// How many of `count` bytes from offset `at` are keys and values of `positions`, and the offset of the
    /// others in the state.
    fn parts(&self, positions: &Range<usize>, at: usize, count: usize) -> (usize, usize) {
        let all = positions.len() * self.kv.bytes_per_token() as usize;
        (all.saturating_sub(at).min(count), at.saturating_sub(all))
    }

    /// Prepares the recurrent states for these rows, each the first of its sequence.
    pub(super) fn begin(&mut self, rows: &[Token]) {
        let Some(states) = &mut self.states else { return };
        for row in rows {
            states.begin(row.sequence as usize, row.position);
        }
    }

    /// Ends the work on the recurrent states; each row is the last of its sequence.
    pub(super) fn end(&mut self, rows: &[Token]) {
        let Some(states) = &mut self.states else { return };
        for row in rows {
            states.end(row.sequence as usize, row.position + 1);
        }
    }
}
