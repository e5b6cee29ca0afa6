//! Limits that can be left out of a question, and whether a plan exists without some of them.

use std::cell::RefCell;
use std::rc::Rc;

use plans::model::Level;
use plans::plan::Feature;

use crate::candidate::Candidate;
use crate::presolve::Presolve;
use crate::pricing::Pricing;
use crate::problem::{LOSS, SPEED};
use crate::question::{Limits, Question, UNLIMITED_BYTES};
use crate::room::regions_within;
use crate::rules;

/// The question without one of its limits.
pub fn without<'a>(question: &Question<'a>, name: &str) -> Question<'a> {
    let mut l = question.limits.clone();
    match name {
        "user.context" => l.context = 2,
        "user.slots" => l.sequences = 1,
        "user.reserve" => l.reserve_bytes = 0,
        "user.without" => l.without.clear(),
        "user.level" => l.level = None,
        LOSS => l.loss_max = f64::INFINITY,
        "user.cores" => (l.cores, l.cores_chosen) = (question.device.core_ids(), false),
        "hw.capacity" => l.machine_bytes = UNLIMITED_BYTES,
        "user.mem" => l.user_memory_bytes = None,
        SPEED => l.speed_min = None,
        prompt => l.prompts_max.retain(|limit| limit.name != prompt),
    }
    l.memory_bytes = l.machine_bytes.min(l.user_memory_bytes.unwrap_or(u64::MAX));
    if name == "user.context" {
        // a prompt that no longer fits is no limit
        l.prompts_max.retain(|limit| limit.tokens < l.context);
    }
    question.within(l)
}

/// Whether a limit is there to be left out.
pub fn set(limits: &Limits, name: &str) -> bool {
    match name {
        // with limits on time it is memory that is blamed
        "user.context" => limits.context > 2 && !limits.on_time(),
        "user.slots" => limits.sequences > 1 && !limits.on_time(),
        "user.reserve" => limits.reserve_bytes > 0,
        "user.without" => !limits.without.is_empty(),
        "user.level" => limits.level.is_some(),
        LOSS | "hw.capacity" => true,
        "user.cores" => limits.cores_chosen,
        "user.mem" => limits.user_memory_bytes.is_some_and(|user| user < limits.machine_bytes),
        SPEED => limits.speed_min.is_some(),
        prompt => limits.prompts_max.iter().any(|limit| limit.name == prompt),
    }
}

/// Whether any plan keeps the limits.
pub fn exists(question: &Question<'_>) -> bool {
    sought(question).0
}

/// Whether any plan keeps the limits; and where none was found how many configurations were given up.
pub fn sought(question: &Question<'_>) -> (bool, usize) {
    if !question.limits.on_time() {
        let within = regions_within(question.limits.memory_bytes);
        return (crate::space::Space::least_regions(question).is_some_and(|least| least <= within), 0);
    }
    let space = Presolve::new(question);
    let found = plan_in(question, &space).is_some();
    (found, if found { 0 } else { space.work().undecided })
}

/// Seconds of each limited prompt with any plan of a space that keeps the limits. The space was made for the same cores,
/// context and mechanisms.
fn plan_in(question: &Question<'_>, space: &Presolve<'_>) -> Option<Vec<f64>> {
    let pricing = Pricing::new(question, space);
    let found = pricing.any(regions_within(question.limits.memory_bytes))?;
    Some(
        question
            .limits
            .prompts_max
            .iter()
            .map(|limit| pricing.prompt_seconds(&found, limit.tokens))
            .collect(),
    )
}

/// The question that has no plan, in the space of levels, cores and context that it allows, and others that are needed on
/// the way.
#[derive(Debug)]
pub struct Search<'a> {
    /// The question.
    pub question: &'a Question<'a>,
    /// Space of the question: levels, cores, reads and prompts that it allows.
    pub space: &'a Presolve<'a>,
    /// Spaces of one level, with other cores, contexts or mechanisms.
    others: RefCell<Vec<(Key, Rc<Presolve<'a>>)>>,
}

/// All on which the space of a level depends: cores, context and number of sequences, bytes kept free, and mechanisms that are left out.
type Key = (String, Vec<u32>, [u32; 2], u64, Vec<Feature>);

fn key(level: &str, limits: &Limits) -> Key {
    let contexts = [limits.context, limits.sequences];
    (level.to_owned(), limits.cores.clone(), contexts, limits.reserve_bytes, limits.without.clone())
}

impl<'a> Search<'a> {
    /// For a question that has no plan in its space.
    pub fn new(question: &'a Question<'a>, space: &'a Presolve<'a>) -> Self {
        Self { question, space, others: RefCell::default() }
    }

    /// The fastest plan of the question's own space within limits on memory and time.
    pub fn fastest(&self, question: &Question<'_>) -> Option<Candidate> {
        let pricing = Pricing::new(question, self.space);
        pricing.fastest(regions_within(question.limits.memory_bytes)).map(|fastest| fastest.best)
    }

    /// Whether a plan exists within other limits.
    pub fn exists(&self, question: &Question<'a>) -> bool {
        if question.limits.on_time() { self.plan(question).is_some() } else { exists(question) }
    }

    /// Seconds of each limited prompt with any plan within other limits, which are on time.
    pub fn plan(&self, question: &Question<'a>) -> Option<Vec<f64>> {
        let mut levels = rules::levels(question.model, &question.limits);
        if key("", &self.question.limits) == key("", &question.limits) {
            if let Some(found) = plan_in(question, self.space) {
                return Some(found);
            }
            // the space that is there has the others
            levels.retain(|level| !self.space.options.iter().any(|options| options.level.name == level.name));
        }
        // levels that lose most are the fastest, as a rule
        levels.sort_by(|a, b| b.loss_bound_fraction().total_cmp(&a.loss_bound_fraction()));
        levels.into_iter().find_map(|level| plan_in(question, &self.of_level(question, level)))
    }

    /// Configurations that were given up in any search up to now where no plan was found.
    pub fn undecided(&self) -> usize {
        let others = self.others.borrow();
        self.space.work().undecided + others.iter().map(|(_, other)| other.work().undecided).sum::<usize>()
    }

    /// The space of one level for a question with other limits.
    pub fn of_level(&self, question: &Question<'a>, level: &'a Level) -> Rc<Presolve<'a>> {
        let key = key(&level.name, &question.limits);
        let mut others = self.others.borrow_mut();
        if let Some((_, other)) = others.iter().find(|(known, _)| *known == key) {
            return Rc::clone(other);
        }
        let other = Rc::new(Presolve::of_level(question, level));
        others.push((key, Rc::clone(&other)));
        other
    }
}
