//! The program `plan`: parse, call, write, exit code.
#![expect(clippy::print_stderr, reason = "only main.rs talks to the terminal")]

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser as _;
use planner::cli::Cli;
use planner::{Answer, Inputs, check, frontier, report};
use plans::output::tell;
use plans::plan::{Objective, Plan, Request};
use plans::size::show;
use serde_json::json;

const DONE: u8 = 0;
const FAILED: u8 = 1;
const NO_PLAN: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let shown = error.print();
            return ExitCode::from(if error.use_stderr() || shown.is_err() { FAILED } else { DONE });
        }
    };
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
            eprintln!("error: {error}");
            ExitCode::from(FAILED)
        }
    }
}

/// One plan.
fn solve(cli: &Cli) -> anyhow::Result<u8> {
    let inputs = planner::read_inputs(&cli.device, &cli.model)?;
    let request = cli.request()?;
    if let Some(path) = &cli.smt {
        plans::file::write_bytes(path, planner::smt_lib(&inputs, &request)?.as_bytes())?;
    }
    progress("solving");
    let started = Instant::now();
    let answer = planner::plan(&inputs, &request);
    progress("");
    match answer? {
        Answer::Plan(solved) => {
            plans::file::write(&solved.plan, &cli.output)?;
            cut_limit(&inputs, &request).iter().for_each(|note| eprintln!("note: {note}"));
            disturbed(&inputs).for_each(|note| eprintln!("note: device.toml: {note}"));
            slow_prefill(&solved.plan).iter().for_each(|note| eprintln!("warning: {note}"));
            if cli.json {
                let seconds = started.elapsed().as_secs_f64();
                tell(json!({ "plan": solved.plan, "output": cli.output, "solve_seconds": seconds }))?;
            } else {
                tell(format_args!("{}\n{}", cli.output.display(), report::summary(&solved)))?;
                if cli.explain {
                    tell(format_args!("\n{}", report::explanation(&inputs, &solved)))?;
                }
            }
            Ok(DONE)
        }
        Answer::Infeasible(why) => {
            if cli.json {
                tell(json!({ "infeasible": { "conflict": why.conflict, "sentences": why.sentences } }))?;
            }
            eprintln!("{why}");
            Ok(NO_PLAN)
        }
    }
}

/// Speed against memory.
fn draw(cli: &Cli) -> anyhow::Result<u8> {
    let inputs = planner::read_inputs(&cli.device, &cli.model)?;
    let request = cli.request()?;
    let points = frontier::frontier(&inputs, &request, |i, n| progress(&format!("point {} of {n}", i + 1)));
    progress("");
    let points = points?;
    cut_limit(&inputs, &request).iter().for_each(|note| eprintln!("note: {note}"));
    if points.is_empty() {
        eprintln!(
            "no plan satisfies the limits at any memory that this machine can give; `plan` without --frontier says why"
        );
        return Ok(NO_PLAN);
    }
    let folder = cli.output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let title = format!("{} on {}", inputs.model.name, inputs.device.name);
    frontier::write(&points, &title, folder)?;
    if cli.json {
        let rows: Vec<_> = points
            .iter()
            .map(|p| {
                json!({
                    "limit_bytes": p.limit_bytes,
                    "memory_peak_bytes": p.memory_peak_bytes,
                    "decode_tokens_per_second": p.decode_tokens_per_second,
                    "simple_rule_tokens_per_second": p.simple_rule_tokens_per_second,
                    "prefill_tokens_per_second": p.prefill_tokens_per_second,
                    "hit_fraction": p.hit_fraction,
                    "level": p.level,
                })
            })
            .collect();
        tell(json!({ "frontier": rows }))?;
    } else {
        tell(frontier::table(&points))?;
    }
    Ok(DONE)
}

/// Committed plans.
fn compare(cli: &Cli) -> anyhow::Result<u8> {
    let mut rows = Vec::new();
    let mut code = DONE;
    for path in &cli.check {
        let checked =
            check::check(path).map_err(|error| anyhow::anyhow!("checking {}: {error}", path.display()))?;
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
    if cli.json {
        tell(json!({ "checked": rows }))?;
    }
    Ok(code)
}

/// What `profile` says of a machine on which other work ran meanwhile: all that is planned is as much too slow.
fn disturbed(inputs: &Inputs) -> impl Iterator<Item = &str> {
    inputs
        .device
        .provenance
        .notes
        .iter()
        .map(String::as_str)
        .filter(|note| note.starts_with("other work took"))
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

/// That prompts are expected to take longer than the same text decoded, if they are.
fn slow_prefill(plan: &Plan) -> Option<String> {
    let (prefill, decode) = (plan.expected.prefill_tokens_per_second, plan.expected.decode_tokens_per_second);
    let remedy = match plan.request.objective {
        Objective::Memory => "--objective speed",
        Objective::Speed => "a larger --mem",
    };
    (prefill < decode).then(|| {
        format!(
            "prompts are expected at {prefill:.2} tok/s, slower than decoding at {decode:.2}: all neurons that are \
             not in memory are read for them; plan with more memory ({remedy}) if prompts are long"
        )
    })
}

/// A line on standard error, only where somebody watches; the empty text wipes it.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_whose_prompts_are_slow_is_warned_of_with_the_remedy() {
        let path = Path::new("../plans/amd-epyc-2c-24g/oxide-dense/plan-20M.toml");
        let mut plan = plans::file::read::<Plan>(path).expect("a committed plan").value;
        plan.expected.decode_tokens_per_second = 4.0;
        plan.expected.prefill_tokens_per_second = 4.0;
        assert_eq!(slow_prefill(&plan), None);
        plan.expected.prefill_tokens_per_second = 2.5;
        for (objective, remedy) in
            [(Objective::Memory, "more memory (--objective speed)"), (Objective::Speed, "(a larger --mem)")]
        {
            plan.request.objective = objective;
            let said = slow_prefill(&plan).expect("a warning");
            assert!(said.starts_with("prompts are expected at 2.50 tok/s, slower than decoding at 4.00"));
            assert!(said.contains(remedy), "{said}");
        }
    }
}
