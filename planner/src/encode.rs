//! From [`Tables`] to a [`Problem`], and from a solver's values back to a choice.
//!
//! ```text
//! time   = serial + sum over groups of layers * layer_g + fill
//! layer >= busy + interference * io,  layer >= io + drain,  layer >= busy + issue / cores
//! io    >= seconds of a read * missing_g,   missing_g >= every line of the chosen stretch
//! memory = fixed + threads + buffers + sum over groups of layers * (neuron * cached_g + slot * cold_g)
//! ```

use plans::plan::Objective as Goal;

use crate::problem::{Objective, Pick, Problem, Var};
use crate::solve::Assignment;
use crate::surface;
use crate::tables::{Choice, Group, RATE, Tables};

/// Where the decisions stand in the problem, to read them back.
#[derive(Debug)]
pub struct Encoded {
    /// The problem.
    pub problem: Problem,
    quanta: Vec<Var>,
}

/// The solver's view of the tables. Constraints of `machine` and model are always there; the user's
/// only where the user set a limit.
///
/// Bounds that follow from the rest are stated too (`min`): they cut off fractional solutions early.
pub fn encode(tables: &Tables, goal: Goal) -> Encoded {
    let mut p = Problem::default();
    let compute = p.choice("compute", tables.compute.len());
    let read = p.choice("read", tables.reads.len());
    let of_compute = |term: &dyn Fn(usize) -> i64| (0..tables.compute.len()).map(term).collect::<Vec<_>>();
    let of_reads = |term: &dyn Fn(usize) -> i64| (0..tables.reads.len()).map(term).collect::<Vec<_>>();
    let serial =
        taken(&mut p, "hw.memory_bandwidth", "serial", compute, &of_compute(&|i| tables.compute[i].serial));
    let threads = taken(&mut p, "model.size", "threads", compute, &of_compute(&|i| tables.compute[i].memory));
    let cores =
        taken(&mut p, "hw.capacity", "cores", compute, &of_compute(&|i| tables.compute[i].core_count));
    let buffers = taken(&mut p, "model.size", "buffers", read, &of_reads(&|i| tables.reads[i].memory));
    let fixed = p.integer("fixed", 0, tables.base + tables.kv);
    p.at_least("model.size", &[], fixed, tables.base + tables.kv);
    for (option, mode) in tables.compute.iter().enumerate() {
        if !mode.allowed {
            p.at_most("user.cores", &[Pick { choice: compute, option }], &[], -1);
        }
    }
    let mut time = vec![(1, serial)];
    let mut memory = vec![(1, fixed), (1, threads), (1, buffers)];
    let (mut slots, mut slot_rates) = (Vec::new(), Vec::new());
    let mut quanta = Vec::new();
    let mut slots_most = 0;
    for (g, group) in tables.groups.iter().enumerate() {
        let layers = group.layers.len() as i64;
        let high = group.stretches.iter().map(|s| s.high()).max().unwrap_or(0);
        let most = group.stretches.iter().flat_map(|s| &s.corners).map(|c| c.1).max().unwrap_or(0);
        let stretch = p.choice(format!("stretch_{g}"), group.stretches.len());
        let cached = p.integer(format!("cached_{g}"), 0, high);
        let missing = p.integer(format!("missing_{g}"), 0, most);
        let cold = p.integer(format!("cold_{g}"), 0, high);
        curves(&mut p, group, stretch, (cached, missing, cold));
        let rate_most =
            |rates: &dyn Fn(usize) -> i64| of_reads(rates).into_iter().max().unwrap_or(0) * most / RATE + 1;
        let io_most = rate_most(&|i| tables.reads[i].missing[g]);
        let issue_most = rate_most(&|i| tables.reads[i].issue[g]);
        let busy_most = of_compute(&|i| tables.compute[i].layers[g].0).into_iter().max().unwrap_or(0);
        let io = p.integer(format!("io_{g}"), 0, io_most);
        let issue = p.integer(format!("issue_{g}"), 0, issue_most);
        let layer = p.integer(format!("layer_{g}"), 0, 2 * (io_most + issue_most + busy_most));
        let (mut busy_least, mut drain_least) = (i64::MAX, i64::MAX);
        for (i, mode) in tables.compute.iter().enumerate() {
            let on = [Pick { choice: compute, option: i }];
            let (busy, drain) = mode.layers[g];
            (busy_least, drain_least) = (busy_least.min(busy), drain_least.min(drain));
            p.at_most("hw.memory_bandwidth", &on, &[(tables.interference, io), (-RATE, layer)], -RATE * busy);
            p.at_most("hw.memory_bandwidth", &on, &[(1, io), (-1, layer)], -drain);
            let (n, own) = if mode.shared { (mode.cores.len() as i64, busy) } else { (1, drain) };
            p.at_most("hw.memory_bandwidth", &on, &[(1, issue), (-n, layer)], -n * own);
        }
        p.at_most(
            "hw.memory_bandwidth",
            &[],
            &[(tables.interference, io), (-RATE, layer)],
            -RATE * busy_least,
        );
        p.at_most("hw.memory_bandwidth", &[], &[(1, io), (-1, layer)], -drain_least);
        for (i, mode) in tables.reads.iter().enumerate() {
            let on = [Pick { choice: read, option: i }];
            p.at_most("hw.io", &on, &[(mode.missing[g], missing), (-RATE, io)], 0);
            p.at_most("hw.io", &on, &[(mode.issue[g], missing), (-RATE, issue)], 0);
        }
        let rate_least = of_reads(&|i| tables.reads[i].missing[g]).into_iter().min().unwrap_or(0);
        p.at_most("hw.io", &[], &[(rate_least, missing), (-RATE, io)], 0);
        time.push((layers, layer));
        memory.push((tables.cached_pages[g], cached));
        slots.push((layers, cold));
        slot_rates.push((tables.slot_pages[g], cold));
        slots_most += layers * high;
        quanta.push(cached);
    }
    let fill_most = of_reads(&|i| tables.reads[i].fill).into_iter().max().unwrap_or(0);
    let fill = p.integer("fill", 0, fill_most * slots_most / RATE + 1);
    for (i, mode) in tables.reads.iter().enumerate() {
        let mut terms: Vec<(i64, Var)> = slots.iter().map(|&(n, v)| (n * mode.fill, v)).collect();
        terms.push((-RATE, fill));
        p.at_most("hw.io", &[Pick { choice: read, option: i }], &terms, 0);
    }
    time.push((1, fill));
    let slot_most = slot_rates.iter().map(|&(k, v)| k * p.integers[v.0].high).sum::<i64>();
    let slot_tables = p.integer("slot_tables", 0, slot_most / RATE + 1);
    slot_rates.push((-RATE, slot_tables));
    p.at_most("model.size", &[], &slot_rates, 0);
    memory.push((1, slot_tables));
    p.at_most("hw.capacity", &[], &memory, tables.machine_pages);
    if let Some(pages) = tables.user_pages {
        p.at_most("user.mem", &[], &memory, pages);
    }
    if let Some(ticks) = tables.time_max {
        p.at_most("user.min_speed", &[], &time, ticks);
    }
    let speed = Objective { name: "time".to_owned(), terms: time, step: tables.time_step };
    let size = Objective { name: "memory".to_owned(), terms: memory, step: tables.memory_step };
    p.objectives = if goal == Goal::Speed { vec![speed, size] } else { vec![size, speed] };
    p.objectives.push(Objective { name: "cores".to_owned(), terms: vec![(1, cores)], step: 1 });
    tie_breaks(&mut p, &quanta);
    Encoded { problem: p, quanta }
}

/// A variable that is at least what the option taken says.
fn taken(p: &mut Problem, group: &'static str, name: &str, choice: usize, constants: &[i64]) -> Var {
    let most = constants.iter().copied().max().unwrap_or(0);
    let variable = p.integer(name, 0, most);
    for (option, &constant) in constants.iter().enumerate() {
        p.at_least(group, &[Pick { choice, option }], variable, constant);
    }
    p.at_least(group, &[], variable, constants.iter().copied().min().unwrap_or(0));
    variable
}

/// The miss curves of a group, each stretch under its option, and their common lower hull always.
fn curves(p: &mut Problem, group: &Group, choice: usize, (cached, missing, cold): (Var, Var, Var)) {
    // (y1 - y0) * (cached - x0) + (x1 - x0) * y0 <= (x1 - x0) * missing
    let line = |p: &mut Problem, on: &[Pick], (x0, y0): (i64, i64), (x1, y1): (i64, i64)| {
        let (rise, run) = (y1 - y0, x1 - x0);
        p.at_most("model.curve", on, &[(rise, cached), (-run, missing)], rise * x0 - run * y0);
    };
    for (option, stretch) in group.stretches.iter().enumerate() {
        let on = [Pick { choice, option }];
        p.at_least("model.curve", &on, cached, stretch.low());
        p.at_most("model.curve", &on, &[(1, cached)], stretch.high());
        p.at_most("model.curve", &on, &[(1000 - stretch.share_permille, cached), (-1000, cold)], 0);
        for corner in stretch.corners.windows(2) {
            line(p, &on, corner[0], corner[1]);
        }
    }
    let mut corners: Vec<(i64, i64)> = group.stretches.iter().flat_map(|s| s.corners.clone()).collect();
    corners.sort_unstable();
    let points: Vec<(f64, f64)> = corners.iter().map(|&(x, y)| (x as f64, y as f64)).collect();
    let hull = surface::lower_hull(&points);
    for pair in hull.windows(2).filter(|pair| pair[0].0 < pair[1].0) {
        let corner = |p: (f64, f64)| (p.0 as i64, p.1 as i64);
        line(p, &[], corner(pair[0]), corner(pair[1]));
    }
}

/// The last objectives: every decision by itself, so that the plan is unique.
fn tie_breaks(p: &mut Problem, quanta: &[Var]) {
    for choice in 0..p.choices.len() {
        let Some(most) = p.choices[choice].options.checked_sub(1).filter(|&most| most > 0) else { continue };
        let name = format!("{}_index", p.choices[choice].name);
        let index = p.integer(&name, 0, most as i64);
        for option in 0..=most {
            p.at_least("model.curve", &[Pick { choice, option }], index, option as i64);
        }
        p.objectives.push(Objective { name, terms: vec![(1, index)], step: 1 });
    }
    for &cached in quanta {
        let name = p.integers[cached.0].name.clone();
        p.objectives.push(Objective { name, terms: vec![(1, cached)], step: 1 });
    }
}

impl Encoded {
    /// The choice that an assignment stands for.
    pub fn choice(&self, tables: &Tables, values: &Assignment) -> Choice {
        let cached = |g: usize| values.integers[self.quanta[g].0];
        Choice {
            compute: values.options[0],
            read: values.options[1],
            groups: (0..tables.groups.len()).map(|g| (values.options[2 + g], cached(g))).collect(),
        }
    }
}
