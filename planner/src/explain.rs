//! Why there is no plan: the limits that contradict each other, their numbers, and the nearest plans.

use std::fmt;

use plans::file::significant;
use plans::plan::{Feature, Request};
use plans::size::show;

use crate::blame::Search;
use crate::core::core;
use crate::error::PlanError;
use crate::offer::{loss, offer};
use crate::presolve::Presolve;
use crate::problem::{FACTS, LIMITS, LOSS, SPEED};
use crate::question::{Limits, MIN_PREFILL, Question};

/// No plan satisfies the limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Infeasible {
    /// The named limits and facts that contradict each other. Without any one of the limits, and without those that are not
    /// named, there is a plan. The facts are those that Z3 needs to see the contradiction.
    pub conflict: Vec<&'static str>,
    /// The conflict in the user's words: limits as options with their values, and facts in brackets.
    pub words: String,
    /// Sentences with the numbers, the most important first.
    pub sentences: Vec<String>,
    /// Whether all of this is proven: that there is no plan, and that what is named is to blame.
    pub proven: bool,
    /// Requests with one limit changed as the sentences say, each of which has a plan.
    pub offers: Vec<Request>,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no plan satisfies the limits {}", self.words)?;
        self.sentences.iter().try_for_each(|sentence| write!(f, "\n{sentence}"))
    }
}

/// Finds the conflict and the nearest plans, in the space that the limits allow.
///
/// # Errors
/// [`PlanError::Unknown`].
pub fn explain(question: &Question<'_>, space: &Presolve<'_>) -> Result<Infeasible, PlanError> {
    let open = space.work().undecided;
    let search = Search::new(question, space);
    let conflict = core(&search)?;
    let to_blame = LIMITS.into_iter().rev().filter(|name| conflict.contains(name));
    let mut given_up = 0;
    let found = to_blame.filter_map(|name| match name {
        LOSS => {
            let (offer, undecided) = loss(question);
            given_up += undecided;
            offer
        }
        _ => offer(&search, name),
    });
    let found: Vec<_> = found.collect();
    let (mut sentences, mut offers) = (Vec::new(), Vec::new());
    for offer in found {
        sentences.push(offer.sentence);
        offers.extend(offer.request);
    }
    if sentences.is_empty() {
        let others = conflict.join(" and ");
        sentences.push(format!(
            "no single one of {others} can be changed so that there is a plan; change several"
        ));
    }
    let undecided = search.undecided() + given_up;
    if open > 0 {
        sentences.push(format!(
            "that there is none is not proven: {open} configurations were given up, and one of them may keep the limits"
        ));
    } else if undecided > 0 {
        sentences.push(format!(
            "that these limits alone leave no plan is not proven: {undecided} configurations were given up"
        ));
    }
    let words = in_words(&conflict, &question.limits);
    Ok(Infeasible { conflict, words, sentences, proven: undecided == 0, offers })
}

/// The limits of a conflict as the user gave them, and its facts in brackets.
fn in_words(conflict: &[&str], limits: &Limits) -> String {
    let (facts, named): (Vec<&str>, Vec<&str>) = conflict.iter().partition(|name| FACTS.contains(name));
    let facts = facts.into_iter().map(|fact| match fact {
        "hw.io" => "disk",
        "hw.memory_bandwidth" => "memory bandwidth",
        "hw.compute" => "cores",
        _ => "model size",
    });
    let size = |bytes: u64| show(bytes).replace(' ', "");
    let seconds = |name: &str| limits.prompts_max.iter().find(|limit| limit.name == name);
    let option = |name: &&str| match *name {
        "user.context" => format!("--context {}", limits.context),
        "user.slots" => format!("--slots {}", limits.sequences),
        "user.reserve" => format!("--reserve {}", size(limits.reserve_bytes)),
        "user.without" => {
            let names: Vec<&str> = limits.without.iter().copied().map(Feature::name).collect();
            format!("--without {}", names.join(" --without "))
        }
        "user.level" => format!("--level {}", limits.level.as_deref().unwrap_or_default()),
        LOSS => format!("--max-loss {}", significant(limits.loss_max * 100.0)),
        "user.cores" => {
            let ids: Vec<String> = limits.cores.iter().map(u32::to_string).collect();
            format!("--cores {}", ids.join(","))
        }
        "hw.capacity" => format!("{} of this machine", show(limits.machine_bytes)),
        "user.mem" => format!("--mem {}", size(limits.memory_bytes)),
        MIN_PREFILL => seconds(MIN_PREFILL).map_or_else(String::new, |limit| {
            format!("--min-prefill {}", significant(f64::from(limit.tokens) / limit.seconds_max))
        }),
        SPEED => format!("--min-speed {}", limits.speed_min.unwrap_or_default()),
        prompt => seconds(prompt).map_or_else(String::new, |limit| {
            format!("--max-ttft {} --prompt {}", significant(limit.seconds_max), limit.tokens)
        }),
    };
    let options = named.iter().map(option).collect::<Vec<_>>().join(" and ");
    let facts = facts.collect::<Vec<_>>().join(", ");
    if facts.is_empty() { options } else { format!("{options} ({facts})") }
}
