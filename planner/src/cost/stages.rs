//! Equations 7, 8 and 11: the stages in which a layer of a token is computed, and what a token computes beside its layers.

use plans::KvFormat;
use plans::device::LONG_ROW_VALUES;
use plans::engine::{
    ADDED, ALONE, ATTENTION_DISPATCHES, LATENT_DISPATCHES, LIST_PASSES, PREFETCH_ONE_IN, SAMPLING_PASSES,
    SERIAL_PASSES_PER_LAYER, SUMS, SUMS_PASSES, run_neurons, stream_passes,
};
use plans::layout::Part;
use plans::memory::{kv_read_bytes_per_token, slot_part};
use plans::model::{Heads, Level, LevelKind, Model};
use plans::overlap::{Stages, uneven};
use plans::terms::Work;

use super::hardware::Rates;

/// Equations 7 and 8: `2 P / F`, each parameter being multiplied and added once. *Reconstructed.*
pub fn compute_seconds(parameters: f64, flops_per_second: f64) -> f64 {
    2.0 * parameters / flops_per_second
}

/// Equation 11: `W / B_mem`. *Reconstructed.*
/// Differs: `B_mem` is what the very kernel reaches from memory, not the bus.
pub fn memory_seconds(bytes: f64, bytes_per_second: f64) -> f64 {
    bytes / bytes_per_second
}

/// Bytes of a weight as the model stores it.
pub(super) fn weight_bytes(model: &Model) -> f64 {
    model.parts.bundle.gate_bytes.max(1) as f64 / f64::from(model.architecture.width)
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
pub(super) fn recurrence(model: &Model, r: &Rates) -> f64 {
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
    let values: f64 = a.reading_heads().map(of_shape).sum();
    let bytes = kv_read_bytes_per_token(a, kv) as f64;
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
pub(super) fn rows_touched(model: &Model, part: Part, fires: f64, counts: f64) -> (f64, f64, f64) {
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
    let streams = a.streams.map_or(1, |streams| streams.count as usize);
    let of_layer = SERIAL_PASSES_PER_LAYER + stream_passes(streams);
    let passes = of_layer as f64 * f64::from(a.layers) * f64::from(a.width)
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
