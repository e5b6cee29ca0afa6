//! Explanations name the limits that contradict each other, with their numbers and the nearest plans.

use planner::{Answer, Infeasible};
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
    let sentence = &why.sentences[0];
    assert!(sentence.starts_with("24.0 MiB reach ") && sentence.contains(" tok/s needs "), "{why}");
}

#[test]
fn a_floor_beyond_any_memory_says_so() {
    let mut requested = request(Some(32 << 20));
    requested.decode_tokens_per_second_min = Some(1e6);
    let why = why(&requested);
    assert!(!why.conflict.contains(&"user.mem") && why.conflict.contains(&"user.min_speed"), "{why}");
    assert!(why.sentences[0].contains("no memory helps"), "{why}");
}

#[test]
fn a_held_level_beyond_the_allowed_loss_is_named() {
    let mut requested = request(None);
    requested.level = Some("low-rank".to_owned());
    let why = why(&requested);
    assert_eq!(why.conflict, ["user.max_loss"]);
    assert!(why.sentences[0].contains("allow it with --max-loss 2"), "{why}");
}

#[test]
fn more_than_the_machine_has_is_never_planned() {
    let inputs = inputs(4);
    let solved = crate::small::plan(&inputs, &request(Some(1 << 40)));
    assert!(solved.plan.memory.limit_bytes <= inputs.device.capacity.plannable_bytes());
}
