//! Measured surfaces: the share of missing neurons, and how they stand.

use plans::Policy;
use plans::expectation::QUANTILES;
use plans::model::{Level, Model};

/// Neurons that a token misses in a layer, and how they stand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Missing {
    /// Neurons.
    pub neurons: f64,
    /// Chances that the neighbours of a missing neuron miss, too.
    pub chances: Chances,
}

/// How missing neurons follow each other, position after position: friends stand side by side, and so do those that nobody
/// requested.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chances {
    /// That the position after a miss does not miss.
    pub alone: f64,
    /// That one misses which comes after one that does not: after no more than [`plans::model::GAP_RANKS`] that do not, and after more.
    pub begins: [f64; 2],
}

impl Chances {
    /// Every position misses.
    pub const ALL: Self = Self { alone: 0.0, begins: [1.0; 2] };

    /// Where a share `density` of all positions misses. `alone`: reads that a missing neuron takes if neighbours share one;
    /// `over_gaps`: the same if those do between which no more than so many positions lie; `None` where that was not measured.
    pub fn new(density: f64, alone: Option<f64>, over_gaps: [(u32, Option<f64>); 2]) -> Self {
        if density >= 1.0 {
            return Self::ALL;
        }
        let alone = alone.unwrap_or(1.0 - density);
        // as often as misses end others begin; but they crowd where neurons are used more
        let even = alone * density / (1.0 - density);
        let [(near, over_near), (wide, over_wide)] = over_gaps.map(|(gap, over)| (f64::from(gap), over));
        let each = |(some, of): (f64, f64), over: Option<f64>, ranks: f64| match over {
            Some(over) if some > 0.0 => (1.0 - (over / some).powf(1.0 / ranks)).clamp(0.0, 1.0),
            _ => of,
        };
        let begins = each((alone, even.clamp(0.0, 1.0)), over_near, near);
        // where nobody is that far from the next, it does not matter
        let further = each((over_near.unwrap_or(0.0), begins), over_wide, wide - near);
        Self { alone, begins: [begins, further] }
    }
}

/// Neurons missing of the `requested` ones in a layer with `hot` pinned and `cold` slots under a policy.
pub fn missing(
    model: &Model,
    level: &Level,
    layer: usize,
    policy: Policy,
    requested: f64,
    (hot, cold): (u32, u32),
) -> Missing {
    let (hot, cold) = (f64::from(hot), f64::from(cold));
    let neurons = requested * miss(model, level, layer, policy, hot, cold);
    let density = neurons / (model.architecture.neurons() as f64 - hot).max(1.0);
    let layer = &level.layers[layer];
    let of =
        |surface: &[Vec<f64>]| (!surface.is_empty()).then(|| fraction_at(surface, model, hot, hot + cold));
    let chances = if !model.architecture.down_transposed && model.architecture.experts == 1 {
        // all that is not pinned
        Chances::ALL
    } else {
        let [near, wide] = model.reuse.gaps();
        let over_gaps =
            [(near, of(&layer.runs_over_gaps_fraction)), (wide, of(&layer.runs_over_wide_gaps_fraction))];
        Chances::new(density, of(&layer.runs_fraction), over_gaps)
    };
    Missing { neurons, chances }
}

/// [`missing`] with full slots, and how these fill from empty.
pub fn missing_and_filling(
    model: &Model,
    level: &Level,
    layer: usize,
    policy: Policy,
    requested: f64,
    cached: (u32, u32),
) -> (Missing, Filling) {
    let missing = missing(model, level, layer, policy, requested, cached);
    (missing, Filling::new(model, level, layer, requested, cached, missing.neurons))
}

/// Share of the neurons requested that are missing in a layer with `hot` pinned and `cold` slots under a policy; all where
/// it was not measured.
///
/// Bilinear on the measured axes. Where nothing comes and goes, what is not pinned is missing.
fn miss(model: &Model, level: &Level, layer: usize, policy: Policy, hot: f64, cold: f64) -> f64 {
    let neurons = model.architecture.neurons() as f64;
    let total = hot + cold;
    if !model.has_slots(level.kind) {
        return (1.0 - hot / neurons).clamp(0.0, 1.0);
    }
    if total <= 0.0 {
        return 1.0;
    }
    if total >= neurons {
        return 0.0;
    }
    level.layers[layer].misses(policy).map_or(1.0, |surface| fraction_at(surface, model, hot, total))
}

/// Steps in which slots fill up; in each, what a token misses falls on a line.
const FILLING_STEPS: u32 = 8;

/// A layer's slots from empty to full.
///
/// *Reconstructed*, `df/dt = m(f)`: while slots are free nothing leaves them, so that with `f` filled a token misses what a warm
/// cache of `f` slots by order of use misses, whatever the policy, and `f` grows by that.
#[derive(Debug, Clone, Copy)]
pub struct Filling {
    /// Slots, and what a token misses with them full.
    slots: f64,
    warm: f64,
    /// What a token misses after each step.
    misses: [f64; FILLING_STEPS as usize + 1],
}

impl Filling {
    /// Of a layer with `hot` pinned and `cold` slots, of whose neurons a token misses `warm` with full slots.
    pub fn new(
        model: &Model,
        level: &Level,
        layer: usize,
        requested: f64,
        (hot, cold): (u32, u32),
        warm: f64,
    ) -> Self {
        let (hot, slots) = (f64::from(hot), f64::from(cold));
        let mut misses = [0.0; FILLING_STEPS as usize + 1];
        if cold > 0 {
            for (step, misses) in (0..).zip(&mut misses) {
                let filled = slots * f64::from(step) / f64::from(FILLING_STEPS);
                // never less than with all slots full
                *misses = (requested * miss(model, level, layer, Policy::Lru, hot, filled)).max(warm);
            }
        }
        Self { slots, warm, misses }
    }

    /// Neurons that a run of so many tokens misses beyond those of a warm cache.
    pub fn at(&self, tokens: f64) -> f64 {
        let step = self.slots / f64::from(FILLING_STEPS);
        let (mut filled, mut left) = (0.0, tokens);
        for from_to in self.misses.windows(2) {
            let [from, to] = [from_to[0], from_to[1].min(from_to[0])];
            if from <= 0.0 {
                break;
            }
            // of `df/dt = from - fall f`
            let fall = (from - to) / step;
            let takes = match (fall > 0.0, to > 0.0) {
                (false, _) => step / from,
                (true, true) => (from / to).ln() / fall,
                (true, false) => f64::INFINITY,
            };
            if takes >= left {
                let share = if fall > 0.0 { -(-fall * left).exp_m1() / fall } else { left };
                return (filled + from * share - self.warm * tokens).max(0.0);
            }
            (filled, left) = (filled + step, left - takes);
        }
        (filled - self.warm * (tokens - left)).max(0.0)
    }
}

/// At each of [`QUANTILES`], what is missing for a token over what is for the mean one, all layers together with so many pinned and
/// slots; `None` where that was not measured.
pub fn missing_over_mean(
    model: &Model,
    level: &Level,
    hot: &[u32],
    cold: &[u32],
) -> Option<[f64; QUANTILES.len()]> {
    let of_mean_layer = |counts: &[u32]| {
        counts.iter().map(|&count| f64::from(count)).sum::<f64>() / counts.len().max(1) as f64
    };
    let (hot, cold) = (of_mean_layer(hot), of_mean_layer(cold));
    Some(level.missing_over_mean()?.map(|surface| at(surface, model, hot, hot + cold)))
}

/// [`at`] of fractions, which rounding may leave.
fn fraction_at(surface: &[Vec<f64>], model: &Model, hot: f64, total: f64) -> f64 {
    at(surface, model, hot, total).clamp(0.0, 1.0)
}

/// The value of a surface where `hot` of `total` neurons in memory are pinned.
fn at(surface: &[Vec<f64>], model: &Model, hot: f64, total: f64) -> f64 {
    let share = if total > 0.0 { hot / total } else { 0.0 };
    let (s0, s1, st) = place(&model.reuse.pinned_share_fraction, share);
    let (c0, c1, ct) = place(&model.reuse.cached_fraction, total / model.architecture.neurons() as f64);
    let row = |s: usize| surface[s][c0] + ct * (surface[s][c1] - surface[s][c0]);
    row(s0) + st * (row(s1) - row(s0))
}

/// The two neighbours of `x` on a rising axis from 0 to 1, and the weight of the second.
fn place(axis: &[f64], x: f64) -> (usize, usize, f64) {
    let i = axis.partition_point(|&a| a <= x).clamp(1, axis.len() - 1);
    (i - 1, i, ((x - axis[i - 1]) / (axis[i] - axis[i - 1])).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
