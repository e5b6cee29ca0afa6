//! What `plan` says of the paper's phones and models, beside the paper's own results.

#[path = "../../examples/published/devices.rs"]
mod devices;
#[path = "../../examples/published/misses.rs"]
mod misses;
#[path = "../../examples/published/models.rs"]
mod models;
#[path = "../../examples/published/results.rs"]
mod results;

use results::Compared;

#[test]
fn the_papers_results_come_out_within_stated_bounds() {
    for Compared { what, paper, planned, bounds: [least, most] } in results::compared().expect("plans") {
        let ratio = planned / paper;
        assert!((least..=most).contains(&ratio), "{what}: {planned} for {paper}, {ratio} of it");
    }
}

/// Misses by walking through tokens, one after another, with a cache that drops what was not used for longest.
#[test]
fn misses_of_a_cache_that_knows_experts_are_those_of_a_walk() {
    use misses::Requests;
    use std::collections::HashMap;

    // no persistence beyond that of independent draws, which is what the approximation is for
    let requests = Requests {
        expert: 200,
        experts: 4.0,
        used: 1.0,
        requested: 40.0,
        persistence: 0.0,
        same_expert: 0.0,
    };
    let axes = plans::model::ReuseAxes {
        cached_fraction: vec![0.0, 0.3, 0.6, 1.0],
        pinned_share_fraction: vec![0.0, 0.5],
        wide_gap_ranks: None,
    };
    let (skew, chances) = (0.8, requests.chances(0.8));
    let surface = requests.surface(skew, &axes);
    let mut state = 7_u64;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    for (row, share) in surface.iter().zip(&axes.pinned_share_fraction) {
        for (cell, cached) in row.iter().zip(&axes.cached_fraction) {
            let hot = (share * cached * 200.0).round() as usize;
            let slots = (cached * 800.0) as usize - 4 * hot;
            let (mut used, mut now, mut missed, mut requested): (HashMap<_, u64>, u64, f64, f64) =
                (HashMap::new(), 0, 0.0, 0.0);
            for token in 0..1500 {
                let expert = (uniform() * 4.0) as usize;
                for (neuron, &chance) in chances.iter().enumerate() {
                    if uniform() >= chance {
                        continue;
                    }
                    now += 1;
                    let there = neuron < hot || used.contains_key(&(expert, neuron));
                    if token >= 300 {
                        requested += 1.0;
                        missed += f64::from(u8::from(!there));
                    }
                    if neuron >= hot && slots > 0 {
                        used.insert((expert, neuron), now);
                        if used.len() > slots {
                            let oldest = *used.iter().min_by_key(|(_, at)| **at).expect("some").0;
                            used.remove(&oldest);
                        }
                    }
                }
            }
            let walked = missed / requested;
            assert!((walked - cell).abs() < 0.03, "{share} pinned of {cached}: {cell}, walked {walked}");
        }
    }
}
