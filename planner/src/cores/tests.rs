//! Tests of `cores.rs`.

use proptest::prelude::*;

use super::*;

#[test]
fn of_many_cores_numbers_lie_apart_and_none_of_few_is_left_out() {
    assert!((0..=16).all(|all| counts(all).eq(0..=all)));
    for all in [17, 64, 100, 128, 511] {
        let tried: Vec<usize> = counts(all).collect();
        assert_eq!((tried[0], tried[tried.len() - 1]), (0, all));
        let close = |of: &[usize]| of[1] == of[0] + 1 || 8 * (of[1] - of[0]) <= of[1];
        assert!(tried.windows(2).all(close) && tried.len() <= 8 * (all.ilog2() as usize + 1), "{tried:?}");
    }
}

proptest! {
    #[test]
    fn what_is_kept_is_what_no_other_beats(rows in prop::collection::vec(prop::array::uniform3(0i8..4), 0..40)) {
        let no_more = |i: usize, j: usize| rows[i].iter().zip(&rows[j]).all(|(a, b)| a <= b);
        let beats = |i: usize, j: usize| i != j && no_more(i, j) && (rows[i] != rows[j] || i < j);
        let all = 0..rows.len();
        let expected: Vec<usize> = all.clone().filter(|&j| !all.clone().any(|i| beats(i, j))).collect();
        prop_assert_eq!(keep_unbeaten(all.collect(), |&i| rows[i].map(f64::from).to_vec()), expected);
    }
}
