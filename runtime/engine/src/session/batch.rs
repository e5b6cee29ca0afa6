//! Several sequences, of which any may go on together.

use super::Standing;
use crate::engine::{Claim, Command, Engine, Failure, Few, Heard};
use crate::error::Error;
use crate::kv::At;
use crate::stop::StopHandle;
use crate::transformer::Token;

/// All sequences of a plan, each with a context of its own, with a handle of the engine that works on them.
///
/// They are numbered from 0. What a sequence gives does not depend on the others, to the bit: its logits are those of a
/// [`Session`](super::Session) with the same tokens. Tokens that are decoded together share reads: a neuron or an expert that
/// several of them miss is read once.
#[derive(Debug)]
pub struct Batch {
    claim: Claim,
    pub(super) standings: Box<[Standing]>,
    /// Those of the standings.
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

    /// Takes tokens of a prompt of a sequence through the model together, dense, as [`Session::prefill`](super::Session::prefill).
    /// A long prompt can be given in parts, between which others go on.
    ///
    /// # Errors
    /// Those of [`Session::prefill`](super::Session::prefill), and [`Error::Sequences`] if there is no such sequence.
    pub fn prefill(&mut self, sequence: usize, tokens: &[u32]) -> Result<&[f32], Error> {
        self.prompt(sequence, tokens, Heard::Last, |_| ())?;
        Ok(self.rows(1))
    }

    /// Takes tokens of some sequences, `(sequence, token)`, through the model together, sparse. The logits `[tokens, vocabulary]`
    /// after them. Of a sequence that is named several times they follow each other, as in
    /// [`Session::decode_each`](super::Session::decode_each).
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] without tokens, [`Error::Rows`] for more than [`Engine::step_rows`], [`Error::Sequences`] for a sequence
    /// that there is not or, of a model with recurrent state, that is named twice, [`Error::Token`], [`Error::Context`], and
    /// [`Error::Stopped`] for a sequence whose [`Batch::stop_handle`] was used, before anything is done; [`Error::Read`] and
    /// [`Error::Stopped`] on the way. All sequences stay where they were; of a model with recurrent state those named go back to
    /// where their last prompts ended.
    pub fn decode(&mut self, tokens: &[(usize, u32)]) -> Result<&[f32], Error> {
        let Self { claim: Claim { engine, .. }, positions, stops, logits, .. } = self;
        engine.step(tokens.len())?;
        let mut rows = Few::default();
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

    /// Forgets a sequence from `position` on, as [`Session::rewind`](super::Session::rewind): further back where a recurrent state
    /// asks for it, which [`Batch::positions`] says.
    ///
    /// # Errors
    /// [`Error::Sequences`] if there is no such sequence.
    pub fn rewind(&mut self, sequence: usize, position: usize) -> Result<(), Error> {
        self.at(sequence)?;
        self.stand(sequence, self.standings[sequence].back(position, self.engine().is_recurrent()));
        Ok(())
    }

    /// Lets a sequence begin with the first `tokens` of another one: it stands behind them, and what it had is forgotten. Of a model
    /// with recurrent state it begins with as many of them as the other one could go back to, which [`Batch::positions`] says.
    ///
    /// # Errors
    /// [`Error::Sequences`] if one of them is not there or they are the same, [`Error::Sequence`] if the other one has not so many
    /// tokens.
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

    /// Tokens of each sequence so far.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// The engine that works on the sequences.
    pub fn engine(&self) -> &Engine {
        &self.claim.engine
    }

    /// A handle that ends a sequence: a prompt of it on the way, and steps that name it before they begin. Other sequences go on.
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

    /// Where a sequence stands.
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
        rows: Heard,
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

/// Where a sequence stands.
fn at(positions: &[usize], sequence: usize) -> Result<At, Error> {
    let position = positions.get(sequence).copied().ok_or_else(|| Error::Sequences {
        problem: format!("there is no sequence {sequence}"),
        sequences: positions.len(),
    })?;
    Ok(At { sequence, position })
}
