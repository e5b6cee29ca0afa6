//! What a plan expects at other rates than it assumes, put together from its parts, is what the cost model says of a device
//! that was measured with those rates.

use planner::assemble;
use planner::cost::hardware;
use planner::question::Question;
use planner::request::resolve;
use planner::{Answer, Inputs, Solved, cost};
use plans::Plan;
use plans::model::Level;
use plans::plan::{Feature, Request};
use plans::terms::Factors;
use proptest::prelude::*;

use crate::grid::profiles;

/// Six digits of every part.
const DIGITS: f64 = 1e-4;

/// Compares both at the given factors: a token at position 0, its context, the cold start, and prompts of some lengths.
fn compare(inputs: &Inputs, request: &Request, solved: &Solved, f: &Factors) -> Result<(), String> {
    let (plan, d) = (&solved.plan, &solved.decided);
    let question = resolve(inputs, request).expect("it was planned");
    let level: &Level = inputs.model.level(&plan.quality.level).expect("its level");
    let other = Question { device: &hardware::at(&inputs.device, f), ..question };
    let price = cost::decode(&other, &d.decision(level));
    let terms = plan.terms.as_ref().expect("a new plan has its terms");
    let token = terms.decode(plan, f, 1.0);
    let mut pairs = vec![
        ("a token".to_owned(), token.constant, price.constant),
        ("a token of context".to_owned(), token.per_context_token, price.per_context_token),
        ("the cold start".to_owned(), token.cold_start, price.cold_start),
    ];
    let chunk = plan.prefill.chunk_tokens;
    for tokens in [1, 64, chunk - 1, chunk, chunk + 1, 3 * chunk + 5].into_iter().filter(|&tokens| tokens > 0)
    {
        let priced = assemble::prompt_seconds(&other, level, d, tokens);
        pairs.push((format!("a prompt of {tokens}"), terms.prompt_seconds(plan, tokens, f), priced));
    }
    for (what, of_parts, of_model) in pairs {
        if (of_parts - of_model).abs() > DIGITS * of_model {
            return Err(format!("{what} at {f:?}: {of_parts} of its parts, {of_model} by the cost model"));
        }
    }
    Ok(())
}

fn solved(inputs: &Inputs, request: &Request) -> Option<Box<Solved>> {
    match planner::plan(inputs, request).expect("a sensible request") {
        Answer::Plan(solved) => Some(solved),
        Answer::Infeasible(_) => None,
    }
}

/// Factors of a machine: reads in order are nowhere slower than others, as long as they are not so in the profile.
fn factors() -> impl Strategy<Value = Factors> {
    let factor = || (-20i32..21).prop_map(|step| 2f64.powf(f64::from(step) / 10.0));
    (factor(), factor(), factor(), factor(), 0i32..10).prop_map(
        |(compute, stream, gather, random_reads, more)| {
            let ordered_reads = random_reads * (1.0 + f64::from(more) / 10.0);
            Factors { compute, stream, gather, random_reads, ordered_reads }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_parts_of_a_plan_are_the_cost_model_at_any_rates(
        f in factors(),
        megabytes in 14u64..60,
        level in prop::sample::select(vec![None, Some("dense"), Some("sign")]),
        without in prop::sample::subsequence(vec![Feature::LookAhead, Feature::Pipeline, Feature::HotRegion], 0..3),
    ) {
        let inputs = crate::small::inputs(3);
        let request = Request {
            level: level.map(str::to_owned),
            without,
            ..crate::small::request(Some(megabytes << 20))
        };
        let Some(solved) = solved(&inputs, &request) else { return Ok(()) };
        for f in [Factors::NONE, f] {
            prop_assert_eq!(compare(&inputs, &request, &solved, &f), Ok(()));
        }
    }
}

mod slow {
    use super::*;

    #[test]
    #[ignore = "minutes: make test-slow"]
    fn the_parts_of_committed_plans_are_the_cost_model_at_any_rates() {
        let alike = |compute, stream, gather, reads| Factors {
            compute,
            stream,
            gather,
            random_reads: reads,
            ordered_reads: reads,
        };
        let (mut plans, mut in_order) = (0, 0);
        for (folder, inputs) in profiles() {
            for entry in std::fs::read_dir(&folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if !(name.starts_with("plan") && name.ends_with(".toml")) {
                    continue;
                }
                let mut request = plans::file::read::<Plan>(&path).expect("a plan").value.request;
                let solve = |request: &Request| solved(&inputs, request).expect("it was planned before");
                let mut solved = solve(&request);
                if let Err(why) = compare(&inputs, &request, &solved, &Factors::NONE) {
                    panic!("{name} of {folder}: {why}");
                }
                // the cost model would share anew with other units if the cores were slower
                if inputs.device.units.len() > 1 {
                    request.without.push(Feature::Units);
                    solved = solve(&request);
                }
                let terms = solved.plan.terms.as_ref().expect("terms");
                plans += 1;
                in_order += usize::from(!terms.layers.reads_in_order.is_empty());
                for f in [
                    Factors::NONE,
                    alike(0.5, 1.0, 1.0, 1.0),
                    alike(1.0, 0.4, 1.0, 1.0),
                    alike(1.0, 1.0, 3.0, 1.0),
                    alike(1.0, 1.0, 1.0, 0.3),
                    alike(1.7, 0.8, 0.6, 4.0),
                ] {
                    if let Err(why) = compare(&inputs, &request, &solved, &f) {
                        panic!("{name} of {folder}: {why}");
                    }
                }
            }
        }
        assert!(plans > 10, "only {plans}, {in_order} of them with reads in order");
    }
}
