//! The ranges of a plan's regions and caches, and their agreement with each other.

use super::super::{CachePlan, MemoryPlan, Plan};
use crate::check::{At, BYTES_MAX, Checked, NEURONS_MAX};
use crate::{PAGE_BYTES, memory};

/// Each region, and their sums.
pub(super) fn regions(regions: &MemoryPlan, at: &At<'_>) -> Checked {
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
        unit_bytes,
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
        ("unit_bytes", unit_bytes),
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

pub(super) fn cache(cache: &CachePlan, layers: usize, at: &At<'_>) -> Checked {
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

/// Regions of equal items: count times size.
pub(super) fn regions_beside_counts(plan: &Plan, at: &At<'_>) -> Checked {
    let (m, r) = (&plan.memory, &plan.read);
    let buffers = u64::from(r.buffers) * r.buffer_bytes;
    let beyond = m.io_buffers_bytes.checked_sub(buffers);
    let fits = if r.reads_rows() {
        beyond.is_some_and(|row| row >= 2 * PAGE_BYTES && row.is_multiple_of(PAGE_BYTES))
    } else {
        beyond == Some(0)
    };
    let and = if r.reads_rows() { " and the pages of an embedding's row" } else { "" };
    let io_buffers = at.key("io_buffers_bytes");
    io_buffers.note(
        "`read.buffers` times `read.buffer_bytes`, and with `read.embedding_rows` or `read.per_layer_rows` two pages or more",
    );
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
    // slots of one size fill both regions, up to the padding of a page
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

/// Slot regions whose slots have a different size in each layer.
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

/// Keys and values of every token, in whole blocks: equal in all layers, or `kv_token_bytes` for all together.
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
