//! The best simple rule, priced with the same cost model: what a plan must beat to be worth its solver.
//!
//! Fill by frequency: the same share of every layer pinned, as much as fits; all cores; the deepest
//! reads, none of them prefetched; each bundle by itself. Best: of the allowed levels and back ends, those that are fastest that way.

use plans::memory;
use plans::model::Level;
use plans::plan::{Feature, SimpleRule};
use plans::{Backend, Policy};

use crate::assemble::Decided;
use crate::cost;
use crate::hardware;
use crate::reads::ReadChoice;
use crate::request::{Inputs, Limits};
use crate::rules::{self, Rules};
use crate::ways::{buffer_bytes_min, phases};

/// Reads in flight, unless somebody thinks about it.
const DEPTH_MAX: u32 = 32;
/// Buffers for each of them.
const BUFFERS_PER_READ: u32 = 4;

/// The best simple rule, or `None` where not even it fits.
pub fn simple_rule(inputs: &Inputs, limits: &Limits, levels: &[&Level], rules: &Rules) -> Option<SimpleRule> {
    let usable = |backend: &Backend| inputs.device.storage.read_cost(*backend).is_some();
    let backends = || Backend::ALL.into_iter().filter(usable);
    levels
        .iter()
        .flat_map(|level| backends().filter_map(|backend| priced(inputs, limits, level, backend, rules)))
        .max_by(|a, b| a.decode_tokens_per_second.total_cmp(&b.decode_tokens_per_second))
}

fn priced(
    inputs: &Inputs,
    limits: &Limits,
    level: &Level,
    backend: Backend,
    rules: &Rules,
) -> Option<SimpleRule> {
    let layers = level.layers.len();
    let depths = hardware::depths(&inputs.device, backend, inputs.device.storage.direct);
    let depth = depths.iter().copied().filter(|&d| d <= DEPTH_MAX).max().unwrap_or(1);
    let mut decided = Decided {
        cores: limits.cores.clone(),
        io_cores: limits.cores.clone(),
        shared: true,
        cluster: rules::cluster(level),
        read: ReadChoice {
            backend,
            direct: inputs.device.storage.direct,
            depth,
            buffers: BUFFERS_PER_READ * depth,
            buffer_bytes: buffer_bytes_min(inputs),
            gap_bytes: 0,
            look_ahead: 0,
            phases: phases(inputs, limits, level)[0],
            blocking: !limits.with(Feature::Pipeline),
        },
        hot: vec![0; layers],
        cold: vec![0; layers],
        policy: Policy::Lru,
        rules: rules.clone(),
    };
    let pinned_most = if limits.with(Feature::Cache) && limits.with(Feature::HotRegion) {
        inputs.model.architecture.neurons() as u32
    } else {
        0
    };
    let mut peak = |pinned: u32| {
        decided.hot.fill(pinned);
        let choices = decided.choices(limits, level);
        memory::regions(&inputs.device, &inputs.model, &choices, limits.memory_bytes).prefill_total_bytes
    };
    let (mut fits, mut over) = (0, pinned_most + 1);
    if peak(0) > limits.memory_bytes {
        return None;
    }
    while fits + 1 < over {
        let middle = fits + (over - fits) / 2;
        if peak(middle) <= limits.memory_bytes { fits = middle } else { over = middle }
    }
    let memory_peak_bytes = peak(fits);
    let seconds = cost::decode(inputs, limits, &decided.decision(level)).mean_seconds(limits.context);
    Some(SimpleRule { decode_tokens_per_second: plans::file::significant(1.0 / seconds), memory_peak_bytes })
}
