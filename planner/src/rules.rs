//! What is decided by rule, before the solver: prefill's cores and chunk, and how much buffers may take.

use plans::Policy;
use plans::memory::{self, Activations, Choices};
use plans::model::{Level, LevelKind};
use plans::plan::Feature;

use crate::cost;
use crate::request::{Inputs, Limits};

/// Prompt tokens that may pass a layer together.
const CHUNKS: [u32; 7] = [512, 256, 128, 64, 32, 16, 8];
/// Neurons that a prompt's tokens may meet together: the more, the less often what they add up to goes through memory.
const PROMPT_CLUSTERS: [u32; 5] = [512, 256, 128, 64, CLUSTER as u32];
/// The share of the memory left for neurons that each convenience may take.
const CONVENIENCE: u64 = 32;
/// Neurons in memory that a thread takes together: the fewer, the shorter is the wait for the last and the sooner are
/// reads found done; with fewer than these, looking for them would be noticed.
const CLUSTER: u64 = 32;
/// The same where all are requested: their rows lie in order, and every cluster begins where the processor has not yet
/// looked ahead.
const CLUSTER_IN_ORDER: u64 = 128;
/// Bytes of a page.
pub const PAGE: i64 = plans::PAGE_BYTES as i64;
/// Page roundings of hot and cold region and tables, taken off the limit beforehand.
const ROUNDING_PAGES: i64 = 4;

/// How much memory the conveniences may take: buffers beyond the smallest, and prefill's chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// A 32nd each of what is left for neurons, the chunk's rows lying over slots: it takes a plan that has so many.
    OverSlots,
    /// The same, with room for the chunk's rows of its own.
    Generous,
    /// As little as works: where memory is what is to be saved.
    Frugal,
}

/// What is decided by rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Prefill's cores.
    pub prefill_cores: Vec<u32>,
    /// Prompt tokens that pass a layer together.
    pub chunk: u32,
    /// Neurons that they meet together.
    pub cluster: u32,
    /// The most that buffers may take beyond the smallest.
    pub buffers_most: u64,
    /// Whether a chunk's rows lie over slots: those need no less room.
    pub prompt_over_slots: bool,
    /// Whether rows of the token embedding are read when their token comes.
    pub embedding_rows: bool,
}

/// Neurons in memory that a thread takes together when decoding.
pub fn cluster(level: &Level) -> u64 {
    if level.kind == LevelKind::Dense { CLUSTER_IN_ORDER } else { CLUSTER }
}

/// Prefill's cores, chunk and cluster.
///
/// Cores: those of the allowed ones, fastest first, that compute fastest together. Chunk, then cluster: the largest
/// whose activations leave the room.
pub fn rules(inputs: &Inputs, limits: &Limits, room: Room) -> Rules {
    let flops = |n: usize| cost::rates(inputs, limits, &limits.cores[..n]).flops;
    let n = (1..=limits.cores.len()).fold(1, |best, n| if flops(n) > flops(best) { n } else { best });
    let a = &inputs.model.architecture;
    let none = vec![0; a.layers as usize];
    let bytes = |chunk: u32, cluster: u32| {
        let mut c = nothing(limits, &none);
        (c.chunk_tokens, c.cluster_neurons) = (u64::from(chunk), u64::from(cluster));
        Activations::new(a, &c).prompt.bytes()
    };
    let most = match room {
        Room::OverSlots | Room::Generous => {
            let smallest =
                memory::regions(&inputs.device, &inputs.model, &nothing(limits, &none), 0).prefill_sum();
            limits.memory_bytes.saturating_sub(smallest) / CONVENIENCE
        }
        Room::Frugal => 0,
    };
    let least = PROMPT_CLUSTERS[PROMPT_CLUSTERS.len() - 1];
    let fits = |chunk: &u32| *chunk <= limits.context && bytes(*chunk, least) <= most;
    let chunk = CHUNKS.into_iter().find(fits).unwrap_or(CHUNK_LEAST).min(limits.context);
    let cluster = PROMPT_CLUSTERS.into_iter().find(|&cluster| bytes(chunk, cluster) <= most).unwrap_or(least);
    Rules {
        prefill_cores: limits.cores[..n].to_vec(),
        chunk,
        cluster,
        buffers_most: most,
        prompt_over_slots: room == Room::OverSlots,
        embedding_rows: embedding_rows(inputs, limits),
    }
}

/// Rows of an embedding that is not the head, too, are read where that is not noticed beside what every token needs.
fn embedding_rows(inputs: &Inputs, limits: &Limits) -> bool {
    let model = &inputs.model;
    let r = cost::rates(inputs, limits, &limits.cores);
    let layers = f64::from(model.architecture.layers);
    let always = layers * cost::attention(model, &r).seconds() + cost::rest(model, &r).seconds();
    let read = cost::embedding_row_seconds(inputs);
    model.parts.head_bytes > 0 && read.is_some_and(|seconds| seconds < UNNOTICED * always)
}

/// The part of a token that a convenience may cost.
const UNNOTICED: f64 = 0.01;

/// The chunk where there is no room for a larger one.
const CHUNK_LEAST: u32 = 8;

/// Sizes of a process that caches nothing, computes nothing and reads nothing yet.
pub fn nothing<'a>(limits: &Limits, none: &'a [u32]) -> Choices<'a> {
    Choices {
        kind: LevelKind::Dense,
        level_resident_bytes: 0,
        hot_neurons: none,
        cold_slots: none,
        policy: Policy::Lru,
        context_tokens: u64::from(limits.context),
        kv_value_bytes: limits.kv_value_bytes(),
        compute_threads: 0,
        backend: plans::Backend::Pread,
        depth: 0,
        cluster_neurons: 1,
        chunk_tokens: 1,
        buffers: 0,
        buffer_bytes: 0,
        embedding_rows: false,
    }
}

/// The levels that the limits allow, the least loss first.
pub fn levels<'a>(inputs: &'a Inputs, limits: &Limits) -> Vec<&'a Level> {
    let fits = |level: &&Level| {
        let small = limits.loss_max > 0.0 && level.perplexity_change_fraction <= limits.loss_max;
        let named = limits.with(Feature::Predictor) || level.kind == LevelKind::ExactGate;
        named && (level.lossless || small) && limits.level.as_ref().is_none_or(|name| *name == level.name)
    };
    let mut levels: Vec<&Level> = inputs.model.levels.iter().filter(fits).collect();
    levels.sort_by(|a, b| {
        let loss =
            |level: &Level| if level.lossless { 0.0 } else { level.perplexity_change_fraction.max(0.0) };
        loss(a).total_cmp(&loss(b)).then(a.name.cmp(&b.name))
    });
    levels
}

/// The policies that a level was measured with, as far as the limits allow. One that nowhere misses less than the first of
/// them is left out; so are all others where nothing comes and goes.
pub fn policies(limits: &Limits, level: &Level) -> Vec<Policy> {
    let nowhere_less = |policy: Policy| {
        level.layers.iter().all(|layer| {
            let cells = |policy| layer.misses(policy).into_iter().flatten().flatten();
            cells(policy).zip(cells(Policy::Lru)).all(|(miss, lru)| miss >= lru)
        })
    };
    let choice =
        limits.with(Feature::Policy) && limits.with(Feature::Cache) && level.kind != LevelKind::Dense;
    level.policies().filter(|&policy| policy == Policy::Lru || choice && !nowhere_less(policy)).collect()
}

/// Pages that the regions may add up to so that they and their page tables stay within `limit`.
pub fn regions_within(limit: u64) -> i64 {
    // `page_tables_bytes` is at most a 500th and five pages.
    ((limit.min(1 << 60) as i64 / PAGE - 5 - ROUNDING_PAGES) * 500 / 501).max(0)
}

/// The limit to request so that a plan of so many bytes is found within it.
pub fn limit_for(bytes: u64) -> u64 {
    bytes + (ROUNDING_PAGES as u64 + 2) * plans::PAGE_BYTES
}
