//! Z3's choice is the one that trying everything finds, ties included.

use planner::encode::encode;
use planner::solve::{Outcome, solve};
use planner::tables::{Choice, ComputeMode, Group, ReadMode, Stretch, Tables, div_up};
use plans::plan::Objective;
use proptest::prelude::*;

/// Every choice there is.
fn all(tables: &Tables) -> Vec<Choice> {
    let mut groups: Vec<Vec<(usize, i64)>> = vec![Vec::new()];
    for group in &tables.groups {
        let options: Vec<(usize, i64)> = group
            .stretches
            .iter()
            .enumerate()
            .flat_map(|(i, s)| (s.low()..=s.high()).map(move |cached| (i, cached)))
            .collect();
        groups = groups
            .iter()
            .flat_map(|before| options.iter().map(move |&option| [before.clone(), vec![option]].concat()))
            .collect();
    }
    let mut choices = Vec::new();
    for compute in 0..tables.compute.len() {
        for read in 0..tables.reads.len() {
            choices.extend(groups.iter().map(|groups| Choice { compute, read, groups: groups.clone() }));
        }
    }
    choices
}

/// The order in which choices are preferred: the objectives, then every decision.
fn rank(tables: &Tables, goal: Objective, choice: &Choice) -> Vec<i64> {
    let price = tables.price(choice);
    let (time, memory) = (div_up(price.time, tables.time_step), div_up(price.memory, tables.memory_step));
    let mut rank = if goal == Objective::Speed { vec![time, memory] } else { vec![memory, time] };
    rank.extend([price.cores, choice.compute as i64, choice.read as i64]);
    rank.extend(choice.groups.iter().map(|group| group.0 as i64));
    rank.extend(choice.groups.iter().map(|group| group.1));
    rank
}

/// A convex falling curve from `low`, its corners four quanta apart.
fn stretch() -> impl Strategy<Value = Stretch> {
    (0i64..3, prop::collection::vec(0i64..400, 2), 0i64..100, prop::sample::select(vec![0, 500, 1000]))
        .prop_map(|(low, mut falls, rest, share_permille)| {
            falls.sort_unstable();
            let mut y = rest;
            let mut corners = vec![(low + 8, y)];
            for (i, fall) in falls.iter().enumerate() {
                y += fall;
                corners.push((low + 4 - 4 * i as i64, y));
            }
            corners.reverse();
            Stretch { share_permille, corners }
        })
}

fn tables() -> impl Strategy<Value = Tables> {
    let group = (1usize..4, prop::collection::vec(stretch(), 1..3));
    let compute =
        (10i64..200, 0i64..20, 1usize..4, any::<bool>(), prop::collection::vec((20i64..200, 1i64..20), 2));
    let read = (prop::collection::vec((100i64..2000, 0i64..900), 2), 0i64..300, 0i64..20);
    let limits =
        (150i64..900, prop::option::of(100i64..900), prop::option::of(300i64..4000), 1i64..20, 1i64..10);
    (
        prop::collection::vec(group, 1..3),
        prop::collection::vec(compute, 1..4),
        prop::collection::vec(read, 1..3),
        limits,
        0i64..300,
    )
        .prop_map(|(groups, compute, reads, limits, interference)| {
            let (machine_pages, user_pages, time_max, time_step, memory_step) = limits;
            let mode = |(serial, memory, cores, shared, layers): (i64, i64, usize, bool, Vec<(i64, i64)>)| {
                ComputeMode {
                    cores: (0..cores as u32).collect(),
                    io_cores: vec![7],
                    shared,
                    cluster: 64,
                    serial,
                    memory,
                    core_count: cores as i64 + i64::from(!shared),
                    layers,
                    allowed: true,
                }
            };
            let read = |(rates, fill, memory): (Vec<(i64, i64)>, i64, i64)| ReadMode {
                depth: 1,
                direct: true,
                buffers: 1,
                buffer_bytes: 4096,
                gap_bytes: 0,
                missing: rates.iter().map(|rate| rate.0).collect(),
                issue: rates.iter().map(|rate| rate.1).collect(),
                fill,
                memory,
            };
            let counts: Vec<i64> = groups.iter().map(|group| group.0 as i64).collect();
            Tables {
                compute: compute.into_iter().map(mode).collect(),
                reads: reads.into_iter().map(read).collect(),
                groups: groups
                    .into_iter()
                    .map(|(layers, stretches)| Group { layers: (0..layers).collect(), stretches })
                    .collect(),
                quantum: 1,
                tick_seconds: 1e-6,
                base: 100,
                kv: 20,
                cached_pages: counts.iter().map(|n| 9 * n).collect(),
                slot_pages: counts.iter().map(|n| 700 * n).collect(),
                user_pages,
                machine_pages,
                time_max,
                interference,
                time_step,
                memory_step,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn z3_chooses_what_trying_everything_finds(tables in tables(), memory_first in any::<bool>()) {
        let goal = if memory_first { Objective::Memory } else { Objective::Speed };
        let allowed = all(&tables).into_iter().filter(|choice| tables.allows(choice));
        let best = allowed.min_by_key(|choice| rank(&tables, goal, choice));
        let encoded = encode(&tables, goal);
        match solve(&encoded.problem, None).expect("an answer") {
            Outcome::Best(values) => {
                let choice = encoded.choice(&tables, &values);
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
    fn a_guess_keeps_the_limits_and_the_solver_is_never_worse(tables in tables()) {
        let Some((choice, price)) = tables.guess(Objective::Speed) else { return Ok(()) };
        prop_assert!(tables.allows(&choice));
        let encoded = encode(&tables, Objective::Speed);
        let to_beat = div_up(price.time, tables.time_step);
        let Outcome::Best(values) = solve(&encoded.problem, Some(to_beat)).expect("an answer") else {
            return Err(TestCaseError::fail("the guess was not found"));
        };
        let solved = tables.price(&encoded.choice(&tables, &values));
        prop_assert!(div_up(solved.time, tables.time_step) <= to_beat);
    }
}

#[test]
fn the_problem_prints_as_smt_lib() {
    let inputs = crate::small::inputs(2);
    let text = planner::smt_lib(&inputs, &crate::small::request(Some(24 << 20))).expect("text");
    for part in [
        "(set-logic QF_LIA)",
        "|user.mem|",
        "(declare-const cached_0 Int)",
        "; minimise time",
        "; level sign",
    ] {
        assert!(text.contains(part), "{part} is missing");
    }
    assert_eq!(text.matches('(').count(), text.matches(')').count());
}
