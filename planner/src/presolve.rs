//! A space with everything that searches of it have in common: relaxations, results and counts.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::rc::Rc;

use plans::model::Level;

use crate::question::Question;
use crate::relax::{Relaxation, relax};
use crate::space::{Node, Space};

/// Rounds of the master problem.
const ROUNDS_MAX: usize = 32;

/// Relaxations that are kept, at most: of some 10 KiB each, or megabytes where prompts are limited.
const KEPT_MAX: [usize; 2] = [8192, 16];

/// The work of searches, in numbers that depend on nothing but the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Nodes whose relaxation was solved.
    pub relaxed: usize,
    /// Configurations that were priced layer by layer.
    pub priced: usize,
    /// Configurations that were given up: where no plan was found, one of their splits may keep the limits.
    pub undecided: usize,
}

impl std::ops::AddAssign for Effort {
    fn add_assign(&mut self, more: Self) {
        self.relaxed += more.relaxed;
        self.priced += more.priced;
        self.undecided += more.undecided;
    }
}

/// A space, with what is known of it.
#[derive(Debug)]
pub struct Presolve<'a> {
    space: Space<'a>,
    /// Rounds of the master problem, at most.
    pub rounds_max: usize,
    /// Solved relaxations, up to [`KEPT_MAX`].
    relaxations: RefCell<HashMap<Node, Rc<Relaxation>>>,
    work: Cell<Effort>,
}

impl<'a> Deref for Presolve<'a> {
    type Target = Space<'a>;

    fn deref(&self) -> &Self::Target {
        &self.space
    }
}

impl<'a> Presolve<'a> {
    /// For all levels, cores and mechanisms that the limits allow.
    pub fn new(question: &Question<'a>) -> Self {
        Self::of(Space::new(question))
    }

    /// For one level.
    pub fn of_level(question: &Question<'a>, level: &'a Level) -> Self {
        Self::of(Space::of(question, vec![level]))
    }

    fn of(space: Space<'a>) -> Self {
        Self { space, rounds_max: ROUNDS_MAX, relaxations: RefCell::default(), work: Cell::default() }
    }

    /// What has been done up to now.
    pub fn work(&self) -> Effort {
        self.work.get()
    }

    /// Counts what was done.
    pub fn count(&self, more: Effort) {
        let mut work = self.work.get();
        work += more;
        self.work.set(work);
    }

    /// The relaxation of a node.
    pub fn relaxation(&self, node: Node) -> Rc<Relaxation> {
        if let Some(known) = self.relaxations.borrow().get(&node) {
            return Rc::clone(known);
        }
        let relaxation = Rc::new(relax(&self.space, node));
        self.count(Effort { relaxed: 1, ..Effort::default() });
        let mut known = self.relaxations.borrow_mut();
        if known.len() < KEPT_MAX[usize::from(self.limits_prompts)] {
            known.insert(node, Rc::clone(&relaxation));
        }
        relaxation
    }
}
