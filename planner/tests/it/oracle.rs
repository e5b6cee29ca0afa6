//! Z3's choice is the one that trying everything finds, ties included.

use planner::encode::encode;
use planner::problem::{Objective, Problem};
use planner::solve::{Outcome, solve};
use planner::tables::{Bound, Choice, Mode, Tables};
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
    let mode = (10i64..200, 100i64..130, 1i64..4, 0i64..5, least, bound()).prop_map(
        |(serial, pages, cores, prompt, (time, memory), layers)| Mode {
            serial,
            pages,
            cores,
            prompt,
            // what is known beyond the curves is never above the slowest or the largest choice
            least: (time.min(serial + layers.ticks(layers.least)), memory.min(pages + layers.most)),
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
        match solve(&encoded.problem, None).expect("an answer") {
            Outcome::Best(values) => {
                let choice = encoded.choice(&values);
                prop_assert!(best.is_some(), "nothing is allowed, but Z3 found {choice:?}");
                prop_assert_eq!(Some(choice), best);
            }
            Outcome::Conflict(groups) => {
                prop_assert!(best.is_none(), "Z3 blames {groups:?}, but there is {best:?}");
                prop_assert!(!groups.is_empty());
            }
            Outcome::Beaten => prop_assert!(false, "there was nothing to beat"),
        }
    }

    #[test]
    fn what_is_known_is_found_again_and_what_is_better_than_the_best_is_not(tables in tables()) {
        let allowed = all(&tables).into_iter().filter(|choice| tables.allows(choice));
        let Some(best) = allowed.map(|choice| tables.price(&choice).time).min() else { return Ok(()) };
        let problem = encode(&tables).problem;
        prop_assert!(matches!(solve(&problem, Some(best)).expect("an answer"), Outcome::Best(_)));
        prop_assert_eq!(solve(&problem, Some(best - 1)).expect("an answer"), Outcome::Beaten);
    }

    #[test]
    fn the_printed_problem_has_the_same_optimum(tables in tables()) {
        let problem = encode(&tables).problem;
        let found = match solve(&problem, None).expect("an answer") {
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
    let optimum = optimum_of_text(&problem).expect("the plan");
    // the master problem's bound on time, and the plan within its slack
    let plan = 1.0 / solved.plan.expected.decode_tokens_per_second / solved.tick_seconds;
    let least = optimum[0] as f64;
    assert!(
        least <= plan * 1.00001 && plan <= (least + solved.tables.time_slack as f64) * 1.00001,
        "{least} {plan}"
    );
    // and where there is no plan, the text says so
    let impossible = plans::plan::Request { decode_tokens_per_second_min: Some(1e6), ..request };
    let question = planner::request::resolve(&inputs, &impossible).expect("a question");
    let problem = planner::search::problem(&question).expect("a problem");
    assert_eq!(optimum_of_text(&problem), None);
}
