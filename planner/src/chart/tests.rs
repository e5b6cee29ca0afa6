//! Tests of `chart.rs`.

use plotters::prelude::{BLUE, RED};

use super::*;

#[test]
fn every_point_is_drawn() {
    let points = [(1 << 30, 2.0), (3 << 30, 4.0), (4 << 30, 6.0)];
    let series = [("planned", BLUE), ("simple rule", RED)];
    let series = series.map(|(name, colour)| Series { name, colour, points: points.to_vec() });
    let svg = speed_against_memory("a title", 2 << 30, &series).unwrap();
    for text in ["a title", "planned", "simple rule", "memory limit, GiB", "model, 2.0 GiB"] {
        assert!(svg.contains(text), "{text}");
    }
    assert_eq!(svg.matches("<circle").count(), 2 + 2 * 3, "the legend's, and each point of each");
}
