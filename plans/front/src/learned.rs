//! Plans that learn: whether to plan again with the counts of earlier runs, and whether the new plan pays.
//!
//! The plan without counts stays beside the one with them, so each is made once for its inputs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use plans::file::read;
use plans::learned::{FILE, Learned, TOKENS_MAX, TOKENS_MIN};
use plans::{Model, Plan};

/// Least gain of speed that takes a learned plan. Smaller gains are within the error of predictions.
const GAIN: f64 = 1.05;
/// Growth of the counts that plans again.
const GROWTH: u64 = 2;

/// The plan with counts beside the plan without them.
pub(crate) fn beside(file: &Path) -> PathBuf {
    let mut name = OsString::from("learned-");
    name.extend(file.file_name());
    file.with_file_name(name)
}

/// Counted tokens beside a profile; `None` where there are too few, or none of this model.
pub(crate) fn counted(folder: &Path, profile: &Model) -> Option<u64> {
    let Learned { learned, .. } = read::<Learned>(&folder.join(FILE)).ok()?.value;
    let is_of = learned.model_fingerprint == profile.fingerprint
        && learned.container_fingerprint == profile.container.fingerprint;
    (is_of && learned.tokens >= TOKENS_MIN).then_some(learned.tokens)
}

/// Whether the counts have doubled, or begun again, since a plan was made from them. Halving at [`TOKENS_MAX`] is neither.
pub(crate) fn is_stale(plan: &Plan, counted: u64) -> bool {
    let (before, halved) = (plan.provenance.learned_tokens.unwrap_or(0), TOKENS_MAX / 2);
    before < halved && counted >= GROWTH * before || counted < before.min(halved)
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
    let without = plan.provenance.unlearned_tokens_per_second;
    let without = without.map_or_else(|| "no plan".to_owned(), |speed| format!("{speed:.1}"));
    let speed = plan.expected.decode_tokens_per_second;
    format!("learned from {tokens} tokens: {speed:.1} tok/s planned instead of {without}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = include_str!("../../tests/plan.toml");

    fn plan(tokens: u64, speed: f64, without: Option<f64>) -> Plan {
        let mut plan: Plan = plans::file::parse(PLAN, Path::new("plan.toml")).expect("a plan");
        plan.expected.decode_tokens_per_second = speed;
        plan.provenance.learned_toml = Some("hash".to_owned());
        plan.provenance.learned_tokens = Some(tokens);
        plan.provenance.unlearned_tokens_per_second = without;
        plan
    }

    #[test]
    fn doubled_and_restarted_counts_plan_again_and_halved_ones_do_not() {
        for (before, counted, stale) in [
            (300, 300, false),
            (300, 599, false),
            (300, 600, true),
            (5000, 256, true),
            (30_000, 60_000, true),
            (40_000, 65_536, false),
            (60_000, 32_768, false),
            (60_000, 300, true),
        ] {
            assert_eq!(is_stale(&plan(before, 1.0, None), counted), stale, "{before} {counted}");
        }
    }

    #[test]
    fn a_learned_plan_is_taken_from_five_percent_on() {
        assert!(pays(&plan(300, 10.5, Some(10.0))) && !pays(&plan(300, 10.4, Some(10.0))));
        assert!(pays(&plan(300, 10.0, None)), "no plan keeps the limits without counts");
        let mut other = plan(300, 20.0, Some(10.0));
        other.provenance.learned_toml = None;
        assert!(!pays(&other), "a plan that learned nothing");
        assert_eq!(
            gain(&plan(300, 10.5, Some(10.0))),
            "learned from 300 tokens: 10.5 tok/s planned instead of 10.0"
        );
    }
}
