//! Why there is no plan: the limits that contradict each other, their numbers, and the nearest plans.

use std::fmt;

use plans::model::{Level, LevelKind};
use plans::plan::{Feature, Request};

use crate::blame::{LIMITS, SPEED, Search, UNLIMITED_BYTES, sped_up, without};
use crate::cost;
use crate::field::Field;
use crate::offer::{down, offer};
use crate::request::{DIGITS, Limits, Question};
use crate::room::regions_within;
use crate::rules;
use crate::space::Space;

/// Halvings in which a factor is sought.
const HALVINGS: usize = 24;

/// No plan satisfies the limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Infeasible {
    /// The named limits and facts that contradict each other. Without any one of the limits, and without those that are not
    /// named, there is a plan; so there is with any one of the facts out of the way.
    pub conflict: Vec<&'static str>,
    /// Sentences with the numbers, the most important first.
    pub sentences: Vec<String>,
    /// Requests with one limit changed as the sentences say, each of which has a plan.
    pub offers: Vec<Request>,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no plan satisfies the limits ({})", self.conflict.join(", "))?;
        self.sentences.iter().try_for_each(|sentence| write!(f, "\n{sentence}"))
    }
}

/// Finds the conflict and the nearest plans, in the space that the limits allow.
pub fn explain(question: &Question<'_>, space: &Space<'_>) -> Infeasible {
    if space.ways.is_empty() {
        return no_level(question);
    }
    let search = Search::new(question, space);
    let (mut conflict, kept) = search.conflict();
    let facts = search.facts(&kept);
    let (mut sentences, mut offers) = (Vec::new(), Vec::new());
    for name in LIMITS.into_iter().rev().filter(|name| conflict.contains(name)) {
        if let Some(offer) = offer(&search, name) {
            sentences.push(offer.sentence);
            offers.extend(offer.request);
        }
    }
    if sentences.is_empty() {
        let others = conflict.join(" and ");
        sentences.push(format!(
            "no single one of {others} can be changed so that there is a plan; change several"
        ));
    }
    if let Some(sentence) = out_of_reach(&search, &conflict) {
        sentences.push(sentence);
    }
    conflict.splice(0..0, facts);
    Infeasible { conflict, sentences, offers }
}

/// Where no memory helps: what a token takes with everything in memory, and how much faster what would have to be.
fn out_of_reach(search: &Search<'_>, conflict: &[&str]) -> Option<String> {
    let Search { question, space, .. } = *search;
    let limits = &question.limits;
    let floor = limits.speed_min.filter(|_| conflict.contains(&SPEED))?;
    if conflict.contains(&"user.mem") || conflict.contains(&"hw.capacity") {
        return None;
    }
    let unlimited = Limits {
        memory_bytes: UNLIMITED_BYTES,
        machine_bytes: UNLIMITED_BYTES,
        user_memory_bytes: None,
        speed_min: None,
        ..limits.clone()
    };
    let unlimited = question.within(unlimited);
    let field = Field::new(&unlimited, space);
    let best = field.fastest(regions_within(UNLIMITED_BYTES), false)?.best;
    let decided = crate::assemble::decide(&field, &best, regions_within(UNLIMITED_BYTES));
    let decision = decided.decision(field.level(best.way));
    let price = cost::decode(&unlimited, &decision);
    let seconds = price.mean_seconds(limits.context);
    let works =
        [&price.attention, &price.predictor, &price.look_ahead, &price.gate_up, &price.down, &price.rest];
    let sum = |of: fn(&cost::Work) -> f64| works.iter().map(|work| of(work)).sum::<f64>() * 1e3;
    let mut sentence = format!(
        "no memory helps: with everything resident the best is {} tok/s, {:.1} ms a token, of which computing alone takes {:.1} ms, moving weights through memory alone {:.1} ms, and what nothing overlaps {:.1} ms; {floor} tok/s allow {:.1} ms",
        down(1.0 / seconds),
        seconds * 1e3,
        sum(|work| work.compute_seconds),
        sum(cost::Work::memory),
        sum(cost::Work::serial),
        1e3 / floor,
    );
    let with = |compute: f64, memory: f64| {
        let faster =
            Question { device: &sped_up(question.device, compute, memory, 1.0), ..unlimited.clone() };
        1.0 / cost::decode(&faster, &decision).mean_seconds(limits.context) * DIGITS >= floor
    };
    let ways: [(&str, &dyn Fn(f64) -> bool); 3] = [
        ("memory", &|times| with(1.0, times)),
        ("cores", &|times| with(times, 1.0)),
        ("cores and memory", &|times| with(times, times)),
    ];
    if let Some((what, times)) = ways.iter().find_map(|(what, enough)| Some((what, least_times(enough)?))) {
        sentence += &format!("; {what} {times:.2} times as fast would do");
    }
    Some(sentence)
}

/// The least factor up to a thousand that is enough, rounded up.
fn least_times(enough: &dyn Fn(f64) -> bool) -> Option<f64> {
    let (mut low, mut high) = (1.0, 1000.0);
    if !enough(high) {
        return None;
    }
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if enough(middle) { high = middle } else { low = middle }
    }
    Some((high * 100.0).ceil() / 100.0)
}

/// That no level is allowed, and which would be.
fn no_level(question: &Question<'_>) -> Infeasible {
    let Question { model, limits, .. } = question;
    let held = |level: &&Level| limits.level.as_ref().is_none_or(|name| *name == level.name);
    let exact = |level: &&Level| limits.with(Feature::Predictor) || level.kind == LevelKind::ExactGate;
    let levels = model.levels.iter().filter(held).filter(exact);
    let bound = Level::loss_bound_fraction;
    let least = levels.min_by(|a, b| bound(a).total_cmp(&bound(b)));
    let sentence = least.map_or_else(
        || "this model has no quality level; profile it again".to_owned(),
        |level| {
            let (loss, most) = (level.perplexity_change_fraction * 100.0, bound(level) * 100.0);
            let raises = if most > loss {
                format!(
                    "raises perplexity by up to {most:.2} % ({loss:.2} % measured; the more held-out text a profile reads, the closer is the bound)"
                )
            } else {
                format!("raises perplexity by {loss:.2} %")
            };
            let kv = limits.kv.name();
            let in_blocks = format!(" with keys and values in {kv}");
            format!(
                "--max-loss {} does not allow {}`{}`{}, which {raises}: allow it with --max-loss {}",
                limits.loss_max * 100.0,
                if limits.level.is_some() { "the level " } else { "even " },
                level.name,
                if limits.kv.has_blocks() { &in_blocks } else { "" },
                (most * 100.0).ceil() / 100.0
            )
        },
    );
    let mut conflict = vec!["user.max_loss"];
    conflict.extend(limits.level.is_some().then_some("user.level"));
    conflict.extend((!limits.without.is_empty()).then_some("user.without"));
    conflict.retain(|name| !rules::levels(model, &without(question, name).limits).is_empty());
    Infeasible { conflict, sentences: vec![sentence], offers: Vec::new() }
}
