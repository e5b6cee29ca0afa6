//! The request of a plan: the options of `plan`.

use serde::{Deserialize, Serialize};

use crate::terms::Factors;

/// The quantity that a plan optimises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// The highest decoding speed within the limits.
    Speed,
    /// The least memory at the requested speed.
    Memory,
}

/// The user's request; enough to solve again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// `--objective`.
    pub objective: Objective,
    /// `--mem`; absent: what the machine can give.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// `--min-speed`; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tokens_per_second_min: Option<f64>,
    /// `--min-prefill`, over the prompt of `expected.prefill_tokens_per_second`; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_tokens_per_second_min: Option<f64>,
    /// `--max-ttft`: most seconds to the first token after a prompt of `request.prompt_tokens`; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_seconds_max: Option<f64>,
    /// `--prompt`: tokens of the prompt whose time is limited; absent: no time is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u32>,
    /// `--cores`; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<Vec<u32>>,
    /// `--context`; absent: the model's or 4096, the smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u32>,
    /// `--slots`: sequences in memory at a time; absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequences: Option<u32>,
    /// `--speculate K`: tokens of a draft; absent: none, or the best number with `draft_tokens_auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_tokens: Option<u32>,
    /// `--speculate auto`: as many tokens of a draft as pay, or none; absent: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draft_tokens_auto: bool,
    /// `--reserve`; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve_bytes: Option<u64>,
    /// `--gpu-mem`: limit of the GPU's memory; absent: what its part takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_limit_bytes: Option<u64>,
    /// `--gpu-share`, or held by `--quality`: sixty-fourths of a prompt's fixed matrices; absent: the fastest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_parts: Option<u32>,
    /// `--max-loss` as a fraction: limit of the sum of `perplexity_change_fraction_upper` of the level and of keys and values in blocks.
    pub perplexity_change_fraction_max: f64,
    /// The quality level held by `--quality` or `--level`; absent: the planner chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The instruction set held by `--quality`; absent: the best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction_set: Option<String>,
    /// The KV format of `--kv-format`, or held by `--quality`; absent: `F16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_format: Option<String>,
    /// The activations held by `--quality`; absent: the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activations: Option<String>,
    /// `--calibration`: current rates of the device over its profile's; absent: the profile's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Factors>,
    /// `--baseline simple-rule`: the plan of the best simple rule; absent: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simple_rule: bool,
    /// `--without` and `--baseline`: mechanisms that the plan must not use; absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<Feature>,
}

impl Default for Request {
    /// The fastest plan that loses 1 % at most, without any other limit.
    fn default() -> Self {
        Self {
            objective: Objective::Speed,
            memory_limit_bytes: None,
            decode_tokens_per_second_min: None,
            prefill_tokens_per_second_min: None,
            first_token_seconds_max: None,
            prompt_tokens: None,
            cores: None,
            context_tokens: None,
            sequences: None,
            draft_tokens: None,
            draft_tokens_auto: false,
            reserve_bytes: None,
            gpu_limit_bytes: None,
            gpu_parts: None,
            perplexity_change_fraction_max: 0.01,
            level: None,
            instruction_set: None,
            kv_format: None,
            activations: None,
            calibration: None,
            simple_rule: false,
            without: Vec::new(),
        }
    }
}

/// A mechanism that can be left out, to see what it gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// Select neurons before their rows are read, by other means than the exact gate.
    Predictor,
    /// Keeping neurons in memory from token to token.
    Cache,
    /// Pinning neurons in memory.
    HotRegion,
    /// Keeping the rows of a neuron side by side on flash.
    Bundle,
    /// Reading the gate before the rest, and the rest only if the gate fires.
    TwoPhase,
    /// Reading gate, up and down at once, which a neuron smaller than a page always does.
    WholeRead,
    /// Computing while reads are in flight.
    Pipeline,
    /// Reading for the next layer.
    LookAhead,
    /// Evicting by another policy than the least recently used.
    Policy,
    /// Computing on units beside the CPU.
    Units,
}

impl Feature {
    /// All mechanisms.
    pub const ALL: [Self; 10] = [
        Self::Predictor,
        Self::Cache,
        Self::HotRegion,
        Self::Bundle,
        Self::TwoPhase,
        Self::WholeRead,
        Self::Pipeline,
        Self::LookAhead,
        Self::Policy,
        Self::Units,
    ];

    /// Name of the mechanism, in plans and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Predictor => "predictor",
            Self::Cache => "cache",
            Self::HotRegion => "hot-region",
            Self::Bundle => "bundle",
            Self::TwoPhase => "two-phase",
            Self::WholeRead => "whole-read",
            Self::Pipeline => "pipeline",
            Self::LookAhead => "look-ahead",
            Self::Policy => "policy",
            Self::Units => "units",
        }
    }
}
