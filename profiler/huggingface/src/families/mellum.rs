//! Mellum 2: experts, and windows with a rotary base of their own.

use serde_json::json;

use super::common::windows;
use super::{EXPERTS, Family, PLAIN};

pub(super) const MELLUM: Family = Family {
    classes: &["MellumForCausalLM"],
    name: "mellum",
    local_rope: true,
    guesses: true,
    defaults: &[("head_dim", 128), ("moe_intermediate_size", 896)],
    keys: |config, keys| {
        keys.whole("mellum.expert_feed_forward_length", config.size("moe_intermediate_size")? as u32);
        config.neutral("norm_topk_prob", &json!(true))?;
        let layers = config.size("num_hidden_layers")?.min(1 << 10) as usize;
        config.neutral("mlp_layer_types", &json!(vec!["sparse"; layers]))?;
        windows("mellum", config, keys)
    },
    layer: &[EXPERTS],
    ..PLAIN
};
