//! A plan in execution on the engine's thread: start, prefill, decode.
//!
//! ```text
//! start    map every region of the plan at once and fill it: fixed, level, hot; nothing grows later
//! prefill  the prompt in chunks, dense, layer by layer, weights unpacked once per chunk;
//!          missing neurons are streamed in large reads
//! decode   one token of each sequence, or several consecutive ones of a draft:
//!          embed -> [ norm, mixer, norm, feed-forward ] x layers -> norm -> head -> logits
//! ```

use std::mem;
use std::ops::Range;

use crate::arena::{LockError, Slab};
use crate::fetch::{Fetcher, Replay};
use crate::kv::At;
use crate::model::config::{Config, Role, RouterInput, Streams};
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
mod gated;
mod heads;
mod indexer;
mod kept;
mod latent;
mod matrices;
mod mixer;
mod network;
mod ngrams;
mod own_inputs;
mod resident;
mod rows;
mod start;
mod streams;
#[cfg(test)]
pub(crate) mod tests;
mod unit;
mod vectors;

use compute::{Compute, Phase};
pub use counters::{Counters, Detail, accumulate, detail, detail_mut};
pub(crate) use error::TransformerError;
use kept::Kept;
use matrices::times;
use network::Layers;
use rows::{Buffers, PromptRoom, Rows};
pub use unit::{Aside, Fallback, UnitWork};
use vectors::{as_rotations, scale};

/// One row of a step: a token at a position of a sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Token {
    /// The token.
    pub token: u32,
    /// The sequence.
    pub sequence: u32,
    /// Tokens of the sequence before it.
    pub position: usize,
}

/// Receives the index of a row and the logits `[vocabulary]` after it.
pub(crate) type Each<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// A plan in execution.
#[derive(Debug)]
pub(crate) struct Transformer {
    config: Config,
    /// Requests to stop, checked before each layer.
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
    /// Bytes of weights, and of keys and values, read by decode.
    traffic: Traffic,
}

/// Rotary embeddings of positions.
#[derive(Debug)]
struct Turns {
    /// The frequencies of [`Config::ropes`].
    rotaries: Vec<Rotary>,
    /// Rotations of a row for each rotary embedding.
    pairs: usize,
}

impl Transformer {
    /// Decodes one token of each of some sequences, or several consecutive ones, sparse. Returns the logits
    /// `[rows, vocabulary]` after each. Neurons that several rows request are read once. Each row has the
    /// same bits as by itself, after the rows before it.
    ///
    /// # Errors
    /// If a token or its position is invalid, or a read fails.
    ///
    /// # Panics
    /// If there are no rows or more than the plan allows, or if a sequence's rows are not consecutive. Also
    /// for several rows of a recurrent sequence, whose tokens must pass all layers one by one.
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
        for (block, &place) in self.config.blocks.iter().zip(&self.kept.at) {
            let Some(a) = block.attention() else { continue };
            let seen = |row: &Token| row.position + 1 - a.first_seen(row.position);
            self.traffic.kv += rows.iter().map(|row| self.kept.kv.bytes(place, seen(row))).sum::<u64>();
        }
        let state_bytes = self.kept.states.as_ref().map_or(0, States::bytes_per_token);
        self.traffic.kv += rows.len() as u64 * state_bytes;
        Ok(&self.logits[..rows.len() * self.config.vocabulary])
    }

    /// Prefills the tokens of one sequence's prompt, dense, in chunks. Returns the logits after the last.
    /// `each` receives the logits after every token; without it they are not computed.
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

    /// [`Transformer::prefill`] without logits: `each` receives the index of every row and its hidden state
    /// `[width]`, the head's input.
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

    /// Passes the tokens of one sequence's prompt through all layers, in chunks. `after` receives the range
    /// of each chunk while its residual stream is in the buffers.
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

    /// The logits `[rows, vocabulary]` of the last decode, or `[1, vocabulary]` of the last prefill.
    pub(crate) fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Whether memory is locked, or why not.
    pub(crate) fn lock(&self) -> &Result<(), LockError> {
        &self.lock
    }

    /// The read method, for the report.
    pub(crate) fn flash(&self) -> String {
        self.fetcher.describe()
    }

    /// Replays recorded experts from now on, or ends the replay.
    pub(crate) fn replay_routes(&mut self, routes: Option<Routes>) {
        self.layers.routes = routes;
    }

    /// Records reads from now on, for [`Transformer::replay_reads`].
    pub(crate) fn record_reads(&mut self) {
        self.fetcher.record();
    }

    /// Repeats the recorded reads without compute, `depth` at a time; `None` if there are none.
    ///
    /// # Errors
    /// The first failed read.
    pub(crate) fn replay_reads(&mut self, depth: usize) -> Result<Option<Replay>, TransformerError> {
        Ok(self.fetcher.replay(depth)?)
    }

    /// Measures current rates at these points, over this engine's memory and container, with the decode
    /// threads.
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

    /// Frees all cold slots, as at start.
    pub(crate) fn clear_cache(&mut self) {
        self.layers.neurons.iter_mut().for_each(|layer| layer.cache.clear_cold());
    }

    /// Number of sequences.
    pub(crate) fn sequences(&self) -> usize {
        self.kept.sequences
    }

    /// The most rows of a decode step.
    pub(crate) fn step_rows(&self) -> usize {
        self.kept.step_rows
    }

    /// Positions of each sequence.
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

    /// Whether some layers have a recurrent state instead of keys and values.
    pub(crate) fn is_recurrent(&self) -> bool {
        self.kept.states.is_some()
    }

    /// Starts a sequence with the first `positions` tokens of another.
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

    /// Bytes of a sequence's recurrent state; 0 without one.
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

    /// Prepares the threads of a phase, if its cores differ, and the buffers of its rows.
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

    /// Swaps the buffers of rows.
    fn exchange(&mut self, rows: Rows) -> Rows {
        Rows {
            buffers: mem::replace(&mut self.buffers, rows.buffers),
            of_neurons: self.layers.feed_forward.exchange(rows.of_neurons),
        }
    }

    /// Runs all layers over at most a chunk of rows; the residual stream has their output.
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
            if c.per_layer_width.is_some() {
                self.buffers.own_inputs[i * c.width..][..c.width].copy_from_slice(x);
            }
            let values = self.buffers.own_inputs.get_mut(count * c.width..).unwrap_or_default();
            if let Some(ngrams) = &c.ngrams {
                let last = ngrams::last_tokens(ngrams, rows, i, |back| self.kept.token_before(c, row, back));
                let values = values[i * ngrams.values()..].chunks_exact_mut(ngrams.row_width);
                for (row, values) in ngrams.rows_of(&last).zip(values) {
                    let row = self.weights.table_row(row)?;
                    dequantise(row.format, row.bytes, values);
                }
            } else if c.per_layer_width.is_some() {
                let (row, count) = (self.weights.table_row(row.token)?, c.per_layer_values());
                dequantise(row.format, row.bytes, &mut values[i * count..][..count]);
            }
            for (rope, rotary) in self.turns.rotaries.iter().enumerate() {
                let rotations = &mut rotations[(rope * count + i) * pairs..][..rotary.pairs()];
                rotary.fill(row.position, rotations);
            }
        }
        let streams = self.config.streams;
        if let Some(streams) = streams {
            self.open_streams(streams, count);
        }
        let gated = streams.filter(|streams| streams.are_gated());
        let alternating = streams.filter(|streams| !streams.are_gated());
        for block in 0..self.config.blocks.len() {
            if self.stop.is_stopped() {
                self.fetcher.abandon();
                return Err(TransformerError::Stopped);
            }
            if self.config.ngrams_of(block).is_some() {
                self.ngram_block(block, rows);
            }
            if let Some(streams) = alternating {
                self.predict_streams(block, streams, count);
            }
            if let Some(streams) = gated {
                self.mix_streams(gated::Place::Mixer(block), streams, count);
            }
            let layer = self.layers.of_block[block];
            if let Some(layer) = layer {
                self.route(block, layer, RouterInput::BeforeMixer, count);
                self.read_early(block, layer, count);
            }
            if self.config.blocks[block].mixer.is_some() {
                self.mixer_block(block, count);
            }
            if let (Some(streams), Some(rank)) = (alternating, self.config.blocks[block].branch_rank) {
                self.branch_block(block, streams, rank, count);
            }
            if let Some(streams) = gated {
                self.mix_streams(gated::Place::Network(block), streams, count);
            }
            if self.config.blocks[block].resident().is_some() {
                self.resident_block(block, count);
            }
            // everything before a layer's neurons counts as attention
            if self.compute.phase == Phase::Decode && layer.is_some() {
                self.layers.feed_forward.clock.end(Stage::Attention);
            }
            if let Some(layer) = layer {
                self.feed_forward_block(block, layer, count)?;
            }
            if let Some(streams) = alternating {
                self.correct_streams(block, streams, count);
            }
            if let Some(own) = self.config.per_layer_width {
                self.own_input_block(block, own, count);
            }
            if let Some(factor) = self.weights.values(block, Role::OutputScale) {
                scale(&mut self.buffers.residual[..count * self.config.width], factor[0]);
            }
            self.compute.check()?;
        }
        if let Some(streams) = alternating {
            self.join_streams(streams, count);
        }
        if let Some(streams) = gated {
            self.mix_streams(gated::Place::Head, streams, count);
        }
        self.compute.check()
    }

    /// Computes `hidden = norm(x[row])` for some rows, at the front of `normed`. Gated streams have been
    /// normalised before they were mixed.
    fn norm_last(&mut self, rows: Range<usize>) {
        let c = &self.config;
        if c.streams.is_some_and(Streams::are_gated) {
            let x = &self.buffers.residual[rows.start * c.width..rows.end * c.width];
            return self.buffers.normed[..x.len()].copy_from_slice(x);
        }
        let x = &self.buffers.residual[rows.start * c.width..rows.end * c.width];
        for (x, normed) in x.chunks_exact(c.width).zip(self.buffers.normed.chunks_exact_mut(c.width)) {
            rms_norm(x, self.weights.output_norm(), c.norm_epsilon, normed);
        }
    }

    /// Computes `logits = softcap(scale * head(norm(x[row])))` for some rows.
    fn heads(&mut self, rows: Range<usize>) {
        self.norm_last(rows.clone());
        let c = &self.config;
        let normed = &mut self.buffers.normed[..rows.len() * c.width];
        let x = Inputs::new(normed, c.width, self.compute.form, &mut self.layers.feed_forward.rounded[0]);
        let (parts, logits) = ([self.weights.output()], &mut self.logits[..rows.len() * c.vocabulary]);
        times(&self.compute.pool, &mut self.fetcher, self.compute.kernels, &parts, x, (&mut *logits, 0));
        scale(logits, c.logit_scale);
        if let Some(bound) = c.logit_softcap {
            logits.iter_mut().for_each(|logit| *logit = bound * (*logit / bound).tanh());
        }
    }
}
