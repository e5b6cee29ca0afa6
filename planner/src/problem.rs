//! The problem as data: whole-number variables, choices, named linear constraints, objectives in order.
//!
//! No solver here: [`crate::solve`] hands it to Z3, [`Problem`]'s `Display` prints it as SMT-LIB 2, and
//! tests evaluate it. All constants are integers; products of variables do not occur.

use std::fmt;

use crate::question::MIN_PREFILL;

/// An integer variable, by place in [`Problem::integers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Var(pub usize);

/// One option of one choice, by places in [`Problem::choices`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// The choice.
    pub choice: usize,
    /// The option.
    pub option: usize,
}

/// An integer variable and its bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Integer {
    /// Name of the variable, as SMT-LIB text has it.
    pub name: String,
    /// Least value.
    pub low: i64,
    /// Greatest value.
    pub high: i64,
}

/// Exactly one of so many options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExactlyOne {
    /// Name of the choice, as SMT-LIB text has it.
    pub name: String,
    /// Number of options.
    pub options: usize,
}

/// `when all picks: sum of coefficient * variable <= at_most`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// The named groups that it follows from: limits and facts that an explanation may blame.
    pub groups: Vec<&'static str>,
    /// Options on which it depends.
    pub when: Vec<Pick>,
    /// The sum.
    pub terms: Vec<(i64, Var)>,
    /// Greatest value of the sum.
    pub at_most: i64,
}

/// A sum to be made small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objective {
    /// Name of the objective, as errors and SMT-LIB text have it.
    pub name: String,
    /// The sum.
    pub terms: Vec<(i64, Var)>,
    /// How far above its least the sum may be when the next objective is decided.
    pub slack: i64,
}

/// The whole problem. Objectives are lexicographic: each is closed before the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problem {
    /// Integer variables.
    pub integers: Vec<Integer>,
    /// Choices.
    pub choices: Vec<ExactlyOne>,
    /// Constraints.
    pub constraints: Vec<Constraint>,
    /// Objectives, most important first.
    pub objectives: Vec<Objective>,
}

/// Facts of the machine and the model, in the order in which a core tries to do without them.
pub const FACTS: [&str; 4] = ["hw.io", "hw.memory_bandwidth", "hw.compute", "model.size"];

/// Limits, in the same order: the last are blamed first.
pub const LIMITS: [&str; 12] = [
    "user.context",
    "user.slots",
    "user.reserve",
    "user.without",
    "user.level",
    LOSS,
    "user.cores",
    "hw.capacity",
    "user.mem",
    "user.max_ttft",
    MIN_PREFILL,
    SPEED,
];

/// The limit that is left out last.
pub const SPEED: &str = "user.min_speed";
/// The limit to which each level has its own answer.
pub const LOSS: &str = "user.max_loss";

/// All groups of constraints, each of which is a tracked assumption.
pub fn groups() -> impl Iterator<Item = &'static str> {
    FACTS.into_iter().chain(LIMITS)
}

impl Problem {
    /// A new integer variable.
    pub fn integer(&mut self, name: impl Into<String>, low: i64, high: i64) -> Var {
        self.integers.push(Integer { name: name.into(), low, high });
        Var(self.integers.len() - 1)
    }

    /// A new choice.
    pub fn choice(&mut self, name: impl Into<String>, options: usize) -> usize {
        self.choices.push(ExactlyOne { name: name.into(), options });
        self.choices.len() - 1
    }

    /// A new constraint.
    pub fn at_most(&mut self, group: &'static str, when: &[Pick], terms: &[(i64, Var)], bound: i64) {
        self.at_most_under(&[group], when, terms, bound);
    }

    /// A new constraint that follows from several groups together.
    pub fn at_most_under(
        &mut self,
        groups: &[&'static str],
        when: &[Pick],
        terms: &[(i64, Var)],
        bound: i64,
    ) {
        let (groups, when, terms) = (groups.to_vec(), when.to_vec(), terms.to_vec());
        self.constraints.push(Constraint { groups, when, terms, at_most: bound });
    }

    /// `when: var >= constant`.
    pub fn at_least(&mut self, group: &'static str, when: &[Pick], var: Var, constant: i64) {
        self.at_most(group, when, &[(-1, var)], -constant);
    }
}

/// SMT-LIB 2 text of the problem that is solved: every variable, choice and constraint, each objective a constant of its
/// own, and a question for every solver that reads `QF_LIA`: are there values at all? With those objectives made small one
/// after another, each closed with its slack before the next, any solver comes to the same plan.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "(set-logic QF_LIA)")?;
        for group in groups() {
            writeln!(f, "(declare-const |{group}| Bool)\n(assert |{group}|)")?;
        }
        for integer in &self.integers {
            let Integer { name, low, high } = integer;
            writeln!(f, "(declare-const |{name}| Int)")?;
            writeln!(f, "(assert (and (<= {} |{name}|) (<= |{name}| {})))", literal(*low), literal(*high))?;
        }
        for choice in &self.choices {
            let names: Vec<String> = (0..choice.options).map(|i| format!("|{}={i}|", choice.name)).collect();
            for name in &names {
                writeln!(f, "(declare-const {name} Bool)")?;
            }
            let ones: Vec<String> = names.iter().map(|name| format!("(ite {name} 1 0)")).collect();
            writeln!(f, "(assert (= 1 {}))", sum_of(&ones))?;
        }
        for c in &self.constraints {
            let mut when: Vec<String> = c.groups.iter().map(|group| format!("|{group}|")).collect();
            when.extend(c.when.iter().map(|p| format!("|{}={}|", self.choices[p.choice].name, p.option)));
            let sum = self.sum(&c.terms);
            writeln!(f, "(assert (=> (and {}) (<= {sum} {})))", when.join(" "), literal(c.at_most))?;
        }
        for Objective { name, terms, slack } in &self.objectives {
            let sum = self.sum(terms);
            writeln!(f, "; to be made small, {slack} more being as good")?;
            writeln!(f, "(declare-const |least {name}| Int)\n(assert (= |least {name}| {sum}))")?;
        }
        writeln!(f, "(check-sat)")
    }
}

impl Problem {
    fn sum(&self, terms: &[(i64, Var)]) -> String {
        let term = |&(k, v): &(i64, Var)| format!("(* {} |{}|)", literal(k), self.integers[v.0].name);
        sum_of(&terms.iter().map(term).collect::<Vec<_>>())
    }
}

/// A sum of any number of terms, which SMT-LIB has only for two and more.
fn sum_of(terms: &[String]) -> String {
    match terms {
        [] => "0".to_owned(),
        [one] => one.clone(),
        many => format!("(+ {})", many.join(" ")),
    }
}

fn literal(value: i64) -> String {
    if value < 0 { format!("(- {})", value.unsigned_abs()) } else { value.to_string() }
}
