//! Why there is no plan: the limits that contradict each other, their numbers, and the nearest plans.
//!
//! The conflict is found by leaving limits out, one after another, and asking whether a plan exists: what can be left out
//! without one is not to blame. So each limit that is named is needed, and without it, and without those that are not
//! named, there is a plan. Every offer is planned before it is made.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use plans::Device;
use plans::model::{Level, LevelKind};
use plans::plan::Feature;
use plans::size::{self, show};
use plans::terms::Factors;

use crate::cost;
use crate::field::Field;
use crate::hardware;
use crate::request::{DIGITS, Limits, Question};
use crate::room::{regions_within, with_page_tables};
use crate::rules;
use crate::space::Space;

/// More memory than anything needs.
const UNLIMITED_BYTES: u64 = 1 << 50;
/// Halvings in which a speed of prompts is sought.
const HALVINGS: usize = 24;
/// How many times a part of the machine is made faster to see whether it is to blame.
const FASTER: f64 = 1e6;

/// No plan satisfies the limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Infeasible {
    /// The named limits and facts that contradict each other. Without any one of the limits, and without those that are not
    /// named, there is a plan; so there is with any one of the facts out of the way.
    pub conflict: Vec<&'static str>,
    /// Sentences with the numbers, the most important first.
    pub sentences: Vec<String>,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no plan satisfies the limits ({})", self.conflict.join(", "))?;
        self.sentences.iter().try_for_each(|sentence| write!(f, "\n{sentence}"))
    }
}

/// A limit that can be left out. In this order that is tried: the last are blamed first.
pub const LIMITS: [&str; 10] = [
    "user.context",
    "user.without",
    "user.level",
    "user.max_loss",
    "user.cores",
    "hw.capacity",
    "user.mem",
    "user.max_ttft",
    "user.min_prefill",
    SPEED,
];
/// The one that is left out last.
const SPEED: &str = "user.min_speed";
/// Facts that may be to blame.
const FACTS: [&str; 4] = ["hw.io", "hw.memory_bandwidth", "hw.compute", "model.size"];

/// The question without one of its limits.
pub fn without<'a>(question: &Question<'a>, name: &str) -> Question<'a> {
    let mut l = question.limits.clone();
    match name {
        "user.context" => l.context = 2,
        "user.without" => l.without.clear(),
        "user.level" => l.level = None,
        "user.max_loss" => l.loss_max = f64::INFINITY,
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
        "user.context" => limits.context > 2 && limits.speed_min.is_none() && limits.prompts_max.is_empty(),
        "user.without" => !limits.without.is_empty(),
        "user.level" => limits.level.is_some(),
        "user.max_loss" | "hw.capacity" => true,
        "user.cores" => limits.cores_chosen,
        "user.mem" => limits.user_memory_bytes.is_some_and(|user| user < limits.machine_bytes),
        SPEED => limits.speed_min.is_some(),
        prompt => limits.prompts_max.iter().any(|limit| limit.name == prompt),
    }
}

/// Whether any plan keeps the limits, in a space that was made for the same levels, cores, context and mechanisms.
fn exists_in(question: &Question<'_>, space: &Space<'_>) -> bool {
    Field::new(question, space).fastest(regions_within(question.limits.memory_bytes), true).is_some()
}

/// Whether any plan keeps the limits.
pub fn exists(question: &Question<'_>) -> bool {
    let limits = &question.limits;
    if limits.speed_min.is_none() && limits.prompts_max.is_empty() {
        return Space::least_regions(question)
            .is_some_and(|least| least <= regions_within(limits.memory_bytes));
    }
    exists_in(question, &Space::new(question))
}

/// The search for what is to blame: the question, the space of levels, cores and context that they allow, and others that were
/// needed on the way.
struct Search<'a> {
    question: &'a Question<'a>,
    space: &'a Space<'a>,
    others: RefCell<Vec<(Key, Rc<Space<'a>>)>>,
}

/// What a space depends on: levels, cores, context and mechanisms that are left out.
type Key = (Vec<String>, Vec<u32>, u32, Vec<Feature>);

impl<'a> Search<'a> {
    /// Whether a plan exists without some limits.
    fn exists(&self, question: &Question<'a>) -> bool {
        let limits = &question.limits;
        if limits.speed_min.is_none() && limits.prompts_max.is_empty() {
            return exists(question);
        }
        let own = &self.question.limits;
        let alike =
            (&own.cores, own.context, &own.without) == (&limits.cores, limits.context, &limits.without);
        let mut levels = rules::levels(question.model, limits);
        if alike {
            if exists_in(question, self.space) {
                return true;
            }
            // the space that is there has the others
            levels.retain(|level| !self.space.ways.iter().any(|ways| ways.level.name == level.name));
        }
        !levels.is_empty() && exists_in(question, &self.space_of(question, levels))
    }

    fn space_of(&self, question: &Question<'a>, levels: Vec<&'a Level>) -> Rc<Space<'a>> {
        let limits = &question.limits;
        let names = levels.iter().map(|level| level.name.clone()).collect();
        let key: Key = (names, limits.cores.clone(), limits.context, limits.without.clone());
        let mut others = self.others.borrow_mut();
        if let Some((_, space)) = others.iter().find(|(known, _)| *known == key) {
            return Rc::clone(space);
        }
        let space = Rc::new(Space::of(question, levels));
        others.push((key, Rc::clone(&space)));
        space
    }

    /// Facts without which there would be a plan, at the level that is fastest within the limits that are kept.
    fn facts(&self, kept: &Question<'a>) -> Vec<&'static str> {
        let limits = &kept.limits;
        let unbound =
            kept.within(Limits { speed_min: None, prompts_max: Vec::new(), ..limits.clone() });
        let field = Field::new(&unbound, self.space);
        let fastest = field.fastest(regions_within(limits.memory_bytes), true);
        let level = fastest.map(|fastest| field.level(fastest.best.way).name.clone());
        let kept = kept.within(Limits { level: level.or_else(|| limits.level.clone()), ..limits.clone() });
        FACTS.into_iter().filter(|fact| exists_without(&kept, fact)).collect()
    }

    /// A minimal set of limits that contradict each other, and all limits without the others.
    fn conflict(&self) -> (Vec<&'static str>, Question<'a>) {
        let mut kept = self.question.clone();
        let mut conflict = Vec::new();
        for name in LIMITS.into_iter().filter(|name| set(&self.question.limits, name)) {
            let less = without(&kept, name);
            if self.exists(&less) { conflict.push(name) } else { kept = less }
        }
        (conflict, kept)
    }

    /// The fastest plan within limits.
    fn speed(&self, question: &Question<'a>) -> Option<f64> {
        let field = Field::new(question, self.space);
        let fastest = field.fastest(regions_within(question.limits.memory_bytes), false)?;
        Some(1.0 / (fastest.best.ticks as f64 * field.tick_seconds))
    }

    /// The least memory with which the other limits can be kept, up to `most` bytes.
    fn memory(&self, most: u64) -> Option<u64> {
        let limits = Limits {
            memory_bytes: most,
            machine_bytes: most,
            user_memory_bytes: None,
            ..self.question.limits.clone()
        };
        let question = self.question.within(limits);
        let field = Field::new(&question, self.space);
        let (_, found) = field.smallest(regions_within(most))?;
        Some(with_page_tables(found) as u64)
    }

    /// The same, as a size that `--mem` accepts.
    fn memory_offer(&self, most: u64) -> Option<String> {
        let mut bytes = self.memory(most)?;
        for _ in 0..64 {
            let offer = amount_up(bytes);
            let limit = size::parse(&offer).unwrap_or(bytes);
            let limits = Limits {
                memory_bytes: limit,
                user_memory_bytes: Some(limit),
                machine_bytes: self.question.limits.machine_bytes.max(limit),
                ..self.question.limits.clone()
            };
            if self.exists(&self.question.within(limits)) {
                return Some(offer);
            }
            bytes = limit + 1;
        }
        None
    }

    /// The shortest time of a limited prompt that the other limits allow, between what is requested and `most`.
    fn prompt_seconds(&self, name: &str, most: f64) -> Option<f64> {
        let allows = |seconds: f64| {
            let mut limits = self.question.limits.clone();
            let prompts = limits.prompts_max.iter_mut().filter(|limit| limit.name == name);
            prompts.for_each(|limit| limit.seconds_max = seconds);
            self.exists(&self.question.within(limits))
        };
        let asked = self.question.limits.prompts_max.iter().find(|limit| limit.name == name)?.seconds_max;
        let (mut low, mut high) = (asked, most);
        if !allows(high) {
            return None;
        }
        for _ in 0..HALVINGS {
            let middle = (low * high).sqrt();
            if allows(middle) {
                high = middle;
            } else {
                low = middle;
            }
            if high / low < 1.0005 {
                break;
            }
        }
        Some(high)
    }
}

/// Finds the conflict and the nearest plans, in the space that the limits allow.
pub fn explain(question: &Question<'_>, space: &Space<'_>) -> Infeasible {
    if space.ways.is_empty() {
        return no_level(question);
    }
    let search = Search { question, space, others: RefCell::default() };
    let (mut conflict, kept) = search.conflict();
    let facts = search.facts(&kept);
    let mut sentences = Vec::new();
    for name in LIMITS.into_iter().rev().filter(|name| conflict.contains(name)) {
        sentences.extend(offer(&search, name));
    }
    if sentences.is_empty() {
        let others = conflict.join(" and ");
        sentences.push(format!(
            "no single one of {others} can be changed so that there is a plan; change several"
        ));
    }
    if let Some(sentence) = out_of_reach(&search, &conflict) {
        sentences.push(sentence);
    }
    conflict.splice(0..0, facts);
    Infeasible { conflict, sentences }
}

/// The nearest value of a limit with which there is a plan, the others being as they are; in words.
fn offer(search: &Search<'_>, name: &str) -> Option<String> {
    let Search { question, space, .. } = *search;
    let Question { model, limits, .. } = question;
    let free = without(question, name);
    let here = at(limits);
    match name {
        SPEED => {
            let floor = limits.speed_min?;
            let best = search.speed(&free)?;
            Some(format!("{here} reach {} tok/s; {floor} are the least that is allowed", down(best)))
        }
        "user.mem" | "hw.capacity" => {
            let bounded = limits.speed_min.is_some() || !limits.prompts_max.is_empty();
            if bounded {
                let here = if name == "user.mem" { search.memory_offer(limits.machine_bytes) } else { None };
                if let Some(offer) = here {
                    return Some(format!("{} needs {offer}", wanted(limits)));
                }
                let beyond = search.memory_offer(UNLIMITED_BYTES)?;
                return Some(format!("{} needs {beyond}, more than this machine can give", wanted(limits)));
            }
            let least = with_page_tables(Space::least_regions(question)?) as u64;
            let fixed = space
                .ways
                .iter()
                .map(|ways| model.parts.fixed_bytes + ways.level.resident_bytes)
                .min()?;
            let kv = u64::from(limits.context)
                * plans::memory::kv_bytes_per_token(&model.architecture, limits.kv_value_bytes());
            Some(format!(
                "{here} hold no plan: the smallest takes {}{} (up to {} weights that every token needs, {} keys and values for {} tokens of context, the rest process, buffers and tables)",
                amount_up(least),
                if least > limits.machine_bytes { ", more than this machine can give" } else { "" },
                show(fixed),
                show(kv),
                limits.context,
            ))
        }
        "user.min_prefill" | "user.max_ttft" => {
            let limit = limits.prompts_max.iter().find(|limit| limit.name == name)?;
            let seconds = search.prompt_seconds(name, limit.seconds_max * 1e6)?;
            let tokens = f64::from(limit.tokens);
            Some(if name == "user.min_prefill" {
                format!("prompts of {} tokens reach {} tok/s", limit.tokens, down(tokens / seconds))
            } else {
                format!("a prompt of {} tokens takes {} s at least", limit.tokens, up(seconds))
            })
        }
        "user.cores" => {
            let cores = search.exists(&free).then_some(free.limits.cores.len())?;
            Some(format!("with all {cores} cores there is a plan"))
        }
        "user.max_loss" => {
            let losses = model.levels.iter().map(Level::loss_bound_fraction);
            let mut losses: Vec<f64> = losses.filter(|&loss| loss > limits.loss_max).collect();
            losses.sort_by(f64::total_cmp);
            let percent = |loss: f64| (loss * 1e4).ceil() / 100.0;
            let found = losses.into_iter().find(|&loss| {
                let loss_max = percent(loss) / 100.0;
                search.exists(&question.within(Limits { loss_max, ..limits.clone() }))
            })?;
            Some(format!("with --max-loss {} there is a plan", percent(found)))
        }
        "user.level" => search.exists(&free).then(|| "with another --level there is a plan".to_owned()),
        "user.without" => search.exists(&free).then(|| {
            let names: Vec<&str> = limits.without.iter().copied().map(Feature::name).collect();
            format!("with {} there is a plan", names.join(", "))
        }),
        "user.context" => {
            let (mut fits, mut over) = (2, limits.context);
            let shorter = |context: u32| {
                let mut l = Limits { context, ..limits.clone() };
                l.prompts_max.retain(|limit| limit.tokens < context);
                l.prompts_max.len() == limits.prompts_max.len() && search.exists(&question.within(l))
            };
            if !shorter(fits.max(limits.prompts_max.iter().map(|limit| limit.tokens + 1).max().unwrap_or(2)))
            {
                return None;
            }
            while over - fits > 1 {
                let middle = fits + (over - fits) / 2;
                if shorter(middle) { fits = middle } else { over = middle }
            }
            Some(format!("with --context {fits} there is a plan; a longer one does not fit"))
        }
        _ => None,
    }
}

/// Where no memory helps: what a token takes with everything in memory, and how much faster what would have to be.
fn out_of_reach(search: &Search<'_>, conflict: &[&str]) -> Option<String> {
    let Search { question, space, .. } = *search;
    let limits = &question.limits;
    let floor = limits.speed_min.filter(|_| conflict.contains(&SPEED))?;
    if conflict.contains(&"user.mem") || conflict.contains(&"hw.capacity") {
        return None;
    }
    let unlimited = Limits {
        memory_bytes: UNLIMITED_BYTES,
        machine_bytes: UNLIMITED_BYTES,
        user_memory_bytes: None,
        speed_min: None,
        ..limits.clone()
    };
    let unlimited = question.within(unlimited);
    let field = Field::new(&unlimited, space);
    let best = field.fastest(regions_within(UNLIMITED_BYTES), false)?.best;
    let decided = crate::assemble::decide(&field, &best, regions_within(UNLIMITED_BYTES));
    let decision = decided.decision(field.level(best.way));
    let price = cost::decode(&unlimited, &decision);
    let seconds = price.mean_seconds(limits.context);
    let works =
        [&price.attention, &price.predictor, &price.look_ahead, &price.gate_up, &price.down, &price.rest];
    let sum = |of: fn(&cost::Work) -> f64| works.iter().map(|work| of(work)).sum::<f64>() * 1e3;
    let mut sentence = format!(
        "no memory helps: with everything resident the best is {} tok/s, {:.1} ms a token, of which computing alone takes {:.1} ms, moving weights through memory alone {:.1} ms, and what nothing overlaps {:.1} ms; {floor} tok/s allow {:.1} ms",
        down(1.0 / seconds),
        seconds * 1e3,
        sum(|work| work.compute_seconds),
        sum(cost::Work::memory),
        sum(cost::Work::serial),
        1e3 / floor,
    );
    let with = |compute: f64, memory: f64| {
        let faster = Question { device: &sped_up(question.device, compute, memory, 1.0), ..unlimited.clone() };
        1.0 / cost::decode(&faster, &decision).mean_seconds(limits.context) * DIGITS >= floor
    };
    let ways: [(&str, &dyn Fn(f64) -> bool); 3] = [
        ("memory", &|times| with(1.0, times)),
        ("cores", &|times| with(times, 1.0)),
        ("cores and memory", &|times| with(times, times)),
    ];
    if let Some((what, times)) = ways.iter().find_map(|(what, enough)| Some((what, least_times(enough)?))) {
        sentence += &format!("; {what} {times:.2} times as fast would do");
    }
    Some(sentence)
}

/// The least factor up to a thousand that is enough, rounded up.
fn least_times(enough: &dyn Fn(f64) -> bool) -> Option<f64> {
    let (mut low, mut high) = (1.0, 1000.0);
    if !enough(high) {
        return None;
    }
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if enough(middle) { high = middle } else { low = middle }
    }
    Some((high * 100.0).ceil() / 100.0)
}

/// The same device with cores that compute, memory that moves and flash that reads so many times as fast.
fn sped_up(device: &Device, compute: f64, memory: f64, io: f64) -> Device {
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

/// That no level is allowed, and which would be.
fn no_level(question: &Question<'_>) -> Infeasible {
    let Question { model, limits, .. } = question;
    let held = |level: &&Level| limits.level.as_ref().is_none_or(|name| *name == level.name);
    let exact = |level: &&Level| limits.with(Feature::Predictor) || level.kind == LevelKind::ExactGate;
    let levels = model.levels.iter().filter(held).filter(exact);
    let bound = Level::loss_bound_fraction;
    let least = levels.min_by(|a, b| bound(a).total_cmp(&bound(b)));
    let sentence = least.map_or_else(
        || "this model has no quality level; profile it again".to_owned(),
        |level| {
            let (loss, most) = (level.perplexity_change_fraction * 100.0, bound(level) * 100.0);
            let raises = if most > loss {
                format!(
                    "raises perplexity by up to {most:.2} % ({loss:.2} % measured; the more held-out text a profile reads, the closer is the bound)"
                )
            } else {
                format!("raises perplexity by {loss:.2} %")
            };
            format!(
                "--max-loss {} does not allow {}`{}`, which {raises}: allow it with --max-loss {}",
                limits.loss_max * 100.0,
                if limits.level.is_some() { "the level " } else { "even " },
                level.name,
                (most * 100.0).ceil() / 100.0
            )
        },
    );
    let mut conflict = vec!["user.max_loss"];
    conflict.extend(limits.level.is_some().then_some("user.level"));
    conflict.extend((!limits.without.is_empty()).then_some("user.without"));
    conflict.retain(|name| !rules::levels(model, &without(question, name).limits).is_empty());
    Infeasible { conflict, sentences: vec![sentence] }
}

/// The memory limit, in words.
fn at(limits: &Limits) -> String {
    if limits.user_memory_bytes.is_some_and(|user| user <= limits.machine_bytes) {
        amount(limits.memory_bytes)
    } else {
        format!("the {} that this machine can give", amount(limits.memory_bytes))
    }
}

/// What is requested besides memory, in words.
fn wanted(limits: &Limits) -> String {
    let speed = limits.speed_min.map(|speed| format!("{speed} tok/s"));
    let prompts = limits.prompts_max.iter().map(|limit| {
        format!(
            "a prompt of {} tokens within {} s",
            limit.tokens,
            plans::file::significant(limit.seconds_max)
        )
    });
    speed.into_iter().chain(prompts).collect::<Vec<_>>().join(" and ")
}

/// Three and more digits of a rate, rounded down, so that it can be requested.
fn down(rate: f64) -> f64 {
    let scale = 10f64.powi(2 - rate.log10().floor().clamp(-9.0, 1.0) as i32);
    (rate * scale).floor() / scale
}

/// The same of seconds, rounded up.
fn up(seconds: f64) -> f64 {
    let scale = 10f64.powi(2 - seconds.log10().floor().clamp(-9.0, 1.0) as i32);
    (seconds * scale).ceil() / scale
}

/// A size with enough digits to be requested.
fn amount(bytes: u64) -> String {
    let (number, unit, digits) = scaled(bytes);
    format!("{number:.digits$} {unit}")
}

/// The same rounded up, so that the figure is enough.
fn amount_up(bytes: u64) -> String {
    let (number, unit, digits) = scaled(bytes);
    let scale = 10f64.powi(digits as i32);
    format!("{:.digits$} {unit}", (number * scale).ceil() / scale)
}

fn scaled(bytes: u64) -> (f64, &'static str, usize) {
    if bytes >= 1 << 30 {
        (bytes as f64 / f64::from(1 << 30), "GiB", 2)
    } else {
        (bytes as f64 / f64::from(1 << 20), "MiB", 1)
    }
}
