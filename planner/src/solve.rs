//! The only file that knows Z3.
//!
//! Objectives are decided one after another by bisection with a plain solver, each closed by a proof
//! that nothing smaller exists. Not `Optimize`: its lexicographic results are wrong at times. Only
//! integers and linear sums; no time-outs, so that the answer depends on nothing but the problem.

use z3::ast::{Bool, Int};
use z3::{Params, SatResult, Solver};

use crate::error::PlanError;
use crate::problem::{Objective, Problem, Var, groups};

/// Z3's own deterministic measure of work for one question: a bound on the time, not a time-out.
const WORK_MAX: u32 = 400_000_000;

/// Values of a solution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Of the integer variables.
    pub integers: Vec<i64>,
    /// The option taken of each choice.
    pub options: Vec<usize>,
    /// Value of each objective, in their order.
    pub objectives: Vec<i64>,
}

/// Outcome of a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The best solution.
    Best(Assignment),
    /// None: these groups of constraints contradict each other, and each of them is needed for that.
    Conflict(Vec<&'static str>),
}

/// Minimises the objectives in order.
///
/// # Errors
/// [`PlanError::Unknown`] when Z3 stops before a proof.
pub fn solve(problem: &Problem) -> Result<Outcome, PlanError> {
    let session = SolverRun::new(problem);
    if !session.holds(&[], "the limits")? {
        return session.conflict(Vec::new()).map(Outcome::Conflict);
    }
    let mut objectives = Vec::new();
    let mut values = session.values()?;
    for objective in &problem.objectives {
        let (least, found) = session.minimise(objective, values)?;
        objectives.push(least);
        values = found;
    }
    let options = session.options()?;
    Ok(Outcome::Best(Assignment { integers: values, options, objectives }))
}

/// A minimal unsatisfiable core that has none of some groups; `None` where the others are satisfiable.
///
/// # Errors
/// [`PlanError::Unknown`].
pub fn core(problem: &Problem, without: &[&str]) -> Result<Option<Vec<&'static str>>, PlanError> {
    let session = SolverRun::new(problem);
    let without: Vec<usize> =
        (0..).zip(groups()).filter(|(_, group)| without.contains(group)).map(|(at, _)| at).collect();
    if session.holds(&without, "the limits")? { Ok(None) } else { session.conflict(without).map(Some) }
}

/// A problem inside Z3.
struct SolverRun<'a> {
    problem: &'a Problem,
    solver: Solver,
    groups: Vec<Bool>,
    integers: Vec<Int>,
    choices: Vec<Vec<Bool>>,
}

impl<'a> SolverRun<'a> {
    fn new(problem: &'a Problem) -> Self {
        let solver = Solver::new();
        let mut params = Params::new();
        params.set_u32("rlimit", WORK_MAX);
        params.set_u32("random_seed", 0);
        // an interrupt ends the program; nothing is half written, since files are renamed into place
        params.set_bool("ctrl_c", false);
        solver.set_params(&params);
        let assumptions: Vec<Bool> = groups().map(Bool::new_const).collect();
        let integers: Vec<Int> = problem.integers.iter().map(|v| Int::new_const(v.name.as_str())).collect();
        for (variable, ast) in problem.integers.iter().zip(&integers) {
            solver.assert(ast.ge(Int::from_i64(variable.low)));
            solver.assert(ast.le(Int::from_i64(variable.high)));
        }
        let options = |name: &str, n: usize| (0..n).map(|i| Bool::new_const(format!("{name}={i}"))).collect();
        let choices: Vec<Vec<Bool>> = problem.choices.iter().map(|c| options(&c.name, c.options)).collect();
        for choice in &choices {
            let ones: Vec<(&Bool, i32)> = choice.iter().map(|option| (option, 1)).collect();
            solver.assert(Bool::pb_eq(&ones, 1));
        }
        let session = Self { problem, solver, groups: assumptions, integers, choices };
        for c in &problem.constraints {
            let holds = if c.terms.is_empty() {
                Bool::from_bool(0 <= c.at_most)
            } else {
                session.sum(&c.terms).le(Int::from_i64(c.at_most))
            };
            let assumed = groups().zip(&session.groups).filter(|(group, _)| c.groups.contains(group));
            let mut when: Vec<Bool> = assumed.map(|(_, assumption)| assumption.clone()).collect();
            when.extend(c.when.iter().map(|pick| session.choices[pick.choice][pick.option].clone()));
            session.solver.assert(Bool::and(&when).implies(&holds));
        }
        session
    }

    fn sum(&self, terms: &[(i64, Var)]) -> Int {
        let parts: Vec<Int> = terms.iter().map(|&(k, v)| Int::from_i64(k) * &self.integers[v.0]).collect();
        Int::add(&parts)
    }

    /// Whether the constraints hold together with these besides; all groups but `without`.
    fn holds(&self, without: &[usize], deciding: &str) -> Result<bool, PlanError> {
        let on = |(i, group): (usize, &Bool)| (!without.contains(&i)).then(|| group.clone());
        let assumed: Vec<Bool> = self.groups.iter().enumerate().filter_map(on).collect();
        match self.solver.check_assumptions(&assumed) {
            SatResult::Sat => Ok(true),
            SatResult::Unsat => Ok(false),
            SatResult::Unknown => Err(PlanError::Unknown {
                objective: deciding.to_owned(),
                reason: self.solver.get_reason_unknown().unwrap_or_else(|| "no reason given".to_owned()),
            }),
        }
    }

    /// A minimal set of groups that contradict each other, of all but those left out: groups are deleted in a fixed order.
    fn conflict(&self, mut without: Vec<usize>) -> Result<Vec<&'static str>, PlanError> {
        for group in 0..self.groups.len() {
            if !without.contains(&group) {
                without.push(group);
                if self.holds(&without, "the conflict")? {
                    without.pop();
                }
            }
        }
        Ok(groups().enumerate().filter(|(group, _)| !without.contains(group)).map(|(_, name)| name).collect())
    }

    /// Adds `objective <= k` for good.
    fn bound(&self, objective: &Objective, k: i64) {
        self.solver.assert(self.sum(&objective.terms).le(Int::from_i64(k)));
    }

    /// The least value, and the values of the variables that reach it; it holds from now on, with the slack.
    fn minimise(&self, objective: &Objective, values: Vec<i64>) -> Result<(i64, Vec<i64>), PlanError> {
        let sum = |values: &[i64]| objective.terms.iter().map(|&(k, v)| k * values[v.0]).sum::<i64>();
        let low_term = |&(k, v): &(i64, Var)| k * self.problem.integers[v.0].low;
        let mut low = objective.terms.iter().map(low_term).sum::<i64>();
        let (mut best, mut high) = (values, 0);
        high += sum(&best);
        // The first guess is just below what is known: most ties are closed by one proof.
        let mut middle = high - 1;
        while low < high {
            self.solver.push();
            self.bound(objective, middle.max(low));
            let smaller = self.holds(&[], &objective.name);
            let found = if matches!(smaller, Ok(true)) { Some(self.values()) } else { None };
            self.solver.pop(1);
            if smaller? {
                best = found.unwrap_or(Ok(best))?;
                high = sum(&best);
            } else {
                low = middle.max(low) + 1;
            }
            middle = low + (high - low) / 2;
        }
        self.bound(objective, high + objective.slack);
        self.holds(&[], &objective.name)?;
        Ok((high, best))
    }

    fn values(&self) -> Result<Vec<i64>, PlanError> {
        let model = self.solver.get_model().ok_or_else(no_model)?;
        let value = |ast: &Int| model.eval(ast, true).and_then(|v| v.as_i64()).ok_or_else(no_model);
        self.integers.iter().map(value).collect()
    }

    fn options(&self) -> Result<Vec<usize>, PlanError> {
        let model = self.solver.get_model().ok_or_else(no_model)?;
        let taken = |option: &Bool| model.eval(option, true).and_then(|v| v.as_bool()).unwrap_or(false);
        self.choices.iter().map(|c| c.iter().position(taken).ok_or_else(no_model)).collect()
    }
}

fn no_model() -> PlanError {
    PlanError::Unknown { objective: "the values".to_owned(), reason: "no values were given".to_owned() }
}
