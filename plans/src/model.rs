//! `model.toml`: the shapes of a model and how sparsely it fires, measured on held-out text.

pub(crate) mod check;

use serde::{Deserialize, Serialize};

use crate::check::{At, Checked};
use crate::engine::{PREFETCHED_FRACTION, PREFETCHED_USED_FRACTION};
use crate::expectation::QUANTILES;
use crate::file::Contract;
use crate::kv::KvFormat;
use crate::layout::BundleLayout;
use crate::policy::Policy;

/// A measured model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The model's name, e.g. `oxide-dense`; also the folder of committed plans.
    pub name: String,
    /// BLAKE3 of the source model's bytes.
    pub fingerprint: String,
    /// Rounding of activations when the levels were measured: none (`f32`), or to 8 bits where they meet weights in blocks (`q8`);
    /// absent: `f32`.
    #[serde(default = "plain", skip_serializing_if = "is_plain")]
    pub activations: String,
    /// How the figures came to be.
    pub provenance: ModelProvenance,
    /// Shapes.
    pub architecture: Architecture,
    /// Bytes by part, as the container holds them.
    pub parts: Parts,
    /// The flash container made with it.
    pub container: ContainerIdentity,
    /// The dense model on the held-out text.
    pub dense: DenseQuality,
    /// Loss with keys and values in blocks, by format; absent: not measured, and not planned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kv_formats: Vec<KvLoss>,
    /// Accepted tokens of drafts on the held-out text; absent: not measured, and no drafts are planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drafts: Option<Drafts>,
    /// The axes of every miss-rate surface below.
    pub reuse: ReuseAxes,
    /// How each layer fires, on held-out text.
    pub layers: Vec<LayerActivity>,
    /// The menu of whole-model quality levels.
    pub levels: Vec<Level>,
}

/// Value of `activations` where it is absent.
fn plain() -> String {
    "f32".to_owned()
}

fn is_plain(activations: &str) -> bool {
    activations == "f32"
}

/// Origin of a profile with priors in place of calibration.
pub const INSTANT: &str = "instant";

/// How the figures came to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelProvenance {
    /// Name and version of the program that wrote the file.
    pub tool: String,
    /// `measured`; `instant` for shapes of a file that was read, with priors in place of calibration; `published` for somebody's
    /// published figures; `assumed` for made-up ones.
    pub origin: String,
    /// BLAKE3 of the calibration text.
    pub calibration_text: String,
    /// Tokens of the calibration text.
    pub calibration_tokens: u64,
    /// BLAKE3 of the held-out text.
    pub held_out_text: String,
    /// Tokens of the held-out text.
    pub held_out_tokens: u64,
    /// Whether `--quick` cut the texts short.
    pub quick: bool,
    /// BLAKE3 of the recorded routes that the misses were measured with; absent: the model's own routing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<String>,
    /// Sources, and each figure that is assumed, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Shapes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// The architecture's name in GGUF, for people, e.g. `llama`.
    pub family: String,
    /// `relu`, `silu`, `drelu`, `gelu`, `swiglu-oai` or `relu-squared`. The last is a network without gates: its up row decides whether
    /// a neuron fires, and takes the gate's place.
    pub activation: String,
    /// Decoder layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub width: u32,
    /// FFN neurons of one expert.
    pub neurons_per_expert: u32,
    /// Experts of a layer; 1 is a dense model.
    pub experts: u32,
    /// Experts that a token visits.
    pub experts_used: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_width: u32,
    /// Whether attention's output has a gate, which is projected beside the query; absent: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gated_attention: bool,
    /// Layers that store keys and values; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_layers: Option<u32>,
    /// Neurons of the widest shared expert or dense layer, always in memory and used by every token; absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shared_neurons: u32,
    /// Rotary embeddings that the layers choose from; absent: 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub rotary_embeddings: u32,
    /// Tokens known.
    pub vocabulary: u32,
    /// Longest context that the model was made for.
    pub context: u32,
    /// Storage format of gate rows in the container, or of up rows without gates, e.g. `F16`. `plan` prices every matrix but down with
    /// its kernels. Where layers differ, the format of most.
    pub weight_format: String,
    /// Storage format of down in the container; where layers differ, the format of most.
    pub down_format: String,
    /// Whether the container has down transposed, a row for each neuron; absent: `true`. A file that blocks down the other way is
    /// quantised again for it. Where it is `false` each slice has its columns of down, bit for bit as in the file.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub down_transposed: bool,
    /// Layers whose heads have other shapes than `heads`, `kv_heads` and `head_width`; absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_heads: Vec<Heads>,
    /// Heads of layers that read the keys and values of other layers and store none; absent: there are none. They do not count in
    /// `kv_layers` and `other_heads`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sharing_heads: Vec<Heads>,
    /// Sizes of per-layer embeddings or of n-grams; absent: there are none. Each token reads its rows from flash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_layer: Option<PerLayer>,
    /// Sizes of the residual streams; absent: there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<Streams>,
    /// Blocks of positions that a token's attention chooses at most; absent: 0, it sees all positions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub chosen_blocks: u32,
    /// Sizes of the layers with a recurrent state instead of keys and values; absent: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recurrent: Option<Recurrent>,
    /// Sizes of latent attention (MLA), which stores one vector for the keys and values of all heads; absent: ordinary keys and values.
    /// `kv_heads` is then 1, and `head_width` the vector's width.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<Latent>,
}

/// The common head shape of some layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heads {
    /// Layers with heads of this shape.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_width: u32,
}

impl Heads {
    /// Values of all query heads of a token.
    pub fn query_width(&self) -> u64 {
        u64::from(self.heads) * u64::from(self.head_width)
    }

    /// Values of all key heads of a token; its value heads have as many.
    pub fn kv_width(&self) -> u64 {
        u64::from(self.kv_heads) * u64::from(self.head_width)
    }
}

/// Layers with a recurrent state of the earlier tokens, such as short convolutions, instead of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recurrent {
    /// Values of a sequence's state in all recurrent layers, four bytes each.
    pub state_values: u64,
    /// Values of a token's projection in the widest layer, layers with attention included.
    pub projected_values: u32,
    /// Input width of the widest output matrix, layers with attention included.
    pub mixed_values: u32,
}

/// A table that stays in the file, and whose rows are read for each token. Per-layer embeddings have a row for each token, with an input
/// for each block. N-grams have rows that hashes of tokens choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerLayer {
    /// Values of a block's input of a token; of n-grams, of a row.
    pub width: u32,
    /// Values of a token's rows: its inputs of all blocks, or all its n-grams.
    pub row_values: u32,
    /// Bytes of a row in the file.
    pub row_bytes: u64,
    /// Rows of the table; absent: one for each token known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Rows that a token reads; absent: 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub reads: u32,
}

/// Several residual streams of a token instead of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Streams {
    /// Number of streams.
    pub count: u32,
    /// Values that a token's projections between streams take at most, low-rank branches included.
    pub projected_values: u32,
}

/// Latent attention: one stored vector for the keys and values of all heads of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latent {
    /// Values of a token's projections, its queries, or the vectors that they read, whichever are most.
    pub projected_values: u32,
    /// Values of a token's queries or the vectors that they read, whichever are most.
    pub mixed_values: u32,
}

/// Value of `down_transposed` where it is absent.
fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_yes(so: &bool) -> bool {
    *so
}

/// Value of `rotary_embeddings` where it is absent.
fn one() -> u32 {
    1
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

impl Architecture {
    /// Whether every neuron fires, whatever its gate.
    pub fn always_fires(&self) -> bool {
        matches!(&*self.activation, "silu" | "gelu" | "swiglu-oai")
    }

    /// Whether a neuron has a gate beside its up.
    pub fn is_gated(&self) -> bool {
        self.activation != "relu-squared"
    }

    /// Matrices of a network: gate, up and down, or up and down.
    pub fn matrices(&self) -> u32 {
        if self.is_gated() { 3 } else { 2 }
    }

    /// Neurons of a layer, all experts together.
    pub fn neurons(&self) -> u64 {
        u64::from(self.neurons_per_expert) * u64::from(self.experts)
    }

    /// Neurons of the experts that a token visits in a layer.
    pub fn neurons_routed(&self) -> u64 {
        u64::from(self.neurons_per_expert) * u64::from(self.experts_used)
    }

    /// Layers that store keys and values.
    pub fn kv_layers(&self) -> u32 {
        self.kv_layers.unwrap_or(self.layers)
    }

    /// The heads of all layers with attention, shape by shape: layers that store keys and values, then layers that share them.
    pub fn reading_heads(&self) -> impl Iterator<Item = Heads> + Clone + '_ {
        self.storing_heads().chain(self.sharing_heads.iter().copied())
    }

    /// The heads of all layers that store keys and values, shape by shape.
    pub fn storing_heads(&self) -> impl Iterator<Item = Heads> + Clone + '_ {
        let others: u32 = self.other_heads.iter().map(|other| other.layers).fold(0, u32::saturating_add);
        let own = Heads {
            layers: self.kv_layers().saturating_sub(others),
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_width: self.head_width,
        };
        std::iter::once(own).chain(self.other_heads.iter().copied())
    }

    /// Rows that a layer stores of a token for each head: a key and a value, or one vector for both.
    pub fn kept_rows(&self) -> u32 {
        if self.latent.is_some() { 1 } else { 2 }
    }

    /// Values of a sequence's recurrent state; 0 where all layers have keys and values.
    pub fn state_values(&self) -> u64 {
        self.recurrent.map_or(0, |recurrent| recurrent.state_values)
    }

    /// Whether a prompt may multiply its down rows transposed, [`crate::engine::TRANSPOSED`] neurons at a time.
    ///
    /// The rows must be `Q4_0`, of a single expert, and every neuron must fire.
    pub fn transposes_down(&self) -> bool {
        self.down_transposed
            && self.experts == 1
            && self.always_fires()
            && self.down_format.starts_with("Q4_0")
    }
}

/// Bytes by part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// Token embedding.
    pub embedding_bytes: u64,
    /// Output head; 0 when it is the embedding.
    pub head_bytes: u64,
    /// Bytes of the head that a token reads (the embedding's when they are tied).
    pub head_read_bytes: u64,
    /// Matrices of attention, or of other token mixers, and norms of one layer; where layers differ the mean.
    pub attention_layer_bytes: u64,
    /// Router of one layer; 0 for a dense model.
    pub router_layer_bytes: u64,
    /// Bytes resident at every quality level: embedding, head, attention, norms, routers.
    pub fixed_bytes: u64,
    /// Upper bound of tokenizer and directory in memory.
    pub tokenizer_bytes: u64,
    /// A neuron's bundle; where layers differ the mean over layers, and `layers[].bundle` has each layer's.
    pub bundle: BundleLayout,
}

/// The flash container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerIdentity {
    /// File name, without a folder.
    pub file: String,
    /// The container's fingerprint: BLAKE3 of its directory, which holds the hashes of its parts.
    pub fingerprint: String,
    /// Bytes of the container.
    pub bytes: u64,
}

/// The dense model on the held-out text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseQuality {
    /// Perplexity of the source file, computed dense.
    pub perplexity: f64,
}

/// Loss with keys and values in blocks, relative to the dense level, on the held-out text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvLoss {
    /// The format.
    pub format: String,
    /// Rise of the perplexity as a fraction; may be slightly negative.
    pub perplexity_change_fraction: f64,
    /// Upper bound of the rise on one more text like the held-out ones, with 95 % confidence.
    pub perplexity_change_fraction_upper: f64,
    /// The rise on each held-out text.
    pub perplexity_change_fraction_of_texts: Vec<f64>,
}

/// Drafts by prompt lookup on held-out text, verified by the dense model; an entry for each draft length from one to seven tokens.
///
/// The model reads the text, not its own answer, so tokens after the first rejected one do not count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drafts {
    /// By draft length: mean drafted tokens of a step, steps without a draft included.
    pub drafted_tokens: Vec<f64>,
    /// By draft length: mean drafted tokens of a step that the model would have chosen.
    pub kept_tokens: Vec<f64>,
}

/// The axes of every miss-rate surface.
///
/// A layer has a cache of `T` neurons. A `share` of them is pinned, the most frequent first; a policy evicts the others. The cache
/// misses a fraction of the neurons that a level requests. Surfaces are `miss[share][T]`, one for each policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReuseAxes {
    /// Cached neurons of a layer, as fractions of the layer's neurons; from 0 to 1, increasing.
    pub cached_fraction: Vec<f64>,
    /// Pinned share of the cache; from 0 to 1, increasing.
    pub pinned_share_fraction: Vec<f64>,
    /// Maximum ranks between missing neurons that share a read in `levels[].layers[].runs_over_wide_gaps_fraction`; absent: 8, as in
    /// older profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wide_gap_ranks: Option<u32>,
}

impl ReuseAxes {
    /// Maximum ranks between missing neurons that share a read, in `runs_over_gaps_fraction` and in `runs_over_wide_gaps_fraction`.
    pub fn gaps(&self) -> [u32; 2] {
        [GAP_RANKS, self.wide_gap_ranks.unwrap_or(OLDER_WIDE_GAP_RANKS)]
    }
}

/// True activity of a layer on held-out text, independent of levels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerActivity {
    /// P(gate > 0 and up > 0), among the routed experts' neurons.
    pub active_true_fraction: f64,
    /// P(gate > 0), among the routed experts' neurons.
    pub active_gate_fraction: f64,
    /// Truly active neurons per token: mean.
    pub active_neurons_mean: f64,
    /// Truly active neurons per token: median.
    pub active_neurons_p50: f64,
    /// Truly active neurons per token: 90th percentile.
    pub active_neurons_p90: f64,
    /// Truly active neurons per token: 99th percentile.
    pub active_neurons_p99: f64,
    /// A neuron's bundle in this layer; absent: as `parts.bundle` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<BundleLayout>,
}

/// A level's method of selecting neurons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LevelKind {
    /// Every neuron of the routed experts: no sparsity used.
    Dense,
    /// Every gate row is resident and computed; neurons with a positive gate are selected. Lossless.
    ExactGate,
    /// Every gate row is resident and computed; neurons whose activated gate reaches their threshold are selected.
    GateThreshold,
    /// Sign bits of the input are compared with sign bits of the gate row; no training.
    Sign,
    /// A trained predictor, `fc2 . relu(fc1 . x)`, is compared with a threshold for each neuron.
    LowRank,
}

impl LevelKind {
    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::ExactGate => "exact-gate",
            Self::GateThreshold => "gate-threshold",
            Self::Sign => "sign",
            Self::LowRank => "low-rank",
        }
    }

    /// Whether all gate rows are always in memory, and only up and down are cached.
    pub fn gates_resident(self) -> bool {
        matches!(self, Self::ExactGate | Self::GateThreshold)
    }
}

/// A whole-model quality level: an entry of the menu.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Unique name: the kind, or the kind, a hyphen and more, e.g. `low-rank-99`.
    pub name: String,
    /// The level's method of selecting neurons.
    pub kind: LevelKind,
    /// Whether the result is the dense one up to rounding.
    pub lossless: bool,
    /// Resident bytes that the level adds: predictors or gate rows, all layers.
    pub resident_bytes: u64,
    /// Resident bytes of the level that a token reads from memory.
    pub read_bytes_per_token: u64,
    /// Floating-point operations of the selection, per token.
    pub flops_per_token: u64,
    /// Perplexity on held-out text with all layers at this level.
    pub perplexity: f64,
    /// `perplexity / dense.perplexity - 1`; may be slightly negative.
    pub perplexity_change_fraction: f64,
    /// Upper bound of the change on one more text like the held-out ones, with 95 % confidence; `--max-loss` limits it. Absent: unknown,
    /// and `--max-loss` limits the measured change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity_change_fraction_upper: Option<f64>,
    /// The change on each held-out text; absent: not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub perplexity_change_fraction_of_texts: Vec<f64>,
    /// P(predicted | truly active).
    pub recall_fraction: f64,
    /// Share of the feed-forward output, by size, that the requested neurons add; mean over tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_fraction: Option<f64>,
    /// P(truly active | predicted).
    pub precision_fraction: f64,
    /// Share of a layer's missing neurons that the layer before predicts, if time and buffers allow; absent: not measured, and 0.8 is
    /// assumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub look_ahead_recall_fraction: Option<f64>,
    /// Share of the prefetched neurons that the next layer requests; absent: not measured, and 0.8 is assumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub look_ahead_precision_fraction: Option<f64>,
    /// `missing_p50_over_mean[share][cached]`, axes in `[reuse]`: missing neurons of the median token over the mean token's. All layers
    /// have equal caches and the last measured policy. Absent: not measured, and latency percentiles are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_p50_over_mean: Vec<Vec<f64>>,
    /// `missing_p90_over_mean[share][cached]`: missing neurons of the 90th percentile of tokens over the mean token's; absent: not
    /// measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_p90_over_mean: Vec<Vec<f64>>,
    /// `missing_p99_over_mean[share][cached]`: missing neurons of the 99th percentile of tokens over the mean token's; absent: not
    /// measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_p99_over_mean: Vec<Vec<f64>>,
    /// The level in each layer.
    pub layers: Vec<LevelLayer>,
}

/// Quality of a layer's prediction of the next layer's reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LookAhead {
    /// [`Level::look_ahead_recall_fraction`].
    pub recall_fraction: f64,
    /// [`Level::look_ahead_precision_fraction`].
    pub precision_fraction: f64,
}

/// A level in one layer, on held-out text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LevelLayer {
    /// alpha: share of the routed experts' neurons that are requested.
    pub active_predicted_fraction: f64,
    /// beta: P(gate > 0 | requested).
    pub beta_fraction: f64,
    /// Neurons requested per token: mean.
    pub predicted_neurons_mean: f64,
    /// Neurons requested per token: 99th percentile. A recency cache with fewer slots is never planned.
    pub predicted_neurons_p99: f64,
    /// Number of first ranks that are always computed, without the predictor.
    pub always_on_neurons: u32,
    /// `miss_fraction[share][cached]`, axes in `[reuse]`: misses with the policy `lru`.
    pub miss_fraction: Vec<Vec<f64>>,
    /// `clock_miss_fraction[share][cached]`: misses with the policy `clock`; absent: not measured, and not planned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clock_miss_fraction: Vec<Vec<f64>>,
    /// `frequency_miss_fraction[share][cached]`: misses with the policy `frequency`; absent: not measured, and not planned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frequency_miss_fraction: Vec<Vec<f64>>,
    /// Mean reads of a missing neuron if adjacent ones share a read; absent: not measured, and co-active neurons are assumed scattered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs_fraction: Vec<Vec<f64>>,
    /// Mean reads of a missing neuron if neurons with at most 3 ranks between them share a read; absent: not measured, and assumed
    /// scattered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs_over_gaps_fraction: Vec<Vec<f64>>,
    /// Mean reads of a missing neuron if neurons with at most `reuse.wide_gap_ranks` between them share a read; absent: extrapolated from
    /// narrow gaps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs_over_wide_gaps_fraction: Vec<Vec<f64>>,
}

/// Maximum ranks of a gap in `runs_over_gaps_fraction`.
pub const GAP_RANKS: u32 = 3;
/// Maximum ranks of a gap in `runs_over_wide_gaps_fraction` of new profiles: about as wide as any plan reads over.
pub const WIDE_GAP_RANKS: u32 = 16;
/// Maximum ranks of a gap in `runs_over_wide_gaps_fraction` of profiles that do not say.
const OLDER_WIDE_GAP_RANKS: u32 = 8;

/// The highest valid perplexity.
pub const PERPLEXITY_MAX: f64 = 1e12;

impl LevelLayer {
    /// The misses under a policy, `[share][cached]`; `None` where they were not measured.
    pub fn misses(&self, policy: Policy) -> Option<&[Vec<f64>]> {
        let surface = match policy {
            Policy::Lru => &self.miss_fraction,
            Policy::Clock => &self.clock_miss_fraction,
            Policy::Frequency => &self.frequency_miss_fraction,
        };
        Some(&**surface).filter(|surface| !surface.is_empty())
    }
}

impl Level {
    /// The loss that `--max-loss` limits: its upper bound, or the measured loss without one.
    pub fn loss_bound_fraction(&self) -> f64 {
        self.perplexity_change_fraction_upper.unwrap_or(self.perplexity_change_fraction)
    }

    /// Missing neurons of the tokens at [`QUANTILES`] over the mean token's, `[share][cached]` each; `None` if not measured.
    pub fn missing_over_mean(&self) -> Option<[&[Vec<f64>]; QUANTILES.len()]> {
        let of = [&self.missing_p50_over_mean, &self.missing_p90_over_mean, &self.missing_p99_over_mean];
        of.iter().all(|surface| !surface.is_empty()).then(|| of.map(|surface| &**surface))
    }

    /// The policies whose misses were measured, in every layer.
    pub fn policies(&self) -> impl Iterator<Item = Policy> {
        let measured = |policy: &Policy| self.layers.iter().all(|layer| layer.misses(*policy).is_some());
        Policy::ALL.into_iter().filter(measured)
    }
}

impl Model {
    /// Whether misses and losses are priors, as `profile --instant` writes them.
    pub fn has_priors(&self) -> bool {
        self.provenance.origin == INSTANT
    }

    /// The level of that name.
    pub fn level(&self, name: &str) -> Option<&Level> {
        self.levels.iter().find(|level| level.name == name)
    }

    /// Loss with keys and values in a format; `None` where it was not measured.
    pub fn kv_loss(&self, format: KvFormat) -> Option<&KvLoss> {
        self.kv_formats.iter().find(|loss| loss.format == format.name())
    }

    /// A neuron's bundle in a layer.
    pub fn bundle(&self, layer: usize) -> &BundleLayout {
        self.layers[layer].bundle.as_ref().unwrap_or(&self.parts.bundle)
    }

    /// Whether neurons take the same bytes in all layers.
    pub fn is_uniform(&self) -> bool {
        self.layers.iter().all(|layer| layer.bundle.is_none())
    }

    /// Bytes of the longest read of a slice, in any layer.
    pub fn read_bytes_max(&self) -> u64 {
        let own = self.layers.iter().filter_map(|layer| layer.bundle.as_ref());
        let longest = own.map(BundleLayout::read_bytes_max).max();
        longest.unwrap_or_else(|| self.parts.bundle.read_bytes_max())
    }

    /// Whether levels of a kind cache neurons.
    ///
    /// A level that requests every neuron has no use for recent ones. Experts are an exception: they are cached in slices.
    pub fn has_slots(&self, kind: LevelKind) -> bool {
        kind != LevelKind::Dense || self.architecture.experts > 1 && self.parts.bundle.slice_neurons > 1
    }

    /// The look-ahead of a kind of levels: the mean over measured ones. Where everything is requested, everything is known.
    pub fn look_ahead(&self, kind: LevelKind) -> LookAhead {
        if kind == LevelKind::Dense && self.architecture.experts == 1 {
            return LookAhead { recall_fraction: 1.0, precision_fraction: 1.0 };
        }
        let mean = |of: fn(&Level) -> Option<f64>, assumed| {
            let measured = || self.levels.iter().filter(|level| level.kind == kind).filter_map(of);
            match measured().count() {
                0 => assumed,
                count => measured().sum::<f64>() / count as f64,
            }
        };
        LookAhead {
            recall_fraction: mean(|level| level.look_ahead_recall_fraction, PREFETCHED_FRACTION),
            precision_fraction: mean(|level| level.look_ahead_precision_fraction, PREFETCHED_USED_FRACTION),
        }
    }
}

impl Contract for Model {
    const KIND: &'static str = "model.toml";
    const COMMAND: &'static str = "profile --model FILE";
    const MARK: &'static str = "architecture";
    const COMMENTS: &'static [(&'static str, &'static str)] = &[
        ("[provenance]", "How the figures came to be."),
        ("[architecture]", "Shapes."),
        ("[architecture.recurrent]", "Layers that keep a state in place of keys and values."),
        ("[parts]", "Bytes by part, as the container holds them."),
        ("[parts.bundle]", "A neuron on flash: [gate | up | down^T]."),
        ("[container]", "The flash container."),
        ("[dense]", "The source file computed dense, on the held-out text."),
        ("[[kv_formats]]", "What keys and values in blocks lose, beside the dense level."),
        ("[drafts]", "Tokens that the text's own past suggests, and those of them that the model chooses."),
        ("[reuse]", "Axes of the miss-rate surfaces: miss_fraction[share][cached]."),
        ("[[layers]]", "How each layer fires: P(gate > 0 and up > 0), P(gate > 0), neurons per token."),
        ("[[levels]]", "The menu of quality levels; every figure is from held-out text."),
    ];
    const HAS_CHECKSUM: bool = true;

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
