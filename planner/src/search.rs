//! The search for the best plan: enumerate the ways, dismiss what is beaten, let Z3 choose among the rest.

use plans::plan::{Objective, Plan, Request, SimpleRule};

use crate::assemble::{self, Decided};
use crate::bound::{Field, Way};
use crate::cost::{self, DecodePrice};
use crate::encode::encode;
use crate::error::PlanError;
use crate::problem::Problem;
use crate::request::{Inputs, Limits};
use crate::rules::{self, PAGE, Room, Rules};
use crate::simple_rule::simple_rule;
use crate::solve::{self, Outcome};
use crate::tables::{Choice, Price, Tables};
use crate::verify::verify;
use crate::ways::Ways;

/// Attempts at a speed floor: what the split costs is requested of the solver in advance.
const ATTEMPTS_MAX: usize = 8;

/// Thousandths of memory that are tried on top of what the solver found, one after another, to keep a speed floor.
const MARGINS: i64 = 8;

/// A finished plan and how it came about.
#[derive(Debug, Clone)]
pub struct Solved {
    /// The plan.
    pub plan: Plan,
    /// Its decisions.
    pub decided: Decided,
    /// What the solver chose among.
    pub tables: Tables,
    /// Its choice.
    pub choice: Choice,
    /// The price of a token, term by term.
    pub price: DecodePrice,
    /// No plan of these choices takes less than so many seconds for a token: the solver's proof.
    pub seconds_proven: f64,
    /// How many ways there were before those that a known plan beats were dismissed.
    pub ways: usize,
    /// Levels with policies, and what became of each.
    pub levels: Fates,
}

/// Levels by name, and what became of each.
pub type Fates = Vec<(String, &'static str)>;

/// The best plan within the limits, or `None` where no plan satisfies them.
///
/// # Errors
/// [`PlanError::Unknown`] and [`PlanError::Unverified`].
pub fn best_plan(inputs: &Inputs, limits: &Limits, request: &Request) -> Result<Option<Solved>, PlanError> {
    for &room in rooms(limits.objective) {
        if let Some(solved) = best_in_room(inputs, limits, request, room)? {
            return Ok(Some(solved));
        }
    }
    Ok(None)
}

/// What prefill's conveniences may take: the first for which there is a plan.
fn rooms(goal: Objective) -> &'static [Room] {
    match goal {
        Objective::Speed => &[Room::OverSlots, Room::Generous, Room::Frugal],
        Objective::Memory => &[Room::Frugal],
    }
}

/// The same with prefill's conveniences decided.
///
/// # Errors
/// As [`best_plan`].
pub fn best_in_room(
    inputs: &Inputs,
    limits: &Limits,
    request: &Request,
    room: Room,
) -> Result<Option<Solved>, PlanError> {
    let (rules, all) = ways(inputs, limits, room, false);
    let mut aimed = limits.clone();
    if limits.objective == Objective::Speed {
        // the fastest plan is the fastest with and without a floor: it is requested plainly and judged by its true price
        aimed.speed_min = None;
    }
    for _ in 0..ATTEMPTS_MAX {
        let field = Field::new(&all, &aimed);
        let Some((survivors, known)) = field.survivors() else { return Ok(None) };
        let tables = field.tables(&survivors, &aimed, &known);
        let encoded = encode(&tables, limits.objective);
        let to_beat = tables.first(limits.objective, &known);
        let Outcome::Best(values) = solve::solve(&encoded.problem, Some(to_beat))? else {
            return Err(PlanError::Unverified("the solver does not find the plan that is known".to_owned()));
        };
        let choice = encoded.choice(&values);
        let (way, _) = survivors[choice.mode];
        let level = field.level(way);
        let promised = tables.price(&choice).time;
        // whole neurons may need a little more than the solver's curves say
        let splits = (0..if aimed.speed_min.is_some() { MARGINS } else { 1 }).filter_map(|margin| {
            let bytes = choice.pages * PAGE / 1000 * (1000 + margin) + PAGE;
            let decided = assemble::decide(&field, way, bytes, promised, &rules)?;
            let price = cost::decode(inputs, limits, &decided.decision(level));
            let speed = 1.0 / price.mean_seconds(limits.context);
            Some((decided, price, speed))
        });
        let floor = limits.speed_min.unwrap_or(0.0);
        let mut best = None;
        for split in splits {
            let enough = split.2 >= floor;
            best = Some(split);
            if enough {
                break;
            }
        }
        let Some((decided, price, speed)) = best else { return Ok(None) };
        if speed < floor {
            let Some(aim) = aimed.speed_min else { return Ok(None) };
            aimed.speed_min = Some(aim * floor / speed * 1.0001);
            continue;
        }
        let levels = rules::levels(inputs, limits);
        let nothing = SimpleRule { decode_tokens_per_second: 0.0, memory_peak_bytes: 0 };
        let simple = simple_rule(inputs, limits, &levels, &rules).unwrap_or(nothing);
        let plan = assemble::plan(inputs, limits, request, level, &decided, simple);
        if rules.prompt_over_slots && plan.memory.prefill_total_bytes > limits.memory_bytes {
            return Ok(None);
        }
        verify(inputs, limits, &plan, &decided, promised as f64 * field.tick_seconds)?;
        return Ok(Some(Solved {
            plan,
            decided,
            seconds_proven: proven(&tables, &values.objectives, limits.objective) * field.tick_seconds,
            ways: field.count(),
            levels: fates(&field, &all, &survivors, way),
            tables,
            choice,
            price,
        }));
    }
    Ok(None)
}

/// The rules, and the ways of every level that the limits allow with every policy that it was measured with.
fn ways<'a>(inputs: &'a Inputs, limits: &Limits, room: Room, any_core: bool) -> (Rules, Vec<Ways<'a>>) {
    let rules = rules::rules(inputs, limits, room);
    let all = rules::levels(inputs, limits)
        .into_iter()
        .flat_map(|level| rules::policies(limits, level).into_iter().map(move |policy| (level, policy)))
        .map(|(level, policy)| Ways::new(inputs, limits, level, policy, &rules, any_core))
        .collect();
    (rules, all)
}

/// Ticks below which no time was possible: a step below what was found.
fn proven(tables: &Tables, objectives: &[i64], goal: Objective) -> f64 {
    let steps = if goal == Objective::Speed { objectives[0] } else { objectives[1] };
    ((steps - 1) * tables.time_step) as f64
}

fn fates(field: &Field<'_>, all: &[Ways<'_>], survivors: &[(Way, i64)], taken: Way) -> Fates {
    let fate = |(level, ways): (usize, &Ways<'_>)| {
        let fate = if taken.level == level {
            "taken"
        } else if survivors.iter().any(|(way, _)| way.level == level) {
            "proven worse by Z3"
        } else if field.fits(level) {
            "dismissed: a known plan is better than its bound"
        } else {
            "does not fit"
        };
        (format!("{} with {}", ways.level.name, ways.policy), fate)
    };
    all.iter().enumerate().map(fate).collect()
}

/// The problem that the solver is given first, or would be given to say which limits contradict each other.
pub fn problem(inputs: &Inputs, limits: &Limits) -> Problem {
    let (_, all) = ways(inputs, limits, rooms(limits.objective)[0], false);
    let field = Field::new(&all, limits);
    match field.survivors() {
        Some((survivors, known)) => {
            encode(&field.tables(&survivors, limits, &known), limits.objective).problem
        }
        None => contradiction(inputs, limits),
    }
}

/// Every way that there is, on any core: what an explanation is sought in.
pub fn contradiction(inputs: &Inputs, limits: &Limits) -> Problem {
    let (_, all) = ways(inputs, limits, Room::Frugal, limits.cores_chosen);
    let field = Field::new(&all, limits);
    let every: Vec<(Way, i64)> = field.all().map(|way| (way, 0)).collect();
    let unit = Price { time: 1, memory: 1, cores: 1 };
    encode(&field.tables(&every, limits, &unit), limits.objective).problem
}
