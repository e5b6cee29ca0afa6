//! Thresholds on gates, for models whose neurons all fire: left out is what will add little.
//!
//! A neuron adds `f(gate) up down`, and its gate is known before up and down are read. So what it will add is expected from the
//! gate alone: `|f(gate)|` times what the neuron has added to a unit of that on calibration text. One cut on this for all
//! neurons of an expert leaves out the most neurons at a given error.

use super::threshold::{below, cut};

/// What neurons made of some tokens.
#[derive(Debug, Clone, Default)]
pub struct Gates {
    /// `[tokens, neurons]`: the size of the activated gate.
    of_gates: Vec<f32>,
    /// `[tokens, neurons]`: the size of what the neuron added.
    added: Vec<f32>,
}

impl Gates {
    /// Adds a token: of each neuron the size of its activated gate, and of what it added.
    pub fn push(&mut self, neurons: impl Iterator<Item = (f32, f32)>) {
        for (of_gate, added) in neurons {
            self.of_gates.push(of_gate);
            self.added.push(added);
        }
    }

    /// Thresholds on the size of each neuron's activated gate, so that those that reach them add a share of what all do, in the
    /// mean square over tokens: `[share][neuron]`. What different neurons add is nearly independent, so that squares add up.
    ///
    /// A neuron that has added nothing is always left out.
    pub fn thresholds(&self, neurons: usize, shares: &[f64]) -> Vec<Vec<f32>> {
        let (of_gates, added) = (self.of_gates.chunks_exact(neurons), self.added.chunks_exact(neurons));
        let mut sums = vec![(0.0_f32, 0.0_f32); neurons];
        for (of_gates, added) in of_gates.clone().zip(added.clone()) {
            for ((sums, &of_gate), &added) in sums.iter_mut().zip(of_gates).zip(added) {
                *sums = (sums.0 + of_gate, sums.1 + added);
            }
        }
        let of_unit: Vec<f32> =
            sums.into_iter().map(|(gates, added)| if gates > 0.0 { added / gates } else { 0.0 }).collect();
        let mut pairs = Vec::with_capacity(self.added.len());
        for (of_gates, added) in of_gates.zip(added) {
            let all: f32 = added.iter().map(|added| added * added).sum();
            let unit = all.max(f32::MIN_POSITIVE);
            let of_token = of_gates.iter().zip(&of_unit).zip(added);
            pairs.extend(
                of_token.map(|((of_gate, of_unit), added)| (of_gate * of_unit, added * added / unit)),
            );
        }
        let of_share = |&share: &f64| {
            let cut = cut(&mut pairs, share);
            let threshold =
                |&of_unit: &f32| if of_unit > 0.0 { below(cut / of_unit).max(0.0) } else { f32::INFINITY };
            of_unit.iter().map(threshold).collect()
        };
        shares.iter().map(of_share).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_reaches_the_thresholds_adds_the_share(
            pairs in prop::collection::vec((0.0f32..3.0, 0.0f32..2.0), 8 * 20),
            sizes in prop::collection::vec(0.01f32..5.0, 8),
            share in 0.5f64..0.999,
        ) {
            let mut gates = Gates::default();
            let tokens: Vec<Vec<(f32, f32)>> = pairs
                .chunks(8)
                .map(|token| token.iter().zip(&sizes).map(|(&(gate, up), size)| (gate, gate * up * size)).collect())
                .collect();
            tokens.iter().for_each(|token| gates.push(token.iter().copied()));
            let [all, some] = &*gates.thresholds(8, &[1.0, share]) else { unreachable!() };
            prop_assert!(all.iter().zip(some).all(|(all, some)| all <= some), "the less, the more are left out");
            let (mut kept, mut count) = (0.0, 0.0);
            for token in &tokens {
                let squares = |least: &[f32]| -> f64 {
                    let reaching = token.iter().zip(least).filter(|((gate, _), least)| gate >= least);
                    reaching.map(|((_, added), _)| f64::from(added * added)).sum()
                };
                let whole = squares(&[0.0; 8]);
                prop_assert!((squares(all) - whole).abs() <= 1e-6 * whole, "all of it");
                if whole > 0.0 {
                    (kept, count) = (kept + squares(some) / whole, count + 1.0);
                }
            }
            prop_assert!(kept >= share * count - 1e-3, "{kept} of {count}");
        }
    }

    #[test]
    fn of_neurons_alike_those_are_left_out_whose_gates_are_small() {
        let mut gates = Gates::default();
        for token in 0..10 {
            gates.push((0..10).map(|neuron| {
                let gate = if neuron == token { 1.0 } else { 0.1 };
                (gate, 2.0 * gate)
            }));
        }
        // 9 of 109 squares are of small gates
        let thresholds = gates.thresholds(10, &[0.99, 0.9]);
        assert!(thresholds[0].iter().all(|&least| least < 0.1 && least > 0.09), "{thresholds:?}");
        assert!(thresholds[1].iter().all(|&least| least < 1.0 && least > 0.99), "{thresholds:?}");
    }

    #[test]
    fn a_neuron_that_adds_nothing_is_left_out() {
        let mut gates = Gates::default();
        gates.push([(1.0, 0.0), (1.0, 1.0)].into_iter());
        assert_eq!(gates.thresholds(2, &[0.9])[0][0], f32::INFINITY);
    }
}
