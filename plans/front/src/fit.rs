//! `flashplan fit`: what a model would do under several memory limits, before it is downloaded.
//!
//! `profile --header` describes each quantisation by its header, and `plan` plans it for each limit. Nothing is kept.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context as _, bail};
use plans::Device;
use plans::expectation::{self, Stream, with_priors};
use plans::file::read;
use plans::plan::Plan;
use plans::size::show;
use plans::terms::Factors;
use serde::Serialize;
use serde_json::Value;
use terminal::progress::Unit;
use terminal::{Progress, Rows, tell};

use crate::cli::Fit;
use crate::model::Model;
use crate::programs::{Program, Programs};
use crate::{devices, stages};

/// The exit code of `plan` where no plan satisfies the limits.
const NO_PLAN: i32 = 2;
/// Limits that are tried below what the device can give, in GiB.
const LIMITS_GIB: [u64; 8] = [2, 4, 8, 12, 16, 24, 32, 64];

/// A model's quantisations on a device.
#[derive(Debug, Serialize)]
struct Report {
    device: String,
    models: Vec<Fitted>,
}

/// One quantisation.
#[derive(Debug, Serialize)]
struct Fitted {
    /// The model as it is named on the command line.
    model: String,
    /// Bytes of its files: to download, and to keep.
    disk_bytes: u64,
    /// Why it cannot be described; absent: it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    limits: Vec<Cell>,
}

/// One quantisation under one limit.
#[derive(Debug, Serialize)]
struct Cell {
    limit_bytes: u64,
    fits: bool,
    /// Why no plan fits, in the planner's words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    why: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_tokens_per_second: Option<f64>,
    /// The interval around it.
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_tokens_per_second_between: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill_tokens_per_second: Option<f64>,
    /// `disk`, `memory` (its bandwidth) or `compute`: what a tenth more of makes the model fastest.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound_by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_peak_bytes: Option<u64>,
}

/// Prints the table, or one JSON object.
///
/// # Errors
/// An unknown device, a path without a model, and the hub's errors.
pub(crate) fn fit(arguments: &Fit) -> anyhow::Result<u8> {
    let programs = Programs::find()?;
    let model = Model::named(&arguments.model)?;
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    fit_in(&programs, arguments, &model, folder.path())
}

fn fit_in(programs: &Programs, arguments: &Fit, model: &Model, folder: &Path) -> anyhow::Result<u8> {
    let device_toml = match &arguments.device {
        Some(named) => devices::file(named, folder)?,
        None => stages::device_file(programs, model)?,
    };
    let device = read::<Device>(&device_toml)?.value;
    let limits = limits(&device, &arguments.mem);
    let variants = variants(model)?;
    let bar =
        Progress::on_stderr(false).bar(variants.len() as u64, "models described and planned", Unit::Steps);
    let mut models = Vec::new();
    for (number, (name, disk_bytes)) in variants.into_iter().enumerate() {
        let folder = folder.join(number.to_string());
        std::fs::create_dir(&folder)?;
        let described = describe(programs, &name, &folder)?;
        let cells = match described {
            None => {
                limits.iter().map(|&limit| cell(programs, arguments, &device_toml, &folder, limit)).collect()
            }
            Some(_) => Ok(Vec::new()),
        };
        models.push(Fitted { model: name, disk_bytes, refused: described, limits: cells? });
        bar.inc(1);
    }
    drop(bar);
    let report = Report { device: device.name.clone(), models };
    if arguments.json {
        tell(serde_json::to_string(&report)?)?;
    } else {
        tell(table(&report, &limits))?;
    }
    let fits = report.models.iter().flat_map(|model| &model.limits).any(|cell| cell.fits);
    Ok(if fits { 0 } else { u8::try_from(NO_PLAN)? })
}

/// Each model that is meant, as it is named, and its bytes.
fn variants(model: &Model) -> anyhow::Result<Vec<(String, u64)>> {
    match model {
        Model::Path(path) => {
            let bytes = if path.is_dir() {
                std::fs::read_dir(path)?
                    .flatten()
                    .filter_map(|entry| entry.metadata().ok())
                    .map(|it| it.len())
                    .sum()
            } else {
                path.metadata()?.len()
            };
            Ok(vec![(model.argument(), bytes)])
        }
        Model::Hub(name) => {
            let hub = hub::Hub::from_environment(|name| std::env::var(name).ok())?;
            let found = hub.models(name, &mut || true)?;
            Ok(found
                .into_iter()
                .map(|found| (Model::Hub(found.name.clone()).argument(), found.bytes()))
                .collect())
        }
    }
}

/// Writes `model.toml` of a model's header; why not, in the words of `profile`.
fn describe(programs: &Programs, name: &str, folder: &Path) -> anyhow::Result<Option<String>> {
    let words: [OsString; 5] =
        ["--header".into(), "--model".into(), name.into(), "--out".into(), folder.into()];
    let output = programs.output(Program::Profile, &words)?;
    if output.status.success() {
        return Ok(None);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let error = said.lines().find_map(|line| line.strip_prefix("error: ")).unwrap_or(said.trim());
    Ok(Some(error.to_owned()))
}

fn cell(
    programs: &Programs,
    arguments: &Fit,
    device: &Path,
    folder: &Path,
    limit: u64,
) -> anyhow::Result<Cell> {
    let (model, plan) = (folder.join("model.toml"), folder.join("plan.toml"));
    let mut words: Vec<OsString> =
        vec!["--json".into(), "--device".into(), device.into(), "--model".into(), model.into()];
    words.extend(["--mem".into(), limit.to_string().into(), "-o".into(), plan.clone().into()]);
    // `run` uses the CPU alone
    words.extend(["--without".into(), "units".into()]);
    words.extend(arguments.context.iter().flat_map(|it| ["--context".into(), it.to_string().into()]));
    words.extend(arguments.min_speed.iter().flat_map(|it| ["--min-speed".into(), it.to_string().into()]));
    let output = programs.output(Program::Plan, &words)?;
    let mut cell = Cell {
        limit_bytes: limit,
        fits: false,
        why: Vec::new(),
        decode_tokens_per_second: None,
        decode_tokens_per_second_between: None,
        prefill_tokens_per_second: None,
        bound_by: None,
        memory_peak_bytes: None,
    };
    if output.status.code() == Some(NO_PLAN) {
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let sentences = said["infeasible"]["sentences"].as_array().cloned().unwrap_or_default();
        cell.why = sentences.iter().filter_map(|sentence| Some(sentence.as_str()?.to_owned())).collect();
        return Ok(cell);
    }
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("error: "));
    }
    let plan = read::<Plan>(&plan)?.value;
    let speed = plan.expected.decode_tokens_per_second;
    Ok(Cell {
        fits: true,
        decode_tokens_per_second: Some(speed),
        decode_tokens_per_second_between: Some(with_priors(speed)),
        prefill_tokens_per_second: Some(plan.expected.prefill_tokens_per_second),
        bound_by: bound_by(&plan),
        memory_peak_bytes: Some(plan.expected.memory_peak_bytes),
        ..cell
    })
}

/// The part of the machine that a plan gains most by, were it a tenth faster.
fn bound_by(plan: &Plan) -> Option<&'static str> {
    const FASTER: f64 = 1.1;
    let stream = Stream::measured(plan.context.tokens, 1.0);
    let speed = |factors: Factors| Some(expectation::at(plan, &stream, &factors)?.tokens_per_second);
    let none = Factors::NONE;
    let parts = [
        ("disk", Factors { random_reads: FASTER, ordered_reads: FASTER, ..none }),
        ("memory", Factors { stream: FASTER, gather: FASTER, ..none }),
        ("compute", Factors { compute: FASTER, ..none }),
    ];
    let gains = parts.into_iter().filter_map(|(name, factors)| Some((name, speed(factors)?)));
    gains.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(name, _)| name)
}

/// The given limits, or round ones up to what the device can give.
fn limits(device: &Device, asked: &[u64]) -> Vec<u64> {
    let most = device.capacity.plannable_bytes();
    if !asked.is_empty() {
        return asked.to_vec();
    }
    let mut limits: Vec<u64> = LIMITS_GIB.iter().map(|gib| gib << 30).filter(|&limit| limit < most).collect();
    limits.push(most);
    limits
}

fn table(report: &Report, limits: &[u64]) -> String {
    let mut headings = vec!["model".to_owned(), "disk".to_owned()];
    headings.extend(limits.iter().map(|&limit| format!("in {}", show(limit))));
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut rows = Rows::headed(&headings).left();
    let mut refused = Vec::new();
    for model in &report.models {
        let name = model.model.rsplit([':', '/']).next().unwrap_or(&model.model);
        let mut row = vec![name.to_owned(), show(model.disk_bytes)];
        row.extend(model.limits.iter().map(|cell| {
            match (cell.decode_tokens_per_second, cell.decode_tokens_per_second_between) {
                (Some(speed), Some([least, most])) => {
                    let bound = cell.bound_by.map_or_else(String::new, |part| format!(", {part}"));
                    format!("{} ({} to {}){bound}", digits(speed), digits(least), digits(most))
                }
                _ => "does not fit".to_owned(),
            }
        }));
        row.resize(headings.len(), String::new());
        rows.row(row);
        refused.extend(model.refused.iter().map(|why| format!("{name}: {why}")));
    }
    let mut text = format!(
        "on {}: tok/s, in brackets the interval to expect; then what binds, the disk, memory bandwidth or compute\n\n{rows}",
        report.device
    );
    for why in refused {
        text += &format!("\n{why}");
    }
    text
}

/// Two significant digits or more.
fn digits(speed: f64) -> String {
    match speed {
        speed if speed >= 100.0 => format!("{speed:.0}"),
        speed if speed >= 1.0 => format!("{speed:.1}"),
        speed => format!("{speed:.2}"),
    }
}
