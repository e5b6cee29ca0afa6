//! Several sequences, of which any may go on together.

use super::{Command, Engine, Failure, Few, Heard, Standing};
use crate::error::Error;
use crate::kv::At;
use crate::transformer::Token;

/// Several sequences of tokens, each with a context of its own, and the engine while it works on them.
///
/// They are numbered from 0. What a sequence gives does not depend on the others, to the bit: its logits are those of a
/// [`Session`](super::Session) with the same tokens. Tokens that are decoded together share reads: a neuron or an expert that
/// several of them miss is read once.
#[derive(Debug)]
pub struct Batch<'engine> {
    pub(super) engine: &'engine mut Engine,
    pub(super) standings: Box<[Standing]>,
    /// Those of the standings.
    positions: Box<[usize]>,
}

impl<'engine> Batch<'engine> {
    pub(super) fn new(engine: &'engine mut Engine) -> Self {
        let standings = vec![Standing::default(); engine.sequences()].into_boxed_slice();
        let positions = vec![0; engine.sequences()].into_boxed_slice();
        Self { engine, standings, positions }
    }

    /// Takes tokens of a prompt of a sequence through the model together, dense, as [`Session::prefill`](super::Session::prefill).
    /// A long prompt can be given in parts, between which others go on.
    ///
    /// # Errors
    /// Those of [`Session::prefill`](super::Session::prefill), and [`Error::Sequences`] if there is no such sequence.
    pub fn prefill(&mut self, sequence: usize, tokens: &[u32]) -> Result<&[f32], Error> {
        self.prompt(sequence, tokens, Heard::Last, |_| ())?;
        Ok(&self.engine.logits[..self.engine.vocabulary()])
    }

    /// Takes tokens of some sequences, `(sequence, token)`, through the model together, sparse. The logits `[tokens, vocabulary]`
    /// after them. Of a sequence that is named several times they follow each other, as in
    /// [`Session::decode_each`](super::Session::decode_each).
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] without tokens, [`Error::Rows`] for more than [`Engine::step_rows`], [`Error::Sequences`] for a sequence
    /// that there is not or, of a model with recurrent state, that is named twice, [`Error::Token`] and [`Error::Context`], before anything is done; [`Error::Read`] and [`Error::Stopped`] on the way. All
    /// sequences stay where they were; of a model with recurrent state those named go back to where their last prompts ended.
    pub fn decode(&mut self, tokens: &[(usize, u32)]) -> Result<&[f32], Error> {
        self.engine.step(tokens.len())?;
        let mut rows = Few::default();
        for (index, &(sequence, token)) in tokens.iter().enumerate() {
            let At { position, .. } = self.at(sequence)?;
            let before = tokens[..index].iter().filter(|&&(other, _)| other == sequence).count();
            if before > 0 && self.engine.is_recurrent() {
                return Err(Error::several_of_recurrent(sequence, self.positions.len()));
            }
            rows.push(Token { token, sequence: sequence as u32, position: position + before });
        }
        let done = self.engine.work(|logits| Command::Decode { rows, logits }, |_| ());
        let done = done.map_err(Failure::into_error);
        for &(sequence, _) in tokens {
            let standing = self.standings[sequence];
            self.stand(
                sequence,
                match &done {
                    Ok(()) => Standing { position: standing.position + 1, ..standing },
                    Err(error) => standing.failed(error, self.engine.is_recurrent()),
                },
            );
        }
        done?;
        Ok(&self.engine.logits[..tokens.len() * self.engine.vocabulary()])
    }

    /// Forgets a sequence from `position` on, as [`Session::rewind`](super::Session::rewind): further back where a recurrent state
    /// asks for it, which [`Batch::positions`] says.
    ///
    /// # Errors
    /// [`Error::Sequences`] if there is no such sequence.
    pub fn rewind(&mut self, sequence: usize, position: usize) -> Result<(), Error> {
        self.at(sequence)?;
        self.stand(sequence, self.standings[sequence].back(position, self.engine.is_recurrent()));
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
        let Standing { position, .. } = self.standings[from].back(tokens, self.engine.is_recurrent());
        self.stand(to, Standing::prefilled(position));
        self.engine.order(Command::Share { from, to, positions: position });
        self.engine.reply();
        Ok(())
    }

    /// Tokens of each sequence so far.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// The engine that works on the sequences.
    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// Where a sequence stands.
    pub(super) fn at(&self, sequence: usize) -> Result<At, Error> {
        let position = self.positions.get(sequence).copied();
        let position = position.ok_or_else(|| self.wrong(format!("there is no sequence {sequence}")))?;
        Ok(At { sequence, position })
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
        let done = self.engine.prompt(sequence, &mut standing, tokens, rows, heard);
        self.stand(sequence, standing);
        done.map_err(Failure::into_error)
    }

    fn wrong(&self, problem: String) -> Error {
        Error::Sequences { problem, sequences: self.positions.len() }
    }
}
