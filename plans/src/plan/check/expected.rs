//! The ranges of a plan's expected figures, and their agreement with the rest of the plan.

use super::super::{Expected, Filling, Floor, Plan, Speculation, Together, mean_position, measured_run};
use super::{BUFFER_BYTES_MAX, OVERLAP, ROUNDING};
use crate::check::{
    At, BYTES_MAX, CONTEXT_MAX, Checked, LAYERS_MAX, LOSS_MAX, NEURONS_MAX, SECONDS_MAX,
    TOKENS_PER_SECOND_MAX, number,
};
use crate::engine::{DRAFT_TOKENS_MAX, ROWS_MAX};
use crate::expectation::{QUANTILES, over_mean_max};
use crate::model::check::PERPLEXITY_CHANGE_MIN;

pub(super) fn expected(expected: &Expected, plan: &Plan, at: &At<'_>) -> Checked {
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
    cold_start.note("0 to 86400; above 0 where single neurons are cached");
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

/// Lengths of runs, and the extra misses of each.
pub(super) fn filling(filling: &Filling, plan: &Plan, at: &At<'_>) -> Checked {
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

/// A speed for each number of sequences, beginning with one.
pub(super) fn together(together: Option<&Together>, plan: &Plan, at: &At<'_>) -> Checked {
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

/// Drafts, whose rows share a batch with a token of each sequence.
pub(super) fn speculation(speculation: Speculation, plan: &Plan, at: &At<'_>) -> Checked {
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

/// Percentiles: all or none, each at least the one before.
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
