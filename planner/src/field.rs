//! Which ways can be the best: each is bounded from below, and those that a known plan beats are dismissed.
//!
//! A way's bound is Lagrange's dual of splitting its memory over the layers; best first, the exact split closes what is left
//! between bound and plan.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use plans::model::Level;
use plans::overlap::reads_if_any;
use plans::{Backend, Policy};

use crate::bands::{self, Band, Priced};
use crate::cost::PromptPrice;
use crate::curve::div_up;
use crate::layers::Cached;
use crate::queue::{Bound, Prompts, Queue, Sought, Wanted};
use crate::reads::LayerReads;
use crate::request::{DIGITS, PromptLimit, Question, least_printed_as};
use crate::room::{Need, Room};
use crate::rules::Prompt;
use crate::simple_rule::{self, Simple};
use crate::space::{self, Effort, Space, Way};
use crate::split::{
    Budget, Found, Item, LIMITS, NEVER, Split, any_split, least_at, quick_split, soonest, split,
};
use crate::ways::{Asked, Compute, Read, Ways};

/// Parts of the time of a prompt that is limited.
const PROMPT_TICKS: f64 = (1u64 << 40) as f64;
/// Plans within such a part of the fastest are as fast, and of the smallest as small.
pub const ALIKE: i64 = 200;
/// One part in so many of the fastest plan's ticks is left open: ways that cannot be faster by that are not split exactly.
pub const OPEN: i64 = 16 * ALIKE;
/// One part in so many of the least memory is left open, of each way and again among the ways.
pub const SIZE_OPEN: i64 = 4 * ALIKE;
/// Ways that decode alike of which prompts are priced.
pub const NEAR_MAX: usize = 8;
/// Ticks of prompts that are kept, at most: 16 MiB.
const PROMPT_TICKS_KEPT: usize = (16 << 20) / size_of::<i64>();
/// Ways that are priced layer by layer where prompts are limited, each a problem of several limits, and of which the split is closed, once a
/// plan is known: then the best is taken, and the bound is that of what was left.
const LIMITED_MAX: usize = 512;
const CLOSED_MAX: usize = 64;
/// Of these, ways that are the first in the order of their bounds. Behind them only so many come of each price of prompts with each way of reading:
/// where there are many sets of cores, those with the best bounds differ in these alone, and none of their splits may be good.
const LIMITED_FIRST: usize = 128;
const CLOSED_FIRST: usize = 16;
const LIMITED_ALIKE: usize = 2;
/// One part in so many of a split's work is spent on another one that is as fast, where prompts are limited.
const LITTLE: usize = 32;
/// How many times a split's work is spent on the way that was taken, if more than what is as fast is open there.
const LONGER: usize = 8;
/// Ways that are taken from the queue, at most.
const TAKEN_MAX: usize = 16 * LIMITED_MAX;
/// Ways and prompts that are tried before all others where prompts are limited.
const TRIES_MAX: usize = 16;

/// A space under limits, in ticks and bytes.
#[derive(Debug)]
pub struct Field<'a> {
    /// The device, the model and the limits.
    pub question: &'a Question<'a>,
    space: &'a Space<'a>,
    ways: &'a [Ways<'a>],
    prompts: &'a [Prompt],
    /// Seconds of a tick.
    pub tick_seconds: f64,
    /// Most ticks of a token.
    pub time_max: Option<i64>,
    /// By level, reads and whether rows of the token embedding are read: [`Self::useful_prompts`].
    useful: RefCell<HashMap<(usize, usize, bool), Prompts>>,
    prompt_ticks: RefCell<HashMap<LimitedPrompt, Rc<PromptTicks>>>,
    /// By level and prices of prompts: bytes beside the slots with which no split keeps the limits on prompts.
    refused: RefCell<HashMap<PromptKey, i64>>,
}

/// Which plans are sought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The fastest, and the ways that are as fast.
    Fastest,
    /// The fastest but for what is left open; of others nothing need be known.
    One,
    /// Any within the limits.
    Any,
}

/// A level, the price of a prompt, and its place among the limits.
type LimitedPrompt = (usize, *const PromptPrice, usize);

/// A level, and which prices of prompts.
type PromptKey = (usize, Vec<*const PromptPrice>);

/// The ticks of a limited prompt.
#[derive(Debug)]
struct PromptTicks {
    /// Most of all layers.
    most: i64,
    /// Per layer those with each of its ways of caching.
    layers: Vec<Vec<i64>>,
    /// Per layer the fewest of each band.
    bands: Vec<Vec<i64>>,
}

/// A way with what the split makes of it.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The way.
    pub way: Way,
    /// Best split of the way's memory over the layers.
    pub found: Found,
    /// Ticks of a token.
    pub ticks: i64,
    /// Bytes of the regions, without page tables.
    pub regions: i64,
}

/// Result of the search for the fastest plan.
#[derive(Debug, Clone)]
pub struct Fastest {
    /// The fastest plan, or one that is as fast.
    pub best: Candidate,
    /// Ticks by which it is said what is as fast.
    pub standard: i64,
    /// Ticks that no plan can be below.
    pub least: i64,
    /// Ways that may be as fast, with their bounds: the nearest at least.
    pub near: Vec<(i64, Way)>,
    /// Ways that were priced layer by layer.
    pub priced: usize,
}

impl<'a> Field<'a> {
    /// Under these limits on memory and time.
    pub fn new(question: &'a Question<'a>, space: &'a Space<'a>) -> Self {
        let tick_seconds = space.tick_seconds;
        // ticks are rounded up, once for each layer and once for the rest
        let rounded = f64::from(question.model.architecture.layers) + 1.0;
        let slowest = |speed: f64| {
            let of_digits = 1.0 / least_printed_as(speed) / tick_seconds + rounded;
            of_digits.min(DIGITS / speed / tick_seconds) as i64
        };
        Self {
            question,
            space,
            ways: &space.ways,
            prompts: &space.prompts,
            tick_seconds,
            time_max: question.limits.speed_min.map(slowest),
            useful: RefCell::default(),
            prompt_ticks: RefCell::default(),
            refused: RefCell::default(),
        }
    }

    /// The quality level of a way.
    pub fn level(&self, way: Way) -> &'a Level {
        self.ways[way.level].level
    }

    /// Cache policy of a way: who leaves a slot.
    pub fn policy(&self, way: Way) -> Policy {
        self.ways[way.level].policy
    }

    /// Whether a way reads rows of the token embedding.
    pub fn embedding_rows(&self, way: Way) -> bool {
        self.choice(way).0.embedding_rows
    }

    /// Compute cores of a way, and how it reads.
    pub fn choice(&self, way: Way) -> (&'a Compute, &'a Read) {
        let ways = &self.ways[way.level];
        (&ways.computes[way.compute], &ways.reads[way.read])
    }

    /// Reads that differ from those of a way in nothing but their number in flight and their buffers.
    pub fn siblings(&self, way: Way) -> Vec<Way> {
        let key = |read: &Read| {
            let c = &read.choice;
            (c.backend, c.direct, c.gap_bytes, c.phases, c.look_ahead > 0)
        };
        let reads = &self.ways[way.level].reads;
        let alike = |&read: &usize| key(&reads[read]) == key(&reads[way.read]);
        (0..reads.len()).filter(alike).map(|read| Way { read, ..way }).collect()
    }

    /// How prompts pass in a way.
    pub fn prompt(&self, way: Way) -> &'a Prompt {
        &self.prompts[way.prompt]
    }

    /// Ways of caching of a layer at a way's level.
    pub fn cached(&self, way: Way, layer: usize) -> &'a [Cached] {
        &self.ways[way.level].cached[layer]
    }

    /// Number of ways to decode.
    pub fn count(&self) -> usize {
        self.ways.iter().map(|ways| ways.computes.len() * ways.reads.len()).sum()
    }

    /// Every way with what `bound` says of it, in that order unless any will do, as far as its prompts can keep the limits and it is wanted.
    fn queue<'q>(
        &'q self,
        (regions, sought): (i64, Sought),
        bound: impl Fn(i64, Room, i64, &space::Bound) -> Option<Bound> + 'q,
        wanted: &'q Cell<Wanted>,
    ) -> impl Iterator<Item = (i64, Way)> + 'q {
        let prompts = |level, read, embedding_rows| self.useful_prompts(level, read, embedding_rows);
        let limited = !self.question.limits.prompts_max.is_empty();
        Queue::new(self.space, self.question.device, (regions, sought), (prompts, limited), bound, wanted)
    }

    /// Ticks of so many seconds.
    pub fn ticks(&self, seconds: f64) -> i64 {
        self.space.ticks(seconds)
    }

    /// Ticks that nothing overlaps.
    pub fn serial(&self, way: Way) -> i64 {
        self.ticks(self.choice(way).0.serial)
    }

    /// Cores in use, for computing and for reading.
    pub fn cores(&self, way: Way) -> i64 {
        let (compute, read) = self.choice(way);
        let reading = read.choice.backend == Backend::Pread && !compute.shared;
        (compute.cores.len() + if reading { compute.io_cores.len() } else { 0 }) as i64
    }

    /// Bytes that a way leaves for neurons and a prompt's rows, of so many bytes of regions.
    pub fn room(&self, way: Way, regions: i64) -> Room {
        self.space.room(self.question.device, way, regions)
    }

    /// The price of a prompt.
    pub fn prompt_price(&self, way: Way, tokens: u32) -> Rc<PromptPrice> {
        let of_decoding = (way.level, way.read, self.embedding_rows(way));
        self.space.prompt_price(self.question, of_decoding, way.prompt, tokens)
    }

    /// Pinned neurons of each layer.
    pub fn hot(&self, candidate: &Candidate) -> Vec<u32> {
        let layers = candidate.found.chosen.iter().enumerate();
        layers.map(|(layer, &item)| self.cached(candidate.way, layer)[item].hot).collect()
    }

    /// Seconds of a prompt.
    pub fn prompt_seconds(&self, candidate: &Candidate, tokens: u32) -> f64 {
        self.prompt_price(candidate.way, tokens).seconds(&self.hot(candidate))
    }

    /// Seconds that no plan within so many bytes of regions can be below with a prompt, however slowly it decodes.
    pub fn prompt_seconds_least(&self, tokens: u32, regions: i64) -> Option<f64> {
        let mut least: Option<f64> = None;
        for (level, ways) in self.ways.iter().enumerate() {
            // policies change nothing of a prompt
            if self.ways[..level].iter().any(|other| other.level.name == ways.level.name) {
                continue;
            }
            let neuron = ways.slot_bytes.iter().copied().min().unwrap_or(1) as f64;
            for rows in [false, true] {
                let computes = (0..ways.computes.len()).filter(|&c| ways.computes[c].embedding_rows == rows);
                let Some(compute) = computes.min_by_key(|&c| ways.computes[c].cores.len()) else { continue };
                let all =
                    (0..ways.reads.len()).flat_map(|read| (0..self.prompts.len()).map(move |p| (read, p)));
                for (read, prompt) in all {
                    let beside = self.room(Way { level, compute, read, prompt }, regions).budgets()[1];
                    if beside >= 0 {
                        let price =
                            self.space.prompt_price(self.question, (level, read, rows), prompt, tokens);
                        let seconds = price.seconds_least(beside as f64 / neuron);
                        least = Some(least.map_or(seconds, |least| least.min(seconds)));
                    }
                }
            }
        }
        least
    }

    /// The prompts worth looking at with a way of reading, and for each the fewest bytes of pinned neurons with which it keeps
    /// the limits. One that keeps them with none leaves no reason for those that take more memory; without limits that is the
    /// smallest.
    fn useful_prompts(&self, level: usize, read: usize, embedding_rows: bool) -> Prompts {
        let read = self.space.prompts_as(level, read);
        let known = self.useful.borrow().get(&(level, read, embedding_rows)).cloned();
        known.unwrap_or_else(|| {
            let neuron = self.ways[level].slot_bytes.iter().copied().min().unwrap_or(1) as f64;
            let none = vec![0; self.ways[level].slot_bytes.len()];
            let limits = &self.question.limits.prompts_max;
            let prices = |prompt: usize| {
                let of_decoding = (level, read, embedding_rows);
                let price = |limit: &PromptLimit| {
                    self.space.prompt_price(self.question, of_decoding, prompt, limit.tokens)
                };
                limits.iter().map(|limit| (price(limit), limit.seconds_allowed())).collect::<Vec<_>>()
            };
            /// What a prompt costs beside each limit, and whether it keeps them with nothing pinned.
            type Seen<'p> = (&'p Prompt, Vec<(Rc<PromptPrice>, f64)>, bool);
            let mut seen: Vec<Seen<'_>> = Vec::new();
            let mut useful = Vec::new();
            for (place, prompt) in self.prompts.iter().enumerate() {
                let prices = prices(place);
                // a chunk longer than all prompts takes more memory, and where there is no unit beside the CPU nothing else
                let no_better = |(other, of_other, keeps): &Seen<'_>| {
                    let mut both = prices.iter().zip(of_other);
                    other.rows_bytes <= prompt.rows_bytes
                        && other.cores.len() <= prompt.cores.len()
                        && (*keeps || both.all(|((price, _), (other, _))| price.is_alike(other)))
                };
                if seen.iter().any(no_better) {
                    continue;
                }
                let pinned = prices.iter().map(|(price, most)| price.pinned_least(*most));
                if let Some(pinned) = pinned.reduce(|a, b| Some(a?.max(b?))).unwrap_or(Some(0.0)) {
                    useful.push((place, (pinned * neuron * (1.0 - 1e-9)) as i64));
                }
                let keeps = prices.iter().all(|(price, most)| price.seconds(&none) <= *most);
                seen.push((prompt, prices, keeps));
            }
            let useful: Prompts = useful.into();
            self.useful.borrow_mut().insert((level, read, embedding_rows), Rc::clone(&useful));
            useful
        })
    }

    /// A bound on ticks, from a curve; `None` where the limits cannot be kept.
    fn bound(&self, serial: i64, room: Room, curve: &space::Bound) -> Option<Bound> {
        let [all, beside] = room.budgets();
        if beside < 0 {
            return None;
        }
        let ticks = serial + curve.at(all)?;
        // a curve's value is rounded up
        self.time_max.is_none_or(|most| ticks - 1 <= most).then_some((ticks - 1, all))
    }

    /// Ticks of a token that no split of a way can be below, from its ways of caching; `None` where the limits cannot be kept. A bound
    /// above `enough` is made no better.
    pub fn bound_of(&self, way: Way, regions: i64, enough: i64) -> Option<i64> {
        let at = self.space.part_of(way);
        let serial = self.serial(way);
        loop {
            let (bound, bytes) = self.bound(serial, self.room(way, regions), &self.space.bound(at))?;
            // what is a bound is a tick less than the curve
            let of_layers = (enough - serial).saturating_add(1);
            if bound > enough || !self.space.refine(at, bytes, of_layers) {
                return Some(bound);
            }
        }
    }

    /// Whether prompts can be as fast as they must within so many bytes of regions.
    fn prompts_may(&self, way: Way, regions: i64) -> bool {
        let useful = self.useful_prompts(way.level, way.read, self.embedding_rows(way));
        let pinned = useful.iter().find(|(prompt, _)| *prompt == way.prompt);
        pinned.is_some_and(|&(_, pinned)| pinned <= self.room(way, regions).budgets()[1])
    }

    /// The prices of the limited prompts, which many ways share.
    fn prompt_key(&self, way: Way) -> PromptKey {
        let limits = self.question.limits.prompts_max.iter();
        (way.level, limits.map(|limit| Rc::as_ptr(&self.prompt_price(way, limit.tokens))).collect())
    }

    /// Whether no split within so many bytes is known to keep the limits on prompts.
    fn prompts_refused(&self, way: Way, beside: i64) -> bool {
        !self.question.limits.prompts_max.is_empty()
            && self.refused.borrow().get(&self.prompt_key(way)).is_some_and(|&refused| beside <= refused)
    }

    /// Remembers that.
    fn refuse_prompts(&self, way: Way, beside: i64) {
        if !self.question.limits.prompts_max.is_empty() {
            let mut refused = self.refused.borrow_mut();
            let most = refused.entry(self.prompt_key(way)).or_insert(beside);
            *most = beside.max(*most);
        }
    }

    /// The ticks of each limited prompt, which many ways share.
    fn prompt_ticks(&self, way: Way) -> Vec<Rc<PromptTicks>> {
        let ways = &self.ways[way.level];
        let of_limit = |(k, limit): (usize, &PromptLimit)| {
            let price = self.prompt_price(way, limit.tokens);
            let mut known = self.prompt_ticks.borrow_mut();
            let key = (way.level, Rc::as_ptr(&price), k);
            if let Some(ticks) = known.get(&key) {
                return Rc::clone(ticks);
            }
            let most = limit.seconds_allowed();
            let tick = most / PROMPT_TICKS;
            let mut reads = HashMap::new();
            let mut ticks = |layer: usize, hot: u32| {
                let read = *reads.entry(hot).or_insert_with(|| price.read_seconds(hot));
                (price.layer_with(layer, read) / tick).min(NEVER as f64 / 64.0).ceil() as i64
            };
            let layers: Vec<Vec<i64>> = ways
                .cached
                .iter()
                .enumerate()
                .map(|(layer, cached)| cached.iter().map(|cached| ticks(layer, cached.hot)).collect())
                .collect();
            let fewest = |(bands, ticks): (&Vec<Band>, &Vec<i64>)| {
                let of_band = |band: &Band| ticks[band.cached.clone()].iter().copied().min().unwrap_or(0);
                bands.iter().map(of_band).collect()
            };
            let bands = ways.bands.iter().zip(&layers).map(fewest).collect();
            let of_way = PromptTicks { most: ((most - price.once) / tick).floor() as i64, layers, bands };
            let of_way = Rc::new(of_way);
            if (known.len() + 1) * ways.cached.iter().map(Vec::len).sum::<usize>() > PROMPT_TICKS_KEPT {
                known.clear();
            }
            known.insert(key, Rc::clone(&of_way));
            of_way
        };
        self.question.limits.prompts_max.iter().enumerate().map(of_limit).collect()
    }

    /// Ticks of a token that no split of a way can be below, from its bands at prices of the limits; `None` where these leave no split.
    pub fn bound_at(&self, way: Way, regions: i64, prices: [f64; LIMITS]) -> Option<i64> {
        let room = self.room(way, regions);
        if room.budgets()[1] < 0 {
            return None;
        }
        let mut budget = Budget { room, prompts: [NEVER; 2], choices_max: self.space.choices_max };
        let priced = self.space.closed(self.space.part_of(way));
        let layer = |(bands, priced): (&Vec<Band>, &Vec<(i64, i64)>)| {
            let item = |(cached, (band, &(bytes, ticks))): (usize, (&Band, &(i64, i64)))| {
                let need = Need { hot: band.beside, cold: bytes - band.beside, tables: 0 };
                Item { cached, need, ticks, prompts: [0, 0] }
            };
            bands.iter().zip(priced).enumerate().map(item).collect::<Vec<_>>()
        };
        let ways = &self.ways[way.level];
        let of_kinds = ways.kind_of.iter().map(|&kind| &priced[kind]);
        let mut items: Vec<Vec<Item>> = ways.bands.iter().zip(of_kinds).map(layer).collect();
        for (k, prompt) in self.prompt_ticks(way).into_iter().enumerate() {
            budget.prompts[k] = prompt.most;
            for (items, ticks) in items.iter_mut().zip(&prompt.bands) {
                items.iter_mut().zip(ticks).for_each(|(item, &ticks)| item.prompts[k] = ticks);
            }
        }
        Some(self.serial(way) + least_at(&items, &budget, prices)?)
    }

    /// Per layer the ways of caching that a split of at most `worst` ticks can use, and what all layers must keep within so
    /// many bytes; `None` where there is no such split, and with `smaller` also where other reads are as fast in less memory.
    pub fn layers(
        &self,
        way: Way,
        regions: i64,
        worst: i64,
        smaller: bool,
    ) -> Option<(Vec<Vec<Item>>, Budget)> {
        let (compute, read) = self.choice(way);
        let ways = &self.ways[way.level];
        let room = self.room(way, regions);
        let [all, beside] = room.budgets();
        if beside < 0 {
            return None;
        }
        let toll = ways.toll(compute, read);
        let of_read = ways.layer_reads(way.read);
        // layers of one kind take as long, but that nobody prefetches for the first
        let mut kinds: Vec<(usize, i64)> = vec![(0, 1)];
        let mut kind_of = vec![0];
        for layer in 1..ways.cached.len() {
            let alike = |&(other, _): &(usize, i64)| other > 0 && ways.kind_of[other] == ways.kind_of[layer];
            let kind = kinds.iter().position(alike).unwrap_or(kinds.len());
            if kind == kinds.len() {
                kinds.push((layer, 0));
            }
            kinds[kind].1 += 1;
            kind_of.push(kind);
        }
        let counts: Vec<i64> = kinds.iter().map(|&(_, count)| count).collect();
        let price = |&(layer, _): &(usize, i64)| {
            let ticks = |(way, reads): (&Cached, &LayerReads)| {
                self.ticks(ways.seconds_with(compute, read, &toll, layer, way, reads))
            };
            let of_each = ways.cached[layer].iter().zip(&of_read[layer]);
            of_each.map(|of| (of.0.need.bytes(), ticks(of))).collect::<Vec<_>>()
        };
        let prices: Priced = kinds.iter().map(price).collect();
        let curve = bands::curve(&prices, &counts);
        let gap = worst - self.serial(way) - curve.at(all)? + 1;
        if gap < 0 {
            return None;
        }
        let useful = bands::within(&prices, &curve, all, gap);
        let used = |kind: usize| useful[kind].iter().enumerate().filter(|(_, useful)| **useful);
        let mut asked = Asked::default();
        for (kind, &(layer, _)) in kinds.iter().enumerate() {
            for (cached, _) in used(kind) {
                let reads = &of_read[layer][cached];
                asked.reads = asked.reads.max(reads_if_any(reads.reads, reads.reading_fraction));
                asked.fills |= ways.cached[layer][cached].filled > 0.0;
            }
        }
        let limited = !self.question.limits.prompts_max.is_empty();
        if smaller && ways.has_smaller(way.read, self.space.alike(way), asked, limited) {
            return None;
        }
        let of_kind = |kind: usize| {
            let item = |(cached, _): (usize, &bool)| {
                let (need, ticks) = (ways.cached[kinds[kind].0][cached].need, prices[kind][cached].1);
                Item { cached, need, ticks, prompts: [0, 0] }
            };
            let mut items: Vec<Item> = used(kind).map(item).collect();
            items.sort_by_key(|item| (item.need.bytes(), item.ticks));
            items
        };
        let items: Vec<Vec<Item>> = (0..useful.len()).map(of_kind).collect();
        let mut items: Vec<Vec<Item>> = kind_of.iter().map(|&kind| items[kind].clone()).collect();
        let mut budget = Budget { room, prompts: [NEVER; 2], choices_max: self.space.choices_max };
        for (k, prompt) in self.prompt_ticks(way).into_iter().enumerate() {
            budget.prompts[k] = prompt.most;
            for (items, ticks) in items.iter_mut().zip(&prompt.layers) {
                items.iter_mut().for_each(|item| item.prompts[k] = ticks[item.cached]);
            }
        }
        Some((items, budget))
    }

    /// The exact split of a way, if it keeps the limits and takes at most `worst` ticks; and ticks that no split of it can be
    /// below. With `any` the first split that does will do.
    pub fn candidate(&self, way: Way, regions: i64, worst: i64, any: bool) -> (Option<Candidate>, i64) {
        self.candidate_of_work(way, regions, (worst, any), self.space.choices_max)
    }

    fn candidate_of_work(
        &self,
        way: Way,
        regions: i64,
        (worst, any): (i64, bool),
        choices_max: usize,
    ) -> (Option<Candidate>, i64) {
        let Some((items, budget)) = self.layers(way, regions, worst, false) else { return (None, worst + 1) };
        let budget = Budget { choices_max, ..budget };
        let serial = self.serial(way);
        let to_beat = worst + 1 - serial;
        let split =
            if any { any_split(&items, &budget, to_beat) } else { split(&items, &budget, Some(to_beat)) };
        let Some(split) = split else { return (None, worst + 1) };
        let found = self.of_split(way, regions, &items, &budget, &split);
        (found.filter(|found| found.ticks <= worst), serial + split.least)
    }

    /// A split of a way that keeps the limits and takes at most `worst` ticks: the best, or where prompts are limited any that is found with
    /// little work.
    pub fn as_fast(&self, way: Way, regions: i64, worst: i64) -> Option<Candidate> {
        let limited = !self.question.limits.prompts_max.is_empty();
        let choices_max = self.space.choices_max / if limited { LITTLE } else { 1 };
        self.candidate_of_work(way, regions, (worst, limited), choices_max).0
    }

    fn of_split(
        &self,
        way: Way,
        regions: i64,
        items: &[Vec<Item>],
        budget: &Budget,
        split: &Split,
    ) -> Option<Candidate> {
        let mut found = split.found.clone()?;
        for (chosen, items) in found.chosen.iter_mut().zip(items) {
            *chosen = items[*chosen].cached;
        }
        let ticks = self.serial(way) + found.ticks;
        let regions = regions - budget.room.bytes + budget.room.taken(found.need);
        self.time_max.is_none_or(|most| ticks <= most).then_some(Candidate { way, found, ticks, regions })
    }

    /// The fastest plan within so many bytes, and the nearest ways that may be as fast; `None` where no way keeps the limits.
    /// It is no slower than the simple rule within the same limits.
    pub fn fastest(&self, regions: i64) -> Option<Fastest> {
        if !self.question.limits.prompts_max.is_empty() {
            let question = self.question.within(self.question.limits.without_prompts());
            let free = Field::new(&question, self.space).fastest(regions)?;
            return self.fastest_beside(&free, regions);
        }
        self.found(Goal::Fastest, regions)
    }

    /// The plan of [`Self::fastest`], or one that is as fast but for what is left open.
    pub fn one_of_fastest(&self, regions: i64) -> Option<Candidate> {
        self.found(Goal::One, regions).map(|fastest| fastest.best)
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

    /// Whether it keeps the limits on time.
    pub fn keeps_times(&self, candidate: &Candidate) -> bool {
        self.time_max.is_none_or(|most| candidate.ticks <= most) && self.keeps_prompts(candidate)
    }

    /// Whether the bounds of all ways say that none keeps the limits within so many bytes of regions.
    pub fn none_may(&self, regions: i64) -> bool {
        let most = self.time_max.unwrap_or(NEVER);
        let wanted = Cell::new(Wanted { ticks: most, regions });
        let bound = |serial, room, _, curve: &space::Bound| self.bound(serial, room, curve);
        // bounds on ticks are of no use where these do not matter
        let sought = if self.time_max.is_some() { Sought::Fastest } else { Sought::Any };
        self.queue((regions, sought), bound, &wanted).next().is_none_or(|(bound, _)| bound > most)
    }

    /// Whether it keeps the limits on prompts.
    pub fn keeps_prompts(&self, candidate: &Candidate) -> bool {
        let mut limits = self.question.limits.prompts_max.iter();
        limits.all(|limit| self.prompt_seconds(candidate, limit.tokens) <= limit.seconds_allowed())
    }

    /// [`Self::fastest`] of all ways, one plan being known.
    fn searched(&self, regions: i64, goal: Goal, known: Option<Candidate>) -> Option<Fastest> {
        let (any, one) = (goal == Goal::Any, goal == Goal::One);
        let most = self.time_max.unwrap_or(NEVER);
        let mut best: Option<Candidate> = None;
        let mut near: Vec<(i64, Way)> = Vec::new();
        let still_wanted = |ticks: i64| if one { ticks - 1 - ticks / OPEN } else { alike(ticks) };
        let worst =
            |best: &Option<Candidate>| best.as_ref().map_or(most, |best| still_wanted(best.ticks).min(most));
        let better = |found: Option<Candidate>, best: &mut Option<Candidate>| {
            if let Some(found) = found
                && best.as_ref().is_none_or(|best| found.ticks < best.ticks)
            {
                *best = Some(found);
            }
        };
        let limited = !self.question.limits.prompts_max.is_empty();
        let (mut priced, mut least, mut prices) = (0, NEVER, [0.0; LIMITS]);
        let (mut taken, mut alike_of) = (0, HashMap::<(PromptKey, usize), usize>::new());
        // bounds of each way by the room in which prompts cost a token nothing
        let mut free: HashMap<Way, Vec<(Room, i64)>> = HashMap::new();
        let bound = |serial, room, _, curve: &space::Bound| self.bound(serial, room, curve);
        let wanted = Cell::new(Wanted {
            ticks: known.as_ref().map_or(most, |known| most.min(still_wanted(known.ticks))),
            regions,
        });
        if !any && let Some(quick) = self.quick(regions) {
            wanted.set(Wanted { ticks: alike(quick.ticks).min(wanted.get().ticks), regions });
        }
        let sought = if any { Sought::Any } else { Sought::Fastest };
        for (bound, way) in self.queue((regions, sought), bound, &wanted) {
            let enough =
                best.as_ref().is_some_and(|best| any || bound > best.ticks && near_enough(&near, bound));
            if bound > worst(&best) || enough {
                break;
            }
            taken += 1;
            if limited && best.is_some() {
                if priced >= LIMITED_MAX || taken > TAKEN_MAX {
                    least = least.min(bound);
                    break;
                }
                let alike = alike_of.get(&(self.prompt_key(way), way.read));
                if priced >= LIMITED_FIRST && alike.is_some_and(|&alike| alike >= LIMITED_ALIKE) {
                    least = least.min(bound);
                    continue;
                }
            }
            let room = self.room(way, regions);
            let of_way = free.entry(Way { prompt: 0, ..way }).or_default();
            // where prompts cost a token nothing, those that take more memory do; but the bound stays that of both
            let beats = |(free, _): &&(Room, i64)| free.bytes >= room.bytes && free.rows <= room.rows;
            if let Some((_, bound)) = of_way.iter().find(beats) {
                // it matters where the other's split is not as fast as the bound of both
                near.push((*bound, way));
                continue;
            }
            let [_, beside] = room.budgets();
            if self.prompts_refused(way, beside) {
                continue;
            }
            // at the prices that were good for another way, before its ways of caching are priced one by one
            let priced_prompts = prices[2..].iter().any(|&price| price > 0.0);
            if priced_prompts && self.bound_at(way, regions, prices).is_none_or(|bound| bound > worst(&best))
            {
                continue;
            }
            let Some((items, budget)) = self.layers(way, regions, worst(&best), true) else { continue };
            priced += 1;
            if limited {
                *alike_of.entry((self.prompt_key(way), way.read)).or_default() += 1;
            }
            self.space.count(Effort { priced: 1, ..Effort::default() });
            let to_beat = worst(&best) + 1 - self.serial(way);
            let Some(mut split) = quick_split(&items, &budget, Some(to_beat), prices) else {
                // then no item is left out
                if best.is_none() && most == NEVER {
                    self.refuse_prompts(way, beside);
                }
                continue;
            };
            let known = best.as_ref().map_or(NEVER, |best| best.ticks - self.serial(way));
            if limited && split.found.as_ref().is_some_and(|found| found.ticks < known) {
                split.exchange(&items, &budget);
            }
            let bound = self.serial(way) + split.least;
            let as_fast = bound <= worst(&best);
            let found = self.of_split(way, regions, &items, &budget, &split);
            if split.prompts_free && (!as_fast || found.is_some()) {
                of_way.push((room, bound));
            }
            if as_fast {
                prices = split.prices;
                near.push((bound, way));
                better(found, &mut best);
                wanted.set(Wanted { ticks: worst(&best).min(wanted.get().ticks), regions });
            }
        }
        near.sort_unstable();
        let mut closed = 0;
        alike_of.clear();
        for (bound, way) in &mut near {
            let to_beat = best.as_ref().map_or(most + 1, |best| best.ticks);
            let first = best.is_none();
            let mut few = || {
                let alike = alike_of.entry((self.prompt_key(*way), way.read)).or_default();
                *alike += 1;
                closed < CLOSED_FIRST || closed < CLOSED_MAX && *alike <= LIMITED_ALIKE
            };
            if first || *bound + *bound / OPEN < to_beat && !any && (!limited || few()) {
                closed += 1;
                let beside = self.room(*way, regions).budgets()[1];
                if self.prompts_refused(*way, beside) {
                    *bound = to_beat.max(*bound);
                    continue;
                }
                // whether there is any, before the best is sought
                // with limits on prompts each way is a problem of its own: what does not matter is not looked for
                let worst = to_beat - 1 - if limited && best.is_some() { to_beat / OPEN } else { 0 };
                let (mut found, mut proven) = self.candidate(*way, regions, worst, any || first);
                if found.is_none() && proven >= to_beat && to_beat > NEVER {
                    self.refuse_prompts(*way, beside);
                }
                if first
                    && !any
                    && let Some(one) = found.take()
                {
                    let faster;
                    (faster, proven) = self.candidate(*way, regions, one.ticks - 1, false);
                    found = faster.or(Some(one));
                }
                *bound = proven.max(*bound);
                better(found, &mut best);
            }
            least = least.min(*bound);
        }
        if limited
            && !any
            && let Some(best) = &mut best
            && best.ticks > least + least / ALIKE
        {
            *best = self.longer(best.clone(), regions);
        }
        better(known, &mut best);
        let most = worst(&best);
        if best.is_none() {
            // those whose splits were all refused are above it now
            let undecided = near.iter().filter(|(bound, _)| *bound <= most).count();
            self.space.count(Effort { undecided, ..Effort::default() });
        }
        near.retain(|(bound, _)| *bound <= most);
        let best = best?;
        Some(Fastest { least: least.min(best.ticks), standard: best.ticks, best, near, priced })
    }

    /// The best split of a candidate's way that is found with more work.
    fn longer(&self, known: Candidate, regions: i64) -> Candidate {
        let choices_max = LONGER * self.space.choices_max;
        let faster = (known.ticks - 1, false);
        self.candidate_of_work(known.way, regions, faster, choices_max).0.unwrap_or(known)
    }

    /// A plan that is found quickly, and is near the fastest where bounds are good.
    fn quick(&self, regions: i64) -> Option<Candidate> {
        let wanted = Cell::new(Wanted { ticks: self.time_max.unwrap_or(NEVER), regions });
        let bound = |serial, room, _, curve: &space::Bound| self.bound(serial, room, curve);
        let (_, way) = self.queue((regions, Sought::Any), bound, &wanted).next()?;
        self.quick_candidate(way, regions, self.time_max.unwrap_or(NEVER))
    }

    /// Plans that keep the limits on prompts, of those that are as fast as the fastest that need not and take at most `most`
    /// ticks, if any is found.
    fn as_fast_as_free(&self, free: &Fastest, regions: i64, most: i64) -> Option<Fastest> {
        if self.keeps_prompts(&free.best) {
            return Some(free.clone());
        }
        let most = alike(free.standard).min(self.time_max.unwrap_or(NEVER)).min(most);
        let prompts = |&(_, way): &(i64, Way)| {
            let useful = self.useful_prompts(way.level, way.read, self.embedding_rows(way));
            useful.iter().map(|&(prompt, _)| Way { prompt, ..way }).collect::<Vec<_>>()
        };
        let mut ways = free.near.iter().flat_map(prompts).take(TRIES_MAX);
        let best = ways.find_map(|way| self.quick_candidate(way, regions, most))?;
        Some(Fastest { best, ..free.clone() })
    }

    /// A split of a way, if one is found quickly that keeps the limits and takes at most `worst` ticks.
    fn quick_candidate(&self, way: Way, regions: i64, worst: i64) -> Option<Candidate> {
        if !self.prompts_may(way, regions) {
            return None;
        }
        let (items, budget) = self.layers(way, regions, worst, false)?;
        let split = quick_split(&items, &budget, Some(worst + 1 - self.serial(way)), [0.0; LIMITS])?;
        self.of_split(way, regions, &items, &budget, &split).filter(|found| found.ticks <= worst)
    }

    /// The fewest bytes of regions, at most `regions`, within which a plan keeps the other limits: what no plan can be below,
    /// and what one takes.
    pub fn smallest(&self, regions: i64) -> Option<(i64, i64)> {
        let (mut least, mut best, mut undecided) = (regions, None, 0);
        let bound = |serial, room, pinned, curve: &space::Bound| {
            self.smallest_bound(regions, serial, (room, pinned), curve)
        };
        let wanted = Cell::new(Wanted { ticks: self.time_max.unwrap_or(NEVER), regions });
        for (bound, way) in self.queue((regions, Sought::Smallest), bound, &wanted) {
            // as near as it is sought
            let most = best.map_or(regions, |best: i64| best - 1 - best / SIZE_OPEN);
            if bound > most {
                least = least.min(bound);
                break;
            }
            if !self.prompts_may(way, most) {
                continue;
            }
            let Some((bound, found)) = self.smallest_of(way, bound, most) else { continue };
            undecided += usize::from(found.is_none());
            least = least.min(bound);
            best = found.or(best);
            wanted.set(Wanted { regions: best.unwrap_or(regions), ..wanted.get() });
        }
        if best.is_none() {
            self.space.count(Effort { undecided, ..Effort::default() });
        }
        best.map(|best| (least.min(best), best))
    }

    /// Bytes that a way cannot be below, and bytes up to `most` in which it is known to keep the limits, if that was decided; `None` where
    /// it cannot.
    fn smallest_of(&self, way: Way, bound: i64, most: i64) -> Option<(i64, Option<i64>)> {
        let serial = self.serial(way);
        // more ticks than any split takes
        let time = self.time_max.unwrap_or(NEVER / 2);
        let (items, budget) = self.layers(way, most, time, false)?;
        let refused = Cell::new(false);
        let within = |regions: i64, exact: bool| {
            refused.set(false);
            let room = Room { bytes: budget.room.bytes - most + regions, ..budget.room };
            let budget = Budget { room, ..budget };
            let to_beat = time + 1 - serial;
            // without a limit on tokens those on prompts are all that matters
            if self.time_max.is_none() {
                let sooner = soonest(&items, &budget);
                refused.set(sooner.is_none());
                if let Some(found) = sooner? {
                    return Some(regions - room.bytes + room.taken(found.need));
                }
            }
            let split = if exact {
                any_split(&items, &budget, to_beat)
            } else {
                quick_split(&items, &budget, Some(to_beat), [0.0; LIMITS])
            };
            refused.set(split.as_ref().is_none_or(|split| split.least >= to_beat));
            let found = split?.found.filter(|found| found.ticks < to_beat)?;
            Some(regions - room.bytes + room.taken(found.need))
        };
        let Some(mut high) = within(most, false).or_else(|| within(most, true)) else {
            return if refused.get() { None } else { Some((bound, None)) };
        };
        let mut low = bound - 1;
        while high - low > (high / SIZE_OPEN).max(1) {
            let middle = low + (high - low) / 2;
            match within(middle, false).or_else(|| within(middle, high - low < high / 16)) {
                Some(taken) => high = taken.min(middle),
                None => low = middle,
            }
        }
        Some((bound, Some(high)))
    }

    /// A bound on regions, from a curve.
    fn smallest_bound(
        &self,
        regions: i64,
        serial: i64,
        (room, pinned): (Room, i64),
        curve: &space::Bound,
    ) -> Option<Bound> {
        let [all, beside] = room.budgets();
        if beside < 0 {
            return None;
        }
        // the fewest bytes are exact, whatever is known of the curve
        let (bytes, decided_at) = match self.time_max {
            None => (curve.curve.corners[0].0, i64::MIN),
            Some(most) => {
                let reached = curve.reaching(most + 1 - serial)?;
                (reached - 1, reached)
            }
        };
        let bound = || (regions - room.bytes + room.tables + bytes.max(room.rows + pinned), decided_at);
        (bytes <= all).then(bound)
    }
}

/// Whether no way above a bound can be among the nearest.
fn near_enough(near: &[(i64, Way)], bound: i64) -> bool {
    let mut ways: Vec<Way> = Vec::new();
    for way in near.iter().filter(|(least, _)| *least < bound).map(|&(_, way)| Way { prompt: 0, ..way }) {
        if !ways.contains(&way) {
            ways.push(way);
        }
        if ways.len() >= NEAR_MAX {
            return true;
        }
    }
    false
}

/// The most ticks that are as fast, or bytes that are as small.
pub fn alike(least: i64) -> i64 {
    least + div_up(least, ALIKE)
}
