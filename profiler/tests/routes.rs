//! The cache that prices policies, against what a phone recorded of a real model's experts.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;

use plans::Policy;
use profiler::model::reuse::Replay;

const EXPERTS: u32 = 128;

/// An expert that a token visited: a layer's prompt is one request for all of them.
struct Visit {
    prompt: bool,
    layer: u32,
    expert: u32,
    /// Whether the phone had it in memory.
    found: bool,
}

fn recorded(name: &str) -> Vec<Visit> {
    let text = fs::read_to_string(format!("../fixtures/routes/{name}.csv")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
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

/// Results of a replay of a recording.
struct Replayed {
    /// Of the requests, those that the phone and the replay found in memory.
    recorded: f64,
    replayed: f64,
    /// Visits of which the two say different things.
    differ: usize,
}

/// All layers share the slots, and the least recently used leaves.
fn replay(visits: &[Visit], layers: u32, slots: u32) -> Replayed {
    let mut replay = Replay::new(Policy::Lru, layers * EXPERTS, 0, slots);
    let (mut requests, mut recorded, mut replayed, mut differ) = (0, 0, 0, 0);
    let mut of_prompt = BTreeSet::new();
    for &Visit { prompt, layer, expert, found } in visits {
        let hit = replay.token(&[layer * EXPERTS + expert]).is_empty();
        differ += usize::from(hit != found);
        if !prompt || of_prompt.insert((layer, expert)) {
            requests += 1;
            (recorded, replayed) = (recorded + u32::from(found), replayed + u32::from(hit));
        }
    }
    let share = |hits: u32| f64::from(hits) / f64::from(requests);
    Replayed { recorded: share(recorded), replayed: share(replayed), differ }
}

#[test]
fn a_replay_finds_what_the_phone_found() {
    let visits = recorded("gpt-oss-120b");
    assert_eq!(visits.len(), 10_560);
    let found = replay(&visits, 36, ((3000_u64 << 20) / 13_219_200) as u32);
    assert_eq!(found.differ, 0, "visit by visit");
    assert!((found.recorded - 0.324).abs() < 0.0005, "{} of 32.4 %", found.recorded);
}

/// Half of the layers have experts of 3,059,712 bytes, the others of 2,654,208: slots of their mean are nearly the same.
#[test]
fn a_replay_with_slots_of_the_mean_size_finds_as_often_as_the_phone() {
    let visits = recorded("qwen3-30b-a3b");
    assert_eq!(visits.len(), 44_766);
    let found = replay(&visits, 48, ((4000_u64 << 20) / 2_856_960) as u32);
    assert!((found.recorded - 0.749).abs() < 0.0005, "{} of 74.9 %", found.recorded);
    assert!((found.replayed - found.recorded).abs() < 0.003, "{} of {}", found.replayed, found.recorded);
}
