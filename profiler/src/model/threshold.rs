//! Thresholds of scores, which select neurons with a given share of the truly active ones' addition.

use super::observe::Bits;

/// The score at or above which a `share` of the worth of all active (token, neuron) pairs lies. It sorts `pairs` of score and worth.
///
/// An expert has one cut for all neurons, on logit + bias, which is the logarithm of a neuron's expected addition. This requests the fewest
/// neurons at a given share, and rarely active neurons need no quantile of their own.
pub fn cut(pairs: &mut [(f32, f32)], share: f64) -> f32 {
    pairs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = pairs.iter().map(|&(_, worth)| f64::from(worth)).sum();
    let mut missed = 0.0;
    let first = pairs.iter().find(|&&(_, worth)| {
        missed += f64::from(worth);
        missed > (1.0 - share) * all
    });
    // without an active neuron, an expected worth of one decides
    first.map_or(0.0, |&(score, _)| score)
}

/// A neuron's threshold on its logit without bias.
pub fn threshold(cut: f32, bias: f32) -> f32 {
    below(cut - bias)
}

/// A slightly lower threshold, so that rounding on another instruction set does not drop the neuron at the cut.
pub fn below(threshold: f32) -> f32 {
    threshold - 1e-5 * threshold.abs().max(1.0)
}

/// The maximum differing signs at which each neuron is predicted, for `recall` of its active tokens; -1 for a neuron without any.
///
/// `differences(row, neuron)` counts them for the first `rows`.
pub fn sign_thresholds(
    active: &Bits,
    rows: usize,
    recall: f64,
    differences: &dyn Fn(usize, usize) -> u32,
) -> Vec<i32> {
    let mut of_neuron: Vec<Vec<u32>> = vec![Vec::new(); active.columns()];
    for row in 0..rows {
        for neuron in active.ones(row) {
            of_neuron[neuron].push(differences(row, neuron));
        }
    }
    of_neuron
        .into_iter()
        .map(|mut seen| {
            seen.sort_unstable();
            let missed = ((1.0 - recall) * seen.len() as f64) as usize;
            let last = seen.len().checked_sub(1 + missed);
            last.map_or(-1, |last| i32::try_from(seen[last]).unwrap_or(i32::MAX))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn thresholds_reach_the_recall_on_the_calibration_set(
            pairs in prop::collection::vec((-5.0f32..5.0, any::<bool>()), 60),
            bias in prop::collection::vec(-2.0f32..2.0, 6),
            worth in prop::collection::vec(0.01f32..3.0, 60),
            recall in 0.5f64..1.0,
        ) {
            let mut active = Bits::new(6);
            active.push(10, |_| true, |neuron, row| pairs[row * 6 + neuron].1);
            let logits: Vec<f32> = pairs.iter().map(|pair| pair.0).collect();
            let mut scores: Vec<(f32, f32)> = (0..10)
                .flat_map(|row| active.ones(row).map(move |neuron| (row * 6 + neuron, neuron)).collect::<Vec<_>>())
                .map(|(pair, neuron)| (logits[pair] + bias[neuron], worth[pair]))
                .collect();
            let cut = cut(&mut scores, recall);
            let thresholds: Vec<f32> = bias.iter().map(|&bias| threshold(cut, bias)).collect();
            let differences = |row: usize, neuron: usize| (5.0 - logits[row * 6 + neuron]) as u32;
            let most = sign_thresholds(&active, 10, recall, &differences);
            let (mut found, mut of_all) = (0.0, 0.0);
            let (mut found_by_sign, mut all) = (0, 0);
            for row in 0..10 {
                for neuron in active.ones(row) {
                    let pair = row * 6 + neuron;
                    (all, of_all) = (all + 1, of_all + worth[pair]);
                    found += if logits[pair] >= thresholds[neuron] { worth[pair] } else { 0.0 };
                    found_by_sign += usize::from(differences(row, neuron) as i32 <= most[neuron]);
                }
            }
            prop_assert!(f64::from(found) >= recall * f64::from(of_all) - 1e-4, "{} of {}", found, of_all);
            prop_assert!(found_by_sign as f64 >= recall * all as f64, "{} of {}", found_by_sign, all);
        }
    }

    #[test]
    fn a_neuron_never_seen_active_is_never_predicted_by_sign() {
        let mut active = Bits::new(2);
        active.push(1, |_| true, |neuron, _| neuron == 0);
        assert_eq!(sign_thresholds(&active, 1, 0.9, &|_, _| 3), [3, -1]);
    }
}
