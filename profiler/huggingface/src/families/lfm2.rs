//! LFM 2, dense and with experts: short convolutions, and now and then attention.

use std::collections::BTreeSet;

use serde_json::json;

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::keys::Keys;

use super::common::layers;
use super::{Family, Make, PLAIN, Rule, Usual, same};

const OUTSIDE: &[Rule] = &[
    same("embed_tokens.weight", &["token_embd.weight"]),
    same("embedding_norm.weight", &["token_embd_norm.weight"]),
    same("lm_head.weight", &["output.weight"]),
];

const LAYER: &[Rule] = &[
    same("operator_norm.weight", &["attn_norm.weight"]),
    same("self_attn.q_layernorm.weight", &["attn_q_norm.weight"]),
    same("self_attn.k_layernorm.weight", &["attn_k_norm.weight"]),
    same("self_attn.out_proj.weight", &["attn_output.weight"]),
    same("conv.in_proj.weight", &["shortconv.in_proj.weight"]),
    Rule { from: "conv.conv.weight", to: &["shortconv.conv.weight"], make: Make::Squeezed },
    same("conv.out_proj.weight", &["shortconv.out_proj.weight"]),
    same("ffn_norm.weight", &["ffn_norm.weight"]),
    same("feed_forward.w1.weight", &["ffn_gate.weight"]),
    same("feed_forward.w3.weight", &["ffn_up.weight"]),
    same("feed_forward.w2.weight", &["ffn_down.weight"]),
];

const EXPERTS: &[Rule] = &[
    same("feed_forward.gate.weight", &["ffn_gate_inp.weight"]),
    same("feed_forward.expert_bias", &["exp_probs_b.bias"]),
    Rule { from: "feed_forward.experts.*.w1.weight", to: &["ffn_gate_exps.weight"], make: Make::Expert },
    Rule { from: "feed_forward.experts.*.w3.weight", to: &["ffn_up_exps.weight"], make: Make::Expert },
    Rule { from: "feed_forward.experts.*.w2.weight", to: &["ffn_down_exps.weight"], make: Make::Expert },
    Rule {
        from: "feed_forward.experts.gate_up_proj",
        to: &["ffn_gate_exps.weight", "ffn_up_exps.weight"],
        make: Make::Halves,
    },
    same("feed_forward.experts.down_proj", &["ffn_down_exps.weight"]),
];

pub(super) const LFM2: Family = Family {
    classes: &["Lfm2ForCausalLM", "LFM2ForCausalLM"],
    name: "lfm2",
    usual: Usual { rope_theta: 1e6, norm_epsilon: 1e-5, tied: true, ..PLAIN.usual },
    aliases: &[("block_ff_dim", "intermediate_size"), ("tie_embedding", "tie_word_embeddings")],
    epsilon: ("norm_eps", "attention.layer_norm_rms_epsilon"),
    keys: |config, keys| {
        let neurons = neurons(config)?;
        keys.whole("lfm2.feed_forward_length", u32::try_from(neurons).unwrap_or(u32::MAX));
        sizes("lfm2", config, keys)
    },
    outside: OUTSIDE,
    layer: &[LAYER],
    ..PLAIN
};

pub(super) const LFM2MOE: Family = Family {
    classes: &["Lfm2MoeForCausalLM"],
    name: "lfm2moe",
    defaults: &[("num_dense_layers", 2), ("num_experts", 32), ("num_experts_per_tok", 4)],
    keys: |config, keys| {
        keys.whole("lfm2moe.expert_feed_forward_length", config.size("moe_intermediate_size")? as u32);
        keys.whole("lfm2moe.leading_dense_block_count", config.size("num_dense_layers")? as u32);
        keys.whole("lfm2moe.expert_gating_func", SIGMOID);
        config.neutral("norm_topk_prob", &json!(true))?;
        config.neutral("routed_scaling_factor", &json!(1.0))?;
        sizes("lfm2moe", config, keys)
    },
    layer: &[LAYER, EXPERTS],
    ..LFM2
};

/// GGUF's number for a sigmoid of each expert.
const SIGMOID: u32 = 2;

fn sizes(name: &str, config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let layers = layers(config)?;
    let heads = config.whole("num_key_value_heads")?.unwrap_or(config.size("num_attention_heads")?);
    let mut of_layers = Vec::with_capacity(layers as usize);
    if let Some(types) = config.layer_types(layers)? {
        for kind in types {
            of_layers.push(match kind {
                "full_attention" => heads as i32,
                "conv" => 0,
                _ => {
                    let what = format!("a layer of type {}", quote(kind));
                    return Err(FolderError::unsupported(config.path(), what));
                }
            });
        }
    } else if let Some(with_attention) = config.wholes("full_attn_idxs")? {
        let with_attention = BTreeSet::from_iter(with_attention);
        let of_layer = |layer| if with_attention.contains(&layer) { heads as i32 } else { 0 };
        of_layers.extend((0..layers).map(of_layer));
    } else {
        return Err(FolderError::damaged(config.path(), "key `layer_types` is missing"));
    }
    keys.wholes(&format!("{name}.attention.head_count_kv"), &of_layers);
    keys.whole(&format!("{name}.vocab_size"), config.size("vocab_size")? as u32);
    let taps = config.whole("conv_L_cache")?.unwrap_or(3);
    keys.whole(&format!("{name}.shortconv.l_cache"), taps as u32);
    config.neutral("conv_bias", &json!(false))
}

/// The width of a dense network: two thirds of the file's figure, times a factor, rounded up to a multiple, unless adjusting is off.
fn neurons(config: &Config) -> Result<u64, FolderError> {
    let own = config.size("intermediate_size")?;
    if config.flag("block_auto_adjust_ff_dim")? == Some(false) {
        return Ok(own);
    }
    let factor = config.number("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let adjusted = (factor * (2 * own / 3) as f64) as u64;
    match config.whole("block_multiple_of")?.unwrap_or(256) {
        0 => Err(FolderError::damaged(config.path(), "key `block_multiple_of` is 0")),
        multiple => Ok(adjusted.div_ceil(multiple).saturating_mul(multiple)),
    }
}
