//! The search for the best plan: enumerate the configurations, dismiss what is beaten, let Z3 choose among the rest.

use plans::plan::{Objective, Plan, SimpleRule, Speculation};

use crate::assemble;
use crate::blame;
use crate::candidate::{Candidate, Fastest, TIE, tied};
use crate::core;
use crate::cost::speculation;
use crate::cost::{self, DecodePrice};
use crate::curve::div_up;
use crate::decided::Decided;
use crate::decisions::{self, Taken};
use crate::encode::encode;
use crate::error::PlanError;
use crate::presolve::Presolve;
use crate::pricing::Pricing;
use crate::problem::Problem;
use crate::question::{Inputs, Limits, Question};
use crate::request::{self};
use crate::room::{regions_within, with_page_tables};
use crate::simple_rule;
use crate::solve::{self, Outcome};
use crate::space::Configuration;
use crate::split::Wanted;
use crate::tables::{Bound, Mode, Need, PAGE, Tables};
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
/// How often a plan of least memory is sought again within its own size.
const SIZES_MAX: usize = 8;

/// A finished plan and how it came about.
#[derive(Debug, Clone)]
pub struct Solved {
    /// The plan.
    pub plan: Plan,
    /// The plan's decisions, as the cost model takes them.
    pub decided: Decided,
    /// The problem that the solver was given, in whole numbers.
    pub tables: Tables,
    /// The configuration of each of its modes.
    pub modes: Vec<Configuration>,
    /// The price of a token, term by term.
    pub price: DecodePrice,
    /// No plan within the limits takes less than so many seconds for a token.
    pub seconds_proven: f64,
    /// No plan that keeps the other limits takes less memory than so many bytes, where that is what is made small.
    pub bytes_proven: Option<u64>,
    /// Seconds of a tick, in which the solver counts.
    pub tick_seconds: f64,
    /// How many configurations there are.
    pub configurations: usize,
    /// How many of them were priced layer by layer; the others are beaten by their totals.
    pub priced: usize,
    /// The plan's configuration, in the space of its request.
    pub config: Configuration,
    /// Rounds of the master problem.
    pub rounds: usize,
    /// The limits of the problem that was solved, with the drafts that were chosen.
    pub limits: Limits,
    /// Figures of drafts of one token, of two, and so on with these decisions; none where the profile has not measured it.
    pub drafts: Vec<Speculation>,
}

impl Solved {
    /// How much worse than the lower bound the plan's objective is, as a fraction of the bound.
    pub fn gap(&self) -> f64 {
        let over = match self.bytes_proven {
            Some(least) => self.plan.memory.prefill_total_bytes as f64 / least.max(1) as f64,
            None => 1.0 / (self.plan.expected.decode_tokens_per_second * self.seconds_proven),
        };
        (over - 1.0).max(0.0)
    }
}

/// The best plan within the limits, or `None` where no plan satisfies them.
///
/// # Errors
/// [`PlanError::Unknown`] and [`PlanError::Unverified`].
pub fn best_plan(question: &Question<'_>) -> Result<Option<Solved>, PlanError> {
    best_in(question, &Presolve::new(question))
}

/// The best plan within the limits, of a space that is there already; `None` where no plan satisfies them.
///
/// # Errors
/// As [`best_plan`].
pub fn best_in(question: &Question<'_>, space: &Presolve<'_>) -> Result<Option<Solved>, PlanError> {
    let pricing = Pricing::new(question, space);
    let regions = regions_within(question.limits.memory_bytes);
    let search = Search { question, space, pricing: &pricing };
    match question.limits.objective {
        Objective::Speed => search.fastest(regions),
        Objective::Memory => search.smallest(regions),
    }
}

/// The master problem of the last round; where no plan satisfies the limits, the one that has no solution under them.
///
/// # Errors
/// As [`best_plan`].
pub fn problem(question: &Question<'_>) -> Result<Problem, PlanError> {
    let space = Presolve::new(question);
    if let Some(solved) = best_in(question, &space)? {
        return Ok(encode(&solved.tables).problem);
    }
    core::problem(&blame::Search::new(question, &space))
}

/// The fewest pages, in all, with which a configuration keeps each limit on prompts.
fn needs(pricing: &Pricing<'_>, config: Configuration, regions: i64) -> Vec<Need> {
    let room = pricing.room(config, regions);
    let beside = regions - room.bytes + room.tables + room.rows;
    let names = pricing.question.limits.prompts_max.iter().map(|limit| vec![limit.name]);
    let pages = pricing
        .limited
        .pinned_least(config)
        .into_iter()
        .map(|pinned| Some((beside + pinned?).div_euclid(PAGE)));
    names.zip(pages).map(|(limits, pages)| Need { limits, pages }).collect()
}

/// The decisions of a plan, each with its runner-up in the problem that was solved, and seconds of a tick.
///
/// # Errors
/// A request that makes no sense.
pub fn decisions(inputs: &Inputs, solved: &Solved) -> Result<(Vec<Taken>, f64), PlanError> {
    let question = request::resolve(inputs, &solved.plan.request)?.within(solved.limits.clone());
    let space = Presolve::new(&question);
    let pricing = Pricing::new(&question, &space);
    let regions = regions_within(question.limits.memory_bytes);
    Ok((decisions::taken(&pricing, solved.config, regions), pricing.tick_seconds))
}

/// A search and all that it needs to know.
struct Search<'a> {
    question: &'a Question<'a>,
    space: &'a Presolve<'a>,
    pricing: &'a Pricing<'a>,
}

impl Search<'_> {
    /// The plan that takes least memory, and of those that are as small the fastest.
    ///
    /// It is found again under its own size: that is sought until it stays the same.
    fn smallest(&self, regions: i64) -> Result<Option<Solved>, PlanError> {
        let Some((least, found)) = self.pricing.smallest(regions) else { return Ok(None) };
        let proven = with_page_tables(least) as u64;
        let mut most = (found + found / (2 * TIE)).min(regions);
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
            self.pricing.fastest(regions)
        } else if !limits.prompts_max.is_empty() && self.pricing.none_may(regions) {
            None
        } else {
            let question = self.question.within(limits.without_times());
            let pricing = Pricing::new(&question, self.space);
            let free = Search { question: &question, pricing: &pricing, ..*self };
            let Some(fastest) = pricing.fastest(regions) else { return Ok(None) };
            // nothing is as fast
            if self.pricing.time_max.is_some_and(|most| most < fastest.least) {
                return Ok(None);
            }
            let simple_of_free = simple_rule::best(&question, self.space).map(|simple| simple.rule);
            let mut chosen = free.chosen(fastest, simple_of_free.as_ref(), regions)?;
            if self.pricing.keeps_times(&chosen.candidate) {
                chosen.tables.time_max = self.pricing.time_max;
                return self.solved(chosen, simple, regions).map(Some);
            }
            if limits.prompts_max.is_empty() {
                self.pricing.fastest(regions)
            } else {
                self.pricing.fastest_beside(&chosen.fastest, regions)
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
        for round in 1..=self.space.rounds_max + 1 {
            if round > self.space.rounds_max {
                // among those that were split Z3 decides once more
                let mut of_modes = survivors.iter();
                tables.modes.retain(|_| of_modes.next().is_some_and(|survivor| survivor.split.is_some()));
                survivors.retain(|survivor| survivor.split.is_some());
                let fastest = tables.modes.iter().map(|mode| mode.least.0).min().unwrap_or(slowest);
                tables.time_slack = slowest - fastest;
            }
            let encoded = encode(&tables);
            let Outcome::Best(values) = solve::solve(&encoded.problem)? else { break };
            let mode = encoded.choice(&values).mode;
            if let Some(candidate) = survivors[mode].split.take() {
                let modes = survivors.iter().map(|survivor| survivor.config).collect();
                return Ok(Chosen { fastest, candidate, tables, modes, rounds: round });
            }
            let wanted = if self.pricing.limited.is_empty() { Wanted::Best } else { Wanted::Bound };
            if let (Some(candidate), _) =
                self.pricing.candidate(survivors[mode].config, regions, slowest, wanted)
            {
                tables.modes[mode].least = (candidate.ticks, div_up(candidate.regions, PAGE));
                survivors[mode].split = Some(candidate);
                continue;
            }
            // no split is as fast: another takes its place
            survivors.remove(mode);
            tables.modes.remove(mode);
            if let Some(next) = rest.find(|next| self.may(next.config, slowest, regions)) {
                tables.modes.push(self.mode(&next, fastest.least, regions));
                survivors.push(next);
            }
        }
        Err(PlanError::Unverified("the master problem has lost the plan that is known".to_owned()))
    }

    /// Ticks of a plan that is as fast as the fastest, and no slower than the simple rule.
    fn slowest(&self, fastest: &Fastest, simple: Option<&SimpleRule>) -> i64 {
        let simple = simple.map_or(i64::MAX, |simple| {
            (1.0 / simple.decode_tokens_per_second / self.pricing.tick_seconds) as i64
        });
        let limit = self.pricing.time_max.unwrap_or(i64::MAX);
        tied(fastest.standard).min(limit).min(simple).max(fastest.best.ticks)
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
        let hot = self.pricing.hot(&fastest.best);
        let prompt = |config: Configuration| {
            (self.pricing.limited.price(config, tokens).seconds(&hot).ln() * 100.0).round() as i64
                + PROMPT_LEAST
        };
        let best = fastest.best.config;
        let incumbent = Survivor { config: best, prompt: prompt(best), split: Some(fastest.best.clone()) };
        let mut others: Vec<Configuration> = Vec::new();
        for &(_, near) in fastest.near.iter().take(NEAR_MAX) {
            for config in self.pricing.siblings(near) {
                others.extend((0..self.space.prompts.len()).map(|prompt| Configuration { prompt, ..config }));
            }
        }
        others.sort_unstable();
        others.dedup();
        let room = |config| self.pricing.room(config, regions);
        let mut others: Vec<(i64, i64, Configuration)> = others
            .into_iter()
            .map(|config| (prompt(config), room(config).rows - room(config).bytes, config))
            .collect();
        others.retain(|&(prompt, _, config)| prompt <= incumbent.prompt && config != best);
        others.sort_unstable();
        let may = |config: Configuration| self.may(config, slowest, regions);
        let mut survivors = vec![incumbent];
        let cores = self.pricing.cores(best);
        let computes = (0..self.space.options[best.level].computes.len())
            .map(|compute| Configuration { compute, ..best });
        let mut fewer: Vec<(i64, Configuration)> =
            computes.map(|config| (self.pricing.cores(config), config)).collect();
        fewer.retain(|&(of_config, _)| of_config < cores);
        fewer.sort_unstable();
        let fewer = fewer.into_iter().map(|(_, config)| config).filter(|&config| may(config)).take(FEWER_MAX);
        survivors.extend(fewer.map(|config| Survivor { config, prompt: prompt(config), split: None }));
        let mut rest = others.into_iter().map(|(prompt, _, config)| Survivor { config, prompt, split: None });
        survivors.extend(rest.by_ref().filter(|survivor| may(survivor.config)).take(SURVIVORS_MAX));
        (survivors, rest.collect::<Vec<_>>().into_iter())
    }

    /// Whether presolve leaves a configuration: neither its relaxation nor the dual of its split is slower.
    fn may(&self, config: Configuration, slowest: i64, regions: i64) -> bool {
        let fast = |bound: Option<i64>| bound.is_some_and(|bound| bound <= slowest);
        fast(self.pricing.bound_of(config, regions)) && fast(self.pricing.split_least(config, regions))
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
            time_max: self.pricing.time_max,
            time_slack: slowest - least,
            memory_slack: smallest / TIE,
        }
    }

    /// A configuration as the master problem sees it: its relaxation, and its exact split once that is known.
    fn mode(&self, survivor: &Survivor, least: i64, regions: i64) -> Mode {
        let (config, room) = (survivor.config, self.pricing.room(survivor.config, regions));
        let curve = &self.space.relaxation(self.space.node_of(config)).curve;
        let of_split = |split: &Candidate| (split.ticks, div_up(split.regions, PAGE));
        Mode {
            serial: self.pricing.serial(config),
            pages: (regions - room.bytes + room.tables).div_euclid(PAGE),
            cores: self.pricing.cores(config),
            prompt: survivor.prompt,
            least: survivor.split.as_ref().map_or((least, 0), of_split),
            needs: needs(self.pricing, config, regions),
            layers: Bound::of(&curve.in_units(PAGE)),
        }
    }

    fn solved(
        &self,
        Chosen { fastest, candidate, tables, modes, rounds }: Chosen,
        simple: Option<SimpleRule>,
        regions: i64,
    ) -> Result<Solved, PlanError> {
        let (question, pricing) = (self.question, self.pricing);
        let candidate = &candidate;
        let level = pricing.level(candidate.config);
        let decided = assemble::decide(pricing, candidate, regions);
        let nothing = SimpleRule { decode_tokens_per_second: 0.0, memory_peak_bytes: 0 };
        let plan = assemble::plan(question, level, &decided, simple.unwrap_or(nothing));
        verify(question, &plan, &decided, candidate.ticks as f64 * pricing.tick_seconds)?;
        let drafts = speculation::all(question, &decided.decision(level));
        Ok(Solved {
            plan,
            price: cost::decode(question, &decided.decision(level)),
            decided,
            // ticks are rounded up, once for each layer and once for the rest
            seconds_proven: (fastest.least - level.layers.len() as i64 - 1) as f64 * pricing.tick_seconds,
            bytes_proven: None,
            tick_seconds: pricing.tick_seconds,
            configurations: pricing.count(),
            priced: fastest.priced,
            config: candidate.config,
            rounds,
            limits: question.limits.clone(),
            drafts,
            tables,
            modes,
        })
    }
}

/// Z3's choice, and the master problem in its last round.
struct Chosen {
    fastest: Fastest,
    candidate: Candidate,
    tables: Tables,
    /// The configuration of each mode.
    modes: Vec<Configuration>,
    rounds: usize,
}

/// A configuration that presolve leaves.
struct Survivor {
    config: Configuration,
    /// Hundredths of the logarithm of a long prompt's seconds.
    prompt: i64,
    /// The exact split, once the subproblem has found it.
    split: Option<Candidate>,
}
