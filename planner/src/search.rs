//! The search for the best plan: enumerate the ways, dismiss what is beaten, let Z3 choose among the rest.

use plans::plan::{Objective, Plan, SimpleRule, Speculation};

use crate::assemble::{self, Decided};
use crate::cost::{self, DecodePrice};
use crate::curve::{Curve, div_up};
use crate::encode::encode;
use crate::error::PlanError;
use crate::field::{ALIKE, Candidate, Fastest, Field, NEAR_MAX, alike};
use crate::problem::Problem;
use crate::request::{DIGITS, Limits, Question};
use crate::room::{regions_within, with_page_tables};
use crate::simple_rule;
use crate::solve::{self, Outcome};
use crate::space::{Space, Way};
use crate::speculation;
use crate::tables::{Bound, Mode, Tables};
use crate::verify::verify;
use crate::ways::Ways;

/// Tokens of the prompt by which plans that decode alike are compared, or as many as the context holds.
const LONG_PROMPT: u32 = 512;
/// Prompts, reads and buffers that are tried with each.
const TRIES_MAX: usize = 32;
/// How often a plan of least memory is sought again within its own size.
const SIZES_MAX: usize = 8;
/// How far lines may lie below a curve, as a share of its fall.
const CLOSE: i64 = 2000;
/// Bytes of a page.
const PAGE: i64 = plans::PAGE_BYTES as i64;

/// A finished plan and how it came about.
#[derive(Debug, Clone)]
pub struct Solved {
    /// The plan.
    pub plan: Plan,
    /// The plan's decisions, as the cost model takes them.
    pub decided: Decided,
    /// The problem that the solver was given, in whole numbers.
    pub tables: Tables,
    /// The price of a token, term by term.
    pub price: DecodePrice,
    /// No plan within the limits takes less than so many seconds for a token.
    pub seconds_proven: f64,
    /// No plan that keeps the other limits takes less memory than so many bytes, where that is what is made small.
    pub bytes_proven: Option<u64>,
    /// Seconds of a tick, in which the solver counts.
    pub tick_seconds: f64,
    /// How many ways to decode there are.
    pub ways: usize,
    /// How many of them were priced layer by layer; the others are beaten by their totals.
    pub priced: usize,
    /// Levels with policies, and what became of each.
    pub levels: Fates,
    /// Figures of drafts of one token, of two, and so on with these decisions; none where the profile has not measured it.
    pub drafts: Vec<Speculation>,
}

/// Levels by name, and what became of each.
pub type Fates = Vec<(String, &'static str)>;

/// The best plan within the limits, or `None` where no plan satisfies them.
///
/// # Errors
/// [`PlanError::Unknown`] and [`PlanError::Unverified`].
pub fn best_plan(question: &Question<'_>) -> Result<Option<Solved>, PlanError> {
    best_in(question, &Space::new(question))
}

/// The best plan within the limits, of a space that is there already; `None` where no plan satisfies them.
///
/// # Errors
/// As [`best_plan`].
pub fn best_in(question: &Question<'_>, space: &Space<'_>) -> Result<Option<Solved>, PlanError> {
    let field = Field::new(question, space);
    let regions = regions_within(question.limits.memory_bytes);
    let search = Search { question, space, field: &field };
    match question.limits.objective {
        Objective::Speed => search.fastest(regions),
        Objective::Memory => search.smallest(regions),
    }
}

/// The solver's problem over the plans that decode as fast as any. Where the limits on time leave none, it is over those
/// without these limits, and says that they cannot be kept.
///
/// # Errors
/// As [`best_plan`].
pub fn problem(question: &Question<'_>) -> Result<Problem, PlanError> {
    if let Some(solved) = best_plan(question)? {
        return Ok(encode(&solved.tables).problem);
    }
    let limits = &question.limits;
    let mut free =
        Limits { speed_min: None, prompts_max: Vec::new(), objective: Objective::Speed, ..limits.clone() };
    let mut solved = best_plan(&question.within(free.clone()))?;
    if solved.is_none() {
        (free.memory_bytes, free.machine_bytes, free.user_memory_bytes) = (u64::MAX, u64::MAX, None);
        solved = best_plan(&question.within(free))?;
    }
    let Some(solved) = solved else { return Ok(Problem::default()) };
    let ticks = |seconds: f64| (seconds / solved.tick_seconds) as i64;
    let pages = |bytes: u64| regions_within(bytes).div_euclid(PAGE) + 1;
    let tables = Tables {
        time_max: limits.speed_min.map(|speed| ticks(DIGITS / speed)),
        user_pages: limits.user_memory_bytes.map(pages),
        machine_pages: pages(limits.machine_bytes),
        ..solved.tables
    };
    Ok(encode(&tables).problem)
}

/// A search and all that it needs to know.
struct Search<'a> {
    question: &'a Question<'a>,
    space: &'a Space<'a>,
    field: &'a Field<'a>,
}

impl Search<'_> {
    /// The plan that takes least memory, and of those that are as small the fastest.
    ///
    /// It is found again under its own size: that is sought until it stays the same.
    fn smallest(&self, regions: i64) -> Result<Option<Solved>, PlanError> {
        let Some((least, found)) = self.field.smallest(regions) else { return Ok(None) };
        let proven = with_page_tables(least) as u64;
        let mut most = alike(found).min(regions);
        let mut last: Option<Solved> = None;
        for _ in 0..SIZES_MAX {
            let Some(mut solved) = self.fastest(most)? else { break };
            let taken = solved.plan.memory.prefill_total_bytes;
            let same = last.as_ref().is_some_and(|last| last.plan.memory.prefill_total_bytes == taken);
            solved.bytes_proven = Some(proven);
            last = Some(solved);
            most = regions_within(taken);
            if same {
                break;
            }
        }
        Ok(last)
    }

    /// The fastest plan within so many bytes of regions, and of those that are as fast the one with the fastest prompts, then
    /// the smallest.
    ///
    /// Where time is limited that is the same plan as without, if it keeps the limits.
    fn fastest(&self, regions: i64) -> Result<Option<Solved>, PlanError> {
        let simple = simple_rule::best(self.question, self.space).map(|simple| simple.rule);
        let limits = &self.question.limits;
        let fastest = if !limits.on_time() {
            self.field.fastest(regions)
        } else if !limits.prompts_max.is_empty() && self.field.none_may(regions) {
            None
        } else {
            let question = self.question.within(limits.without_times());
            let field = Field::new(&question, self.space);
            let free = Search { question: &question, field: &field, ..*self };
            let Some(fastest) = field.fastest(regions) else { return Ok(None) };
            // nothing is as fast
            if self.field.time_max.is_some_and(|most| most < fastest.least) {
                return Ok(None);
            }
            let simple_of_free = simple_rule::best(&question, self.space).map(|simple| simple.rule);
            let mut chosen = free.chosen(fastest, simple_of_free.as_ref(), regions)?;
            if self.field.keeps_times(&chosen.offer.candidate) {
                chosen.tables.time_max = self.field.time_max;
                return self.solved(chosen, simple, regions).map(Some);
            }
            if limits.prompts_max.is_empty() {
                self.field.fastest(regions)
            } else {
                self.field.fastest_beside(&chosen.fastest, regions)
            }
        };
        let Some(fastest) = fastest else { return Ok(None) };
        let chosen = self.chosen(fastest, simple.as_ref(), regions)?;
        self.solved(chosen, simple, regions).map(Some)
    }

    /// Of the plans that are as fast as the fastest the one that Z3 chooses.
    fn chosen(
        &self,
        fastest: Fastest,
        simple: Option<&SimpleRule>,
        regions: i64,
    ) -> Result<Chosen, PlanError> {
        let slowest = self.slowest(&fastest, simple);
        let mut offers = self.offers(&fastest, slowest, regions);
        let tables = self.tables(&offers, slowest - fastest.best.ticks, regions);
        let encoded = encode(&tables);
        let Outcome::Best(values) = solve::solve(&encoded.problem, None)? else {
            return Err(PlanError::Unverified("the solver does not find the plan that is known".to_owned()));
        };
        let offer = offers.swap_remove(encoded.choice(&values).mode);
        Ok(Chosen { fastest, offer, tables })
    }

    /// Ticks of a plan that is as fast as the fastest, and no slower than the simple rule.
    fn slowest(&self, fastest: &Fastest, simple: Option<&SimpleRule>) -> i64 {
        let simple = simple.map_or(i64::MAX, |simple| {
            (1.0 / simple.decode_tokens_per_second / self.field.tick_seconds) as i64
        });
        let limit = self.field.time_max.unwrap_or(i64::MAX);
        alike(fastest.standard).min(limit).min(simple).max(fastest.best.ticks)
    }

    /// What there is to choose among: of every way that decodes as fast, the chunk, the cores for prompts, the reads in flight
    /// and the buffers with which prompts are fastest while it still does.
    fn offers(&self, fastest: &Fastest, slowest: i64, regions: i64) -> Vec<Offer> {
        let tokens = LONG_PROMPT.min(self.question.limits.context.saturating_sub(1)).max(1);
        let prompt = |way: Way, hot: &[u32]| {
            (self.field.prompt_price(way, tokens).seconds(hot).ln() * 100.0).round() as i64
        };
        let offer = |candidate: Candidate| Offer {
            prompt: prompt(candidate.way, &self.field.hot(&candidate)),
            candidate,
        };
        let mut near: Vec<Way> = Vec::new();
        for way in fastest.near.iter().map(|&(_, way)| Way { prompt: 0, ..way }) {
            if !near.contains(&way) && near.len() < NEAR_MAX {
                near.push(way);
            }
        }
        let hot_of_best = self.field.hot(&fastest.best);
        let mut offers = vec![offer(fastest.best.clone())];
        let mut best = offers[0].prompt;
        for way in near {
            let prompts = 0..self.space.prompts.len();
            let siblings = self.field.siblings(way).into_iter();
            let ways = siblings.flat_map(|way| prompts.clone().map(move |prompt| Way { prompt, ..way }));
            let room = |way| self.field.room(way, regions);
            // bounds differ about as much as what they bound
            let known = self.field.bound_of(fastest.best.way, regions, i64::MAX).unwrap_or(0);
            let estimate = |bound: i64| fastest.best.ticks + bound - known;
            let may = |way: &Way| {
                let bound = self.field.bound_of(*way, regions, slowest);
                bound.is_some_and(|bound| bound <= slowest && estimate(bound) <= slowest)
            };
            let mut ways: Vec<(i64, i64, Way)> = ways
                .filter(may)
                .map(|way| (prompt(way, &hot_of_best), room(way).rows - room(way).bytes, way))
                .filter(|(prompt, ..)| *prompt <= best)
                .collect();
            ways.sort_unstable();
            let found = ways
                .into_iter()
                .take(TRIES_MAX)
                .find_map(|(_, _, way)| self.field.as_fast(way, regions, slowest));
            // what costs nothing, if all else is too much
            let found = found.or_else(|| {
                let own = (0..self.space.prompts.len()).rev().map(|prompt| Way { prompt, ..way });
                own.filter(may).find_map(|way| self.field.as_fast(way, regions, slowest))
            });
            if let Some(found) = found.map(offer) {
                best = best.min(found.prompt);
                offers.push(found);
            }
        }
        offers.sort_by_key(|offer| (offer.candidate.ticks, offer.candidate.way));
        offers
    }

    /// The solver's problem over these offers.
    fn tables(&self, offers: &[Offer], time_slack: i64, regions: i64) -> Tables {
        let slowest = offers.iter().map(|offer| offer.candidate.ticks).max().unwrap_or(0);
        let mode = |offer: &Offer| {
            let Candidate { way, ticks, regions: taken, .. } = &offer.candidate;
            // the offer itself is among what is no slower than the slowest
            let (items, budget) = self.field.layers(*way, regions, slowest, false)?;
            let curves = items.iter().map(|items| {
                let points: Vec<(i64, i64)> =
                    items.iter().map(|item| (item.need.bytes(), item.ticks)).collect();
                Curve::over(&points)
            });
            let curves: Vec<Curve> = curves.collect();
            Some(Mode {
                serial: self.field.serial(*way),
                pages: (regions - budget.room.bytes + budget.room.tables).div_euclid(PAGE),
                cores: self.field.cores(*way),
                prompt: offer.prompt,
                least: (*ticks, div_up(*taken, PAGE)),
                layers: bound_of(&Curve::sum(curves.iter()).in_units(PAGE)),
            })
        };
        // a process is not whole pages, and what neurons take is rounded down
        let within = |bytes: u64| regions_within(bytes).min(regions).div_euclid(PAGE) + 1;
        let smallest = offers.iter().map(|offer| offer.candidate.regions).min().unwrap_or(0);
        let least = offers.iter().map(|offer| offer.prompt).min().unwrap_or(0);
        let modes = offers.iter().filter_map(mode).map(|mode| Mode { prompt: mode.prompt - least, ..mode });
        Tables {
            modes: modes.collect(),
            user_pages: self.question.limits.user_memory_bytes.map(within),
            machine_pages: within(self.question.limits.machine_bytes),
            time_max: self.field.time_max,
            time_slack,
            memory_slack: smallest / PAGE / ALIKE,
        }
    }

    fn solved(
        &self,
        Chosen { fastest, offer, tables }: Chosen,
        simple: Option<SimpleRule>,
        regions: i64,
    ) -> Result<Solved, PlanError> {
        let (question, field) = (self.question, self.field);
        let candidate = &offer.candidate;
        let level = field.level(candidate.way);
        let decided = assemble::decide(field, candidate, regions);
        let nothing = SimpleRule { decode_tokens_per_second: 0.0, memory_peak_bytes: 0 };
        let plan = assemble::plan(question, level, &decided, simple.unwrap_or(nothing));
        verify(question, &plan, &decided, candidate.ticks as f64 * field.tick_seconds)?;
        let drafts = speculation::all(question, &decided.decision(level));
        Ok(Solved {
            plan,
            price: cost::decode(question, &decided.decision(level)),
            decided,
            // ticks are rounded up, once for each layer and once for the rest
            seconds_proven: (fastest.least - level.layers.len() as i64 - 1) as f64 * field.tick_seconds,
            bytes_proven: None,
            tick_seconds: field.tick_seconds,
            ways: field.count(),
            priced: fastest.priced,
            levels: self.fates(&fastest, candidate.way),
            drafts,
            tables,
        })
    }

    fn fates(&self, fastest: &Fastest, taken: Way) -> Fates {
        let fate = |(level, ways): (usize, &Ways<'_>)| {
            let fate = if taken.level == level {
                "taken"
            } else if fastest.near.iter().any(|(_, way)| way.level == level) {
                "as fast, but not as good otherwise"
            } else {
                "no faster than the plan at its bound, or does not fit"
            };
            (format!("{} with {}", ways.level.name, ways.policy), fate)
        };
        self.space.ways.iter().enumerate().map(fate).collect()
    }
}

/// The plan that was chosen, and among which.
struct Chosen {
    fastest: Fastest,
    offer: Offer,
    tables: Tables,
}

/// A plan that decodes as fast as any.
struct Offer {
    /// The plan.
    candidate: Candidate,
    /// Hundredths of the logarithm of a long prompt's seconds.
    prompt: i64,
}

fn bound_of(curve: &Curve) -> Bound {
    let (first, last) = (curve.corners[0], curve.corners[curve.corners.len() - 1]);
    Bound {
        least: first.0,
        most: last.0,
        floor: last.1,
        lines: curve.lines(((first.1 - last.1) / CLOSE).max(1)),
    }
}
