//! Gemma 3n: several residual streams, a low-rank branch beside attention, per-layer embeddings, windows on four of five layers, and last
//! layers without keys and values. Of models that see and hear, the part for text.

use serde_json::{Value, json};

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::keys::Keys;

use super::common::layers;
use super::{Family, Make, PLAIN, Rule, Usual, same};

/// One matrix for each stream after the first, in one tensor; and embeddings, which may lack the tokens of pictures and sound.
const OUTSIDE: &[Rule] = &[
    Rule { from: "embed_tokens.weight", to: &["token_embd.weight"], make: Make::Vocabulary },
    Rule {
        from: "embed_tokens_per_layer.weight",
        to: &["per_layer_token_embd.weight"],
        make: Make::Vocabulary,
    },
    same("norm.weight", &["output_norm.weight"]),
    same("lm_head.weight", &["output.weight"]),
    same("per_layer_model_projection.weight", &["per_layer_model_proj.weight"]),
    same("per_layer_projection_norm.weight", &["per_layer_proj_norm.weight"]),
    Rule { from: "altup_projections.*.weight", to: &["altup_proj.weight"], make: Make::Expert },
    Rule {
        from: "altup_unembed_projections.*.weight",
        to: &["altup_unembd_proj.weight"],
        make: Make::Expert,
    },
];

const LAYER: &[Rule] = &[
    same("altup.router_norm.weight", &["altup_router_norm.weight"]),
    same("altup.modality_router.weight", &["altup_router.weight"]),
    same("altup.prediction_coefs.weight", &["altup_predict_coef.weight"]),
    same("altup.correction_coefs.weight", &["altup_correct_coef.weight"]),
    same("altup.correct_output_scale", &["altup_correct_scale.weight"]),
    same("laurel.linear_left.weight", &["laurel_l.weight"]),
    same("laurel.linear_right.weight", &["laurel_r.weight"]),
    same("laurel.post_laurel_norm.weight", &["laurel_post_norm.weight"]),
    same("per_layer_input_gate.weight", &["inp_gate.weight"]),
    same("per_layer_projection.weight", &["proj.weight"]),
    same("post_per_layer_input_norm.weight", &["post_norm.weight"]),
    same("post_attention_layernorm.weight", &["post_attention_norm.weight"]),
    same("pre_feedforward_layernorm.weight", &["ffn_norm.weight"]),
    same("post_feedforward_layernorm.weight", &["post_ffw_norm.weight"]),
];

pub(super) const GEMMA3N: Family = Family {
    classes: &["Gemma3nForConditionalGeneration", "Gemma3nForCausalLM"],
    name: "gemma3n",
    local_rope: true,
    widths_of_layers: true,
    activation_key: "hidden_activation",
    usual: Usual { rope_theta: 1e6, norm_epsilon: 1e-6, tied: true, activation: "gelu" },
    defaults: &[
        ("num_attention_heads", 8),
        ("num_key_value_heads", 2),
        ("head_dim", 256),
        ("intermediate_size", 16_384),
        ("max_position_embeddings", 32_768),
        ("sliding_window", 512),
        ("hidden_size_per_layer_input", 256),
        ("num_kv_shared_layers", 15),
        ("altup_active_idx", 0),
        ("altup_num_inputs", 4),
        ("vocab_size", 262_400),
    ],
    keys,
    outside: OUTSIDE,
    layer: &[LAYER],
    space_prefix: Some(false),
    ..PLAIN
};

fn keys(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    // llama.cpp's files always have the factors of corrected streams, and its models use them
    config.neutral("altup_correct_scale", &json!(true))?;
    config.neutral("attn_logit_softcapping", &json!(null))?;
    let layers = layers(config)? as usize;
    let windows = windows(config, layers)?;
    if !keys.has("gemma3n.feed_forward_length") {
        let widths = config.wholes("intermediate_size")?.unwrap_or_default();
        let widths: Vec<i32> = widths.iter().map(|&width| width as i32).collect(); // `Config::wholes` bounds them
        keys.wholes("gemma3n.feed_forward_length", &widths);
    }
    if !keys.has("gemma3n.rope.freq_base_swa") {
        keys.number("gemma3n.rope.freq_base_swa", 10_000.0);
    }
    for (key, value) in [
        ("attention.sliding_window", "sliding_window"),
        ("attention.shared_kv_layers", "num_kv_shared_layers"),
        ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
        ("altup.active_idx", "altup_active_idx"),
        ("altup.num_inputs", "altup_num_inputs"),
    ] {
        keys.whole(&format!("gemma3n.{key}"), config.size(value)? as u32);
    }
    keys.flags("gemma3n.attention.sliding_window_pattern", &windows);
    keys.numbers("gemma3n.activation_sparsity_scale", &cutoffs(config, layers)?);
    if let Some(cap) = config.number("final_logit_softcapping")?.or(Some(30.0)).filter(|&cap| cap != 0.0) {
        keys.number("gemma3n.final_logit_softcapping", cap);
    }
    Ok(())
}

/// Whether each layer has a window; without types, each fifth layer has none.
fn windows(config: &Config, layers: usize) -> Result<Vec<bool>, FolderError> {
    const PERIOD: usize = 5;
    let Some(types) = config.layer_types(layers as u64)? else {
        return Ok((1..=layers).map(|layer| !layer.is_multiple_of(PERIOD)).collect());
    };
    let is_windowed = |kind| match kind {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        _ => Err(FolderError::unsupported(config.path(), format!("a layer of type {}", quote(kind)))),
    };
    types.into_iter().map(is_windowed).collect()
}

/// The standard deviations above their mean that each layer's gates must exceed, from the share of gates that it leaves out; minus
/// infinity for none.
fn cutoffs(config: &Config, layers: usize) -> Result<Vec<f32>, FolderError> {
    const KEY: &str = "activation_sparsity_pattern";
    let Some(shares) = config.value(KEY) else {
        // of models with few layers, transformers leaves out none
        let sparse = if layers > 10 { 10 } else { 0 };
        let of = |layer| if layer < sparse { deviations(0.95) } else { f32::NEG_INFINITY };
        return Ok((0..layers).map(of).collect());
    };
    let share = |share: &Value| share.as_f64().filter(|share| (0.0..=0.9999).contains(share));
    let shares: Option<Vec<f64>> = shares.as_array().and_then(|shares| shares.iter().map(share).collect());
    let shares = shares.filter(|shares| shares.len() == layers).ok_or_else(|| {
        let fact = format!("key {} is not a share from 0 to 0.9999 for each layer", quote(KEY));
        FolderError::damaged(config.path(), fact)
    })?;
    Ok(shares.into_iter().map(|share| deviations(share as f32)).collect())
}

/// The standard deviations above the mean that a share of a normal distribution is below, rounded as transformers and llama.cpp's
/// converter round them.
fn deviations(share: f32) -> f32 {
    if share == 0.0 {
        f32::NEG_INFINITY
    } else {
        inverse_erf((2.0 * share - 1.0).into()) as f32 * 2_f32.sqrt()
    }
}

/// The inverse of the error function, by Newton's steps from 0, which never pass the root.
fn inverse_erf(value: f64) -> f64 {
    let slope = |x: f64| std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp();
    // `2 / sqrt(pi) e^(-x^2) sum of 2^n x^(2 n + 1) / (1 * 3 * ... (2 n + 1))`, whose terms are all positive
    let erf = |x: f64| {
        let terms = (1..200).scan(x, |term, n| {
            let now = *term;
            *term *= 2.0 * x * x / f64::from(2 * n + 1);
            Some(now)
        });
        slope(x) * terms.sum::<f64>()
    };
    let root = (0..100).fold(0.0, |x, _| x - (erf(x) - value.abs()) / slope(x));
    root.copysign(value)
}

#[cfg(test)]
mod tests {
    use super::deviations;

    #[test]
    fn deviations_are_those_of_torch() {
        // torch.distributions.Normal(0, 1).icdf(torch.tensor(share))
        for (share, expected) in [
            (0.95, 1.644_853_6),
            (0.9, 1.281_551_5),
            (0.85, 1.036_433_5),
            (0.8, 0.841_621_3),
            (0.5, 0.0),
            (0.3, -0.524_400_5),
            (0.99, 2.326_348_3),
            (0.9999, 3.718_974_4),
        ] {
            assert_eq!(deviations(share), expected, "{share}");
        }
        assert_eq!(deviations(0.0), f32::NEG_INFINITY);
    }
}
