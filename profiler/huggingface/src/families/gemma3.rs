//! Gemma 3: norms that lack 1, windows on five of six layers. Of models that see pictures, the part for text.

use serde_json::json;

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::keys::Keys;

use super::{Family, OUTSIDE_PLUS_ONE, PLAIN, Rule, Usual, plus_one};

const LAYER: &[Rule] = &[
    plus_one("input_layernorm.weight", &["attn_norm.weight"]),
    plus_one("post_attention_layernorm.weight", &["post_attention_norm.weight"]),
    plus_one("pre_feedforward_layernorm.weight", &["ffn_norm.weight"]),
    plus_one("post_feedforward_layernorm.weight", &["post_ffw_norm.weight"]),
    plus_one("self_attn.q_norm.weight", &["attn_q_norm.weight"]),
    plus_one("self_attn.k_norm.weight", &["attn_k_norm.weight"]),
];

pub(super) const GEMMA3: Family = Family {
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    name: "gemma3",
    local_rope: true,
    activation_key: "hidden_activation",
    usual: Usual { rope_theta: 1e6, norm_epsilon: 1e-6, tied: true, activation: "gelu" },
    keys,
    layer: &[LAYER],
    outside: OUTSIDE_PLUS_ONE,
    space_prefix: Some(false),
    defaults: &[
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("head_dim", 256),
        ("query_pre_attn_scalar", 256),
        ("max_position_embeddings", 131_072),
        ("sliding_window", 4096),
        ("vocab_size", 262_208),
    ],
    ..PLAIN
};

/// Layers from one that sees everything to the next.
const PERIOD: usize = 6;

fn keys(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let width = config.whole("head_dim")?.unwrap_or(256) as u32;
    keys.whole("gemma3.attention.key_length", width);
    keys.whole("gemma3.attention.value_length", width);
    keys.whole("gemma3.attention.sliding_window", config.size("sliding_window")? as u32);
    if !keys.has("gemma3.rope.freq_base_swa") {
        keys.number("gemma3.rope.freq_base_swa", 10_000.0);
    }
    if let Some(cap) = config.number("final_logit_softcapping")? {
        keys.number("gemma3.final_logit_softcapping", cap);
    }
    config.neutral("attn_logit_softcapping", &json!(null))?;
    config.neutral("sliding_window_pattern", &json!(PERIOD))?;
    config.neutral("_sliding_window_pattern", &json!(PERIOD))?;
    for (layer, kind) in
        config.layer_types(config.size("num_hidden_layers")?)?.unwrap_or_default().into_iter().enumerate()
    {
        let usual = if layer % PERIOD == PERIOD - 1 { "full_attention" } else { "sliding_attention" };
        if kind != usual {
            return Err(FolderError::unsupported(
                config.path(),
                format!("layer {layer} of type {}", quote(kind)),
            ));
        }
    }
    // the reader's scale of scores is that of the published models
    let (heads, hidden) = (config.size("num_attention_heads")?, config.size("hidden_size")?);
    let usual = if config.size("num_hidden_layers")? == 62 { hidden / heads.max(1) } else { width.into() };
    config.neutral("query_pre_attn_scalar", &json!(usual))
}
