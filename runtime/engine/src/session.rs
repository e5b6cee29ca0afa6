//! One sequence of tokens. `batch` has several of them, `generate` an iterator over what comes next.

use crate::engine::{Claim, Command, Engine, Failure, Few, Heard};
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

/// One sequence of tokens, with a handle of the engine that works on it.
///
/// A session lives as long as its owner wants, beside the engine or on another thread. Where the plan has room for several sequences,
/// there may be as many sessions; their calls take turns. Dropping a session frees its sequence.
#[derive(Debug)]
pub struct Session {
    claim: Claim,
    standing: Standing,
    /// `[rows of the last call, vocabulary]`; room for one row from the start.
    logits: Vec<f32>,
    stop: StopHandle,
}

impl Session {
    pub(crate) fn new(claim: Claim) -> Self {
        let logits = vec![0.0; claim.engine.vocabulary()];
        Self { claim, standing: Standing::default(), logits, stop: StopHandle::default() }
    }

    /// Takes tokens of a prompt through the model together, dense. The logits `[vocabulary]` after the last.
    ///
    /// Tokens go on where the sequence stands: a second prompt follows the first, and what was decoded between them.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::Token`] and [`Error::Context`] before anything is done; [`Error::Read`] and
    /// [`Error::Stopped`] on the way. The sequence stays where it was; of a model with recurrent state
    /// ([`Engine::is_recurrent`]) it goes back to where its last prompt ended.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.prompt(tokens, Heard::Last, |_| ())?;
        Ok(self.logits())
    }

    /// [`Session::prefill`] with the logits after every token, in order.
    ///
    /// # Errors
    /// Those of [`Session::prefill`].
    ///
    /// # Panics
    /// If `each` does, which ends the prompt: the sequence is then where it was, or, of a model with recurrent state, before that, which
    /// [`Session::position`] says.
    pub fn prefill_each(&mut self, tokens: &[u32], mut each: impl FnMut(usize, &[f32])) -> Result<(), Error> {
        let mut index = 0..;
        self.prompt(tokens, Heard::Logits, |logits| each(index.next().unwrap_or(0), logits))
    }

    /// The embedding `[width]` of a text's tokens, of length 1: made of their hidden states as the model's file says, dense, whatever
    /// the plan's level. It is that of the text alone: the session forgets what it had and has these tokens afterwards, without
    /// logits.
    ///
    /// # Errors
    /// Those of [`Session::prefill`].
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.reset();
        let mut pooled = Pooled::new(self.engine().facts().pooling);
        self.prompt(tokens, Heard::Hidden, |hidden| pooled.add(hidden))?;
        Ok(pooled.finish())
    }

    /// Takes one token through the model, sparse. The logits `[vocabulary]` after it.
    ///
    /// # Errors
    /// Those of [`Session::prefill`].
    pub fn decode(&mut self, token: u32) -> Result<&[f32], Error> {
        self.decode_each(&[token])
    }

    /// Takes a few tokens that follow each other through the model together, sparse: the logits `[tokens, vocabulary]` after each,
    /// which are to the bit those of [`Session::decode`] one after another. Neurons that several of them need are read once, and
    /// weights pass through memory once.
    ///
    /// With it a draft of what comes next is verified in one step: decode the token that is known with the draft behind it, compare
    /// what each row's logits choose with the draft, and [`Session::rewind`] to behind the last token that was right.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] without tokens, [`Error::Rows`] for more than [`Engine::step_rows`], [`Error::Sequences`] for more than
    /// one of a model with recurrent state, before anything is done; those of [`Session::prefill`].
    pub fn decode_each(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        let Self { claim, standing, logits, stop } = self;
        let (engine, sequence) = (&claim.engine, claim.sequences.start);
        engine.step(tokens.len())?;
        if tokens.len() > 1 && engine.is_recurrent() {
            return Err(Error::several_of_recurrent(sequence, engine.facts().sequences));
        }
        let mut rows = Few::default();
        for (position, &token) in (standing.position..).zip(tokens) {
            rows.push(Token { token, sequence: sequence as u32, position });
        }
        let all = tokens.len() * engine.vocabulary();
        logits.resize(logits.len().max(all), 0.0);
        let command = |logits| Command::Decode { rows, stop: Some(stop.clone()), logits };
        let done = engine.work(logits, command, |_| ()).map_err(Failure::into_error);
        match &done {
            Ok(()) => standing.position += tokens.len(),
            Err(error) => *standing = standing.failed(error, engine.is_recurrent()),
        }
        done?;
        Ok(&logits[..all])
    }

    /// The logits `[vocabulary]` of the last [`Session::prefill`] or [`Session::decode`] that was done, or those after the first token
    /// of a [`Session::decode_each`].
    pub fn logits(&self) -> &[f32] {
        self.logits.get(..self.engine().vocabulary()).unwrap_or_default()
    }

    /// Forgets the sequence: the next token stands at position 0. The cache of neurons stays.
    pub fn reset(&mut self) {
        self.standing = Standing::default();
    }

    /// Forgets the sequence from `position` on: the next token stands there, and sees what was before it as if nothing had ever
    /// come after. A position that the sequence has not reached yet leaves it as it is. The cache of neurons stays, and so do
    /// [`Session::logits`], which are those of a token that may have been forgotten.
    ///
    /// With it a conversation whose beginning stays pays for its new part only: rewind to where it differs, then
    /// [`Session::prefill`] the rest. A recurrent state ([`Engine::is_recurrent`]) cannot be cut: the sequence goes further back
    /// then, to where its last prompt ended or to its beginning, and [`Session::position`] says from where on to prefill.
    pub fn rewind(&mut self, position: usize) {
        self.standing = self.standing.back(position, self.engine().is_recurrent());
    }

    /// Tokens of the sequence so far.
    pub fn position(&self) -> usize {
        self.standing.position
    }

    /// A handle that ends what the engine is doing for this sequence, and leaves other sequences alone.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// The engine that the session works with.
    pub fn engine(&self) -> &Engine {
        &self.claim.engine
    }

    fn prompt(&mut self, tokens: &[u32], rows: Heard, heard: impl FnMut(&[f32])) -> Result<(), Error> {
        let Self { claim, standing, logits, stop } = self;
        let done = claim.engine.prompt(claim.sequences.start, standing, stop, logits, tokens, rows, heard);
        done.map_err(Failure::into_error)
    }
}

/// The steps that sessions and batches share.
impl Engine {
    /// Takes tokens of a prompt into a sequence; `standing` is where it stands before and after. Where `heard` panics, the sequence
    /// goes back to where it was, or before that where a recurrent state asks for it.
    fn prompt(
        &self,
        sequence: usize,
        standing: &mut Standing,
        stop: &StopHandle,
        logits: &mut Vec<f32>,
        tokens: &[u32],
        rows: Heard,
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

    /// The position after so many tokens more, if there is room for them.
    fn fitting(&self, at: At, tokens: usize) -> Result<usize, Error> {
        let (tokens, context) = (at.position.saturating_add(tokens), self.facts().context);
        if tokens > context { Err(Error::Context { tokens, context }) } else { Ok(tokens) }
    }

    /// Refuses more tokens than pass together.
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
