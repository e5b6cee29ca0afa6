//! From the solver's choice to a finished [`Plan`]: the split inside groups, what is expected.

use plans::expectation::{self, Stream};
use plans::memory;
use plans::model::{Level, LevelKind};
use plans::plan::{
    CachePlan, Context, DecodePlan, Expected, Filling, Floor, Plan, PlanProvenance, PrefillPlan, Quality,
    ReadPlan, SimpleRule, Target, Together,
};
use plans::terms::Factors;
use plans::{Backend, Model};

use crate::candidate::Candidate;
use crate::cost::read_curves::ReadCurves;
use crate::cost::reads::ReadPrice;
use crate::cost::{self, PromptChoice, PromptLayers, PromptPrice};
use crate::cost::{misses, speculation, terms, together};
use crate::decided::Decided;
use crate::file_tool;
use crate::pricing::Pricing;
use crate::question::Question;
use crate::room::on_pages;
use crate::rules;
use plans::plan::measured_run;

/// Bytes that a prompt's rows may take of what is left over.
const PROMPT_SPARE: i64 = 1 << 24;

/// A configuration with its split, its prompts meeting as many neurons at a time as there is room for.
pub fn decide(pricing: &Pricing<'_>, candidate: &Candidate, regions: i64) -> Decided {
    let Question { model, limits, .. } = pricing.question;
    let Candidate { config, found, .. } = candidate;
    let (compute, read) = pricing.choice(*config);
    let cached = |layer: usize| pricing.cached(*config, layer)[found.chosen[layer]];
    let room = pricing.room(*config, regions);
    let left = room.bytes - room.taken(found.need) + on_pages(found.need.cold).max(room.rows);
    // the rows lie over the slots; without slots they take what nobody else wants, but no more than what they have to
    let rows_most = left.min(on_pages(found.need.cold).max(room.rows + PROMPT_SPARE));
    Decided {
        cores: compute.cores.clone(),
        io_cores: match read.choice.backend {
            Backend::Pread => compute.io_cores.clone(),
            Backend::IoUring => Vec::new(),
        },
        shared: compute.shared,
        cluster: rules::cluster(pricing.level(*config)),
        read: read.choice,
        hot: (0..found.chosen.len()).map(|layer| cached(layer).hot).collect(),
        cold: (0..found.chosen.len()).map(|layer| cached(layer).cold).collect(),
        policy: pricing.policy(*config),
        slice_neurons: model.parts.bundle.slice_neurons,
        prompt: rules::with_largest_cluster(model, limits, pricing.prompt(*config), rows_most),
        embedding_rows: pricing.embedding_rows(*config),
    }
}

/// The plan, with all that is expected of it.
pub fn plan(question: &Question<'_>, level: &Level, d: &Decided, simple: SimpleRule) -> Plan {
    let digits = plans::file::significant;
    let Question { device, model, limits, origin, .. } = question;
    let memory = memory::regions(device, model, &d.choices(limits, level), limits.memory_bytes);
    let of_prompt = PromptLayers::new(question, &cost::rates(question, &d.prompt.cores), d.prompt.chunk);
    let mut plan = Plan {
        schema: plans::SCHEMA,
        target: Target {
            device: device.name.clone(),
            device_fingerprint: device.fingerprint.clone(),
            cpu: device.identity.cpu.clone(),
            ram_gib: device.identity.ram_gib,
            storage: device.identity.storage.clone(),
            model: model.name.clone(),
            model_fingerprint: model.fingerprint.clone(),
            container: model.container.file.clone(),
            container_fingerprint: model.container.fingerprint.clone(),
        },
        provenance: PlanProvenance {
            tool: file_tool(),
            device_toml: origin.device_hash.to_owned(),
            model_toml: origin.model_hash.to_owned(),
            calibration_toml: None,
            calibration_date: None,
            learned_toml: None,
            learned_tokens: None,
            unlearned_tokens_per_second: None,
            quality: String::new(), // below, of the whole
            priors: model.has_priors(),
            model_folder: None,
        },
        request: origin.request.clone(),
        gpu: limits.gpu.map(|gpu| gpu.memory),
        quality: Quality {
            units: limits.gpu.map(|gpu| gpu.quality(device)).into_iter().collect(),
            level: level.name.clone(),
            kind: level.kind,
            always_on_neurons: level.layers.iter().map(|layer| layer.always_on_neurons).collect(),
            kv_format: limits.kv.name().to_owned(),
            activations: model.activations.clone(),
            instruction_set: limits.isa.clone(),
        },
        context: Context { tokens: limits.context, sequences: limits.sequences },
        memory,
        cache: CachePlan {
            policy: d.policy,
            hot_neurons: d.hot.clone(),
            cold_slots: d.cold.clone(),
            slice_neurons: d.slice_neurons as u32,
            slot_bytes: slot_bytes(model, level),
        },
        read: ReadPlan {
            backend: d.read.backend,
            direct: d.read.direct,
            depth: d.read.depth,
            buffers: d.read.buffers,
            buffer_bytes: d.read.buffer_bytes,
            gap_bytes: d.read.gap_bytes,
            look_ahead: d.read.look_ahead,
            parts: model.parts.bundle.reads_of_slice() as u32,
            phases: d.read.phases,
            blocking: d.read.blocking,
            embedding_rows: d.embedding_rows,
            per_layer_rows: model.architecture.per_layer.is_some(),
        },
        decode: DecodePlan {
            compute_cores: d.cores.clone(),
            io_cores: d.io_cores.clone(),
            cluster_neurons: d.cluster as u32,
            units: cost::rates(question, &d.cores).shared.shares(device),
        },
        prefill: PrefillPlan {
            compute_cores: d.prompt.cores.clone(),
            chunk_tokens: d.prompt.chunk,
            cluster_neurons: d.prompt.cluster,
            units: match limits.gpu {
                Some(gpu) => gpu.shares(device),
                None => of_prompt.shared.shares(device),
            },
        },
        expected: expected(question, level, d, memory.prefill_total_bytes),
        filling: filling(question, level, d),
        rates: Some(terms::rates(question, level, d)),
        terms: Some(terms::terms(question, level, d, &memory)),
        together: (limits.sequences > 1).then(|| together(question, level, d)),
        speculation: speculation::priced(question, &d.decision(level), limits.draft_tokens),
        simple_rule: simple,
    };
    plan.provenance.quality = plan.quality_hash();
    plan.expected.start_seconds = expectation::start_seconds(&plan, &Factors::NONE).map(digits);
    let routed = model.architecture.neurons_routed() as f64 * level.layers.len() as f64;
    let of_run = expectation::of(&plan, &Stream::measured(limits.context, routed));
    if let Some(of_token) = of_run.and_then(|of_run| of_run.latency_seconds) {
        let [p50, p90, p99] = [of_token.p50, of_token.p90, of_token.p99].map(|seconds| Some(digits(seconds)));
        let e = &mut plan.expected;
        (e.decode_seconds_p50, e.decode_seconds_p90, e.decode_seconds_p99) = (p50, p90, p99);
    }
    plan
}

/// Lengths of runs for which a plan tells what filling its slots costs, besides that of the measured run.
const FILLING_TOKENS: [u32; 20] =
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024];

/// Neurons that runs miss since they begin with empty slots; `None` where there are none.
fn filling(question: &Question<'_>, level: &Level, d: &Decided) -> Option<Filling> {
    let Question { model, limits, .. } = question;
    let (_, generated) = measured_run(limits.context);
    let layers: Vec<misses::Filling> = (d.hot.iter().zip(&d.cold).enumerate())
        .map(|(layer, (&hot, &cold))| {
            let requested = cost::requested_neurons(model, level, layer);
            misses::missing_and_filling(model, level, layer, d.policy, requested, (hot, cold)).1
        })
        .collect();
    let mut tokens = FILLING_TOKENS.to_vec();
    tokens.push(generated);
    tokens.sort_unstable();
    tokens.dedup();
    let of_all = |&tokens: &u32| layers.iter().map(|layer| layer.at(f64::from(tokens))).sum();
    let neurons = tokens.iter().map(|tokens| plans::file::significant(of_all(tokens))).collect();
    d.cold.iter().any(|&cold| cold > 0).then_some(Filling { tokens, neurons })
}

/// Expected speed of one sequence, of two together, and so on, with six significant digits.
fn together(question: &Question<'_>, level: &Level, d: &Decided) -> Together {
    let (decision, context) = (d.decision(level), question.limits.context);
    let alone = 1.0 / cost::decode(question, &decision).mean_seconds(context);
    let more =
        (2..=question.limits.sequences).map(|rows| together::tokens_per_second(question, &decision, rows));
    Together {
        decode_tokens_per_second: std::iter::once(alone).chain(more).map(plans::file::significant).collect(),
    }
}

/// Bytes of a neuron in memory, by layer; none where all layers are alike.
fn slot_bytes(model: &Model, level: &Level) -> Vec<u64> {
    if model.is_uniform() {
        return Vec::new();
    }
    let part = memory::slot_part(level.kind);
    (0..level.layers.len()).map(|layer| model.bundle(layer).part_bytes(part)).collect()
}

/// The cost model's figures for a plan, with six significant digits; [`plan`] adds those that its parts tell.
pub fn expected(question: &Question<'_>, level: &Level, d: &Decided, peak: u64) -> Expected {
    let digits = plans::file::significant;
    let Question { model, limits, .. } = question;
    let price = cost::decode(question, &d.decision(level));
    let (prompt, _) = measured_run(limits.context);
    let prefill = prompt_seconds(question, level, d, prompt);
    let works = [
        &price.attention,
        &price.predictor,
        &price.look_ahead,
        &price.gate_up,
        &price.down,
        &price.insert,
        &price.rest,
    ];
    let routed = model.architecture.neurons_routed() as f64 * level.layers.len() as f64;
    let missing = misses::missing_over_mean(model, level, &d.hot, &d.cold);
    let missing = |quantile: usize| missing.map(|over_mean| digits(over_mean[quantile]));
    Expected {
        decode_tokens_per_second: digits(1.0 / price.mean_seconds(limits.context)),
        decode_seconds_constant: digits(price.constant),
        decode_seconds_per_context_token: digits(price.per_context_token),
        decode_cold_start_seconds: digits(price.cold_start),
        decode_compute_seconds: digits(works.iter().map(|work| work.compute_seconds).sum()),
        decode_memory_seconds: digits(works.iter().map(|work| work.memory()).sum()),
        decode_io_seconds: digits(price.io),
        decode_serial_seconds: digits(works.iter().map(|work| work.serial()).sum()),
        prefill_tokens_per_second: digits(f64::from(prompt) / prefill),
        bytes_read_per_token: digits(price.bytes_read),
        hit_fraction: digits(if price.requested > 0.0 { 1.0 - price.missing / price.requested } else { 1.0 }),
        active_predicted_fraction: digits(price.requested / routed),
        active_true_fraction: digits(price.requested * level.precision_fraction / routed),
        perplexity_change_fraction: level.perplexity_change_fraction,
        perplexity_change_fraction_upper: level.perplexity_change_fraction_upper,
        container_perplexity_change_fraction: (model.levels.iter())
            .find(|level| level.kind == LevelKind::Dense)
            .map(|dense| dense.perplexity_change_fraction),
        memory_peak_bytes: peak,
        start_seconds: None,
        missing_p50_over_mean: missing(0),
        missing_p90_over_mean: missing(1),
        missing_p99_over_mean: missing(2),
        decode_seconds_p50: None,
        decode_seconds_p90: None,
        decode_seconds_p99: None,
        floor: Some(floor(question, level, d)),
    }
}

/// Seconds of a prompt of so many tokens, by the cost model.
pub fn prompt_seconds(question: &Question<'_>, level: &Level, d: &Decided, tokens: u32) -> f64 {
    let choice = PromptChoice {
        reads: &ReadPrice::new(question, level.kind, d.read),
        embedding_rows: d.embedding_rows,
        cores: &d.prompt.cores,
        chunk: d.prompt.chunk,
    };
    PromptPrice::new(question, &choice, tokens).seconds(&d.hot)
}

/// Rates that the device gives these cores and this choice of reads at best, with six significant digits.
fn floor(question: &Question<'_>, level: &Level, d: &Decided) -> Floor {
    let digits = plans::file::significant;
    let (model, rates) = (question.model, cost::rates(question, &d.cores));
    let (neurons, part) = (model.architecture.neurons(), memory::slot_part(level.kind));
    let bundle = &model.parts.bundle;
    let read_bytes = bundle.read_bytes_mean(neurons, part) / bundle.reads_of_slice();
    let (backend, direct, span) = (d.read.backend, d.read.direct, model.container.bytes);
    let curves = ReadCurves::new(question.flash(), backend, direct, "random", u32::MAX, span);
    Floor {
        stream_bytes_per_second: digits(rates.shared.stream_most(rates.stream)),
        gather_bytes_per_second: digits(rates.gather),
        reads_per_second: curves.map(|curves| digits(curves.reads_per_second_most(read_bytes as f64))),
        read_bytes,
    }
}
