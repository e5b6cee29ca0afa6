//! Latent attention: the stored vector, the matrices applied to it, and the file's keys.

use super::*;

/// Keys of a model with four heads that stores one vector of 32 values and a key of 32.
pub(super) const KEYS: [(&str, u32); 7] = [
    ("attention.q_lora_rank", 32),
    ("attention.kv_lora_rank", 32),
    ("attention.key_length", 64),
    ("attention.value_length", 32),
    ("attention.key_length_mla", 64),
    ("attention.value_length_mla", 32),
    ("rope.dimension_count", 32),
];

/// The attention tensors of a layer.
pub(super) fn tensors(width: usize) -> Vec<(&'static str, Vec<usize>)> {
    vec![
        ("attn_q_a", vec![width, 32]),
        ("attn_q_a_norm", vec![32]),
        ("attn_q_b", vec![32, 4 * 64]),
        ("attn_kv_a_mqa", vec![width, 32 + 32]),
        ("attn_kv_a_norm", vec![32]),
        ("attn_k_b", vec![32, 32, 4]),
        ("attn_v_b", vec![32, 32, 4]),
        ("attn_output", vec![4 * 32, width]),
    ]
}

fn with_model(experts: usize, format: Format, of: impl Fn(&SourceModel<'_>, &Container)) {
    let bytes = model_of("deepseek2", experts, format, WIDTH);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    of(&source, &container(folder.path(), &source));
}

#[test]
fn keys_and_values_in_every_format_give_the_references_numbers() {
    const FORMATS: [(KvFormat, Format); 4] = [
        (KvFormat::F32, Format::F32),
        (KvFormat::F16, Format::F16),
        (KvFormat::Q8_0, Format::Q8_0),
        (KvFormat::Q4_0, Format::Q4_0),
    ];
    for experts in [1, 4] {
        with_model(experts, Format::F32, |source, container| {
            let by = |(_, format)| -> Vec<Vec<f32>> {
                let mut reference = Reference::new(source, best()).with_kv_format(format);
                TOKENS.iter().map(|&token| reference.step(token, &mut ())).collect()
            };
            let expected = FORMATS.map(by);
            for (at, (kv, _)) in FORMATS.into_iter().enumerate() {
                let mut first: Option<[Vec<Vec<f32>>; 2]> = None;
                for knobs in all_knobs(&backends(container)) {
                    let knobs = Knobs { kv, ..knobs };
                    let mut engine = start(container, &plan(container, "dense", &knobs));
                    let decoded = decode(&mut engine).unwrap();
                    let mut prompt = Vec::new();
                    engine.prefill(&rows(&TOKENS), Some(&mut |_, row| prompt.push(row.to_vec()))).unwrap();
                    for logits in [&decoded, &prompt] {
                        let off = expected.each_ref().map(|expected| distance(logits, expected));
                        // rounding to the format has a far larger effect than the order of sums
                        let others = (0..FORMATS.len()).filter(|&other| other != at).map(|other| off[other]);
                        let nearest = others.fold(f32::INFINITY, f32::min);
                        assert!(
                            off[at] < 1e-4 && off[at] * 4.0 < nearest,
                            "{experts} {kv:?} {knobs:?}: {off:?}"
                        );
                    }
                    let same = first.get_or_insert_with(|| [decoded.clone(), prompt.clone()]);
                    assert!(*same == [decoded, prompt], "{experts} {kv:?} {knobs:?}");
                }
            }
        });
    }
}

#[test]
fn sequences_and_drafts_have_the_bits_that_each_token_has_alone() {
    for (experts, format) in [(1, Format::F32), (4, Format::Q8_0), (1, Format::Q4_0)] {
        with_model(experts, format, |_, container| {
            let all = all_knobs(&backends(container));
            together::check(container, &format!("latent {experts} {format}"), "dense", &all);
        });
    }
}

#[test]
fn a_token_keeps_one_vector_and_the_memory_is_that_of_it() {
    with_model(1, Format::F32, |_, container| {
        let tokens = TOKENS.len() as u64;
        for (kv, bytes) in
            [(KvFormat::F32, 64 * 4), (KvFormat::F16, 64 * 2), (KvFormat::Q8_0, 68), (KvFormat::Q4_0, 36)]
        {
            let of_token = LAYERS as u64 * bytes;
            assert_eq!(kv_bytes_per_token(&container.directory.architecture(), kv), of_token);
            let knobs = Knobs { kv, ..Knobs::default() };
            let mut engine = start(container, &plan(container, "dense", &knobs));
            decode(&mut engine).unwrap();
            assert_eq!(engine.kv_bytes_per_token(), of_token);
            assert_eq!(engine.counters().detail.traffic.kv, of_token * tokens * (tokens + 1) / 2);
        }
        // queries are widest: [4 heads, 64], before and after projection
        let latent = container.directory.architecture().latent.unwrap();
        assert_eq!((latent.projected_values, latent.mixed_values), (4 * 64, 4 * 64));
    });
}

/// The smallest file: its keys, and as many tensors as layers.
fn keys(of: impl FnOnce(Writer) -> Writer, without: &[&str]) -> String {
    let key = |name: &str| format!("deepseek2.{name}");
    let usual = [
        ("block_count", 2),
        ("context_length", 64),
        ("vocab_size", 40),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 1),
    ];
    let mut writer = Writer::new().text("general.architecture", "deepseek2");
    for (name, value) in usual.into_iter().chain(KEYS).filter(|(name, _)| !without.contains(name)) {
        writer = writer.u32(&key(name), value);
    }
    writer = of(writer.f32(&key("attention.layer_norm_rms_epsilon"), 1e-5));
    writer = writer.tensor("blk.0.attn_norm.weight", &[64]).tensor("blk.1.attn_norm.weight", &[64]);
    SourceModel::from_gguf(Gguf::parse(&writer.bytes()).unwrap()).unwrap_err().to_string()
}

#[test]
fn what_is_not_implemented_is_refused_by_its_key() {
    let key = |name: &str| format!("deepseek2.{name}");
    let refused = |said: String, expected: &str| assert!(said.contains(expected), "{expected}: {said}");
    // early converters wrote one matrix `attn_kv_b` for keys and values
    let early = keys(
        |writer| writer.u32(&key("attention.key_length"), 64).u32(&key("attention.value_length"), 32),
        &[
            "attention.key_length_mla",
            "attention.value_length_mla",
            "attention.key_length",
            "attention.value_length",
        ],
    );
    refused(early, "key `deepseek2.attention.key_length_mla` is missing: convert the model again");
    let others = |values: &[(&str, u32)]| {
        let without: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
        keys(
            |writer| values.iter().fold(writer, |writer, (name, value)| writer.u32(&key(name), *value)),
            &without,
        )
    };
    let other = |name: &str, value: u32| others(&[(name, value)]);
    refused(other("attention.head_count_kv", 4), "deepseek2.attention.head_count_kv` is 4");
    refused(other("attention.value_length", 64), "deepseek2.attention.value_length` is 64");
    let grouped = |count: u32, used: u32| {
        others(&[
            ("expert_count", 4),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", 32),
            ("expert_group_count", count),
            ("expert_group_used_count", used),
        ])
    };
    refused(
        grouped(3, 1),
        "the number of groups of experts is 3, but it must divide the number of experts, 4",
    );
    refused(grouped(2, 0), "the number of groups used is 0, outside 1 to 2");
    refused(grouped(2, 3), "the number of groups used is 3, outside 1 to 2");
    refused(other("nextn_predict_layers", 2), "fewer than there are layers");
    let scaled = |kind: &str| {
        let (kind, factor) = (kind.to_owned(), key("rope.scaling.factor"));
        keys(|writer| writer.text(&key("rope.scaling.type"), &kind).f32(&factor, 4.0), &[])
    };
    refused(scaled("linear"), "only none or yarn is implemented");
    refused(scaled("yarn"), "deepseek2.rope.scaling.yarn_log_multiplier` is missing");
    let temperature = keys(|writer| writer.f32(&key("attention.temperature_scale"), 0.1), &[]);
    refused(temperature, "deepseek2.attention.temperature_scale");
    // sizes beyond the planned memory
    let wide =
        [("attention.kv_lora_rank", 96), ("attention.key_length", 128), ("attention.value_length", 96)];
    refused(others(&wide), "the rank of keys and values is 96, outside 1 to 64");
    refused(other("attention.q_lora_rank", 65), "the rank of queries is 65, outside 1 to 64");
    refused(other("attention.key_length_mla", 32), "that are not rotated is 0");
    refused(
        others(&[("rope.dimension_count", 7), ("attention.key_length", 39)]),
        "the width of a head is 39, but it must be even",
    );
}
