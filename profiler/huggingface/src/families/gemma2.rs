//! Gemma 2: norms that lack 1, a window on every other layer, a bound of scores and of logits.

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
];

pub(super) const GEMMA2: Family = Family {
    classes: &["Gemma2ForCausalLM"],
    name: "gemma2",
    usual: Usual { tied: true, activation: "gelu", ..PLAIN.usual },
    activation_key: "hidden_activation",
    // GGUF has no base of this architecture
    rope: |_, config, _| {
        let rope = config.rope()?.full;
        let is_plain = config.rope_kind(&rope)? == "default"
            && config.rope_number(&rope, "rope_theta")?.is_none_or(|base| base == 10_000.0);
        if is_plain {
            Ok(())
        } else {
            Err(FolderError::unsupported(config.path(), "another rotary embedding"))
        }
    },
    keys,
    layer: &[LAYER],
    outside: OUTSIDE_PLUS_ONE,
    space_prefix: Some(false),
    defaults: &[
        ("num_key_value_heads", 4),
        ("head_dim", 256),
        ("query_pre_attn_scalar", 256),
        ("sliding_window", 4096),
    ],
    ..PLAIN
};

fn keys(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    keys.whole("gemma2.attention.sliding_window", config.size("sliding_window")? as u32);
    for (key, usual) in [("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)] {
        let bound = if config.is_null(key) { 0.0 } else { config.number(key)?.unwrap_or(usual) };
        keys.number(&format!("gemma2.{key}"), bound);
    }
    let layers = config.size("num_hidden_layers")?;
    for (layer, kind) in config.layer_types(layers)?.unwrap_or_default().into_iter().enumerate() {
        let usual = if layer % 2 == 0 { "sliding_attention" } else { "full_attention" };
        if kind != usual {
            let what = format!("layer {layer} of type {}", quote(kind));
            return Err(FolderError::unsupported(config.path(), what));
        }
    }
    // the reader's scale of scores is that of the published models
    let (heads, hidden) = (config.size("num_attention_heads")?, config.size("hidden_size")?);
    let usual = if layers == 46 { hidden / heads.max(1) } else { config.size("head_dim")? };
    config.neutral("query_pre_attn_scalar", &json!(usual))
}
