//! Misses of a cache that knows experts: a neuron can be requested only where its expert is.

use plans::model::ReuseAxes;

/// Neurons of a layer and how they are requested.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requests {
    /// Neurons of an expert.
    pub(crate) expert: usize,
    /// Experts of a layer.
    pub(crate) experts: f64,
    /// Experts that a token visits.
    pub(crate) used: f64,
    /// Neurons of a visited expert that are requested.
    pub(crate) requested: f64,
    /// Share of what the last token requested that this one does, where it visits the expert again.
    pub(crate) persistence: f64,
    /// Chance that a visited expert was visited by the last token.
    pub(crate) same_expert: f64,
}

/// Where the exponent is sought.
const SKEW_MAX: f64 = 3.0;

impl Requests {
    /// The exponent of the power law with which half of the neurons in memory, pinned and in slots as is best, leave so many of
    /// the requested ones missing.
    pub(crate) fn skew_of(&self, missing_at_half: f64, shares: &[f64]) -> f64 {
        let missing = |skew: f64| {
            let chances = self.chances(skew);
            shares.iter().map(|&share| self.missing(&chances, share, 0.5)).fold(f64::INFINITY, f64::min)
        };
        bisect(0.0, SKEW_MAX, |skew| missing(skew) > missing_at_half)
    }

    /// `miss[share][cached]` by the power law of this exponent.
    pub(crate) fn surface(&self, skew: f64, axes: &ReuseAxes) -> Vec<Vec<f64>> {
        let chances = self.chances(skew);
        let cell = |share: f64, cached: f64| plans::file::significant(self.missing(&chances, share, cached));
        let row = |&share: &f64| axes.cached_fraction.iter().map(|&cached| cell(share, cached)).collect();
        axes.pinned_share_fraction.iter().map(row).collect()
    }

    /// Chances that neurons of a visited expert are requested, the likeliest first; they add up to `requested`, none is above 1.
    pub(crate) fn chances(&self, skew: f64) -> Vec<f64> {
        let shape: Vec<f64> = (1..=self.expert).map(|i| (i as f64).powf(-skew)).collect();
        let sum = |scale: f64| shape.iter().map(|s| (s * scale).min(1.0)).sum::<f64>();
        let scale = bisect(0.0, (self.expert as f64).powf(skew), |scale| sum(scale) < self.requested);
        shape.iter().map(|s| (s * scale).min(1.0)).collect()
    }

    /// The share of the requested neurons that is missing where a part `cached` of all is in memory, a share of it pinned: the
    /// likeliest of every expert alike. Slots behave as least-recently-used under independent draws (Che's approximation),
    /// but for what the last token requested, which is there.
    fn missing(&self, chances: &[f64], pinned_share: f64, cached: f64) -> f64 {
        let all = chances.len() as f64;
        let hot = (pinned_share * cached * all).round() as usize;
        let slots = cached * all - hot as f64;
        let cold = &chances[hot..];
        let missed = if slots < 1.0 / self.experts {
            cold.iter().sum()
        } else if hot as f64 + slots >= all {
            0.0
        } else {
            let visited = self.used / self.experts;
            // in tokens: the time after which as many different neurons as there are slots have been requested
            let seen = |time: f64| cold.iter().map(|p| 1.0 - (-visited * p * time).exp()).sum::<f64>();
            let time = bisect(0.0, 1e9, |time| seen(time) < slots);
            // a cache that holds less than a token requests has not even all of the last one's
            let again = self.persistence * self.same_expert * time.min(1.0);
            cold.iter().map(|p| p * (-visited * p * time).exp()).sum::<f64>() * (1.0 - again)
        };
        (missed / self.requested).clamp(0.0, 1.0)
    }
}

/// The end of the range in which `below` holds, which it does from `low` on.
fn bisect(mut low: f64, mut high: f64, below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if below(middle) { low = middle } else { high = middle }
    }
    high
}
