//! The memory sweep of `fixtures/bench-sweep.sh` as a table and a picture: speed against memory, planned and measured.
//!
//! `cargo run -p planner --example sweep -- FOLDER LIMIT...`. For each limit the folder holds what the script left there:
//! `sweep-LIMIT.json` (of `run --bench --json`), else `sweep-LIMIT.txt` whose second line says why there is no plan;
//! `sweep-LIMIT.hash`, of the logits of a fixed stream; and `sweep-LIMIT-llama.json` (of `llama-bench -o json`), if it
//! ran. The table goes to standard output, the picture to `FOLDER/sweep.svg`.
#![expect(clippy::print_stdout, reason = "the table")]

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use planner::chart::{Series, Speed, speed_against_memory};
use plans::file;
use plans::plan::Plan;
use plotters::prelude::{BLACK, BLUE, RED};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// What the table shows of `run --bench --json`.
#[derive(Deserialize)]
struct Bench {
    decode_tokens_per_second_predicted: f64,
    /// Least, median, most.
    decode_tokens_per_second_spread: [f64; 3],
    latency_seconds: Latency,
    bytes_read_per_token: f64,
    hit_fraction: f64,
    memory_peak_bytes: u64,
    floor_seconds: Option<f64>,
    measured_over_floor: Option<f64>,
    measured_over_reads_alone: Option<f64>,
    repeats: usize,
    tokens_in: usize,
    tokens_out: usize,
}

#[derive(Deserialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
}

/// What it shows of `llama-bench -o json`.
#[derive(Deserialize)]
struct Llama {
    samples_ts: Vec<f64>,
}

/// Everything that is known of one limit.
struct Limit {
    name: String,
    bytes: u64,
    plan: Option<Plan>,
    bench: Option<Bench>,
    /// What the planner said, after that there is no plan; or what became of the run.
    said: String,
    logits: Option<String>,
    llama: Option<[f64; 3]>,
}

const HEADER: &str = "\
| limit | planned, tok/s | measured, tok/s, least / median / most | latency, ms, P50 / P90 / P99 | read per token, MiB | in memory | peak, MiB | floor, ms | measured over floor | over its reads alone | llama.cpp, tok/s |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |";

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("give the folder and the limits")?;
    let folder = Path::new(&folder);
    let limits = arguments.map(|name| read(folder, name)).collect::<Result<Vec<_>>>()?;
    let ran = limits.iter().find_map(|limit| Some((limit.plan.as_ref()?, limit.bench.as_ref()?)));

    if let Some((plan, bench)) = ran {
        println!(
            "{} on {}, level {}; {} tokens in, {} out, {} times.\n",
            plan.target.model,
            plan.target.device,
            plan.quality.level,
            bench.tokens_in,
            bench.tokens_out,
            bench.repeats
        );
    }
    println!("{HEADER}");
    limits.iter().for_each(|limit| println!("{}", row(limit)));
    let same = same_logits(&limits);
    if let Ok(sentence) = &same {
        println!("\n{sentence}");
    }

    let title = ran.map_or_else(String::new, |(plan, _)| format!("{}, decoding", plan.target.model));
    let svg = picture(&limits, &title).map_err(anyhow::Error::msg)?;
    file::write_bytes(&folder.join("sweep.svg"), svg.as_bytes())?;
    same.map(|_| ()).map_err(anyhow::Error::msg)
}

fn read(folder: &Path, name: String) -> Result<Limit> {
    let file = |end: &str| folder.join(format!("sweep-{name}{end}"));
    let text = |end: &str| fs::read_to_string(file(end)).unwrap_or_default().trim().to_owned();
    let llama: Option<Vec<Llama>> = json(&file("-llama.json"))?;
    Ok(Limit {
        bytes: plans::size::parse(&name)?,
        plan: file::read::<Plan>(&file(".toml")).ok().map(|read| read.value),
        bench: json(&file(".json"))?,
        said: text(".txt").lines().take(2).last().unwrap_or_default().to_owned(),
        logits: Some(text(".hash")).filter(|hash| !hash.is_empty()),
        llama: llama.and_then(|runs| spread(runs.into_iter().flat_map(|run| run.samples_ts).collect())),
        name,
    })
}

/// A JSON file, if it is there.
fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(None) };
    Ok(Some(serde_json::from_str(&text).with_context(|| path.display().to_string())?))
}

/// Least, median, most.
fn spread(mut values: Vec<f64>) -> Option<[f64; 3]> {
    values.sort_unstable_by(f64::total_cmp);
    let (least, most) = (*values.first()?, *values.last()?);
    let median = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
    Some([least, median, most])
}

fn row(limit: &Limit) -> String {
    let three = |[a, b, c]: [f64; 3], digits: usize| format!("{a:.digits$} / {b:.digits$} / {c:.digits$}");
    let known = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let llama = limit.llama.map_or("-".to_owned(), |speeds| three(speeds, 2));
    let Some(b) = &limit.bench else {
        return format!("| {} | {} | | | | | | | | | {llama} |", limit.name, limit.said);
    };
    let cells = [
        limit.name.clone(),
        format!("{:.2}", b.decode_tokens_per_second_predicted),
        three(b.decode_tokens_per_second_spread, 2),
        three([b.latency_seconds.p50, b.latency_seconds.p90, b.latency_seconds.p99].map(|s| s * 1e3), 1),
        format!("{:.2}", mib(b.bytes_read_per_token)),
        format!("{:.1} %", b.hit_fraction * 100.0),
        format!("{:.1}", mib(b.memory_peak_bytes as f64)),
        known(b.floor_seconds.map(|s| s * 1e3), 2),
        known(b.measured_over_floor, 2),
        known(b.measured_over_reads_alone, 2),
        llama,
    ];
    format!("| {} |", cells.join(" | "))
}

/// That every limit gave the same logits; an error if one did not.
fn same_logits(limits: &[Limit]) -> Result<String, String> {
    let known: Vec<(&str, &str)> =
        limits.iter().filter_map(|limit| Some((&*limit.name, limit.logits.as_deref()?))).collect();
    let Some((first, hash)) = known.first() else { return Ok("The logits were not compared.".to_owned()) };
    if let Some((other, _)) = known.iter().find(|(_, other)| other != hash) {
        return Err(format!("the logits of a fixed stream differ between {first} and {other}"));
    }
    Ok(match known.len() {
        1 => format!("The logits of a fixed stream were computed at {first} alone, and compared with none."),
        count => format!(
            "The logits of a fixed stream are the same at all {count} limits that have a plan, bit for bit ({}).",
            &hash[..hash.len().min(16)]
        ),
    })
}

fn picture(limits: &[Limit], title: &str) -> Result<String, String> {
    let line = |of: &dyn Fn(&Limit) -> Option<Speed>| limits.iter().filter_map(of).collect::<Vec<_>>();
    let of_three = |limit_bytes, [least, median, most]: [f64; 3]| Speed {
        limit_bytes,
        tokens_per_second: median,
        spread: [least, most],
    };
    let measured =
        |limit: &Limit| Some(of_three(limit.bytes, limit.bench.as_ref()?.decode_tokens_per_second_spread));
    let planned = |limit: &Limit| {
        Some(Speed::of(limit.bytes, limit.bench.as_ref()?.decode_tokens_per_second_predicted))
    };
    let theirs = |limit: &Limit| Some(of_three(limit.bytes, limit.llama?));
    let mut series = vec![
        Series { name: "planned", colour: BLUE, points: line(&planned) },
        Series { name: "measured", colour: RED, points: line(&measured) },
    ];
    let theirs = line(&theirs);
    if !theirs.is_empty() {
        series.push(Series { name: "llama.cpp", colour: BLACK, points: theirs });
    }
    speed_against_memory(title, &series)
}
