//! The exact split: memory over layers, each with its own ways of caching.
//!
//! A multiple-choice knapsack: one item of each layer, the fewest ticks within up to four limits (all bytes; the bytes
//! beside the slots, because of a prompt's rows; the time of one or two prompts). It is solved in two steps.
//!
//! 1. *The bound.* Lagrange's dual: every limit but the first has a price, found by bisection, or where supporting lines meet; under given prices the
//!    layers' lower hulls add up, steepest step first, which is the linear relaxation of the first limit. What comes out
//!    is below every split.
//! 2. *The split.* The hull's own choice, filled up item by item. Where that is above the bound, a dynamic programme over
//!    the layers, in parts of the memory: with bytes rounded down it raises the bound, with true bytes it finds the
//!    split. Only what could still be better is looked at: choices whose *reduced cost*, the ticks by which they lie
//!    above the dual, is less than the gap. Where prompts are limited, a programme that has all limits (`meeting.rs`)
//!    decides whether there is a split of so many ticks, until that is known closely enough.

use crate::room::{Need, Room};

mod exchange;
mod meeting;
mod soonest;

pub use soonest::soonest;

use self::meeting::{Meeting, Surrogate, Verdict};

/// Limits: all bytes, bytes beside the slots, and the time of two prompts.
pub const LIMITS: usize = 4;
/// More than any limit.
pub const NEVER: i64 = i64::MAX / 8;
/// Units of memory in which the dynamic programme counts, at most: few to dismiss a way, then more, and most for the split.
const UNITS: [i64; 3] = [256, 2048, 16384];
/// A split this part of its ticks above the bound is as good as the best.
pub const CLOSE: i64 = 4096;
/// Splits of different sizes that the programme offers.
const ENDS_MAX: usize = 16;
/// Where limits besides memory have a price: the programme is run with these times as much, so that one of its splits
/// keeps them.
const DEARER: [f64; 4] = [1.0, 1.05, 1.3, 2.0];
/// Changes of each layer, on average, after which no repair of a split is hoped for.
const REPAIRS_PER_LAYER: usize = 4;
/// A bound is lowered by such a share, whatever was rounded.
const SURE: f64 = 1e-9;
/// A price at which a limit that is not kept cannot be.
const DEAREST: f64 = 1e18;
/// What sums of priced limits may be off by, as a share: at high prices that is more than all ticks, and such a bound says
/// nothing.
const ROUNDING: f64 = 1e-12;
/// Halvings of the price of memory.
const BISECTIONS: usize = 12;
/// Steps in which a price is found at most where prompts are limited.
const STEPS_MAX: usize = 24;
/// A dual known to within such a part is not made higher.
const NEAR: f64 = 16.0 * CLOSE as f64;

/// One way of caching one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Item {
    /// Which way of caching it is, among all of its layer.
    pub cached: usize,
    /// Bytes.
    pub need: Need,
    /// Ticks of the layer in a token.
    pub ticks: i64,
    /// Ticks of the layer in each prompt whose time is limited.
    pub prompts: [i64; 2],
}

/// Limits that all layers together must keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Memory.
    pub room: Room,
    /// Ticks of each prompt; [`NEVER`] where there is no limit.
    pub prompts: [i64; 2],
    /// Partial choices of a programme that are looked at before nothing is decided: [`CHOICES_MAX`].
    pub choices_max: usize,
}

/// Partial choices that are looked at before it is given up to decide whether a split keeps all limits. Where a split is known, and only a
/// better one is sought, a 32nd of them; where nothing depends on the answer, a 128th.
pub const CHOICES_MAX: usize = 1 << 23;

/// A split, and what no split can be below.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// The item of each layer; `None` where none was found.
    pub found: Option<Found>,
    /// Ticks that no split can be below.
    pub least: i64,
    /// Whether the limits on prompts cost nothing: without them it would be the same.
    pub prompts_free: bool,
    /// Prices of the limits that are good for the bound.
    pub prices: [f64; LIMITS],
}

/// A choice of one item of each layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Indices.
    pub chosen: Vec<usize>,
    /// Ticks.
    pub ticks: i64,
    /// Bytes.
    pub need: Need,
}

impl Item {
    /// The item's weight against each limit.
    fn weights(&self) -> [i64; LIMITS] {
        [self.need.bytes(), self.need.beside(), self.prompts[0], self.prompts[1]]
    }
}

impl Budget {
    /// What may be taken of each limit. All bytes are those beside the slots, and the slots: where no item has many, no more bytes in
    /// all than follows from that, so that the programme, which counts all bytes, counts those that bind.
    fn limits(&self, items: &[Vec<Item>]) -> [i64; LIMITS] {
        let [all, beside] = self.room.budgets();
        let slots = |items: &Vec<Item>| items.iter().map(|item| item.need.cold).max().unwrap_or(0);
        let slots: i64 = items.iter().map(slots).sum();
        [all.min(beside.saturating_add(slots)), beside, self.prompts[0], self.prompts[1]]
    }

    fn keeps(&self, need: Need, prompts: [i64; 2]) -> bool {
        self.room.fits(need) && (0..2).all(|i| prompts[i] <= self.prompts[i])
    }
}

/// The best split of `items[layer]`, which rise in bytes; `None` where the limits leave none.
///
/// With `to_beat` nothing is sought that takes as many ticks.
pub fn split(items: &[Vec<Item>], budget: &Budget, to_beat: Option<i64>) -> Option<Split> {
    closed(items, budget, to_beat, false)
}

/// [`split`], but any that takes fewer ticks than `to_beat` will do.
pub fn any_split(items: &[Vec<Item>], budget: &Budget, to_beat: i64) -> Option<Split> {
    closed(items, budget, Some(to_beat), true)
}

fn closed(items: &[Vec<Item>], budget: &Budget, to_beat: Option<i64>, any: bool) -> Option<Split> {
    let (point, mut quick) = relaxed(items, budget, to_beat, [0.0; LIMITS])?;
    let to_beat = to_beat.unwrap_or(NEVER);
    let limited = budget.prompts.iter().any(|&most| most < NEVER);
    if limited && quick.least < to_beat {
        quick.exchange(items, budget);
    }
    let known = quick.found.as_ref().map_or(NEVER, |found| found.ticks).min(to_beat);
    // where any will do nobody knows that there is one of so many ticks
    let close = if any { known < to_beat } else { known <= quick.least + quick.least / CLOSE };
    if close || quick.least >= to_beat {
        return Some(quick);
    }
    let (mut better, mut dropped) = programme(items, budget, &point, known);
    let reached = better.as_ref().map_or(known, |found| found.ticks);
    let open = if any { better.is_none() && dropped < known } else { reached > dropped + dropped / CLOSE };
    if open && (limited || any) {
        let (decided, least) = decided(items, budget, &point, (dropped.max(quick.least), reached), any);
        (better, dropped) = (decided.or(better), least);
    }
    let least = dropped.max(quick.least).min(better.as_ref().map_or(known, |found| found.ticks));
    Some(Split { found: better.or(quick.found), least, ..quick })
}

/// Ticks that no split can be below, by the dual at these prices; `None` where the limits leave none. Items may stand for several, of each
/// of which they take no more.
pub fn least_at(items: &[Vec<Item>], budget: &Budget, prices: [f64; LIMITS]) -> Option<i64> {
    let [all, beside] = budget.room.budgets();
    let limits = [all, beside, budget.prompts[0], budget.prompts[1]];
    Some(Dual { items, limits, enough: f64::INFINITY }.steepest(prices)?.least())
}

/// The bound, and the split that it suggests; with `to_beat` no more of either than says that nothing takes fewer ticks.
/// `prices` are tried first: those that were good for a budget like it.
pub fn quick_split(
    items: &[Vec<Item>],
    budget: &Budget,
    to_beat: Option<i64>,
    prices: [f64; LIMITS],
) -> Option<Split> {
    relaxed(items, budget, to_beat, prices).map(|(_, split)| split)
}

fn relaxed(
    items: &[Vec<Item>],
    budget: &Budget,
    to_beat: Option<i64>,
    prices: [f64; LIMITS],
) -> Option<(Point, Split)> {
    let enough = to_beat.map_or(f64::INFINITY, |ticks| ticks as f64 * (1.0 + 4.0 * SURE) + 1.0);
    let limited = budget.prompts.iter().any(|&most| most < NEVER);
    let dual = Dual { items, limits: budget.limits(items), enough };
    let [all, beside, ..] = dual.limits;
    let of_memory = Dual { items, limits: [all, beside, NEVER, NEVER], enough }.best()?;
    let beaten = |point: Point, prompts_free: bool| {
        let split = Split { found: None, least: point.least(), prompts_free, prices: point.prices };
        Some((point, split))
    };
    if of_memory.value >= enough {
        return beaten(of_memory, true);
    }
    if limited && to_beat.is_some() {
        let tried = dual.steepest(prices)?;
        if tried.value >= enough {
            return beaten(tried, false);
        }
    }
    // most of what cannot be kept is refused by its bounds
    let mut sooner = if limited { soonest::of_prompts(items, budget)?.1 } else { None };
    // where a step of any size breaks a limit there may be no prices that keep all of them
    let best = if limited { dual.best() } else { Some(of_memory.clone()) };
    let priced = best.is_some();
    let point = best.unwrap_or(of_memory);
    if point.value >= enough {
        return beaten(point, false);
    }
    let least = point.least();
    let repaired = |chosen: Vec<usize>| Found::of(items, chosen).repaired(items, budget);
    let smallest = || repaired(vec![0; items.len()]);
    let found = repaired(point.chosen.clone()).or_else(|| repaired(dual.most_pinned()?)).or_else(smallest);
    if limited && found.is_none() && sooner.is_none() {
        sooner = soonest::with_work(items, budget, budget.choices_max / 128)?;
    }
    let found = found.into_iter().chain(sooner).map(|found| found.filled(items, budget));
    let found = found.min_by_key(|found| (found.ticks, found.need.bytes()));
    // without prices of prompts nobody knows what they cost
    let prompts_free = priced && point.prices[2..].iter().all(|&price| price == 0.0);
    let prices = point.prices;
    Some((point, Split { found, least, prompts_free, prices }))
}

impl Split {
    /// Makes what was found better by changes of two layers at once, until it is close to the bound.
    pub fn exchange(&mut self, items: &[Vec<Item>], budget: &Budget) {
        let enough = self.least + self.least / CLOSE;
        self.found = self.found.take().map(|found| found.exchanged(items, budget, self.prices, enough));
    }
}

impl Found {
    fn of(items: &[Vec<Item>], chosen: Vec<usize>) -> Self {
        let taken = || chosen.iter().zip(items).map(|(&i, items)| items[i]);
        let ticks = taken().map(|item| item.ticks).sum();
        let need = taken().fold(Need::default(), |sum, item| sum.with(item.need));
        Self { chosen, ticks, need }
    }

    fn prompts(&self, items: &[Vec<Item>]) -> [i64; 2] {
        let taken = || self.chosen.iter().zip(items).map(|(&i, items)| items[i].prompts);
        taken().fold([0, 0], |sum, item| [sum[0] + item[0], sum[1] + item[1]])
    }

    fn keeps(&self, items: &[Vec<Item>], budget: &Budget) -> bool {
        budget.keeps(self.need, self.prompts(items))
    }

    /// Changes the item of one layer after another until prompts are as fast as they must, where a change costs the fewest ticks
    /// for what it gains; `None` where that leads nowhere.
    fn repaired(mut self, items: &[Vec<Item>], budget: &Budget) -> Option<Self> {
        let excess = |prompts: [i64; 2]| -> i64 {
            prompts.iter().zip(budget.prompts).map(|(ticks, most)| (ticks - most).max(0)).sum()
        };
        let mut prompts = self.prompts(items);
        for _ in 0..REPAIRS_PER_LAYER * items.len() {
            let over = excess(prompts);
            if over == 0 {
                break;
            }
            let mut best: Option<(f64, usize, usize)> = None;
            for (layer, items) in items.iter().enumerate() {
                let now = items[self.chosen[layer]];
                for (i, item) in items.iter().enumerate() {
                    let less = over - excess([0, 1].map(|k| prompts[k] + item.prompts[k] - now.prompts[k]));
                    if less <= 0 || !budget.room.fits(self.need.with(item.need).with(now.need.negated())) {
                        continue;
                    }
                    let dear = (item.ticks - now.ticks) as f64 / less as f64;
                    if best.is_none_or(|best| dear < best.0) {
                        best = Some((dear, layer, i));
                    }
                }
            }
            let (_, layer, i) = best?;
            let (now, item) = (items[layer][self.chosen[layer]], items[layer][i]);
            self.need = self.need.with(item.need).with(now.need.negated());
            prompts = [0, 1].map(|k| prompts[k] + item.prompts[k] - now.prompts[k]);
            (self.ticks, self.chosen[layer]) = (self.ticks + item.ticks - now.ticks, i);
        }
        self.keeps(items, budget).then_some(self)
    }

    /// Changes the item of one layer after another, the greatest gain first, as long as the limits are kept.
    fn filled(mut self, items: &[Vec<Item>], budget: &Budget) -> Self {
        let mut prompts = self.prompts(items);
        loop {
            let mut best: Option<(i64, usize, usize)> = None;
            for (layer, items) in items.iter().enumerate() {
                let now = items[self.chosen[layer]];
                for (i, item) in items.iter().enumerate() {
                    let gain = now.ticks - item.ticks;
                    if gain <= best.map_or(0, |best| best.0) {
                        continue;
                    }
                    let need = self.need.with(item.need).with(now.need.negated());
                    let changed = [0, 1].map(|k| prompts[k] + item.prompts[k] - now.prompts[k]);
                    if budget.keeps(need, changed) {
                        best = Some((gain, layer, i));
                    }
                }
            }
            let Some((gain, layer, i)) = best else { return self };
            let (now, item) = (items[layer][self.chosen[layer]], items[layer][i]);
            self.need = self.need.with(item.need).with(now.need.negated());
            prompts = [0, 1].map(|k| prompts[k] + item.prompts[k] - now.prompts[k]);
            (self.ticks, self.chosen[layer]) = (self.ticks - gain, i);
        }
    }
}

/// Lagrange's dual of a split.
struct Dual<'a> {
    items: &'a [Vec<Item>],
    limits: [i64; LIMITS],
    /// A value with which no better point is sought.
    enough: f64,
}

/// The dual at given prices.
#[derive(Clone)]
struct Point {
    /// Ticks for each unit of what counts against a limit.
    prices: [f64; LIMITS],
    /// Below every split.
    value: f64,
    /// How much of each limit the relaxed choice takes.
    taken: [f64; LIMITS],
    /// The relaxed choice, a broken layer rounded down.
    chosen: Vec<usize>,
}

impl Point {
    /// Ticks that no split can be below.
    fn least(&self) -> i64 {
        (self.value - SURE * self.value.abs()).ceil() as i64
    }
}

impl Dual<'_> {
    /// The highest point that was found, or the first that is enough; `None` where no prices keep the limits.
    fn best(&self) -> Option<Point> {
        self.climb([0.0; LIMITS], LIMITS - 1)
    }

    /// The best prices of the limits up to `limit`, the others being given: none where the limit is kept without, and
    /// else between the last that does not keep it and the first that does.
    fn climb(&self, prices: [f64; LIMITS], limit: usize) -> Option<Point> {
        if limit == 0 {
            return self.steepest(prices);
        }
        let at = |price: f64| {
            let mut prices = prices;
            prices[limit] = price;
            self.climb(prices, limit - 1)
        };
        // what is taken is rounded, and a limit may be kept by nothing but what takes all of it
        let most = self.limits[limit] as f64;
        let kept = |point: &Point| point.taken[limit] <= most + SURE * most.abs();
        let enough = |point: &Point| point.value >= self.enough;
        let free = at(0.0)?;
        if kept(&free) || enough(&free) {
            return Some(free);
        }
        let unit = if limit == 1 { free.prices[0].max(1e-9) } else { 1.0 };
        let (mut low, mut below) = (0.0, free.clone());
        let mut high = unit;
        let mut above = at(high)?;
        let mut best = free;
        while !kept(&above) {
            if enough(&above) {
                return Some(above);
            }
            if high > DEAREST {
                return None;
            }
            (low, high, below) = (high, high * 4.0, above);
            above = at(high)?;
        }
        // memory alone is close enough after a few halvings; with prompts the bound is worth more
        let by_lines = self.limits[2..].iter().any(|&most| most < NEVER);
        if by_lines && below.value > best.value {
            best = below.clone();
        }
        for step in 0..if by_lines { STEPS_MAX } else { BISECTIONS } {
            if enough(&above) {
                return Some(above);
            }
            let most_seen = best.value.max(above.value);
            // the dual is concave, so that it lies nowhere above the lines through both points
            let [rise, fall] = [&below, &above].map(|point| point.taken[limit] - most);
            let meet = (above.value - below.value + rise * low - fall * high) / (rise - fall);
            let top = below.value + rise * (meet - low);
            if by_lines && top <= most_seen + most_seen.abs() / NEAR {
                break;
            }
            // what a limit of its own made the best of is not quite on its line
            let inside = (meet - low).min(high - meet) > SURE * (high - low);
            let price = if by_lines && inside && step % 4 < 3 { meet } else { 0.5 * (low + high) };
            let point = at(price)?;
            if enough(&point) {
                return Some(point);
            }
            if point.value > best.value {
                best = point.clone();
            }
            if kept(&point) { (high, above) = (price, point) } else { (low, below) = (price, point) }
        }
        // what both sides take together is as much as may be; the choice is from the side that keeps the limit
        let [rise, fall] = [&below, &above].map(|point| point.taken[limit] - most);
        let share = rise / (rise - fall);
        let taken = std::array::from_fn(|k| below.taken[k] + share * (above.taken[k] - below.taken[k]));
        let value = best.value.max(above.value);
        let prices = if best.value > above.value { best.prices } else { above.prices };
        Some(Point { prices, value, taken, chosen: above.chosen })
    }

    /// The items with which prompts are fastest, however slow a token is; `None` where nothing limits prompts or nothing fits.
    fn most_pinned(&self) -> Option<Vec<usize>> {
        /// Ticks for a part of a limited prompt: more than any part is worth.
        const DEAR: f64 = 1e6;
        let [all, beside, first, second] = self.limits;
        let price = |limit: i64| if limit < NEVER { DEAR } else { 0.0 };
        let prices = [0.0, 0.0, price(first), price(second)];
        // what is pinned is beside the slots, and all of it is to be pinned
        let pinned = Dual { limits: [all.min(beside), beside, first, second], ..*self };
        if prices == [0.0; LIMITS] { None } else { Some(pinned.steepest(prices)?.chosen) }
    }

    /// The linear relaxation of the first limit under the prices of the others: the steepest step of any layer's hull
    /// comes first.
    fn steepest(&self, mut prices: [f64; LIMITS]) -> Option<Point> {
        let mut hulls = Vec::with_capacity(self.items.len());
        let mut point = Point { prices, value: 0.0, taken: [0.0; LIMITS], chosen: Vec::new() };
        let cost = |item: &Item| item.ticks as f64 + priced(item.weights(), prices);
        let mut steps = Vec::new();
        for (layer, items) in self.items.iter().enumerate() {
            let hull = hull(items, cost);
            let first = &items[hull[0].0];
            point.value += hull[0].1;
            point.chosen.push(0);
            add(&mut point.taken, first, 1.0);
            for pair in hull.windows(2) {
                let bytes = items[pair[1].0].need.bytes() - items[pair[0].0].need.bytes();
                steps.push(((pair[0].1 - pair[1].1) / bytes as f64, layer, bytes));
            }
            hulls.push(hull);
        }
        let mut left = self.limits[0] - point.taken[0] as i64;
        if left < 0 {
            return None;
        }
        // of a hull each step is less steep than the one before it: a stable sort keeps their order
        steps.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut broken = None;
        for (slope, layer, bytes) in steps {
            let (from, to) = (point.chosen[layer], point.chosen[layer] + 1);
            let share = if bytes <= left { 1.0 } else { left as f64 / bytes as f64 };
            let [from, to] = [from, to].map(|at| &self.items[layer][hulls[layer][at].0]);
            add(&mut point.taken, from, -share);
            add(&mut point.taken, to, share);
            point.value -= slope * bytes as f64 * share;
            if share < 1.0 {
                broken = Some(slope);
                break;
            }
            left -= bytes;
            point.chosen[layer] += 1;
        }
        prices[0] = broken.unwrap_or(0.0);
        point.prices = prices;
        let constant = priced(self.limits, prices);
        point.value -= constant + ROUNDING * (constant + point.value.abs());
        for (chosen, hull) in point.chosen.iter_mut().zip(&hulls) {
            *chosen = hull[*chosen].0;
        }
        Some(point)
    }
}

/// What counts against the limits but the first, at their prices.
fn priced(weights: [i64; LIMITS], prices: [f64; LIMITS]) -> f64 {
    (1..LIMITS).map(|k| prices[k] * weights[k] as f64).sum()
}

fn add(taken: &mut [f64; LIMITS], item: &Item, share: f64) {
    for (taken, weight) in taken.iter_mut().zip(item.weights()) {
        *taken += share * weight as f64;
    }
}

/// The lower hull of items by their bytes, up to where it stops falling: indices and costs.
fn hull(items: &[Item], cost: impl Fn(&Item) -> f64) -> Vec<(usize, f64)> {
    let mut hull: Vec<(usize, f64)> = Vec::new();
    let x = |i: usize| items[i].need.bytes() as f64;
    for (i, item) in items.iter().enumerate() {
        let y = cost(item);
        while let Some(&(last, by)) = hull.last() {
            let above = match hull.len().checked_sub(2).map(|at| hull[at]) {
                Some((first, ay)) => {
                    let (a, b, c) = (x(first), x(last), x(i));
                    (by - ay) * (c - a) >= (y - ay) * (b - a)
                }
                None => x(last) == x(i) && by >= y,
            };
            if !above {
                break;
            }
            hull.pop();
        }
        if hull.last().is_none_or(|&(_, last)| y < last) {
            hull.push((i, y));
        }
    }
    hull
}

/// The dynamic programme over the layers, under the prices of a point.
struct Programme {
    /// Per layer, rising in bytes and falling in cost: item, bytes, cost. Those that cannot be part of a better split are
    /// left out.
    layers: Vec<Vec<(usize, i64, f64)>>,
    /// Per layer: the least of cost and priced bytes.
    floors: Vec<f64>,
    /// Price of a byte.
    price: f64,
    /// How far cost and priced bytes may be above the floors.
    gap: f64,
    /// Bytes in all.
    bytes: i64,
    /// Bytes are counted in units of two to this power.
    shift: u32,
}

impl Programme {
    fn new(items: &[Vec<Item>], limits: [i64; LIMITS], prices: [f64; LIMITS], gap: f64, most: i64) -> Self {
        let cost = |item: &Item| item.ticks as f64 + priced(item.weights(), prices);
        let (mut layers, mut floors) = (Vec::new(), Vec::new());
        for items in items {
            let mut unbeaten: Vec<(usize, i64, f64)> = Vec::new();
            for (i, item) in items.iter().enumerate() {
                let (bytes, cost) = (item.need.bytes(), cost(item));
                if unbeaten.last().is_none_or(|last| cost < last.2) {
                    if unbeaten.last().is_some_and(|last| last.1 == bytes) {
                        unbeaten.pop();
                    }
                    unbeaten.push((i, bytes, cost));
                }
            }
            let priced = |&(_, bytes, cost): &(usize, i64, f64)| cost + prices[0] * bytes as f64;
            let floor = unbeaten.iter().map(priced).fold(f64::INFINITY, f64::min);
            unbeaten.retain(|item| priced(item) - floor < gap);
            layers.push(unbeaten);
            floors.push(floor);
        }
        let bytes = limits[0];
        let shift = (0..).find(|&shift| bytes >> shift < most).unwrap_or(0);
        Self { layers, floors, price: prices[0], gap, bytes, shift }
    }

    /// No split costs less. Partial choices that take about as many bytes are taken together: the least cost of any and the
    /// fewest bytes of any.
    fn least(&self) -> f64 {
        let units = (self.bytes >> self.shift) as usize;
        let nothing = (f64::INFINITY, i64::MAX);
        let mut best = vec![nothing; units + 1];
        best[0] = (0.0, 0);
        let mut floor = 0.0;
        for (layer, of_layer) in self.layers.iter().zip(&self.floors) {
            floor += of_layer;
            let mut next = vec![nothing; units + 1];
            for &(cost, bytes) in best.iter().filter(|(cost, _)| cost.is_finite()) {
                for &(_, more_bytes, more_cost) in layer {
                    let (bytes, cost) = (bytes + more_bytes, cost + more_cost);
                    if bytes > self.bytes {
                        break;
                    }
                    if cost + self.price * bytes as f64 - floor < self.gap {
                        let to = &mut next[(bytes >> self.shift) as usize];
                        *to = (to.0.min(cost), to.1.min(bytes));
                    }
                }
            }
            best = next;
        }
        best.into_iter().map(|(cost, _)| cost).fold(f64::INFINITY, f64::min)
    }

    /// The cheapest splits, the cheapest first: of those that take about as many bytes up to some layer one is kept.
    fn splits(&self) -> Vec<Vec<usize>> {
        let units = (self.bytes >> self.shift) as usize;
        let nothing = Partial { cost: f64::INFINITY, bytes: 0, item: 0, before: 0 };
        let mut layers = vec![vec![nothing; units + 1]];
        layers[0][0].cost = 0.0;
        let mut floor = 0.0;
        for (layer, of_layer) in self.layers.iter().zip(&self.floors) {
            floor += of_layer;
            let mut next = vec![nothing; units + 1];
            let last = &layers[layers.len() - 1];
            for (before, state) in last.iter().enumerate().filter(|(_, state)| state.cost.is_finite()) {
                for &(item, bytes, cost) in layer {
                    let (bytes, cost) = (state.bytes + bytes, state.cost + cost);
                    if bytes > self.bytes {
                        break;
                    }
                    let to = &mut next[(bytes >> self.shift) as usize];
                    let better = cost < to.cost || cost == to.cost && bytes < to.bytes;
                    if better && cost + self.price * bytes as f64 - floor < self.gap {
                        *to = Partial { cost, bytes, item: item as u32, before: before as u32 };
                    }
                }
            }
            layers.push(next);
        }
        let last = &layers[layers.len() - 1];
        let mut ends: Vec<usize> = (0..=units).filter(|&at| last[at].cost.is_finite()).collect();
        ends.sort_by(|&a, &b| last[a].cost.total_cmp(&last[b].cost).then(a.cmp(&b)));
        ends.truncate(ENDS_MAX);
        let chosen = |&(mut at): &usize| {
            let mut chosen = vec![0; self.layers.len()];
            for layer in (0..chosen.len()).rev() {
                let state = layers[layer + 1][at];
                (chosen[layer], at) = (state.item as usize, state.before as usize);
            }
            chosen
        };
        ends.iter().map(chosen).collect()
    }
}

/// The cheapest partial choice that takes about so many bytes.
#[derive(Clone, Copy)]
struct Partial {
    cost: f64,
    bytes: i64,
    item: u32,
    before: u32,
}

/// The best choice below `known` ticks, if one is found, and ticks that no choice can be below.
fn programme(items: &[Vec<Item>], budget: &Budget, point: &Point, known: i64) -> (Option<Found>, i64) {
    let limits = budget.limits(items);
    let constant = priced(limits, point.prices);
    let gap = known as f64 - point.value;
    let mut least = point.least();
    for most in UNITS {
        let bound = Programme::new(items, limits, point.prices, gap, most).least() - constant;
        let off = SURE * bound.abs() + ROUNDING * constant;
        let bound = if bound.is_finite() { (bound - off).ceil() as i64 } else { known };
        least = least.max(bound);
        if least >= known {
            return (None, known);
        }
    }
    let exact = Programme::new(items, limits, point.prices, gap, UNITS[2]);
    let simple = point.prices[1..].iter().all(|&price| price == 0.0);
    let mut best: Option<Found> = None;
    for dearer in if simple { &DEARER[..1] } else { &DEARER[..] } {
        let mut prices = point.prices.map(|price| price * dearer);
        prices[0] = point.prices[0];
        let programme = if *dearer == 1.0 {
            None
        } else {
            Some(Programme::new(items, limits, prices, f64::INFINITY, UNITS[1]))
        };
        let splits = programme.as_ref().unwrap_or(&exact).splits();
        let found = splits.into_iter().map(|chosen| Found::of(items, chosen));
        let kept = found.filter_map(|found| found.repaired(items, budget));
        let kept = kept.map(|found| found.filled(items, budget));
        let fastest =
            kept.min_by_key(|found| (found.ticks, found.need.bytes())).filter(|found| found.ticks < known);
        if let Some(found) = fastest
            && best.as_ref().is_none_or(|best| found.ticks < best.ticks)
        {
            best = Some(found);
        }
        if best.as_ref().is_some_and(|best| best.ticks <= least + least / CLOSE) {
            break;
        }
    }
    (best, least)
}

/// The same with all limits at once, where prompts are limited: what lies between the bound and what is known is decided, a little above the
/// bound first, until both are close; with `any` until there is a split.
fn decided(
    items: &[Vec<Item>],
    budget: &Budget,
    point: &Point,
    (mut least, mut known): (i64, i64),
    any: bool,
) -> (Option<Found>, i64) {
    let Some((mut surrogates, _)) = soonest::of_prompts(items, budget) else { return (None, known) };
    let of_prompts = surrogates.len();
    let mut best = None;
    if known >= NEVER / 2 {
        // whatever a token takes
        match soonest(items, budget) {
            None => return (None, known),
            Some(found) => best = found.map(|found| found.filled(items, budget)),
        }
        known = best.as_ref().map_or(known, |found| found.ticks);
        if best.is_none() || any {
            return (best, least);
        }
    }
    let work_max = if any { budget.choices_max } else { budget.choices_max / 32 };
    let mut step = if any { known } else { (least / CLOSE).max(1) };
    while known > if any { least } else { least + least / CLOSE } {
        let most = least.saturating_add(step).min(known - 1);
        surrogates.truncate(of_prompts);
        surrogates.push(Surrogate::of_token(most, point.prices, budget.limits(items)));
        match Meeting::new(items, budget, most, &surrogates).decide(work_max) {
            Verdict::Found(found) => {
                let found = found.filled(items, budget);
                known = found.ticks;
                step = (known - least) / 2;
                best = Some(found);
                if any {
                    break;
                }
            }
            Verdict::Never => {
                least = most + 1;
                step = step.saturating_mul(2);
            }
            Verdict::Open => break,
        }
    }
    (best, least)
}
