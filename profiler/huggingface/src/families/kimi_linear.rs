//! Kimi Linear and Ling 3: Kimi delta attention, latent attention in some layers, and experts behind dense layers.

use serde_json::{Value, json};

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::keys::Keys;

use super::common::layers;
use super::mixtures::{self, BAILING_OUTSIDE, SIGMOID};
use super::{EXPERTS, Family, Make, PLAIN, Rule, Usual, deepseek2, llama, same};

/// Kimi Linear's delta attention.
const DELTA: &[Rule] = &[
    taps("self_attn.q_conv1d.weight", &["ssm_conv1d_q.weight"]),
    taps("self_attn.k_conv1d.weight", &["ssm_conv1d_k.weight"]),
    taps("self_attn.v_conv1d.weight", &["ssm_conv1d_v.weight"]),
    same("self_attn.f_a_proj.weight", &["ssm_f_a.weight"]),
    same("self_attn.f_b_proj.weight", &["ssm_f_b.weight"]),
    same("self_attn.g_a_proj.weight", &["ssm_g_a.weight"]),
    same("self_attn.g_b_proj.weight", &["ssm_g_b.weight"]),
    same("self_attn.b_proj.weight", &["ssm_beta.weight"]),
    Rule { from: "self_attn.A_log", to: &["ssm_a"], make: Make::Decay },
    same("self_attn.dt_bias", &["ssm_dt.bias"]),
    same("self_attn.o_norm.weight", &["ssm_norm.weight"]),
];

const SHARED: &[Rule] = &[
    same("block_sparse_moe.gate.e_score_correction_bias", &["exp_probs_b.bias"]),
    same("block_sparse_moe.shared_experts.gate_proj.weight", &["ffn_gate_shexp.weight"]),
    same("block_sparse_moe.shared_experts.up_proj.weight", &["ffn_up_shexp.weight"]),
    same("block_sparse_moe.shared_experts.down_proj.weight", &["ffn_down_shexp.weight"]),
];

const fn taps(from: &'static str, to: &'static [&'static str]) -> Rule {
    Rule { from, to, make: Make::Taps }
}

pub(super) const KIMI_LINEAR: Family = Family {
    classes: &["KimiLinearForCausalLM"],
    fits: |config| Ok(config.text("model_type")? == Some("kimi_linear")),
    name: "kimi-linear",
    usual: Usual { norm_epsilon: 1e-5, ..PLAIN.usual },
    aliases: &[
        ("model_max_length", "max_position_embeddings"),
        ("num_experts_per_token", "num_experts_per_tok"),
        ("num_expert_group", "n_group"),
        ("moe_renormalize", "norm_topk_prob"),
    ],
    keys: kimi_keys,
    layer: &[DELTA, deepseek2::LAYER, SHARED, llama::LAYER],
    guesses: true,
    ..PLAIN
};

/// The keys of both kinds of attention: the width of a delta head, its taps, and the layers with latent attention.
fn attention(
    name: &str,
    config: &Config,
    (head, taps): (u64, u64),
    attends: impl Fn(u64) -> bool,
    keys: &mut Keys,
) -> Result<(), FolderError> {
    let key = |key: &str| format!("{name}.{key}");
    let (rank, rotated) = (config.size("kv_lora_rank")?, config.size("qk_rope_head_dim")?);
    for (name, value) in [
        ("attention.key_length", rank + rotated),
        ("attention.key_length_mla", config.size("qk_nope_head_dim")? + rotated),
        ("attention.value_length_mla", config.size("v_head_dim")?),
        ("attention.kv_lora_rank", rank),
        ("rope.dimension_count", rotated),
        ("vocab_size", config.size("vocab_size")?),
        ("ssm.conv_kernel", taps),
        ("kda.head_dim", head),
    ] {
        keys.whole(&key(name), u32::try_from(value).unwrap_or(u32::MAX));
    }
    if let Some(rank) = config.whole("q_lora_rank")? {
        keys.whole(&key("attention.q_lora_rank"), rank as u32);
    }
    let kv_heads = (0..layers(config)?).map(|layer| i32::from(attends(layer)));
    keys.wholes(&key("attention.head_count_kv"), &kv_heads.collect::<Vec<_>>());
    Ok(())
}

fn kimi_keys(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let key = |key: &str| format!("kimi-linear.{key}");
    let delta = config.part("linear_attn_config")?;
    let shape = (delta.size("head_dim")?, delta.size("short_conv_kernel_size")?);
    let attends = delta.wholes("full_attn_layers")?.unwrap_or_default();
    attention("kimi-linear", config, shape, |layer| attends.contains(&(layer + 1)), keys)?;
    for (name, value) in [
        ("expert_feed_forward_length", config.size("moe_intermediate_size")?),
        ("expert_shared_count", config.size("num_shared_experts")?),
        ("leading_dense_block_count", config.size("first_k_dense_replace")?),
        ("expert_gating_func", SIGMOID.into()),
    ] {
        keys.whole(&key(name), u32::try_from(value).unwrap_or(u32::MAX));
    }
    keys.number(&key("expert_weights_scale"), config.number("routed_scaling_factor")?.unwrap_or(1.0));
    if config.flag("norm_topk_prob")? == Some(false) {
        keys.flag(&key("expert_weights_norm"), false);
    }
    // one group is none, and llama.cpp's converter writes its number alone
    if let Some(groups) = config.whole("n_group")?.filter(|&groups| groups > 1) {
        keys.whole(&key("expert_group_count"), groups as u32);
    }
    if let Some(used) = config.whole("topk_group")? {
        keys.whole(&key("expert_group_used_count"), used as u32);
    }
    delta.neutral("num_heads", &json!(config.size("num_attention_heads")?))?;
    for (key, value) in [
        ("moe_router_activation_func", json!("sigmoid")),
        ("moe_layer_freq", json!(1)),
        ("mla_use_nope", json!(true)),
    ] {
        config.neutral(key, &value)?;
    }
    Ok(())
}

/// Ling 3's delta attention, whose gates and decays have one matrix each, and its gates of heads.
const BAILING_DELTA: &[Rule] = &[
    taps("attention.q_conv1d.weight", &["ssm_conv1d_q.weight"]),
    taps("attention.k_conv1d.weight", &["ssm_conv1d_k.weight"]),
    taps("attention.v_conv1d.weight", &["ssm_conv1d_v.weight"]),
    same("attention.f_proj.weight", &["ssm_f_a.weight"]),
    same("attention.b_proj.weight", &["ssm_beta.weight"]),
    Rule { from: "attention.A_log", to: &["ssm_a"], make: Make::SlopeColumn },
    same("attention.dt_bias", &["ssm_dt.bias"]),
    same("attention.o_norm.weight", &["ssm_norm.weight"]),
];

/// Attention of both kinds, and the bias for choosing experts.
const BAILING_LAYER: &[Rule] = &[
    same("attention.q_proj.weight", &["attn_q.weight"]),
    same("attention.k_proj.weight", &["attn_k.weight"]),
    same("attention.v_proj.weight", &["attn_v.weight"]),
    same("attention.o_proj.weight", &["attn_output.weight"]),
    same("attention.dense.weight", &["attn_output.weight"]),
    same("attention.q_a_proj.weight", &["attn_q_a.weight"]),
    same("attention.q_a_layernorm.weight", &["attn_q_a_norm.weight"]),
    same("attention.q_b_proj.weight", &["attn_q_b.weight"]),
    same("attention.kv_a_proj_with_mqa.weight", &["attn_kv_a_mqa.weight"]),
    same("attention.kv_a_layernorm.weight", &["attn_kv_a_norm.weight"]),
    Rule {
        from: "attention.kv_b_proj.weight",
        to: &["attn_k_b.weight", "attn_v_b.weight"],
        make: Make::Latent,
    },
    Rule { from: "attention.g_proj.weight", to: &["ssm_g_a.weight", "attn_gate.weight"], make: Make::Gates },
    same("mlp.gate.expert_bias", &["exp_probs_b.bias"]),
];

pub(super) const BAILINGMOE3: Family = Family {
    classes: &["BailingMoeV3ForCausalLM"],
    name: "bailingmoe3",
    usual: Usual { rope_theta: 6e6, ..PLAIN.usual },
    guesses: true,
    keys: bailing_keys,
    outside: BAILING_OUTSIDE,
    layer: &[BAILING_DELTA, BAILING_LAYER, mixtures::SHARED, EXPERTS],
    ..PLAIN
};

fn bailing_keys(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let (layers, period) = (config.size("num_hidden_layers")?, config.size("layer_group_size")?);
    let shape = (config.size("head_dim")?, config.size("short_conv_kernel_size")?);
    let Some(groups) = layers.checked_div(period) else {
        return Err(FolderError::damaged(config.path(), "key `layer_group_size` is 0"));
    };
    let whole_groups = groups * period;
    let attends = |layer: u64| layer >= whole_groups || (layer + 1).is_multiple_of(period);
    attention("bailingmoe3", config, shape, attends, keys)?;
    let neurons = match config.whole("moe_shared_expert_intermediate_size")? {
        Some(neurons) => neurons,
        None => config.size("moe_intermediate_size")?,
    };
    keys.whole("bailingmoe3.expert_shared_feed_forward_length", neurons as u32);
    keys.whole("bailingmoe3.expert_shared_count", config.whole("num_shared_experts")?.unwrap_or(1) as u32);
    keys.flag("bailingmoe3.kda.safe_gate", true);
    let bound = config.number("kda_lower_bound")?.unwrap_or(LOWER_BOUND);
    keys.number("bailingmoe3.kda.gate_lower_bound", bound);
    for (key, value) in [
        ("no_kda_lora", json!(true)),
        ("kda_safe_gate", json!(true)),
        ("gated_attention_proj_granularity_type", json!("head_wise")),
        ("rope_interleave", json!(true)),
        ("use_bias", json!(false)),
        ("use_qkv_bias", json!(false)),
    ] {
        config.neutral(key, &value)?;
    }
    for key in ["expert_swiglu_limit_list", "share_expert_swiglu_limit_list"] {
        let limits = config.value(key).and_then(Value::as_array);
        if limits.is_some_and(|limits| limits.iter().any(|limit| limit.as_f64().unwrap_or(0.0) != 0.0)) {
            return Err(FolderError::unsupported(config.path(), format!("key {}", quote(key))));
        }
    }
    mixtures::mixture("bailingmoe3", 2.5, true, config, keys)
}

/// The lower bound of a decay's logarithm that transformers takes where the file does not say it.
const LOWER_BOUND: f64 = -5.0;
