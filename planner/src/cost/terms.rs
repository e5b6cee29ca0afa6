//! The prices of a plan in parts, by what each part depends on: `run` puts them together again at the rates of its hour.
//!
//! Every part comes from the function of [`crate::cost`] that prices it; how they are put together stands in
//! [`plans::overlap`], once for both.

use plans::file::significant;
use plans::model::{Level, LookAhead, Model};
use plans::overlap::LayerReads;
use plans::plan::MemoryPlan;
use plans::terms::{LayerTerms, PromptTerms, Rates, ReadingTerms, StartTerms, Terms, Work};
use plans::{Backend, PAGE_BYTES};

use crate::cost::hardware;
use crate::cost::misses::{self, Missing};
use crate::cost::read_curves::ReadCurves;
use crate::cost::reads::ReadPrice;
use crate::cost::{self, PromptChoice, PromptLayers, PromptPrice};
use crate::decided::Decided;
use crate::question::Question;
use plans::plan::measured_run;

/// The parts of a plan's times, with six significant digits.
pub fn terms(question: &Question<'_>, level: &Level, d: &Decided, memory: &MemoryPlan) -> Terms {
    let Question { model, limits, .. } = question;
    let r = cost::rates(question, &d.cores);
    let price = ReadPrice::new(question, level.kind, d.read);
    let interference = price.interference(d.shared, r.threads);
    let LookAhead { recall_fraction, precision_fraction } = price.look_ahead();
    let look_ahead = match d.read.look_ahead {
        0 => Work::default(),
        _ => cost::look_ahead(model, level, &r),
    };
    let read_seconds = cost::embedding_seconds(question, d.embedding_rows);
    let rest = Work { read_seconds, ..cost::rest(model, &r) };
    Terms {
        dispatch_seconds: significant(r.dispatch),
        wake_seconds: significant(r.wake),
        cores_over_slowest: (r.pace != r.threads as f64).then(|| significant(r.pace)),
        attention: rounded(&cost::attention(model, &r)),
        select: rounded(&cost::predictor(model, level, &r)),
        look_ahead: rounded(&look_ahead),
        rest: rounded(&rest),
        context: rounded(&cost::context(model, limits.kv, &r)),
        reading: ReadingTerms {
            cpu_seconds_per_read: interference.cpu_seconds_per_read,
            interference_fraction: interference.interference_fraction,
            covered_reads_per_second: significant(interference.covered_per_second),
            shares_cores: interference.sharing.is_some(),
            prefetched_fraction: recall_fraction,
            prefetched_used_fraction: precision_fraction,
            completed_together_fraction: price.together_fraction(),
            reads_by_chance: significant(price.by_chance()),
            check_seconds_per_neuron: significant(cost::check_seconds(model, level, &r)),
        },
        layers: layers(model, level, d, &r, &price),
        prompt: prompt(question, d, &price),
        start: Some(start(question, level, d, memory)),
    }
}

/// The parts of starting, with six significant digits: what is always in memory is read in order, one read at a time, by one
/// thread, which checks it and puts it into place; all memory is zeroed before.
fn start(question: &Question<'_>, level: &Level, d: &Decided, memory: &MemoryPlan) -> StartTerms {
    /// Bytes of a read at most.
    const PIECE_BYTES: u64 = 4 << 20;
    /// Times that what is read passes through memory: it is checked, and copied.
    const PASSES: f64 = 3.0;
    let Question { device, model, .. } = question;
    let read_whole = |layer: usize| {
        let all = model.architecture.neurons();
        // the gates of all neurons are cut out of their bundles
        let neurons = if level.kind.gates_resident() { all } else { u64::from(d.hot[layer]) };
        neurons * model.bundle(layer).stride_bytes
    };
    let bytes = memory.fixed_bytes + (0..d.hot.len()).map(read_whole).sum::<u64>();
    let block = memory.kv_bytes.min(PIECE_BYTES).max(d.read.buffer_bytes) as f64;
    let curves = ["sequential", "random"].into_iter().find_map(|pattern| {
        ReadCurves::new(question.flash(), Backend::Pread, d.read.direct, pattern, 1, model.container.bytes)
    });
    let curves = curves.unwrap_or_else(|| ReadCurves::of_one(&device.storage.reads[0]));
    let bytes_per_second = block * curves.reads_per_second(block, 1.0);
    let stream = cost::rates(question, &d.cores).stream_serial;
    let cleared = memory.decode_sum() as f64 / device.memory.fresh_bytes_per_second.unwrap_or(stream);
    StartTerms {
        read_seconds: significant(bytes as f64 / bytes_per_second),
        memory_seconds: significant(cleared + PASSES * bytes as f64 / stream),
    }
}

/// Neurons missing in a layer for a token, and their reads.
fn missing(
    model: &Model,
    level: &Level,
    layer: usize,
    d: &Decided,
    price: &ReadPrice,
) -> (Missing, LayerReads) {
    let (requested, fires) = cost::requested(model, level, layer);
    let cached = (d.hot[layer], d.cold[layer]);
    let missing = misses::missing(model, level, layer, d.policy, requested, cached);
    (missing, price.of(missing, fires))
}

fn layers(model: &Model, level: &Level, d: &Decided, r: &hardware::Rates, price: &ReadPrice) -> LayerTerms {
    let one = cost::insert_seconds(model, level, r);
    let mut l = LayerTerms::default();
    for layer in 0..level.layers.len() {
        let requested = cost::requested(model, level, layer);
        let (gate_up, _) = cost::gate_up(model, level, requested, d.cluster, r);
        let down = cost::down(model, level, requested, r);
        let (missing, reads) = missing(model, level, layer, d, price);
        let inserted = missing.neurons * price.whole_fraction(requested.1);
        l.requested_neurons.push(requested.0);
        l.gate_up_compute_seconds.push(gate_up.compute_seconds);
        l.gate_up_stream_seconds.push(gate_up.stream_seconds);
        l.gate_up_gather_seconds.push(gate_up.gather_seconds);
        l.down_compute_seconds.push(down.compute_seconds);
        l.down_stream_seconds.push(down.stream_seconds);
        l.down_gather_seconds.push(down.gather_seconds);
        l.down_dispatch_seconds.push(down.dispatch_seconds);
        l.down_serial_seconds.push(down.serial_seconds);
        l.insert_seconds.push(if d.cold[layer] > 0 { inserted * one } else { 0.0 });
        l.missing_neurons.push(reads.missing);
        l.reads.push(reads.reads);
        l.read_seconds.push(reads.seconds);
        l.prefetch_read_seconds.push(reads.ahead_seconds);
        l.reads_in_order.push(reads.reads > 0.0 && ReadPrice::in_order_on_flash(missing));
        l.further_reads.push(reads.more);
        l.further_read_seconds.push(reads.more_seconds);
    }
    for list in [
        &mut l.requested_neurons,
        &mut l.gate_up_compute_seconds,
        &mut l.gate_up_stream_seconds,
        &mut l.gate_up_gather_seconds,
        &mut l.down_compute_seconds,
        &mut l.down_stream_seconds,
        &mut l.down_gather_seconds,
        &mut l.down_dispatch_seconds,
        &mut l.down_serial_seconds,
        &mut l.insert_seconds,
        &mut l.missing_neurons,
        &mut l.reads,
        &mut l.read_seconds,
        &mut l.prefetch_read_seconds,
        &mut l.further_reads,
        &mut l.further_read_seconds,
    ] {
        *list = rounded_list(std::mem::take(list));
    }
    if !l.reads_in_order.contains(&true) {
        l.reads_in_order.clear();
    }
    l
}

fn prompt(question: &Question<'_>, d: &Decided, reads: &ReadPrice) -> PromptTerms {
    let (model, r) = (question.model, cost::rates(question, &d.prompt.cores));
    let choice = PromptChoice {
        reads,
        embedding_rows: d.embedding_rows,
        cores: &d.prompt.cores,
        chunk: d.prompt.chunk,
    };
    let price = PromptPrice::new(question, &choice, measured_run(question.limits.context).0);
    let layers = PromptLayers::new(question, &r, d.prompt.chunk);
    let (token, chunk): (Vec<f64>, Vec<f64>) = layers.compute.iter().copied().unzip();
    let read_seconds = rounded_list(d.hot.iter().map(|&hot| price.read_seconds(hot)).collect());
    let if_any = |value: f64| if read_seconds.is_empty() { 0.0 } else { significant(value) };
    PromptTerms {
        rest: rounded(&cost::rest(model, &r)),
        memory_seconds: significant(layers.memory),
        attention_fraction: significant(layers.attention_fraction),
        token_seconds: token.into_iter().map(significant).collect(),
        chunk_seconds: rounded_list(chunk),
        layer_read_seconds: if_any(price.read_seconds(0)),
        reads_per_second: if_any(reads.in_order_per_second()),
        taken_seconds_per_read: if_any(reads.interference(false, r.threads).taken_seconds_per_read()),
        check_seconds_per_read: if_any(cost::prompt_check_seconds(reads, &r)),
        read_seconds,
        visited_fraction: layers.visited.to_vec(),
    }
}

/// Six significant digits of each part.
fn rounded(work: &Work) -> Work {
    Work {
        compute_seconds: significant(work.compute_seconds),
        stream_seconds: significant(work.stream_seconds),
        gather_seconds: significant(work.gather_seconds),
        dispatch_seconds: significant(work.dispatch_seconds),
        serial_seconds: significant(work.serial_seconds),
        read_seconds: significant(work.read_seconds),
    }
}

/// Six significant digits of each; nothing of a list of nothing.
fn rounded_list(values: Vec<f64>) -> Vec<f64> {
    if values.iter().all(|&value| value == 0.0) {
        return Vec::new();
    }
    values.into_iter().map(significant).collect()
}

/// The rates that a plan assumes where `run` measures them again, with six significant digits.
pub fn rates(question: &Question<'_>, level: &Level, d: &Decided) -> Rates {
    let Question { device, model, limits, .. } = question;
    let a = &model.architecture;
    let r = cost::rates(question, &d.cores);
    let (_, exact) = hardware::kernel(device, &a.weight_format, &limits.isa);
    let price = ReadPrice::new(question, level.kind, d.read);
    let (mut reads, mut bytes) = (0.0, 0.0);
    for layer in 0..level.layers.len() {
        let (missing, of_layer) = missing(model, level, layer, d, &price);
        if !ReadPrice::in_order_on_flash(missing) {
            (reads, bytes) = (reads + of_layer.reads, bytes + of_layer.bytes);
        }
        (reads, bytes) = (reads + of_layer.more, bytes + of_layer.more_bytes);
    }
    let mean = ((bytes / reads) as u64).next_multiple_of(PAGE_BYTES).clamp(PAGE_BYTES, d.read.buffer_bytes);
    let random = (reads > 0.0).then_some(mean);
    let neurons = a.neurons();
    let pinned = d.hot.iter().all(|&hot| u64::from(hot) >= neurons);
    let measured = |rate: f64| exact.then(|| significant(rate));
    Rates {
        weight_format: exact.then(|| a.weight_format.clone()),
        flops_per_second: measured(r.flops),
        dense_bytes_per_second: measured(r.dense.bytes_per_second()),
        sparse_bytes_per_second: measured(r.sparse.bytes_per_second()).filter(|_| r.sparse_apart),
        random_read_bytes: random,
        random_reads_per_second: random.map(|bytes| significant(price.random_per_second(bytes as f64))),
        ordered_reads_per_second: (!pinned).then(|| significant(price.ordered_per_second())),
    }
}
