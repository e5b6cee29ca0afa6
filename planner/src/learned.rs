//! `learned.toml` in place of a profile's miss rates: a mixture's visits of experts, as `run` counted them.
//!
//! An LRU cache misses the visits whose stack distance is at least the number of slots. The file has distances for four pinned
//! prefixes; other prefixes are interpolated. The misses of the policy `frequency` are counted with nothing pinned; beside pinned experts
//! they keep that ratio to LRU. The policy `clock` is not counted, and not planned. *Assumed*: percentiles over the mean, and the
//! look-ahead, stay the profile's.

use std::path::Path;

use plans::file::{Loaded, read, significant};
use plans::learned::{FILE, LayerVisits, Learned, PREFIXES, SIZES, TOKENS_MIN, after_prefix, slots_of};
use plans::model::{LevelKind, LevelLayer, ReuseAxes};
use plans::plan::{Plan, Request};
use plans::{ContractError, Model};

use crate::error::PlanError;
use crate::question::Inputs;
use crate::request::{as_requested, resolve};
use crate::{Answer, cost, plan};

/// Profiles with the counts of a `learned.toml`.
#[derive(Debug, Clone)]
pub struct Learning {
    /// The profiles, with learned miss rates.
    pub inputs: Inputs,
    /// Counted tokens.
    pub tokens: u64,
    /// BLAKE3 of the file.
    pub hash: String,
}

impl Learning {
    /// Applies the file beside `model`; `None` where there is none.
    ///
    /// # Errors
    /// A sentence on why the file is not used.
    pub fn beside(model: &Path, inputs: &Inputs) -> Result<Option<Self>, String> {
        let path = model.parent().unwrap_or(Path::new("")).join(FILE);
        let Loaded { value, hash, .. } = match read::<Learned>(&path) {
            Ok(loaded) => loaded,
            Err(ContractError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        Self::of(&value, hash, inputs).map(Some).map_err(|why| format!("{}: {why}", path.display()))
    }

    /// Profiles with these counts.
    ///
    /// # Errors
    /// As [`Learning::beside`].
    pub fn of(learned: &Learned, hash: String, inputs: &Inputs) -> Result<Self, String> {
        let (counted, model) = (&learned.learned, &inputs.model);
        let tokens = counted.tokens;
        if counted.model_fingerprint != model.fingerprint
            || counted.container_fingerprint != model.container.fingerprint
        {
            return Err("it counts another model or container".to_owned());
        }
        let experts = model.architecture.experts as usize;
        let fits = learned.layers.iter().all(|layer| layer.visits.len() == experts);
        if !fits || learned.layers.len() != model.layers.len() || !model.has_slots(LevelKind::Dense) {
            return Err("it counts experts that model.toml does not have".to_owned());
        }
        if tokens < TOKENS_MIN {
            return Err(format!("it counts {tokens} tokens, and plans learn from {TOKENS_MIN} on"));
        }
        let mut inputs = inputs.clone();
        apply(&mut inputs.model, learned);
        Ok(Self { inputs, tokens, hash })
    }

    /// Decoding speed in tokens per second, by the counts, of the plan that is best without them; `None` where there is no such plan.
    ///
    /// # Errors
    /// As [`plan`].
    pub fn unlearned_speed(&self, profiled: &Inputs, request: &Request) -> Result<Option<f64>, PlanError> {
        let Answer::Plan(other) = plan(profiled, request)? else { return Ok(None) };
        let inputs = &*as_requested(&self.inputs, request);
        let question = resolve(inputs, request)?;
        let Some(level) = inputs.model.level(&other.plan.quality.level) else { return Ok(None) };
        let price = cost::decode(&question, &other.decided.decision(level));
        Ok(Some(significant(1.0 / price.mean_seconds(question.limits.context))))
    }

    /// Notes in a plan of [`Learning::inputs`] what it learned from. Its misses are no priors.
    pub fn note_in(&self, plan: &mut Plan, unlearned_speed: Option<f64>) {
        let provenance = &mut plan.provenance;
        provenance.priors = false;
        provenance.learned_toml = Some(self.hash.clone());
        provenance.learned_tokens = Some(self.tokens);
        provenance.unlearned_tokens_per_second = unlearned_speed;
    }
}

/// The gain of a plan by what it learned, as a line for people; `None` for a plan that did not learn.
pub fn gain(plan: &Plan) -> Option<String> {
    let (tokens, speed) = (plan.provenance.learned_tokens?, plan.expected.decode_tokens_per_second);
    let without = match plan.provenance.unlearned_tokens_per_second {
        Some(without) => format!("{without:.1} without it"),
        None => "no plan without it".to_owned(),
    };
    Some(format!("learned from {tokens} tokens: planned {speed:.1} tok/s, {without}"))
}

/// Replaces the miss rates of every level that requests whole experts.
fn apply(model: &mut Model, learned: &Learned) {
    let Model { levels, reuse, .. } = model;
    for level in levels.iter_mut().filter(|level| level.kind == LevelKind::Dense) {
        level
            .layers
            .iter_mut()
            .zip(&learned.layers)
            .for_each(|(layer, visits)| replace(layer, visits, reuse));
    }
}

/// Replaces a layer's surfaces `[share][cached]`.
fn replace(layer: &mut LevelLayer, visits: &LayerVisits, axes: &ReuseAxes) {
    let experts = visits.visits.len() as f64;
    let surface = |of: &dyn Fn(f64, f64) -> f64| -> Vec<Vec<f64>> {
        let row = |&share: &f64| {
            // a larger cache misses no more, whatever noise says
            let mut least = 1.0_f64;
            let cells = axes.cached_fraction.iter().map(|cached| {
                least = least.min(of(share * cached * experts, (1.0 - share) * cached * experts));
                significant(least)
            });
            cells.collect()
        };
        axes.pinned_share_fraction.iter().map(row).collect()
    };
    layer.miss_fraction = surface(&|pinned, slots| miss_fraction(visits, pinned, slots));
    layer.frequency_miss_fraction = surface(&|pinned, slots| {
        let over_lru = if slots > 0.0 { frequency_over_lru(visits, slots / (experts - pinned)) } else { 1.0 };
        miss_fraction(visits, pinned, slots) * over_lru
    });
    layer.clock_miss_fraction.clear();
}

/// Misses of the policy `frequency` over LRU's, in a cache of a share of the experts, none pinned. 1 where LRU misses nothing.
fn frequency_over_lru(layer: &LayerVisits, share: f64) -> f64 {
    let (experts, all) = (layer.visits.len(), layer.visits.iter().sum::<u64>() as f64);
    let slots = share * experts as f64;
    let counted = SIZES.iter().zip(&layer.frequency_misses);
    let counted = counted.map(|(&size, &misses)| (slots_of(experts, size) as f64, misses as f64 / all));
    let points: Vec<(f64, f64)> =
        [(0.0, 1.0)].into_iter().chain(counted).chain([(experts as f64, 0.0)]).collect();
    let at = points.partition_point(|&(of, _)| of <= slots).clamp(1, points.len() - 1);
    let [(low, before), (high, after)] = [points[at - 1], points[at]];
    let misses = before + (after - before) * ((slots - low) / (high - low)).clamp(0.0, 1.0);
    let lru = miss_fraction(layer, 0.0, slots);
    if lru > 0.0 { misses / lru } else { 1.0 }
}

/// Share of visits that miss in an LRU cache of `slots` experts beside the first `pinned` ones; either may be a fraction.
fn miss_fraction(layer: &LayerVisits, pinned: f64, slots: f64) -> f64 {
    let experts = layer.visits.len();
    if pinned + slots >= experts as f64 {
        return 0.0;
    }
    let prefix =
        (0..PREFIXES).rev().find(|&prefix| after_prefix(experts, prefix) as f64 <= pinned).unwrap_or(0);
    let [here, next] = [prefix, prefix + 1].map(|prefix| after_prefix(experts, prefix) as f64);
    let weight = (pinned - here) / (next - here);
    // of the visits beyond a prefix
    let of_prefix = |prefix: usize| match layer.distances.get(prefix) {
        Some(distances) => share_from(distances, slots),
        None => share_from(&[1], slots),
    };
    let missed = of_prefix(prefix) + weight * (of_prefix(prefix + 1) - of_prefix(prefix));
    share_from(&layer.visits, pinned) * missed
}

/// Share of the counts from a place on; the count at a fraction of a place is counted in part.
fn share_from(counts: &[u64], place: f64) -> f64 {
    let all: u64 = counts.iter().sum();
    let first = (place as usize).min(counts.len());
    let after: u64 = counts[first..].iter().sum();
    let part = counts.get(first).map_or(0.0, |&count| count as f64 * place.fract());
    if all == 0 { 0.0 } else { ((after as f64 - part) / all as f64).clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests;
