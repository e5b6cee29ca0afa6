//! The ranges of the values of a `plan.toml`, each by itself and beside the others.
//!
//! A plan alone cannot know what a level loses or a container holds; that its figures agree with each other it can.

use super::{
    CachePlan, Context, DecodePlan, Expected, Filling, Floor, MemoryPlan, Plan, PlanProvenance, PrefillPlan,
    Quality, ReadPlan, Request, SimpleRule, Speculation, Target, Together, UnitShare, mean_position,
    measured_run,
};
use crate::check::{
    ACTIVATIONS, At, BYTES_MAX, CONTEXT_MAX, CORES_MAX, Checked, INSTRUCTION_SETS, KV_FORMATS, LAYERS_MAX,
    LOSS_MAX, NEURONS_MAX, SECONDS_MAX, TOKENS_PER_SECOND_MAX, UNITS, number,
};
use crate::engine::{DRAFT_TOKENS_MAX, ROWS_MAX, SEQUENCES_MAX};
use crate::expectation::{QUANTILES, over_mean_max};
use crate::layout::PARTS;
use crate::model::check::{PERPLEXITY_CHANGE_MIN, level_name};
use crate::{Backend, PAGE_BYTES, SCHEMA, memory, terms};

/// Reads in flight.
const DEPTH_MAX: u32 = 1024;
/// Buffers that reads complete in.
const BUFFERS_MAX: u32 = 1 << 16;
/// Bytes of one buffer.
const BUFFER_BYTES_MAX: u64 = 1 << 30;
/// Neurons that are taken together.
const CLUSTER_MAX: u32 = 1 << 22;
/// How far figures of six digits may lie apart that are one figure.
const ROUNDING: f64 = 1e-3;
/// How far a part of a token's time may exceed the whole: overlapping parts are priced layer by layer.
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
        quality,
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
    if let Some(folder) = model_folder {
        at.key("model_folder").text(folder)?;
    }
    at.key("quality").plain(quality)
}

/// Whether the losses in `[expected]` are those of `[quality]`.
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
    let Quality { level, kind, always_on_neurons, kv_format, activations, instruction_set } = quality;
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
    at.key("instruction_set").named(instruction_set, &INSTRUCTION_SETS)
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
    Ok(())
}

/// Each region by itself, and their sums.
fn regions(regions: &MemoryPlan, at: &At<'_>) -> Checked {
    let MemoryPlan {
        limit_bytes,
        process_bytes,
        reserve_bytes,
        fixed_bytes,
        hot_bytes,
        cold_bytes,
        kv_bytes,
        kv_token_bytes,
        state_bytes,
        activations_bytes,
        prompt_bytes,
        io_buffers_bytes,
        tables_bytes,
        page_tables_bytes,
        decode_total_bytes,
        prefill_total_bytes,
    } = *regions;
    at.key("limit_bytes").count(limit_bytes, 1, BYTES_MAX)?;
    at.key("process_bytes").bytes(process_bytes)?;
    at.key("reserve_bytes").pages(reserve_bytes)?;
    at.key("kv_token_bytes").bytes(kv_token_bytes)?;
    for (key, bytes) in [
        ("fixed_bytes", fixed_bytes),
        ("hot_bytes", hot_bytes),
        ("cold_bytes", cold_bytes),
        ("kv_bytes", kv_bytes),
        ("state_bytes", state_bytes),
        ("activations_bytes", activations_bytes),
        ("prompt_bytes", prompt_bytes),
        ("io_buffers_bytes", io_buffers_bytes),
        ("tables_bytes", tables_bytes),
        ("page_tables_bytes", page_tables_bytes),
    ] {
        at.key(key).pages(bytes)?;
    }
    for (key, bytes) in [
        ("fixed_bytes", fixed_bytes),
        ("activations_bytes", activations_bytes),
        ("prompt_bytes", prompt_bytes),
        ("tables_bytes", tables_bytes),
    ] {
        let at = at.key(key);
        at.note("whole pages of 4096, one or more, up to 2^50");
        at.holds(bytes > 0, || "is 0; every model takes a page or more there".to_owned())?;
    }
    let paged = memory::page_tables_bytes(regions.prefill_sum() - page_tables_bytes);
    at.key("page_tables_bytes").note("as many as the other regions take");
    at.key("page_tables_bytes").holds(page_tables_bytes == paged, || {
        format!("is {page_tables_bytes}; those of the other regions together take {paged}")
    })?;
    for (key, total, sum) in [
        ("decode_total_bytes", decode_total_bytes, regions.decode_sum()),
        ("prefill_total_bytes", prefill_total_bytes, regions.prefill_sum()),
    ] {
        let at = at.key(key);
        at.note("the sum of the regions, up to `memory.limit_bytes`");
        at.holds(total == sum, || format!("is {total}, but the regions add up to {sum}"))?;
        at.holds(total <= limit_bytes, || format!("is {total}, above the limit of {limit_bytes} bytes"))?;
    }
    Ok(())
}

fn cache(cache: &CachePlan, layers: usize, at: &At<'_>) -> Checked {
    let CachePlan { policy, hot_neurons, cold_slots, slice_neurons, slot_bytes } = cache;
    at.key("policy").one_of_its_names(*policy);
    at.key("slice_neurons").count(*slice_neurons, 1, NEURONS_MAX.into())?;
    for (key, counts) in [("hot_neurons", hot_neurons), ("cold_slots", cold_slots)] {
        let at = at.key(key);
        at.each(counts, |at, &count| {
            at.count(count, 0, NEURONS_MAX.into())?;
            at.note("0 to 2^32 - 1, whole slices of `cache.slice_neurons`");
            at.holds(count.is_multiple_of(*slice_neurons), || {
                format!("is {count}; neurons come and go {slice_neurons} together")
            })
        })?;
        at.length(counts.len(), layers, "`quality.always_on_neurons` has")?;
    }
    if !slot_bytes.is_empty() {
        let at = at.key("slot_bytes");
        at.each(slot_bytes, |at, &bytes| at.count(bytes, 1, SLOT_BYTES_MAX))?;
        at.length(slot_bytes.len(), layers, "`quality.always_on_neurons` has")?;
    }
    for (layer, (&hot, &cold)) in hot_neurons.iter().zip(cold_slots).enumerate() {
        at.key("cold_slots").item(layer).holds(hot.checked_add(cold).is_some(), || {
            format!("is {cold}; with {hot} pinned neurons that is more than a layer can have")
        })?;
    }
    Ok(())
}

/// The most bytes of a neuron in memory.
const SLOT_BYTES_MAX: u64 = 1 << 30;

/// Regions that are so many things of one size each.
fn regions_beside_counts(plan: &Plan, at: &At<'_>) -> Checked {
    let (m, r) = (&plan.memory, &plan.read);
    let buffers = u64::from(r.buffers) * r.buffer_bytes;
    let beyond = m.io_buffers_bytes.checked_sub(buffers);
    let fits = if r.embedding_rows {
        beyond.is_some_and(|row| row >= 2 * PAGE_BYTES && row.is_multiple_of(PAGE_BYTES))
    } else {
        beyond == Some(0)
    };
    let and = if r.embedding_rows { " and the pages of an embedding's row" } else { "" };
    let io_buffers = at.key("io_buffers_bytes");
    io_buffers
        .note("`read.buffers` times `read.buffer_bytes`, and with `read.embedding_rows` two pages or more");
    io_buffers.holds(fits, || {
        format!("is {}; read.buffers * read.buffer_bytes is {buffers}{and}", m.io_buffers_bytes)
    })?;
    let sum = |counts: &[u32]| counts.iter().map(|&count| u64::from(count)).sum::<u64>();
    let (hot, cold) = (sum(&plan.cache.hot_neurons), sum(&plan.cache.cold_slots));
    for (key, bytes, count) in [("hot_bytes", m.hot_bytes, hot), ("cold_bytes", m.cold_bytes, cold)] {
        let at = at.key(key);
        at.note("whole pages, as many as the neurons in [cache] fill");
        at.holds((bytes == 0) == (count == 0), || format!("is {bytes}, and [cache] names {count} neurons"))?;
    }
    if !plan.cache.slot_bytes.is_empty() {
        return slots_of_layers(plan, at);
    }
    // slots of one size fill both regions: between what is more than a page less and the whole
    let size = |bytes: u64, count: u64| {
        let least = (bytes.saturating_sub(PAGE_BYTES) / count.max(1)) + 1;
        bytes.checked_div(count).map_or((1, u64::MAX), |most| (least, most))
    };
    let ((hot_least, hot_most), (cold_least, cold_most)) = (size(m.hot_bytes, hot), size(m.cold_bytes, cold));
    at.key("hot_bytes").holds(hot_least <= hot_most, || {
        format!("is {}, which {hot} neurons of one size do not fill; plan again", m.hot_bytes)
    })?;
    at.key("cold_bytes").holds(
        cold_least <= cold_most && hot_least.max(cold_least) <= hot_most.min(cold_most),
        || {
            format!(
                "is {} for {cold} neurons, and memory.hot_bytes {} for {hot}; plan again",
                m.cold_bytes, m.hot_bytes
            )
        },
    )?;
    keys_and_values(plan, at)
}

/// The regions of slots that are of other sizes in each layer.
fn slots_of_layers(plan: &Plan, at: &At<'_>) -> Checked {
    let (m, cache) = (&plan.memory, &plan.cache);
    for (key, found, counts) in
        [("hot_bytes", m.hot_bytes, &cache.hot_neurons), ("cold_bytes", m.cold_bytes, &cache.cold_slots)]
    {
        let of_layer = |(&count, &bytes): (&u32, &u64)| u64::from(count).saturating_mul(bytes);
        let bytes = counts.iter().zip(&cache.slot_bytes).map(of_layer).fold(0, u64::saturating_add);
        let pages = bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        at.key(key).holds(found == pages, || {
            format!("is {found}, and cache.slot_bytes of the neurons in [cache] come to {pages}; plan again")
        })?;
    }
    keys_and_values(plan, at)
}

/// Keys and values, of whole blocks, for every token: as many in every layer, or what `kv_token_bytes` says of all of them.
fn keys_and_values(plan: &Plan, at: &At<'_>) -> Checked {
    let m = &plan.memory;
    let block = plan.quality.kv().block_bytes();
    let tokens = u64::from(plan.context.tokens) * u64::from(plan.context.sequences);
    let (of_token, kv) = (at.key("kv_token_bytes"), at.key("kv_bytes"));
    of_token.note("whole blocks of `quality.kv_format`");
    of_token.holds(m.kv_token_bytes.is_multiple_of(block), || {
        format!("is {}, which blocks of {block} bytes do not fill; plan again", m.kv_token_bytes)
    })?;
    kv.note("whole pages, as many as `context.tokens` of all `context.sequences` fill");
    let (unit, per_token) = if m.kv_token_bytes > 0 {
        (m.kv_token_bytes, 1)
    } else {
        let unit = 2 * block * plan.quality.always_on_neurons.len() as u64;
        (unit, m.kv_bytes / (tokens * unit))
    };
    let pages = tokens
        .checked_mul(unit)
        .and_then(|bytes| bytes.checked_mul(per_token)?.checked_next_multiple_of(PAGE_BYTES));
    kv.holds(per_token > 0 && pages == Some(m.kv_bytes), || {
        format!(
            "is {}, which keys and values of {tokens} tokens do not fill; plan again with `--context {}`",
            m.kv_bytes, plan.context.tokens
        )
    })
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

fn expected(expected: &Expected, plan: &Plan, at: &At<'_>) -> Checked {
    let Expected {
        decode_tokens_per_second,
        decode_seconds_constant,
        decode_seconds_per_context_token,
        decode_cold_start_seconds,
        decode_compute_seconds,
        decode_memory_seconds,
        decode_io_seconds,
        decode_serial_seconds,
        prefill_tokens_per_second,
        bytes_read_per_token,
        hit_fraction,
        active_predicted_fraction,
        active_true_fraction,
        perplexity_change_fraction,
        perplexity_change_fraction_upper,
        container_perplexity_change_fraction,
        memory_peak_bytes,
        start_seconds,
        missing_p50_over_mean,
        missing_p90_over_mean,
        missing_p99_over_mean,
        decode_seconds_p50,
        decode_seconds_p90,
        decode_seconds_p99,
        floor: of_floor,
    } = *expected;
    let speed = at.key("decode_tokens_per_second");
    speed.above_zero(decode_tokens_per_second, TOKENS_PER_SECOND_MAX)?;
    let constant = at.key("decode_seconds_constant");
    constant.above_zero(decode_seconds_constant, SECONDS_MAX)?;
    at.key("decode_seconds_per_context_token").seconds(decode_seconds_per_context_token)?;
    let cold_start = at.key("decode_cold_start_seconds");
    cold_start.seconds(decode_cold_start_seconds)?;
    cold_start.note("0 to 86400; above 0 where single neurons come and go");
    let single = plan.slots() > 0.0 && plan.cache.slice_neurons <= 1;
    cold_start.holds(decode_cold_start_seconds > 0.0 || !single, || {
        "is 0, and there are slots to be filled; plan again".to_owned()
    })?;
    let parts = [
        ("decode_compute_seconds", decode_compute_seconds),
        ("decode_memory_seconds", decode_memory_seconds),
        ("decode_io_seconds", decode_io_seconds),
        ("decode_serial_seconds", decode_serial_seconds),
    ];
    for (key, seconds) in parts {
        let at = at.key(key);
        at.seconds(seconds)?;
        at.note("0 to `expected.decode_seconds_constant`");
        at.holds(seconds <= OVERLAP * decode_seconds_constant, || {
            format!(
                "is {}, more than the {} of which it is a part",
                number(seconds),
                number(decode_seconds_constant)
            )
        })?;
    }
    let (_, generated) = measured_run(plan.context.tokens);
    let seconds = decode_seconds_constant
        + decode_seconds_per_context_token * mean_position(plan.context.tokens)
        + decode_cold_start_seconds * plan.filled_fraction(f64::from(generated)) / f64::from(generated);
    speed.note(
        "1 / (constant + slope * mean position + cold start * share of the slots by `filling` / generated tokens), within a thousandth",
    );
    speed.holds((decode_tokens_per_second * seconds - 1.0).abs() <= ROUNDING, || {
        format!(
            "is {decode_tokens_per_second}; with the constant, slope and cold start beside it and a context of {} \
             tokens it is {}",
            plan.context.tokens,
            crate::file::significant(1.0 / seconds)
        )
    })?;
    at.key("prefill_tokens_per_second").above_zero(prefill_tokens_per_second, TOKENS_PER_SECOND_MAX)?;
    at.key("bytes_read_per_token").number(bytes_read_per_token, 0.0, BYTES_MAX as f64)?;
    at.key("bytes_read_per_token").note("0 to 2^50; above 0 where `expected.hit_fraction` is below 1");
    at.key("hit_fraction").fraction(hit_fraction)?;
    at.key("decode_io_seconds")
        .note("0 to `expected.decode_seconds_constant`; above 0 where `expected.hit_fraction` is below 1");
    for (key, value) in
        [("bytes_read_per_token", bytes_read_per_token), ("decode_io_seconds", decode_io_seconds)]
    {
        at.key(key).holds(value > 0.0 || hit_fraction == 1.0, || {
            format!("is 0, and a `expected.hit_fraction` of {hit_fraction} leaves neurons to be read")
        })?;
    }
    at.key("active_predicted_fraction").fraction(active_predicted_fraction)?;
    let truly = at.key("active_true_fraction");
    truly.fraction(active_true_fraction)?;
    truly.note("0 to `expected.active_predicted_fraction`");
    truly.holds(active_true_fraction <= active_predicted_fraction * (1.0 + ROUNDING), || {
        format!("is {active_true_fraction}, more than the {active_predicted_fraction} that are requested")
    })?;
    let change = at.key("perplexity_change_fraction");
    change.number(perplexity_change_fraction, PERPLEXITY_CHANGE_MIN, LOSS_MAX)?;
    if let Some(upper) = perplexity_change_fraction_upper {
        let at = at.key("perplexity_change_fraction_upper");
        at.number(upper, PERPLEXITY_CHANGE_MIN, LOSS_MAX)?;
        at.note("`expected.perplexity_change_fraction` or above");
        at.holds(upper >= perplexity_change_fraction, || {
            format!("is {upper}, and what was measured is {perplexity_change_fraction} already")
        })?;
    }
    if let Some(change) = container_perplexity_change_fraction {
        let at = at.key("container_perplexity_change_fraction");
        at.number(change, PERPLEXITY_CHANGE_MIN, LOSS_MAX)?;
    }
    let peak = at.key("memory_peak_bytes");
    peak.note("`memory.prefill_total_bytes`");
    peak.holds(memory_peak_bytes == plan.memory.prefill_total_bytes, || {
        format!("is {memory_peak_bytes}; memory.prefill_total_bytes is {}", plan.memory.prefill_total_bytes)
    })?;
    if let Some(seconds) = start_seconds {
        at.key("start_seconds").above_zero(seconds, SECONDS_MAX)?;
    }
    let missing = [
        ("missing_p50_over_mean", missing_p50_over_mean),
        ("missing_p90_over_mean", missing_p90_over_mean),
        ("missing_p99_over_mean", missing_p99_over_mean),
    ];
    percentiles(missing, at, |at, value, share| at.number(value, 0.0, over_mean_max(share)))?;
    let seconds = [
        ("decode_seconds_p50", decode_seconds_p50),
        ("decode_seconds_p90", decode_seconds_p90),
        ("decode_seconds_p99", decode_seconds_p99),
    ];
    percentiles(seconds, at, |at, value, _| at.above_zero(value, SECONDS_MAX))?;
    of_floor.map_or(Ok(()), |of_floor| floor(&of_floor, &at.key("floor")))
}

/// Lengths of runs, and what each misses.
fn filling(filling: &Filling, plan: &Plan, at: &At<'_>) -> Checked {
    let Filling { tokens, neurons } = filling;
    let lengths = at.key("tokens");
    lengths.note("rising, one at least");
    lengths.each(tokens, |at, &tokens| at.count(tokens, 1, CONTEXT_MAX.into()))?;
    lengths.holds(!tokens.is_empty() && tokens.is_sorted_by(|a, b| a < b), || {
        "is not a rising list of lengths; plan again".to_owned()
    })?;
    let (missed, slots) = (at.key("neurons"), plan.slots());
    missed.note("as many as `filling.tokens`, falling nowhere, at most all of `cache.cold_slots`");
    missed.each(neurons, |at, &neurons| at.number(neurons, 0.0, NEURONS_MAX as f64 * LAYERS_MAX as f64))?;
    missed.holds(neurons.len() == tokens.len() && neurons.is_sorted(), || {
        format!("are not {} numbers of which none is less than the one before; plan again", tokens.len())
    })?;
    let last = neurons.last().copied().unwrap_or(0.0);
    missed.holds(last <= slots * (1.0 + ROUNDING), || {
        format!("end with {last}, and there are {slots} slots; plan again")
    })
}

/// A speed for each number of sequences, the first that of one.
fn together(together: Option<&Together>, plan: &Plan, at: &At<'_>) -> Checked {
    let (at, sequences) = (&at.key("decode_tokens_per_second"), plan.context.sequences as usize);
    let speeds = together.map_or(&[][..], |together| &together.decode_tokens_per_second);
    at.each(speeds, |at, speed| at.above_zero(*speed, TOKENS_PER_SECOND_MAX))?;
    let expected = if sequences > 1 { sequences } else { 0 };
    at.note(
        "as many as `context.sequences`, none where that is 1; the first `expected.decode_tokens_per_second`",
    );
    at.holds(speeds.len() == expected, || {
        format!("has {} speeds, and there are {sequences} sequences; plan again", speeds.len())
    })?;
    let one = plan.expected.decode_tokens_per_second;
    at.holds(speeds.first().is_none_or(|speed| (speed / one - 1.0).abs() <= ROUNDING), || {
        format!("begins with another speed than the {one} of one sequence; plan again")
    })
}

/// Drafts whose rows pass a layer together with a token of each sequence.
fn speculation(speculation: Speculation, plan: &Plan, at: &At<'_>) -> Checked {
    let Speculation { draft_tokens, drafted_tokens_per_step, tokens_per_step, decode_tokens_per_second } =
        speculation;
    let sequences = plan.context.sequences;
    at.key("draft_tokens").count(draft_tokens, 1, DRAFT_TOKENS_MAX as u64)?;
    at.key("draft_tokens").holds(plan.decode_rows() as usize <= ROWS_MAX, || {
        format!("is {draft_tokens} beside {sequences} sequences, and a step has {ROWS_MAX} rows at most; plan with fewer `--slots`")
    })?;
    let most = f64::from(draft_tokens);
    let drafted = at.key("drafted_tokens_per_step");
    drafted.number(drafted_tokens_per_step, 0.0, most)?;
    drafted.note("0 to `speculation.draft_tokens`");
    let brought = at.key("tokens_per_step");
    brought.number(tokens_per_step, 1.0, 1.0 + DRAFT_TOKENS_MAX as f64)?;
    brought.note("1 to one more than `speculation.drafted_tokens_per_step`");
    brought.holds(tokens_per_step <= (1.0 + drafted_tokens_per_step) * (1.0 + ROUNDING), || {
        format!("is {tokens_per_step}, and only {drafted_tokens_per_step} tokens are drafted; plan again")
    })?;
    at.key("decode_tokens_per_second").above_zero(decode_tokens_per_second, TOKENS_PER_SECOND_MAX)
}

/// All of some percentiles or none, each at least the one before.
fn percentiles(
    of: [(&str, Option<f64>); QUANTILES.len()],
    at: &At<'_>,
    value: impl Fn(&At<'_>, f64, f64) -> Checked,
) -> Checked {
    let [(first, _), ..] = of;
    let mut before: Option<Option<f64>> = None;
    for ((key, percentile), share) in of.into_iter().zip(QUANTILES) {
        let at = at.key(key);
        if let Some(percentile) = percentile {
            value(&at, percentile, share)?;
        }
        let least = before.unwrap_or(percentile);
        at.holds(percentile.is_some() == least.is_some(), || {
            format!("and `expected.{first}` stand together; give all three or none")
        })?;
        at.holds(percentile >= least, || {
            format!("is {}, less than the percentile before it", percentile.unwrap_or_default())
        })?;
        before = Some(percentile);
    }
    Ok(())
}

fn floor(floor: &Floor, at: &At<'_>) -> Checked {
    let Floor { stream_bytes_per_second, gather_bytes_per_second, reads_per_second, read_bytes } = *floor;
    at.key("stream_bytes_per_second").rate(stream_bytes_per_second)?;
    at.key("gather_bytes_per_second").rate(gather_bytes_per_second)?;
    if let Some(rate) = reads_per_second {
        at.key("reads_per_second").rate(rate)?;
    }
    at.key("read_bytes").count(read_bytes, 1, BUFFER_BYTES_MAX)
}
