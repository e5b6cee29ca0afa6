//! Models with wrong keys or tensors, and the two models of the fixtures.

use expect_test::{Expect, expect};

use super::*;
use crate::model::config::{AttentionBiases, Mixer, Pairing, Rope, RopeScaling};
use crate::model::writer::{Writer, small_model};
use crate::pooling::Pooling;
use kernels::Activation;

const DENSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/oxide-dense.gguf");
const EXPERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/oxide-moe.gguf");

#[track_caller]
fn check(writer: &Writer, message: Expect) {
    let bytes = writer.bytes();
    let error = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).expect_err("the model is refused");
    message.assert_eq(&error.to_string());
}

fn config(writer: &Writer) -> Config {
    let bytes = writer.bytes();
    SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap().config().clone()
}

/// A small dense model with some keys replaced or added.
fn with_keys(keys: &[(&str, u32)]) -> Writer {
    let mut writer = Writer::new()
        .text("general.architecture", "llama")
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    let usual = [
        ("llama.block_count", 1),
        ("llama.context_length", 16),
        ("llama.embedding_length", 4),
        ("llama.feed_forward_length", 6),
        ("llama.attention.head_count", 2),
        ("llama.attention.head_count_kv", 1),
        ("llama.vocab_size", 3),
    ];
    for (key, value) in usual {
        if !keys.iter().any(|(other, _)| *other == key) {
            writer = writer.u32(key, value);
        }
    }
    keys.iter().fold(writer, |writer, (key, value)| writer.u32(key, *value))
}

#[test]
fn a_dense_model_is_resolved() {
    let bytes = small_model(1).bytes();
    let model = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    expect![[r#"{"architecture":"llama","vocabulary":3,"width":4,"context":16,"norm_epsilon":0.00001,"embedding_scale":1.0,"logit_scale":1.0,"logit_softcap":null,"ropes":[{"pairing":"adjacent","width":2,"base":10000.0,"scaling":"none","magnitude":1.0,"divisors":[],"long":null}],"blocks":[{"mixer":{"attention":{"heads":2,"kv_heads":1,"head_width":2,"scale":0.70710677,"biases":{"query":false,"key":false,"value":false,"output":false},"norm":null,"rope":0,"temperature":null,"softcap":null,"window":null,"sinks":false}},"feed_forward":{"neurons":6,"activation":"silu","biases":false,"router":null,"shared_neurons":null},"norms":"before","residual_scale":1.0}]}"#]].assert_eq(&serde_json::to_string(model.config()).unwrap());
    assert!(model.output().is_none() && model.router(0).is_none(), "tied, and dense");
    let up = model.ffn_up(0, 0);
    assert_eq!((up.rows, up.columns, up.row(5).bytes[0..4].to_vec()), (6, 4, 20_f32.to_le_bytes().to_vec()));
    assert!(matches!(model.ffn_down(0, 0), Down::Columns(Matrix { rows: 4, columns: 6, .. })), "as usual");
    assert_eq!(model.projections(0).map(|w| w.rows), [4, 2, 2, 4]);
}

#[test]
fn a_file_says_how_a_text_becomes_one_vector_and_the_container_remembers_it() {
    let pooling = |keys: &[(&str, u32)]| {
        let small = small_model(1);
        let config = config(&keys.iter().fold(small, |writer, (key, value)| writer.u32(key, *value)));
        let kept: Config = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(kept, config);
        config.pooling
    };
    assert_eq!(pooling(&[]), None);
    let poolings = [None, Some(Pooling::Mean), Some(Pooling::First), Some(Pooling::Last)];
    for (number, expected) in (0..).zip(poolings) {
        assert_eq!(pooling(&[("llama.pooling_type", number)]), expected, "{number}");
    }
}

#[test]
fn experts_are_found_in_one_tensor_or_in_several() {
    let bytes = small_model(2).bytes();
    let model = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    assert_eq!(model.router(0).map(|router| (router.rows, router.columns)), Some((2, 4)));
    let first = |view: Matrix<'_>| f32::from_le_bytes(view.row(0).bytes[..4].try_into().unwrap());
    assert_eq!((first(model.ffn_gate(0, 0)), first(model.ffn_gate(0, 1))), (0.0, 24.0));

    let mut writer = with_keys(&[("llama.expert_count", 2), ("llama.expert_used_count", 1)]);
    for role in ["attn_norm", "ffn_norm"] {
        writer = writer.tensor(&format!("blk.0.{role}.weight"), &[4]);
    }
    for (role, rows) in [("attn_q", 4), ("attn_k", 2), ("attn_v", 2), ("attn_output", 4), ("ffn_gate_inp", 2)]
    {
        writer = writer.tensor(&format!("blk.0.{role}.weight"), &[4, rows]);
    }
    for expert in 0..2 {
        for role in ["ffn_gate", "ffn_up", "ffn_down_t"] {
            writer = writer.tensor(&format!("blk.0.{role}.{expert}.weight"), &[4, 6]);
        }
    }
    let bytes = writer.tensor("token_embd.weight", &[4, 3]).tensor("output_norm.weight", &[4]).bytes();
    let model = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    assert!(matches!(model.ffn_down(0, 1), Down::Rows(Matrix { rows: 6, columns: 4, .. })), "transposed");
}

#[test]
fn the_activation_follows_the_key_then_the_magic_then_the_architecture() {
    let mut writer = small_model(1);
    assert_eq!(config(&writer).activation(), Activation::Silu);
    assert_eq!(config(&writer.clone().text("flashplan.activation", "drelu")).activation(), Activation::Drelu);
    writer.magic = *b"PWRI";
    assert_eq!(config(&writer).activation(), Activation::Relu);
    assert_eq!(config(&writer.clone().text("flashplan.activation", "silu")).activation(), Activation::Silu);
    check(
        &writer.text("flashplan.activation", "gelu"),
        expect!["flashplan.activation is `gelu`: it can be relu, silu or drelu"],
    );
}

#[test]
fn keys_that_contradict_are_refused() {
    check(
        &Writer::new(),
        expect!["key `general.architecture` is missing: convert the model again with a current converter"],
    );
    check(
        &Writer::new().text("general.architecture", "gptneox"),
        expect![
            "architecture `gptneox` is not supported: give a model of llama, bamboo, mistral3, internlm2, arcee, smollm3, qwen2, qwen2moe, qwen2vl, qwen3, qwen3moe, qwen3vl, qwen3vlmoe, qwen3next, qwen35, qwen35moe, qwen4exp, seed_oss, olmo2, olmoe, phi3, gemma2, gemma3, gemma3n, gemma4, granite, granitemoe, granitehybrid, lfm2, lfm2moe, nemotron_h, nemotron_h_moe, smallthinker, deepseek2, glm4moe, minimax-m2, kimi-linear, bailingmoe3, bailingmoe2, dots1, hy_v3, ernie4_5, ernie4_5-moe, exaone4, exaone-moe, mellum or gpt-oss"
        ],
    );
    check(
        &with_keys(&[("llama.attention.head_count_kv", 3)]),
        expect![
            "the number of key and value heads is 3, but it must divide the number of heads, 2: the file is damaged, fetch it again"
        ],
    );
    check(
        &with_keys(&[("llama.attention.head_count", 0)]),
        expect![[r#"
            4 things keep this model from being used
              the number of heads is 0, outside 1 to 4096: the file is damaged, fetch it again
              the width of a head is 0, outside 1 to 16384: the file is damaged, fetch it again
              the factor of the scores is inf, and should be a positive finite number: the file is damaged, fetch it again
              the rotated width of a head is 0, outside 1 to 16384: the file is damaged, fetch it again"#]],
    );
    check(
        &with_keys(&[("llama.block_count", u32::MAX)]),
        expect!["the number of layers is 4294967295, outside 1 to 4096: the file is damaged, fetch it again"],
    );
    check(
        &with_keys(&[("llama.expert_count", 2), ("llama.expert_used_count", 3)]),
        expect!["the number of experts used is 3, but there are 2: the file is damaged, fetch it again"],
    );
    check(
        &with_keys(&[("llama.expert_count", 2)]),
        expect!["key `llama.expert_used_count` is missing: convert the model again with a current converter"],
    );
    check(
        &with_keys(&[("llama.rope.dimension_count", 3)]),
        expect![
            "the rotated width of a head is 3, but it must be even and at most the width of a head, 2: the file is damaged, fetch it again"
        ],
    );
    check(
        &with_keys(&[("llama.attention.value_length", 7)]),
        expect![
            "key `llama.attention.value_length` is 7, and only 2, as for keys, is implemented: give a model without it"
        ],
    );
    check(
        &with_keys(&[]).f32("llama.rope.freq_base", -1.0),
        expect![
            "the rotary base is -1, and should be a positive finite number: the file is damaged, fetch it again"
        ],
    );
    check(
        &with_keys(&[]).f32("llama.rope.freq_base", f32::NAN),
        expect![
            "key `llama.rope.freq_base` should be a finite number, but is the number NaN: convert the model again"
        ],
    );
    check(
        &with_keys(&[]).text("llama.rope.dimension_count", "32"),
        expect![
            "key `llama.rope.dimension_count` should be a whole number of 0 or more, but is the text `32`: convert the model again"
        ],
    );
    check(
        &with_keys(&[]).texts("tokenizer.ggml.tokens", &["a"]),
        expect!["the vocabulary is 3, but the tokenizer has 1 tokens: the file is damaged, fetch it again"],
    );
}

#[test]
fn a_file_that_is_no_model_of_text_says_what_it_is() {
    for (kind, architecture, told) in [
        ("adapter", "llama", "an adapter (LoRA), which changes a model: merge both into one file"),
        ("mmproj", "clip", "the part of a model that sees or hears: give the file of its text"),
        ("model", "clip", "the part of a model that sees or hears"),
        ("imatrix", "", "statistics for quantising a model: give the model's own file"),
        ("vocab", "llama", "a vocabulary without weights: give the model's own file"),
        ("model", "nomic-bert", "a model that makes embeddings and writes no text"),
        ("model", "gemma-embedding", "a model that makes embeddings"),
    ] {
        let writer = Writer::new().text("general.type", kind);
        let writer =
            if architecture.is_empty() { writer } else { writer.text("general.architecture", architecture) };
        let bytes = writer.bytes();
        let refusal = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap_err().to_string();
        assert!(refusal.starts_with(&format!("the file is {told}")), "{kind} {architecture}: {refusal}");
    }
}

#[test]
fn the_relatives_of_an_unknown_architecture_are_named() {
    for (found, told) in [
        ("qwen9", "though its relatives qwen2, qwen2moe,"),
        ("mistral4", "though its relative mistral3 is"),
        ("glm-dsa", "though its relative glm4moe is"),
    ] {
        let bytes = Writer::new().text("general.architecture", found).bytes();
        let refusal = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap_err().to_string();
        assert!(refusal.contains(told), "{refusal}");
    }
}

#[test]
fn what_text_does_not_need_is_left_out() {
    let plain = config(&small_model(1));
    let more = small_model(1).tensor("v.blk.0.attn_q.weight", &[4, 4]).tensor("mm.0.weight", &[4, 4]);
    assert_eq!(config(&more.u32("llama.nextn_predict_layers", 0)), plain);
}

#[test]
fn keys_that_change_the_mathematics_are_refused() {
    check(
        &small_model(1).text("llama.rope.scaling.type", "yarn"),
        expect![
            "key `llama.rope.scaling.factor` is missing, and only 1 or more is implemented: give a model without it"
        ],
    );
    check(
        &small_model(1).text("llama.rope.scaling.type", "dynamic"),
        expect![
            "key `llama.rope.scaling.type` is `dynamic`, and only none, linear, yarn or longrope is implemented: give a model without it"
        ],
    );
    check(
        &small_model(2).boolean("llama.expert_weights_norm", false),
        expect![
            "key `llama.expert_weights_norm` is false, and only true is implemented: give a model without it"
        ],
    );
    check(
        &with_keys(&[("llama.expert_count", 2)]).array(
            "llama.expert_used_count",
            4,
            2,
            &[1, 0, 0, 0, 2, 0, 0, 0],
        ),
        expect![
            "key `llama.expert_used_count` is an array, and only one number for all layers is implemented: give a model without it"
        ],
    );
    check(
        &small_model(1).f32("llama.attn_logit_softcapping", 50.0),
        expect![
            "key `llama.attn_logit_softcapping` is 50, and only 0 is implemented: give a model without it"
        ],
    );
    check(
        &small_model(1).u32("llama.pooling_type", 4),
        expect![
            "key `llama.pooling_type` is 4, and only 0 to 3, the embedding ones, is implemented: give a model without it"
        ],
    );
    check(
        &small_model(2).u32("llama.expert_gating_func", 2),
        expect!["key `llama.expert_gating_func` is 2, and only 1 is implemented: give a model without it"],
    );
    check(
        &small_model(1).u32("llama.new_idea", 1),
        expect!["key `llama.new_idea` is unknown and may change the results: give a model without it"],
    );
}

#[test]
fn tensors_missing_misshapen_or_unknown_are_refused() {
    check(
        &with_keys(&[]),
        expect![[r#"
            11 things keep this model from being used
              tensor `token_embd.weight` is missing: the model is incomplete, convert it again
              tensor `output_norm.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.attn_norm.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.attn_q.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.attn_k.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.attn_v.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.attn_output.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.ffn_norm.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.ffn_gate.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.ffn_up.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.ffn_down.weight` is missing: the model is incomplete, convert it again"#]],
    );
    check(
        &small_model(1).tensor("output.weight", &[4, 5]),
        expect![
            "tensor `output.weight` has dimensions [4, 5] where the keys imply [4, 3]: convert the model again"
        ],
    );
    check(
        &small_model(1).tensor_of("output.weight", &[4, 3], 24, &[0; 12]),
        expect![
            "tensor `output.weight` is stored as I8, which is not supported: convert the model to one of F32, F16, BF16, Q8_0, Q6_K, Q5_1, Q5_0, Q5_K, Q4_1, Q4_0, IQ4_NL, NVFP4, Q4_K, MXFP4, IQ4_XS, Q3_K, IQ3_S, IQ3_XXS, Q2_K, IQ2_S, IQ2_XS, Q2_0, TQ2_0, IQ2_XXS, IQ1_M, TQ1_0, IQ1_S, Q1_0"
        ],
    );
    check(
        &small_model(1).tensor("output.bias", &[3]),
        expect![
            "tensor `output.bias` (a bias) is not implemented and cannot be left out: give a model without it"
        ],
    );
    check(
        &small_model(1).tensor("blk.0.attn_q_norm.weight", &[2]),
        expect![
            "tensor `blk.0.attn_q_norm.weight` (a norm of queries or keys) is not implemented and cannot be left out: give a model without it"
        ],
    );
    check(
        &small_model(1).tensor("rope_freqs.weight", &[2]),
        expect![[r#"
            2 things keep this model from being used
              the number of divisors of rotary frequencies is 2, but a head has 1 pairs: the file is damaged, fetch it again
              a divisor of rotary frequencies is 0, and should be a positive finite number: the file is damaged, fetch it again"#]],
    );
    check(
        &small_model(1).tensor("blk.0.ffn_down_t.weight", &[4, 6]),
        expect![
            "tensor `blk.0.ffn_down.weight` (a second down projection) is not implemented and cannot be left out: give a model without it"
        ],
    );
    check(
        &small_model(1).tensor("blk.1.attn_norm.weight", &[4]),
        expect![
            "tensor `blk.1.attn_norm.weight` (of a layer beyond the last) is not implemented and cannot be left out: give a model without it"
        ],
    );
    check(
        &small_model(2).tensor("blk.0.ffn_up_shexp.weight", &[4, 6]),
        expect![
            "tensor `blk.0.ffn_up_shexp.weight` (part of a shared expert) is not implemented and cannot be left out: give a model without it"
        ],
    );
    check(
        &small_model(1).tensor("blk.0.mystery.weight", &[4]),
        expect![
            "tensor `blk.0.mystery.weight` (unknown here) is not implemented and cannot be left out: give a model without it"
        ],
    );
    config(&small_model(1).tensor("blk.0.fc1.weight", &[4, 2]).tensor("blk.0.fc2.weight", &[2, 6])); // left out
}

#[test]
fn layers_and_experts_that_the_file_does_not_have_are_not_looked_for() {
    check(
        &with_keys(&[("llama.block_count", 4096)]).tensor("token_embd.weight", &[4, 3]),
        expect![
            "the number of layers is 4096, but the file has 1 tensors: the file is damaged, fetch it again"
        ],
    );
    // the first of 4096 experts; all would need 4096 places and as many problems
    let writer = with_keys(&[("llama.expert_count", 4096), ("llama.expert_used_count", 1)]);
    let writer = ["gate", "up", "down"].iter().fold(writer, |writer, role| {
        let dims: [u64; 2] = if *role == "down" { [6, 4] } else { [4, 6] };
        writer.tensor(&format!("blk.0.ffn_{role}.0.weight"), &dims)
    });
    let bytes = writer.bytes();
    let error = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap_err();
    let SourceError::Several(Problems(problems)) = error else { panic!("{error}") };
    let experts = problems.iter().filter(|problem| problem.to_string().contains(".1.weight` is missing"));
    assert_eq!(experts.count(), 3, "{problems:?}");
    assert!(problems.len() < 20, "{} problems", problems.len());
    let writer = with_keys(&[
        ("llama.expert_count", 4096),
        ("llama.expert_used_count", 1),
        ("llama.feed_forward_length", 1 << 22),
    ]);
    check(
        &writer,
        expect![
            "the number of neurons is 4194304, but 4096 experts have more together than can be numbered: the file is damaged, fetch it again"
        ],
    );
}

#[test]
fn windows_biases_and_scaled_rotations_are_described() {
    let plain = config(&small_model(1).text("llama.rope.scaling.type", "none"));
    assert_eq!(plain.ropes, [Rope::plain(Pairing::Adjacent, 2, 10_000.0)]);
    let wide = config(&small_model(1).u32("llama.attention.sliding_window", 16));
    assert_eq!(wide, plain, "a window as long as the context is none");
    let window = config(&small_model(1).u32("llama.attention.sliding_window", 8));
    assert_eq!(window.attention(0).window, Some(8));
    assert_eq!([7, 8, 20].map(|position| window.attention(0).first_seen(position)), [0, 1, 13]);
    let biased = small_model(1).tensor("blk.0.attn_q.bias", &[4]).tensor("blk.0.attn_output.bias", &[4]);
    let biases = AttentionBiases { query: true, output: true, ..AttentionBiases::default() };
    assert_eq!(config(&biased).attention(0).biases, biases);
    let factors = small_model(1).tensor_of("rope_freqs.weight", &[1], 0, &4_f32.to_le_bytes());
    assert_eq!(config(&factors).ropes[0].divisors, [4.0]);
    let yarn = small_model(1)
        .text("llama.rope.scaling.type", "yarn")
        .f32("llama.rope.scaling.factor", 4.0)
        .u32("llama.rope.scaling.original_context_length", 8);
    let rope = &config(&yarn).ropes[0];
    let expected =
        RopeScaling::Yarn { factor: 4.0, original_context: 8, beta_fast: 32.0, beta_slow: 1.0, exact: false };
    assert_eq!(rope.scaling, expected);
    assert!((rope.magnitude - 1.138_629_4).abs() < 1e-6, "1 + 0.1 ln 4");
}

#[test]
fn all_problems_of_a_file_are_reported_together() {
    check(
        &small_model(1)
            .u32("llama.new_idea", 1)
            .f32("llama.attn_logit_softcapping", 50.0)
            .u32("llama.expert_gating_func", 2),
        expect![[r#"
            3 things keep this model from being used
              key `llama.attn_logit_softcapping` is 50, and only 0 is implemented: give a model without it
              key `llama.expert_gating_func` is 2, and only 1 is implemented: give a model without it
              key `llama.new_idea` is unknown and may change the results: give a model without it"#]],
    );
    let i8s = |writer: Writer, name: &str| writer.tensor_of(name, &[4, 3], 24, &[0; 12]);
    let writer = with_keys(&[])
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "a-rule-of-tomorrow")
        .texts("tokenizer.ggml.tokens", &["a", "b", "c"]);
    check(
        &i8s(i8s(writer, "output.weight"), "token_embd.weight").tensor("blk.0.mystery.weight", &[4]),
        expect![[r#"
            13 things keep this model from being used
              tensor `token_embd.weight` is stored as I8, which is not supported: convert the model to one of F32, F16, BF16, Q8_0, Q6_K, Q5_1, Q5_0, Q5_K, Q4_1, Q4_0, IQ4_NL, NVFP4, Q4_K, MXFP4, IQ4_XS, Q3_K, IQ3_S, IQ3_XXS, Q2_K, IQ2_S, IQ2_XS, Q2_0, TQ2_0, IQ2_XXS, IQ1_M, TQ1_0, IQ1_S, Q1_0
              tensor `output_norm.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.attn_norm.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.attn_q.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.attn_k.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.attn_v.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.attn_output.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.ffn_norm.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.ffn_gate.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.ffn_up.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.ffn_down.weight` is missing: the model is incomplete, convert it again
              tensor `blk.0.mystery.weight` (unknown here) is not implemented and cannot be left out: give a model without it
              key `tokenizer.ggml.token_type` is missing: convert the model again with a current converter"#]],
    );
}

#[test]
fn a_configuration_survives_json_and_unknown_keys_do_not() {
    let written = config(&small_model(2));
    let json = serde_json::to_string(&written).unwrap();
    assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), written);
    let error = serde_json::from_str::<Config>(&json.replace("\"heads\"", "\"haeds\"")).unwrap_err();
    assert!(error.to_string().contains("unknown field `haeds`"), "{error}");
    let mut bad = written;
    let Some(Mixer::Attention(attention)) = &mut bad.blocks[0].mixer else { panic!("it has attention") };
    attention.kv_heads = 3;
    assert!(bad.check().is_err(), "what comes from elsewhere is checked as well");
}

#[test]
fn the_dense_fixture_is_resolved() {
    let model = SourceModel::open(DENSE).unwrap();
    expect![[r#"{"architecture":"llama","vocabulary":4096,"width":256,"context":256,"norm_epsilon":0.00001,"embedding_scale":1.0,"logit_scale":1.0,"logit_softcap":null,"ropes":[{"pairing":"adjacent","width":64,"base":10000.0,"scaling":"none","magnitude":1.0,"divisors":[],"long":null}],"blocks":[{"mixer":{"attention":{"heads":4,"kv_heads":2,"head_width":64,"scale":0.125,"biases":{"query":false,"key":false,"value":false,"output":false},"norm":null,"rope":0,"temperature":null,"softcap":null,"window":null,"sinks":false}},"feed_forward":{"neurons":1152,"activation":"drelu","biases":false,"router":null,"shared_neurons":null},"norms":"before","residual_scale":1.0},{"mixer":{"attention":{"heads":4,"kv_heads":2,"head_width":64,"scale":0.125,"biases":{"query":false,"key":false,"value":false,"output":false},"norm":null,"rope":0,"temperature":null,"softcap":null,"window":null,"sinks":false}},"feed_forward":{"neurons":1152,"activation":"drelu","biases":false,"router":null,"shared_neurons":null},"norms":"before","residual_scale":1.0},{"mixer":{"attention":{"heads":4,"kv_heads":2,"head_width":64,"scale":0.125,"biases":{"query":false,"key":false,"value":false,"output":false},"norm":null,"rope":0,"temperature":null,"softcap":null,"window":null,"sinks":false}},"feed_forward":{"neurons":1152,"activation":"drelu","biases":false,"router":null,"shared_neurons":null},"norms":"before","residual_scale":1.0},{"mixer":{"attention":{"heads":4,"kv_heads":2,"head_width":64,"scale":0.125,"biases":{"query":false,"key":false,"value":false,"output":false},"norm":null,"rope":0,"temperature":null,"softcap":null,"window":null,"sinks":false}},"feed_forward":{"neurons":1152,"activation":"drelu","biases":false,"router":null,"shared_neurons":null},"norms":"before","residual_scale":1.0},{"mixer":{"attention":{"heads":4,"kv_heads":2,"head_width":64,"scale":0.125,"biases":{"query":false,"key":false,"value":false,"output":false},"norm":null,"rope":0,"temperature":null,"softcap":null,"window":null,"sinks":false}},"feed_forward":{"neurons":1152,"activation":"drelu","biases":false,"router":null,"shared_neurons":null},"norms":"before","residual_scale":1.0},{"mixer":{"attention":{"heads":4,"kv_heads":2,"head_width":64,"scale":0.125,"biases":{"query":false,"key":false,"value":false,"output":false},"norm":null,"rope":0,"temperature":null,"softcap":null,"window":null,"sinks":false}},"feed_forward":{"neurons":1152,"activation":"drelu","biases":false,"router":null,"shared_neurons":null},"norms":"before","residual_scale":1.0}]}"#]].assert_eq(&serde_json::to_string(model.config()).unwrap());
    let gate = model.ffn_gate(5, 0);
    assert_eq!(
        (gate.format, gate.rows, gate.columns, gate.row(1151).bytes.len()),
        (Format::F16, 1152, 256, 512)
    );
    assert_eq!(model.token_embedding().rows, 4096);
}

#[test]
fn the_mixture_fixture_is_resolved() {
    let model = SourceModel::open(EXPERTS).unwrap();
    let config = model.config();
    assert_eq!((config.experts(), config.experts_used(), config.activation()), (4, 2, Activation::Drelu));
    let (layer, expert) = (config.layers() - 1, 3);
    let up = model.ffn_up(layer, expert);
    assert_eq!((up.format, up.rows, up.columns), (Format::F16, config.ffn_width(), config.width));
    let stacked = model.gguf().tensor(&format!("blk.{layer}.ffn_up_exps.weight")).unwrap();
    let stored = model.gguf().tensor_bytes(stacked);
    assert_eq!(
        up.row(up.rows - 1).bytes,
        &stored[stored.len() - config.width * 2..],
        "the last row of the last expert"
    );
    assert_eq!(model.router(0).map(|router| (router.format, router.rows)), Some((Format::F32, 4)));
}

/// The configuration of a golden of a longer context, as if its file lacked some keys.
fn golden_without(name: &str, keys: &[&str]) -> Config {
    let path = format!("{}/../../fixtures/golden/architectures/{name}.gguf", env!("CARGO_MANIFEST_DIR"));
    let mut bytes = std::fs::read(path).unwrap();
    let place = |bytes: &[u8], key: &str| {
        bytes.windows(key.len()).position(|found| found == key.as_bytes()).expect(key)
    };
    for key in keys {
        let at = place(&bytes, key);
        let other = format!("general.{}", "x".repeat(key.len() - 8));
        bytes[at..at + key.len()].copy_from_slice(other.as_bytes());
    }
    let context = format!("{name}.context_length");
    // behind the key stand four bytes of its type, then the value
    let at = place(&bytes, &context) + context.len() + 4;
    bytes[at..at + 4].copy_from_slice(&8192_u32.to_le_bytes());
    SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap().config().clone()
}

#[test]
fn bounds_and_windows_that_a_file_leaves_out_are_the_usual_ones() {
    let told =
        |config: &Config| (config.attention(0).softcap, config.logit_softcap, config.attention(0).window);
    let keys = ["attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window"];
    let keys = keys.map(|key| format!("gemma2.{key}"));
    let without = golden_without("gemma2", &keys.each_ref().map(String::as_str));
    assert_eq!(told(&without), (Some(50.0), Some(30.0), Some(4096)));
    let with = golden_without("gemma2", &[]);
    assert_eq!(told(&with), (Some(5.0), Some(30.0), Some(12)));
}
