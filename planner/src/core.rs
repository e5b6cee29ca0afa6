//! The infeasible core of a question that has no plan, found by Z3.
//!
//! Every limit is a tracked assumption of a master problem, under the name that the user knows. Its modes are quality levels with a
//! relaxation of everything else: no plan at the level is faster with as much memory. Limits that decide what there is to choose
//! among (levels, cores, context and others) exclude the modes that exist only without them.
//!
//! Limits are left out one after another. Where Z3 still finds a contradiction, the limit is not part of the core. Where Z3 finds a
//! mode, the exact search decides: a plan shows that the limit is needed, and no plan is a cut. So the core is minimal.

use crate::blame::{Search, set, without};
use crate::curve::Curve;
use crate::encode::encode;
use crate::error::PlanError;
use crate::presolve::Presolve;
use crate::pricing::Pricing;
use crate::problem::{FACTS, LIMITS, Problem};
use crate::question::{DIGITS, Question, UNLIMITED_BYTES};
use crate::relax;
use crate::room::regions_within;
use crate::rules;
use crate::solve;
use crate::space::{Node, Space};
use crate::tables::{Bound, Mode, Need, PAGE, Tables};

/// Limits that decide what there is to choose among.
const OF_CHOICES: [&str; 7] = [
    "user.context",
    "user.slots",
    "user.reserve",
    "user.without",
    "user.level",
    "user.max_loss",
    "user.cores",
];

/// The master problem of a question that has no plan: it has no solution under the limits.
///
/// # Errors
/// [`PlanError::Unknown`].
pub fn problem(search: &Search<'_>) -> Result<Problem, PlanError> {
    let mut tables = under_the_limits(search);
    tables.modes = modes(search, search.question, &[]);
    let mut problem = encode(&tables).problem;
    // what the relaxations leave open the exact search has refused
    if search.undecided() == 0 && solve::core(&problem, &[])?.is_none() {
        cut(&mut tables, &limits_of(search));
        problem = encode(&tables).problem;
    }
    Ok(problem)
}

/// The limits that are there, by name.
fn limits_of(search: &Search<'_>) -> Vec<&'static str> {
    LIMITS.into_iter().filter(|name| set(&search.question.limits, name)).collect()
}

/// Under these limits no mode has a plan.
fn cut(tables: &mut Tables, limits: &[&'static str]) {
    let need = Need { limits: limits.to_vec(), pages: None };
    tables.modes.iter_mut().for_each(|mode| mode.needs.push(need.clone()));
}

/// The limits that contradict each other, and the facts that Z3 needs to see it.
///
/// # Errors
/// [`PlanError::Unknown`].
pub fn core<'a>(search: &Search<'a>) -> Result<Vec<&'static str>, PlanError> {
    let question = search.question;
    let mut tables = under_the_limits(search);
    tables.modes = modes(search, question, &[]);
    let (mut kept, mut left_out) = (question.clone(), Vec::new());
    let there = limits_of(search);
    let mut needed = Vec::new();
    for &name in &there {
        let less = without(&kept, name);
        left_out.push(name);
        if OF_CHOICES.contains(&name) {
            let excluded: Vec<&str> =
                left_out.iter().copied().filter(|name| OF_CHOICES.contains(name)).collect();
            tables.modes.extend(modes(search, &less, &excluded));
        }
        let satisfiable = solve::core(&encode(&tables).problem, &left_out)?.is_none();
        if satisfiable && search.exists(&less) {
            left_out.pop();
            needed.push(name);
            continue;
        }
        if satisfiable {
            let limits: Vec<&str> = there.iter().copied().filter(|name| !left_out.contains(name)).collect();
            cut(&mut tables, &limits);
        }
        kept = less;
    }
    let core = solve::core(&encode(&tables).problem, &left_out)?.unwrap_or_default();
    let facts = FACTS.into_iter().filter(|fact| core.contains(fact));
    Ok(facts.chain(needed).collect())
}

/// The master problem without modes.
fn under_the_limits(search: &Search<'_>) -> Tables {
    let limits = &search.question.limits;
    let pages = |bytes: u64| regions_within(bytes).div_euclid(PAGE) + 1;
    Tables {
        modes: Vec::new(),
        user_pages: limits.user_memory_bytes.map(pages),
        machine_pages: pages(limits.machine_bytes),
        time_max: limits.speed_min.map(|speed| (DIGITS / speed / search.space.tick_seconds) as i64),
        time_slack: 0,
        memory_slack: 0,
    }
}

/// The modes of a question, which the limits in `excluded` exclude.
fn modes<'a>(search: &Search<'a>, question: &Question<'a>, excluded: &[&'static str]) -> Vec<Mode> {
    let mut found = Vec::new();
    if question.limits.on_time() {
        let mut of_space = |space: &Presolve<'a>| {
            let ratio = space.tick_seconds / search.space.tick_seconds;
            found.extend((0..space.options.len()).map(|level| mode(question, space, level, ratio)));
        };
        if std::ptr::eq(question, search.question) {
            of_space(search.space);
        } else {
            let levels = rules::levels(question.model, &question.limits).into_iter();
            levels.for_each(|level| of_space(&search.of_level(question, level)));
        }
    } else if let Some(regions) = Space::least_regions(question) {
        let layers = Bound { least: 0, most: 0, floor: 0, lines: Vec::new() };
        let least = (0, regions.div_euclid(PAGE));
        found.push(Mode { serial: 0, pages: 0, cores: 0, prompt: 0, least, needs: Vec::new(), layers });
    }
    for mode in &mut found {
        mode.needs.extend(excluded.iter().map(|&name| Need { limits: vec![name], pages: None }));
    }
    found
}

/// A level with a policy: the relaxation of all its cores and reads at once. A tick of the space is `ratio` ticks of the result.
fn mode(question: &Question<'_>, space: &Presolve<'_>, level: usize, ratio: f64) -> Mode {
    let roots: Vec<Node> = space.roots().into_iter().filter(|root| root.level == level).collect();
    let rooms = || roots.iter().map(|&root| relax::room(space, question.device, root, 0));
    let fixed = rooms().map(|room| room.tables - room.bytes).min().unwrap_or(0);
    let rows = rooms().map(|room| room.rows).min().unwrap_or(0);
    let mut corners = Vec::new();
    for &root in &roots {
        let relaxation = space.relaxation(root);
        let ticks =
            |&(bytes, ticks): &(i64, i64)| (bytes, ((ticks + relaxation.serial) as f64 * ratio) as i64 - 1);
        corners.extend(relaxation.curve.corners.iter().map(ticks));
    }
    corners.sort_unstable();
    let pricing = Pricing::new(question, space);
    let roomiest: Vec<_> = pricing.limited.roomiest(regions_within(UNLIMITED_BYTES));
    let need = |(at, name): (usize, &'static str)| {
        let of_level = roomiest.iter().filter(|(_, config)| config.level == level);
        let bytes = of_level.filter_map(|&(_, config)| {
            let room = space.room(question.device, config, 0);
            Some(room.tables - room.bytes + room.rows + pricing.limited.pinned_least(config)[at]?)
        });
        Need { limits: vec![name], pages: bytes.min().map(|bytes| bytes.div_euclid(PAGE)) }
    };
    Mode {
        serial: 0,
        pages: fixed.div_euclid(PAGE),
        cores: 0,
        prompt: 0,
        least: (0, (fixed + rows).div_euclid(PAGE)),
        needs: question.limits.prompts_max.iter().map(|limit| limit.name).enumerate().map(need).collect(),
        layers: Bound::of(&Curve::over(&corners).in_units(PAGE)),
    }
}
