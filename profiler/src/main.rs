//! `profile`: measures a machine and a model.

use std::collections::BTreeMap;
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
    let arguments = match terminal::command::parse::<Arguments>() {
        Ok(arguments) => arguments,
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

/// An error and those below it that say something more.
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
        return Ok(());
    }
    let storage = arguments.storage().to_owned();
    let context = Context::new(arguments.out.clone(), storage, arguments.quick)
        .with_progress(Progress::on_stderr(arguments.verbose > 0));
    let stop = context.stop_flag();
    terminal::interrupt::on_interrupt(move || stop.swap(true, Ordering::Relaxed))
        .map_err(anyhow::Error::msg)?;

    let device_toml = arguments.out.join("device.toml");
    let known = arguments.model.is_some() && device_toml.exists();
    if known {
        let device = plans::file::read::<plans::Device>(&device_toml)
            .context("the device is measured already; remove its file to measure again")?;
        if let Some(different) = folder::of_another_machine(&device.value, &context.storage)? {
            say(format_args!(
                "warning: {} is of another machine, which a plan from it is for ({different}): remove it to measure this one, or \
                 name another folder with --out",
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
    if let Some(path) = &path {
        profiler::truncated::explain().context("cannot listen to bus errors")?;
        model::hub::check(&context, path, quantisation)?;
    }
    let _turn = Turn::wait(&context, |sentence| say(sentence))?;
    let model = match path {
        Some(path) => {
            let options = ModelOptions {
                model: path,
                text: arguments.text.clone(),
                routes: arguments.routes.clone(),
                name: arguments.name.clone(),
                down: arguments.down.map(Into::into),
                gate_levels: arguments.gate_levels,
                activation: arguments.activation.map(Into::into),
                weights: arguments.weights(),
                consume: arguments.consume_model,
                replace: arguments.replace,
            };
            let options = model::hub::open(&context, options, quantisation, &mut told)?;
            let profile = Profile::prepare(&context, &options)?;
            print_estimate(&context, &profile);
            Some(profile)
        }
        None => None,
    };
    let device = if known {
        say(format_args!("{} is there; only the model is measured", device_toml.display()));
        None
    } else {
        let estimate = device::estimate(&context)?;
        say(format_args!(
            "device: about {:.0} s, {} of memory; writes {} to {} and removes it again",
            estimate.time.as_secs_f64(),
            show(estimate.memory_bytes),
            show(estimate.scratch_bytes),
            context.storage.display(),
        ));
        let start = Instant::now();
        let name = if arguments.model.is_some() { None } else { arguments.name.as_deref() };
        let summary = device::profile(&context, name)?;
        if let Some(warning) = &summary.warning {
            say(format_args!("warning: {warning}"));
        }
        tracing::info!(seconds = start.elapsed().as_secs_f64(), "the device is measured");
        Some((summary, start.elapsed()))
    };
    let start = Instant::now();
    let model = model.map(Profile::run).transpose()?;
    if let Some(summary) = &model {
        tracing::info!(seconds = start.elapsed().as_secs_f64(), "the model {} is measured", summary.name);
    }
    if arguments.json {
        let device = device.as_ref().map(|(summary, time)| device_json(summary, *time));
        tell(serde_json::json!({ "device": device, "model": model.as_ref().map(model_json) }))?;
        return Ok(());
    }
    if let Some((summary, time)) = &device {
        print_device(summary, *time)?;
    }
    if let Some(summary) = &model {
        print_model(summary)?;
    }
    Ok(())
}

/// Prints time and disk space that a profile of the model will take, before it begins.
fn print_estimate(context: &Context, profile: &Profile) {
    for remark in &profile.remarks {
        say(format_args!("warning: {remark}"));
    }
    let estimate = &profile.estimate;
    say(format_args!(
        "model: about {}; writes {} to {}, and {} of finished parts to {} that it removes at the end",
        time(estimate.seconds()),
        show(estimate.container_bytes),
        context.storage.display(),
        show(estimate.work_bytes),
        context.out.display(),
    ));
    for (stage, seconds) in &estimate.stages {
        say(format_args!("  {:>8}  {stage}", time(*seconds)));
    }
    for taken in &profile.taken {
        say(taken);
    }
    if profile.layers_done > 0 {
        say(format_args!("resuming: {} of {} layers done", profile.layers_done, profile.layers()));
    }
}

fn print_device(summary: &device::Summary, time: Duration) -> std::io::Result<()> {
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
        ("memory in order", &device.memory.stream_bytes_per_second),
        ("memory in rows", &device.memory.gather_bytes_per_second),
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
                    "{:.1} us of CPU a read, {:.0} % of compute speed at full rate",
                    cost.cpu_seconds_per_read * 1e6,
                    cost.interference_fraction * 100.0
                )
            },
        );
        table.row([format!("cost of {backend}"), cost]);
    }
    table.row(["reads best from".to_owned(), format!("core {}", storage.best_core)]);
    if let Some(spreads) = device.spreads_told() {
        table.row(["windows apart by".to_owned(), format!("{spreads} (quartiles over median)")]);
    }
    tell(&table)?;
    let files: Vec<_> = summary.files.iter().map(|file| file.display().to_string()).collect();
    tell(format_args!("wrote {} in {:.1} s", files.join(", "), time.as_secs_f64()))
}

fn print_model(summary: &model::Summary) -> std::io::Result<()> {
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
    tell(&table)?;
    tell(format_args!("wrote {}, {}", summary.model_toml.display(), summary.container.display()))
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
