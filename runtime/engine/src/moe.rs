//! Mixture of experts: the experts of a token, and their weights.

use kernels::softmax;

use crate::model::config::{ExpertGroups, GROUPS_MAX, Gating, Router};

/// Lower bound of the sum that weights are divided by: the smallest normal half-precision number.
const SUM_MIN: f32 = 6.103_515_6e-5;

/// Chooses experts and their weights by the router's logits; returns them by ascending expert.
///
/// The lower of two equal experts wins. The contents of `logits` are undefined afterwards.
///
/// *Shapes*: `logits: [experts]`, with the router's bias; `selection_bias: [experts]`.
pub fn route(logits: &mut [f32], router: &Router, selection_bias: Option<&[f32]>) -> Vec<(usize, f32)> {
    let mut chosen = vec![(0, 0.0); router.experts_used];
    route_into(logits, router, selection_bias, &mut chosen);
    chosen
}

/// [`route`] into an existing list of `experts_used` places.
pub fn route_into(
    logits: &mut [f32],
    router: &Router,
    selection_bias: Option<&[f32]>,
    chosen: &mut [(usize, f32)],
) {
    let over_chosen = score(logits, router, selection_bias);
    let preference = |values: &[f32], expert: usize| match selection_bias {
        None => values[expert],
        Some(bias) => values[expert] + bias[expert],
    };
    if let Some(groups) = router.groups {
        leave_out_groups(logits, groups, preference);
    }
    for place in chosen.iter_mut() {
        let mut best = 0;
        for expert in 1..logits.len() {
            if preference(logits, expert) > preference(logits, best) {
                best = expert;
            }
        }
        *place = (best, logits[best]);
        logits[best] = f32::NEG_INFINITY;
    }
    weigh(router, over_chosen, chosen);
    chosen.sort_unstable_by_key(|&(expert, _)| expert);
}

/// Excludes all but the best groups. The lower of two equal groups wins.
fn leave_out_groups(
    values: &mut [f32],
    groups: ExpertGroups,
    preference: impl Fn(&[f32], usize) -> f32 + Copy,
) {
    let mut scores = [0.0; GROUPS_MAX];
    let scores = &mut scores[..groups.count];
    for (group, score) in scores.iter_mut().enumerate() {
        *score = group_score(values, groups, group, preference);
    }
    let before = |group: usize, other: usize| {
        scores[other] > scores[group] || (scores[other] == scores[group] && other < group)
    };
    let of_group = values.len() / groups.count;
    for (group, members) in values.chunks_exact_mut(of_group).enumerate() {
        if (0..groups.count).filter(|&other| before(group, other)).count() >= groups.used {
            members.fill(f32::NEG_INFINITY);
        }
    }
}

/// The score of a group: the sum of its best experts' scores.
fn group_score(
    values: &[f32],
    groups: ExpertGroups,
    group: usize,
    preference: impl Fn(&[f32], usize) -> f32,
) -> f32 {
    let of_group = values.len() / groups.count;
    let members = group * of_group..(group + 1) * of_group;
    let rank = |expert: usize| {
        let own = preference(values, expert);
        let before = |&other: &usize| {
            let other_value = preference(values, other);
            other_value > own || (other_value == own && other < expert)
        };
        members.clone().filter(before).count()
    };
    let best = members.clone().filter(|&expert| rank(expert) < groups.best);
    best.map(|expert| preference(values, expert)).sum()
}

/// Multiplies each weight by its expert's factor, if there are factors.
///
/// *Shapes*: `scales: [experts]`.
pub fn scale(chosen: &mut [(usize, f32)], scales: Option<&[f32]>) {
    if let Some(scales) = scales {
        chosen.iter_mut().for_each(|(expert, weight)| *weight *= scales[*expert]);
    }
}

/// Weighs the given ascending experts as [`route_into`] would have, had it chosen them.
pub fn weigh_into(
    logits: &mut [f32],
    router: &Router,
    selection_bias: Option<&[f32]>,
    experts: &[u16],
    chosen: &mut [(usize, f32)],
) {
    let over_chosen = score(logits, router, selection_bias);
    for (place, &expert) in chosen.iter_mut().zip(experts) {
        *place = (usize::from(expert), logits[usize::from(expert)]);
    }
    weigh(router, over_chosen, chosen);
}

/// Turns logits into comparable scores. Returns true if they are still logits: the chosen ones then go
/// through a softmax. A softmax over all keeps order and ratios, so weights divided by their sum are the
/// same.
fn score(logits: &mut [f32], router: &Router, selection_bias: Option<&[f32]>) -> bool {
    let over_chosen = match router.gating {
        Gating::SelectedSoftmax => true,
        Gating::Softmax => router.renormalise && selection_bias.is_none() && router.groups.is_none(),
        Gating::Sigmoid => false,
    };
    match router.gating {
        Gating::Softmax if !over_chosen => softmax(logits),
        Gating::Sigmoid => logits.iter_mut().for_each(|logit| *logit = 1.0 / (1.0 + (-*logit).exp())),
        Gating::Softmax | Gating::SelectedSoftmax => {}
    }
    over_chosen
}

/// Turns the scores of the chosen experts into weights.
fn weigh(router: &Router, over_chosen: bool, chosen: &mut [(usize, f32)]) {
    if over_chosen {
        let max = chosen.iter().fold(f32::NEG_INFINITY, |max, &(_, logit)| max.max(logit));
        let sum: f32 = chosen.iter().map(|&(_, logit)| (logit - max).exp()).sum();
        for (_, weight) in chosen.iter_mut() {
            *weight = (*weight - max).exp() / sum;
        }
    } else if router.renormalise {
        let sum = chosen.iter().map(|&(_, weight)| weight).sum::<f32>().max(SUM_MIN);
        chosen.iter_mut().for_each(|(_, weight)| *weight /= sum);
    }
    if router.scale != 1.0 {
        chosen.iter_mut().for_each(|(_, weight)| *weight *= router.scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::RouterInput;
    use proptest::prelude::*;

    fn router(gating: Gating, renormalise: bool, scale: f32) -> Router {
        Router {
            input: RouterInput::Experts,
            experts: 4,
            experts_used: 2,
            groups: None,
            gating,
            renormalise,
            scale,
            expert_scales: false,
            bias: false,
            selection_bias: false,
        }
    }

    /// The definition in double precision: probabilities of all, the best two by preference, their weights.
    fn by_definition(logits: &[f32], router: &Router, bias: Option<&[f32]>) -> Vec<(usize, f64)> {
        let exps: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp()).collect();
        let all: f64 = exps.iter().sum();
        let probability = |expert: usize| match router.gating {
            Gating::Softmax => exps[expert] / all,
            Gating::Sigmoid => 1.0 / (1.0 + (-f64::from(logits[expert])).exp()),
            Gating::SelectedSoftmax => f64::from(logits[expert]),
        };
        let preference =
            |expert: usize| probability(expert) + bias.map_or(0.0, |bias| f64::from(bias[expert]));
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| preference(b).total_cmp(&preference(a)));
        order.truncate(router.experts_used);
        order.sort_unstable();
        let of_chosen: f64 = order.iter().map(|&expert| exps[expert]).sum();
        let weights = |expert: usize| match router.gating {
            Gating::SelectedSoftmax => exps[expert] / of_chosen,
            _ => probability(expert),
        };
        let sum: f64 =
            if router.renormalise { order.iter().map(|&expert| weights(expert)).sum() } else { 1.0 };
        order.into_iter().map(|expert| (expert, weights(expert) / sum * f64::from(router.scale))).collect()
    }

    #[test]
    fn every_router_is_its_definition() {
        let logits = [0.5, 3.0, -1.0, 2.75];
        for gating in [Gating::Softmax, Gating::Sigmoid, Gating::SelectedSoftmax] {
            for renormalise in [false, true] {
                for bias in [None, Some(&[0.9, -0.9, 0.0, 0.1][..])] {
                    let router = router(gating, renormalise, 2.5);
                    let found = route(&mut logits.clone(), &router, bias);
                    let expected = by_definition(&logits, &router, bias);
                    for (&(expert, weight), (same, expected)) in found.iter().zip(expected) {
                        assert_eq!(expert, same, "{router:?} {bias:?}");
                        assert!((f64::from(weight) - expected).abs() < 1e-6, "{router:?} {bias:?}: {weight}");
                    }
                    // and so are the weights of the same experts when given
                    let experts: Vec<u16> = found.iter().map(|&(expert, _)| expert as u16).collect();
                    let mut named = [(0, 0.0); 2];
                    weigh_into(&mut logits.clone(), &router, bias, &experts, &mut named);
                    assert!(found.iter().zip(&named).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-7));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn groups_are_those_with_the_highest_sums_of_their_best(
            logits in proptest::collection::vec(-3.0_f32..3.0, 12),
            bias in proptest::collection::vec(-0.5_f32..0.5, 12),
            used in 1..=4_usize,
            best in 1..=3_usize,
        ) {
            let groups = ExpertGroups { count: 4, used, best };
            let router = Router { experts: 12, groups: Some(groups), ..router(Gating::Sigmoid, false, 1.0) };
            let found = route(&mut logits.clone(), &router, Some(&bias));
            let probability = |expert: usize| 1.0 / (1.0 + (-logits[expert]).exp());
            let preference = |expert: usize| probability(expert) + bias[expert];
            let score = |group: usize| {
                let mut all: Vec<f32> = (3 * group..3 * group + 3).map(preference).collect();
                all.sort_by(|a, b| b.total_cmp(a));
                all[..best].iter().sum::<f32>()
            };
            let mut order: Vec<usize> = (0..4).collect();
            order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
            let mut experts: Vec<usize> = order[..used].iter().flat_map(|group| 3 * group..3 * group + 3).collect();
            experts.sort_by(|&a, &b| preference(b).total_cmp(&preference(a)));
            experts.truncate(2);
            experts.sort_unstable();
            let expected: Vec<(usize, f32)> = experts.into_iter().map(|expert| (expert, probability(expert))).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn of_equal_logits_the_lower_expert_wins() {
        let routed = route(&mut [1.0; 4], &router(Gating::Softmax, true, 1.0), None);
        assert_eq!(routed.iter().map(|r| r.0).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn each_experts_weight_has_its_own_factor() {
        let mut chosen = [(1, 0.25), (3, 0.75)];
        scale(&mut chosen, Some(&[9.0, 2.0, 9.0, -4.0]));
        assert_eq!(chosen, [(1, 0.5), (3, -3.0)]);
        scale(&mut chosen, None);
        assert_eq!(chosen, [(1, 0.5), (3, -3.0)]);
    }

    #[test]
    fn a_vanishing_sum_of_weights_divides_nothing_by_zero() {
        let routed = route(&mut [-200.0; 4], &router(Gating::Sigmoid, true, 1.0), None);
        assert!(routed.iter().all(|(_, weight)| weight.is_finite()), "{routed:?}");
    }
}
