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
mod tests {
    use super::*;

    #[test]
    fn slots_fill_as_fast_as_a_cache_of_those_that_are_full_misses() {
        // from 40 a token to 5, and 2 with another policy
        let misses = [40.0, 30.0, 22.0, 16.0, 12.0, 9.0, 7.0, 6.0, 5.0];
        let filling = Filling { slots: 400.0, warm: 2.0, misses };
        assert_eq!(filling.at(0.0), 0.0);
        for tokens in [0.5, 1.0, 7.0, 12.3, 40.0, 1000.0] {
            // in small steps
            let (mut filled, mut full_at, dt) = (0.0, tokens, 1e-4);
            for i in 0..(tokens / dt) as usize {
                if filled >= 400.0 {
                    full_at = i as f64 * dt;
                    break;
                }
                let step = ((filled / 50.0) as usize).min(7);
                filled +=
                    dt * (misses[step] + (misses[step + 1] - misses[step]) * (filled / 50.0 - step as f64));
            }
            let (exact, stepped) = (filling.at(tokens), filled - 2.0 * full_at);
            assert!((exact - stepped).abs() < 0.01 * stepped.max(1.0), "{tokens}: {exact} {stepped}");
        }
        // one after which nothing is missing never fills
        let never = Filling { slots: 8.0, warm: 0.0, misses: [4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0] };
        assert!((never.at(1e9) - 4.0).abs() < 1e-6, "{}", never.at(1e9));
        assert_eq!(Filling { slots: 0.0, warm: 3.0, misses: [0.0; 9] }.at(7.0), 0.0);
    }

    /// Draws of neurons that are the rarer the higher their rank, counted: the order of use of all of them, most recent first, says at
    /// which place each draw stood, and so which caches missed it.
    #[test]
    fn a_run_misses_as_many_neurons_as_differ_in_it() {
        const NEURONS: usize = 400;
        const OF_TOKEN: usize = 16;
        let mut state = 1u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = (state >> 33) as f64 / (1u64 << 31) as f64;
            ((NEURONS as f64 + 1.0).powf(uniform) - 1.0) as usize
        };
        let (mut recent, mut at_place, mut tokens) =
            ((0..NEURONS).collect::<Vec<_>>(), vec![0.0; NEURONS], 0.0);
        for token in 0..2000 {
            for _ in 0..OF_TOKEN {
                let drawn = draw();
                let place = recent.iter().position(|&neuron| neuron == drawn).expect("one of them");
                recent[..=place].rotate_right(1);
                at_place[place] += f64::from(u8::from(token >= 200));
            }
            tokens += f64::from(u8::from(token >= 200));
        }
        let missed = |slots: usize| at_place[slots.min(NEURONS)..].iter().sum::<f64>() / tokens;
        let misses = std::array::from_fn(|step| missed(step * NEURONS / FILLING_STEPS as usize));
        let filling = Filling { slots: NEURONS as f64, warm: 0.0, misses };
        for tokens in [1, 2, 5, 12, 30, 100] {
            let runs = 200;
            let differ: usize = (0..runs)
                .map(|_| {
                    let mut seen = [false; NEURONS];
                    (0..tokens * OF_TOKEN).for_each(|_| seen[draw()] = true);
                    seen.iter().filter(|seen| **seen).count()
                })
                .sum();
            let (counted, told) = (differ as f64 / f64::from(runs), filling.at(tokens as f64));
            assert!((told / counted - 1.0).abs() < 0.12, "{tokens} tokens: {told} told, {counted} counted");
        }
    }

    #[test]
    fn gaps_are_those_that_were_measured_or_as_misses_end() {
        let of = |alone: f64, [near, wide]: [Option<f64>; 2]| {
            Chances::new(0.2, Some(alone), [(3, near), (8, wide)]).begins
        };
        let begins = |alone, over_gaps| of(alone, [over_gaps, None])[0];
        assert!((begins(0.8, None) - 0.2).abs() < 1e-12 && (begins(0.4, None) - 0.1).abs() < 1e-12);
        let over = 0.4 * 0.7f64.powi(3);
        assert!((begins(0.4, Some(over)) - 0.3).abs() < 1e-12);
        assert_eq!((begins(0.4, Some(0.5)), begins(0.0, Some(0.0))), (0.0, 0.0));
        let [near, further] = of(0.4, [Some(over), Some(over * 0.9f64.powi(5))]);
        assert!((near - 0.3).abs() < 1e-12 && (further - 0.1).abs() < 1e-12, "{near} {further}");
        let [near, further] = of(0.4, [Some(over), None]);
        assert_eq!(near, further, "as among near ones where nothing else is known");
        assert_eq!(Chances::new(1.0, Some(0.3), [(3, None), (8, None)]), Chances::ALL);
    }
}
