//! The program `plan`: parse, call, write, exit code.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use planner::cli::{Cli, Drafting};
use planner::learned::{self, Learning};
use planner::{Answer, Inputs, PlanError, check, frontier, report};
use plans::expectation::prompt_seconds;
use plans::file::Loaded;
use plans::output_file::OutputKind;
use plans::plan::{Objective, Plan, Request};
use plans::size::show;
use plans::terms::Factors;
use plans::{Calibration, ContractError};
use serde_json::json;
use terminal::output::say_error;
use terminal::progress::Unit;
use terminal::{Progress, say, tell};

const DONE: u8 = 0;
const FAILED: u8 = 1;
const NO_PLAN: u8 = 2;

fn main() -> ExitCode {
    terminal::interrupt::survive_the_file_size_limit();
    let cli = match terminal::command::parse::<Cli>() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    terminal::log::listen(cli.verbose);
    let done = if cli.frontier {
        draw(&cli)
    } else if cli.check.is_empty() {
        solve(&cli)
    } else {
        compare(&cli)
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say_error(error);
            ExitCode::from(FAILED)
        }
    }
}

/// The file of `--smt`.
const PROBLEM: OutputKind =
    OutputKind { name: "a problem in SMT-LIB", is_one: |head| head.starts_with(b"(set-logic QF_LIA)") };

/// Whether each output can be written, in place of no input and no other output.
fn check_outputs(cli: &Cli) -> Result<(), ContractError> {
    let mut taken = inputs_of(cli);
    plans::file::writable(&cli.output, plans::file::kind::<Plan>(), &taken)?;
    taken.push(("where the plan goes", &cli.output));
    cli.smt.iter().try_for_each(|path| plans::file::writable(path, PROBLEM, &taken))
}

/// The files that are read.
fn inputs_of(cli: &Cli) -> Vec<(&'static str, &Path)> {
    let mut inputs = vec![("the file of --device", &*cli.device), ("the file of --model", &*cli.model)];
    inputs.extend(cli.calibration.iter().map(|path| ("the file of --calibration", &**path)));
    inputs
}

/// The file of `--calibration`; prints a note on one that was changed by hand.
fn calibration(cli: &Cli, inputs: &Inputs) -> Result<Option<Loaded<Calibration>>, PlanError> {
    let loaded = cli.calibration(&inputs.device)?;
    if let Some(note) = loaded.as_ref().and_then(|loaded| loaded.integrity.note()) {
        say(format_args!("note: calibration.toml: {note}"));
    }
    Ok(loaded)
}

/// The counts of earlier runs beside `model.toml`; prints a note on a file that is not used.
fn learning(cli: &Cli, inputs: &Inputs) -> Option<Learning> {
    if cli.no_learn {
        return None;
    }
    Learning::beside(&cli.model, inputs).unwrap_or_else(|why| {
        say(format_args!("note: nothing is learned from {why}"));
        None
    })
}

/// One plan.
fn solve(cli: &Cli) -> anyhow::Result<u8> {
    let profiled = planner::read_inputs(&cli.device, &cli.model)?;
    profiled.notes.iter().for_each(|note| say(format_args!("note: {note}")));
    let learning = learning(cli, &profiled);
    let inputs = learning.as_ref().map_or(&profiled, |learning| &learning.inputs);
    let calibration = calibration(cli, inputs)?;
    let request = cli.request(inputs, calibration.as_ref())?;
    check_outputs(cli)?;
    if cli.simple_rule() && (cli.explain || cli.smt.is_some()) {
        anyhow::bail!("nothing decides on --baseline simple-rule: leave out --explain and --smt");
    }
    if let Some(path) = &cli.smt {
        plans::file::write_bytes(path, PROBLEM, planner::smt_lib(inputs, &request)?.as_bytes())?;
    }
    let started = Instant::now();
    let bar = Progress::on_stderr(cli.verbose > 0).bar(1, "solving", Unit::Steps);
    let (solved, found) = if cli.simple_rule() {
        let found = planner::plan_of_any(inputs, &request)?;
        (None, found.map_err(|why| (Vec::new(), vec![why.clone()], why)))
    } else {
        match planner::plan(inputs, &request)? {
            Answer::Plan(solved) => (Some(solved.clone()), Ok(solved.plan)),
            Answer::Infeasible(why) => {
                let said = why.to_string();
                (None, Err((why.conflict, why.sentences, said)))
            }
        }
    };
    drop(bar);
    let seconds = started.elapsed().as_secs_f64();
    tracing::info!(seconds, "solved");
    let mut plan = match found {
        Ok(plan) => plan,
        Err((conflict, sentences, said)) => {
            if cli.json {
                tell(json!({ "infeasible": { "conflict": conflict, "sentences": sentences } }))?;
            }
            say_error(said);
            return Ok(NO_PLAN);
        }
    };
    if let Some(learning) = &learning {
        let unlearned = solved.as_ref().map(|_| learning.unlearned_speed(&profiled, &request)).transpose()?;
        learning.note_in(&mut plan, unlearned.flatten());
    }
    write(cli, calibration.as_ref(), &mut plan)?;
    cut_limit(inputs, &request).iter().for_each(|note| say(format_args!("note: {note}")));
    let folder = cli.device.parent().unwrap_or(Path::new("."));
    let disturbed = inputs.device.provenance.disturbed(folder);
    disturbed.for_each(|note| say(format_args!("note: device.toml: {note}")));
    slow_prefill(inputs, &plan).iter().for_each(|note| say(format_args!("warning: {note}")));
    if cli.json {
        let figures = report::figures(inputs, &plan);
        tell(json!({ "plan": plan, "figures": figures, "output": cli.output, "solve_seconds": seconds }))?;
        return Ok(DONE);
    }
    tell(format_args!("wrote {}\n", cli.output.display()))?;
    learned::gain(&plan).map_or(Ok(()), |gain| tell(format_args!("{gain}\n")))?;
    tell(report::summary(inputs, &plan))?;
    if let Some(solved) = solved.filter(|_| cli.explain) {
        tell(format_args!("\n{}", report::explanation(inputs, &solved)))?;
    }
    Ok(DONE)
}

/// Writes a plan with where it comes from.
fn write(cli: &Cli, calibration: Option<&Loaded<Calibration>>, plan: &mut Plan) -> anyhow::Result<()> {
    let provenance = &mut plan.provenance;
    provenance.model_folder = model_folder(cli);
    if let Some(loaded) = calibration {
        provenance.calibration_toml = Some(loaded.hash.clone());
        provenance.calibration_date = Some(loaded.value.measured.date.clone());
    }
    plans::file::write(plan, &cli.output)?;
    tracing::info!("wrote {}", cli.output.display());
    Ok(())
}

/// Speed against memory.
fn draw(cli: &Cli) -> anyhow::Result<u8> {
    if cli.speculate == Some(Drafting::Auto) {
        anyhow::bail!(
            "--frontier plans all points with the same drafts; give --speculate a number, or leave it out"
        );
    }
    if cli.simple_rule() {
        anyhow::bail!("--frontier shows the simple rule beside the plans; leave out --baseline simple-rule");
    }
    let mut inputs = planner::read_inputs(&cli.device, &cli.model)?;
    inputs.notes.iter().for_each(|note| say(format_args!("note: {note}")));
    if let Some(learning) = learning(cli, &inputs) {
        inputs = learning.inputs;
    }
    let request = cli.request(&inputs, calibration(cli, &inputs)?.as_ref())?;
    let folder = cli.output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    frontier::writable(folder, &inputs_of(cli))?;
    let bar = Progress::on_stderr(cli.verbose > 0).bar(0, "points of the frontier", Unit::Steps);
    let points = frontier::frontier(&inputs, &request, |point, of| {
        bar.set_length(of);
        bar.set_position(point);
    });
    drop(bar);
    let points = points?;
    cut_limit(&inputs, &request).iter().for_each(|note| say(format_args!("note: {note}")));
    if points.is_empty() {
        say_error(
            "no plan satisfies the limits at any memory that this machine can give; `plan` without --frontier says why",
        );
        return Ok(NO_PLAN);
    }
    let title = format!("{} on {}", inputs.model.name, inputs.device.name);
    let model = &inputs.model;
    let neurons = model.layers.len() as u64 * model.architecture.neurons();
    let model_bytes = model.parts.fixed_bytes + neurons * model.parts.bundle.bundle_bytes();
    frontier::write(&points, &title, model_bytes, folder)?;
    if cli.json {
        tell(json!({ "frontier": points }))?;
    } else {
        tell(frontier::table(&points))?;
    }
    Ok(DONE)
}

/// Committed plans.
fn compare(cli: &Cli) -> anyhow::Result<u8> {
    let mut rows = Vec::new();
    let mut code = DONE;
    let bar = Progress::on_stderr(cli.verbose > 0).bar(cli.check.len() as u64, "plans checked", Unit::Steps);
    for path in &cli.check {
        let checked = check::check(path).map_err(|error| named(path, &error.to_string()))?;
        bar.inc(1);
        if !checked.same {
            code = FAILED;
        }
        if cli.json {
            rows.push(json!({ "plan": checked.path, "same": checked.same, "finding": checked.finding, "changed_inputs": checked.changed_inputs }));
            continue;
        }
        tell(format_args!("{}: {}", checked.path.display(), checked.finding))?;
        for input in checked.changed_inputs {
            tell(format_args!(
                "{}: note: {input} has changed since the plan was made",
                checked.path.display()
            ))?;
        }
    }
    drop(bar);
    if cli.json {
        tell(json!({ "checked": rows }))?;
    }
    Ok(code)
}

/// That the limit requested is more than the machine can give, if it is.
fn cut_limit(inputs: &Inputs, request: &Request) -> Option<String> {
    let (limit, most) = (request.memory_limit_bytes?, inputs.device.capacity.plannable_bytes());
    (limit > most).then(|| {
        format!(
            "--mem {} is more than this machine can give; planned for {} instead",
            show(limit),
            show(most)
        )
    })
}

/// Tokens of the long prompt by which a plan is judged, or as many as its context holds.
const LONG_PROMPT: u32 = 512;

/// A warning where a long prompt is expected to take longer than decoding as much text.
fn slow_prefill(inputs: &Inputs, plan: &Plan) -> Option<String> {
    let long = LONG_PROMPT.min(plan.context.tokens - 1);
    let measured = plans::plan::measured_run(plan.context.tokens).0;
    let seconds = |&tokens: &u32| Some((tokens, prompt_seconds(plan, tokens as usize, &Factors::NONE)?));
    let (tokens, seconds) = [long, measured].iter().find_map(seconds)?;
    let (prefill, decode) = (f64::from(tokens) / seconds, plan.expected.decode_tokens_per_second);
    let remedy = match plan.request.objective {
        Objective::Memory => "plan with more memory (--objective speed)",
        Objective::Speed if plan.memory.limit_bytes < inputs.device.capacity.plannable_bytes() => {
            "plan with a larger --mem"
        }
        Objective::Speed => "this machine has no more memory to give",
    };
    (prefill < decode).then(|| {
        format!(
            "a prompt of {tokens} tokens is expected at {prefill:.2} tok/s, slower than decoding at {decode:.2}, \
             because it reads all neurons that are not in memory; {remedy}"
        )
    })
}

/// The folder of the model's profile, where the container is, too, unless it is the plan's own.
fn model_folder(cli: &Cli) -> Option<String> {
    let folder = |path: &Path| path.parent().map(Path::to_owned).unwrap_or_default();
    let (profile, plan) = (folder(&cli.model), folder(&cli.output));
    (profile != plan && !profile.as_os_str().is_empty()).then(|| profile.display().to_string())
}

/// An error of the plan at `path`, which is named once.
fn named(path: &Path, error: &str) -> anyhow::Error {
    let path = path.display().to_string();
    if error.contains(&path) { anyhow::anyhow!("{error}") } else { anyhow::anyhow!("{path}: {error}") }
}

#[cfg(test)]
#[path = "main/tests.rs"]
mod tests;
