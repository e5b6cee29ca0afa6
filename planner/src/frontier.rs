//! Speed against memory: the best plan at each of a dozen limits, as a table, CSV and SVG.

use std::path::Path;

use plans::output_file::{InputFiles, OutputKind};
use plans::plan::{Objective, Request};
use plans::size::show;
use plans::{ContractError, file};
use plotters::prelude::RGBColor;
use serde::Serialize;

use crate::chart::{Series, speed_against_memory};
use crate::error::PlanError;
use crate::question::{Inputs, UNLIMITED_BYTES};
use crate::request::{as_requested, resolve};
use crate::search::best_plan;

/// Points on the frontier.
const POINTS: u64 = 12;

/// One point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Memory limit.
    pub limit_bytes: u64,
    /// Most memory that the plan takes, in bytes.
    pub memory_peak_bytes: u64,
    /// Decoding speed.
    pub decode_tokens_per_second: f64,
    /// The best simple rule at the same limit, if any fits.
    pub simple_rule_tokens_per_second: Option<f64>,
    /// Prefill speed.
    pub prefill_tokens_per_second: f64,
    /// Share of the neurons requested that are in memory.
    pub hit_fraction: f64,
    /// Quality level.
    pub level: String,
}

/// From the smallest plan that exists to everything in memory or the machine's limit, evenly spaced.
///
/// # Errors
/// Those of [`crate::plan`]; an empty list means that no plan fits the machine.
pub fn frontier(
    inputs: &Inputs,
    request: &Request,
    mut tick: impl FnMut(u64, u64),
) -> Result<Vec<Point>, PlanError> {
    let inputs = &*as_requested(inputs, request);
    let question = resolve(inputs, request)?;
    let limits = &question.limits;
    let mut smallest = limits.clone();
    smallest.objective = Objective::Memory;
    let Some(least) = best_plan(&question.within(smallest))? else { return Ok(Vec::new()) };
    let mut everything = limits.clone();
    (everything.memory_bytes, everything.machine_bytes) = (UNLIMITED_BYTES, UNLIMITED_BYTES);
    everything.user_memory_bytes = None;
    let most = best_plan(&question.within(everything))?
        .map_or(limits.memory_bytes, |s| s.plan.memory.prefill_total_bytes);
    let (low, high) = (least.plan.memory.prefill_total_bytes, most.min(limits.memory_bytes));
    let mut points = Vec::new();
    for i in 0..POINTS {
        tick(i, POINTS);
        let limit_bytes = low + high.saturating_sub(low) * i / (POINTS - 1);
        let mut at = limits.clone();
        (at.memory_bytes, at.user_memory_bytes) = (limit_bytes, Some(limit_bytes));
        if let Some(solved) = best_plan(&question.within(at))? {
            let e = &solved.plan.expected;
            let rule = solved.plan.simple_rule.decode_tokens_per_second;
            points.push(Point {
                limit_bytes,
                memory_peak_bytes: e.memory_peak_bytes,
                decode_tokens_per_second: e.decode_tokens_per_second,
                prefill_tokens_per_second: e.prefill_tokens_per_second,
                simple_rule_tokens_per_second: (rule > 0.0).then_some(rule),
                hit_fraction: e.hit_fraction,
                level: solved.plan.quality.level.clone(),
            });
        }
    }
    Ok(points)
}

/// A table for people.
pub fn table(points: &[Point]) -> String {
    let headings = ["limit", "used", "decode tok/s", "simple rule", "prefill tok/s", "in memory", "level"];
    let mut table = terminal::Rows::headed(&headings);
    for p in points {
        table.row([
            show(p.limit_bytes),
            show(p.memory_peak_bytes),
            format!("{:.2}", p.decode_tokens_per_second),
            p.simple_rule_tokens_per_second.map_or_else(|| "-".to_owned(), |speed| format!("{speed:.2}")),
            format!("{:.1}", p.prefill_tokens_per_second),
            format!("{:.1} %", p.hit_fraction * 100.0),
            p.level.clone(),
        ]);
    }
    table.to_string()
}

/// The table.
const TABLE: OutputKind =
    OutputKind { name: "a frontier", is_one: |head| head.starts_with(b"limit_bytes,memory_peak_bytes,") };

/// Whether both files can be written into a folder by a command with these inputs.
///
/// # Errors
/// As [`file::writable`].
pub fn writable(folder: &Path, inputs: InputFiles<'_>) -> Result<(), ContractError> {
    file::writable(&folder.join("frontier.csv"), TABLE, inputs)?;
    file::writable(&folder.join("frontier.svg"), OutputKind::PICTURE, inputs)
}

/// Writes `frontier.csv` and `frontier.svg` into a folder.
///
/// # Errors
/// What the file system or the drawing refuses.
pub fn write(points: &[Point], title: &str, model_bytes: u64, folder: &Path) -> Result<(), PlanError> {
    let drawing = |error: &dyn std::fmt::Display| PlanError::Drawing(error.to_string());
    let mut csv = csv::Writer::from_writer(Vec::new());
    points.iter().try_for_each(|point| csv.serialize(point)).map_err(|e| drawing(&e))?;
    let bytes = csv.into_inner().map_err(|e| drawing(&e))?;
    file::write_bytes(&folder.join("frontier.csv"), TABLE, &bytes)?;
    let svg = chart(points, title, model_bytes).map_err(PlanError::Drawing)?;
    file::write_bytes(&folder.join("frontier.svg"), OutputKind::PICTURE, svg.as_bytes())?;
    Ok(())
}

/// The plan's speed in red, the simple rule's in amber where the rule fits.
fn chart(points: &[Point], title: &str, model_bytes: u64) -> Result<String, String> {
    let line = |speed: fn(&Point) -> Option<f64>| {
        points.iter().filter_map(|p| speed(p).map(|speed| (p.limit_bytes, speed))).collect()
    };
    let series = [
        Series {
            name: "planned",
            colour: RGBColor(200, 30, 30),
            points: line(|p| Some(p.decode_tokens_per_second)),
        },
        Series {
            name: "simple rule",
            colour: RGBColor(230, 150, 0),
            points: line(|p| p.simple_rule_tokens_per_second),
        },
    ];
    speed_against_memory(title, model_bytes, &series)
}
