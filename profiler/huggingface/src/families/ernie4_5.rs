//! ERNIE 4.5, dense and with experts: a llama that rotates neighbours, and a mixture weighed by a softmax.

use serde_json::json;

use crate::config::Config;
use crate::error::FolderError;
use crate::keys::Keys;

use super::mixtures::SHARED;
use super::{EXPERTS, Family, PLAIN, Rule, Usual, same};

const LAYER: &[Rule] = &[same("mlp.moe_statics.e_score_correction_bias", &["exp_probs_b.bias"])];

pub(super) const ERNIE4_5: Family = Family {
    classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"],
    name: "ernie4_5",
    usual: Usual { rope_theta: 5e5, norm_epsilon: 1e-5, tied: true, ..PLAIN.usual },
    ..PLAIN
};

pub(super) const ERNIE4_5_MOE: Family = Family {
    classes: &["Ernie4_5_MoeForCausalLM"],
    name: "ernie4_5-moe",
    aliases: &[("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok")],
    keys: experts,
    layer: &[LAYER, EXPERTS, SHARED],
    ..ERNIE4_5
};

fn experts(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let neurons = config.size("moe_intermediate_size")?;
    let shared = config.whole("moe_num_shared_experts")?.unwrap_or(0);
    for (key, value) in [
        ("interleave_moe_layer_step", config.whole("moe_layer_interval")?.unwrap_or(1)),
        ("leading_dense_block_count", config.whole("moe_layer_start_index")?.unwrap_or(1)),
        ("expert_feed_forward_length", neurons),
        ("expert_shared_count", shared),
        ("expert_shared_feed_forward_length", neurons.saturating_mul(shared)),
    ] {
        keys.whole(&format!("ernie4_5-moe.{key}"), u32::try_from(value).unwrap_or(u32::MAX));
    }
    config.neutral("moe_layer_interval", &json!(1))?;
    let last = config.size("num_hidden_layers")?.saturating_sub(1);
    if config.value("moe_layer_end_index") != Some(&json!(-1)) {
        config.neutral("moe_layer_end_index", &json!(last))?;
    }
    Ok(())
}
