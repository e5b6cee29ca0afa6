//! Nemotron-H and Nemotron 3: blocks of one purpose each, a state space, attention without positions, or a network without gates.

use serde_json::json;

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::keys::Keys;

use super::common::head_width;
use super::{Family, Make, PLAIN, Rule, Usual, same};

const OUTSIDE: &[Rule] = &[
    same("embeddings.weight", &["token_embd.weight"]),
    same("norm_f.weight", &["output_norm.weight"]),
    same("lm_head.weight", &["output.weight"]),
];

/// Queries and keys have no positions, and their heads are permuted all the same, as by llama.cpp's converter.
const LAYER: &[Rule] = &[
    same("norm.weight", &["attn_norm.weight"]),
    Rule { from: "mixer.A_log", to: &["ssm_a"], make: Make::DecayColumn },
    Rule { from: "mixer.D", to: &["ssm_d"], make: Make::Column },
    Rule { from: "mixer.conv1d.weight", to: &["ssm_conv1d.weight"], make: Make::Squeezed },
    same("mixer.conv1d.bias", &["ssm_conv1d.bias"]),
    same("mixer.dt_bias", &["ssm_dt.bias"]),
    same("mixer.in_proj.weight", &["ssm_in.weight"]),
    Rule { from: "mixer.norm.weight", to: &["ssm_norm.weight"], make: Make::Groups },
    same("mixer.out_proj.weight", &["ssm_out.weight"]),
    Rule { from: "mixer.q_proj.weight", to: &["attn_q.weight"], make: Make::Query },
    Rule { from: "mixer.k_proj.weight", to: &["attn_k.weight"], make: Make::Key },
    same("mixer.v_proj.weight", &["attn_v.weight"]),
    same("mixer.o_proj.weight", &["attn_output.weight"]),
    same("mixer.up_proj.weight", &["ffn_up.weight"]),
    same("mixer.down_proj.weight", &["ffn_down.weight"]),
];

const EXPERTS: &[Rule] = &[
    same("mixer.gate.weight", &["ffn_gate_inp.weight"]),
    same("mixer.gate.e_score_correction_bias", &["exp_probs_b.bias"]),
    Rule { from: "mixer.experts.*.up_proj.weight", to: &["ffn_up_exps.weight"], make: Make::Expert },
    Rule { from: "mixer.experts.*.down_proj.weight", to: &["ffn_down_exps.weight"], make: Make::Expert },
    same("mixer.experts.up_proj", &["ffn_up_exps.weight"]),
    same("mixer.experts.down_proj", &["ffn_down_exps.weight"]),
    same("mixer.shared_experts.up_proj.weight", &["ffn_up_shexp.weight"]),
    same("mixer.shared_experts.down_proj.weight", &["ffn_down_shexp.weight"]),
];

pub(super) const NEMOTRON_H: Family = Family {
    classes: &["NemotronHForCausalLM"],
    name: "nemotron_h",
    own_activation: true,
    activation_key: "mlp_hidden_act",
    usual: Usual { norm_epsilon: 1e-5, activation: "relu2", ..PLAIN.usual },
    aliases: &[("attention_head_dim", "head_dim")],
    defaults: &[("head_dim", 128), ("n_groups", 8)],
    epsilon: ("layer_norm_epsilon", "attention.layer_norm_epsilon"),
    layers: |config| blocks(config).ok().map(|blocks| blocks.len() as u64),
    // positions are not told
    rope: |_, _, _| Ok(()),
    keys: |config, keys| {
        let neurons = config.size("intermediate_size")?;
        sizes("nemotron_h", Purpose::Dense, neurons, config, keys)
    },
    body: "backbone.",
    outside: OUTSIDE,
    layer: &[LAYER],
    permuted: true,
    guesses: true,
    ..PLAIN
};

pub(super) const NEMOTRON_H_MOE: Family = Family {
    fits: |config| Ok(blocks(config)?.contains(&Purpose::Experts)),
    name: "nemotron_h_moe",
    aliases: &[("attention_head_dim", "head_dim"), ("n_routed_experts", "num_experts")],
    keys: experts,
    layer: &[LAYER, EXPERTS],
    ..NEMOTRON_H
};

/// The purpose of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    StateSpace,
    Attention,
    Dense,
    Experts,
}

/// The purpose of every block: a letter for each, or a name.
fn blocks(config: &Config) -> Result<Vec<Purpose>, FolderError> {
    let unknown =
        |name: &str| FolderError::unsupported(config.path(), format!("a block of type {}", quote(name)));
    let of_name = |name: &str| match name {
        "linear_attention" | "mamba" => Ok(Purpose::StateSpace),
        "full_attention" | "attention" => Ok(Purpose::Attention),
        "mlp" => Ok(Purpose::Dense),
        "moe" => Ok(Purpose::Experts),
        _ => Err(unknown(name)),
    };
    let of_letter = |letter: char| match letter {
        'M' => Ok(Purpose::StateSpace),
        '*' => Ok(Purpose::Attention),
        '-' => Ok(Purpose::Dense),
        'E' => Ok(Purpose::Experts),
        _ => Err(unknown(&letter.to_string())),
    };
    match (config.names("layers_block_type")?, config.text("hybrid_override_pattern")?) {
        (Some(names), _) => names.into_iter().map(of_name).collect(),
        (None, Some(letters)) => letters.chars().map(of_letter).collect(),
        (None, None) => Err(FolderError::damaged(config.path(), "key `layers_block_type` is missing")),
    }
}

/// The keys of state spaces and of attention, and the width of the networks, which are all of one kind.
fn sizes(
    name: &str,
    network: Purpose,
    neurons: u64,
    config: &Config,
    keys: &mut Keys,
) -> Result<(), FolderError> {
    let blocks = blocks(config)?;
    let refused = |what: &str| Err(FolderError::unsupported(config.path(), what));
    if network == Purpose::Experts && blocks.contains(&Purpose::Dense) {
        return refused("a model with dense networks and with experts");
    }
    if config.size("num_hidden_layers")? != blocks.len() as u64 {
        let fact = format!("it has {} blocks and says another number of layers", blocks.len());
        return Err(FolderError::damaged(config.path(), fact));
    }
    let heads = config.size("num_attention_heads")?;
    let of_keys = config.whole("num_key_value_heads")?.unwrap_or(heads);
    let of = |kind: Purpose, value: u64| -> Vec<i32> {
        blocks.iter().map(|block| if *block == kind { value as i32 } else { 0 }).collect()
    };
    keys.wholes(&format!("{name}.attention.head_count_kv"), &of(Purpose::Attention, of_keys));
    keys.wholes(&format!("{name}.feed_forward_length"), &of(network, neurons));
    let space_heads = config.size("mamba_num_heads")?;
    let inner = space_heads.saturating_mul(config.size("mamba_head_dim")?);
    let whole = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    for (key, value) in [
        // as by llama.cpp's converter, whatever the file says: nothing in the model knows positions
        ("context_length", 1 << 20),
        ("attention.key_length", head_width(config)?),
        ("attention.value_length", head_width(config)?),
        ("vocab_size", config.size("vocab_size")?),
        ("rope.dimension_count", config.size("hidden_size")?.checked_div(heads).unwrap_or(0)),
        ("ssm.conv_kernel", config.whole("conv_kernel")?.unwrap_or(4)),
        ("ssm.state_size", config.size("ssm_state_size")?),
        ("ssm.group_count", config.size("n_groups")?),
        ("ssm.inner_size", inner),
        ("ssm.time_step_rank", space_heads),
    ] {
        keys.whole(&format!("{name}.{key}"), whole(value));
    }
    keys.flag(&format!("{name}.rope.scaling.finetuned"), false);
    config.neutral("mamba_hidden_act", &json!("silu"))?;
    config.neutral("sliding_window", &json!(null))?;
    // steps are above 0, so that a least of 0 and no greatest change nothing; what is no number of JSON's is infinite
    let limits = config.value("time_step_limit").and_then(|limits| limits.as_array());
    match limits.map(Vec::as_slice) {
        None => Ok(()),
        Some([least, most]) if least.as_f64() == Some(0.0) && most.as_f64().is_none_or(|most| most > 1e6) => {
            Ok(())
        }
        Some(_) => refused("key `time_step_limit` with a limit"),
    }
}

fn experts(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let neurons = config.size("moe_intermediate_size")?;
    sizes("nemotron_h_moe", Purpose::Experts, neurons, config, keys)?;
    let name = |key: &str| format!("nemotron_h_moe.{key}");
    let shared = config.whole("n_shared_experts")?.unwrap_or(1);
    for (key, value) in [
        ("expert_feed_forward_length", neurons),
        ("expert_shared_feed_forward_length", config.size("moe_shared_expert_intermediate_size")?),
        ("expert_shared_count", shared),
        ("expert_group_count", config.whole("n_group")?.unwrap_or(1)),
        ("expert_group_used_count", config.whole("topk_group")?.unwrap_or(1)),
    ] {
        keys.whole(&name(key), value as u32);
    }
    keys.flag(&name("expert_weights_norm"), config.flag("norm_topk_prob")?.unwrap_or(true));
    keys.number(&name("expert_weights_scale"), config.number("routed_scaling_factor")?.unwrap_or(1.0));
    config.neutral("n_shared_experts", &json!(1))?;
    config.neutral("moe_latent_size", &json!(null))
}
