//! `OLMo` 2 and 3: norms behind each part and none before; in the later one windows, and scaling on the layers without one alone.

use super::common::{no_windows, windows};
use super::{Family, PLAIN, Rule, Usual, same};

/// Norms behind each part.
pub(super) const NORMS: &[Rule] = &[
    same("post_attention_layernorm.weight", &["post_attention_norm.weight"]),
    same("post_feedforward_layernorm.weight", &["post_ffw_norm.weight"]),
];

pub(super) const OLMO2: Family = Family {
    classes: &["Olmo2ForCausalLM"],
    name: "olmo2",
    usual: Usual { norm_epsilon: 1e-5, ..PLAIN.usual },
    keys: |config, _| no_windows(config),
    layer: &[NORMS],
    ..PLAIN
};

pub(super) const OLMO3: Family = Family {
    classes: &["Olmo3ForCausalLM"],
    usual: Usual { rope_theta: 5e5, ..OLMO2.usual },
    local_rope: true,
    keys: |config, keys| windows("olmo2", config, keys),
    ..OLMO2
};
