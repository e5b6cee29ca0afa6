//! Where no memory helps: what a token or a prompt takes with everything in memory, and how much faster the machine would have
//! to be.
//!
//! What is said to be enough with everything in memory is planned within the request's limits, too, before it is offered: as the
//! same request on a machine that is faster by that factor (`calibration`).

use plans::terms::Factors;

use crate::assemble;
use crate::blame::{Search, exists, sped_up};
use crate::cost::{self, PromptChoice, PromptPrice};
use crate::offer::{Offer, down, up};
use crate::pricing::Pricing;
use crate::problem::SPEED;
use crate::question::{DIGITS, Limits, PromptLimit, Question, UNLIMITED_BYTES};
use crate::room::regions_within;
use crate::rules::Prompt;

/// Halvings in which a factor is sought.
const HALVINGS: usize = 24;
/// Factors up to this are told.
const TIMES_MAX: f64 = 1000.0;
/// Factors up to this may be a plan's: beyond it a calibration is of another machine.
const CALIBRATION_MAX: f64 = 20.0;
/// What may be faster: in words, and whether computing is and moving memory.
const PARTS: [(&str, [bool; 2]); 3] =
    [("memory", [false, true]), ("cores", [true, false]), ("cores and memory", [true, true])];

/// For each limit on time that no memory helps to keep, of those that are to blame: what it takes, and how much faster the machine
/// would have to be.
pub fn out_of_reach(search: &Search<'_>, conflict: &[&str]) -> Vec<Offer> {
    if conflict.contains(&"user.mem") || conflict.contains(&"hw.capacity") {
        return Vec::new();
    }
    let limits = &search.question.limits;
    let speed = limits.speed_min.filter(|_| conflict.contains(&SPEED));
    let prompts = limits.prompts_max.iter().filter(|limit| conflict.contains(&limit.name));
    let of_speed = speed.and_then(|floor| token(search, floor));
    of_speed.into_iter().chain(prompts.filter_map(|limit| prompt(search, limit))).collect()
}

/// The question with all memory that there can be, and tokens and prompts that may take any time.
fn unlimited<'a>(question: &Question<'a>) -> Question<'a> {
    question.within(Limits {
        memory_bytes: UNLIMITED_BYTES,
        machine_bytes: UNLIMITED_BYTES,
        user_memory_bytes: None,
        speed_min: None,
        ..question.limits.without_prompts()
    })
}

/// A token.
fn token(search: &Search<'_>, floor: f64) -> Option<Offer> {
    let Search { question, space, .. } = *search;
    let context = question.limits.context;
    let unlimited = unlimited(question);
    let regions = regions_within(UNLIMITED_BYTES);
    let pricing = Pricing::new(&unlimited, space);
    let best = search.fastest(&unlimited)?;
    let decided = assemble::decide(&pricing, &best, regions);
    let decision = decided.decision(pricing.level(best.config));
    let price = cost::decode(&unlimited, &decision);
    let seconds = price.mean_seconds(context);
    let works =
        [&price.attention, &price.predictor, &price.look_ahead, &price.gate_up, &price.down, &price.rest];
    let sum = |of: fn(&cost::Work) -> f64| works.iter().map(|work| of(work)).sum::<f64>() * 1e3;
    let sentence = format!(
        "no memory helps: with everything resident the best is {} tok/s, {:.1} ms a token, of which computing alone takes {:.1} ms, moving weights through memory alone {:.1} ms, and what nothing overlaps {:.1} ms; {floor} tok/s allow {:.1} ms",
        down(1.0 / seconds),
        seconds * 1e3,
        sum(|work| work.compute_seconds),
        sum(cost::Work::memory),
        sum(cost::Work::serial),
        1e3 / floor,
    );
    let enough = |[compute, memory]: [f64; 2]| {
        let faster =
            Question { device: &sped_up(question.device, compute, memory, 1.0), ..unlimited.clone() };
        1.0 / cost::decode(&faster, &decision).mean_seconds(context) * DIGITS >= floor
    };
    Some(with_what_would_do(search, sentence, &enough))
}

/// A prompt.
fn prompt(search: &Search<'_>, limit: &PromptLimit) -> Option<Offer> {
    let Search { question, space, .. } = *search;
    let reads = space.options.first()?.reads.first()?.price();
    let tokens = limit.tokens;
    // nothing is read but rows of the embedding, which need not be
    let seconds = |question: &Question<'_>, prompt: &Prompt| {
        let choice = PromptChoice { reads, embedding_rows: false, cores: &prompt.cores, chunk: prompt.chunk };
        PromptPrice::new(question, &choice, tokens).computing()
    };
    let of_all = |question: &Question<'_>| {
        let priced = space.prompts.iter().map(|prompt| (seconds(question, prompt), prompt));
        priced.min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let (least, with) = of_all(question)?;
    let flops = cost::rates(question, &with.cores).prompt_flops.0;
    let cores = with.cores.len();
    let sentence = format!(
        "no memory helps: with everything resident a prompt of {tokens} tokens takes {} s, {} tok/s, on {cores} core{} with {:.1} GFLOP/s, {} tokens at a time; {} s are allowed",
        up(least),
        down(f64::from(tokens) / least),
        if cores == 1 { "" } else { "s" },
        flops / 1e9,
        with.chunk.min(tokens),
        plans::file::significant(limit.seconds_max),
    );
    let enough = |[compute, memory]: [f64; 2]| {
        let faster = Question { device: &sped_up(question.device, compute, memory, 1.0), ..question.clone() };
        of_all(&faster).is_some_and(|(seconds, _)| seconds <= limit.seconds_allowed())
    };
    Some(with_what_would_do(search, sentence, &enough))
}

/// A sentence with what would have to be faster and by how much, and the request on such a machine if there is a plan for it.
fn with_what_would_do(search: &Search<'_>, sentence: String, enough: &dyn Fn([f64; 2]) -> bool) -> Offer {
    let by = |parts: [bool; 2], times: f64| parts.map(|faster| if faster { times } else { 1.0 });
    let found = PARTS
        .iter()
        .find_map(|&(what, parts)| Some((what, parts, least_times(&|times| enough(by(parts, times)))?)));
    let Some((what, parts, times)) = found else { return Offer { sentence, request: None } };
    let question = search.question;
    let [compute, memory] = by(parts, times);
    let faster = sped_up(question.device, compute, memory, 1.0);
    let there = exists(&Question { device: &faster, ..question.clone() });
    let beside = if there { "" } else { " with everything resident" };
    let request = there.then(|| {
        let mut request = question.origin.request.clone();
        let mut factors = request.calibration.unwrap_or(Factors::NONE);
        factors.compute *= compute;
        factors.stream *= memory;
        factors.gather *= memory;
        request.calibration = Some(factors);
        request
    });
    let may = |request: &plans::plan::Request| {
        let factors = request.calibration.iter().flat_map(Factors::named);
        factors.into_iter().all(|(_, factor)| factor <= CALIBRATION_MAX)
    };
    Offer {
        sentence: format!("{sentence}; {what} {times:.2} times as fast would do{beside}"),
        request: request.filter(may),
    }
}

/// The least factor up to [`TIMES_MAX`] that is enough, rounded up.
fn least_times(enough: &dyn Fn(f64) -> bool) -> Option<f64> {
    let (mut low, mut high) = (1.0, TIMES_MAX);
    if !enough(high) {
        return None;
    }
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if enough(middle) { high = middle } else { low = middle }
    }
    Some((high * 100.0).ceil() / 100.0)
}
