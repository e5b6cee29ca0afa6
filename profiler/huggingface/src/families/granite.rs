//! Granite, dense, with experts and with state spaces: a llama with factors of its own.

use serde_json::json;

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::keys::Keys;

use super::common::{head_width, layers, nothing};
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
    divided: true,
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

/// Granite 4: a state space instead of attention on most layers.
pub(super) const GRANITEHYBRID: Family = Family {
    classes: &["GraniteMoeHybridForCausalLM"],
    fits: |config| Ok(config.names("layer_types")?.is_some_and(|types| types.contains(&"mamba"))),
    name: "granitehybrid",
    divided: false,
    computed: nothing,
    keys: hybrid,
    layer: &[LAYER, SPACE],
    ..GRANITE
};

/// Granite 4 without experts: each layer's network has the name of a shared one.
pub(super) const GRANITEHYBRID_DENSE: Family = Family {
    fits: |config| {
        let has_experts = config.whole("num_local_experts")?.is_some_and(|experts| experts > 0);
        Ok(!has_experts && (GRANITEHYBRID.fits)(config)?)
    },
    layer: &[DENSE, SPACE],
    ..GRANITEHYBRID
};

const DENSE: &[Rule] = &[
    Rule {
        from: "shared_mlp.input_linear.weight",
        to: &["ffn_gate.weight", "ffn_up.weight"],
        make: Make::Halves,
    },
    same("shared_mlp.output_linear.weight", &["ffn_down.weight"]),
];

const SPACE: &[Rule] = &[
    Rule { from: "mamba.A_log", to: &["ssm_a"], make: Make::DecayColumn },
    Rule { from: "mamba.D", to: &["ssm_d"], make: Make::Column },
    Rule { from: "mamba.conv1d.weight", to: &["ssm_conv1d.weight"], make: Make::Squeezed },
    same("mamba.conv1d.bias", &["ssm_conv1d.bias"]),
    same("mamba.dt_bias", &["ssm_dt.bias"]),
    same("mamba.in_proj.weight", &["ssm_in.weight"]),
    Rule { from: "mamba.norm.weight", to: &["ssm_norm.weight"], make: Make::Groups },
    same("mamba.out_proj.weight", &["ssm_out.weight"]),
];

fn hybrid(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let name = |key: &str| format!("granitehybrid.{key}");
    factors("granitehybrid", config, keys)?;
    let shared = config.whole("shared_intermediate_size")?.filter(|&shared| shared > 0);
    let heads = config.whole("num_key_value_heads")?.unwrap_or(config.size("num_attention_heads")?);
    let types = config.layer_types(layers(config)?)?.unwrap_or_default();
    if let Some(kind) = types.iter().find(|kind| !["mamba", "attention"].contains(kind)) {
        return Err(FolderError::unsupported(config.path(), format!("a layer of type {}", quote(kind))));
    }
    let kv_heads: Vec<i32> =
        types.into_iter().map(|kind| if kind == "attention" { heads as i32 } else { 0 }).collect();
    keys.wholes(&name("attention.head_count_kv"), &kv_heads);
    let space_heads = config.size("mamba_n_heads")?;
    for (key, value) in [
        // as by llama.cpp's converter, whatever the file says: nothing in the model knows positions
        ("context_length", Some(1 << 20)),
        ("expert_shared_feed_forward_length", shared),
        ("ssm.conv_kernel", Some(config.whole("mamba_d_conv")?.unwrap_or(4))),
        ("ssm.state_size", Some(config.size("mamba_d_state")?)),
        ("ssm.group_count", Some(config.size("mamba_n_groups")?)),
        ("ssm.inner_size", Some(space_heads.saturating_mul(config.size("mamba_d_head")?))),
        ("ssm.time_step_rank", Some(space_heads)),
    ] {
        if let Some(value) = value {
            keys.whole(&name(key), u32::try_from(value).unwrap_or(u32::MAX));
        }
    }
    keys.flag(&name("rope.scaling.finetuned"), false);
    config.neutral("mamba_proj_bias", &json!(false))?;
    match config.text("position_embedding_type")? {
        None | Some("nope") => Ok(()),
        Some(kind) => {
            let what = format!("positions by {} (key `position_embedding_type`)", quote(kind));
            Err(FolderError::unsupported(config.path(), what))
        }
    }
}

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
