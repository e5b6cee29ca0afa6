//! The engine: a plan in execution. The life of a token.
//!
//! ```text
//! start    every region of the plan is taken at once and filled: fixed, level, hot; no region grows after
//! prefill  the prompt in chunks, dense, layer by layer, weights unpacked once a chunk; neurons not in memory stream past in large reads
//! decode   one token: embed -> [ norm, attention, norm, feed-forward ] x layers -> norm -> head -> logits
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

use plans::layout::{Part, Phases};
use plans::memory::{self, Activations};
use plans::model::LevelKind;
use plans::plan::kv_value_bytes;
use plans::{Backend, PAGE_BYTES, Plan};

use crate::account::{Account, Stage as Time, Times, Traffic};
use crate::arena::{Align, Arena, ArenaError, LockError, Slab};
use crate::attention::{Order, attend};
use crate::cache::Place;
use crate::container::{Container, ContainerError};
use crate::embedding::{EmbeddingError, EmbeddingRows};
use crate::feed_forward::{Activity, FeedForward, Network, Next, Prompt};
use crate::fetch::{FetchError, Fetcher, Steps};
use crate::flash::{self, Flash};
use crate::format::Format;
use crate::kernels::{
    Form, Input, InstructionSet, Kernels, Matrix, Packed, Rotation, by_name, dequantise, rms_norm, rope,
    rotations,
};
use crate::kv::{Half, KeyValues};
use crate::level::Level;
use crate::model::config::Config;
use crate::neurons::{LayerNeurons, Shape, Slots};
use crate::pool::{Pool, PoolError};
use crate::products::{self, form_for, pack_in_place, write_products};
use crate::weights::Weights;

#[cfg(test)]
mod tests;

/// What the engine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Rows one by one, sparse.
    Decode,
    /// All rows together, dense.
    Prefill,
}

/// Why an engine does not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The container.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// Memory.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// Cores.
    #[error(transparent)]
    Pool(#[from] PoolError),
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
        /// What is wrong with it.
        problem: String,
    },
    /// A neuron's bytes are not those that were written.
    #[error(
        "neuron {position} of layer {layer} (byte {offset} of the container) does not match its checksum: the file is damaged or was replaced; copy or make it again"
    )]
    Neuron {
        /// Layer.
        layer: usize,
        /// Position.
        position: u32,
        /// Where it lies.
        offset: u64,
    },
    /// An order of neurons that is none.
    #[error(
        "{path}: the neuron order of layer {layer} names a neuron twice; make it again with `profile --model`"
    )]
    Order {
        /// The container.
        path: PathBuf,
        /// Layer.
        layer: usize,
    },
    /// A token that does not exist.
    #[error("token {token} is not one of the model's {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Tokens there are.
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
}

/// One row of a batch: a token at a position of a sequence. There is one sequence today, number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Which token.
    pub token: u32,
    /// Which sequence.
    pub sequence: u32,
    /// Tokens of the sequence before it.
    pub position: usize,
}

/// Hears the number of a row and the logits `[vocabulary]` after it.
pub type Each<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// Totals since start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Neurons asked for and computed while decoding.
    pub activity: Activity,
    /// What that took through memory.
    pub traffic: Traffic,
    /// Neurons looked up while decoding.
    pub looked_up: u64,
    /// Of them pinned.
    pub hot_hits: u64,
    /// Of them in a cold slot.
    pub cold_hits: u64,
    /// Of them read.
    pub missing: u64,
    /// Reads of decode and prefill.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Of the reads, those started for the next layer before it asked.
    pub foretold: u64,
    /// Their bytes.
    pub foretold_bytes: u64,
    /// Those of them that it asked for.
    pub foretold_used: u64,
    /// Of all bytes read, those between two neurons that were wanted or foretold.
    pub gap_bytes: u64,
    /// Reads that came back short or interrupted, and went on.
    pub resumed: u64,
    /// Time in which nothing was computed because nothing had landed.
    pub waited: Duration,
    /// Where the time of decoding went.
    pub times: Times,
}

impl Counters {
    /// What has happened since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            waited: self.waited.saturating_sub(earlier.waited),
            times: self.times.since(&earlier.times),
            ..self.with(earlier, |now, then| now - then)
        }
    }

    /// Counts what `other` has counted, too.
    pub fn add(&mut self, other: &Self) {
        let (waited, mut times) = (self.waited + other.waited, self.times);
        times.add(&other.times);
        *self = Self { waited, times, ..self.with(other, |one, other| one + other) };
    }

    /// Every number of both; the times are `self`'s.
    fn with(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        let (a, b) = (&self.activity, &other.activity);
        let (t, u) = (&self.traffic, &other.traffic);
        Self {
            activity: Activity {
                routed: of(a.routed, b.routed),
                asked: of(a.asked, b.asked),
                fired: of(a.fired, b.fired),
                active: of(a.active, b.active),
            },
            traffic: Traffic {
                weights: of(t.weights, u.weights),
                naming: of(t.naming, u.naming),
                kv: of(t.kv, u.kv),
                rows: of(t.rows, u.rows),
            },
            looked_up: of(self.looked_up, other.looked_up),
            hot_hits: of(self.hot_hits, other.hot_hits),
            cold_hits: of(self.cold_hits, other.cold_hits),
            missing: of(self.missing, other.missing),
            reads: of(self.reads, other.reads),
            read_bytes: of(self.read_bytes, other.read_bytes),
            foretold: of(self.foretold, other.foretold),
            foretold_bytes: of(self.foretold_bytes, other.foretold_bytes),
            foretold_used: of(self.foretold_used, other.foretold_used),
            gap_bytes: of(self.gap_bytes, other.gap_bytes),
            resumed: of(self.resumed, other.resumed),
            waited: self.waited,
            times: self.times,
        }
    }

    /// Share of the neurons looked up that were in memory; 1 if none was.
    pub fn hit_fraction(&self) -> f64 {
        if self.looked_up == 0 {
            return 1.0;
        }
        (self.hot_hits + self.cold_hits) as f64 / self.looked_up as f64
    }
}

/// A plan in execution.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    /// Whether the arena is locked in memory.
    lock: Result<(), LockError>,
    kernels: &'static dyn Kernels,
    /// How vectors meet blocks of weights.
    form: Form,
    /// The cores of both stages, and the threads of the one that is on.
    cores: [Vec<u32>; 2],
    pool: Pool,
    stage: Stage,
    weights: Weights,
    level: Level,
    shape: Shape,
    neurons: Vec<LayerNeurons>,
    slots: Slots,
    fetcher: Fetcher,
    kv: KeyValues,
    feed_forward: FeedForward,
    always_on: Vec<u32>,
    chunk: usize,
    stamp: u32,
    residual: Slab<f32>,
    normed: Slab<f32>,
    block_output: Slab<f32>,
    projections: Slab<f32>,
    attended: Slab<f32>,
    turns: Slab<f32>,
    /// What the next layer's input is taken to be.
    foreseen: Slab<f32>,
    look_ahead: bool,
    blocking: bool,
    logits: Slab<f32>,
    positions: Vec<usize>,
    /// Bytes of weights, and of keys and values, that decoding has read.
    weights_bytes: u64,
    kv_bytes: u64,
}

impl Engine {
    /// Takes every region of the plan and fills those that are filled at start.
    ///
    /// # Errors
    /// If the plan does not fit the container, or memory, cores or the file refuse.
    pub fn start(container: &Container, plan: &Plan) -> Result<Self, EngineError> {
        let open = || {
            flash::open(&container.path, plan.read.direct).map_err(|source| EngineError::Open {
                path: container.path.clone(),
                how: if plan.read.direct { "direct" } else { "buffered" },
                source,
            })
        };
        let r = &plan.read;
        let (depth, buffers) = (r.depth as usize, r.buffers as usize);
        let device = flash::open_backend(r.backend, open()?, r.direct, depth, buffers, &plan.decode.io_cores)
            .map_err(|source| match r.backend {
                Backend::Pread => {
                    plan_error("decode.io_cores", format!("cannot be used for reading: {source}"))
                }
                Backend::IoUring => EngineError::Refused { source },
            })?;
        Self::start_on(container, plan, &open()?, device)
    }

    /// [`Engine::start`] with neurons read through `device`.
    ///
    /// # Errors
    /// As there.
    pub fn start_on(
        container: &Container,
        plan: &Plan,
        file: &File,
        device: Box<dyn Flash>,
    ) -> Result<Self, EngineError> {
        let d = &container.directory;
        let config = d.config.clone();
        let entry = container.level(&plan.quality.level).ok_or_else(|| {
            plan_error("quality.level", format!("{} is not in the container", plan.quality.level))
        })?;
        let set: InstructionSet = plan
            .quality
            .instruction_set
            .parse()
            .map_err(|error| plan_error("quality.instruction_set", format!("is unknown: {error}")))?;
        let kernels = by_name(set).ok_or_else(|| {
            plan_error("quality.instruction_set", format!("{set} is not on this processor"))
        })?;
        let shape = Shape::new(container, memory::slot_part(entry.kind));
        let sizes = Sizes::checked(container, plan, &shape)?;

        // the tables' own pages are gone again before the arena is taken
        let mut neurons = LayerNeurons::load_all(container, file, &plan.cache)?;
        let mut arena = Arena::new(sizes.arena_bytes())?;
        let lock = arena.lock();
        let mut fixed = arena.take::<u8>(sizes.fixed_bytes, Align::Page)?;
        let level_region = fixed.split_off(sizes.weights_bytes);
        let mut slots = Slots::new(
            arena.take(sizes.hot_bytes, Align::Page)?,
            arena.take(sizes.cold_bytes, Align::Page)?,
            &plan.cache.hot_neurons,
            &plan.cache.cold_slots,
            &shape,
        );
        let mut kv_region = arena.take(sizes.kv_bytes, Align::Page)?;
        let mut buffers = (0..plan.read.buffers)
            .map(|_| arena.take(plan.read.buffer_bytes as usize, Align::Page))
            .collect::<Result<Vec<_>, _>>()?;

        let embedding_rows = match sizes.embedding_buffer_bytes {
            0 => None,
            bytes => {
                let file = file
                    .try_clone()
                    .map_err(|source| ContainerError::Io { path: container.path.clone(), source })?;
                EmbeddingRows::new(container, file, arena.take(bytes, Align::Page)?)
            }
        };
        // no token has keys and values yet
        let scratch = scratch_of(&mut kv_region, &mut buffers[0]);
        let weights = Weights::load(container, kernels, file, embedding_rows, scratch, fixed)?;
        let mut level = Level::load(container, kernels, entry, file, level_region)?;
        fill(container, file, &shape, &mut neurons, &mut level, &mut slots, scratch)?;
        let kv = KeyValues::new(
            kv_region,
            if kv_value_bytes(&plan.quality.kv_format) == 4 { Format::F32 } else { Format::F16 },
            config.kv_heads,
            config.head_width,
            plan.context.tokens as usize,
        );
        if !plan.read.direct {
            // what was read at start is in memory twice otherwise, and the page cache's half counts as ours
            let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
        }
        let look_ahead = plan.read.look_ahead as usize;
        let fetcher = Fetcher::new(device, buffers, plan.read.gap_bytes, look_ahead, sizes.steps);

        let a = sizes.activations;
        let mut floats = |elements: u64| arena.take::<f32>(elements as usize, Align::Line);
        let (residual, normed, block_output) =
            (floats(a.residual)?, floats(a.normed)?, floats(a.block_output)?);
        let (projections, attended, turns, foreseen) =
            (floats(a.projections)?, floats(a.attended)?, floats(a.rotations)?, floats(a.foreseen)?);
        let (router, logits, values) = (floats(a.router)?, floats(a.logits)?, floats(a.neurons)?);
        let sums = floats(a.sums)?;
        let hidden = floats(a.predictor / 2)?;
        let rounded = [floats(a.rounded / 2)?, floats(a.rounded / 2)?];
        let prompt = Prompt::new(
            plan.prefill_cluster_neurons() as usize,
            config.experts,
            arena.take(a.members as usize, Align::Line)?,
            arena.take(a.gathered as usize, Align::Line)?,
        );
        let feed_forward = FeedForward {
            cluster_neurons: plan.decode.cluster_neurons as usize,
            router,
            named: arena.take(a.candidates as usize / 2, Align::Line)?,
            scores: arena.take(a.candidates as usize / 2, Align::Line)?,
            hidden,
            rounded,
            signs: arena.take(a.predictor as usize / 4, Align::Line)?,
            asked: arena.take(a.asked as usize / 4, Align::Line)?,
            places: vec![Place::Missing; a.asked as usize / 4],
            order: arena.take(a.asked as usize / 4, Align::Line)?,
            values,
            sums,
            prompt,
            activity: Activity::default(),
            naming_bytes: 0,
            account: Account::default(),
        };
        let cores = [plan.decode.compute_cores.clone(), plan.prefill.compute_cores.clone()];
        Ok(Self {
            lock,
            pool: Pool::new(&cores[0])?,
            cores,
            stage: Stage::Decode,
            chunk: plan.prefill.chunk_tokens as usize,
            positions: Vec::with_capacity(plan.prefill.chunk_tokens as usize),
            always_on: plan.quality.always_on_neurons.clone(),
            stamp: 0,
            config,
            kernels,
            form: if plan.quality.activations == "q8" { Form::Q8 } else { Form::F32 },
            weights,
            level,
            shape,
            neurons,
            slots,
            fetcher,
            kv,
            feed_forward,
            residual,
            normed,
            block_output,
            projections,
            attended,
            turns,
            foreseen,
            look_ahead: look_ahead > 0,
            blocking: plan.read.blocking,
            logits,
            weights_bytes: 0,
            kv_bytes: 0,
        })
    }

    /// One token, sparse: the logits `[vocabulary]` after it. `rows` is one row today.
    ///
    /// # Errors
    /// If the token or its position is impossible, or a read fails.
    pub fn decode(&mut self, rows: &[Token]) -> Result<&[f32], EngineError> {
        self.check(rows)?;
        self.enter(Stage::Decode)?;
        self.feed_forward.account.begin();
        self.forward(rows)?;
        self.head(rows.len() - 1);
        self.feed_forward.account.end(Time::Head);
        self.weights_bytes += self.weights.bytes_per_token();
        self.kv_bytes +=
            rows.iter().map(|row| self.kv.bytes(row.position + 1, self.config.layers)).sum::<u64>();
        Ok(&self.logits)
    }

    /// The tokens of a prompt, dense, a chunk at a time: the logits after the last. `each` hears those after every
    /// token; without it they are not computed.
    ///
    /// # Errors
    /// As [`Engine::decode`].
    ///
    /// # Panics
    /// If there are no rows.
    pub fn prefill(&mut self, rows: &[Token], mut each: Option<Each<'_>>) -> Result<&[f32], EngineError> {
        assert!(!rows.is_empty(), "a prompt has a token");
        self.check(rows)?;
        self.enter(Stage::Prefill)?;
        let mut done = 0;
        for chunk in rows.chunks(self.chunk) {
            self.forward(chunk)?;
            if let Some(each) = &mut each {
                for row in 0..chunk.len() {
                    self.head(row);
                    each(done + row, &self.logits);
                }
            } else if done + chunk.len() == rows.len() {
                self.head(chunk.len() - 1);
            }
            done += chunk.len();
        }
        Ok(&self.logits)
    }

    /// The logits `[vocabulary]` of the last decode or prefill.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Totals since start.
    pub fn counters(&self) -> Counters {
        let activity = self.feed_forward.activity;
        let traffic = Traffic {
            weights: self.weights_bytes,
            naming: self.feed_forward.naming_bytes,
            kv: self.kv_bytes,
            rows: self.shape.rows_bytes(&activity),
        };
        let mut c = Counters { activity, traffic, ..Counters::default() };
        for layer in &self.neurons {
            let cache = layer.cache.counters();
            c.looked_up += cache.asked;
            c.hot_hits += cache.hot_hits;
            c.cold_hits += cache.cold_hits;
            c.missing += cache.missing;
        }
        let fetched = self.fetcher.counters();
        let rows = self.weights.embedding_reads();
        (c.reads, c.read_bytes) = (fetched.flash.reads + rows.reads, fetched.flash.bytes + rows.bytes);
        (c.foretold, c.foretold_used) = (fetched.foretold, fetched.foretold_used);
        (c.foretold_bytes, c.gap_bytes) = (fetched.foretold_bytes, fetched.gap_bytes);
        (c.resumed, c.waited) = (fetched.flash.resumed, fetched.waited);
        c.times = self.feed_forward.account.times();
        c
    }

    /// Whether the regions can never be paged out, or why they can.
    pub fn lock(&self) -> &Result<(), LockError> {
        &self.lock
    }

    /// How flash is read, for the report.
    pub fn flash(&self) -> String {
        self.fetcher.describe()
    }

    /// Empties the cold slots, as at start.
    pub fn forget_cold(&mut self) {
        self.neurons.iter_mut().for_each(|layer| layer.cache.clear_cold());
    }

    /// Positions that fit.
    pub fn context(&self) -> usize {
        self.kv.context()
    }

    /// Shapes and constants.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn check(&self, rows: &[Token]) -> Result<(), EngineError> {
        for &Token { token, sequence, position } in rows {
            assert_eq!(sequence, 0, "there is one sequence");
            if token as usize >= self.config.vocabulary {
                return Err(EngineError::Token { token, vocabulary: self.config.vocabulary });
            }
            if position >= self.kv.context() {
                return Err(EngineError::Context { position, context: self.kv.context() });
            }
        }
        Ok(())
    }

    /// Threads of a stage, started when the other stage has other cores.
    fn enter(&mut self, stage: Stage) -> Result<(), EngineError> {
        let [decode, prefill] = &self.cores;
        if stage != self.stage && decode != prefill {
            self.pool.move_to(if stage == Stage::Decode { decode } else { prefill })?;
        }
        self.stage = stage;
        Ok(())
    }

    /// All layers over at most a chunk of rows; the residual stream holds what comes out.
    fn forward(&mut self, rows: &[Token]) -> Result<(), EngineError> {
        self.stamp = self.stamp.wrapping_add(1);
        self.positions.clear();
        self.positions.extend(rows.iter().map(|row| row.position));
        let (c, count) = (&self.config, rows.len());
        let pairs = c.rope_width / 2;
        let turns: &mut [Rotation] = as_rotations(&mut self.turns);
        for (i, row) in rows.iter().enumerate() {
            let x = &mut self.residual[i * c.width..][..c.width];
            let embedded = self.weights.embed(row.token)?;
            dequantise(embedded.format, embedded.bytes, x);
            rotations(c.rope_base, row.position, &mut turns[i * pairs..][..pairs]);
        }
        for layer in 0..c.layers {
            self.attention_block(layer, count);
            if self.stage == Stage::Decode {
                self.feed_forward.account.end(Time::Attention);
            }
            self.feed_forward_block(layer, count)?;
        }
        Ok(())
    }

    /// `x += output(attention(norm(x)))`.
    fn attention_block(&mut self, layer: usize, rows: usize) {
        let (c, w, pool, kernels) = (&self.config, &self.weights, &self.pool, self.kernels);
        let (query, kv) = (c.query_width(), c.kv_width());
        let stride = query + 2 * kv;
        norm_rows(c, w.attention_norm(layer), &self.residual, rows, &mut self.normed);
        let projections = &mut self.projections[..rows * stride];
        let parts = [w.query(layer), w.key(layer), w.value(layer)];
        let normed = &mut self.normed[..rows * c.width];
        if self.stage == Stage::Decode {
            let (round, words) = (self.form == Form::Q8, &mut self.feed_forward.rounded[0]);
            times(pool, &mut self.fetcher, kernels, &parts, Input::new(normed, round, words), projections);
        } else {
            times_prompt(pool, kernels, self.form, &parts, normed, &mut self.block_output, projections);
        }

        let pairs = c.rope_width / 2;
        let turns: &[Rotation] = as_rotations(&mut self.turns);
        for (row, values) in projections.chunks_exact_mut(stride).enumerate() {
            let turns = &turns[row * pairs..][..pairs];
            rope(&mut values[..query + kv], c.head_width, turns);
            let (key, value) = values[query..].split_at(kv);
            self.kv.store(layer, Half::Key, self.positions[row], key);
            self.kv.store(layer, Half::Value, self.positions[row], value);
        }
        let attended = &mut self.attended[..rows * query];
        let order = if self.stage == Stage::Decode { Order::OneByOne } else { Order::Tiles };
        attend(pool, kernels, c, &self.kv, layer, &self.positions, projections, order, attended);
        let out = &mut self.block_output[..rows * c.width];
        let parts = [w.attention_output(layer)];
        if self.stage == Stage::Decode {
            let (round, words) = (self.form == Form::Q8, &mut self.feed_forward.rounded[0]);
            times(pool, &mut self.fetcher, kernels, &parts, Input::new(attended, round, words), out);
        } else {
            times_prompt(pool, kernels, self.form, &parts, attended, &mut self.projections, out);
        }
        add(&mut self.residual, out);
    }

    /// `x += ffn(norm(x))`.
    fn feed_forward_block(&mut self, layer: usize, rows: usize) -> Result<(), EngineError> {
        let c = &self.config;
        norm_rows(c, self.weights.ffn_norm(layer), &self.residual, rows, &mut self.normed);
        let mut network = Network {
            pool: &self.pool,
            kernels: self.kernels,
            form: self.form,
            weights: &self.weights,
            level: &self.level,
            shape: &self.shape,
            slots: &mut self.slots,
            fetcher: &mut self.fetcher,
            activation: c.activation,
            experts_used: c.experts_used,
            width: c.width,
            always_on: &self.always_on,
            stamp: self.stamp,
            blocking: self.blocking,
        };
        let (x, out) = (&mut self.normed[..rows * c.width], &mut self.block_output[..rows * c.width]);
        let (here, after) = self.neurons[layer..].split_at_mut(1);
        let (here, after) = (&mut here[0], after.first());
        match self.stage {
            Stage::Decode => {
                let next = after.filter(|_| self.look_ahead).map(|neurons| {
                    let weight = self.weights.ffn_norm(layer + 1);
                    norm_rows(c, weight, &self.residual, 1, &mut self.foreseen);
                    Next { layer: layer + 1, neurons, x: &self.foreseen }
                });
                self.feed_forward.decode(&mut network, layer, here, next, x, out)?;
            }
            Stage::Prefill => self.feed_forward.prefill(&mut network, layer, here, x, out)?,
        }
        add(&mut self.residual, out);
        Ok(())
    }

    /// `logits = head(norm(x[row]))`.
    fn head(&mut self, row: usize) {
        let c = &self.config;
        let x = &self.residual[row * c.width..][..c.width];
        let normed = &mut self.normed[..c.width];
        rms_norm(x, self.weights.output_norm(), c.norm_epsilon, normed);
        let words = &mut self.feed_forward.rounded[0];
        let x = Input::new(normed, self.form == Form::Q8, words);
        let parts = [self.weights.output()];
        times(&self.pool, &mut self.fetcher, self.kernels, &parts, x, &mut self.logits);
    }
}

/// The regions in bytes, after the plan has been compared with what its choices need.
struct Sizes {
    fixed_bytes: usize,
    /// The part of it that is not the level's.
    weights_bytes: usize,
    /// Where rows of the embedding land, if they are read.
    embedding_buffer_bytes: usize,
    hot_bytes: usize,
    cold_bytes: usize,
    kv_bytes: usize,
    io_buffers_bytes: u64,
    activations: Activations,
    /// How decoding reads a neuron.
    steps: Steps,
}

impl Sizes {
    fn checked(container: &Container, plan: &Plan, shape: &Shape) -> Result<Self, EngineError> {
        let d = &container.directory;
        let architecture = d.architecture();
        let (layers, neurons) = (d.config.layers, container.neurons());
        let entry = container.level(&plan.quality.level);
        if entry.is_none_or(|entry| entry.kind != plan.quality.kind) {
            return Err(plan_error("quality.kind", "is not that of the container's level".to_owned()));
        }
        if plan.quality.kind == LevelKind::ExactGate && d.config.activation.fires(-1.0) {
            return Err(plan_error(
                "quality.kind",
                "is exact-gate, and this model's neurons fire below zero".to_owned(),
            ));
        }
        if plan.quality.always_on_neurons.len() != layers {
            return Err(plan_error("quality.always_on_neurons", format!("do not name {layers} layers")));
        }
        for layer in 0..layers {
            let (hot, cold) = (plan.cache.hot_neurons[layer] as usize, plan.cache.cold_slots[layer] as usize);
            let always_on = plan.quality.always_on_neurons[layer] as usize;
            if always_on > neurons {
                return Err(plan_error(
                    "quality.always_on_neurons",
                    format!("name {always_on} of layer {layer}'s {neurons} neurons"),
                ));
            }
            if hot + cold > neurons {
                return Err(plan_error(
                    "cache",
                    format!("gives layer {layer} {hot} pinned neurons and {cold} slots of {neurons}"),
                ));
            }
        }
        if plan.context.tokens as usize > d.config.context {
            return Err(plan_error(
                "context.tokens",
                format!("is {}, and the model was made for {}", plan.context.tokens, d.config.context),
            ));
        }
        let longest = (0..PAGE_BYTES)
            .map(|position| shape.layout.span(position, Part::Whole).pages().bytes)
            .max()
            .unwrap_or(0);
        if plan.read.buffer_bytes < longest {
            return Err(plan_error(
                "read.buffer_bytes",
                format!("is {}, and one neuron takes {longest}", plan.read.buffer_bytes),
            ));
        }
        let phases = plan.read.phases;
        let spans = shape.layout.steps(shape.part, phases).ok_or_else(|| {
            plan_error("read.phases", format!("is {}, and this container's bundles have none", phases.name()))
        })?;
        let asks = phases != Phases::Whole && shape.part == Part::Whole;
        let level_bytes = entry.map_or(0, |entry| container.level_resident_bytes(entry));
        let choices = memory::choices_of(plan, level_bytes);
        let activations = Activations::new(&architecture, &choices);
        let slots = |counts: &[u32]| {
            counts.iter().map(|&count| u64::from(count)).sum::<u64>() * shape.slot_bytes() as u64
        };
        let rows = plan.read.embedding_rows;
        let (left, row_buffer) = match EmbeddingRows::needs(container) {
            _ if !rows => (0, 0),
            Some(needs) => needs,
            None => {
                return Err(plan_error(
                    "read.embedding_rows",
                    "is true, and this container's embedding must be in memory: it is the head, too"
                        .to_owned(),
                ));
            }
        };
        let weights_bytes = d.fixed.bytes.saturating_sub(left);
        let fixed = weights_bytes + level_bytes;
        let kv = choices
            .context_tokens
            .saturating_mul(memory::kv_bytes_per_token(&architecture, choices.kv_value_bytes));
        let m = &plan.memory;
        for (key, planned, needed) in [
            ("memory.fixed_bytes", m.fixed_bytes, fixed),
            ("memory.hot_bytes", m.hot_bytes, slots(&plan.cache.hot_neurons)),
            ("memory.cold_bytes", m.cold_bytes, slots(&plan.cache.cold_slots)),
            ("memory.kv_bytes", m.kv_bytes, kv),
            ("memory.activations_bytes", m.activations_bytes, activations.bytes()),
            ("memory.tables_bytes", m.tables_bytes, memory::tables_bytes(&architecture, &choices)),
            (
                "memory.io_buffers_bytes",
                m.io_buffers_bytes,
                u64::from(plan.read.buffers)
                    .saturating_mul(plan.read.buffer_bytes)
                    .saturating_add(row_buffer),
            ),
        ] {
            let needed = needed.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
            if planned != needed {
                return Err(plan_error(key, format!("is {planned}, and its choices need {needed}")));
            }
        }
        Ok(Self {
            fixed_bytes: fixed as usize,
            weights_bytes: weights_bytes as usize,
            embedding_buffer_bytes: row_buffer as usize,
            hot_bytes: m.hot_bytes as usize,
            cold_bytes: m.cold_bytes as usize,
            kv_bytes: m.kv_bytes as usize,
            io_buffers_bytes: m.io_buffers_bytes,
            activations,
            steps: Steps { spans, asks },
        })
    }

    /// What the arena holds. The tables and the places of the neurons asked for are on the heap: half of `asked`.
    fn arena_bytes(&self) -> u64 {
        (self.fixed_bytes as u64).next_multiple_of(PAGE_BYTES)
            + (self.hot_bytes + self.cold_bytes + self.kv_bytes) as u64
            + self.io_buffers_bytes
            + (self.activations.bytes() - self.activations.asked / 4 * 8).next_multiple_of(PAGE_BYTES)
    }
}

/// What is read at start and does not stay passes through the larger of both, a piece of some MiB at a time: whole pages.
fn scratch_of<'a>(kv_region: &'a mut [u8], buffer: &'a mut [u8]) -> &'a mut [u8] {
    const PIECE_BYTES: usize = 4 << 20;
    let bytes = kv_region.len().min(PIECE_BYTES) / PAGE_BYTES as usize * PAGE_BYTES as usize;
    if bytes > buffer.len() { &mut kv_region[..bytes] } else { buffer }
}

/// Fills the hot region, and the gate rows of an exact gate, from the container: in order, every bundle checked.
fn fill(
    container: &Container,
    file: &File,
    shape: &Shape,
    neurons: &mut [LayerNeurons],
    level: &mut Level,
    slots: &mut Slots,
    buffer: &mut [u8],
) -> Result<(), EngineError> {
    let layout = shape.layout;
    let (gate_bytes, piece) = (layout.gate_bytes as usize, buffer.len() as u64);
    for (layer, neurons) in neurons.iter_mut().enumerate() {
        let hot = neurons.cache.hot();
        let wanted = if level.kind() == LevelKind::ExactGate { neurons.count() as u32 } else { hot };
        let mut position = 0;
        while position < wanted {
            let first = neurons.span(shape, Part::Whole, position);
            let begin = first.pages().offset;
            let fitting = ((begin + piece - first.offset) / layout.stride_bytes).max(1) as u32;
            let end = (position + fitting).min(wanted);
            let last = neurons.span(shape, Part::Whole, end - 1).pages();
            let bytes = &mut buffer[..(last.offset + last.bytes - begin) as usize];
            file.read_exact_at(bytes, begin)
                .map_err(|source| ContainerError::Io { path: container.path.clone(), source })?;
            for position in position..end {
                let span = neurons.span(shape, Part::Whole, position);
                let bundle = &bytes[(span.offset - begin) as usize..][..span.bytes as usize];
                neurons.verify(shape, Part::Whole, position, bundle)?;
                let (gate, up_down) = bundle.split_at(gate_bytes);
                if level.kind() == LevelKind::ExactGate {
                    let (expert, rank) = (neurons.expert(position), neurons.rank(position));
                    level.gate_row_mut(layer, expert, rank).copy_from_slice(gate);
                }
                if position < hot {
                    let kept = if shape.part == Part::Whole { bundle } else { up_down };
                    slots.fill_hot(layer, position, shape.cut(kept));
                }
            }
            position = end;
        }
    }
    Ok(())
}

/// Several matrices times one vector: `out = [parts[0] x | parts[1] x | ...]`. Threads share the matrices' rows; what was
/// foretold lands meanwhile, and makes room for more.
fn times(
    pool: &Pool,
    fetcher: &mut Fetcher,
    kernels: &dyn Kernels,
    parts: &[Matrix<'_>],
    x: Input<'_>,
    out: &mut [f32],
) {
    let product = |mut start: usize, mut out: &mut [f32]| {
        for part in parts {
            let here = part.rows.saturating_sub(start).min(out.len());
            let (rows, rest) = out.split_at_mut(here);
            if here > 0 {
                x.rows(kernels, *part, start, rows);
            }
            (start, out) = (start.saturating_sub(part.rows), rest);
        }
    };
    pool.share_rows(out, || fetcher.poll(), product);
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
    pool.split_columns(out, stride, products::ROWS, |out| {
        write_products(kernels, |at| row_of(parts, at), x, out);
    });
}

/// Row `at` of matrices that stand one below the other.
fn row_of<'a>(parts: &[Matrix<'a>], mut at: usize) -> crate::kernels::Row<'a> {
    for part in parts {
        if at < part.rows {
            return part.row(at);
        }
        at -= part.rows;
    }
    panic!("row {at} below the last matrix");
}

fn norm_rows(c: &Config, weight: &[f32], x: &[f32], rows: usize, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(c.width).zip(out.chunks_exact_mut(c.width)).take(rows) {
        rms_norm(x, weight, c.norm_epsilon, out);
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Two numbers are a rotation.
fn as_rotations(values: &mut [f32]) -> &mut [Rotation] {
    bytemuck::cast_slice_mut(values)
}

fn plan_error(key: &'static str, problem: String) -> EngineError {
    EngineError::Plan { key, problem }
}
