//! Models whose keys or tensors are not what they should be, and the two models of the fixtures.

use expect_test::{Expect, expect};

use super::*;
use crate::model::writer::{Writer, small_model};
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

/// A small dense model with some keys replaced, and some added.
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
    expect![[r#"{"architecture":"llama","vocabulary":3,"width":4,"layers":1,"heads":2,"kv_heads":1,"head_width":2,"ffn_width":6,"experts":1,"experts_used":1,"context":16,"rope_base":10000.0,"rope_width":2,"norm_epsilon":0.00001,"activation":"silu"}"#]].assert_eq(&serde_json::to_string(model.config()).unwrap());
    assert!(model.output().is_none() && model.router(0).is_none(), "tied, and dense");
    let up = model.ffn_up(0, 0);
    assert_eq!((up.rows, up.columns, up.row(5).bytes[0..4].to_vec()), (6, 4, 20_f32.to_le_bytes().to_vec()));
    assert!(matches!(model.ffn_down(0, 0), Down::Columns(Matrix { rows: 4, columns: 6, .. })), "as usual");
    assert_eq!((model.query(0).rows, model.key(0).rows, model.value(0).rows), (4, 2, 2));
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
    assert_eq!(config(&writer).activation, Activation::Silu);
    assert_eq!(config(&writer.clone().text("flashplan.activation", "drelu")).activation, Activation::Drelu);
    writer.magic = *b"PWRI";
    assert_eq!(config(&writer).activation, Activation::Relu);
    assert_eq!(config(&writer.clone().text("flashplan.activation", "silu")).activation, Activation::Silu);
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
        &Writer::new().text("general.architecture", "qwen2"),
        expect!["architecture `qwen2` is not known here: give a model of llama or bamboo"],
    );
    check(
        &with_keys(&[("split.count", 3)]),
        expect!["the file is one of 3 parts of a model: join them with llama-gguf-split --merge"],
    );
    check(
        &with_keys(&[("llama.attention.head_count_kv", 3)]),
        expect![
            "the number of key and value heads is 3, but it must divide the number of heads, 2: the file is damaged, fetch it again"
        ],
    );
    check(
        &with_keys(&[("llama.attention.head_count", 0)]),
        expect!["the number of heads is 0, outside 1 to 4096: the file is damaged, fetch it again"],
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
fn keys_that_change_the_mathematics_are_refused() {
    assert_eq!(
        config(
            &small_model(1).text("llama.rope.scaling.type", "none").u32("llama.attention.sliding_window", 16)
        )
        .context,
        16
    );
    check(
        &small_model(1).text("llama.rope.scaling.type", "yarn"),
        expect![
            "key `llama.rope.scaling.type` is `yarn`, and only `none` is implemented: give a model without it"
        ],
    );
    check(
        &small_model(1).u32("llama.attention.sliding_window", 8),
        expect![
            "the model attends only to the last 8 of 16 tokens (`llama.attention.sliding_window`), which is not implemented: give a model without a sliding window"
        ],
    );
    check(
        &small_model(1).f32("llama.attn_logit_softcapping", 50.0),
        expect![
            "key `llama.attn_logit_softcapping` is 50, and only 0 is implemented: give a model without it"
        ],
    );
    check(
        &small_model(2).u32("llama.expert_gating_func", 2),
        expect!["key `llama.expert_gating_func` is 2, and only 1 is implemented: give a model without it"],
    );
    check(
        &small_model(1).u32("llama.new_idea", 1),
        expect![
            "key `llama.new_idea` is not known here and may change the mathematics: give a model without it"
        ],
    );
}

#[test]
fn tensors_missing_misshapen_or_unknown_are_refused() {
    check(
        &with_keys(&[]),
        expect!["tensor `token_embd.weight` is missing: the model is incomplete, convert it again"],
    );
    check(
        &with_keys(&[]).tensor("token_embd.weight", &[4, 5]),
        expect![
            "tensor `token_embd.weight` has dimensions [4, 5] where the keys imply [4, 3]: convert the model again"
        ],
    );
    check(
        &with_keys(&[]).tensor_of("token_embd.weight", &[4, 3], 24, &[0; 12]),
        expect![
            "tensor `token_embd.weight` is stored as I8, which is not read here: convert the model to one of F32, F16, BF16, Q8_0, Q6_K, Q5_1, Q5_0, Q5_K, Q4_1, Q4_0, IQ4_NL, Q4_K, MXFP4, IQ4_XS, Q3_K, IQ3_S, IQ3_XXS, Q2_K, IQ2_S, IQ2_XS, IQ2_XXS"
        ],
    );
    check(
        &small_model(1).tensor("blk.0.attn_q.bias", &[4]),
        expect![
            "tensor `blk.0.attn_q.bias` (a bias) is not implemented and cannot be left out: give a model without it"
        ],
    );
    check(
        &small_model(1).tensor("blk.0.attn_q_norm.weight", &[2]),
        expect![
            "tensor `blk.0.attn_q_norm.weight` (a norm of queries or keys) is not implemented and cannot be left out: give a model without it"
        ],
    );
    check(
        &small_model(1).tensor("rope_freqs.weight", &[1]),
        expect![
            "tensor `rope_freqs.weight` (a scaling of rotary frequencies) is not implemented and cannot be left out: give a model without it"
        ],
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
fn a_configuration_survives_json_and_unknown_keys_do_not() {
    let written = config(&small_model(2));
    let json = serde_json::to_string(&written).unwrap();
    assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), written);
    let error = serde_json::from_str::<Config>(&json.replace("\"heads\"", "\"haeds\"")).unwrap_err();
    assert!(error.to_string().contains("unknown field `haeds`"), "{error}");
    let bad = Config { kv_heads: 3, ..written };
    assert!(bad.check().is_err(), "what comes from elsewhere is checked as well");
}

#[test]
fn the_dense_fixture_is_resolved() {
    let model = SourceModel::open(DENSE).unwrap();
    expect![[r#"{"architecture":"llama","vocabulary":4096,"width":256,"layers":6,"heads":4,"kv_heads":2,"head_width":64,"ffn_width":1152,"experts":1,"experts_used":1,"context":256,"rope_base":10000.0,"rope_width":64,"norm_epsilon":0.00001,"activation":"drelu"}"#]].assert_eq(&serde_json::to_string(model.config()).unwrap());
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
    assert_eq!((config.experts, config.experts_used, config.activation), (4, 2, Activation::Drelu));
    let (layer, expert) = (config.layers - 1, 3);
    let up = model.ffn_up(layer, expert);
    assert_eq!((up.format, up.rows, up.columns), (Format::F16, config.ffn_width, config.width));
    let stacked = model.gguf().tensor(&format!("blk.{layer}.ffn_up_exps.weight")).unwrap();
    let stored = model.gguf().tensor_bytes(stacked);
    assert_eq!(
        up.row(up.rows - 1).bytes,
        &stored[stored.len() - config.width * 2..],
        "the last row of the last expert"
    );
    assert_eq!(model.router(0).map(|router| (router.format, router.rows)), Some((Format::F32, 4)));
}
