//! Inputs for which a printed bound was false.

use std::path::Path;

use planner::{Answer, Inputs, plan};
use plans::plan::{Feature, Request};

fn inputs() -> Inputs {
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/cases").join(name);
    planner::read_inputs(&file("false-bound.device.toml"), &file("false-bound.model.toml")).expect("profiles")
}

/// Slots that lie under a prompt's rows cost nothing, so as many pinned neurons do not dominate them.
#[test]
fn no_restricted_plan_is_faster_than_the_bound() {
    let inputs = inputs();
    let within = |without: Vec<Feature>| {
        let request = Request { memory_limit_bytes: Some(4_102_309), without, ..Request::default() };
        match plan(&inputs, &request) {
            Ok(Answer::Plan(solved)) => Some(solved),
            _ => None,
        }
    };
    let bound = 1.0 / within(vec![]).expect("a plan").seconds_proven;
    // some mechanisms cannot be left out of this model
    for feature in Feature::ALL {
        let Some(other) = within(vec![feature]) else { continue };
        let speed = other.plan.expected.decode_tokens_per_second;
        assert!(speed <= bound * 1.00001, "{speed} tok/s without {feature:?}, proven {bound}");
    }
}
