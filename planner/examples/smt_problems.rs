//! The solver's problems of requests of every kind, as SMT-LIB files with what Z3 made of them: `make other-z3` gives them to
//! another version.
//!
//! ```text
//! cargo run --release -p flashplan-planner --example smt_problems -- FOLDER
//! ```

use std::path::Path;

use planner::solve::{self, Outcome};
use plans::plan::{Objective, Plan, Request};
use terminal::tell;

fn main() -> anyhow::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "target/smt".to_owned());
    std::fs::create_dir_all(&folder)?;
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plans");
    for name in [
        "amd-epyc-zen5-2c-24g/oxide-dense/plan-20M.toml",
        "intel-xeon-2c-24g/oxide-moe/plan-25M.toml",
        "oneplus-12/turbosparse-mixtral-47b/plan-12G.toml",
    ] {
        let path = plans.join(name);
        let beside = |file: &str| path.with_file_name(file);
        let inputs = planner::read_inputs(&beside("device.toml"), &beside("model.toml"))?;
        let plan = plans::file::read::<Plan>(&path)?.value;
        let (plain, speed) = (plan.request, plan.expected.decode_tokens_per_second);
        let prefill = plan.expected.prefill_tokens_per_second;
        let kinds = [
            ("plain", plain.clone()),
            ("no-loss", Request { perplexity_change_fraction_max: 0.0, ..plain.clone() }),
            ("floor", Request { decode_tokens_per_second_min: Some(0.9 * speed), ..plain.clone() }),
            ("too-fast", Request { decode_tokens_per_second_min: Some(10.0 * speed), ..plain.clone() }),
            ("prompts", Request { prefill_tokens_per_second_min: Some(prefill), ..plain.clone() }),
            (
                "least-memory",
                Request {
                    objective: Objective::Memory,
                    memory_limit_bytes: None,
                    decode_tokens_per_second_min: Some(0.5 * speed),
                    ..plain
                },
            ),
        ];
        for (kind, request) in kinds {
            let problem = planner::search::problem(&planner::request::resolve(&inputs, &request)?)?;
            let found = match solve::solve(&problem)? {
                Outcome::Best(values) => {
                    values.objectives.iter().map(i64::to_string).collect::<Vec<_>>().join(" ")
                }
                _ => "none".to_owned(),
            };
            let file = format!("{}-{kind}.smt2", name.replace('/', "-").replace(".toml", ""));
            std::fs::write(Path::new(&folder).join(&file), format!("{problem}; optimum: {found}\n"))?;
            tell(format_args!("{file}: {found}"))?;
        }
    }
    Ok(())
}
