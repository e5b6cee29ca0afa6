//! The searches: the fastest plan, any plan, and the smallest, each by branch and bound over the configurations.

use std::cell::Cell;
use std::collections::BTreeSet;

use plans::plan::Objective;

use crate::candidate::{Candidate, Fastest, tied};
use crate::layers::Cached;
use crate::presolve::Effort;
use crate::pricing::Pricing;
use crate::queue::Queue;
use crate::relax::Relaxation;
use crate::room::{Need, Room};
use crate::simple_rule::{self, Simple};
use crate::space::Configuration;
use crate::split::{Found, NEVER, Wanted};

/// Optimality gap of a search, as one part in so many of the incumbent: configurations that cannot be better by more are pruned.
pub const OPEN: i64 = 256;
/// Configurations that are bounded where prompts are limited, and splits that are closed, at most, once a plan is known.
const LIMITED_MAX: usize = 512;
const CLOSED_MAX: usize = 16;
/// Configurations and prompts that are tried before all others where prompts are limited.
const TRIES_MAX: usize = 16;

impl Pricing<'_> {
    /// The fastest plan within so many bytes; `None` where no configuration keeps the limits. It is no slower than the simple
    /// rule within the same limits.
    pub fn fastest(&self, regions: i64) -> Option<Fastest> {
        if !self.limited.is_empty() {
            let question = self.question.within(self.question.limits.without_prompts());
            let free = Pricing::new(&question, self.space).fastest(regions)?;
            return self.fastest_beside(&free, regions);
        }
        self.searched(regions, false, self.simple(regions))
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
        let known = self.known.borrow().clone().filter(|known| known.regions <= regions);
        let simple = self.simple(regions).or(known);
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
            fastest: self.serial(config) + ticks,
            regions: regions - room.bytes + room.taken(need),
        };
        (room.fits(need) && self.keeps_times(&candidate)).then_some(candidate)
    }

    /// A plan that keeps the limits on prompts, where a token may take any time.
    fn any_of_roomiest(&self, regions: i64) -> Option<Candidate> {
        let mut undecided = 0;
        for (_, config) in self.limited.roomiest(regions) {
            self.space.count(Effort { priced: 1, ..Effort::default() });
            match self.candidate(config, regions, NEVER, Wanted::Any) {
                (Some(found), _) => return Some(found),
                (None, least) => undecided += usize::from(least < NEVER),
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
        Queue::new(self, Objective::Speed, regions, &wanted).next().is_none()
    }

    /// [`Self::fastest`] by branch and bound, one plan being known; with `any` the first plan that keeps the limits.
    ///
    /// Configurations are taken in the order of their relaxations, and bounded by the dual of their own split. Splits are closed in the
    /// order of these bounds.
    fn searched(&self, regions: i64, any: bool, mut incumbent: Option<Candidate>) -> Option<Fastest> {
        let limited = !self.limited.is_empty();
        // bounds of configurations, whether their splits are closed, and a bound on those that were left out
        let mut open: BTreeSet<(i64, bool, Configuration)> = BTreeSet::new();
        let (mut left_out, mut priced, mut closed) = (NEVER, 0, 0);
        let wanted = Cell::new(self.wanted(incumbent.as_ref()));
        for (bound, config) in Queue::new(self, Objective::Speed, regions, &wanted) {
            if incumbent.is_some() && (any || limited && priced >= LIMITED_MAX) {
                left_out = bound;
                break;
            }
            priced += 1;
            let (found, least) = self.candidate(config, regions, wanted.get(), Wanted::Bound);
            open.insert((least.max(bound), false, config));
            incumbent = found.or(incumbent);
            wanted.set(self.wanted(incumbent.as_ref()));
        }
        loop {
            let next = open.iter().find(|(_, closed, _)| !closed).copied();
            let Some((bound, _, config)) = next.filter(|(bound, ..)| *bound <= wanted.get()) else { break };
            let closed_max = if incumbent.is_some() { CLOSED_MAX } else { 4 * CLOSED_MAX };
            if any && incumbent.is_some() || limited && closed >= closed_max {
                break;
            }
            closed += 1;
            let of_split = if incumbent.is_some() { Wanted::Best } else { Wanted::Any };
            let (found, least) = self.candidate(config, regions, wanted.get(), of_split);
            open.remove(&(bound, false, config));
            // the split of the first plan is closed again, to find the best
            open.insert((least.max(bound), incumbent.is_some() || found.is_none(), config));
            incumbent = found.or(incumbent);
            wanted.set(self.wanted(incumbent.as_ref()));
        }
        self.space.count(Effort { priced, ..Effort::default() });
        let Some(best) = incumbent else {
            let undecided = open.iter().filter(|(bound, ..)| *bound <= wanted.get()).count();
            self.space.count(Effort { undecided, ..Effort::default() });
            return None;
        };
        let least = open.first().map_or(NEVER, |&(bound, ..)| bound).min(left_out).min(wanted.get() + 1);
        let least = least.min(best.fastest);
        let near = open.into_iter().map(|(bound, _, config)| (bound, config));
        let mut near: Vec<_> = near.take_while(|&(bound, _)| bound <= tied(best.fastest)).collect();
        if !near.iter().any(|&(_, config)| config == best.config) {
            near.insert(0, (least, best.config));
        }
        Some(Fastest { least, standard: best.fastest, best, near, priced })
    }

    /// The most ticks of a plan that keeps the limit on time, and is better than the incumbent by more than the gap.
    fn wanted(&self, incumbent: Option<&Candidate>) -> i64 {
        let most = self.time_max.unwrap_or(NEVER);
        incumbent.map_or(most, |best| most.min(best.fastest - 1 - best.fastest / OPEN))
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
        let best = options.find_map(|config| self.candidate(config, regions, most, Wanted::Bound).0)?;
        Some(Fastest { best, ..free.clone() })
    }

    /// The fewest bytes of regions, at most `regions`, within which a plan keeps the other limits: a lower bound, and the bytes
    /// of a plan.
    pub fn smallest(&self, regions: i64) -> Option<(i64, i64)> {
        let wanted = Cell::new(regions);
        let (bound, _) = Queue::new(self, Objective::Memory, regions, &wanted).next()?;
        let undecided = self.space.work().undecided;
        let (mut low, mut least, mut high) = (bound - 1, bound, None::<i64>);
        let mut step = (bound / OPEN).max(1);
        loop {
            let middle = match high {
                None => (low + step).min(regions),
                Some(high) if high - low <= (high / OPEN / 2).max(1) => return Some((least, high)),
                Some(high) => low + (high - low) / 2,
            };
            match self.any(middle) {
                Some(found) => {
                    high = Some(found.regions.min(middle));
                    self.known.replace(Some(found));
                }
                None if middle == regions => return None,
                None => (low, step) = (middle, 2 * step),
            }
            if self.space.work().undecided == undecided {
                least = low + 1;
            }
        }
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
        let own = relaxation.with_serial(self.serial(config) - 1);
        let objective = self.question.limits.objective;
        self.least(objective, regions, self.room(config, regions), pinned, &own)
    }

    /// A lower bound of an objective in such a room, with at least so many bytes of pinned neurons; `None` where the limits cannot be kept.
    pub(crate) fn least(
        &self,
        objective: Objective,
        regions: i64,
        room: Room,
        pinned: i64,
        relaxation: &Relaxation,
    ) -> Option<i64> {
        if objective == Objective::Speed {
            return self.bound(room, pinned, relaxation);
        }
        let [all, beside] = room.budgets();
        if beside < pinned {
            return None;
        }
        let bytes = match self.time_max {
            None => relaxation.curve.corners[0].0,
            Some(most) => relaxation.bytes_least(most + 1 - relaxation.serial, pinned)? - 1,
        };
        (bytes <= all).then(|| regions - room.bytes + room.tables + bytes.max(room.rows + pinned))
    }
}
