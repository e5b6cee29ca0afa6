//! gpt-oss: gate and up in turns, sinks, biases everywhere, and experts as MXFP4 or as plain matrices that lie transposed.

use serde_json::json;

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::keys::Keys;

use super::common::is_scaled;
use super::{Family, Make, PLAIN, Rule, Usual, same};

const LAYER: &[Rule] = &[
    same("post_attention_layernorm.weight", &["post_attention_norm.weight"]),
    same("self_attn.sinks", &["attn_sinks.weight"]),
    same("mlp.router.weight", &["ffn_gate_inp.weight"]),
    same("mlp.router.bias", &["ffn_gate_inp.bias"]),
    Rule {
        from: "mlp.experts.gate_up_proj",
        to: &["ffn_gate_exps.weight", "ffn_up_exps.weight"],
        make: Make::TransposedPairs,
    },
    Rule { from: "mlp.experts.down_proj", to: &["ffn_down_exps.weight"], make: Make::Transposed },
    Rule {
        from: "mlp.experts.gate_up_proj_bias",
        to: &["ffn_gate_exps.bias", "ffn_up_exps.bias"],
        make: Make::Pairs,
    },
    same("mlp.experts.down_proj_bias", &["ffn_down_exps.bias"]),
    Rule {
        from: "mlp.experts.gate_up_proj_blocks",
        to: &["ffn_gate_exps.weight", "ffn_up_exps.weight"],
        make: Make::Blocks,
    },
    Rule { from: "mlp.experts.down_proj_blocks", to: &["ffn_down_exps.weight"], make: Make::Blocks },
    Rule { from: "mlp.experts.gate_up_proj_scales", to: &["ffn_gate_exps.weight"], make: Make::Scales },
    Rule { from: "mlp.experts.down_proj_scales", to: &["ffn_down_exps.weight"], make: Make::Scales },
];

pub(super) const GPT_OSS: Family = Family {
    classes: &["GptOssForCausalLM"],
    name: "gpt-oss",
    own_activation: true,
    usual: Usual { rope_theta: 150_000.0, norm_epsilon: 1e-5, tied: false, activation: "silu" },
    keys,
    layer: &[LAYER],
    ..PLAIN
};

fn keys(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let width = config.whole("head_dim")?.unwrap_or(64) as u32;
    keys.whole("gpt-oss.attention.key_length", width);
    keys.whole("gpt-oss.attention.value_length", width);
    keys.whole("gpt-oss.attention.sliding_window", config.size("sliding_window")? as u32);
    keys.whole("gpt-oss.expert_feed_forward_length", config.size("intermediate_size")? as u32);
    config.neutral("swiglu_limit", &json!(7.0))?;
    config.neutral("swiglu_alpha", &json!(1.702))?;
    is_scaled(config)?;
    for (layer, kind) in
        config.layer_types(config.size("num_hidden_layers")?)?.unwrap_or_default().into_iter().enumerate()
    {
        let usual = if layer % 2 == 0 { "sliding_attention" } else { "full_attention" };
        if kind != usual {
            return Err(FolderError::unsupported(
                config.path(),
                format!("layer {layer} of type {}", quote(kind)),
            ));
        }
    }
    Ok(())
}
