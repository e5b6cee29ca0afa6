//! What a layer may keep in memory: every allowed pair of pinned neurons and slots, and what is missing then.

use plans::Policy;
use plans::memory::{slot_part, slots_tables_bytes};
use plans::model::{Level, Model};
use plans::plan::Feature;

use crate::cost;
use crate::cost::misses::{self, Missing};
use crate::question::Limits;
use crate::room::Need;
use plans::plan::measured_run;

/// Steps in which all layers' neurons are handed out, and the fewest and most of one layer.
const STEPS: u64 = 2048;
const LAYER_STEPS: [u64; 2] = [64, 256];

/// One caching for a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cached {
    /// Pinned neurons.
    pub hot: u32,
    /// Slots.
    pub cold: u32,
    /// Neurons missing for a token, and how they stand.
    pub missing: Missing,
    /// Neurons that the measured run misses beyond those, since it begins with empty slots.
    pub filled: f64,
    /// Bytes of pinned neurons, slots and the slots' tables.
    pub need: Need,
    /// Index of the measured share of pinned neurons.
    pub share: usize,
}

/// Every configuration for one layer, share by share and in each with bytes rising: each measured share of pinned neurons, in steps of the layer that are the finer
/// the fewer layers there are.
///
/// All in whole slices. Where everybody is inserted, slots begin where they hold the 99th percentile of what a token requests:
/// below that no use is assumed of them. *Dense* has none unless in slices, since it requests everything every time. Without the cache or the hot region there are
/// neither or no pinned neurons. So many neurons as `pinned` says may be pinned besides, with no slots. A configuration is left out where another
/// one with as many neurons dominates it: in misses, in slots to fill, and in bytes beside the slots. The last matters since a prompt's
/// rows lie over the slots: where these are few, more slots cost nothing.
pub fn cachings(
    model: &Model,
    limits: &Limits,
    level: &Level,
    policy: Policy,
    layer: usize,
    pinned: &[u32],
) -> Vec<Cached> {
    let neurons = model.architecture.neurons();
    let slot_bytes = model.bundle(layer).part_bytes(slot_part(level.kind));
    let requested = cost::requested_neurons(model, level, layer);
    let generated = f64::from(measured_run(limits.context).1);
    let working_set = level.layers[layer].predicted_neurons_p99;
    let steps = (STEPS / u64::from(model.architecture.layers)).clamp(LAYER_STEPS[0], LAYER_STEPS[1]);
    let slice = model.parts.bundle.slice_neurons;
    let step = neurons.div_ceil(steps).next_multiple_of(slice);
    let mut offered = Vec::new();
    let most = if limits.with(Feature::Cache) { neurons } else { 0 };
    let shares = model.reuse.pinned_share_fraction.iter().enumerate().rev();
    let shares = || shares.clone().filter(|(_, share)| limits.with(Feature::HotRegion) || **share == 0.0);
    for cached in (0..most).step_by(step as usize).chain([most]) {
        let mut here: Vec<Cached> = Vec::new();
        for (index, &share) in shares() {
            let hot = ((cached as f64 * share) as u64).min(cached) / slice * slice;
            let cold = cached - hot;
            if cold > 0
                && (!model.has_slots(level.kind) || policy.inserts_all() && (cold as f64) < working_set)
            {
                continue;
            }
            let need = Need {
                hot: (hot * slot_bytes) as i64,
                cold: (cold * slot_bytes) as i64,
                tables: slots_tables_bytes(&model.architecture, policy, slice, hot, cold) as i64,
            };
            let (hot, cold) = (hot as u32, cold as u32);
            let (missing, filling) =
                misses::missing_and_filling(model, level, layer, policy, requested, (hot, cold));
            let filled = filling.at(generated);
            let better = |before: &Cached| {
                missing.neurons < before.missing.neurons
                    || filled < before.filled
                    || need.beside() < before.need.beside()
            };
            if here.iter().all(better) {
                here.push(Cached { hot, cold, missing, filled, need, share: index });
            }
        }
        offered.append(&mut here);
    }
    for &hot in pinned {
        let missing = misses::missing(model, level, layer, policy, requested, (hot, 0));
        let tables = slots_tables_bytes(&model.architecture, policy, slice, u64::from(hot), 0) as i64;
        let need = Need { hot: i64::from(hot) * slot_bytes as i64, cold: 0, tables };
        let share = model.reuse.pinned_share_fraction.len() - 1;
        offered.push(Cached { hot, cold: 0, missing, filled: 0.0, need, share });
    }
    offered.sort_by_key(|choice| (choice.share, choice.need.bytes()));
    offered
}
