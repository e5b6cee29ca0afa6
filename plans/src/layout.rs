//! Where a neuron's bytes lie in the container, and which pages a read of it covers.
//!
//! A layer's neurons lie one after another at a fixed stride. Their order is the *rank*, hot neurons first. The bundle of a neuron is
//! `[gate | up | down^T]`, three rows of the model's width. A network without gates has two, `[up | down^T]`: the up row decides
//! whether a neuron fires, takes the gate's place, and `up_bytes` is 0.
//!
//! ```text
//! layer start (page aligned)
//! |-- bundle 0 ------------------|pad|-- bundle 1 ------------------|pad|-- ...
//! | gate row | up row | down row |
//! |<------- bundle_bytes ------->|
//! |<---------- stride_bytes -------->|
//! ```
//!
//! Bundles of a page or more are padded to whole pages, so that no read covers a neighbour's page. Smaller bundles are packed, and a
//! read covers the pages that it touches.
//!
//! A model whose experts are requested whole has *slices*: neighbouring neurons of one expert that are read, inserted and evicted
//! together. Their bundles are packed, and a read covers a slice at least.
//!
//! With down in the orientation of the model's file (`architecture.down_transposed = false`), a slice has gate and up of its `k`
//! neurons, then their *piece* of down. The piece has `k` neighbouring columns of each output row, byte for byte as in the file.
//! `down_bytes` is then a neuron's share of the piece, and no row of numbers.
//!
//! ```text
//! slice start
//! |-- gate | up --|-- gate | up --| ... k of them |-- output 0: k columns --|-- output 1: k columns --| ... |pad|
//! |<------------ k * (gate_bytes + up_bytes) ---->|<------------------ k * down_bytes ------------------------>|
//! ```
//!
//! With an index (`apart`), the engine reads the model's own file, and a slice is a whole expert. Its gate, up and down are three runs
//! of bytes anywhere in the file, or two without gates. One buffer takes all of them, each on pages of its own, at the same offset
//! in its first page as in the file.
//!
//! ```text
//! buffer
//! |-- .. gate row 0 | gate row 1 | ... --|-- .. up row 0 | ... --|-- .. output 0: all columns | output 1 | ... --|
//! |<---------- pages of gate ----------->|<---- pages of up ---->|<--------------- pages of down -------------->|
//! ```
//!
//! A padded bundle can be read in [`Phases`], one read after another into one buffer.

use serde::{Deserialize, Serialize};

use crate::PAGE_BYTES;

/// Shape of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleLayout {
    /// Bytes of the gate row; of a network without gates, of the up row.
    pub gate_bytes: u64,
    /// Bytes of the up row; 0 where the up row takes the gate's place.
    pub up_bytes: u64,
    /// Bytes of the transposed down row, or a neuron's share of a piece of down.
    pub down_bytes: u64,
    /// Distance from one bundle to the next.
    pub stride_bytes: u64,
    /// Neurons of one expert that are read, inserted and evicted together; absent: 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub slice_neurons: u64,
    /// Whether gate, up and down of an expert are read from the model's own file; absent: `false`, they lie side by side in the container.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub apart: bool,
}

/// Value of `slice_neurons` where it is absent.
fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(count: &u64) -> bool {
    *count == 1
}

/// Parts of a slice that lie apart: gate, up and down. One of them may have no bytes.
pub const PARTS: usize = 3;
/// Alignment of tensors in a model's file, as most files have it.
const TENSOR_ALIGN: u64 = 32;

/// The part of a bundle that is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// `[gate | up | down^T]`.
    Whole,
    /// `[up | down^T]`, for levels whose gate rows are resident; without gates `[down^T]`, with the up rows resident.
    UpDown,
}

/// How a missing neuron is read (`read.phases`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phases {
    /// The whole bundle in one read, neighbours together.
    #[default]
    Whole,
    /// The pages of the gate row, then the others if the gate fires: the paper's two-phase reads. Without gates the up row comes first.
    TwoPhase,
    /// A read for the pages of each row, as if rows did not lie side by side. Up and down follow only if the gate fires.
    Rows,
}

impl Phases {
    /// All orders of reading.
    pub const ALL: [Self; 3] = [Self::Whole, Self::TwoPhase, Self::Rows];

    /// Name of the order of reading, in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::TwoPhase => "two-phase",
            Self::Rows => "rows",
        }
    }
}

/// The reads of a part of one neuron, one after another into one buffer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Steps {
    /// The order of reading.
    pub phases: Phases,
    /// Pages of each read, relative to the part's first; a single span without phases.
    pub spans: Vec<Span>,
    /// Whether the first read brings the gate, which decides about the others.
    pub asks: bool,
}

/// A range of the file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

impl Span {
    /// The pages that a direct read of this span covers.
    pub fn pages(self) -> Self {
        let start = self.offset / PAGE_BYTES * PAGE_BYTES;
        let end = (self.offset + self.bytes).next_multiple_of(PAGE_BYTES);
        Self { offset: start, bytes: end - start }
    }

    /// The byte after the last.
    pub fn end(self) -> u64 {
        self.offset + self.bytes
    }

    /// Whether `other` lies inside.
    pub fn covers(self, other: Self) -> bool {
        self.offset <= other.offset && other.end() <= self.end()
    }
}

impl BundleLayout {
    /// The layout for rows of these sizes.
    pub fn new(gate_bytes: u64, up_bytes: u64, down_bytes: u64) -> Self {
        Self::in_slices(gate_bytes, up_bytes, down_bytes, 1)
    }

    /// The layout for rows of these sizes in slices of `slice_neurons`; several neurons are packed.
    pub fn in_slices(gate_bytes: u64, up_bytes: u64, down_bytes: u64, slice_neurons: u64) -> Self {
        let bundle = gate_bytes + up_bytes + down_bytes;
        let padded = slice_neurons == 1 && bundle >= PAGE_BYTES;
        let stride_bytes = if padded { bundle.next_multiple_of(PAGE_BYTES) } else { bundle };
        Self { gate_bytes, up_bytes, down_bytes, stride_bytes, slice_neurons, apart: false }
    }

    /// The layout of these rows in slices whose gate, up and down lie apart.
    #[must_use]
    pub fn apart(self) -> Self {
        Self { apart: true, ..self }
    }

    /// The mean layout of these layers, in slices of one size; `None` without layers.
    pub fn mean(layers: &[Self]) -> Option<Self> {
        let first = layers.first()?;
        let mean = |of: fn(&Self) -> u64| {
            let count = layers.len() as u64;
            (layers.iter().map(of).sum::<u64>() + count / 2) / count
        };
        let [gate, up, down] = [mean(|l| l.gate_bytes), mean(|l| l.up_bytes), mean(|l| l.down_bytes)];
        Some(Self { apart: first.apart, ..Self::in_slices(gate, up, down, first.slice_neurons) })
    }

    /// Bytes of a bundle without padding.
    pub fn bundle_bytes(&self) -> u64 {
        self.gate_bytes + self.up_bytes + self.down_bytes
    }

    /// Bytes of a part, which are the bytes of a cache slot.
    pub fn part_bytes(&self, part: Part) -> u64 {
        match part {
            Part::Whole => self.bundle_bytes(),
            Part::UpDown => self.up_bytes + self.down_bytes,
        }
    }

    /// Where a part of the neuron at `rank` lies, relative to the layer's start.
    pub fn span(&self, rank: u64, part: Part) -> Span {
        let start = rank * self.stride_bytes;
        match part {
            Part::Whole => Span { offset: start, bytes: self.bundle_bytes() },
            Part::UpDown => Span { offset: start + self.gate_bytes, bytes: self.part_bytes(part) },
        }
    }

    /// Bytes of gate, up and down of a slice.
    pub fn parts_bytes(&self) -> [u64; PARTS] {
        [self.gate_bytes, self.up_bytes, self.down_bytes].map(|bytes| self.slice_neurons * bytes)
    }

    /// Offsets in the buffer of a slice whose parts lie apart: the first page of each part, and the end of the last.
    ///
    /// Each part has room for its bytes wherever in a page they begin; a part without bytes has no room.
    pub fn parts_at(&self) -> [u64; PARTS + 1] {
        let mut at = [0; PARTS + 1];
        for (part, bytes) in self.parts_bytes().into_iter().enumerate() {
            let room = if bytes == 0 { 0 } else { (PAGE_BYTES - 1 + bytes).next_multiple_of(PAGE_BYTES) };
            at[part + 1] = at[part] + room;
        }
        at
    }

    /// Reads that bring a slice.
    pub fn reads_of_slice(&self) -> u64 {
        let parts = self.parts_bytes().into_iter().filter(|&bytes| bytes > 0);
        if self.apart { parts.count() as u64 } else { 1 }
    }

    /// The span of a part of a slice's neurons, from the first to the last, relative to the layer's start.
    ///
    /// A slice whose parts lie apart counts as its buffer, one slice after another.
    pub fn slice_span(&self, slice: u64, part: Part) -> Span {
        if self.apart {
            let bytes = self.parts_at()[PARTS];
            return Span { offset: slice * bytes, bytes };
        }
        let first = self.span(slice * self.slice_neurons, part);
        Span { offset: first.offset, bytes: (self.slice_neurons - 1) * self.stride_bytes + first.bytes }
    }

    /// Bytes of the pages that a read of a slice covers, for every offset in a page at which slices begin.
    fn reads_bytes(&self, slices: u64, part: Part) -> impl Iterator<Item = u64> {
        // the pattern of page crossings repeats after at most one page's worth
        (0..slices.clamp(1, PAGE_BYTES)).map(move |slice| self.slice_span(slice, part).pages().bytes)
    }

    /// Bytes of the longest read of a slice, and so of every buffer.
    pub fn read_bytes_max(&self) -> u64 {
        self.reads_bytes(PAGE_BYTES, Part::Whole).max().unwrap_or(PAGE_BYTES)
    }

    /// The reads of a part of a neuron in phases.
    ///
    /// `None` where bundles share pages, where the gate's pages are all of the bundle's, and where the part is one row.
    pub fn steps(&self, part: Part, phases: Phases) -> Option<Steps> {
        let whole = self.span(0, part).pages();
        let rows = [self.gate_bytes, self.up_bytes, self.down_bytes].into_iter().scan(0, |end, bytes| {
            *end += bytes;
            Some(Span { offset: *end - bytes, bytes })
        });
        let mut rows: Vec<Span> = match part {
            Part::Whole => rows.collect(),
            Part::UpDown => rows.skip(1).collect(),
        };
        rows.retain(|row| row.bytes > 0);
        for row in &mut rows {
            *row = Span { offset: row.offset - whole.offset, bytes: row.bytes }.pages();
        }
        let gate = rows[0].bytes;
        let rest = Span { offset: gate, bytes: whole.bytes - gate };
        let spans = match (phases, part) {
            (Phases::Whole, _) => vec![Span { offset: 0, bytes: whole.bytes }],
            _ if !self.stride_bytes.is_multiple_of(PAGE_BYTES) => return None,
            (Phases::Rows, _) if rows.len() > 1 => rows,
            (Phases::TwoPhase, Part::Whole) if rest.bytes > 0 => vec![rows[0], rest],
            (Phases::TwoPhase | Phases::Rows, _) => return None,
        };
        Some(Steps { phases, asks: part == Part::Whole && spans.len() > 1, spans })
    }

    /// Mean bytes of the pages that the reads of a part of a slice cover, over the first `neurons` ranks.
    pub fn read_bytes_mean(&self, neurons: u64, part: Part) -> u64 {
        if self.apart {
            let parts = self.parts_bytes().into_iter().filter(|&bytes| bytes > 0);
            return parts.map(|bytes| bytes + PAGE_BYTES - TENSOR_ALIGN).sum();
        }
        let slices = (neurons / self.slice_neurons).clamp(1, PAGE_BYTES);
        self.reads_bytes(slices, part).sum::<u64>() / slices
    }

    /// Bytes of a layer of `neurons` on flash, whole pages.
    pub fn layer_bytes(&self, neurons: u64) -> u64 {
        (neurons * self.stride_bytes).next_multiple_of(PAGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bundles_are_padded_to_pages_and_small_ones_share_them() {
        let q4 = BundleLayout::new(2304, 2304, 2304);
        assert_eq!((q4.bundle_bytes(), q4.stride_bytes), (6912, 8192));
        assert_eq!(q4.read_bytes_mean(14336, Part::Whole), 8192);
        let small = BundleLayout::new(512, 512, 512);
        assert_eq!(small.stride_bytes, 1536);
        assert_eq!(small.span(2, Part::Whole).pages(), Span { offset: 0, bytes: 8192 });
        assert_eq!(small.span(1, Part::UpDown), Span { offset: 2048, bytes: 1024 });
    }

    #[test]
    fn without_gates_a_bundle_is_two_rows_and_what_an_exact_gate_reads_is_one() {
        // a neuron of `[up | down]`, and what a gate that is its up would take
        let (two, three) = (BundleLayout::new(4096, 0, 4096), BundleLayout::new(4096, 4096, 4096));
        assert_eq!((two.stride_bytes, three.stride_bytes), (8192, 12288));
        assert_eq!((two.part_bytes(Part::UpDown), three.part_bytes(Part::UpDown)), (4096, 8192));
        assert_eq!(two.span(3, Part::UpDown), Span { offset: 3 * 8192 + 4096, bytes: 4096 });
        assert_eq!(two.read_bytes_mean(1000, Part::UpDown), 4096);
        let spans = |part, phases| two.steps(part, phases).map(|steps| (steps.asks, steps.spans));
        let up_then_down = vec![Span { offset: 0, bytes: 4096 }, Span { offset: 4096, bytes: 4096 }];
        for phases in [Phases::TwoPhase, Phases::Rows] {
            assert_eq!(spans(Part::Whole, phases), Some((true, up_then_down.clone())), "{phases:?}");
            assert_eq!(spans(Part::UpDown, phases), None, "a row has no phases: {phases:?}");
        }
    }

    #[test]
    fn the_mean_of_like_layers_is_each_of_them() {
        let [a, b] = [900, 1100].map(|down| BundleLayout::in_slices(2304, 2304, down, 64));
        assert_eq!((BundleLayout::mean(&[a, a, a]), BundleLayout::mean(&[])), (Some(a), None));
        assert_eq!(BundleLayout::mean(&[a, b, b, a]), Some(BundleLayout::in_slices(2304, 2304, 1000, 64)));
    }

    #[test]
    fn slices_are_packed_and_each_is_one_run_of_bytes() {
        let layout = BundleLayout::in_slices(2304, 2304, 2304, 64);
        assert_eq!((layout.stride_bytes, layout.layer_bytes(128)), (6912, 2 * 64 * 6912));
        let (first, second) = (layout.slice_span(0, Part::Whole), layout.slice_span(1, Part::Whole));
        assert_eq!((first, second.offset), (Span { offset: 0, bytes: 64 * 6912 }, first.end()));
        assert_eq!(layout.span(64, Part::Whole), Span { offset: second.offset, bytes: 6912 });
        // a slice of one neuron is that neuron
        let alone = BundleLayout::new(2304, 2304, 2304);
        for part in [Part::Whole, Part::UpDown] {
            assert_eq!(alone.slice_span(5, part), alone.span(5, part));
        }
        for layout in [layout, alone, BundleLayout::in_slices(100, 100, 107, 7)] {
            let longest = (0..9000).map(|slice| layout.slice_span(slice, Part::Whole).pages().bytes).max();
            assert_eq!(Some(layout.read_bytes_max()), longest, "{layout:?}");
        }
    }

    #[test]
    fn parts_that_lie_apart_have_room_wherever_they_begin() {
        for layout in [
            BundleLayout::in_slices(1152, 1152, 1152, 768),
            BundleLayout::in_slices(1680, 1152, 1153, 96),
            BundleLayout::in_slices(1, 4096, 4097, 1),
            BundleLayout::in_slices(1152, 0, 1152, 768),
        ] {
            let (apart, at) = (layout.apart(), layout.parts_at());
            let span = apart.slice_span(5, Part::Whole);
            assert_eq!(span, Span { offset: 5 * at[PARTS], bytes: at[PARTS] }.pages(), "{layout:?}");
            let reads = if layout.up_bytes == 0 { 2 } else { 3 };
            assert_eq!((apart.read_bytes_max(), apart.reads_of_slice()), (span.bytes, reads));
            let mut mean = 0;
            for (part, bytes) in layout.parts_bytes().into_iter().enumerate() {
                let room = at[part + 1] - at[part];
                if bytes == 0 {
                    assert_eq!(room, 0, "{layout:?}");
                    continue;
                }
                let covered = |offset| Span { offset, bytes }.pages().bytes;
                assert_eq!((0..PAGE_BYTES).map(covered).max(), Some(room), "{layout:?}");
                let places = (0..PAGE_BYTES).step_by(TENSOR_ALIGN as usize);
                mean += places.clone().map(covered).sum::<u64>() / places.count() as u64;
            }
            // bytes that are no whole number of places take a little less
            let far = mean.abs_diff(apart.read_bytes_mean(1 << 20, Part::Whole));
            assert!(far < 3 * TENSOR_ALIGN, "{layout:?}: {far}");
        }
    }

    #[test]
    fn the_steps_of_a_read_bring_every_row_and_no_page_beyond() {
        let pages = |offset: u64, count: u64| Span { offset: offset * PAGE_BYTES, bytes: count * PAGE_BYTES };
        let steps = |layout: &BundleLayout, part, phases| {
            let steps = layout.steps(part, phases)?;
            assert_eq!((steps.phases, steps.asks), (phases, part == Part::Whole && steps.spans.len() > 1));
            Some(steps.spans)
        };
        let q4 = BundleLayout::new(2304, 2304, 2304);
        assert_eq!(steps(&q4, Part::Whole, Phases::Whole), Some(vec![pages(0, 2)]));
        assert_eq!(steps(&q4, Part::Whole, Phases::TwoPhase), Some(vec![pages(0, 1), pages(1, 1)]));
        let rows = vec![pages(0, 1), pages(0, 2), pages(1, 1)];
        assert_eq!(steps(&q4, Part::Whole, Phases::Rows), Some(rows));
        assert_eq!(steps(&q4, Part::UpDown, Phases::Rows), Some(vec![pages(0, 2), pages(1, 1)]));
        assert_eq!(steps(&q4, Part::UpDown, Phases::TwoPhase), None, "it has its gates");
        // a gate of pages of its own
        let f16 = BundleLayout::new(8192, 8192, 8192);
        assert_eq!(steps(&f16, Part::Whole, Phases::TwoPhase), Some(vec![pages(0, 2), pages(2, 4)]));
        assert_eq!(steps(&f16, Part::UpDown, Phases::Whole), Some(vec![pages(0, 4)]));
        assert_eq!(steps(&f16, Part::UpDown, Phases::Rows), Some(vec![pages(0, 2), pages(2, 2)]));
        // a page in all, and less than one
        assert_eq!(BundleLayout::new(2000, 1000, 1000).steps(Part::Whole, Phases::TwoPhase), None);
        assert_eq!(BundleLayout::new(512, 512, 512).steps(Part::Whole, Phases::Rows), None);
    }

    #[test]
    fn the_pages_of_a_span_cover_it_and_no_more() {
        for offset in [0, 1, 4095, 4096, 5000] {
            for bytes in [1, 2, 4096, 4097, 9000] {
                let span = Span { offset, bytes };
                let pages = span.pages();
                assert!(pages.offset <= offset && offset + bytes <= pages.offset + pages.bytes, "{span:?}");
                assert!(pages.bytes < bytes + 2 * PAGE_BYTES, "{span:?}");
                assert_eq!((pages.offset % PAGE_BYTES, pages.bytes % PAGE_BYTES), (0, 0), "{span:?}");
            }
        }
    }
}
