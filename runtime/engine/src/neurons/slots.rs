//! The two regions of slots: hot for pinned neurons, cold for cached ones.

use plans::layout::Part;

use super::{Bundle, LayerNeurons, Shape};
use crate::arena::Slab;
use crate::cache::Place;
use crate::pool::Pool;
use kernels::Matrix;

/// Slices of at least these bytes are copied by several threads.
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
    /// The regions for the plan's counts of neurons, by layer.
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

    /// All bytes of both regions, hot and cold, except lent ones.
    pub(crate) fn bytes(&self) -> [&[u8]; 2] {
        [&self.hot.bytes, &self.cold.bytes]
    }

    /// A layer's slots.
    pub(crate) fn layer(&self, layer: usize) -> LayerSlots<'_> {
        LayerSlots { hot: self.hot.layer(layer), cold: self.cold.layer(layer), slice: self.slice }
    }

    /// Lends the last `bytes` of the cold region; layers with slots there drop their cold neurons. No slot
    /// may be filled until they are returned.
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

    /// Whether all slots of a layer are present, none lent.
    pub(crate) fn holds(&self, layer: usize) -> bool {
        self.cold.end(layer) <= self.cold.bytes.len()
    }

    /// Fills a pinned neuron's slot.
    pub(crate) fn fill_hot(&mut self, layer: usize, rank: u32, bundle: Bundle<'_>) {
        let [mut inputs, mut downs] = self.hot.layer_mut(layer);
        let (gate, up) = inputs.slot(rank as usize).split_at_mut(bundle.gate.len());
        gate.copy_from_slice(bundle.gate);
        up.copy_from_slice(bundle.up);
        downs.slot(rank as usize).copy_from_slice(bundle.down);
    }

    /// Fills cold slots of a layer: each item is a slot and a function that finds the bundle of each neuron
    /// of its slice. Threads share each large slice, otherwise the slots.
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

/// The rows of a bundle in one piece of a slot.
type Rows<'b> = fn(Bundle<'b>) -> [&'b [u8]; 2];

/// The slots of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerSlots<'a> {
    hot: Kept<'a>,
    cold: Kept<'a>,
    slice: usize,
}

impl<'a> LayerSlots<'a> {
    /// The rows of a neuron of the slice at `place`; `None` if missing.
    #[inline]
    pub(crate) fn bundle(&self, place: Place, neuron: usize) -> Option<Bundle<'a>> {
        match place {
            Place::Hot(slot) => Some(self.hot.bundle(slot as usize * self.slice + neuron)),
            Place::Cold(slot) => Some(self.cold.bundle(slot as usize * self.slice + neuron)),
            Place::Missing => None,
        }
    }

    /// The down bytes of all neurons of the slice at `place`; `None` if missing.
    pub(crate) fn downs(&self, place: Place) -> Option<&'a [u8]> {
        let (kept, slot) = match place {
            Place::Hot(slot) => (self.hot, slot),
            Place::Cold(slot) => (self.cold, slot),
            Place::Missing => return None,
        };
        let bytes = self.slice * kept.down_bytes;
        Some(&kept.downs[slot as usize * bytes..][..bytes])
    }

    /// Gate and up rows of the hot slots, and of the cold ones, as matrices `[2 * slots, width]`. `None` if
    /// they do not form a matrix.
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

/// The slots of every layer: the inputs of all slots of a layer, then their downs.
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
    /// Bytes of a slot's gate row, of its inputs, and of its down.
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
        // lent slots hold no neuron
        let layer = self.bytes.get(start..end).unwrap_or_default();
        let (inputs, downs) = layer.split_at(layer.len() / (inputs_bytes + down_bytes) * inputs_bytes);
        Kept { inputs, downs, up_start, inputs_bytes, down_bytes }
    }

    /// The end of a layer's last slot.
    fn end(&self, layer: usize) -> usize {
        self.layers[layer].end
    }

    /// A layer's slots: inputs, then downs.
    fn layer_mut(&mut self, layer: usize) -> [Pieces<'_>; 2] {
        let Extent { start, end, inputs_bytes, down_bytes, .. } = self.layers[layer];
        let count = (end - start) / (inputs_bytes + down_bytes);
        let (inputs, downs) = self.bytes[start..end].split_at_mut(count * inputs_bytes);
        [Pieces { bytes: inputs, slot_bytes: inputs_bytes }, Pieces { bytes: downs, slot_bytes: down_bytes }]
    }
}

/// The inputs, or the downs, of a layer's slots.
struct Pieces<'a> {
    bytes: &'a mut [u8],
    slot_bytes: usize,
}

impl Pieces<'_> {
    fn slot(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[index * self.slot_bytes..][..self.slot_bytes]
    }
}
