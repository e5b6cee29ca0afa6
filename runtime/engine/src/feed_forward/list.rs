//! The list of a layer's requested slices, in memory or in completed reads.

use std::ops::Range;

use plans::layout::{Part, Span};

use crate::cache::Place;
use crate::fetch::{Arrived, Completed, Wanted};
use crate::neurons::{Bundle, LayerNeurons, LayerSlots, NeuronError, Shape};
use kernels::{Matrix, Row};

/// Which rows requested which slices of a list: a bit for each row. A single row has requested all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Requests<'a>(Option<&'a [u32]>);

impl<'a> Requests<'a> {
    /// The requests of a step of `rows` rows.
    pub(super) fn of(requests: &'a [u32], rows: usize) -> Self {
        Self((rows > 1).then_some(requests))
    }

    /// Whether `row` requested the slice at `index`.
    #[inline]
    pub(super) fn by(&self, index: usize, row: usize) -> bool {
        self.0.is_none_or(|requests| requests[index] >> row & 1 == 1)
    }
}

/// Neurons in consecutive slots of a region.
pub(super) struct InOrder {
    /// 0 for the hot region, 1 for the cold one.
    pub(super) region: usize,
    /// The first neuron's slot, counted in neurons.
    pub(super) slot: usize,
    pub(super) count: usize,
}

/// The requested slices, in memory or not. Their neurons follow each other; slices of one neuron have the
/// neuron's index.
#[derive(Clone, Copy)]
pub(super) struct List<'a> {
    pub(super) neurons: &'a LayerNeurons,
    pub(super) shape: &'a Shape,
    pub(super) requested: &'a [u32],
    pub(super) places: &'a [Place],
}

impl<'a> List<'a> {
    /// A neuron's slice, and its index in it.
    #[inline]
    pub(super) fn split(&self, index: usize) -> (usize, usize) {
        match self.neurons.slice() {
            1 => (index, 0),
            slice => (index / slice, index % slice),
        }
    }

    /// The slices of a range of neurons.
    pub(super) fn slices(&self, range: &Range<usize>) -> Range<usize> {
        let slice = self.neurons.slice();
        range.start / slice..range.end.div_ceil(slice)
    }

    /// The `at`-th neuron of the slices in `order`.
    #[inline]
    pub(super) fn at(&self, order: &[u32], at: usize) -> usize {
        let (slice, neuron) = self.split(at);
        order[slice] as usize * self.neurons.slice() + neuron
    }

    /// The rank of a neuron.
    #[inline]
    pub(super) fn rank(&self, index: usize) -> u32 {
        let (slice, neuron) = self.split(index);
        self.requested[slice] * self.neurons.slice() as u32 + neuron as u32
    }

    /// The bytes of a neuron in its completed read.
    pub(super) fn bytes(&self, completed: Completed<'a>, index: usize) -> &'a [u8] {
        let span = self.neurons.span(self.shape, self.shape.part, self.rank(index));
        completed.bytes(self.split(index).0, span)
    }

    /// The bytes of a slice in its completed read.
    pub(super) fn slice_bytes(&self, completed: Completed<'a>, slice: usize) -> &'a [u8] {
        let span = self.neurons.slice_span(self.shape, self.shape.part, self.requested[slice]);
        completed.bytes(slice, span)
    }

    /// The rows of a neuron in its completed read.
    pub(super) fn read(&self, completed: Completed<'a>, index: usize) -> Bundle<'a> {
        if !self.shape.has_pieces() {
            return self.shape.cut(self.bytes(completed, index));
        }
        let (slice, neuron) = self.split(index);
        let starts = self.neurons.starts(self.shape, self.requested[slice]);
        self.shape.of_slice(self.slice_bytes(completed, slice), starts, neuron)
    }

    /// The piece of down of a slice, in memory or in its completed read.
    pub(super) fn piece(
        &self,
        slots: LayerSlots<'a>,
        completed: Option<Completed<'a>>,
        slice: usize,
    ) -> Matrix<'a> {
        let [.., down] = self.neurons.starts(self.shape, self.requested[slice]);
        let read = || completed.map(|completed| &self.slice_bytes(completed, slice)[down..]);
        self.shape.piece(slots.downs(self.places[slice]).or_else(read).unwrap_or_default())
    }

    /// The gate row of a neuron, which may be all that was read.
    pub(super) fn gate(&self, completed: Completed<'a>, index: usize) -> Row<'a> {
        let span = self.neurons.span(self.shape, Part::Whole, self.rank(index));
        let span = Span { bytes: self.shape.layout.gate_bytes, ..span };
        Row::new(self.shape.gate_format(), completed.bytes(self.split(index).0, span))
    }

    /// Which parts of a neuron have completed.
    pub(super) fn arrived(&self, completed: Completed<'_>, index: usize) -> Arrived {
        completed.arrived(self.split(index).0)
    }

    /// The rows of a neuron that is in memory.
    pub(super) fn in_slot(&self, slots: LayerSlots<'a>, index: usize) -> Option<Bundle<'a>> {
        let (slice, neuron) = self.split(index);
        slots.bundle(self.places[slice], neuron)
    }

    /// The rows of a neuron, in memory or in its completed read.
    pub(super) fn bundle(
        &self,
        slots: LayerSlots<'a>,
        completed: Option<Completed<'a>>,
        index: usize,
    ) -> Bundle<'a> {
        let read = || completed.map(|completed| self.read(completed, index));
        self.in_slot(slots, index).or_else(read).unwrap_or_default()
    }

    /// The neurons from `at` on, at most `most`, that are consecutive in memory; `None` for a single cold
    /// neuron.
    pub(super) fn in_order(&self, order: &[u32], at: usize, most: usize) -> Option<InOrder> {
        let (slice, (first, neuron)) = (self.neurons.slice(), self.split(at));
        let place = |at: usize| self.places[order[at] as usize];
        let (region, slot, slices) = match place(first) {
            Place::Hot(slot) => {
                // pinned slices come first, and slices ascend
                let wanted = (neuron + most).div_ceil(slice).min(order.len() - first);
                let follows = |&after: &usize| place(first + after) == Place::Hot(slot + after as u32);
                (0, slot, 1 + (1..wanted).take_while(follows).count())
            }
            Place::Cold(slot) if slice > 1 => (1, slot, 1),
            Place::Cold(_) | Place::Missing => return None,
        };
        let count = (slices * slice - neuron).min(most);
        Some(InOrder { region, slot: slot as usize * slice + neuron, count })
    }

    /// Splits `range` into runs of at most `2^bits` ranks: each run's number, and its range.
    pub(super) fn runs(&self, range: Range<usize>, bits: u32) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (slice, requested) = (self.neurons.slice(), self.requested);
        let (list, mut start) = (*self, range.start);
        std::iter::from_fn(move || {
            let first = start;
            let run = (first < range.end).then(|| list.rank(first) >> bits)?;
            // the first slice that is not wholly before the run's end, and its neurons that are
            let end = ((run as usize) + 1) << bits;
            let slices = &requested[..range.end.div_ceil(slice)];
            let after = slices.partition_point(|&other| (other as usize + 1) * slice <= end);
            let part = slices.get(after).map_or(0, |&other| end.saturating_sub(other as usize * slice));
            start = (after * slice + part).min(range.end);
            Some((run as usize, first..start))
        })
    }

    /// The expert of a neuron.
    pub(super) fn expert(&self, index: usize) -> usize {
        self.neurons.expert(self.rank(index))
    }

    /// Verifies the completed part of a neuron.
    pub(super) fn check(&self, completed: Completed<'_>, index: usize) -> Result<(), NeuronError> {
        let rank = self.rank(index);
        match self.arrived(completed, index) {
            Arrived::Whole if self.shape.has_pieces() => {
                let slice = self.slice_bytes(completed, self.split(index).0);
                self.neurons.verify_share(self.shape, rank, slice)
            }
            Arrived::Whole => {
                let bytes = self.bytes(completed, index);
                self.neurons.verify(self.shape, self.shape.part, rank, bytes)
            }
            Arrived::Gate => self.neurons.verify_gate(self.shape, rank, self.gate(completed, index).bytes),
            Arrived::Rest => {
                let span = self.neurons.span(self.shape, Part::UpDown, rank);
                let bytes = completed.bytes(self.split(index).0, span);
                self.neurons.verify(self.shape, Part::UpDown, rank, bytes)
            }
        }
    }
}

impl Wanted for List<'_> {
    fn span(&self, index: usize) -> Option<Span> {
        (self.places[index] == Place::Missing)
            .then(|| self.neurons.slice_span(self.shape, self.shape.part, self.requested[index]))
    }
}
