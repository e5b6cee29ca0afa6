//! Access to keys, values and hidden states of sequences for flashplan's own programs, exported through
//! [`crate::internals`].

use std::ops::Range;

use super::{Batch, Standing};
use crate::engine::{Command, Engine, Outputs, Reply};
use crate::error::Error;
use crate::kv::At;

/// Bytes copied at a time of keys, values and states.
const PIECE_BYTES: usize = 64 << 10;

/// Numbers consecutive calls.
fn numbered(mut each: impl FnMut(usize, &[f32])) -> impl FnMut(&[f32]) {
    let mut numbers = 0..;
    move |values| each(numbers.next().unwrap_or(0), values)
}

/// Sequences as the server and the measuring programs use them.
pub trait BatchExt {
    /// [`Batch::prefill`] with the logits after every token, as
    /// [`Session::prefill_each`](crate::Session::prefill_each).
    ///
    /// # Errors
    /// As [`Batch::prefill`].
    fn prefill_each(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        each: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error>;

    /// [`Batch::prefill`] without logits: `each` gets the index of every token and its hidden state
    /// `[width]`, the output of the final norm. [`Pooled`](crate::pooling::Pooled) turns them into a text's
    /// embedding. A long text can be given in parts.
    ///
    /// # Errors
    /// As [`Batch::prefill`].
    fn prefill_hidden(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        each: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error>;

    /// The logits of the last successful [`Batch::prefill`] or [`Batch::decode`], at the front: `[tokens,
    /// vocabulary]`.
    fn logits(&self) -> &[f32];

    /// The position that [`Batch::rewind`] to `position` would reach: lower than `position` if a recurrent
    /// state requires it.
    ///
    /// # Errors
    /// [`Error::Sequences`] if there is no such sequence.
    fn rewound(&self, sequence: usize, position: usize) -> Result<usize, Error>;

    /// The end of a sequence's last prompt, where its recurrent state is kept. 0 if nothing is kept, or there
    /// is no such sequence.
    fn state_at(&self, sequence: usize) -> usize;

    /// Passes the keys and values of some of a sequence's tokens to `each`, piece by piece, for
    /// [`BatchExt::restore`]. Each token has
    /// [`EngineExt::kv_bytes_per_token`](crate::engine::EngineExt::kv_bytes_per_token) bytes.
    ///
    /// With recurrent state, [`EngineExt::state_bytes`](crate::engine::EngineExt::state_bytes) bytes follow.
    /// The tokens must then be all tokens up to the end of the last prompt.
    ///
    /// # Errors
    /// * [`Error::Sequences`] if there is no such sequence.
    /// * [`Error::Sequence`] if it has fewer tokens.
    /// * [`Error::Recurrent`] for tokens whose state is not kept.
    /// * The first error of `each`, which ends the copy.
    fn keys_and_values<E: From<Error>>(
        &mut self,
        sequence: usize,
        tokens: Range<usize>,
        each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E>;

    /// Restores `tokens` tokens of a sequence from the bytes that [`BatchExt::keys_and_values`] gave. `each`
    /// fills one piece after another. They must be of the same tokens at the same positions, from an engine
    /// with the same model, quality keys and context. Only sizes are checked.
    ///
    /// The sequence is then as after a prefill, but without logits. With recurrent state it must start with
    /// these tokens.
    ///
    /// # Errors
    /// [`Error::Sequences`], [`Error::Context`], and [`Error::Recurrent`] if a sequence with recurrent state
    /// already has tokens, all before any work. The first error of `each`; the sequence then stays at its
    /// position.
    fn restore<E: From<Error>>(
        &mut self,
        sequence: usize,
        tokens: usize,
        each: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E>;
}

#[cfg_attr(public_api, doc(hidden))]
impl BatchExt for Batch {
    fn prefill_each(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        each: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.prompt(sequence, tokens, Outputs::Logits, numbered(each))
    }

    fn prefill_hidden(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        each: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.prompt(sequence, tokens, Outputs::Hidden, numbered(each))
    }

    fn logits(&self) -> &[f32] {
        &self.logits
    }

    fn rewound(&self, sequence: usize, position: usize) -> Result<usize, Error> {
        self.at(sequence)?;
        Ok(self.standings[sequence].back(position, self.engine().is_recurrent()).position)
    }

    fn state_at(&self, sequence: usize) -> usize {
        self.standings.get(sequence).map_or(0, |standing| standing.kept)
    }

    fn keys_and_values<E: From<Error>>(
        &mut self,
        sequence: usize,
        tokens: Range<usize>,
        each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let At { position, .. } = self.at(sequence)?;
        if tokens.end > position {
            return Err(Error::Sequence { requested: tokens.end, position }.into());
        }
        let Standing { kept, .. } = self.standings[sequence];
        if self.engine().is_recurrent() && tokens != (0..kept) {
            return Err(Error::Recurrent.into());
        }
        let command = |positions, at, bytes| Command::KeysAndValues { sequence, positions, at, bytes };
        self.engine().copy(tokens, command, |_| Ok(()), each)
    }

    fn restore<E: From<Error>>(
        &mut self,
        sequence: usize,
        tokens: usize,
        each: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let at = self.at(sequence)?;
        if self.engine().is_recurrent() && at.position > 0 {
            return Err(Error::Recurrent.into());
        }
        let count = self.engine().fitting(at, tokens)?;
        let command = |positions, at, bytes| Command::Restore { sequence, positions, at, bytes };
        self.engine().copy(at.position..count, command, each, |_| Ok(()))?;
        self.stand(sequence, Standing::prefilled(count));
        Ok(())
    }
}

impl Engine {
    /// Copies keys, values and state to or from the engine's thread through a small buffer, with `fill`
    /// before and `taken` after each piece.
    fn copy<E>(
        &self,
        positions: Range<usize>,
        command: impl Fn(Range<usize>, usize, Vec<u8>) -> Command,
        mut fill: impl FnMut(&mut [u8]) -> Result<(), E>,
        mut taken: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let facts = self.facts();
        let all = positions.len() * facts.kv_bytes_per_token + facts.state_bytes;
        let mut bytes = vec![0; all.min(PIECE_BYTES)];
        for at in (0..all).step_by(PIECE_BYTES) {
            bytes.truncate(all - at);
            fill(&mut bytes)?;
            let Reply::Copied(copied) = self.ask(command(positions.clone(), at, bytes)) else {
                panic!("the engine copies what it was told to")
            };
            bytes = copied;
            taken(&bytes)?;
        }
        Ok(())
    }
}
