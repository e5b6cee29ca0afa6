//! Tests of `speculation.rs`.

use super::*;

#[test]
fn a_speed_is_the_tokens_of_all_steps_over_their_time() {
    // by counting: of ten steps four have a draft and take 3 s, the others 2 s; six tokens are kept in all
    let tokens = 10.0 + 6.0;
    let seconds = 4.0 * 3.0 + 6.0 * 2.0;
    assert!((speed(0.6, 0.4, [2.0, 3.0]) - tokens / seconds).abs() < 1e-12);
    // nothing drafted, nothing gained or lost
    assert_eq!(speed(0.0, 0.0, [2.0, 9.0]), 0.5);
}

#[test]
fn drafts_pay_where_they_are_faster_by_more_than_plans_are_wrong() {
    let of = |draft_tokens, decode_tokens_per_second| Speculation {
        draft_tokens,
        drafted_tokens_per_step: 1.0,
        tokens_per_step: 1.5,
        decode_tokens_per_second,
    };
    let drafts = [of(1, 11.0), of(2, 12.5), of(3, 12.5), of(4, 9.0)];
    assert_eq!(pays(&drafts, 10.0), Some(drafts[1]));
    assert_eq!(pays(&drafts, 10.5), None, "not by a fifth");
    assert_eq!(pays(&[], 1.0), None);
}
