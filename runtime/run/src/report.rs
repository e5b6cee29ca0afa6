//! What was predicted beside what happened, and what could have happened at best.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plans::Plan;
use plans::plan::measured_run;
use serde::Serialize;

use super::floor::Floor;
use super::picture::picture;
use super::session::{Session, Step};
use super::{Failure, failure};
use flashplan::internals::machine::{CpuTimes, OTHERS_MAX, footprint};
use flashplan::{Counters, Stage};

/// The figures of a run; absent where nothing of the kind happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Figures {
    /// How flash was read.
    pub(super) flash: String,
    pub(super) decode_tokens_per_second: Option<f64>,
    /// By the plan's cost model, at the positions that were really run.
    pub(super) decode_tokens_per_second_predicted: Option<f64>,
    pub(super) prefill_tokens_per_second: Option<f64>,
    /// For a prompt of `prefill_prompt_tokens_predicted`.
    pub(super) prefill_tokens_per_second_predicted: f64,
    pub(super) prefill_prompt_tokens: usize,
    pub(super) prefill_prompt_tokens_predicted: u32,
    pub(super) bytes_read_per_token: Option<f64>,
    pub(super) bytes_read_per_token_predicted: f64,
    pub(super) hit_fraction: Option<f64>,
    pub(super) hit_fraction_predicted: f64,
    pub(super) memory_peak_bytes: u64,
    pub(super) memory_peak_bytes_predicted: u64,
    pub(super) memory_limit_bytes: u64,
    pub(super) memory_locked: bool,
    /// Absent when it is.
    pub(super) memory_unlocked_reason: Option<String>,
    pub(super) active_true_fraction: Option<f64>,
    pub(super) active_true_fraction_predicted: f64,
    pub(super) active_predicted_fraction: Option<f64>,
    pub(super) active_predicted_fraction_predicted: f64,
    pub(super) perplexity_change_fraction_predicted: f64,
    pub(super) reads_per_token: Option<f64>,
    /// Of the reads, those started for the next layer, and those of them that it requested.
    pub(super) prefetch_reads_per_token: Option<f64>,
    pub(super) prefetch_reads_used_per_token: Option<f64>,
    pub(super) prefetch_bytes_per_token: Option<f64>,
    /// Of all bytes read, those between two neurons that were wanted or prefetched.
    pub(super) bytes_in_gaps_per_token: Option<f64>,
    /// Reads that came back short or interrupted, and went on.
    pub(super) reads_resumed: u64,
    /// Mean time of a decoded token by stage; waiting for reads is a part of landing.
    pub(super) stage_seconds: BTreeMap<&'static str, f64>,
    pub(super) waited_seconds: Option<f64>,
    /// Share of the processors' time since the start that others took, the host of a virtual machine included.
    pub(super) others_cpu_fraction: Option<f64>,
    /// Of the last text, after every decoded token; plans with equal quality keys give the same.
    pub(super) logits_hash: Option<String>,
    /// Absent in a plan that does not know the device's rates.
    #[serde(flatten)]
    pub(super) floor: Option<Floor>,
}

/// Sums over some steps.
pub(super) fn sums(steps: &[Step]) -> (Duration, Counters) {
    let mut all = Counters::default();
    steps.iter().for_each(|step| all.add(&step.counters));
    (steps.iter().map(|step| step.time).sum(), all)
}

/// The plan's time for one text: every step at its position, and the filling of the cold slots once.
pub(super) fn predicted_seconds(plan: &Plan, steps: &[Step]) -> f64 {
    let e = &plan.expected;
    let positions: f64 = steps.iter().map(|step| step.position as f64).sum();
    e.decode_cold_start_seconds
        + steps.len() as f64 * e.decode_seconds_constant
        + positions * e.decode_seconds_per_context_token
}

/// The figures of a session so far; `texts` is how many times it began with an empty cache.
///
/// # Errors
/// If the system does not say how much memory this process holds.
pub(super) fn figures(session: &Session<'_>, texts: usize) -> Result<Figures, Failure> {
    let (plan, steps) = (session.plan, &session.steps);
    let (time, counters) = sums(steps);
    let e = &plan.expected;
    let decoded = |value: f64| (!steps.is_empty()).then_some(value);
    let again = (texts.max(1) - 1) as f64 * e.decode_cold_start_seconds;
    let predicted = predicted_seconds(plan, steps) + again;
    let count = steps.len() as f64;
    let (prompt_tokens, prefill_time) = session.prefilled;
    let routed = counters.activity.routed.max(1) as f64;
    Ok(Figures {
        flash: session.flash().to_owned(),
        decode_tokens_per_second: decoded(count / time.as_secs_f64()),
        decode_tokens_per_second_predicted: decoded(count / predicted),
        prefill_tokens_per_second: (prompt_tokens > 0)
            .then(|| prompt_tokens as f64 / prefill_time.as_secs_f64()),
        prefill_tokens_per_second_predicted: e.prefill_tokens_per_second,
        prefill_prompt_tokens: prompt_tokens / texts.max(1),
        prefill_prompt_tokens_predicted: measured_run(plan.context.tokens).0,
        bytes_read_per_token: decoded(counters.read_bytes as f64 / count),
        bytes_read_per_token_predicted: e.bytes_read_per_token,
        hit_fraction: decoded(counters.hit_fraction()),
        hit_fraction_predicted: e.hit_fraction,
        memory_peak_bytes: footprint(None).map_err(failure)?.peak_bytes(),
        memory_peak_bytes_predicted: e.memory_peak_bytes,
        memory_limit_bytes: plan.memory.limit_bytes,
        memory_locked: session.unlocked().is_none(),
        memory_unlocked_reason: session.unlocked().map(str::to_owned),
        active_true_fraction: decoded(counters.activity.active as f64 / routed),
        active_true_fraction_predicted: e.active_true_fraction,
        active_predicted_fraction: decoded(counters.activity.requested as f64 / routed),
        active_predicted_fraction_predicted: e.active_predicted_fraction,
        perplexity_change_fraction_predicted: e.perplexity_change_fraction,
        reads_per_token: decoded(counters.reads as f64 / count),
        prefetch_reads_per_token: decoded(counters.prefetch_reads as f64 / count),
        prefetch_reads_used_per_token: decoded(counters.prefetch_reads_used as f64 / count),
        prefetch_bytes_per_token: decoded(counters.prefetch_bytes as f64 / count),
        bytes_in_gaps_per_token: decoded(counters.gap_bytes as f64 / count),
        reads_resumed: counters.resumed,
        stage_seconds: (Stage::ALL.iter())
            .filter_map(|&stage| {
                Some((stage.name(), decoded(counters.times.of(stage).as_secs_f64() / count)?))
            })
            .collect(),
        waited_seconds: decoded(counters.waited.as_secs_f64() / count),
        others_cpu_fraction: session.started.and_then(CpuTimes::others),
        logits_hash: (!steps.is_empty()).then(|| session.logits_hash()),
        floor: (e.floor.as_ref())
            .filter(|_| !steps.is_empty())
            .map(|rates| Floor::new(rates, &counters, count, time.as_secs_f64())),
    })
}

/// The figures as people read them.
#[expect(clippy::print_stderr, reason = "the report goes beside the text, not into it")]
pub(super) fn print(session: &Session<'_>, f: &Figures) {
    eprintln!();
    eprintln!(
        "{} under {}, level {}, started in {:.2} s",
        session.model.name(),
        session.plan.target.device,
        session.plan.quality.level,
        session.start_time.as_secs_f64()
    );
    eprintln!("flash through {}", session.flash());
    eprintln!("{:<28}{:>14}{:>14}", "", "predicted", "measured");
    let line = |what: &str, predicted: String, measured: Option<String>| {
        eprintln!("{what:<28}{predicted:>14}{:>14}", measured.unwrap_or_else(|| "-".to_owned()));
    };
    let number = |value: f64| format!("{value:.1}");
    let percent = |value: f64| format!("{:.1} %", value * 100.0);
    let kib = |value: f64| format!("{:.1}", value / 1024.0);
    let mib = |value: u64| format!("{:.1}", value as f64 / (1 << 20) as f64);
    line(
        "decode, tokens/s",
        f.decode_tokens_per_second_predicted.map_or_else(|| "-".to_owned(), number),
        f.decode_tokens_per_second.map(number),
    );
    line(
        "prefill, tokens/s",
        number(f.prefill_tokens_per_second_predicted),
        f.prefill_tokens_per_second.map(number),
    );
    line(
        "flash reads per token, KiB",
        kib(f.bytes_read_per_token_predicted),
        f.bytes_read_per_token.map(kib),
    );
    for (what, predicted, measured) in [
        ("neurons found in memory", f.hit_fraction_predicted, f.hit_fraction),
        ("neurons requested for", f.active_predicted_fraction_predicted, f.active_predicted_fraction),
        ("neurons truly active", f.active_true_fraction_predicted, f.active_true_fraction),
    ] {
        line(what, percent(predicted), measured.map(percent));
    }
    line("peak memory, MiB", mib(f.memory_peak_bytes_predicted), Some(mib(f.memory_peak_bytes)));
    line("memory limit, MiB", mib(f.memory_limit_bytes), None);
    line(
        "perplexity against dense",
        format!("{:+.2} %", f.perplexity_change_fraction_predicted * 100.0),
        None,
    );
    if let Some(waited) = f.waited_seconds {
        let stages = Stage::ALL.map(|stage| {
            format!("{} {:.2}", stage.name(), f.stage_seconds.get(stage.name()).unwrap_or(&0.0) * 1e3)
        });
        eprintln!("a token in ms: {}; of io_wait waited {:.2}", stages.join(", "), waited * 1e3);
    }
    if let Some(others) = f.others_cpu_fraction.filter(|&others| others > OTHERS_MAX) {
        eprintln!(
            "others took {:.0} % of the processors' time meanwhile (programs, interrupts, the host of a virtual machine)",
            others * 100.0
        );
    }
    if let Some(hash) = &f.logits_hash {
        eprintln!("logits {hash}, the same for every plan with these quality keys");
    }
    if let Some(floor) = &f.floor {
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        eprintln!(
            "its floor in ms: {:.2}, by memory {:.2} ({:.1} MiB in order, {:.1} MiB in rows), by reads {}; it took {:.2} times that",
            floor.floor_seconds * 1e3,
            floor.floor_memory_seconds * 1e3,
            mib(floor.floor_streamed_bytes),
            mib(floor.floor_rows_bytes),
            floor.floor_reads_seconds.map_or_else(|| "unknown".to_owned(), |s| format!("{:.2}", s * 1e3)),
            floor.measured_over_floor,
        );
    }
    let (predicted, measured) = (f.prefill_prompt_tokens_predicted, f.prefill_prompt_tokens);
    if measured > 0 && measured != predicted as usize {
        eprintln!("prefill is predicted for a prompt of {predicted} tokens; this one had {measured}");
    }
    eprintln!("{}", f.memory_unlocked_reason.as_deref().unwrap_or("the memory is locked"));
    if f.memory_peak_bytes > f.memory_limit_bytes {
        eprintln!("warning: the process held more memory than the plan's limit");
    }
}

/// A column of the report on every token.
type Column = (&'static str, fn(&Step) -> String);

/// The columns before the stages'.
const COLUMNS: [Column; 21] = [
    ("position", |s| s.position.to_string()),
    ("seconds", |s| s.time.as_secs_f64().to_string()),
    ("neurons_routed", |s| s.counters.activity.routed.to_string()),
    ("neurons_asked", |s| s.counters.activity.requested.to_string()),
    ("neurons_fired", |s| s.counters.activity.fired.to_string()),
    ("neurons_active", |s| s.counters.activity.active.to_string()),
    ("hot_hits", |s| s.counters.hot_hits.to_string()),
    ("cold_hits", |s| s.counters.cold_hits.to_string()),
    ("missing", |s| s.counters.missing.to_string()),
    ("reads", |s| s.counters.reads.to_string()),
    ("read_bytes", |s| s.counters.read_bytes.to_string()),
    ("prefetch_reads", |s| s.counters.prefetch_reads.to_string()),
    ("prefetch_bytes", |s| s.counters.prefetch_bytes.to_string()),
    ("prefetch_reads_used", |s| s.counters.prefetch_reads_used.to_string()),
    ("gap_bytes", |s| s.counters.gap_bytes.to_string()),
    ("reads_resumed", |s| s.counters.resumed.to_string()),
    ("memory_weights_bytes", |s| s.counters.traffic.weights.to_string()),
    ("memory_naming_bytes", |s| s.counters.traffic.selection.to_string()),
    ("memory_kv_bytes", |s| s.counters.traffic.kv.to_string()),
    ("memory_rows_bytes", |s| s.counters.traffic.rows.to_string()),
    ("waited_seconds", |s| s.counters.waited.as_secs_f64().to_string()),
];

/// One line per decoded token, and a picture of them beside it, `.svg`, where it is a file.
///
/// # Errors
/// If a file cannot be written; nothing is left of it then.
pub(super) fn write(path: &Path, session: &Session<'_>) -> Result<(), Failure> {
    let Session { plan, steps, .. } = session;
    let csv = table(steps).map_err(failure)?;
    plans::file::write_bytes(path, &csv).map_err(failure)?;
    let Some(picture_path) = picture_path(path) else { return Ok(()) };
    let title = format!(
        "{} under {}, level {}: where the time of a token goes",
        session.model.name(),
        plan.target.device,
        plan.quality.level
    );
    let svg = picture(steps, plan.expected.floor.as_ref(), &title).map_err(failure)?;
    plans::file::write_bytes(&picture_path, svg.as_bytes()).map_err(failure)
}

/// Where the picture stands; nowhere where the report goes to a pipe or a device.
pub(super) fn picture_path(report: &Path) -> Option<PathBuf> {
    (!plans::output_file::is_special(report)).then(|| report.with_extension("svg"))
}

fn table(steps: &[Step]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    let stages = Stage::ALL.map(|stage| format!("{}_seconds", stage.name()));
    csv.write_record(COLUMNS.iter().map(|(name, _)| *name).chain(stages.iter().map(String::as_str)))?;
    for step in steps {
        let stages = Stage::ALL.map(|stage| step.counters.times.of(stage).as_secs_f64().to_string());
        csv.write_record(COLUMNS.iter().map(|(_, of)| of(step)).chain(stages))?;
    }
    Ok(csv.into_inner()?)
}

/// A JSON object on standard output.
///
/// # Errors
/// If standard output is closed.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    use std::io::Write as _;
    let text = serde_json::to_string_pretty(value).map_err(failure)?;
    writeln!(std::io::stdout(), "{text}").map_err(failure)
}
