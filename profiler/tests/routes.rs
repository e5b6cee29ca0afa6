//! The cache that prices policies, against what a phone recorded of a real model's experts.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;

use plans::Policy;
use profiler::model::reuse::Replay;

const EXPERTS: u32 = 128;
const LAYERS: u32 = 36;
const EXPERT_BYTES: u64 = 13_219_200;
const CACHE_BYTES: u64 = 3000 << 20;

/// An expert that a token visited: a layer's prompt is one request for all of them.
struct Visit {
    prompt: bool,
    layer: u32,
    expert: u32,
    /// Whether the phone had it in memory.
    found: bool,
}

fn recorded() -> Vec<Visit> {
    let text = fs::read_to_string("../fixtures/routes/gpt-oss-120b.csv").unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let visits = lines.flat_map(|line| {
        let [phase, _token, layer, experts] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
        let visit = move |expert: &str| Visit {
            prompt: phase == "0",
            layer: layer.parse().unwrap(),
            expert: expert.trim_end_matches('+').parse().unwrap(),
            found: expert.ends_with('+'),
        };
        experts.split(' ').map(visit)
    });
    visits.collect()
}

#[test]
fn a_replay_finds_what_the_phone_found() {
    let slots = (CACHE_BYTES / EXPERT_BYTES) as u32;
    // all layers share the slots
    let mut replay = Replay::new(Policy::Lru, LAYERS * EXPERTS, 0, slots);
    let (mut requests, mut hits, mut of_prompt) = (0, 0, BTreeSet::new());
    let visits = recorded();
    assert_eq!(visits.len(), 10_560);
    for Visit { prompt, layer, expert, found } in visits {
        let missing = replay.token(&[layer * EXPERTS + expert]).len();
        assert_eq!(missing == 0, found, "expert {expert} of layer {layer}");
        if !prompt || of_prompt.insert((layer, expert)) {
            requests += 1;
            hits += u64::from(found);
        }
    }
    let rate = hits as f64 / f64::from(requests);
    assert!((rate - 0.324).abs() < 0.0005, "{rate} of 32.4 %");
}
