//! The ranges of the rates and parts in a `plan.toml`, each by itself and beside what is expected.

use super::{
    Factors, LayerTerms, PromptTerms, Rates, ReadingTerms, StartTerms, Terms, TokenSeconds, VISITED, Work,
};
use crate::check::{At, Checked, FORMATS, NEURONS_MAX, RATE_MAX, SECONDS_MAX, number};
use crate::plan::{Plan, measured_run};

/// How far figures of six digits may lie apart that are one figure.
const ROUNDING: f64 = 1e-3;

/// The smallest factor by which a machine is taken to differ from its profile, and the inverse of the largest: beyond it the
/// profile is of another machine.
const FACTOR_MIN: f64 = 0.05;

/// Each factor.
pub(crate) fn factors(factors: &Factors, at: &At<'_>) -> Checked {
    let named = factors.named();
    named.iter().try_for_each(|(key, factor)| at.key(key).number(*factor, FACTOR_MIN, 1.0 / FACTOR_MIN))
}

/// Each rate by itself, and which stand together.
pub(crate) fn rates(rates: &Rates, plan: &Plan, at: &At<'_>) -> Checked {
    let Rates {
        weight_format,
        flops_per_second,
        dense_bytes_per_second,
        sparse_bytes_per_second,
        random_read_bytes,
        random_reads_per_second,
        ordered_reads_per_second,
    } = rates;
    let format = at.key("weight_format");
    if let Some(name) = weight_format {
        format.named(name, &FORMATS)?;
    }
    for (key, rate) in [
        ("flops_per_second", flops_per_second),
        ("dense_bytes_per_second", dense_bytes_per_second),
        ("sparse_bytes_per_second", sparse_bytes_per_second),
    ] {
        let at = at.key(key);
        if let Some(rate) = rate {
            at.rate(*rate)?;
        }
        // rows here and there may be of a walk that is no longer taken
        let unknown = key == "sparse_bytes_per_second" && rate.is_none();
        at.holds(unknown || rate.is_some() == weight_format.is_some(), || {
            "and `rates.weight_format` stand together; give both or neither".to_owned()
        })?;
    }
    let bytes = at.key("random_read_bytes");
    if let Some(of_read) = random_read_bytes {
        bytes.pages(*of_read)?;
        bytes.count(*of_read, crate::PAGE_BYTES, plan.read.buffer_bytes)?;
        bytes.note("whole pages of 4096, up to `read.buffer_bytes`");
    }
    let reads = at.key("random_reads_per_second");
    if let Some(rate) = random_reads_per_second {
        reads.rate(*rate)?;
    }
    reads.holds(random_reads_per_second.is_some() == random_read_bytes.is_some(), || {
        "and `rates.random_read_bytes` stand together; give both or neither".to_owned()
    })?;
    ordered_reads_per_second.map_or(Ok(()), |rate| at.key("ordered_reads_per_second").rate(rate))
}

/// Each part by itself, and that together they are what is expected.
pub(crate) fn terms(terms: &Terms, plan: &Plan, at: &At<'_>) -> Checked {
    let Terms {
        dispatch_seconds,
        wake_seconds,
        cores_over_slowest,
        attention,
        select,
        look_ahead,
        rest,
        context,
        reading,
        layers,
        prompt,
        start,
    } = terms;
    at.key("dispatch_seconds").seconds(*dispatch_seconds)?;
    at.key("wake_seconds").seconds(*wake_seconds)?;
    if let Some(pace) = cores_over_slowest {
        at.key("cores_over_slowest").number(*pace, 1.0, 1e6)?;
    }
    for (key, of_stage) in [
        ("attention", attention),
        ("select", select),
        ("look_ahead", look_ahead),
        ("rest", rest),
        ("context", context),
    ] {
        work(of_stage, &at.key(key))?;
    }
    let ReadingTerms {
        cpu_seconds_per_read,
        interference_fraction,
        covered_reads_per_second,
        shares_cores,
        prefetched_fraction,
        prefetched_used_fraction,
        completed_together_fraction,
        reads_by_chance,
        check_seconds_per_neuron,
    } = *reading;
    let of_reading = at.key("reading");
    of_reading.key("cpu_seconds_per_read").seconds(cpu_seconds_per_read)?;
    of_reading.key("interference_fraction").fraction(interference_fraction)?;
    of_reading.key("covered_reads_per_second").rate(covered_reads_per_second)?;
    of_reading.key("shares_cores").free(shares_cores);
    of_reading.key("prefetched_fraction").fraction(prefetched_fraction)?;
    of_reading.key("prefetched_used_fraction").fraction(prefetched_used_fraction)?;
    of_reading.key("completed_together_fraction").fraction(completed_together_fraction)?;
    of_reading.key("reads_by_chance").number(reads_by_chance, 0.0, NEURONS_MAX.into())?;
    of_reading.key("check_seconds_per_neuron").seconds(check_seconds_per_neuron)?;
    of_layers(layers, plan, &at.key("layers"))?;
    of_prompt(prompt, plan, &at.key("prompt"))?;
    if let Some(StartTerms { read_seconds, memory_seconds }) = *start {
        let at = &at.key("start");
        at.key("read_seconds").seconds(read_seconds)?;
        at.key("memory_seconds").seconds(memory_seconds)?;
    }
    as_expected(terms, plan)
}

fn work(work: &Work, at: &At<'_>) -> Checked {
    let Work {
        compute_seconds,
        stream_seconds,
        gather_seconds,
        dispatch_seconds,
        serial_seconds,
        read_seconds,
    } = *work;
    for (key, seconds) in [
        ("compute_seconds", compute_seconds),
        ("stream_seconds", stream_seconds),
        ("gather_seconds", gather_seconds),
        ("dispatch_seconds", dispatch_seconds),
        ("serial_seconds", serial_seconds),
        ("read_seconds", read_seconds),
    ] {
        at.key(key).seconds(seconds)?;
    }
    Ok(())
}

/// A list with an entry from 0 to `most` for each layer; it may be absent where it `may`.
fn list(values: &[f64], most: f64, may: bool, plan: &Plan, at: &At<'_>) -> Checked {
    at.item(0).note(&format!("0 to {}", number(most)));
    at.each(values, |at, &value| at.number(value, 0.0, most))?;
    length(values.len(), may, plan, at)
}

fn length(found: usize, may_be_absent: bool, plan: &Plan, at: &At<'_>) -> Checked {
    let none = if may_be_absent { ", or none" } else { "" };
    if !(may_be_absent && found == 0) {
        let layers = plan.quality.always_on_neurons.len();
        at.length(found, layers, "`quality.always_on_neurons` has")?;
    }
    at.note(&format!("as many as `quality.always_on_neurons` has{none}"));
    Ok(())
}

fn of_layers(layers: &LayerTerms, plan: &Plan, at: &At<'_>) -> Checked {
    let LayerTerms {
        requested_neurons,
        gate_up_compute_seconds,
        gate_up_stream_seconds,
        gate_up_gather_seconds,
        down_compute_seconds,
        down_stream_seconds,
        down_gather_seconds,
        down_dispatch_seconds,
        down_serial_seconds,
        insert_seconds,
        missing_neurons,
        reads,
        read_seconds,
        prefetch_read_seconds,
        reads_in_order,
        further_reads,
        further_read_seconds,
    } = layers;
    let neurons = f64::from(NEURONS_MAX);
    for (key, values, most) in [
        ("requested_neurons", requested_neurons, neurons),
        ("gate_up_compute_seconds", gate_up_compute_seconds, SECONDS_MAX),
        ("gate_up_stream_seconds", gate_up_stream_seconds, SECONDS_MAX),
        ("gate_up_gather_seconds", gate_up_gather_seconds, SECONDS_MAX),
        ("down_compute_seconds", down_compute_seconds, SECONDS_MAX),
        ("down_stream_seconds", down_stream_seconds, SECONDS_MAX),
        ("down_gather_seconds", down_gather_seconds, SECONDS_MAX),
        ("down_dispatch_seconds", down_dispatch_seconds, SECONDS_MAX),
        ("down_serial_seconds", down_serial_seconds, SECONDS_MAX),
        ("insert_seconds", insert_seconds, SECONDS_MAX),
        ("missing_neurons", missing_neurons, neurons),
        ("reads", reads, neurons),
        ("read_seconds", read_seconds, SECONDS_MAX),
        ("prefetch_read_seconds", prefetch_read_seconds, SECONDS_MAX),
        ("further_reads", further_reads, 4.0 * neurons),
        ("further_read_seconds", further_read_seconds, SECONDS_MAX),
    ] {
        list(values, most, true, plan, &at.key(key))?;
    }
    let at = at.key("reads_in_order");
    at.item(0).free(true);
    length(reads_in_order.len(), true, plan, &at)
}

fn of_prompt(prompt: &PromptTerms, plan: &Plan, at: &At<'_>) -> Checked {
    let PromptTerms {
        rest,
        memory_seconds,
        token_seconds,
        attention_fraction,
        chunk_seconds,
        read_seconds,
        layer_read_seconds,
        reads_per_second,
        taken_seconds_per_read,
        check_seconds_per_read,
        visited_fraction,
    } = prompt;
    work(rest, &at.key("rest"))?;
    at.key("memory_seconds").seconds(*memory_seconds)?;
    list(token_seconds, SECONDS_MAX, false, plan, &at.key("token_seconds"))?;
    at.key("attention_fraction").fraction(*attention_fraction)?;
    list(chunk_seconds, SECONDS_MAX, true, plan, &at.key("chunk_seconds"))?;
    list(read_seconds, SECONDS_MAX, true, plan, &at.key("read_seconds"))?;
    at.key("layer_read_seconds").seconds(*layer_read_seconds)?;
    at.key("taken_seconds_per_read").seconds(*taken_seconds_per_read)?;
    at.key("check_seconds_per_read").seconds(*check_seconds_per_read)?;
    at.key("reads_per_second").number(*reads_per_second, 0.0, RATE_MAX)?;
    let visited = at.key("visited_fraction");
    visited.each(visited_fraction, |at, &fraction| at.fraction(fraction))?;
    visited.note(&format!("{VISITED}, or none; falling nowhere"));
    visited.holds([0, VISITED].contains(&visited_fraction.len()) && visited_fraction.is_sorted(), || {
        format!(
            "are shares of ever more tokens: {VISITED}, of which none is less than the one before; plan again"
        )
    })
}

/// At the rates that are assumed the parts are what is expected.
fn as_expected(terms: &Terms, plan: &Plan) -> Checked {
    let e = &plan.expected;
    let TokenSeconds { constant, per_context_token, .. } = terms.decode(plan, &Factors::NONE, 1.0);
    let (prompt, _) = measured_run(plan.context.tokens);
    let speed = f64::from(prompt) / terms.prompt_seconds(plan, prompt, &Factors::NONE);
    let file = At::file(None);
    let start = e
        .start_seconds
        .zip(terms.start)
        .map(|(expected, parts)| ("start_seconds", expected, parts.seconds()));
    let of_tokens = [
        ("decode_seconds_constant", e.decode_seconds_constant, constant),
        ("decode_seconds_per_context_token", e.decode_seconds_per_context_token, per_context_token),
        ("prefill_tokens_per_second", e.prefill_tokens_per_second, speed),
    ];
    for (key, expected, parts) in of_tokens.into_iter().chain(start) {
        let close = (parts - expected).abs() <= ROUNDING * expected;
        file.key("expected").key(key).holds(close, || {
            format!(
                "is {}; the parts in `terms` come to {}, as this version adds them up: plan again",
                number(expected),
                number(crate::file::significant(parts))
            )
        })?;
    }
    Ok(())
}
