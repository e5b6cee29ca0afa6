//! Which limits contradict each other, and whether a plan exists without some of them.
//!
//! Limits are left out one after another. What can be left out while there still is no plan is not to blame. So each limit
//! that is named is needed, and without it, and without those that are not named, there is a plan.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use plans::Device;
use plans::model::Level;
use plans::plan::Feature;
use plans::terms::Factors;

use crate::field::{Candidate, Field};
use crate::hardware;
use crate::request::{Limits, MIN_PREFILL, PromptLimit, Question};
use crate::room::regions_within;
use crate::rules;
use crate::space::Space;

/// More memory than anything needs.
pub const UNLIMITED_BYTES: u64 = 1 << 50;
/// How many times a part of the machine is made faster to see whether it is to blame.
const FASTER: f64 = 1e6;

/// A limit that can be left out. In this order that is tried: the last are blamed first.
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
/// The one that is left out last.
pub const SPEED: &str = "user.min_speed";
/// The one to which each level has its own answer.
pub const LOSS: &str = "user.max_loss";
/// Facts that may be to blame.
const FACTS: [&str; 4] = ["hw.io", "hw.memory_bandwidth", "hw.compute", "model.size"];

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

/// Whether any plan keeps the limits; and where none was found how many ways were given up.
pub fn sought(question: &Question<'_>) -> (bool, usize) {
    if !question.limits.on_time() {
        let within = regions_within(question.limits.memory_bytes);
        return (Space::least_regions(question).is_some_and(|least| least <= within), 0);
    }
    let space = Space::new(question);
    let found = plan_in(question, &space).is_some();
    (found, if found { 0 } else { space.work().undecided })
}

/// Seconds of each limited prompt with any plan of a space that keeps the limits. The space was made for the same cores,
/// context and mechanisms.
fn plan_in(question: &Question<'_>, space: &Space<'_>) -> Option<Vec<f64>> {
    let field = Field::new(question, space);
    let found = field.any(regions_within(question.limits.memory_bytes))?;
    Some(question.limits.prompts_max.iter().map(|limit| field.prompt_seconds(&found, limit.tokens)).collect())
}

/// The question that has no plan, in the space of levels, cores and context that it allows, and others that are needed on
/// the way.
#[derive(Debug)]
pub struct Search<'a> {
    /// The question.
    pub question: &'a Question<'a>,
    /// Space of the question: levels, cores, reads and prompts that it allows.
    pub space: &'a Space<'a>,
    own: Searched<&'a Space<'a>>,
    others: RefCell<Vec<(Key, Other<'a>)>>,
}

/// A level, and the parts of a question on which its space depends: cores, context and how many there are, bytes kept free, and mechanisms that are left out.
type Key = (String, Vec<u32>, [u32; 2], u64, Vec<Feature>);

/// A space, and limits on memory and time that are known to leave no plan in it.
#[derive(Debug)]
struct Searched<S> {
    space: S,
    refused: RefCell<Vec<Limits>>,
}

impl<'a, S: Deref<Target = Space<'a>>> Searched<S> {
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

type Other<'a> = Rc<Searched<Box<Space<'a>>>>;

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
    pub fn new(question: &'a Question<'a>, space: &'a Space<'a>) -> Self {
        let own = Searched::new(space);
        own.refused.borrow_mut().push(question.limits.clone());
        Self { question, space, own, others: RefCell::default() }
    }

    /// The fastest plan of the question's own space within limits on memory and time.
    pub fn fastest(&self, question: &Question<'_>) -> Option<Candidate> {
        let field = Field::new(question, self.space);
        field.fastest(regions_within(question.limits.memory_bytes)).map(|fastest| fastest.best)
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
            levels.retain(|level| !self.space.ways.iter().any(|ways| ways.level.name == level.name));
        }
        // who loses most is the fastest, as a rule
        levels.sort_by(|a, b| b.loss_bound_fraction().total_cmp(&a.loss_bound_fraction()));
        levels.into_iter().find_map(|level| self.other(question, level).plan(question))
    }

    /// Ways that were given up in any search up to now where no plan was found.
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
        let other = Rc::new(Searched::new(Box::new(Space::of(question, vec![level]))));
        others.push((key, Rc::clone(&other)));
        other
    }

    /// A minimal set of limits that contradict each other, and the question without all others.
    pub fn conflict(&self) -> (Vec<&'static str>, Question<'a>) {
        let mut kept = self.question.clone();
        let mut conflict = Vec::new();
        for name in LIMITS.into_iter().filter(|name| set(&self.question.limits, name)) {
            let less = without(&kept, name);
            if self.exists(&less) { conflict.push(name) } else { kept = less }
        }
        (conflict, kept)
    }

    /// Facts without which there would be a plan, at the level that is fastest within the limits that are kept; and meanwhile what is made
    /// of the search, and what needs none, since each fact has a space of its own.
    pub fn facts_beside<R, A: Send>(
        &self,
        kept: &Question<'a>,
        beside: impl FnOnce() -> R,
        apart: impl FnOnce() -> A + Send,
    ) -> (Vec<&'static str>, R, Option<A>) {
        let limits = &kept.limits;
        let unbound = kept.within(Limits { speed_min: None, prompts_max: Vec::new(), ..limits.clone() });
        let fastest = self.fastest(&unbound);
        let level = fastest.map(|fastest| self.space.ways[fastest.way.level].level.name.clone());
        let kept = &kept.within(Limits { level: level.or_else(|| limits.level.clone()), ..limits.clone() });
        let to_blame = FACTS.map(|_| AtomicBool::new(false));
        let mut of_apart = None;
        let result = rayon::in_place_scope(|scope| {
            scope.spawn(|_| of_apart = Some(apart()));
            for (fact, to_blame) in FACTS.iter().zip(&to_blame) {
                scope.spawn(move |_| to_blame.store(exists_without(kept, fact), Ordering::Relaxed));
            }
            beside()
        });
        let facts = FACTS.into_iter().zip(to_blame).filter(|(_, to_blame)| to_blame.load(Ordering::Relaxed));
        (facts.map(|(fact, _)| fact).collect(), result, of_apart)
    }
}

/// Whether any plan keeps the limits if a fact of the machine or the model is no obstacle.
fn exists_without(question: &Question<'_>, fact: &str) -> bool {
    let on = |device: Device| exists(&Question { device: &device, ..question.clone() });
    match fact {
        "hw.io" => on(sped_up(question.device, 1.0, 1.0, FASTER)),
        "hw.memory_bandwidth" => on(sped_up(question.device, 1.0, FASTER, 1.0)),
        "hw.compute" => on(sped_up(question.device, FASTER, 1.0, 1.0)),
        _ => {
            let mut smaller = question.model.clone();
            let parts = &mut smaller.parts;
            (parts.fixed_bytes, parts.embedding_bytes, parts.head_bytes) = (0, 0, 0);
            smaller.levels.iter_mut().for_each(|level| level.resident_bytes = 0);
            exists(&Question { model: &smaller, ..question.clone() })
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
