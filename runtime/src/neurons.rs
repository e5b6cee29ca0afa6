//! A layer's neurons: which are in memory, where their bytes are, and whether bytes read are really theirs.
//!
//! ```text
//! hot region   [layer 0: positions 0..hot | layer 1: ...]           filled at start
//! cold region  [layer 0: slots            | layer 1: ...]           filled as neurons are read
//! ```
//!
//! A slot holds the part of a bundle that the quality level needs, unpadded.

use std::fs::File;

use plans::layout::{BundleLayout, Part, Span};
use plans::plan::CachePlan;

use crate::arena::{Align, Arena, Slab};
use crate::cache::{LayerCache, Place};
use crate::container::{Container, bundle_checksum, up_down_checksum};
use crate::engine::EngineError;
use crate::feed_forward::Activity;
use crate::format::Format;
use crate::kernels::Row;

/// How a bundle's bytes are cut into rows.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Where bundles lie.
    pub layout: BundleLayout,
    /// What a slot and a read hold of them.
    pub part: Part,
    gate: Format,
    up: Format,
    down: Format,
}

impl Shape {
    /// The shape of a container's bundles at a level that needs `part` of them.
    pub fn new(container: &Container, part: Part) -> Self {
        let d = &container.directory;
        Self { layout: d.bundle, part, gate: d.gate_format, up: d.up_format, down: d.down_format }
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.layout.part_bytes(self.part) as usize
    }

    /// Bytes of the rows that so many neurons take from slots and buffers: gate where the level has not computed it, up
    /// where the gate fires, down where the neuron is active.
    pub fn rows_bytes(&self, activity: &Activity) -> u64 {
        let asked = if self.part == Part::Whole { activity.asked } else { 0 };
        asked * self.layout.gate_bytes
            + activity.fired * self.layout.up_bytes
            + activity.active * self.layout.down_bytes
    }

    /// The gate row; only whole bundles have one.
    pub fn gate<'a>(&self, slot: &'a [u8]) -> Row<'a> {
        debug_assert_eq!(self.part, Part::Whole, "gate rows are resident");
        Row::new(self.gate, &slot[..self.layout.gate_bytes as usize])
    }

    /// The up row.
    pub fn up<'a>(&self, slot: &'a [u8]) -> Row<'a> {
        let start = self.up_start();
        Row::new(self.up, &slot[start..][..self.layout.up_bytes as usize])
    }

    /// Columns `start..start + count` of the transposed down row; both on the format's blocks.
    pub fn down<'a>(&self, slot: &'a [u8], start: usize, count: usize) -> Row<'a> {
        let row = &slot[self.up_start() + self.layout.up_bytes as usize..];
        let from = self.down.row_bytes(start);
        Row::new(self.down, &row[from..][..self.down.row_bytes(count)])
    }

    /// Formats of the rows that are multiplied by the input.
    pub fn dot_formats(&self) -> [Format; 2] {
        [self.gate, self.up]
    }

    fn up_start(&self) -> usize {
        match self.part {
            Part::Whole => self.layout.gate_bytes as usize,
            Part::UpDown => 0,
        }
    }
}

/// One layer's neurons.
#[derive(Debug)]
pub struct LayerNeurons {
    /// Who is in memory.
    pub cache: LayerCache,
    layer: usize,
    /// First byte of the layer in the container.
    offset: u64,
    /// `[positions]`, of the part that is read.
    checksums: Box<[u32]>,
    /// `[positions]`.
    experts: Box<[u16]>,
    /// `[experts][ffn_width]`: each expert's positions, ascending.
    lists: Box<[u32]>,
    ffn_width: usize,
}

impl LayerNeurons {
    /// Every layer's tables, from the container, with caches as the plan has them.
    ///
    /// # Errors
    /// If the tables cannot be read or are not permutations.
    pub fn load_all(container: &Container, file: &File, plan: &CachePlan) -> Result<Vec<Self>, EngineError> {
        let d = &container.directory;
        let mut section: Slab<u8> = Arena::new(d.tables.bytes)?.take(d.tables.bytes as usize, Align::Page)?;
        container.read_section(file, &d.tables, "neuron tables", &mut section)?;
        let neurons = container.neurons();
        let tables: &[u32] = bytemuck::cast_slice(&section[..]);
        (0..d.config.layers)
            .map(|layer| {
                let (order, checksums) = tables[layer * 2 * neurons..][..2 * neurons].split_at(neurons);
                let (experts, lists) = by_expert(order, d.config.experts, d.config.ffn_width)
                    .ok_or_else(|| EngineError::Order { path: container.path.clone(), layer })?;
                Ok(Self {
                    cache: LayerCache::new(
                        plan.policy,
                        neurons as u32,
                        plan.hot_neurons[layer],
                        plan.cold_slots[layer],
                    ),
                    layer,
                    offset: d.layer_offsets[layer],
                    checksums: checksums.into(),
                    experts,
                    lists,
                    ffn_width: d.config.ffn_width,
                })
            })
            .collect()
    }

    /// The expert of a position.
    pub fn expert(&self, position: u32) -> usize {
        usize::from(self.experts[position as usize])
    }

    /// Experts that share the layer.
    pub fn experts_count(&self) -> usize {
        self.count() / self.ffn_width
    }

    /// An expert's positions, ascending: the order of its predictor's rows.
    pub fn list(&self, expert: usize) -> &[u32] {
        &self.lists[expert * self.ffn_width..][..self.ffn_width]
    }

    /// The place of a position in its expert's list.
    pub fn rank(&self, position: u32) -> usize {
        self.list(self.expert(position)).partition_point(|&other| other < position)
    }

    /// All positions.
    pub fn count(&self) -> usize {
        self.experts.len()
    }

    /// Where a part of a position lies in the container.
    pub fn span(&self, shape: &Shape, part: Part, position: u32) -> Span {
        let span = shape.layout.span(u64::from(position), part);
        Span { offset: self.offset + span.offset, bytes: span.bytes }
    }

    /// Whether `bytes` are what the container's writer put at a position.
    ///
    /// # Errors
    /// [`EngineError::Neuron`] if they are not.
    pub fn verify(&self, shape: &Shape, part: Part, position: u32, bytes: &[u8]) -> Result<(), EngineError> {
        let at = position as usize;
        let found = match part {
            Part::Whole => bundle_checksum(self.layer, at, bytes, shape.layout.gate_bytes as usize),
            Part::UpDown => up_down_checksum(self.layer, at, bytes),
        };
        if found == self.checksums[at] {
            Ok(())
        } else {
            let offset = self.span(shape, part, position).offset;
            Err(EngineError::Neuron { layer: self.layer, position, offset })
        }
    }

    /// From now on only `[up | down]` of a position is read: its checksum loses the gate's share.
    pub fn forget_gate(&mut self, position: u32, gate_checksum: u32) {
        let sum = &mut self.checksums[position as usize];
        *sum = sum.wrapping_sub(gate_checksum);
    }

    /// Bytes of all tables.
    pub fn tables_bytes(&self) -> usize {
        self.cache.tables_bytes()
            + size_of_val(&*self.checksums)
            + size_of_val(&*self.experts)
            + size_of_val(&*self.lists)
    }
}

/// The expert of each position, and each expert's positions.
type ByExpert = (Box<[u16]>, Box<[u32]>);

/// From the source index of each position: the expert of each, and each expert's positions. `None` if the order is
/// no permutation.
fn by_expert(order: &[u32], experts: usize, ffn_width: usize) -> Option<ByExpert> {
    let mut seen = vec![false; order.len()];
    let mut filled = vec![0; experts];
    let mut expert_of = Vec::with_capacity(order.len());
    let mut lists = vec![0; order.len()].into_boxed_slice();
    for (position, &index) in order.iter().enumerate() {
        let index = index as usize;
        if *seen.get(index)? {
            return None;
        }
        seen[index] = true;
        let expert = index / ffn_width;
        lists[expert * ffn_width + filled[expert]] = position as u32;
        filled[expert] += 1;
        expert_of.push(u16::try_from(expert).ok()?);
    }
    Some((expert_of.into(), lists))
}

/// The two regions of slots, cut by layer.
#[derive(Debug)]
pub struct Slots {
    hot: Slab<u8>,
    cold: Slab<u8>,
    /// First byte of each layer in `hot` and `cold`.
    starts: Vec<(usize, usize)>,
    /// Bytes of all slots in `cold`.
    cold_bytes: usize,
    slot_bytes: usize,
}

impl Slots {
    /// The regions for the plan's counts.
    pub fn new(
        hot: Slab<u8>,
        cold: Slab<u8>,
        hot_neurons: &[u32],
        cold_slots: &[u32],
        slot_bytes: usize,
    ) -> Self {
        let mut starts = Vec::with_capacity(hot_neurons.len());
        let (mut hot_start, mut cold_start) = (0, 0);
        for (&hot, &cold) in hot_neurons.iter().zip(cold_slots) {
            starts.push((hot_start, cold_start));
            hot_start += hot as usize * slot_bytes;
            cold_start += cold as usize * slot_bytes;
        }
        Self { hot, cold, starts, cold_bytes: cold_start, slot_bytes }
    }

    /// The bytes at a place in memory; `None` for a neuron that is missing.
    pub fn bytes(&self, layer: usize, place: Place) -> Option<&[u8]> {
        let (hot_start, cold_start) = self.starts[layer];
        match place {
            Place::Hot(index) => {
                Some(&self.hot[hot_start + index as usize * self.slot_bytes..][..self.slot_bytes])
            }
            Place::Cold(slot) => {
                Some(&self.cold[cold_start + slot as usize * self.slot_bytes..][..self.slot_bytes])
            }
            Place::Missing => None,
        }
    }

    /// A layer's cold slots, one after another.
    pub fn cold(&mut self, layer: usize) -> &mut [u8] {
        let start = self.starts[layer].1;
        let end = self.starts.get(layer + 1).map_or(self.cold_bytes, |next| next.1);
        &mut self.cold[start..end]
    }

    /// Fills a place in memory.
    pub fn fill(&mut self, layer: usize, place: Place, bytes: &[u8]) {
        let (hot_start, cold_start) = self.starts[layer];
        let slot = match place {
            Place::Hot(index) => &mut self.hot[hot_start + index as usize * self.slot_bytes..],
            Place::Cold(slot) => &mut self.cold[cold_start + slot as usize * self.slot_bytes..],
            Place::Missing => return,
        };
        slot[..self.slot_bytes].copy_from_slice(bytes);
    }
}
