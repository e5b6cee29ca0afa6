//! What the programs of flashplan ask of an engine besides: measurements, keys and values, hidden states. Their traits stand in
//! [`crate::internals`]; embedders have no use for them.

use std::ops::Range;

use super::{Batch, Command, Engine, Heard, Reply, Standing};
use crate::error::Error;
use crate::fetch::Replay;
use crate::kv::At;
use crate::pooling::Pooling;
use crate::probe::Probe;
use crate::routes::{Routes, RoutesError};

/// Keys and values, and states, are copied so many bytes at a time.
const PIECE_BYTES: usize = 64 << 10;

/// An engine measured, and the facts that a report or a server needs of it.
pub trait EngineExt {
    /// Measures for half a second what this machine gives in this hour: the rates that the plan assumes, over the engine's own
    /// memory and the very container, with the plan's threads and reads in flight. It takes no memory beyond the plan's and
    /// changes no result; what cannot be measured is absent, with a reason.
    fn probe(&mut self) -> Probe;

    /// Empties the cache of neurons that come and go, as at start. Pinned neurons stay.
    fn clear_cache(&mut self);

    /// Writes down the last reads from now on, for [`EngineExt::replay_reads`].
    fn record_reads(&mut self);

    /// Does the recorded reads once more, `depth` at a time and with nothing beside them: the time that the device needs for them
    /// in this hour. `None` if none were recorded.
    ///
    /// # Errors
    /// [`Error::Read`] if one fails.
    fn replay_reads(&mut self, depth: usize) -> Result<Option<Replay>, Error>;

    /// Lets the tokens of every sequence visit the experts that were recorded at their positions, in place of those that the
    /// router chooses; it weighs them. Behind the last recorded token it chooses again. Nothing is prefetched meanwhile: what
    /// the next layer's router says of this layer's stream has nothing to do with the recording. `None` ends it.
    ///
    /// A generated model's caches and reads meet a real model's routing so.
    ///
    /// # Errors
    /// When they are routes of a model that routes otherwise.
    fn replay_routes(&mut self, routes: Option<Routes>) -> Result<(), RoutesError>;

    /// How flash is read, for people.
    fn reads(&self) -> &str;

    /// Why the engine's memory may be paged out; `None`: it is locked.
    fn unlocked(&self) -> Option<&str>;

    /// Bytes of the keys and values of one token.
    fn kv_bytes_per_token(&self) -> usize;

    /// Bytes of the recurrent state of a sequence; 0 where there is none.
    fn state_bytes(&self) -> usize;

    /// How the hidden states of a text become its embedding: as the model's file says, otherwise that of the last token.
    fn pooling(&self) -> Pooling;

    /// Values of a hidden state, and so of an embedding.
    fn width(&self) -> usize;
}

#[cfg_attr(public_api, doc(hidden))]
impl EngineExt for Engine {
    fn probe(&mut self) -> Probe {
        let Some(points) = self.points.clone() else {
            return Probe::nothing("the plan does not say which rates it assumes; plan again".to_owned());
        };
        self.order(Command::Probe { points: Box::new(points) });
        match self.reply() {
            Reply::Probed(probe) => *probe,
            _ => panic!("the engine probes when it is told to"),
        }
    }

    fn clear_cache(&mut self) {
        self.order(Command::ClearCache);
        self.reply();
    }

    fn record_reads(&mut self) {
        self.order(Command::RecordReads);
        self.reply();
    }

    fn replay_reads(&mut self, depth: usize) -> Result<Option<Replay>, Error> {
        self.order(Command::ReplayReads { depth });
        match self.reply() {
            Reply::Replayed(replay) => replay,
            _ => panic!("the engine reads again when it is told to"),
        }
    }

    fn replay_routes(&mut self, routes: Option<Routes>) -> Result<(), RoutesError> {
        if let Some(routes) = &routes
            && Some(routes.routing()) != self.facts.routing
        {
            let problem =
                format!("they are made for {:?}, and it has {:?}", routes.routing(), self.facts.routing);
            return Err(RoutesError(problem));
        }
        self.order(Command::Routes(routes));
        self.reply();
        Ok(())
    }

    fn reads(&self) -> &str {
        &self.facts.reads
    }

    fn unlocked(&self) -> Option<&str> {
        self.facts.unlocked.as_deref()
    }

    fn kv_bytes_per_token(&self) -> usize {
        self.facts.kv_bytes_per_token
    }

    fn state_bytes(&self) -> usize {
        self.facts.state_bytes
    }

    fn pooling(&self) -> Pooling {
        self.facts.pooling
    }

    fn width(&self) -> usize {
        self.facts.width
    }
}

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

    /// Hands out the keys and values of some of a sequence's tokens, piece after piece, [`EngineExt::kv_bytes_per_token`] bytes for
    /// each: what [`BatchExt::restore`] takes. Of a model with recurrent state [`EngineExt::state_bytes`] follow, and the tokens are all
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

    /// The engine that works on the sequences, to be measured. A session of it is the first of them.
    fn engine_mut(&mut self) -> &mut Engine;
}

#[cfg_attr(public_api, doc(hidden))]
impl BatchExt for Batch<'_> {
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
        &self.engine.logits
    }

    fn rewound(&self, sequence: usize, position: usize) -> Result<usize, Error> {
        self.at(sequence)?;
        Ok(self.standings[sequence].back(position, self.engine.is_recurrent()).position)
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
        if self.engine.facts.recurrent && tokens != (0..kept) {
            return Err(Error::Recurrent.into());
        }
        let command = |positions, at, bytes| Command::KeysAndValues { sequence, positions, at, bytes };
        self.engine.copy(tokens, command, |_| Ok(()), each)
    }

    fn restore<E: From<Error>>(
        &mut self,
        sequence: usize,
        tokens: usize,
        each: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let at = self.at(sequence)?;
        if self.engine.facts.recurrent && at.position > 0 {
            return Err(Error::Recurrent.into());
        }
        let count = self.engine.fitting(at, tokens)?;
        let command = |positions, at, bytes| Command::Restore { sequence, positions, at, bytes };
        self.engine.copy(at.position..count, command, each, |_| Ok(()))?;
        self.stand(sequence, Standing::prefilled(count));
        Ok(())
    }

    fn engine_mut(&mut self) -> &mut Engine {
        self.engine
    }
}

impl Engine {
    /// Copies keys and values, and the state behind them, to or from the engine's thread through one small buffer, `fill`ed before and `taken` after.
    fn copy<E>(
        &mut self,
        positions: Range<usize>,
        command: impl Fn(Range<usize>, usize, Vec<u8>) -> Command,
        mut fill: impl FnMut(&mut [u8]) -> Result<(), E>,
        mut taken: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let all = positions.len() * self.facts.kv_bytes_per_token + self.facts.state_bytes;
        let mut bytes = vec![0; all.min(PIECE_BYTES)];
        for at in (0..all).step_by(PIECE_BYTES) {
            bytes.truncate(all - at);
            fill(&mut bytes)?;
            self.order(command(positions.clone(), at, bytes));
            let Reply::Copied(copied) = self.reply() else { panic!("the engine copies what it was told to") };
            bytes = copied;
            taken(&bytes)?;
        }
        Ok(())
    }
}
