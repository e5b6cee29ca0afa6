//! The configurations at one quality level with one policy of the cache: cores, and how flash is read.
//!
//! Each is enumerated with its constants, which the plain cost functions compute. A configuration that another one beats in
//! every term is left out; that changes no optimum.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use plans::memory::{self, Choices, slot_part};
use plans::model::Level;
use plans::{Device, Policy};

use crate::cores::{self, Compute};
use crate::cost;
use crate::cost::reads::{Interference, LayerReads, ReadChoice, ReadPrice};
use crate::flash::{self, Read};
use crate::layers::{Cached, cachings};
use crate::question::Question;
use crate::room::Room;
use crate::rules::{Prompt, nothing};

/// Prices of reads that are kept at a level, at most: 16 MiB.
const READS_KEPT: usize = (16 << 20) / size_of::<LayerReads>();

/// The configurations at one level with one policy.
#[derive(Debug)]
pub struct Options<'a> {
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
    /// [`Self::layer_reads`] of the choices of reads that were priced.
    layer_reads: RefCell<HashMap<ReadChoice, Arc<AllReads>>>,
}

/// Per layer and caching what is read. Layers of a kind share a list.
pub type AllReads = Vec<Arc<Vec<LayerReads>>>;

impl<'a> Options<'a> {
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
                + m.unit_bytes
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
            computes: cores::computes(question, level),
            reads: flash::reads(question, level, read_bytes),
            cached: Vec::new(),
            kinds: Vec::new(),
            kind_of: Vec::new(),
            base: [base, with_rows],
            tables: [tables(false), tables(true)],
            slot_bytes: (0..level.layers.len())
                .map(|layer| model.bundle(layer).part_bytes(slot_part(level.kind)))
                .collect(),
            fires: (0..level.layers.len()).map(|layer| cost::requested(model, level, layer).1).collect(),
            layer_reads: RefCell::default(),
        }
    }

    /// The same with what may be cached; so many neurons of each layer may be pinned besides.
    #[must_use]
    pub fn with_caching(self, question: &Question<'a>, pinned: &[u32]) -> Self {
        let (mut options, Question { model, limits, .. }) = (self, question);
        let (level, policy) = (options.level, options.policy);
        options.cached = (0..level.layers.len())
            .map(|layer| cachings(model, limits, level, policy, layer, pinned))
            .collect();
        for layer in 0..options.cached.len() {
            // nobody prefetches for the first
            let alike = |&(other, _): &(usize, i64)| other > 0 && options.are_alike(layer, other);
            let kind = options.kinds.iter().position(alike).unwrap_or(options.kinds.len());
            if kind == options.kinds.len() {
                options.kinds.push((layer, 0));
            }
            options.kinds[kind].1 += 1;
            options.kind_of.push(kind);
        }
        options
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

    /// Reads of each layer with each of its cachings, whichever cores compute.
    pub fn layer_reads(&self, read: usize) -> Arc<AllReads> {
        self.layer_reads_at(self.reads[read].price())
    }

    /// [`Self::layer_reads`] at a price: configurations and nodes of the search share them.
    pub(crate) fn layer_reads_at(&self, price: &ReadPrice) -> Arc<AllReads> {
        let mut known = self.layer_reads.borrow_mut();
        if let Some(reads) = known.get(&price.choice()) {
            return Arc::clone(reads);
        }
        let layer = |layer: usize| -> Arc<Vec<LayerReads>> {
            let reads = |cached: &Cached| price.of(cached.missing, self.fires[layer]);
            Arc::new(self.cached[layer].iter().map(reads).collect())
        };
        let reads: Arc<AllReads> = Arc::new(self.of_kinds(layer));
        if (known.len() + 1) * self.cached_count() > READS_KEPT {
            known.clear();
        }
        known.insert(price.choice(), Arc::clone(&reads));
        reads
    }

    /// cachings, of all kinds of layers together.
    fn cached_count(&self) -> usize {
        self.kinds.iter().map(|&(layer, _)| self.cached[layer].len()).sum()
    }

    /// Seconds of a layer beyond what comes before reads, with the share of filling the slots.
    pub fn seconds(
        &self,
        compute: &Compute,
        read: &Read,
        interference: &Interference,
        layer: usize,
        cached: &Cached,
    ) -> f64 {
        self.seconds_with(
            compute,
            read,
            interference,
            layer,
            cached,
            &read.price().of(cached.missing, self.fires[layer]),
        )
    }

    /// [`Self::seconds`] with the layer's reads given.
    pub fn seconds_with(
        &self,
        compute: &Compute,
        read: &Read,
        interference: &Interference,
        layer: usize,
        cached: &Cached,
        reads: &LayerReads,
    ) -> f64 {
        let stages = compute.layers[layer].with(read.choice.look_ahead);
        let inserted = cached.missing.neurons * read.price().whole_fraction(self.fires[layer]);
        let insert = if cached.cold > 0 { inserted * compute.insert } else { 0.0 };
        read.price().supply().layer_seconds(&stages, insert, reads, layer > 0, interference)
            + cached.filled * read.fill
    }

    /// The share that reads take of those who compute.
    pub fn interference(&self, compute: &Compute, read: &Read) -> Interference {
        read.price().interference(compute.shared, compute.cores.len())
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
