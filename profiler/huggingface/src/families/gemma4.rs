//! Gemma 4, dense and with experts beside the dense network: windows and narrow heads on most layers, wide heads on the others. The
//! smallest models have per-layer embeddings, and last layers without keys and values. Of models that see pictures, the part for text.

use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::keys::Keys;

use super::common::{HEAD_MAX, layers};
use super::{Computed, Family, PLAIN, Rule, Usual, same};

const OUTSIDE: &[Rule] = &[
    same("embed_tokens.weight", &["token_embd.weight"]),
    same("norm.weight", &["output_norm.weight"]),
    same("lm_head.weight", &["output.weight"]),
    same("embed_tokens_per_layer.weight", &["per_layer_token_embd.weight"]),
    same("per_layer_model_projection.weight", &["per_layer_model_proj.weight"]),
    same("per_layer_projection_norm.weight", &["per_layer_proj_norm.weight"]),
];

const LAYER: &[Rule] = &[
    same("per_layer_input_gate.weight", &["inp_gate.weight"]),
    same("per_layer_projection.weight", &["proj.weight"]),
    same("post_per_layer_input_norm.weight", &["post_norm.weight"]),
    same("post_attention_layernorm.weight", &["post_attention_norm.weight"]),
    same("pre_feedforward_layernorm.weight", &["ffn_norm.weight"]),
    same("post_feedforward_layernorm.weight", &["post_ffw_norm.weight"]),
    same("layer_scalar", &["layer_output_scale.weight"]),
];

const EXPERTS: &[Rule] = &[
    same("pre_feedforward_layernorm_2.weight", &["pre_ffw_norm_2.weight"]),
    same("post_feedforward_layernorm_1.weight", &["post_ffw_norm_1.weight"]),
    same("post_feedforward_layernorm_2.weight", &["post_ffw_norm_2.weight"]),
    same("router.proj.weight", &["ffn_gate_inp.weight"]),
    same("router.scale", &["ffn_gate_inp.scale"]),
    same("router.per_expert_scale", &["ffn_down_exps.scale"]),
    same("experts.gate_up_proj", &["ffn_gate_up_exps.weight"]),
    same("experts.down_proj", &["ffn_down_exps.weight"]),
];

pub(super) const GEMMA4: Family = Family {
    classes: &["Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"],
    name: "gemma4",
    activation_key: "hidden_activation",
    usual: Usual { rope_theta: 1e6, tied: true, activation: "gelu", ..PLAIN.usual },
    aliases: &[("top_k_experts", "num_experts_per_tok")],
    defaults: &[
        ("num_key_value_heads", 4),
        ("head_dim", 256),
        ("max_position_embeddings", 131_072),
        ("sliding_window", 512),
        ("hidden_size_per_layer_input", 256),
        ("num_kv_shared_layers", 0),
        ("vocab_size", 262_144),
    ],
    rope,
    keys,
    outside: OUTSIDE,
    layer: &[LAYER, EXPERTS],
    computed: divisors,
    spaced: true,
    ..PLAIN
};

/// The bases of both rotary embeddings. Layers with a window rotate whole heads, the others a part of each head.
fn rope(_: &Family, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let rope = config.rope()?;
    let refused = |what: String| Err(FolderError::unsupported(config.path(), what));
    let own = config.value("rope_parameters").is_some();
    config.neutral("rope_scaling", &json!(null))?;
    for (keys, usual) in [(&rope.full, "proportional"), (&rope.sliding, "default")] {
        let kind = if own { config.rope_kind(keys)? } else { usual };
        if kind != usual {
            return refused(format!("rotary scaling {} where it is not {}", quote(kind), quote(usual)));
        }
        if let Some(factor) = config.rope_number(keys, "factor")?.filter(|&factor| factor != 1.0) {
            return refused(format!("key `factor` of rotary scaling with {factor}"));
        }
    }
    let partial = config.rope_number(&rope.sliding, "partial_rotary_factor")?;
    if let Some(partial) = partial.filter(|&partial| partial != 1.0) {
        return refused(format!("key `partial_rotary_factor` with {partial} of layers with a window"));
    }
    let base = |keys: &Map<String, Value>, usual: f64| {
        config.rope_number(keys, "rope_theta").map(|base| base.unwrap_or(usual))
    };
    keys.number("gemma4.rope.freq_base", base(&rope.full, 1e6)?);
    keys.number("gemma4.rope.freq_base_swa", base(&rope.sliding, 10_000.0)?);
    Ok(())
}

/// Whether each layer has a window.
fn windows(config: &Config) -> Result<Vec<bool>, FolderError> {
    /// Layers from one that sees everything to the next, where the file does not say it.
    const PERIOD: u64 = 6;
    let layers = layers(config)?;
    let Some(types) = config.layer_types(layers)? else {
        // the last one sees everything
        return Ok((1..=layers).map(|layer| layer % PERIOD != 0 && layer != layers).collect());
    };
    if types.last() != Some(&"full_attention") {
        let what = "a last layer that does not see everything (key `layer_types`)";
        return Err(FolderError::unsupported(config.path(), what));
    }
    let is_windowed = |kind| match kind {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        _ => Err(FolderError::unsupported(config.path(), format!("a layer of type {}", quote(kind)))),
    };
    types.into_iter().map(is_windowed).collect()
}

/// A number of layers without a window, where the file says it: by a key of its own, or for each such layer.
fn of_global(config: &Config, own: Option<u64>, key: &str) -> Result<Option<u64>, FolderError> {
    let Some(layers) = config.value("per_layer_config") else { return Ok(own) };
    let refused = |what: &str| Err(FolderError::unsupported(config.path(), what));
    let Some(layers) = layers.as_object() else { return refused("key `per_layer_config` that is no object") };
    let mut found = own;
    for (layer, is_windowed) in windows(config)?.into_iter().enumerate() {
        let value = layers.get(&layer.to_string()).and_then(|layer| layer.get(key));
        match value.map(|value| value.as_u64().filter(|&value| value <= u32::MAX.into())) {
            None => {}
            Some(value) if value.is_some() && !is_windowed && (found.is_none() || found == value) => {
                found = value;
            }
            Some(_) => {
                return refused("key `per_layer_config` with other sizes than those of two kinds of layers");
            }
        }
    }
    Ok(found)
}

/// Values of a head of layers without a window.
fn global_width(config: &Config) -> Result<u64, FolderError> {
    match of_global(config, config.whole("global_head_dim")?, "head_dim")?.unwrap_or(512) {
        width @ 1..=HEAD_MAX => Ok(width),
        width => Err(FolderError::damaged(config.path(), format!("a head has {width} values"))),
    }
}

fn keys(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    config.neutral("attn_logit_softcapping", &json!(null))?;
    let (windows, width) = (windows(config)?, global_width(config)?);
    let narrow = config.size("head_dim")?;
    let shared = config.whole("num_kv_shared_layers")?.unwrap_or(0);
    if config.flag("use_double_wide_mlp")? == Some(true) {
        // layers without keys and values have twice the neurons
        let neurons = i32::try_from(config.size("intermediate_size")?).unwrap_or(i32::MAX);
        let own = windows.len().saturating_sub(shared as usize);
        let of_layer = |layer: usize| if layer < own { neurons } else { neurons.saturating_mul(2) };
        let of_layers: Vec<i32> = (0..windows.len()).map(of_layer).collect();
        keys.wholes("gemma4.feed_forward_length", &of_layers);
    }
    for (key, value) in [
        ("attention.shared_kv_layers", shared),
        ("embedding_length_per_layer_input", config.whole("hidden_size_per_layer_input")?.unwrap_or(0)),
        ("attention.sliding_window", config.size("sliding_window")?),
        ("attention.key_length", width),
        ("attention.value_length", width),
        ("attention.key_length_swa", narrow),
        ("attention.value_length_swa", narrow),
        ("rope.dimension_count", width),
        ("rope.dimension_count_swa", narrow),
    ] {
        keys.whole(&format!("gemma4.{key}"), value as u32);
    }
    keys.flags("gemma4.attention.sliding_window_pattern", &windows);
    if let Some(neurons) = config.whole("moe_intermediate_size")? {
        keys.whole("gemma4.expert_feed_forward_length", neurons as u32);
    }
    if let Some(cap) = config.number("final_logit_softcapping")? {
        keys.number("gemma4.final_logit_softcapping", cap);
    }
    // transformers asks for the key of its own where keys are values alone
    let keys_are_values = config.flag("attention_k_eq_v")? == Some(true);
    let own = config.whole("num_global_key_value_heads")?.filter(|_| keys_are_values);
    if let Some(of_global) = of_global(config, own, "num_key_value_heads")? {
        let heads = config.size("num_key_value_heads")?;
        let of_layer = |windowed: bool| if windowed { heads as i32 } else { of_global as i32 };
        let of_layers: Vec<i32> = windows.into_iter().map(of_layer).collect();
        keys.wholes("gemma4.attention.head_count_kv", &of_layers);
    }
    Ok(())
}

/// Rotary divisors of layers without a window. A part of each head is rotated; a very large divisor leaves a pair unchanged.
fn divisors(config: &Config) -> Result<Vec<Computed>, FolderError> {
    const UNMOVED: f32 = 1e30;
    let width = global_width(config)?;
    let partial = config.rope_number(&config.rope()?.full, "partial_rotary_factor")?.unwrap_or(0.25);
    let rotated = (width as f64 * partial / 2.0) as u64;
    let of_pair = |pair| if pair < rotated { 1.0 } else { UNMOVED };
    Ok(vec![("rope_freqs.weight", (0..width / 2).map(of_pair).collect())])
}
