//! Limits that can be left out of a question, and whether a plan exists without some of them.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use plans::Device;
use plans::model::Level;
use plans::plan::Feature;
use plans::terms::Factors;

use crate::candidate::Candidate;
use crate::cost::hardware;
use crate::presolve::Presolve;
use crate::pricing::Pricing;
use crate::problem::{LOSS, SPEED};
use crate::question::{Limits, PromptLimit, Question, UNLIMITED_BYTES};
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
    own: Searched<&'a Presolve<'a>>,
    others: RefCell<Vec<(Key, Other<'a>)>>,
}

/// A level, and the parts of a question on which its space depends: cores, context and how many there are, bytes kept free, and mechanisms that are left out.
type Key = (String, Vec<u32>, [u32; 2], u64, Vec<Feature>);

/// A space, and limits on memory and time that are known to leave no plan in it.
#[derive(Debug)]
pub struct Searched<S> {
    space: S,
    refused: RefCell<Vec<Limits>>,
}

impl<'a, S: Deref<Target = Presolve<'a>>> Searched<S> {
    fn new(space: S) -> Self {
        Self { space, refused: RefCell::default() }
    }

    fn plan(&self, question: &Question<'_>) -> Option<Vec<f64>> {
        let limits = &question.limits;
        if self.refused.borrow().iter().any(|refused| no_looser(limits, refused)) {
            return None;
        }
        let found = plan_in(question, &self.space);
        if found.is_none() {
            self.refused.borrow_mut().push(limits.clone());
        }
        found
    }
}

/// The length of a context, and how many there are.
fn contexts(limits: &Limits) -> [u32; 2] {
    [limits.context, limits.sequences]
}

/// A space of one level, with what it refuses.
pub type Other<'a> = Rc<Searched<Box<Presolve<'a>>>>;

/// Whether limits on memory and time allow nothing that others refuse.
fn no_looser(limits: &Limits, others: &Limits) -> bool {
    let kept = |other: &PromptLimit| {
        let same = |limit: &&PromptLimit| limit.tokens == other.tokens;
        limits.prompts_max.iter().filter(same).any(|limit| limit.seconds_max <= other.seconds_max)
    };
    limits.memory_bytes <= others.memory_bytes
        && others.speed_min.is_none_or(|other| limits.speed_min.is_some_and(|speed| speed >= other))
        && others.prompts_max.iter().all(kept)
}

impl<'a> Search<'a> {
    /// For a question that has no plan in its space.
    pub fn new(question: &'a Question<'a>, space: &'a Presolve<'a>) -> Self {
        let own = Searched::new(space);
        own.refused.borrow_mut().push(question.limits.clone());
        Self { question, space, own, others: RefCell::default() }
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
        let (own, limits) = (&self.question.limits, &question.limits);
        let of = |l: &Limits| (l.cores.clone(), contexts(l), l.reserve_bytes, l.without.clone());
        let alike = of(own) == of(limits);
        let mut levels = rules::levels(question.model, limits);
        if alike {
            if let Some(found) = self.own.plan(question) {
                return Some(found);
            }
            // the space that is there has the others
            levels.retain(|level| !self.space.options.iter().any(|options| options.level.name == level.name));
        }
        // who loses most is the fastest, as a rule
        levels.sort_by(|a, b| b.loss_bound_fraction().total_cmp(&a.loss_bound_fraction()));
        levels.into_iter().find_map(|level| self.other(question, level).plan(question))
    }

    /// Configurations that were given up in any search up to now where no plan was found.
    pub fn undecided(&self) -> usize {
        let others = self.others.borrow();
        let of_others = others.iter().map(|(_, other)| other.space.work().undecided);
        self.space.work().undecided + of_others.sum::<usize>()
    }

    fn other(&self, question: &Question<'a>, level: &'a Level) -> Other<'a> {
        let limits = &question.limits;
        let key: Key = (
            level.name.clone(),
            limits.cores.clone(),
            contexts(limits),
            limits.reserve_bytes,
            limits.without.clone(),
        );
        let mut others = self.others.borrow_mut();
        if let Some((_, other)) = others.iter().find(|(known, _)| *known == key) {
            return Rc::clone(other);
        }
        let other = Rc::new(Searched::new(Box::new(Presolve::of_level(question, level))));
        others.push((key, Rc::clone(&other)));
        other
    }

    /// The spaces of a question: its own, or one for each level.
    pub fn spaces(&self, question: &Question<'a>) -> Vec<Space<'a>> {
        if std::ptr::eq(question, self.question) {
            return vec![Space::Own(self.space)];
        }
        let levels = rules::levels(question.model, &question.limits).into_iter();
        levels.map(|level| Space::Other(self.other(question, level))).collect()
    }
}

/// A space of a question, or of the same with other limits.
#[derive(Debug)]
pub enum Space<'a> {
    /// The question's.
    Own(&'a Presolve<'a>),
    /// One level's.
    Other(Other<'a>),
}

impl<'a> Deref for Space<'a> {
    type Target = Presolve<'a>;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Own(space) => space,
            Self::Other(other) => &other.space,
        }
    }
}

/// A device whose cores compute, memory moves and flash reads so many times as fast. Where flash is faster, reads take nothing of the cores.
pub fn sped_up(device: &Device, compute: f64, memory: f64, io: f64) -> Device {
    let factors = Factors { compute, stream: memory, gather: memory, random_reads: io, ordered_reads: io };
    let mut faster = hardware::at(device, &factors);
    if io > 1.0 {
        let storage = &mut faster.storage;
        (storage.cpu_seconds_per_read, storage.interference_fraction) = (0.0, 0.0);
        storage.io_uring.iter_mut().for_each(|cost| {
            (cost.cpu_seconds_per_read, cost.interference_fraction) = (0.0, 0.0);
        });
    }
    faster
}
