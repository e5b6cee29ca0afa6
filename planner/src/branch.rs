//! The searches: the fastest plan, any plan, and the smallest, each by branch and bound over the configurations.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use plans::plan::Objective;

use crate::candidate::{Candidate, Fastest, tied};
use crate::layers::Cached;
use crate::presolve::Effort;
use crate::pricing::Pricing;
use crate::prompts::PromptKey;
use crate::queue::Queue;
use crate::relax::{self, Relaxation};
use crate::room::{Need, Room};
use crate::simple_rule::{self, Simple};
use crate::space::{Configuration, Node};
use crate::split::{Budget, Found, LIMITS, NEVER, any_split, quick_split, soonest};

/// Optimality gap of a search, as one part in so many of the incumbent: configurations that cannot be better by more are pruned.
pub const OPEN: i64 = 256;
/// Configurations that are priced layer by layer where prompts are limited, each a problem of several limits, and of which the split is
/// closed, once a plan is known.
const LIMITED_MAX: usize = 256;
const CLOSED_MAX: usize = 32;
/// Configurations priced first, in the order of their bounds. Behind them at most [`LIMITED_ALIKE`] follow for each price of prompts and
/// each configuration of reading: many core sets differ in nothing else.
const LIMITED_FIRST: usize = 64;
const LIMITED_ALIKE: usize = 2;
/// How many times a split's work is spent on the incumbent, if the gap is still open there.
const LONGER: usize = 8;
/// Configurations that are taken from the queue, at most, where prompts are limited.
const TAKEN_MAX: usize = 16 * LIMITED_MAX;
/// Configurations and prompts that are tried before all others where prompts are limited.
const TRIES_MAX: usize = 16;

impl Pricing<'_> {
    /// Configurations in the order of what `bound` says of them, as long as that is at most `wanted`.
    fn queue<'q>(
        &'q self,
        regions: i64,
        first: impl Fn(Node) -> i64,
        bound: impl Fn(Room, i64, &Relaxation) -> Option<i64> + 'q,
        wanted: &'q Cell<i64>,
    ) -> impl Iterator<Item = (i64, Configuration)> + 'q {
        let prompts = |level, read, embedding_rows| self.limited.useful(level, read, embedding_rows);
        Queue::new(self.space, (self.question.device, regions), prompts, (first, bound), wanted)
    }

    /// Configurations in the order of their bounds on ticks.
    fn by_time<'q>(
        &'q self,
        regions: i64,
        wanted: &'q Cell<i64>,
    ) -> impl Iterator<Item = (i64, Configuration)> + 'q {
        let computing = |node| relax::computing(self.space, node);
        let bound = |room, pinned, relaxation: &Relaxation| self.bound(room, pinned, relaxation);
        self.queue(regions, computing, bound, wanted)
    }

    /// The fastest plan within so many bytes; `None` where no configuration keeps the limits. It is no slower than the simple
    /// rule within the same limits.
    pub fn fastest(&self, regions: i64) -> Option<Fastest> {
        if !self.limited.is_empty() {
            let question = self.question.within(self.question.limits.without_prompts());
            let free = Pricing::new(&question, self.space).fastest(regions)?;
            return self.fastest_beside(&free, regions);
        }
        let key = (regions, self.time_max);
        self.space.found(key, || self.searched(regions, false, self.simple(regions)))
    }

    /// A plan within so many bytes that keeps the limits; `None` where no configuration does.
    pub fn any(&self, regions: i64) -> Option<Candidate> {
        if self.time_max.is_none() {
            return self.simple(regions).or_else(|| self.any_of_roomiest(regions));
        }
        self.simple(regions).or_else(|| self.searched(regions, true, None).map(|any| any.best))
    }

    /// [`Self::fastest`] where it is known what would be without limits on prompts.
    pub fn fastest_beside(&self, free: &Fastest, regions: i64) -> Option<Fastest> {
        let simple = self.simple(regions);
        let most = simple.as_ref().map_or(NEVER, |simple| simple.ticks);
        self.as_fast_as_free(free, regions, most).or_else(|| self.searched(regions, false, simple))
    }

    /// The plan of the best simple rule, where it is one of the configurations and keeps the limits within so many bytes.
    fn simple(&self, regions: i64) -> Option<Candidate> {
        let Simple { config, decided, .. } = simple_rule::best(self.question, self.space)?;
        let options = &self.options[config.level];
        let pinned = |(cached, &hot): (&Vec<Cached>, &u32)| {
            cached.iter().position(|cached| cached.hot == hot && cached.cold == 0)
        };
        let chosen: Option<Vec<usize>> = options.cached.iter().zip(&decided.hot).map(pinned).collect();
        let chosen = chosen?;
        let (compute, read) = self.choice(config);
        let interference = options.interference(compute, read);
        let (mut ticks, mut need) = (0, Need::default());
        for (layer, &item) in chosen.iter().enumerate() {
            let cached = &options.cached[layer][item];
            ticks += self.ticks(options.seconds(compute, read, &interference, layer, cached));
            need = need.with(cached.need);
        }
        let room = self.room(config, regions);
        let candidate = Candidate {
            config,
            found: Found { chosen, ticks, need },
            ticks: self.serial(config) + ticks,
            regions: regions - room.bytes + room.taken(need),
        };
        (room.fits(need) && self.keeps_times(&candidate)).then_some(candidate)
    }

    /// A plan that keeps the limits on prompts, where a token may take any time.
    fn any_of_roomiest(&self, regions: i64) -> Option<Candidate> {
        let mut undecided = 0;
        for (beside, config) in self.limited.roomiest(regions) {
            if !self.limited.may(config, regions) || self.limited.is_refused(config, beside) {
                continue;
            }
            self.space.count(Effort { priced: 1, ..Effort::default() });
            match self.candidate(config, regions, NEVER, true) {
                (Some(found), _) => return Some(found),
                (None, least) if least < NEVER => undecided += 1,
                (None, _) => self.limited.refuse(config, beside),
            }
        }
        self.space.count(Effort { undecided, ..Effort::default() });
        None
    }

    /// Whether the bounds of all configurations say that none keeps the limits within so many bytes of regions.
    pub fn none_may(&self, regions: i64) -> bool {
        if self.time_max.is_none() {
            return !self
                .limited
                .roomiest(regions)
                .into_iter()
                .any(|(_, config)| self.limited.may(config, regions));
        }
        let wanted = Cell::new(self.time_max.unwrap_or(NEVER));
        self.by_time(regions, &wanted).next().is_none()
    }

    /// [`Self::fastest`] of all configurations, one plan being known; with `any` the first that keeps the limits.
    fn searched(&self, regions: i64, any: bool, known: Option<Candidate>) -> Option<Fastest> {
        let limited = !self.limited.is_empty();
        let mut run = Run::new(self, known);
        let mut prices = [0.0; LIMITS];
        let (mut taken, mut alike_of) = (0, HashMap::<(PromptKey, usize), usize>::new());
        let wanted = Cell::new(run.wanted());
        for (bound, config) in self.by_time(regions, &wanted) {
            if any && run.incumbent.is_some() {
                break;
            }
            taken += 1;
            if limited && run.incumbent.is_some() {
                let same = alike_of.entry((self.limited.key(config), config.read)).or_default();
                *same += 1;
                if run.priced >= LIMITED_MAX || taken > TAKEN_MAX {
                    run.least = run.least.min(bound);
                    break;
                }
                if run.priced >= LIMITED_FIRST && *same > LIMITED_ALIKE {
                    run.least = run.least.min(bound);
                    continue;
                }
            }
            let beside = self.room(config, regions).budgets()[1];
            if self.limited.is_refused(config, beside) {
                continue;
            }
            let most = run.wanted();
            let Some((items, budget)) = self.layers(config, regions, most) else { continue };
            run.priced += 1;
            self.space.count(Effort { priced: 1, ..Effort::default() });
            let to_beat = most + 1 - self.serial(config);
            let Some(split) = quick_split(&items, &budget, Some(to_beat), prices) else {
                // then no item was left out
                if run.incumbent.is_none() && most == NEVER {
                    self.limited.refuse(config, beside);
                }
                continue;
            };
            let bound = self.serial(config) + split.least;
            if bound > most {
                continue;
            }
            prices = split.prices;
            run.open.push((bound, config));
            run.better(self.of_split(config, regions, &items, &budget, &split));
            wanted.set(run.wanted());
        }
        run.close(regions, any);
        run.fastest(regions, any)
    }
    /// A faster split of a candidate's configuration, if more work finds one, and ticks that no split of it can be below.
    fn longer(&self, known: &Candidate, regions: i64) -> (Option<Candidate>, i64) {
        let choices_max = LONGER * self.space.choices_max;
        self.candidate_of_work(known.config, regions, (known.ticks - 1, false), choices_max)
    }

    /// Plans that keep the limits on prompts, of those that are as fast as the fastest that need not and take at most `most`
    /// ticks, if any is found.
    fn as_fast_as_free(&self, free: &Fastest, regions: i64, most: i64) -> Option<Fastest> {
        if self.keeps_prompts(&free.best) {
            return Some(free.clone());
        }
        let most = tied(free.standard).min(self.time_max.unwrap_or(NEVER)).min(most);
        let prompts = |&(_, config): &(i64, Configuration)| {
            let useful = self.limited.useful(config.level, config.read, self.embedding_rows(config));
            useful.iter().map(|&(prompt, _)| Configuration { prompt, ..config }).collect::<Vec<_>>()
        };
        let mut options = free.near.iter().flat_map(prompts).take(TRIES_MAX);
        let best = options.find_map(|config| self.quick_candidate(config, regions, most))?;
        Some(Fastest { best, ..free.clone() })
    }

    /// The fewest bytes of regions, at most `regions`, within which a plan keeps the other limits: a lower bound, and the bytes
    /// of a plan.
    pub fn smallest(&self, regions: i64) -> Option<(i64, i64)> {
        let (mut least, mut best, mut undecided) = (NEVER, None, 0);
        let bound =
            |room, pinned, relaxation: &Relaxation| self.smallest_bound(regions, room, pinned, relaxation);
        let wanted = Cell::new(regions);
        for (bound, config) in self.queue(regions, |_| 0, bound, &wanted) {
            let most = wanted.get();
            if !self.limited.may(config, most) {
                continue;
            }
            let Some((bound, found)) = self.smallest_of(config, bound, most) else { continue };
            undecided += usize::from(found.is_none());
            least = least.min(bound);
            best = found.or(best);
            wanted.set(best.map_or(regions, |best: i64| best - 1 - best / OPEN));
        }
        if best.is_none() {
            self.space.count(Effort { undecided, ..Effort::default() });
        }
        best.map(|best| (least.min(wanted.get() + 1), best))
    }

    /// Bytes that a configuration cannot be below, and bytes up to `most` in which it is known to keep the limits, if that was
    /// decided; `None` where it cannot.
    fn smallest_of(&self, config: Configuration, bound: i64, most: i64) -> Option<(i64, Option<i64>)> {
        // more ticks than any split takes
        let time = self.time_max.unwrap_or(NEVER / 2);
        let (items, budget) = self.layers(config, most, time)?;
        let to_beat = time + 1 - self.serial(config);
        // bytes of a split within so many bytes, or whether there is none for sure
        let within = |regions: i64| -> Result<i64, bool> {
            let room = Room { bytes: budget.room.bytes - most + regions, ..budget.room };
            let budget = Budget { room, ..budget };
            let taken = |found: Found| regions - room.bytes + room.taken(found.need);
            // without a limit on tokens those on prompts are all that matters
            if self.time_max.is_none() {
                match soonest(&items, &budget) {
                    None => return Err(true),
                    Some(Some(found)) => return Ok(taken(found)),
                    Some(None) => {}
                }
            }
            let kept = |found: &Found| found.ticks < to_beat;
            let quick = quick_split(&items, &budget, Some(to_beat), [0.0; LIMITS]).ok_or(true)?;
            if quick.least >= to_beat {
                return Err(true);
            }
            if let Some(found) = quick.found.filter(kept) {
                return Ok(taken(found));
            }
            let split = any_split(&items, &budget, to_beat).ok_or(true)?;
            let refused = split.least >= to_beat;
            split.found.filter(kept).map(taken).ok_or(refused)
        };
        let mut high = match within(most) {
            Ok(taken) => taken,
            Err(true) => return None,
            Err(false) => return Some((bound, None)),
        };
        let (mut low, mut proven) = (bound - 1, true);
        while high - low > (high / OPEN).max(1) {
            let middle = low + (high - low) / 2;
            match within(middle) {
                Ok(taken) => high = taken.min(middle),
                Err(refused) => (low, proven) = (middle, proven && refused),
            }
        }
        Some((if proven { (low + 1).max(bound) } else { bound }, Some(high)))
    }

    /// A lower bound of a configuration's objective within so many bytes of regions: ticks of a token, or bytes of the regions. `None`
    /// where the limits cannot be kept.
    pub fn objective_least(&self, config: Configuration, regions: i64) -> Option<i64> {
        let pinned = self
            .limited
            .pinned_least(config)
            .into_iter()
            .try_fold(0, |most, pinned| Some(pinned?.max(most)))?;
        let relaxation = self.space.relaxation(self.space.node_of(config));
        let own = Relaxation { curve: Rc::clone(&relaxation.curve), serial: self.serial(config) - 1 };
        let room = self.room(config, regions);
        match self.question.limits.objective {
            Objective::Speed => self.bound(room, pinned, &own),
            Objective::Memory => self.smallest_bound(regions, room, pinned, &own),
        }
    }

    /// A lower bound on regions; `None` where the limits cannot be kept.
    fn smallest_bound(&self, regions: i64, room: Room, pinned: i64, relaxation: &Relaxation) -> Option<i64> {
        let [all, beside] = room.budgets();
        if beside < pinned {
            return None;
        }
        let bytes = match self.time_max {
            None => relaxation.curve.corners[0].0,
            Some(most) => relaxation.curve.reaching(most + 1 - relaxation.serial)? - 1,
        };
        (bytes <= all).then(|| regions - room.bytes + room.tables + bytes.max(room.rows + pinned))
    }
}

/// A search under configuration.
struct Run<'f> {
    pricing: &'f Pricing<'f>,
    incumbent: Option<Candidate>,
    /// Configurations that were priced and not pruned, with their bounds.
    open: Vec<(i64, Configuration)>,
    /// A lower bound on everything that was left out although it may be better.
    least: i64,
    /// Configurations that were priced layer by layer.
    priced: usize,
}

impl<'f> Run<'f> {
    fn new(pricing: &'f Pricing<'f>, incumbent: Option<Candidate>) -> Self {
        Self { pricing, incumbent, open: Vec::new(), least: NEVER, priced: 0 }
    }

    /// The most ticks of a plan that is better than the incumbent by more than the gap, or that keeps the limits.
    fn wanted(&self) -> i64 {
        let most = self.pricing.time_max.unwrap_or(NEVER);
        self.incumbent.as_ref().map_or(most, |best| most.min(best.ticks - 1 - best.ticks / OPEN))
    }

    fn better(&mut self, found: Option<Candidate>) {
        if let Some(found) = found
            && self.incumbent.as_ref().is_none_or(|best| found.ticks < best.ticks)
        {
            self.incumbent = Some(found);
        }
    }

    /// Closes what is open by exact splits, the lowest bound first, until nothing can be better by more than the gap.
    fn close(&mut self, regions: i64, any: bool) {
        let pricing = self.pricing;
        let limited = !pricing.limited.is_empty();
        self.open.sort_unstable();
        let mut open = std::mem::take(&mut self.open);
        let mut closed = 0;
        for (bound, config) in &mut open {
            let most = self.wanted();
            let first = self.incumbent.is_none();
            if *bound > most || !first && (any || limited && closed >= CLOSED_MAX) {
                continue;
            }
            closed += 1;
            let beside = pricing.room(*config, regions).budgets()[1];
            if pricing.limited.is_refused(*config, beside) {
                *bound = NEVER;
                continue;
            }
            // whether there is any, before the best is sought
            let (mut found, mut proven) = pricing.candidate(*config, regions, most, any || first);
            if found.is_none() && proven > most && most >= NEVER {
                pricing.limited.refuse(*config, beside);
            }
            if first
                && !any
                && let Some(one) = found.take()
            {
                let better = (one.ticks - 1 - one.ticks / OPEN).min(most);
                let (faster, bound) = pricing.candidate(*config, regions, better, false);
                (found, proven) = (faster.or(Some(one)), bound);
            }
            *bound = proven.max(*bound);
            self.better(found);
        }
        self.open = open;
    }

    /// The result, with a lower bound on all plans.
    fn fastest(mut self, regions: i64, any: bool) -> Option<Fastest> {
        let pricing = self.pricing;
        let most = self.wanted();
        self.open.sort_unstable();
        let Some(mut best) = self.incumbent.take() else {
            let undecided = self.open.iter().filter(|(bound, _)| *bound <= most).count();
            pricing.space.count(Effort { undecided, ..Effort::default() });
            return None;
        };
        let others = self.least.min(most + 1);
        let least_of = |open: &[(i64, Configuration)]| {
            open.iter().map(|&(bound, _)| bound).min().unwrap_or(NEVER).min(others)
        };
        let mut least = least_of(&self.open).min(best.ticks);
        if !any && !pricing.limited.is_empty() && best.ticks > least + least / OPEN {
            let (faster, bound) = pricing.longer(&best, regions);
            for (open, _) in self.open.iter_mut().filter(|(_, config)| *config == best.config) {
                *open = bound.max(*open);
            }
            best = faster.unwrap_or(best);
            self.open.sort_unstable();
            least = least_of(&self.open).min(best.ticks);
        }
        let slowest = tied(best.ticks);
        let mut near = self.open;
        near.retain(|(bound, _)| *bound <= slowest);
        if !near.iter().any(|&(_, config)| config == best.config) {
            near.insert(0, (least, best.config));
        }
        Some(Fastest { least, standard: best.ticks, best, near, priced: self.priced })
    }
}
