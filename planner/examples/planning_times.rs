//! How long requests take to plan, on the clock and of all processors, and how much memory, each in a process of its own: on
//! every committed profile, on others that are named, and on each of them with as many cores as `--cores` says.
//!
//! ```text
//! cargo run --release -p planner --example planning_times [-- [--cores 128] FOLDER...]
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use planner::{Answer, Inputs};
use plans::plan::{Objective, Request};
use terminal::tell;

/// Shares of what a model can use, between the smallest plan and all of it in memory.
const SHARES: [f64; 4] = [0.02, 0.25, 0.5, 0.9];

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [one, folder, cores, request] = &arguments[..]
        && one == "--one"
    {
        return plan_one(Path::new(folder), cores.parse()?, &serde_json::from_str(request)?);
    }
    let (mut cores, mut folders) = (0u32, Vec::new());
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--cores" => cores = rest.next().unwrap_or_default().parse()?,
            _ => folders.push(PathBuf::from(argument)),
        }
    }
    if folders.is_empty() {
        folders = committed()?;
    }
    let mut worst = [0.0f64; 3];
    for folder in folders {
        tell(format_args!("{}", folder.display()))?;
        let inputs = inputs_of(&folder, cores)?;
        for (name, request) in requests(&inputs)? {
            let request = serde_json::to_string(&request)?;
            let output = Command::new(std::env::current_exe()?)
                .args(["--one", &folder.display().to_string(), &cores.to_string(), &request])
                .output()?;
            let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let mut fields = said.split_whitespace();
            let mut number = || fields.next().and_then(|field| field.parse::<f64>().ok());
            let (Some(seconds), Some(busy), Some(mib)) = (number(), number(), number()) else {
                anyhow::bail!("{name}: {said} {}", String::from_utf8_lossy(&output.stderr));
            };
            worst = [worst[0].max(seconds), worst[1].max(busy), worst[2].max(mib)];
            tell(format_args!(
                "  {seconds:7.3} s {busy:7.2} s {mib:6.0} MiB  {name}: {}",
                fields.collect::<Vec<_>>().join(" ")
            ))?;
        }
    }
    let [seconds, busy, mib] = worst;
    tell(format_args!("at most {seconds:.3} s, {busy:.2} s of processors, and {mib:.0} MiB"))?;
    Ok(())
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
        widen(&mut inputs, cores);
    }
    Ok(inputs)
}

/// The device with so many cores: each adds what the last that was measured did, less and less.
fn widen(inputs: &mut Inputs, cores: u32) {
    let device = &mut inputs.device;
    let class = device.cores.len() - 1;
    let have: u32 = device.cores.iter().map(|class| class.ids.len() as u32).sum();
    let first = device.cores.iter().flat_map(|class| &class.ids).max().map_or(0, |last| last + 1);
    device.cores[class].ids.extend(first..first + cores.saturating_sub(have));
    let n = device.cores.iter().map(|class| class.ids.len()).sum::<usize>();
    let grow = |rates: &mut Vec<f64>, share: f64| {
        while rates.len() < n {
            let (last, one) = (rates[rates.len() - 1], rates[0].min(rates[rates.len() - 1]));
            rates.push(last + one * share / rates.len() as f64);
        }
    };
    for kernel in &mut device.kernels {
        for rates in [&mut kernel.dense_bytes_per_second, &mut kernel.sparse_bytes_per_second] {
            grow(rates, 0.5);
        }
        grow(&mut kernel.flops_per_second, 4.0);
        for rates in [
            &mut kernel.prompt_flops_per_second,
            &mut kernel.prompt_few_flops_per_second,
            &mut kernel.prompt_sparse_flops_per_second,
            &mut kernel.attention_flops_per_second,
        ] {
            rates.iter_mut().for_each(|rates| grow(rates, 4.0));
        }
        for seconds in [
            &mut kernel.short_dense_row_seconds,
            &mut kernel.short_dot_row_seconds,
            &mut kernel.short_add_row_seconds,
        ] {
            seconds.iter_mut().for_each(|seconds| grow(seconds, 0.0));
        }
        grow(&mut kernel.dispatch_seconds, 1.0);
    }
    grow(&mut device.memory.stream_bytes_per_second, 0.5);
    grow(&mut device.memory.gather_bytes_per_second, 0.5);
}

/// Requests of every kind, those that have no plan among them.
fn requests(inputs: &Inputs) -> anyhow::Result<Vec<(String, Request)>> {
    let plain = Request::default();
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
    let too_little = Request { memory_limit_bytes: Some(least as u64 / 2), ..plain.clone() };
    let mut all = vec![("everything".to_owned(), plain.clone()), ("nothing fits".to_owned(), too_little)];
    for share in SHARES {
        let here = at(share);
        let Some((speed, prefill)) = solve(&here)? else { continue };
        let percent = share * 100.0;
        let mut more = |name: &str, request: Request| all.push((format!("{name}, {percent} %"), request));
        let floor = |times: f64| Some(plans::file::significant(speed * times));
        more("plain", here.clone());
        more("no loss", Request { perplexity_change_fraction_max: 0.0, ..here.clone() });
        for times in [0.5, 0.99, 1.01, 1.2, 1e3] {
            more(
                &format!("{times} of its speed"),
                Request { decode_tokens_per_second_min: floor(times), ..here.clone() },
            );
        }
        for times in [0.5, 1.2] {
            let objective = Objective::Memory;
            let memory_limit_bytes = None;
            more(
                &format!("least memory for {times} of its speed"),
                Request {
                    objective,
                    memory_limit_bytes,
                    decode_tokens_per_second_min: floor(times),
                    ..here.clone()
                },
            );
        }
        for times in [1.0, 1.5, 1e3] {
            let prefill_tokens_per_second_min = Some(plans::file::significant(prefill * times));
            more(
                &format!("{times} of its prefill speed"),
                Request { prefill_tokens_per_second_min, ..here.clone() },
            );
        }
    }
    Ok(all)
}

/// Plans one request and says what it took.
fn plan_one(folder: &Path, cores: u32, request: &Request) -> anyhow::Result<()> {
    let inputs = inputs_of(folder, cores)?;
    let (started, busy) = (Instant::now(), busy_seconds());
    let answer = planner::plan(&inputs, request)?;
    let (seconds, busy) = (started.elapsed().as_secs_f64(), busy_seconds() - busy);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: f64 = peak.and_then(|peak| peak.split_whitespace().next()?.parse().ok()).unwrap_or(0.0);
    let outcome = match answer {
        Answer::Plan(solved) => format!("{} tok/s", solved.plan.expected.decode_tokens_per_second),
        Answer::Infeasible(_) => "no plan".to_owned(),
    };
    tell(format_args!("{seconds} {busy} {} {outcome}", kib / 1024.0))?;
    Ok(())
}

/// Seconds that processors worked for this process, in hundredths.
fn busy_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2);
    ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
