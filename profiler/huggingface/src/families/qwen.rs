//! Qwen 2, 2.5 and 3, their mixtures of experts, the text parts of their vision models, and Seed-OSS.

use serde_json::json;

use crate::config::Config;
use crate::error::FolderError;
use crate::keys::Keys;

use super::common::no_windows;
use super::qwen35::SHARED;
use super::{EXPERTS, Family, Make, PLAIN, Rule, Usual, same};

pub(super) const QWEN2: Family =
    Family { classes: &["Qwen2ForCausalLM"], name: "qwen2", keys: |config, _| no_windows(config), ..PLAIN };

pub(super) const QWEN3: Family =
    Family { classes: &["Qwen3ForCausalLM"], name: "qwen3", keys: qwen3, ..QWEN2 };

pub(super) const QWEN3MOE: Family = Family {
    classes: &["Qwen3MoeForCausalLM"],
    name: "qwen3moe",
    keys: qwen3moe,
    layer: &[EXPERTS],
    ..QWEN2
};

/// The weights of the chosen experts are not divided by their sum.
pub(super) const QWEN2MOE: Family = Family {
    classes: &["Qwen2MoeForCausalLM"],
    name: "qwen2moe",
    defaults: &[("moe_intermediate_size", 1408), ("shared_expert_intermediate_size", 5632)],
    keys: |config, keys| {
        all_have_experts(config)?;
        config.neutral("norm_topk_prob", &json!(false))?;
        for (from, to) in [
            ("moe_intermediate_size", "expert_feed_forward_length"),
            ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        ] {
            keys.whole(&format!("qwen2moe.{to}"), config.size(from)? as u32);
        }
        no_windows(config)
    },
    layer: &[EXPERTS, SHARED],
    ..QWEN2
};

/// The text part of Qwen's vision models, 2 and 2.5.
pub(super) const QWEN2VL: Family = Family {
    classes: &["Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"],
    name: "qwen2vl",
    usual: Usual { rope_theta: 1e6, norm_epsilon: 1e-5, ..PLAIN.usual },
    keys: |config, keys| {
        sections("qwen2vl", config, keys)?;
        no_windows(config)
    },
    ..QWEN2
};

/// The text part of Qwen 3's vision models.
pub(super) const QWEN3VL: Family = Family {
    classes: &["Qwen3VLForConditionalGeneration"],
    name: "qwen3vl",
    usual: Usual { rope_theta: 5e5, ..PLAIN.usual },
    keys: |config, keys| {
        sections("qwen3vl", config, keys)?;
        pictures_within("qwen3vl", config, keys);
        head_width("qwen3vl", config, keys)
    },
    ..QWEN2
};

/// The text part of Qwen 3's vision models with experts, whose matrices are transposed.
pub(super) const QWEN3VLMOE: Family = Family {
    classes: &["Qwen3VLMoeForConditionalGeneration"],
    name: "qwen3vlmoe",
    keys: |config, keys| {
        all_have_experts(config)?;
        // what the class has, whatever the key says
        config.neutral("norm_topk_prob", &json!(true))?;
        keys.whole("qwen3vlmoe.expert_feed_forward_length", config.size("moe_intermediate_size")? as u32);
        sections("qwen3vlmoe", config, keys)?;
        pictures_within("qwen3vlmoe", config, keys);
        Ok(())
    },
    layer: &[TRANSPOSED, EXPERTS],
    ..QWEN3VL
};

/// The norm before the network has another name.
pub(super) const SEED_OSS: Family = Family {
    classes: &["SeedOssForCausalLM"],
    name: "seed_oss",
    keys: |config, keys| {
        head_width("seed_oss", config, keys)?;
        no_windows(config)
    },
    layer: &[&[same("post_attention_layernorm.weight", &["post_attention_norm.weight"])]],
    ..PLAIN
};

/// Experts whose inputs are their rows.
const TRANSPOSED: &[Rule] = &[
    Rule {
        from: "mlp.experts.gate_up_proj",
        to: &["ffn_gate_exps.weight", "ffn_up_exps.weight"],
        make: Make::TransposedHalves,
    },
    Rule { from: "mlp.experts.down_proj", to: &["ffn_down_exps.weight"], make: Make::Transposed },
];

/// Refuses layers without experts.
fn all_have_experts(config: &Config) -> Result<(), FolderError> {
    config.neutral("decoder_sparse_step", &json!(1))?;
    config.neutral("mlp_only_layers", &json!([]))
}

/// The sections of rotated pairs by time, height and width, which text has no use for.
fn sections(name: &str, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let own = config.rope_numbers(&config.rope()?.full, "mrope_section")?.unwrap_or_default();
    let mut sections = [0; 4];
    sections.iter_mut().zip(own).for_each(|(section, own)| *section = own as i32);
    keys.wholes(&format!("{name}.rope.dimension_sections"), &sections);
    Ok(())
}

/// The number of layers that pictures are added to, which text has no use for.
fn pictures_within(name: &str, config: &Config, keys: &mut Keys) {
    let indexes = config.value("vision_config").and_then(|vision| vision.get("deepstack_visual_indexes"));
    let count = indexes.and_then(|indexes| indexes.as_array()).map_or(3, Vec::len);
    keys.whole(&format!("{name}.n_deepstack_layers"), count as u32);
}

/// The width of a head, which is 128 where the file does not say it.
fn head_width(name: &str, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let width = config.whole("head_dim")?.unwrap_or(128) as u32;
    keys.whole(&format!("{name}.attention.key_length"), width);
    keys.whole(&format!("{name}.attention.value_length"), width);
    Ok(())
}

fn qwen3(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    head_width("qwen3", config, keys)?;
    no_windows(config)
}

fn qwen3moe(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    all_have_experts(config)?;
    if config.flag("norm_topk_prob")? != Some(true) {
        return Err(FolderError::unsupported(
            config.path(),
            "experts' weights that are not divided by their sum (key `norm_topk_prob`)",
        ));
    }
    keys.whole("qwen3moe.expert_feed_forward_length", config.size("moe_intermediate_size")? as u32);
    if config.whole("head_dim")?.is_some() {
        head_width("qwen3moe", config, keys)?;
    }
    no_windows(config)
}
