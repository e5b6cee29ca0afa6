//! A layer's neurons: which are in memory, where their bytes are, and whether bytes read are really theirs.
//!
//! ```text
//! hot region   [layer 0: inputs of ranks 0..hot, their downs | layer 1: ...]     filled at start
//! cold region  [layer 0: inputs of all slots, their downs        | layer 1: ...]     filled as neurons are read
//! ```
//!
//! Neurons come and go in slices, most often of one neuron each: the cache and the reads know slices, everything else
//! neurons. Where experts or layers are requested whole a slice is some neighbours of one expert, and may hold their *piece*
//! of down, bit for bit as the model's file has it: some columns of each of its rows, back to back. A neuron's down bytes are
//! a share of the piece then, so that shares side by side, in slots or where they completed, are the piece.
//!
//! A slot holds the part of a bundle that the quality level needs, unpadded, in two pieces: the rows that meet the input
//! (gate and up, or up alone), and the one that is added up (down). A token goes through the first of all its neurons before it goes
//! through the second of any, and a processor that reads rows in order fetches what lies behind each, too: were it the
//! other pass's row, a third of the bandwidth would be spent on it.

use std::path::PathBuf;

use plans::layout::{BundleLayout, PARTS, Part, Span};
use plans::plan::CachePlan;

use crate::arena::{Align, Arena, ArenaError, Slab};
use crate::cache::{LayerCache, Place};
use crate::container::{
    Checksums, Container, ContainerError, SLICE_WORDS, SliceSums, Stored, TABLE_WORDS, gate_checksum,
    part_checksum, up_down_checksum,
};
use crate::flash::{FILE_BYTES_MAX, Files, LayerSlices};
use crate::pool::Pool;
use kernels::Format;
use kernels::{Matrix, Row, repack};

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
    /// The counts since `earlier`.
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
    /// A part of an expert is not what it was when the model's file was profiled.
    #[error(
        "{part} of an expert of layer {layer} (byte {offset} of {path}) does not match its checksum: the file is damaged or was changed; get it again, or make its index anew with `profile --model`"
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
    /// Whether slices hold pieces of down instead of rows.
    pieces: bool,
    /// Values of the model's rows.
    width: usize,
}

impl Shape {
    /// The shape of a layer's bundles at a level that needs `part` of them.
    pub(crate) fn new(container: &Container, layer: usize, part: Part) -> Self {
        let Stored { gate_format, up_format, down_format, bundle } = container.directory.stored(layer);
        let d = &container.directory;
        Self {
            layout: bundle,
            part,
            gate: gate_format,
            up: up_format,
            down: down_format,
            pieces: !d.down_transposed,
            width: d.config.width,
        }
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
    /// where the gate fires, down where the neuron is active. Without gates: up where the level has not computed it, and down.
    pub(crate) fn rows_bytes(&self, activity: &Activity) -> u64 {
        let requested = if self.part == Part::Whole { activity.requested } else { 0 };
        requested * self.layout.gate_bytes
            + activity.fired * self.layout.up_bytes
            + activity.active * self.layout.down_bytes
    }

    /// The rows of a part of a bundle that lies in one.
    #[inline]
    pub(crate) fn cut<'a>(&self, part: &'a [u8]) -> Bundle<'a> {
        let (inputs, down) = part.split_at(self.inputs_bytes());
        let (gate, up) = inputs.split_at(self.up_start());
        Bundle { gate, up, down }
    }

    /// Whether a neuron has a gate beside its up; else the up stands in the gate's place.
    pub(crate) fn is_gated(&self) -> bool {
        self.layout.up_bytes > 0
    }

    /// Whether slices hold pieces of down, and no rows of it.
    pub(crate) fn has_pieces(&self) -> bool {
        self.pieces
    }

    /// Whether a slice's gate, up and down lie apart, as the model's file has them.
    pub(crate) fn is_apart(&self) -> bool {
        self.layout.apart
    }

    /// A neuron's part of the bytes of its slice with a piece of down, whose parts begin there.
    pub(crate) fn of_slice<'a>(
        &self,
        slice: &'a [u8],
        [gate, up, down]: [usize; PARTS],
        neuron: usize,
    ) -> Bundle<'a> {
        let [gate_bytes, up_bytes, down_bytes] = self.rows_bytes_each();
        let inputs = gate_bytes + up_bytes;
        let [gate_stride, up_stride] = if self.is_apart() { [gate_bytes, up_bytes] } else { [inputs; 2] };
        Bundle {
            gate: &slice[gate + neuron * gate_stride..][..gate_bytes],
            up: &slice[up + neuron * up_stride..][..up_bytes],
            down: &slice[down + neuron * down_bytes..][..down_bytes],
        }
    }

    /// The piece of down that the shares of a slice's neurons are: `[width, slice]`.
    pub(crate) fn piece<'a>(&self, shares: &'a [u8]) -> Matrix<'a> {
        let (rows, columns) = (self.width, self.slice());
        Matrix { format: self.down, rows, columns, bytes: &shares[..rows * self.down.row_bytes(columns)] }
    }

    /// Bytes of a slice's gate, up and down where they lie apart.
    pub(crate) fn parts_bytes(&self) -> [usize; PARTS] {
        let [gate, up, _] = self.rows_bytes_each();
        [self.slice() * gate, self.slice() * up, self.width * self.down.row_bytes(self.slice())]
    }

    /// Whether a part's rows are in another order in a model's file than here.
    pub(crate) fn is_repacked(&self, part: usize) -> bool {
        self.parts_bytes()[part] > 0 && [self.gate, self.up, self.down][part] == Format::Q4_0X4
    }

    /// Puts rows of such a part into the order that they have here.
    pub(crate) fn repack(&self, part: usize, rows: &mut [u8]) {
        if self.is_repacked(part) {
            repack(Format::Q4_0, Format::Q4_0X4, rows);
        }
    }

    /// Bytes of a row of such a part.
    pub(crate) fn part_row_bytes(&self, part: usize) -> usize {
        let [gate, up, _] = self.rows_bytes_each();
        [gate, up, self.down.row_bytes(self.slice())][part]
    }

    /// Bytes of a gate row, an up row and a down row, or a share of a piece of down.
    fn rows_bytes_each(&self) -> [usize; PARTS] {
        [self.layout.gate_bytes, self.layout.up_bytes, self.layout.down_bytes].map(|bytes| bytes as usize)
    }

    /// Bytes of the rows that meet the input.
    fn inputs_bytes(&self) -> usize {
        self.up_start() + self.layout.up_bytes as usize
    }

    /// The gate row, or the up row in its place; only whole bundles have one.
    pub(crate) fn gate<'a>(&self, bundle: Bundle<'a>) -> Row<'a> {
        debug_assert_eq!(self.part, Part::Whole, "gate rows are resident");
        Row::new(self.gate, bundle.gate)
    }

    /// The up row; only of a network with gates.
    pub(crate) fn up<'a>(&self, bundle: Bundle<'a>) -> Row<'a> {
        Row::new(self.up, bundle.up)
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
    /// The gate row, or the up row in its place; empty where those are resident.
    gate: &'a [u8],
    /// The up row; empty where it stands in the gate's place.
    up: &'a [u8],
    /// The row that is added up, or a share of a piece of down.
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
    /// `[ranks]`; none where slices lie apart.
    checksums: Box<[Checksums]>,
    /// Where they do.
    apart: Option<Apart>,
    /// `[ranks]`.
    experts: Box<[u16]>,
    /// `[experts][ffn_width]`: each expert's ranks, ascending.
    lists: Box<[u32]>,
    ffn_width: usize,
}

/// A layer's slices whose parts lie apart.
#[derive(Debug)]
struct Apart {
    /// Where a slice's parts begin in its buffer, by slice.
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
    /// Every layer's tables, from the container, with caches as the plan has them.
    ///
    /// # Errors
    /// If the tables cannot be read or are not permutations.
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

    /// Counts what the tokens of a prompt request, one after another: the slices of the experts that they were routed to.
    ///
    /// *Shapes*: `weights: [tokens, experts]`.
    pub(crate) fn count_uses(&mut self, weights: &[f32]) {
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

    /// Where the gate, up and down of a slice with a piece of down begin among its bytes.
    pub(crate) fn starts(&self, shape: &Shape, slice: u32) -> [usize; PARTS] {
        match &self.apart {
            Some(apart) => apart.starts[slice as usize],
            None => [0, shape.layout.gate_bytes as usize, self.slice * shape.inputs_bytes()],
        }
    }

    /// Of a slice whose parts lie apart, where their pages begin in its buffer, and their bytes by address.
    pub(crate) fn parts(&self, slice: u32) -> impl Iterator<Item = (usize, Span)> {
        self.apart.iter().flat_map(move |Apart { group, .. }| {
            group.at.iter().map(|&at| at as usize).zip(group.slices[slice as usize])
        })
    }

    /// Whether `bytes` are the part of a slice that the model's file had when it was profiled.
    ///
    /// # Errors
    /// [`NeuronError::Changed`] if they are not.
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

    /// [`LayerNeurons::verify`] of a neuron among the bytes of its slice, which holds a piece of down.
    ///
    /// # Errors
    /// As there.
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

/// Bytes of a slice that threads share when it is put into its slot.
const SHARED_BYTES: usize = 256 << 10;

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
        let (gate, up) = inputs.slot(rank as usize).split_at_mut(bundle.gate.len());
        gate.copy_from_slice(bundle.gate);
        up.copy_from_slice(bundle.up);
        downs.slot(rank as usize).copy_from_slice(bundle.down);
    }

    /// Puts slices into a layer's cold slots, each with its slot and what finds the bundles of its neurons. Threads share each slice if
    /// it is large, otherwise the slots, and look for those of their own.
    pub(crate) fn fill_cold<'b, F: Fn(usize) -> Bundle<'b> + Sync>(
        &mut self,
        pool: &Pool,
        layer: usize,
        slices: impl Iterator<Item = (u32, F)> + Clone + Sync,
    ) {
        let slice = self.slice;
        let pieces: [Rows<'b>; 2] = [|bundle| [bundle.gate, bundle.up], |bundle| [bundle.down, &[]]];
        // slots of down rows alone have no inputs
        let pieces =
            self.cold.layer_mut(layer).into_iter().zip(pieces).filter(|(rows, _)| rows.slot_bytes > 0);
        for (rows, piece) in pieces {
            let slot_bytes = rows.slot_bytes;
            let put = |own: &mut [u8], first: usize, bundle: &F| {
                for (neuron, slot) in (first..).zip(own.chunks_exact_mut(slot_bytes)) {
                    let [front, back] = piece(bundle(neuron));
                    let (to_front, to_back) = slot.split_at_mut(front.len());
                    to_front.copy_from_slice(front);
                    to_back.copy_from_slice(back);
                }
            };
            if slice * slot_bytes >= SHARED_BYTES {
                for (slot, bundle) in slices.clone() {
                    let own = &mut rows.bytes[slot as usize * slice * slot_bytes..][..slice * slot_bytes];
                    pool.split_rows(own, slot_bytes, |first, own| put(own, first, &bundle));
                }
                continue;
            }
            pool.split_rows(rows.bytes, slot_bytes, |first, own| {
                let end = first + own.len() / slot_bytes;
                for (slot, bundle) in slices.clone() {
                    let start = slot as usize * slice;
                    let (from, to) = (start.max(first), (start + slice).min(end));
                    if from < to {
                        put(
                            &mut own[(from - first) * slot_bytes..(to - first) * slot_bytes],
                            from - start,
                            &bundle,
                        );
                    }
                }
            });
        }
    }
}

/// The rows of a bundle that one piece of a slot holds.
type Rows<'b> = fn(Bundle<'b>) -> [&'b [u8]; 2];

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

    /// The down bytes of all neurons of the slice at a place in memory; `None` for one that is missing.
    pub(crate) fn downs(&self, place: Place) -> Option<&'a [u8]> {
        let (kept, slot) = match place {
            Place::Hot(slot) => (self.hot, slot),
            Place::Cold(slot) => (self.cold, slot),
            Place::Missing => return None,
        };
        let bytes = self.slice * kept.down_bytes;
        Some(&kept.downs[slot as usize * bytes..][..bytes])
    }

    /// Gate and up of the neurons in slots, in order: `[2 * slots, width]`, of the pinned ones and of the others. `None` where
    /// they are no matrix.
    pub(crate) fn inputs(&self, shape: &Shape) -> Option<[Matrix<'a>; 2]> {
        let (format, row_bytes) = (shape.gate, shape.layout.gate_bytes as usize);
        let whole = shape.part == Part::Whole && shape.is_gated() && format == shape.up;
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
    up_start: usize,
    inputs_bytes: usize,
    down_bytes: usize,
}

impl<'a> Kept<'a> {
    #[inline]
    fn bundle(&self, slot: usize) -> Bundle<'a> {
        let (gate, up) = self.inputs[slot * self.inputs_bytes..][..self.inputs_bytes].split_at(self.up_start);
        Bundle { gate, up, down: &self.downs[slot * self.down_bytes..][..self.down_bytes] }
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
    /// Bytes of a slot's gate row, of the piece that it is in, and of the other.
    up_start: usize,
    inputs_bytes: usize,
    down_bytes: usize,
}

impl Region {
    fn new(bytes: Slab<u8>, counts: &[u32], shapes: &[Shape]) -> Self {
        let layers = counts.iter().zip(shapes).scan(0, |end, (&count, shape)| {
            let (start, inputs_bytes) = (*end, shape.inputs_bytes());
            *end += count as usize * shape.slot_bytes();
            let (up_start, down_bytes) = (shape.up_start(), shape.slot_bytes() - inputs_bytes);
            Some(Extent { start, end: *end, up_start, inputs_bytes, down_bytes })
        });
        Self { layers: layers.collect(), bytes }
    }

    fn layer(&self, layer: usize) -> Kept<'_> {
        let Extent { start, end, up_start, inputs_bytes, down_bytes } = self.layers[layer];
        // nobody is in slots that are lent
        let layer = self.bytes.get(start..end).unwrap_or_default();
        let (inputs, downs) = layer.split_at(layer.len() / (inputs_bytes + down_bytes) * inputs_bytes);
        Kept { inputs, downs, up_start, inputs_bytes, down_bytes }
    }

    /// The byte after a layer's last slot.
    fn end(&self, layer: usize) -> usize {
        self.layers[layer].end
    }

    /// A layer's slots, piece by piece.
    fn layer_mut(&mut self, layer: usize) -> [Pieces<'_>; 2] {
        let Extent { start, end, inputs_bytes, down_bytes, .. } = self.layers[layer];
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
