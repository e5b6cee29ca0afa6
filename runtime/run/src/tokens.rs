//! The report on every token, or every step where it brings several: a line each as CSV, and a picture of where their time went.

use std::error::Error;
use std::path::{Path, PathBuf};

use flashplan::internals::counters::{Stage, detail};

use plans::output_file::OutputKind;

use super::picture::picture;
use super::session::{RunningPlan, Step};
use super::{Failure, failure};

/// The table.
pub(super) const TABLE: OutputKind =
    OutputKind { name: "a report on tokens", is_one: |head| head.starts_with(b"position,seconds,") };

/// A column of the report on every token.
type Column = (&'static str, fn(&Step) -> String);

/// The columns before the stages'.
const COLUMNS: [Column; 23] = [
    ("position", |s| s.position.to_string()),
    ("seconds", |s| s.time.as_secs_f64().to_string()),
    ("neurons_routed", |s| detail(&s.counters).activity.routed.to_string()),
    ("neurons_requested", |s| detail(&s.counters).activity.requested.to_string()),
    ("neurons_fired", |s| detail(&s.counters).activity.fired.to_string()),
    ("neurons_active", |s| detail(&s.counters).activity.active.to_string()),
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
    ("memory_weights_bytes", |s| detail(&s.counters).traffic.weights.to_string()),
    ("memory_select_bytes", |s| detail(&s.counters).traffic.selection.to_string()),
    ("memory_kv_bytes", |s| detail(&s.counters).traffic.kv.to_string()),
    ("memory_rows_bytes", |s| detail(&s.counters).traffic.rows.to_string()),
    ("io_wait_seconds", |s| s.counters.waited.as_secs_f64().to_string()),
    ("tokens", |s| s.tokens.to_string()),
    ("drafted_tokens", |s| s.drafted.to_string()),
];

/// One line for each step, and a picture of them beside it, `.svg`, where it is a file.
///
/// # Errors
/// If a file cannot be written; nothing is left of it then.
pub(super) fn write(path: &Path, session: &RunningPlan<'_>) -> Result<(), Failure> {
    let RunningPlan { plan, steps, .. } = session;
    let csv = table(steps).map_err(failure)?;
    plans::file::write_bytes(path, TABLE, &csv).map_err(failure)?;
    let Some(picture_path) = picture_path(path) else { return Ok(()) };
    let title = format!(
        "{} under {}, level {}: where the time of a token goes",
        session.model.name(),
        plan.target.device,
        plan.quality.level
    );
    let svg = picture(steps, plan.expected.floor.as_ref(), &title).map_err(failure)?;
    plans::file::write_bytes(&picture_path, OutputKind::PICTURE, svg.as_bytes()).map_err(failure)
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
        let stages = Stage::ALL.map(|stage| detail(&step.counters).times.of(stage).as_secs_f64().to_string());
        csv.write_record(COLUMNS.iter().map(|(_, of)| of(step)).chain(stages))?;
    }
    Ok(csv.into_inner()?)
}
