//! Equations 1, 2 and 6: the price of a decoded token, put together from its stages and its reads.

use plans::memory::embedding_buffer_bytes;
use plans::model::Level;
use plans::plan::{mean_position, measured_run};
use plans::terms::Work;
use plans::{Backend, PAGE_BYTES, Policy};

use super::misses;
use super::rates::rates;
use super::read_curves::ReadCurves;
use super::reads::{ReadChoice, ReadPrice};
use super::stages::{
    attention, context_seconds, down, gate_up, insert_seconds, look_ahead, predictor, requested, rest, stages,
};
use crate::question::Question;

/// The decisions that a price of decoding depends on, beside the machine and the model.
#[derive(Debug, Clone, Copy)]
pub struct Decision<'a> {
    /// Quality level.
    pub level: &'a Level,
    /// Compute cores.
    pub cores: &'a [u32],
    /// Whether the reading threads must share the compute cores.
    pub shared: bool,
    /// Neurons in memory that a thread takes together.
    pub cluster: u64,
    /// How flash is read.
    pub read: ReadChoice,
    /// Whether rows of the token embedding are read.
    pub embedding_rows: bool,
    /// Pinned neurons per layer.
    pub hot: &'a [u32],
    /// Slots per layer.
    pub cold: &'a [u32],
    /// Cache policy: who leaves a slot.
    pub policy: Policy,
}

/// The terms of a decoded token at position 0, warm.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DecodePrice {
    /// Attention, all layers.
    pub attention: Work,
    /// Routers and predictors, all layers.
    pub predictor: Work,
    /// Predictions for the next layer, all layers that make them.
    pub look_ahead: Work,
    /// Gate and up, all layers.
    pub gate_up: Work,
    /// Down, all layers.
    pub down: Work,
    /// Copies into the cache, all layers.
    pub insert: Work,
    /// Seconds of reading flash, were it alone.
    pub io: f64,
    /// Reads of a token, and the prefetched ones among them.
    pub reads: (f64, f64),
    /// Seconds of feed-forward, reads and copies of all layers, those that overlap counted once.
    pub overlapped: f64,
    /// Norms, head and sampling.
    pub rest: Work,
    /// A token at position 0.
    pub constant: f64,
    /// Seconds that each token of context adds.
    pub per_context_token: f64,
    /// Reading a neuron into every slot, once.
    pub cold_start: f64,
    /// The part of it that the measured run pays.
    pub filling: f64,
    /// Bytes read from flash.
    pub bytes_read: f64,
    /// Neurons requested.
    pub requested: f64,
    /// Neurons requested that are not in memory.
    pub missing: f64,
}

impl DecodePrice {
    /// Mean seconds of a token over the measured run: the slope at its mean position, the cold start spread over it.
    pub fn mean_seconds(&self, context: u32) -> f64 {
        let (_, generated) = measured_run(context);
        self.constant + self.per_context_token * mean_position(context) + self.filling / f64::from(generated)
    }
}

/// Reading a token's rows of embeddings: of the token embedding if its `rows` are read, and of the per-layer embedding.
pub fn embedding_seconds(question: &Question<'_>, rows: bool) -> f64 {
    let of_tokens = if rows { embedding_row_seconds(question).unwrap_or(0.0) } else { 0.0 };
    let per_layer = question.model.architecture.per_layer.map_or(0.0, |per_layer| {
        let of_row = row_seconds(question, per_layer.row_bytes).unwrap_or_else(|| {
            let curves = ReadCurves::of_one(&question.device.storage.reads[0]);
            1.0 / curves.reads_per_second(embedding_buffer_bytes(per_layer.row_bytes) as f64, 1.0)
        });
        f64::from(per_layer.reads) * of_row
    });
    of_tokens + per_layer
}

/// Reads of a token's row of the per-layer embedding, and their bytes: a row begins anywhere in a page.
fn per_layer_reads(question: &Question<'_>) -> (f64, f64) {
    let per_layer = question.model.architecture.per_layer;
    per_layer.map_or((0.0, 0.0), |per_layer| {
        let reads = f64::from(per_layer.reads);
        (reads, reads * (per_layer.row_bytes + PAGE_BYTES) as f64)
    })
}

/// Reading a row of the token embedding, by itself; `None` where no such read was measured.
pub fn embedding_row_seconds(question: &Question<'_>) -> Option<f64> {
    let model = question.model;
    row_seconds(question, model.parts.embedding_bytes / u64::from(model.architecture.vocabulary).max(1))
}

/// Reading so many bytes anywhere in the file, one read at a time; `None` where no such read was measured.
fn row_seconds(question: &Question<'_>, row_bytes: u64) -> Option<f64> {
    let Question { device, model, .. } = question;
    let block = embedding_buffer_bytes(row_bytes) as f64;
    let direct = device.storage.direct;
    let curves =
        ReadCurves::new(question.flash(), Backend::Pread, direct, "random", 1, model.container.bytes)?;
    Some(1.0 / curves.reads_per_second(block, 1.0))
}

/// Equation 6 with the terms that it leaves out: the price of a decoded token.
pub fn decode(question: &Question<'_>, d: &Decision<'_>) -> DecodePrice {
    let Question { model, limits, .. } = question;
    let r = rates(question, d.cores);
    let reads = ReadPrice::new(question, d.level.kind, d.read);
    let interference = reads.interference(d.shared, r.threads);
    let mut price = DecodePrice { rest: rest(model, &r), ..DecodePrice::default() };
    price.rest.read_seconds = embedding_seconds(question, d.embedding_rows);
    (price.reads.0, price.bytes_read) = per_layer_reads(question);
    let mut serial = price.rest.seconds();
    let (_, generated) = measured_run(limits.context);
    for layer in 0..d.level.layers.len() {
        let requested = requested(model, d.level, layer);
        let stages = stages(model, d.level, layer, d.cluster, &r).with(d.read.look_ahead);
        let cached = (d.hot[layer], d.cold[layer]);
        let (missing, filling) =
            misses::missing_and_filling(model, d.level, layer, d.policy, requested.0, cached);
        let inserted = if cached.1 > 0 { missing.neurons * reads.whole_fraction(requested.1) } else { 0.0 };
        let insert = inserted * insert_seconds(model, d.level, &r);
        let of_layer = reads.of(missing, requested.1);
        let queue = reads.queue(&of_layer, layer > 0, &stages);
        let selection = predictor(model, d.level, &r);
        price.attention.add(&attention(model, &r));
        price.predictor.add(&selection);
        if stages.look_ahead > 0.0 {
            price.look_ahead.add(&look_ahead(model, d.level, &r));
        }
        price.gate_up.add(&gate_up(model, d.level, requested, d.cluster, &r).0);
        price.down.add(&down(model, d.level, requested, &r));
        price.insert.stream_seconds += insert;
        price.io += queue.urgent_seconds + queue.ahead_seconds;
        price.reads = (price.reads.0 + queue.urgent + queue.ahead, price.reads.1 + queue.ahead);
        price.overlapped +=
            reads.supply().layer_seconds(&stages, insert, &of_layer, layer > 0, &interference);
        serial += stages.before;
        price.bytes_read += queue.bytes;
        price.requested += requested.0;
        price.missing += missing.neurons;
        price.cold_start += f64::from(cached.1) * reads.fill_seconds();
        price.filling += filling.at(f64::from(generated)) * reads.fill_seconds();
    }
    price.constant = serial + price.overlapped;
    price.per_context_token = context_seconds(model, limits.kv, &r);
    price
}
