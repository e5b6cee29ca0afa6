//! The memory of the simple rule: as many pinned neurons in every layer, with all cores and plain reads.

use plans::plan::Feature;
use plans::{Backend, Policy};

use crate::cores::Compute;
use crate::flash::Read;
use crate::options::Options;
use crate::question::Question;
use crate::room::{Need, Room, regions_within};
use crate::rules::{self, Prompt};

/// Reads in flight, unless somebody thinks about it.
const DEPTH_MAX: u32 = 32;
/// Buffers for each of them.
const BUFFERS_PER_READ: u32 = 4;

/// Neurons of every layer that the rule would pin, by back end and by how prompts pass: whatever limits these, the same plans are there
/// to choose among.
pub fn pinned(question: &Question<'_>, options: &Options<'_>) -> Vec<u32> {
    let prompts = rules::prompts(question);
    let most = |(compute, read): (usize, usize)| {
        let of = (&options.computes[compute], &options.reads[read]);
        prompts.iter().filter_map(move |prompt| pinned_most(question, options, of, prompt))
    };
    let mut pinned: Vec<u32> = pairs(question, options).into_iter().flat_map(most).collect();
    pinned.sort_unstable();
    pinned.dedup();
    pinned
}

/// Cores and reads of the rule at one level, by back end: indices.
pub(crate) fn pairs(question: &Question<'_>, options: &Options<'_>) -> Vec<(usize, usize)> {
    if options.policy != Policy::Lru {
        return Vec::new();
    }
    let all = |compute: &Compute| compute.shared && compute.cores.len() == question.limits.cores.len();
    let deepest = |backend: Backend| {
        let depths = options.reads.iter().map(|read| read.choice).filter(|read| read.backend == backend);
        depths.map(|read| read.depth).filter(|&depth| depth <= DEPTH_MAX).max()
    };
    let smallest = options.reads.iter().map(|read| read.choice.buffer_bytes).min().unwrap_or(0);
    let parts = question.model.parts.bundle.reads_of_slice() as u32;
    let buffers = |depth: u32| (BUFFERS_PER_READ * depth).div_ceil(parts);
    let simple = |read: &Read| {
        let c = &read.choice;
        let plain = c.gap_bytes == 0 && c.look_ahead == 0 && c.buffer_bytes == smallest;
        plain && Some(c.depth) == deepest(c.backend) && c.buffers == buffers(c.depth)
    };
    let reads: Vec<usize> = (0..options.reads.len()).filter(|&read| simple(&options.reads[read])).collect();
    let computes = (0..options.computes.len()).filter(|&compute| all(&options.computes[compute]));
    computes.flat_map(|compute| reads.iter().map(move |&read| (compute, read))).collect()
}

/// Bytes of so many pinned neurons in every layer.
pub(crate) fn need(options: &Options<'_>, pinned: u32) -> Need {
    let neuron: u64 = options.slot_bytes.iter().sum();
    Need { hot: (u64::from(pinned) * neuron) as i64, ..Need::default() }
}

/// What is left for them.
pub(crate) fn room(
    question: &Question<'_>,
    options: &Options<'_>,
    (compute, read): (&Compute, &Read),
    prompt: &Prompt,
) -> Room {
    let regions = regions_within(question.limits.memory_bytes);
    options.room(question.device, regions, compute, read, prompt)
}

/// The most neurons of every layer that can be pinned; `None` where not even none can.
pub(crate) fn pinned_most(
    question: &Question<'_>,
    options: &Options<'_>,
    of: (&Compute, &Read),
    prompt: &Prompt,
) -> Option<u32> {
    let Question { model, limits, .. } = question;
    let room = room(question, options, of, prompt);
    let pins = limits.with(Feature::Cache) && limits.with(Feature::HotRegion);
    let slice = model.parts.bundle.slice_neurons as u32;
    let most = if pins { model.architecture.neurons() as u32 / slice } else { 0 };
    let fits = |slices: u32| room.fits(need(options, slices * slice));
    if !fits(0) {
        return None;
    }
    let (mut low, mut over) = (0, most + 1);
    while low + 1 < over {
        let middle = low + (over - low) / 2;
        if fits(middle) { low = middle } else { over = middle }
    }
    Some(low * slice)
}
