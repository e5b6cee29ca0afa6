//! The cost model: one small function per equation, and the time of a token put together from them.
//!
//! Equations are numbered as in PowerInfer-2 (v1), section 5. *Stated*: in its text. *Reconstructed*:
//! its formulas exist only as pictures; ours are rebuilt from the prose.
//!
//! The engine that is priced does, per layer and token: attention (dense); selection, by router and predictor; starts
//! the reads of what is missing; with look-ahead names what the next layer will request, and starts some of its reads
//! after its own; computes the values (gate and up) of what is in memory, then of what completes; and when all has completed
//! the sums (down) and the copies into the cache:
//!
//! ```text
//! t_token = t_serial + sum over layers of max(t_before + max(t_look_ahead + t_gate_up, t_io + t_drain) + t_after,
//!                                             t_io + t_io of what was prefetched)
//! before: attention, selection      after: sums, insert
//! ```
//!
//! The first term is the chain of a layer's own stages. The second is the device, which with look-ahead is also busy
//! before and after: each layer is priced as if the one before were like it, so that its price depends on nothing but
//! its own share of memory. Without look-ahead the second term is never the greater.
//!
//! Differs from equation 2 (`t_dec = t_comp`): decoding is bound by memory bandwidth in RAM and by flash below that, so
//! that both stand, and what cannot overlap stands beside them.

use std::sync::Arc;

use plans::device::LONG_ROW_VALUES;
use plans::engine::{
    ADDED, ALONE, ATTENTION_DISPATCHES, LATENT_DISPATCHES, LIST_PASSES, PREFETCH_ONE_IN,
    PROMPT_ACTIVE_ONE_IN, PROMPT_TOKENS, REGISTER_ROWS, SAMPLING_PASSES, SERIAL_PASSES_PER_LAYER, SUMS,
    SUMS_PASSES, run_neurons,
};
use plans::layout::Part;
use plans::memory::{embedding_buffer_bytes, kv_bytes_per_token, slot_part};
use plans::model::{Heads, Level, LevelKind, Model};
use plans::overlap::{PromptReads, Stages, prompt_compute_seconds, prompt_layer_seconds, uneven};
use plans::plan::Feature;
pub use plans::plan::mean_position;
pub use plans::terms::Work;
use plans::{Backend, KvFormat, Policy, terms};

use crate::hardware::{self, Formats, Rates};
use crate::read_curves::ReadCurves;
use crate::reads::{ReadChoice, ReadPrice};
use crate::request::{Question, measured_run};
use crate::surface::{self, Filling};
use crate::units::{Products, Shared};

/// Equations 7 and 8: `2 P / F`, each parameter being multiplied and added once. *Reconstructed.*
pub fn compute_seconds(parameters: f64, flops_per_second: f64) -> f64 {
    2.0 * parameters / flops_per_second
}

/// Equation 11: `W / B_mem`. *Reconstructed.*
/// Differs: `B_mem` is what the very kernel reaches from memory, not the bus.
pub fn memory_seconds(bytes: f64, bytes_per_second: f64) -> f64 {
    bytes / bytes_per_second
}

/// The decisions that a price of decoding depends on, beside the machine and the model.
#[derive(Debug, Clone, Copy)]
pub struct Decision<'a> {
    /// Quality level.
    pub level: &'a Level,
    /// Compute cores.
    pub cores: &'a [u32],
    /// Whether the reading threads must share the compute cores.
    pub shared: bool,
    /// Neurons in memory that a thread takes together.
    pub cluster: u64,
    /// How flash is read.
    pub read: ReadChoice,
    /// Whether rows of the token embedding are read.
    pub embedding_rows: bool,
    /// Pinned neurons per layer.
    pub hot: &'a [u32],
    /// Slots per layer.
    pub cold: &'a [u32],
    /// Cache policy: who leaves a slot.
    pub policy: Policy,
}

/// The terms of a decoded token at position 0, warm.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DecodePrice {
    /// Attention, all layers.
    pub attention: Work,
    /// Routers and predictors, all layers.
    pub predictor: Work,
    /// Predictions for the next layer, all layers that make them.
    pub look_ahead: Work,
    /// Gate and up, all layers.
    pub gate_up: Work,
    /// Down, all layers.
    pub down: Work,
    /// Copies into the cache, all layers.
    pub insert: Work,
    /// Seconds of reading flash, were it alone.
    pub io: f64,
    /// Reads of a token, and the prefetched ones among them.
    pub reads: (f64, f64),
    /// Seconds of feed-forward, reads and copies of all layers, those that overlap counted once.
    pub overlapped: f64,
    /// Norms, head and sampling.
    pub rest: Work,
    /// A token at position 0.
    pub constant: f64,
    /// Seconds that each token of context adds.
    pub per_context_token: f64,
    /// Reading a neuron into every slot, once.
    pub cold_start: f64,
    /// The part of it that the measured run pays.
    pub filling: f64,
    /// Bytes read from flash.
    pub bytes_read: f64,
    /// Neurons requested.
    pub requested: f64,
    /// Neurons requested that are not in memory.
    pub missing: f64,
}

impl DecodePrice {
    /// Mean seconds of a token over the measured run: the slope at its mean position, the cold start spread over it.
    pub fn mean_seconds(&self, context: u32) -> f64 {
        let (_, generated) = measured_run(context);
        self.constant + self.per_context_token * mean_position(context) + self.filling / f64::from(generated)
    }
}

/// Bytes of a weight as the model stores it.
pub fn weight_bytes(model: &Model) -> f64 {
    model.parts.bundle.gate_bytes.max(1) as f64 / f64::from(model.architecture.width)
}

/// The rates of a set of cores for this model.
pub fn rates(question: &Question<'_>, cores: &[u32]) -> Rates {
    let Question { device, model, limits, .. } = question;
    let a = &model.architecture;
    let down_bytes = model.parts.bundle.down_bytes as f64 / f64::from(a.width);
    let formats = Formats {
        weights: (&a.weight_format, weight_bytes(model)),
        down: (&a.down_format, down_bytes),
        kv: limits.kv,
    };
    let mut r = hardware::rates(device, cores, formats, &limits.isa);
    if limits.with(Feature::Units) {
        r.shared = Shared::soonest(device, &attention_products(model, &r));
    }
    r
}

/// Matrices of a layer's attention.
const ATTENTION_MATRICES: f64 = 4.0;

/// A token's products with a layer's attention, by which the shares of all dense matrices are chosen: the other ones take as
/// long for each byte.
fn attention_products<'a>(model: &'a Model, r: &Rates) -> Products<'a> {
    let (a, bytes) = (&model.architecture, model.parts.attention_layer_bytes as f64);
    Products {
        format: &a.weight_format,
        tokens: 1.0,
        flops: 2.0 * bytes / weight_bytes(model),
        bytes,
        matrices: ATTENTION_MATRICES,
        vector_bytes: 2.0 * ATTENTION_MATRICES * 4.0 * f64::from(a.width),
        held_bytes: model.parts.fixed_bytes as f64,
        copied: false,
        seconds: attention(model, r).busy(),
    }
}

/// Neurons requested per token in a layer, and the share of them whose gate fires.
pub fn requested(model: &Model, level: &Level, layer: usize) -> (f64, f64) {
    let fires = match level.kind {
        LevelKind::ExactGate | LevelKind::GateThreshold => 1.0,
        LevelKind::Dense => model.layers[layer].active_gate_fraction,
        LevelKind::Sign | LevelKind::LowRank => level.layers[layer].beta_fraction,
    };
    (requested_neurons(model, level, layer), fires)
}

/// Neurons requested per token in a layer: the predictor's, or all routed ones.
pub fn requested_neurons(model: &Model, level: &Level, layer: usize) -> f64 {
    match level.kind {
        LevelKind::Dense => model.architecture.neurons_routed() as f64,
        _ => level.layers[layer].predicted_neurons_mean.min(model.architecture.neurons_routed() as f64),
    }
}

/// `t_att`, a layer (equations 7 and 11). The context's part is [`context_seconds`]. Recurrent state is read and written once.
pub fn attention(model: &Model, r: &Rates) -> Work {
    let (a, bytes) = (&model.architecture, model.parts.attention_layer_bytes as f64);
    let state = 2.0 * 4.0 * a.state_values() as f64 / f64::from(a.layers);
    let dispatches = ATTENTION_DISPATCHES + if a.latent.is_some() { LATENT_DISPATCHES } else { 0 };
    let work = Work {
        compute_seconds: compute_seconds(bytes / weight_bytes(model), r.flops) + recurrence(model, r),
        stream_seconds: r.dense.seconds(bytes, f64::from(a.width)) + memory_seconds(state, r.stream),
        dispatch_seconds: dispatches as f64 * r.dispatch,
        ..Work::default()
    };
    r.shared.left(work, bytes)
}

/// Seconds that a token computes with a layer's recurrent state, on average over all layers: each value decays, meets a key, is added to
/// and meets a query.
fn recurrence(model: &Model, r: &Rates) -> f64 {
    const PRODUCTS: f64 = 3.5;
    let a = &model.architecture;
    compute_seconds(PRODUCTS * a.state_values() as f64 / f64::from(a.layers), r.attention)
}

/// Seconds that one token of context adds to a token, all layers: its keys and values, or the vectors in their place, are read once.
pub fn context_seconds(model: &Model, kv: KvFormat, r: &Rates) -> f64 {
    context(model, kv, r).seconds()
}

/// [`context_seconds`] as a stage.
pub fn context(model: &Model, kv: KvFormat, r: &Rates) -> Work {
    let a = &model.architecture;
    let of_shape = |heads: Heads| f64::from(heads.layers) * 2.0 * heads.query_width() as f64;
    let values: f64 = a.all_heads().map(of_shape).sum();
    let bytes = kv_bytes_per_token(a, kv) as f64;
    Work {
        compute_seconds: compute_seconds(values, r.attention),
        stream_seconds: memory_seconds(bytes, r.stream),
        ..Work::default()
    }
}

/// `t_pred`, a layer, with the router, which one thread computes (equations 7 and 11).
pub fn predictor(model: &Model, level: &Level, r: &Rates) -> Work {
    let a = &model.architecture;
    let layers = f64::from(a.layers);
    let dispatches = match level.kind {
        LevelKind::Dense => 0.0,
        LevelKind::ExactGate | LevelKind::GateThreshold | LevelKind::Sign => 1.0,
        LevelKind::LowRank => 2.0,
    };
    let (flops, bytes) = (level.flops_per_token as f64 / layers, level.read_bytes_per_token as f64 / layers);
    let (width, neurons) = (f64::from(a.width), a.neurons_routed() as f64);
    // a row as long as the hidden layer for each neuron, and one as long as the input for each of that
    let hidden = flops / (2.0 * (width + neurons));
    let memory = if level.kind == LevelKind::LowRank && hidden > 0.0 {
        let (first, second) = (width / (width + neurons), neurons / (width + neurons));
        r.dense.seconds(first * bytes, width) + r.dense.seconds(second * bytes, hidden)
    } else {
        r.dense.seconds(bytes, width)
    };
    let work = Work {
        compute_seconds: flops / r.flops,
        stream_seconds: memory,
        dispatch_seconds: dispatches * r.dispatch,
        serial_seconds: memory_seconds(LIST_PASSES as f64 * 4.0 * neurons, r.stream_serial)
            + r.dense_serial.seconds(model.parts.router_layer_bytes as f64, width),
        ..Work::default()
    };
    r.shared.left(work, bytes)
}

/// `t_look_ahead`, a layer: the predictor of the layer after, of which the hidden layer is computed and the rows of the neurons
/// that are considered.
pub fn look_ahead(model: &Model, level: &Level, r: &Rates) -> Work {
    let a = &model.architecture;
    let hidden = if level.kind == LevelKind::LowRank { f64::from(a.width) } else { 0.0 };
    let rows = f64::from(a.neurons_per_expert);
    let share = (hidden + rows / PREFETCH_ONE_IN as f64) / (hidden + rows);
    let all = predictor(model, level, r);
    Work { compute_seconds: share * all.compute_seconds, stream_seconds: share * all.stream_seconds, ..all }
}

/// Rows of a neuron that are touched, as `(gate, up, down)`: up where the gate fires (`beta`), down where
/// the value is not zero. Gates of the exact gate are priced with the predictor; silu fires everywhere. Without gates the up is
/// what stands in the gate's place.
fn rows_touched(model: &Model, part: Part, fires: f64, counts: f64) -> (f64, f64, f64) {
    let gate = if part == Part::Whole { 1.0 } else { 0.0 };
    let (up, down) = if model.architecture.always_fires() { (1.0, 1.0) } else { (fires, counts.min(fires)) };
    (gate, if model.architecture.is_gated() { up } else { 0.0 }, down)
}

/// Whether rows are met in order, as those of a dense level are where every neuron fires; others are met neuron by neuron, since what a
/// neuron is worth decides about its other rows.
fn in_order(model: &Model, level: &Level) -> bool {
    level.kind == LevelKind::Dense
        && model.architecture.always_fires()
        && (model.architecture.experts == 1 || model.parts.bundle.slice_neurons > 1)
}

/// Gate and up of what a layer requests (equations 8 and 11), and what is left of it when the last read has completed.
///
/// Differs: equation 8 takes all three rows of `alpha P`; rows that the engine skips are not priced.
pub fn gate_up(
    model: &Model,
    level: &Level,
    (requested, fires): (f64, f64),
    cluster: u64,
    r: &Rates,
) -> (Work, f64) {
    let bundle = &model.parts.bundle;
    let (gate, up, _) = rows_touched(model, slot_part(level.kind), fires, level.precision_fraction);
    let bytes = gate * bundle.gate_bytes as f64 + up * bundle.up_bytes as f64;
    let width = f64::from(model.architecture.width);
    let in_order = in_order(model, level);
    let rate = if in_order { r.dense } else { r.sparse };
    let memory = moved(in_order, rate.seconds(requested * bytes, width));
    let compute_seconds = compute_seconds(requested * (gate + up) * width, r.flops);
    let mut work = Work { compute_seconds, ..memory };
    let (idle, drain) = uneven(requested, work.busy(), cluster as f64, r.pace);
    work.dispatch_seconds = r.dispatch + idle;
    // what drains was waited for
    (work, r.dispatch + r.wake + drain)
}

/// Bytes moved through memory in so many seconds, in order or not.
fn moved(in_order: bool, seconds: f64) -> Work {
    if in_order {
        Work { stream_seconds: seconds, ..Work::default() }
    } else {
        Work { gather_seconds: seconds, ..Work::default() }
    }
}

/// Down of what a layer requests and is truly active (equations 8 and 11), by one thread where that is little, and the sums
/// of it that are joined: a dispatch of each that is shared.
pub fn down(model: &Model, level: &Level, (requested, fires): (f64, f64), r: &Rates) -> Work {
    let a = &model.architecture;
    if !a.down_transposed {
        return pieces(model, requested, r);
    }
    let (_, _, down) = rows_touched(model, slot_part(level.kind), fires, level.precision_fraction);
    let (rows, width) = (requested * down, f64::from(a.width));
    let (bytes, joined) = (rows * model.parts.bundle.down_bytes as f64, SUMS as f64 * width);
    let shared = |products: f64| products >= ALONE as f64;
    let dispatches = f64::from(u8::from(shared(rows * width))) + f64::from(u8::from(shared(joined)));
    // rows that follow each other are added together in whole groups
    let groups =
        groups(a.neurons_routed() as f64, a.neurons() as usize, rows) * width / f64::from(LONG_ROW_VALUES);
    let (flops, rate, group, in_order) = match (shared(rows * width), in_order(model, level)) {
        (true, true) => (r.flops, r.dense, 0.0, true),
        (true, false) => (r.flops, r.sparse_down, r.sparse_down_group.0, false),
        (false, _) => (r.flops / r.threads as f64, r.sparse_down_serial, r.sparse_down_group.1, false),
    };
    Work {
        compute_seconds: compute_seconds(rows * width, flops),
        dispatch_seconds: dispatches * r.dispatch,
        serial_seconds: memory_seconds(SUMS_PASSES as f64 * 4.0 * joined, r.stream_serial),
        ..moved(in_order, rate.seconds(bytes, width) + groups * group)
    }
}

/// Groups of at most [`ADDED`] in which `rows` of `neurons` are added, spread over them: those of a run of neighbours, whose last
/// group is half full on average. `all` neurons of the layer decide how long runs are.
fn groups(neurons: f64, all: usize, rows: f64) -> f64 {
    const GROUP: f64 = ADDED as f64;
    let runs = neurons / run_neurons(all) as f64;
    let each = rows / runs.max(1.0);
    let none = (-each).exp();
    runs.max(1.0) * (1.0 - none) * (each / GROUP + 0.5 - 0.5 / GROUP).max(1.0)
}

/// [`down`] where slices hold pieces of it: products with rows as long as a slice has neurons, whose values one thread rounds.
fn pieces(model: &Model, requested: f64, r: &Rates) -> Work {
    let (width, bundle) = (f64::from(model.architecture.width), &model.parts.bundle);
    let bytes = requested * bundle.down_bytes as f64;
    Work {
        compute_seconds: compute_seconds(requested * width, r.flops),
        stream_seconds: r.dense_down.seconds(bytes, bundle.slice_neurons as f64),
        dispatch_seconds: if requested * width >= ALONE as f64 { r.dispatch } else { 0.0 },
        serial_seconds: memory_seconds(SUMS_PASSES as f64 * 4.0 * requested, r.stream_serial),
        ..Work::default()
    }
}

/// Copying one neuron into its slot, by all threads: its bytes are read and written. Priced for each that was read, though the policy
/// `frequency` copies some of them only.
pub fn insert_seconds(model: &Model, level: &Level, r: &Rates) -> f64 {
    memory_seconds(2.0 * model.parts.bundle.part_bytes(slot_part(level.kind)) as f64, r.stream)
}

/// Seconds of each stage in which a layer is computed.
pub fn stages(model: &Model, level: &Level, layer: usize, cluster: u64, r: &Rates) -> Stages {
    let requested = requested(model, level, layer);
    let (gate_up, drain) = gate_up(model, level, requested, cluster, r);
    let selection = predictor(model, level, r).seconds();
    let neuron = gate_up.busy() / requested.0.max(1.0);
    Stages {
        before: attention(model, r).seconds() + selection,
        look_ahead: if layer + 1 < level.layers.len() { look_ahead(model, level, r).seconds() } else { 0.0 },
        gate_up: gate_up.seconds(),
        completion: r.dispatch,
        drain,
        down: down(model, level, requested, r).seconds(),
        neuron,
        check: check_seconds(model, level, r),
    }
}

/// Comparing a neuron that has been read with its checksum, by all threads. *Reconstructed.*
pub fn check_seconds(model: &Model, level: &Level, r: &Rates) -> f64 {
    memory_seconds(model.parts.bundle.part_bytes(slot_part(level.kind)) as f64, r.check)
}

/// Norms of all layers, the head and sampling: once a token.
pub fn rest(model: &Model, r: &Rates) -> Work {
    let a = &model.architecture;
    let head = model.parts.head_read_bytes as f64;
    let passes = SERIAL_PASSES_PER_LAYER as f64 * f64::from(a.layers) * f64::from(a.width)
        + SAMPLING_PASSES as f64 * f64::from(a.vocabulary);
    let work = Work {
        compute_seconds: compute_seconds(head / weight_bytes(model), r.flops),
        stream_seconds: r.dense.seconds(head, f64::from(a.width)),
        dispatch_seconds: r.dispatch,
        serial_seconds: memory_seconds(passes * 4.0, r.stream_serial),
        ..Work::default()
    };
    r.shared.left(work, head)
}

/// Reading a row of the token embedding, if rows are read.
pub fn embedding_seconds(question: &Question<'_>, rows: bool) -> f64 {
    if rows { embedding_row_seconds(question).unwrap_or(0.0) } else { 0.0 }
}

/// Reading a row of the token embedding, by itself; `None` where no such read was measured.
pub fn embedding_row_seconds(question: &Question<'_>) -> Option<f64> {
    let Question { device, model, .. } = question;
    let row = model.parts.embedding_bytes / u64::from(model.architecture.vocabulary).max(1);
    let block = embedding_buffer_bytes(row) as f64;
    let direct = device.storage.direct;
    let curves =
        ReadCurves::new(question.flash(), Backend::Pread, direct, "random", 1, model.container.bytes)?;
    Some(1.0 / curves.reads_per_second(block, 1.0))
}

/// Equation 6 with the terms that it leaves out: the price of a decoded token.
pub fn decode(question: &Question<'_>, d: &Decision<'_>) -> DecodePrice {
    let Question { model, limits, .. } = question;
    let r = rates(question, d.cores);
    let reads = ReadPrice::new(question, d.level.kind, d.read);
    let toll = reads.toll(d.shared, r.threads);
    let mut price = DecodePrice { rest: rest(model, &r), ..DecodePrice::default() };
    price.rest.read_seconds = embedding_seconds(question, d.embedding_rows);
    let mut serial = price.rest.seconds();
    let (_, generated) = measured_run(limits.context);
    for layer in 0..d.level.layers.len() {
        let requested = requested(model, d.level, layer);
        let stages = stages(model, d.level, layer, d.cluster, &r).with(d.read.look_ahead);
        let cached = (d.hot[layer], d.cold[layer]);
        let (missing, filling) =
            surface::missing_and_filling(model, d.level, layer, d.policy, requested.0, cached);
        let inserted = if cached.1 > 0 { missing.neurons * reads.whole_fraction(requested.1) } else { 0.0 };
        let insert = inserted * insert_seconds(model, d.level, &r);
        let of_layer = reads.of(missing, requested.1);
        let queue = reads.queue(&of_layer, layer > 0, &stages);
        let selection = predictor(model, d.level, &r);
        price.attention.add(&attention(model, &r));
        price.predictor.add(&selection);
        if stages.look_ahead > 0.0 {
            price.look_ahead.add(&look_ahead(model, d.level, &r));
        }
        price.gate_up.add(&gate_up(model, d.level, requested, d.cluster, &r).0);
        price.down.add(&down(model, d.level, requested, &r));
        price.insert.stream_seconds += insert;
        price.io += queue.urgent_seconds + queue.ahead_seconds;
        price.reads = (price.reads.0 + queue.urgent + queue.ahead, price.reads.1 + queue.ahead);
        price.overlapped += reads.supply().layer_seconds(&stages, insert, &of_layer, layer > 0, &toll);
        serial += stages.before;
        price.bytes_read += queue.bytes;
        price.requested += requested.0;
        price.missing += missing.neurons;
        price.cold_start += f64::from(cached.1) * reads.fill_seconds();
        price.filling += filling.at(f64::from(generated)) * reads.fill_seconds();
    }
    price.constant = serial + price.overlapped;
    price.per_context_token = context_seconds(model, limits.kv, &r);
    price
}

/// FLOP/s of a prompt's feed-forward block of which a share `counts` of the values is not zero: in time, what lies on a line
/// through the two shares that were measured.
fn prompt_flops(r: &Rates, counts: f64) -> f64 {
    const MEASURED: f64 = 1.0 / PROMPT_ACTIVE_ONE_IN as f64;
    let (all, few) = (1.0 / r.prompt_flops.0, 1.0 / r.prompt_flops.1);
    1.0 / (few + (all - few) * (counts - MEASURED) / (1.0 - MEASURED)).max(few / 2.0)
}

/// Seconds that a layer of a prompt is computed: for each token of a chunk, and for the chunk beside them. What was measured
/// of many tokens together has a chunk's own part in it. An expert meets the rows that are routed to it, in registers of
/// [`REGISTER_ROWS`], of which the last is half empty on average.
pub fn prompt_compute(model: &Model, layer: usize, r: &Rates) -> (f64, f64) {
    const HALF_A_REGISTER: f64 = REGISTER_ROWS as f64 / 2.0;
    let (a, activity) = (&model.architecture, &model.layers[layer]);
    let (gate, truly) = (activity.active_gate_fraction, activity.active_true_fraction);
    let (_, _, down) = rows_touched(model, Part::Whole, gate, truly);
    let neuron = f64::from(a.matrices()) * compute_seconds(f64::from(a.width), prompt_flops(r, down));
    let layer = a.neurons() as f64 * neuron;
    let (alone, attention) = (beside_chunk(r), prompt_attention(model, r));
    let met = f64::from(a.experts_used) / f64::from(a.experts);
    let half_empty = if a.experts > 1 { HALF_A_REGISTER * layer } else { 0.0 };
    ((attention + met * layer) * alone, (r.chunk_tokens * (attention + layer) + half_empty) * alone)
}

/// Share of what many tokens together were measured to take that is the tokens' own.
fn beside_chunk(r: &Rates) -> f64 {
    const MEASURED_TOKENS: f64 = PROMPT_TOKENS[0] as f64;
    MEASURED_TOKENS / (MEASURED_TOKENS + r.chunk_tokens)
}

/// Seconds that a layer's attention is computed for a token of many together, with its part of what a chunk takes.
fn prompt_attention(model: &Model, r: &Rates) -> f64 {
    let parameters = model.parts.attention_layer_bytes as f64 / weight_bytes(model);
    compute_seconds(parameters, r.prompt_flops.0) + recurrence(model, r)
}

/// Seconds that a layer of a prompt moves through memory, once a chunk.
pub fn prompt_memory(model: &Model, r: &Rates) -> f64 {
    let (a, bundle) = (&model.architecture, model.parts.bundle.bundle_bytes() as f64);
    let attention = model.parts.attention_layer_bytes as f64;
    r.dense.seconds(attention + a.neurons() as f64 * bundle, f64::from(a.width))
}

/// Seconds that the CPU computes the layers of a prompt, reads aside, once another unit has taken its share.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptLayers {
    /// Per layer: seconds for each token of a chunk, and for the chunk beside them.
    pub compute: Vec<(f64, f64)>,
    /// Seconds that a layer moves through memory, once a chunk.
    pub memory: f64,
    /// Share of the computing that is attention.
    pub attention_fraction: f64,
    /// Share of the products that a unit beside the CPU takes.
    pub shared: Shared,
    /// Share of a layer's experts that 1, 2, 4, ... tokens of a chunk visit: see [`plans::terms::visited`].
    pub visited: Arc<[f64]>,
}

impl PromptLayers {
    /// On these cores, with chunks of so many tokens.
    pub fn new(question: &Question<'_>, r: &Rates, chunk: u32) -> Self {
        let Question { device, model, limits, .. } = question;
        let mut compute: Vec<(f64, f64)> =
            (0..model.layers.len()).map(|layer| prompt_compute(model, layer, r)).collect();
        let all: f64 = compute.iter().map(|(token, _)| token).sum();
        let attention = compute.len() as f64 * prompt_attention(model, r) * beside_chunk(r);
        let attention_fraction = if all > 0.0 { (attention / all).min(1.0) } else { 0.0 };
        let (mut memory, mut shared) = (prompt_memory(model, r), Shared::CPU);
        if limits.with(Feature::Units) {
            // the layer that is soonest done has the least to share
            let seconds = |&(token, once): &(f64, f64)| prompt_compute_seconds(chunk, token, once, memory);
            let least = compute.iter().map(seconds).fold(f64::INFINITY, f64::min);
            let products = prompt_products(model, chunk, least);
            shared = Shared::soonest(device, &products);
            memory = shared.memory_seconds(memory, products.bytes);
            for (token, once) in &mut compute {
                (*token, *once) = (shared.compute_seconds(*token), shared.compute_seconds(*once));
            }
        }
        Self { compute, memory, attention_fraction, shared, visited: Arc::clone(&question.visited) }
    }
}

/// A chunk's products with a layer.
fn prompt_products(model: &Model, chunk: u32, seconds: f64) -> Products<'_> {
    let a = &model.architecture;
    let (width, attention) = (f64::from(a.width), model.parts.attention_layer_bytes as f64);
    let bytes = attention + a.neurons() as f64 * model.parts.bundle.bundle_bytes() as f64;
    let of_network = f64::from(a.matrices());
    let parameters = attention / weight_bytes(model) + of_network * a.neurons_routed() as f64 * width;
    let matrices = ATTENTION_MATRICES + of_network * f64::from(a.experts);
    let met = ATTENTION_MATRICES + of_network * f64::from(a.experts_used);
    Products {
        format: &a.weight_format,
        tokens: f64::from(chunk),
        flops: 2.0 * f64::from(chunk) * parameters,
        bytes,
        matrices,
        vector_bytes: 2.0 * met * 4.0 * width * f64::from(chunk),
        // one layer is given to it while it computes with another
        held_bytes: 2.0 * bytes,
        copied: true,
        seconds,
    }
}

/// Share of a layer's experts that 1, 2, 4, ... tokens visit, on average over the layers; none where there are no experts, all of which are
/// visited.
///
/// *Reconstructed*: where experts come and go in slices, tokens visit as many as they would fill of a cache with room for all
/// ([`surface::Filling`]). Otherwise they are taken to choose evenly and independently, which visits most.
pub fn visited(model: &Model) -> Vec<f64> {
    let (a, bundle) = (&model.architecture, &model.parts.bundle);
    if a.experts == 1 {
        return Vec::new();
    }
    let (neurons, requested) = (a.neurons(), a.neurons_routed() as f64);
    let dense = model.levels.iter().find(|level| level.kind == LevelKind::Dense && bundle.slice_neurons > 1);
    let used = f64::from(a.experts_used) / f64::from(a.experts);
    let of_layer =
        |level: &Level, layer: usize| Filling::new(model, level, layer, requested, (0, neurons as u32), 0.0);
    let layers: Vec<Filling> = dense
        .map(|level| (0..level.layers.len()).map(|layer| of_layer(level, layer)).collect())
        .unwrap_or_default();
    let share = |tokens: f64| match layers.len() {
        0 => 1.0 - (1.0 - used).powf(tokens),
        count => {
            let all: f64 = layers.iter().map(|layer| layer.at(tokens)).sum();
            all / (count as f64 * neurons as f64)
        }
    };
    let lengths = (0..terms::VISITED).map(|log| (1u64 << log) as f64);
    lengths.map(|tokens| plans::file::significant(share(tokens).min(1.0))).collect()
}

/// Prefill of a prompt of so many tokens, in seconds: `sum over l of t_att(l) + max(t_ffn(l), t_io(l))`, each chunk.
///
/// *Stated*: `t_io(1) + sum over l of max(t_comp(l), t_io(l+1))`. Differs: the engine reads a layer's neurons while it computes those
/// that have come, not the next layer's, since a chunk's buffers are few; during attention nothing is read. Dense: pinned neurons come from memory, all others are read in order in whole buffers.
#[derive(Debug, Clone)]
pub struct PromptPrice {
    reads: ReadPrice,
    /// Of a layer of which nothing is pinned, once a chunk that visits all experts.
    of_layer: PromptReads,
    neurons: f64,
    stride_bytes: f64,
    chunks: Vec<Chunks>,
    /// Share of these that is attention.
    attention_fraction: f64,
    /// Seconds that no pinned neuron changes: the head, rows of the embedding.
    pub once: f64,
    /// Seconds that reading costs at least beside all computing.
    least: LeastReading,
}

/// Chunks of as many tokens.
#[derive(Debug, Clone, PartialEq)]
struct Chunks {
    count: f64,
    /// Per layer the seconds that one's tokens are computed.
    compute: Vec<f64>,
    /// Share of a layer's experts that they visit.
    visited: f64,
}

/// A lower bound of the seconds that a prompt's reads add to its computing, however neurons are shared among the layers: each second
/// of reading adds what it adds in the layer where that is least.
#[derive(Debug, Clone)]
struct LeastReading {
    /// Seconds of computing alone.
    computing: f64,
    /// Seconds that a missing neuron is read, each chunk.
    neuron_seconds: f64,
    /// Seconds that each second of reading adds, rising, and how many seconds of reading there are that add no more.
    steps: Vec<(f64, f64)>,
}

impl LeastReading {
    fn new(
        (chunks, attention_fraction): (&[Chunks], f64),
        once: f64,
        (taken_fraction, neuron_seconds, neurons): (f64, f64, f64),
    ) -> Self {
        let layers = chunks.first().map_or(0, |chunks| chunks.compute.len());
        // none reads a smaller share
        let neuron_seconds = neuron_seconds * chunks.iter().map(|chunks| chunks.visited).fold(1.0, f64::min);
        let all = neuron_seconds * neurons;
        let step = |layer: usize| {
            let added = |chunks: &Chunks| {
                let own = (1.0 - attention_fraction) * chunks.compute[layer];
                let reads = PromptReads { seconds: all, all_seconds: all, taken_fraction };
                chunks.count * reads.added_fraction(own)
            };
            (chunks.iter().map(added).sum::<f64>(), all)
        };
        let mut steps: Vec<(f64, f64)> = (0..layers).map(step).collect();
        steps.sort_by(|a, b| a.0.total_cmp(&b.0));
        let computing = |chunks: &Chunks| chunks.count * chunks.compute.iter().sum::<f64>();
        Self { computing: once + chunks.iter().map(computing).sum::<f64>(), neuron_seconds, steps }
    }
}

/// Comparing what one of a prompt's reads brings with its checksum.
pub fn prompt_check_seconds(reads: &ReadPrice, r: &Rates) -> f64 {
    memory_seconds(reads.ordered_bytes(), r.check)
}

/// The choices that the price of a prompt depends on, besides which neurons are pinned.
#[derive(Debug, Clone, Copy)]
pub struct PromptChoice<'a> {
    /// Prices of the reads.
    pub reads: &'a ReadPrice,
    /// Whether rows of the token embedding are read.
    pub embedding_rows: bool,
    /// Cores that compute.
    pub cores: &'a [u32],
    /// Tokens that pass a layer together.
    pub chunk: u32,
}

impl PromptPrice {
    /// Of a prompt of `tokens`.
    pub fn new(question: &Question<'_>, c: &PromptChoice<'_>, tokens: u32) -> Self {
        let model = question.model;
        let a = &model.architecture;
        let r = rates(question, c.cores);
        let reads = c.reads.clone();
        let reads_per_second = reads.in_order_per_second();
        let toll = reads.toll(false, r.threads);
        let taken_fraction =
            toll.taken(1.0, reads_per_second) + reads_per_second * prompt_check_seconds(&reads, &r);
        let PromptLayers { compute: of_layers, memory, attention_fraction, visited, .. } =
            PromptLayers::new(question, &r, c.chunk);
        let tokens = tokens.max(1);
        let chunks: Vec<Chunks> = [(tokens / c.chunk, c.chunk), (1, tokens % c.chunk)]
            .into_iter()
            .filter(|&(count, tokens)| count > 0 && tokens > 0)
            .map(|(count, tokens)| {
                let visited = terms::visited(&visited, tokens);
                let compute = |&(token, chunk): &(f64, f64)| {
                    prompt_compute_seconds(tokens, token, visited * chunk, visited * memory)
                };
                Chunks { count: f64::from(count), compute: of_layers.iter().map(compute).collect(), visited }
            })
            .collect();
        let embedding = f64::from(tokens) * embedding_seconds(question, c.embedding_rows);
        let once = embedding + rest(model, &r).seconds();
        let stride_bytes = model.parts.bundle.stride_bytes as f64;
        let neurons = a.neurons() as f64;
        let least = LeastReading::new(
            (&chunks, attention_fraction),
            once,
            (taken_fraction, reads.in_order_least(stride_bytes), neurons),
        );
        let all_seconds = reads.in_order(neurons * stride_bytes);
        let of_layer = PromptReads { seconds: all_seconds, all_seconds, taken_fraction };
        Self { reads, of_layer, neurons, stride_bytes, chunks, attention_fraction, once, least }
    }

    /// Whether another one, read in the same way, is the same with any neurons pinned.
    pub fn is_alike(&self, other: &Self) -> bool {
        self.once == other.once
            && self.chunks == other.chunks
            && self.attention_fraction == other.attention_fraction
    }

    /// Seconds of reading a layer of whose neurons so many are pinned, once a chunk that visits all experts.
    pub fn read_seconds(&self, hot: u32) -> f64 {
        self.reads.in_order((self.neurons - f64::from(hot)) * self.stride_bytes)
    }

    /// Seconds that a layer adds of whose neurons so many are pinned: the others are read while those that have come are computed.
    pub fn layer(&self, layer: usize, hot: u32) -> f64 {
        self.layer_with(layer, self.read_seconds(hot))
    }

    /// [`Self::layer`] where [`Self::read_seconds`] is known.
    pub fn layer_with(&self, layer: usize, io: f64) -> f64 {
        let chunk = |chunks: &Chunks| {
            let reads = PromptReads {
                seconds: chunks.visited * io,
                all_seconds: chunks.visited * self.of_layer.all_seconds,
                ..self.of_layer
            };
            chunks.count * prompt_layer_seconds(chunks.compute[layer], self.attention_fraction, &reads)
        };
        self.chunks.iter().map(chunk).sum()
    }

    /// Seconds with everything pinned.
    pub fn computing(&self) -> f64 {
        self.least.computing
    }

    /// Seconds that no way of sharing so many pinned neurons among the layers can be below.
    pub fn seconds_least(&self, pinned: f64) -> f64 {
        let LeastReading { computing, neuron_seconds, steps } = &self.least;
        let all: f64 = steps.iter().map(|(_, read)| read).sum();
        let mut left = (all - pinned * neuron_seconds).max(0.0);
        let mut seconds = *computing;
        for (slope, read) in steps {
            seconds += slope * read.min(left);
            left -= read.min(left);
        }
        seconds
    }

    /// Pinned neurons of all layers that no way of sharing them can do with fewer, for a prompt to take at most so many
    /// seconds; `None` if all are not enough.
    pub fn pinned_least(&self, seconds: f64) -> Option<f64> {
        let LeastReading { computing, neuron_seconds, steps } = &self.least;
        let mut left = (seconds - computing).max(0.0);
        let mut pinned = 0.0;
        for (slope, read) in steps {
            let hidden = if *slope * read <= left { *read } else { left / slope };
            left -= slope * hidden;
            pinned += (read - hidden) / neuron_seconds;
        }
        (seconds >= *computing).then_some(pinned)
    }

    /// Seconds with so many pinned neurons in each layer.
    pub fn seconds(&self, hot: &[u32]) -> f64 {
        self.once + hot.iter().enumerate().map(|(layer, &hot)| self.layer(layer, hot)).sum::<f64>()
    }
}
