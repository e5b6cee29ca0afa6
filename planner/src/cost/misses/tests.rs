//! Tests of `misses.rs`.

use super::*;

#[test]
fn slots_fill_as_fast_as_a_cache_of_those_that_are_full_misses() {
    // from 40 a token to 5, and 2 with another policy
    let misses = [40.0, 30.0, 22.0, 16.0, 12.0, 9.0, 7.0, 6.0, 5.0];
    let filling = Filling { slots: 400.0, warm: 2.0, misses };
    assert_eq!(filling.at(0.0), 0.0);
    for tokens in [0.5, 1.0, 7.0, 12.3, 40.0, 1000.0] {
        // in small steps
        let (mut filled, mut full_at, dt) = (0.0, tokens, 1e-4);
        for i in 0..(tokens / dt) as usize {
            if filled >= 400.0 {
                full_at = i as f64 * dt;
                break;
            }
            let step = ((filled / 50.0) as usize).min(7);
            filled += dt * (misses[step] + (misses[step + 1] - misses[step]) * (filled / 50.0 - step as f64));
        }
        let (exact, stepped) = (filling.at(tokens), filled - 2.0 * full_at);
        assert!((exact - stepped).abs() < 0.01 * stepped.max(1.0), "{tokens}: {exact} {stepped}");
    }
    // one after which nothing is missing never fills
    let never = Filling { slots: 8.0, warm: 0.0, misses: [4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0] };
    assert!((never.at(1e9) - 4.0).abs() < 1e-6, "{}", never.at(1e9));
    assert_eq!(Filling { slots: 0.0, warm: 3.0, misses: [0.0; 9] }.at(7.0), 0.0);
}

/// Draws of neurons that are the rarer the higher their rank, counted: the order of use of all of them, most recent first, says at
/// which place each draw stood, and so which caches missed it.
#[test]
fn a_run_misses_as_many_neurons_as_differ_in_it() {
    const NEURONS: usize = 400;
    const OF_TOKEN: usize = 16;
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 33) as f64 / (1u64 << 31) as f64;
        ((NEURONS as f64 + 1.0).powf(uniform) - 1.0) as usize
    };
    let (mut recent, mut at_place, mut tokens) = ((0..NEURONS).collect::<Vec<_>>(), vec![0.0; NEURONS], 0.0);
    for token in 0..2000 {
        for _ in 0..OF_TOKEN {
            let drawn = draw();
            let place = recent.iter().position(|&neuron| neuron == drawn).expect("one of them");
            recent[..=place].rotate_right(1);
            at_place[place] += f64::from(u8::from(token >= 200));
        }
        tokens += f64::from(u8::from(token >= 200));
    }
    let missed = |slots: usize| at_place[slots.min(NEURONS)..].iter().sum::<f64>() / tokens;
    let misses = std::array::from_fn(|step| missed(step * NEURONS / FILLING_STEPS as usize));
    let filling = Filling { slots: NEURONS as f64, warm: 0.0, misses };
    for tokens in [1, 2, 5, 12, 30, 100] {
        let runs = 200;
        let differ: usize = (0..runs)
            .map(|_| {
                let mut seen = [false; NEURONS];
                (0..tokens * OF_TOKEN).for_each(|_| seen[draw()] = true);
                seen.iter().filter(|seen| **seen).count()
            })
            .sum();
        let (counted, told) = (differ as f64 / f64::from(runs), filling.at(tokens as f64));
        assert!((told / counted - 1.0).abs() < 0.12, "{tokens} tokens: {told} told, {counted} counted");
    }
}

#[test]
fn gaps_are_those_that_were_measured_or_as_misses_end() {
    let of = |alone: f64, [near, wide]: [Option<f64>; 2]| {
        Chances::new(0.2, Some(alone), [(3, near), (8, wide)]).begins
    };
    let begins = |alone, over_gaps| of(alone, [over_gaps, None])[0];
    assert!((begins(0.8, None) - 0.2).abs() < 1e-12 && (begins(0.4, None) - 0.1).abs() < 1e-12);
    let over = 0.4 * 0.7f64.powi(3);
    assert!((begins(0.4, Some(over)) - 0.3).abs() < 1e-12);
    assert_eq!((begins(0.4, Some(0.5)), begins(0.0, Some(0.0))), (0.0, 0.0));
    let [near, further] = of(0.4, [Some(over), Some(over * 0.9f64.powi(5))]);
    assert!((near - 0.3).abs() < 1e-12 && (further - 0.1).abs() < 1e-12, "{near} {further}");
    let [near, further] = of(0.4, [Some(over), None]);
    assert_eq!(near, further, "as among near ones where nothing else is known");
    assert_eq!(Chances::new(1.0, Some(0.3), [(3, None), (8, None)]), Chances::ALL);
}
