//! The ways to decode at one quality level with one policy of the cache: cores, and how flash is read.
//!
//! Each is enumerated with its constants, which the plain cost functions compute. A way that another one beats in
//! every term is left out; that changes no optimum.

use std::cell::OnceCell;

use plans::layout::{Part, Phases};
use plans::memory::{self, Choices, slot_part};
use plans::model::{Level, LevelKind};
use plans::plan::Feature;
use plans::{Backend, Policy};

use crate::cost::{self, Stages};
use crate::curve::div_up;
use crate::hardware::{self, Rates};
use crate::layers::{Cached, cachings};
use crate::least::{Least, LeastReads};
use crate::reads::{LayerReads, ReadChoice, ReadPrice};
use crate::request::{Inputs, Limits, measured_run};
use crate::rules::{self, PAGE, Rules, nothing};

/// Buffer sizes worth offering, besides the smallest that holds a bundle.
const BUFFERS: [u64; 4] = [1 << 14, 1 << 16, 1 << 18, 1 << 20];
/// Buffers for each read in flight, and their number where more pay: a layer's reads are started at once as far as there
/// are buffers, and prefetched ones keep theirs until they are requested. One each only where they are as small as they can be.
const BUFFERS_PER_READ: [u32; 3] = [1, 2, 4];
const BUFFERS_MANY: u32 = 512;
/// As many as this where they are large enough for a prompt, or prompts may be slow.
const BUFFERS_MOST: u32 = 1024;
/// Buffers from this size on read in order as fast as larger ones, since the kernel joins neighbours; with smaller ones a
/// prompt takes a third more. Measured.
const IN_ORDER_BYTES: u64 = 1 << 16;
/// Prefetched reads in flight worth offering: none, or these. Fewer leave the device without work, and more delay what is requested
/// for: on two devices 16 to 32 were alike within two parts in a hundred; 64, tried on one of them, took a twelfth longer.
const LOOK_AHEAD: u32 = 32;
/// Gaps to fuse, in bundles.
const GAPS: [u64; 5] = [0, 1, 3, 7, 15];

/// One choice of compute cores.
#[derive(Debug, Clone, PartialEq)]
pub struct Compute {
    /// Compute cores, fastest first.
    pub cores: Vec<u32>,
    /// Cores of the reading threads, where there are any.
    pub io_cores: Vec<u32>,
    /// Whether those are the same cores.
    pub shared: bool,
    /// Whether the user's cores allow it.
    pub allowed: bool,
    /// Seconds that nothing overlaps, at the mean position of the measured run.
    pub serial: f64,
    /// Pages of threads and their activations.
    pub pages: i64,
    /// The part of it that each layer has, before its reads.
    pub before: f64,
    /// Seconds of copying one neuron into its slot.
    insert: f64,
    /// Per layer.
    layers: Vec<Stages>,
}

/// One choice of how flash is read.
#[derive(Debug)]
pub struct Read<'a> {
    /// Depth, buffers, gap.
    pub choice: ReadChoice,
    /// Pages of buffers and reading threads.
    pub pages: i64,
    /// What it takes at least.
    pub least: LeastReads,
    /// Seconds of filling one slot, spread over the measured run.
    fill: f64,
    price: ReadPrice<'a>,
    /// Per layer and way of caching: reading what is missing. Most ways are dismissed before anybody asks.
    layers: OnceCell<Vec<Vec<LayerReads>>>,
}

/// What there is to choose at one level with one policy.
#[derive(Debug)]
pub struct Ways<'a> {
    /// The level.
    pub level: &'a Level,
    /// Who leaves the cache.
    pub policy: Policy,
    /// Cores.
    pub computes: Vec<Compute>,
    /// Reads.
    pub reads: Vec<Read<'a>>,
    /// Per layer: what may be cached.
    pub cached: Vec<Vec<Cached>>,
    /// What reading takes at least, whatever of that is cached.
    pub least: Least,
    /// Pages that no choice changes.
    pub base: i64,
    /// Per layer: share of the neurons requested whose gate fires.
    fires: Vec<f64>,
}

impl<'a> Ways<'a> {
    /// All of them; with `any_core` also on cores that the user did not allow, marked as such.
    pub fn new(
        inputs: &'a Inputs,
        limits: &Limits,
        level: &'a Level,
        policy: Policy,
        rules: &Rules,
        any_core: bool,
    ) -> Self {
        let (device, model) = (&inputs.device, &inputs.model);
        let none = vec![0; model.architecture.layers as usize];
        let mut empty = nothing(limits, &none);
        empty.kind = level.kind;
        empty.level_resident_bytes = level.resident_bytes;
        empty.chunk_tokens = u64::from(rules.chunk);
        empty.cluster_neurons = u64::from(rules.cluster);
        empty.embedding_rows = rules.embedding_rows;
        let sum = |c: &Choices<'_>| {
            let m = memory::regions(device, model, c, limits.memory_bytes);
            let sum = if rules.prompt_over_slots { m.decode_sum() } else { m.prefill_sum() };
            (sum - m.page_tables_bytes) as i64
        };
        let whole = sum(&empty);
        let compute_pages = |threads: usize| {
            let compute_threads = threads.max(rules.prefill_cores.len()) as u64;
            pages(sum(&Choices { compute_threads, ..empty }) - whole)
        };
        let read_pages = |r: &ReadChoice| {
            let (depth, buffers) = (u64::from(r.depth), u64::from(r.buffers));
            let c = Choices { backend: r.backend, depth, buffers, buffer_bytes: r.buffer_bytes, ..empty };
            pages(sum(&c) - whole)
        };
        let cached: Vec<Vec<Cached>> =
            (0..level.layers.len()).map(|layer| cachings(inputs, limits, level, policy, layer)).collect();
        let least = Least::new(&cached);
        Self {
            level,
            policy,
            computes: computes(inputs, limits, level, rules, any_core, compute_pages),
            reads: reads(inputs, limits, level, rules, &least, read_pages),
            cached,
            least,
            base: pages(whole),
            fires: (0..level.layers.len()).map(|layer| cost::requested(model, level, layer).1).collect(),
        }
    }

    /// Per layer and way of caching: seconds beyond what comes before reads, with the share of filling the slots.
    pub fn layer_seconds(&self, compute: &Compute, read: &Read<'_>) -> Vec<Vec<f64>> {
        let toll = read.price.toll(compute.shared, compute.cores.len());
        let reading = read.layers.get_or_init(|| {
            let layers = self.cached.iter().zip(&self.fires);
            let of =
                |ways: &[Cached], fires| ways.iter().map(|way| read.price.of(way.missing, fires)).collect();
            layers.map(|(ways, &fires)| of(ways, fires)).collect()
        });
        let layer = |(layer, ways): (usize, &Vec<Cached>)| {
            let stages = compute.layers[layer].with(read.choice.look_ahead);
            let of = |(way, reads): (&Cached, &LayerReads)| {
                let queue = read.price.queue(reads, layer > 0, &stages);
                let inserted = way.missing.neurons * read.price.whole_fraction(self.fires[layer]);
                let insert = if way.cold > 0 { inserted * compute.insert } else { 0.0 };
                cost::layer_seconds(&stages, insert, &queue, &toll, read.choice.blocking)
                    + f64::from(way.cold) * read.fill
            };
            ways.iter().zip(&reading[layer]).map(of).collect()
        };
        self.cached.iter().enumerate().map(layer).collect()
    }

    /// Seconds of a token were nothing missing: no reads can make it faster.
    pub fn seconds_least(&self, compute: &Compute) -> f64 {
        compute.serial + compute.layers.iter().map(|stages| stages.gate_up + stages.down).sum::<f64>()
    }

    /// Seconds of a token that the time of its reads comes on top of, at least: with look-ahead they go on while others attend
    /// and name.
    pub fn seconds_apart(&self, compute: &Compute, read: &Read<'_>) -> f64 {
        let before = if read.choice.look_ahead > 0 { compute.before } else { 0.0 };
        compute.serial - self.cached.len() as f64 * before
    }
}

fn pages(bytes: i64) -> i64 {
    div_up(bytes, PAGE)
}

/// Every set of cores by class counts that no other beats.
fn computes(
    inputs: &Inputs,
    limits: &Limits,
    level: &Level,
    rules: &Rules,
    any_core: bool,
    memory: impl Fn(usize) -> i64,
) -> Vec<Compute> {
    let model = &inputs.model;
    let embedding = cost::embedding_seconds(inputs, rules.embedding_rows);
    let all = inputs.device.core_ids();
    let pools: Vec<(&[u32], bool)> = if any_core {
        vec![(&limits.cores, true), (&all, !limits.cores_chosen)]
    } else {
        vec![(&limits.cores, true)]
    };
    let mut ways = Vec::new();
    for (pool, allowed) in pools {
        for cores in core_sets(inputs, pool) {
            let r = cost::rates(inputs, limits, &cores);
            let cluster = rules::cluster(level);
            let layers: Vec<Stages> =
                (0..level.layers.len()).map(|layer| cost::stages(model, level, layer, cluster, &r)).collect();
            let before = layers.iter().map(|stages| stages.before).fold(0.0, f64::max);
            let (io_cores, shared) = io_cores(inputs, pool, &cores);
            ways.push(Compute {
                io_cores,
                shared,
                serial: embedding + once_seconds(inputs, limits, &r) + layers.len() as f64 * before,
                before,
                pages: memory(cores.len()),
                insert: cost::insert_seconds(model, level, &r),
                layers,
                allowed,
                cores,
            });
        }
    }
    keep_unbeaten(ways, |way| {
        let n = way.cores.len() as f64;
        let once = way.serial - way.layers.len() as f64 * way.before;
        let mut terms =
            vec![once, way.before, way.insert, way.pages as f64, n, f64::from(u8::from(!way.allowed))];
        terms.extend(if way.shared { [1.0 / n, 0.0] } else { [0.0, 1.0] });
        terms
            .extend(way.layers.iter().flat_map(|s| [s.look_ahead, s.gate_up, s.completion, s.drain, s.down]));
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
fn io_cores(inputs: &Inputs, pool: &[u32], compute: &[u32]) -> (Vec<u32>, bool) {
    let free: Vec<u32> = pool.iter().copied().filter(|core| !compute.contains(core)).collect();
    if free.is_empty() {
        return (compute.to_vec(), true);
    }
    let best = inputs.device.storage.best_core;
    (vec![if free.contains(&best) { best } else { free[0] }], false)
}

/// What a token takes besides its layers, and for its context at the mean position of the measured run.
fn once_seconds(inputs: &Inputs, limits: &Limits, r: &Rates) -> f64 {
    let model = &inputs.model;
    let context =
        cost::context_seconds(model, limits.kv_value_bytes(), r) * cost::mean_position(limits.context);
    cost::rest(model, r).seconds() + context
}

/// Every back end that the device has, at every measured depth, with every number and size of buffers, every gap, and
/// with and without look-ahead.
fn reads<'a>(
    inputs: &'a Inputs,
    limits: &Limits,
    level: &Level,
    rules: &Rules,
    least: &Least,
    memory_of: impl Fn(&ReadChoice) -> i64,
) -> Vec<Read<'a>> {
    let (device, model) = (&inputs.device, &inputs.model);
    let stride = model.parts.bundle.stride_bytes;
    let usable = |&backend: &Backend| device.storage.read_cost(backend).is_some();
    let mut queues = Vec::new();
    for backend in Backend::ALL.into_iter().filter(usable) {
        let direct = device.storage.direct && !hardware::depths(device, backend, true).is_empty();
        queues.extend(
            hardware::depths(device, backend, direct).into_iter().map(|depth| (backend, direct, depth)),
        );
    }
    if queues.is_empty() {
        queues.push((Backend::Pread, device.storage.direct, 1));
    }
    let smallest = buffer_bytes_min(inputs);
    let dense = level.kind == LevelKind::Dense;
    let everything = dense && model.architecture.experts == 1;
    let generated = f64::from(measured_run(limits.context).1);
    let sizes: Vec<u64> =
        std::iter::once(smallest).chain(BUFFERS.into_iter().filter(|&size| size > smallest)).collect();
    let mut ways = Vec::new();
    let large = u64::from(BUFFERS_MOST) * IN_ORDER_BYTES;
    let most = (rules.buffers_most == 0 || large <= rules.buffers_most).then_some(BUFFERS_MOST);
    let numbers =
        |depth: u32| BUFFERS_PER_READ.map(|each| each * depth).into_iter().chain([BUFFERS_MANY]).chain(most);
    let queues = queues.into_iter().flat_map(|queue| numbers(queue.2).map(move |buffers| (queue, buffers)));
    for ((backend, direct, depth), buffers) in queues {
        let transposed = |&size: &u64| {
            !model.architecture.transposes_down() || memory::hold_transposed(u64::from(buffers), size, stride)
        };
        let within = |most: u64| {
            let affordable = move |&size: &u64| size == smallest || u64::from(buffers) * size <= most;
            sizes.iter().copied().filter(affordable).filter(transposed)
        };
        // Sparse reads gain nothing from large buffers, prefill does: the largest that there is room for, or for a quarter of it.
        let offered: Vec<u64> = if dense {
            within(rules.buffers_most).collect()
        } else {
            let largest = within(rules.buffers_most).max();
            let quarter = within(rules.buffers_most / 4).max().filter(|&size| size >= IN_ORDER_BYTES);
            largest.into_iter().chain(quarter.filter(|_| quarter != largest)).collect()
        };
        for buffer_bytes in offered.into_iter().filter(|&size| buffers > depth || size == smallest) {
            let gaps = GAPS.iter().map(|gap| gap * stride);
            // where everything is requested there are no gaps
            let gaps = gaps.filter(|&gap| gap == 0 || !everything && gap + 2 * stride <= buffer_bytes);
            let phases = phases(inputs, limits, level);
            let cuts = gaps.flat_map(|gap| phases.iter().map(move |&phases| (gap, phases)));
            // what is read in phases is read by itself
            for (gap_bytes, phases) in cuts.filter(|&(gap, phases)| gap == 0 || phases == Phases::Whole) {
                let blocking = !limits.with(Feature::Pipeline);
                let choice = ReadChoice {
                    backend,
                    direct,
                    depth,
                    buffers,
                    buffer_bytes,
                    gap_bytes,
                    look_ahead: 0,
                    phases,
                    blocking,
                };
                let plain = ReadPrice::new(inputs, level.kind, choice);
                let (pages, least) = (memory_of(&choice), least.reads(&plain));
                let look_aheads = [0, LOOK_AHEAD.min(depth)];
                for look_ahead in
                    look_aheads.into_iter().filter(|&n| n == 0 || limits.with(Feature::LookAhead))
                {
                    let price = plain.clone().with(look_ahead);
                    ways.push(Read {
                        choice: ReadChoice { look_ahead, ..choice },
                        pages,
                        least: least.clone(),
                        fill: price.single_seconds() / generated,
                        price,
                        layers: OnceCell::new(),
                    });
                }
            }
        }
    }
    ways
}

/// How a missing neuron may be read; where all are requested a layer is read in order, and phases are not offered.
pub fn phases(inputs: &Inputs, limits: &Limits, level: &Level) -> Vec<Phases> {
    let (bundle, part) = (&inputs.model.parts.bundle, slot_part(level.kind));
    let offered = |phases: &Phases| {
        let wanted = match phases {
            Phases::Whole => limits.with(Feature::Bundle) && limits.with(Feature::WholeRead),
            Phases::TwoPhase => limits.with(Feature::Bundle) && limits.with(Feature::TwoPhase),
            Phases::Rows => !limits.with(Feature::Bundle),
        };
        wanted && level.kind != LevelKind::Dense && bundle.steps(part, *phases).is_some()
    };
    let ways: Vec<Phases> = Phases::ALL.into_iter().filter(offered).collect();
    if ways.is_empty() { vec![Phases::Whole] } else { ways }
}

/// The smallest buffer that holds any read of one whole neuron.
pub fn buffer_bytes_min(inputs: &Inputs) -> u64 {
    let bundle = &inputs.model.parts.bundle;
    (0..plans::PAGE_BYTES)
        .map(|position| bundle.span(position, Part::Whole).pages().bytes)
        .max()
        .unwrap_or(4096)
}

/// The candidates that no other beats or equals in all terms; of equals, the first.
fn keep_unbeaten<T>(all: Vec<T>, terms: impl Fn(&T) -> Vec<f64>) -> Vec<T> {
    let rows: Vec<Vec<f64>> = all.iter().map(&terms).collect();
    let beats = |i: usize, j: usize| {
        rows[i].iter().zip(&rows[j]).all(|(a, b)| a <= b) && (rows[i] != rows[j] || i < j)
    };
    let keep: Vec<bool> = (0..rows.len()).map(|j| !(0..rows.len()).any(|i| i != j && beats(i, j))).collect();
    all.into_iter().zip(keep).filter_map(|(item, kept)| kept.then_some(item)).collect()
}
