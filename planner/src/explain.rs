//! Why there is no plan: the limits that contradict each other, their numbers, and the nearest plans.

use std::fmt;

use plans::plan::{Objective, Request};
use plans::size::show;

use crate::error::PlanError;
use crate::request::{Inputs, Limits};
use crate::rules::{self, Room};
use crate::search::{self, Solved, best_in_room, best_plan};
use crate::solve;

/// Solves again under changed limits.
type WhatIf<'a> = dyn Fn(&dyn Fn(&mut Limits)) -> Result<Option<Solved>, PlanError> + 'a;

/// More memory than anything needs.
const UNLIMITED_BYTES: u64 = 1 << 50;
/// The context that is tried where the context may be what does not fit.
const CONTEXT_SMALL: u32 = 64;

/// No plan satisfies the limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Infeasible {
    /// The named limits and facts that contradict each other; without any one of them there is a plan.
    pub conflict: Vec<&'static str>,
    /// Sentences with the numbers, the most important first.
    pub sentences: Vec<String>,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no plan satisfies the limits ({})", self.conflict.join(", "))?;
        self.sentences.iter().try_for_each(|sentence| write!(f, "\n{sentence}"))
    }
}

/// Finds the conflict and the nearest plans.
///
/// # Errors
/// [`PlanError::Unknown`].
pub fn explain(inputs: &Inputs, limits: &Limits, request: &Request) -> Result<Infeasible, PlanError> {
    let mut sentences = Vec::new();
    let levels = rules::levels(inputs, limits);
    if levels.is_empty() {
        return Ok(Infeasible {
            conflict: vec!["user.max_loss"],
            sentences: vec![least_loss(inputs, limits)],
        });
    }
    let mut conflict = solver_conflict(inputs, limits)?;
    let what_if = |change: &dyn Fn(&mut Limits)| {
        let mut changed = limits.clone();
        change(&mut changed);
        best_plan(inputs, &changed, request)
    };
    let unlimited = |l: &mut Limits| {
        (l.memory_bytes, l.machine_bytes, l.user_memory_bytes) = (UNLIMITED_BYTES, UNLIMITED_BYTES, None);
    };
    let here = limits.memory_bytes;
    let at = if limits.user_memory_bytes.is_some_and(|user| user <= limits.machine_bytes) {
        amount(here)
    } else {
        format!("the {} that this machine can give", amount(here))
    };
    let least = what_if(&|l| {
        unlimited(l);
        l.objective = Objective::Memory;
    })?;
    let beyond =
        |bytes: u64| if bytes > limits.machine_bytes { ", more than this machine can give" } else { "" };
    match limits.speed_min {
        None => {
            if let Some(least) = &least {
                let m = &least.plan.memory;
                sentences.push(format!(
                    "{at} hold no plan: the smallest takes {}{} ({} weights that every token needs, {} keys and values for {} tokens of context, {} process, buffers and tables)",
                    amount_up(rules::limit_for(m.prefill_total_bytes)),
                    beyond(rules::limit_for(m.prefill_total_bytes)),
                    show(m.fixed_bytes),
                    show(m.kv_bytes),
                    limits.context,
                    show(m.prefill_total_bytes - m.fixed_bytes - m.kv_bytes),
                ));
            }
        }
        Some(floor) => {
            // as fast as it gets, prompts being as slow as they may
            let unbound = Limits { speed_min: None, ..limits.clone() };
            let best = best_in_room(inputs, &unbound, request, Room::Frugal)?;
            let best = best.map_or_else(
                || format!("{at} hold no plan at any speed"),
                |best| format!("{at} reach {}", speed(&best)),
            );
            let needs = least.as_ref().map(|least| rules::limit_for(least.plan.memory.prefill_total_bytes));
            sentences.push(match needs {
                Some(bytes) => {
                    format!("{best}; {floor} tok/s needs {}{}", amount_up(bytes), beyond(bytes))
                }
                None => {
                    let mut anywhere = limits.clone();
                    unlimited(&mut anywhere);
                    conflict = solver_conflict(inputs, &anywhere)?;
                    no_memory_helps(&what_if, &unlimited, &best, floor)?
                }
            });
        }
    }
    if limits.cores_chosen
        && let Some(other) = what_if(&|l| l.cores = inputs.device.core_ids())?
    {
        add(&mut conflict, "user.cores");
        sentences.push(format!("with all cores there is a plan: {}", speed(&other)));
    }
    if rules::levels(inputs, &Limits { loss_max: 1e9, level: limits.level.clone(), ..limits.clone() }).len()
        > levels.len()
        && let Some(other) = what_if(&|l| l.loss_max = 1e9)?
    {
        add(&mut conflict, "user.max_loss");
        let loss = other.plan.expected.perplexity_change_fraction * 100.0;
        sentences.push(format!(
            "with --max-loss {} there is a plan: level `{}`, {}",
            (loss * 100.0).ceil() / 100.0,
            other.plan.quality.level,
            speed(&other)
        ));
    }
    if limits.context > CONTEXT_SMALL && limits.speed_min.is_none() {
        let small = what_if(&|l| l.context = CONTEXT_SMALL)?;
        if small.is_some() {
            add(&mut conflict, "user.context");
            sentences
                .push(format!("with --context {CONTEXT_SMALL} there is a plan; the context takes the rest"));
        }
    }
    Ok(Infeasible { conflict, sentences })
}

/// Z3's minimal conflict over all levels. Where its bounds find none, the split inside the layers is what falls short,
/// and the user's own limits are to blame.
fn solver_conflict(inputs: &Inputs, limits: &Limits) -> Result<Vec<&'static str>, PlanError> {
    let found = solve::conflict(&search::contradiction(inputs, limits))?;
    if !found.is_empty() {
        return Ok(found);
    }
    let own =
        [("user.mem", limits.user_memory_bytes.is_some()), ("user.min_speed", limits.speed_min.is_some())];
    Ok(own.into_iter().filter_map(|(name, set)| set.then_some(name)).collect())
}

/// Says that the floor is out of reach at any memory, and what stands in the way.
fn no_memory_helps(
    what_if: &WhatIf<'_>,
    unlimited: &dyn Fn(&mut Limits),
    best: &str,
    floor: f64,
) -> Result<String, PlanError> {
    let most = what_if(&|l| {
        unlimited(l);
        l.speed_min = None;
    })?;
    Ok(most.map_or_else(
        || format!("{best}; {floor} tok/s is out of reach"),
        |most| {
            let e = &most.plan.expected;
            format!(
                "{best}; no memory helps: with everything resident the best is {}, because moving the weights of a token through memory alone takes {:.1} ms",
                speed(&most),
                e.decode_memory_seconds * 1e3
            )
        },
    ))
}

fn least_loss(inputs: &Inputs, limits: &Limits) -> String {
    let held = |level: &&plans::model::Level| limits.level.as_ref().is_none_or(|name| *name == level.name);
    let least = inputs
        .model
        .levels
        .iter()
        .filter(held)
        .min_by(|a, b| a.perplexity_change_fraction.total_cmp(&b.perplexity_change_fraction));
    least.map_or_else(
        || "this model has no quality level; profile it again".to_owned(),
        |level| {
            let loss = level.perplexity_change_fraction * 100.0;
            format!(
                "--max-loss {} allows no quality level{}; `{}` raises perplexity by {loss:.2} %: allow it with --max-loss {}",
                limits.loss_max * 100.0,
                if limits.level.is_some() { " that is requested for" } else { " of this model" },
                level.name,
                (loss * 100.0).ceil() / 100.0
            )
        },
    )
}

fn add(conflict: &mut Vec<&'static str>, group: &'static str) {
    if !conflict.contains(&group) {
        conflict.push(group);
    }
}

fn speed(solved: &Solved) -> String {
    format!("{:.2} tok/s", solved.plan.expected.decode_tokens_per_second)
}

/// A size with enough digits to be requested.
fn amount(bytes: u64) -> String {
    let (number, unit, digits) = scaled(bytes);
    format!("{number:.digits$} {unit}")
}

/// The same rounded up, so that the figure is enough.
fn amount_up(bytes: u64) -> String {
    let (number, unit, digits) = scaled(bytes);
    let scale = 10f64.powi(digits as i32);
    format!("{:.digits$} {unit}", (number * scale).ceil() / scale)
}

fn scaled(bytes: u64) -> (f64, &'static str, usize) {
    if bytes >= 1 << 30 {
        (bytes as f64 / f64::from(1 << 30), "GiB", 2)
    } else {
        (bytes as f64 / f64::from(1 << 20), "MiB", 1)
    }
}
