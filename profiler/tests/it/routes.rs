//! The cache that prices policies, against what a phone recorded of a real model's experts.
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use plans::Policy;
use profiler::model::reuse::Replay;

const EXPERTS: u32 = 128;

/// An expert that a token visited: a layer's prompt is one request for all of them.
struct Visit {
    prompt: bool,
    token: u32,
    layer: u32,
    expert: u32,
    /// Whether the phone had it in memory.
    found: bool,
}

fn recorded(name: &str) -> Vec<Visit> {
    let text = fs::read_to_string(format!("../fixtures/routes/{name}.csv")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    let visits = lines.flat_map(|line| {
        let [phase, token, layer, experts] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
        let visit = move |expert: &str| Visit {
            prompt: phase == "0",
            token: token.parse().unwrap(),
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
    /// Share of the requests that the phone found in memory.
    recorded: f64,
    /// Share of the requests that the replay found in memory.
    replayed: f64,
    /// Visits on which the two disagree.
    differ: usize,
}

/// All layers share the slots, and the least recently used leaves.
fn replay(visits: &[Visit], layers: u32, slots: u32) -> Replayed {
    let mut replay = Replay::new(Policy::Lru, layers * EXPERTS, 0, slots);
    let (mut requests, mut recorded, mut replayed, mut differ) = (0, 0, 0, 0);
    let mut of_prompt = BTreeSet::new();
    for &Visit { prompt, layer, expert, found, .. } in visits {
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

/// Per layer: the experts of each token, of the prompt and of what was generated; the second: how many tokens are the prompt's.
fn by_layer(visits: &[Visit]) -> (Vec<Vec<Vec<u32>>>, usize) {
    let layers = visits.iter().map(|visit| visit.layer).max().unwrap() as usize + 1;
    let tokens = visits.iter().map(|visit| visit.token).max().unwrap() as usize + 1;
    let mut all = vec![vec![Vec::new(); tokens]; layers];
    for visit in visits {
        all[visit.layer as usize][visit.token as usize].push(visit.expert);
    }
    let of_prompt = visits.iter().filter(|visit| visit.prompt).map(|visit| visit.token).max().unwrap() + 1;
    (all, of_prompt as usize)
}

/// Experts that one layer's tokens after the prompt miss with so many slots of its own, under a policy.
fn missed(tokens: &[Vec<u32>], of_prompt: usize, policy: Policy, slots: u32) -> usize {
    let mut replay = Replay::new(policy, EXPERTS, 0, slots);
    let missing: Vec<usize> = tokens.iter().map(|token| replay.token(token).len()).collect();
    missing[of_prompt..].iter().sum()
}

/// Misses where all layers share the slots, and the least recently used expert of any layer is evicted.
fn missed_of_shared(layers: &[Vec<Vec<u32>>], of_prompt: usize, slots: u32) -> usize {
    let mut replay = Replay::new(Policy::Lru, layers.len() as u32 * EXPERTS, 0, layers.len() as u32 * slots);
    let mut missing = 0;
    for token in 0..layers[0].len() {
        for (layer, tokens) in (0..).zip(layers) {
            let experts: Vec<u32> = tokens[token].iter().map(|expert| layer * EXPERTS + expert).collect();
            let found = replay.token(&experts).len();
            missing += if token < of_prompt { 0 } else { found };
        }
    }
    missing
}

/// The fewest misses of a policy that knows the future: experts that come again soonest stay.
fn missed_at_best(tokens: &[Vec<u32>], of_prompt: usize, slots: u32) -> usize {
    let next = |expert: u32, after: usize| {
        tokens[after..].iter().position(|token| token.contains(&expert)).unwrap_or(usize::MAX)
    };
    let (mut cached, mut missing) = (BTreeSet::new(), 0);
    for (at, token) in tokens.iter().enumerate() {
        missing +=
            if at < of_prompt { 0 } else { token.iter().filter(|&expert| !cached.contains(expert)).count() };
        cached.extend(token);
        while cached.len() > slots as usize {
            let last = *cached.iter().max_by_key(|&&expert| next(expert, at + 1)).unwrap();
            cached.remove(&last);
        }
    }
    missing
}

/// How often what is requested of recorded routes is in memory, under each policy, and how often it could be at best.
#[test]
fn hit_rates_of_policies_beside_the_best_that_there_can_be() {
    let mut table = "| routes | slots of 128 | `lru` | `clock` | `frequency` | one `lru` for all layers | at best |\n|---|---|---|---|---|---|---|\n".to_owned();
    for name in ["qwen3-30b-a3b", "gpt-oss-120b"] {
        let (layers, of_prompt) = by_layer(&recorded(name));
        let requested: usize = layers.iter().flat_map(|tokens| &tokens[of_prompt..]).map(Vec::len).sum();
        for slots in [12, 25, 38, 51, 64] {
            let hits = |missed: usize| 100.0 * (1.0 - missed as f64 / requested as f64);
            let each = |of: &dyn Fn(&[Vec<u32>]) -> usize| hits(layers.iter().map(|tokens| of(tokens)).sum());
            let of = |policy| each(&|tokens| missed(tokens, of_prompt, policy, slots));
            let best = each(&|tokens| missed_at_best(tokens, of_prompt, slots));
            let own = [Policy::Lru, Policy::Clock, Policy::Frequency].map(of);
            let shared = hits(missed_of_shared(&layers, of_prompt, slots));
            assert!(own.into_iter().chain([shared]).all(|hits| hits <= best), "{own:?} {shared} {best}");
            let [lru, clock, frequency] = own;
            let line = [lru, clock, frequency, shared, best].map(|hits| format!("{hits:.1}")).join(" | ");
            writeln!(table, "| {name} | {slots} | {line} |").unwrap();
        }
    }
    let page = include_str!("../../../docs/internals.md");
    assert!(page.contains(&table), "docs/internals.md lacks this table:\n{table}");
}
