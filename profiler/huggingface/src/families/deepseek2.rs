//! `DeepSeek` V2 and V3 and GLM 4.7 Flash: latent attention, dense networks first, and then experts beside shared ones.

use serde_json::json;

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::keys::Keys;

use super::common::router;
use super::mixtures::SHARED;
use super::{EXPERTS, Family, Make, PLAIN, Rule, Usual, same};

pub(super) const LAYER: &[Rule] = &[
    same("self_attn.q_a_proj.weight", &["attn_q_a.weight"]),
    same("self_attn.q_a_layernorm.weight", &["attn_q_a_norm.weight"]),
    same("self_attn.q_b_proj.weight", &["attn_q_b.weight"]),
    same("self_attn.kv_a_proj_with_mqa.weight", &["attn_kv_a_mqa.weight"]),
    same("self_attn.kv_a_layernorm.weight", &["attn_kv_a_norm.weight"]),
    Rule {
        from: "self_attn.kv_b_proj.weight",
        to: &["attn_k_b.weight", "attn_v_b.weight"],
        make: Make::Latent,
    },
];

/// Defaults of transformers.
struct UsualExperts {
    gating: &'static str,
    scale: f64,
    norm: bool,
    /// Layers with a dense network before them.
    leading: u64,
}

pub(super) const DEEPSEEK_V2: Family = Family {
    classes: &["DeepseekV2ForCausalLM"],
    name: "deepseek2",
    aliases: &[("n_routed_experts", "num_experts")],
    keys: |config, keys| {
        sizes(&UsualExperts { gating: "softmax", scale: 1.0, norm: false, leading: 0 }, config, keys)
    },
    layer: &[LAYER, SHARED, EXPERTS],
    guesses: true,
    ..PLAIN
};

pub(super) const DEEPSEEK_V3: Family = Family {
    classes: &["DeepseekV3ForCausalLM"],
    defaults: &[("n_group", 8), ("topk_group", 4)],
    keys: |config, keys| {
        sizes(&UsualExperts { gating: "sigmoid", scale: 2.5, norm: true, leading: 3 }, config, keys)
    },
    ..DEEPSEEK_V2
};

pub(super) const GLM4_MOE_LITE: Family = Family {
    classes: &["Glm4MoeLiteForCausalLM"],
    usual: Usual { norm_epsilon: 1e-5, ..PLAIN.usual },
    defaults: &[("n_group", 1), ("topk_group", 1)],
    keys: |config, keys| {
        sizes(&UsualExperts { gating: "sigmoid", scale: 1.8, norm: true, leading: 1 }, config, keys)
    },
    alike: Some(("llama-bpe", "glm4")),
    roles: &[("bos", "[gMASK]"), ("eot", "<|user|>"), ("unk", "<|endoftext|>"), ("eom", "<|observation|>")],
    ..DEEPSEEK_V2
};

/// The keys of latent attention and of experts.
fn sizes(usual: &UsualExperts, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let (rank, rotated) = (config.size("kv_lora_rank")?, config.size("qk_rope_head_dim")?);
    let (plain, value) = (config.size("qk_nope_head_dim")?, config.size("v_head_dim")?);
    let experts = config.whole("num_experts")?;
    let neurons = match experts {
        Some(_) => config.size("moe_intermediate_size")?,
        None => config.size("intermediate_size")?,
    };
    let layers = config.size("num_hidden_layers")?;
    let leading = leading(config, experts.map_or(layers, |_| usual.leading))?;
    let whole = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    for (key, value) in [
        // one vector for all heads is kept
        ("attention.head_count_kv", 1),
        ("attention.key_length", rank + rotated),
        ("attention.value_length", rank),
        ("attention.key_length_mla", plain + rotated),
        ("attention.value_length_mla", value),
        ("attention.kv_lora_rank", rank),
        ("rope.dimension_count", rotated),
        ("vocab_size", config.size("vocab_size")?),
        ("leading_dense_block_count", leading),
        ("expert_feed_forward_length", neurons),
        ("expert_shared_count", config.whole("n_shared_experts")?.unwrap_or(0)),
    ] {
        keys.whole(&format!("deepseek2.{key}"), whole(value));
    }
    if let Some(rank) = config.whole("q_lora_rank")? {
        keys.whole("deepseek2.attention.q_lora_rank", whole(rank));
    }
    router("deepseek2", config, keys)?;
    if config.text("topk_method")? == Some("greedy") {
        // chosen from all, whatever the groups are
        keys.whole("deepseek2.expert_group_count", 1);
        keys.whole("deepseek2.expert_group_used_count", 1);
    }
    if experts.is_some() {
        let scale = config.number("routed_scaling_factor")?.unwrap_or(usual.scale);
        keys.number("deepseek2.expert_weights_scale", scale);
        if config.flag("norm_topk_prob")?.unwrap_or(usual.norm) {
            keys.flag("deepseek2.expert_weights_norm", true);
        }
        let gating = match config.text("scoring_func")?.unwrap_or(usual.gating) {
            "softmax" => 1,
            "sigmoid" => 2,
            other => {
                let what = format!("weighing experts by {}", quote(other));
                return Err(FolderError::unsupported(config.path(), what));
            }
        };
        keys.whole("deepseek2.expert_gating_func", gating);
    }
    config.neutral("moe_layer_freq", &json!(1))?;
    config.neutral("rope_interleave", &json!(true))
}

/// The layers with a dense network, which come before all with experts.
fn leading(config: &Config, usual: u64) -> Result<u64, FolderError> {
    let said = config.whole("first_k_dense_replace")?;
    let Some(types) = config.names_of_layers("mlp_layer_types", config.size("num_hidden_layers")?)? else {
        return Ok(said.unwrap_or(usual));
    };
    let leading = types.iter().take_while(|kind| **kind == "dense").count() as u64;
    let are_sparse = types.iter().skip(leading as usize).all(|kind| *kind == "sparse");
    if !are_sparse || said.is_some_and(|said| said != leading) {
        let what = "a dense network behind one of experts (key `mlp_layer_types`)";
        return Err(FolderError::unsupported(config.path(), what));
    }
    Ok(leading)
}
