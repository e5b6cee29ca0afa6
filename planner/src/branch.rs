//! The searches: the fastest plan, any plan, and the smallest, each by branch and bound over the configurations.

use std::cell::Cell;
use std::collections::HashMap;

use crate::field::{Candidate, Fastest, Field, Goal, PromptKey, alike};
use crate::layers::Cached;
use crate::queue::Queue;
use crate::relax::{self, Relaxation};
use crate::room::{Need, Room};
use crate::simple_rule::{self, Simple};
use crate::space::{Configuration, Effort, Node};
use crate::split::{Budget, Found, LIMITS, NEVER, any_split, quick_split, soonest};

/// Optimality gap of a search, as one part in so many of the incumbent: configurations that cannot be better by more are pruned.
pub const OPEN: i64 = 200;
/// Configurations that are priced layer by layer where prompts are limited, each a problem of several limits, and of which the split is
/// closed, once a plan is known.
const LIMITED_MAX: usize = 256;
const CLOSED_MAX: usize = 32;
/// Of these, the ones that are the first in the order of their bounds. Behind them only so many come of each price of prompts with each way
/// of reading: many core sets differ in nothing else.
const LIMITED_FIRST: usize = 64;
const LIMITED_ALIKE: usize = 2;
/// How many times a split's work is spent on the incumbent, if the gap is still open there.
const LONGER: usize = 8;
/// Configurations that are taken from the queue, at most, where prompts are limited.
const TAKEN_MAX: usize = 16 * LIMITED_MAX;
/// Configurations and prompts that are tried before all others where prompts are limited.
const TRIES_MAX: usize = 16;

impl Field<'_> {
    /// Configurations in the order of what `bound` says of them, as long as that is at most `wanted`.
    fn queue<'q>(
        &'q self,
        regions: i64,
        first: impl Fn(Node) -> i64,
        bound: impl Fn(Room, i64, &Relaxation) -> Option<i64> + 'q,
        wanted: &'q Cell<i64>,
    ) -> impl Iterator<Item = (i64, Configuration)> + 'q {
        let prompts = |level, read, embedding_rows| self.useful_prompts(level, read, embedding_rows);
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
        if !self.question.limits.prompts_max.is_empty() {
            let question = self.question.within(self.question.limits.without_prompts());
            let free = Field::new(&question, self.space).fastest(regions)?;
            return self.fastest_beside(&free, regions);
        }
        self.found(Goal::Fastest, regions)
    }

    /// What a search finds that does not begin with a plan of another; the space remembers it.
    fn found(&self, goal: Goal, regions: i64) -> Option<Fastest> {
        let of_time = (self.time_max, self.question.limits.prompts_max.clone());
        self.space.found((goal, regions, of_time), || self.searched(regions, goal, self.simple(regions)))
    }

    /// A plan within so many bytes that keeps the limits; `None` where no way does.
    pub fn any(&self, regions: i64) -> Option<Candidate> {
        self.simple(regions).or_else(|| self.searched(regions, Goal::Any, None).map(|any| any.best))
    }

    /// [`Self::fastest`] where it is known what would be without limits on prompts.
    pub fn fastest_beside(&self, free: &Fastest, regions: i64) -> Option<Fastest> {
        let simple = self.simple(regions);
        let most = simple.as_ref().map_or(NEVER, |simple| simple.ticks);
        self.as_fast_as_free(free, regions, most).or_else(|| self.searched(regions, Goal::Fastest, simple))
    }

    /// The plan of the best simple rule, where it is one of the ways and keeps the limits within so many bytes.
    fn simple(&self, regions: i64) -> Option<Candidate> {
        let Simple { way, decided, .. } = simple_rule::best(self.question, self.space)?;
        let ways = &self.ways[way.level];
        let pinned = |(cached, &hot): (&Vec<Cached>, &u32)| {
            cached.iter().position(|cached| cached.hot == hot && cached.cold == 0)
        };
        let chosen: Option<Vec<usize>> = ways.cached.iter().zip(&decided.hot).map(pinned).collect();
        let chosen = chosen?;
        let (compute, read) = self.choice(way);
        let toll = ways.toll(compute, read);
        let (mut ticks, mut need) = (0, Need::default());
        for (layer, &item) in chosen.iter().enumerate() {
            let cached = &ways.cached[layer][item];
            ticks += self.ticks(ways.seconds(compute, read, &toll, layer, cached));
            need = need.with(cached.need);
        }
        let room = self.room(way, regions);
        let candidate = Candidate {
            way,
            found: Found { chosen, ticks, need },
            ticks: self.serial(way) + ticks,
            regions: regions - room.bytes + room.taken(need),
        };
        (room.fits(need) && self.keeps_times(&candidate)).then_some(candidate)
    }

    /// Whether the bounds of all configurations say that none keeps the limits within so many bytes of regions.
    pub fn none_may(&self, regions: i64) -> bool {
        let wanted = Cell::new(self.time_max.unwrap_or(NEVER));
        self.by_time(regions, &wanted).next().is_none()
    }

    /// [`Self::fastest`] of all configurations, one plan being known.
    fn searched(&self, regions: i64, goal: Goal, known: Option<Candidate>) -> Option<Fastest> {
        let any = goal == Goal::Any;
        let limited = !self.question.limits.prompts_max.is_empty();
        let mut run = Run::new(self, known);
        let mut prices = [0.0; LIMITS];
        let (mut taken, mut alike_of) = (0, HashMap::<(PromptKey, usize), usize>::new());
        let wanted = Cell::new(run.wanted());
        for (bound, way) in self.by_time(regions, &wanted) {
            if any && run.incumbent.is_some() {
                break;
            }
            taken += 1;
            if limited && run.incumbent.is_some() {
                let same = alike_of.entry((self.prompt_key(way), way.read)).or_default();
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
            let beside = self.room(way, regions).budgets()[1];
            if self.prompts_refused(way, beside) {
                continue;
            }
            let most = run.wanted();
            let Some((items, budget)) = self.layers(way, regions, most) else { continue };
            run.priced += 1;
            self.space.count(Effort { priced: 1, ..Effort::default() });
            let to_beat = most + 1 - self.serial(way);
            let Some(mut split) = quick_split(&items, &budget, Some(to_beat), prices) else {
                // then no item was left out
                if run.incumbent.is_none() && most == NEVER {
                    self.refuse_prompts(way, beside);
                }
                continue;
            };
            let bound = self.serial(way) + split.least;
            if bound > most {
                continue;
            }
            if limited {
                split.exchange(&items, &budget);
            }
            prices = split.prices;
            run.open.push((bound, way));
            run.better(self.of_split(way, regions, &items, &budget, &split));
            wanted.set(run.wanted());
        }
        run.close(regions, any);
        run.fastest(regions, any)
    }
    /// The best split of a candidate's way that is found with more work.
    fn longer(&self, known: Candidate, regions: i64) -> Candidate {
        let choices_max = LONGER * self.space.choices_max;
        let faster = (known.ticks - 1, false);
        self.candidate_of_work(known.way, regions, faster, choices_max).0.unwrap_or(known)
    }

    /// Plans that keep the limits on prompts, of those that are as fast as the fastest that need not and take at most `most`
    /// ticks, if any is found.
    fn as_fast_as_free(&self, free: &Fastest, regions: i64, most: i64) -> Option<Fastest> {
        if self.keeps_prompts(&free.best) {
            return Some(free.clone());
        }
        let most = alike(free.standard).min(self.time_max.unwrap_or(NEVER)).min(most);
        let prompts = |&(_, way): &(i64, Configuration)| {
            let useful = self.useful_prompts(way.level, way.read, self.embedding_rows(way));
            useful.iter().map(|&(prompt, _)| Configuration { prompt, ..way }).collect::<Vec<_>>()
        };
        let mut ways = free.near.iter().flat_map(prompts).take(TRIES_MAX);
        let best = ways.find_map(|way| self.quick_candidate(way, regions, most))?;
        Some(Fastest { best, ..free.clone() })
    }

    /// The fewest bytes of regions, at most `regions`, within which a plan keeps the other limits: a lower bound, and the bytes
    /// of a plan.
    pub fn smallest(&self, regions: i64) -> Option<(i64, i64)> {
        let (mut least, mut best, mut undecided) = (NEVER, None, 0);
        let bound =
            |room, pinned, relaxation: &Relaxation| self.smallest_bound(regions, room, pinned, relaxation);
        let wanted = Cell::new(regions);
        for (bound, way) in self.queue(regions, |_| 0, bound, &wanted) {
            let most = wanted.get();
            if !self.prompts_may(way, most) {
                continue;
            }
            let Some((bound, found)) = self.smallest_of(way, bound, most) else { continue };
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
    fn smallest_of(&self, way: Configuration, bound: i64, most: i64) -> Option<(i64, Option<i64>)> {
        // more ticks than any split takes
        let time = self.time_max.unwrap_or(NEVER / 2);
        let (items, budget) = self.layers(way, most, time)?;
        let to_beat = time + 1 - self.serial(way);
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

/// A search under way.
struct Run<'f> {
    field: &'f Field<'f>,
    incumbent: Option<Candidate>,
    /// Configurations that were priced and not pruned, with their bounds.
    open: Vec<(i64, Configuration)>,
    /// A lower bound on everything that was left out although it may be better.
    least: i64,
    /// Configurations that were priced layer by layer.
    priced: usize,
}

impl<'f> Run<'f> {
    fn new(field: &'f Field<'f>, incumbent: Option<Candidate>) -> Self {
        Self { field, incumbent, open: Vec::new(), least: NEVER, priced: 0 }
    }

    /// The most ticks of a plan that is better than the incumbent by more than the gap, or that keeps the limits.
    fn wanted(&self) -> i64 {
        let most = self.field.time_max.unwrap_or(NEVER);
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
        let field = self.field;
        let limited = !field.question.limits.prompts_max.is_empty();
        self.open.sort_unstable();
        let mut open = std::mem::take(&mut self.open);
        let mut closed = 0;
        for (bound, way) in &mut open {
            let most = self.wanted();
            let first = self.incumbent.is_none();
            if *bound > most || !first && (any || limited && closed >= CLOSED_MAX) {
                continue;
            }
            closed += 1;
            let beside = field.room(*way, regions).budgets()[1];
            if field.prompts_refused(*way, beside) {
                *bound = NEVER;
                continue;
            }
            // whether there is any, before the best is sought
            let (mut found, mut proven) = field.candidate(*way, regions, most, any || first);
            if found.is_none() && proven > most && most >= NEVER {
                field.refuse_prompts(*way, beside);
            }
            if first
                && !any
                && let Some(one) = found.take()
            {
                let better = (one.ticks - 1 - one.ticks / OPEN).min(most);
                let (faster, bound) = field.candidate(*way, regions, better, false);
                (found, proven) = (faster.or(Some(one)), bound);
            }
            *bound = proven.max(*bound);
            self.better(found);
        }
        self.open = open;
    }

    /// The result, with a lower bound on all plans.
    fn fastest(mut self, regions: i64, any: bool) -> Option<Fastest> {
        let field = self.field;
        let most = self.wanted();
        self.open.sort_unstable();
        let Some(mut best) = self.incumbent.take() else {
            let undecided = self.open.iter().filter(|(bound, _)| *bound <= most).count();
            field.space.count(Effort { undecided, ..Effort::default() });
            return None;
        };
        let open = self.open.iter().map(|&(bound, _)| bound).min().unwrap_or(NEVER);
        let least = self.least.min(open).min(most + 1).min(best.ticks);
        if !any && !field.question.limits.prompts_max.is_empty() && best.ticks > least + least / OPEN {
            best = field.longer(best, regions);
        }
        let slowest = alike(best.ticks);
        let mut near = self.open;
        near.retain(|(bound, _)| *bound <= slowest);
        if !near.iter().any(|&(_, way)| way == best.way) {
            near.insert(0, (least, best.way));
        }
        Some(Fastest { least: least.min(best.ticks), standard: best.ticks, best, near, priced: self.priced })
    }
}
