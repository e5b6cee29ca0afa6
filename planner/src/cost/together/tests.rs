//! Tests of `together.rs`.

use super::*;

#[test]
fn rows_share_all_where_each_concerns_all_and_nearly_nothing_where_few_are_concerned() {
    assert_eq!(of_any(100.0, 100.0, 8.0), 100.0);
    assert_eq!(of_any(100.0, 40.0, 1.0), 40.0);
    assert_eq!(of_any(100.0, 50.0, 2.0), 75.0);
    let few = of_any(1e6, 1.0, 8.0);
    assert!((7.999..8.0).contains(&few), "{few}");
    // by counting: two draws of 2 of 4 are 3 together, on average
    let pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
    let distinct = |a: (i32, i32), b: (i32, i32)| {
        let mut all = vec![a.0, a.1, b.0, b.1];
        all.sort_unstable();
        all.dedup();
        all.len() as f64
    };
    let all: f64 = pairs.iter().flat_map(|&a| pairs.iter().map(move |&b| distinct(a, b))).sum();
    assert_eq!(all / 36.0, of_any(4.0, 2.0, 2.0));
}
