//! Several sequences that can be decoded together.

use super::Standing;
use crate::engine::{Claim, Command, Engine, Failure, Outputs, StepRows};
use crate::error::Error;
use crate::kv::At;
use crate::stop::StopHandle;
use crate::transformer::Token;

/// All sequences of a plan, each with its own context, and a handle of their engine.
///
/// Sequences are numbered from 0. Other sequences change no bit of a sequence's logits: a
/// [`Session`](super::Session) with the same tokens gives the same. Tokens decoded together share reads: a
/// neuron or expert that several miss is read once.
#[derive(Debug)]
pub struct Batch {
    claim: Claim,
    pub(super) standings: Box<[Standing]>,
    /// The positions of the standings.
    positions: Box<[usize]>,
    /// `[rows of a step, vocabulary]`.
    pub(super) logits: Vec<f32>,
    stops: Box<[StopHandle]>,
}

impl Batch {
    pub(crate) fn new(claim: Claim) -> Self {
        let count = claim.sequences.len();
        Self {
            standings: vec![Standing::default(); count].into(),
            positions: vec![0; count].into(),
            logits: vec![0.0; claim.engine.step_rows() * claim.engine.vocabulary()],
            stops: (0..count).map(|_| StopHandle::default()).collect(),
            claim,
        }
    }

    /// Prefills a prompt's tokens of a sequence, dense, as [`Session::prefill`](super::Session::prefill). A
    /// long prompt can be given in parts, between steps of other sequences.
    ///
    /// # Errors
    /// As [`Session::prefill`](super::Session::prefill), and [`Error::Sequences`] if there is no such
    /// sequence.
    pub fn prefill(&mut self, sequence: usize, tokens: &[u32]) -> Result<&[f32], Error> {
        self.prompt(sequence, tokens, Outputs::Last, |_| ())?;
        Ok(self.rows(1))
    }

    /// Decodes tokens of some sequences, `(sequence, token)`, together and sparse. Returns the logits
    /// `[tokens, vocabulary]` after each. Tokens of the same sequence are consecutive, as in
    /// [`Session::decode_each`](super::Session::decode_each).
    ///
    /// # Errors
    /// Before any work:
    /// * [`Error::EmptyPrompt`] without tokens; [`Error::Rows`] for more than [`Engine::step_rows`].
    /// * [`Error::Sequences`] for a missing sequence, or for one with recurrent state named twice.
    /// * [`Error::Token`], [`Error::Context`], and [`Error::Stopped`] if a sequence's [`Batch::stop_handle`]
    ///   was used.
    ///
    /// During it: [`Error::Read`] and [`Error::Stopped`]. All sequences stay at their positions; with
    /// recurrent state, the named ones go back to the end of their last prompts.
    pub fn decode(&mut self, tokens: &[(usize, u32)]) -> Result<&[f32], Error> {
        let Self { claim: Claim { engine, .. }, positions, stops, logits, .. } = self;
        engine.step(tokens.len())?;
        let mut rows = StepRows::default();
        for (index, &(sequence, token)) in tokens.iter().enumerate() {
            let At { position, .. } = at(positions, sequence)?;
            if stops[sequence].is_stopped() {
                return Err(Error::Stopped);
            }
            let before = tokens[..index].iter().filter(|&&(other, _)| other == sequence).count();
            if before > 0 && engine.is_recurrent() {
                return Err(Error::several_of_recurrent(sequence, positions.len()));
            }
            rows.push(Token { token, sequence: sequence as u32, position: position + before });
        }
        let done = engine.work(logits, |logits| Command::Decode { rows, stop: None, logits }, |_| ());
        let (done, recurrent) = (done.map_err(Failure::into_error), engine.is_recurrent());
        for &(sequence, _) in tokens {
            let standing = self.standings[sequence];
            self.stand(
                sequence,
                match &done {
                    Ok(()) => Standing { position: standing.position + 1, ..standing },
                    Err(error) => standing.failed(error, recurrent),
                },
            );
        }
        done?;
        Ok(self.rows(tokens.len()))
    }

    /// Forgets a sequence from `position` on, as [`Session::rewind`](super::Session::rewind); possibly
    /// further back with recurrent state, see [`Batch::positions`].
    ///
    /// # Errors
    /// [`Error::Sequences`] if there is no such sequence.
    pub fn rewind(&mut self, sequence: usize, position: usize) -> Result<(), Error> {
        self.at(sequence)?;
        self.stand(sequence, self.standings[sequence].back(position, self.engine().is_recurrent()));
        Ok(())
    }

    /// Starts a sequence with the first `tokens` of another; its own tokens are forgotten. With recurrent
    /// state it starts with as many as the other could go back to, see [`Batch::positions`].
    ///
    /// # Errors
    /// [`Error::Sequences`] if a sequence is missing or both are the same; [`Error::Sequence`] if the other
    /// has fewer tokens.
    pub fn share(&mut self, from: usize, to: usize, tokens: usize) -> Result<(), Error> {
        let (At { position, .. }, _) = (self.at(from)?, self.at(to)?);
        if from == to {
            return Err(self.wrong(format!("sequence {from} has what it begins with")));
        }
        if tokens > position {
            return Err(Error::Sequence { requested: tokens, position });
        }
        let Standing { position, .. } = self.standings[from].back(tokens, self.engine().is_recurrent());
        self.stand(to, Standing::prefilled(position));
        self.engine().ask(Command::Share { from, to, positions: position });
        Ok(())
    }

    /// Number of tokens of each sequence.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// The batch's engine.
    pub fn engine(&self) -> &Engine {
        &self.claim.engine
    }

    /// A handle that stops a sequence: its current prompt, and later steps that name it. Other sequences
    /// continue.
    ///
    /// # Errors
    /// [`Error::Sequences`] if there is no such sequence.
    pub fn stop_handle(&self, sequence: usize) -> Result<StopHandle, Error> {
        self.at(sequence)?;
        Ok(self.stops[sequence].clone())
    }

    /// The logits of the first rows of the last call.
    fn rows(&self, rows: usize) -> &[f32] {
        &self.logits[..rows * self.engine().vocabulary()]
    }

    /// A sequence's position.
    pub(super) fn at(&self, sequence: usize) -> Result<At, Error> {
        at(&self.positions, sequence)
    }

    pub(super) fn stand(&mut self, sequence: usize, standing: Standing) {
        (self.standings[sequence], self.positions[sequence]) = (standing, standing.position);
    }

    pub(super) fn prompt(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        rows: Outputs,
        heard: impl FnMut(&[f32]),
    ) -> Result<(), Error> {
        self.at(sequence)?;
        let mut standing = self.standings[sequence];
        let Self { claim: Claim { engine, .. }, logits, stops, .. } = self;
        let done = engine.prompt(sequence, &mut standing, &stops[sequence], logits, tokens, rows, heard);
        self.stand(sequence, standing);
        done.map_err(Failure::into_error)
    }

    fn wrong(&self, problem: String) -> Error {
        Error::Sequences { problem, sequences: self.positions.len() }
    }
}

/// A sequence's position, if it exists.
fn at(positions: &[usize], sequence: usize) -> Result<At, Error> {
    let position = positions.get(sequence).copied().ok_or_else(|| Error::Sequences {
        problem: format!("there is no sequence {sequence}"),
        sequences: positions.len(),
    })?;
    Ok(At { sequence, position })
}
