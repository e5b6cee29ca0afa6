//! Several sequences: what their memory takes, and what they give together.

use plans::plan::Request;

use crate::small::{inputs, plan, request};

#[test]
fn each_sequence_has_keys_and_values_of_its_own_within_the_limit() {
    let inputs = inputs(3);
    let one = request(Some(40 << 20));
    let of = |sequences| plan(&inputs, &Request { sequences: Some(sequences), ..one.clone() }).plan;
    let (plain, single, four) = (plan(&inputs, &one).plan, of(1), of(4));
    assert_eq!((single.memory, single.context.sequences, single.together.as_ref()), (plain.memory, 1, None));
    assert_eq!(four.memory.kv_bytes, 4 * plain.memory.kv_bytes);
    assert!(four.memory.activations_bytes > 2 * plain.memory.activations_bytes);
    assert!(four.memory.prefill_total_bytes <= four.memory.limit_bytes, "{:?}", four.memory);
    assert_eq!(four.quality, plain.quality);
    for impossible in [0, 9] {
        let error =
            planner::plan(&inputs, &Request { sequences: Some(impossible), ..one.clone() }).unwrap_err();
        assert!(error.to_string().contains("there may be 1 to 8 sequences"), "{error}");
    }
}

#[test]
fn together_sequences_give_no_less_than_one_and_no_more_than_that_many() {
    for (level, mib) in [("dense", 26), ("dense", 64), ("sign", 28), ("low-rank", 30)] {
        let inputs = inputs(3);
        let requested = Request {
            sequences: Some(8),
            level: Some(level.to_owned()),
            perplexity_change_fraction_max: 1.0,
            ..request(Some(mib << 20))
        };
        let plan = plan(&inputs, &requested).plan;
        let speeds = &plan.together.as_ref().unwrap().decode_tokens_per_second;
        assert_eq!((speeds.len(), speeds[0]), (8, plan.expected.decode_tokens_per_second));
        // nothing is read ahead for several: two may be slower than one that looks ahead
        let from = usize::from(plan.read.look_ahead > 0);
        for (rows, pair) in (1..).zip(speeds[from..].windows(2)) {
            assert!(pair[1] >= pair[0] * 0.999, "{level} {mib} {rows}: {speeds:?}");
        }
        for (rows, speed) in (1..).zip(speeds) {
            assert!(
                *speed <= 1.001 * f64::from(rows) * speeds[0].max(speeds[from]),
                "{level} {mib}: {speeds:?}"
            );
        }
        // a dense model without experts asks for the same of all: what is read is read once
        if level == "dense" && mib == 26 {
            assert!(plan.expected.bytes_read_per_token > 0.0 && speeds[7] > 4.0 * speeds[0], "{speeds:?}");
        }
    }
}
