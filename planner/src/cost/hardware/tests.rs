//! Tests of `hardware.rs`.

use super::*;

#[test]
fn a_row_takes_what_was_measured_at_both_lengths_and_a_line_between() {
    // 2 bytes a value: 8192 bytes at 8 GB/s, and a short row of 512 bytes in a quarter of that time instead of a 16th
    let rate = RowRate::new(8.192e9, Some(0.25e-6), 512.0);
    let row = |values: f64| rate.seconds(2.0 * values, values) * 1e6;
    for (values, seconds) in [(4096.0, 1.0), (256.0, 0.25), (2176.0, 0.625), (8192.0, 2.0), (1.0, 0.2002)] {
        assert!((row(values) - seconds).abs() < 1e-4, "{values}: {} instead of {seconds}", row(values));
    }
    let unknown = RowRate::new(8.192e9, None, 512.0);
    assert_eq!(unknown.seconds(512.0, 256.0), 512.0 / 8.192e9);
}

#[test]
fn more_threads_are_no_slower_than_fewer_by_what_windows_lay_apart() {
    let rates = [4.0, 3.8, 7.0, 5.0];
    let at = |threads, spread| of_threads(&rates, threads, spread);
    assert_eq!([1, 2, 3, 4].map(|threads| at(threads, Some(0.1))), [4.0, 4.0, 7.0, 5.0]);
    assert_eq!([1, 2, 3, 4].map(|threads| at(threads, None)), rates, "an older profile is taken as it is");
    assert_eq!(at(4, Some(0.5)), 7.0);
}

#[test]
fn a_chunk_costs_what_a_line_through_two_lengths_leaves_without_tokens() {
    let kernel = |few: Option<f64>| KernelSpeed {
        format: "Q4_0".to_owned(),
        instruction_set: "scalar".to_owned(),
        flops_per_second: vec![1.0],
        dense_bytes_per_second: vec![1.0],
        sparse_bytes_per_second: vec![1.0],
        sparse_down_bytes_per_second: None,
        sparse_down_group_seconds: None,
        // a token takes a second and a chunk twenty: 128 tokens in 148 seconds, 16 in 36
        prompt_flops_per_second: Some(vec![128.0 / 148.0]),
        prompt_few_flops_per_second: few.map(|few| vec![few]),
        prompt_sparse_flops_per_second: None,
        attention_flops_per_second: None,
        short_dense_row_seconds: None,
        short_dot_row_seconds: None,
        short_add_row_seconds: None,
        dispatch_seconds: vec![1.0],
        spread_fraction: None,
    };
    assert!((chunk_tokens(&kernel(Some(16.0 / 36.0)), 0) - 20.0).abs() < 1e-9);
    assert_eq!(chunk_tokens(&kernel(None), 0), CHUNK_TOKENS_ASSUMED);
    // few tokens as fast as many: a chunk costs nothing; as long as many: disturbed, and bounded
    assert_eq!(chunk_tokens(&kernel(Some(128.0 / 148.0)), 0), 0.0);
    assert_eq!(chunk_tokens(&kernel(Some(16.0 / 148.0)), 0), 1024.0);
}
