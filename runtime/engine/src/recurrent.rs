//! Recurrent state: what layers without keys and values keep of the tokens of a sequence.
//!
//! ```text
//! [sequence][now, kept][layer with a state][its values]
//! ```
//!
//! A state stands behind one token and cannot be cut as keys and values can. Beside the state as it is now, a second one is
//! kept: as it was after the sequence's last prompt. A sequence goes back to that, or to its beginning, where all is zero;
//! anything else is prefilled again. Work that fails half-way leaves some layers ahead of others, so that there is no state
//! until the sequence goes back.

use crate::arena::Slab;
use crate::model::config::Config;

/// The states of all sequences.
#[derive(Debug)]
pub(crate) struct States {
    region: Slab<f32>,
    /// Where the values of each layer with a state begin, and at the end how many there are.
    starts: Box<[usize]>,
    /// Where each sequence stands.
    at: Box<[Standing]>,
}

/// Tokens that a sequence's states have seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Standing {
    /// The state as it is; none where work on it has not been finished.
    now: Option<usize>,
    /// The state that is kept; 0 is the beginning, which needs none.
    kept: usize,
}

impl States {
    /// States of a model's layers in `region`, whose size follows from both; none where there are no such layers.
    pub(crate) fn new(region: Slab<f32>, config: &Config, sequences: usize) -> Option<Self> {
        let mut starts = vec![0];
        for block in &config.blocks {
            if let Some(mixer) = block.recurrent() {
                starts.push(starts[starts.len() - 1] + mixer.state_values(config.width));
            }
        }
        let at = vec![Standing::default(); sequences].into_boxed_slice();
        (starts.len() > 1).then(|| Self { region, starts: starts.into_boxed_slice(), at })
    }

    /// Makes ready for the tokens of a sequence from `position` on.
    ///
    /// # Panics
    /// If there is no state of the tokens before: it is there where the last work ended, after the last prompt, and at the
    /// beginning.
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

    /// The work that [`States::begin`] began is done: so many tokens of the sequence have been seen.
    pub(crate) fn end(&mut self, sequence: usize, position: usize) {
        self.at[sequence].now = Some(position);
    }

    /// Keeps a sequence's state as it is now.
    pub(crate) fn keep(&mut self, sequence: usize) {
        let [state, kept] = self.both(sequence);
        kept.copy_from_slice(state);
        let at = &mut self.at[sequence];
        at.kept = at.now.unwrap_or(0);
    }

    /// Lets a sequence begin with the first `positions` of another one, and keeps its state there.
    ///
    /// # Panics
    /// If the other one has no state of as many.
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

    /// The state of a sequence in a layer, by its number among those that have one.
    pub(crate) fn of(&mut self, sequence: usize, layer: usize) -> &mut [f32] {
        let first = 2 * sequence * self.count();
        &mut self.region[first..][self.starts[layer]..self.starts[layer + 1]]
    }

    /// Bytes that a token of a sequence reads and writes.
    pub(crate) fn bytes_per_token(&self) -> u64 {
        2 * 4 * self.count() as u64
    }

    /// Bytes of a sequence's state.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<f32>() * self.count()
    }

    /// Bytes from `at` on of the state that is kept of a sequence.
    pub(crate) fn copy_out(&mut self, sequence: usize, at: usize, out: &mut [u8]) {
        let [_, kept] = self.both(sequence);
        out.copy_from_slice(&bytemuck::cast_slice(kept)[at..][..out.len()]);
    }

    /// Puts back what [`States::copy_out`] gave, as the state that is kept of a sequence behind so many tokens.
    pub(crate) fn copy_in(&mut self, sequence: usize, tokens: usize, at: usize, bytes: &[u8]) {
        let [_, kept] = self.both(sequence);
        bytemuck::cast_slice_mut(kept)[at..][..bytes.len()].copy_from_slice(bytes);
        self.at[sequence] = Standing { now: None, kept: tokens };
    }

    /// Values of a sequence's state.
    fn count(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// The state as it is, and the one that is kept.
    fn both(&mut self, sequence: usize) -> [&mut [f32]; 2] {
        let count = self.count();
        let (now, kept) = self.region[2 * sequence * count..][..2 * count].split_at_mut(count);
        [now, kept]
    }
}
