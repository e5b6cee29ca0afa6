//! Qwen 3.8 Flash Next: Qwen 3.5's delta nets, attention and experts, with gated residual streams, an indexer of attention, and hashed
//! n-grams in one layer. Of models that see pictures, the part for text.

use serde_json::json;

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::index::Weights;
use crate::keys::Keys;

use super::qwen35::{LAYER, QWEN35, SHARED, sizes};
use super::{EXPERTS, Family, Make, Rule, plus_one, same};

const OUTSIDE: &[Rule] = &[
    same("embed_tokens.weight", &["token_embd.weight"]),
    plus_one("hyper_connection_mixer.hc_norm.weight", &["output_hc_norm.weight"]),
    same("hyper_connection_mixer.input_mix_weight_down.weight", &["output_hc_down.weight"]),
    same("hyper_connection_mixer.input_mix_weight_up.weight", &["output_hc_up.weight"]),
    same("lm_head.weight", &["output.weight"]),
];

const STREAMS: &[Rule] = &[
    plus_one("attn_hyper_connection.hc_norm.weight", &["hc_attn_norm.weight"]),
    same("attn_hyper_connection.input_mix_weight_down.weight", &["hc_attn_down.weight"]),
    same("attn_hyper_connection.input_mix_weight_up.weight", &["hc_attn_up.weight"]),
    same("attn_hyper_connection.block_inject_weight.weight", &["hc_attn_inject.weight"]),
    plus_one("mlp_hyper_connection.hc_norm.weight", &["hc_ffn_norm.weight"]),
    same("mlp_hyper_connection.input_mix_weight_down.weight", &["hc_ffn_down.weight"]),
    same("mlp_hyper_connection.input_mix_weight_up.weight", &["hc_ffn_up.weight"]),
    same("mlp_hyper_connection.block_inject_weight.weight", &["hc_ffn_inject.weight"]),
];

const INDEXER: &[Rule] = &[
    Rule {
        from: "self_attn.indexer.index_qk_proj.weight",
        to: &["indexer.q_proj.weight", "indexer.k_proj.weight"],
        make: Make::Indexer,
    },
    plus_one("self_attn.indexer.q_layernorm.weight", &["indexer.q_norm.weight"]),
    plus_one("self_attn.indexer.k_layernorm.weight", &["indexer.k_norm.weight"]),
];

const NGRAMS: &[Rule] = &[
    same("ple.key_proj.weight", &["ple_key.weight"]),
    same("ple.value_proj.weight", &["ple_value.weight"]),
    plus_one("ple.norm_key.weight", &["ple_norm_key.weight"]),
    plus_one("ple.norm_query.weight", &["ple_norm_query.weight"]),
    plus_one("ple.norm_conv.weight", &["ple_norm_conv.weight"]),
    Rule { from: "ple.conv1d.weight", to: &["ple_conv1d.weight"], make: Make::Squeezed },
    Rule {
        from: "ple.ple_embedding.ngram_embedding.shard_*.weight",
        to: &["per_layer_token_embd.weight"],
        make: Make::Shard,
    },
    Rule { from: "ple.ple_embedding.layer_multipliers", to: &["multipliers"], make: Make::Integers },
    Rule { from: "ple.ple_embedding.ngram_heads_offsets", to: &["offsets"], make: Make::Integers },
    Rule { from: "ple.ple_embedding.ngram_heads_vocab_sizes", to: &["sizes"], make: Make::Integers },
];

pub(super) const QWEN4EXP: Family = Family {
    classes: &["Qwen4ExpForConditionalGeneration", "Qwen4ExpForCausalLM"],
    name: "qwen4exp",
    defaults: &[
        ("head_dim", 256),
        ("num_key_value_heads", 2),
        ("linear_conv_kernel_dim", 4),
        ("linear_key_head_dim", 128),
        ("linear_value_head_dim", 128),
        ("linear_num_key_heads", 16),
        ("linear_num_value_heads", 32),
        ("moe_intermediate_size", 512),
        ("shared_expert_intermediate_size", 512),
        ("num_experts", 512),
        ("num_experts_per_tok", 10),
        ("hc_count", 4),
        ("hc_lowrank", 320),
        ("ngram_size", 3),
        ("heads_per_ngram", 8),
        ("ple_conv_kernel_size", 4),
        ("split_ngram_parts", 512),
    ],
    keys,
    keys_of_tensors: hashes,
    outside: OUTSIDE,
    layer: &[STREAMS, INDEXER, NGRAMS, LAYER, EXPERTS, SHARED],
    ..QWEN35
};

fn keys(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let refused = |what: String| Err(FolderError::unsupported(config.path(), what));
    sizes("qwen4exp", config, keys)?;
    config.neutral("mlp_only_layers", &json!([]))?;
    config.neutral("norm_topk_prob", &json!(true))?;
    // GGUF has no key for it
    match config.text("output_gate_type")? {
        Some("sigmoid") => {}
        other => {
            let what = quote(other.unwrap_or("silu"));
            return refused(format!("gates {what} of delta nets (key `output_gate_type`)"));
        }
    }
    config.neutral("indexer_kv_heads", &json!(1))?;
    for (key, own) in [
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
        ("hyper_connection.count", "hc_count"),
        ("hyper_connection.low_rank", "hc_lowrank"),
        ("attention.indexer.head_count", "indexer_n_heads"),
        ("attention.indexer.key_length", "indexer_head_dim"),
        ("attention.indexer.top_k", "indexer_budget"),
    ] {
        keys.whole(&format!("qwen4exp.{key}"), config.size(own)? as u32);
    }
    let block = config.size("indexer_compress_ratio")? as i32;
    let types = config.layer_types(config.size("num_hidden_layers")?)?;
    let types = types.ok_or_else(|| FolderError::damaged(config.path(), "key `layer_types` is missing"))?;
    let blocks: Vec<i32> =
        types.into_iter().map(|kind| if kind == "full_attention" { block } else { 0 }).collect();
    keys.wholes("qwen4exp.attention.compress_ratios", &blocks);
    ngrams(config, keys)
}

/// The keys of n-grams, if a layer has them.
fn ngrams(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let layers = config.wholes("ple_layer_ids")?.unwrap_or_default();
    if layers.is_empty() {
        return Ok(());
    }
    // counted from 1
    let layers: Vec<i32> = layers.iter().map(|&layer| layer as i32 - 1).collect();
    keys.wholes("qwen4exp.ple.layers", &layers);
    let (tokens, of_each) = (config.size("ngram_size")?, config.size("heads_per_ngram")?);
    let heads = tokens.saturating_sub(1).saturating_mul(of_each);
    let width = config.whole("ple_embed_dim")?.map_or_else(|| config.size("hidden_size"), Ok)?;
    if heads == 0 || !width.is_multiple_of(heads) {
        let fact = format!("{width} values of n-grams do not fit {heads} heads");
        return Err(FolderError::damaged(config.path(), fact));
    }
    for (key, value) in [
        ("ple.ngram_size", tokens),
        ("ple.heads_per_ngram", of_each),
        ("ple.conv_kernel", config.size("ple_conv_kernel_size")?),
        ("ple.eos_token_id", end(config)?),
        ("embedding_length_per_layer_input", width / heads),
    ] {
        keys.whole(&format!("qwen4exp.{key}"), value as u32);
    }
    if let Some(picture) = config.whole("image_token_id")? {
        keys.whole("qwen4exp.ple.image_token_id", picture as u32);
    }
    Ok(())
}

/// The token after which n-grams start again. Of several, transformers takes the first and llama.cpp the last.
fn end(config: &Config) -> Result<u64, FolderError> {
    const KEY: &str = "eos_token_id";
    if config.value(KEY).is_some_and(|value| !value.is_array()) {
        return config.size(KEY);
    }
    match *config.wholes(KEY)?.unwrap_or_default() {
        [end] => Ok(end),
        _ => Err(FolderError::unsupported(config.path(), "n-grams with none or several end tokens")),
    }
}

/// The integers that hash n-grams, from the folder's tensors.
fn hashes(_: &Family, config: &Config, weights: &Weights, keys: &mut Keys) -> Result<(), FolderError> {
    /// More than any model has.
    const MOST: u64 = 1 << 10;
    if !keys.has("qwen4exp.ple.layers") {
        return Ok(());
    }
    for (end, key) in [
        ("ple_embedding.layer_multipliers", "ple.layer_multipliers"),
        ("ple_embedding.ngram_heads_offsets", "ple.head_offsets"),
        ("ple_embedding.ngram_heads_vocab_sizes", "ple.head_vocab_sizes"),
    ] {
        let mut all = weights.tensors().filter(|(name, _)| name.ends_with(end));
        let (Some((name, tensor)), None) = (all.next(), all.next()) else {
            let fact = format!("there is not one tensor {}", quote(end));
            return Err(FolderError::damaged(config.path(), fact));
        };
        let path = weights.path_of(name).unwrap_or(config.path());
        let damaged = |fact| FolderError::damaged(path, format!("tensor {} {fact}", quote(name)));
        let [count @ 1..=MOST] = *tensor.shape else { return Err(damaged("is no list of integers")) };
        if tensor.kind_name != "I64" {
            return Err(damaged("is not of type `I64`"));
        }
        let mut bytes = vec![0; 8 * count as usize];
        weights.read(name, 0, &mut bytes)?;
        let values = bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes).try_into());
        let values: Result<Vec<u64>, _> = values.collect();
        keys.long_wholes(&format!("qwen4exp.{key}"), &values.map_err(|_| damaged("has an integer below 0"))?);
    }
    Ok(())
}
