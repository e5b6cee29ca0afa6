//! Qwen 2 and 2.5, Qwen 3, and Qwen 3's mixtures of experts.

use serde_json::json;

use crate::config::Config;
use crate::error::FolderError;
use crate::keys::Keys;

use super::common::no_windows;
use super::{EXPERTS, Family, PLAIN};

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
    config.neutral("decoder_sparse_step", &json!(1))?;
    config.neutral("mlp_only_layers", &json!([]))?;
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
