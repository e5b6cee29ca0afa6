//! Groups of like layers: the solver splits memory over at most two of them.

/// More groups would not change a plan that can be seen, and proofs take longer with each.
pub const GROUPS_MAX: usize = 2;
/// Spread left inside groups, as a share of the whole, at which more groups are not worth it.
const SPREAD_LEFT: f64 = 1e-4;

/// Layers in groups of like `weight`, each group's layers rising; the lightest group first.
///
/// Exact: of all cuts of the layers sorted by weight into so many groups, the one with the least
/// squared spread inside groups; the fewest groups that leave next to none.
pub fn like_layers(weights: &[f64]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&a, &b| weights[a].total_cmp(&weights[b]).then(a.cmp(&b)));
    let sorted: Vec<f64> = order.iter().map(|&layer| weights[layer]).collect();
    let n = sorted.len();
    // Rounding alone is no difference between layers.
    let rounding = 1e-18 * sorted.iter().map(|w| w * w).sum::<f64>();
    let whole = spread(&sorted).max(rounding / SPREAD_LEFT);
    // best[g][i]: least spread of the first i layers in g + 1 groups, and where its last group begins.
    let mut best: Vec<Vec<(f64, usize)>> = vec![(0..=n).map(|i| (spread(&sorted[..i]), 0)).collect()];
    while best.len() < GROUPS_MAX.min(n) && best[best.len() - 1][n].0 > SPREAD_LEFT * whole {
        let last = &best[best.len() - 1];
        let row = (0..=n)
            .map(|i| {
                let cuts = (0..=i).map(|cut| (last[cut].0 + spread(&sorted[cut..i]), cut));
                cuts.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, 0))
            })
            .collect();
        best.push(row);
    }
    let mut groups = Vec::new();
    let mut end = n;
    for row in best.iter().rev() {
        let begin = row[end].1;
        if begin < end {
            let mut group = order[begin..end].to_vec();
            group.sort_unstable();
            groups.push(group);
        }
        end = begin;
    }
    groups.reverse();
    groups
}

/// Squared distance from the mean.
fn spread(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    values.iter().map(|v| (v - mean) * (v - mean)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_layers_are_one_group_and_two_kinds_are_two() {
        assert_eq!(like_layers(&[2.0; 5]), [[0, 1, 2, 3, 4]]);
        assert_eq!(like_layers(&[9.0, 1.0, 9.0, 1.0]), [[1, 3], [0, 2]]);
    }

    #[test]
    fn every_layer_stands_in_one_of_at_most_two_groups() {
        let weights: Vec<f64> = (0..40).map(|i| f64::from((i * 7919) % 101)).collect();
        let groups = like_layers(&weights);
        assert!(groups.len() <= GROUPS_MAX);
        let mut all: Vec<usize> = groups.concat();
        all.sort_unstable();
        assert_eq!(all, (0..40).collect::<Vec<_>>());
    }
}
