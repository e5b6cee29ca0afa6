//! What a plan says to people: time and memory term by term, and who decided what.

use plans::expectation::{self, Stream};
use plans::memory::kv_bytes_per_token;
use plans::model::{KvLoss, Level};
use plans::names::{self, duration};
use plans::plan::{Objective, UnitShare};
use plans::size::show;
use plans::terms::Factors;
use plans::{KvFormat, Model, Plan};
use terminal::Rows;

use crate::cost::Work;
use crate::cost::hardware;
use crate::cost::speculation::SPEED_ERROR_FRACTION;
use crate::question::Inputs;
use crate::request::as_requested;
use crate::room::with_page_tables;
use crate::rules;
use crate::search::{self, Solved};
use plans::plan::measured_run;

/// The figures of a plan that a person wants, under the names that `run` reports them by.
pub fn summary(inputs: &Inputs, plan: &Plan) -> String {
    let inputs = &*as_requested(inputs, &plan.request);
    let e = &plan.expected;
    let (prompt, generated) = measured_run(plan.context.tokens);
    let stream = stream(inputs, plan);
    let of_run = expectation::of(plan, &stream);
    let (bytes, hits) = of_run
        .map_or((e.bytes_read_per_token, e.hit_fraction), |of| (of.bytes_read_per_token, of.hit_fraction));
    let simple = plan.simple_rule.decode_tokens_per_second;
    let simple = if simple > 0.0 {
        let times = e.decode_tokens_per_second / simple;
        format!(
            "{simple:.1} tok/s (most used neurons in memory, all cores); the plan is {times:.2} times as fast"
        )
    } else {
        "does not fit".to_owned()
    };
    let mut rows = Rows::new().left();
    let mut row = |name: &str, value: String| rows.row([name.to_owned(), value]);
    row(
        names::DECODE,
        format!(
            "{:.1} tok/s, mean of {generated} tokens after a prompt of {prompt}",
            e.decode_tokens_per_second
        ),
    );
    if plan.provenance.priors {
        let [least, most] = expectation::with_priors(e.decode_tokens_per_second);
        row("  between", format!("{least:.1} and {most:.1} tok/s: misses are priors of `profile --instant`"));
    }
    if let Some(together) = &plan.together {
        let speeds = together.decode_tokens_per_second.iter().map(|speed| format!("{speed:.1}"));
        let speeds = speeds.collect::<Vec<_>>().join(", ");
        row("decode, as a batch", format!("{speeds} tok/s with 1, 2, ... sequences"));
    }
    if let Some(drafts) = &plan.speculation {
        row(
            names::WITH_DRAFTS,
            format!(
                "{:.1} tok/s, {:.2} tokens a step, on text like the profile's; drafts of up to {}",
                drafts.decode_tokens_per_second, drafts.tokens_per_step, drafts.draft_tokens
            ),
        );
    } else if plan.request.draft_tokens_auto {
        row(names::WITH_DRAFTS, no_drafts(inputs));
    }
    match of_run.and_then(|of| of.latency_seconds) {
        Some(of) if of.p99 == of.p50 => {
            row(names::TOKEN[2], format!("{}, the mean: misses are not expected to vary", duration(of.p99)));
        }
        Some(of) => row(names::TOKEN[2], duration(of.p99)),
        None => row(names::TOKEN[2], NO_PERCENTILES.to_owned()),
    }
    row(names::PREFILL, format!("{:.1} tok/s", e.prefill_tokens_per_second));
    if let Some(seconds) = expectation::prompt_seconds(plan, prompt as usize, &Factors::NONE) {
        row(names::FIRST_TOKEN, format!("{} after a prompt of {prompt}", duration(seconds)));
    }
    if let Some(seconds) = expectation::start_seconds(plan, &Factors::NONE) {
        row(names::START, duration(seconds));
    }
    if let Some(as_profiled) = as_profiled(plan, &stream) {
        row("decode, as profiled", as_profiled);
    }
    row(names::READ, show(bytes.round() as u64));
    row(names::FOUND, format!("{:.1} %", hits * 100.0));
    row(names::PEAK, format!("{} of {}", show(e.memory_peak_bytes), show(plan.memory.limit_bytes)));
    let level = inputs.model.level(&plan.quality.level);
    row(names::CHANGE, level.map_or_else(String::new, loss));
    row("quality level", plan.quality.level.clone());
    if let Some(loss) = inputs.model.kv_loss(plan.quality.kv()) {
        row("keys and values", kv_loss(&inputs.model, loss));
    }
    for (stage, units) in [("units, decode", &plan.decode.units), ("units, prefill", &plan.prefill.units)] {
        if units.len() > 1 {
            row(stage, shares(units));
        }
    }
    row("simple rule", simple);
    rows.to_string()
}

/// The part of a stage's dense products that each unit takes.
fn shares(units: &[UnitShare]) -> String {
    let of = |unit: &UnitShare| format!("{} {:.0} %", unit.unit, unit.share_fraction * 100.0);
    format!("{} of the dense products", units.iter().map(of).collect::<Vec<_>>().join(", "))
}

/// Why `--speculate auto` takes no drafts.
fn no_drafts(inputs: &Inputs) -> String {
    if inputs.model.architecture.recurrent.is_some() {
        return "none: the model's recurrent state cannot go back to where a draft fails".to_owned();
    }
    format!(
        "none: no length is faster by more than {:.0} %, the error of plans; --explain lists them",
        SPEED_ERROR_FRACTION * 100.0
    )
}

/// Why a plan has no percentiles.
const NO_PERCENTILES: &str = "not known: model.toml has no missing_p50_over_mean; profile the model again";

/// The run that the plan's speed is for.
fn stream(inputs: &Inputs, plan: &Plan) -> Stream {
    let routed = inputs.model.architecture.neurons_routed() as f64 * plan.cache.cold_slots.len() as f64;
    Stream::measured(plan.context.tokens, routed)
}

/// The expected figures of a plan as JSON, under the names that `run --json` has for them.
pub fn figures(inputs: &Inputs, plan: &Plan) -> serde_json::Value {
    let (e, of_run) = (&plan.expected, expectation::of(plan, &stream(inputs, plan)));
    let prompt = measured_run(plan.context.tokens).0 as usize;
    serde_json::json!({
        "decode_tokens_per_second_predicted": of_run.map(|of| of.tokens_per_second),
        "latency_seconds_predicted": of_run.and_then(|of| of.latency_seconds),
        "miss_fraction_predicted": of_run.and_then(|of| of.miss_fraction),
        "prefill_tokens_per_second_predicted": e.prefill_tokens_per_second,
        "time_to_first_token_seconds_predicted": expectation::prompt_seconds(plan, prompt, &Factors::NONE),
        "start_seconds_predicted": expectation::start_seconds(plan, &Factors::NONE),
        "bytes_read_per_token_predicted": of_run.map(|of| of.bytes_read_per_token),
        "hit_fraction_predicted": of_run.map(|of| of.hit_fraction),
        "memory_peak_bytes_predicted": e.memory_peak_bytes,
        "perplexity_change_fraction_predicted": e.perplexity_change_fraction,
        "perplexity_change_fraction_upper_predicted": e.perplexity_change_fraction_upper,
    })
}

/// A level's loss: as measured, and its bound where there is one.
fn loss(level: &Level) -> String {
    let percent = |fraction: f64| format!("{:+.2} %", fraction * 100.0);
    let measured = percent(level.perplexity_change_fraction);
    match level.perplexity_change_fraction_upper {
        _ if level.lossless && level.perplexity_change_fraction == 0.0 => "lossless".to_owned(),
        _ if level.lossless => {
            format!("{measured} measured, from rounding alone: every active neuron is computed")
        }
        Some(upper) => format!("{measured}, at most {} with 95 % confidence", percent(upper)),
        None => format!("{measured}; the profile has no bound"),
    }
}

/// Bytes and loss of keys and values in blocks; the loss is part of the perplexity change.
fn kv_loss(model: &Model, loss: &KvLoss) -> String {
    let bytes = kv_bytes_per_token(&model.architecture, KvFormat::named(&loss.format));
    format!(
        "{}, {} a token of context; perplexity {:+.2} %, at most {:+.2} %, included above",
        loss.format,
        show(bytes),
        loss.perplexity_change_fraction * 100.0,
        loss.perplexity_change_fraction_upper * 100.0
    )
}

/// Levels that `--max-loss` leaves out, and the figure that it is held against.
fn losses(inputs: &Inputs, plan: &Plan) -> String {
    let inputs = &*as_requested(inputs, &plan.request);
    let (levels, most) = (&inputs.model.levels, plan.request.perplexity_change_fraction_max);
    let mut text = String::new();
    let left_out = levels.iter().filter(|level| !rules::loses_little(level, most));
    let left_out: String = left_out.map(|level| format!("\n  {}: {}", level.name, loss(level))).collect();
    if !left_out.is_empty() {
        text += &format!("\nLeft out by --max-loss {}:{left_out}", plans::file::significant(most * 100.0));
    }
    if levels.iter().any(|level| !level.lossless && level.perplexity_change_fraction_upper.is_none()) {
        text += "\nThis profile has no bounds of losses, so --max-loss is compared with the measured losses; \
                 profile the model again to have bounds";
    }
    text
}

/// The speed of a plan with a calibration, were the device as its profile says.
fn as_profiled(plan: &Plan, stream: &Stream) -> Option<String> {
    let f = plan.request.calibration.as_ref()?;
    let back = Factors {
        compute: 1.0 / f.compute,
        stream: 1.0 / f.stream,
        gather: 1.0 / f.gather,
        random_reads: 1.0 / f.random_reads,
        ordered_reads: 1.0 / f.ordered_reads,
    };
    let speed = expectation::at(plan, stream, &back)?.tokens_per_second;
    Some(format!("{speed:.1} tok/s; the figures above are at the rates of --calibration"))
}

/// Tables of time and memory, and the decisions by who made them.
pub fn explanation(inputs: &Inputs, solved: &Solved) -> String {
    format!(
        "Time of a token, in milliseconds\n{}\n{}\nMemory\n{}\n\n{}{}",
        time(inputs, solved),
        spreads(inputs),
        memory(solved),
        decisions(inputs, solved),
        drafts(solved)
    )
}

/// How well the rates are known that times are of; nothing of profiles that do not say.
fn spreads(inputs: &Inputs) -> String {
    inputs.device.spreads_told().map_or_else(String::new, |spreads| {
        format!("Rates are medians of samples; spread of the samples: {spreads} (quartiles over median)\n")
    })
}

/// What drafts of each length would give, beside nothing of them; nothing where the profile does not know.
fn drafts(solved: &Solved) -> String {
    if solved.drafts.is_empty() {
        return String::new();
    }
    let without = solved.plan.expected.decode_tokens_per_second;
    let mut table =
        Rows::headed(&["drafts of up to", "drafted a step", "tokens a step", "tok/s", "times as fast"]);
    table.row(["none", "0", "1", &format!("{without:.1}"), "1"].map(str::to_owned));
    for of in &solved.drafts {
        table.row([
            of.draft_tokens.to_string(),
            format!("{:.2}", of.drafted_tokens_per_step),
            format!("{:.2}", of.tokens_per_step),
            format!("{:.1}", of.decode_tokens_per_second),
            format!("{:.2}", of.decode_tokens_per_second / without),
        ]);
    }
    let taken = match (&solved.plan.speculation, solved.plan.request.draft_tokens_auto) {
        (Some(of), false) => format!("Drafts of up to {} tokens, as requested.", of.draft_tokens),
        (Some(of), true) => format!("Drafts of up to {} tokens are taken.", of.draft_tokens),
        (None, true) => format!(
            "No drafts are taken: none is {:.2} times as fast, which is beyond the error of plans.",
            1.0 + SPEED_ERROR_FRACTION
        ),
        (None, false) => "No drafts were requested; --speculate auto takes them where they pay.".to_owned(),
    };
    format!("\n\nDrafts, on text like the profile's\n{table}\n{taken}")
}

fn time(inputs: &Inputs, solved: &Solved) -> String {
    let (p, plan) = (&solved.price, &solved.plan);
    let ms = |seconds: f64| format!("{:.3}", seconds * 1e3);
    let mut table = Rows::headed(&["stage", "compute", "memory", "serial", "takes"]);
    let mut stage = |name: &str, work: &Work| {
        let [compute, memory, serial] = [work.compute_seconds, work.memory(), work.serial()].map(ms);
        table.row([name.to_owned(), compute, memory, serial, ms(work.seconds())]);
    };
    stage("attention", &p.attention);
    stage("router and predictor", &p.predictor);
    if plan.read.look_ahead > 0 {
        stage("look-ahead: predictor of the next layer", &p.look_ahead);
    }
    stage(if inputs.model.architecture.is_gated() { "gate-up" } else { "up" }, &p.gate_up);
    stage("down", &p.down);
    stage("insert into the cache", &p.insert);
    stage("norms, head, sampling", &p.rest);
    let mut line = |name: &str, takes: f64| {
        let blank = String::new;
        table.row([name.to_owned(), blank(), blank(), blank(), ms(takes)]);
    };
    line("reading flash", p.io);
    line("feed-forward and reading, overlapped", p.overlapped);
    line("token at position 0, warm", p.constant);
    let (prompt, generated) = measured_run(plan.context.tokens);
    line("context, each 1000 tokens", p.per_context_token * 1e3);
    line("all slots filled, once", p.cold_start);
    line("of that in the run below", p.filling);
    line(&format!("mean of {generated} tokens after {prompt}"), p.mean_seconds(plan.context.tokens));
    table.to_string()
}

fn memory(solved: &Solved) -> String {
    let m = &solved.plan.memory;
    let mut table = Rows::headed(&["region", "bytes", ""]);
    let state = Some(("recurrent state", m.state_bytes)).filter(|(_, bytes)| *bytes > 0);
    let before = [
        ("process", m.process_bytes),
        ("kept free for a server", m.reserve_bytes),
        ("fixed: attention, embeddings, head, level", m.fixed_bytes),
        ("hot: pinned neurons", m.hot_bytes),
        ("cold: slots", m.cold_bytes),
        ("buffers of a prompt, beyond the slots", m.slots_or_prompt_bytes() - m.cold_bytes),
        (&*format!("keys and values, {}", solved.plan.quality.kv_format), m.kv_bytes),
    ];
    let after = [
        ("activations", m.activations_bytes),
        ("I/O buffers", m.io_buffers_bytes),
        ("the GPU's driver and buffers", m.unit_bytes),
        ("tables", m.tables_bytes),
        ("page tables", m.page_tables_bytes),
        ("total", m.prefill_total_bytes),
        ("limit", m.limit_bytes),
    ];
    for (name, bytes) in before.into_iter().chain(state).chain(after) {
        if bytes == 0 && name.starts_with("the GPU") {
            continue;
        }
        table.row([name.to_owned(), bytes.to_string(), show(bytes)]);
    }
    table.to_string()
}

fn decisions(inputs: &Inputs, solved: &Solved) -> String {
    let (plan, tables) = (&solved.plan, &solved.tables);
    let mut text = format!(
        "Decisions, each with the best configuration that differs in it alone\n{}\nBranch and bound over {} configurations, of which {} were split exactly\n",
        table_of_decisions(inputs, solved),
        solved.configurations,
        solved.priced,
    );
    text += &proof(solved);
    text += &format!(
        "  Z3 chose among {} that are equally fast, in {} rounds of cuts; an exact split shares memory among the layers\n",
        tables.modes.len(),
        solved.rounds,
    );
    if plan.read.look_ahead > 0 {
        let (reads, prefetched) = solved.price.reads;
        text += &format!("  {prefetched:.0} of {reads:.0} reads of a token are prefetched\n");
    }
    text += &format!(
        "Decided by rule: clusters of {} neurons, in prefill of {}",
        plan.decode.cluster_neurons,
        plan.prefill_cluster_neurons(),
    );
    let r = &plan.request;
    if let Some(rate) = r.prefill_tokens_per_second_min {
        let reached = plan.expected.prefill_tokens_per_second;
        text += &format!("\nRequested: prompts at {rate} tok/s or more; expected {reached:.2}");
    }
    if let (Some(most), Some(tokens)) = (r.first_token_seconds_max, r.prompt_tokens) {
        text += &format!("\nRequested: the first token within {most} s of a prompt of {tokens} tokens");
    }
    text += &losses(inputs, plan);
    let (kv, isa) = (plan.quality.kv(), &plan.quality.instruction_set);
    if kv.has_blocks() && !hardware::knows_attention(&inputs.device, kv, isa) {
        text += &format!(
            "\nNot measured: attention over keys and values in {} with {isa}; priced as that in F16, slower as the dot product \
             in cache is; profile the device again",
            kv.name()
        );
    }
    let a = &inputs.model.architecture;
    for format in [&a.weight_format, &a.down_format] {
        let (kernel, exact) = hardware::kernel(&inputs.device, format, &plan.quality.instruction_set);
        if !exact {
            text += &format!(
                "\nNot measured: kernels for {format} with {}; priced as {} with {}, the slowest measured",
                plan.quality.instruction_set, kernel.format, kernel.instruction_set
            );
        }
    }
    text
}

/// The bound on the objective over all choices, beside the plan, and the gap between them.
fn proof(solved: &Solved) -> String {
    let (plan, gap) = (&solved.plan, solved.gap() * 100.0);
    let (bound, reached) = match solved.bytes_proven {
        Some(least) => (
            format!("none that keeps the limits takes less than {}; this plan takes", show(least)),
            show(plan.memory.prefill_total_bytes),
        ),
        None => (
            format!(
                "none within the limits is faster than {:.2} tok/s; this plan reaches",
                1.0 / solved.seconds_proven
            ),
            format!("{:.2}", plan.expected.decode_tokens_per_second),
        ),
    };
    format!("  of all choices, {bound} {reached}, a gap of {gap:.2} %\n")
}

/// The table of decisions with their runners-up.
fn table_of_decisions(inputs: &Inputs, solved: &Solved) -> String {
    let inputs = &*as_requested(inputs, &solved.plan.request);
    let Ok((rows, tick_seconds)) = search::decisions(inputs, solved) else { return String::new() };
    let (heading, figure): (_, Box<dyn Fn(i64) -> String>) = match solved.limits.objective {
        Objective::Speed => {
            ("tok/s at most", Box::new(|ticks| format!("{:.2}", 1.0 / (ticks as f64 * tick_seconds))))
        }
        Objective::Memory => ("memory at least", Box::new(|regions| show(with_page_tables(regions) as u64))),
    };
    let mut table = Rows::headed(&["decision", "taken", "runner-up", heading]);
    for row in rows {
        let (option, bound) =
            row.runner_up.map_or_else(Default::default, |(option, bound)| (option, figure(bound)));
        table.row([row.name.to_owned(), row.option, option, bound]);
    }
    table.to_string()
}
