//! Explanations name the limits that contradict each other, with their numbers and the nearest plans.

use planner::problem::LIMITS;
use planner::{Answer, Infeasible, Inputs, blame};
use plans::plan::Request;

use crate::small::{inputs, request};

fn why(request: &Request) -> Infeasible {
    match planner::plan(&inputs(4), request).expect("an answer") {
        Answer::Infeasible(why) => *why,
        Answer::Plan(solved) => panic!("there is a plan: {:?}", solved.plan.expected),
    }
}

#[test]
fn too_little_memory_names_the_smallest_that_works() {
    let why = why(&request(Some(4 << 20)));
    assert!(why.conflict.contains(&"user.mem") && why.conflict.contains(&"model.size"), "{why}");
    assert!(why.sentences[0].contains("hold no plan: the smallest takes"), "{why}");
}

#[test]
fn the_smallest_memory_that_is_named_works() {
    let mut frugal = request(None);
    frugal.objective = plans::plan::Objective::Memory;
    let least = crate::small::plan(&inputs(4), &frugal).plan.expected.memory_peak_bytes;
    crate::small::plan(&inputs(4), &request(Some(least + (64 << 10))));
}

#[test]
fn a_floor_within_reach_of_more_memory_names_both_ways_out() {
    let fast = crate::small::plan(&inputs(4), &request(None)).plan.expected.decode_tokens_per_second;
    let mut requested = request(Some(24 << 20));
    requested.decode_tokens_per_second_min = Some((0.9 * fast).floor());
    let why = why(&requested);
    assert!(why.conflict.contains(&"user.mem") && why.conflict.contains(&"user.min_speed"), "{why}");
    assert!(why.sentences[0].starts_with("24.0 MiB reach "), "{why}");
    // the limits stand there as they were given
    let said = why.to_string();
    let speed = requested.decode_tokens_per_second_min.expect("a floor");
    let limits = format!("no plan satisfies the limits --mem 24.0MiB and --min-speed {speed} (");
    assert!(said.starts_with(&limits), "{said}");
    assert!(why.sentences[1].contains(" tok/s needs "), "{why}");
}

#[test]
fn a_floor_beyond_any_memory_says_so() {
    let mut requested = request(Some(32 << 20));
    requested.decode_tokens_per_second_min = Some(1e6);
    let why = why(&requested);
    assert!(!why.conflict.contains(&"user.mem") && why.conflict.contains(&"user.min_speed"), "{why}");
    // what is said to be in reach is
    let reach = why.sentences[0].strip_prefix("32.0 MiB reach ").and_then(|rest| rest.split(' ').next());
    requested.decode_tokens_per_second_min = reach.and_then(|speed| speed.parse().ok());
    crate::small::plan(&inputs(4), &requested);
}

#[test]
fn a_held_level_beyond_the_allowed_loss_is_named() {
    let mut requested = request(None);
    requested.level = Some("low-rank".to_owned());
    let why = why(&requested);
    assert_eq!(why.conflict, ["user.level", "user.max_loss"], "without either there is a plan");
    assert!(why.sentences[0].contains("with --max-loss 2"), "{why}");
}

/// A small model whose predicting levels lose this much at most.
fn bounded(sign: f64, low_rank: f64) -> Inputs {
    let mut inputs = inputs(4);
    for (level, upper) in inputs.model.levels.iter_mut().zip([0.0, sign, low_rank]) {
        let change = level.perplexity_change_fraction;
        level.perplexity_change_fraction_upper = Some(upper);
        level.perplexity_change_fraction_of_texts = vec![change / 2.0, change * 1.5];
    }
    inputs
}

#[test]
fn a_level_whose_bound_is_beyond_the_allowed_loss_is_refused_though_it_was_measured_within() {
    let limit = Some(32 << 20);
    let chosen = |inputs: &Inputs| crate::small::plan(inputs, &request(limit));
    assert_eq!(chosen(&bounded(0.006, 0.03)).plan.quality.level, "sign", "the fastest within 1 %");
    let solved = chosen(&bounded(0.012, 0.03));
    assert_eq!(solved.plan.quality.level, "dense", "0.4 % measured, and it may be 1.2 %");
    assert_eq!(solved.plan.expected.perplexity_change_fraction_upper, Some(0.0));
    let said = planner::report::explanation(&bounded(0.012, 0.03), &solved);
    let line = "Left out by --max-loss 1:\n  sign: +0.40 %, at most +1.20 % with 95 % confidence\n  low-rank: +2.00 %";
    assert!(said.contains(line) && !said.contains("Not known: how sure"), "{said}");

    // the level that was held says its bound, and what it says is accepted
    let mut requested = request(limit);
    requested.level = Some("sign".to_owned());
    let answer = planner::plan(&bounded(0.012_34, 0.03), &requested).expect("an answer");
    let Answer::Infeasible(why) = answer else { panic!("the bound is above the allowed loss") };
    let said = &why.sentences[0];
    assert!(said.contains("0.40 % was measured") && said.contains("with --max-loss 1.24"), "{said}");
    requested.perplexity_change_fraction_max = 0.0124;
    let solved = crate::small::plan(&bounded(0.012_34, 0.03), &requested);
    assert_eq!(solved.plan.expected.perplexity_change_fraction_upper, Some(0.012_34));
}

#[test]
fn a_profile_without_bounds_is_held_to_what_it_measured_and_that_is_said() {
    let inputs = inputs(4);
    let solved = crate::small::plan(&inputs, &request(Some(32 << 20)));
    assert_eq!(solved.plan.quality.level, "sign");
    assert_eq!(solved.plan.expected.perplexity_change_fraction_upper, None);
    let summary = planner::report::summary(&inputs, &solved.plan);
    assert!(summary.contains("+0.40 %; the profile has no bound"), "{summary}");
    let said = planner::report::explanation(&inputs, &solved);
    assert!(said.contains("This profile has no bounds of losses"), "{said}");
}

#[test]
fn percentiles_of_a_token_are_planned_where_the_profile_has_them_and_else_missed_by_name() {
    let mut inputs = inputs(4);
    let solved = crate::small::plan(&inputs, &request(Some(20 << 20)));
    let summary = planner::report::summary(&inputs, &solved.plan);
    assert!(
        summary.contains("model.toml has no missing_p50_over_mean; profile the model again"),
        "{summary}"
    );
    assert_eq!(solved.plan.expected.decode_seconds_p50, None);
    let figures = planner::report::figures(&inputs, &solved.plan);
    assert!(figures["latency_seconds_predicted"].is_null(), "{figures}");

    let axes = inputs.model.reuse.clone();
    let even = |value: f64| vec![vec![value; axes.cached_fraction.len()]; axes.pinned_share_fraction.len()];
    for level in &mut inputs.model.levels {
        (level.missing_p50_over_mean, level.missing_p90_over_mean) = (even(0.9), even(1.5));
        level.missing_p99_over_mean = even(3.0);
    }
    let spread = crate::small::plan(&inputs, &request(Some(20 << 20))).plan;
    let e = &spread.expected;
    assert_eq!(e.missing_over_mean(), Some([0.9, 1.5, 3.0]));
    let [p50, p90, p99] =
        [e.decode_seconds_p50, e.decode_seconds_p90, e.decode_seconds_p99].map(Option::unwrap);
    let mean = 1.0 / e.decode_tokens_per_second;
    assert!(p50 < mean && mean < p90 && p90 < p99, "{p50} {p90} {p99}, on average {mean}");
    // nothing else of the plan changes
    assert_eq!(spread.cache, solved.plan.cache);
    let figures = planner::report::figures(&inputs, &spread);
    let told = figures["latency_seconds_predicted"]["p90"].as_f64().unwrap();
    assert_eq!(Some(plans::file::significant(told)), e.decode_seconds_p90);
    let summary = planner::report::summary(&inputs, &spread);
    for name in ["latency P99", "time to first token", "startup"] {
        assert!(summary.lines().any(|line| line.starts_with(name)), "{name}: {summary}");
    }
    // a start reads what is always in memory, once, no faster than the device reads
    let always = spread.memory.fixed_bytes + spread.memory.hot_bytes;
    let device = &inputs.device.storage.reads;
    let most = device.iter().map(|r| r.reads_per_second * r.block_bytes as f64).fold(0.0, f64::max);
    assert!(e.start_seconds.unwrap() > always as f64 / most, "{:?}", e.start_seconds);
}

#[test]
fn more_than_the_machine_has_is_never_planned() {
    let inputs = inputs(4);
    let solved = crate::small::plan(&inputs, &request(Some(1 << 40)));
    assert!(solved.plan.memory.limit_bytes <= inputs.device.capacity.plannable_bytes());
}

/// Whether there is no plan; then its explanation is held to its word: without any one of the limits in the conflict, and
/// without those that are not in it, there is a plan; with all of them there is none; and every offer is planned.
pub(crate) fn refused(inputs: &Inputs, request: &Request) -> bool {
    let Answer::Infeasible(why) = planner::plan(inputs, request).expect("an answer") else { return false };
    let question = planner::request::resolve(inputs, request).expect("a question");
    let all = LIMITS;
    let blamed: Vec<&str> = why.conflict.iter().copied().filter(|name| all.contains(name)).collect();
    assert!(!blamed.is_empty(), "{why}");
    let left = |kept: &dyn Fn(&str) -> bool| {
        let others = all.into_iter().filter(|name| blame::set(&question.limits, name) && !kept(name));
        blame::exists(&others.fold(question.clone(), |less, name| blame::without(&less, name)))
    };
    assert!(!left(&|name| blamed.contains(&name)), "{why}");
    for dropped in &blamed {
        assert!(left(&|name| blamed.contains(&name) && name != *dropped), "{dropped} is not needed: {why}");
    }
    for offer in &why.offers {
        let answer = planner::plan(inputs, offer).expect("an answer");
        let Answer::Plan(solved) = answer else { panic!("{why}\nbut not {offer:?}") };
        let simple = solved.plan.simple_rule.decode_tokens_per_second;
        assert!(
            solved.plan.expected.decode_tokens_per_second >= simple,
            "{why}\n{simple} by the simple rule"
        );
    }
    true
}

#[test]
fn every_limit_that_is_blamed_is_needed() {
    let minimal = |request: &Request| assert!(refused(&inputs(4), request), "{request:?}");
    minimal(&request(Some(4 << 20)));
    for reserve in [24 << 20, 1 << 50] {
        let reserved = Request { reserve_bytes: Some(reserve), ..request(Some(25 << 20)) };
        minimal(&reserved);
        let why = why(&reserved).to_string();
        assert!(
            why.starts_with("no plan satisfies the limits --reserve ")
                && why.contains("without --reserve there is a plan"),
            "{why}"
        );
    }
    let crowded = Request { sequences: Some(8), context_tokens: Some(1024), ..request(Some(24 << 20)) };
    minimal(&crowded);
    let why = why(&crowded).to_string();
    assert!(why.contains("--slots 8") && why.contains("keys and values for 8 times 1024 tokens"), "{why}");
    let offer = why.split("with --slots ").nth(1).and_then(|rest| rest.split(' ').next()).expect("an offer");
    let fits: u32 = offer.parse().expect("a number");
    let more = Request { sequences: Some(fits + 1), ..crowded.clone() };
    assert!(matches!(planner::plan(&inputs(4), &more), Ok(Answer::Infeasible(_))), "{why}");
    minimal(&Request { decode_tokens_per_second_min: Some(300.0), ..crowded });
    let beyond = Request { reserve_bytes: Some((1 << 50) + 1), ..request(None) };
    let error = planner::plan(&inputs(4), &beyond).unwrap_err().to_string();
    assert!(error.contains("is more than any machine has"), "{error}");
    let fast = Request { decode_tokens_per_second_min: Some(300.0), ..request(Some(24 << 20)) };
    minimal(&fast);
    minimal(&Request { reserve_bytes: Some(20 << 20), ..fast.clone() });
    minimal(&Request { cores: Some(vec![3]), ..fast.clone() });
    minimal(&Request {
        decode_tokens_per_second_min: None,
        prefill_tokens_per_second_min: Some(1e5),
        ..fast.clone()
    });
    minimal(&Request { first_token_seconds_max: Some(0.01), prompt_tokens: Some(100), ..fast });
}

#[test]
fn the_memory_that_is_offered_and_the_context_are_accepted() {
    let inputs = inputs(4);
    let fast = Request { decode_tokens_per_second_min: Some(200.0), ..request(Some(24 << 20)) };
    let why = why(&fast);
    let offer = why.sentences.iter().find_map(|sentence| sentence.strip_prefix("200 tok/s needs "));
    let memory_limit_bytes = plans::size::parse(offer.expect("an offer")).ok();
    crate::small::plan(&inputs, &Request { memory_limit_bytes, ..fast });
    let long = Request { context_tokens: Some(1024), ..request(Some(20 << 20)) };
    let why = self::why(&long);
    let offer = why.sentences.iter().find_map(|sentence| sentence.strip_prefix("with --context "));
    let tokens: u32 =
        offer.and_then(|rest| rest.split(' ').next()).expect("an offer").parse().expect("tokens");
    let with = |tokens| Request { context_tokens: Some(tokens), ..long.clone() };
    crate::small::plan(&inputs, &with(tokens));
    assert!(matches!(planner::plan(&inputs, &with(tokens + 1)), Ok(Answer::Infeasible(_))), "{why}");
}

/// Ways that were given up make a refusal no proof, and it says how many they are.
#[test]
fn a_refusal_says_how_many_ways_were_given_up() {
    let inputs = inputs(4);
    let mut requested = request(Some(16 << 20));
    requested.prefill_tokens_per_second_min = Some(1e6);
    let question = planner::request::resolve(&inputs, &requested).expect("a question");
    let refused = |undecided: usize| {
        let space = planner::presolve::Presolve::new(&question);
        assert!(planner::search::best_in(&question, &space).expect("an answer").is_none(), "too fast");
        assert_eq!(space.work().undecided, 0);
        space.count(planner::presolve::Effort { undecided, ..Default::default() });
        planner::explain::explain(&question, &space).expect("a core")
    };
    let [sure, open] = [0, 2].map(refused);
    assert!(sure.proven && !sure.to_string().contains("not proven"), "{sure}");
    assert!(
        !open.proven && open.to_string().contains("that there is none is not proven: 2 configurations"),
        "{open}"
    );
}
