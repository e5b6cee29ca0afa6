//! `OLMoE`.

use serde_json::json;

use super::common::{no_windows, nothing};
use super::{EXPERTS, Family, Usual};

pub(super) const OLMOE: Family = Family {
    classes: &["OlmoeForCausalLM"],
    name: "olmoe",
    usual: Usual { rope_theta: 10_000.0, norm_epsilon: 1e-5, tied: false, activation: "silu" },
    keys: |config, _| {
        config.neutral("clip_qkv", &json!(null))?;
        config.neutral("norm_topk_prob", &json!(false))?;
        no_windows(config)
    },
    layer: EXPERTS,
    computed: nothing,
    permuted: false,
    norm_plus: 0.0,
    space_prefix: None,
    typed_tokens: false,
    defaults: &[],
};
