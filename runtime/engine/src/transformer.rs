//! The engine: a plan in execution. The life of a token.
//!
//! ```text
//! start    every region of the plan is taken at once and filled: fixed, level, hot; no region grows after
//! prefill  the prompt in chunks, dense, layer by layer, weights unpacked once a chunk; neurons not in memory stream past in large reads
//! decode   one token of each sequence, or some that follow each other: embed -> [ norm, mixer, norm, feed-forward ] x layers -> norm -> head -> logits
//! ```

use std::mem;
use std::ops::Range;
use std::path::PathBuf;

use plans::memory;
use plans::model::LevelKind;

use crate::arena::{ArenaError, LockError, Slab};
use crate::container::ContainerError;
use crate::embedding::EmbeddingError;
use crate::error::{Error, Mismatch};
use crate::feed_forward::{FeedForward, FeedForwardError, Network, Next, Routing};
use crate::fetch::{FetchError, Fetcher, Replay};
use crate::kv::{At, KeyValues};
use crate::level::Level;
use crate::model::config::{Config, Role, RouterInput};
use crate::neurons::{LayerNeurons, NeuronError, Shape, Slots};
use crate::pool::{Pool, PoolError};
use crate::probe::{self, Points, Probe};
use crate::products::{self, Inputs, form_for, pack_in_place, write_products};
use crate::recurrent::States;
use crate::rotary::Rotary;
use crate::routes::Routes;
use crate::stage::{Stage, Traffic};
use crate::stop::Stops;
use crate::weights::Weights;
use kernels::{Form, Input, Kernels, Matrix, Packed, Rotation, dequantise, rms_norm};

mod counters;
mod heads;
mod latent;
mod mixer;
mod resident;
mod rows;
mod start;
#[cfg(test)]
pub(crate) mod tests;

pub use counters::{Counters, Detail, accumulate, detail, detail_mut};
use resident::Resident;
use rows::Rows;

/// Rows of matrices that meet one vector after another.
const TOGETHER: usize = 16;

/// Matrices of a shared expert.
const SHARED: [Role; 3] = [Role::SharedGate, Role::SharedUp, Role::SharedDown];

/// The phases of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Rows one by one, sparse.
    Decode,
    /// All rows together, dense.
    Prefill,
}

/// Why a transformer does not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum TransformerError {
    /// The container.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// Memory.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// Cores.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A neuron, or the table of a layer's neurons.
    #[error(transparent)]
    Neuron(#[from] NeuronError),
    /// A read.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A row of the token embedding.
    #[error(transparent)]
    Embedding(#[from] EmbeddingError),
    /// The device could not be opened as the plan says.
    #[error("cannot open {path} for {how} reads: {source}; plan for the file system it is on")]
    Open {
        /// The container.
        path: PathBuf,
        /// `direct` or `buffered`.
        how: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The plan reads through `io_uring`, and the kernel or the container that this process is in does not let it.
    #[error("io_uring is refused here: {source}; plan with a device profile made here")]
    Refused {
        /// The system's reason.
        source: std::io::Error,
    },
    /// A plan that this container or machine cannot follow.
    #[error("the plan's {key} {problem}; make the plan again with `plan`")]
    Plan {
        /// The plan's key.
        key: &'static str,
        /// The fault of the key's value.
        problem: String,
    },
    /// A token that does not exist.
    #[error("token {token} is not one of the model's {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Tokens that the model has.
        vocabulary: usize,
    },
    /// More tokens than the plan has room for.
    #[error(
        "position {position} is beyond the plan's context of {context} tokens; plan with a larger --context"
    )]
    Context {
        /// The position.
        position: usize,
        /// The plan's context.
        context: usize,
    },
    /// A stop was requested.
    #[error("stopped on request")]
    Stopped,
}

impl From<FeedForwardError> for TransformerError {
    fn from(error: FeedForwardError) -> Self {
        match error {
            FeedForwardError::Neuron(error) => error.into(),
            FeedForwardError::Fetch(error) => error.into(),
        }
    }
}

/// The transformer's errors as an embedder sees them.
impl From<TransformerError> for Error {
    fn from(error: TransformerError) -> Self {
        match error {
            TransformerError::Plan { key, problem } => Mismatch::Key { key, problem }.into(),
            TransformerError::Pool(_)
            | TransformerError::Open { .. }
            | TransformerError::Refused { .. }
            | TransformerError::Neuron(NeuronError::Arena(_))
            | TransformerError::Arena(_) => Mismatch::Refused { source: Box::new(error) }.into(),
            TransformerError::Container(source) => Self::container(source),
            TransformerError::Neuron(NeuronError::Container(source)) => Self::container(source),
            TransformerError::Neuron(NeuronError::Order { ref path, .. }) => {
                Self::Model { path: path.clone(), source: Box::new(error) }
            }
            TransformerError::Fetch(_) | TransformerError::Embedding(_) | TransformerError::Neuron(_) => {
                Self::Read { source: Box::new(error) }
            }
            TransformerError::Token { token, vocabulary } => Self::Token { token, vocabulary },
            TransformerError::Context { position, context } => {
                Self::Context { tokens: position + 1, context }
            }
            TransformerError::Stopped => Self::Stopped,
        }
    }
}

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
    /// The frequencies of [`Config::ropes`].
    rotaries: Vec<Rotary>,
    /// Set by whoever wants an end; looked at before each layer.
    pub(crate) stop: Stops,
    /// Whether the arena is locked in memory.
    lock: Result<(), LockError>,
    kernels: &'static dyn Kernels,
    /// How vectors meet blocks of weights.
    form: Form,
    /// The cores of both stages, and the threads of the one that is on.
    cores: [Vec<u32>; 2],
    pool: Pool,
    phase: Phase,
    weights: Weights,
    level: Level,
    /// How each layer's bundles are cut.
    shapes: Vec<Shape>,
    neurons: Vec<LayerNeurons>,
    slots: Slots,
    fetcher: Fetcher,
    kv: KeyValues,
    /// What layers without keys and values keep.
    states: Option<States>,
    /// The number of each block among those that keep what it keeps.
    kept_at: Box<[usize]>,
    /// The layer of each block whose network's neurons are read.
    layers_of: Box<[Option<usize>]>,
    /// Rotations that a row has room for, of each rotary embedding.
    pairs: usize,
    feed_forward: FeedForward,
    always_on: Vec<u32>,
    chunk: usize,
    /// The part of the cold region that a chunk's rows take.
    prompt_rows: memory::Rows,
    /// The buffers of a token's row, while a prompt's are in use.
    decode_rows: Option<Rows>,
    stamp: u32,
    residual: Slab<f32>,
    normed: Slab<f32>,
    block_output: Slab<f32>,
    projections: Slab<f32>,
    attended: Slab<f32>,
    rotations: Slab<f32>,
    /// The input that the next layer is taken to have.
    next_input: Slab<f32>,
    look_ahead: bool,
    blocking: bool,
    transposes_down: bool,
    logits: Slab<f32>,
    /// Where the rows at hand stand.
    rows: Vec<At>,
    /// Sequences there is room for, and rows of a step.
    sequences: usize,
    step_rows: usize,
    /// Experts that tokens visit in place of those that the router would choose.
    routes: Option<Routes>,
    /// Bytes of weights, and of keys and values, that decoding has read.
    weights_bytes: u64,
    kv_bytes: u64,
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
        assert!(rows.len() <= self.step_rows, "{} rows, and room for {}", rows.len(), self.step_rows);
        for (at, row) in rows.iter().enumerate() {
            let before = rows[..at].iter().rev().find(|before| before.sequence == row.sequence);
            assert!(
                before.is_none_or(|before| before.position + 1 == row.position),
                "one after another: {rows:?}"
            );
            assert!(before.is_none() || self.states.is_none(), "a token of each sequence: {rows:?}");
        }
        self.check(rows)?;
        self.enter(Phase::Decode)?;
        self.feed_forward.clock.begin();
        self.begin_states(rows);
        self.forward(rows)?;
        self.end_states(rows);
        self.heads(0..rows.len());
        self.feed_forward.clock.end(Stage::Head);
        self.weights_bytes += self.weights.bytes_per_token();
        for (layer, a) in self.config.attentions().enumerate() {
            let seen = |row: &Token| row.position + 1 - a.first_seen(row.position);
            self.kv_bytes += rows.iter().map(|row| self.kv.bytes(layer, seen(row))).sum::<u64>();
        }
        let state_bytes = self.states.as_ref().map_or(0, States::bytes_per_token);
        self.kv_bytes += rows.len() as u64 * state_bytes;
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
                each(at, &engine.normed[row * width..][..width]);
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
        self.begin_states(&rows[..1]);
        let mut done = 0;
        for chunk in rows.chunks(self.chunk) {
            self.forward(chunk)?;
            after(self, done..done + chunk.len());
            done += chunk.len();
        }
        self.end_states(&rows[rows.len() - 1..]);
        if let Some(states) = &mut self.states {
            states.keep(rows[0].sequence as usize);
        }
        Ok(())
    }

    /// The logits `[rows, vocabulary]` of the last decode, or, of one, prefill.
    pub(crate) fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Totals since start.
    pub(crate) fn counters(&self) -> Counters {
        let activity = self.feed_forward.activity;
        let traffic = Traffic {
            weights: self.weights_bytes,
            selection: self.feed_forward.selection_bytes,
            kv: self.kv_bytes,
            rows: self.feed_forward.rows_bytes,
        };
        let times = self.feed_forward.clock.times();
        let mut c = Counters { detail: Detail { activity, traffic, times }, ..Counters::default() };
        for layer in &self.neurons {
            let (cache, neurons) = (layer.cache.counters(), layer.slice() as u64);
            c.looked_up += cache.requested * neurons;
            c.hot_hits += cache.hot_hits * neurons;
            c.cold_hits += cache.cold_hits * neurons;
            c.missing += cache.missing * neurons;
        }
        let fetched = self.fetcher.counters();
        let rows = self.weights.embedding_reads();
        (c.reads, c.read_bytes) = (fetched.flash.reads + rows.reads, fetched.flash.bytes + rows.bytes);
        (c.prefetch_reads, c.prefetch_reads_used) = (fetched.prefetch_reads, fetched.prefetch_reads_used);
        (c.prefetch_bytes, c.gap_bytes) = (fetched.prefetch_bytes, fetched.gap_bytes);
        (c.resumed, c.waited) = (fetched.flash.resumed, fetched.waited);
        c
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
        self.routes = routes;
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
        let [hot, cold] = self.slots.bytes();
        let regions = [self.weights.bytes(), hot, cold];
        let memory = regions.into_iter().max_by_key(|region| region.len()).unwrap_or_default();
        probe::measure(points, self.kernels, &self.pool, memory, &mut self.fetcher, &self.stop.engine)
    }

    /// Empties the cold slots, as at start.
    pub(crate) fn clear_cache(&mut self) {
        self.neurons.iter_mut().for_each(|layer| layer.cache.clear_cold());
    }

    /// Sequences that fit.
    pub(crate) fn sequences(&self) -> usize {
        self.sequences
    }

    /// Rows that pass together while decoding.
    pub(crate) fn step_rows(&self) -> usize {
        self.step_rows
    }

    /// Positions that fit, of each.
    pub(crate) fn context(&self) -> usize {
        self.kv.context()
    }

    /// Shapes and constants.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of one position's keys and values in all layers.
    pub(crate) fn kv_bytes_per_token(&self) -> u64 {
        self.kv.bytes_per_token()
    }

    /// Whether there are layers that keep a state in place of keys and values.
    pub(crate) fn is_recurrent(&self) -> bool {
        self.states.is_some()
    }

    /// Lets a sequence begin with the first `positions` of another one.
    pub(crate) fn share(&mut self, from: usize, to: usize, positions: usize) {
        self.kv.share(from, to, positions);
        if let Some(states) = &mut self.states {
            states.share(from, to, positions);
        }
    }

    /// Bytes of a sequence's recurrent state; 0 where there is none.
    pub(crate) fn state_bytes(&self) -> usize {
        self.states.as_ref().map_or(0, States::bytes)
    }

    /// Bytes from `at` on of what a sequence keeps of `positions`: their keys and values, then the recurrent state that is kept.
    pub(crate) fn copy_out(&mut self, sequence: usize, positions: Range<usize>, at: usize, out: &mut [u8]) {
        let (of_kv, state_at) = self.parts(&positions, at, out.len());
        let (kv, state) = out.split_at_mut(of_kv);
        self.kv.copy_out(sequence, positions, at, kv);
        if let Some(states) = self.states.as_mut().filter(|_| !state.is_empty()) {
            states.copy_out(sequence, state_at, state);
        }
    }

    /// Puts back what [`Transformer::copy_out`] gave.
    pub(crate) fn copy_in(&mut self, sequence: usize, positions: Range<usize>, at: usize, bytes: &[u8]) {
        let (of_kv, state_at) = self.parts(&positions, at, bytes.len());
        let ((kv, state), tokens) = (bytes.split_at(of_kv), positions.end);
        self.kv.copy_in(sequence, positions, at, kv);
        if let Some(states) = self.states.as_mut().filter(|_| !state.is_empty()) {
            states.copy_in(sequence, tokens, state_at, state);
        }
    }

    /// How many of `count` bytes from `at` on are keys and values of `positions`, and where the others begin in the state.
    fn parts(&self, positions: &Range<usize>, at: usize, count: usize) -> (usize, usize) {
        let all = positions.len() * self.kv.bytes_per_token() as usize;
        (all.saturating_sub(at).min(count), at.saturating_sub(all))
    }

    fn check(&self, rows: &[Token]) -> Result<(), TransformerError> {
        for &Token { token, sequence, position } in rows {
            assert!((sequence as usize) < self.sequences, "sequence {sequence} of {}", self.sequences);
            if token as usize >= self.config.vocabulary {
                return Err(TransformerError::Token { token, vocabulary: self.config.vocabulary });
            }
            if position >= self.kv.context() {
                return Err(TransformerError::Context { position, context: self.kv.context() });
            }
        }
        Ok(())
    }

    /// Makes the states of the rows' sequences those of before the rows, each the first of its sequence.
    fn begin_states(&mut self, rows: &[Token]) {
        let Some(states) = &mut self.states else { return };
        for row in rows {
            states.begin(row.sequence as usize, row.position);
        }
    }

    /// The states of the rows' sequences are those of after the rows, each the last of its sequence.
    fn end_states(&mut self, rows: &[Token]) {
        let Some(states) = &mut self.states else { return };
        for row in rows {
            states.end(row.sequence as usize, row.position + 1);
        }
    }

    /// Threads of a stage, started when the other stage has other cores, and room for its rows.
    fn enter(&mut self, phase: Phase) -> Result<(), TransformerError> {
        let [decode, prefill] = &self.cores;
        if phase != self.phase && decode != prefill {
            self.pool.move_to(if phase == Phase::Decode { decode } else { prefill })?;
        }
        if phase == Phase::Prefill && self.decode_rows.is_none() {
            let lent = self.slots.lend(self.prompt_rows.bytes() as usize, &mut self.neurons);
            let rows = Rows::cut(lent.cast(), &self.prompt_rows);
            self.decode_rows = Some(self.exchange(rows));
        }
        if phase == Phase::Decode
            && let Some(rows) = self.decode_rows.take()
        {
            let lent = self.exchange(rows).whole();
            self.slots.take_back(lent.cast());
        }
        self.phase = phase;
        Ok(())
    }

    /// Takes these buffers in place of those it has.
    fn exchange(&mut self, rows: Rows) -> Rows {
        Rows {
            residual: mem::replace(&mut self.residual, rows.residual),
            normed: mem::replace(&mut self.normed, rows.normed),
            block_output: mem::replace(&mut self.block_output, rows.block_output),
            projections: mem::replace(&mut self.projections, rows.projections),
            attended: mem::replace(&mut self.attended, rows.attended),
            rotations: mem::replace(&mut self.rotations, rows.rotations),
            of_neurons: self.feed_forward.exchange(rows.of_neurons),
        }
    }

    /// All layers over at most a chunk of rows; the residual stream holds what comes out.
    fn forward(&mut self, rows: &[Token]) -> Result<(), TransformerError> {
        self.stamp = self.stamp.wrapping_add(1);
        self.rows.clear();
        self.rows
            .extend(rows.iter().map(|row| At { sequence: row.sequence as usize, position: row.position }));
        let (c, count) = (&self.config, rows.len());
        let pairs = self.pairs;
        let rotations: &mut [Rotation] = as_rotations(&mut self.rotations);
        for (i, row) in rows.iter().enumerate() {
            let x = &mut self.residual[i * c.width..][..c.width];
            let embedded = self.weights.embed(row.token)?;
            dequantise(embedded.format, embedded.bytes, x);
            scale(x, c.embedding_scale);
            for (rope, rotary) in self.rotaries.iter().enumerate() {
                let rotations = &mut rotations[(rope * count + i) * pairs..][..rotary.pairs()];
                rotary.fill(row.position, rotations);
            }
        }
        for block in 0..self.config.blocks.len() {
            if self.stop.is_stopped() {
                self.fetcher.abandon();
                return Err(TransformerError::Stopped);
            }
            let layer = self.layers_of[block];
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
            if self.phase == Phase::Decode && layer.is_some() {
                self.feed_forward.clock.end(Stage::Attention);
            }
            if let Some(layer) = layer {
                self.feed_forward_block(block, layer, count)?;
            }
            if let Some(factor) = self.weights.values(block, Role::OutputScale) {
                scale(&mut self.residual[..count * self.config.width], factor[0]);
            }
        }
        Ok(())
    }

    /// Routes rows of the residual stream, as it is, if this is what the layer's router reads.
    fn route(&mut self, block: usize, layer: usize, read: RouterInput, rows: usize) {
        let (c, router) = (&self.config, self.config.blocks[block].network().and_then(|n| n.router.as_ref()));
        if router.is_some_and(|router| router.input == read) {
            let routing = routing(c, block, &self.weights, self.kernels, &self.rows, self.routes.as_ref());
            self.feed_forward.route(&routing, layer, &self.residual[..rows * c.width]);
        }
    }

    /// Where the router has chosen before the mixer, what is missing of its experts is read while the mixer works. One row asks for
    /// little at a time; of several each would ask anew.
    fn read_early(&mut self, block: usize, layer: usize, rows: usize) {
        let router = self.config.blocks[block].network().and_then(|network| network.router.as_ref());
        let early = router.is_some_and(|router| router.input == RouterInput::BeforeMixer);
        let whole = self.level.kind() == LevelKind::Dense;
        if early && whole && self.look_ahead && self.phase == Phase::Decode && rows == 1 {
            let (shape, neurons) = (&self.shapes[layer], &self.neurons[layer]);
            self.feed_forward.prefetch_routed(&mut self.fetcher, shape, neurons);
        }
    }

    /// `x += scale * post_norm(ffn(norm(x)))`.
    fn feed_forward_block(
        &mut self,
        block: usize,
        layer: usize,
        rows: usize,
    ) -> Result<(), TransformerError> {
        self.route(block, layer, RouterInput::Normed, rows);
        let c = &self.config;
        let Some(described) = c.blocks[block].network() else { return Ok(()) };
        let norm = self.weights.values(block, described.input_norm());
        norm_rows(c, norm, &self.residual, rows, &mut self.normed);
        let routing = routing(c, block, &self.weights, self.kernels, &self.rows, self.routes.as_ref());
        if described.router.as_ref().is_none_or(|router| router.input == RouterInput::Experts) {
            self.feed_forward.route(&routing, layer, &self.normed[..rows * c.width]);
        }
        let mut network = Network {
            pool: &self.pool,
            kernels: self.kernels,
            form: self.form,
            weights: &self.weights,
            level: &self.level,
            shape: &self.shapes[layer],
            slots: &mut self.slots,
            fetcher: &mut self.fetcher,
            activation: described.activation,
            transposes_down: self.transposes_down,
            routing,
            width: c.width,
            always_on: &self.always_on,
            stamp: self.stamp,
            blocking: self.blocking,
        };
        let elements = rows * c.width;
        let (x, out) = (&mut self.normed[..elements], &mut self.block_output[..elements]);
        let (shared, has_norms) = (described.shared_neurons, described.shared_norms);
        // what takes the same input needs nothing of the experts
        let beside = shared.filter(|_| !has_norms && self.phase == Phase::Decode).and_then(|neurons| {
            let means = (&self.pool, self.kernels, self.form);
            Resident::of(c, &self.weights, means, block, SHARED, neurons)
        });
        let (here, after) = self.neurons[layer..].split_at_mut(1);
        let (here, after) = (&mut here[0], after.first());
        match self.phase {
            Phase::Decode => {
                // what the next layer's router says has nothing to do with a recording; several rows ask for much at once
                let known = self.routes.as_ref().is_none_or(Routes::are_known_ahead);
                let looks_ahead = self.look_ahead && known && rows == 1;
                let next = after.filter(|_| looks_ahead).map(|neurons| {
                    let weight = self.weights.of_network(layer + 1, described.input_norm());
                    norm_rows(c, weight, &self.residual, 1, &mut self.next_input);
                    let (layer, shape) = (layer + 1, &self.shapes[layer + 1]);
                    Next { layer, neurons, shape, x: &self.next_input, stream: &self.residual[..c.width] }
                });
                let (gates, room) = (&mut self.attended[..rows], &mut *self.projections);
                let mut meanwhile = |fetcher: &mut Fetcher, words: &mut [f32]| {
                    if let Some(network) = &beside {
                        network.decode(fetcher, words, x, gates, room);
                    }
                };
                self.feed_forward.decode(&mut network, layer, here, next, &mut meanwhile, x, out)?;
            }
            Phase::Prefill => self.feed_forward.prefill(&mut network, layer, here, x, out)?,
        }
        if let Some(network) = beside {
            network.add_to(out, &self.projections[..elements], &self.attended[..rows], x);
            self.add_network(block, rows);
            return Ok(());
        }
        if has_norms {
            let (weight, out) = (self.weights.values(block, Role::ExpertsPostNorm), &mut self.block_output);
            norm_rows(c, weight, out, rows, &mut self.normed);
            out[..rows * c.width].copy_from_slice(&self.normed[..rows * c.width]);
            norm_rows(c, self.weights.values(block, Role::FfnNorm), &self.residual, rows, &mut self.normed);
        }
        if let Some(neurons) = shared {
            self.add_resident(block, SHARED, neurons, rows);
        }
        self.add_network(block, rows);
        Ok(())
    }

    /// The same of a network that is always in memory.
    fn resident_block(&mut self, block: usize, rows: usize) {
        let c = &self.config;
        let Some(network) = c.blocks[block].resident() else { return };
        let neurons = network.neurons;
        norm_rows(c, self.weights.values(block, Role::FfnNorm), &self.residual, rows, &mut self.normed);
        self.block_output[..rows * c.width].fill(0.0);
        let roles = [Role::ResidentGate, Role::ResidentUp, Role::ResidentDown];
        self.add_resident(block, roles, neurons, rows);
        self.add_network(block, rows);
    }

    /// Adds a network's output to the residual stream.
    fn add_network(&mut self, block: usize, rows: usize) {
        let (c, out) = (&self.config, &self.block_output[..rows * self.config.width]);
        let weight = self.weights.values(block, Role::FfnPostNorm);
        let out = post_normed(c, weight, out, &mut self.normed);
        add(&mut self.residual, out, c.blocks[block].residual_scale);
    }

    /// Adds to the block's output what a network that is always in memory makes of its input, which is lost.
    fn add_resident(&mut self, block: usize, roles: [Role; 3], count: usize, rows: usize) {
        let elements = rows * self.config.width;
        let means = (&self.pool, self.kernels, self.form);
        let Some(network) = Resident::of(&self.config, &self.weights, means, block, roles, count) else {
            return;
        };
        let (x, out) = (&mut self.normed[..elements], &mut self.block_output[..elements]);
        let (gates, room) = (&mut self.attended[..rows], &mut *self.projections);
        match self.phase {
            Phase::Decode => {
                network.decode(&mut self.fetcher, &mut self.feed_forward.rounded[0], x, gates, room);
                network.add_to(out, &room[..elements], gates, x);
            }
            Phase::Prefill => {
                network.prefill(x, gates, room);
                network.add_to(out, x, gates, &mut room[..elements]);
            }
        }
    }

    /// `hidden = norm(x[row])` of some rows, from the beginning of `normed` on.
    fn norm_last(&mut self, rows: Range<usize>) {
        let c = &self.config;
        let x = &self.residual[rows.start * c.width..rows.end * c.width];
        for (x, normed) in x.chunks_exact(c.width).zip(self.normed.chunks_exact_mut(c.width)) {
            rms_norm(x, self.weights.output_norm(), c.norm_epsilon, normed);
        }
    }

    /// `logits = softcap(scale * head(norm(x[row])))` of some rows.
    fn heads(&mut self, rows: Range<usize>) {
        self.norm_last(rows.clone());
        let c = &self.config;
        let normed = &mut self.normed[..rows.len() * c.width];
        let x = Inputs::new(normed, c.width, self.form, &mut self.feed_forward.rounded[0]);
        let (parts, logits) = ([self.weights.output()], &mut self.logits[..rows.len() * c.vocabulary]);
        times(&self.pool, &mut self.fetcher, self.kernels, &parts, x, logits);
        scale(logits, c.logit_scale);
        if let Some(bound) = c.logit_softcap {
            logits.iter_mut().for_each(|logit| *logit = bound * (*logit / bound).tanh());
        }
    }
}

/// Several matrices times each of a few vectors: `out[row] = [parts[0] x[row] | parts[1] x[row] | ...]`. Threads share the
/// matrices' rows; what was prefetched completes meanwhile, and makes room for more.
fn times(
    pool: &Pool,
    fetcher: &mut Fetcher,
    kernels: &dyn Kernels,
    parts: &[Matrix<'_>],
    x: Inputs<'_>,
    out: &mut [f32],
) {
    let product = |x: Input<'_>, mut start: usize, mut out: &mut [f32]| {
        for part in parts {
            let here = part.rows.saturating_sub(start).min(out.len());
            let (rows, rest) = out.split_at_mut(here);
            if here > 0 {
                x.rows(kernels, *part, start, rows);
            }
            (start, out) = (start.saturating_sub(part.rows), rest);
        }
    };
    if x.count() == 1 {
        return pool.share_rows(out, || fetcher.poll(), |start, out| product(x.row(0), start, out));
    }
    fetcher.poll();
    // a few rows of the matrices, which then are in the cache, meet all vectors
    let columns = out.len() / x.count();
    pool.share_columns(
        out,
        columns,
        TOGETHER,
        || (),
        |out| {
            let range = out.range();
            for start in range.clone().step_by(TOGETHER) {
                let end = range.end.min(start + TOGETHER);
                for row in 0..x.count() {
                    product(x.row(row), start, &mut out.row(row)[start - range.start..end - range.start]);
                }
            }
        },
    );
}

/// Several matrices times many vectors, side by side: `out[row] = [parts[0] x[row] | parts[1] x[row] | ...]`. Leaves
/// the vectors packed; `spare` is as large as they are.
fn times_prompt(
    pool: &Pool,
    kernels: &dyn Kernels,
    form: Form,
    parts: &[Matrix<'_>],
    x: &mut [f32],
    spare: &mut [f32],
    out: &mut [f32],
) {
    let (columns, stride) = (parts[0].columns, parts.iter().map(|part| part.rows).sum::<usize>());
    let form = form_for(form, parts.iter().map(|part| part.format));
    let x: Packed<'_> = pack_in_place(pool, form, columns, x, spare);
    pool.share_columns(
        out,
        stride,
        products::ROWS,
        || (),
        |out| {
            write_products(kernels, |at| row_of(parts, at), x, out);
        },
    );
}

/// Row `at` of matrices that stand one below the other.
fn row_of<'a>(parts: &[Matrix<'a>], mut at: usize) -> kernels::Row<'a> {
    for part in parts {
        if at < part.rows {
            return part.row(at);
        }
        at -= part.rows;
    }
    panic!("row {at} below the last matrix");
}

/// Rows of the residual stream, normalised where there is a norm.
fn norm_rows(c: &Config, weight: Option<&[f32]>, x: &[f32], rows: usize, out: &mut [f32]) {
    let Some(weight) = weight else {
        return out[..rows * c.width].copy_from_slice(&x[..rows * c.width]);
    };
    for (x, out) in x.chunks_exact(c.width).zip(out.chunks_exact_mut(c.width)).take(rows) {
        rms_norm(x, weight, c.norm_epsilon, out);
    }
}

/// A part's output, normalised in `spare` where there is a norm.
fn post_normed<'a>(c: &Config, weight: Option<&[f32]>, out: &'a [f32], spare: &'a mut [f32]) -> &'a [f32] {
    if weight.is_none() {
        return out;
    }
    norm_rows(c, weight, out, out.len() / c.width, spare);
    &spare[..out.len()]
}

/// `x += factor * y`.
fn add(x: &mut [f32], y: &[f32], factor: f32) {
    if factor == 1.0 {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    } else {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
    }
}

fn scale(x: &mut [f32], factor: f32) {
    if factor != 1.0 {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

/// What routing rows to a block's experts takes.
fn routing<'a>(
    c: &'a Config,
    block: usize,
    weights: &'a Weights,
    kernels: &'static dyn Kernels,
    rows: &'a [At],
    routes: Option<&'a Routes>,
) -> Routing<'a> {
    let router = c.blocks[block].network().and_then(|network| network.router.as_ref());
    Routing { kernels, weights, router, epsilon: c.norm_epsilon, rows, routes }
}

/// Two numbers are a rotation.
fn as_rotations(values: &mut [f32]) -> &mut [Rotation] {
    bytemuck::cast_slice_mut(values)
}
