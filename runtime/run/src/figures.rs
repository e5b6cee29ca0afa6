//! The figures of a run, predicted and measured: all that the report and `--json` tell.

use std::collections::BTreeMap;
use std::time::Duration;

use flashplan::Counters;
use flashplan::internals::counters::{Stage, accumulate, detail};
use flashplan::internals::machine::{CpuTimes, footprint};
use plans::Plan;
use plans::expectation::{self, Distribution, Expectation, Stream};
use plans::model::LevelKind;
use plans::plan::measured_run;
use plans::terms::Factors;
use serde::Serialize;

use super::current::CurrentRates;
use super::floor::Floor;
use super::session::{RunningPlan, Step};
use super::{Failure, failure};

/// The figures of a run; absent where nothing of the kind happened or is predicted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Figures {
    /// How flash was read.
    pub(super) flash: String,
    pub(super) start_seconds: f64,
    /// Absent, as the next, in a plan that does not know.
    pub(super) start_seconds_predicted: Option<f64>,
    pub(super) start_seconds_now: Option<f64>,
    pub(super) decode_tokens_per_second: Option<f64>,
    /// By the plan's cost model for the tokens that ran, as are bytes and hits.
    pub(super) decode_tokens_per_second_predicted: Option<f64>,
    /// Priced at current rates, as all `_now` figures. Absent without current rates, or if the plan does not know the parts of its times.
    pub(super) decode_tokens_per_second_now: Option<f64>,
    /// Latency of a decoded token; the tokens of one step have equal shares of its time.
    pub(super) latency_seconds: Option<Distribution>,
    /// Absent, as the next, where the plan knows mean tokens only, or there were drafts.
    pub(super) latency_seconds_predicted: Option<Distribution>,
    pub(super) latency_seconds_now: Option<Distribution>,
    pub(super) decode_tokens: usize,
    /// Steps that brought them: as many, unless drafts were kept.
    pub(super) decode_steps: usize,
    /// Tokens drafted; the next field counts the ones kept. Absent, as the next three, where the plan has no drafts or they were not used.
    pub(super) drafted_tokens: Option<usize>,
    pub(super) kept_tokens: Option<usize>,
    pub(super) tokens_per_step: Option<f64>,
    /// Expected for text like the profile's.
    pub(super) tokens_per_step_predicted: Option<f64>,
    pub(super) decode_first_position: Option<usize>,
    pub(super) decode_last_position: Option<usize>,
    /// How many times decoding began with empty slots.
    pub(super) cold_starts: usize,
    pub(super) prefill_tokens_per_second: Option<f64>,
    /// Absent where the prompt was not of `prefill_prompt_tokens_predicted`.
    pub(super) prefill_tokens_per_second_predicted: Option<f64>,
    pub(super) prefill_tokens_per_second_now: Option<f64>,
    pub(super) prefill_prompt_tokens: usize,
    /// The prompt's own length, unless the plan knows the time of one length only.
    pub(super) prefill_prompt_tokens_predicted: usize,
    pub(super) time_to_first_token_seconds: Option<f64>,
    pub(super) time_to_first_token_seconds_predicted: Option<f64>,
    pub(super) time_to_first_token_seconds_now: Option<f64>,
    pub(super) bytes_read_per_token: Option<f64>,
    pub(super) bytes_read_per_token_predicted: Option<f64>,
    pub(super) hit_fraction: Option<f64>,
    pub(super) hit_fraction_predicted: Option<f64>,
    /// Neurons that a token missed, over the neurons that a mean token requested.
    pub(super) miss_fraction: Option<Distribution>,
    /// Absent where the plan knows mean tokens only.
    pub(super) miss_fraction_predicted: Option<Distribution>,
    pub(super) memory_peak_bytes: u64,
    pub(super) memory_peak_bytes_predicted: u64,
    pub(super) memory_limit_bytes: u64,
    pub(super) memory_locked: bool,
    /// Absent when it is.
    pub(super) memory_unlocked_reason: Option<String>,
    pub(super) active_true_fraction: Option<f64>,
    /// Absent, as the next, where the level selects no neurons: how many of them matter is not predicted then.
    pub(super) active_true_fraction_predicted: Option<f64>,
    pub(super) active_predicted_fraction: Option<f64>,
    pub(super) active_predicted_fraction_predicted: Option<f64>,
    /// Absent in a plan without a unit beside the cores.
    #[serde(flatten)]
    pub(super) unit: Option<UnitFigures>,
    /// Whether the plan is from priors, so that predicted figures have wider errors.
    pub(super) plan_from_priors: bool,
    pub(super) perplexity_change_fraction_predicted: f64,
    /// Absent in a plan whose profile has no bound.
    pub(super) perplexity_change_fraction_upper_predicted: Option<f64>,
    pub(super) reads_per_token: Option<f64>,
    /// Reads started for the next layer; the next field counts the ones that it requested.
    pub(super) prefetch_reads_per_token: Option<f64>,
    pub(super) prefetch_reads_used_per_token: Option<f64>,
    pub(super) prefetch_bytes_per_token: Option<f64>,
    /// Bytes read between two neurons that were wanted or prefetched; a part of all bytes read.
    pub(super) gap_bytes_per_token: Option<f64>,
    /// Reads that came back short or interrupted, and went on.
    pub(super) reads_resumed: u64,
    /// Mean time of a decoded token by stage; I/O wait is a part of demand.
    pub(super) stage_seconds: BTreeMap<&'static str, f64>,
    pub(super) io_wait_seconds: Option<f64>,
    /// Share of the processors' time since the start that others took, the host of a virtual machine included.
    pub(super) others_cpu_fraction: Option<f64>,
    /// Hash of the logits after every decoded token of the last text; plans with equal quality keys give the same.
    pub(super) logits_hash: Option<String>,
    /// Absent in a plan that does not know the device's rates.
    #[serde(flatten)]
    pub(super) floor: Option<Floor>,
    /// Absent where it was not measured.
    #[serde(flatten)]
    pub(super) current: Option<CurrentRates>,
}

/// Work of a unit beside the cores since the start.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct UnitFigures {
    pub(super) unit_adapter: String,
    /// Share of each fixed matrix in a prompt.
    pub(super) unit_prefill_fraction: f64,
    /// Submissions: matrices with the same vectors.
    pub(super) unit_calls: u64,
    /// Time to hand vectors over.
    pub(super) unit_begin_seconds: f64,
    /// Time that the cores waited for the unit.
    pub(super) unit_wait_seconds: f64,
    pub(super) unit_vector_bytes: u64,
    pub(super) unit_product_bytes: u64,
    pub(super) unit_memory_bytes: u64,
    pub(super) unit_memory_bytes_predicted: u64,
    pub(super) unit_memory_limit_bytes: u64,
}

impl UnitFigures {
    fn new(plan: &Plan, counters: &Counters) -> Option<Self> {
        let (unit, memory, work) = (plan.quality.units.first()?, plan.gpu?, &detail(counters).unit);
        Some(Self {
            unit_adapter: unit.adapter.clone(),
            unit_prefill_fraction: unit.share_fraction(),
            unit_calls: work.calls,
            unit_begin_seconds: work.begin.as_secs_f64(),
            unit_wait_seconds: work.wait.as_secs_f64(),
            unit_vector_bytes: work.vector_bytes,
            unit_product_bytes: work.product_bytes,
            unit_memory_bytes: work.held_bytes,
            unit_memory_bytes_predicted: memory.held_bytes(),
            unit_memory_limit_bytes: memory.limit_bytes,
        })
    }
}

/// Whether the level selects neurons: where it does not, all of them are computed, and how many of them matter is not
/// known.
pub(super) fn selects(plan: &Plan) -> bool {
    plan.quality.kind != LevelKind::Dense
}

/// Sums over some steps.
pub(super) fn sums(steps: &[Step]) -> (Duration, Counters) {
    let mut all = Counters::default();
    steps.iter().for_each(|step| accumulate(&mut all, &step.counters));
    (steps.iter().map(|step| step.time).sum(), all)
}

/// Tokens that steps have brought.
pub(super) fn tokens_of(steps: &[Step]) -> usize {
    steps.iter().map(|step| step.tokens).sum()
}

/// Rows of these steps, including rejected drafts.
fn rows_of(steps: &[Step]) -> usize {
    steps.iter().map(|step| 1 + step.drafted).sum()
}

/// The sum of the tokens' positions.
pub(super) fn positions_of(steps: &[Step]) -> f64 {
    let of_step = |step: &Step| (step.position..step.position + step.tokens).sum::<usize>() as f64;
    steps.iter().map(of_step).sum()
}

/// How many times as fast the plan expects decoding to be with the drafts that a session uses as without.
pub(super) fn speedup(session: &RunningPlan<'_>) -> f64 {
    let plan = session.plan;
    let speculation = plan.speculation.filter(|_| session.drafts);
    speculation.map_or(1.0, |with| with.decode_tokens_per_second / plan.expected.decode_tokens_per_second)
}

/// The distribution of a value over tokens; the tokens of a step have equal shares of it. `None` without tokens.
fn of_steps(steps: &[Step], value: impl Fn(&Step) -> f64) -> Option<Distribution> {
    let of_step = |step: &Step| std::iter::repeat_n(value(step) / step.tokens as f64, step.tokens);
    Distribution::of(steps.iter().flat_map(of_step).collect())
}

/// The figures of a session so far; `texts` is how many times it began with an empty cache.
///
/// # Errors
/// If the system does not say how much memory this process holds.
pub(super) fn figures(session: &RunningPlan<'_>, texts: usize) -> Result<Figures, Failure> {
    let (plan, steps) = (session.plan, &session.steps);
    let (time, counters) = sums(steps);
    let e = &plan.expected;
    let (tokens, rows) = (tokens_of(steps), rows_of(steps));
    let count = tokens as f64;
    let speculation = plan.speculation.filter(|_| session.drafts && !steps.is_empty());
    // reads, hits and a token's percentiles are planned for steps of one row
    let alone = |expected: Expectation| Some(expected).filter(|_| speculation.is_none());
    let times_as_fast = speedup(session);
    let decoded = |value: f64| (!steps.is_empty()).then_some(value);
    let routed = detail(&counters).activity.routed.max(1) as f64;
    let stream = Stream {
        tokens,
        positions: positions_of(steps),
        starts: texts,
        prompted: session.prefilled.0 > 0,
        routed_per_token: detail(&counters).activity.routed as f64 / (rows as f64).max(1.0),
    };
    let looked_up = (counters.looked_up.max(1)) as f64 / count;
    let expected = expectation::of(plan, &stream);
    let selected = |value: f64| decoded(value).filter(|_| selects(plan));

    let (all_prompts, prefill_time) = session.prefilled;
    let (prompt, first_token) =
        (all_prompts / texts.max(1), prefill_time.as_secs_f64() / texts.max(1) as f64);
    let known = measured_run(plan.context.tokens).0 as usize;
    let prefilled = |value: f64| (prompt > 0).then_some(value);
    let prompt_seconds = expectation::prompt_seconds(plan, prompt, &Factors::NONE);
    let factors = session.current.as_ref().and_then(CurrentRates::factors);
    let now = factors.and_then(|factors| expectation::at(plan, &stream, &factors));
    let prompt_now = factors
        .filter(|_| plan.terms.is_some())
        .and_then(|factors| expectation::prompt_seconds(plan, prompt, &factors));
    let rate = |seconds: Option<f64>| seconds.map(|seconds| prompt as f64 / seconds);
    Ok(Figures {
        flash: session.flash().to_owned(),
        start_seconds: session.start_time.as_secs_f64(),
        start_seconds_predicted: expectation::start_seconds(plan, &Factors::NONE),
        start_seconds_now: factors.and_then(|factors| expectation::start_seconds(plan, &factors)),
        decode_tokens_per_second: decoded(count / time.as_secs_f64()),
        decode_tokens_per_second_predicted: expected
            .map(|expected| times_as_fast * expected.tokens_per_second),
        decode_tokens_per_second_now: now.map(|expected| times_as_fast * expected.tokens_per_second),
        latency_seconds: of_steps(steps, |step| step.time.as_secs_f64()),
        latency_seconds_predicted: expected.and_then(alone).and_then(|expected| expected.latency_seconds),
        latency_seconds_now: now.and_then(alone).and_then(|expected| expected.latency_seconds),
        decode_tokens: tokens,
        decode_steps: steps.len(),
        drafted_tokens: speculation.map(|_| rows - steps.len()),
        kept_tokens: speculation.map(|_| tokens - steps.len()),
        tokens_per_step: speculation.map(|_| count / steps.len() as f64),
        tokens_per_step_predicted: speculation.map(|speculation| speculation.tokens_per_step),
        decode_first_position: steps.iter().map(|step| step.position).min(),
        decode_last_position: steps.iter().map(|step| step.position + step.tokens - 1).max(),
        cold_starts: if stream.prompted && plan.cache.slice_neurons > 1 { 0 } else { texts },
        prefill_tokens_per_second: prefilled(prompt as f64 / first_token),
        prefill_tokens_per_second_predicted: rate(prompt_seconds),
        prefill_tokens_per_second_now: rate(prompt_now),
        prefill_prompt_tokens: prompt,
        prefill_prompt_tokens_predicted: if prompt_seconds.is_some() { prompt } else { known },
        time_to_first_token_seconds: prefilled(first_token),
        time_to_first_token_seconds_predicted: prompt_seconds,
        time_to_first_token_seconds_now: prompt_now,
        bytes_read_per_token: decoded(counters.read_bytes as f64 / count),
        bytes_read_per_token_predicted: expected
            .and_then(alone)
            .map(|expected| expected.bytes_read_per_token),
        hit_fraction: decoded(counters.hit_fraction()),
        hit_fraction_predicted: expected.and_then(alone).map(|expected| expected.hit_fraction),
        miss_fraction: of_steps(steps, |step| step.counters.missing as f64 / looked_up),
        miss_fraction_predicted: expected.and_then(alone).and_then(|expected| expected.miss_fraction),
        memory_peak_bytes: footprint(None).map_err(failure)?.peak_bytes(),
        memory_peak_bytes_predicted: e.memory_peak_bytes,
        memory_limit_bytes: plan.memory.limit_bytes,
        memory_locked: session.unlocked().is_none(),
        memory_unlocked_reason: session.unlocked().map(str::to_owned),
        active_true_fraction: decoded(detail(&counters).activity.active as f64 / routed),
        active_true_fraction_predicted: selected(e.active_true_fraction),
        active_predicted_fraction: decoded(detail(&counters).activity.requested as f64 / routed),
        active_predicted_fraction_predicted: selected(e.active_predicted_fraction),
        unit: UnitFigures::new(plan, &session.counters()),
        plan_from_priors: plan.provenance.priors,
        perplexity_change_fraction_predicted: e.perplexity_change_fraction,
        perplexity_change_fraction_upper_predicted: e.perplexity_change_fraction_upper,
        reads_per_token: decoded(counters.reads as f64 / count),
        prefetch_reads_per_token: decoded(counters.prefetch_reads as f64 / count),
        prefetch_reads_used_per_token: decoded(counters.prefetch_reads_used as f64 / count),
        prefetch_bytes_per_token: decoded(counters.prefetch_bytes as f64 / count),
        gap_bytes_per_token: decoded(counters.gap_bytes as f64 / count),
        reads_resumed: counters.resumed,
        stage_seconds: (Stage::ALL.iter())
            .filter_map(|&stage| {
                Some((stage.name(), decoded(detail(&counters).times.of(stage).as_secs_f64() / count)?))
            })
            .collect(),
        io_wait_seconds: decoded(counters.waited.as_secs_f64() / count),
        others_cpu_fraction: session.started.and_then(CpuTimes::others),
        logits_hash: (!steps.is_empty()).then(|| session.logits_hash()),
        floor: (e.floor.as_ref())
            .filter(|_| !steps.is_empty())
            .map(|rates| Floor::new(rates, &counters, count, time.as_secs_f64())),
        current: session.current.clone(),
    })
}
