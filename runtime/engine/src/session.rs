//! One sequence of tokens; `batch` has several, `generate` iterates over the next tokens.

use crate::engine::{Claim, Command, Engine, Failure, Outputs, StepRows};
use crate::error::Error;
use crate::kv::At;
use crate::pooling::Pooled;
use crate::stop::StopHandle;
use crate::transformer::Token;

mod batch;
mod generate;
mod internals;
mod standing;

pub use batch::Batch;
pub use generate::Generation;
pub use internals::BatchExt;
use standing::Standing;

/// One sequence of tokens, with a handle of its engine.
///
/// A session can live beside the engine or on another thread. A plan with several sequences allows as many
/// sessions; their calls take turns. Dropping a session frees its sequence.
#[derive(Debug)]
pub struct Session {
    claim: Claim,
    standing: Standing,
    /// `[rows of the last call, vocabulary]`; room for one row from the start.
    logits: Vec<f32>,
    /// Length of the sequence that the first row of logits belongs to, if there is such a row.
    logits_after: Option<usize>,
    stop: StopHandle,
}

impl Session {
    pub(crate) fn new(claim: Claim) -> Self {
        let logits = vec![0.0; claim.engine.vocabulary()];
        let (standing, stop) = (Standing::default(), StopHandle::default());
        Self { claim, standing, logits, logits_after: None, stop }
    }

    /// Prefills a prompt's tokens together, dense. Returns the logits `[vocabulary]` after the last.
    ///
    /// The tokens continue the sequence: a second prompt follows the first, and tokens decoded between them.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::Token`] and [`Error::Context`] before any work; [`Error::Read`] and
    /// [`Error::Stopped`] during it. The sequence stays at its position; with recurrent state
    /// ([`Engine::is_recurrent`]) it goes back to the end of its last prompt.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.prompt(tokens, Outputs::Last, |_| ())?;
        Ok(self.logits())
    }

    /// [`Session::prefill`] with the logits after every token, in order.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    ///
    /// # Panics
    /// If `each` panics or calls the same engine. Either ends the prompt. The sequence is then at its former position; with
    /// recurrent state it may be further back, see [`Session::position`].
    pub fn prefill_each(&mut self, tokens: &[u32], mut each: impl FnMut(usize, &[f32])) -> Result<(), Error> {
        let mut index = 0..;
        self.prompt(tokens, Outputs::Logits, |logits| each(index.next().unwrap_or(0), logits))
    }

    /// Computes the embedding `[width]` of a text, of length 1: pooled from its tokens' hidden states as the
    /// model's file says, dense, at any level. The session is reset first, and afterwards holds these tokens,
    /// without logits.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.reset();
        let mut pooled = Pooled::new(self.engine().facts().pooling);
        self.prompt(tokens, Outputs::Hidden, |hidden| pooled.add(hidden))?;
        Ok(pooled.finish())
    }

    /// Decodes one token, sparse. Returns the logits `[vocabulary]` after it.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn decode(&mut self, token: u32) -> Result<&[f32], Error> {
        self.decode_each(&[token])
    }

    /// Decodes a few consecutive tokens together, sparse. Returns the logits `[tokens, vocabulary]` after
    /// each, with the same bits as [`Session::decode`] one by one. Neurons that several tokens need are read
    /// once, and weights pass through memory once.
    ///
    /// This verifies a draft in one step. Decode the known token followed by the draft, compare each row's
    /// choice with the draft, and [`Session::rewind`] to the end of the last correct token.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] without tokens, [`Error::Rows`] for more than [`Engine::step_rows`],
    /// [`Error::Sequences`] for more than one with recurrent state, all before any work; otherwise as
    /// [`Session::prefill`].
    pub fn decode_each(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        let Self { claim, standing, logits, logits_after, stop } = self;
        let (engine, sequence) = (&claim.engine, claim.sequences.start);
        engine.step(tokens.len())?;
        if tokens.len() > 1 && engine.is_recurrent() {
            return Err(Error::several_of_recurrent(sequence, engine.facts().sequences));
        }
        let mut rows = StepRows::default();
        for (position, &token) in (standing.position..).zip(tokens) {
            rows.push(Token { token, sequence: sequence as u32, position });
        }
        let all = tokens.len() * engine.vocabulary();
        logits.resize(logits.len().max(all), 0.0);
        let command = |logits| Command::Decode { rows, stop: Some(stop.clone()), logits };
        let done = engine.work(logits, command, |_| ()).map_err(Failure::into_error);
        match &done {
            Ok(()) => {
                *logits_after = Some(standing.position + 1);
                standing.position += tokens.len();
            }
            Err(error) => *standing = standing.failed(error, engine.is_recurrent()),
        }
        done?;
        Ok(&logits[..all])
    }

    /// The logits `[vocabulary]` of the last successful [`Session::prefill`] or [`Session::decode`], or those
    /// after the first token of a [`Session::decode_each`].
    pub fn logits(&self) -> &[f32] {
        self.logits.get(..self.engine().vocabulary()).unwrap_or_default()
    }

    /// Forgets the sequence: the next token gets position 0. Keeps the neuron cache.
    pub fn reset(&mut self) {
        self.standing = Standing::default();
    }

    /// Forgets the sequence from `position` on: the next token gets that position and sees only what was
    /// before it. A position beyond the end changes nothing. Keeps the neuron cache, and [`Session::logits`],
    /// which may belong to a forgotten token.
    ///
    /// A conversation that keeps its start pays only for its new part: rewind to the first difference, then
    /// prefill the rest. A recurrent state ([`Engine::is_recurrent`]) cannot be cut: the sequence then goes
    /// further back, to the end of its last prompt or to its start. [`Session::position`] says where to
    /// continue.
    pub fn rewind(&mut self, position: usize) {
        self.standing = self.standing.back(position, self.engine().is_recurrent());
    }

    /// Tokens of the sequence so far.
    pub fn position(&self) -> usize {
        self.standing.position
    }

    /// A handle that stops the engine's work for this sequence, and no other.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// The session's engine.
    pub fn engine(&self) -> &Engine {
        &self.claim.engine
    }

    fn prompt(&mut self, tokens: &[u32], rows: Outputs, heard: impl FnMut(&[f32])) -> Result<(), Error> {
        let Self { claim, standing, logits, logits_after, stop } = self;
        let done = claim.engine.prompt(claim.sequences.start, standing, stop, logits, tokens, rows, heard);
        match &done {
            Ok(()) => *logits_after = (rows != Outputs::Hidden).then_some(standing.position),
            Err(Failure::Error(_)) => {}
            Err(Failure::Panic { .. }) => *logits_after = None,
        }
        done.map_err(Failure::into_error)
    }
}

/// Steps shared by sessions and batches.
impl Engine {
    /// Prefills a prompt's tokens of a sequence and updates its `standing`. If `heard` panics, the sequence
    /// goes back to where it was, or further with recurrent state.
    fn prompt(
        &self,
        sequence: usize,
        standing: &mut Standing,
        stop: &StopHandle,
        logits: &mut Vec<f32>,
        tokens: &[u32],
        rows: Outputs,
        heard: impl FnMut(&[f32]),
    ) -> Result<(), Failure> {
        let (vocabulary, at) = (self.vocabulary(), At { sequence, position: standing.position });
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt.into());
        }
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::Token { token, vocabulary }.into());
        }
        let count = self.fitting(at, tokens.len())?;
        let (tokens, stop) = (tokens.to_vec(), stop.clone());
        let done = self.work(logits, |logits| Command::Prefill { tokens, at, rows, stop, logits }, heard);
        *standing = match &done {
            Ok(()) => Standing::prefilled(count),
            Err(Failure::Error(error)) => standing.failed(error, self.is_recurrent()),
            Err(Failure::Panic { done: true, .. }) => {
                Standing::prefilled(count).back(standing.position, self.is_recurrent())
            }
            Err(Failure::Panic { done: false, .. }) => standing.failed(&Error::Stopped, self.is_recurrent()),
        };
        done
    }

    /// The position after `tokens` more tokens, if the context allows it.
    fn fitting(&self, at: At, tokens: usize) -> Result<usize, Error> {
        let (tokens, context) = (at.position.saturating_add(tokens), self.facts().context);
        if tokens > context { Err(Error::Context { tokens, context }) } else { Ok(tokens) }
    }

    /// Refuses more tokens than a step allows.
    fn step(&self, rows: usize) -> Result<(), Error> {
        let most = self.step_rows();
        match rows {
            0 => Err(Error::EmptyPrompt),
            _ if rows > most => Err(Error::Rows { rows, most }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
