//! Miss-rate surfaces: the measured share of missing neurons.

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
    let Some(surface) = level.layers[layer].misses(policy) else { return 1.0 };
    let (s0, s1, st) = place(&model.reuse.pinned_share_fraction, hot / total);
    let (c0, c1, ct) = place(&model.reuse.cached_fraction, total / neurons);
    let row = |s: usize| surface[s][c0] + ct * (surface[s][c1] - surface[s][c0]);
    (row(s0) + st * (row(s1) - row(s0))).clamp(0.0, 1.0)
}

/// The two neighbours of `x` on a rising axis from 0 to 1, and the weight of the second.
fn place(axis: &[f64], x: f64) -> (usize, usize, f64) {
    let i = axis.partition_point(|&a| a <= x).clamp(1, axis.len() - 1);
    (i - 1, i, ((x - axis[i - 1]) / (axis[i] - axis[i - 1])).clamp(0.0, 1.0))
}
