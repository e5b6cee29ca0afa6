//! From [`Tables`] to a [`Problem`], and from a solver's values back to a choice.
//!
//! ```text
//! time    = serial of the mode + layers
//! memory  = pages of the mode  + neurons, and no less than limits on time need
//! layers >= every line of the mode's curve at neurons
//! ```

use crate::curve::Curve;
use crate::problem::{Objective, Pick, Problem, Var};
use crate::solve::Assignment;
use crate::tables::{Bound, Choice, Need, Tables};

/// Where the decisions stand in the problem, to read them back.
#[derive(Debug)]
pub struct Encoded {
    /// The problem.
    pub problem: Problem,
    neurons: Var,
}

/// The solver's view of the tables. Constraints of machine and model are always there; the user's
/// only where the user set a limit.
///
/// Bounds that hold for every mode are stated without one, too: they cut off fractional solutions early.
pub fn encode(tables: &Tables) -> Encoded {
    let mut p = Problem::default();
    let modes = &tables.modes;
    let choice = p.choice("mode", modes.len());
    let on = |option: usize| [Pick { choice, option }];
    let serial = taken(
        &mut p,
        "hw.memory_bandwidth",
        "serial",
        choice,
        &modes.iter().map(|m| (m.serial, m.least.0)).collect::<Vec<_>>(),
    );
    let fixed = taken(
        &mut p,
        "model.size",
        "pages",
        choice,
        &modes.iter().map(|m| (m.pages, m.least.1.max(m.pages_needed()))).collect::<Vec<_>>(),
    );
    let cores = taken(
        &mut p,
        "hw.capacity",
        "cores",
        choice,
        &modes.iter().map(|m| (m.cores, m.cores)).collect::<Vec<_>>(),
    );
    let prompt = taken(
        &mut p,
        "hw.compute",
        "prompt",
        choice,
        &modes.iter().map(|m| (m.prompt, m.prompt)).collect::<Vec<_>>(),
    );
    let bounds = || modes.iter().map(|mode| &mode.layers);
    let neurons = p.integer("neurons", 0, bounds().map(|bound| bound.most).max().unwrap_or(0));
    let layers = p.integer("layers", 0, bounds().map(|bound| bound.ticks(bound.least)).max().unwrap_or(0));
    for (option, bound) in bounds().enumerate() {
        p.at_least("model.size", &on(option), neurons, bound.least);
        p.at_most("model.size", &on(option), &[(1, neurons)], bound.most);
        p.at_least("hw.memory_bandwidth", &on(option), layers, bound.floor);
        for &points in &bound.lines {
            line(&mut p, &on(option), points, (neurons, layers));
        }
    }
    p.at_least("hw.memory_bandwidth", &[], layers, bounds().map(|bound| bound.floor).min().unwrap_or(0));
    let mut points: Vec<(i64, i64)> = bounds().flat_map(Bound::corners).collect();
    points.sort_unstable();
    for pair in Curve::over(&points).corners.windows(2) {
        line(&mut p, &[], [pair[0], pair[1]], (neurons, layers));
    }
    let time = vec![(1, serial), (1, layers)];
    let memory = vec![(1, fixed), (1, neurons)];
    let negative = |terms: &[(i64, Var)]| terms.iter().map(|&(k, v)| (-k, v)).collect::<Vec<_>>();
    for (option, mode) in modes.iter().enumerate() {
        p.at_most("hw.io", &on(option), &negative(&time), -mode.least.0);
        p.at_most("model.size", &on(option), &negative(&memory), -mode.least.1);
        for Need { limits, pages } in &mode.needs {
            match pages {
                Some(pages) => p.at_most_under(limits, &on(option), &negative(&memory), -pages),
                None => p.at_most_under(limits, &on(option), &[], -1),
            }
        }
    }
    p.at_most("hw.capacity", &[], &memory, tables.machine_pages);
    if let Some(pages) = tables.user_pages {
        p.at_most("user.mem", &[], &memory, pages);
    }
    if let Some(ticks) = tables.time_max {
        p.at_most("user.min_speed", &[], &time, ticks);
    }
    let objective =
        |name: &str, terms: Vec<(i64, Var)>, slack| Objective { name: name.to_owned(), terms, slack };
    let speed = objective("time", time, tables.time_slack);
    let prompts = objective("prompt", vec![(1, prompt)], 0);
    let size = objective("memory", memory, tables.memory_slack);
    p.objectives = vec![speed, prompts, size, objective("cores", vec![(1, cores)], 0)];
    tie_breaks(&mut p, choice, neurons);
    Encoded { problem: p, neurons }
}

/// A variable that is at least what the option taken says, with room for as much as a sum with it must come to at least:
/// for each option, both.
fn taken(p: &mut Problem, group: &'static str, name: &str, choice: usize, constants: &[(i64, i64)]) -> Var {
    let most = constants.iter().map(|&(constant, sum)| constant.max(sum)).max().unwrap_or(0);
    let variable = p.integer(name, 0, most);
    for (option, &(constant, _)) in constants.iter().enumerate() {
        p.at_least(group, &[Pick { choice, option }], variable, constant);
    }
    p.at_least(group, &[], variable, constants.iter().map(|&(constant, _)| constant).min().unwrap_or(0));
    variable
}

/// `layers` on or above a falling line: `rise * (neurons - x0) <= run * (layers - y0)`.
fn line(p: &mut Problem, on: &[Pick], [(x0, y0), (x1, y1)]: [(i64, i64); 2], (neurons, layers): (Var, Var)) {
    let (rise, run) = (y1 - y0, x1 - x0);
    p.at_most("hw.io", on, &[(rise, neurons), (-run, layers)], rise * x0 - run * y0);
}

/// The last objectives: every decision by itself, so that the plan is unique.
fn tie_breaks(p: &mut Problem, choice: usize, neurons: Var) {
    if let Some(most) = p.choices[choice].options.checked_sub(1).filter(|&most| most > 0) {
        let index = p.integer("mode_index", 0, most as i64);
        for option in 0..=most {
            p.at_least("model.size", &[Pick { choice, option }], index, option as i64);
        }
        p.objectives.push(Objective { name: "mode_index".to_owned(), terms: vec![(1, index)], slack: 0 });
    }
    p.objectives.push(Objective { name: "neurons".to_owned(), terms: vec![(1, neurons)], slack: 0 });
}

impl Encoded {
    /// The choice that an assignment stands for.
    pub fn choice(&self, values: &Assignment) -> Choice {
        Choice { mode: values.options[0], pages: values.integers[self.neurons.0] }
    }
}
