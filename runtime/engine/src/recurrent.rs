//! Recurrent state: what layers without keys and values store of a sequence.
//!
//! ```text
//! [sequence][now, kept][layer with a state][its values]
//! ```
//!
//! A state covers a sequence up to one token, and cannot be cut as keys and values can. Each sequence has two
//! states: the current one, and a copy from the end of its last prompt. A sequence can go back to that copy,
//! or to its start, where all values are zero; otherwise it is prefilled again. Work that fails midway leaves
//! some layers ahead of others, so the sequence has no current state until it goes back.

use crate::arena::Slab;
use crate::model::config::Config;

/// The states of all sequences.
#[derive(Debug)]
pub(crate) struct States {
    region: Slab<f32>,
    /// First value of each layer with a state, and at the end the number of values.
    starts: Box<[usize]>,
    /// The tokens seen by each sequence's states.
    at: Box<[Standing]>,
}

/// Numbers of tokens seen by a sequence's two states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Standing {
    /// The current state; `None` while work on it is unfinished.
    now: Option<usize>,
    /// The kept state; 0 is the start, which needs none.
    kept: usize,
}

impl States {
    /// States of a model's recurrent layers in `region`, which must be as large as they require; `None` if
    /// there are no such layers.
    pub(crate) fn new(region: Slab<f32>, config: &Config, sequences: usize) -> Option<Self> {
        let mut starts = vec![0];
        for (at, block) in config.blocks.iter().enumerate() {
            if block.recurrent().is_some() {
                starts.push(starts[starts.len() - 1] + config.state_values(at));
            }
        }
        let at = vec![Standing::default(); sequences].into_boxed_slice();
        (starts.len() > 1).then(|| Self { region, starts: starts.into_boxed_slice(), at })
    }

    /// Prepares the state for a sequence's tokens from `position` on.
    ///
    /// # Panics
    /// If no state ends at `position`. States exist where the last work ended, after the last prompt, and at
    /// the start.
    pub(crate) fn begin(&mut self, sequence: usize, position: usize) {
        let Standing { now, kept } = self.at[sequence];
        let [state, kept_state] = self.both(sequence);
        if position == 0 {
            state.fill(0.0);
            self.at[sequence].kept = 0;
        } else if now != Some(position) {
            assert_eq!(kept, position, "the states of sequence {sequence} stand behind {now:?} tokens");
            state.copy_from_slice(kept_state);
        }
        self.at[sequence].now = None;
    }

    /// Ends the work that [`States::begin`] began: the sequence now has `position` tokens.
    pub(crate) fn end(&mut self, sequence: usize, position: usize) {
        self.at[sequence].now = Some(position);
    }

    /// Keeps a copy of a sequence's current state.
    pub(crate) fn keep(&mut self, sequence: usize) {
        let [state, kept] = self.both(sequence);
        kept.copy_from_slice(state);
        let at = &mut self.at[sequence];
        at.kept = at.now.unwrap_or(0);
    }

    /// Starts a sequence with the first `positions` tokens of another, and keeps that state.
    ///
    /// # Panics
    /// If the other sequence has no state at `positions`.
    pub(crate) fn share(&mut self, from: usize, to: usize, positions: usize) {
        let (Standing { now, kept }, count) = (self.at[from], self.count());
        assert!(
            positions == 0 || now == Some(positions) || kept == positions,
            "the states of sequence {from} stand behind {now:?} and {kept} tokens, not {positions}"
        );
        let source = 2 * from * count + if now == Some(positions) { 0 } else { count };
        self.region.copy_within(source..source + count, (2 * to + 1) * count);
        self.at[to] = Standing { now: None, kept: positions };
    }

    /// The state of a sequence in a layer, counted among recurrent layers.
    pub(crate) fn of(&mut self, sequence: usize, layer: usize) -> &mut [f32] {
        let first = 2 * sequence * self.count();
        &mut self.region[first..][self.starts[layer]..self.starts[layer + 1]]
    }

    /// [`States::of`], to be read.
    pub(crate) fn read(&self, sequence: usize, layer: usize) -> &[f32] {
        let first = 2 * sequence * self.count();
        &self.region[first..][self.starts[layer]..self.starts[layer + 1]]
    }

    /// Bytes that one token reads and writes.
    pub(crate) fn bytes_per_token(&self) -> u64 {
        2 * 4 * self.count() as u64
    }

    /// Bytes of a sequence's state.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<f32>() * self.count()
    }

    /// Copies bytes from offset `at` of a sequence's kept state.
    pub(crate) fn copy_out(&mut self, sequence: usize, at: usize, out: &mut [u8]) {
        let [_, kept] = self.both(sequence);
        out.copy_from_slice(&bytemuck::cast_slice(kept)[at..][..out.len()]);
    }

    /// Restores bytes from [`States::copy_out`] as a sequence's kept state after `tokens` tokens.
    pub(crate) fn copy_in(&mut self, sequence: usize, tokens: usize, at: usize, bytes: &[u8]) {
        let [_, kept] = self.both(sequence);
        bytemuck::cast_slice_mut(kept)[at..][..bytes.len()].copy_from_slice(bytes);
        self.at[sequence] = Standing { now: None, kept: tokens };
    }

    /// Values of a sequence's state.
    fn count(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// The current state, and the kept one.
    fn both(&mut self, sequence: usize) -> [&mut [f32]; 2] {
        let count = self.count();
        let (now, kept) = self.region[2 * sequence * count..][..2 * count].split_at_mut(count);
        [now, kept]
    }
}
