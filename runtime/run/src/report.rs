//! The report of a run: planned, planned at current rates (`now`), and measured.
//!
//! The table has the figures that a person wants. `--report` adds the details, `--json` has all [`Figures`].

use std::fmt::Write as _;

use flashplan::internals::counters::Stage;
use flashplan::internals::machine::OTHERS_MAX;
use plans::names::{self, duration};
use plans::size::show;
use plans::{KvFormat, Plan};
use serde::Serialize;
use terminal::Rows;

use super::ended::Ended;
use super::figures::{Figures, selects};
use super::{Failure, failure};

/// A speed so close to the one planned is the same.
const SAME_FRACTION: f64 = 0.02;

/// The facts at the head of a report.
#[derive(Debug, Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) model: &'a str,
    pub(super) device: &'a str,
    pub(super) level: &'a str,
    /// How keys and values are stored.
    pub(super) kv: KvFormat,
    /// Whether the level selects neurons.
    pub(super) selects: bool,
    /// How a generation ended; nothing was generated: none.
    pub(super) ended: Option<(usize, Ended)>,
}

impl<'a> About<'a> {
    pub(super) fn new(model: &'a str, plan: &'a Plan, ended: Option<(usize, Ended)>) -> Self {
        let (device, quality) = (&plan.target.device, &plan.quality);
        Self { model, device, level: &quality.level, kv: quality.kv(), selects: selects(plan), ended }
    }
}

/// One figure, planned and measured.
struct Row {
    name: &'static str,
    planned: Option<f64>,
    /// At current rates; `None`: the figure does not depend on them.
    now: Option<Option<f64>>,
    measured: Option<f64>,
    show: fn(f64) -> String,
}

/// The table of a run, and sentences about everything unusual.
pub(super) fn text(about: &About<'_>, f: &Figures) -> String {
    let in_blocks = format!(", keys and values in {}", about.kv.name());
    let mut text = format!(
        "{} on {}: quality level `{}`{}, at most {} of memory\n\n{}\n",
        about.model,
        about.device,
        about.level,
        if about.kv.has_blocks() { &in_blocks } else { "" },
        show(f.memory_limit_bytes),
        table(f)
    );
    for sentence in sentences(about, f) {
        text.push('\n');
        text += &sentence;
    }
    text
}

fn table(f: &Figures) -> String {
    let several: fn(f64) -> String = |value| format!("{value:.2}");
    let percent: fn(f64) -> String = |value| format!("{:.1} %", value * 100.0);
    let bytes: fn(f64) -> String = |value| show(value.round() as u64);
    let speed: fn(f64) -> String = |value| format!("{value:.1} tok/s");
    let row = |name, planned, measured, show| Row { name, planned, now: None, measured, show };
    let timed = |name, [planned, now, measured]: [Option<f64>; 3], show| Row {
        now: Some(now),
        ..row(name, planned, measured, show)
    };
    let decode =
        [f.decode_tokens_per_second_predicted, f.decode_tokens_per_second_now, f.decode_tokens_per_second];
    let mut rows = vec![timed(names::DECODE, decode, speed)];
    if f.tokens_per_step.is_some() {
        rows.push(row(names::TOKENS_PER_STEP, f.tokens_per_step_predicted, f.tokens_per_step, several));
    }
    let slowest = latencies(f).map(|of| of.map(|[_, _, p99]| p99));
    let prefill =
        [f.prefill_tokens_per_second_predicted, f.prefill_tokens_per_second_now, f.prefill_tokens_per_second];
    let first = [
        f.time_to_first_token_seconds_predicted,
        f.time_to_first_token_seconds_now,
        f.time_to_first_token_seconds,
    ];
    let start = [f.start_seconds_predicted, f.start_seconds_now, Some(f.start_seconds)];
    let peak = [f.memory_peak_bytes_predicted, f.memory_peak_bytes].map(|bytes| Some(bytes as f64));
    rows.extend([
        timed(names::TOKEN[2], slowest, duration),
        timed(names::PREFILL, prefill, speed),
        timed(names::FIRST_TOKEN, first, duration),
        timed(names::START, start, duration),
        row(names::READ, f.bytes_read_per_token_predicted, f.bytes_read_per_token, bytes),
        row(names::FOUND, f.hit_fraction_predicted, f.hit_fraction, percent),
        row(names::PEAK, peak[0], peak[1], bytes),
    ]);
    let (change, upper) =
        (f.perplexity_change_fraction_predicted, f.perplexity_change_fraction_upper_predicted);
    let is_lossless = change == 0.0 && upper.is_none_or(|upper| upper == 0.0);
    let loss: fn(f64) -> String = match is_lossless {
        true => |_| "lossless".to_owned(),
        false => |fraction| format!("{:+.2} %", fraction * 100.0),
    };
    rows.push(row(names::CHANGE, Some(change), None, loss));
    if let Some(upper) = upper.filter(|_| !is_lossless) {
        rows.push(row("  at most (95 %)", Some(upper), None, loss));
    }
    compare(rows, f)
}

/// P50, P90 and P99 of a token's time: planned, at current rates and measured.
fn latencies(f: &Figures) -> [Option<[f64; 3]>; 3] {
    [f.latency_seconds_predicted, f.latency_seconds_now, f.latency_seconds]
        .map(|of| of.map(|of| [of.p50, of.p90, of.p99]))
}

/// Columns for planned and measured, and for current rates where they were measured.
fn compare(rows: Vec<Row>, f: &Figures) -> String {
    let is_probed = f.current.as_ref().is_some_and(|current| current.in_plan && current.factors().is_some());
    let mut heading = vec!["", "planned", "measured"];
    if is_probed {
        heading.insert(2, "now");
    }
    let mut table = Rows::headed(&heading);
    for Row { name, planned, now, measured, show } in rows {
        let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), show);
        let (name, planned, measured) = (name.to_owned(), cell(planned), cell(measured));
        if is_probed {
            table.row([name, planned, now.map_or_else(String::new, cell), measured]);
        } else {
            table.row([name, planned, measured]);
        }
    }
    table.to_string()
}

fn sentences(about: &About<'_>, f: &Figures) -> Vec<String> {
    let mut sentences = Vec::new();
    if let Some((tokens, ended)) = about.ended {
        sentences.push(format!("The text ended after {}{}.", count(tokens, "token"), ended.reason()));
    }
    if let (Some(predicted), Some(measured)) =
        (f.decode_tokens_per_second_predicted, f.decode_tokens_per_second)
    {
        let now = f.decode_tokens_per_second_now.map(|now| measured / now - 1.0);
        sentences.push(compared(measured / predicted - 1.0, now));
    }
    if f.plan_from_priors {
        sentences.push(
            "The plan is from priors of other models (`profile --instant`); a full profile of this model plans better.".to_owned(),
        );
    }
    if let Some(unit) = &f.unit {
        sentences.push(format!(
            "{} computed {:.0} % of the fixed matrices in prompts: {} to hand over, {} waited for, {} there and {} back; it holds {} of {}.",
            unit.unit_adapter,
            unit.unit_prefill_fraction * 100.0,
            duration(unit.unit_begin_seconds),
            duration(unit.unit_wait_seconds),
            show(unit.unit_vector_bytes),
            show(unit.unit_product_bytes),
            show(unit.unit_memory_bytes),
            show(unit.unit_memory_limit_bytes)
        ));
    }
    if let (Some(drafted), Some(kept)) = (f.drafted_tokens, f.kept_tokens) {
        sentences.push(format!(
            "{kept} of {} were kept, in {}; the plan expects as many as on the profile's text.",
            count(drafted, "drafted token"),
            count(f.decode_steps, "step")
        ));
    }
    if f.current.as_ref().is_some_and(|current| !current.in_plan) {
        sentences.push(
            "This plan is too old to be priced at current rates; make it again with `plan`.".to_owned(),
        );
    }
    let (prompt, predicted) = (f.prefill_prompt_tokens, f.prefill_prompt_tokens_predicted);
    if prompt > 0 && prompt != predicted {
        sentences.push(format!(
            "This plan expects prompts of {predicted} tokens only; this one had {prompt}. Make it again with `plan`."
        ));
    }
    if let Some(others) = f.others_cpu_fraction.filter(|&others| others > OTHERS_MAX) {
        sentences.push(format!(
            "Other programs, or the host of this virtual machine, took {:.0} % of the processors' time meanwhile.",
            others * 100.0
        ));
    }
    if let Some(reason) = &f.memory_unlocked_reason {
        sentences.push(format!("The memory may be paged out: {reason}."));
    }
    if f.memory_peak_bytes > f.memory_limit_bytes {
        sentences.push(format!(
            "warning: the process held {} more than the plan's limit",
            show(f.memory_peak_bytes - f.memory_limit_bytes)
        ));
    }
    sentences
}

/// Measured speed against the plan, and against the plan at current rates, each as a fraction.
fn compared(faster: f64, now: Option<f64>) -> String {
    let against = |faster: f64| {
        if faster.abs() < SAME_FRACTION {
            return "as fast as".to_owned();
        }
        let than = if faster > 0.0 { "faster" } else { "slower" };
        format!("{:.0} % {than} than", faster.abs() * 100.0)
    };
    let now = now.map_or_else(String::new, |faster| {
        format!(", and {} expected at current rates (`now`)", against(faster))
    });
    format!("Decoding was {} planned{now}.", against(faster))
}

fn count(number: usize, of: &str) -> String {
    if number == 1 { format!("1 {of}") } else { format!("{number} {of}s") }
}

/// The details of `--report`: latencies, the time of each stage, and the hardware's lower bound.
pub(super) fn details(about: &About<'_>, f: &Figures) -> String {
    let percent: fn(f64) -> String = |value| format!("{:.1} %", value * 100.0);
    let [planned, now, measured] = latencies(f);
    let quantile = |at: usize| Row {
        name: names::TOKEN[at],
        planned: planned.map(|of| of[at]),
        now: Some(now.map(|of| of[at])),
        measured: measured.map(|of| of[at]),
        show: duration,
    };
    let mut rows = vec![quantile(0), quantile(1)];
    if about.selects {
        let (planned, measured) = (f.active_predicted_fraction_predicted, f.active_predicted_fraction);
        rows.push(Row { name: "neurons selected", planned, now: None, measured, show: percent });
    }
    let mut text = compare(rows, f);
    if let Some(io_wait) = f.io_wait_seconds {
        text += &format!("\n\n{}\n", stages(f, io_wait));
    }
    for sentence in notes(f) {
        let _ = write!(text, "\n{sentence}");
    }
    text
}

/// The time of a token by stage, and the lower bound.
fn stages(f: &Figures, io_wait: f64) -> String {
    let ms = |seconds: f64| format!("{:.3}", seconds * 1e3);
    let mut table = Rows::headed(&["a token", "ms"]);
    for stage in Stage::ALL.map(Stage::name) {
        table.row([stage.replace('_', "-"), ms(f.stage_seconds.get(stage).copied().unwrap_or(0.0))]);
        if stage == Stage::Demand.name() {
            table.row(["  I/O wait in it".to_owned(), ms(io_wait)]);
        }
    }
    if let Some(floor) = &f.floor {
        table.row(["lower bound, the longer of".to_owned(), ms(floor.floor_seconds)]);
        table.row(["  bytes through memory".to_owned(), ms(floor.floor_memory_seconds)]);
        let reads = floor.floor_reads_seconds.map_or_else(|| "-".to_owned(), ms);
        table.row(["  reads of flash".to_owned(), reads]);
    }
    table.to_string()
}

/// Sentences of the details.
fn notes(f: &Figures) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(floor) = &f.floor {
        notes
            .push(format!("A token took {:.2} times the hardware's lower bound.", floor.measured_over_floor));
    }
    if let Some(current) = f.current.as_ref().filter(|current| current.in_plan) {
        notes.push(current.sentence());
        if let Some(others) = current.probe_others_cpu_fraction.filter(|&others| others > OTHERS_MAX) {
            notes.push(format!(
                "Other programs took {:.0} % of the processors' time while these were measured.",
                others * 100.0
            ));
        }
    }
    if let (Some(first), Some(last)) = (f.decode_first_position, f.decode_last_position) {
        let starts = match f.cold_starts {
            0 => " after a prompt that fills the cache".to_owned(),
            1 => " from an empty cache".to_owned(),
            starts => format!(" {starts} times from an empty cache"),
        };
        let tokens = match f.decode_tokens {
            1 => format!("one token at position {first}"),
            tokens => format!("{tokens} tokens at positions {first} to {last}"),
        };
        notes.push(format!("Decode, reads and hits are planned for the {tokens},{starts}."));
    }
    if let (Some(true_fraction), Some(predicted)) = (f.active_true_fraction, f.active_true_fraction_predicted)
    {
        notes.push(format!(
            "{:.1} % of all neurons were truly active, {:.1} % were expected.",
            true_fraction * 100.0,
            predicted * 100.0
        ));
    }
    notes.extend(f.logits_hash.as_ref().map(|hash| {
        format!("The hash of the logits is {hash}; plans with the same quality keys give the same.")
    }));
    notes.push(format!("Flash is read through {}.", f.flash));
    let absent = |gap: &platform::Missing| {
        format!("{} does not have {}: {}.", platform::NAME, gap.name, gap.consequence)
    };
    notes.extend(platform::MISSING.iter().map(absent));
    notes
}

/// A JSON object on standard output.
///
/// # Errors
/// If standard output cannot be written.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(failure)?;
    print(text)
}

/// Text on standard output.
///
/// # Errors
/// If standard output cannot be written.
pub(super) fn print(text: impl std::fmt::Display) -> Result<(), Failure> {
    terminal::tell(text).map_err(|error| failure(format!("cannot write to standard output: {error}")))
}

#[cfg(test)]
mod tests {
    use super::super::current::CurrentRates;
    use super::*;
    use expect_test::expect;
    use plans::expectation::Distribution;

    fn figures() -> Figures {
        Figures {
            flash: "io_uring, direct".to_owned(),
            start_seconds: 0.084,
            start_seconds_predicted: Some(0.071),
            start_seconds_now: None,
            decode_tokens_per_second: Some(398.1),
            decode_tokens_per_second_predicted: Some(412.34),
            decode_tokens_per_second_now: None,
            latency_seconds: Some(Distribution { mean: 0.0025, p50: 0.0024, p90: 0.0031, p99: 0.0052 }),
            latency_seconds_predicted: Some(Distribution {
                mean: 0.0024,
                p50: 0.0023,
                p90: 0.0029,
                p99: 0.0049,
            }),
            latency_seconds_now: None,
            decode_tokens: 99,
            decode_steps: 99,
            drafted_tokens: None,
            kept_tokens: None,
            tokens_per_step: None,
            tokens_per_step_predicted: None,
            decode_first_position: Some(64),
            decode_last_position: Some(162),
            cold_starts: 1,
            prefill_tokens_per_second: Some(1003.2),
            prefill_tokens_per_second_predicted: Some(1204.0),
            prefill_tokens_per_second_now: None,
            prefill_prompt_tokens: 64,
            prefill_prompt_tokens_predicted: 64,
            unit: None,
            time_to_first_token_seconds: Some(64.0 / 1003.2),
            time_to_first_token_seconds_predicted: Some(64.0 / 1204.0),
            time_to_first_token_seconds_now: None,
            bytes_read_per_token: Some(123_456.0),
            bytes_read_per_token_predicted: Some(120_000.0),
            hit_fraction: Some(0.881),
            hit_fraction_predicted: Some(0.879),
            miss_fraction: None,
            miss_fraction_predicted: None,
            memory_peak_bytes: 21 << 20,
            memory_peak_bytes_predicted: 22 << 20,
            memory_limit_bytes: 22 << 20,
            memory_locked: true,
            memory_unlocked_reason: None,
            active_true_fraction: Some(0.1),
            active_true_fraction_predicted: Some(0.11),
            active_predicted_fraction: Some(0.123),
            active_predicted_fraction_predicted: Some(0.121),
            plan_from_priors: false,
            perplexity_change_fraction_predicted: 0.0021,
            perplexity_change_fraction_upper_predicted: Some(0.0048),
            reads_per_token: Some(31.0),
            prefetch_reads_per_token: Some(3.0),
            prefetch_reads_used_per_token: Some(2.0),
            prefetch_bytes_per_token: Some(12_288.0),
            gap_bytes_per_token: Some(0.0),
            reads_resumed: 0,
            stage_seconds: Stage::ALL.iter().map(|&stage| (stage.name(), 0.0003)).collect(),
            io_wait_seconds: Some(0.0001),
            others_cpu_fraction: Some(0.0),
            logits_hash: Some("0123456789abcdef".to_owned()),
            floor: None,
            current: None,
        }
    }

    fn current() -> CurrentRates {
        CurrentRates {
            probes: 1,
            probe_seconds: 0.5,
            probe_compute_over_planned: Some(0.98),
            probe_stream_over_planned: None,
            probe_gather_over_planned: None,
            probe_random_reads_over_planned: Some(0.85),
            probe_ordered_reads_over_planned: Some(1.02),
            probe_others_cpu_fraction: Some(0.25),
            probe_unmeasured: vec!["the plan's memory is small".to_owned()],
            in_plan: true,
        }
    }

    const ABOUT: About<'static> = About {
        model: "oxide-dense",
        device: "amd-epyc-2c-24g",
        level: "sign",
        kv: KvFormat::F16,
        selects: true,
        ended: Some((100, Ended::Length)),
    };

    #[test]
    fn keys_and_values_in_blocks_are_named_beside_the_level() {
        for (kv, begins) in [
            (KvFormat::F32, "oxide-dense on amd-epyc-2c-24g: quality level `sign`, at most"),
            (
                KvFormat::Q8_0,
                "oxide-dense on amd-epyc-2c-24g: quality level `sign`, keys and values in Q8_0, at most",
            ),
        ] {
            assert!(text(&About { kv, ..ABOUT }, &figures()).starts_with(begins), "{kv:?}");
        }
    }

    #[test]
    fn a_run_that_the_plan_is_for() {
        expect![[r#"
            oxide-dense on amd-epyc-2c-24g: quality level `sign`, at most 22.0 MiB of memory

                                      planned      measured
            decode                412.3 tok/s   398.1 tok/s
            latency P99               4.90 ms       5.20 ms
            prefill              1204.0 tok/s  1003.2 tok/s
            time to first token         53 ms         64 ms
            startup                     71 ms         84 ms
            disk read per token     117.2 KiB     120.6 KiB
            cache hit rate             87.9 %        88.1 %
            peak memory              22.0 MiB      21.0 MiB
            perplexity change         +0.21 %             -
              at most (95 %)          +0.48 %             -

            The text ended after 100 tokens, the limit of -n.
            Decoding was 3 % slower than planned.
        "#]]
        .assert_eq(&format!("{}\n", text(&ABOUT, &figures())));
    }

    #[test]
    fn a_loss_that_is_rounded_to_nothing_is_not_called_lossless() {
        for (change, upper, rows) in [
            (0.0, None, &["perplexity change lossless -\n"][..]),
            (0.0, Some(0.0), &["perplexity change lossless -\n"]),
            (0.00002, Some(0.0026), &["perplexity change +0.00 % -\n", "at most (95 %) +0.26 %"]),
            (0.00002, None, &["perplexity change +0.00 % -\n"]),
            (0.0, Some(0.0026), &["perplexity change +0.00 %", "at most (95 %) +0.26 %"]),
        ] {
            let figures = Figures {
                perplexity_change_fraction_predicted: change,
                perplexity_change_fraction_upper_predicted: upper,
                ..figures()
            };
            let said = text(&ABOUT, &figures);
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
            let said: String = said.lines().map(words).collect();
            assert!(rows.iter().all(|row| said.contains(row)), "{rows:?}: {said}");
            assert_eq!(said.contains("at most (95 %)"), rows.len() == 2, "{said}");
        }
    }

    #[test]
    fn current_rates_stand_between_planned_and_measured() {
        let figures = Figures {
            decode_tokens_per_second_now: Some(390.0),
            prefill_tokens_per_second_now: Some(1100.0),
            time_to_first_token_seconds_now: Some(64.0 / 1100.0),
            start_seconds_now: Some(0.08),
            current: Some(current()),
            ..figures()
        };
        expect![[r#"
            oxide-dense on amd-epyc-2c-24g: quality level `sign`, at most 22.0 MiB of memory

                                      planned           now      measured
            decode                412.3 tok/s   390.0 tok/s   398.1 tok/s
            latency P99               4.90 ms             -       5.20 ms
            prefill              1204.0 tok/s  1100.0 tok/s  1003.2 tok/s
            time to first token         53 ms         58 ms         64 ms
            startup                     71 ms         80 ms         84 ms
            disk read per token     117.2 KiB                   120.6 KiB
            cache hit rate             87.9 %                      88.1 %
            peak memory              22.0 MiB                    21.0 MiB
            perplexity change         +0.21 %                           -
              at most (95 %)          +0.48 %                           -

            The text ended after 100 tokens, the limit of -n.
            Decoding was 3 % slower than planned, and 2 % faster than expected at current rates (`now`).
        "#]]
        .assert_eq(&format!("{}\n", text(&ABOUT, &figures)));
        // an older plan
        let current = CurrentRates { in_plan: false, probe_compute_over_planned: None, ..current() };
        let figures = Figures {
            decode_tokens_per_second_now: None,
            prefill_tokens_per_second_now: None,
            time_to_first_token_seconds_now: None,
            start_seconds_now: None,
            current: Some(current),
            ..figures
        };
        expect![[r#"
                                      planned      measured
            decode                412.3 tok/s   398.1 tok/s
            latency P99               4.90 ms       5.20 ms
            prefill              1204.0 tok/s  1003.2 tok/s
            time to first token         53 ms         64 ms
            startup                     71 ms         84 ms
            disk read per token     117.2 KiB     120.6 KiB
            cache hit rate             87.9 %        88.1 %
            peak memory              22.0 MiB      21.0 MiB
            perplexity change         +0.21 %             -
              at most (95 %)          +0.48 %             -
        "#]]
        .assert_eq(&format!("{}\n", table(&figures)));
    }

    #[test]
    fn a_short_prompt_a_dense_level_and_others_at_work() {
        let about = About { level: "dense", selects: false, ended: Some((1, Ended::EndOfText)), ..ABOUT };
        let figures = Figures {
            decode_tokens: 1,
            decode_first_position: Some(3),
            decode_last_position: Some(3),
            decode_tokens_per_second: Some(500.0),
            prefill_prompt_tokens: 3,
            prefill_tokens_per_second_predicted: None,
            time_to_first_token_seconds_predicted: None,
            time_to_first_token_seconds: Some(1.26),
            active_true_fraction: Some(1.0),
            active_true_fraction_predicted: None,
            active_predicted_fraction: Some(1.0),
            active_predicted_fraction_predicted: None,
            others_cpu_fraction: Some(0.31),
            memory_unlocked_reason: Some("mlock: not permitted".to_owned()),
            memory_peak_bytes: 23 << 20,
            ..figures()
        };
        expect![[r#"
            oxide-dense on amd-epyc-2c-24g: quality level `dense`, at most 22.0 MiB of memory

                                     planned      measured
            decode               412.3 tok/s   500.0 tok/s
            latency P99              4.90 ms       5.20 ms
            prefill                        -  1003.2 tok/s
            time to first token            -         1.3 s
            startup                    71 ms         84 ms
            disk read per token    117.2 KiB     120.6 KiB
            cache hit rate            87.9 %        88.1 %
            peak memory             22.0 MiB      23.0 MiB
            perplexity change        +0.21 %             -
              at most (95 %)         +0.48 %             -

            The text ended after 1 token: the model ended it.
            Decoding was 21 % faster than planned.
            This plan expects prompts of 64 tokens only; this one had 3. Make it again with `plan`.
            Other programs, or the host of this virtual machine, took 31 % of the processors' time meanwhile.
            The memory may be paged out: mlock: not permitted.
            warning: the process held 1.0 MiB more than the plan's limit
        "#]]
        .assert_eq(&format!("{}\n", text(&about, &figures)));
    }

    #[test]
    fn nothing_decoded_is_nothing_predicted() {
        let figures = Figures {
            decode_tokens: 0,
            decode_first_position: None,
            decode_last_position: None,
            decode_tokens_per_second: None,
            decode_tokens_per_second_predicted: None,
            latency_seconds: None,
            latency_seconds_predicted: None,
            bytes_read_per_token: None,
            bytes_read_per_token_predicted: None,
            hit_fraction: None,
            hit_fraction_predicted: None,
            active_predicted_fraction: None,
            io_wait_seconds: None,
            ..figures()
        };
        expect![[r#"
            oxide-dense on amd-epyc-2c-24g: quality level `sign`, at most 22.0 MiB of memory

                                      planned      measured
            decode                          -             -
            latency P99                     -             -
            prefill              1204.0 tok/s  1003.2 tok/s
            time to first token         53 ms         64 ms
            startup                     71 ms         84 ms
            disk read per token             -             -
            cache hit rate                  -             -
            peak memory              22.0 MiB      21.0 MiB
            perplexity change         +0.21 %             -
              at most (95 %)          +0.48 %             -

            The text ended after 100 tokens, the limit of -n.
                              planned  measured
            latency P50             -         -
            latency P90             -         -
            neurons selected   12.1 %         -
            10.0 % of all neurons were truly active, 11.0 % were expected.
            The hash of the logits is 0123456789abcdef; plans with the same quality keys give the same.
            Flash is read through io_uring, direct.
        "#]]
        .assert_eq(&format!("{}\n{}\n", text(&ABOUT, &figures), details(&ABOUT, &figures)));
    }

    #[test]
    fn details_say_where_the_time_went() {
        expect![[r#"
                              planned  measured
            latency P50       2.30 ms   2.40 ms
            latency P90       2.90 ms   3.10 ms
            neurons selected   12.1 %    12.3 %

            a token              ms
            attention         0.300
            select            0.300
            look-ahead        0.300
            gate-up           0.300
            demand            0.300
              I/O wait in it  0.100
            down              0.300
            insert            0.300
            head              0.300

            Decode, reads and hits are planned for the 99 tokens at positions 64 to 162, from an empty cache.
            10.0 % of all neurons were truly active, 11.0 % were expected.
            The hash of the logits is 0123456789abcdef; plans with the same quality keys give the same.
            Flash is read through io_uring, direct.
        "#]]
        .assert_eq(&format!("{}\n", details(&ABOUT, &figures())));
    }

    #[test]
    fn nearly_the_same_speed_is_the_same() {
        assert_eq!(compared(0.01, None), "Decoding was as fast as planned.");
        assert_eq!(compared(-0.034, None), "Decoding was 3 % slower than planned.");
        assert_eq!(
            compared(-0.25, Some(0.01)),
            "Decoding was 25 % slower than planned, and as fast as expected at current rates (`now`)."
        );
    }

    #[test]
    fn every_reason_is_a_word_in_json() {
        let words: Vec<_> = [Ended::EndOfText, Ended::Length, Ended::ContextFull, Ended::Interrupt]
            .iter()
            .filter_map(|ended| serde_json::to_string(ended).ok())
            .collect();
        assert_eq!(words, ["\"end-of-text\"", "\"length\"", "\"context-full\"", "\"interrupt\""]);
    }
}
