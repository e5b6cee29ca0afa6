//! A plan is never written unverified: its memory and time are computed again, without the solver.

use plans::file::Contract as _;
use plans::memory;
use plans::plan::Plan;

use crate::assemble;
use crate::cost;
use crate::decided::Decided;
use crate::error::PlanError;
use crate::question::{DIGITS, Question};

/// How far the plain time may lie above what the search says: it rounds, and adds up in another order.
const TIME_TOLERANCE: f64 = 1e-9;

/// Checks a plan against the plain functions and the search's promise.
///
/// # Errors
/// [`PlanError::Unverified`] with the first thing that does not hold.
pub fn verify(
    question: &Question<'_>,
    plan: &Plan,
    d: &Decided,
    promised_seconds: f64,
) -> Result<(), PlanError> {
    let Question { device, model, limits, .. } = question;
    let wrong = |sentence: String| Err(PlanError::Unverified(sentence));
    let Some(level) = model.level(&plan.quality.level) else {
        return wrong(format!("the level `{}` does not exist", plan.quality.level));
    };
    let again = memory::regions(
        device,
        model,
        &memory::choices_of(plan, level.resident_bytes),
        plan.memory.limit_bytes,
    );
    if again != plan.memory {
        return wrong("its regions add up differently".to_owned());
    }
    if again.prefill_total_bytes > limits.memory_bytes {
        return wrong(format!("it takes {} of {} bytes", again.prefill_total_bytes, limits.memory_bytes));
    }
    let allowed = |core: &u32| limits.cores.contains(core);
    if !plan
        .decode
        .compute_cores
        .iter()
        .chain(&plan.decode.io_cores)
        .chain(&plan.prefill.compute_cores)
        .all(allowed)
    {
        return wrong("it uses a core that is not allowed".to_owned());
    }
    for (layer, (&hot, &cold)) in plan.cache.hot_neurons.iter().zip(&plan.cache.cold_slots).enumerate() {
        let neurons = model.architecture.neurons();
        if u64::from(hot) + u64::from(cold) > neurons {
            return wrong(format!("layer {layer} caches more than its {neurons} neurons"));
        }
        let working_set = level.layers[layer].predicted_neurons_p99;
        if cold > 0 && d.policy.inserts_all() && f64::from(cold) < working_set {
            return wrong(format!("layer {layer} has {cold} slots, fewer than the {working_set} of a token"));
        }
    }
    let seconds = cost::decode(question, &d.decision(level)).mean_seconds(limits.context);
    if !(seconds.is_finite() && seconds <= promised_seconds * (1.0 + TIME_TOLERANCE)) {
        return wrong(format!("a token takes {seconds:.6} s, the search promised {promised_seconds:.6} s"));
    }
    let floor = limits.speed_min.unwrap_or(0.0);
    if 1.0 / seconds * DIGITS < floor {
        return wrong(format!("a token takes {seconds:.6} s, and {floor} tok/s are the least"));
    }
    for limit in &limits.prompts_max {
        let seconds = assemble::prompt_seconds(question, level, d, limit.tokens);
        if seconds > limit.seconds_allowed() {
            return wrong(format!("a prompt of {} tokens takes {seconds:.6} s", limit.tokens));
        }
    }
    plan.check().map_err(|wrong| PlanError::Unverified(wrong.to_string()))
}
