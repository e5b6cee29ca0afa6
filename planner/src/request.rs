//! A request made exact: every default filled in, every impossible limit refused.

use std::borrow::Cow;
use std::sync::Arc;

use plans::check::BYTES_MAX;
use plans::engine::{DRAFT_TOKENS_MAX, ROWS_MAX, SEQUENCES_MAX};
use plans::file::significant;
use plans::layout::{Part, Phases};
use plans::model::{KvLoss, Level, LevelKind};
use plans::plan::{Feature, Request, measured_run};
use plans::size::show;
use plans::{KvFormat, Model, PAGE_BYTES};

use crate::cost;
use crate::cost::hardware;
use crate::error::PlanError;
use crate::question::{Inputs, Limits, MIN_PREFILL, Origin, PromptLimit, Question};

/// The least and the most that a limit on speed or time may be.
const RATES: [f64; 2] = [1e-6, 1e9];

/// The profiles with the device taken to be as fast as the request's calibration says, and levels that lose what the request's
/// keys and values lose, too.
pub fn as_requested<'a>(inputs: &'a Inputs, request: &Request) -> Cow<'a, Inputs> {
    let mut inputs = Cow::Borrowed(inputs);
    if let Some(factors) = &request.calibration {
        inputs.to_mut().device = hardware::at(&inputs.device, factors);
    }
    if let Some(loss) = inputs.model.kv_loss(kv_of(request)).cloned() {
        inputs.to_mut().model.levels.iter_mut().for_each(|level| lose(level, &loss));
    }
    inputs
}

/// How a request has keys and values stored.
pub fn kv_of(request: &Request) -> KvFormat {
    request.kv_format.as_deref().map_or(KvFormat::F16, KvFormat::named)
}

/// A level that loses what keys and values in blocks lose, too: rises of the log likelihood add up, and so do their bounds.
pub fn lose(level: &mut Level, loss: &KvLoss) {
    let both = |a: f64, b: f64| significant((1.0 + a) * (1.0 + b) - 1.0);
    level.lossless = false;
    level.perplexity = significant(level.perplexity * (1.0 + loss.perplexity_change_fraction));
    let change = &mut level.perplexity_change_fraction;
    *change = both(*change, loss.perplexity_change_fraction);
    if let Some(upper) = &mut level.perplexity_change_fraction_upper {
        *upper = both(*upper, loss.perplexity_change_fraction_upper).max(*change);
    }
    let of_texts = level.perplexity_change_fraction_of_texts.iter_mut();
    of_texts.zip(&loss.perplexity_change_fraction_of_texts).for_each(|(of, more)| *of = both(*of, *more));
}

/// Fills in the defaults of a request, of profiles that are [`as_requested`] already.
///
/// # Errors
/// A limit of zero, a core or level that does not exist, a context beyond the model's.
pub fn resolve<'a>(inputs: &'a Inputs, request: &'a Request) -> Result<Question<'a>, PlanError> {
    let (device, model) = (&inputs.device, &inputs.model);
    let wrong = |sentence: String| Err(PlanError::Request(sentence));
    let plannable = device.capacity.plannable_bytes();
    if request.memory_limit_bytes == Some(0) {
        return wrong("a memory limit of 0 holds no process; give --mem a size such as 12G".to_owned());
    }
    for (value, option, unit) in [
        (request.decode_tokens_per_second_min, "--min-speed", "tokens per second"),
        (request.prefill_tokens_per_second_min, "--min-prefill", "tokens per second"),
        (request.first_token_seconds_max, "--max-ttft", "seconds"),
    ] {
        let [least, most] = RATES;
        if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
            let value = if value.abs() < most { value.to_string() } else { format!("{value:e}") };
            return wrong(format!(
                "{option} {value} is no limit; give a number of {unit} from {least} to {most}, or leave it out"
            ));
        }
    }
    let reserve_bytes = request.reserve_bytes.unwrap_or(0);
    if reserve_bytes > BYTES_MAX {
        return wrong(format!(
            "--reserve {} is more than any machine has; give what `run --serve` is to have, such as 4M",
            show(reserve_bytes)
        ));
    }
    let loss_max = request.perplexity_change_fraction_max;
    if !(loss_max.is_finite() && (0.0..=10.0).contains(&loss_max)) {
        return wrong(format!(
            "--max-loss {} is not a rise of perplexity in percent; give a number from 0 (lossless) to 1000",
            loss_max * 100.0
        ));
    }
    let longest = model.architecture.context;
    let context = request.context_tokens.unwrap_or(longest.min(4096));
    if context < 2 || context > longest {
        return wrong(format!("--context {context} is impossible; this model takes 2 to {longest} tokens"));
    }
    let (sequences, most) = (request.sequences.unwrap_or(1), SEQUENCES_MAX as u32);
    if !(1..=most).contains(&sequences) {
        return wrong(format!(
            "--slots {sequences} is impossible; there may be 1 to {most} sequences at a time"
        ));
    }
    let draft_tokens = draft_tokens(model, request, sequences)?;
    match (request.first_token_seconds_max, request.prompt_tokens) {
        (Some(_), None) => {
            return wrong(
                "--max-ttft is the time of a prompt; say how long that is with --prompt N".to_owned(),
            );
        }
        (None, Some(_)) => {
            return wrong("--prompt N is the prompt of --max-ttft SECONDS; give both".to_owned());
        }
        (_, Some(tokens)) if tokens == 0 || tokens >= context => {
            return wrong(format!(
                "--prompt {tokens} is impossible; a context of {context} holds prompts of 1 to {} tokens",
                context - 1
            ));
        }
        _ => {}
    }
    let all = device.core_ids();
    let list = || all.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let cores = match &request.cores {
        None => all.clone(),
        Some(chosen) => {
            if let Some(&core) = chosen.iter().find(|core| !all.contains(core)) {
                return Err(PlanError::Core { core, known: list() });
            }
            all.iter().copied().filter(|core| chosen.contains(core)).collect()
        }
    };
    if cores.is_empty() {
        return wrong(format!("--cores names no core; choose among {}", list()));
    }
    if let Some(name) = &request.level
        && model.level(name).is_none()
    {
        let names: Vec<&str> = model.levels.iter().map(|level| level.name.as_str()).collect();
        return Err(PlanError::Level { name: name.clone(), known: names.join(", ") });
    }
    if request.without.contains(&Feature::Predictor) {
        let held = |name: &str| request.level.as_ref().is_none_or(|level| level == name);
        let exact = |level: &&Level| level.kind == LevelKind::ExactGate;
        if !model.levels.iter().filter(exact).any(|level| held(&level.name)) {
            return wrong(match &request.level {
                Some(level) => {
                    format!(
                        "--without predictor takes the exact gate, and level `{level}` is another; leave one of them out"
                    )
                }
                None => format!(
                    "--without predictor takes the exact gate, which {} has not: its neurons fire below zero",
                    model.name
                ),
            });
        }
    }
    let leaves_out = |feature| request.without.contains(&feature);
    let by_rows = model.is_uniform() && model.parts.bundle.steps(Part::Whole, Phases::Rows).is_some();
    if leaves_out(Feature::Bundle) && !by_rows {
        return wrong(format!(
            "--without bundle reads each row by itself, and the bundles of {} are smaller than a page or differ by layer",
            model.name
        ));
    }
    if leaves_out(Feature::TwoPhase) && leaves_out(Feature::WholeRead) && !leaves_out(Feature::Bundle) {
        return wrong(
            "a bundle is read whole or in two phases; leave out only one of whole-read and two-phase"
                .to_owned(),
        );
    }
    let sets = &device.identity.instruction_sets;
    let timed = |isa: &&String| device.kernels.iter().any(|kernel| kernel.instruction_set == **isa);
    let isa = match &request.instruction_set {
        Some(isa) if sets.contains(isa) => isa.clone(),
        Some(isa) => {
            return wrong(format!(
                "the quality keys hold the instruction set `{isa}`, which this device has not; it has {}",
                sets.join(", ")
            ));
        }
        None => sets.iter().rev().find(timed).or(sets.last()).cloned().unwrap_or_else(|| "scalar".to_owned()),
    };
    if let Some(held) = &request.activations
        && *held != model.activations
    {
        return wrong(format!(
            "the quality keys hold activations `{held}`, but this model's levels were measured with `{}`; make its \
             profile again, or plan without --quality",
            model.activations
        ));
    }
    let kv = kv_of(request);
    if let Some(sentence) = refused(kv, model) {
        return wrong(sentence);
    }
    let limits = Limits {
        memory_bytes: request.memory_limit_bytes.map_or(plannable, |limit| limit.min(plannable)),
        machine_bytes: plannable,
        user_memory_bytes: request.memory_limit_bytes,
        speed_min: request.decode_tokens_per_second_min,
        prompts_max: prompts_max(request, context),
        cores,
        cores_chosen: request.cores.is_some(),
        context,
        sequences,
        draft_tokens,
        reserve_bytes: reserve_bytes.next_multiple_of(PAGE_BYTES),
        loss_max,
        level: request.level.clone(),
        isa,
        kv,
        objective: request.objective,
        without: request.without.clone(),
        gpu: None,
    };
    let origin = Origin { request, device_hash: &inputs.device_hash, model_hash: &inputs.model_hash };
    let visited = cost::visited(model).into();
    let mut question = Question { device, model, limits, origin, visited, fitted: Arc::default() };
    question.limits.gpu = cost::Gpu::decide(&question)?;
    Ok(question)
}

/// Why keys and values of a model cannot be stored so, if they cannot.
fn refused(kv: KvFormat, model: &Model) -> Option<String> {
    let (name, option) = (kv.name(), kv.name().to_lowercase());
    let mut widths = model.architecture.storing_heads().map(|heads| heads.head_width);
    if let Some(width) = widths.find(|&width| !kv.holds(width.into())) {
        return Some(format!(
            "--kv-format {option} stores keys and values in blocks of {}, and the heads of {} are {width} wide; take f16 or f32",
            kv.block_values(),
            model.name
        ));
    }
    (kv.has_blocks() && model.kv_loss(kv).is_none()).then(|| {
        format!(
            "what keys and values in {name} lose is not in the profile of {}; profile the model again to plan with \
             --kv-format {option}, or take f16 or f32",
            model.name
        )
    })
}

/// Tokens of a draft that are asked for; `--speculate auto` looks for them when there is a plan without.
fn draft_tokens(model: &Model, request: &Request, sequences: u32) -> Result<u32, PlanError> {
    let wrong = |sentence: String| Err(PlanError::Request(sentence));
    let (asked, most) = (request.draft_tokens.unwrap_or(0), DRAFT_TOKENS_MAX as u32);
    if asked == 0 && !request.draft_tokens_auto {
        return Ok(0);
    }
    if asked > 0 && model.architecture.recurrent.is_some() {
        return wrong(format!(
            "--speculate {asked} is impossible with {}: its recurrent state cannot go back to where a draft fails; leave it out",
            model.name
        ));
    }
    if model.drafts.is_none() && model.architecture.recurrent.is_none() {
        return wrong(
            "--speculate needs to know how much of a draft the model keeps, and model.toml has no [drafts]; profile the model again, or leave it out"
                .to_owned(),
        );
    }
    if asked > most {
        return wrong(format!("--speculate {asked} is impossible; a draft has 1 to {most} tokens"));
    }
    if (sequences + asked) as usize > ROWS_MAX {
        return wrong(format!(
            "--speculate {asked} beside --slots {sequences} is impossible; a step has {ROWS_MAX} rows at most, one for each of both"
        ));
    }
    Ok(asked)
}

/// The limits of `--min-prefill` and `--max-ttft`; the former is for the prompt of the measured run.
fn prompts_max(request: &Request, context: u32) -> Vec<PromptLimit> {
    let measured = measured_run(context).0;
    let rate = request.prefill_tokens_per_second_min.map(|rate| PromptLimit {
        name: MIN_PREFILL,
        tokens: measured,
        seconds_max: f64::from(measured) / rate,
    });
    let first = request.first_token_seconds_max.map(|seconds_max| PromptLimit {
        name: "user.max_ttft",
        tokens: request.prompt_tokens.unwrap_or(measured),
        seconds_max,
    });
    rate.into_iter().chain(first).collect()
}
