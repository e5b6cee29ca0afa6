//! From [`Tables`] to a [`Problem`], and from a solver's values back to a choice.
//!
//! ```text
//! time   = serial + sum over groups of layers * layer_g + fill
//! layer >= busy + interference * io,  layer >= io + drain,  layer >= busy + issue / cores
//! io    >= seconds of a read * missing_g,   missing_g >= every line of the chosen stretch
//! memory = base + kv + threads + buffers + sum over groups of layers * (neuron * cached_g + slot * cold_g)
//! ```

use plans::plan::Objective as Goal;

use crate::problem::{Objective, Pick, Problem, Var};
use crate::solve::Assignment;
use crate::tables::{Choice, Tables, div_up};

/// Where the decisions stand in the problem, to read them back.
#[derive(Debug)]
pub struct Encoded {
    /// The problem.
    pub problem: Problem,
    quanta: Vec<Var>,
}

/// More than any time or size here, in any unit.
const HUGE: i64 = 1 << 60;

/// The solver's view of the tables. Constraints of `machine` and model are always there; the user's
/// only where the user set a limit.
pub fn encode(tables: &Tables, goal: Goal) -> Encoded {
    let mut p = Problem::default();
    let compute = p.choice("compute", tables.compute.len());
    let read = p.choice("read", tables.reads.len());
    let serial = p.integer("serial_ns", 0, HUGE);
    let fill = p.integer("fill_ns", 0, HUGE);
    let threads = p.integer("threads_bytes", 0, HUGE);
    let buffers = p.integer("buffers_bytes", 0, HUGE);
    let fixed = p.integer("fixed_bytes", 0, HUGE);
    let cores = p.integer("cores", 0, 1 << 16);
    p.at_least("model.size", &[], fixed, tables.base_bytes + tables.kv_bytes);
    for (i, mode) in tables.compute.iter().enumerate() {
        let on = [Pick { choice: compute, option: i }];
        p.at_least("hw.memory_bandwidth", &on, serial, mode.serial_ns);
        p.at_least("model.size", &on, threads, mode.memory_bytes);
        p.at_least("hw.capacity", &on, cores, mode.core_count);
        if !mode.allowed {
            p.at_most("user.cores", &on, &[], -1);
        }
    }
    let mut time = vec![(1, serial), (1, fill)];
    let mut memory = vec![(1, fixed), (1, threads), (1, buffers)];
    let mut filled = Vec::new();
    let mut quanta = Vec::new();
    for (g, group) in tables.groups.iter().enumerate() {
        let layers = group.layers.len() as i64;
        let high = group.stretches.iter().map(|s| s.high()).max().unwrap_or(0);
        let most = group.stretches.iter().flat_map(|s| &s.corners).map(|c| c.1).max().unwrap_or(0);
        let stretch = p.choice(format!("stretch_{g}"), group.stretches.len());
        let cached = p.integer(format!("cached_{g}"), 0, high / tables.quantum);
        let missing = p.integer(format!("missing_{g}"), 0, most);
        let cold = p.integer(format!("cold_{g}"), 0, high);
        let [io, issue, layer] =
            ["io_ns", "issue_ns", "layer_ns"].map(|name| p.integer(format!("{name}_{g}"), 0, HUGE));
        for (i, s) in group.stretches.iter().enumerate() {
            let on = [Pick { choice: stretch, option: i }];
            p.at_least("model.curve", &on, cached, div_up(s.low(), tables.quantum));
            p.at_most("model.curve", &on, &[(1, cached)], s.high() / tables.quantum);
            p.at_most(
                "model.curve",
                &on,
                &[((1000 - s.share_permille) * tables.quantum, cached), (-1000, cold)],
                0,
            );
            for corner in s.corners.windows(2) {
                let ((x0, y0), (x1, y1)) = (corner[0], corner[1]);
                // (y1 - y0) * (cached - x0) + (x1 - x0) * y0 <= (x1 - x0) * missing
                let (rise, run) = (y1 - y0, x1 - x0);
                p.at_most(
                    "model.curve",
                    &on,
                    &[(rise * tables.quantum, cached), (-run, missing)],
                    rise * x0 - run * y0,
                );
            }
        }
        for (i, mode) in tables.compute.iter().enumerate() {
            let on = [Pick { choice: compute, option: i }];
            let (busy, drain) = mode.layer_ns[g];
            let slowed = [(tables.interference_permille, io), (-1000, layer)];
            p.at_most("hw.memory_bandwidth", &on, &slowed, -1000 * busy);
            p.at_most("hw.memory_bandwidth", &on, &[(1, io), (-1, layer)], -drain);
            let (n, own) = if mode.shared { (mode.cores.len() as i64, busy) } else { (1, drain) };
            p.at_most("hw.memory_bandwidth", &on, &[(1, issue), (-n, layer)], -n * own);
        }
        for (i, mode) in tables.reads.iter().enumerate() {
            let on = [Pick { choice: read, option: i }];
            p.at_most("hw.io", &on, &[(mode.missing_ps, missing), (-1_000_000, io)], 0);
            p.at_most("hw.io", &on, &[(mode.issue_ps, missing), (-1_000_000, issue)], 0);
        }
        time.push((layers, layer));
        memory.push((layers * tables.neuron_bytes * tables.quantum, cached));
        memory.push((layers * tables.slot_bytes, cold));
        filled.push((layers, cold));
        quanta.push(cached);
    }
    for (i, mode) in tables.reads.iter().enumerate() {
        let on = [Pick { choice: read, option: i }];
        p.at_least("model.size", &on, buffers, mode.memory_bytes);
        let mut terms: Vec<(i64, Var)> = filled.iter().map(|&(n, v)| (n * mode.missing_ps, v)).collect();
        terms.push((-1000 * tables.generated, fill));
        p.at_most("hw.io", &on, &terms, 0);
    }
    p.at_most("hw.capacity", &[], &memory, tables.machine_bytes);
    if let Some(bytes) = tables.user_bytes {
        p.at_most("user.mem", &[], &memory, bytes);
    }
    if let Some(ns) = tables.time_max_ns {
        p.at_most("user.min_speed", &[], &time, ns);
    }
    let speed = Objective { name: "time".to_owned(), terms: time, step: tables.time_step_ns };
    let size = Objective { name: "memory".to_owned(), terms: memory, step: tables.memory_step_bytes };
    p.objectives = if goal == Goal::Speed { vec![speed, size] } else { vec![size, speed] };
    p.objectives.push(Objective { name: "cores".to_owned(), terms: vec![(1, cores)], step: 1 });
    tie_breaks(&mut p, &quanta);
    Encoded { problem: p, quanta }
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
        let cached = |g: usize| values.integers[self.quanta[g].0] * tables.quantum;
        Choice {
            compute: values.options[0],
            read: values.options[1],
            groups: (0..tables.groups.len()).map(|g| (values.options[2 + g], cached(g))).collect(),
        }
    }
}
