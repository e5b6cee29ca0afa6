//! Granite, dense and with experts: a llama with factors of its own.

use crate::config::Config;
use crate::error::FolderError;
use crate::keys::Keys;

use super::common::head_width;
use super::llama::{rope_freqs, sizes};
use super::{Family, Make, PLAIN, Rule, same};

/// Experts of all kinds; a network beside them has the same halves.
const LAYER: &[Rule] = &[
    same("block_sparse_moe.router.layer.weight", &["ffn_gate_inp.weight"]),
    Rule {
        from: "block_sparse_moe.input_linear.weight",
        to: &["ffn_gate_exps.weight", "ffn_up_exps.weight"],
        make: Make::Halves,
    },
    same("block_sparse_moe.output_linear.weight", &["ffn_down_exps.weight"]),
    Rule {
        from: "shared_mlp.input_linear.weight",
        to: &["ffn_gate_shexp.weight", "ffn_up_shexp.weight"],
        make: Make::Halves,
    },
    same("shared_mlp.output_linear.weight", &["ffn_down_shexp.weight"]),
];

pub(super) const GRANITE: Family = Family {
    classes: &["GraniteForCausalLM"],
    name: "granite",
    keys: |config, keys| factors("granite", config, keys),
    computed: rope_freqs,
    permuted: true,
    ..PLAIN
};

pub(super) const GRANITEMOE: Family = Family {
    classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    name: "granitemoe",
    keys: |config, keys| {
        if let Some(shared) = config.whole("shared_intermediate_size")?.filter(|&shared| shared > 0) {
            keys.whole("granitemoe.expert_shared_feed_forward_length", shared as u32);
        }
        factors("granitemoe", config, keys)
    },
    layer: &[LAYER],
    ..GRANITE
};

fn factors(name: &str, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    head_width(config)?;
    sizes(name, config, keys)?;
    for (from, to) in [
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        keys.number(&format!("{name}.{to}"), config.number(from)?.unwrap_or(1.0));
    }
    Ok(())
}
