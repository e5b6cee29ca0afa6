//! The choices of reads flash: back end, reads in flight, buffers, gap, look-ahead and phases.

use std::sync::Arc;

use plans::Backend;
use plans::layout::Phases;
use plans::memory::{self, slot_part};
use plans::model::{Level, LevelKind, Model};
use plans::plan::{Feature, measured_run};

use crate::cost::read_curves;
use crate::cost::reads::{Queued, ReadChoice, ReadPrice};
use crate::question::{Limits, Question};

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

/// Every back end that the device has, at every measured depth, with every number and size of buffers, every gap, and
/// with and without look-ahead.
pub(crate) fn reads(
    question: &Question<'_>,
    level: &Level,
    memory_of: impl Fn(&ReadChoice) -> i64,
) -> Vec<Read> {
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
    let mut found = Vec::new();
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
                    found.push(Read {
                        choice: ReadChoice { look_ahead, ..choice },
                        bytes,
                        fill: price.fill_seconds() / generated,
                        price,
                    });
                }
            }
        }
    }
    found
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
    let found: Vec<Phases> = Phases::ALL.into_iter().filter(offered).collect();
    if found.is_empty() { vec![Phases::Whole] } else { found }
}
