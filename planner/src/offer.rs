//! The nearest plans to a question that has none: for each limit in the way, how far it would have to give.
//!
//! Every offer is planned before it is made, in the printed digits.

use plans::model::Level;
use plans::plan::{Feature, Request};
use plans::size::{self, show};

use crate::blame::{Search, exists, sought, without};
use crate::pricing::Pricing;
use crate::problem::SPEED;
use crate::question::{Limits, MIN_PREFILL, PromptLimit, Question, UNLIMITED_BYTES};
use crate::room::{regions_within, with_page_tables};
use crate::space::Space;

/// Searches for the shortest time of a prompt, at most, and how close its bounds have to be.
const SEARCHES: usize = 12;
const CLOSE: f64 = 1.002;

/// A limit as far as it would have to give.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// In words.
    pub sentence: String,
    /// The request with that changed, for which there is a plan; `None` where this machine cannot give it.
    pub request: Option<Request>,
}

impl Offer {
    fn new(sentence: String, question: &Question<'_>, change: impl FnOnce(&mut Request)) -> Self {
        let mut request = question.origin.request.clone();
        change(&mut request);
        Self { sentence, request: Some(request) }
    }
}

/// The nearest value of a limit with which there is a plan, the others being as they are; that of the loss is [`loss`].
pub fn offer<'a>(search: &Search<'a>, name: &str) -> Option<Offer> {
    let question = search.question;
    let free = without(question, name);
    let possible = || search.exists(&free).then_some(());
    match name {
        SPEED => speed(search, &free),
        "user.mem" | "hw.capacity" if question.limits.on_time() => memory(search, name),
        "user.mem" | "hw.capacity" => least_memory(search),
        MIN_PREFILL | "user.max_ttft" => prompt(search, name, &free),
        "user.context" => context(search),
        "user.cores" => possible().map(|()| {
            let sentence = format!("with all {} cores there is a plan", free.limits.cores.len());
            Offer::new(sentence, question, |request| request.cores = None)
        }),
        "user.slots" => slots(search),
        "user.reserve" => possible().map(|()| {
            let sentence = "without --reserve there is a plan".to_owned();
            Offer::new(sentence, question, |request| request.reserve_bytes = None)
        }),
        "user.level" => possible().map(|()| {
            let sentence = "with another --level there is a plan".to_owned();
            Offer::new(sentence, question, |request| request.level = None)
        }),
        "user.without" => possible().map(|()| {
            let names: Vec<&str> = question.limits.without.iter().copied().map(Feature::name).collect();
            let sentence = format!("with {} there is a plan", names.join(", "));
            Offer::new(sentence, question, |request| request.without.clear())
        }),
        _ => None,
    }
}

/// The fastest plan within the other limits.
fn speed(search: &Search<'_>, free: &Question<'_>) -> Option<Offer> {
    let limits = &search.question.limits;
    let floor = limits.speed_min?;
    let best = search.fastest(free)?;
    let reached = digits(1.0 / (best.ticks as f64 * search.space.tick_seconds), f64::floor);
    let sentence = format!("{} reach {reached} tok/s; {floor} are the least that is allowed", at(limits));
    Some(Offer::new(sentence, search.question, |request| {
        request.decode_tokens_per_second_min = Some(reached);
    }))
}

/// The least memory that keeps limits on time: the machine's, or more than it can give.
fn memory(search: &Search<'_>, name: &str) -> Option<Offer> {
    let limits = &search.question.limits;
    let wanted = wanted(limits);
    if name == "user.mem"
        && let Some((bytes, size)) = memory_within(search, limits.machine_bytes)
    {
        let sentence = format!("{wanted} needs {size}");
        return Some(Offer::new(sentence, search.question, |request| {
            request.memory_limit_bytes = Some(bytes);
        }));
    }
    let (_, size) = memory_within(search, UNLIMITED_BYTES)?;
    let sentence = format!("{wanted} needs {size}, more than this machine can give");
    Some(Offer { sentence, request: None })
}

/// The least memory up to `most` bytes with which the other limits can be kept, and the same as a size that `--mem` accepts.
fn memory_within(search: &Search<'_>, most: u64) -> Option<(u64, String)> {
    let limits = &search.question.limits;
    let up_to = Limits { memory_bytes: most, machine_bytes: most, user_memory_bytes: None, ..limits.clone() };
    let question = search.question.within(up_to);
    let (_, regions) = Pricing::new(&question, search.space).smallest(regions_within(most))?;
    let mut bytes = with_page_tables(regions) as u64;
    for _ in 0..64 {
        let size = amount(bytes, f64::ceil);
        let limit = size::parse(&size).unwrap_or(bytes);
        let within = Limits {
            memory_bytes: limit,
            user_memory_bytes: Some(limit),
            machine_bytes: limits.machine_bytes.max(limit),
            ..limits.clone()
        };
        // in a space of its own: what the simple rule would pin is offered, too, and depends on memory
        if exists(&search.question.within(within)) {
            return Some((limit, size));
        }
        bytes = limit + 1;
    }
    None
}

/// Bytes below which a size was meant to have a unit.
const SMALLEST_SIZE: u64 = 1 << 16;

/// The smallest plan, and what it consists of.
fn least_memory(search: &Search<'_>) -> Option<Offer> {
    let Question { model, limits, .. } = search.question;
    let least = with_page_tables(Space::least_regions(search.question)?) as u64;
    let fixed = search
        .space
        .options
        .iter()
        .map(|options| model.parts.fixed_bytes + options.level.resident_bytes)
        .min()?;
    let kv = u64::from(limits.sequences)
        * u64::from(limits.context)
        * plans::memory::kv_bytes_per_token(&model.architecture, limits.kv);
    let size = amount(least, f64::ceil);
    let bytes = size::parse(&size).ok().filter(|&bytes| bytes <= limits.machine_bytes);
    let sentence = format!(
        "{} hold no plan: the smallest takes {size}{} (up to {} weights that every token needs, {} keys and values for {}{} tokens of context,{} the rest process, buffers and tables)",
        at(limits),
        if bytes.is_none() { ", more than this machine can give" } else { "" },
        show(fixed),
        show(kv),
        if limits.sequences > 1 { format!("{} times ", limits.sequences) } else { String::new() },
        limits.context,
        if limits.reserve_bytes > 0 {
            format!(" {} kept free,", show(limits.reserve_bytes))
        } else {
            String::new()
        },
    );
    let sentence = match limits.user_memory_bytes {
        Some(user) if user < SMALLEST_SIZE => {
            format!("{sentence}; --mem without a unit counts bytes: write for example {user}G")
        }
        _ => sentence,
    };
    let mut offer = Offer::new(sentence, search.question, |request| request.memory_limit_bytes = bytes);
    offer.request = offer.request.filter(|_| bytes.is_some());
    Some(offer)
}

/// The fastest prompt within the other limits.
fn prompt<'a>(search: &Search<'a>, name: &str, free: &Question<'a>) -> Option<Offer> {
    let limits = &search.question.limits;
    let limit = limits.prompts_max.iter().find(|limit| limit.name == name)?;
    let (tokens, seconds) = (f64::from(limit.tokens), prompt_seconds(search, limit, free)?);
    if name == MIN_PREFILL {
        let rate = digits(tokens / seconds, f64::floor);
        prompt_within(search, limit, tokens / rate)?;
        let sentence = format!("prompts of {} tokens reach {rate} tok/s", limit.tokens);
        Some(Offer::new(sentence, search.question, |request| {
            request.prefill_tokens_per_second_min = Some(rate);
        }))
    } else {
        let seconds = digits(seconds, f64::ceil);
        prompt_within(search, limit, seconds)?;
        let sentence = format!("a prompt of {} tokens takes {seconds} s at least", limit.tokens);
        Some(Offer::new(sentence, search.question, |request| request.first_token_seconds_max = Some(seconds)))
    }
}

/// Seconds of a limited prompt with any plan that keeps another limit on it.
fn prompt_within<'a>(search: &Search<'a>, limit: &PromptLimit, seconds_max: f64) -> Option<f64> {
    let mut limits = search.question.limits.clone();
    let place = limits.prompts_max.iter().position(|other| other.name == limit.name)?;
    limits.prompts_max[place].seconds_max = seconds_max;
    Some(search.plan(&search.question.within(limits))?[place])
}

/// About the shortest time of a limited prompt that the other limits allow: between what no plan can be below and that of a
/// plan that is known, halved until both are close. Where nothing but memory stands against it the first is nearly reached,
/// so that is tried first.
fn prompt_seconds<'a>(search: &Search<'a>, limit: &PromptLimit, free: &Question<'a>) -> Option<f64> {
    let limits = &search.question.limits;
    let pricing = Pricing::new(free, search.space);
    let least = pricing.limited.seconds_least(limit.tokens, regions_within(limits.memory_bytes))?;
    let mut low = least.max(limit.seconds_max);
    let mut high = None;
    let mut next = low * CLOSE;
    for _ in 0..SEARCHES {
        match prompt_within(search, limit, next) {
            Some(seconds) => high = Some(seconds),
            None => low = next,
        }
        next = match high {
            Some(high) if high <= low * CLOSE => break,
            Some(high) => (low * high).sqrt(),
            None => UNLIMITED_SECONDS,
        };
    }
    high
}

/// More seconds than any prompt takes.
const UNLIMITED_SECONDS: f64 = 1e9;

/// The least loss with which there is a plan, and how many configurations were given up on the way. Each level has a space of its own.
pub fn loss(question: &Question<'_>) -> (Option<Offer>, usize) {
    let Question { model, limits, .. } = question;
    let loss = Level::loss_bound_fraction;
    let mut levels: Vec<&Level> = model.levels.iter().filter(|level| loss(level) > limits.loss_max).collect();
    levels.sort_by(|a, b| loss(a).total_cmp(&loss(b)));
    levels.retain(|level| limits.level.as_ref().is_none_or(|name| *name == level.name));
    let percent = |level: &Level| (loss(level) * 1e4).ceil() / 100.0;
    let mut undecided = 0;
    // none that lose less have any
    let found = levels.into_iter().find(|level| {
        let (loss_max, level) = (percent(level) / 100.0, Some(level.name.clone()));
        let (found, given_up) = sought(&question.within(Limits { loss_max, level, ..limits.clone() }));
        undecided += given_up;
        found
    });
    let offer = found.map(|level| {
        let (found, measured) = (percent(level), level.perplexity_change_fraction * 100.0);
        let sentence = format!(
            "with --max-loss {found} there is a plan at level {}; {measured:.2} % was measured, {found} % is its upper bound",
            level.name
        );
        Offer::new(sentence, question, |request| {
            request.perplexity_change_fraction_max = plans::file::significant(found / 100.0);
        })
    });
    (offer, undecided)
}

/// The most sequences with which there is a plan.
fn slots(search: &Search<'_>) -> Option<Offer> {
    let limits = &search.question.limits;
    let fewer = |sequences: &u32| {
        search.exists(&search.question.within(Limits { sequences: *sequences, ..limits.clone() }))
    };
    let fits = (1..limits.sequences).rev().find(fewer)?;
    let sentence = format!("with --slots {fits} there is a plan; more do not fit");
    Some(Offer::new(sentence, search.question, |request| request.sequences = Some(fits)))
}

/// The longest context with which there is a plan.
fn context(search: &Search<'_>) -> Option<Offer> {
    let limits = &search.question.limits;
    let shorter = |context: u32| {
        let mut l = Limits { context, ..limits.clone() };
        l.prompts_max.retain(|limit| limit.tokens < context);
        l.prompts_max.len() == limits.prompts_max.len() && search.exists(&search.question.within(l))
    };
    let (mut fits, mut over) = (2, limits.context);
    if !shorter(fits.max(limits.prompts_max.iter().map(|limit| limit.tokens + 1).max().unwrap_or(2))) {
        return None;
    }
    while over - fits > 1 {
        let middle = fits + (over - fits) / 2;
        if shorter(middle) { fits = middle } else { over = middle }
    }
    let sentence = format!("with --context {fits} there is a plan; a longer one does not fit");
    Some(Offer::new(sentence, search.question, |request| request.context_tokens = Some(fits)))
}

/// The memory limit, in words.
fn at(limits: &Limits) -> String {
    if limits.user_memory_bytes.is_some_and(|user| user <= limits.machine_bytes) {
        amount(limits.memory_bytes, f64::round)
    } else {
        format!("the {} that this machine can give", amount(limits.memory_bytes, f64::round))
    }
}

/// The limits besides memory, in words.
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

/// Three and more digits of a rate or of seconds, rounded so that they can be requested.
fn digits(value: f64, rounded: fn(f64) -> f64) -> f64 {
    let scale = 10f64.powi(2 - value.log10().floor().clamp(-9.0, 1.0) as i32);
    rounded(value * scale) / scale
}

/// A size with enough digits to be requested.
fn amount(bytes: u64, rounded: fn(f64) -> f64) -> String {
    let (number, unit, digits) = scaled(bytes);
    let scale = 10f64.powi(digits as i32);
    format!("{:.digits$} {unit}", rounded(number * scale) / scale)
}

fn scaled(bytes: u64) -> (f64, &'static str, usize) {
    if bytes < 1 << 20 {
        (bytes as f64, "B", 0)
    } else if bytes >= 1 << 30 {
        (bytes as f64 / f64::from(1 << 30), "GiB", 2)
    } else {
        (bytes as f64 / f64::from(1 << 20), "MiB", 1)
    }
}
