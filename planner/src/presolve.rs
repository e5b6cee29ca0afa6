//! A space with everything that searches of it have in common: relaxations, results and counts.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::rc::Rc;

use plans::model::Level;

use crate::candidate::Fastest;
use crate::question::Question;
use crate::relax::{Relaxation, relax};
use crate::space::{Node, Space};

/// Rounds of the master problem.
const ROUNDS_MAX: usize = 32;

/// Relaxations that are kept, at most: of some 10 KiB each.
const KEPT_MAX: usize = 8192;

/// A search's bytes of regions and the most ticks of a token: all that a space leaves open.
type SearchKey = (i64, Option<i64>);

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
    fastest: RefCell<Vec<(SearchKey, Option<Fastest>)>>,
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
        Self {
            space,
            rounds_max: ROUNDS_MAX,
            relaxations: RefCell::default(),
            fastest: RefCell::default(),
            work: Cell::default(),
        }
    }

    /// What `search` finds, or has found.
    pub fn found(&self, key: SearchKey, search: impl FnOnce() -> Option<Fastest>) -> Option<Fastest> {
        if let Some((_, known)) = self.fastest.borrow().iter().find(|(known, _)| *known == key) {
            return known.clone();
        }
        let found = search();
        self.fastest.borrow_mut().push((key, found.clone()));
        found
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
        if known.len() < KEPT_MAX {
            known.insert(node, Rc::clone(&relaxation));
        }
        relaxation
    }
}
