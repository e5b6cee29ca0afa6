//! From profiles and limits to [`Tables`]: what there is to choose among for one quality level.
//!
//! Choices that another one beats in every term are left out; that changes no optimum, only the time
//! to prove it. Decided here by rule, not by the solver: buffer size, prefill's cores and chunk.

use plans::layout::Part;
use plans::memory::{self, Activations, Choices, kv_bytes_per_token};
use plans::model::{Level, LevelKind};

use crate::cost;
use crate::groups::like_layers;
use crate::hardware::{self, Rates};
use crate::reads::{ReadChoice, ReadPrice};
use crate::request::{Inputs, Limits, measured_run};
use crate::surface;
use crate::tables::{ComputeMode, Group, RATE, ReadMode, Stretch, Tables, div_up};

/// Cluster sizes worth offering: smaller ones are all dispatch, larger ones are all drain.
const CLUSTERS: [u64; 5] = [32, 64, 128, 512, 2048];
/// Buffer sizes worth offering, besides the smallest that holds a bundle.
const BUFFERS: [u64; 4] = [1 << 14, 1 << 16, 1 << 18, 1 << 20];
/// Buffers for each read in flight: reading goes on while the last clusters are computed.
const BUFFERS_PER_READ: u32 = 2;
/// Prompt tokens that may pass a layer together.
const CHUNKS: [u32; 7] = [512, 256, 128, 64, 32, 16, 8];
/// Gaps to fuse, in bundles.
const GAPS: [u64; 5] = [0, 1, 3, 7, 15];
/// Page roundings of the regions, taken off the limit beforehand.
const ROUNDING_PAGES: i64 = 12;
const PAGE: i64 = plans::PAGE_BYTES as i64;
/// Ticks of the fastest token.
const TICKS: f64 = 524_288.0;
/// Units of the neurons asked for.
const MISSING: f64 = 65_536.0;
/// Bytes of the tables for a slot that changes its neuron.
const SLOT_BYTES: i64 = 16;
/// Quanta of a layer's neurons.
const QUANTA: u64 = 256;

/// How much memory the conveniences may take: buffers beyond the smallest, and prefill's chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// A 64th of the limit each.
    Generous,
    /// As little as works: where memory is what is to be saved.
    Frugal,
}

/// What is decided by rule, before the solver.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Prefill's cores.
    pub prefill_cores: Vec<u32>,
    /// Prompt tokens that pass a layer together.
    pub chunk: u32,
}

/// Prefill's cores and chunk.
///
/// Cores: those of the allowed ones, fastest first, that compute fastest together. Chunk: the largest
/// whose activations leave the room.
pub fn rules(inputs: &Inputs, limits: &Limits, room: Room) -> Rules {
    let flops = |n: usize| cost::rates(inputs, limits, &limits.cores[..n]).flops;
    let n = (1..=limits.cores.len()).fold(1, |best, n| if flops(n) > flops(best) { n } else { best });
    let a = &inputs.model.architecture;
    let none = vec![0; a.layers as usize];
    let bytes = |chunk: u32| {
        let mut c = nothing(limits, &none);
        c.chunk_tokens = u64::from(chunk);
        Activations::new(a, &c).bytes()
    };
    let most = match room {
        Room::Generous => limits.memory_bytes / 64,
        Room::Frugal => 0,
    };
    let fits = |chunk: &u32| *chunk <= limits.context && bytes(*chunk) <= most;
    let least = if room == Room::Frugal { 16 } else { 8 };
    let chunk = CHUNKS.into_iter().find(fits).unwrap_or(least).min(limits.context);
    Rules { prefill_cores: limits.cores[..n].to_vec(), chunk }
}

/// Sizes of a process that caches nothing, computes nothing and reads nothing yet.
fn nothing<'a>(limits: &Limits, none: &'a [u32]) -> Choices<'a> {
    Choices {
        kind: LevelKind::Dense,
        level_resident_bytes: 0,
        hot_neurons: none,
        cold_slots: none,
        context_tokens: u64::from(limits.context),
        kv_value_bytes: limits.kv_value_bytes(),
        compute_threads: 0,
        io_threads: 0,
        cluster_neurons: 1,
        chunk_tokens: 1,
        buffers: 0,
        buffer_bytes: 0,
    }
}

/// The levels that the limits allow, the least loss first.
pub fn levels<'a>(inputs: &'a Inputs, limits: &Limits) -> Vec<&'a Level> {
    let fits = |level: &&Level| {
        let small = limits.loss_max > 0.0 && level.perplexity_change_fraction <= limits.loss_max;
        (level.lossless || small) && limits.level.as_ref().is_none_or(|name| *name == level.name)
    };
    let mut levels: Vec<&Level> = inputs.model.levels.iter().filter(fits).collect();
    levels.sort_by(|a, b| {
        let loss =
            |level: &Level| if level.lossless { 0.0 } else { level.perplexity_change_fraction.max(0.0) };
        loss(a).total_cmp(&loss(b)).then(a.name.cmp(&b.name))
    });
    levels
}

/// Pages that the regions may add up to so that they and their page tables stay within `limit`.
fn regions_within(limit: u64) -> i64 {
    // `page_tables_bytes` is at most a 500th and five pages.
    ((limit as i64 / PAGE - 5 - ROUNDING_PAGES) * 500 / 501).max(0)
}

fn pages(bytes: i64) -> i64 {
    div_up(bytes, PAGE)
}

/// The tables of one level. `any_core` also lists cores that the user did not allow, marked as such.
pub fn tables(
    inputs: &Inputs,
    limits: &Limits,
    level: &Level,
    rules: &Rules,
    room: Room,
    any_core: bool,
    tick_seconds: f64,
) -> Tables {
    let (device, model) = (&inputs.device, &inputs.model);
    let none = vec![0; model.architecture.layers as usize];
    let mut empty = nothing(limits, &none);
    empty.kind = level.kind;
    empty.level_resident_bytes = level.resident_bytes;
    empty.chunk_tokens = u64::from(rules.chunk);
    let sum = |c: &Choices<'_>| {
        let m = memory::regions(device, model, c, limits.memory_bytes);
        (m.sum() - m.page_tables_bytes) as i64
    };
    let whole = sum(&empty);
    let kv = u64::from(limits.context) * kv_bytes_per_token(&model.architecture, limits.kv_value_bytes());
    let quantum = quantum(model.architecture.neurons());
    let groups = groups(inputs, level, quantum);
    let asked = |group: &Group| {
        let n = group.layers.len() as f64;
        let all = group.layers.iter().map(|&layer| cost::asked(model, level, layer));
        let (neurons, fires) = all.fold((0.0, 0.0), |sum, (neurons, fires)| (sum.0 + neurons, sum.1 + fires));
        (neurons / n, fires / n)
    };
    let asked: Vec<(f64, f64)> = groups.iter().map(asked).collect();
    let compute_pages = |threads: usize, cluster_neurons: u64| {
        let compute_threads = threads.max(rules.prefill_cores.len()) as u64;
        pages(sum(&Choices { compute_threads, cluster_neurons, ..empty }) - whole)
    };
    let scale = Scale { asked: &asked, tick_seconds, quantum };
    let compute = compute_modes(inputs, limits, level, &scale, any_core, compute_pages);
    let read_pages = |r: &ReadChoice| {
        let io_threads = u64::from(r.depth);
        let c = Choices { io_threads, buffers: u64::from(r.buffers), buffer_bytes: r.buffer_bytes, ..empty };
        pages(sum(&c) - whole)
    };
    let reads = read_modes(inputs, limits, level, room, &scale, read_pages);
    let neuron_bytes = model.parts.bundle.part_bytes(memory::slot_part(level.kind)) as i64;
    let layers = |group: &Group| group.layers.len() as i64 * quantum as i64;
    let base = pages(whole - kv as i64);
    Tables {
        compute,
        reads,
        quantum: quantum as i64,
        tick_seconds,
        base,
        kv: pages(kv as i64),
        cached_pages: groups.iter().map(|g| pages(layers(g) * neuron_bytes)).collect(),
        slot_pages: groups.iter().map(|g| div_up(layers(g) * SLOT_BYTES * RATE, PAGE)).collect(),
        groups,
        user_pages: limits.user_memory_bytes.map(regions_within),
        machine_pages: regions_within(limits.machine_bytes),
        time_max: limits.speed_min.map(|speed| (1.0 / speed / tick_seconds) as i64),
        interference: (device.storage.interference_fraction * RATE as f64).ceil() as i64,
        time_step: 1,
        memory_step: 1,
    }
}

/// What the modes are priced against.
struct Scale<'a> {
    /// Per group: mean neurons asked for in a layer, and the share whose gate fires.
    asked: &'a [(f64, f64)],
    tick_seconds: f64,
    quantum: u64,
}

impl Scale<'_> {
    fn ticks(&self, seconds: f64) -> i64 {
        (seconds / self.tick_seconds).ceil() as i64
    }

    fn rate(&self, seconds: f64) -> i64 {
        (seconds / self.tick_seconds * RATE as f64).ceil() as i64
    }
}

/// Seconds of a tick: of the fastest token that any set of cores could compute at any of these levels,
/// were everything in memory.
pub fn tick_seconds(inputs: &Inputs, limits: &Limits, levels: &[&Level]) -> f64 {
    let model = &inputs.model;
    let sets = core_sets(inputs, &inputs.device.core_ids());
    let token = |cores: &Vec<u32>, level: &Level| {
        let r = cost::rates(inputs, limits, cores);
        let ffn = |layer: usize| {
            let asked = cost::asked(model, level, layer);
            cost::feed_forward(model, level, asked, CLUSTERS[CLUSTERS.len() - 1], &r).0.seconds()
        };
        serial_seconds(inputs, limits, level, &r) + (0..level.layers.len()).map(ffn).sum::<f64>()
    };
    let tokens = levels.iter().flat_map(|level| sets.iter().map(move |cores| token(cores, level)));
    tokens.fold(f64::MAX, f64::min) / TICKS
}

/// What nothing overlaps, at the mean position of the measured run.
fn serial_seconds(inputs: &Inputs, limits: &Limits, level: &Level, r: &Rates) -> f64 {
    let model = &inputs.model;
    let per_layer = cost::attention(model, r).seconds() + cost::predictor(model, level, r).seconds();
    let context =
        cost::context_seconds(model, limits.kv_value_bytes(), r) * cost::mean_position(limits.context);
    f64::from(model.architecture.layers) * per_layer + cost::rest(model, r).seconds() + context
}

/// The smallest divisor of a layer's neurons that makes at most [`QUANTA`] of them.
fn quantum(neurons: u64) -> u64 {
    let least = neurons.div_ceil(QUANTA);
    (least..least * 16).find(|q| neurons.is_multiple_of(*q)).unwrap_or(1)
}

/// Groups of like layers and their miss curves.
fn groups(inputs: &Inputs, level: &Level, quantum: u64) -> Vec<Group> {
    let model = &inputs.model;
    let weight = |layer: usize| {
        let cells = level.layers[layer].miss_fraction.concat();
        let mean = cells.iter().sum::<f64>() / cells.len().max(1) as f64;
        cost::asked_neurons(model, level, layer) * (1.0 + mean)
    };
    let weights: Vec<f64> = (0..level.layers.len()).map(weight).collect();
    like_layers(&weights)
        .into_iter()
        .map(|layers| {
            let stretches = stretches(inputs, level, &layers, quantum);
            Group { layers, stretches }
        })
        .collect()
}

/// The mean miss curves of these layers, a convex stretch at a time.
///
/// Below one token's working set no recency is assumed: a share that leaves slots begins where they
/// hold the 99th percentile of what a token asks for.
pub fn stretches(inputs: &Inputs, level: &Level, layers: &[usize], quantum: u64) -> Vec<Stretch> {
    let model = &inputs.model;
    let neurons = model.architecture.neurons() as f64;
    let pinned_only = level.kind == LevelKind::Dense;
    let mut curves: Vec<(f64, Vec<(f64, f64)>)> = Vec::new();
    let asked =
        layers.iter().map(|&l| cost::asked_neurons(model, level, l)).sum::<f64>() / layers.len() as f64;
    for &share in model.reuse.pinned_share_fraction.iter().rev() {
        if pinned_only && share < 1.0 {
            continue;
        }
        let working_set = layers.iter().map(|&l| level.layers[l].predicted_neurons_p99).fold(0.0, f64::max);
        let low = if share < 1.0 { (working_set / (1.0 - share)).ceil() } else { 0.0 };
        let missing = |cached: f64| {
            let of = |&l: &usize| {
                let rate = surface::miss(model, level, l, share * cached, (1.0 - share) * cached);
                cost::asked_neurons(model, level, l) * rate
            };
            layers.iter().map(of).sum::<f64>() / layers.len() as f64
        };
        let whole_quanta = |x: f64| (x / quantum as f64).round() * quantum as f64;
        let low = (low / quantum as f64).ceil() * quantum as f64;
        let axis = model.reuse.cached_fraction.iter().map(|fraction| whole_quanta(fraction * neurons));
        let mut xs: Vec<f64> = std::iter::once(low).chain(axis.filter(|&x| x > low)).collect();
        xs.dedup();
        if low >= neurons || xs.len() < 2 {
            continue;
        }
        let curve: Vec<(f64, f64)> = xs.iter().map(|&x| (x, missing(x))).collect();
        let beaten = |(_, other): &(f64, Vec<(f64, f64)>)| {
            other[0].0 <= low && curve.iter().all(|&(x, y)| surface::at(other, x) <= y + 1e-9)
        };
        if !curves.iter().any(beaten) {
            curves.push((share, curve));
        }
    }
    let corner = |x: f64, y: f64| ((x / quantum as f64).round() as i64, (y / asked * MISSING).ceil() as i64);
    let whole = |curve: &(f64, Vec<(f64, f64)>)| {
        let share_permille = (curve.0 * 1000.0).round() as i64;
        let pieces = surface::convex_pieces(&curve.1, asked).into_iter().map(|piece| Stretch {
            share_permille,
            corners: piece.iter().map(|&(x, y)| corner(x, y)).collect(),
        });
        pieces.collect::<Vec<_>>()
    };
    curves.iter().flat_map(whole).collect()
}

/// Every set of cores by class counts, with every cluster size, that no other beats.
fn compute_modes(
    inputs: &Inputs,
    limits: &Limits,
    level: &Level,
    scale: &Scale<'_>,
    any_core: bool,
    memory: impl Fn(usize, u64) -> i64,
) -> Vec<ComputeMode> {
    let all = inputs.device.core_ids();
    let pools: Vec<(&[u32], bool)> = if any_core {
        vec![(&limits.cores, true), (&all, !limits.cores_chosen)]
    } else {
        vec![(&limits.cores, true)]
    };
    let mut modes: Vec<ComputeMode> = Vec::new();
    for (pool, allowed) in pools {
        for cores in core_sets(inputs, pool) {
            let r = cost::rates(inputs, limits, &cores);
            let serial = scale.ticks(serial_seconds(inputs, limits, level, &r));
            let (io_cores, shared) = io_cores(inputs, pool, &cores);
            for cluster in CLUSTERS {
                let of = |&asked: &(f64, f64)| {
                    let (work, drain) = cost::feed_forward(&inputs.model, level, asked, cluster, &r);
                    (scale.ticks(work.seconds()), scale.ticks(drain))
                };
                modes.push(ComputeMode {
                    io_cores: io_cores.clone(),
                    shared,
                    cluster,
                    serial,
                    memory: memory(cores.len(), cluster),
                    core_count: (cores.len() + if shared { 0 } else { io_cores.len() }) as i64,
                    layers: scale.asked.iter().map(of).collect(),
                    allowed,
                    cores: cores.clone(),
                });
            }
        }
    }
    keep_unbeaten(modes, |mode| {
        let n = mode.cores.len() as i64;
        let mut terms = vec![mode.serial, mode.memory, mode.core_count, i64::from(!mode.allowed)];
        terms.extend(if mode.shared { [1024 / n, 0] } else { [0, 1] });
        terms.extend(mode.layers.iter().flat_map(|&(busy, drain)| [busy, drain]));
        terms
    })
}

/// The fastest `n_k` cores of each class, for every `n_k` that the pool allows (equation 3, *stated*).
fn core_sets(inputs: &Inputs, pool: &[u32]) -> Vec<Vec<u32>> {
    let mut sets: Vec<Vec<u32>> = vec![Vec::new()];
    for class in &inputs.device.cores {
        let ids: Vec<u32> = class.ids.iter().copied().filter(|id| pool.contains(id)).collect();
        let more = |set: &Vec<u32>| {
            let set = set.clone();
            let ids = ids.clone();
            (0..=ids.len()).map(move |n| [set.clone(), ids[..n].to_vec()].concat())
        };
        sets = sets.iter().flat_map(more).collect();
    }
    sets.retain(|set| !set.is_empty());
    sets
}

/// Cores for the reading threads: those that do not compute, the best reader alone if it is among them.
pub fn io_cores(inputs: &Inputs, pool: &[u32], compute: &[u32]) -> (Vec<u32>, bool) {
    let free: Vec<u32> = pool.iter().copied().filter(|core| !compute.contains(core)).collect();
    if free.is_empty() {
        return (compute.to_vec(), true);
    }
    let best = inputs.device.storage.best_core;
    (vec![if free.contains(&best) { best } else { free[0] }], false)
}

/// Every measured depth, with its buffers, that no other beats.
fn read_modes(
    inputs: &Inputs,
    limits: &Limits,
    level: &Level,
    room: Room,
    scale: &Scale<'_>,
    memory: impl Fn(&ReadChoice) -> i64,
) -> Vec<ReadMode> {
    let (device, model) = (&inputs.device, &inputs.model);
    let bundle = &model.parts.bundle;
    let direct = device.storage.direct && !hardware::depths(device, true).is_empty();
    let mut depths = hardware::depths(device, direct);
    if depths.is_empty() {
        depths.push(1);
    }
    let least = buffer_bytes_min(inputs);
    let routed = model.architecture.neurons_routed() as f64;
    let neurons = model.architecture.neurons() as f64;
    let dense = level.kind == LevelKind::Dense;
    let gaps: &[u64] = if dense { &GAPS } else { &GAPS[..1] };
    let mut modes = Vec::new();
    for depth in depths {
        let buffers = depth * BUFFERS_PER_READ;
        let most = match room {
            Room::Generous => limits.memory_bytes / 64,
            Room::Frugal => 0,
        };
        let sizes = || std::iter::once(least).chain(BUFFERS.into_iter().filter(|&size| size > least));
        let fitting: Vec<u64> =
            sizes().filter(|&size| size == least || u64::from(buffers) * size <= most).collect();
        // Sparse reads gain nothing from large buffers, prefill does: the largest that there is room for.
        let offered =
            if dense && room == Room::Generous { &fitting[..] } else { &fitting[fitting.len() - 1..] };
        for (&buffer_bytes, &gap) in offered.iter().flat_map(|size| gaps.iter().map(move |gap| (size, gap))) {
            let choice =
                ReadChoice { direct, depth, buffers, buffer_bytes, gap_bytes: gap * bundle.stride_bytes };
            let (missing, among) = if dense { (routed, neurons) } else { (1.0, f64::MAX) };
            let price = ReadPrice::new(inputs, level.kind, choice);
            let reads = price.of(missing, among);
            let seconds = reads.seconds / missing / MISSING;
            let issue = reads.reads / missing * device.storage.cpu_seconds_per_read / MISSING;
            let generated = f64::from(measured_run(limits.context).1);
            modes.push(ReadMode {
                depth,
                direct,
                buffers,
                buffer_bytes,
                gap_bytes: choice.gap_bytes,
                missing: scale.asked.iter().map(|asked| scale.rate(asked.0 * seconds)).collect(),
                issue: scale.asked.iter().map(|asked| scale.rate(asked.0 * issue)).collect(),
                fill: scale.rate(scale.quantum as f64 * price.single_seconds() / generated),
                memory: memory(&choice),
            });
        }
    }
    keep_unbeaten(modes, |mode| [&mode.missing[..], &mode.issue, &[mode.fill, mode.memory]].concat())
}

/// The smallest buffer that holds any read of one whole neuron.
pub fn buffer_bytes_min(inputs: &Inputs) -> u64 {
    let bundle = &inputs.model.parts.bundle;
    (0..plans::PAGE_BYTES)
        .map(|position| bundle.span(position, Part::Whole).pages().bytes)
        .max()
        .unwrap_or(4096)
}

/// Gaps, in bytes, that are worth trying once the rest is decided.
pub fn gaps(inputs: &Inputs, buffer_bytes: u64) -> Vec<u64> {
    let stride = inputs.model.parts.bundle.stride_bytes;
    GAPS.iter().map(|gap| gap * stride).filter(|&gap| gap == 0 || gap + 2 * stride <= buffer_bytes).collect()
}

/// The candidates that no other beats or equals in all terms; of equals, the first.
fn keep_unbeaten<T>(all: Vec<T>, terms: impl Fn(&T) -> Vec<i64>) -> Vec<T> {
    let rows: Vec<Vec<i64>> = all.iter().map(&terms).collect();
    let beats = |i: usize, j: usize| {
        rows[i].iter().zip(&rows[j]).all(|(a, b)| a <= b) && (rows[i] != rows[j] || i < j)
    };
    let keep: Vec<bool> = (0..rows.len()).map(|j| !(0..rows.len()).any(|i| i != j && beats(i, j))).collect();
    all.into_iter().zip(keep).filter_map(|(item, kept)| kept.then_some(item)).collect()
}

/// One layer's own miss curve at a pinned share, between two numbers of cached neurons, made convex.
pub fn layer_curve(
    inputs: &Inputs,
    level: &Level,
    layer: usize,
    share_permille: i64,
    low: i64,
    high: i64,
) -> Vec<(f64, f64)> {
    let model = &inputs.model;
    let (share, neurons) = (share_permille as f64 / 1000.0, model.architecture.neurons() as f64);
    let (low, high) = (low as f64, high as f64);
    let axis = model.reuse.cached_fraction.iter().map(|fraction| (fraction * neurons).round());
    let inner = axis.filter(|&x| x > low && x < high);
    let asked = cost::asked_neurons(model, level, layer);
    let missing = |x: f64| asked * surface::miss(model, level, layer, share * x, (1.0 - share) * x);
    let points: Vec<(f64, f64)> =
        std::iter::once(low).chain(inner).chain([high]).map(|x| (x, missing(x))).collect();
    surface::lower_hull(&points)
}
