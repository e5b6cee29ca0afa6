//! Phi 3, 3.5 and 4: fused matrices, and two sets of divisors for rotary frequencies.

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::keys::Keys;

use super::common::original_context;
use super::{Computed, Family, PLAIN, Rule, Usual, same};

const LAYER: &[Rule] = &[
    same("self_attn.qkv_proj.weight", &["attn_qkv.weight"]),
    same("mlp.gate_up_proj.weight", &["ffn_up.weight"]),
];

pub(super) const PHI3: Family = Family {
    classes: &["Phi3ForCausalLM"],
    name: "phi3",
    partial: true,
    usual: Usual { rope_theta: 10_000.0, norm_epsilon: 1e-5, tied: false, activation: "silu" },
    keys,
    layer: &[LAYER],
    computed: factors,
    typed_tokens: true,
    defaults: &[("original_max_position_embeddings", 4096)],
    ..PLAIN
};

/// Values of a head that are rotated.
fn rotated(config: &Config) -> Result<u64, FolderError> {
    let partial = config.rope_number(&config.rope()?.full, "partial_rotary_factor")?.unwrap_or(1.0);
    let (width, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
    Ok(((partial * width as f64) as u64).checked_div(heads).unwrap_or(0))
}

/// The keys, with the growth of cosines and sines that scaling brings.
///
/// Source: transformers' `_compute_longrope_parameters`. Differs: from llama.cpp's converter, which knows neither `factor` nor
/// `attention_factor`.
fn keys(config: &Config, keys: &mut Keys) -> Result<(), FolderError> {
    let original = original_context(config)?;
    keys.whole("phi3.rope.scaling.original_context_length", original as u32);
    keys.whole("phi3.rope.dimension_count", u32::try_from(rotated(config)?).unwrap_or(u32::MAX));
    keys.whole("phi3.attention.sliding_window", config.whole("sliding_window")?.unwrap_or(0) as u32);
    let rope = config.rope()?.full;
    let factors = config.rope_numbers(&rope, "long_factor")?.is_some_and(|factors| !factors.is_empty());
    let kind = config.rope_kind(&rope)?;
    match (factors, matches!(kind, "su" | "longrope")) {
        (false, false) => return Ok(()),
        (true, true) => {}
        (true, false) => {
            let what = format!("rotary scaling {} with a `long_factor`", quote(kind));
            return Err(FolderError::unsupported(config.path(), what));
        }
        (false, true) => {
            let fact = format!("rotary scaling {} has no `long_factor`", quote(kind));
            return Err(FolderError::damaged(config.path(), fact));
        }
    }
    let original = original as f64;
    let factor = match config.rope_number(&rope, "factor")? {
        Some(factor) => factor,
        None => config.size("max_position_embeddings")? as f64 / original,
    };
    let growth = match config.rope_number(&rope, "attention_factor")? {
        Some(growth) => growth,
        None if factor > 1.0 => (1.0 + factor.ln() / original.ln()).sqrt(),
        None => 1.0,
    };
    if !growth.is_finite() || growth <= 0.0 {
        return Err(FolderError::damaged(
            config.path(),
            format!("its rotary scaling makes values grow by {growth}"),
        ));
    }
    keys.number("phi3.rope.scaling.attn_factor", growth);
    Ok(())
}

/// The divisors, which the file has.
fn factors(config: &Config) -> Result<Vec<Computed>, FolderError> {
    let rope = config.rope()?.full;
    let factors = |key| Ok::<_, FolderError>(config.rope_numbers(&rope, key)?.unwrap_or_default());
    let (long, short) = (factors("long_factor")?, factors("short_factor")?);
    if long.is_empty() {
        return Ok(Vec::new());
    }
    let pairs = rotated(config)? / 2;
    if [&long, &short].iter().any(|factors| factors.len() as u64 != pairs) {
        let fact = format!(
            "keys `long_factor` and `short_factor` have {} and {} numbers for {pairs} pairs",
            long.len(),
            short.len()
        );
        return Err(FolderError::damaged(config.path(), fact));
    }
    Ok(vec![("rope_factors_long.weight", long), ("rope_factors_short.weight", short)])
}
