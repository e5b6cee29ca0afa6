//! `SmallThinker`: experts with `ReLU` whose router reads what attention reads; with windows, every fourth layer, the first among them,
//! sees everything and has no positions.

use serde_json::json;

use crate::config::Config;
use crate::error::FolderError;
use crate::keys::Keys;

use super::{Family, Make, PLAIN, Rule, Usual, same};

const LAYER: &[Rule] = &[
    same("block_sparse_moe.primary_router.weight", &["ffn_gate_inp.weight"]),
    Rule {
        from: "block_sparse_moe.experts.*.gate.weight",
        to: &["ffn_gate_exps.weight"],
        make: Make::Expert,
    },
    Rule { from: "block_sparse_moe.experts.*.up.weight", to: &["ffn_up_exps.weight"], make: Make::Expert },
    Rule {
        from: "block_sparse_moe.experts.*.down.weight",
        to: &["ffn_down_exps.weight"],
        make: Make::Expert,
    },
];

pub(super) const SMALLTHINKER: Family = Family {
    classes: &["SmallThinkerForCausalLM"],
    name: "smallthinker",
    own_activation: true,
    usual: Usual { rope_theta: 1e6, activation: "relu", tied: true, ..PLAIN.usual },
    aliases: &[
        ("moe_num_primary_experts", "num_experts"),
        ("moe_num_active_primary_experts", "num_experts_per_tok"),
        ("moe_ffn_hidden_size", "intermediate_size"),
    ],
    defaults: &[("head_dim", 128)],
    keys,
    layer: &[LAYER],
    ..PLAIN
};

/// Layers of a period whose first one sees everything, where any has a window.
const PERIOD: usize = 4;

fn keys(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    keys.whole("smallthinker.expert_feed_forward_length", config.size("moe_ffn_hidden_size")? as u32);
    let softmax = config.flag("moe_primary_router_apply_softmax")?.unwrap_or(false);
    keys.whole("smallthinker.expert_gating_func", if softmax { 1 } else { 2 });
    let layers = config.size("num_hidden_layers")?;
    let layout = |key: &str| -> Result<Option<Vec<u64>>, FolderError> {
        match config.wholes(key)? {
            Some(layout) if layout.len() as u64 != layers => Err(FolderError::damaged(
                config.path(),
                format!("key `{key}` is not a number for each layer"),
            )),
            layout => Ok(layout),
        }
    };
    let (windows, ropes) = (layout("sliding_window_layout")?, layout("rope_layout")?);
    let has_windows = windows.as_ref().is_some_and(|windows| windows.iter().any(|&own| own != 0));
    let sees_everything = |layer: usize| !has_windows || layer.is_multiple_of(PERIOD);
    let is_usual = |layout: Option<Vec<u64>>, usual: &dyn Fn(usize) -> bool| {
        layout.is_none_or(|layout| layout.iter().enumerate().all(|(layer, &own)| (own != 0) == usual(layer)))
    };
    let has_rope = |layer| !has_windows || !sees_everything(layer);
    if (has_windows && ropes.is_none())
        || !is_usual(windows, &|layer| !sees_everything(layer))
        || !is_usual(ropes, &has_rope)
    {
        let what = "windows, or layers without positions, other than on three and one of four layers \
                    (keys `sliding_window_layout` and `rope_layout`)";
        return Err(FolderError::unsupported(config.path(), what));
    }
    if has_windows {
        keys.whole("smallthinker.attention.sliding_window", config.size("sliding_window_size")? as u32);
    }
    config.neutral("norm_topk_prob", &json!(true))?;
    config.neutral("moe_enable_secondary_experts", &json!(false))?;
    config.neutral("moe_enable_early_router", &json!(true))
}
