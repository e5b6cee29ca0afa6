//! The search for the best plan: enumerate the ways, dismiss what is beaten, let Z3 choose among the rest.

use plans::plan::{Objective, Plan, SimpleRule, Speculation};

use crate::assemble::{self, Decided};
use crate::cost::{self, DecodePrice};
use crate::curve::{Curve, div_up};
use crate::decisions::{self, Taken};
use crate::encode::encode;
use crate::error::PlanError;
use crate::field::{ALIKE, Candidate, Fastest, Field, alike};
use crate::problem::Problem;
use crate::request::{self, DIGITS, Inputs, Limits, Question};
use crate::room::{regions_within, with_page_tables};
use crate::simple_rule;
use crate::solve::{self, Outcome};
use crate::space::{Configuration, Space};
use crate::speculation;
use crate::tables::{Bound, Mode, Tables};
use crate::verify::verify;

/// Tokens of the prompt by which plans that decode alike are compared, or as many as the context holds.
const LONG_PROMPT: u32 = 512;
/// Near-optimal configurations whose variants may survive presolve, and how many of these do.
const NEAR_MAX: usize = 8;
const SURVIVORS_MAX: usize = 12;
/// Core sets that are smaller than the incumbent's, of which survive so many.
const FEWER_MAX: usize = 4;
/// More hundredths of a logarithm than any prompt's seconds are below 1.
const PROMPT_LEAST: i64 = 4096;
/// Splits that are tried in vain for each way for prompts to pass.
const FAILED_MAX: usize = 2;
/// Rounds of the master problem.
const ROUNDS_MAX: usize = 32;
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
    /// The plan's configuration, in the space of its request.
    pub way: Configuration,
    /// Rounds of the master problem.
    pub rounds: usize,
    /// Figures of drafts of one token, of two, and so on with these decisions; none where the profile has not measured it.
    pub drafts: Vec<Speculation>,
}

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

/// The decisions of a plan, each with its runner-up, and seconds of a tick.
///
/// # Errors
/// A request that makes no sense.
pub fn decisions(inputs: &Inputs, solved: &Solved) -> Result<(Vec<Taken>, f64), PlanError> {
    let question = request::resolve(inputs, &solved.plan.request)?;
    let space = Space::new(&question);
    let field = Field::new(&question, &space);
    let regions = regions_within(question.limits.memory_bytes);
    Ok((decisions::taken(&field, solved.way, regions), field.tick_seconds))
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
            if self.field.keeps_times(&chosen.candidate) {
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

    /// Of the configurations that presolve leaves, the one that Z3 chooses: logic-based Benders decomposition.
    ///
    /// The master problem sees the relaxation of each. The subproblem splits the memory of Z3's choice exactly; the split is a cut
    /// on that configuration, and Z3 chooses again until its choice has been split.
    fn chosen(
        &self,
        fastest: Fastest,
        simple: Option<&SimpleRule>,
        regions: i64,
    ) -> Result<Chosen, PlanError> {
        let slowest = self.slowest(&fastest, simple);
        let (mut survivors, mut rest) = self.survivors(&fastest, slowest, regions);
        let mut tables = self.tables(&survivors, (fastest.least, slowest), regions);
        let mut failed = vec![0; self.space.prompts.len()];
        for round in 1..=ROUNDS_MAX {
            let encoded = encode(&tables);
            let Outcome::Best(values) = solve::solve(&encoded.problem, None)? else { break };
            let mode = encoded.choice(&values).mode;
            if let Some(candidate) = survivors[mode].split.take() {
                return Ok(Chosen { fastest, candidate, tables, rounds: round });
            }
            if let Some(candidate) = self.field.as_fast(survivors[mode].way, regions, slowest) {
                tables.modes[mode].least = (candidate.ticks, div_up(candidate.regions, PAGE));
                survivors[mode].split = Some(candidate);
                continue;
            }
            // no split is as fast: others take its place, with another prompt once two have failed
            let prompt = survivors[mode].way.prompt;
            failed[prompt] += 1;
            survivors.remove(mode);
            tables.modes.remove(mode);
            if failed[prompt] >= FAILED_MAX {
                let hopeless =
                    |survivor: &Survivor| survivor.split.is_none() && survivor.way.prompt == prompt;
                let kept: Vec<bool> = survivors.iter().map(|survivor| !hopeless(survivor)).collect();
                let mut of_modes = kept.iter();
                tables.modes.retain(|_| of_modes.next().is_some_and(|kept| *kept));
                survivors.retain(|survivor| !hopeless(survivor));
            }
            let next = rest.find(|next| {
                failed[next.way.prompt] < FAILED_MAX && self.may(next.way, (&fastest.best, slowest), regions)
            });
            if let Some(next) = next {
                tables.modes.push(self.mode(&next, fastest.least, regions));
                survivors.push(next);
            }
        }
        let known = survivors.into_iter().find_map(|survivor| survivor.split);
        let known = known.map(|candidate| Chosen { fastest, candidate, tables, rounds: ROUNDS_MAX });
        known.ok_or_else(|| {
            PlanError::Unverified("the master problem has lost the plan that is known".to_owned())
        })
    }

    /// Ticks of a plan that is as fast as the fastest, and no slower than the simple rule.
    fn slowest(&self, fastest: &Fastest, simple: Option<&SimpleRule>) -> i64 {
        let simple = simple.map_or(i64::MAX, |simple| {
            (1.0 / simple.decode_tokens_per_second / self.field.tick_seconds) as i64
        });
        let limit = self.field.time_max.unwrap_or(i64::MAX);
        alike(fastest.standard).min(limit).min(simple).max(fastest.best.ticks)
    }

    /// The configurations among which Z3 chooses: the incumbent, and those whose relaxation is as fast and whose prompts are no
    /// slower, with other chunks and cores for prompts, numbers of reads in flight and of buffers, the fastest prompts first; and
    /// smaller core sets. Behind them the ones that take the place of those that a cut removes.
    fn survivors(
        &self,
        fastest: &Fastest,
        slowest: i64,
        regions: i64,
    ) -> (Vec<Survivor>, std::vec::IntoIter<Survivor>) {
        let tokens = LONG_PROMPT.min(self.question.limits.context.saturating_sub(1)).max(1);
        let hot = self.field.hot(&fastest.best);
        let prompt = |way: Configuration| {
            (self.field.prompt_price(way, tokens).seconds(&hot).ln() * 100.0).round() as i64 + PROMPT_LEAST
        };
        let best = fastest.best.way;
        let incumbent = Survivor { way: best, prompt: prompt(best), split: Some(fastest.best.clone()) };
        let mut ways: Vec<Configuration> = Vec::new();
        for &(_, near) in fastest.near.iter().take(NEAR_MAX) {
            for way in self.field.siblings(near) {
                ways.extend((0..self.space.prompts.len()).map(|prompt| Configuration { prompt, ..way }));
            }
        }
        ways.sort_unstable();
        ways.dedup();
        let room = |way| self.field.room(way, regions);
        let mut ways: Vec<(i64, i64, Configuration)> =
            ways.into_iter().map(|way| (prompt(way), room(way).rows - room(way).bytes, way)).collect();
        ways.retain(|&(prompt, _, way)| prompt <= incumbent.prompt && way != best);
        ways.sort_unstable();
        let may = |way: Configuration| self.may(way, (&fastest.best, slowest), regions);
        let mut survivors = vec![incumbent];
        let cores = self.field.cores(best);
        let computes =
            (0..self.space.ways[best.level].computes.len()).map(|compute| Configuration { compute, ..best });
        let mut fewer: Vec<(i64, Configuration)> = computes.map(|way| (self.field.cores(way), way)).collect();
        fewer.retain(|&(of_way, _)| of_way < cores);
        fewer.sort_unstable();
        let fewer = fewer.into_iter().map(|(_, way)| way).filter(|&way| may(way)).take(FEWER_MAX);
        survivors.extend(fewer.map(|way| Survivor { way, prompt: prompt(way), split: None }));
        let mut rest = ways.into_iter().map(|(prompt, _, way)| Survivor { way, prompt, split: None });
        survivors.extend(rest.by_ref().filter(|survivor| may(survivor.way)).take(SURVIVORS_MAX));
        (survivors, rest.collect::<Vec<_>>().into_iter())
    }

    /// Whether presolve leaves a configuration: its relaxation is as fast, also if its split lies as far above as the incumbent's does.
    fn may(&self, way: Configuration, (best, slowest): (&Candidate, i64), regions: i64) -> bool {
        let bound = |way| self.field.bound_of(way, regions);
        let gap = bound(best.way).map_or(0, |bound| best.ticks - bound);
        bound(way).is_some_and(|bound| bound + gap.max(0) <= slowest)
    }

    /// The master problem over these configurations, none of which is faster than `least`; all that are no slower than `slowest` are as
    /// fast.
    fn tables(&self, survivors: &[Survivor], (least, slowest): (i64, i64), regions: i64) -> Tables {
        // a process is not whole pages, and what neurons take is rounded down
        let within = |bytes: u64| regions_within(bytes).min(regions).div_euclid(PAGE) + 1;
        let modes: Vec<Mode> = survivors.iter().map(|survivor| self.mode(survivor, least, regions)).collect();
        let smallest = modes.iter().map(|mode| mode.least.1).max().unwrap_or(0);
        Tables {
            modes,
            user_pages: self.question.limits.user_memory_bytes.map(within),
            machine_pages: within(self.question.limits.machine_bytes),
            time_max: self.field.time_max,
            time_slack: slowest - least,
            memory_slack: smallest / ALIKE,
        }
    }

    /// A configuration as the master problem sees it: its relaxation, and its exact split once that is known.
    fn mode(&self, survivor: &Survivor, least: i64, regions: i64) -> Mode {
        let (way, room) = (survivor.way, self.field.room(survivor.way, regions));
        let curve = &self.space.relaxation(self.space.node_of(way)).curve;
        let of_split = |split: &Candidate| (split.ticks, div_up(split.regions, PAGE));
        Mode {
            serial: self.field.serial(way),
            pages: (regions - room.bytes + room.tables).div_euclid(PAGE),
            cores: self.field.cores(way),
            prompt: survivor.prompt,
            least: survivor.split.as_ref().map_or((least, 0), of_split),
            layers: bound_of(&curve.in_units(PAGE)),
        }
    }

    fn solved(
        &self,
        Chosen { fastest, candidate, tables, rounds }: Chosen,
        simple: Option<SimpleRule>,
        regions: i64,
    ) -> Result<Solved, PlanError> {
        let (question, field) = (self.question, self.field);
        let candidate = &candidate;
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
            way: candidate.way,
            rounds,
            drafts,
            tables,
        })
    }
}

/// Z3's choice, and the master problem in its last round.
struct Chosen {
    fastest: Fastest,
    candidate: Candidate,
    tables: Tables,
    rounds: usize,
}

/// A configuration that presolve leaves.
struct Survivor {
    way: Configuration,
    /// Hundredths of the logarithm of a long prompt's seconds.
    prompt: i64,
    /// The exact split, once the subproblem has found it.
    split: Option<Candidate>,
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
