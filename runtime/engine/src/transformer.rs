//! The engine: a plan in execution. The life of a token.
//!
//! ```text
//! start    every region of the plan is taken at once and filled: fixed, level, hot; no region grows after
//! prefill  the prompt in chunks, dense, layer by layer, weights unpacked once a chunk; neurons not in memory stream past in large reads
//! decode   one token of each sequence, or some that follow each other: embed -> [ norm, mixer, norm, feed-forward ] x layers -> norm -> head -> logits
//! ```

use std::mem;
use std::ops::Range;

use crate::arena::{LockError, Slab};
use crate::fetch::{Fetcher, Replay};
use crate::kv::At;
use crate::model::config::{Config, Role, RouterInput};
use crate::probe::{self, Points, Probe};
use crate::products::Inputs;
use crate::recurrent::States;
use crate::rotary::Rotary;
use crate::routes::Routes;
use crate::stage::{Stage, Traffic};
use crate::stop::Stops;
use crate::weights::Weights;
use kernels::{Rotation, dequantise, rms_norm};

mod compute;
mod counters;
mod error;
mod heads;
mod kept;
mod latent;
mod matrices;
mod mixer;
mod network;
mod resident;
mod rows;
mod start;
#[cfg(test)]
pub(crate) mod tests;
mod vectors;

use compute::{Compute, Phase};
pub use counters::{Counters, Detail, accumulate, detail, detail_mut};
pub(crate) use error::TransformerError;
use kept::Kept;
use matrices::times;
use network::Layers;
use rows::{Buffers, PromptRoom, Rows};
use vectors::{as_rotations, scale};

/// One row of a batch: a token at a position of a sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Token {
    /// Which token.
    pub token: u32,
    /// Which sequence.
    pub sequence: u32,
    /// Tokens of the sequence before it.
    pub position: usize,
}

/// Hears the number of a row and the logits `[vocabulary]` after it.
pub(crate) type Each<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// A plan in execution.
#[derive(Debug)]
pub(crate) struct Transformer {
    config: Config,
    /// Set by whoever wants an end; looked at before each layer.
    pub(crate) stop: Stops,
    /// Whether the arena is locked in memory.
    lock: Result<(), LockError>,
    compute: Compute,
    weights: Weights,
    fetcher: Fetcher,
    layers: Layers,
    kept: Kept,
    turns: Turns,
    buffers: Buffers,
    prompt: PromptRoom,
    logits: Slab<f32>,
    /// Bytes of weights, and of keys and values, that decoding has read.
    traffic: Traffic,
}

/// Rotary embeddings of positions.
#[derive(Debug)]
struct Turns {
    /// The frequencies of [`Config::ropes`].
    rotaries: Vec<Rotary>,
    /// Rotations that a row has room for, of each rotary embedding.
    pairs: usize,
}

impl Transformer {
    /// One token of each of some sequences, or several that follow each other, sparse: the logits `[rows, vocabulary]` after them.
    /// What several of them request is read once. The bits of each are those that it has by itself, after those before it.
    ///
    /// # Errors
    /// If a token or its position is impossible, or a read fails.
    ///
    /// # Panics
    /// If there are no rows or more than the plan has room for, if a sequence's do not follow each other, or if there are several of
    /// one whose state is recurrent: it passes all layers before the next token comes.
    pub(crate) fn decode(&mut self, rows: &[Token]) -> Result<&[f32], TransformerError> {
        assert!(!rows.is_empty(), "there is a token");
        assert!(
            rows.len() <= self.kept.step_rows,
            "{} rows, and room for {}",
            rows.len(),
            self.kept.step_rows
        );
        for (at, row) in rows.iter().enumerate() {
            let before = rows[..at].iter().rev().find(|before| before.sequence == row.sequence);
            assert!(
                before.is_none_or(|before| before.position + 1 == row.position),
                "one after another: {rows:?}"
            );
            assert!(before.is_none() || self.kept.states.is_none(), "a token of each sequence: {rows:?}");
        }
        self.check(rows)?;
        self.enter(Phase::Decode)?;
        self.layers.feed_forward.clock.begin();
        self.kept.begin(rows);
        self.forward(rows)?;
        self.kept.end(rows);
        self.heads(0..rows.len());
        self.layers.feed_forward.clock.end(Stage::Head);
        self.traffic.weights += self.weights.bytes_per_token();
        for (layer, a) in self.config.attentions().enumerate() {
            let seen = |row: &Token| row.position + 1 - a.first_seen(row.position);
            self.traffic.kv += rows.iter().map(|row| self.kept.kv.bytes(layer, seen(row))).sum::<u64>();
        }
        let state_bytes = self.kept.states.as_ref().map_or(0, States::bytes_per_token);
        self.traffic.kv += rows.len() as u64 * state_bytes;
        Ok(&self.logits[..rows.len() * self.config.vocabulary])
    }

    /// The tokens of one sequence's prompt, dense, a chunk at a time: the logits after the last. `each` hears those after every
    /// token; without it they are not computed.
    ///
    /// # Errors
    /// As [`Transformer::decode`].
    ///
    /// # Panics
    /// If there are no rows.
    pub(crate) fn prefill(
        &mut self,
        rows: &[Token],
        mut each: Option<Each<'_>>,
    ) -> Result<&[f32], TransformerError> {
        self.chunks(rows, |engine, chunk| {
            if let Some(each) = &mut each {
                for (row, at) in chunk.enumerate() {
                    engine.heads(row..row + 1);
                    each(at, &engine.logits[..engine.config.vocabulary]);
                }
            } else if chunk.end == rows.len() {
                engine.heads(chunk.len() - 1..chunk.len());
            }
        })?;
        Ok(&self.logits[..self.config.vocabulary])
    }

    /// [`Transformer::prefill`] without logits: `each` hears the number of every row and its hidden state `[width]`, which is what
    /// the head would read.
    ///
    /// # Errors
    /// As [`Transformer::decode`].
    ///
    /// # Panics
    /// If there are no rows.
    pub(crate) fn prefill_hidden(&mut self, rows: &[Token], each: Each<'_>) -> Result<(), TransformerError> {
        self.chunks(rows, |engine, chunk| {
            let width = engine.config.width;
            engine.norm_last(0..chunk.len());
            for (row, at) in chunk.enumerate() {
                each(at, &engine.buffers.normed[row * width..][..width]);
            }
        })
    }

    /// The tokens of one sequence's prompt through all layers, a chunk at a time: `after` hears which rows have passed, whose residual
    /// stream is there.
    fn chunks(
        &mut self,
        rows: &[Token],
        mut after: impl FnMut(&mut Self, Range<usize>),
    ) -> Result<(), TransformerError> {
        assert!(!rows.is_empty(), "a prompt has a token");
        self.check(rows)?;
        self.enter(Phase::Prefill)?;
        self.kept.begin(&rows[..1]);
        let mut done = 0;
        for chunk in rows.chunks(self.prompt.chunk) {
            self.forward(chunk)?;
            after(self, done..done + chunk.len());
            done += chunk.len();
        }
        self.kept.end(&rows[rows.len() - 1..]);
        if let Some(states) = &mut self.kept.states {
            states.keep(rows[0].sequence as usize);
        }
        Ok(())
    }

    /// The logits `[rows, vocabulary]` of the last decode, or, of one, prefill.
    pub(crate) fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Whether the regions can never be paged out, or why they can.
    pub(crate) fn lock(&self) -> &Result<(), LockError> {
        &self.lock
    }

    /// How flash is read, for the report.
    pub(crate) fn flash(&self) -> String {
        self.fetcher.describe()
    }

    /// Experts as recorded from now on, or as the router chooses.
    pub(crate) fn replay_routes(&mut self, routes: Option<Routes>) {
        self.layers.routes = routes;
    }

    /// Records the last reads from now on, for [`Transformer::replay_reads`].
    pub(crate) fn record_reads(&mut self) {
        self.fetcher.record();
    }

    /// Does the recorded reads once more, with nothing else to do, `depth` at a time; `None` if there are none.
    ///
    /// # Errors
    /// The first read that failed.
    pub(crate) fn replay_reads(&mut self, depth: usize) -> Result<Option<Replay>, TransformerError> {
        Ok(self.fetcher.replay(depth)?)
    }

    /// Measures the rates of this hour at the given points, over this engine's memory and container, with the decoding threads.
    pub(crate) fn probe(&mut self, points: &Points) -> Probe {
        if let Err(error) = self.enter(Phase::Decode) {
            return Probe::nothing(error.to_string());
        }
        let [hot, cold] = self.layers.slots.bytes();
        let regions = [self.weights.bytes(), hot, cold];
        let memory = regions.into_iter().max_by_key(|region| region.len()).unwrap_or_default();
        probe::measure(
            points,
            self.compute.kernels,
            &self.compute.pool,
            memory,
            &mut self.fetcher,
            &self.stop.engine,
        )
    }

    /// Empties the cold slots, as at start.
    pub(crate) fn clear_cache(&mut self) {
        self.layers.neurons.iter_mut().for_each(|layer| layer.cache.clear_cold());
    }

    /// Sequences that fit.
    pub(crate) fn sequences(&self) -> usize {
        self.kept.sequences
    }

    /// Rows that pass together while decoding.
    pub(crate) fn step_rows(&self) -> usize {
        self.kept.step_rows
    }

    /// Positions that fit, of each.
    pub(crate) fn context(&self) -> usize {
        self.kept.kv.context()
    }

    /// Shapes and constants.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of one position's keys and values in all layers.
    pub(crate) fn kv_bytes_per_token(&self) -> u64 {
        self.kept.kv.bytes_per_token()
    }

    /// Whether there are layers that keep a state in place of keys and values.
    pub(crate) fn is_recurrent(&self) -> bool {
        self.kept.states.is_some()
    }

    /// Lets a sequence begin with the first `positions` of another one.
    pub(crate) fn share(&mut self, from: usize, to: usize, positions: usize) {
        self.kept.share(from, to, positions);
    }

    /// [`Kept::copy_out`].
    pub(crate) fn copy_out(&mut self, sequence: usize, positions: Range<usize>, at: usize, out: &mut [u8]) {
        self.kept.copy_out(sequence, positions, at, out);
    }

    /// [`Kept::copy_in`].
    pub(crate) fn copy_in(&mut self, sequence: usize, positions: Range<usize>, at: usize, bytes: &[u8]) {
        self.kept.copy_in(sequence, positions, at, bytes);
    }

    /// Bytes of a sequence's recurrent state; 0 where there is none.
    pub(crate) fn state_bytes(&self) -> usize {
        self.kept.states.as_ref().map_or(0, States::bytes)
    }

    fn check(&self, rows: &[Token]) -> Result<(), TransformerError> {
        for &Token { token, sequence, position } in rows {
            assert!(
                (sequence as usize) < self.kept.sequences,
                "sequence {sequence} of {}",
                self.kept.sequences
            );
            if token as usize >= self.config.vocabulary {
                return Err(TransformerError::Token { token, vocabulary: self.config.vocabulary });
            }
            if position >= self.kept.kv.context() {
                return Err(TransformerError::Context { position, context: self.kept.kv.context() });
            }
        }
        Ok(())
    }

    /// Threads of a stage, started when the other stage has other cores, and room for its rows.
    fn enter(&mut self, phase: Phase) -> Result<(), TransformerError> {
        self.compute.enter(phase)?;
        if phase == Phase::Prefill && self.prompt.of_decode.is_none() {
            let lent = self.layers.slots.lend(self.prompt.sizes.bytes() as usize, &mut self.layers.neurons);
            let rows = Rows::cut(lent.cast(), &self.prompt.sizes);
            self.prompt.of_decode = Some(self.exchange(rows));
        }
        if phase == Phase::Decode
            && let Some(rows) = self.prompt.of_decode.take()
        {
            let lent = self.exchange(rows).whole();
            self.layers.slots.take_back(lent.cast());
        }
        Ok(())
    }

    /// Takes these buffers in place of those it has.
    fn exchange(&mut self, rows: Rows) -> Rows {
        Rows {
            buffers: mem::replace(&mut self.buffers, rows.buffers),
            of_neurons: self.layers.feed_forward.exchange(rows.of_neurons),
        }
    }

    /// All layers over at most a chunk of rows; the residual stream holds what comes out.
    fn forward(&mut self, rows: &[Token]) -> Result<(), TransformerError> {
        self.layers.stamp = self.layers.stamp.wrapping_add(1);
        self.kept.rows.clear();
        self.kept
            .rows
            .extend(rows.iter().map(|row| At { sequence: row.sequence as usize, position: row.position }));
        let (c, count) = (&self.config, rows.len());
        let pairs = self.turns.pairs;
        let rotations: &mut [Rotation] = as_rotations(&mut self.buffers.rotations);
        for (i, row) in rows.iter().enumerate() {
            let x = &mut self.buffers.residual[i * c.width..][..c.width];
            let embedded = self.weights.embed(row.token)?;
            dequantise(embedded.format, embedded.bytes, x);
            scale(x, c.embedding_scale);
            for (rope, rotary) in self.turns.rotaries.iter().enumerate() {
                let rotations = &mut rotations[(rope * count + i) * pairs..][..rotary.pairs()];
                rotary.fill(row.position, rotations);
            }
        }
        for block in 0..self.config.blocks.len() {
            if self.stop.is_stopped() {
                self.fetcher.abandon();
                return Err(TransformerError::Stopped);
            }
            let layer = self.layers.of_block[block];
            if let Some(layer) = layer {
                self.route(block, layer, RouterInput::BeforeMixer, count);
                self.read_early(block, layer, count);
            }
            if self.config.blocks[block].mixer.is_some() {
                self.mixer_block(block, count);
            }
            if self.config.blocks[block].resident().is_some() {
                self.resident_block(block, count);
            }
            // whatever comes before a layer's neurons counts as attention
            if self.compute.phase == Phase::Decode && layer.is_some() {
                self.layers.feed_forward.clock.end(Stage::Attention);
            }
            if let Some(layer) = layer {
                self.feed_forward_block(block, layer, count)?;
            }
            if let Some(factor) = self.weights.values(block, Role::OutputScale) {
                scale(&mut self.buffers.residual[..count * self.config.width], factor[0]);
            }
        }
        Ok(())
    }

    /// `hidden = norm(x[row])` of some rows, from the beginning of `normed` on.
    fn norm_last(&mut self, rows: Range<usize>) {
        let c = &self.config;
        let x = &self.buffers.residual[rows.start * c.width..rows.end * c.width];
        for (x, normed) in x.chunks_exact(c.width).zip(self.buffers.normed.chunks_exact_mut(c.width)) {
            rms_norm(x, self.weights.output_norm(), c.norm_epsilon, normed);
        }
    }

    /// `logits = softcap(scale * head(norm(x[row])))` of some rows.
    fn heads(&mut self, rows: Range<usize>) {
        self.norm_last(rows.clone());
        let c = &self.config;
        let normed = &mut self.buffers.normed[..rows.len() * c.width];
        let x = Inputs::new(normed, c.width, self.compute.form, &mut self.layers.feed_forward.rounded[0]);
        let (parts, logits) = ([self.weights.output()], &mut self.logits[..rows.len() * c.vocabulary]);
        times(&self.compute.pool, &mut self.fetcher, self.compute.kernels, &parts, x, logits);
        scale(logits, c.logit_scale);
        if let Some(bound) = c.logit_softcap {
            logits.iter_mut().for_each(|logit| *logit = bound * (*logit / bound).tanh());
        }
    }
}
