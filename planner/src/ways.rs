//! The ways to decode at one quality level with one policy of the cache: cores, and how flash is read.
//!
//! Each is enumerated with its constants, which the plain cost functions compute. A way that another one beats in
//! every term is left out; that changes no optimum.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use plans::layout::Phases;
use plans::memory::{self, Choices, slot_part};
use plans::model::{Level, LevelKind, Model};
use plans::overlap::Stages;
use plans::plan::Feature;
use plans::{Backend, Device, Policy};

use crate::cost;
use crate::hardware::Rates;
use crate::layers::{Cached, cachings};
use crate::read_curves;
use crate::reads::{Cut, CutKey, LayerReads, Queued, ReadChoice, ReadPrice, ReadsKey, Toll};
use crate::request::{Limits, Question, measured_run};
use crate::room::Room;
use crate::rules::{self, Prompt, nothing};
use crate::simple_rule;

/// Buffer sizes worth offering, besides the smallest that holds a bundle.
const BUFFERS: [u64; 4] = [1 << 14, 1 << 16, 1 << 18, 1 << 20];
/// Buffers for each read in flight, and their number where more pay: a layer's reads are started at once as far as there
/// are buffers, and prefetched ones keep theirs until they are requested. One each only where they are as small as they can be.
const BUFFERS_PER_READ: [u32; 3] = [1, 2, 4];
const BUFFERS_MANY: u32 = 512;
/// Number of buffers where they are large enough for a prompt, or prompts may be slow.
const BUFFERS_MOST: u32 = 1024;
/// Buffers from this size on read in order as fast as larger ones, since the kernel joins neighbours; with smaller ones a
/// prompt takes a third more. Measured.
const IN_ORDER_BYTES: u64 = 1 << 16;
/// Prefetched reads in flight worth offering: none, or these. Fewer leave the device without work, and more delay what is requested
/// for: on two devices 16 to 32 were alike within two parts in a hundred; 64, tried on one of them, took a twelfth longer.
const LOOK_AHEAD: u32 = 32;
/// Prefetched reads of slices in flight worth offering: slices take longer each, and what has started is waited for. Whole experts of
/// 13 MB (gpt-oss-20b's shape, 6 GiB, two cores), of which a layer misses 1.9: 2.9 tok/s with none, 2.9 with two and 2.7 with four.
const LOOK_AHEAD_SLICES: [u32; 3] = [1, 2, 4];
/// Gaps to fuse, in bundles: no wider than those that profiles count ([`plans::model::WIDE_GAP_RANKS`]). Without the widest plans were up
/// to a quarter slower, and one a fifth faster, on the fixtures.
const GAPS: [u64; 5] = [0, 1, 3, 7, 15];

/// Prices of reads that are kept at a level, at most: 16 MiB.
const READS_KEPT: usize = (16 << 20) / size_of::<LayerReads>();
/// Cuts that are kept at a level, at most: 8 MiB.
const CUTS_KEPT: usize = (8 << 20) / size_of::<Cut>();

/// One choice of compute cores.
#[derive(Debug, Clone, PartialEq)]
pub struct Compute {
    /// Compute cores, fastest first.
    pub cores: Vec<u32>,
    /// Cores of the reading threads, where there are any.
    pub io_cores: Vec<u32>,
    /// Whether the reading threads have the compute cores.
    pub shared: bool,
    /// Whether rows of the token embedding are read.
    pub embedding_rows: bool,
    /// Seconds that nothing overlaps, at the mean position of the measured run.
    pub serial: f64,
    /// Seconds of [`Self::serial`] that each layer has, before its reads.
    pub before: f64,
    /// Seconds of copying one neuron into its slot.
    pub(crate) insert: f64,
    /// Per layer.
    pub(crate) layers: Vec<Stages>,
}

/// One choice of how flash is read.
#[derive(Debug)]
pub struct Read {
    /// Depth, buffers, gap.
    pub choice: ReadChoice,
    /// Bytes of buffers and reading threads.
    pub bytes: i64,
    /// Seconds of filling one slot, spread over the measured run.
    pub(crate) fill: f64,
    price: ReadPrice,
}

impl Read {
    /// Prices of the reads.
    pub fn price(&self) -> &ReadPrice {
        &self.price
    }
}

/// The ways to decode at one level with one policy.
#[derive(Debug)]
pub struct Ways<'a> {
    /// The level.
    pub level: &'a Level,
    /// Cache policy: who leaves a slot.
    pub policy: Policy,
    /// Cores.
    pub computes: Vec<Compute>,
    /// Reads.
    pub reads: Vec<Read>,
    /// Per layer: what may be cached.
    pub cached: Vec<Vec<Cached>>,
    /// Layers that are alike in all that decides their time, the first by itself: one of each kind, and how many there are.
    pub kinds: Vec<(usize, i64)>,
    /// Place of each layer's kind among these.
    pub kind_of: Vec<usize>,
    /// Bytes of the regions beside neurons, a prompt's rows, tables, threads and buffers, without and with rows of the token
    /// embedding being read.
    pub(crate) base: [i64; 2],
    /// Bytes of the tables that no slot changes, likewise.
    pub(crate) tables: [i64; 2],
    /// Bytes of one neuron in memory, in each layer.
    pub slot_bytes: Vec<u64>,
    /// Per layer: share of the neurons requested whose gate fires.
    pub(crate) fires: Vec<f64>,
    /// How missing neurons are cut into reads, by what that depends on: many ways of reading share it.
    cuts: RefCell<HashMap<CutKey, Arc<AllCuts>>>,
    /// [`Self::layer_reads`] of ways of reading that were asked for, by what that depends on.
    layer_reads: RefCell<HashMap<ReadsKey, Arc<AllReads>>>,
}

/// Per layer and way of caching how missing neurons are cut into reads, and the most reads.
type AllCuts = (Vec<Vec<Cut>>, f64);

/// Per layer and way of caching what is read.
pub type AllReads = Vec<Vec<LayerReads>>;

impl<'a> Ways<'a> {
    /// Cores and reads, without what may be cached.
    pub fn bare(question: &Question<'a>, level: &'a Level, policy: Policy) -> Self {
        let Question { device, model, limits, .. } = question;
        let none = vec![0; model.architecture.layers as usize];
        let mut empty = nothing(limits, &none);
        empty.kind = level.kind;
        empty.level_resident_bytes = level.resident_bytes;
        empty.slice_neurons = model.parts.bundle.slice_neurons;
        let sum = |c: &Choices<'_>| {
            let m = memory::regions(device, model, c, limits.memory_bytes);
            (m.process_bytes
                + m.reserve_bytes
                + m.fixed_bytes
                + m.kv_bytes
                + m.state_bytes
                + m.activations_bytes
                + m.io_buffers_bytes) as i64
        };
        let base = sum(&empty);
        let with_rows = sum(&Choices { embedding_rows: true, ..empty });
        let slice = model.parts.bundle.slice_neurons;
        let tables = |rows| memory::slotless_tables_bytes(&model.architecture, slice, rows) as i64;
        let read_bytes = |r: &ReadChoice| {
            let (depth, buffers) = (u64::from(r.depth), u64::from(r.buffers));
            sum(&Choices { backend: r.backend, depth, buffers, buffer_bytes: r.buffer_bytes, ..empty }) - base
        };
        Self {
            level,
            policy,
            computes: computes(question, level),
            reads: reads(question, level, read_bytes),
            cached: Vec::new(),
            kinds: Vec::new(),
            kind_of: Vec::new(),
            base: [base, with_rows],
            tables: [tables(false), tables(true)],
            slot_bytes: (0..level.layers.len())
                .map(|layer| model.bundle(layer).part_bytes(slot_part(level.kind)))
                .collect(),
            fires: (0..level.layers.len()).map(|layer| cost::requested(model, level, layer).1).collect(),
            cuts: RefCell::default(),
            layer_reads: RefCell::default(),
        }
    }

    /// All ways, with what may be cached.
    pub fn new(question: &Question<'a>, level: &'a Level, policy: Policy) -> Self {
        let mut ways = Self::bare(question, level, policy);
        let pinned = simple_rule::pinned(question, &ways);
        let Question { model, limits, .. } = question;
        ways.cached = (0..level.layers.len())
            .map(|layer| cachings(model, limits, level, policy, layer, &pinned))
            .collect();
        for layer in 0..ways.cached.len() {
            // nobody prefetches for the first
            let alike = |&(other, _): &(usize, i64)| other > 0 && ways.are_alike(layer, other);
            let kind = ways.kinds.iter().position(alike).unwrap_or(ways.kinds.len());
            if kind == ways.kinds.len() {
                ways.kinds.push((layer, 0));
            }
            ways.kinds[kind].1 += 1;
            ways.kind_of.push(kind);
        }
        ways
    }

    /// Whether two layers take the same time with the same caching.
    fn are_alike(&self, layer: usize, other: usize) -> bool {
        self.cached[layer] == self.cached[other]
            && self.fires[layer] == self.fires[other]
            && self.computes.iter().all(|compute| compute.layers[layer] == compute.layers[other])
    }

    /// How many layers are of each kind.
    pub fn counts(&self) -> Vec<i64> {
        self.kinds.iter().map(|&(_, count)| count).collect()
    }

    /// What is so of each kind of layer, for all layers.
    fn of_kinds<T: Clone>(&self, of_kind: impl FnMut(usize) -> T) -> Vec<T> {
        let of_each: Vec<T> = self.kinds.iter().map(|&(layer, _)| layer).map(of_kind).collect();
        self.kind_of.iter().map(|&kind| of_each[kind].clone()).collect()
    }

    /// Bytes that are left of `regions` for neurons and a prompt's rows.
    pub fn room(
        &self,
        device: &Device,
        regions: i64,
        compute: &Compute,
        read: &Read,
        prompt: &Prompt,
    ) -> Room {
        let threads = compute.cores.len().max(prompt.cores.len()) as i64;
        let threads_bytes = threads * device.capacity.thread_bytes as i64;
        let rows = usize::from(compute.embedding_rows);
        Room {
            bytes: regions - self.base[rows] - threads_bytes - read.bytes,
            rows: prompt.rows_bytes,
            tables: self.tables[rows],
        }
    }

    /// Reads of each layer with each of its ways of caching, whichever cores compute: many ways to decode share them.
    pub fn layer_reads(&self, read: usize) -> Arc<AllReads> {
        let price = &self.reads[read].price;
        let of_each = self.cuts_of_each(price);
        let (cuts, most) = &*of_each;
        let mut known = self.layer_reads.borrow_mut();
        if let Some(reads) = known.get(&price.reads_key(*most)) {
            return Arc::clone(reads);
        }
        let layer = |layer: usize| -> Vec<LayerReads> {
            let (ways, fires) = (self.cached[layer].iter().zip(&cuts[layer]), self.fires[layer]);
            ways.map(|(way, cut)| price.of_cut(way.missing, cut, fires)).collect()
        };
        let reads: Arc<AllReads> = Arc::new(self.of_kinds(layer));
        if (known.len() + 1) * self.cached_count() > READS_KEPT {
            known.clear();
        }
        known.insert(price.reads_key(*most), Arc::clone(&reads));
        reads
    }

    /// Ways of caching, of all layers together.
    fn cached_count(&self) -> usize {
        self.cached.iter().map(Vec::len).sum()
    }

    /// How the missing neurons of each layer are cut with each of its ways of caching, and the most reads that any takes.
    pub(crate) fn cuts_of_each(&self, price: &ReadPrice) -> Arc<AllCuts> {
        let mut known = self.cuts.borrow_mut();
        if let Some(cuts) = known.get(&price.cut_key()) {
            return Arc::clone(cuts);
        }
        let layer = |layer: usize| -> Vec<Cut> {
            self.cached[layer].iter().map(|way| price.cut(way.missing)).collect()
        };
        let cuts = self.of_kinds(layer);
        let most = cuts.iter().flatten().map(|cut| cut.reads).fold(0.0, f64::max);
        let cuts = Arc::new((cuts, most));
        if (known.len() + 1) * self.cached_count() > CUTS_KEPT {
            known.clear();
        }
        known.insert(price.cut_key(), Arc::clone(&cuts));
        cuts
    }

    /// Seconds of a layer beyond what comes before reads, with the share of filling the slots.
    pub fn seconds(&self, compute: &Compute, read: &Read, toll: &Toll, layer: usize, way: &Cached) -> f64 {
        self.seconds_with(compute, read, toll, layer, way, &read.price.of(way.missing, self.fires[layer]))
    }

    /// [`Self::seconds`] with the layer's reads given.
    pub fn seconds_with(
        &self,
        compute: &Compute,
        read: &Read,
        toll: &Toll,
        layer: usize,
        way: &Cached,
        reads: &LayerReads,
    ) -> f64 {
        let stages = compute.layers[layer].with(read.choice.look_ahead);
        let inserted = way.missing.neurons * read.price.whole_fraction(self.fires[layer]);
        let insert = if way.cold > 0 { inserted * compute.insert } else { 0.0 };
        read.price.supply().layer_seconds(&stages, insert, reads, layer > 0, toll) + way.filled * read.fill
    }

    /// The share that reads take of those who compute.
    pub fn toll(&self, compute: &Compute, read: &Read) -> Toll {
        read.price.toll(compute.shared, compute.cores.len())
    }

    /// The reads by what they have in common: all but how many are in flight and how many buffers there are. Fewest buffers first.
    pub fn read_groups(&self) -> Vec<Vec<usize>> {
        let common = |read: usize| {
            let ReadChoice { backend, direct, buffer_bytes, gap_bytes, look_ahead, phases, blocking, .. } =
                self.reads[read].choice;
            (backend, direct, buffer_bytes, gap_bytes, look_ahead > 0, phases, blocking)
        };
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for read in 0..self.reads.len() {
            match groups.iter_mut().find(|group| common(group[0]) == common(read)) {
                Some(group) => group.push(read),
                None => groups.push(vec![read]),
            }
        }
        let size = |&read: &usize| (self.reads[read].choice.buffers, self.reads[read].choice.depth);
        groups.iter_mut().for_each(|group| group.sort_by_key(size));
        groups
    }

    /// The cores by what they have in common: the set of those that compute. Fewest first.
    pub fn compute_sets(&self) -> Vec<Vec<usize>> {
        let mut sets: Vec<Vec<usize>> = Vec::new();
        for compute in 0..self.computes.len() {
            let alike = |set: &&mut Vec<usize>| self.computes[set[0]].cores == self.computes[compute].cores;
            match sets.iter_mut().find(alike) {
                Some(set) => set.push(compute),
                None => sets.push(vec![compute]),
            }
        }
        sets.sort_by_key(|set| self.computes[set[0]].cores.len());
        sets
    }

    /// Seconds of a token were nothing missing: no reads can make it faster.
    pub fn seconds_least(&self, compute: &Compute) -> f64 {
        compute.serial + compute.layers.iter().map(|stages| stages.gate_up + stages.down).sum::<f64>()
    }
}

/// Every set of cores by class counts that no other beats, those who read having cores of their own or not.
fn computes(question: &Question<'_>, level: &Level) -> Vec<Compute> {
    let Question { device, model, limits, .. } = question;
    let mut ways = Vec::new();
    for cores in core_sets(device, &limits.cores) {
        let r = cost::rates(question, &cores);
        let cluster = rules::cluster(level);
        let layers: Vec<Stages> =
            (0..level.layers.len()).map(|layer| cost::stages(model, level, layer, cluster, &r)).collect();
        let before = layers.iter().map(|stages| stages.before).fold(0.0, f64::max);
        let serial = once_seconds(model, limits, &r) + layers.len() as f64 * before;
        let insert = cost::insert_seconds(model, level, &r);
        for (io_cores, shared) in io_cores(device, &limits.cores, &cores) {
            for embedding_rows in rules::embedding_rows(question) {
                let (cores, io_cores, layers) = (cores.clone(), io_cores.clone(), layers.clone());
                let serial = serial + cost::embedding_seconds(question, embedding_rows);
                ways.push(Compute {
                    cores,
                    io_cores,
                    shared,
                    embedding_rows,
                    serial,
                    before,
                    insert,
                    layers,
                });
            }
        }
    }
    keep_unbeaten(ways, |way| {
        let n = way.cores.len() as f64;
        let once = way.serial - way.layers.len() as f64 * way.before;
        let mut terms = vec![once, way.before, way.insert, n];
        // with cores of their own and without are not compared
        terms.extend(if way.shared { [1.0 / n, 0.0] } else { [0.0, 1.0] });
        terms.push(f64::from(u8::from(!way.embedding_rows)));
        terms.extend(
            way.layers
                .iter()
                .flat_map(|s| [s.look_ahead, s.gate_up, s.completion, s.drain, s.down, s.neuron, s.check]),
        );
        terms
    })
}

/// The fastest `n_k` cores of each class, for every `n_k` that the pool allows (equation 3, *stated*); of more than sixteen, numbers a
/// sixteenth to an eighth apart, and all.
fn core_sets(device: &Device, pool: &[u32]) -> Vec<Vec<u32>> {
    let mut sets: Vec<Vec<u32>> = vec![Vec::new()];
    for class in &device.cores {
        let ids: Vec<u32> = class.ids.iter().copied().filter(|id| pool.contains(id)).collect();
        let more = |set: &Vec<u32>| {
            let set = set.clone();
            let ids = ids.clone();
            counts(ids.len()).map(move |n| [set.clone(), ids[..n].to_vec()].concat())
        };
        sets = sets.iter().flat_map(more).collect();
    }
    sets.retain(|set| !set.is_empty());
    sets
}

/// Numbers of cores that are worth trying, up to `all`: where there are many, one more or less is not told from it.
fn counts(all: usize) -> impl Iterator<Item = usize> {
    (0..=all).filter(move |&n| n == all || n.is_multiple_of((n.next_power_of_two() / 16).max(1)))
}

/// Cores for the reading threads: one that does not compute, the best reader if it is among those, or those that compute.
fn io_cores(device: &Device, pool: &[u32], compute: &[u32]) -> Vec<(Vec<u32>, bool)> {
    let free: Vec<u32> = pool.iter().copied().filter(|core| !compute.contains(core)).collect();
    let best = device.storage.best_core;
    let own = free.first().map(|&first| (vec![if free.contains(&best) { best } else { first }], false));
    own.into_iter().chain([(compute.to_vec(), true)]).collect()
}

/// Seconds of a token besides its layers, and for its context at the mean position of the measured run.
fn once_seconds(model: &Model, limits: &Limits, r: &Rates) -> f64 {
    let context = cost::context_seconds(model, limits.kv, r) * cost::mean_position(limits.context);
    cost::rest(model, r).seconds() + context
}

/// Every back end that the device has, at every measured depth, with every number and size of buffers, every gap, and
/// with and without look-ahead.
fn reads(question: &Question<'_>, level: &Level, memory_of: impl Fn(&ReadChoice) -> i64) -> Vec<Read> {
    let Question { device, model, limits, .. } = question;
    let (stride, sliced) = (model.parts.bundle.stride_bytes, model.parts.bundle.slice_neurons > 1);
    let widest =
        (0..model.layers.len()).map(|layer| model.bundle(layer).stride_bytes).max().unwrap_or(stride);
    let usable = |&backend: &Backend| device.storage.read_cost(backend).is_some();
    let mut queues = Vec::new();
    for backend in Backend::ALL.into_iter().filter(usable) {
        let direct = device.storage.direct && !read_curves::depths(device, backend, true).is_empty();
        queues.extend(
            read_curves::depths(device, backend, direct).into_iter().map(|depth| (backend, direct, depth)),
        );
    }
    if queues.is_empty() {
        queues.push((Backend::Pread, device.storage.direct, 1));
    }
    // holds any read of one whole slice
    let smallest = model.read_bytes_max();
    let dense = level.kind == LevelKind::Dense;
    let everything = dense && model.architecture.experts == 1;
    let generated = f64::from(measured_run(limits.context).1);
    let sizes: Vec<u64> =
        std::iter::once(smallest).chain(BUFFERS.into_iter().filter(|&size| size > smallest)).collect();
    let mut ways = Vec::new();
    // a buffer holds all parts of a slice, which are as many reads
    let parts = model.parts.bundle.reads_of_slice() as u32;
    let numbers = |depth: u32| {
        let each = BUFFERS_PER_READ.map(|each| each * depth).into_iter();
        each.chain([BUFFERS_MANY, BUFFERS_MOST]).map(|reads| reads.div_ceil(parts))
    };
    let queues = queues.into_iter().map(|(backend, direct, depth)| {
        let span = model.container.bytes;
        (backend, direct, depth, Arc::new(Queued::new(question.flash(), backend, direct, depth, span)))
    });
    let queues = queues.flat_map(|queue| numbers(queue.2).map(move |buffers| (queue.clone(), buffers)));
    for ((backend, direct, depth, queued), buffers) in queues {
        let transposed = |size: u64| {
            !model.architecture.transposes_down() || memory::hold_transposed(u64::from(buffers), size, widest)
        };
        // Sparse reads gain little from buffers above those that read in order as fast as larger ones.
        let useful = |size: u64| size == smallest || dense || size <= IN_ORDER_BYTES;
        let offered = sizes.iter().copied().filter(|&size| transposed(size) && useful(size));
        // what lies apart is not joined
        let fits = |size: u64| size == smallest || parts == 1 && buffers > depth;
        for buffer_bytes in offered.filter(|&size| fits(size)) {
            let gaps = GAPS.iter().map(|gap| gap * stride);
            // where everything is requested there are no gaps, and between slices none that are short
            let short = |gap: u64| !everything && !sliced && gap + 2 * stride <= buffer_bytes;
            let gaps = gaps.filter(|&gap| gap == 0 || short(gap));
            let phases = phases(model, limits, level);
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
                let plain = ReadPrice::on(Arc::clone(&queued), model, level.kind, choice);
                let bytes = memory_of(&choice);
                let offered = if sliced { &LOOK_AHEAD_SLICES[..] } else { &[LOOK_AHEAD] };
                let mut look_aheads: Vec<u32> = offered.iter().map(|&most| most.min(depth)).collect();
                // where a layer's own first reads take all buffers, nothing is ever prefetched
                look_aheads
                    .retain(|_| limits.with(Feature::LookAhead) && buffers.saturating_mul(parts) > 2 * depth);
                look_aheads.dedup();
                for look_ahead in std::iter::once(0).chain(look_aheads) {
                    let price = plain.clone().with(look_ahead);
                    ways.push(Read {
                        choice: ReadChoice { look_ahead, ..choice },
                        bytes,
                        fill: price.fill_seconds() / generated,
                        price,
                    });
                }
            }
        }
    }
    ways
}

/// How a missing neuron may be read; where all are requested a layer is read in order, and phases are not offered.
pub fn phases(model: &Model, limits: &Limits, level: &Level) -> Vec<Phases> {
    let (bundle, part) = (&model.parts.bundle, slot_part(level.kind));
    let offered = |phases: &Phases| {
        let wanted = match phases {
            Phases::Whole => limits.with(Feature::Bundle) && limits.with(Feature::WholeRead),
            Phases::TwoPhase => limits.with(Feature::Bundle) && limits.with(Feature::TwoPhase),
            Phases::Rows => !limits.with(Feature::Bundle),
        };
        // steps are the same in all layers
        let cut = model.is_uniform() && bundle.steps(part, *phases).is_some();
        wanted && level.kind != LevelKind::Dense && cut
    };
    let ways: Vec<Phases> = Phases::ALL.into_iter().filter(offered).collect();
    if ways.is_empty() { vec![Phases::Whole] } else { ways }
}

/// The candidates that no other beats or equals in all terms; of equals, the first.
fn keep_unbeaten<T>(all: Vec<T>, terms: impl Fn(&T) -> Vec<f64>) -> Vec<T> {
    let rows: Vec<Vec<f64>> = all.iter().map(&terms).collect();
    let before = |&i: &usize, &j: &usize| {
        let mut differences = rows[i].iter().zip(&rows[j]).map(|(a, b)| a.total_cmp(b));
        differences.find(|difference| difference.is_ne()).unwrap_or(i.cmp(&j))
    };
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(before);
    // what beats comes before what it beats, and if it is beaten itself, then by one that beats both
    let (mut unbeaten, mut keep): (Vec<usize>, Vec<bool>) = (Vec::new(), vec![false; rows.len()]);
    for j in order {
        keep[j] = !unbeaten.iter().any(|&i| rows[i].iter().zip(&rows[j]).all(|(a, b)| a <= b));
        if keep[j] {
            unbeaten.push(j);
        }
    }
    all.into_iter().zip(keep).filter_map(|(item, kept)| kept.then_some(item)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn of_many_cores_numbers_lie_apart_and_none_of_few_is_left_out() {
        assert!((0..=16).all(|all| counts(all).eq(0..=all)));
        for all in [17, 64, 100, 128, 511] {
            let tried: Vec<usize> = counts(all).collect();
            assert_eq!((tried[0], tried[tried.len() - 1]), (0, all));
            let close = |of: &[usize]| of[1] == of[0] + 1 || 8 * (of[1] - of[0]) <= of[1];
            assert!(
                tried.windows(2).all(close) && tried.len() <= 8 * (all.ilog2() as usize + 1),
                "{tried:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_kept_is_what_no_other_beats(rows in prop::collection::vec(prop::array::uniform3(0i8..4), 0..40)) {
            let no_more = |i: usize, j: usize| rows[i].iter().zip(&rows[j]).all(|(a, b)| a <= b);
            let beats = |i: usize, j: usize| i != j && no_more(i, j) && (rows[i] != rows[j] || i < j);
            let all = 0..rows.len();
            let expected: Vec<usize> = all.clone().filter(|&j| !all.clone().any(|i| beats(i, j))).collect();
            prop_assert_eq!(keep_unbeaten(all.collect(), |&i| rows[i].map(f64::from).to_vec()), expected);
        }
    }
}
