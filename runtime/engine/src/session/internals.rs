//! Keys and values, and hidden states, which the programs of flashplan need of sequences besides. The trait stands in
//! [`crate::internals`]; embedders have no use for it.

use std::ops::Range;

use super::{Batch, Standing};
use crate::engine::{Command, Engine, Heard, Reply};
use crate::error::Error;
use crate::kv::At;

/// Keys and values, and states, are copied so many bytes at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Gives what comes one after another its number.
fn numbered(mut each: impl FnMut(usize, &[f32])) -> impl FnMut(&[f32]) {
    let mut numbers = 0..;
    move |values| each(numbers.next().unwrap_or(0), values)
}

/// Sequences as a server and the measuring programs use them.
pub trait BatchExt {
    /// [`Batch::prefill`] with the logits after every token, in order, as [`Session::prefill_each`](crate::Session::prefill_each).
    ///
    /// # Errors
    /// Those of [`Batch::prefill`].
    fn prefill_each(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        each: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error>;

    /// [`Batch::prefill`] without logits: `each` hears the number of every token and its hidden state `[width]`, the model's output
    /// after the final norm. A [`Pooled`](crate::pooling::Pooled) makes a text's embedding of them; a long text can be given in parts.
    ///
    /// # Errors
    /// Those of [`Batch::prefill`].
    fn prefill_hidden(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        each: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error>;

    /// The logits of the last [`Batch::prefill`] or [`Batch::decode`] that was done, in front: `[tokens, vocabulary]`.
    fn logits(&self) -> &[f32];

    /// The position to which [`Batch::rewind`] would take a sequence, which is that or, where a recurrent state asks for it, one before.
    ///
    /// # Errors
    /// [`Error::Sequences`] if there is no such sequence.
    fn rewound(&self, sequence: usize, position: usize) -> Result<usize, Error>;

    /// Tokens of a sequence behind which its recurrent state is kept: the end of its last prompt. 0 where nothing is kept, or there is no
    /// such sequence.
    fn state_at(&self, sequence: usize) -> usize;

    /// Hands out the keys and values of some of a sequence's tokens, piece after piece, [`EngineExt::kv_bytes_per_token`](crate::engine::EngineExt::kv_bytes_per_token) bytes for
    /// each: what [`BatchExt::restore`] takes. Of a model with recurrent state [`EngineExt::state_bytes`](crate::engine::EngineExt::state_bytes) follow, and the tokens are all
    /// up to the end of the last prompt, where that state is kept.
    ///
    /// # Errors
    /// [`Error::Sequences`] if there is no such sequence, [`Error::Sequence`] if it has not so many tokens, [`Error::Recurrent`] for
    /// tokens whose state is not kept, and the first of `each`, after which nothing more is handed out.
    fn keys_and_values<E: From<Error>>(
        &mut self,
        sequence: usize,
        tokens: Range<usize>,
        each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E>;

    /// Takes so many tokens into a sequence by their keys and values, as [`BatchExt::keys_and_values`] gave them for the same
    /// tokens at the same positions of an engine with the same model, quality keys and context: nothing is checked but their size.
    /// `each` fills one piece after another. The sequence is then what a prefill would have made of it, without logits. One of a model
    /// with recurrent state begins with them.
    ///
    /// # Errors
    /// [`Error::Sequences`], [`Error::Context`] and, where a sequence with recurrent state has tokens already, [`Error::Recurrent`]
    /// before anything is done, and the first of `each`: the sequence stays where it was.
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
        self.prompt(sequence, tokens, Heard::Logits, numbered(each))
    }

    fn prefill_hidden(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        each: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.prompt(sequence, tokens, Heard::Hidden, numbered(each))
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
    /// Copies keys and values, and the state behind them, to or from the engine's thread through one small buffer, `fill`ed before and `taken` after.
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
