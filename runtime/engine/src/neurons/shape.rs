//! The rows of a layer's bundles, and their offsets.

use plans::layout::{BundleLayout, PARTS, Part};

use super::Activity;
use crate::container::{Container, Stored};
use kernels::{Format, Matrix, Row, repack};

/// The bytes and rows of a bundle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// The layout of bundles on flash.
    pub layout: BundleLayout,
    /// The part of a bundle that a slot and a read hold.
    pub part: Part,
    pub(super) gate: Format,
    pub(super) up: Format,
    pub(super) down: Format,
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

    /// Bytes of the rows that these neurons read from slots and buffers. With gates: gates that the level did
    /// not compute, ups of firing gates, downs of active neurons. Without gates: ups that the level did not
    /// compute, and downs.
    pub(crate) fn rows_bytes(&self, activity: &Activity) -> u64 {
        let requested = if self.part == Part::Whole { activity.requested } else { 0 };
        requested * self.layout.gate_bytes
            + activity.fired * self.layout.up_bytes
            + activity.active * self.layout.down_bytes
    }

    /// Cuts a contiguous part of a bundle into rows.
    #[inline]
    pub(crate) fn cut<'a>(&self, part: &'a [u8]) -> Bundle<'a> {
        let (inputs, down) = part.split_at(self.inputs_bytes());
        let (gate, up) = inputs.split_at(self.up_start());
        Bundle { gate, up, down }
    }

    /// Whether a neuron has a gate beside its up; otherwise the up is in the gate's place.
    pub(crate) fn is_gated(&self) -> bool {
        self.layout.up_bytes > 0
    }

    /// Whether slices hold pieces of down instead of down rows.
    pub(crate) fn has_pieces(&self) -> bool {
        self.pieces
    }

    /// Whether a slice's gate, up and down are separate, as in the model's file.
    pub(crate) fn is_apart(&self) -> bool {
        self.layout.apart
    }

    /// A neuron's rows in the bytes of its slice with a piece of down, whose parts start at these offsets.
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

    /// The piece of down made of a slice's shares: `[width, slice]`.
    pub(crate) fn piece<'a>(&self, shares: &'a [u8]) -> Matrix<'a> {
        let (rows, columns) = (self.width, self.slice());
        Matrix { format: self.down, rows, columns, bytes: &shares[..rows * self.down.row_bytes(columns)] }
    }

    /// Bytes of a slice's separate gate, up and down.
    pub(crate) fn parts_bytes(&self) -> [usize; PARTS] {
        let [gate, up, _] = self.rows_bytes_each();
        [self.slice() * gate, self.slice() * up, self.width * self.down.row_bytes(self.slice())]
    }

    /// Whether a part's rows are rearranged after they are read from a model's file.
    pub(crate) fn is_repacked(&self, part: usize) -> bool {
        self.parts_bytes()[part] > 0 && [self.gate, self.up, self.down][part] == Format::Q4_0X4
    }

    /// Rearranges the rows of such a part.
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
    pub(super) fn rows_bytes_each(&self) -> [usize; PARTS] {
        [self.layout.gate_bytes, self.layout.up_bytes, self.layout.down_bytes].map(|bytes| bytes as usize)
    }

    /// Bytes of the rows that are multiplied by the input.
    pub(super) fn inputs_bytes(&self) -> usize {
        self.up_start() + self.layout.up_bytes as usize
    }

    /// The gate row, or the up row in its place; only in whole bundles.
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

    pub(super) fn up_start(&self) -> usize {
        match self.part {
            Part::Whole => self.layout.gate_bytes as usize,
            Part::UpDown => 0,
        }
    }
}

/// The rows of a neuron that the quality level needs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bundle<'a> {
    /// The gate row, or the up row in its place; empty if resident.
    pub(super) gate: &'a [u8],
    /// The up row; empty if it is in the gate's place.
    pub(super) up: &'a [u8],
    /// The row that is added up, or a share of a piece of down.
    pub(super) down: &'a [u8],
}
