//! `profile`: measures a machine and a model.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use plans::Backend;
use plans::size::show;
use profiler::cli::Arguments;
use profiler::model::{ModelOptions, Profile, Source};
use profiler::{Context, Turn, check, device, folder, model};
use terminal::output::say_error;
use terminal::progress::time;
use terminal::{Progress, Rows, say, tell};

fn main() -> ExitCode {
    terminal::interrupt::survive_the_file_size_limit();
    let arguments = match terminal::command::parse::<Arguments>() {
        Ok(arguments) => arguments.named(),
        Err(code) => return code,
    };
    terminal::log::listen(arguments.verbose);
    match profile(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say_error(said(&error));
            ExitCode::FAILURE
        }
    }
}

/// The profile of a model that is to be made.
enum Job {
    /// By calibration.
    Calibrated(Box<Profile>),
    /// With priors.
    Instant(ModelOptions),
}

/// An error, and its causes that add something.
fn said(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn profile(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.check()?;
    if arguments.check {
        let findings = check::Facts::here(arguments.storage())?.findings();
        tell(check::text(&findings))?;
        #[cfg(feature = "gpu")]
        tell(format!("\n{}", gpu::listed(&gpu::adapters())))?;
        return Ok(());
    }
    let storage = arguments.storage().to_owned();
    let context = Context::new(arguments.out.clone(), storage, arguments.quick || arguments.instant)
        .with_progress(Progress::on_stderr(arguments.verbose > 0));
    let stop = context.stop_flag();
    terminal::interrupt::on_interrupt(move || stop.swap(true, Ordering::Relaxed))
        .map_err(anyhow::Error::msg)?;

    if arguments.header {
        return header(arguments, &context);
    }
    let device_toml = arguments.out.join("device.toml");
    let known = arguments.model.is_some() && device_toml.exists();
    if known {
        let device = plans::file::read::<plans::Device>(&device_toml)
            .with_context(|| format!("remove {} to measure this machine again", device_toml.display()))?;
        if let Some(different) = folder::of_another_machine(&device.value, &context.storage)? {
            say(format_args!(
                "warning: {} describes another machine ({different}), and so will plans from it; remove the file to measure this \
                 machine, or name another folder with --out",
                device_toml.display()
            ));
        }
    }
    let mut told = |sentence: String| say(sentence);
    // others may measure while a model is fetched
    let path = match &arguments.model {
        None => None,
        Some(Source::Path(path)) => Some(path.clone()),
        Some(Source::Hub(name)) => {
            Some(model::fetch::fetch(&context, name, arguments.consume_model, &mut told)?)
        }
    };
    let quantisation = arguments.quantize.map(Into::into);
    let options = path.map(|model| options(arguments, model));
    // errors come before the wait for another profile
    if let Some(options) = &options {
        profiler::truncated::explain().context("cannot listen to bus errors")?;
        model::hub::check(&context, options, quantisation)?;
    }
    if !known {
        device::check_space(&context)?;
    }
    let _turn = Turn::wait(&context, |sentence| say(sentence))?;
    let model = match options {
        Some(options) if options.instant => {
            Some(Job::Instant(model::hub::open(&context, options, quantisation, &mut told)?))
        }
        Some(options) => {
            let options = model::hub::open(&context, options, quantisation, &mut told)?;
            let profile = Profile::prepare(&context, &options)?;
            print_estimate(&context, &profile, arguments.verbose > 0);
            Some(Job::Calibrated(Box::new(profile)))
        }
        None => None,
    };
    let device = if known {
        say(format_args!(
            "machine: measured before, in {}; remove that file to measure again",
            device_toml.display()
        ));
        None
    } else {
        let estimate = device::estimate(&context)?;
        say(format_args!(
            "machine: about {:.0} s, {} of memory, and {} of scratch space in {}",
            estimate.time.as_secs_f64(),
            show(estimate.memory_bytes),
            show(estimate.scratch_bytes),
            context.storage.display(),
        ));
        let start = Instant::now();
        let name = if arguments.model.is_some() { None } else { arguments.name.as_deref() };
        let summary = device::profile(&context, name)?;
        let disturbed = summary.device.provenance.disturbed(&context.out);
        for warning in summary.stand_in.iter().cloned().chain(disturbed) {
            say(format_args!("warning: {warning}"));
        }
        tracing::info!(seconds = start.elapsed().as_secs_f64(), "the device is measured");
        Some((summary, start.elapsed()))
    };
    let start = Instant::now();
    let model = match model {
        Some(Job::Calibrated(profile)) => Some(profile.run()?),
        Some(Job::Instant(options)) => Some(model::instant::profile(&context, &options, &mut told)?),
        None => None,
    };
    if let Some(summary) = &model {
        tracing::info!(seconds = start.elapsed().as_secs_f64(), "the model {} is measured", summary.name);
    }
    if arguments.json {
        let device = device.as_ref().map(|(summary, time)| device_json(summary, *time));
        tell(serde_json::json!({ "device": device, "model": model.as_ref().map(model_json) }))?;
        return Ok(());
    }
    if arguments.verbose > 0 {
        device.as_ref().map(|(summary, _)| tell(device_table(summary))).transpose()?;
        model.as_ref().map(|summary| tell(model_table(summary))).transpose()?;
    }
    tell(summary(device.as_ref().map(|(summary, _)| summary), model.as_ref()))?;
    Ok(())
}

/// The options of a model's profile.
fn options(arguments: &Arguments, model: PathBuf) -> ModelOptions {
    ModelOptions {
        model,
        text: arguments.text.clone(),
        routes: arguments.routes.clone(),
        name: arguments.name.clone(),
        down: arguments.down.map(Into::into),
        gate_levels: arguments.gate_levels,
        activation: arguments.activation.map(Into::into),
        weights: arguments.weights(),
        consume: arguments.consume_model,
        replace: arguments.replace,
        instant: arguments.instant,
    }
}

/// Describes a model for `--header`, without measuring anything.
fn header(arguments: &Arguments, context: &Context) -> anyhow::Result<()> {
    let Some(source) = &arguments.model else { return Ok(()) };
    let path = match source {
        Source::Path(path) => path.clone(),
        Source::Hub(_) => PathBuf::new(),
    };
    let summary = model::header::describe(context, source, &options(arguments, path))?;
    if arguments.json {
        tell(serde_json::json!({ "device": null, "model": model_json(&summary) }))?;
    } else {
        tell(format_args!("wrote {}, from the header of {}", summary.model_toml.display(), summary.name))?;
    }
    Ok(())
}

/// The result for people: machine, model, files, and the next command.
fn summary(device: Option<&device::Summary>, model: Option<&model::Summary>) -> String {
    let mut table = Rows::new().left();
    let mut files = Vec::new();
    if let Some(summary) = device {
        table.row(["machine".to_owned(), machine_line(&summary.device)]);
        table.row(["disk".to_owned(), disk_line(&summary.device)]);
        files.extend(&summary.files);
    }
    if let Some(summary) = model {
        table.row([
            "model".to_owned(),
            format!("{}, perplexity {:.2}", summary.name, summary.perplexity_dense),
        ]);
        table.row(["levels".to_owned(), levels_line(&summary.levels)]);
        files.extend([&summary.model_toml, &summary.container]);
    }
    table.row(["wrote".to_owned(), in_folders(&files)]);
    if let Some(summary) = model {
        let device_toml = summary.model_toml.with_file_name("device.toml");
        let next = format!(
            "plan --device {} --model {} --mem SIZE",
            device_toml.display(),
            summary.model_toml.display()
        );
        table.row(["next".to_owned(), next]);
    }
    table.to_string()
}

/// Files by their folder, in order: `out: a, b; elsewhere: c`.
fn in_folders(files: &[&PathBuf]) -> String {
    let of = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let folders = files.chunk_by(|a, b| a.parent() == b.parent()).map(|files| {
        let names: Vec<_> = files.iter().map(|file| of(file.file_name())).collect();
        format!("{}: {}", of(files[0].parent().map(Path::as_os_str)), names.join(", "))
    });
    folders.collect::<Vec<_>>().join("; ")
}

/// Processor, memory and its bandwidth.
fn machine_line(device: &plans::Device) -> String {
    let cores = device.core_ids().len();
    let bandwidth = device.memory.stream_bytes_per_second.last().copied().unwrap_or_default();
    format!(
        "{}, {cores} cores, {} of memory at {:.0} GB/s; plans may use {}",
        device.identity.cpu,
        show(device.capacity.ram_bytes),
        bandwidth / 1e9,
        show(device.capacity.plannable_bytes())
    )
}

/// The best random and sequential reads of the disk.
fn disk_line(device: &plans::Device) -> String {
    let best = |pattern: &str, block: u64| {
        let reads = device.storage.reads.iter();
        let reads = reads.filter(|read| read.pattern == pattern && read.block_bytes == block);
        reads.map(|read| read.reads_per_second).max_by(f64::total_cmp)
    };
    let mut parts = vec![device.identity.storage.clone()];
    parts.extend(
        best("random", 8192).map(|rate| format!("{} random reads of 8 KiB a second", in_thousands(rate))),
    );
    parts.extend(
        best("sequential", 1 << 20)
            .map(|rate| format!("{} in sequence", bandwidth(rate * f64::from(1 << 20)))),
    );
    if !device.storage.direct {
        parts.push("through the page cache: this file system refuses direct reads".to_owned());
    }
    parts.join(", ")
}

/// A rate with about two digits: `98 thousand`, `4.2 thousand`, `180`.
fn in_thousands(rate: f64) -> String {
    match rate {
        _ if rate >= 9950.0 => format!("{:.0} thousand", rate / 1e3),
        _ if rate >= 1000.0 => format!("{:.1} thousand", rate / 1e3),
        _ => format!("{rate:.0}"),
    }
}

/// Bytes a second in decimal units: `1.6 GB/s`, `120 MB/s`.
fn bandwidth(bytes_per_second: f64) -> String {
    if bytes_per_second >= 1e9 {
        format!("{:.1} GB/s", bytes_per_second / 1e9)
    } else {
        format!("{:.0} MB/s", bytes_per_second / 1e6)
    }
}

/// The number of levels, and the one that computes the fewest neurons with its loss; for a single level its loss.
fn levels_line(levels: &[model::LevelSummary]) -> String {
    let percent = |fraction: f64| format!("{:.1} %", fraction * 100.0);
    let fewest = levels.iter().min_by(|a, b| a.active_fraction.total_cmp(&b.active_fraction));
    match (fewest, levels) {
        (Some(one), [_]) => format!("one, `{}`: every neuron is computed, {}", one.name, loss(one)),
        (Some(fewest), _) => format!(
            "{} levels of quality; the one of the fewest neurons computes {} of them, {:+.2} % of perplexity",
            levels.len(),
            percent(fewest.active_fraction),
            fewest.change_fraction * 100.0
        ),
        (None, _) => "none".to_owned(),
    }
}

/// The loss of a level in words.
fn loss(level: &model::LevelSummary) -> String {
    let change = level.change_fraction * 100.0;
    match level.upper_fraction {
        _ if level.lossless => "lossless".to_owned(),
        Some(upper) => format!("{change:+.2} % of perplexity, at most {:+.2} %", upper * 100.0),
        None => format!("{change:+.2} % of perplexity"),
    }
}

/// Prints warnings, time and disk space before the profile begins. `verbose` adds each stage, and all assumptions about the model.
fn print_estimate(context: &Context, profile: &Profile, verbose: bool) {
    for remark in &profile.remarks {
        say(format_args!("warning: {remark}"));
    }
    let estimate = &profile.estimate;
    say(format_args!(
        "model: about {}, {} written to {}, and {} of temporary files in {}",
        time(estimate.seconds()),
        show(estimate.container_bytes),
        context.storage.display(),
        show(estimate.work_bytes),
        context.out.display(),
    ));
    if verbose {
        for (stage, seconds) in &estimate.stages {
            say(format_args!("  {:>8}  {stage}", time(*seconds)));
        }
    }
    if verbose {
        profile.taken.iter().for_each(say);
    } else {
        profile.assumed_activation().into_iter().for_each(say);
    }
    if profile.layers_done > 0 {
        say(format_args!("resuming: {} of {} layers done", profile.layers_done, profile.layers()));
    }
}

/// Every rate of the machine, for `-v`.
fn device_table(summary: &device::Summary) -> String {
    let device = &summary.device;
    let rate = |bytes: f64| format!("{:.1} GB/s", bytes / 1e9);
    let mut table = Rows::new().left();
    table.row(["device".to_owned(), format!("{} ({})", device.name, device.fingerprint)]);
    table.row(["processor".to_owned(), device.identity.cpu.clone()]);
    for class in &device.cores {
        let flops = class.flops_per_second / 1e9;
        table.row([
            format!("{} cores", class.name),
            format!("{} x {flops:.0} GFLOP/s, ids {:?}", class.ids.len(), class.ids),
        ]);
    }
    let capacity = &device.capacity;
    table.row([
        "memory".to_owned(),
        format!("{}, {} can be planned", show(capacity.ram_bytes), show(capacity.plannable_bytes())),
    ]);
    let threads = device.memory.stream_bytes_per_second.len();
    for (name, rates) in [
        ("memory, sequential", &device.memory.stream_bytes_per_second),
        ("memory, scattered", &device.memory.gather_bytes_per_second),
    ] {
        let all = rates.last().map_or_else(String::new, |&all| format!(", {threads} threads {}", rate(all)));
        table.row([name.to_owned(), format!("1 thread {}{}", rate(rates[0]), all)]);
    }
    let best = device.identity.instruction_sets.last();
    for kernel in device.kernels.iter().filter(|kernel| Some(&kernel.instruction_set) == best) {
        let last = |values: &[f64]| values.last().copied().unwrap_or_default();
        table.row([
            format!("{} {}", kernel.format, kernel.instruction_set),
            format!(
                "{threads} threads: dense {}, sparse {}",
                rate(last(&kernel.dense_bytes_per_second)),
                rate(last(&kernel.sparse_bytes_per_second))
            ),
        ]);
    }
    let storage = &device.storage;
    table.row([
        "disk".to_owned(),
        format!(
            "{}, {}, {} reads",
            device.identity.storage,
            storage.file_system,
            if storage.direct { "direct" } else { "buffered" }
        ),
    ]);
    for (pattern, block) in [("random", 4096), ("random", 8192), ("random", 65536), ("sequential", 1 << 20)] {
        let points = storage.reads.iter().filter(|read| read.pattern == pattern && read.block_bytes == block);
        if let Some(read) = points.max_by(|a, b| a.reads_per_second.total_cmp(&b.reads_per_second)) {
            table.row([
                format!("{pattern} {}", show(block)),
                format!(
                    "{:.0} reads/s, {} at depth {} through {}",
                    read.reads_per_second,
                    rate(read.reads_per_second * block as f64),
                    read.depth,
                    read.backend
                ),
            ]);
        }
    }
    for backend in Backend::ALL {
        let cost = storage.read_cost(backend).map_or_else(
            || "refused here".to_owned(),
            |cost| {
                format!(
                    "{:.1} us of CPU a read, {:.0} % of compute speed lost at full rate",
                    cost.cpu_seconds_per_read * 1e6,
                    cost.interference_fraction * 100.0
                )
            },
        );
        table.row([format!("cost of {backend}"), cost]);
    }
    table.row(["best core for reads".to_owned(), format!("core {}", storage.best_core)]);
    if let Some(spreads) = device.spreads_told() {
        table.row(["spread of samples".to_owned(), format!("{spreads} (quartiles over median)")]);
    }
    table.to_string()
}

/// Every level of the model, for `-v`.
fn model_table(summary: &model::Summary) -> String {
    let mut table = Rows::new().left();
    table.row(["model".to_owned(), summary.name.clone()]);
    table.row(["dense perplexity".to_owned(), format!("{:.4}", summary.perplexity_dense)]);
    let percent = |fraction: f64| format!("{:+.2} %", fraction * 100.0);
    for level in &summary.levels {
        table.row([
            format!("level {}", level.name),
            format!(
                "perplexity {}{}, {:.1} % of the neurons active",
                percent(level.change_fraction),
                level.upper_fraction.map_or_else(String::new, |upper| format!(
                    " (at most {} with 95 % confidence)",
                    percent(upper)
                )),
                level.active_fraction * 100.0
            ),
        ]);
    }
    for loss in &summary.kv_formats {
        let (change, upper) = (loss.perplexity_change_fraction, loss.perplexity_change_fraction_upper);
        table.row([
            format!("keys and values {}", loss.format),
            format!(
                "perplexity {} (at most {} with 95 % confidence) on top of the level's",
                percent(change),
                percent(upper)
            ),
        ]);
    }
    table.to_string()
}

fn device_json(summary: &device::Summary, time: Duration) -> serde_json::Value {
    let device = &summary.device;
    serde_json::json!({
        "name": device.name,
        "fingerprint": device.fingerprint,
        "files": summary.files,
        "profile_seconds": plans::file::significant(time.as_secs_f64()),
        "cores": device.core_ids().len(),
        "ram_bytes": device.capacity.ram_bytes,
        "plannable_bytes": device.capacity.plannable_bytes(),
        "stream_bytes_per_second": device.memory.stream_bytes_per_second,
        "gather_bytes_per_second": device.memory.gather_bytes_per_second,
        "storage_direct": device.storage.direct,
        "storage_reads": device.storage.reads,
        "storage_cpu_seconds_per_read": device.storage.cpu_seconds_per_read,
        "storage_interference_fraction": device.storage.interference_fraction,
        "storage_io_uring": device.storage.io_uring,
        "spread_fractions": BTreeMap::from_iter(device.spread_fractions()),
    })
}

fn model_json(summary: &model::Summary) -> serde_json::Value {
    let levels: Vec<_> = summary
        .levels
        .iter()
        .map(|level| {
            serde_json::json!({
                "name": level.name,
                "perplexity_change_fraction": level.change_fraction,
                "perplexity_change_fraction_upper": level.upper_fraction,
                "active_fraction": level.active_fraction,
            })
        })
        .collect();
    serde_json::json!({
        "name": summary.name,
        "files": [summary.model_toml, summary.container],
        "perplexity_dense": summary.perplexity_dense,
        "levels": levels,
        "kv_formats": summary.kv_formats,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(name: &str, lossless: bool, [change, active]: [f64; 2]) -> model::LevelSummary {
        let upper_fraction = Some(2.0 * change);
        model::LevelSummary {
            name: name.to_owned(),
            lossless,
            change_fraction: change,
            upper_fraction,
            active_fraction: active,
        }
    }

    #[test]
    fn a_level_is_called_lossless_only_where_nothing_is_lost() {
        for (levels, said) in [
            (vec![level("dense", true, [0.0001, 1.0])], "one, `dense`: every neuron is computed, lossless"),
            (
                vec![level("dense", false, [0.0042, 1.0])],
                "one, `dense`: every neuron is computed, +0.42 % of perplexity, at most +0.84 %",
            ),
            (
                vec![level("dense", true, [0.0, 1.0]), level("sign", false, [0.0021, 0.123])],
                "2 levels of quality; the one of the fewest neurons computes 12.3 % of them, +0.21 % of perplexity",
            ),
        ] {
            assert_eq!(levels_line(&levels), said);
        }
    }

    #[test]
    fn a_slow_disk_has_units_that_fit() {
        let device = concat!(env!("CARGO_MANIFEST_DIR"), "/../plans/tests/device.toml");
        let mut device = plans::file::read::<plans::Device>(device.as_ref()).expect("a device").value;
        for (random, sequential, said) in [
            (98_000.0, 1_600.0, "98 thousand random reads of 8 KiB a second, 1.7 GB/s in sequence"),
            (4_200.0, 400.0, "4.2 thousand random reads of 8 KiB a second, 419 MB/s in sequence"),
            (180.0, 110.0, "180 random reads of 8 KiB a second, 115 MB/s in sequence"),
        ] {
            let read = device.storage.reads[0].clone();
            let at = |pattern: &str, block_bytes, reads_per_second| plans::device::ReadSpeed {
                pattern: pattern.to_owned(),
                block_bytes,
                reads_per_second,
                ..read.clone()
            };
            device.storage.reads = vec![at("random", 8192, random), at("sequential", 1 << 20, sequential)];
            let line = disk_line(&device);
            assert!(line.contains(said), "{line}");
        }
    }
}
