//! Plans that learn: whether to plan again with the counts of earlier runs, and whether the new plan pays.
//!
//! The plan without counts stays beside the one with them, so each is made once for its inputs.

use std::path::Path;

use plans::file::read;
use plans::learned::{FILE, Learned, TOKENS_MAX, TOKENS_MIN};
use plans::{Model, Plan};

/// Beginning of the name of a plan with counts; the name of the plan without them follows.
pub(crate) const PREFIX: &str = "learned-";
/// Least gain of speed that takes a learned plan: another plan fills its cache from another layout, and predictions err by some percent.
const GAIN: f64 = 1.05;
/// Growth of the counts that plans again.
const GROWTH: u64 = 2;

/// Counted tokens beside a profile; `None` where there are too few, or none of this model.
pub(crate) fn counted(folder: &Path, profile: &Model) -> Option<u64> {
    let Learned { learned, .. } = read::<Learned>(&folder.join(FILE)).ok()?.value;
    let is_of = learned.model_fingerprint == profile.fingerprint
        && learned.container_fingerprint == profile.container.fingerprint;
    (is_of && learned.tokens >= TOKENS_MIN).then_some(learned.tokens)
}

/// Whether the counts have doubled since a plan was made from them. Full counts keep changing, and plan again no more.
pub(crate) fn has_grown(plan: &Plan, counted: u64) -> bool {
    let before = plan.provenance.learned_tokens.unwrap_or(0);
    counted >= GROWTH * before && before < TOKENS_MAX / GROWTH
}

/// Whether a learned plan is faster, by the same counts, than the plan without them.
pub(crate) fn pays(plan: &Plan) -> bool {
    let speed = plan.expected.decode_tokens_per_second;
    let without = plan.provenance.unlearned_tokens_per_second;
    plan.provenance.learned_toml.is_some() && without.is_none_or(|without| speed >= GAIN * without)
}

/// The gain of a learned plan, as a line for people.
pub(crate) fn gain(plan: &Plan) -> String {
    let tokens = plan.provenance.learned_tokens.unwrap_or(0);
    let without = plan.provenance.unlearned_tokens_per_second.unwrap_or(0.0);
    let speed = plan.expected.decode_tokens_per_second;
    format!("learned from {tokens} tokens: {speed:.1} tok/s planned instead of {without:.1}")
}
