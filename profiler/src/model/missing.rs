//! Differences between tokens in their missing neurons.
//!
//! A token that is unlike the text before it misses more in every layer, so percentiles of layers are not percentiles of tokens. A token's
//! misses are summed over all layers, with equal caches, before tokens are compared. The results are ratios to the mean token, which the
//! surfaces of the layers have. They change little with the policy and with the split of memory among layers.
//!
//! Layers replayed in miniature count a sample of the misses. Over all layers the sample has hundreds of neurons a token, and adds a few
//! percent to the differences.

use plans::expectation::{QUANTILES, quantile};
use serde::{Deserialize, Serialize};

/// Approximate maximum of compared tokens: ten of 1000 are above the 99th percentile.
const COMPARED_TOKENS: usize = 1000;

/// The index of a token among the compared ones, if it is one.
pub fn compared(token: usize, tokens: usize) -> Option<u32> {
    token.is_multiple_of(tokens.div_ceil(COMPARED_TOKENS).max(1)).then_some(token as u32)
}

/// Missing neurons of tokens with several caches, in one layer or summed over layers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The tokens, ascending.
    tokens: Vec<u32>,
    /// `[cache][token]`: missing neurons.
    neurons: Vec<Vec<u32>>,
}

impl Missing {
    /// A record of these tokens, without caches yet.
    pub fn new(tokens: Vec<u32>) -> Self {
        Self { tokens, neurons: Vec::new() }
    }

    /// Adds a cache: the missing neurons of each token.
    pub fn push(&mut self, neurons: Vec<u32>) {
        self.neurons.push(neurons);
    }

    /// Adds another layer's misses with the same caches. Only common tokens stay, because layers are traced to different lengths.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        let pairs: Vec<(usize, usize)> = (self.tokens.iter().enumerate())
            .filter_map(|(i, token)| Some((i, other.tokens.binary_search(token).ok()?)))
            .collect();
        let sum =
            |(a, b): (&Vec<u32>, &Vec<u32>)| pairs.iter().map(|&(i, j)| a[i] + b[j]).collect::<Vec<_>>();
        Self {
            tokens: pairs.iter().map(|&(i, _)| self.tokens[i]).collect(),
            neurons: self.neurons.iter().zip(&other.neurons).map(sum).collect(),
        }
    }

    /// Misses at each of [`QUANTILES`] over the mean token's, cache by cache; 1 without misses. `None` without tokens.
    pub fn over_mean(&self) -> Option<[Vec<f64>; QUANTILES.len()]> {
        let of_cache = |neurons: &Vec<u32>| {
            let mut ascending = neurons.clone();
            ascending.sort_unstable();
            let sum = ascending.iter().map(|&neurons| f64::from(neurons)).sum::<f64>();
            let mean = sum / ascending.len() as f64;
            let over = |share| Some(f64::from(quantile(&ascending, share)?) / mean);
            QUANTILES.map(|share| if sum > 0.0 { over(share).unwrap_or(1.0) } else { 1.0 })
        };
        let caches: Vec<[f64; QUANTILES.len()]> = self.neurons.iter().map(of_cache).collect();
        let at = |quantile: usize| caches.iter().map(|cache| cache[quantile]).collect();
        (!self.tokens.is_empty()).then(|| std::array::from_fn(at))
    }
}

#[cfg(test)]
mod tests {
    use plans::Policy;
    use proptest::prelude::*;

    use super::super::reuse::{Trace, surfaces};
    use super::*;

    /// Two layers of `neurons`, and tokens that each request about a third of them.
    fn layers(neurons: usize) -> impl Strategy<Value = Vec<[Vec<bool>; 2]>> {
        let list = move || prop::collection::vec(prop::bool::weighted(0.3), neurons);
        prop::collection::vec([list(), list()], 1..120)
    }

    fn missing(tokens: &[[Vec<bool>; 2]], layer: usize, policy: Policy, cached: &[f64]) -> Missing {
        let mut trace = Trace::default();
        for (number, token) in tokens.iter().enumerate() {
            trace.ask((0..token[layer].len() as u32).filter(|&p| token[layer][p as usize]));
            trace.end_token(Some(number as u32));
        }
        surfaces(&trace, policy, tokens[0][layer].len(), &[0.0], cached).missing
    }

    /// The percentile by definition: the least value that `hundredths` of all do not exceed.
    fn percentile(values: &[u32], hundredths: usize) -> u32 {
        let enough = |most: &u32| {
            values.iter().filter(|value| *value <= most).count() * 100 >= hundredths * values.len()
        };
        values.iter().copied().filter(enough).min().expect("a token")
    }

    proptest! {
        /// Compares with a count by lists of recent use, one for each layer.
        #[test]
        fn percentiles_are_those_of_an_obvious_count(tokens in layers(16), slots in 0usize..=16) {
            let mut counts = Vec::new();
            let mut recent: [Vec<u32>; 2] = std::array::from_fn(|_| (0..slots as u32).collect());
            for token in &tokens {
                let mut missed_of_token = 0;
                for (requested, recent) in token.iter().zip(&mut recent) {
                    let requested: Vec<u32> = (0..16).filter(|&p| requested[p as usize]).collect();
                    let (found, missed): (Vec<u32>, Vec<u32>) = requested.iter().partition(|p| recent.contains(p));
                    missed_of_token += missed.len() as u32;
                    // a token's neurons stay; neurons without a slot are dropped
                    let room = slots - found.len();
                    for p in found.into_iter().chain(missed.into_iter().take(room)) {
                        recent.retain(|&q| q != p);
                        recent.insert(0, p);
                    }
                    recent.truncate(slots);
                }
                counts.push(missed_of_token);
            }
            let of = |layer| missing(&tokens, layer, Policy::Lru, &[slots as f64 / 16.0]);
            let both = of(0).and(&of(1));
            prop_assert_eq!(&both.neurons, &vec![counts.clone()]);
            let mean = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
            for (over_mean, hundredths) in both.over_mean().expect("tokens").iter().zip([50, 90, 99]) {
                let expected = if mean > 0.0 { f64::from(percentile(&counts, hundredths)) / mean } else { 1.0 };
                prop_assert!((over_mean[0] - expected).abs() < 1e-12, "P{}: {:?} {}", hundredths, over_mean, expected);
            }
        }

        #[test]
        fn percentiles_rise_and_more_slots_never_miss_more_at_one(tokens in layers(40)) {
            // of one token those that were found count as used before those that were not: a cache in order of use has all that a
            // smaller one has if it is larger by a token's neurons, which both hold
            let most = tokens.iter().flatten().map(|layer| layer.iter().filter(|&&requested| requested).count()).max();
            let most = most.unwrap_or(0).max(1);
            let cached: Vec<f64> = (most..=40).step_by(most).map(|slots| slots as f64 / 40.0).collect();
            let both = missing(&tokens, 0, Policy::Lru, &cached).and(&missing(&tokens, 1, Policy::Lru, &cached));
            let [p50, p90, p99] = both.over_mean().expect("tokens");
            for i in 0..cached.len() {
                prop_assert!(p50[i] <= p90[i] && p90[i] <= p99[i], "{} {} {}", p50[i], p90[i], p99[i]);
            }
            for hundredths in [50, 90, 99] {
                let counts: Vec<u32> = both.neurons.iter().map(|of| percentile(of, hundredths)).collect();
                prop_assert!(counts.is_sorted_by(|a, b| a >= b), "P{}: {:?}", hundredths, counts);
            }
        }
    }

    #[test]
    fn layers_that_are_traced_less_far_leave_the_tokens_that_all_know() {
        let of = |tokens: &[u32], neurons: &[u32]| Missing {
            tokens: tokens.to_vec(),
            neurons: vec![neurons.to_vec()],
        };
        let both = of(&[0, 2, 4, 6], &[1, 2, 3, 4]).and(&of(&[2, 3, 4], &[10, 20, 30]));
        assert_eq!(both, of(&[2, 4], &[12, 33]));
        assert_eq!(Missing::default().over_mean(), None);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|token| compared(token, 1001)),
            [Some(0), None, Some(2), None, Some(4)]
        );
        assert_eq!(compared(7, 1000), Some(7));
    }
}
