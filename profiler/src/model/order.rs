//! The order of a layer's neurons in the container: hot ones first, co-active ones next to each other.
//!
//! Neurons are sorted by activation frequency, so a prefix of any length is the hot set. Below the hot ones, narrow bands of similar frequency
//! are reordered. Each neuron is followed by the neuron of its band that fires with it most often. Two requested neurons then share a
//! page or a read more often.
//!
//! Experts that are requested whole keep the source's order, the most visited expert first.

use serde::{Deserialize, Serialize};

use super::observe::Samples;

/// Frequency above which neurons keep the plain order, and are always computed.
///
/// With one half, a 7B model requested an eighth more neurons, and found no more of the output than with a lower threshold.
pub const HOT_FREQUENCY: f64 = 0.9;
/// Neurons of a band: frequencies inside it differ little, and an exhaustive search for co-active neurons is cheap.
const BAND_NEURONS: usize = 64;
/// Tokens of the co-activation count.
const CO_ACTIVE_TOKENS: usize = 4096;

/// A layer's neurons in order of rank, and their activation counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeuronOrder {
    /// The source index of each rank, `expert * ffn_width + neuron`.
    pub sources: Vec<u32>,
    /// Number of tokens that made each rank truly active.
    counts_true: Vec<u32>,
    /// Number of tokens that gave each rank a gate above zero.
    counts_gate: Vec<u32>,
    /// Tokens in all, routed here or not.
    tokens: u32,
    /// Neurons of an expert.
    neurons: u32,
}

impl NeuronOrder {
    /// The order for a layer whose experts saw these samples, of `tokens` tokens in all.
    pub fn new(experts: &[Samples], tokens: usize) -> Self {
        let (counts, gates) = counts(experts);
        let neurons = neurons_of(experts);
        let mut sources: Vec<u32> = (0..counts.len() as u32).collect();
        sources.sort_by_key(|&i| {
            let i = i as usize;
            (std::cmp::Reverse((counts[i], gates[i])), i)
        });
        let tokens = tokens.max(1);
        let hot = sources.partition_point(|&i| f64::from(counts[i as usize]) > HOT_FREQUENCY * tokens as f64);
        // a neuron's firing as bits over tokens; co-active neurons belong to one expert
        let firing: Vec<Vec<u64>> = experts.iter().flat_map(firing).collect();
        for band in sources[hot..].chunks_mut(BAND_NEURONS) {
            chain(band, &firing, neurons);
        }
        Self::of(sources, &counts, &gates, tokens, neurons)
    }

    /// The order by expert: the most visited expert first, each in the source's order.
    pub fn by_expert(experts: &[Samples], tokens: usize) -> Self {
        let (counts, gates) = counts(experts);
        let neurons = neurons_of(experts);
        let mut by_visits: Vec<usize> = (0..experts.len()).collect();
        by_visits.sort_by_key(|&expert| (std::cmp::Reverse(experts[expert].real), expert));
        let of_expert = |expert: usize| (expert * neurons) as u32..((expert + 1) * neurons) as u32;
        let sources = by_visits.into_iter().flat_map(of_expert).collect();
        Self::of(sources, &counts, &gates, tokens.max(1), neurons)
    }

    /// The source's own order, with nothing known of any neuron.
    pub fn as_stored(experts: usize, neurons: usize) -> Self {
        let all = experts * neurons;
        Self::of((0..all as u32).collect(), &vec![0; all], &vec![0; all], 1, neurons)
    }

    fn of(sources: Vec<u32>, counts: &[u32], gates: &[u32], tokens: usize, neurons: usize) -> Self {
        let of = |counts: &[u32]| sources.iter().map(|&i| counts[i as usize]).collect();
        let (counts_true, counts_gate) = (of(counts), of(gates));
        Self { sources, counts_true, counts_gate, tokens: tokens as u32, neurons: neurons as u32 }
    }

    /// P(truly active) of each rank over all tokens, routed here or not.
    pub fn frequency_true(&self) -> impl Iterator<Item = f64> {
        self.counts_true.iter().map(|&count| f64::from(count) / f64::from(self.tokens))
    }

    /// P(gate > 0) of each rank over all tokens.
    pub fn frequency_gate(&self) -> impl Iterator<Item = f64> {
        self.counts_gate.iter().map(|&count| f64::from(count) / f64::from(self.tokens))
    }

    /// The neurons of each expert in ascending rank: (rank, neuron).
    pub fn experts(&self) -> Vec<Vec<(u32, u32)>> {
        let mut experts =
            vec![Vec::with_capacity(self.neurons as usize); self.sources.len() / self.neurons as usize];
        for (position, &source) in self.sources.iter().enumerate() {
            experts[(source / self.neurons) as usize].push((position as u32, source % self.neurons));
        }
        experts
    }

    /// The prefix of neurons that fire on most tokens.
    pub fn hot(&self) -> u32 {
        self.frequency_true().take_while(|&f| f > HOT_FREQUENCY).count() as u32
    }
}

/// Tokens that made each neuron truly active, and that gave it a gate above zero, by source index.
fn counts(experts: &[Samples]) -> (Vec<u32>, Vec<u32>) {
    let active = experts.iter().flat_map(|samples| samples.active.counts(samples.real)).collect();
    let gates = experts.iter().flat_map(|samples| samples.gate_counts.iter().copied()).collect();
    (active, gates)
}

/// Neurons of an expert.
fn neurons_of(experts: &[Samples]) -> usize {
    experts.first().map_or(0, |samples| samples.gate_counts.len())
}

/// The firing of each neuron of an expert: one bit for each of its first tokens.
fn firing(samples: &Samples) -> Vec<Vec<u64>> {
    let rows = samples.real.min(CO_ACTIVE_TOKENS);
    let mut firing = vec![vec![0u64; rows.div_ceil(64)]; samples.active.columns()];
    for row in 0..rows {
        for neuron in samples.active.ones(row) {
            firing[neuron][row / 64] |= 1 << (row % 64);
        }
    }
    firing
}

/// Reorders a band greedily: each neuron is followed by the remaining neuron that fires with it most often.
fn chain(band: &mut [u32], firing: &[Vec<u64>], neurons: usize) {
    for at in 1..band.len().saturating_sub(1) {
        let last = band[at - 1] as usize;
        let together = |&other: &u32| -> u32 {
            let other = other as usize;
            if other / neurons != last / neurons {
                return 0;
            }
            firing[last].iter().zip(&firing[other]).map(|(a, b)| (a & b).count_ones()).sum()
        };
        let mut best = (0, 0);
        for (i, other) in band[at..].iter().enumerate() {
            let count = together(other);
            if count > best.0 {
                best = (count, i);
            }
        }
        band[at..=at + best.1].rotate_right(1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::observe::Bits;
    use super::*;

    fn samples(rows: &[Vec<bool>], neurons: usize) -> Samples {
        let mut active = Bits::new(neurons);
        active.push(rows.len(), |_| true, |neuron, row| rows[row][neuron]);
        let gate_counts = active.counts(rows.len());
        Samples { real: rows.len(), active, gate_counts, ..Samples::default() }
    }

    proptest! {
        #[test]
        fn an_order_is_a_permutation_with_bands_of_falling_frequency(
            rows in prop::collection::vec(prop::collection::vec(any::<bool>(), 100), 1..40),
        ) {
            let experts = [samples(&rows, 100), samples(&rows[..rows.len() / 2], 100)];
            let order = NeuronOrder::new(&experts, rows.len());
            let mut sorted = order.sources.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..200).collect::<Vec<u32>>());
            let hot = order.hot() as usize;
            let frequency: Vec<f64> = order.frequency_true().collect();
            prop_assert!(frequency[..hot].is_sorted_by(|a, b| a >= b));
            for bands in frequency[hot..].chunks(BAND_NEURONS).collect::<Vec<_>>().windows(2) {
                let low = bands[0].iter().copied().fold(1.0, f64::min);
                prop_assert!(bands[1].iter().all(|&f| f <= low));
            }
            for (expert, list) in order.experts().iter().enumerate() {
                prop_assert!(list.is_sorted() && list.len() == 100);
                for &(position, neuron) in list {
                    prop_assert_eq!(order.sources[position as usize], expert as u32 * 100 + neuron);
                }
            }
        }
    }

    #[test]
    fn experts_stand_one_after_another_the_most_visited_first() {
        let rows = |count| vec![vec![true, false, true]; count];
        let order = NeuronOrder::by_expert(&[1, 3, 0, 3].map(|count| samples(&rows(count), 3)), 4);
        assert_eq!(order.sources, [3, 4, 5, 9, 10, 11, 0, 1, 2, 6, 7, 8]);
        assert_eq!(order.counts_true, [3, 0, 3, 3, 0, 3, 1, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn co_active_neurons_stand_together() {
        // Even neurons fire on even tokens, odd ones on odd tokens.
        let rows: Vec<Vec<bool>> = (0..40).map(|t| (0..20).map(|n| n % 2 == t % 2).collect()).collect();
        let order = NeuronOrder::new(&[samples(&rows, 20)], 40);
        let changes = order.sources.windows(2).filter(|pair| pair[0] % 2 != pair[1] % 2).count();
        assert_eq!(changes, 1, "{:?}", order.sources);
    }
}
