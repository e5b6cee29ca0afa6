//! Mixture of experts: which experts a token visits, and how much each counts.

/// The `used` experts of the highest logits and their weights, in ascending order of expert.
///
/// The weights are the softmax over the chosen logits, as Mixtral has it; of equal logits the lower expert wins.
/// `logits` is left in no particular state.
///
/// *Shapes*: `logits: [experts]`.
pub fn route(logits: &mut [f32], used: usize) -> Vec<(usize, f32)> {
    let mut chosen = vec![(0, 0.0); used];
    route_into(logits, &mut chosen);
    chosen
}

/// [`route`] into a list that is there already: as many experts as it has places.
pub fn route_into(logits: &mut [f32], chosen: &mut [(usize, f32)]) {
    for place in chosen.iter_mut() {
        let mut best = 0;
        for expert in 1..logits.len() {
            if logits[expert] > logits[best] {
                best = expert;
            }
        }
        *place = (best, logits[best]);
        logits[best] = f32::NEG_INFINITY;
    }
    let max = chosen.first().map_or(0.0, |&(_, logit)| logit);
    let sum: f32 = chosen.iter().map(|&(_, logit)| (logit - max).exp()).sum();
    for (_, weight) in chosen.iter_mut() {
        *weight = (*weight - max).exp() / sum;
    }
    chosen.sort_unstable_by_key(|&(expert, _)| expert);
}

#[cfg(test)]
mod tests {
    use super::route;

    #[test]
    fn the_two_best_experts_share_by_softmax_in_order_of_expert() {
        let routed = route(&mut [0.5, 3.0, -1.0, 3.0 + 1.0], 2);
        assert_eq!([routed[0].0, routed[1].0], [1, 3]);
        let e = 1.0f32.exp();
        assert!((routed[0].1 - 1.0 / (1.0 + e)).abs() < 1e-6, "{routed:?}");
        assert!((routed[1].1 - e / (1.0 + e)).abs() < 1e-6, "{routed:?}");
    }

    #[test]
    fn of_equal_logits_the_lower_expert_wins() {
        assert_eq!(route(&mut [1.0, 1.0, 1.0], 2).iter().map(|r| r.0).collect::<Vec<_>>(), [0, 1]);
    }
}
