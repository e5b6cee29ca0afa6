//! Llama, Mistral and Mixtral, which are all `llama` in GGUF, Mistral 3 and Ministral 3, which are `mistral3`, and Bamboo.

use std::f32::consts::PI;

use serde_json::json;

use crate::config::Config;
use crate::error::FolderError;
use crate::keys::Keys;

use super::common::{self, head_width, is_scaled, original_context};
use super::{Computed, Family, Make, PLAIN, Rule, Usual, same};

/// Mixtral's experts.
pub(super) const LAYER: &[Rule] = &[
    same("block_sparse_moe.gate.weight", &["ffn_gate_inp.weight"]),
    Rule { from: "block_sparse_moe.experts.*.w1.weight", to: &["ffn_gate_exps.weight"], make: Make::Expert },
    Rule { from: "block_sparse_moe.experts.*.w3.weight", to: &["ffn_up_exps.weight"], make: Make::Expert },
    Rule { from: "block_sparse_moe.experts.*.w2.weight", to: &["ffn_down_exps.weight"], make: Make::Expert },
];

pub(super) const LLAMA: Family = Family {
    classes: &["LlamaForCausalLM", "LLaMAForCausalLM"],
    name: "llama",
    keys,
    divided: true,
    layer: &[LAYER],
    computed: rope_freqs,
    permuted: true,
    ..PLAIN
};

pub(super) const MISTRAL: Family = Family {
    classes: &["MistralForCausalLM"],
    keys: |config, keys| windowed("llama", config, keys),
    defaults: &[("num_key_value_heads", 8), ("sliding_window", 4096)],
    ..LLAMA
};

pub(super) const MIXTRAL: Family = Family {
    classes: &["MixtralForCausalLM"],
    usual: Usual { rope_theta: 1e6, norm_epsilon: 1e-5, ..LLAMA.usual },
    keys: |config, keys| windowed("llama", config, keys),
    defaults: &[("num_key_value_heads", 8), ("num_local_experts", 8), ("num_experts_per_tok", 2)],
    ..LLAMA
};

pub(super) const MINISTRAL: Family = Family {
    classes: &["Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"],
    fits: |config| Ok(matches!(config.text("model_type")?, None | Some("ministral3"))),
    name: "mistral3",
    usual: Usual { norm_epsilon: 1e-5, ..LLAMA.usual },
    keys: ministral_keys,
    defaults: &[("num_key_value_heads", 8), ("head_dim", 128)],
    ..LLAMA
};

/// Mistral beside a part that sees pictures.
pub(super) const MISTRAL3: Family = Family {
    classes: &["Mistral3ForConditionalGeneration"],
    fits: |config| Ok(config.text("model_type")? == Some("mistral")),
    name: "mistral3",
    keys: |config, keys| windowed("mistral3", config, keys),
    defaults: MISTRAL.defaults,
    ..LLAMA
};

/// Predictors of neurons, without which a model is the same.
const PREDICTORS: &[Rule] = &[
    Rule { from: "mlp.predictor.fc1.weight", to: &[], make: Make::LeftOut },
    Rule { from: "mlp.predictor.fc2.weight", to: &[], make: Make::LeftOut },
];

/// A llama with `ReLU` of gate and of up.
pub(super) const BAMBOO: Family = Family {
    classes: &["BambooForCausalLM"],
    name: "bamboo",
    own_activation: true,
    usual: Usual { activation: "relu", ..PLAIN.usual },
    keys: |config, keys| windowed("bamboo", config, keys),
    layer: &[PREDICTORS],
    defaults: MISTRAL.defaults,
    ..LLAMA
};

/// A llama without gates.
pub(super) const ARCEE: Family = Family {
    classes: &["ArceeForCausalLM"],
    name: "arcee",
    usual: Usual { norm_epsilon: 1e-5, activation: "relu2", ..LLAMA.usual },
    own_activation: true,
    keys: |config, keys| sizes("arcee", config, keys),
    ..LLAMA
};

/// A llama without rotations on every fourth layer.
pub(super) const SMOLLM3: Family = Family {
    classes: &["SmolLM3ForCausalLM"],
    name: "smollm3",
    usual: Usual { rope_theta: 2e6, tied: true, ..LLAMA.usual },
    keys: |config, keys| {
        let layers = config.size("num_hidden_layers")?;
        let usual = (1..=layers.min(1 << 10)).map(|layer| u64::from(layer % 4 != 0)).collect::<Vec<_>>();
        config.neutral("no_rope_layers", &json!(usual))?;
        config.neutral("no_rope_layer_interval", &json!(4))?;
        common::no_windows(config)?;
        sizes("smollm3", config, keys)
    },
    ..LLAMA
};

fn keys(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    sizes("llama", config, keys)
}

fn windowed(name: &str, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    sizes(name, config, keys)?;
    // llama.cpp's converter leaves the window of early Mistral models out, and its text is another then
    let context = config.size("max_position_embeddings")?;
    if let Some(window) = config.whole("sliding_window")?.filter(|&window| window < context) {
        keys.whole(&format!("{name}.attention.sliding_window"), window as u32);
    }
    Ok(())
}

/// The keys of a llama and of what was made of it.
pub(super) fn sizes(name: &str, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let width = head_width(config)? as u32;
    if ["llama", "mistral3", "bamboo"].contains(&name) {
        keys.whole(&format!("{name}.attention.key_length"), width);
        keys.whole(&format!("{name}.attention.value_length"), width);
    }
    keys.whole(&format!("{name}.vocab_size"), config.size("vocab_size")? as u32);
    keys.whole(&format!("{name}.rope.dimension_count"), width);
    Ok(())
}

fn ministral_keys(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    sizes("mistral3", config, keys)?;
    is_scaled(config)?;
    if let Some(window) = config.whole("sliding_window")? {
        keys.whole("mistral3.attention.sliding_window", window as u32);
    }
    let rope = config.rope()?.full;
    if let Some(slope) = config.rope_number(&rope, "llama_4_scaling_beta")? {
        keys.number("mistral3.attention.temperature_scale", slope);
    }
    Ok(())
}

/// Llama 3's divisors of rotary frequencies.
///
/// Frequencies that turn often within the original context have 1, rare ones the factor, and others a value between.
///
/// Source: llama.cpp's `LlamaModel.generate_extra_tensors`, in its precision: frequencies are single, the rest double.
pub(super) fn rope_freqs(config: &Config) -> Result<Vec<Computed>, FolderError> {
    let rope = config.rope()?.full;
    if config.rope_kind(&rope)? != "llama3" {
        return common::nothing(config);
    }
    let number = |key: &str, usual: f64| config.rope_number(&rope, key).map(|found| found.unwrap_or(usual));
    let (base, factor) = (number("rope_theta", 10_000.0)?, number("factor", 8.0)?);
    let (low, high) = (number("low_freq_factor", 1.0)?, number("high_freq_factor", 4.0)?);
    let context = match config.rope_number(&rope, "original_max_position_embeddings")? {
        None => 8192.0,
        Some(_) => original_context(config)? as f64,
    };
    let width = head_width(config)?;
    let divisor = |pair: u64| {
        let power = (base as f32).powf((2 * pair) as f32 / width as f32);
        let frequency = 1.0 / power;
        let length = f64::from(2.0 * PI / frequency);
        if length < context / high {
            1.0
        } else if length > context / low {
            factor
        } else {
            let smooth = (context / length - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    Ok(vec![("rope_freqs.weight", (0..width / 2).map(|pair| divisor(pair) as f32).collect())])
}
