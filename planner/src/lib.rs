//! From two profiles and a request to the plan that satisfies it best, with a proof of how good that is.
//!
//! ```text
//! question, request   the request, made exact
//! learned             counts of earlier runs in place of the profile's miss rates
//! cost                the equations: every price in a plan comes from here
//! rules, cores, flash, layers   the choices: levels, policies, prompts; cores; reads; pinned neurons and slots of a layer
//! options, space      all of them: what a configuration chooses among
//! decisions           the table of decisions, as explanations print it
//! relax               one relaxation: a lower bound for many configurations at once
//! presolve, pricing, prompts   a space with its relaxations, under limits on memory, time and prompts
//! queue, branch       branch and bound over the configurations
//! split, room         the exact split of memory over the layers
//! tables, encode -> problem -> solve   the master problem in Z3, with splits as cuts (search)
//! assemble -> verify  the plan, checked by the plain cost functions
//! core -> explain     the infeasible core in Z3, and what would do (blame, offer)
//! ```
//!
//! `docs/planner.md` has the problem, the method and an example.
//!
//! This crate never sees the runtime; only [`solve`] knows Z3; only `main.rs` prints.

use std::path::Path;

use plans::file;
use plans::plan::{Objective, Plan, Request};

pub mod error;
pub mod question;
pub mod request;

pub mod cost;

pub mod cores;
pub mod curve;
pub mod decisions;
pub mod flash;
pub mod layers;
pub mod options;
pub mod rules;
pub mod uniform;

pub mod branch;
pub mod candidate;
pub mod presolve;
pub mod pricing;
pub mod prompts;
pub mod queue;
pub mod relax;
pub mod room;
pub mod space;
pub mod split;
pub mod tables;

pub mod encode;
pub mod problem;
pub mod solve;

pub mod decided;

pub mod assemble;
pub mod search;
pub mod simple_rule;
pub mod verify;

pub mod blame;
pub mod chart;
pub mod check;
pub mod cli;
pub mod core;
pub mod explain;
pub mod frontier;
pub mod learned;
pub mod offer;
pub mod report;

pub use error::PlanError;
pub use explain::Infeasible;
pub use question::Inputs;
pub use search::Solved;

/// The answer to a request: the best plan, or why there is none.
#[derive(Debug)]
pub enum Answer {
    /// The best plan.
    Plan(Box<Solved>),
    /// None, and why.
    Infeasible(Box<Infeasible>),
}

/// Reads the two profiles.
///
/// # Errors
/// Those of the file contracts.
pub fn read_inputs(device: &Path, model: &Path) -> Result<Inputs, PlanError> {
    let device = file::read::<plans::Device>(device)?;
    let model = file::read::<plans::Model>(model)?;
    let notes = [("device.toml", device.integrity), ("model.toml", model.integrity)]
        .into_iter()
        .filter_map(|(file, integrity)| Some(format!("{file}: {}", integrity.note()?)))
        .collect();
    Ok(Inputs {
        device: device.value,
        device_hash: device.hash,
        model: model.value,
        model_hash: model.hash,
        notes,
    })
}

/// The best plan that satisfies a request, or the limits that contradict each other.
///
/// # Errors
/// A request that makes no sense, a solver that gave up, or a fault of the planner.
pub fn plan(inputs: &Inputs, request: &Request) -> Result<Answer, PlanError> {
    let inputs = &*request::as_requested(inputs, request);
    let question = request::resolve(inputs, request)?;
    let space = presolve::Presolve::new(&question);
    Ok(match search::best_in(&question, &space)? {
        Some(solved) if request.draft_tokens_auto => {
            let with_drafts = with_drafts_that_pay(&question, &solved)?;
            Answer::Plan(Box::new(with_drafts.unwrap_or(solved)))
        }
        Some(solved) => Answer::Plan(Box::new(solved)),
        None => Answer::Infeasible(Box::new(explain::explain(&question, &space)?)),
    })
}

/// The best plan with the drafts that pay in the best plan without; `None` where none do, or no longer in the memory that they leave.
fn with_drafts_that_pay(
    question: &question::Question<'_>,
    without: &Solved,
) -> Result<Option<Solved>, PlanError> {
    let speed = without.plan.expected.decode_tokens_per_second;
    let Some(drafts) = cost::speculation::pays(&without.drafts, speed) else { return Ok(None) };
    let question =
        question.within(question::Limits { draft_tokens: drafts.draft_tokens, ..question.limits.clone() });
    let found = search::best_in(&question, &presolve::Presolve::new(&question))?;
    Ok(found.filter(|found| {
        found.plan.speculation.is_some_and(|drafts| cost::speculation::pays(&[drafts], speed).is_some())
    }))
}

/// The plan of any request, that of the simple rule included; the inner error says in a sentence why there is none.
///
/// # Errors
/// As [`plan`].
pub fn plan_of_any(inputs: &Inputs, request: &Request) -> Result<Result<Plan, String>, PlanError> {
    if request.simple_rule {
        return Ok(simple_plan(inputs, request)?.ok_or_else(|| {
            "the simple rule does not fit within the limits; give more with --mem, or plan without --baseline"
                .to_owned()
        }));
    }
    Ok(match plan(inputs, request)? {
        Answer::Plan(solved) => Ok(solved.plan),
        Answer::Infeasible(why) => Err(why.to_string()),
    })
}

/// The plan of the best simple rule within the limits of memory, cores, context and loss; `None` where not even it fits.
///
/// # Errors
/// A request that makes no sense: the rule does not heed any speed.
pub fn simple_plan(inputs: &Inputs, request: &Request) -> Result<Option<Plan>, PlanError> {
    let inputs = &*request::as_requested(inputs, request);
    let question = request::resolve(inputs, request)?;
    let limits = &question.limits;
    if limits.speed_min.is_some() || !limits.prompts_max.is_empty() || limits.objective != Objective::Speed {
        return Err(PlanError::Request(
            "--baseline simple-rule makes one plan, whatever its speed; leave out --min-speed, --min-prefill, --max-ttft and --objective"
                .to_owned(),
        ));
    }
    simple_rule::plan(&question)
}

/// The problem that the solver is given, as SMT-LIB 2 text; where no plan exists, that of the nearest plans, which has no
/// solution under the limits.
///
/// # Errors
/// A request that makes no sense.
pub fn smt_lib(inputs: &Inputs, request: &Request) -> Result<String, PlanError> {
    let inputs = &*request::as_requested(inputs, request);
    Ok(search::problem(&request::resolve(inputs, request)?)?.to_string())
}

/// Name and version, for a plan's provenance.
pub(crate) fn file_tool() -> String {
    format!("plan {}", env!("CARGO_PKG_VERSION"))
}
