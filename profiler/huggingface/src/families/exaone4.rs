//! EXAONE 4 and K-EXAONE: windows on three of four layers; norms behind each part in the one, a mixture in the other.

use crate::config::Config;
use crate::error::FolderError;
use crate::keys::Keys;

use super::common::windows;
use super::llama::rope_freqs;
use super::mixtures::{SHARED, mixture};
use super::olmo2::NORMS;
use super::{EXPERTS, Family, PLAIN, Rule, Usual, same};

const LAYER: &[Rule] = &[
    same("mlp.e_score_correction_bias", &["exp_probs_b.bias"]),
    same("mlp.gate.e_score_correction_bias", &["exp_probs_b.bias"]),
];

pub(super) const EXAONE4: Family = Family {
    classes: &["Exaone4ForCausalLM"],
    name: "exaone4",
    usual: Usual { norm_epsilon: 1e-5, ..PLAIN.usual },
    divided: true,
    computed: rope_freqs,
    keys: |config, keys| sizes("exaone4", config, keys),
    layer: &[NORMS],
    ..PLAIN
};

pub(super) const EXAONE_MOE: Family = Family {
    classes: &["ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"],
    name: "exaone-moe",
    guesses: true,
    keys: |config, keys| {
        sizes("exaone-moe", config, keys)?;
        let shared = config.whole("num_shared_experts")?.unwrap_or(1);
        let neurons = config.size("moe_intermediate_size")?.saturating_mul(shared);
        keys.whole("exaone-moe.expert_shared_count", shared as u32);
        keys.whole(
            "exaone-moe.expert_shared_feed_forward_length",
            u32::try_from(neurons).unwrap_or(u32::MAX),
        );
        keys.whole("exaone-moe.nextn_predict_layers", 0);
        keys.text("exaone-moe.rope.scaling.type", "none");
        mixture("exaone-moe", 2.5, true, config, keys)
    },
    layer: &[LAYER, EXPERTS, SHARED],
    ..EXAONE4
};

fn sizes(name: &str, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    keys.whole(&format!("{name}.vocab_size"), config.size("vocab_size")? as u32);
    windows(name, config, keys)
}
