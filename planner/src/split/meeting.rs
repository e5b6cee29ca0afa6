//! Whether any split keeps limits on memory and on several times at once: of a token, and of one or two prompts.
//!
//! A dynamic programme over the layers. Partial choices that take about as many bytes beside the slots and about as many in
//! slots meet in a place, which holds few of them. Once the least of all that they take stays there, so that no split is below what
//! comes out; once the cheapest stay, so that what comes out is a split. Places become smaller until one of both decides.
//!
//! What keeps their number small are *surrogates*: sums of all that a split takes at prices, of which no split within the limits
//! has more than the limits together. A partial choice that has too much of one is dropped.

use super::items::{Budget, Found, Item, LIMITS, NEVER};
use crate::room::Need;

/// Of a token and of two prompts.
const TIMES: usize = 3;
/// Surrogates at most: of a token, and two of each prompt.
const SURROGATES: usize = 5;
/// Logarithms of the places along bytes beside the slots and along those in slots, each time.
const BITS: [u32; 5] = [3, 5, 7, 9, 10];
/// Partial choices that a place holds, none of them as good as another in everything.
const HELD: usize = 4;
/// Places that may be taken after any layer.
const PLACES_MAX: usize = 1 << 15;
/// What sums at prices may be off by, as a share.
const ROUNDING: f64 = 1e-9;
/// No place.
const NONE: u32 = u32::MAX;

/// What a split takes, at prices: of no split within the limits it is more than `most`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Surrogate {
    /// Prices of a tick of a token, and of a prompt.
    times: [f64; TIMES],
    /// Prices of any byte, and of one beside the slots.
    bytes: [f64; 2],
    most: f64,
}

impl Surrogate {
    /// Of one prompt, with bytes at these prices.
    pub(super) fn of_prompt(prompt: usize, [any, beside]: [f64; 2], budget: &Budget) -> Self {
        let mut times = [0.0; TIMES];
        times[1 + prompt] = 1.0;
        let [all, most_beside] = budget.room.budgets();
        let most = budget.prompts[prompt] as f64 + any * all as f64 + beside * most_beside as f64;
        Self { times, bytes: [any, beside], most: most * (1.0 + ROUNDING) }
    }

    /// Of a token of at most so many ticks, with what counts against the limits at these prices.
    pub(super) fn of_token(ticks_max: i64, prices: [f64; LIMITS], limits: [i64; LIMITS]) -> Self {
        let priced: f64 = prices.iter().zip(limits).map(|(price, limit)| price * limit as f64).sum();
        let [any, beside, first, second] = prices;
        let most = (ticks_max as f64 + priced) * (1.0 + ROUNDING);
        Self { times: [1.0, first, second], bytes: [any, beside], most }
    }

    fn of(&self, partial: &Partial) -> f64 {
        let times: f64 =
            self.times.iter().zip(partial.times).map(|(price, ticks)| price * ticks as f64).sum();
        let [any, beside] = self.bytes;
        times + any * partial.need.bytes() as f64 + beside * partial.need.beside() as f64
    }
}

/// What is known of a split within the limits.
#[derive(Debug)]
pub(super) enum Verdict {
    /// There is this one.
    Found(Found),
    /// There is none.
    Never,
    /// Nothing, after much work.
    Open,
}

/// What stays where a place is full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// The cheapest: every partial choice is one.
    Cheapest,
    /// The least of each that any of them takes: no partial choice takes less.
    Least,
}

/// An item of each of some layers.
#[derive(Debug, Clone, Copy, Default)]
struct Partial {
    need: Need,
    times: [i64; TIMES],
    /// Of each surrogate.
    sums: [f64; SURROGATES],
    /// How much of what surrogates leave open it takes.
    price: f64,
    /// The last layer's item, and the place in the list of choices before it.
    item: u32,
    before: u32,
}

impl Partial {
    fn with(&self, more: &Self, sums: [f64; SURROGATES], before: u32) -> Self {
        Self {
            need: self.need.with(more.need),
            times: std::array::from_fn(|k| self.times[k] + more.times[k]),
            sums,
            price: self.price + more.price,
            item: more.item,
            before,
        }
    }

    /// Whether it takes no more of anything.
    fn no_more(&self, other: &Self) -> bool {
        let (a, b) = (&self.need, &other.need);
        a.hot <= b.hot
            && a.cold <= b.cold
            && a.tables <= b.tables
            && (0..TIMES).all(|k| self.times[k] <= other.times[k])
            && (0..SURROGATES).all(|k| self.sums[k] <= other.sums[k])
    }

    /// The less of each that both take.
    fn least(&self, other: &Self) -> Self {
        let (a, b) = (self.need, other.need);
        Self {
            need: Need { hot: a.hot.min(b.hot), cold: a.cold.min(b.cold), tables: a.tables.min(b.tables) },
            times: std::array::from_fn(|k| self.times[k].min(other.times[k])),
            sums: std::array::from_fn(|k| self.sums[k].min(other.sums[k])),
            price: self.price.min(other.price),
            ..*self
        }
    }
}

/// The least that the layers after some add.
#[derive(Debug, Clone, Copy, Default)]
struct Left {
    sums: [f64; SURROGATES],
    bytes: i64,
    beside: i64,
}

/// The dynamic programme over the layers.
pub(super) struct Meeting<'a> {
    items: &'a [Vec<Item>],
    budget: &'a Budget,
    /// Most ticks of a token and of each prompt.
    times_max: [i64; TIMES],
    /// Per layer: its items as partial choices, with rising bytes beside the slots.
    layers: Vec<Vec<Partial>>,
    /// Most of each surrogate.
    most: [f64; SURROGATES],
    /// After so many layers.
    left: Vec<Left>,
}

impl<'a> Meeting<'a> {
    /// Of splits of which a token takes at most so many ticks.
    pub(super) fn new(
        items: &'a [Vec<Item>],
        budget: &'a Budget,
        ticks_max: i64,
        surrogates: &[Surrogate],
    ) -> Self {
        // what is not limited makes no choice worse than another
        let ticks = |item: &Item| if ticks_max < NEVER { item.ticks } else { 0 };
        let of_item = |(place, item): (usize, &Item)| {
            let times = [ticks(item), item.prompts[0], item.prompts[1]];
            let mut partial = Partial { need: item.need, times, item: place as u32, ..Partial::default() };
            for (sum, surrogate) in partial.sums.iter_mut().zip(surrogates) {
                *sum = surrogate.of(&partial_of(item));
            }
            partial
        };
        let mut layers: Vec<Vec<Partial>> =
            items.iter().map(|items| items.iter().enumerate().map(of_item).collect()).collect();
        let mut most = [f64::INFINITY; SURROGATES];
        most.iter_mut().zip(surrogates).for_each(|(most, surrogate)| *most = surrogate.most);
        let least =
            |items: &[Partial], k: usize| items.iter().map(|item| item.sums[k]).fold(f64::INFINITY, f64::min);
        let mut all = [0.0; SURROGATES];
        for items in &layers {
            all.iter_mut().enumerate().for_each(|(k, all)| *all += least(items, k));
        }
        let mut left = vec![Left::default()];
        for items in layers.iter_mut().rev() {
            let of_layer: [f64; SURROGATES] = std::array::from_fn(|k| least(items, k));
            // with those others even the least of all other layers is too much
            items.retain(|item| (0..SURROGATES).all(|k| item.sums[k] - of_layer[k] + all[k] <= most[k]));
            keep_unbeaten(items);
            let after = left[left.len() - 1];
            let fewest = |of: fn(Need) -> i64| items.iter().map(|item| of(item.need)).min().unwrap_or(0);
            left.push(Left {
                sums: std::array::from_fn(|k| after.sums[k] + of_layer[k]),
                bytes: after.bytes + fewest(Need::bytes),
                beside: after.beside + fewest(Need::beside),
            });
        }
        left.reverse();
        let slack: [f64; SURROGATES] = std::array::from_fn(|k| (most[k] - all[k]).max(1.0));
        for item in layers.iter_mut().flatten() {
            item.price = item.sums.iter().zip(slack).map(|(sum, slack)| sum / slack).sum();
        }
        let times_max = [ticks_max, budget.prompts[0], budget.prompts[1]];
        Self { items, budget, times_max, layers, most, left }
    }

    /// Whether there is such a split, with so much work for each size of places.
    pub(super) fn decide(&self, work_max: usize) -> Verdict {
        if self.layers.iter().any(Vec::is_empty) {
            return Verdict::Never;
        }
        for bits in BITS {
            match self.run(bits, Kept::Least, work_max) {
                None => return Verdict::Open,
                Some((None, _)) => return Verdict::Never,
                Some((Some(found), false)) => return Verdict::Found(found),
                Some(_) => {}
            }
            match self.run(bits, Kept::Cheapest, work_max) {
                None => return Verdict::Open,
                Some((Some(found), _)) => return Verdict::Found(found),
                Some((None, false)) => return Verdict::Never,
                Some(_) => {}
            }
        }
        Verdict::Open
    }

    fn keeps(&self, partial: &Partial) -> bool {
        self.budget.room.fits(partial.need)
            && (0..TIMES).all(|k| partial.times[k] <= self.times_max[k])
            && (0..SURROGATES).all(|k| partial.sums[k] <= self.most[k])
    }

    /// Items that keep all limits, and whether a place was full; `None` where that takes too much work. With [`Kept::Least`] they
    /// need not be a split, unless no place was full.
    fn run(&self, bits: u32, kept: Kept, work_max: usize) -> Option<(Option<Found>, bool)> {
        let [all, beside] = self.budget.room.budgets();
        let mut grid = Grid::new(bits, beside, &self.layers);
        let (mut met, mut work) = (false, 0);
        let mut now = vec![Partial::default()];
        let mut before: Vec<Vec<[u32; 2]>> = Vec::new();
        for (layer, items) in self.layers.iter().enumerate() {
            let left = &self.left[layer + 1];
            for (at, partial) in now.iter().enumerate() {
                // what the layer and those after it may take
                let most_beside = beside - left.beside - partial.need.beside();
                let most_bytes = all - left.bytes - partial.need.bytes();
                let most: [f64; SURROGATES] =
                    std::array::from_fn(|k| self.most[k] - left.sums[k] - partial.sums[k]);
                let first_beyond = items.partition_point(|item| item.need.beside() <= most_beside);
                work += first_beyond;
                for item in &items[..first_beyond] {
                    let fits =
                        item.need.bytes() <= most_bytes && (0..SURROGATES).all(|k| item.sums[k] <= most[k]);
                    if fits {
                        let sums = std::array::from_fn(|k| partial.sums[k] + item.sums[k]);
                        let more = partial.with(item, sums, at as u32);
                        met |= Self::enter(grid.place(more.need), more, kept);
                    }
                }
                if work > work_max || grid.places.len() > PLACES_MAX {
                    return None;
                }
            }
            now = grid.emptied();
            before.push(now.iter().map(|partial| [partial.item, partial.before]).collect());
        }
        let splits = now.iter().filter(|partial| self.keeps(partial));
        let Some(last) = splits.min_by_key(|partial| (partial.times[0], partial.need.bytes())) else {
            return Some((None, met));
        };
        let (mut chosen, mut next) = (Vec::new(), [last.item, last.before]);
        for layer in (0..self.layers.len()).rev() {
            let [item, at] = next;
            chosen.push(item as usize);
            if layer > 0 {
                next = before[layer - 1][at as usize];
            }
        }
        chosen.reverse();
        Some((Some(Found::of(self.items, chosen)), met))
    }

    /// Puts a partial choice into its place, and says whether that was full.
    fn enter(place: &mut Vec<Partial>, more: Partial, kept: Kept) -> bool {
        if place.iter().any(|other| other.no_more(&more)) {
            return false;
        }
        place.retain(|other| !more.no_more(other));
        if place.len() < HELD {
            place.push(more);
            return false;
        }
        let dearest = place.iter_mut().max_by(|a, b| a.price.total_cmp(&b.price));
        let Some(dearest) = dearest else { return false };
        match kept {
            Kept::Least => *dearest = dearest.least(&more),
            Kept::Cheapest if more.price < dearest.price => *dearest = more,
            Kept::Cheapest => {}
        }
        true
    }
}

/// An item without its surrogates.
fn partial_of(item: &Item) -> Partial {
    let times = [item.ticks, item.prompts[0], item.prompts[1]];
    Partial { need: item.need, times, ..Partial::default() }
}

/// Leaves out items that take no less of anything than another one; the others rise in bytes beside the slots.
fn keep_unbeaten(items: &mut Vec<Partial>) {
    items.sort_by_key(|item| (item.need.beside(), item.need.cold, item.times, item.item));
    let mut unbeaten: Vec<Partial> = Vec::with_capacity(items.len());
    for item in items.drain(..) {
        if !unbeaten.iter().any(|other| other.no_more(&item)) {
            unbeaten.push(item);
        }
    }
    *items = unbeaten;
}

/// Where partial choices meet, by their bytes beside the slots and in slots.
struct Grid {
    shifts: [u32; 2],
    width: usize,
    /// For each pair of these the place in the list.
    table: Vec<u32>,
    /// The places that are taken, each with its pair.
    places: Vec<(usize, Vec<Partial>)>,
}

impl Grid {
    fn new(bits: u32, beside: i64, layers: &[Vec<Partial>]) -> Self {
        let cold = |items: &Vec<Partial>| items.iter().map(|item| item.need.cold).max().unwrap_or(0);
        let cold: i64 = layers.iter().map(cold).sum();
        // where nothing has slots all places are along the other bytes
        let bits = if cold == 0 { [2 * bits, 0] } else { [bits, bits] };
        let beside = beside.max(0);
        let shift = |most: i64, bits: u32| (0..64).find(|&shift| most >> shift < 1 << bits).unwrap_or(63);
        let shifts = [shift(beside, bits[0]), shift(cold, bits[1])];
        let width = (beside >> shifts[0]) as usize + 1;
        let height = (cold >> shifts[1]) as usize + 1;
        Self { shifts, width, table: vec![NONE; width * height], places: Vec::new() }
    }

    fn place(&mut self, need: Need) -> &mut Vec<Partial> {
        let [across, up] = [need.beside() >> self.shifts[0], need.cold >> self.shifts[1]];
        let pair = up as usize * self.width + across as usize;
        if self.table[pair] == NONE {
            self.table[pair] = self.places.len() as u32;
            self.places.push((pair, Vec::with_capacity(HELD)));
        }
        &mut self.places[self.table[pair] as usize].1
    }

    /// All that is there, which is there no longer.
    fn emptied(&mut self) -> Vec<Partial> {
        for (pair, _) in &self.places {
            self.table[*pair] = NONE;
        }
        self.places.drain(..).flat_map(|(_, held)| held).collect()
    }
}
