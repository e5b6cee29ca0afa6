//! Z3's choice is the one that trying everything finds, ties included.

use planner::encode::encode;
use planner::problem::{Objective, Problem};
use planner::solve::{Outcome, solve};
use planner::tables::{Bound, Choice, Mode, Need, Tables};
use plans::plan::Request;
use proptest::prelude::*;
use z3::ast::Int;
use z3::{SatResult, Solver};

/// Every choice there is.
fn all(tables: &Tables) -> Vec<Choice> {
    let of = |(mode, m): (usize, &Mode)| {
        (m.layers.least..=m.layers.most).map(move |pages| Choice { mode, pages }).collect::<Vec<_>>()
    };
    tables.modes.iter().enumerate().flat_map(of).collect()
}

/// The best of all choices, tried one by one: each objective in turn, with all that come within its slack of the least; then
/// every decision.
fn best(tables: &Tables) -> Option<Choice> {
    let mut left: Vec<Choice> = all(tables).into_iter().filter(|choice| tables.allows(choice)).collect();
    let mut keep = |of: &dyn Fn(&Choice) -> i64, slack: i64| {
        let least = left.iter().map(of).min().unwrap_or(0);
        left.retain(|choice| of(choice) <= least + slack);
    };
    keep(&|choice| tables.price(choice).time, tables.time_slack);
    keep(&|choice| tables.price(choice).prompt, 0);
    keep(&|choice| tables.price(choice).memory, tables.memory_slack);
    keep(&|choice| tables.price(choice).cores, 0);
    keep(&|choice| choice.mode as i64, 0);
    keep(&|choice| choice.pages, 0);
    left.pop()
}

/// A convex falling curve from `least`, its corners four pages apart.
fn bound() -> impl Strategy<Value = Bound> {
    (0i64..3, prop::collection::vec(1i64..400, 0..6), 0i64..100).prop_map(|(least, mut falls, floor)| {
        falls.sort_unstable();
        let mut corners = vec![(least + 4 * falls.len() as i64, floor)];
        for fall in falls {
            let (x, y) = corners[corners.len() - 1];
            corners.push((x - 4, y + fall));
        }
        corners.reverse();
        let lines = corners.windows(2).map(|pair| [pair[0], pair[1]]).collect();
        Bound { least, most: corners[corners.len() - 1].0, floor, lines }
    })
}

fn tables() -> impl Strategy<Value = Tables> {
    let least = prop::sample::select(vec![(0i64, 0i64), (150, 0), (0, 112)]);
    let limits =
        prop::sample::select(vec![vec!["user.min_prefill"], vec!["user.max_ttft", "user.min_speed"]]);
    let need =
        (limits, prop::option::weighted(0.8, 110i64..160)).prop_map(|(limits, pages)| Need { limits, pages });
    let needs = prop::collection::vec(need, 0..2);
    let mode = (10i64..200, 100i64..130, 1i64..4, 0i64..5, least, needs, bound()).prop_map(
        |(serial, pages, cores, prompt, (time, memory), needs, layers)| Mode {
            serial,
            pages,
            cores,
            prompt,
            // what is known beyond the curves is never above the slowest or the largest choice
            least: (time.min(serial + layers.ticks(layers.least)), memory.min(pages + layers.most)),
            needs,
            layers,
        },
    );
    let limits = (110i64..170, prop::option::of(110i64..170), prop::option::of(100i64..1500));
    (prop::collection::vec(mode, 1..6), limits, 0i64..20, 0i64..10).prop_map(
        |(modes, (machine_pages, user_pages, time_max), time_slack, memory_slack)| Tables {
            modes,
            user_pages,
            machine_pages,
            time_max,
            time_slack,
            memory_slack,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn z3_chooses_what_trying_everything_finds(tables in tables()) {
        let best = best(&tables);
        let encoded = encode(&tables);
        match solve(&encoded.problem).expect("an answer") {
            Outcome::Best(values) => {
                let choice = encoded.choice(&values);
                prop_assert!(best.is_some(), "nothing is allowed, but Z3 found {choice:?}");
                prop_assert_eq!(Some(choice), best);
            }
            Outcome::Conflict(groups) => {
                prop_assert!(best.is_none(), "Z3 blames {groups:?}, but there is {best:?}");
                prop_assert!(!groups.is_empty());
            }
        }
    }

    #[test]
    fn the_printed_problem_has_the_same_optimum(tables in tables()) {
        let problem = encode(&tables).problem;
        let found = match solve(&problem).expect("an answer") {
            Outcome::Best(values) => Some(values.objectives),
            _ => None,
        };
        prop_assert_eq!(optimum_of_text(&problem), found);
    }
}

/// Z3's optimum of the printed problem: its objectives made small one after another, each closed with its slack.
fn optimum_of_text(problem: &Problem) -> Option<Vec<i64>> {
    let text = problem.to_string();
    let solver = Solver::new();
    solver.from_string(text);
    let mut values = Vec::new();
    for Objective { name, slack, .. } in &problem.objectives {
        if solver.check() != SatResult::Sat {
            return None;
        }
        let sum = Int::new_const(format!("least {name}"));
        let value = |solver: &Solver| solver.get_model()?.eval(&sum, true)?.as_i64();
        let (mut low, mut high) = (-1, value(&solver)?);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            solver.push();
            solver.assert(sum.le(Int::from_i64(middle)));
            if solver.check() == SatResult::Sat {
                high = value(&solver)?;
            } else {
                low = middle;
            }
            solver.pop(1);
        }
        solver.assert(sum.le(Int::from_i64(high + slack)));
        values.push(high);
    }
    Some(values)
}

#[test]
fn the_problem_of_a_request_prints_as_smt_lib_and_has_the_optimum_that_is_planned() {
    let inputs = crate::small::inputs(2);
    let request = crate::small::request(Some(24 << 20));
    let solved = crate::small::plan(&inputs, &request);
    let question = planner::request::resolve(&inputs, &request).expect("a question");
    let problem = planner::search::problem(&question).expect("a problem");
    let text = planner::smt_lib(&inputs, &request).expect("text");
    assert_eq!(text, problem.to_string());
    assert!(text.contains("(set-logic QF_LIA)") && !text.contains("at-most"), "{text}");
    // every objective of the text is that of the best choice of all, and the plan is that choice
    let (tables, plan) = (&solved.tables, &solved.plan);
    let optimum = optimum_of_text(&problem).expect("the plan");
    let least = all(tables)
        .iter()
        .filter(|choice| tables.allows(choice))
        .map(|choice| tables.price(choice).time)
        .min();
    let choice = best(tables).expect("a choice");
    let price = tables.price(&choice);
    let expected =
        [least.expect("a choice"), price.prompt, price.memory, price.cores, choice.mode as i64, choice.pages];
    let expected =
        if tables.modes.len() > 1 { expected.to_vec() } else { [&expected[..4], &expected[5..]].concat() };
    assert_eq!(optimum, expected, "{text}");
    assert_eq!(solved.modes[choice.mode], solved.config);
    // its time and its memory in the problem are those that are planned: the cut of its split
    let ticks = 1.0 / plan.expected.decode_tokens_per_second / solved.tick_seconds;
    let of_split = tables.modes[choice.mode].least;
    assert!((of_split.0 as f64 / ticks - 1.0).abs() < 1e-5, "{of_split:?}: {ticks}");
    assert!(
        price.time >= of_split.0 && price.time <= least.expect("a choice") + tables.time_slack,
        "{price:?}"
    );
    let page_tables = plans::memory::page_tables_bytes(plan.memory.prefill_total_bytes) as i64 / 4096 + 1;
    // a prompt's rows may take more of what is left over
    let [least, most] =
        [plan.memory.decode_total_bytes, plan.memory.prefill_total_bytes].map(|bytes| bytes as i64 / 4096);
    assert!(
        (least - page_tables - 1..=most).contains(&of_split.1),
        "{of_split:?}: {least} {most} {page_tables}"
    );
    let reading =
        plan.decode.io_cores.iter().filter(|core| !plan.decode.compute_cores.contains(core)).count();
    assert_eq!(price.cores as usize, plan.decode.compute_cores.len() + reading);
}

/// Where there is no plan, the text says so: beyond any memory, and just beyond what the memory allows.
#[test]
fn the_problem_of_a_refused_request_has_no_solution() {
    let inputs = crate::small::inputs(2);
    let free = crate::small::request(Some(24 << 20));
    let plan = crate::small::plan(&inputs, &free).plan.expected;
    let prompts = plan.prefill_tokens_per_second;
    let speed = |speed| Request { decode_tokens_per_second_min: Some(speed), ..free.clone() };
    let prompts_and = |rate, request| Request { prefill_tokens_per_second_min: Some(rate), ..request };
    let first_token = Request {
        first_token_seconds_max: Some(0.5 * 64.0 / prompts),
        prompt_tokens: Some(64),
        ..free.clone()
    };
    let mut cores = Vec::new();
    for refused in [
        speed(1e6),
        speed(1.02 * plan.decode_tokens_per_second),
        prompts_and(1e6, free.clone()),
        prompts_and(1.5 * prompts, free.clone()),
        prompts_and(1.2 * prompts, speed(0.95 * plan.decode_tokens_per_second)),
        first_token,
        Request { memory_limit_bytes: Some(1 << 20), ..free.clone() },
    ] {
        let answer = planner::plan(&inputs, &refused).expect("an answer");
        assert!(matches!(answer, planner::Answer::Infeasible(_)), "{refused:?}");
        let question = planner::request::resolve(&inputs, &refused).expect("a question");
        let problem = planner::search::problem(&question).expect("a problem");
        assert_eq!(optimum_of_text(&problem), None, "{refused:?}");
        let Outcome::Conflict(core) = solve(&problem).expect("an answer") else { panic!("{refused:?}") };
        cores.push(core);
    }
    assert!(cores[3].contains(&"user.min_prefill") && cores[5].contains(&"user.max_ttft"), "{cores:?}");
}

/// Where rounds run out Z3 still decides, among the configurations that were split.
#[test]
fn when_rounds_run_out_z3_chooses_among_the_splits() {
    let inputs = crate::small::inputs(3);
    let mut gained = 0;
    for mib in [16, 20, 24, 28, 40] {
        let request = crate::small::request(Some(mib << 20));
        let question = planner::request::resolve(&inputs, &request).expect("a question");
        let in_rounds = |rounds: usize| {
            let mut space = planner::presolve::Presolve::new(&question);
            space.rounds_max = rounds;
            planner::search::best_in(&question, &space).expect("an answer").expect("a plan")
        };
        let free = in_rounds(32);
        // the last round but one has split the choice; the last one confirms it
        let [fewer, none] = [free.rounds - 1, 0].map(in_rounds);
        // hundredths of the logarithm of a long prompt's seconds
        let prompt = |solved: &planner::Solved| {
            let place = solved.modes.iter().position(|way| *way == solved.config).expect("a mode");
            solved.tables.modes[place].prompt
        };
        let [all, fewer, none] = [&free, &fewer, &none].map(prompt);
        assert_eq!(fewer, all, "{mib} MiB in {} rounds and in one more", free.rounds - 1);
        gained += usize::from(none > fewer);
    }
    assert!(gained > 0, "no round found faster prompts");
}
