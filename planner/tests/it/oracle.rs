//! Z3's choice is the one that trying everything finds, ties included.

use planner::curve::div_up;
use planner::encode::encode;
use planner::solve::{Outcome, solve};
use planner::tables::{Bound, Choice, Mode, Tables};
use plans::plan::Objective;
use proptest::prelude::*;

/// Every choice there is.
fn all(tables: &Tables) -> Vec<Choice> {
    let of = |(mode, m): (usize, &Mode)| {
        (m.layers.least..=m.layers.most).map(move |pages| Choice { mode, pages }).collect::<Vec<_>>()
    };
    tables.modes.iter().enumerate().flat_map(of).collect()
}

/// The order in which choices are preferred: the objectives, then every decision.
fn rank(tables: &Tables, goal: Objective, choice: &Choice) -> Vec<i64> {
    let price = tables.price(choice);
    let (time, memory) = (div_up(price.time, tables.time_step), div_up(price.memory, tables.memory_step));
    let mut rank = if goal == Objective::Speed { vec![time, memory] } else { vec![memory, time] };
    rank.extend([price.cores, choice.mode as i64, choice.pages]);
    rank
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
    let mode = (10i64..200, 100i64..130, 1i64..4, 0u8..5, least, bound()).prop_map(
        |(serial, pages, cores, forbidden, (time, memory), layers)| Mode {
            serial,
            pages,
            cores,
            allowed: forbidden != 0,
            // what is known beyond the curves is never above the slowest or the largest choice
            least: (time.min(serial + layers.ticks(layers.least)), memory.min(pages + layers.most)),
            layers,
        },
    );
    let limits = (110i64..170, prop::option::of(110i64..170), prop::option::of(100i64..1500));
    (prop::collection::vec(mode, 1..6), limits, 1i64..20, 1i64..10).prop_map(
        |(modes, (machine_pages, user_pages, time_max), time_step, memory_step)| Tables {
            modes,
            user_pages,
            machine_pages,
            time_max,
            time_step,
            memory_step,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn z3_chooses_what_trying_everything_finds(tables in tables(), memory_first in any::<bool>()) {
        let goal = if memory_first { Objective::Memory } else { Objective::Speed };
        let allowed = all(&tables).into_iter().filter(|choice| tables.allows(choice));
        let best = allowed.min_by_key(|choice| rank(&tables, goal, choice));
        let encoded = encode(&tables, goal);
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
        let times = allowed.map(|choice| div_up(tables.price(&choice).time, tables.time_step));
        let Some(best) = times.min() else { return Ok(()) };
        let problem = encode(&tables, Objective::Speed).problem;
        prop_assert!(matches!(solve(&problem, Some(best)).expect("an answer"), Outcome::Best(_)));
        prop_assert_eq!(solve(&problem, Some(best - 1)).expect("an answer"), Outcome::Beaten);
    }
}

#[test]
fn the_problem_prints_as_smt_lib() {
    let inputs = crate::small::inputs(2);
    let text = planner::smt_lib(&inputs, &crate::small::request(Some(24 << 20))).expect("text");
    for part in ["(set-logic QF_LIA)", "|user.mem|", "(declare-const neurons Int)", "; minimise time"] {
        assert!(text.contains(part), "{part} is missing");
    }
    assert_eq!(text.matches('(').count(), text.matches(')').count());
}
