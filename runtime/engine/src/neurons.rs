//! A layer's neurons: which are in memory, where their bytes are, and whether bytes read are really theirs.
//!
//! ```text
//! hot region   [layer 0: inputs of ranks 0..hot, their downs | layer 1: ...]     filled at start
//! cold region  [layer 0: inputs of all slots, their downs        | layer 1: ...]     filled as neurons are read
//! ```
//!
//! Neurons come and go in slices, most often of one neuron each: the cache and the reads know slices, everything else
//! neurons. Where experts are requested whole a slice is some neighbours of one expert.
//!
//! A slot holds the part of a bundle that the quality level needs, unpadded, in two pieces: the rows that meet the input
//! (gate and up), and the one that is added up (down). A token goes through the first of all its neurons before it goes
//! through the second of any, and a processor that reads rows in order fetches what lies behind each, too: were it the
//! other pass's row, a third of the bandwidth would be spent on it.

use std::fs::File;
use std::path::PathBuf;

use plans::layout::{BundleLayout, Part, Span};
use plans::plan::CachePlan;

use crate::arena::{Align, Arena, ArenaError, Slab};
use crate::cache::{LayerCache, Place};
use crate::container::{
    Checksums, Container, ContainerError, Stored, TABLE_WORDS, gate_checksum, up_down_checksum,
};
use crate::pool::Pool;
use kernels::Format;
use kernels::{Matrix, Row};

/// Neurons by what happened to them, over tokens and layers.
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
    /// What has happened since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, |now, then| now - then)
    }

    /// Every number of both.
    pub(crate) fn with(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            routed: of(self.routed, other.routed),
            requested: of(self.requested, other.requested),
            fired: of(self.fired, other.fired),
            active: of(self.active, other.active),
        }
    }
}

/// A neuron that is not what was written.
#[derive(Debug, thiserror::Error)]
pub enum NeuronError {
    /// The tables of neurons cannot be read.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// There is no memory for the tables while they are read.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A neuron's bytes are not those that were written.
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
    /// A slice of a layer with neurons of several experts.
    #[error(
        "{path}: a slice of layer {layer} has neurons of several experts; make it again with `profile --model`"
    )]
    Slice {
        /// The container.
        path: PathBuf,
        /// Layer.
        layer: usize,
    },
    /// A layer's order that names a neuron twice.
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

/// The shape of a bundle: its bytes and rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// The layout of bundles on flash.
    pub layout: BundleLayout,
    /// The part of a bundle that a slot and a read hold.
    pub part: Part,
    gate: Format,
    up: Format,
    down: Format,
}

impl Shape {
    /// The shape of a layer's bundles at a level that needs `part` of them.
    pub(crate) fn new(container: &Container, layer: usize, part: Part) -> Self {
        let Stored { gate_format, up_format, down_format, bundle } = container.directory.stored(layer);
        Self { layout: bundle, part, gate: gate_format, up: up_format, down: down_format }
    }

    /// Neurons of a slice.
    pub(crate) fn slice(&self) -> usize {
        self.layout.slice_neurons as usize
    }

    /// Bytes of a neuron's slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.layout.part_bytes(self.part) as usize
    }

    /// Bytes of the rows that so many neurons take from slots and buffers: gate where the level has not computed it, up
    /// where the gate fires, down where the neuron is active.
    pub(crate) fn rows_bytes(&self, activity: &Activity) -> u64 {
        let requested = if self.part == Part::Whole { activity.requested } else { 0 };
        requested * self.layout.gate_bytes
            + activity.fired * self.layout.up_bytes
            + activity.active * self.layout.down_bytes
    }

    /// The pieces of a part of a bundle that lies in one.
    pub(crate) fn cut<'a>(&self, part: &'a [u8]) -> Bundle<'a> {
        let (inputs, down) = part.split_at(self.inputs_bytes());
        Bundle { inputs, down }
    }

    /// Bytes of the rows that meet the input.
    fn inputs_bytes(&self) -> usize {
        self.up_start() + self.layout.up_bytes as usize
    }

    /// The gate row; only whole bundles have one.
    pub(crate) fn gate<'a>(&self, bundle: Bundle<'a>) -> Row<'a> {
        debug_assert_eq!(self.part, Part::Whole, "gate rows are resident");
        Row::new(self.gate, &bundle.inputs[..self.layout.gate_bytes as usize])
    }

    /// The up row.
    pub(crate) fn up<'a>(&self, bundle: Bundle<'a>) -> Row<'a> {
        Row::new(self.up, &bundle.inputs[self.up_start()..])
    }

    /// The transposed down row.
    pub(crate) fn down<'a>(&self, bundle: Bundle<'a>) -> Row<'a> {
        Row::new(self.down, bundle.down)
    }

    /// Format of the gate rows.
    pub(crate) fn gate_format(&self) -> Format {
        self.gate
    }

    /// Formats of the rows that are multiplied by the input.
    pub(crate) fn dot_formats(&self) -> [Format; 2] {
        [self.gate, self.up]
    }

    /// Format of the rows that are added up.
    pub(crate) fn down_format(&self) -> Format {
        self.down
    }

    fn up_start(&self) -> usize {
        match self.part {
            Part::Whole => self.layout.gate_bytes as usize,
            Part::UpDown => 0,
        }
    }
}

/// The rows of a neuron that the quality level needs, wherever they are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bundle<'a> {
    /// `[gate | up]`, or `[up]`: the rows that meet the input.
    inputs: &'a [u8],
    /// `[down]`: the row that is added up.
    down: &'a [u8],
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
    /// `[ranks]`.
    checksums: Box<[Checksums]>,
    /// `[ranks]`.
    experts: Box<[u16]>,
    /// `[experts][ffn_width]`: each expert's ranks, ascending.
    lists: Box<[u32]>,
    ffn_width: usize,
}

impl LayerNeurons {
    /// Every layer's tables, from the container, with caches as the plan has them.
    ///
    /// # Errors
    /// If the tables cannot be read or are not permutations.
    pub(crate) fn load_all(
        container: &Container,
        file: &File,
        plan: &CachePlan,
    ) -> Result<Vec<Self>, NeuronError> {
        let d = &container.directory;
        let mut section: Slab<u8> = Arena::new(d.tables.bytes)?.take(d.tables.bytes as usize, Align::Page)?;
        container.read_section(file, &d.tables, "neuron tables", &mut section)?;
        let neurons = container.neurons();
        let tables: &[u32] = bytemuck::cast_slice(&section[..]);
        let words = TABLE_WORDS * neurons;
        (0..d.config.layers())
            .map(|layer| {
                let (order, checksums) = tables[layer * words..][..words].split_at(neurons);
                let (experts, lists) = by_expert(order, d.config.experts(), d.config.ffn_width())
                    .ok_or_else(|| NeuronError::Order { path: container.path.clone(), layer })?;
                let slice = d.bundle.slice_neurons as usize;
                if experts.chunks(slice).any(|slice| slice.iter().any(|&expert| expert != slice[0])) {
                    return Err(NeuronError::Slice { path: container.path.clone(), layer });
                }
                let slices = |neurons: u32| neurons / slice as u32;
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
                    checksums: bytemuck::cast_slice(checksums).into(),
                    experts,
                    lists,
                    ffn_width: d.config.ffn_width(),
                })
            })
            .collect()
    }

    /// The expert of a rank.
    pub(crate) fn expert(&self, rank: u32) -> usize {
        usize::from(self.experts[rank as usize])
    }

    /// Experts that share the layer.
    pub(crate) fn experts_count(&self) -> usize {
        self.count() / self.ffn_width
    }

    /// An expert's ranks, ascending: the order of its predictor's rows.
    pub(crate) fn list(&self, expert: usize) -> &[u32] {
        &self.lists[expert * self.ffn_width..][..self.ffn_width]
    }

    /// The place of a rank in its expert's list.
    pub(crate) fn index_in_expert(&self, rank: u32) -> usize {
        self.list(self.expert(rank)).partition_point(|&other| other < rank)
    }

    /// All ranks.
    pub(crate) fn count(&self) -> usize {
        self.experts.len()
    }

    /// Neurons of a slice.
    pub(crate) fn slice(&self) -> usize {
        self.slice
    }

    /// All slices.
    pub(crate) fn slices(&self) -> u32 {
        self.cache.neurons()
    }

    /// Pinned ranks.
    pub(crate) fn hot(&self) -> u32 {
        self.cache.hot() * self.slice as u32
    }

    /// An expert's slices, ascending.
    pub(crate) fn slices_of(&self, expert: usize) -> impl Iterator<Item = u32> {
        self.list(expert).iter().step_by(self.slice).map(|rank| rank / self.slice as u32)
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

    /// Whether `bytes` are what the container's writer put at a rank.
    ///
    /// # Errors
    /// [`NeuronError::Damaged`] if they are not.
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

    /// Compares a gate row with its checksum.
    ///
    /// # Errors
    /// As there.
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

/// The expert of each rank and the ranks of each expert, by the source index of each rank. `None` if the order is
/// no permutation.
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

/// The two regions of slots.
#[derive(Debug)]
pub(crate) struct Slots {
    hot: Region,
    cold: Region,
    /// Neurons of a slice.
    slice: usize,
}

impl Slots {
    /// The regions for the plan's counts of neurons of these shapes, by layer.
    pub(crate) fn new(
        hot: Slab<u8>,
        cold: Slab<u8>,
        hot_neurons: &[u32],
        cold_slots: &[u32],
        shapes: &[Shape],
    ) -> Self {
        let (hot, cold) = (Region::new(hot, hot_neurons, shapes), Region::new(cold, cold_slots, shapes));
        Self { hot, cold, slice: shapes[0].slice() }
    }

    /// All bytes of both regions, pinned and not, but for what is lent.
    pub(crate) fn bytes(&self) -> [&[u8]; 2] {
        [&self.hot.bytes, &self.cold.bytes]
    }

    /// A layer's slots.
    pub(crate) fn layer(&self, layer: usize) -> LayerSlots<'_> {
        LayerSlots { hot: self.hot.layer(layer), cold: self.cold.layer(layer), slice: self.slice }
    }

    /// The last `bytes` of the cold region for something else; the layers that have slots there forget them. Nothing
    /// may be put into any slot before they are back.
    ///
    /// # Panics
    /// If the region is smaller.
    pub(crate) fn lend(&mut self, bytes: usize, neurons: &mut [LayerNeurons]) -> Slab<u8> {
        let at = self.cold.bytes.len() - bytes;
        for (layer, neurons) in neurons.iter_mut().enumerate() {
            if self.cold.end(layer) > at {
                neurons.cache.clear_cold();
            }
        }
        self.cold.bytes.split_off(at)
    }

    /// Takes back a slab that was lent.
    pub(crate) fn take_back(&mut self, lent: Slab<u8>) {
        let kept = self.cold.bytes.split_off(0);
        self.cold.bytes = kept.join(lent);
    }

    /// Whether all slots of a layer are there, and none is lent.
    pub(crate) fn holds(&self, layer: usize) -> bool {
        self.cold.end(layer) <= self.cold.bytes.len()
    }

    /// Fills a pinned neuron's place.
    pub(crate) fn fill_hot(&mut self, layer: usize, rank: u32, bundle: Bundle<'_>) {
        let [mut inputs, mut downs] = self.hot.layer_mut(layer);
        inputs.slot(rank as usize).copy_from_slice(bundle.inputs);
        downs.slot(rank as usize).copy_from_slice(bundle.down);
    }

    /// Puts slices into a layer's cold slots, each with its slot and what finds the bundles of its neurons; threads share the
    /// slots, and look for those of their own.
    pub(crate) fn fill_cold<'b, F: Fn(usize) -> Bundle<'b>>(
        &mut self,
        pool: &Pool,
        layer: usize,
        slices: impl Iterator<Item = (u32, F)> + Clone + Sync,
    ) {
        let slice = self.slice;
        let pieces: [fn(Bundle<'b>) -> &'b [u8]; 2] = [|bundle| bundle.inputs, |bundle| bundle.down];
        for (rows, piece) in self.cold.layer_mut(layer).into_iter().zip(pieces) {
            pool.split_rows(rows.bytes, rows.slot_bytes, |first, own| {
                let end = first + own.len() / rows.slot_bytes;
                for (slot, bundle) in slices.clone() {
                    let start = slot as usize * slice;
                    for neuron in start.max(first)..(start + slice).min(end) {
                        own[(neuron - first) * rows.slot_bytes..][..rows.slot_bytes]
                            .copy_from_slice(piece(bundle(neuron - start)));
                    }
                }
            });
        }
    }
}

/// The slots of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerSlots<'a> {
    hot: Kept<'a>,
    cold: Kept<'a>,
    slice: usize,
}

impl<'a> LayerSlots<'a> {
    /// The rows of a neuron of the slice at a place in memory; `None` for one that is missing.
    #[inline]
    pub(crate) fn bundle(&self, place: Place, neuron: usize) -> Option<Bundle<'a>> {
        match place {
            Place::Hot(slot) => Some(self.hot.bundle(slot as usize * self.slice + neuron)),
            Place::Cold(slot) => Some(self.cold.bundle(slot as usize * self.slice + neuron)),
            Place::Missing => None,
        }
    }

    /// Gate and up of the neurons in slots, in order: `[2 * slots, width]`, of the pinned ones and of the others. `None` where
    /// they are no matrix.
    pub(crate) fn inputs(&self, shape: &Shape) -> Option<[Matrix<'a>; 2]> {
        let (format, row_bytes) = (shape.gate, shape.layout.gate_bytes as usize);
        let whole = shape.part == Part::Whole && format == shape.up;
        let columns = row_bytes / format.block_bytes() * format.block_values();
        let matrix = |bytes: &'a [u8]| Matrix { format, rows: bytes.len() / row_bytes, columns, bytes };
        whole.then(|| [self.hot, self.cold].map(|kept| matrix(kept.inputs)))
    }
}

/// A layer's part of a region.
#[derive(Debug, Clone, Copy)]
struct Kept<'a> {
    inputs: &'a [u8],
    downs: &'a [u8],
    inputs_bytes: usize,
    down_bytes: usize,
}

impl<'a> Kept<'a> {
    #[inline]
    fn bundle(&self, slot: usize) -> Bundle<'a> {
        Bundle {
            inputs: &self.inputs[slot * self.inputs_bytes..][..self.inputs_bytes],
            down: &self.downs[slot * self.down_bytes..][..self.down_bytes],
        }
    }
}

/// Slots of every layer: first one piece of all of a layer's, then the other.
#[derive(Debug)]
struct Region {
    bytes: Slab<u8>,
    layers: Vec<Extent>,
}

/// A layer's part of a region.
#[derive(Debug, Clone, Copy)]
struct Extent {
    /// First byte, and the byte after the last slot.
    start: usize,
    end: usize,
    /// Bytes of the pieces of a slot.
    inputs_bytes: usize,
    down_bytes: usize,
}

impl Region {
    fn new(bytes: Slab<u8>, counts: &[u32], shapes: &[Shape]) -> Self {
        let layers = counts.iter().zip(shapes).scan(0, |end, (&count, shape)| {
            let (start, inputs_bytes) = (*end, shape.inputs_bytes());
            *end += count as usize * shape.slot_bytes();
            Some(Extent { start, end: *end, inputs_bytes, down_bytes: shape.slot_bytes() - inputs_bytes })
        });
        Self { layers: layers.collect(), bytes }
    }

    fn layer(&self, layer: usize) -> Kept<'_> {
        let Extent { start, end, inputs_bytes, down_bytes } = self.layers[layer];
        // nobody is in slots that are lent
        let layer = self.bytes.get(start..end).unwrap_or_default();
        let (inputs, downs) = layer.split_at(layer.len() / (inputs_bytes + down_bytes) * inputs_bytes);
        Kept { inputs, downs, inputs_bytes, down_bytes }
    }

    /// The byte after a layer's last slot.
    fn end(&self, layer: usize) -> usize {
        self.layers[layer].end
    }

    /// A layer's slots, piece by piece.
    fn layer_mut(&mut self, layer: usize) -> [Pieces<'_>; 2] {
        let Extent { start, end, inputs_bytes, down_bytes } = self.layers[layer];
        let count = (end - start) / (inputs_bytes + down_bytes);
        let (inputs, downs) = self.bytes[start..end].split_at_mut(count * inputs_bytes);
        [Pieces { bytes: inputs, slot_bytes: inputs_bytes }, Pieces { bytes: downs, slot_bytes: down_bytes }]
    }
}

/// One piece of each of a layer's slots.
struct Pieces<'a> {
    bytes: &'a mut [u8],
    slot_bytes: usize,
}

impl Pieces<'_> {
    fn slot(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[index * self.slot_bytes..][..self.slot_bytes]
    }
}
