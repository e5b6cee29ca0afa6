//! The paper's results beside what `plan` says of its phones and models.
//!
//! *Source*: PowerInfer-2; v1 unless a later version is named. Only phones' own figures are compared that a plan has: no llama.cpp.

use planner::space::Space;
use planner::{Answer, Inputs, PlanError};
use plans::expectation::{Stream, at};
use plans::plan::{Feature, Plan, Request};
use plans::terms::Factors;

use super::devices::{self, Phone};
use super::models::{self, Assumed, Published};

/// A result, and how far the plan's may lie from it.
#[derive(Debug)]
pub(crate) struct Compared {
    /// Name of the figure.
    pub(crate) what: String,
    /// The paper's figure.
    pub(crate) paper: f64,
    /// The plan's.
    pub(crate) planned: f64,
    /// The plan's over the paper's: least and most that is believed.
    pub(crate) bounds: [f64; 2],
}

/// Mechanisms that LLM in a Flash has not.
const LLM_IN_A_FLASH: [Feature; 6] = [
    Feature::HotRegion,
    Feature::WholeRead,
    Feature::Pipeline,
    Feature::LookAhead,
    Feature::Policy,
    Feature::Units,
];
/// The steps of the paper's ablation and what each still lacks: nothing but its predictor, then bundles, a cache, the pipeline
/// and the NPU.
const ABLATION: [(&str, f64, &[Feature]); 5] = [
    (
        "baseline",
        0.40,
        &[
            Feature::Cache,
            Feature::HotRegion,
            Feature::Bundle,
            Feature::Pipeline,
            Feature::LookAhead,
            Feature::Policy,
            Feature::Units,
        ],
    ),
    (
        "+ bundle",
        1.09,
        &[
            Feature::Cache,
            Feature::HotRegion,
            Feature::Pipeline,
            Feature::LookAhead,
            Feature::Policy,
            Feature::Units,
        ],
    ),
    ("+ cache", 4.18, &[Feature::Pipeline, Feature::LookAhead, Feature::Units]),
    ("+ pipeline", 9.60, &[Feature::LookAhead, Feature::Units]),
    ("+ NPU", 11.07, &[Feature::LookAhead]),
];

/// A phone and a model, ready to plan.
pub(crate) struct Case(pub(crate) Inputs);

impl Case {
    pub(crate) fn new(phone: Phone, model: Published, given: &Assumed) -> Self {
        let (device, model) = (devices::device(phone), models::model(model, given));
        let [device_hash, model_hash] = [device.fingerprint.clone(), model.fingerprint.clone()];
        Self(Inputs { device, device_hash, model, model_hash, notes: Vec::new() })
    }

    /// The plan under a limit, without some mechanisms.
    pub(crate) fn plan(&self, memory: u64, without: &[Feature]) -> Result<Plan, PlanError> {
        let request = request(Some(memory), without);
        match planner::plan(&self.0, &request)? {
            Answer::Plan(solved) => Ok(solved.plan),
            Answer::Infeasible(why) => Err(PlanError::Request(why.to_string())),
        }
    }

    /// A limit that leaves half of the feed-forward weights on flash.
    pub(crate) fn half(&self) -> Result<u64, PlanError> {
        let request = request(None, &[]);
        let question = planner::request::resolve(&self.0, &request)?;
        let model = &self.0.model;
        let neurons = model.architecture.neurons() * u64::from(model.architecture.layers);
        let least = Space::least_regions(&question).unwrap_or(0) as u64;
        Ok(least + neurons * model.parts.bundle.bundle_bytes() / 2)
    }
}

fn request(memory_limit_bytes: Option<u64>, without: &[Feature]) -> Request {
    Request {
        memory_limit_bytes,
        level: Some("low-rank-95".to_owned()),
        without: without.to_vec(),
        ..Request::default()
    }
}

/// Seconds of a warm token at the mean position.
fn token_seconds(plan: &Plan) -> f64 {
    let e = &plan.expected;
    e.decode_seconds_constant
        + e.decode_seconds_per_context_token * planner::cost::mean_position(plan.context.tokens)
}

pub(crate) fn speed(plan: &Plan) -> f64 {
    1.0 / token_seconds(plan)
}

/// The share of a token's time that flash adds: against the same plan with reads that take no time.
fn io_share(plan: &Plan) -> f64 {
    let instant = Factors { random_reads: 1e9, ordered_reads: 1e9, ..Factors::NONE };
    let stream = Stream::measured(plan.context.tokens, 1.0);
    let seconds = |factors| at(plan, &stream, factors).map_or(f64::NAN, |expected| expected.seconds);
    1.0 - seconds(&instant) / seconds(&Factors::NONE)
}

/// Every result that is compared.
pub(crate) fn compared() -> Result<Vec<Compared>, PlanError> {
    let mut all = Vec::new();
    let mut row = |what: &str, paper: f64, planned: f64, bounds: [f64; 2]| {
        all.push(Compared { what: what.to_owned(), paper, planned, bounds });
    };
    let given = Assumed::PUBLISHED;
    let large = Case::new(Phone::OnePlus12, Published::Mixtral47B, &given);
    let small = Case::new(Phone::OnePlus12, Published::Mistral7B, &given);
    let scaled = Assumed { resident_scales: true, ..given };
    let as_paper = Case::new(Phone::OnePlus12, Published::Mixtral47B, &scaled);

    let seven = large.plan(7 << 30, &[])?;
    row("R6: 47B in 7 GB, scales in memory, tok/s", 2.13, speed(&as_paper.plan(7 << 30, &[])?), [0.3, 0.6]);
    row("R6: 47B in 7 GB, tok/s", 2.13, speed(&seven), [0.9, 1.4]);
    let half = large.plan(large.half()?, &[])?;
    row("R6: 47B, half of the FFN on flash, tok/s", 9.96, speed(&half), [0.8, 1.4]);
    let most = large.plan(19 << 30, &[])?;
    row("R6: 47B in 19 GB, tok/s", 11.68, speed(&most), [0.8, 1.4]);

    let flash = large.plan(large.half()?, &LLM_IN_A_FLASH)?;
    row("R1: 47B, half on flash, over LLM in a Flash", 3.94, speed(&half) / speed(&flash), [0.4, 0.8]);
    let ratio = speed(&seven) / speed(&large.plan(7 << 30, &LLM_IN_A_FLASH)?);
    row("R6: 47B in 7 GB, over LLM in a Flash", 1.84, ratio, [0.6, 1.0]);
    let ratio = speed(&most) / speed(&large.plan(19 << 30, &LLM_IN_A_FLASH)?);
    row("R6: 47B in 19 GB, over LLM in a Flash", 3.12, ratio, [0.4, 0.8]);

    let limit = small.half()?;
    for (name, paper, without) in ABLATION {
        row(
            &format!("R4: 7B, half on flash, {name}, tok/s"),
            paper,
            speed(&small.plan(limit, without)?),
            [1.2, 3.5],
        );
    }
    row("R5: 47B, half on flash, share of flash in a token", 0.137, io_share(&half), [0.25, 1.0]);
    let m = &seven.memory;
    let gb = |bytes: u64| bytes as f64 / 1e9;
    row("R7: 47B in 7 GB, bytes that are not FFN neurons, GB", 3.6, gb(m.fixed_bytes), [0.8, 1.2]);
    row("R11: 47B, half on flash over 19 GB", 1.0, speed(&half) / speed(&most), [0.9, 1.1]);
    let seconds =
        |plan: &Plan| plans::expectation::prompt_seconds(plan, 128, &Factors::NONE).unwrap_or(f64::NAN);
    row("R12: 47B, prompt of 128 over LLM in a Flash", 6.95, seconds(&flash) / seconds(&half), [0.8, 1.3]);
    Ok(all)
}
