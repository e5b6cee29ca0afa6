//! A layer's neurons: which are in memory, where their bytes are, and their checksums.
//!
//! ```text
//! hot region   [layer 0: inputs of ranks 0..hot, then their downs | layer 1: ...]     filled at start
//! cold region  [layer 0: inputs of all slots, then their downs    | layer 1: ...]     filled as neurons are read
//! ```
//!
//! Neurons are read and evicted in slices, most often of one neuron. The cache and the reads handle slices;
//! everything else handles neurons. If experts or layers are requested whole, a slice is some neighbours of
//! one expert. It may hold their *piece* of down, bit for bit as in the model's file: some columns of each
//! row, back to back. A neuron's down bytes are then a share of the piece: contiguous shares, in slots or in
//! read buffers, form the piece.
//!
//! A slot holds the part of a bundle that the quality level needs, unpadded and split in two. The first has
//! the rows multiplied by the input (gate and up, or up alone), the second the row that is added up (down). A
//! token uses the first of all its neurons before the second of any. Processors prefetch the bytes behind a
//! row; with the down row there, a third of the bandwidth would be wasted.

use std::path::PathBuf;

use plans::layout::{PARTS, Part, Span};
use plans::plan::CachePlan;

use crate::arena::{Align, Arena, ArenaError, Slab};
use crate::cache::LayerCache;
use crate::container::{
    Checksums, Container, ContainerError, SLICE_WORDS, SliceSums, TABLE_WORDS, gate_checksum, part_checksum,
    up_down_checksum,
};
use crate::flash::{FILE_BYTES_MAX, Files, LayerSlices};
use crate::visits::Visits;

mod shape;
mod slots;

pub(crate) use shape::{Bundle, Shape};
pub(crate) use slots::{LayerSlots, Slots};

/// Counts of neurons by outcome, over tokens and layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Neurons of the routed experts, over tokens and layers.
    pub routed: u64,
    /// Requested neurons.
    pub requested: u64,
    /// Requested neurons whose gate fired, so that their up rows were read.
    pub fired: u64,
    /// Requested neurons whose value was not zero.
    pub active: u64,
}

impl Activity {
    /// The counts since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, |now, then| now - then)
    }

    /// Combines every count with the other's.
    pub(crate) fn with(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            routed: of(self.routed, other.routed),
            requested: of(self.requested, other.requested),
            fired: of(self.fired, other.fired),
            active: of(self.active, other.active),
        }
    }
}

/// Damaged or inconsistent neurons.
#[derive(Debug, thiserror::Error)]
pub enum NeuronError {
    /// The neuron tables cannot be read.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// There is no memory to read the tables.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A neuron's bytes do not match their checksum.
    #[error(
        "neuron {rank} of layer {layer} (byte {offset} of the container) does not match its checksum: the file is damaged or was replaced; copy or make it again"
    )]
    Damaged {
        /// Layer.
        layer: usize,
        /// Rank in the layer.
        rank: u32,
        /// First byte of the neuron.
        offset: u64,
    },
    /// A part of an expert does not match the profiled file.
    #[error(
        "{part} of an expert of layer {layer} (byte {offset} of {path}) does not match its checksum: the file is damaged or was changed; get it again, or make its index again with `profile --model`"
    )]
    Changed {
        /// Gate, up or down.
        part: &'static str,
        /// Layer.
        layer: usize,
        /// First byte of the part.
        offset: u64,
        /// The model's file.
        path: PathBuf,
    },
    /// A slice with neurons of several experts.
    #[error(
        "{path}: a slice of layer {layer} has neurons of several experts; make it again with `profile --model`"
    )]
    Slice {
        /// The container.
        path: PathBuf,
        /// Layer.
        layer: usize,
    },
    /// An order that names a neuron twice.
    #[error(
        "{path}: the neuron order of layer {layer} names a neuron twice; make it again with `profile --model`"
    )]
    Order {
        /// The container.
        path: PathBuf,
        /// Layer.
        layer: usize,
    },
}

/// One layer's neurons.
#[derive(Debug)]
pub(crate) struct LayerNeurons {
    /// The cache of the layer's slices.
    pub cache: LayerCache,
    /// Neurons of a slice.
    slice: usize,
    layer: usize,
    /// First byte of the layer in the container.
    offset: u64,
    /// `[ranks]`; empty where slices have separate parts.
    checksums: Box<[Checksums]>,
    /// For slices with separate parts.
    apart: Option<Apart>,
    /// `[ranks]`.
    experts: Box<[u16]>,
    /// `[experts][ffn_width]`: each expert's ranks, ascending.
    lists: Box<[u32]>,
    ffn_width: usize,
    /// Visits of experts, for mixtures whose slices have separate parts.
    visits: Option<Visits>,
}

/// A layer's slices with separate parts.
#[derive(Debug)]
struct Apart {
    /// By slice: first byte of each part in its buffer.
    starts: Box<[[usize; PARTS]]>,
    sums: Box<[SliceSums]>,
    group: LayerSlices,
    /// The model's files.
    paths: Box<[PathBuf]>,
}

impl Apart {
    fn new(group: LayerSlices, sums: Box<[SliceSums]>, paths: &[PathBuf]) -> Self {
        let starts = |spans: &[Span; PARTS]| {
            std::array::from_fn(|part| {
                (group.at[part] + spans[part].offset - spans[part].pages().offset) as usize
            })
        };
        let starts = group.slices.iter().map(starts).collect();
        Self { starts, sums, group, paths: paths.into() }
    }
}

impl LayerNeurons {
    /// Loads every layer's tables from the container, with caches as in the plan.
    ///
    /// # Errors
    /// If the tables cannot be read, or an order is no permutation.
    pub(crate) fn load_all(
        container: &Container,
        files: &Files,
        plan: &CachePlan,
    ) -> Result<Vec<Self>, NeuronError> {
        let d = &container.directory;
        let mut section: Slab<u8> = Arena::new(d.tables.bytes)?.take(d.tables.bytes as usize, Align::Page)?;
        container.read_section(files, &d.tables, "neuron tables", &mut section)?;
        let neurons = container.neurons();
        let tables: &[u32] = bytemuck::cast_slice(&section[..]);
        let slice = d.bundle.slice_neurons as usize;
        let mut groups = container.groups().into_iter();
        (0..d.config.layers())
            .map(|layer| {
                let (order, checksums, apart) = match groups.next() {
                    None => {
                        let words = TABLE_WORDS * neurons;
                        let (order, checksums) = tables[layer * words..][..words].split_at(neurons);
                        (order.to_vec(), bytemuck::cast_slice(checksums).into(), None)
                    }
                    Some(group) => {
                        let words = SLICE_WORDS * group.slices.len();
                        let (slices, _) = tables[layer * words..][..words].as_chunks::<SLICE_WORDS>();
                        let whole = |[number, ..]: &[u32; SLICE_WORDS]| {
                            let first = u64::from(*number) * slice as u64;
                            (first..first + slice as u64)
                                .map(|index| u32::try_from(index).unwrap_or(u32::MAX))
                        };
                        let sums = slices.iter().map(|&[_, gate, up, down]| [gate, up, down]).collect();
                        let apart = Apart::new(group, sums, &container.model_files);
                        (slices.iter().flat_map(whole).collect(), Box::default(), Some(apart))
                    }
                };
                let (experts, lists) = by_expert(&order, d.config.experts(), d.config.ffn_width())
                    .ok_or_else(|| NeuronError::Order { path: container.path.clone(), layer })?;
                if experts.chunks(slice).any(|slice| slice.iter().any(|&expert| expert != slice[0])) {
                    return Err(NeuronError::Slice { path: container.path.clone(), layer });
                }
                let slices = |neurons: u32| neurons / slice as u32;
                let by_rank = experts.chunks_exact(d.config.ffn_width());
                let is_counted = apart.is_some()
                    && d.config.experts() > 1
                    && by_rank.clone().all(|ranks| ranks.iter().all(|&expert| expert == ranks[0]));
                let visits = is_counted.then(|| Visits::new(by_rank.map(|ranks| ranks[0]).collect()));
                Ok(Self {
                    cache: LayerCache::new(
                        plan.policy,
                        slices(neurons as u32),
                        slices(plan.hot_neurons[layer]),
                        slices(plan.cold_slots[layer]),
                    ),
                    slice,
                    layer,
                    offset: d.layer_offsets[layer],
                    checksums,
                    apart,
                    experts,
                    lists,
                    ffn_width: d.config.ffn_width(),
                    visits,
                })
            })
            .collect()
    }

    /// The expert of a rank.
    pub(crate) fn expert(&self, rank: u32) -> usize {
        usize::from(self.experts[rank as usize])
    }

    /// Number of experts in the layer.
    pub(crate) fn experts_count(&self) -> usize {
        self.count() / self.ffn_width
    }

    /// An expert's ranks, ascending, in the order of its predictor's rows.
    pub(crate) fn list(&self, expert: usize) -> &[u32] {
        &self.lists[expert * self.ffn_width..][..self.ffn_width]
    }

    /// The index of a rank in its expert's list.
    pub(crate) fn index_in_expert(&self, rank: u32) -> usize {
        self.list(self.expert(rank)).partition_point(|&other| other < rank)
    }

    /// Number of neurons.
    pub(crate) fn count(&self) -> usize {
        self.experts.len()
    }

    /// Neurons of a slice.
    pub(crate) fn slice(&self) -> usize {
        self.slice
    }

    /// Number of slices.
    pub(crate) fn slices(&self) -> u32 {
        self.cache.neurons()
    }

    /// Number of pinned ranks.
    pub(crate) fn hot(&self) -> u32 {
        self.cache.hot() * self.slice as u32
    }

    /// An expert's slices, ascending.
    pub(crate) fn slices_of(&self, expert: usize) -> impl Iterator<Item = u32> {
        self.list(expert).iter().step_by(self.slice).map(|rank| rank / self.slice as u32)
    }

    /// Lets the tokens of a decoding step pass the counts of visits. A step of one token is counted; a batch or a draft shares reads,
    /// and is priced from single tokens.
    ///
    /// *Shapes*: `weights: [tokens, experts]`.
    pub(crate) fn visit(&mut self, weights: &[f32]) {
        let experts = self.experts_count();
        let Some(visits) = &mut self.visits else { return };
        weights.chunks_exact(experts).for_each(|of| visits.pass(of, weights.len() == experts));
    }

    /// The counts of visits, if they are kept.
    pub(crate) fn visits(&self) -> Option<&Visits> {
        self.visits.as_ref()
    }

    /// Counts the requests of a prompt's tokens, one after another: the slices of each token's experts.
    ///
    /// *Shapes*: `weights: [tokens, experts]`.
    pub(crate) fn count_uses(&mut self, weights: &[f32]) {
        let experts = self.experts_count();
        if let Some(visits) = &mut self.visits {
            weights.chunks_exact(experts).for_each(|of| visits.pass(of, false));
        }
        let Self { cache, lists, ffn_width, slice, .. } = self;
        let (width, slice) = (*ffn_width, *slice);
        for weights in weights.chunks_exact(lists.len() / width) {
            let ranks_of = |expert: usize| lists[expert * width..][..width].iter().step_by(slice);
            let visited = weights.iter().enumerate().filter(|(_, weight)| **weight != 0.0);
            cache.count(visited.flat_map(|(expert, _)| ranks_of(expert).map(|rank| rank / slice as u32)));
        }
    }

    /// The span of a part of a slice in the container.
    pub(crate) fn slice_span(&self, shape: &Shape, part: Part, slice: u32) -> Span {
        let span = shape.layout.slice_span(u64::from(slice), part);
        Span { offset: self.offset + span.offset, bytes: span.bytes }
    }

    /// The span of a part of the neuron at `rank` in the container.
    pub(crate) fn span(&self, shape: &Shape, part: Part, rank: u32) -> Span {
        let span = shape.layout.span(u64::from(rank), part);
        Span { offset: self.offset + span.offset, bytes: span.bytes }
    }

    /// The offsets of gate, up and down in the bytes of a slice with a piece of down.
    pub(crate) fn starts(&self, shape: &Shape, slice: u32) -> [usize; PARTS] {
        match &self.apart {
            Some(apart) => apart.starts[slice as usize],
            None => [0, shape.layout.gate_bytes as usize, self.slice * shape.inputs_bytes()],
        }
    }

    /// The offset of each part's pages in a slice's buffer, and its span; for slices with separate parts.
    pub(crate) fn parts(&self, slice: u32) -> impl Iterator<Item = (usize, Span)> {
        self.apart.iter().flat_map(move |Apart { group, .. }| {
            group.at.iter().map(|&at| at as usize).zip(group.slices[slice as usize])
        })
    }

    /// Compares a part of a slice with its checksum from the profile.
    ///
    /// # Errors
    /// [`NeuronError::Changed`] if they differ.
    pub(crate) fn verify_part(&self, slice: u32, part: usize, bytes: &[u8]) -> Result<(), NeuronError> {
        let Some(Apart { sums, group, paths, .. }) = &self.apart else { return Ok(()) };
        if part_checksum(self.layer, slice as usize, part, bytes) == sums[slice as usize][part] {
            return Ok(());
        }
        let address = group.slices[slice as usize][part].offset;
        Err(NeuronError::Changed {
            part: ["gate", "up", "down"][part],
            layer: self.layer,
            offset: address % FILE_BYTES_MAX,
            path: paths.get((address / FILE_BYTES_MAX) as usize - 1).cloned().unwrap_or_default(),
        })
    }

    /// Compares the bytes of a rank with their checksums.
    ///
    /// # Errors
    /// [`NeuronError::Damaged`] if they differ.
    pub(crate) fn verify(
        &self,
        shape: &Shape,
        part: Part,
        rank: u32,
        bytes: &[u8],
    ) -> Result<(), NeuronError> {
        let (gate, up_down) = match part {
            Part::Whole => bytes.split_at(shape.layout.gate_bytes as usize),
            Part::UpDown => (&[][..], bytes),
        };
        if part == Part::Whole {
            self.verify_gate(shape, rank, gate)?;
        }
        let [_, sum] = self.checksums[rank as usize];
        self.agree(shape, rank, up_down_checksum(self.layer, rank as usize, up_down) == sum)
    }

    /// [`LayerNeurons::verify`] for a neuron in the bytes of its slice, which holds a piece of down.
    ///
    /// # Errors
    /// As [`LayerNeurons::verify`].
    pub(crate) fn verify_share(&self, shape: &Shape, rank: u32, slice: &[u8]) -> Result<(), NeuronError> {
        let neuron = rank as usize % self.slice;
        let (all_inputs, shares) = slice.split_at(self.slice * shape.inputs_bytes());
        let part = |bytes: &[u8], each: usize| neuron * each..(neuron * each + each).min(bytes.len());
        let inputs = &all_inputs[part(all_inputs, shape.inputs_bytes())];
        let share = &shares[part(shares, shape.layout.down_bytes as usize)];
        self.verify_gate(shape, rank, inputs)?;
        let [_, sum] = self.checksums[rank as usize];
        self.agree(shape, rank, up_down_checksum(self.layer, rank as usize, share) == sum)
    }

    /// Compares a gate row with its checksum.
    ///
    /// # Errors
    /// As [`LayerNeurons::verify`].
    pub(crate) fn verify_gate(&self, shape: &Shape, rank: u32, gate: &[u8]) -> Result<(), NeuronError> {
        let [sum, _] = self.checksums[rank as usize];
        self.agree(shape, rank, gate_checksum(self.layer, rank as usize, gate) == sum)
    }

    fn agree(&self, shape: &Shape, rank: u32, agrees: bool) -> Result<(), NeuronError> {
        let offset = self.span(shape, Part::Whole, rank).offset;
        if agrees { Ok(()) } else { Err(NeuronError::Damaged { layer: self.layer, rank, offset }) }
    }
}

/// The expert of each rank, and each expert's ranks.
type ByExpert = (Box<[u16]>, Box<[u32]>);

/// The expert of each rank, and each expert's ranks, from the source index of each rank. `None` if the order
/// is no permutation.
fn by_expert(order: &[u32], experts: usize, ffn_width: usize) -> Option<ByExpert> {
    let mut seen = vec![false; order.len()];
    let mut filled = vec![0; experts];
    let mut expert_of = Vec::with_capacity(order.len());
    let mut lists = vec![0; order.len()].into_boxed_slice();
    for (rank, &index) in order.iter().enumerate() {
        let index = index as usize;
        if *seen.get(index)? {
            return None;
        }
        seen[index] = true;
        let expert = index / ffn_width;
        lists[expert * ffn_width + filled[expert]] = rank as u32;
        filled[expert] += 1;
        expert_of.push(u16::try_from(expert).ok()?);
    }
    Some((expert_of.into(), lists))
}
