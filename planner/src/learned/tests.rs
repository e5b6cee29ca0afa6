//! Tests of `learned.rs`.

use super::*;

/// Eight experts: half of all visits are of the last one, most of them at once again.
fn layer() -> LayerVisits {
    LayerVisits {
        visits: vec![10, 0, 5, 5, 10, 10, 10, 50],
        distances: vec![
            vec![40, 20, 10, 10, 10, 5, 5, 0],
            vec![50, 20, 10, 5, 5, 0],
            vec![60, 10, 10, 0],
            vec![50, 10],
        ],
        // no slot at first, then 1, 1, 2, 2, 3, 4, 5, 6 and 7
        frequency_misses: vec![100, 50, 50, 35, 35, 30, 20, 10, 5, 0],
    }
}

#[test]
fn misses_are_the_visits_beyond_the_slots() {
    let of = |pinned, slots| miss_fraction(&layer(), pinned, slots);
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    near(of(0.0, 0.0), 1.0);
    near(of(0.0, 1.0), 0.6);
    near(of(0.0, 1.5), 0.5);
    near(of(0.0, 7.0), 0.0);
    // pinned alone: the visits of the others
    near(of(1.0, 0.0), 0.9);
    near(of(2.5, 0.0), 0.875);
    near(of(6.0, 0.0), 0.6);
    // a prefix that was counted, and one between two
    near(of(4.0, 1.0), 0.2);
    near(of(3.0, 1.0), 0.85 * (40.0 / 90.0 + 20.0 / 80.0) / 2.0);
    near(of(5.0, 3.0), 0.0);
    // everything misses less in a larger cache
    for tenths in 0..80 {
        let slots = f64::from(tenths) / 10.0;
        for pinned in [0.0, 0.7, 3.3, 5.1] {
            assert!(of(pinned, slots + 0.1) <= of(pinned, slots) + 1e-12, "{pinned} {slots}");
            assert!(of(pinned + 0.1, 0.0) <= of(pinned, 0.0) + 1e-12);
        }
    }
}

#[test]
fn surfaces_are_those_of_both_counted_policies_and_never_rise() {
    let axes = ReuseAxes {
        cached_fraction: vec![0.0, 0.5, 0.75, 1.0],
        pinned_share_fraction: vec![0.0, 0.5, 1.0],
        wide_gap_ranks: None,
    };
    let unknown = || vec![vec![0.5; 4]; 3];
    let mut level = LevelLayer {
        active_predicted_fraction: 1.0,
        beta_fraction: 1.0,
        predicted_neurons_mean: 1.0,
        predicted_neurons_p99: 1.0,
        always_on_neurons: 0,
        miss_fraction: unknown(),
        clock_miss_fraction: unknown(),
        frequency_miss_fraction: unknown(),
        runs_fraction: Vec::new(),
        runs_over_gaps_fraction: Vec::new(),
        runs_over_wide_gaps_fraction: Vec::new(),
    };
    replace(&mut level, &layer(), &axes);
    let [lru, frequency] = [&level.miss_fraction, &level.frequency_miss_fraction];
    assert_eq!((&lru[0], &lru[2]), (&vec![1.0, 0.2, 0.05, 0.0], &vec![1.0, 0.8, 0.6, 0.0]));
    assert_eq!((&frequency[0], &frequency[2]), (&vec![1.0, 0.2, 0.05, 0.0], &lru[2]), "as counted");
    // two experts pinned, two of the other six in slots: a third of a cache without pinned ones
    let of_third = 0.35 + (2.0 / 3.0) * (0.30 - 0.35);
    let lru_of_third = 0.4 - 0.1 * (2.0 / 3.0);
    assert_eq!(frequency[1][1], significant(lru[1][1] * of_third / lru_of_third));
    assert_eq!(level.clock_miss_fraction, Vec::<Vec<f64>>::new(), "not counted, and not planned");
}
