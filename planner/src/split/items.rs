//! Items, budgets and choices of the split, and how a choice is repaired and filled up.

use crate::room::{Need, Room};

/// Limits: all bytes, bytes beside the slots, and the time of two prompts.
pub const LIMITS: usize = 4;
/// More than any limit.
pub const NEVER: i64 = i64::MAX / 8;
/// A split this part of its ticks above the bound is as good as the best.
pub const CLOSE: i64 = 1024;
/// Changes of each layer, on average, after which no repair of a split is hoped for.
const REPAIRS_PER_LAYER: usize = 4;
/// A bound is lowered by such a share, whatever was rounded.
pub(super) const SURE: f64 = 1e-9;
/// Rounding of sums of priced limits, as a share. At high prices that is more than all ticks, and such a bound says nothing.
pub(super) const ROUNDING: f64 = 1e-12;

/// One caching one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Item {
    /// Which caching it is, among all of its layer.
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
    /// Partial choices of the dynamic programme that are looked at: [`CHOICES_MAX`].
    pub choices_max: usize,
}

/// Partial choices that the dynamic programme of a split looks at, at most.
pub const CHOICES_MAX: usize = 1 << 21;

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
    pub(super) fn weights(&self) -> [i64; LIMITS] {
        [self.need.bytes(), self.need.beside(), self.prompts[0], self.prompts[1]]
    }
}

impl Budget {
    /// What may be taken of each limit. All bytes are those beside the slots, and the slots: where no item has many, no more bytes in
    /// all than follows from that, so that the programme, which counts all bytes, counts those that bind.
    pub(super) fn limits(&self, items: &[Vec<Item>]) -> [i64; LIMITS] {
        let [all, beside] = self.room.budgets();
        let slots = |items: &Vec<Item>| items.iter().map(|item| item.need.cold).max().unwrap_or(0);
        let slots: i64 = items.iter().map(slots).sum();
        [all.min(beside.saturating_add(slots)), beside, self.prompts[0], self.prompts[1]]
    }

    /// [`Self::limits`] where prompts may take any time.
    pub(super) fn of_memory(&self, items: &[Vec<Item>]) -> [i64; LIMITS] {
        let [all, beside, ..] = self.limits(items);
        [all, beside, NEVER, NEVER]
    }

    pub(super) fn keeps(&self, need: Need, prompts: [i64; 2]) -> bool {
        self.room.fits(need) && (0..2).all(|i| prompts[i] <= self.prompts[i])
    }
}

impl Found {
    pub(super) fn of(items: &[Vec<Item>], chosen: Vec<usize>) -> Self {
        let taken = || chosen.iter().zip(items).map(|(&i, items)| items[i]);
        let ticks = taken().map(|item| item.ticks).sum();
        let need = taken().fold(Need::default(), |sum, item| sum.with(item.need));
        Self { chosen, ticks, need }
    }

    pub(super) fn prompts(&self, items: &[Vec<Item>]) -> [i64; 2] {
        let taken = || self.chosen.iter().zip(items).map(|(&i, items)| items[i].prompts);
        taken().fold([0, 0], |sum, item| [sum[0] + item[0], sum[1] + item[1]])
    }

    pub(super) fn keeps(&self, items: &[Vec<Item>], budget: &Budget) -> bool {
        budget.keeps(self.need, self.prompts(items))
    }

    /// Changes the item of one layer after another until prompts are as fast as they must, where a change costs the fewest ticks
    /// for what it gains; `None` where that leads nowhere.
    pub(super) fn repaired(mut self, items: &[Vec<Item>], budget: &Budget) -> Option<Self> {
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
    pub(super) fn filled(mut self, items: &[Vec<Item>], budget: &Budget) -> Self {
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

/// What counts against the limits but the first, at their prices.
pub(super) fn priced(weights: [i64; LIMITS], prices: [f64; LIMITS]) -> f64 {
    (1..LIMITS).map(|k| prices[k] * weights[k] as f64).sum()
}
