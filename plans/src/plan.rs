//! `plan.toml`: every decision that `run` executes, and the expected figures.

mod check;
mod expected;
mod request;

use serde::{Deserialize, Serialize};

use crate::check::{At, Checked};
use crate::file::Contract;
use crate::layout::Phases;
use crate::model::LevelKind;
use crate::terms::{Rates, Terms};
use crate::{Backend, KvFormat, Policy};

pub use expected::{
    Expected, Filling, Floor, SimpleRule, Speculation, Together, mean_position, measured_run,
};
pub use request::{Feature, Objective, Request};

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
    /// Memory of a GPU; absent: nothing is computed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuPlan>,
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
    /// The assumed rates, which `run` measures again; absent, together with `terms`: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
    /// The parts of the expected times, by the rate that decides each; absent: times are known for the assumed rates only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<Terms>,
    /// Expected speed of several sequences that decode together; absent where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<Together>,
    /// Tokens that are drafted from the text itself and decoded together with the next one; absent: no drafts.
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
    /// The device's CPU; `run` compares it with its own.
    pub cpu: String,
    /// The device's RAM in GiB; `run` compares it with its own.
    pub ram_gib: u64,
    /// The device's block device; `run` compares it with its own.
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanProvenance {
    /// Name and version of the program that wrote the file.
    pub tool: String,
    /// BLAKE3 of the `device.toml`.
    pub device_toml: String,
    /// BLAKE3 of the `model.toml`.
    pub model_toml: String,
    /// BLAKE3 of the `calibration.toml` whose factors are in `[request.calibration]`; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration_toml: Option<String>,
    /// The day of the calibration; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration_date: Option<String>,
    /// BLAKE3 of the `learned.toml` whose counts replace the model's miss rates; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned_toml: Option<String>,
    /// Tokens counted in that file; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned_tokens: Option<u64>,
    /// Decoding speed, by these counts, of the plan that would be made without them; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlearned_tokens_per_second: Option<f64>,
    /// [`Plan::quality_hash`]: a hash of `[quality]` and of its losses in `[expected]`.
    pub quality: String,
    /// Whether the `model.toml` has priors in place of measured misses (`profile --instant`); absent: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub priors: bool,
    /// The folder of the `model.toml` on `plan`'s command line; `run` looks there for the container, too. Absent: the plan's own, or
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_folder: Option<String>,
}

/// Everything that can change a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// Name of the level in `model.toml` and in the container.
    pub level: String,
    /// The level's kind.
    pub kind: LevelKind,
    /// Per layer: number of first ranks that are always computed, without the predictor.
    pub always_on_neurons: Vec<u32>,
    /// Storage format of keys and values: numbers (`F16`, `F32`), or blocks of 32 values of a head with a scale (`Q8_0`, `Q4_0`).
    pub kv_format: String,
    /// Rounding of activations where they meet weights in blocks: none (`f32`), or to 8 bits with a scale for each 32 (`q8`). With `q8`
    /// the factors of 4-bit down rows are rounded, too.
    pub activations: String,
    /// Instruction set of the kernels: `scalar`, `avx2`, `avx512`, `neon`, `dotprod` or `i8mm`.
    pub instruction_set: String,
    /// Units beside the CPU that compute products, each with its own order of addition; absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<UnitQuality>,
}

/// A unit beside the CPU, as far as it can change a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitQuality {
    /// The unit's name in `device.toml`.
    pub unit: String,
    /// Name, driver and subgroup size of its adapter; `run` refuses any other.
    pub adapter: String,
    /// Sixty-fourths of each fixed matrix's rows that it multiplies in a prompt: the last ones, in groups of four.
    pub prefill_parts: u32,
}

impl UnitQuality {
    /// Parts of all rows of a matrix.
    pub const PARTS: u32 = 64;

    /// Share of a prompt's fixed matrices.
    pub fn share_fraction(&self) -> f64 {
        f64::from(self.prefill_parts) / f64::from(Self::PARTS)
    }

    /// Rows of a matrix that are left to the CPU, the first ones.
    pub fn rows_left(&self, rows: usize) -> usize {
        let taken = rows as u64 * u64::from(self.prefill_parts) / u64::from(Self::PARTS);
        rows - (taken as usize).min(rows) / 4 * 4
    }
}

impl GpuPlan {
    /// Buffers that every unit has beside those for transfers: two that matrices pass through, and tables.
    pub const OTHERS_BYTES: u64 = 12 << 20;

    /// Bytes of all buffers, by the plan.
    pub fn held_bytes(&self) -> u64 {
        let transfers = self.transfer_bytes.saturating_mul(4);
        self.weights_bytes.saturating_add(transfers).saturating_add(Self::OTHERS_BYTES)
    }
}

/// Memory of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuPlan {
    /// Limit of all buffers there, at any time.
    pub limit_bytes: u64,
    /// Rows of matrices, resident from the start: an upper bound.
    pub weights_bytes: u64,
    /// Each of four buffers for a chunk's vectors and products: two there, two on the way.
    pub transfer_bytes: u64,
}

/// Context length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Prompt and generated tokens of a sequence together.
    pub tokens: u32,
    /// Sequences in memory at a time, each with a context of `tokens`; absent: 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub sequences: u32,
}

/// Bytes of every region; see [`crate::memory`] for how each is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryPlan {
    /// Limit of the whole process, at any time.
    pub limit_bytes: u64,
    /// The process without its regions: program, stacks, tokenizer, the rings of `io-uring`.
    pub process_bytes: u64,
    /// Memory that `run --serve` takes and frees while it answers, such as the grammar of a schema; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reserve_bytes: u64,
    /// Attention, embeddings, head, norms, routers, and the level's predictors or gate rows.
    pub fixed_bytes: u64,
    /// Pinned neurons.
    pub hot_bytes: u64,
    /// Cache slots.
    pub cold_bytes: u64,
    /// Keys and values of the whole context of every sequence.
    pub kv_bytes: u64,
    /// Keys and values of one token in all layers; absent: all layers have the same heads.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kv_token_bytes: u64,
    /// Recurrent state of every sequence: the current one, and a copy from the end of its last prompt; absent: the model has none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub state_bytes: u64,
    /// Activations of a decoding step, and the buffers of both stages.
    pub activations_bytes: u64,
    /// A prompt's buffers, which overlap the slots: slots below them are empty after a prompt.
    pub prompt_bytes: u64,
    /// Buffers of reads.
    pub io_buffers_bytes: u64,
    /// Tables that locate each neuron: indexes, checksums, slot lists.
    pub tables_bytes: u64,
    /// A unit's driver and buffers on the way, in this process; with the unit's memory if it has none of its own. Absent: there is no unit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unit_bytes: u64,
    /// The kernel's page tables for all regions.
    pub page_tables_bytes: u64,
    /// Sum of all regions and page tables while decoding, without the prompt's buffers; at most the limit.
    pub decode_total_bytes: u64,
    /// Sum of all regions and page tables during prefill, the peak of the process; at most the limit. Of slots and prompt buffers, which
    /// overlap, the larger counts.
    pub prefill_total_bytes: u64,
}

/// The neuron cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CachePlan {
    /// Cache policy: `lru` evicts the least recently used neuron, `clock` one that was not used since a hand last passed. `frequency`
    /// evicts the least frequently used neuron, and only for one that is used more often.
    pub policy: Policy,
    /// Per layer: number of first ranks that are pinned.
    pub hot_neurons: Vec<u32>,
    /// Per layer: slots for neurons that are not pinned.
    pub cold_slots: Vec<u32>,
    /// Neurons of a slice, which are inserted and evicted together, as in the container; absent: 1.
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
    /// Whether reads bypass the page cache.
    pub direct: bool,
    /// Reads in flight.
    pub depth: u32,
    /// Buffers; a read owns one until its neurons are computed.
    pub buffers: u32,
    /// Bytes of a buffer, whole pages: the longest read.
    pub buffer_bytes: u64,
    /// Maximum distance on flash of missing neurons that share a read.
    pub gap_bytes: u64,
    /// Prefetch reads in flight for the next layer, predicted from this layer's input; absent: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub look_ahead: u32,
    /// Reads of a slice, in flight together and into one buffer; absent: 1. An index needs 3, or 2 without gates. `depth` counts reads,
    /// `buffers` and `look_ahead` count slices.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub parts: u32,
    /// Order of the reads of a neuron while decoding; absent: `whole`.
    #[serde(default, skip_serializing_if = "is_whole")]
    pub phases: Phases,
    /// Whether decoding computes a layer only after all its reads have completed; absent: `false`, neurons in memory are computed while
    /// reads are in flight.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blocking: bool,
    /// Whether a row of the token embedding is read when its token comes; absent: `false`, the embedding is in memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub embedding_rows: bool,
    /// Whether rows of per-layer embeddings or of n-grams are read for each token; absent: `false`, the model has none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub per_layer_rows: bool,
}

impl ReadPlan {
    /// Whether rows of an embedding are read.
    pub fn reads_rows(&self) -> bool {
        self.embedding_rows || self.per_layer_rows
    }

    /// Reads that the buffers hold.
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
    /// Neurons that a thread claims together; between two claims the main thread starts and completes reads.
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
    /// Prompt tokens of a chunk, which pass a layer together.
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

impl Quality {
    /// Storage format of keys and values.
    pub fn kv(&self) -> KvFormat {
        KvFormat::named(&self.kv_format)
    }
}

impl Plan {
    /// BLAKE3 of `[quality]` and of the losses in `[expected]`, in 32 hexadecimal digits: a change of one exposes the other as stale.
    pub fn quality_hash(&self) -> String {
        let Quality { level, kind, always_on_neurons, kv_format, activations, instruction_set, units } =
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
        let mut text = format!(
            "{level} {} {always_on_neurons:?} {kv_format} {activations} {instruction_set} {:?}",
            kind.name(),
            losses.map(|loss| loss.map(f64::to_bits)),
        );
        for UnitQuality { unit, adapter, prefill_parts } in units {
            text += &format!(" {unit} {adapter} {prefill_parts}");
        }
        blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
    }

    /// Slots of all layers.
    pub fn slots(&self) -> f64 {
        self.cache.cold_slots.iter().map(|&slots| f64::from(slots)).sum()
    }

    /// Share of [`Expected::decode_cold_start_seconds`] that a run of `tokens` pays.
    pub fn filled_fraction(&self, tokens: f64) -> f64 {
        let slots = self.slots();
        match &self.filling {
            Some(filling) if slots > 0.0 => filling.at(tokens) / slots,
            _ => 1.0,
        }
    }

    /// Tokens of a draft, at most; 0 without drafts.
    pub fn draft_tokens(&self) -> u32 {
        self.speculation.map_or(0, |speculation| speculation.draft_tokens)
    }

    /// Maximum rows of a decoding step: a token of each sequence, and the tokens of a draft.
    pub fn decode_rows(&self) -> u32 {
        self.context.sequences.saturating_add(self.draft_tokens())
    }

    /// Neurons of a cluster during prefill.
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

    /// The sum of the regions during prefill, which is the peak of the process.
    pub fn prefill_sum(&self) -> u64 {
        self.beside_slots().saturating_add(self.slots_or_prompt_bytes())
    }

    /// Bytes of the slots or of the prompt's buffers, which overlap: the larger.
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
            self.unit_bytes,
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
        ("[gpu]", "Bytes of the GPU's memory; all its buffers stay under the limit."),
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
