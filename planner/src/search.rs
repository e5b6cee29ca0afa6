//! The search for the best plan: level after level, each solved by Z3 and compared with the best so far.
//!
//! The levels stand outermost because their tables have nothing in common; everything that depends on
//! one another inside a level is decided by the solver together. A level that cannot reach the time of
//! the best one so far is dismissed with a single proof.

use plans::model::Level;
use plans::plan::{Objective, Plan, Request, SimpleRule};

use crate::assemble::{self, Decided};
use crate::candidates::{self, Room, Rules};
use crate::cost::{self, DecodePrice};
use crate::encode::encode;
use crate::error::PlanError;
use crate::request::{Inputs, Limits};
use crate::simple_rule::simple_rule;
use crate::solve::{self, Outcome};
use crate::tables::{Choice, Price, Tables, div_up};
use crate::verify::verify;

/// Attempts at a speed floor: what the split inside groups costs is asked of the solver in advance.
const ATTEMPTS_MAX: usize = 5;

/// Steps to which time and memory are decided: a five-hundredth of what is found without the solver.
const STEPS: i64 = 512;

/// A finished plan and how it came about.
#[derive(Debug, Clone)]
pub struct Solved {
    /// The plan.
    pub plan: Plan,
    /// Its decisions.
    pub decided: Decided,
    /// What the solver chose among, for the level taken.
    pub tables: Tables,
    /// Its choice.
    pub choice: Choice,
    /// The price of a token, term by term.
    pub price: DecodePrice,
    /// Levels that were solved, and what became of each.
    pub levels: Fates,
}

/// Levels by name, and what became of each.
pub type Fates = Vec<(String, &'static str)>;

/// A solver's answer for one level.
struct Found<'a> {
    level: &'a Level,
    tables: Tables,
    choice: Choice,
    objectives: Vec<i64>,
}

/// The best plan within the limits, or `None` where no plan satisfies them.
///
/// # Errors
/// [`PlanError::Unknown`] and [`PlanError::Unverified`].
pub fn best_plan(inputs: &Inputs, limits: &Limits, request: &Request) -> Result<Option<Solved>, PlanError> {
    let rooms: &[Room] = match limits.objective {
        Objective::Speed => &[Room::Generous, Room::Frugal],
        Objective::Memory => &[Room::Frugal],
    };
    for &room in rooms {
        if let Some(solved) = best_in_room(inputs, limits, request, room)? {
            return Ok(Some(solved));
        }
    }
    Ok(None)
}

fn best_in_room(
    inputs: &Inputs,
    limits: &Limits,
    request: &Request,
    room: Room,
) -> Result<Option<Solved>, PlanError> {
    let rules = candidates::rules(inputs, limits, room);
    let levels = candidates::levels(inputs, limits);
    let mut aimed = limits.clone();
    if limits.objective == Objective::Speed {
        // the fastest plan is the fastest with and without a floor: it is asked for plainly and judged by its true price
        aimed.speed_min = None;
    }
    for _ in 0..ATTEMPTS_MAX {
        let (found, fates) = best_level(inputs, &aimed, &levels, &rules, room)?;
        let Some(found) = found else { return Ok(None) };
        let Found { level, tables, choice, .. } = found;
        let decided = assemble::decide(inputs, limits, level, &tables, &choice, &rules);
        let price = cost::decode(inputs, limits, &decided.decision(level));
        let speed = 1.0 / price.mean_seconds(limits.context);
        if let Some(floor) = limits.speed_min.filter(|&floor| speed < floor) {
            let Some(aim) = aimed.speed_min else { return Ok(None) };
            aimed.speed_min = Some(aim * floor / speed * 1.0001);
            continue;
        }
        let nothing = SimpleRule { decode_tokens_per_second: 0.0, memory_peak_bytes: 0 };
        let simple = simple_rule(inputs, limits, &levels, &rules).unwrap_or(nothing);
        let plan = assemble::plan(inputs, limits, request, level, &decided, simple);
        let promised = tables.price(&choice).time as f64 * tables.tick_seconds;
        verify(inputs, limits, &plan, &decided, promised)?;
        return Ok(Some(Solved { plan, decided, tables, choice, price, levels: fates }));
    }
    Ok(None)
}

/// The level with the best objectives; of equals, the one of least loss.
fn best_level<'a>(
    inputs: &Inputs,
    limits: &Limits,
    levels: &[&'a Level],
    rules: &Rules,
    room: Room,
) -> Result<(Option<Found<'a>>, Fates), PlanError> {
    // All levels are compared in the same ticks and steps.
    let tick = candidates::tick_seconds(inputs, limits, levels);
    let mut tables: Vec<(&Level, Tables)> = levels
        .iter()
        .map(|&level| (level, candidates::tables(inputs, limits, level, rules, room, false, tick)))
        .collect();
    // A step is a share of what is reachable without the floor, so that a floor changes no resolution.
    let unbound = |t: &Tables| Tables { time_max: None, ..t.clone() }.guess(Objective::Speed);
    if let Some(price) = tables.iter().filter_map(|(_, t)| unbound(t)).map(|(_, p)| p).min_by_key(|p| p.time)
    {
        for (_, table) in &mut tables {
            table.time_step = (price.time / STEPS).max(1);
            table.memory_step = (price.memory / STEPS).max(1);
        }
    }
    let guesses = tables
        .iter()
        .filter_map(|(_, t)| t.guess(limits.objective).map(|(_, price)| first(t, limits, &price)));
    let guessed = guesses.min();
    if let (Some(most), Objective::Speed) = (guessed, limits.objective) {
        for (_, table) in &mut tables {
            table.keep_faster_than(most * table.time_step);
        }
    }
    let mut best: Option<Found<'a>> = None;
    let mut fates = Vec::new();
    for (level, tables) in tables {
        if tables.compute.is_empty() {
            fates.push((level.name.clone(), "proven worse"));
            continue;
        }
        let encoded = encode(&tables, limits.objective);
        let to_beat = best.as_ref().map(|found| found.objectives[0]).or(guessed);
        let fate = match solve::solve(&encoded.problem, to_beat)? {
            Outcome::Conflict(_) => "does not fit",
            Outcome::Beaten => "proven worse",
            Outcome::Best(values) => {
                let choice = encoded.choice(&tables, &values);
                // Time, memory and cores are comparable between levels; choice indices are not.
                let objectives = values.objectives[..3].to_vec();
                if best.as_ref().is_none_or(|found| objectives < found.objectives) {
                    best = Some(Found { level, tables, choice, objectives });
                    "best so far"
                } else {
                    "worse"
                }
            }
        };
        fates.push((level.name.clone(), fate));
    }
    Ok((best, fates))
}

/// The first objective of a price, in its steps.
fn first(tables: &Tables, limits: &Limits, price: &Price) -> i64 {
    match limits.objective {
        Objective::Speed => div_up(price.time, tables.time_step),
        Objective::Memory => div_up(price.memory, tables.memory_step),
    }
}
