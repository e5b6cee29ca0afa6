//! The expected figures of a plan.

use serde::{Deserialize, Serialize};

/// The cost model's expectations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Mean over a 64-token prompt and min(1024, context - 64) generated tokens.
    pub decode_tokens_per_second: f64,
    /// Time of a token at position 0 with a warm cache.
    pub decode_seconds_constant: f64,
    /// Seconds added by each token already in the context.
    pub decode_seconds_per_context_token: f64,
    /// Time to read a neuron into every slot once; 0 for slices, which a prompt fills. A run pays for the slots that `[filling]` counts.
    pub decode_cold_start_seconds: f64,
    /// Part of `decode_seconds_constant`: computing alone.
    pub decode_compute_seconds: f64,
    /// Part of `decode_seconds_constant`: moving bytes through memory alone.
    pub decode_memory_seconds: f64,
    /// Part of `decode_seconds_constant`: reading flash alone.
    pub decode_io_seconds: f64,
    /// Part of `decode_seconds_constant`: serial steps, which nothing overlaps.
    pub decode_serial_seconds: f64,
    /// Prompt tokens per second, for a 64-token prompt.
    pub prefill_tokens_per_second: f64,
    /// Bytes read from flash per decoded token, warm.
    pub bytes_read_per_token: f64,
    /// Share of the requested neurons that are in memory, warm.
    pub hit_fraction: f64,
    /// Share of the routed experts' neurons that are requested.
    pub active_predicted_fraction: f64,
    /// Share of the routed experts' neurons that are requested and truly active.
    pub active_true_fraction: f64,
    /// Sum of the perplexity changes of the quality level and of keys and values in blocks, from `model.toml`.
    pub perplexity_change_fraction: f64,
    /// Sum of the upper bounds (95 % confidence) of these perplexity changes, from `model.toml`; absent: the profile has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity_change_fraction_upper: Option<f64>,
    /// Perplexity change of the container computed dense against the source file, with the plan's keys and values. Absent: not measured,
    /// and `run --score` compares with the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_perplexity_change_fraction: Option<f64>,
    /// Peak bytes of the whole process.
    pub memory_peak_bytes: u64,
    /// Seconds from the start of the engine until it takes its first prompt; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_seconds: Option<f64>,
    /// Missing neurons of the median token over the mean token's, with a warm cache; absent: not measured, and latency percentiles are
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_p50_over_mean: Option<f64>,
    /// Missing neurons of the 90th percentile of tokens over the mean token's; absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_p90_over_mean: Option<f64>,
    /// Missing neurons of the 99th percentile of tokens over the mean token's; absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_p99_over_mean: Option<f64>,
    /// Median of the seconds of a token, over the same run as `decode_tokens_per_second`; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_seconds_p50: Option<f64>,
    /// 90th percentile of the seconds of a token; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_seconds_p90: Option<f64>,
    /// 99th percentile of the seconds of a token; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_seconds_p99: Option<f64>,
    /// The rates of the hardware's lower bound; absent: `run` reports no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Floor>,
}

/// Extra misses of a run that begins with empty slots, beyond the misses of a warm cache.
///
/// Nothing is evicted while slots are free. With `f` slots filled, a token misses as many as with a warm cache of `f` slots, and `f`
/// grows by these misses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filling {
    /// Lengths of runs, rising.
    pub tokens: Vec<u32>,
    /// Extra misses of a run of each length, in neurons of all layers: interpolated linearly from zero, constant after the last.
    pub neurons: Vec<f64>,
}

impl Filling {
    /// Extra misses of a run of `tokens`, in neurons of all layers.
    pub fn at(&self, tokens: f64) -> f64 {
        let mut before = (0.0, 0.0);
        for (&length, &neurons) in self.tokens.iter().zip(&self.neurons) {
            let length = f64::from(length);
            if tokens < length {
                return before.1 + (neurons - before.1) * (tokens - before.0) / (length - before.0);
            }
            before = (length, neurons);
        }
        before.1
    }
}

/// Expected speed of several sequences that decode as one batch. They are assumed to be independent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Together {
    /// Tokens per second of one sequence, of two as a batch, and so on up to `context.sequences`, over the same run as
    /// `expected.decode_tokens_per_second`.
    pub decode_tokens_per_second: Vec<f64>,
}

/// Speculation by prompt lookup.
///
/// A draft has tokens that followed the same words earlier in the text. They are decoded in one step with the next token, and kept as
/// far as the model chooses the same. The text is bit for bit the same. The figures are for text like the profile's held-out text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speculation {
    /// Tokens of a draft, at most; each adds a row to the decoding batch.
    pub draft_tokens: u32,
    /// Mean drafted tokens of a step, steps without a draft included.
    pub drafted_tokens_per_step: f64,
    /// Mean tokens of a step: one, and the accepted tokens of the draft.
    pub tokens_per_step: f64,
    /// Speed of one sequence with drafts, over the same run as `expected.decode_tokens_per_second`.
    pub decode_tokens_per_second: f64,
}

impl Expected {
    /// Misses of the tokens at [`crate::expectation::QUANTILES`] over the mean token's; `None` if not measured.
    pub fn missing_over_mean(&self) -> Option<[f64; 3]> {
        Some([self.missing_p50_over_mean?, self.missing_p90_over_mean?, self.missing_p99_over_mean?])
    }
}

/// The device's best rates with the plan's cores and back end. The bytes and reads of a run over these rates are the hardware's lower
/// bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floor {
    /// Memory read in order by the decoding threads.
    pub stream_bytes_per_second: f64,
    /// Memory read in rows at random places by the decoding threads.
    pub gather_bytes_per_second: f64,
    /// Random reads of one neuron's pages, at the best measured depth; absent: not measured, and the bound is memory's alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads_per_second: Option<f64>,
    /// Bytes of one neuron's pages, on average.
    pub read_bytes: u64,
}

/// The best simple rule, priced with the same cost model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimpleRule {
    /// The simple rule's decoding speed, over the same run as `expected.decode_tokens_per_second`.
    pub decode_tokens_per_second: f64,
    /// Bytes of the whole process under the simple rule.
    pub memory_peak_bytes: u64,
}

/// Prompt and generated tokens of the run whose mean speed is expected: 64 and min(1024, context - 64).
///
/// A shorter context is split in half.
pub fn measured_run(context: u32) -> (u32, u32) {
    if context > 64 { (64, (context - 64).min(1024)) } else { (context / 2, context - context / 2) }
}

/// Mean position of the generated tokens of [`measured_run`].
pub fn mean_position(context: u32) -> f64 {
    let (prompt, generated) = measured_run(context);
    f64::from(prompt) + (f64::from(generated) - 1.0) / 2.0
}
