//! The ways to decode at one quality level: cores with a cluster size, and how flash is read.
//!
//! Each is enumerated with its constants, which the plain cost functions compute. A way that another one beats in
//! every term is left out; that changes no optimum.

use std::cell::OnceCell;

use plans::Backend;
use plans::layout::Part;
use plans::memory::{self, Choices};
use plans::model::{Level, LevelKind};

use crate::cost;
use crate::curve::{Curve, div_up};
use crate::hardware::{self, Rates};
use crate::layers::{Cached, cachings};
use crate::reads::{ReadChoice, ReadPrice};
use crate::request::{Inputs, Limits, measured_run};
use crate::rules::{PAGE, Rules, nothing};

/// Cluster sizes worth offering: smaller ones are all dispatch, larger ones are all drain.
const CLUSTERS: [u64; 5] = [32, 64, 128, 512, 2048];
/// Buffer sizes worth offering, besides the smallest that holds a bundle.
const BUFFERS: [u64; 4] = [1 << 14, 1 << 16, 1 << 18, 1 << 20];
/// Buffers for each read in flight: reading goes on while the last clusters are computed.
const BUFFERS_PER_READ: u32 = 2;
/// Gaps to fuse, in bundles.
const GAPS: [u64; 5] = [0, 1, 3, 7, 15];

/// One choice of compute cores and cluster size.
#[derive(Debug, Clone, PartialEq)]
pub struct Compute {
    /// Compute cores, fastest first.
    pub cores: Vec<u32>,
    /// Cores of the reading threads, where there are any.
    pub io_cores: Vec<u32>,
    /// Whether those are the same cores.
    pub shared: bool,
    /// Active neurons computed together.
    pub cluster: u64,
    /// Whether the user's cores allow it.
    pub allowed: bool,
    /// Seconds that nothing overlaps, at the mean position of the measured run.
    pub serial: f64,
    /// Pages of threads and their activations.
    pub pages: i64,
    /// Per layer, in seconds: the feed-forward block, and one cluster of it.
    layers: Vec<(f64, f64)>,
}

/// One choice of how flash is read.
#[derive(Debug)]
pub struct Read<'a> {
    /// Depth, buffers, gap.
    pub choice: ReadChoice,
    /// Pages of buffers and reading threads.
    pub pages: i64,
    /// Least seconds that a missing neuron takes, however many there are.
    pub least: f64,
    /// Seconds of filling one slot, spread over the measured run.
    fill: f64,
    price: ReadPrice<'a>,
    /// Per layer and way of caching, in seconds: reading what is missing, and the CPU time of that. Most ways are
    /// dismissed before anybody asks.
    layers: OnceCell<Vec<Vec<(f64, f64)>>>,
}

/// What there is to choose at one level.
#[derive(Debug)]
pub struct Ways<'a> {
    /// The level.
    pub level: &'a Level,
    /// Cores and cluster.
    pub computes: Vec<Compute>,
    /// Reads.
    pub reads: Vec<Read<'a>>,
    /// Per layer: what may be cached.
    pub cached: Vec<Vec<Cached>>,
    /// The fewest neurons that can be missing in all layers together, in [`MISSING`]ths, against bytes.
    pub missing: Curve,
    /// Pages that no choice changes.
    pub base: i64,
    neurons: f64,
}

/// Parts of a missing neuron, where they are counted whole.
pub const MISSING: f64 = 65_536.0;

impl<'a> Ways<'a> {
    /// All of them; with `any_core` also on cores that the user did not allow, marked as such.
    pub fn new(inputs: &'a Inputs, limits: &Limits, level: &'a Level, rules: &Rules, any_core: bool) -> Self {
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
        let compute_pages = |threads: usize, cluster_neurons: u64| {
            let compute_threads = threads.max(rules.prefill_cores.len()) as u64;
            pages(sum(&Choices { compute_threads, cluster_neurons, ..empty }) - whole)
        };
        let read_pages = |r: &ReadChoice| {
            let (depth, buffers) = (u64::from(r.depth), u64::from(r.buffers));
            let c = Choices { backend: r.backend, depth, buffers, buffer_bytes: r.buffer_bytes, ..empty };
            pages(sum(&c) - whole)
        };
        let cached: Vec<Vec<Cached>> =
            (0..level.layers.len()).map(|layer| cachings(inputs, level, layer)).collect();
        let whole_missing = |way: &Cached| (way.bytes, (way.missing * MISSING) as i64);
        let curve = |ways: &Vec<Cached>| Curve::over(&ways.iter().map(whole_missing).collect::<Vec<_>>());
        let curves: Vec<Curve> = cached.iter().map(curve).collect();
        Self {
            level,
            computes: computes(inputs, limits, level, any_core, compute_pages),
            reads: reads(inputs, limits, level, rules, &cached, read_pages),
            cached,
            missing: Curve::sum(curves.iter()),
            base: pages(whole),
            neurons: model.architecture.neurons() as f64,
        }
    }

    /// Per layer and way of caching: seconds of the feed-forward block, with its share of filling the slots.
    pub fn layer_seconds(&self, compute: &Compute, read: &Read<'_>) -> Vec<Vec<f64>> {
        let sharing = cost::sharing(read.choice.backend, compute.shared, compute.cores.len());
        let reads_cost = read.price.cost();
        let reading = read.layers.get_or_init(|| {
            let of = |way: &Cached| {
                let reads = read.price.of(way.missing, self.neurons - f64::from(way.hot));
                (reads.seconds, reads.reads * reads_cost.cpu_seconds_per_read)
            };
            self.cached.iter().map(|ways| ways.iter().map(of).collect()).collect()
        });
        let layer = |((ways, &computing), reading): ((&Vec<Cached>, _), &Vec<(f64, f64)>)| {
            let of = |(way, &reading): (&Cached, _)| {
                cost::overlapped_seconds(computing, reading, reads_cost.interference_fraction, sharing)
                    + f64::from(way.cold) * read.fill
            };
            ways.iter().zip(reading).map(of).collect()
        };
        self.cached.iter().zip(&compute.layers).zip(reading).map(layer).collect()
    }

    /// Seconds of a token were nothing missing: no reads can make it faster.
    pub fn seconds_least(&self, compute: &Compute) -> f64 {
        compute.serial + compute.layers.iter().map(|(busy, _)| busy).sum::<f64>()
    }
}

fn pages(bytes: i64) -> i64 {
    div_up(bytes, PAGE)
}

/// Every set of cores by class counts, with every cluster size, that no other beats.
fn computes(
    inputs: &Inputs,
    limits: &Limits,
    level: &Level,
    any_core: bool,
    memory: impl Fn(usize, u64) -> i64,
) -> Vec<Compute> {
    let model = &inputs.model;
    let all = inputs.device.core_ids();
    let pools: Vec<(&[u32], bool)> = if any_core {
        vec![(&limits.cores, true), (&all, !limits.cores_chosen)]
    } else {
        vec![(&limits.cores, true)]
    };
    let asked: Vec<(f64, f64)> = (0..level.layers.len()).map(|l| cost::asked(model, level, l)).collect();
    let mut ways = Vec::new();
    for (pool, allowed) in pools {
        for cores in core_sets(inputs, pool) {
            let r = cost::rates(inputs, limits, &cores);
            let serial = serial_seconds(inputs, limits, level, &r);
            let (io_cores, shared) = io_cores(inputs, pool, &cores);
            for cluster in CLUSTERS {
                let of = |&asked: &(f64, f64)| {
                    let (work, drain) = cost::feed_forward(model, level, asked, cluster, &r);
                    (work.seconds(), drain)
                };
                ways.push(Compute {
                    io_cores: io_cores.clone(),
                    shared,
                    cluster,
                    serial,
                    pages: memory(cores.len(), cluster),
                    layers: asked.iter().map(of).collect(),
                    allowed,
                    cores: cores.clone(),
                });
            }
        }
    }
    keep_unbeaten(ways, |way| {
        let n = way.cores.len() as f64;
        let mut terms =
            vec![way.serial, way.pages as f64, way.cores.len() as f64, f64::from(u8::from(!way.allowed))];
        terms.extend(if way.shared { [1.0 / n, 0.0] } else { [0.0, 1.0] });
        terms.extend(way.layers.iter().flat_map(|&(busy, drain)| [busy, drain]));
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

/// What nothing overlaps, at the mean position of the measured run.
fn serial_seconds(inputs: &Inputs, limits: &Limits, level: &Level, r: &Rates) -> f64 {
    let model = &inputs.model;
    let per_layer = cost::attention(model, r).seconds() + cost::predictor(model, level, r).seconds();
    let context =
        cost::context_seconds(model, limits.kv_value_bytes(), r) * cost::mean_position(limits.context);
    f64::from(model.architecture.layers) * per_layer + cost::rest(model, r).seconds() + context
}

/// Every back end that the device has, at every measured depth, with every buffer size and gap.
fn reads<'a>(
    inputs: &'a Inputs,
    limits: &Limits,
    level: &Level,
    rules: &Rules,
    cached: &[Vec<Cached>],
    memory: impl Fn(&ReadChoice) -> i64,
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
    let neurons = model.architecture.neurons() as f64;
    let dense = level.kind == LevelKind::Dense;
    let generated = f64::from(measured_run(limits.context).1);
    let density = |way: &Cached| way.missing / (neurons - f64::from(way.hot)).max(1.0);
    let densest = cached.iter().flatten().map(density).fold(0.0, f64::max).min(1.0);
    let mut ways = Vec::new();
    for (backend, direct, depth) in queues {
        let buffers = depth * BUFFERS_PER_READ;
        let sizes: Vec<u64> =
            std::iter::once(smallest).chain(BUFFERS.into_iter().filter(|&size| size > smallest)).collect();
        let affordable = |&size: &u64| size == smallest || u64::from(buffers) * size <= rules.buffers_most;
        // Sparse reads gain nothing from large buffers, prefill does: the largest that there is room for.
        let largest = sizes.iter().copied().filter(affordable).max().unwrap_or(smallest);
        let offered = if dense { sizes } else { vec![largest] };
        for buffer_bytes in offered {
            let gaps = GAPS.iter().map(|gap| gap * stride);
            for gap_bytes in gaps.filter(|&gap| gap == 0 || gap + 2 * stride <= buffer_bytes) {
                let choice = ReadChoice { backend, direct, depth, buffers, buffer_bytes, gap_bytes };
                let price = ReadPrice::new(inputs, level.kind, choice);
                ways.push(Read {
                    choice,
                    pages: memory(&choice),
                    least: price.least_seconds(densest),
                    fill: price.single_seconds() / generated,
                    price,
                    layers: OnceCell::new(),
                });
            }
        }
    }
    ways
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
