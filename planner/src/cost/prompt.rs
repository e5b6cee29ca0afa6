//! The price of a prompt: many tokens at a time, dense.

use std::sync::Arc;

use plans::engine::{PROMPT_ACTIVE_ONE_IN, PROMPT_TOKENS, REGISTER_ROWS};
use plans::layout::Part;
use plans::model::{Level, LevelKind, Model};
use plans::overlap::{PromptReads, prompt_compute_seconds, prompt_layer_seconds};
use plans::plan::Feature;
use plans::terms;

use super::gpu;
use super::hardware::Rates;
use super::misses::Filling;
use super::rates::{ATTENTION_MATRICES, rates};
use super::reads::ReadPrice;
use super::stages::{compute_seconds, memory_seconds, recurrence, rest, rows_touched, weight_bytes};
use super::token::embedding_seconds;
use super::units::{Products, Shared};
use crate::question::Question;

/// FLOP/s of a prompt's feed-forward block of which a share `counts` of the values is not zero: in time, what lies on a line
/// through the two shares that were measured.
fn prompt_flops(r: &Rates, counts: f64) -> f64 {
    const MEASURED: f64 = 1.0 / PROMPT_ACTIVE_ONE_IN as f64;
    let (all, few) = (1.0 / r.prompt_flops.0, 1.0 / r.prompt_flops.1);
    1.0 / (few + (all - few) * (counts - MEASURED) / (1.0 - MEASURED)).max(few / 2.0)
}

/// Seconds that a layer of a prompt is computed: for each token of a chunk, and for the chunk beside them. What was measured
/// of many tokens together has a chunk's own part in it. An expert meets the rows that are routed to it, in registers of
/// [`REGISTER_ROWS`], of which the last is half empty on average.
pub fn prompt_compute(model: &Model, layer: usize, r: &Rates) -> (f64, f64) {
    const HALF_A_REGISTER: f64 = REGISTER_ROWS as f64 / 2.0;
    let (a, activity) = (&model.architecture, &model.layers[layer]);
    let (gate, truly) = (activity.active_gate_fraction, activity.active_true_fraction);
    let (_, _, down) = rows_touched(model, Part::Whole, gate, truly);
    let neuron = f64::from(a.matrices()) * compute_seconds(f64::from(a.width), prompt_flops(r, down));
    let layer = a.neurons() as f64 * neuron;
    let (alone, attention) = (beside_chunk(r), prompt_attention(model, r));
    let met = f64::from(a.experts_used) / f64::from(a.experts);
    let half_empty = if a.experts > 1 { HALF_A_REGISTER * layer } else { 0.0 };
    ((attention + met * layer) * alone, (r.chunk_tokens * (attention + layer) + half_empty) * alone)
}

/// Share of what many tokens together were measured to take that is the tokens' own.
pub(super) fn beside_chunk(r: &Rates) -> f64 {
    const MEASURED_TOKENS: f64 = PROMPT_TOKENS[0] as f64;
    MEASURED_TOKENS / (MEASURED_TOKENS + r.chunk_tokens)
}

/// Seconds that a layer's attention is computed for a token of many together, with its part of what a chunk takes.
fn prompt_attention(model: &Model, r: &Rates) -> f64 {
    product_seconds(model, r) + recurrence(model, r)
}

/// Seconds of a token's products with a layer's attention, of many tokens together.
pub(super) fn product_seconds(model: &Model, r: &Rates) -> f64 {
    let parameters = model.parts.attention_layer_bytes as f64 / weight_bytes(model);
    compute_seconds(parameters, r.prompt_flops.0)
}

/// Seconds that a layer of a prompt moves through memory, once a chunk.
pub fn prompt_memory(model: &Model, r: &Rates) -> f64 {
    let (a, bundle) = (&model.architecture, model.parts.bundle.bundle_bytes() as f64);
    let attention = model.parts.attention_layer_bytes as f64;
    r.dense.seconds(attention + a.neurons() as f64 * bundle, f64::from(a.width))
}

/// Seconds that the CPU computes the layers of a prompt, reads aside, once another unit has taken its share.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptLayers {
    /// Per layer: seconds for each token of a chunk, and for the chunk beside them.
    pub compute: Vec<(f64, f64)>,
    /// Seconds that a layer moves through memory, once a chunk.
    pub memory: f64,
    /// Share of the computing that is attention.
    pub attention_fraction: f64,
    /// Share of the products that a unit beside the CPU takes.
    pub shared: Shared,
    /// Share of a layer's experts that 1, 2, 4, ... tokens of a chunk visit: see [`plans::terms::visited`].
    pub visited: Arc<[f64]>,
}

impl PromptLayers {
    /// On these cores, with chunks of so many tokens.
    pub fn new(question: &Question<'_>, r: &Rates, chunk: u32) -> Self {
        let Question { device, model, limits, .. } = question;
        let mut compute: Vec<(f64, f64)> =
            (0..model.layers.len()).map(|layer| prompt_compute(model, layer, r)).collect();
        let all: f64 = compute.iter().map(|(token, _)| token).sum();
        let attention = compute.len() as f64 * prompt_attention(model, r) * beside_chunk(r);
        let attention_fraction = if all > 0.0 { (attention / all).min(1.0) } else { 0.0 };
        let (mut memory, mut shared) = (prompt_memory(model, r), Shared::CPU);
        if limits.with(Feature::Units) {
            // the layer that is soonest done has the least to share
            let seconds = |&(token, once): &(f64, f64)| prompt_compute_seconds(chunk, token, once, memory);
            let least = compute.iter().map(seconds).fold(f64::INFINITY, f64::min);
            let products = prompt_products(model, chunk, least);
            shared = Shared::soonest(device, &products);
            memory = shared.memory_seconds(memory, products.bytes);
            for (token, once) in &mut compute {
                (*token, *once) = (shared.compute_seconds(*token), shared.compute_seconds(*once));
            }
        }
        if let Some(gpu) = limits.gpu {
            let [before, after] = [gpu::attention(model, r), gpu.attention(device, model, r, chunk)];
            for (token, once) in &mut compute {
                (*token, *once) = (*token + after[0] - before[0], *once + after[1] - before[1]);
            }
        }
        Self { compute, memory, attention_fraction, shared, visited: Arc::clone(&question.visited) }
    }
}

/// A chunk's products with a layer.
fn prompt_products(model: &Model, chunk: u32, seconds: f64) -> Products<'_> {
    let a = &model.architecture;
    let (width, attention) = (f64::from(a.width), model.parts.attention_layer_bytes as f64);
    let bytes = attention + a.neurons() as f64 * model.parts.bundle.bundle_bytes() as f64;
    let of_network = f64::from(a.matrices());
    let parameters = attention / weight_bytes(model) + of_network * a.neurons_routed() as f64 * width;
    let matrices = ATTENTION_MATRICES + of_network * f64::from(a.experts);
    let met = ATTENTION_MATRICES + of_network * f64::from(a.experts_used);
    Products {
        format: &a.weight_format,
        tokens: f64::from(chunk),
        flops: 2.0 * f64::from(chunk) * parameters,
        bytes,
        matrices,
        vector_bytes: 2.0 * met * 4.0 * width * f64::from(chunk),
        // one layer is given to it while it computes with another
        held_bytes: 2.0 * bytes,
        copied: true,
        seconds,
    }
}

/// Share of a layer's experts that 1, 2, 4, ... tokens visit, on average over the layers; none where there are no experts, all of which are
/// visited.
///
/// *Reconstructed*: where experts come and go in slices, tokens visit as many as they would fill of a cache with room for all
/// ([`Filling`]). Otherwise they are taken to choose evenly and independently, which visits most.
pub fn visited(model: &Model) -> Vec<f64> {
    let (a, bundle) = (&model.architecture, &model.parts.bundle);
    if a.experts == 1 {
        return Vec::new();
    }
    let (neurons, requested) = (a.neurons(), a.neurons_routed() as f64);
    let dense = model.levels.iter().find(|level| level.kind == LevelKind::Dense && bundle.slice_neurons > 1);
    let used = f64::from(a.experts_used) / f64::from(a.experts);
    let of_layer =
        |level: &Level, layer: usize| Filling::new(model, level, layer, requested, (0, neurons as u32), 0.0);
    let layers: Vec<Filling> = dense
        .map(|level| (0..level.layers.len()).map(|layer| of_layer(level, layer)).collect())
        .unwrap_or_default();
    let share = |tokens: f64| match layers.len() {
        0 => 1.0 - (1.0 - used).powf(tokens),
        count => {
            let all: f64 = layers.iter().map(|layer| layer.at(tokens)).sum();
            all / (count as f64 * neurons as f64)
        }
    };
    let lengths = (0..terms::VISITED).map(|log| (1u64 << log) as f64);
    lengths.map(|tokens| plans::file::significant(share(tokens).min(1.0))).collect()
}

/// Prefill of a prompt of so many tokens, in seconds: `sum over l of t_att(l) + max(t_ffn(l), t_io(l))`, each chunk.
///
/// *Stated*: `t_io(1) + sum over l of max(t_comp(l), t_io(l+1))`. Differs: the engine reads a layer's neurons while it computes those
/// that have come, not the next layer's, since a chunk's buffers are few; during attention nothing is read. Dense: pinned neurons come from memory, all others are read in order in whole buffers.
#[derive(Debug, Clone)]
pub struct PromptPrice {
    reads: ReadPrice,
    /// Of a layer of which nothing is pinned, once a chunk that visits all experts.
    of_layer: PromptReads,
    neurons: f64,
    stride_bytes: f64,
    chunks: Vec<Chunks>,
    /// Share of these that is attention.
    attention_fraction: f64,
    /// Seconds that no pinned neuron changes: the head, rows of the embedding.
    pub once: f64,
}

/// Chunks of as many tokens.
#[derive(Debug, Clone, PartialEq)]
struct Chunks {
    count: f64,
    /// Per layer the seconds that one's tokens are computed.
    compute: Vec<f64>,
    /// Share of a layer's experts that they visit.
    visited: f64,
}

/// Comparing what one of a prompt's reads brings with its checksum.
pub fn prompt_check_seconds(reads: &ReadPrice, r: &Rates) -> f64 {
    memory_seconds(reads.ordered_bytes(), r.check)
}

/// The choices that the price of a prompt depends on, besides which neurons are pinned.
#[derive(Debug, Clone, Copy)]
pub struct PromptChoice<'a> {
    /// Prices of the reads.
    pub reads: &'a ReadPrice,
    /// Whether rows of the token embedding are read.
    pub embedding_rows: bool,
    /// Cores that compute.
    pub cores: &'a [u32],
    /// Tokens that pass a layer together.
    pub chunk: u32,
}

impl PromptPrice {
    /// Of a prompt of `tokens`.
    pub fn new(question: &Question<'_>, c: &PromptChoice<'_>, tokens: u32) -> Self {
        let model = question.model;
        let a = &model.architecture;
        let r = rates(question, c.cores);
        let reads = c.reads.clone();
        let reads_per_second = reads.in_order_per_second();
        let interference = reads.interference(false, r.threads);
        let taken_fraction =
            interference.taken(1.0, reads_per_second) + reads_per_second * prompt_check_seconds(&reads, &r);
        let PromptLayers { compute: of_layers, memory, attention_fraction, visited, .. } =
            PromptLayers::new(question, &r, c.chunk);
        let tokens = tokens.max(1);
        let chunks: Vec<Chunks> = [(tokens / c.chunk, c.chunk), (1, tokens % c.chunk)]
            .into_iter()
            .filter(|&(count, tokens)| count > 0 && tokens > 0)
            .map(|(count, tokens)| {
                let visited = terms::visited(&visited, tokens);
                let compute = |&(token, chunk): &(f64, f64)| {
                    prompt_compute_seconds(tokens, token, visited * chunk, visited * memory)
                };
                Chunks { count: f64::from(count), compute: of_layers.iter().map(compute).collect(), visited }
            })
            .collect();
        let embedding = f64::from(tokens) * embedding_seconds(question, c.embedding_rows);
        let once = embedding + rest(model, &r).seconds();
        let stride_bytes = model.parts.bundle.stride_bytes as f64;
        let neurons = a.neurons() as f64;
        let all_seconds = reads.in_order(neurons * stride_bytes);
        let of_layer = PromptReads { seconds: all_seconds, all_seconds, taken_fraction };
        Self { reads, of_layer, neurons, stride_bytes, chunks, attention_fraction, once }
    }

    /// Seconds of reading a layer of whose neurons so many are pinned, once a chunk that visits all experts.
    pub fn read_seconds(&self, hot: u32) -> f64 {
        self.reads.in_order((self.neurons - f64::from(hot)) * self.stride_bytes)
    }

    /// Seconds that a layer adds of whose neurons so many are pinned: the others are read while those that have come are computed.
    pub fn layer(&self, layer: usize, hot: u32) -> f64 {
        self.layer_with(layer, self.read_seconds(hot))
    }

    /// [`Self::layer`] where [`Self::read_seconds`] is known.
    pub fn layer_with(&self, layer: usize, io: f64) -> f64 {
        let chunk = |chunks: &Chunks| {
            let reads = PromptReads {
                seconds: chunks.visited * io,
                all_seconds: chunks.visited * self.of_layer.all_seconds,
                ..self.of_layer
            };
            chunks.count * prompt_layer_seconds(chunks.compute[layer], self.attention_fraction, &reads)
        };
        self.chunks.iter().map(chunk).sum()
    }

    /// Seconds with so many pinned neurons in each layer.
    pub fn seconds(&self, hot: &[u32]) -> f64 {
        self.once + hot.iter().enumerate().map(|(layer, &hot)| self.layer(layer, hot)).sum::<f64>()
    }
}
