//! Qwen 3.5 and 3.6, dense and with experts: gated delta nets, and now and then attention. Of models that see pictures, the part for
//! text.

use serde_json::json;

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::keys::Keys;

use super::common::{layers, rotated};
use super::{EXPERTS, Family, Make, OUTSIDE_PLUS_ONE, PLAIN, Rule, plus_one, same};

/// The heads of values lie by the head of keys that they share, and in GGUF in turns.
pub(super) const LAYER: &[Rule] = &[
    plus_one("input_layernorm.weight", &["attn_norm.weight"]),
    plus_one("post_attention_layernorm.weight", &["post_attention_norm.weight"]),
    plus_one("self_attn.q_norm.weight", &["attn_q_norm.weight"]),
    plus_one("self_attn.k_norm.weight", &["attn_k_norm.weight"]),
    Rule { from: "linear_attn.in_proj_qkv.weight", to: &["attn_qkv.weight"], make: Make::MixedHeads },
    Rule { from: "linear_attn.in_proj_z.weight", to: &["attn_gate.weight"], make: Make::ValueHeads },
    Rule { from: "linear_attn.in_proj_a.weight", to: &["ssm_alpha.weight"], make: Make::ValueHeads },
    Rule { from: "linear_attn.in_proj_b.weight", to: &["ssm_beta.weight"], make: Make::ValueHeads },
    Rule { from: "linear_attn.conv1d.weight", to: &["ssm_conv1d.weight"], make: Make::MixedHeads },
    Rule { from: "linear_attn.A_log", to: &["ssm_a"], make: Make::DecayHeads },
    Rule { from: "linear_attn.dt_bias", to: &["ssm_dt.bias"], make: Make::ValueHeads },
    same("linear_attn.norm.weight", &["ssm_norm.weight"]),
    Rule { from: "linear_attn.out_proj.weight", to: &["ssm_out.weight"], make: Make::ValueColumns },
];

pub(super) const SHARED: &[Rule] = &[
    same("mlp.shared_expert.gate_proj.weight", &["ffn_gate_shexp.weight"]),
    same("mlp.shared_expert.up_proj.weight", &["ffn_up_shexp.weight"]),
    same("mlp.shared_expert.down_proj.weight", &["ffn_down_shexp.weight"]),
    same("mlp.shared_expert_gate.weight", &["ffn_gate_inp_shexp.weight"]),
];

pub(super) const QWEN35: Family = Family {
    classes: &["Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"],
    name: "qwen35",
    partial: true,
    defaults: &[
        ("head_dim", 256),
        ("num_key_value_heads", 4),
        ("linear_conv_kernel_dim", 4),
        ("linear_key_head_dim", 128),
        ("linear_value_head_dim", 128),
        ("linear_num_key_heads", 16),
        ("linear_num_value_heads", 32),
    ],
    keys: |config, keys| sizes("qwen35", config, keys),
    outside: OUTSIDE_PLUS_ONE,
    layer: &[LAYER],
    guesses: true,
    ..PLAIN
};

pub(super) const QWEN35MOE: Family = Family {
    classes: &["Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"],
    name: "qwen35moe",
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
        ("num_experts", 256),
        ("num_experts_per_tok", 8),
    ],
    keys: |config, keys| {
        let shared = config.size("shared_expert_intermediate_size")?;
        keys.whole("qwen35moe.expert_feed_forward_length", config.size("moe_intermediate_size")? as u32);
        keys.whole("qwen35moe.expert_shared_feed_forward_length", shared as u32);
        config.neutral("mlp_only_layers", &json!([]))?;
        sizes("qwen35moe", config, keys)
    },
    layer: &[LAYER, EXPERTS, SHARED],
    ..QWEN35
};

/// Qwen 3 Next, whose delta nets have queries, keys, values and gates in one matrix, head by head.
pub(super) const QWEN3NEXT: Family = Family {
    classes: &["Qwen3NextForCausalLM"],
    name: "qwen3next",
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
    ],
    keys: |config, keys| {
        let shared = config.size("shared_expert_intermediate_size")?;
        keys.whole("qwen3next.expert_feed_forward_length", config.size("moe_intermediate_size")? as u32);
        keys.whole("qwen3next.expert_shared_feed_forward_length", shared as u32);
        config.neutral("mlp_only_layers", &json!([]))?;
        config.neutral("decoder_sparse_step", &json!(1))?;
        config.neutral("norm_topk_prob", &json!(true))?;
        delta_net("qwen3next", config, keys)
    },
    layer: &[NEXT, LAYER, EXPERTS, SHARED],
    ..QWEN35
};

const NEXT: &[Rule] = &[
    Rule {
        from: "linear_attn.in_proj_qkvz.weight",
        to: &["attn_qkv.weight", "attn_gate.weight"],
        make: Make::MixedGroups,
    },
    same("linear_attn.in_proj_ba.weight", &["ssm_ba.weight"]),
    Rule { from: "linear_attn.conv1d.weight", to: &["ssm_conv1d.weight"], make: Make::Squeezed },
    Rule { from: "linear_attn.A_log", to: &["ssm_a"], make: Make::Decay },
    same("linear_attn.dt_bias", &["ssm_dt.bias"]),
    same("linear_attn.out_proj.weight", &["ssm_out.weight"]),
];

/// Layers from one with attention to the next, where the file does not say it.
const PERIOD: u64 = 4;
/// The sections of rotated pairs by time, height and width, which text has no use for, where the file does not say them.
const SECTIONS: [i32; 4] = [11, 11, 10, 0];

pub(super) fn sizes(name: &str, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let mut sections = SECTIONS;
    if let Some(own) = config.rope_numbers(&config.rope()?.full, "mrope_section")? {
        sections = [0; 4];
        sections.iter_mut().zip(own).for_each(|(section, own)| *section = own as i32);
    }
    keys.wholes(&format!("{name}.rope.dimension_sections"), &sections);
    delta_net(name, config, keys)
}

fn delta_net(name: &str, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let value_heads = config.size("linear_num_value_heads")?;
    let inner = value_heads.saturating_mul(config.size("linear_value_head_dim")?);
    for (key, value) in [
        ("ssm.conv_kernel", config.size("linear_conv_kernel_dim")?),
        ("ssm.state_size", config.size("linear_key_head_dim")?),
        ("ssm.group_count", config.size("linear_num_key_heads")?),
        ("ssm.time_step_rank", value_heads),
        ("ssm.inner_size", inner),
        ("full_attention_interval", config.whole("full_attention_interval")?.unwrap_or(PERIOD)),
    ] {
        keys.whole(&format!("{name}.{key}"), u32::try_from(value).unwrap_or(u32::MAX));
    }
    if let Some(types) = config.layer_types(layers(config)?)? {
        for kind in &types {
            if !["linear_attention", "full_attention"].contains(kind) {
                let what = format!("a layer of type {}", quote(kind));
                return Err(FolderError::unsupported(config.path(), what));
            }
        }
        let recurrent: Vec<bool> = types.into_iter().map(|kind| kind == "linear_attention").collect();
        keys.flags(&format!("{name}.attention.recurrent_layers"), &recurrent);
    }
    keys.whole(&format!("{name}.rope.dimension_count"), rotated(config, 0.25)?);
    config.neutral("attn_output_gate", &json!(true))
}
