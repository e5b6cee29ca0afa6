//! A space under limits: the price of every configuration in ticks, its memory in bytes, and its exact split.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use plans::model::Level;
use plans::{Backend, Policy};

use crate::cost::PromptPrice;
use crate::curve::{Curve, div_up};
use crate::layers::Cached;
use crate::queue::Prompts;
use crate::reads::LayerReads;
use crate::relax::Relaxation;
use crate::request::{DIGITS, PromptLimit, Question, least_printed_as};
use crate::room::Room;
use crate::rules::Prompt;
use crate::space::{Configuration, Space};
use crate::split::{Budget, Found, Item, LIMITS, NEVER, Split, any_split, quick_split, split};
use crate::ways::{Compute, Read, Ways};

/// Parts of the time of a prompt that is limited.
const PROMPT_TICKS: f64 = (1u64 << 40) as f64;
/// Plans within such a part of the fastest are as fast, and of the smallest as small.
pub const ALIKE: i64 = 200;
/// Ticks of prompts that are kept, at most: 16 MiB.
const PROMPT_TICKS_KEPT: usize = (16 << 20) / size_of::<i64>();
/// One part in so many of a split's work is spent on another one that is as fast, where prompts are limited.
const LITTLE: usize = 32;

/// A space under limits, in ticks and bytes.
#[derive(Debug)]
pub struct Field<'a> {
    /// The device, the model and the limits.
    pub question: &'a Question<'a>,
    pub(crate) space: &'a Space<'a>,
    pub(crate) ways: &'a [Ways<'a>],
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
    /// The fastest, to within the gap.
    Fastest,
    /// Any within the limits.
    Any,
}

/// A level, the price of a prompt, and its place among the limits.
type LimitedPrompt = (usize, *const PromptPrice, usize);

/// A level, and which prices of prompts.
pub(crate) type PromptKey = (usize, Vec<*const PromptPrice>);

/// The ticks of a limited prompt.
#[derive(Debug)]
struct PromptTicks {
    /// Most of all layers.
    most: i64,
    /// Per layer those with each of its ways of caching.
    layers: Vec<Vec<i64>>,
}

/// A way with what the split makes of it.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The way.
    pub way: Configuration,
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
    pub near: Vec<(i64, Configuration)>,
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
    pub fn level(&self, way: Configuration) -> &'a Level {
        self.ways[way.level].level
    }

    /// Cache policy of a way: who leaves a slot.
    pub fn policy(&self, way: Configuration) -> Policy {
        self.ways[way.level].policy
    }

    /// Whether a way reads rows of the token embedding.
    pub fn embedding_rows(&self, way: Configuration) -> bool {
        self.choice(way).0.embedding_rows
    }

    /// Compute cores of a way, and how it reads.
    pub fn choice(&self, way: Configuration) -> (&'a Compute, &'a Read) {
        let ways = &self.ways[way.level];
        (&ways.computes[way.compute], &ways.reads[way.read])
    }

    /// Reads that differ from those of a way in nothing but their number in flight and their buffers.
    pub fn siblings(&self, way: Configuration) -> Vec<Configuration> {
        let key = |read: &Read| {
            let c = &read.choice;
            (c.backend, c.direct, c.gap_bytes, c.phases, c.look_ahead > 0)
        };
        let reads = &self.ways[way.level].reads;
        let alike = |&read: &usize| key(&reads[read]) == key(&reads[way.read]);
        (0..reads.len()).filter(alike).map(|read| Configuration { read, ..way }).collect()
    }

    /// How prompts pass in a way.
    pub fn prompt(&self, way: Configuration) -> &'a Prompt {
        &self.prompts[way.prompt]
    }

    /// Ways of caching of a layer at a way's level.
    pub fn cached(&self, way: Configuration, layer: usize) -> &'a [Cached] {
        &self.ways[way.level].cached[layer]
    }

    /// Number of ways to decode.
    pub fn count(&self) -> usize {
        self.ways.iter().map(|ways| ways.computes.len() * ways.reads.len()).sum()
    }

    /// All configurations with one way for prompts to pass.
    pub fn configurations(&self, prompt: usize) -> impl Iterator<Item = Configuration> + '_ {
        let of_level = move |(level, ways): (usize, &'a Ways<'a>)| {
            let computes = 0..ways.computes.len();
            let reads = 0..ways.reads.len();
            computes.flat_map(move |compute| {
                reads.clone().map(move |read| Configuration { level, compute, read, prompt })
            })
        };
        self.ways.iter().enumerate().flat_map(of_level)
    }

    /// A configuration with each way for prompts to pass.
    pub fn prompts_of(&self, way: Configuration) -> impl Iterator<Item = Configuration> + '_ {
        (0..self.prompts.len()).map(move |prompt| Configuration { prompt, ..way })
    }

    /// Ticks of so many seconds.
    pub fn ticks(&self, seconds: f64) -> i64 {
        self.space.ticks(seconds)
    }

    /// Ticks that nothing overlaps.
    pub fn serial(&self, way: Configuration) -> i64 {
        self.ticks(self.choice(way).0.serial)
    }

    /// Cores in use, for computing and for reading.
    pub fn cores(&self, way: Configuration) -> i64 {
        let (compute, read) = self.choice(way);
        let reading = read.choice.backend == Backend::Pread && !compute.shared;
        (compute.cores.len() + if reading { compute.io_cores.len() } else { 0 }) as i64
    }

    /// Bytes that a way leaves for neurons and a prompt's rows, of so many bytes of regions.
    pub fn room(&self, way: Configuration, regions: i64) -> Room {
        self.space.room(self.question.device, way, regions)
    }

    /// The price of a prompt.
    pub fn prompt_price(&self, way: Configuration, tokens: u32) -> Rc<PromptPrice> {
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
                    let beside =
                        self.room(Configuration { level, compute, read, prompt }, regions).budgets()[1];
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
    pub(crate) fn useful_prompts(&self, level: usize, read: usize, embedding_rows: bool) -> Prompts {
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

    /// A lower bound on ticks; `None` where the limits cannot be kept.
    pub(crate) fn bound(&self, room: Room, pinned: i64, relaxation: &Relaxation) -> Option<i64> {
        let [all, beside] = room.budgets();
        // a curve's value is rounded up
        let ticks = relaxation.serial + relaxation.curve.at(all)? - 1;
        let kept = pinned <= beside && self.time_max.is_none_or(|most| ticks <= most);
        kept.then_some(ticks)
    }

    /// Ticks of a token that no split of a configuration can be below; `None` where the limits cannot be kept.
    pub fn bound_of(&self, way: Configuration, regions: i64) -> Option<i64> {
        let relaxation = self.space.relaxation(self.space.node_of(way));
        let own = Relaxation { curve: Rc::clone(&relaxation.curve), serial: self.serial(way) - 1 };
        self.bound(self.room(way, regions), 0, &own)
    }

    /// Whether prompts can be as fast as they must within so many bytes of regions.
    pub(crate) fn prompts_may(&self, way: Configuration, regions: i64) -> bool {
        let useful = self.useful_prompts(way.level, way.read, self.embedding_rows(way));
        let pinned = useful.iter().find(|(prompt, _)| *prompt == way.prompt);
        pinned.is_some_and(|&(_, pinned)| pinned <= self.room(way, regions).budgets()[1])
    }

    /// The prices of the limited prompts, which many ways share.
    pub(crate) fn prompt_key(&self, way: Configuration) -> PromptKey {
        let limits = self.question.limits.prompts_max.iter();
        (way.level, limits.map(|limit| Rc::as_ptr(&self.prompt_price(way, limit.tokens))).collect())
    }

    /// Whether no split within so many bytes is known to keep the limits on prompts.
    pub(crate) fn prompts_refused(&self, way: Configuration, beside: i64) -> bool {
        !self.question.limits.prompts_max.is_empty()
            && self.refused.borrow().get(&self.prompt_key(way)).is_some_and(|&refused| beside <= refused)
    }

    /// Remembers that.
    pub(crate) fn refuse_prompts(&self, way: Configuration, beside: i64) {
        if !self.question.limits.prompts_max.is_empty() {
            let mut refused = self.refused.borrow_mut();
            let most = refused.entry(self.prompt_key(way)).or_insert(beside);
            *most = beside.max(*most);
        }
    }

    /// The ticks of each limited prompt, which many ways share.
    fn prompt_ticks(&self, way: Configuration) -> Vec<Rc<PromptTicks>> {
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
            let of_way = PromptTicks { most: ((most - price.once) / tick).floor() as i64, layers };
            let of_way = Rc::new(of_way);
            if (known.len() + 1) * ways.cached.iter().map(Vec::len).sum::<usize>() > PROMPT_TICKS_KEPT {
                known.clear();
            }
            known.insert(key, Rc::clone(&of_way));
            of_way
        };
        self.question.limits.prompts_max.iter().enumerate().map(of_limit).collect()
    }

    /// Per layer the ways of caching that a split of at most `worst` ticks can use, and what all layers must keep within so
    /// many bytes; `None` where there is no such split.
    pub fn layers(&self, way: Configuration, regions: i64, worst: i64) -> Option<(Vec<Vec<Item>>, Budget)> {
        let (compute, read) = self.choice(way);
        let ways = &self.ways[way.level];
        let room = self.room(way, regions);
        let [all, beside] = room.budgets();
        if beside < 0 {
            return None;
        }
        let toll = ways.toll(compute, read);
        let of_read = ways.layer_reads(way.read);
        let price = |&(layer, _): &(usize, i64)| {
            let item = |(cached, (of, reads)): (usize, (&Cached, &LayerReads))| {
                let ticks = self.ticks(ways.seconds_with(compute, read, &toll, layer, of, reads));
                Item { cached, need: of.need, ticks, prompts: [0, 0] }
            };
            let of_each = ways.cached[layer].iter().zip(&of_read[layer]);
            let mut items: Vec<Item> = of_each.enumerate().map(item).collect();
            items.sort_by_key(|item| (item.need.bytes(), item.ticks));
            items
        };
        let mut kinds: Vec<Vec<Item>> = ways.kinds.iter().map(price).collect();
        let hulls: Vec<Curve> = kinds.iter().map(|items| hull(items)).collect();
        let curve = Curve::sum_of(hulls.iter().zip(ways.counts()));
        let gap = worst - self.serial(way) - curve.at(all)? + 1;
        if gap < 0 {
            return None;
        }
        kinds.iter_mut().for_each(|items| keep_within(items, curve.price(all), gap));
        let mut items: Vec<Vec<Item>> = ways.kind_of.iter().map(|&kind| kinds[kind].clone()).collect();
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
    pub fn candidate(
        &self,
        way: Configuration,
        regions: i64,
        worst: i64,
        any: bool,
    ) -> (Option<Candidate>, i64) {
        self.candidate_of_work(way, regions, (worst, any), self.space.choices_max)
    }

    pub(crate) fn candidate_of_work(
        &self,
        way: Configuration,
        regions: i64,
        (worst, any): (i64, bool),
        choices_max: usize,
    ) -> (Option<Candidate>, i64) {
        let Some((items, budget)) = self.layers(way, regions, worst) else { return (None, worst + 1) };
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
    pub fn as_fast(&self, way: Configuration, regions: i64, worst: i64) -> Option<Candidate> {
        let limited = !self.question.limits.prompts_max.is_empty();
        let choices_max = self.space.choices_max / if limited { LITTLE } else { 1 };
        self.candidate_of_work(way, regions, (worst, limited), choices_max).0
    }

    pub(crate) fn of_split(
        &self,
        way: Configuration,
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

    /// Whether it keeps the limits on time.
    pub fn keeps_times(&self, candidate: &Candidate) -> bool {
        self.time_max.is_none_or(|most| candidate.ticks <= most) && self.keeps_prompts(candidate)
    }

    /// Whether it keeps the limits on prompts.
    pub fn keeps_prompts(&self, candidate: &Candidate) -> bool {
        let mut limits = self.question.limits.prompts_max.iter();
        limits.all(|limit| self.prompt_seconds(candidate, limit.tokens) <= limit.seconds_allowed())
    }

    /// A split of a way, if one is found quickly that keeps the limits and takes at most `worst` ticks.
    pub(crate) fn quick_candidate(&self, way: Configuration, regions: i64, worst: i64) -> Option<Candidate> {
        if !self.prompts_may(way, regions) {
            return None;
        }
        let (items, budget) = self.layers(way, regions, worst)?;
        let split = quick_split(&items, &budget, Some(worst + 1 - self.serial(way)), [0.0; LIMITS])?;
        self.of_split(way, regions, &items, &budget, &split).filter(|found| found.ticks <= worst)
    }
}

/// The lower hull of items that rise in bytes.
fn hull(items: &[Item]) -> Curve {
    Curve::over(&items.iter().map(|item| (item.need.bytes(), item.ticks)).collect::<Vec<_>>())
}

/// Keeps the items that a split can use which takes at most `gap` ticks more than the relaxation: those whose reduced cost is no
/// greater, with a byte at this price.
fn keep_within(items: &mut Vec<Item>, price: f64, gap: i64) {
    let cost = |item: &Item| item.ticks as f64 + price * item.need.bytes() as f64;
    let least = items.iter().map(cost).fold(f64::INFINITY, f64::min);
    // a tick more, since curves are rounded
    items.retain(|item| cost(item) - least <= gap as f64 + 1.0);
}

/// The most ticks that are as fast, or bytes that are as small.
pub fn alike(least: i64) -> i64 {
    least + div_up(least, ALIKE)
}
