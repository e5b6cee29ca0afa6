//! The ranges of the values of a `plan.toml`, each by itself and beside the others.
//!
//! A plan alone cannot know what a level loses or a container holds; that its figures agree with each other it can.

mod expected;
mod memory;

use super::{
    Context, DecodePlan, GpuPlan, Plan, PlanProvenance, PrefillPlan, Quality, ReadPlan, Request, SimpleRule,
    Target, UnitQuality, UnitShare,
};
use crate::check::{
    ACTIVATIONS, At, BYTES_MAX, CONTEXT_MAX, CORES_MAX, Checked, GPU, INSTRUCTION_SETS, KV_FORMATS,
    LAYERS_MAX, LOSS_MAX, NEURONS_MAX, SECONDS_MAX, TOKENS_PER_SECOND_MAX, UNITS, number,
};
use crate::engine::{DRAFT_TOKENS_MAX, SEQUENCES_MAX};
use crate::layout::PARTS;
use crate::model::check::level_name;
use crate::{Backend, PAGE_BYTES, SCHEMA, learned, terms};
use expected::{expected, filling, speculation, together};
use memory::{cache, regions, regions_beside_counts};

/// Reads in flight.
const DEPTH_MAX: u32 = 1024;
/// Buffers that reads complete in.
const BUFFERS_MAX: u32 = 1 << 16;
/// Bytes of one buffer.
const BUFFER_BYTES_MAX: u64 = 1 << 30;
/// Neurons of a cluster.
const CLUSTER_MAX: u32 = 1 << 22;
/// Maximum relative difference of a figure and its recomputation, each rounded to six digits.
const ROUNDING: f64 = 1e-3;
/// Maximum excess of a part over the whole time of a token: overlapping parts are priced layer by layer.
const OVERLAP: f64 = 1.05;

/// The whole file.
pub(super) fn check(plan: &Plan, at: &At<'_>) -> Checked {
    let Plan {
        schema,
        target: of_target,
        provenance: of_provenance,
        request: of_request,
        quality: of_quality,
        context: Context { tokens, sequences },
        memory: of_memory,
        gpu: of_gpu,
        cache: of_cache,
        read: of_read,
        decode: of_decode,
        prefill: of_prefill,
        expected: of_expected,
        filling: of_filling,
        rates: of_rates,
        terms: of_terms,
        together: of_together,
        speculation: of_speculation,
        simple_rule: of_simple_rule,
    } = plan;
    at.key("schema").count(*schema, SCHEMA.into(), SCHEMA.into())?;
    target(of_target, &at.key("target"))?;
    at.key("context").key("tokens").count(*tokens, 1, CONTEXT_MAX.into())?;
    at.key("context").key("sequences").count(*sequences, 1, SEQUENCES_MAX as u64)?;
    quality(of_quality, &at.key("quality"))?;
    provenance(of_provenance, &at.key("provenance"))?;
    request(of_request, &at.key("request"))?;
    if let Some(asked) = &of_request.level {
        at.key("request").key("level").holds(*asked == of_quality.level, || {
            format!("is `{asked}`, and the plan's level is `{}`; plan again", of_quality.level)
        })?;
    }
    read(of_read, &at.key("read"))?;
    regions(of_memory, &at.key("memory"))?;
    cache(of_cache, of_quality.always_on_neurons.len(), &at.key("cache"))?;
    decode(of_decode, of_read.backend, &at.key("decode"))?;
    prefill(of_prefill, *tokens, &at.key("prefill"))?;
    units_beside_shares(&of_quality.units, of_prefill, &at.key("quality").key("units"))?;
    gpu(*of_gpu, &of_quality.units, &at.key("gpu"))?;
    regions_beside_counts(plan, &at.key("memory"))?;
    if let Some(of_filling) = of_filling {
        filling(of_filling, plan, &at.key("filling"))?;
    }
    expected(of_expected, plan, &at.key("expected"))?;
    at.key("terms").holds(of_terms.is_none() || of_rates.is_some(), || {
        "are parts of times at `rates`, which are absent; give those, too, or neither".to_owned()
    })?;
    if let Some(of_rates) = of_rates {
        terms::check::rates(of_rates, plan, &at.key("rates"))?;
    }
    if let Some(of_terms) = of_terms {
        terms::check::terms(of_terms, plan, &at.key("terms"))?;
    }
    together(of_together.as_ref(), plan, &at.key("together"))?;
    if let Some(of_speculation) = of_speculation {
        speculation(*of_speculation, plan, &at.key("speculation"))?;
    }
    losses_beside_quality(plan, &at.key("provenance").key("quality"))?;
    let at = &at.key("simple_rule");
    let SimpleRule { decode_tokens_per_second, memory_peak_bytes } = *of_simple_rule;
    at.key("decode_tokens_per_second").number(decode_tokens_per_second, 0.0, TOKENS_PER_SECOND_MAX)?;
    let at = &at.key("memory_peak_bytes");
    at.count(memory_peak_bytes, 0, of_memory.limit_bytes.min(BYTES_MAX))?;
    at.note("up to `memory.limit_bytes`; 0 where the rule has no plan");
    at.holds((memory_peak_bytes == 0) == (decode_tokens_per_second == 0.0), || {
        format!("is {memory_peak_bytes} at {decode_tokens_per_second} tokens/s; both are 0, or neither")
    })
}

fn target(target: &Target, at: &At<'_>) -> Checked {
    let Target {
        device,
        device_fingerprint,
        cpu,
        ram_gib,
        storage,
        model,
        model_fingerprint,
        container,
        container_fingerprint,
    } = target;
    at.key("device").text(device)?;
    at.key("device_fingerprint").plain(device_fingerprint)?;
    at.key("cpu").text(cpu)?;
    at.key("ram_gib").count(*ram_gib, 0, BYTES_MAX >> 30)?;
    at.key("storage").text(storage)?;
    at.key("model").text(model)?;
    at.key("model_fingerprint").plain(model_fingerprint)?;
    at.key("container").file_name(container)?;
    at.key("container_fingerprint").plain(container_fingerprint)
}

fn provenance(provenance: &PlanProvenance, at: &At<'_>) -> Checked {
    let PlanProvenance {
        tool,
        device_toml,
        model_toml,
        calibration_toml,
        calibration_date,
        learned_toml,
        learned_tokens,
        unlearned_tokens_per_second,
        quality,
        priors,
        model_folder,
    } = provenance;
    at.key("tool").text(tool)?;
    at.key("device_toml").plain(device_toml)?;
    at.key("model_toml").plain(model_toml)?;
    if let Some(hash) = calibration_toml {
        at.key("calibration_toml").plain(hash)?;
    }
    if let Some(date) = calibration_date {
        at.key("calibration_date").plain(date)?;
    }
    if let Some(hash) = learned_toml {
        at.key("learned_toml").plain(hash)?;
    }
    if let Some(tokens) = learned_tokens {
        at.key("learned_tokens").count(*tokens, 1, learned::TOKENS_MAX)?;
    }
    if let Some(speed) = unlearned_tokens_per_second {
        at.key("unlearned_tokens_per_second").above_zero(*speed, TOKENS_PER_SECOND_MAX)?;
    }
    at.key("priors").free(*priors);
    if let Some(folder) = model_folder {
        at.key("model_folder").text(folder)?;
    }
    at.key("quality").plain(quality)
}

/// The hash of `[quality]` and its losses.
fn losses_beside_quality(plan: &Plan, at: &At<'_>) -> Checked {
    at.note("the hash of `[quality]` and of the losses in `[expected]`");
    at.holds(plan.provenance.quality == plan.quality_hash(), || {
        format!(
            "is the hash of other values of [quality] and of its losses in [expected], which were changed since; plan with `--level {}`",
            plan.quality.level
        )
    })
}

fn request(request: &Request, at: &At<'_>) -> Checked {
    let Request {
        objective,
        memory_limit_bytes,
        decode_tokens_per_second_min,
        prefill_tokens_per_second_min,
        first_token_seconds_max,
        prompt_tokens,
        cores,
        context_tokens,
        sequences,
        draft_tokens,
        draft_tokens_auto,
        reserve_bytes,
        gpu_limit_bytes,
        gpu_parts,
        perplexity_change_fraction_max,
        level,
        instruction_set,
        kv_format,
        activations,
        calibration,
        simple_rule,
        without,
    } = request;
    at.key("objective").one_of_its_names(*objective);
    if let Some(bytes) = memory_limit_bytes {
        at.key("memory_limit_bytes").count(*bytes, 1, BYTES_MAX)?;
    }
    if let Some(speed) = decode_tokens_per_second_min {
        at.key("decode_tokens_per_second_min").above_zero(*speed, TOKENS_PER_SECOND_MAX)?;
    }
    if let Some(speed) = prefill_tokens_per_second_min {
        at.key("prefill_tokens_per_second_min").above_zero(*speed, TOKENS_PER_SECOND_MAX)?;
    }
    if let Some(seconds) = first_token_seconds_max {
        at.key("first_token_seconds_max").above_zero(*seconds, SECONDS_MAX)?;
    }
    if let Some(tokens) = prompt_tokens {
        at.key("prompt_tokens").count(u64::from(*tokens), 1, CONTEXT_MAX.into())?;
    }
    let limited = at.key("first_token_seconds_max");
    limited.note(&format!("above 0, up to {}; beside `request.prompt_tokens`", number(SECONDS_MAX)));
    limited.holds(first_token_seconds_max.is_some() == prompt_tokens.is_some(), || {
        "and `request.prompt_tokens` stand together; give both or neither".to_owned()
    })?;
    if let Some(cores) = cores {
        at.key("cores").holds(!cores.is_empty(), || "is empty; name a core, or leave it out".to_owned())?;
        at.key("cores").cores(cores)?;
    }
    if let Some(tokens) = context_tokens {
        at.key("context_tokens").count(*tokens, 1, CONTEXT_MAX.into())?;
    }
    if let Some(sequences) = sequences {
        at.key("sequences").count(*sequences, 1, SEQUENCES_MAX as u64)?;
    }
    if let Some(tokens) = draft_tokens {
        at.key("draft_tokens").count(*tokens, 1, DRAFT_TOKENS_MAX as u64)?;
    }
    at.key("draft_tokens_auto").free(*draft_tokens_auto);
    at.key("draft_tokens_auto").holds(!draft_tokens_auto || draft_tokens.is_none(), || {
        "and `request.draft_tokens` exclude each other; leave one of them out".to_owned()
    })?;
    if let Some(bytes) = reserve_bytes {
        at.key("reserve_bytes").count(*bytes, 1, BYTES_MAX)?;
    }
    if let Some(bytes) = gpu_limit_bytes {
        at.key("gpu_limit_bytes").count(*bytes, 1, BYTES_MAX)?;
    }
    if let Some(parts) = gpu_parts {
        at.key("gpu_parts").count(*parts, 1, UnitQuality::PARTS.into())?;
    }
    at.key("perplexity_change_fraction_max").number(*perplexity_change_fraction_max, 0.0, LOSS_MAX)?;
    if let Some(level) = level {
        at.key("level").plain(level)?;
    }
    if let Some(name) = instruction_set {
        at.key("instruction_set").named(name, &INSTRUCTION_SETS)?;
    }
    if let Some(name) = kv_format {
        at.key("kv_format").named(name, &KV_FORMATS)?;
    }
    if let Some(name) = activations {
        at.key("activations").named(name, &ACTIVATIONS)?;
    }
    at.key("simple_rule").free(*simple_rule);
    if let Some(factors) = calibration {
        terms::check::factors(factors, &at.key("calibration"))?;
    }
    let at = at.key("without");
    at.note("each once");
    at.each(without, |at, feature| {
        at.one_of_its_names(*feature);
        Ok(())
    })?;
    let twice = (1..without.len()).find(|&index| without[..index].contains(&without[index]));
    at.holds(twice.is_none(), || "names a mechanism twice; name each once".to_owned())
}

fn quality(quality: &Quality, at: &At<'_>) -> Checked {
    let Quality { level, kind, always_on_neurons, kv_format, activations, instruction_set, units } = quality;
    at.key("kind").one_of_its_names(*kind);
    level_name(level, *kind, &at.key("level"))?;
    let always_on = at.key("always_on_neurons");
    always_on.each(always_on_neurons, |at, &neurons| at.count(neurons, 0, NEURONS_MAX.into()))?;
    always_on.note(&format!("an entry for each of 1 to {LAYERS_MAX} layers"));
    always_on.holds((1..=LAYERS_MAX as usize).contains(&always_on_neurons.len()), || {
        format!(
            "has {} entries; one for each of 1 to {LAYERS_MAX} layers belongs there",
            always_on_neurons.len()
        )
    })?;
    at.key("kv_format").named(kv_format, &KV_FORMATS)?;
    at.key("activations").named(activations, &ACTIVATIONS)?;
    at.key("instruction_set").named(instruction_set, &INSTRUCTION_SETS)?;
    at.key("units").each(units, |at, UnitQuality { unit, adapter, prefill_parts }| {
        at.key("unit").named(unit, &UNITS[1..])?;
        at.key("adapter").text(adapter)?;
        at.key("prefill_parts").count(*prefill_parts, 1, UnitQuality::PARTS.into())
    })
}

/// A unit's part of a prompt, which changes values, and its share, which reports show: they agree.
fn units_beside_shares(units: &[UnitQuality], prefill: &PrefillPlan, at: &At<'_>) -> Checked {
    for (index, unit) in units.iter().enumerate() {
        let share = prefill.units.iter().find(|share| share.unit == unit.unit);
        let share = share.map_or(0.0, |share| share.share_fraction);
        let at = at.item(index);
        let at = at.key("prefill_parts");
        at.note("the unit's `share_fraction` in `prefill.units`, times 64");
        at.holds(share == unit.share_fraction(), || {
            format!("is {}, and the unit's share in `prefill.units` is {share}", unit.prefill_parts)
        })?;
    }
    at.holds(units.len() <= 1, || format!("has {} units; one computes beside the CPU", units.len()))
}

/// The memory of a GPU, which is there if it computes something.
fn gpu(gpu: Option<GpuPlan>, units: &[UnitQuality], at: &At<'_>) -> Checked {
    let computes = units.iter().any(|unit| unit.unit == GPU);
    at.holds(gpu.is_some() == computes, || {
        "is there if and only if `quality.units` has the gpu; plan again".to_owned()
    })?;
    let Some(gpu) = gpu else { return Ok(()) };
    let GpuPlan { limit_bytes, weights_bytes, transfer_bytes } = gpu;
    at.key("limit_bytes").count(limit_bytes, 1, BYTES_MAX)?;
    at.key("weights_bytes").bytes(weights_bytes)?;
    at.key("transfer_bytes").count(transfer_bytes, 1, BYTES_MAX)?;
    let all = gpu.held_bytes();
    at.key("limit_bytes").note("the weights and all buffers, or more");
    at.key("limit_bytes")
        .holds(all <= limit_bytes, || format!("is {limit_bytes}, and weights and buffers take {all}"))
}

fn read(read: &ReadPlan, at: &At<'_>) -> Checked {
    let ReadPlan {
        backend,
        direct,
        depth,
        buffers,
        buffer_bytes,
        gap_bytes,
        look_ahead,
        parts,
        phases,
        blocking,
        embedding_rows,
        per_layer_rows,
    } = read;
    at.key("backend").one_of_its_names(*backend);
    at.key("direct").free(*direct);
    at.key("depth").count(*depth, 1, DEPTH_MAX.into())?;
    at.key("buffers").count(*buffers, 1, BUFFERS_MAX.into())?;
    at.key("parts").note(&format!("1 to {PARTS}"));
    at.key("parts").holds((1..=PARTS).contains(&(*parts as usize)), || {
        format!(
            "is {parts}; a slice is read in one piece, or in its gate, up and down, or in its up and down"
        )
    })?;
    let least = depth.div_ceil(*parts);
    at.key("buffers").note(&format!("`read.depth` over `read.parts`, to {BUFFERS_MAX}"));
    at.key("buffers").holds(*buffers >= least, || {
        format!(
            "is {buffers}, and {depth} reads in flight need {least}; {least} to {BUFFERS_MAX} are possible"
        )
    })?;
    let bytes = at.key("buffer_bytes");
    bytes.pages(*buffer_bytes)?;
    bytes.count(*buffer_bytes, PAGE_BYTES, BUFFER_BYTES_MAX)?;
    bytes.note("whole pages of 4096, up to 2^30");
    at.key("gap_bytes").count(*gap_bytes, 0, *buffer_bytes)?;
    at.key("gap_bytes").note("0 to `read.buffer_bytes`");
    at.key("look_ahead").count(*look_ahead, 0, (*depth).into())?;
    at.key("look_ahead").note("0 to `read.depth`");
    at.key("phases").one_of_its_names(*phases);
    at.key("blocking").free(*blocking);
    at.key("embedding_rows").free(*embedding_rows);
    at.key("per_layer_rows").free(*per_layer_rows);
    Ok(())
}

fn decode(decode: &DecodePlan, backend: Backend, at: &At<'_>) -> Checked {
    let DecodePlan { compute_cores, io_cores, cluster_neurons, units: of_units } = decode;
    some_cores(compute_cores, &at.key("compute_cores"))?;
    let io = at.key("io_cores");
    io.cores(io_cores)?;
    io.note("cores for `pread`, none for `io-uring`");
    io.holds(io_cores.is_empty() == (backend == Backend::IoUring), || {
        format!("names {} cores; name cores for `pread`, and none for `io-uring`", io_cores.len())
    })?;
    at.key("cluster_neurons").count(*cluster_neurons, 1, CLUSTER_MAX.into())?;
    units(of_units, &at.key("units"))
}

fn prefill(prefill: &PrefillPlan, context: u32, at: &At<'_>) -> Checked {
    let PrefillPlan { compute_cores, chunk_tokens, cluster_neurons, units: of_units } = prefill;
    some_cores(compute_cores, &at.key("compute_cores"))?;
    at.key("chunk_tokens").count(*chunk_tokens, 1, context.into())?;
    at.key("chunk_tokens").note("1 to `context.tokens`");
    at.key("cluster_neurons").count(*cluster_neurons, 0, CLUSTER_MAX.into())?;
    units(of_units, &at.key("units"))
}

fn some_cores(ids: &[u32], at: &At<'_>) -> Checked {
    at.cores(ids)?;
    at.note(&format!("1 to {CORES_MAX} cores, each once"));
    at.holds(!ids.is_empty(), || "is empty; name each core once, and at least one".to_owned())
}

fn units(units: &[UnitShare], at: &At<'_>) -> Checked {
    at.each(units, |at, UnitShare { unit, share_fraction }| {
        at.key("unit").named(unit, &UNITS)?;
        at.key("share_fraction").fraction(*share_fraction)
    })?;
    at.note("the cpu first, each once");
    at.holds(units.first().is_some_and(|share| share.unit == UNITS[0]), || "begins with the cpu".to_owned())?;
    for (index, UnitShare { unit, .. }) in units.iter().enumerate() {
        let twice = units[..index].iter().any(|other| other.unit == *unit);
        let at = at.item(index);
        at.key("unit")
            .holds(!twice, || format!("is `{unit}`, which stands there already; each stands once"))?;
    }
    let sum: f64 = units.iter().map(|unit| unit.share_fraction).sum();
    let share = at.item(0);
    share.key("share_fraction").note("the shares of a stage add up to 1");
    share.key("share_fraction").holds(sum == 1.0, || format!("is {sum}; the shares of a stage add up to 1"))
}
