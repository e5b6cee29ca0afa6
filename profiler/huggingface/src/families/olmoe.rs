//! `OLMoE`.

use serde_json::json;

use super::common::no_windows;
use super::{EXPERTS, Family, PLAIN, Usual};

pub(super) const OLMOE: Family = Family {
    classes: &["OlmoeForCausalLM"],
    name: "olmoe",
    usual: Usual { norm_epsilon: 1e-5, ..PLAIN.usual },
    keys: |config, _| {
        config.neutral("clip_qkv", &json!(null))?;
        config.neutral("norm_topk_prob", &json!(false))?;
        no_windows(config)
    },
    layer: &[EXPERTS],
    ..PLAIN
};
