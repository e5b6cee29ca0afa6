//! What there is to choose beside the configurations: quality levels, policies, and how prompts pass; and what a rule decides.

use plans::memory::{Activations, Choices};
use plans::model::{Level, LevelKind};
use plans::plan::Feature;
use plans::{Model, Policy};

use crate::cost;
use crate::question::{Limits, Question};

/// Prompt tokens that may pass a layer together.
const CHUNKS: [u32; 7] = [512, 256, 128, 64, 32, 16, 8];
/// Neurons that a prompt's tokens may meet together: the more, the less often what they add up to goes through memory.
const PROMPT_CLUSTERS: [u32; 5] = [512, 256, 128, 64, CLUSTER as u32];
/// Neurons in memory that a thread takes together: the fewer, the shorter is the wait for the last and the sooner are
/// reads found done; with fewer than these, looking for them would be noticed.
const CLUSTER: u64 = 32;
/// Neurons in memory that a thread takes together where all are requested: their rows lie in order, and every cluster begins
/// where the processor has not yet looked ahead.
const CLUSTER_IN_ORDER: u64 = 128;

/// How prompts pass the layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// Cores that compute.
    pub cores: Vec<u32>,
    /// Tokens that pass a layer together.
    pub chunk: u32,
    /// Neurons that the tokens meet together.
    pub cluster: u32,
    /// Bytes of the tokens' rows, over the slots.
    pub rows_bytes: i64,
}

/// Neurons in memory that a thread takes together when decoding.
pub fn cluster(level: &Level) -> u64 {
    if level.kind == LevelKind::Dense { CLUSTER_IN_ORDER } else { CLUSTER }
}

/// The choices of prompts: every chunk by every number of cores, fastest first, that fewer do not beat; the least
/// memory first.
pub fn prompts(question: &Question<'_>) -> Vec<Prompt> {
    let Question { model, limits, .. } = question;
    let flops = |n: usize| cost::rates(question, &limits.cores[..n]).prompt_flops.0;
    let mut numbers = vec![1];
    for n in 2..=limits.cores.len() {
        if flops(n) > flops(numbers[numbers.len() - 1]) {
            numbers.push(n);
        }
    }
    // one core takes the least memory, and the fastest set is what prompts want; others are between the two
    numbers.dedup_by_key(|n| *n);
    let fastest = numbers[numbers.len() - 1];
    let numbers: Vec<usize> = if fastest == 1 { vec![1] } else { vec![1, fastest] };
    let chunks = || CHUNKS.into_iter().rev().filter(|&chunk| chunk == CHUNK_LEAST || chunk <= limits.context);
    let prompt = |chunk: u32| {
        let (chunk, cluster) = (chunk.min(limits.context), CLUSTER as u32);
        let rows_bytes = prompt_rows_bytes(model, limits, chunk, cluster);
        numbers.iter().map(move |&n| (n, chunk, cluster, rows_bytes)).collect::<Vec<_>>()
    };
    let built = |(n, chunk, cluster, rows_bytes)| Prompt {
        cores: limits.cores[..n].to_vec(),
        chunk,
        cluster,
        rows_bytes,
    };
    chunks().flat_map(prompt).map(built).collect()
}

/// Bytes of a prompt's rows.
fn prompt_rows_bytes(model: &Model, limits: &Limits, chunk: u32, cluster: u32) -> i64 {
    let none = vec![0; model.architecture.layers as usize];
    let mut c = nothing(limits, &none);
    (c.chunk_tokens, c.cluster_neurons) = (u64::from(chunk), u64::from(cluster));
    c.slice_neurons = model.parts.bundle.slice_neurons;
    Activations::new(&model.architecture, &c).prompt.bytes() as i64
}

/// A prompt with the largest cluster whose rows take at most so many bytes: nothing that is priced depends on the cluster.
pub fn with_largest_cluster(model: &Model, limits: &Limits, prompt: &Prompt, rows_most: i64) -> Prompt {
    let sized = |&cluster: &u32| (cluster, prompt_rows_bytes(model, limits, prompt.chunk, cluster));
    let found = PROMPT_CLUSTERS.iter().map(sized).find(|&(_, bytes)| bytes <= rows_most);
    let (cluster, rows_bytes) = found.unwrap_or((prompt.cluster, prompt.rows_bytes));
    Prompt { cluster, rows_bytes, ..prompt.clone() }
}

/// Whether rows of the token embedding may be read when their token comes: where it is not the head, too, and such a read
/// was measured.
pub fn embedding_rows(question: &Question<'_>) -> Vec<bool> {
    let readable = question.model.parts.head_bytes > 0 && cost::embedding_row_seconds(question).is_some();
    if readable { vec![false, true] } else { vec![false] }
}

/// The largest chunk of a context.
pub fn chunk_most(context: u32) -> u32 {
    CHUNKS.into_iter().find(|&chunk| chunk <= context).unwrap_or(context)
}

/// The smallest chunk.
const CHUNK_LEAST: u32 = 8;

/// Sizes of a process that caches nothing, computes nothing and reads nothing yet.
pub fn nothing<'a>(limits: &Limits, none: &'a [u32]) -> Choices<'a> {
    Choices {
        kind: LevelKind::Dense,
        level_resident_bytes: 0,
        hot_neurons: none,
        cold_slots: none,
        policy: Policy::Lru,
        slice_neurons: 1,
        context_tokens: u64::from(limits.context),
        sequences: u64::from(limits.sequences),
        kv: limits.kv,
        draft_tokens: u64::from(limits.draft_tokens),
        compute_threads: 0,
        backend: plans::Backend::Pread,
        depth: 0,
        cluster_neurons: 1,
        chunk_tokens: 1,
        buffers: 0,
        buffer_bytes: 0,
        embedding_rows: false,
        unit_bytes: limits.gpu.map_or(0, |gpu| gpu.process_bytes),
        reserve_bytes: limits.reserve_bytes,
    }
}

/// Whether `--max-loss` allows a level: by the bound of its loss, and where that is 0 nothing that loses anything.
pub fn loses_little(level: &Level, loss_max: f64) -> bool {
    level.lossless || loss_max > 0.0 && level.loss_bound_fraction() <= loss_max
}

/// The levels that the limits allow, the least loss first.
pub fn levels<'a>(model: &'a Model, limits: &Limits) -> Vec<&'a Level> {
    let fits = |level: &&Level| {
        let named = limits.with(Feature::Predictor) || level.kind == LevelKind::ExactGate;
        named
            && loses_little(level, limits.loss_max)
            && limits.level.as_ref().is_none_or(|name| *name == level.name)
    };
    let mut levels: Vec<&Level> = model.levels.iter().filter(fits).collect();
    levels.sort_by(|a, b| {
        let loss = |level: &Level| if level.lossless { 0.0 } else { level.loss_bound_fraction().max(0.0) };
        loss(a).total_cmp(&loss(b)).then(a.name.cmp(&b.name))
    });
    levels
}

/// The policies that a level was measured with, as far as the limits allow. One that nowhere misses less than the first of
/// them is left out; so are all others where nothing comes and goes.
pub fn policies(model: &Model, limits: &Limits, level: &Level) -> Vec<Policy> {
    let nowhere_less = |policy: Policy| {
        level.layers.iter().all(|layer| {
            let cells = |policy| layer.misses(policy).into_iter().flatten().flatten();
            cells(policy).zip(cells(Policy::Lru)).all(|(miss, lru)| miss >= lru)
        })
    };
    let choice = limits.with(Feature::Policy) && limits.with(Feature::Cache) && model.has_slots(level.kind);
    level.policies().filter(|&policy| policy == Policy::Lru || choice && !nowhere_less(policy)).collect()
}
