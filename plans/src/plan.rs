//! `plan.toml`: every decision that `run` obeys, and what is expected of it.

mod check;

use serde::{Deserialize, Serialize};

use crate::check::{At, Checked};
use crate::file::Contract;
use crate::layout::Phases;
use crate::model::LevelKind;
use crate::terms::{Factors, Rates, Terms};
use crate::{Backend, KvFormat, Policy};

/// A plan: for one machine, one model, one container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The machine, model and container that the plan was made for; `run` refuses any other.
    pub target: Target,
    /// Where the plan came from. Not compared by `plan --check`.
    pub provenance: PlanProvenance,
    /// The user's request.
    pub request: Request,
    /// The quality keys: everything that can change a value. Plans with equal quality keys give the
    /// same logits and tokens.
    pub quality: Quality,
    /// Context length.
    pub context: Context,
    /// Bytes of every region.
    pub memory: MemoryPlan,
    /// The neuron cache.
    pub cache: CachePlan,
    /// Reading flash.
    pub read: ReadPlan,
    /// One token at a time.
    pub decode: DecodePlan,
    /// The prompt.
    pub prefill: PrefillPlan,
    /// The cost model's expectations.
    pub expected: Expected,
    /// Cost of filling the slots; absent: as if a run missed all that a warm cache finds until every slot is filled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filling: Option<Filling>,
    /// The rates that are assumed, which `run` measures again; absent, as are the terms then: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
    /// The parts of the expected times, by the rate that each depends on; absent: times are known for the assumed rates only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<Terms>,
    /// Expected speed of several sequences that decode together; absent where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<Together>,
    /// Tokens that are drafted from the text itself and decoded together with the next one; absent: none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Speculation>,
    /// The best simple rule, priced with the same cost model: fill by frequency, all cores.
    pub simple_rule: SimpleRule,
}

/// The machine, model and container that a plan was made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The device's name, for people.
    pub device: String,
    /// The device's fingerprint.
    pub device_fingerprint: String,
    /// The device's CPU; `run` compares it with the machine it runs on.
    pub cpu: String,
    /// The device's RAM in GiB; `run` compares it with the machine it runs on.
    pub ram_gib: u64,
    /// The device's block device; `run` compares it with the machine it runs on.
    pub storage: String,
    /// The model's name, for people.
    pub model: String,
    /// The source model's fingerprint.
    pub model_fingerprint: String,
    /// The container's file name.
    pub container: String,
    /// The container's fingerprint.
    pub container_fingerprint: String,
}

/// Where the plan came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanProvenance {
    /// Name and version of the program that wrote the file.
    pub tool: String,
    /// BLAKE3 of the `device.toml` it was made from.
    pub device_toml: String,
    /// BLAKE3 of the `model.toml` it was made from.
    pub model_toml: String,
    /// BLAKE3 of the `calibration.toml` whose factors are in `[request.calibration]`; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration_toml: Option<String>,
    /// The day of the calibration; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration_date: Option<String>,
    /// [`Plan::quality_hash`]: what `[quality]` was when the losses in `[expected]` were taken from `model.toml`.
    pub quality: String,
    /// The folder of the `model.toml`, as `plan` was given it; `run` looks there for the container, too. Absent: the plan's
    /// own, or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_folder: Option<String>,
}

/// The quantity that is made best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// The highest decoding speed within the limits.
    Speed,
    /// The least memory at the demanded speed.
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
    /// `--slots`: sequences that are in memory at a time; absent: 1.
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
    /// `--max-loss` as a fraction: the most that `perplexity_change_fraction_upper` of a level, and of keys and values in blocks, may be together.
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
    /// `--calibration`: how many times as fast as in its profile the device is taken to be; absent: as there.
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
    /// Pinning some of them.
    HotRegion,
    /// Keeping the rows of a neuron side by side on flash.
    Bundle,
    /// Reading the gate before the rest, and the rest only if the gate fires.
    TwoPhase,
    /// Reading gate, up and down at once; they come so all the same where a neuron is smaller than a page.
    WholeRead,
    /// Computing while reads are in flight.
    Pipeline,
    /// Reading for the next layer.
    LookAhead,
    /// Deciding who leaves the cache by anything but who was not used for longest.
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

/// Everything that can change a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// Name of the level in `model.toml` and in the container.
    pub level: String,
    /// The level's kind.
    pub kind: LevelKind,
    /// Per layer: the first so many neurons are computed without asking the predictor.
    pub always_on_neurons: Vec<u32>,
    /// How keys and values are stored: as numbers (`F16`, `F32`), or in blocks of 32 of a head's that share a scale (`Q8_0`, `Q4_0`).
    pub kv_format: String,
    /// Activations where they meet weights in blocks: as they are (`f32`), or rounded to 8 bits with a scale for each 32 (`q8`). Factors
    /// of down rows of nibbles are rounded, too.
    pub activations: String,
    /// `scalar`, `avx2`, `avx512`, `neon`, `dotprod` or `i8mm`: what the kernels are written in.
    pub instruction_set: String,
}

/// Context length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Prompt and generated tokens of a sequence together.
    pub tokens: u32,
    /// Sequences whose keys and values are in memory at a time, each with room for so many tokens; absent: 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub sequences: u32,
}

/// Bytes of every region; see [`crate::memory`] for how each is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryPlan {
    /// The most that the whole process may take, at any time.
    pub limit_bytes: u64,
    /// The process without its regions: program, stacks, tokenizer, the rings of `io-uring`.
    pub process_bytes: u64,
    /// Kept free for what comes and goes while `run --serve` answers, such as the grammar of a schema; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reserve_bytes: u64,
    /// Attention, embeddings, head, norms, routers, and the level's predictors or gate rows.
    pub fixed_bytes: u64,
    /// Pinned neurons.
    pub hot_bytes: u64,
    /// Slots of neurons that come and go.
    pub cold_bytes: u64,
    /// Keys and values of the whole context of every sequence.
    pub kv_bytes: u64,
    /// Keys and values of one token in all layers; absent: 0, and all layers have the same heads.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kv_token_bytes: u64,
    /// Recurrent state of every sequence, as it is and as it was after the sequence's last prompt; absent: 0, the model has none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub state_bytes: u64,
    /// Activations: one token's of every sequence, and what both stages have.
    pub activations_bytes: u64,
    /// Bytes of a prompt's buffers, over the slots: the slots beneath are empty after a prompt.
    pub prompt_bytes: u64,
    /// Where reads complete.
    pub io_buffers_bytes: u64,
    /// Where each neuron is: indexes, checksums, slot lists.
    pub tables_bytes: u64,
    /// The kernel's page tables for all regions.
    pub page_tables_bytes: u64,
    /// All regions and page tables while decoding, the prompt's rows left out; at most the limit.
    pub decode_total_bytes: u64,
    /// Sum of all regions and page tables during prefill, with the slots or the prompt's buffers, whichever are larger: the peak of the
    /// process, at most the limit.
    pub prefill_total_bytes: u64,
}

/// The neuron cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CachePlan {
    /// Cache policy, which decides the eviction: the least recently used (`lru`), not used since a hand passed (`clock`), or the least
    /// often used, and only for a neuron that is used more often (`frequency`).
    pub policy: Policy,
    /// Per layer: the first so many neurons of the container's order are pinned.
    pub hot_neurons: Vec<u32>,
    /// Per layer: slots for neurons that are not pinned.
    pub cold_slots: Vec<u32>,
    /// Neurons that come and go together, as they stand in the container; absent: 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub slice_neurons: u32,
    /// Per layer: bytes of a neuron in memory; absent: the same in all layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slot_bytes: Vec<u64>,
}

/// Value of `slice_neurons` where it is absent.
fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(value: &u32) -> bool {
    *value == 1
}

/// Reading flash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadPlan {
    /// `pread`: positioned reads by a pool of threads; `io-uring`: asynchronous reads by the decoding thread.
    pub backend: Backend,
    /// Past the page cache.
    pub direct: bool,
    /// Reads in flight.
    pub depth: u32,
    /// Buffers; a read owns one until its neurons are computed.
    pub buffers: u32,
    /// Bytes of a buffer, whole pages: the longest read.
    pub buffer_bytes: u64,
    /// Two missing neurons this close on flash are read as one.
    pub gap_bytes: u64,
    /// Reads in flight for the next layer, of what this layer's input says that it will request; absent: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub look_ahead: u32,
    /// Reads of a slice; absent: 1. Where gate, up and down are apart in the model's file it is 3, or 2 without gates, in flight together
    /// and into one buffer: `depth` counts them, `buffers` and `look_ahead` count slices.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub parts: u32,
    /// How decoding reads a neuron; absent: `whole`.
    #[serde(default, skip_serializing_if = "is_whole")]
    pub phases: Phases,
    /// Whether decoding computes a layer only after all its reads have completed; absent: `false`, and neurons in memory are computed
    /// meanwhile.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blocking: bool,
    /// A row of the token embedding is read when its token comes; absent: `false`, the embedding is in memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub embedding_rows: bool,
}

impl ReadPlan {
    /// Reads that buffers have room for.
    pub fn held(&self) -> u32 {
        self.buffers.saturating_mul(self.parts)
    }

    /// Reads in flight for the next layer.
    pub fn ahead(&self) -> u32 {
        self.look_ahead.saturating_mul(self.parts)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_whole(value: &Phases) -> bool {
    *value == Phases::Whole
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// One token at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodePlan {
    /// Compute threads, each pinned to its core; the first is the main thread's.
    pub compute_cores: Vec<u32>,
    /// Cores that `pread`'s threads may run on; `io-uring` has none.
    pub io_cores: Vec<u32>,
    /// Neurons that a thread takes together; between two of them reads are started and found done.
    pub cluster_neurons: u32,
    /// Share of the work per unit; the CPU is the first.
    pub units: Vec<UnitShare>,
}

/// The prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillPlan {
    /// Compute threads of a prompt, each pinned to its core; the first is the main thread's.
    pub compute_cores: Vec<u32>,
    /// Prompt tokens that pass a layer together.
    pub chunk_tokens: u32,
    /// Neurons of a prompt's cluster; absent: `decode.cluster_neurons`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cluster_neurons: u32,
    /// Share of the work per unit; the CPU is the first.
    pub units: Vec<UnitShare>,
}

/// A unit's part in a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitShare {
    /// The unit's name in `device.toml`.
    pub unit: String,
    /// The unit's share of the work; the shares of a stage add up to 1.
    pub share_fraction: f64,
}

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
    /// Time of reading a neuron into every slot, once; 0 for slices, which a prompt fills. A run pays for the slots that `[filling]`
    /// counts.
    pub decode_cold_start_seconds: f64,
    /// Part of `decode_seconds_constant`: computing, were it alone.
    pub decode_compute_seconds: f64,
    /// Part of `decode_seconds_constant`: moving bytes through memory, were it alone.
    pub decode_memory_seconds: f64,
    /// Part of `decode_seconds_constant`: reading flash, were it alone.
    pub decode_io_seconds: f64,
    /// Part of `decode_seconds_constant`: all that nothing overlaps.
    pub decode_serial_seconds: f64,
    /// Prompt tokens per second, for a 64-token prompt.
    pub prefill_tokens_per_second: f64,
    /// Bytes read from flash per decoded token, warm.
    pub bytes_read_per_token: f64,
    /// Share of the neurons requested that are in memory, warm.
    pub hit_fraction: f64,
    /// Neurons requested, among the routed experts' neurons.
    pub active_predicted_fraction: f64,
    /// Requested neurons that are truly active, among the routed experts' neurons; none counts that was not requested.
    pub active_true_fraction: f64,
    /// Perplexity change of the quality level, and of keys and values in blocks, added up, from `model.toml`.
    pub perplexity_change_fraction: f64,
    /// Upper bounds of the perplexity changes of the quality level and of keys and values in blocks, with 95 % confidence, added up, from
    /// `model.toml`; absent: the profile has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity_change_fraction_upper: Option<f64>,
    /// Perplexity change of the container computed dense, with the plan's keys and values, against the source file, from `model.toml`;
    /// absent: not measured, and `run --score` compares with the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_perplexity_change_fraction: Option<f64>,
    /// Bytes of the whole process at its most.
    pub memory_peak_bytes: u64,
    /// Seconds from the start of the engine until it takes its first prompt; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_seconds: Option<f64>,
    /// Neurons missing for the median token with a warm cache, over the mean token's, from `model.toml`; absent: not measured, and
    /// percentiles of a token are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_p50_over_mean: Option<f64>,
    /// Neurons missing for the 90th percentile of tokens, over those for the mean token; absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_p90_over_mean: Option<f64>,
    /// Neurons missing for the 99th percentile of tokens, over those for the mean token; absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_p99_over_mean: Option<f64>,
    /// Median of the seconds of a token, over the same run as `decode_tokens_per_second`; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_seconds_p50: Option<f64>,
    /// 90th percentile of the seconds of a token; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_seconds_p90: Option<f64>,
    /// 99th percentile of the seconds of a token; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_seconds_p99: Option<f64>,
    /// The rates that no token can outrun; absent: `run` tells no floor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Floor>,
}

/// Neurons that a run misses because it begins with empty slots, beyond the misses of a warm cache.
///
/// While slots are free nothing is evicted: with `f` filled, a token misses the same as with a warm cache of `f` slots. So `f` grows
/// by the misses, and until the slots are full the run has missed `f`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filling {
    /// Lengths of runs, rising.
    pub tokens: Vec<u32>,
    /// Neurons of all layers that a run of each length misses beyond a warm cache's misses; interpolated linearly from zero, constant
    /// after the last.
    pub neurons: Vec<f64>,
}

impl Filling {
    /// Neurons that a run of `tokens` misses beyond a warm cache's misses.
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

/// Expected speed of several sequences decoded as one batch. Nobody has measured how much they share: they are assumed to be
/// independent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Together {
    /// Tokens per second of one sequence, of two as a batch, and so on up to `context.sequences`, over the same run as
    /// `expected.decode_tokens_per_second`.
    pub decode_tokens_per_second: Vec<f64>,
}

/// Speculation by prompt lookup: tokens that followed the same words earlier in the text are decoded in one step with the next token,
/// and kept as far as the model chooses the same. The text is the same, to the bit. The figures are for text like the profile's
/// held-out one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speculation {
    /// Tokens of a draft, at most; so many rows pass a layer together beyond one of each sequence.
    pub draft_tokens: u32,
    /// Tokens that are drafted for a step, steps without a draft among them; the mean.
    pub drafted_tokens_per_step: f64,
    /// Mean tokens of a step: one, and the accepted tokens of the draft.
    pub tokens_per_step: f64,
    /// Speed of one sequence with drafts, over the same run as `expected.decode_tokens_per_second`.
    pub decode_tokens_per_second: f64,
}

impl Expected {
    /// Misses of the tokens at [`crate::expectation::QUANTILES`] over those of the mean one; `None` where the profile
    /// has not measured it.
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
    /// Random reads of one neuron's pages, at the best measured depth; absent: not measured as the plan reads, and the floor is memory's alone.
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

/// Prompt and generated tokens over which a speed is the mean: 64 and min(1024, context - 64).
///
/// A context too short for that is split in half.
pub fn measured_run(context: u32) -> (u32, u32) {
    if context > 64 { (64, (context - 64).min(1024)) } else { (context / 2, context - context / 2) }
}

/// Mean position of the generated tokens of that run.
pub fn mean_position(context: u32) -> f64 {
    let (prompt, generated) = measured_run(context);
    f64::from(prompt) + (f64::from(generated) - 1.0) / 2.0
}

impl Quality {
    /// How keys and values are stored.
    pub fn kv(&self) -> KvFormat {
        KvFormat::named(&self.kv_format)
    }
}

impl Plan {
    /// BLAKE3 of `[quality]` and of the losses in `[expected]`, in 32 hexadecimal digits: neither is changed without the other.
    pub fn quality_hash(&self) -> String {
        let Quality { level, kind, always_on_neurons, kv_format, activations, instruction_set } =
            &self.quality;
        let Expected {
            perplexity_change_fraction,
            perplexity_change_fraction_upper,
            container_perplexity_change_fraction,
            ..
        } = &self.expected;
        let losses = [
            Some(*perplexity_change_fraction),
            *perplexity_change_fraction_upper,
            *container_perplexity_change_fraction,
        ];
        let text = format!(
            "{level} {} {always_on_neurons:?} {kv_format} {activations} {instruction_set} {:?}",
            kind.name(),
            losses.map(|loss| loss.map(f64::to_bits)),
        );
        blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
    }

    /// Slots of all layers.
    pub fn slots(&self) -> f64 {
        self.cache.cold_slots.iter().map(|&slots| f64::from(slots)).sum()
    }

    /// Share of [`Expected::decode_cold_start_seconds`] that a run of so many tokens pays.
    pub fn filled_fraction(&self, tokens: f64) -> f64 {
        let slots = self.slots();
        match &self.filling {
            Some(filling) if slots > 0.0 => filling.at(tokens) / slots,
            _ => 1.0,
        }
    }

    /// Tokens of a draft, at most; 0 where none are drafted.
    pub fn draft_tokens(&self) -> u32 {
        self.speculation.map_or(0, |speculation| speculation.draft_tokens)
    }

    /// Maximum rows of a decoding step: a token of each sequence, and the tokens of a draft.
    pub fn decode_rows(&self) -> u32 {
        self.context.sequences.saturating_add(self.draft_tokens())
    }

    /// Neurons that a prompt's tokens meet together.
    pub fn prefill_cluster_neurons(&self) -> u32 {
        match self.prefill.cluster_neurons {
            0 => self.decode.cluster_neurons,
            neurons => neurons,
        }
    }
}

impl MemoryPlan {
    /// The sum of the regions while decoding.
    pub fn decode_sum(&self) -> u64 {
        self.beside_slots().saturating_add(self.cold_bytes)
    }

    /// Bytes of the regions during prefill, which is all that the process takes.
    pub fn prefill_sum(&self) -> u64 {
        self.beside_slots().saturating_add(self.slots_or_prompt_bytes())
    }

    /// The slots, and over them a prompt's rows.
    pub fn slots_or_prompt_bytes(&self) -> u64 {
        self.cold_bytes.max(self.prompt_bytes)
    }

    fn beside_slots(&self) -> u64 {
        [
            self.process_bytes,
            self.reserve_bytes,
            self.fixed_bytes,
            self.hot_bytes,
            self.kv_bytes,
            self.state_bytes,
            self.activations_bytes,
            self.io_buffers_bytes,
            self.tables_bytes,
            self.page_tables_bytes,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }
}

impl Contract for Plan {
    const KIND: &'static str = "plan.toml";
    const COMMAND: &'static str = "plan";
    const MARK: &'static str = "target";
    const COMMENTS: &'static [(&'static str, &'static str)] = &[
        ("[target]", "The machine, model and container that this plan is for; any other is refused."),
        ("[provenance]", "Where the plan came from."),
        ("[request]", "What was requested."),
        ("[quality]", "Everything that can change a value: equal here means equal tokens."),
        ("[context]", "Prompt and generated tokens together."),
        ("[memory]", "Bytes of every region; the whole process stays under the limit."),
        ("[cache]", "Per layer: neurons pinned in memory, and slots for those that come and go."),
        ("[read]", "How flash is read."),
        ("[decode]", "One token at a time."),
        ("[prefill]", "The prompt, dense, layer after layer."),
        ("[expected]", "What the cost model expects; `run` reports what happened beside it."),
        (
            "[expected.floor]",
            "What the device gives at best; over it go the bytes and reads that `run` counts.",
        ),
        ("[filling]", "Neurons that runs of these lengths miss since they begin with empty slots."),
        ("[rates]", "The rates that are assumed; `run` measures them again before it starts."),
        ("[terms]", "What the expected times are made of, by what each part depends on."),
        ("[together]", "What several sequences give together: of one, of two, and so on."),
        ("[speculation]", "Tokens drafted from the text itself and decoded together with the next one."),
        ("[simple_rule]", "The best simple rule, priced alike: fill by frequency, all cores."),
    ];
    const HAS_CHECKSUM: bool = false;

    fn check_at(&self, at: &At<'_>) -> Checked {
        check::check(self, at)
    }

    fn decode(file: toml::Deserializer<'_>) -> Result<Self, toml::de::Error> {
        Self::deserialize(file)
    }

    fn encode(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}
