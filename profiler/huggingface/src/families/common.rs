//! Keys of all architectures: sizes, the rotary embedding, experts, and keys that must have no effect.

use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::keys::Keys;

use super::{Computed, Family};

/// Values of a head, at most.
pub(super) const HEAD_MAX: u64 = 1 << 12;

/// Layers of a model whose layers differ, at most: published ones have some hundred.
const LAYERS_MAX: u64 = 1 << 10;

/// Whether a tensor is of a model's part for pictures or sound, which its text does not need.
pub(super) fn is_of_pictures(name: &str) -> bool {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let parts = [
        "vision_tower.",
        "multi_modal_projector.",
        "vision_model.",
        "visual.",
        "audio_tower.",
        "embed_vision.",
        "embed_audio.",
    ];
    parts.iter().any(|part| name.starts_with(part))
}

/// The number of layers, for a model whose file describes each layer.
pub(super) fn layers(config: &Config) -> Result<u64, FolderError> {
    match config.size("num_hidden_layers")? {
        layers @ 1..=LAYERS_MAX => Ok(layers),
        layers => {
            let fact = format!("{layers} layers that differ are outside 1 to {LAYERS_MAX}");
            Err(FolderError::damaged(config.path(), fact))
        }
    }
}

/// The keys that every architecture has.
pub(super) fn keys(family: &Family, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let whole = |keys: &mut Keys, name: &str, value: Option<u64>| {
        if let Some(value) = value {
            keys.whole(&format!("{}.{name}", family.name), value as u32); // `Config::whole` bounds it
        }
    };
    whole(keys, "block_count", Some(config.size("num_hidden_layers")?));
    whole(keys, "context_length", Some(config.size("max_position_embeddings")?));
    whole(keys, "embedding_length", Some(config.size("hidden_size")?));
    // a model of experts alone has no width of another kind; one with a width for each layer has keys of its own
    let neurons = match config.value("intermediate_size") {
        None if config.whole("moe_intermediate_size")?.is_some() => None,
        Some(widths) if widths.is_array() && family.widths_of_layers => None,
        _ => Some(config.size("intermediate_size")?),
    };
    whole(keys, "feed_forward_length", neurons);
    let heads = config.size("num_attention_heads")?;
    whole(keys, "attention.head_count", Some(heads));
    whole(keys, "attention.head_count_kv", Some(config.whole("num_key_value_heads")?.unwrap_or(heads)));
    let (own, name) = family.epsilon;
    let epsilon = config.number(own)?.unwrap_or(family.usual.norm_epsilon);
    keys.number(&format!("{}.{name}", family.name), epsilon);
    whole(keys, "expert_count", config.whole_of(&["num_local_experts", "num_experts"])?);
    whole(keys, "expert_used_count", config.whole_of(&["num_experts_per_tok", "experts_per_token"])?);
    if let Some(width) = config.whole("head_dim")? {
        whole(keys, "attention.key_length", Some(width));
        whole(keys, "attention.value_length", Some(width));
    }
    (family.rope)(family, config, keys)?;
    activation(family, config, keys)?;
    config.neutral("is_causal", &json!(true))?;
    // of pictures alone
    let of_pictures = config.value("use_bidirectional_attention") == Some(&json!("vision"));
    if !(family.name == "gemma4" && of_pictures) {
        config.neutral("use_bidirectional_attention", &json!(false))?;
    }
    match config.value("quantization_config") {
        None => Ok(()),
        Some(quantisation) => {
            let method =
                quantisation.get("quant_method").and_then(|method| method.as_str()).unwrap_or("unknown");
            if method == "mxfp4" && family.name == "gpt-oss" {
                return Ok(());
            }
            let remedy = "give the model as it was before it was quantised, and --quantize";
            Err(FolderError::with_remedy(
                config.path(),
                format!("quantisation {} of a folder", quote(method)),
                remedy,
            ))
        }
    }
}

/// The scaling of rotary frequencies, and their base.
pub(super) fn rope(family: &Family, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let rope = config.rope()?;
    let name = |key: &str| format!("{}.rope.{key}", family.name);
    let number = |key: &str| config.rope_number(&rope.full, key);
    let refused = |what: String| Err(FolderError::unsupported(config.path(), what));
    let phi = family.name == "phi3";
    match (config.rope_kind(&rope.full)?, number("factor")?) {
        ("default", _) => {}
        ("llama3", _) if family.divided => {}
        ("linear", Some(factor)) if !phi => {
            keys.text(&name("scaling.type"), "linear");
            keys.number(&name("scaling.factor"), factor);
        }
        ("yarn", Some(factor)) if !phi => yarn(family, config, &rope.full, factor, keys)?,
        ("su" | "longrope", _) if phi => {}
        (kind, _) => return refused(format!("rotary scaling {} of a {} model", quote(kind), family.name)),
    }
    let partial = |keys: &Map<String, Value>| config.rope_number(keys, "partial_rotary_factor");
    if let Some(partial) = partial(&rope.full)?.filter(|&partial| partial != 1.0 && !family.partial) {
        return refused(format!("key `partial_rotary_factor` with {partial}"));
    }
    let base = number("rope_theta")?.unwrap_or(family.usual.rope_theta);
    keys.number(&name("freq_base"), base);
    if rope.sliding.is_empty() {
        return Ok(());
    }
    // of layers with a window GGUF has the base alone
    let (kind, local) = (config.rope_kind(&rope.sliding)?, config.rope_number(&rope.sliding, "rope_theta")?);
    if !family.local_rope {
        return refused("a rotary embedding of its own for layers with a window".to_owned());
    }
    if kind != "default" {
        return refused(format!("rotary scaling {} of layers with a window", quote(kind)));
    }
    if let Some(partial) = partial(&rope.sliding)?.filter(|&partial| partial != 1.0) {
        return refused(format!("key `partial_rotary_factor` with {partial} of layers with a window"));
    }
    if let Some(local) = local {
        keys.number(&name("freq_base_swa"), local);
    }
    Ok(())
}

/// The keys of `YaRN`.
///
/// How cosines and sines grow is implied by the factor: GGUF's reader has it as transformers has, where `mscale` is 1.
fn yarn(
    family: &Family,
    config: &Config,
    rope: &Map<String, Value>,
    factor: f64,
    keys: &mut Keys,
) -> Result<(), FolderError> {
    let name = |key: &str| format!("{}.rope.scaling.{key}", family.name);
    let number = |key: &str| config.rope_number(rope, key);
    let refused = |key: &str, found: f64, rule: &str| {
        let what = format!("key `{key}` of YaRN with {found}{rule}");
        Err(FolderError::unsupported(config.path(), what))
    };
    let growth = |slope: f64| if factor > 1.0 { 1.0 + 0.1 * slope * factor.ln() } else { 1.0 };
    let mut magnitude = growth(1.0);
    let (own, all) = (number("mscale")?, number("mscale_all_dim")?);
    match (family.name, own, all) {
        // cosines and sines stay as they are, and scores grow; a tenth of the slope, as llama.cpp's files have it
        ("deepseek2", Some(own), Some(all)) if own == all && all > 0.0 => {
            magnitude = 1.0;
            keys.number(&name("yarn_log_multiplier"), 0.1 * all);
        }
        ("deepseek2", own, _) => {
            return refused("mscale", own.unwrap_or(0.0), ", where `mscale_all_dim` is another number,");
        }
        ("mistral3", Some(own), _) if own != 1.0 => return refused("mscale", own, ", where it is not 1,"),
        ("mistral3", Some(_), Some(slope)) => {
            magnitude /= growth(slope);
            keys.number(&name("yarn_log_multiplier"), slope);
        }
        ("mistral3", ..) | (_, None, None) => {}
        (_, Some(own), _) => return refused("mscale", own, ""),
        (_, None, Some(all)) => return refused("mscale_all_dim", all, ""),
    }
    if let Some(found) = number("attention_factor")?
        && (found - magnitude).abs() > 1e-4 * magnitude
    {
        return refused("attention_factor", found, &format!(", where the factor implies {magnitude},"));
    }
    // llama.cpp rounds the limits, and so does the reader; of gpt-oss, whose published files all say so, it takes them as they are
    let is_exact = rope.get("truncate").and_then(Value::as_bool) == Some(false);
    if is_exact != (family.name == "gpt-oss") {
        keys.flag("flashplan.rope_exact", is_exact);
    }
    keys.text(&name("type"), "yarn");
    keys.number(&name("factor"), factor);
    keys.whole(&name("original_context_length"), original_context(config)? as u32);
    for (from, to) in [
        ("extrapolation_factor", "yarn_ext_factor"),
        ("attn_factor", "yarn_attn_factor"),
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
    ] {
        if let Some(value) = number(from)? {
            keys.number(&name(to), value);
        }
    }
    Ok(())
}

/// Requires the scaling of frequencies in the file, for models with special defaults in transformers.
pub(super) fn is_scaled(config: &Config) -> Result<(), FolderError> {
    match config.value("rope_parameters").or(config.value("rope_scaling")) {
        Some(_) => Ok(()),
        None => Err(FolderError::damaged(config.path(), "key `rope_parameters` is missing")),
    }
}

/// Tokens of context before frequencies were scaled.
pub(super) fn original_context(config: &Config) -> Result<u64, FolderError> {
    let found = config.rope_number(&config.rope()?.full, "original_max_position_embeddings")?;
    match found {
        None => config.size("max_position_embeddings"),
        Some(found) if found >= 1.0 && found <= f64::from(u32::MAX) => Ok(found as u64),
        Some(found) => Err(FolderError::damaged(
            config.path(),
            format!("key `original_max_position_embeddings` is {found}"),
        )),
    }
}

/// Our own key for a function between gate and up that the architecture does not imply.
///
/// Transformers asks Gemma 3 for `hidden_activation` alone, and takes "gelu" for the exact one; llama.cpp's converter asks nothing.
fn activation(family: &Family, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let Some(found) = config.text(family.activation_key)? else { return Ok(()) };
    let plain = match found {
        "silu" | "swish" => "silu",
        "gelu_pytorch_tanh" | "gelu_new" => "gelu",
        "relu" => "relu",
        "relu2" => "relu2",
        _ => "", // the exact "gelu", too
    };
    match plain {
        _ if plain == family.usual.activation => Ok(()),
        "relu" | "silu" if !family.own_activation => {
            keys.text("flashplan.activation", plain);
            Ok(())
        }
        _ => Err(FolderError::unsupported(config.path(), format!("activation {}", quote(found)))),
    }
}

/// Values of a head: what the file says, or the width over the heads.
pub(super) fn head_width(config: &Config) -> Result<u64, FolderError> {
    let width = match config.whole("head_dim")? {
        Some(width) => width,
        None => config.size("hidden_size")?.checked_div(config.size("num_attention_heads")?).unwrap_or(0),
    };
    if (1..=HEAD_MAX).contains(&width) {
        Ok(width)
    } else {
        Err(FolderError::damaged(config.path(), format!("a head has {width} values")))
    }
}

/// Requires every layer to see everything.
pub(super) fn no_windows(config: &Config) -> Result<(), FolderError> {
    config.neutral("use_sliding_window", &json!(false))?;
    let types = config.layer_types(config.size("num_hidden_layers")?)?;
    match types.and_then(|types| types.into_iter().find(|kind| *kind != "full_attention")) {
        None => Ok(()),
        Some(found) => {
            Err(FolderError::unsupported(config.path(), format!("a layer of type {}", quote(found))))
        }
    }
}

/// The window of layers, and which of them have one.
pub(super) fn windows(name: &str, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let Some(window) = config.whole("sliding_window")? else { return no_windows(config) };
    let Some(types) = config.layer_types(layers(config)?)? else {
        return Err(FolderError::damaged(config.path(), "key `layer_types` is missing"));
    };
    if let Some(kind) = types.iter().find(|kind| !["sliding_attention", "full_attention"].contains(kind)) {
        return Err(FolderError::unsupported(config.path(), format!("a layer of type {}", quote(kind))));
    }
    let windowed: Vec<bool> = types.into_iter().map(|kind| kind == "sliding_attention").collect();
    keys.whole(&format!("{name}.attention.sliding_window"), window as u32);
    keys.flags(&format!("{name}.attention.sliding_window_pattern"), &windowed);
    Ok(())
}

/// The rotated values of a head: a part of it, which transformers takes to be `usual` where the file does not say it.
pub(super) fn rotated(config: &Config, usual: f64) -> Result<u32, FolderError> {
    let partial = config.rope_number(&config.rope()?.full, "partial_rotary_factor")?.unwrap_or(usual);
    Ok((head_width(config)? as f64 * partial) as u32)
}

/// The groups that experts are chosen from, and what weighs experts, as llama.cpp's converter writes them wherever the file has them.
pub(super) fn router(name: &str, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    for (from, to) in [("n_group", "expert_group_count"), ("topk_group", "expert_group_used_count")] {
        if let Some(value) = config.whole(from)? {
            keys.whole(&format!("{name}.{to}"), value as u32);
        }
    }
    for key in ["scoring_func", "score_function"] {
        let gating = match config.text(key)? {
            None => continue,
            Some("softmax") => 1,
            Some("sigmoid") => 2,
            Some(other) => {
                let what = format!("weighing experts by {}", quote(other));
                return Err(FolderError::unsupported(config.path(), what));
            }
        };
        keys.whole(&format!("{name}.expert_gating_func"), gating);
    }
    Ok(())
}

/// Nothing to compute.
pub(super) fn nothing(_: &Config) -> Result<Vec<Computed>, FolderError> {
    Ok(Vec::new())
}
