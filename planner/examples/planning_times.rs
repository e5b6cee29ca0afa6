//! How long requests take to plan, on the clock and of all processors, and how much memory, each in a process of its own with
//! its profiles read: on every committed profile, or on folders that are named, as they are and with 128 cores.
//!
//! ```text
//! cargo run --release -p flashplan-planner --example planning_times [-- [--cores 128] FOLDER...]
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use planner::{Answer, Inputs};
use plans::model::Level;
use plans::plan::{Objective, Request};
use terminal::tell;

/// Shares of what a model can use, between the smallest plan and all of it in memory, at which plans are made.
const SHARES: [f64; 10] = [0.0, 0.02, 0.05, 0.1, 0.25, 0.4, 0.5, 0.7, 0.9, 1.0];
/// Those at which all other requests are made, too.
const SHARES_OF_ALL: [f64; 4] = [0.02, 0.25, 0.5, 0.9];
/// Numbers of cores that a device is taken to have; 0 as it is.
const CORES: [u32; 2] = [0, 128];
/// Tokens of the prompt whose time is limited.
const PROMPT: u32 = 512;

#[path = "support/wide.rs"]
mod wide;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [one, folder, cores, request] = &arguments[..]
        && one == "--one"
    {
        return plan_one(Path::new(folder), cores.parse()?, &serde_json::from_str(request)?);
    }
    let (mut cores, mut folders) = (CORES.to_vec(), Vec::new());
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--cores" => cores = vec![rest.next().unwrap_or_default().parse()?],
            _ => folders.push(PathBuf::from(argument)),
        }
    }
    if folders.is_empty() {
        folders = committed()?;
    }
    for cores in cores {
        let mut rows: BTreeMap<String, Vec<[f64; 3]>> = BTreeMap::new();
        for folder in &folders {
            tell(format_args!("{}{}", folder.display(), widened(cores)))?;
            for (what, at, request) in requests(&inputs_of(folder, cores)?)? {
                let (taken, outcome) = timed(folder, cores, &request)?;
                let [seconds, busy, mib] = taken;
                tell(format_args!("  {seconds:7.3} s {busy:7.2} s {mib:6.0} MiB  {what}, {at}: {outcome}"))?;
                let answer = if outcome == "no plan" { "no plan" } else { "a plan" };
                rows.entry(format!("{answer}: {what}")).or_default().push(taken);
            }
        }
        tell(format_args!(
            "\n| answer: request{} | requests | median, s | worst, s | worst of processors, s | worst, MiB |\n|---|---|---|---|---|---|",
            widened(cores)
        ))?;
        let all = rows.values().flatten().copied().collect();
        rows.insert("all".to_owned(), all);
        for (name, taken) in rows {
            let sorted = |k: usize| {
                let mut of: Vec<f64> = taken.iter().map(|taken| taken[k]).collect();
                of.sort_by(f64::total_cmp);
                of
            };
            let [seconds, busy, mib] = [0, 1, 2].map(sorted);
            let last = taken.len() - 1;
            tell(format_args!(
                "| {name} | {} | {:.2} | {:.2} | {:.2} | {:.0} |",
                taken.len(),
                seconds[last / 2],
                seconds[last],
                busy[last],
                mib[last]
            ))?;
        }
        tell(format_args!(""))?;
    }
    Ok(())
}

fn widened(cores: u32) -> String {
    if cores == 0 { String::new() } else { format!(", with {cores} cores") }
}

/// Seconds of the clock, seconds of processors and MiB of memory of a process that solves a request; and its result in words.
fn timed(folder: &Path, cores: u32, request: &Request) -> anyhow::Result<([f64; 3], String)> {
    let request = serde_json::to_string(request)?;
    let started = Instant::now();
    let output = Command::new(std::env::current_exe()?)
        .args(["--one", &folder.display().to_string(), &cores.to_string(), &request])
        .output()?;
    let seconds = started.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let mut fields = said.splitn(3, ' ');
    let mut number = || fields.next().and_then(|field| field.parse::<f64>().ok());
    let (Some(busy), Some(mib)) = (number(), number()) else {
        anyhow::bail!("{request}: {said} {}", String::from_utf8_lossy(&output.stderr));
    };
    Ok(([seconds, busy, mib], fields.next().unwrap_or_default().to_owned()))
}

/// Every committed device with its model.
fn committed() -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for device in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../plans"))? {
        let Ok(models) = std::fs::read_dir(device?.path()) else { continue };
        found.extend(models.filter_map(|model| Some(model.ok()?.path())));
    }
    found.retain(|path| path.join("device.toml").exists());
    found.sort();
    Ok(found)
}

fn inputs_of(folder: &Path, cores: u32) -> anyhow::Result<Inputs> {
    let mut inputs = planner::read_inputs(&folder.join("device.toml"), &folder.join("model.toml"))?;
    if cores > 0 {
        wide::widen(&mut inputs, cores);
    }
    Ok(inputs)
}

/// Requests of every kind, those that have no plan among them: what is asked, where, and the request.
fn requests(inputs: &Inputs) -> anyhow::Result<Vec<(&'static str, String, Request)>> {
    // generated weights may lose more than is allowed
    let least_loss = inputs.model.levels.iter().map(Level::loss_bound_fraction).fold(f64::INFINITY, f64::min);
    let mut plain = Request::default();
    plain.perplexity_change_fraction_max = plain.perplexity_change_fraction_max.max(least_loss);
    let question = planner::request::resolve(inputs, &plain)?;
    let least = planner::space::Space::least_regions(&question).unwrap_or(0) as f64;
    let model = &inputs.model;
    let neurons = model.architecture.neurons() * u64::from(model.architecture.layers);
    let most = (least + (neurons * model.parts.bundle.bundle_bytes()) as f64)
        .min(inputs.device.capacity.plannable_bytes() as f64);
    let at = |share: f64| Request {
        memory_limit_bytes: Some((1.01 * least + share * (most - least)) as u64),
        ..plain.clone()
    };
    let solve = |request: &Request| -> anyhow::Result<Option<(f64, f64)>> {
        Ok(match planner::plan(inputs, request)? {
            Answer::Plan(solved) => {
                let e = solved.plan.expected;
                Some((e.decode_tokens_per_second, e.prefill_tokens_per_second))
            }
            Answer::Infeasible(_) => None,
        })
    };
    let mut all: Vec<(&str, String, Request)> = Vec::new();
    let mut more = |what, at: &str, request: Request| all.push((what, at.to_owned(), request));
    more("speed", "no limit", plain.clone());
    let objective = Objective::Memory;
    more("least memory", "any speed", Request { objective, ..plain.clone() });
    let too_little = Request { memory_limit_bytes: Some(least as u64 / 2), ..plain.clone() };
    more("too little memory", "half of the least", too_little);
    let longest = Request { context_tokens: Some(model.architecture.context), ..at(0.0) };
    more("longest context", "about the least memory", longest);
    for share in SHARES {
        more("speed", &format!("{} %", share * 100.0), at(share));
    }
    for share in SHARES_OF_ALL {
        let here = at(share);
        let Some((speed, prefill)) = solve(&here)? else { continue };
        let mut more = |what, at: &str, request| more(what, &format!("{at}, {} %", share * 100.0), request);
        let lossless = Request { perplexity_change_fraction_max: 0.0, ..here.clone() };
        more("no loss", "", lossless.clone());
        let one = Some(inputs.device.core_ids()[..1].to_vec());
        let floor = |times: f64| Some(plans::file::significant(speed * times));
        for (what, times) in [
            ("speed within reach", 0.5),
            ("speed within reach", 0.99),
            ("speed just above", 1.006),
            ("speed just above", 1.05),
            ("speed above", 1.5),
            ("speed far above", 1e3),
        ] {
            let asked =
                |request: &Request| Request { decode_tokens_per_second_min: floor(times), ..request.clone() };
            more(what, &format!("{times} of it"), asked(&here));
            if times == 0.99 {
                more("speed, no loss", "", asked(&lossless));
                more("speed, one core", "", asked(&Request { cores: one.clone(), ..here.clone() }));
            }
            if times < 1.4 {
                let smallest = Request { objective, memory_limit_bytes: None, ..asked(&here) };
                more("least memory for a speed", &format!("{times} of it"), smallest);
            }
        }
        for (what, times) in [
            ("prompt speed within reach", 1.0),
            ("prompt speed just above", 1.01),
            ("prompt speed above", 1.5),
            ("prompt speed far above", 1e3),
        ] {
            let prefill_tokens_per_second_min = Some(plans::file::significant(prefill * times));
            let asked = Request { prefill_tokens_per_second_min, ..here.clone() };
            more(what, &format!("{times} of it"), asked.clone());
            if times == 1.01 {
                let both = Request { decode_tokens_per_second_min: floor(0.95), ..asked };
                more("prompt speed and speed", "", both);
            }
        }
        let tokens = PROMPT.min(model.architecture.context / 2);
        for (what, times) in
            [("first token within reach", 1.5), ("first token sooner", 0.5), ("first token far sooner", 1e-3)]
        {
            let seconds = plans::file::significant(f64::from(tokens) / prefill * times);
            let limited = Request {
                first_token_seconds_max: Some(seconds),
                prompt_tokens: Some(tokens),
                ..here.clone()
            };
            more(what, &format!("{times} of its prompt speed"), limited);
        }
    }
    Ok(all)
}

/// Plans one request and says what the process took.
fn plan_one(folder: &Path, cores: u32, request: &Request) -> anyhow::Result<()> {
    let answer = planner::plan(&inputs_of(folder, cores)?, request)?;
    let busy = busy_seconds();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: f64 = peak.and_then(|peak| peak.split_whitespace().next()?.parse().ok()).unwrap_or(0.0);
    let outcome = match answer {
        Answer::Plan(solved) => {
            let speed = solved.plan.expected.decode_tokens_per_second;
            format!("{speed} tok/s, gap {:.2} %", solved.gap() * 100.0)
        }
        Answer::Infeasible(_) => "no plan".to_owned(),
    };
    tell(format_args!("{busy} {} {outcome}", kib / 1024.0))?;
    Ok(())
}

/// Seconds that processors worked for this process, in hundredths.
fn busy_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2);
    ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
