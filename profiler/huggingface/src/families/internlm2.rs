//! `InternLM` 2: a llama with queries, keys and values of each group of heads in one matrix, and names of its own.

use serde_json::json;

use crate::error::FolderError;

use super::{Family, Make, PLAIN, Rule, Usual, same};

const OUTSIDE: &[Rule] = &[
    same("tok_embeddings.weight", &["token_embd.weight"]),
    same("norm.weight", &["output_norm.weight"]),
    same("output.weight", &["output.weight"]),
];

const LAYER: &[Rule] = &[
    same("attention_norm.weight", &["attn_norm.weight"]),
    Rule {
        from: "attention.wqkv.weight",
        to: &["attn_q.weight", "attn_k.weight", "attn_v.weight"],
        make: Make::FusedGroups,
    },
    same("attention.wo.weight", &["attn_output.weight"]),
    same("ffn_norm.weight", &["ffn_norm.weight"]),
    same("feed_forward.w1.weight", &["ffn_gate.weight"]),
    same("feed_forward.w3.weight", &["ffn_up.weight"]),
    same("feed_forward.w2.weight", &["ffn_down.weight"]),
];

pub(super) const INTERNLM2: Family = Family {
    classes: &["InternLM2ForCausalLM"],
    name: "internlm2",
    usual: Usual { norm_epsilon: 1e-6, ..PLAIN.usual },
    keys: |config, _| -> Result<(), FolderError> { config.neutral("bias", &json!(false)) },
    outside: OUTSIDE,
    layer: &[LAYER],
    permuted: true,
    tells_space_prefix: true,
    ..PLAIN
};
