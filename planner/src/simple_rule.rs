//! The best simple rule, priced with the same cost model: what a plan must beat to be worth its solver.
//!
//! Fill by frequency: the same number of neurons of every layer pinned, as many as fit; all cores; the deepest
//! reads, none of them prefetched; each bundle by itself. Best: of the allowed levels and back ends, those that are
//! fastest that way. It is one of the ways that the search looks at, so that no plan is slower.

use plans::plan::{Feature, SimpleRule};
use plans::{Backend, Device, Policy};

use crate::cost::{self, Decision};
use crate::request::{Inputs, Limits};
use crate::room::{Need, Room, regions_within, with_page_tables};
use crate::rules::{self, Prompt};
use crate::ways::{Compute, Read, Ways};

/// Reads in flight, unless somebody thinks about it.
const DEPTH_MAX: u32 = 32;
/// Buffers for each of them.
const BUFFERS_PER_READ: u32 = 4;

/// The best simple rule, or `None` where not even it fits.
pub fn simple_rule(inputs: &Inputs, limits: &Limits, all: &[Ways<'_>]) -> Option<SimpleRule> {
    let priced =
        |ways: &Ways<'_>| simply(inputs, limits, ways).into_iter().map(|(_, rule)| rule).collect::<Vec<_>>();
    all.iter()
        .flat_map(priced)
        .max_by(|a, b| a.decode_tokens_per_second.total_cmp(&b.decode_tokens_per_second))
}

/// How many neurons of every layer the rule would pin, by back end.
pub fn pinned(inputs: &Inputs, limits: &Limits, ways: &Ways<'_>) -> Vec<u32> {
    let mut pinned: Vec<u32> = simply(inputs, limits, ways).into_iter().map(|(pinned, _)| pinned).collect();
    pinned.dedup();
    pinned
}

/// The rule at one level, by back end, with the neurons pinned in each layer.
fn simply(inputs: &Inputs, limits: &Limits, ways: &Ways<'_>) -> Vec<(u32, SimpleRule)> {
    let allowed = ways.policy == Policy::Lru;
    let Some(prompt) = rules::prompts(inputs, limits).into_iter().next().filter(|_| allowed) else {
        return Vec::new();
    };
    let computes =
        ways.computes.iter().filter(|compute| compute.shared && compute.cores.len() == limits.cores.len());
    let deepest = |backend: Backend| {
        let depths = ways.reads.iter().map(|read| read.choice).filter(|read| read.backend == backend);
        depths.map(|read| read.depth).filter(|&depth| depth <= DEPTH_MAX).max()
    };
    let smallest = ways.reads.iter().map(|read| read.choice.buffer_bytes).min().unwrap_or(0);
    let simple = |read: &&Read<'_>| {
        let c = &read.choice;
        let plain = c.gap_bytes == 0 && c.look_ahead == 0 && c.buffer_bytes == smallest;
        plain && Some(c.depth) == deepest(c.backend) && c.buffers == BUFFERS_PER_READ * c.depth
    };
    let reads = || ways.reads.iter().filter(simple);
    computes
        .flat_map(|compute| reads().map(move |read| (compute, read)))
        .filter_map(|(compute, read)| filled(inputs, limits, ways, compute, read, &prompt))
        .collect()
}

fn filled(
    inputs: &Inputs,
    limits: &Limits,
    ways: &Ways<'_>,
    compute: &Compute,
    read: &Read<'_>,
    prompt: &Prompt,
) -> Option<(u32, SimpleRule)> {
    let device: &Device = &inputs.device;
    let layers = ways.level.layers.len() as u64;
    let regions = regions_within(limits.memory_bytes);
    let room: Room = ways.room(device, regions, compute, read, prompt);
    let pins = limits.with(Feature::Cache) && limits.with(Feature::HotRegion);
    let most = if pins { inputs.model.architecture.neurons() as u32 } else { 0 };
    let need =
        |pinned: u32| Need { hot: (layers * u64::from(pinned) * ways.slot_bytes) as i64, ..Need::default() };
    if !room.fits(need(0)) {
        return None;
    }
    let (mut fits, mut over) = (0, most + 1);
    while fits + 1 < over {
        let middle = fits + (over - fits) / 2;
        if room.fits(need(middle)) { fits = middle } else { over = middle }
    }
    let hot = vec![fits; layers as usize];
    let decision = Decision {
        level: ways.level,
        cores: &compute.cores,
        shared: compute.shared,
        cluster: rules::cluster(ways.level),
        read: read.choice,
        embedding_rows: compute.embedding_rows,
        hot: &hot,
        cold: &vec![0; hot.len()],
        policy: ways.policy,
    };
    let seconds = cost::decode(inputs, limits, &decision).mean_seconds(limits.context);
    let memory_peak_bytes = with_page_tables(regions - room.bytes + room.taken(need(fits))) as u64;
    let decode_tokens_per_second = plans::file::significant(1.0 / seconds);
    Some((fits, SimpleRule { decode_tokens_per_second, memory_peak_bytes }))
}
