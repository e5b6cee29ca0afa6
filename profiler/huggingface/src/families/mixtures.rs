//! Mixtures as `DeepSeek` V3 made them usual, behind plain attention: GLM 4.5, `MiniMax` M2, Ling 2, dots.llm1 and Hy3.

use serde_json::json;

use crate::config::Config;
use crate::error::FolderError;
use crate::keys::Keys;

use super::common::{no_windows, rotated, router};
use super::{EXPERTS, Family, PLAIN, Rule, Usual, llama, same};

/// Shared experts, and the bias for choosing experts.
pub(super) const SHARED: &[Rule] = &[
    same("mlp.gate.e_score_correction_bias", &["exp_probs_b.bias"]),
    same("mlp.shared_experts.gate_proj.weight", &["ffn_gate_shexp.weight"]),
    same("mlp.shared_experts.up_proj.weight", &["ffn_up_shexp.weight"]),
    same("mlp.shared_experts.down_proj.weight", &["ffn_down_shexp.weight"]),
];

/// GGUF's number for weighing experts by sigmoids.
pub(super) const SIGMOID: u32 = 2;

/// The keys of experts, their weights and the dense layers before them.
pub(super) fn mixture(
    name: &str,
    usual_scale: f64,
    usual_norm: bool,
    config: &Config,
    keys: &mut Keys,
) -> Result<(), FolderError> {
    let key = |key: &str| format!("{name}.{key}");
    keys.whole(&key("expert_feed_forward_length"), config.size("moe_intermediate_size")? as u32);
    let leading = config.whole("first_k_dense_replace")?.unwrap_or(1);
    keys.whole(&key("leading_dense_block_count"), leading as u32);
    let scale = config.number("routed_scaling_factor")?.unwrap_or(usual_scale);
    keys.number(&key("expert_weights_scale"), scale);
    keys.flag(&key("expert_weights_norm"), config.flag("norm_topk_prob")?.unwrap_or(usual_norm));
    keys.whole(&key("expert_gating_func"), SIGMOID);
    router(name, config, keys)
}

pub(super) const GLM4MOE: Family = Family {
    classes: &["Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration"],
    name: "glm4moe",
    usual: Usual { norm_epsilon: 1e-5, ..PLAIN.usual },
    aliases: &[("n_routed_experts", "num_experts")],
    partial: true,
    guesses: true,
    keys: |config, keys| {
        keys.whole("glm4moe.rope.dimension_count", rotated(config, 0.5)?);
        keys.whole("glm4moe.expert_shared_count", config.whole("n_shared_experts")?.unwrap_or(1) as u32);
        keys.whole("glm4moe.nextn_predict_layers", 0);
        mixture("glm4moe", 1.0, true, config, keys)
    },
    layer: &[&[same("post_attention_layernorm.weight", &["post_attention_norm.weight"])], SHARED, EXPERTS],
    alike: Some(("llama-bpe", "glm4")),
    roles: &[("bos", "[gMASK]"), ("eot", "<|user|>"), ("unk", "<|endoftext|>"), ("eom", "<|observation|>")],
    ..PLAIN
};

pub(super) const MINIMAX_M2: Family = Family {
    classes: &["MiniMaxM2ForCausalLM"],
    name: "minimax-m2",
    usual: Usual { rope_theta: 5e6, ..PLAIN.usual },
    defaults: &[("num_local_experts", 256), ("num_experts_per_tok", 8), ("head_dim", 128)],
    partial: true,
    keys: |config, keys| {
        let rotated = match config.whole("rotary_dim")? {
            Some(rotated) => rotated as u32,
            None => rotated(config, 1.0)?,
        };
        keys.whole("minimax-m2.rope.dimension_count", rotated);
        keys.whole("minimax-m2.expert_feed_forward_length", config.size("intermediate_size")? as u32);
        for (key, value) in [
            ("use_qk_norm", json!(true)),
            ("qk_norm_type", json!("per_layer")),
            ("use_routing_bias", json!(true)),
            ("shared_intermediate_size", json!(0)),
        ] {
            config.neutral(key, &value)?;
        }
        keys.whole("minimax-m2.expert_gating_func", SIGMOID);
        router("minimax-m2", config, keys)
    },
    layer: &[&[same("block_sparse_moe.e_score_correction_bias", &["exp_probs_b.bias"])], llama::LAYER],
    ..PLAIN
};

/// Tensors of Ling's models that are of no layer.
pub(super) const BAILING_OUTSIDE: &[Rule] = &[
    same("word_embeddings.weight", &["token_embd.weight"]),
    same("norm.weight", &["output_norm.weight"]),
    same("lm_head.weight", &["output.weight"]),
];

pub(super) const BAILINGMOE2: Family = Family {
    classes: &["BailingMoeV2ForCausalLM"],
    name: "bailingmoe2",
    partial: true,
    guesses: true,
    keys: |config, keys| {
        let shared = config.whole("num_shared_experts")?.unwrap_or(0);
        let neurons = match config.whole("moe_shared_expert_intermediate_size")? {
            Some(neurons) => neurons,
            None => config.size("moe_intermediate_size")?.saturating_mul(shared),
        };
        for (key, value) in [
            ("rope.dimension_count", rotated(config, 0.5)?.into()),
            ("vocab_size", config.size("vocab_size")?),
            ("expert_shared_count", shared),
            ("expert_shared_feed_forward_length", neurons),
            ("nextn_predict_layers", 0),
        ] {
            keys.whole(&format!("bailingmoe2.{key}"), u32::try_from(value).unwrap_or(u32::MAX));
        }
        for (key, value) in
            [("use_bias", false), ("use_qkv_bias", false), ("use_qk_norm", true), ("norm_head", false)]
        {
            config.neutral(key, &json!(value))?;
        }
        mixture("bailingmoe2", 1.0, true, config, keys)
    },
    outside: BAILING_OUTSIDE,
    layer: &[
        &[
            same("attention.query_key_value.weight", &["attn_qkv.weight"]),
            same("attention.dense.weight", &["attn_output.weight"]),
            same("attention.query_layernorm.weight", &["attn_q_norm.weight"]),
            same("attention.key_layernorm.weight", &["attn_k_norm.weight"]),
            same("mlp.gate.expert_bias", &["exp_probs_b.bias"]),
        ],
        SHARED,
        EXPERTS,
    ],
    ..PLAIN
};

pub(super) const DOTS1: Family = Family {
    classes: &["Dots1ForCausalLM"],
    name: "dots1",
    aliases: &[("n_routed_experts", "num_experts")],
    keys: |config, keys| {
        keys.whole("dots1.expert_shared_count", config.whole("n_shared_experts")?.unwrap_or(0) as u32);
        no_windows(config)?;
        mixture("dots1", 1.0, false, config, keys)
    },
    layer: &[SHARED, EXPERTS],
    ..PLAIN
};

pub(super) const HY_V3: Family = Family {
    classes: &["HYV3ForCausalLM"],
    name: "hy_v3",
    usual: Usual { rope_theta: 11_158_840.0, norm_epsilon: 1e-5, ..PLAIN.usual },
    defaults: &[("head_dim", 128), ("num_experts", 192), ("num_experts_per_tok", 8)],
    guesses: true,
    keys: |config, keys| {
        let neurons = config.size("moe_intermediate_size")?;
        let shared = config.whole("num_shared_experts")?.unwrap_or(1);
        for (key, value) in [
            ("expert_feed_forward_length", neurons),
            ("expert_shared_feed_forward_length", neurons.saturating_mul(shared)),
            ("expert_gating_func", SIGMOID.into()),
        ] {
            keys.whole(&format!("hy_v3.{key}"), u32::try_from(value).unwrap_or(u32::MAX));
        }
        let scale = config.number("router_scaling_factor")?.unwrap_or(2.826);
        keys.number("hy_v3.expert_weights_scale", scale);
        keys.flag("hy_v3.expert_weights_norm", config.flag("route_norm")?.unwrap_or(true));
        Ok(())
    },
    layer: &[
        &[
            same("mlp.router.gate.weight", &["ffn_gate_inp.weight"]),
            same("mlp.expert_bias", &["exp_probs_b"]),
            same("mlp.shared_mlp.gate_proj.weight", &["ffn_gate_shexp.weight"]),
            same("mlp.shared_mlp.up_proj.weight", &["ffn_up_shexp.weight"]),
            same("mlp.shared_mlp.down_proj.weight", &["ffn_down_shexp.weight"]),
        ],
        EXPERTS,
    ],
    ..PLAIN
};
