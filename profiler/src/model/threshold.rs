//! From scores to decisions: where to cut so that a given share of the truly active neurons is found.

use super::observe::Bits;

/// The score at or above which a share of `recall` of the active pairs lies; `scores`, of the active (token, neuron)
/// pairs alone, are put in order.
///
/// One cut for all neurons of the expert, on logit + bias: with calibrated probabilities that asks for the fewest
/// neurons at a given recall, and a neuron seen active twice needs no quantile of its own. (Lower cuts for neurons that
/// add more to the output were tried: no better at equal loss of perplexity.)
pub fn cut(scores: &mut [f32], recall: f64) -> f32 {
    scores.sort_unstable_by(f32::total_cmp);
    let missed = ((1.0 - recall) * scores.len() as f64) as usize;
    // Without a single active neuron, even odds decide.
    scores.get(missed).copied().unwrap_or(0.0)
}

/// A neuron's threshold on its logit without bias.
pub fn threshold(cut: f32, bias: f32) -> f32 {
    below(cut - bias)
}

/// A little lower, so that rounding on another instruction set does not drop the neuron at the cut.
fn below(threshold: f32) -> f32 {
    threshold - 1e-5 * threshold.abs().max(1.0)
}

/// For each neuron, the differences in sign below which it is predicted, so that `recall` of its active tokens are;
/// -1, never, for one that was never active.
///
/// `differences(row, neuron)` counts; the first `rows` are looked at.
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
            recall in 0.5f64..1.0,
        ) {
            let mut active = Bits::new(6);
            active.push(10, |_| true, |neuron, row| pairs[row * 6 + neuron].1);
            let logits: Vec<f32> = pairs.iter().map(|pair| pair.0).collect();
            let mut scores: Vec<f32> = (0..10)
                .flat_map(|row| active.ones(row).map(move |neuron| (row, neuron)).collect::<Vec<_>>())
                .map(|(row, neuron)| logits[row * 6 + neuron] + bias[neuron])
                .collect();
            let cut = cut(&mut scores, recall);
            let thresholds: Vec<f32> = bias.iter().map(|&bias| threshold(cut, bias)).collect();
            let differences = |row: usize, neuron: usize| (5.0 - logits[row * 6 + neuron]) as u32;
            let most = sign_thresholds(&active, 10, recall, &differences);
            let (mut found, mut found_by_sign, mut all) = (0, 0, 0);
            for row in 0..10 {
                for neuron in active.ones(row) {
                    all += 1;
                    found += usize::from(logits[row * 6 + neuron] >= thresholds[neuron]);
                    found_by_sign += usize::from(differences(row, neuron) as i32 <= most[neuron]);
                }
            }
            prop_assert!(found as f64 >= recall * all as f64, "{} of {}", found, all);
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
