//! Starts an engine: checks the plan's regions, maps and fills them.

use kernels::{Form, InstructionSet, Kernels, by_name};
use plans::layout::{Part, Phases, Steps};
use plans::memory::{self, Activations};
use plans::model::LevelKind;
use plans::{Backend, PAGE_BYTES, Plan};

use super::compute::{Compute, Phase};
use super::kept::Kept;
use super::network::Layers;
use super::rows::{PromptRoom, Rows};
use super::{Transformer, TransformerError, Turns};
use crate::arena::{Align, Arena, Slab};
use crate::container::{Container, ContainerError, LevelEntry};
use crate::embedding::{EmbeddingRows, RowTable};
use crate::feed_forward::FeedForward;
use crate::fetch::Fetcher;
use crate::flash::{self, Files, Flash, Gather};
use crate::kv::{KeyValues, stored_in};
use crate::level::Level;
use crate::neurons::{LayerNeurons, Shape, Slots};
use crate::pool::{Pool, PoolError};
use crate::recurrent::States;
use crate::rotary::Rotary;
use crate::stage::Traffic;
use crate::stop::{StopHandle, Stops};
use crate::weights::Weights;

impl Transformer {
    /// Maps every region of the plan, and fills the regions that are read at start.
    ///
    /// # Errors
    /// If the plan does not fit the container, or the system refuses memory, cores or reads.
    pub(crate) fn start(
        container: &Container,
        plan: &Plan,
        stop: StopHandle,
    ) -> Result<Self, TransformerError> {
        let r = &plan.read;
        let open = || {
            container.files(r.direct).map_err(|error| match error {
                ContainerError::Io { path, source } => {
                    let how = if r.direct { "direct" } else { "buffered" };
                    TransformerError::Open { path, how, source }
                }
                other => other.into(),
            })
        };
        let (depth, buffers) = (r.depth as usize, r.buffers as usize);
        let groups = container.groups();
        let parts = if groups.is_empty() { 1 } else { Gather::parts_max(&groups, r.buffer_bytes) };
        let requests = buffers * parts;
        let device =
            flash::open_backend(r.backend, open()?, r.direct, depth, requests, &plan.decode.io_cores)
                .map_err(|source| match r.backend {
                    Backend::Pread if source.kind() == std::io::ErrorKind::WouldBlock => {
                        PoolError::Spawn { core: plan.decode.io_cores[0], why: source }.into()
                    }
                    Backend::Pread => {
                        plan_error("decode.io_cores", format!("cannot be used for reading: {source}"))
                    }
                    Backend::IoUring => TransformerError::Refused { source },
                })?;
        let device =
            if groups.is_empty() { device } else { Box::new(Gather::new(device, groups, buffers, parts)) };
        Self::start_on(container, plan, &open()?, device, stop)
    }

    /// [`Transformer::start`] with neurons read through `device`.
    ///
    /// # Errors
    /// As [`Transformer::start`].
    pub(crate) fn start_on(
        container: &Container,
        plan: &Plan,
        files: &Files,
        device: Box<dyn Flash>,
        stop: StopHandle,
    ) -> Result<Self, TransformerError> {
        let how = How::planned(container, plan)?;
        let sizes = Sizes::checked(container, plan, &how)?;
        // the tables' pages are freed before the arena is mapped
        let mut neurons = LayerNeurons::load_all(container, files, &plan.cache)?;
        let mut arena = Arena::new(sizes.arena_bytes())?;
        let lock = arena.lock();
        let regions = Regions::take(&mut arena, plan, &sizes, &how.shapes)?;
        let Filled { weights, level, slots, kv: kv_region, state, io_buffers } =
            regions.fill(container, plan, &how, files, &mut neurons, &stop)?;

        let (config, a) = (container.directory.config.clone(), sizes.activations);
        let Rows { buffers, of_neurons } = Rows::take(&mut arena, &a.decode)?;
        let mut floats = |elements: u64| arena.take::<f32>(elements as usize, Align::Line);
        let (next_input, logits) = (floats(a.next_input)?, floats(a.logits)?);
        let feed_forward =
            FeedForward::new(&mut arena, plan, config.experts(), &how.shapes[0], &a, of_neurons)?;
        let kv = KeyValues::new(
            kv_region,
            stored_in(plan.quality.kv()),
            config.kept_heads(),
            plan.context.tokens as usize,
        );
        let kv = if config.latent().is_some() { kv.of_keys() } else { kv };
        let states = States::new(state.cast(), &config, plan.context.sequences as usize);
        let look_ahead = plan.read.look_ahead as usize;
        let cores = [plan.decode.compute_cores.clone(), plan.prefill.compute_cores.clone()];
        let How { kernels, form, shapes, transposes_down } = how;
        let layers = Layers {
            of_block: (0..config.blocks.len()).map(|block| config.layer_of(block)).collect(),
            always_on: plan.quality.always_on_neurons.clone(),
            stamp: 0,
            look_ahead: look_ahead > 0,
            blocking: plan.read.blocking,
            routes: None,
            level,
            shapes,
            neurons,
            slots,
            feed_forward,
            next_input,
            transposes_down,
        };
        let kept = Kept {
            at: (0..config.blocks.len()).map(|block| config.state_place(block)).collect(),
            sequences: plan.context.sequences as usize,
            step_rows: plan.decode_rows() as usize,
            rows: Vec::with_capacity(plan.prefill.chunk_tokens.max(plan.decode_rows()) as usize),
            kv,
            states,
        };
        let rotary = |rope| Rotary::new(rope, plan.context.tokens as usize);
        let turns =
            Turns { rotaries: config.ropes.iter().map(rotary).collect(), pairs: config.head_width() / 2 };
        let chunk = plan.prefill.chunk_tokens as usize;
        Ok(Self {
            stop: Stops { engine: stop, ..Stops::default() },
            lock,
            compute: Compute {
                kernels,
                form,
                pool: Pool::new(&cores[0])?,
                cores,
                phase: Phase::Decode,
                unit: None,
            },
            prompt: PromptRoom { chunk, sizes: a.prompt, of_decode: None },
            fetcher: Fetcher::new(device, io_buffers, plan.read.gap_bytes, look_ahead, sizes.steps),
            traffic: Traffic::default(),
            config,
            weights,
            layers,
            kept,
            turns,
            buffers,
            logits,
        })
    }
}

/// How a plan executes its container.
pub(super) struct How {
    kernels: &'static dyn Kernels,
    /// The form of vectors for products with blocks.
    form: Form,
    /// The parts of each layer's bundles at the plan's level.
    shapes: Vec<Shape>,
    /// Whether a prompt multiplies by a transposed down.
    transposes_down: bool,
}

impl How {
    fn planned(container: &Container, plan: &Plan) -> Result<Self, TransformerError> {
        let quality = &plan.quality;
        let entry = planned_level(container, plan)?;
        let set: InstructionSet = (quality.instruction_set)
            .parse()
            .map_err(|error| plan_error("quality.instruction_set", format!("is unknown: {error}")))?;
        let kernels = by_name(set).ok_or_else(|| {
            plan_error("quality.instruction_set", format!("{set} is not on this processor"))
        })?;
        let of_layer = |layer| Shape::new(container, layer, memory::slot_part(entry.kind));
        let shapes: Vec<Shape> = (0..container.directory.config.layers()).map(of_layer).collect();
        let form = if quality.activations == "q8" { Form::Q8 } else { Form::F32 };
        let transposes_down = container.directory.architecture().transposes_down()
            && form == Form::Q8
            && shapes.iter().all(|shape| kernels.down().transposes(shape.down_format()));
        Ok(Self { kernels, form, shapes, transposes_down })
    }
}

/// The regions for bytes of the container, cut from the arena.
struct Regions {
    fixed: Slab<u8>,
    level: Slab<u8>,
    slots: Slots,
    kv: Slab<u8>,
    state: Slab<u8>,
    io_buffers: Vec<Slab<u8>>,
    /// Buffer for an embedding row, if rows are read.
    embedding_row: Option<Slab<u8>>,
    /// Buffer for a row of the per-layer embedding; empty without one.
    per_layer_row: Slab<u8>,
}

impl Regions {
    fn take(
        arena: &mut Arena,
        plan: &Plan,
        sizes: &Sizes,
        shapes: &[Shape],
    ) -> Result<Self, TransformerError> {
        let mut fixed = arena.take::<u8>(sizes.fixed_bytes, Align::Page)?;
        let level = fixed.split_off(sizes.weights_bytes);
        let slots = Slots::new(
            arena.take(sizes.hot_bytes, Align::Page)?,
            arena.take(sizes.cold_bytes, Align::Page)?,
            &plan.cache.hot_neurons,
            &plan.cache.cold_slots,
            shapes,
        );
        let kv = arena.take(sizes.kv_bytes, Align::Page)?;
        let state = arena.take(sizes.state_bytes, Align::Page)?;
        let io_buffers = (0..plan.read.buffers)
            .map(|_| arena.take(plan.read.buffer_bytes as usize, Align::Page))
            .collect::<Result<_, _>>()?;
        let embedding_row = match sizes.embedding_buffer_bytes {
            0 => None,
            bytes => Some(arena.take(bytes, Align::Page)?),
        };
        let per_layer_row = arena.take(sizes.per_layer_buffer_bytes, Align::Page)?;
        Ok(Self { fixed, level, slots, kv, state, io_buffers, embedding_row, per_layer_row })
    }

    /// Reads the fixed weights, the level and the pinned neurons.
    fn fill(
        self,
        container: &Container,
        plan: &Plan,
        how: &How,
        files: &Files,
        neurons: &mut [LayerNeurons],
        stop: &StopHandle,
    ) -> Result<Filled, TransformerError> {
        let Self { fixed, level, mut slots, mut kv, state, mut io_buffers, embedding_row, per_layer_row } =
            self;
        let per_layer = RowTable::per_layer(container, files, per_layer_row)?;
        let rows = embedding_row.and_then(|buffer| EmbeddingRows::new(container, files.clone(), buffer));
        // the region of keys and values is still unused
        let scratch = scratch_of(&mut kv, &mut io_buffers[0]);
        let weights = Weights::load(container, how.kernels, files, rows, per_layer, scratch, fixed)?;
        let mut level = Level::load(container, how.kernels, planned_level(container, plan)?, files, level)?;
        fill(container, files, &how.shapes, neurons, &mut level, &mut slots, scratch, stop)?;
        if !plan.read.direct {
            // otherwise data read at start is in memory twice, and the page cache counts as this process's
            files.forget();
        }
        Ok(Filled { weights, level, slots, kv, state, io_buffers })
    }
}

/// The regions after start.
struct Filled {
    weights: Weights,
    level: Level,
    slots: Slots,
    kv: Slab<u8>,
    state: Slab<u8>,
    io_buffers: Vec<Slab<u8>>,
}

/// The container's level that the plan names.
fn planned_level<'a>(container: &'a Container, plan: &Plan) -> Result<&'a LevelEntry, TransformerError> {
    let name = &plan.quality.level;
    container
        .level(name)
        .ok_or_else(|| plan_error("quality.level", format!("{name} is not in the container")))
}

/// The regions in bytes, compared with the plan's choices.
pub(super) struct Sizes {
    pub(super) fixed_bytes: usize,
    /// The part of the fixed region that is not the level's.
    pub(super) weights_bytes: usize,
    /// The buffer of embedding rows, if they are read.
    pub(super) embedding_buffer_bytes: usize,
    /// The buffer of a row of the per-layer embedding.
    pub(super) per_layer_buffer_bytes: usize,
    pub(super) hot_bytes: usize,
    /// The slots; a prompt's rows overlap them.
    pub(super) cold_bytes: usize,
    pub(super) kv_bytes: usize,
    pub(super) state_bytes: usize,
    pub(super) io_buffers_bytes: u64,
    pub(super) activations: Activations,
    /// The steps of reading a neuron in decode.
    pub(super) steps: Steps,
}

impl Sizes {
    pub(super) fn checked(container: &Container, plan: &Plan, how: &How) -> Result<Self, TransformerError> {
        let (d, shapes) = (&container.directory, &how.shapes);
        let shape = &shapes[0];
        let architecture = d.architecture();
        let (layers, neurons) = (d.config.layers(), container.neurons());
        let entry = container.level(&plan.quality.level);
        if entry.is_none_or(|entry| entry.kind != plan.quality.kind) {
            return Err(plan_error("quality.kind", "differs from the container's level".to_owned()));
        }
        if plan.quality.kind == LevelKind::ExactGate && d.config.activation().fires(-1.0) {
            return Err(plan_error(
                "quality.kind",
                "is exact-gate, and this model's neurons fire below zero".to_owned(),
            ));
        }
        if plan.quality.kind != LevelKind::Dense && d.config.network().biases {
            return Err(plan_error(
                "quality.kind",
                format!("is {}, and predictors do not know this model's biases", plan.quality.kind.name()),
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
        let slice = shape.layout.slice_neurons;
        if u64::from(plan.cache.slice_neurons) != slice {
            return Err(plan_error(
                "cache.slice_neurons",
                format!("is {}, and this container's slices are of {slice}", plan.cache.slice_neurons),
            ));
        }
        if plan.quality.kind != LevelKind::Dense && (slice > 1 || shape.has_pieces()) {
            return Err(plan_error(
                "quality.kind",
                format!(
                    "is {}, and this container's neurons come and go {slice} together",
                    plan.quality.kind.name()
                ),
            ));
        }
        if plan.context.tokens as usize > d.config.context {
            return Err(plan_error(
                "context.tokens",
                format!("is {}, and the model was made for {}", plan.context.tokens, d.config.context),
            ));
        }
        let mut widths = d.config.attentions().map(|attention| attention.head_width);
        if let Some(of_head) = widths.find(|&width| !plan.quality.kv().holds(width as u64)) {
            return Err(plan_error(
                "quality.kv_format",
                format!(
                    "is {}, whose blocks are of {} values, and this model's heads are {of_head} wide",
                    plan.quality.kv_format,
                    plan.quality.kv().block_values()
                ),
            ));
        }
        if plan.draft_tokens() > 0 && d.config.recurrent().is_some() {
            return Err(plan_error(
                "speculation.draft_tokens",
                format!(
                    "is {}, and this model's recurrent state cannot go back to where a draft fails",
                    plan.draft_tokens()
                ),
            ));
        }
        let parts = shape.layout.reads_of_slice();
        if u64::from(plan.read.parts) != parts {
            return Err(plan_error(
                "read.parts",
                format!("is {}, and a slice of this model is read in {parts}", plan.read.parts),
            ));
        }
        let longest = shapes.iter().map(|shape| shape.layout.read_bytes_max()).max().unwrap_or(0);
        if plan.read.buffer_bytes < longest {
            return Err(plan_error(
                "read.buffer_bytes",
                format!(
                    "is {}, and what is read together takes {longest}: {} neurons",
                    plan.read.buffer_bytes,
                    shape.slice()
                ),
            ));
        }
        let stride = shapes.iter().map(|shape| shape.layout.stride_bytes).max().unwrap_or(0);
        let buffers = u64::from(plan.read.buffers);
        let missing = plan.cache.hot_neurons.iter().any(|&hot| (hot as usize) < neurons);
        let hold = memory::hold_transposed(buffers, plan.read.buffer_bytes, stride);
        if how.transposes_down && missing && !hold {
            return Err(plan_error(
                "read.buffers",
                format!(
                    "is {buffers}, and a prompt of this model takes {} neurons at a time",
                    plans::engine::TRANSPOSED
                ),
            ));
        }
        let phases = plan.read.phases;
        // the first layer's steps, which hold for all
        let alike = phases == Phases::Whole || d.layers.is_empty();
        let steps = shape.layout.steps(shape.part, phases).filter(|_| alike).ok_or_else(|| {
            plan_error("read.phases", format!("is {}, and this container's bundles have none", phases.name()))
        })?;
        let level_bytes = entry.map_or(0, |entry| container.level_resident_bytes(entry));
        let choices = memory::choices_of(plan, level_bytes);
        let activations = Activations::new(&architecture, &choices);
        let slots = |counts: &[u32]| {
            let of_layer = |(&count, shape): (&u32, &Shape)| u64::from(count) * shape.slot_bytes() as u64;
            counts.iter().zip(shapes).map(of_layer).sum::<u64>()
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
        let problem = match (plan.read.per_layer_rows, architecture.per_layer) {
            (true, None) => Some("is true, and this model has no per-layer embeddings"),
            (false, Some(_)) => Some("is false, and this model has per-layer embeddings"),
            (true, Some(_)) | (false, None) => None,
        };
        if let Some(problem) = problem {
            return Err(plan_error("read.per_layer_rows", problem.to_owned()));
        }
        let per_layer_buffer = memory::per_layer_buffer_bytes(&architecture);
        let weights_bytes = d.fixed.bytes.saturating_sub(left);
        let fixed = weights_bytes + level_bytes;
        let kv = choices
            .sequences
            .saturating_mul(choices.context_tokens)
            .saturating_mul(memory::kv_bytes_per_token(&architecture, choices.kv));
        let state = choices.sequences.saturating_mul(memory::state_bytes(&architecture));
        let m = &plan.memory;
        let of_token = memory::kv_token_bytes(&architecture, choices.kv);
        if m.kv_token_bytes != of_token {
            let problem = format!("is {}, and this model's tokens take {of_token}", m.kv_token_bytes);
            return Err(plan_error("memory.kv_token_bytes", problem));
        }
        for (key, planned, needed) in [
            ("memory.fixed_bytes", m.fixed_bytes, fixed),
            ("memory.hot_bytes", m.hot_bytes, slots(&plan.cache.hot_neurons)),
            ("memory.cold_bytes", m.cold_bytes, slots(&plan.cache.cold_slots)),
            ("memory.kv_bytes", m.kv_bytes, kv),
            ("memory.state_bytes", m.state_bytes, state),
            ("memory.activations_bytes", m.activations_bytes, activations.bytes()),
            ("memory.prompt_bytes", m.prompt_bytes, activations.prompt.bytes()),
            ("memory.tables_bytes", m.tables_bytes, memory::tables_bytes(&architecture, &choices)),
            (
                "memory.io_buffers_bytes",
                m.io_buffers_bytes,
                u64::from(plan.read.buffers)
                    .saturating_mul(plan.read.buffer_bytes)
                    .saturating_add(row_buffer)
                    .saturating_add(per_layer_buffer),
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
            per_layer_buffer_bytes: per_layer_buffer as usize,
            hot_bytes: m.hot_bytes as usize,
            cold_bytes: m.slots_or_prompt_bytes() as usize,
            kv_bytes: m.kv_bytes as usize,
            state_bytes: m.state_bytes as usize,
            io_buffers_bytes: m.io_buffers_bytes,
            activations,
            steps,
        })
    }

    /// Bytes of the arena. The tables and the places of requested neurons are on the heap: half of
    /// `requested`.
    pub(super) fn arena_bytes(&self) -> u64 {
        (self.fixed_bytes as u64).next_multiple_of(PAGE_BYTES)
            + (self.hot_bytes + self.cold_bytes + self.kv_bytes + self.state_bytes) as u64
            + self.io_buffers_bytes
            + (self.activations.bytes() - self.activations.requested / 4 * 8).next_multiple_of(PAGE_BYTES)
    }
}

/// The larger of both buffers, in whole pages, for data that passes through at start.
pub(super) fn scratch_of<'a>(kv_region: &'a mut [u8], buffer: &'a mut [u8]) -> &'a mut [u8] {
    const PIECE_BYTES: usize = 4 << 20;
    let bytes = kv_region.len().min(PIECE_BYTES) / PAGE_BYTES as usize * PAGE_BYTES as usize;
    if bytes > buffer.len() { &mut kv_region[..bytes] } else { buffer }
}

/// Fills the hot region, and the gate rows of an exact gate, from the container: in order, every bundle
/// verified.
pub(super) fn fill(
    container: &Container,
    files: &Files,
    shapes: &[Shape],
    neurons: &mut [LayerNeurons],
    level: &mut Level,
    slots: &mut Slots,
    buffer: &mut [u8],
    stop: &StopHandle,
) -> Result<(), TransformerError> {
    let piece = buffer.len() as u64;
    for (layer, (neurons, shape)) in neurons.iter_mut().zip(shapes).enumerate() {
        let layout = shape.layout;
        let gate_bytes = layout.gate_bytes as usize;
        let unit = if shape.has_pieces() { layout.slice_neurons as u32 } else { 1 };
        let hot = neurons.hot();
        let wanted = if level.kind().gates_resident() { neurons.count() as u32 } else { hot };
        let mut rank = 0;
        if shape.is_apart() {
            fill_apart(container, files, shape, layer, neurons, slots, buffer, stop)?;
            rank = wanted;
        }
        while rank < wanted {
            if stop.is_stopped() {
                return Err(TransformerError::Stopped);
            }
            let first = neurons.span(shape, Part::Whole, rank);
            let begin = first.pages().offset;
            let fitting = ((begin + piece - first.offset) / layout.stride_bytes) as u32;
            let end = (rank + (fitting / unit * unit).max(unit)).min(wanted);
            let last = neurons.span(shape, Part::Whole, end - 1).pages();
            let bytes = &mut buffer[..(last.offset + last.bytes - begin) as usize];
            files
                .read_exact_at(bytes, begin)
                .map_err(|source| ContainerError::Io { path: container.path.clone(), source })?;
            if shape.has_pieces() {
                let slices = &bytes[(first.offset - begin) as usize..];
                let slices = slices.chunks_exact(unit as usize * layout.stride_bytes as usize);
                for (slice, first) in slices.zip((rank..end).step_by(unit as usize)) {
                    for neuron in 0..unit {
                        let rank = first + neuron;
                        neurons.verify_share(shape, rank, slice)?;
                        let starts = neurons.starts(shape, rank / unit);
                        slots.fill_hot(layer, rank, shape.of_slice(slice, starts, neuron as usize));
                    }
                }
                rank = end;
                continue;
            }
            for rank in rank..end {
                let span = neurons.span(shape, Part::Whole, rank);
                let bundle = &bytes[(span.offset - begin) as usize..][..span.bytes as usize];
                neurons.verify(shape, Part::Whole, rank, bundle)?;
                let (gate, up_down) = bundle.split_at(gate_bytes);
                if level.kind().gates_resident() {
                    let (expert, index) = (neurons.expert(rank), neurons.index_in_expert(rank));
                    level.gate_row_mut(layer, expert, index).copy_from_slice(gate);
                }
                if rank < hot {
                    let kept = if shape.part == Part::Whole { bundle } else { up_down };
                    slots.fill_hot(layer, rank, shape.cut(kept));
                }
            }
            rank = end;
        }
    }
    Ok(())
}

/// Fills a layer's part of the hot region with slices that have separate parts.
fn fill_apart(
    container: &Container,
    files: &Files,
    shape: &Shape,
    layer: usize,
    neurons: &LayerNeurons,
    slots: &mut Slots,
    buffer: &mut [u8],
    stop: &StopHandle,
) -> Result<(), TransformerError> {
    let count = shape.slice() as u32;
    for slice in 0..neurons.hot() / count {
        if stop.is_stopped() {
            return Err(TransformerError::Stopped);
        }
        let starts = neurons.starts(shape, slice);
        for (part, (at, span)) in neurons.parts(slice).enumerate().filter(|(_, (_, span))| span.bytes > 0) {
            let pages = span.pages();
            files
                .read_exact_at(&mut buffer[at..][..pages.bytes as usize], pages.offset)
                .map_err(|source| ContainerError::Io { path: container.weights_path().to_owned(), source })?;
            let rows = &mut buffer[starts[part]..][..span.bytes as usize];
            neurons.verify_part(slice, part, rows)?;
            shape.repack(part, rows);
        }
        for neuron in 0..count {
            let bundle = shape.of_slice(buffer, starts, neuron as usize);
            slots.fill_hot(layer, slice * count + neuron, bundle);
        }
    }
    Ok(())
}

/// An error of a plan's key.
pub(super) fn plan_error(key: &'static str, problem: String) -> TransformerError {
    TransformerError::Plan { key, problem }
}
