//! Measured surfaces: the share of missing neurons, and how many reads those take.

use plans::Policy;
use plans::model::{Level, LevelKind, Model};

/// Share of the neurons asked for that are missing in a layer with `hot` pinned and `cold` slots under a policy; all where
/// it was not measured.
///
/// Bilinear on the measured axes. *Dense* touches every neuron each token, so that nothing recent is
/// of use: what is not pinned is missing.
pub fn miss(model: &Model, level: &Level, layer: usize, policy: Policy, hot: f64, cold: f64) -> f64 {
    let neurons = model.architecture.neurons() as f64;
    let total = hot + cold;
    if level.kind == LevelKind::Dense {
        return (1.0 - hot / neurons).clamp(0.0, 1.0);
    }
    if total <= 0.0 {
        return 1.0;
    }
    if total >= neurons {
        return 0.0;
    }
    level.layers[layer].misses(policy).map_or(1.0, |surface| at(surface, model, hot, total))
}

/// How missing neurons stand: by the reads that each takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Runs {
    /// If neighbours share one.
    pub alone: f64,
    /// If those share one between which no more than [`plans::model::RUNS_GAP`] positions lie, where that was measured.
    pub over_gaps: Option<f64>,
}

/// How missing neurons stand; `None` where it was not measured.
pub fn runs(model: &Model, level: &Level, layer: usize, hot: f64, cold: f64) -> Option<Runs> {
    let layer = &level.layers[layer];
    let of = |surface: &[Vec<f64>]| (!surface.is_empty()).then(|| at(surface, model, hot, hot + cold));
    Some(Runs { alone: of(&layer.runs_fraction)?, over_gaps: of(&layer.runs_over_gaps_fraction) })
}

/// The value of a surface where `hot` of `total` neurons in memory are pinned.
fn at(surface: &[Vec<f64>], model: &Model, hot: f64, total: f64) -> f64 {
    let share = if total > 0.0 { hot / total } else { 0.0 };
    let (s0, s1, st) = place(&model.reuse.pinned_share_fraction, share);
    let (c0, c1, ct) = place(&model.reuse.cached_fraction, total / model.architecture.neurons() as f64);
    let row = |s: usize| surface[s][c0] + ct * (surface[s][c1] - surface[s][c0]);
    (row(s0) + st * (row(s1) - row(s0))).clamp(0.0, 1.0)
}

/// The two neighbours of `x` on a rising axis from 0 to 1, and the weight of the second.
fn place(axis: &[f64], x: f64) -> (usize, usize, f64) {
    let i = axis.partition_point(|&a| a <= x).clamp(1, axis.len() - 1);
    (i - 1, i, ((x - axis[i - 1]) / (axis[i] - axis[i - 1])).clamp(0.0, 1.0))
}
