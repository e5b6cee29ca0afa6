//! Whether any split keeps the limits on prompts, however slow a token is.
//!
//! What is pinned makes prompts faster and takes memory beside the slots: a knapsack of its own.
//!
//! 1. *The bound* of each prompt by itself refuses most of what cannot be kept, and the split that it suggests keeps most of
//!    what can.
//! 2. *The programme* over the layers decides what is between both. Partial choices of about as many bytes meet in a place
//!    that holds few of them. Once the cheapest stay there, so that what comes out is a split; once the least of all that
//!    they take, so that no split is below what comes out. Places become smaller until one of both decides.

use super::{Budget, Found, Item, LIMITS, NEVER, relaxed};
use crate::room::{Need, Room};

/// Places for partial choices, each time.
const PLACES: [i64; 5] = [1 << 7, 1 << 9, 1 << 11, 1 << 13, 1 << 15];
/// Partial choices that one holds, none of them as good as another in everything.
const PLACE_HOLDS: usize = 4;
/// What sums of priced ticks may be off by, as a share.
const ROUNDING: f64 = 1e-9;

/// A split that keeps the limits on prompts, however slow a token is; `None` if there is none, and in that `None` in the rare case that
/// not even the smallest places decide.
pub fn soonest(items: &[Vec<Item>], budget: &Budget) -> Option<Option<Found>> {
    let mut prices = Vec::new();
    let limited = (0..2).filter(|&prompt| budget.prompts[prompt] < NEVER);
    for (prompt, slots) in limited.flat_map(|prompt| [(prompt, false), (prompt, true)]) {
        let (price, found) = alone(items, budget, prompt, slots)?;
        if let Some(found) = found.filter(|found| found.keeps(items, budget)) {
            return Some(Some(found));
        }
        prices.push((prompt, price));
    }
    let programme = Programme::new(items, budget, prices);
    for places in PLACES {
        let (chosen, met) = programme.chosen(places, Meeting::Cheapest);
        if let Some(chosen) = chosen {
            return Some(Some(Found::of(items, chosen)));
        }
        if !met || programme.chosen(places, Meeting::Least).0.is_none() {
            return None;
        }
    }
    Some(None)
}

/// A prompt in place of a token, within all bytes or as if slots took none: ticks of the prompt that a byte saves, any byte and one
/// beside the slots, and the split that the bound suggests; `None` where the bound is above the prompt's limit.
///
/// Without slots the bound has one limit and is the closest there is; with them what it suggests fits.
fn alone(
    items: &[Vec<Item>],
    budget: &Budget,
    prompt: usize,
    slots: bool,
) -> Option<([f64; 2], Option<Found>)> {
    let item = |(place, item): (usize, &Item)| {
        let need = if slots { item.need } else { Need { cold: 0, ..item.need } };
        Item { need, ticks: item.prompts[prompt], prompts: [0, 0], cached: place }
    };
    let mut of_prompt: Vec<Vec<Item>> =
        items.iter().map(|items| items.iter().enumerate().map(item).collect()).collect();
    of_prompt.iter_mut().for_each(|items| items.sort_by_key(|item| (item.need.bytes(), item.ticks)));
    let [_, beside] = budget.room.budgets();
    let without = Room { bytes: beside + budget.room.tables, rows: 0, ..budget.room };
    let room = if slots { budget.room } else { without };
    let most = budget.prompts[prompt];
    let (point, split) =
        relaxed(&of_prompt, &Budget { room, prompts: [NEVER; 2] }, Some(most + 1), [0.0; LIMITS])?;
    if split.least > most {
        return None;
    }
    let found = split.found.map(|found| {
        let places = found.chosen.iter().zip(&of_prompt).map(|(&chosen, items)| items[chosen].cached);
        Found::of(items, places.collect())
    });
    let [any, beside, ..] = point.prices;
    Some((if slots { [any, beside] } else { [0.0, any + beside] }, found))
}

/// What stays where a place is full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meeting {
    /// The cheapest: every partial choice is one.
    Cheapest,
    /// The least of each that any of them takes: no partial choice takes less.
    Least,
}

/// An item of each of some layers.
#[derive(Debug, Clone, Copy, Default)]
struct Partial {
    need: Need,
    prompts: [i64; 2],
    /// The last layer's item, and where the choice of those before it stands.
    item: u32,
    before: (u32, u32),
}

impl Partial {
    fn with(self, more: &Self, before: (u32, u32)) -> Self {
        let prompts = [0, 1].map(|k| self.prompts[k] + more.prompts[k]);
        Self { need: self.need.with(more.need), prompts, item: more.item, before }
    }

    /// Whether it takes no more of anything.
    fn no_more(&self, other: &Self) -> bool {
        let (a, b) = (&self.need, &other.need);
        a.hot <= b.hot
            && a.cold <= b.cold
            && a.tables <= b.tables
            && (0..2).all(|k| self.prompts[k] <= other.prompts[k])
    }

    /// The less of each that both take.
    fn least(self, other: &Self) -> Self {
        let (a, b) = (self.need, other.need);
        let need = Need { hot: a.hot.min(b.hot), cold: a.cold.min(b.cold), tables: a.tables.min(b.tables) };
        Self { need, prompts: [0, 1].map(|k| self.prompts[k].min(other.prompts[k])), ..self }
    }
}

/// The dynamic programme over the layers.
struct Programme<'a> {
    budget: &'a Budget,
    /// Per layer: its items as partial choices, with rising bytes beside the slots.
    layers: Vec<Vec<Partial>>,
    /// Prompts, each with ticks of it that a byte saves, any byte and one beside the slots.
    prices: Vec<(usize, [f64; 2])>,
    /// Ticks with priced bytes that may be taken at each of these.
    most: Vec<f64>,
    /// After so many layers: the least that those left add, of ticks with priced bytes, and of bytes beside the slots.
    left: Vec<(Vec<f64>, i64)>,
}

impl<'a> Programme<'a> {
    fn new(items: &[Vec<Item>], budget: &'a Budget, prices: Vec<(usize, [f64; 2])>) -> Self {
        let layer = |items: &Vec<Item>| {
            let partial = |(place, item): (usize, &Item)| Partial {
                need: item.need,
                prompts: item.prompts,
                item: place as u32,
                before: (0, 0),
            };
            let mut all: Vec<Partial> = items.iter().enumerate().map(partial).collect();
            all.sort_by_key(|partial| (partial.need.beside(), partial.need.cold, partial.prompts));
            let mut unbeaten: Vec<Partial> = Vec::new();
            for partial in all {
                if unbeaten.last().is_none_or(|last| !last.no_more(&partial)) {
                    unbeaten.push(partial);
                }
            }
            unbeaten
        };
        let mut layers: Vec<Vec<Partial>> = items.iter().map(layer).collect();
        let least = |items: &Vec<Partial>, price: &(usize, [f64; 2])| {
            items.iter().map(|item| priced(item, price)).fold(f64::INFINITY, f64::min)
        };
        let mut left = vec![(vec![0.0; prices.len()], 0)];
        for items in layers.iter().rev() {
            let (ticks, beside) = &left[left.len() - 1];
            let ticks = prices.iter().zip(ticks).map(|(price, ticks)| least(items, price) + ticks);
            let bytes = items.iter().map(|item| item.need.beside()).min().unwrap_or(0);
            left.push((ticks.collect(), beside + bytes));
        }
        left.reverse();
        let [all, beside] = budget.room.budgets();
        let most = |&(prompt, [any, of_beside]): &(usize, [f64; 2])| {
            let bytes = any * all as f64 + of_beside * beside as f64;
            (budget.prompts[prompt] as f64 + bytes) * (1.0 + ROUNDING)
        };
        let most: Vec<f64> = prices.iter().map(most).collect();
        // those with which even the least of all other layers is too much
        for items in &mut layers {
            for ((price, most), all) in prices.iter().zip(&most).zip(&left[0].0) {
                let others = all - least(items, price);
                items.retain(|item| priced(item, price) + others <= *most);
            }
        }
        Self { budget, layers, most, prices, left }
    }

    /// Whether what is chosen of the first layers may be part of a split that keeps the limits.
    fn may(&self, layers: usize, partial: &Partial) -> bool {
        let [_, beside] = self.budget.room.budgets();
        let (ticks, bytes) = &self.left[layers];
        let mut prices = self.prices.iter().zip(ticks).zip(&self.most);
        partial.need.beside() + bytes <= beside
            && prices.all(|((price, ticks), most)| priced(partial, price) + ticks <= *most)
    }

    /// Items that keep all limits, and whether a place was full. With [`Meeting::Least`] they need not be a split.
    fn chosen(&self, places: i64, meeting: Meeting) -> (Option<Vec<usize>>, bool) {
        let [_, beside] = self.budget.room.budgets();
        let shift = (0..64).find(|&shift| beside >> shift < places).unwrap_or(63);
        let nothing = || vec![Vec::<Partial>::new(); (beside.max(0) >> shift) as usize + 1];
        let mut met = false;
        let mut layers = vec![nothing()];
        layers[0][0].push(Partial::default());
        for (layer, items) in self.layers.iter().enumerate() {
            let mut next = nothing();
            let before = layers[layer].iter().enumerate();
            let before =
                before.flat_map(|(at, place)| place.iter().enumerate().map(move |(i, p)| (at, i, p)));
            for (at, i, partial) in before {
                for item in items {
                    let more = partial.with(item, (at as u32, i as u32));
                    if more.need.beside() > beside {
                        break;
                    }
                    if self.may(layer + 1, &more) {
                        let place = &mut next[(more.need.beside() >> shift) as usize];
                        met |= self.enter(place, more, meeting);
                    }
                }
            }
            layers.push(next);
        }
        let keeps = |partial: &Partial| self.budget.keeps(partial.need, partial.prompts);
        let last = layers[layers.len() - 1].iter().flatten().find(|partial| keeps(partial));
        let chosen = last.map(|last| {
            let (mut chosen, mut partial) = (Vec::new(), last);
            for layer in layers[..self.layers.len()].iter().rev() {
                chosen.push(partial.item as usize);
                partial = &layer[partial.before.0 as usize][partial.before.1 as usize];
            }
            chosen.reverse();
            chosen
        });
        (chosen, met)
    }

    /// Puts a partial choice into its place, and says whether that was full.
    fn enter(&self, place: &mut Vec<Partial>, more: Partial, meeting: Meeting) -> bool {
        if place.iter().any(|other| other.no_more(&more)) {
            return false;
        }
        place.retain(|other| !more.no_more(other));
        if place.len() < PLACE_HOLDS {
            place.push(more);
            return false;
        }
        let price = |partial: &Partial| self.prices.iter().map(|of| priced(partial, of)).sum::<f64>();
        let Some(dearest) = place.iter_mut().max_by(|a, b| price(a).total_cmp(&price(b))) else {
            return false;
        };
        match meeting {
            Meeting::Least => *dearest = dearest.least(&more),
            Meeting::Cheapest if price(&more) < price(dearest) => *dearest = more,
            Meeting::Cheapest => {}
        }
        true
    }
}

/// A prompt's ticks with priced bytes.
fn priced(partial: &Partial, &(prompt, [any, beside]): &(usize, [f64; 2])) -> f64 {
    let need = partial.need;
    partial.prompts[prompt] as f64 + any * need.bytes() as f64 + beside * need.beside() as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{quick_split, split};
    use super::*;

    /// A page.
    const PAGE: i64 = 4096;

    /// A layer of up to five items whose prompts take nearly as long, so that all is within a 4096th and prices are high.
    fn layer() -> impl Strategy<Value = Vec<Item>> {
        let ticks = prop_oneof![0..1000i64, 0..1i64 << 30];
        let item = (0..PAGE / 16, 0..PAGE / 16, 0..8i64, prop::array::uniform2(0..1000i64), ticks);
        prop::collection::vec(item, 1..6).prop_map(|items| {
            let item = |(hot, cold, tables, prompts, ticks): (i64, i64, i64, [i64; 2], i64)| Item {
                cached: 0,
                need: Need { hot: 32 * hot, cold: 32 * cold, tables: 32 * tables },
                ticks: (1 << 30) + ticks,
                prompts: prompts.map(|ticks| (1 << 38) + ticks),
            };
            let mut items: Vec<Item> = items.into_iter().map(item).collect();
            items.sort_by_key(|item| (item.need.bytes(), item.ticks));
            items
        })
    }

    /// Every choice of an item of each layer.
    fn all(items: &[Vec<Item>]) -> Vec<Found> {
        let chosen = items.iter().fold(vec![Vec::new()], |all: Vec<Vec<usize>>, items| {
            let more = |chosen: &Vec<usize>| {
                let chosen = chosen.clone();
                (0..items.len()).map(move |item| [chosen.clone(), vec![item]].concat())
            };
            all.iter().flat_map(more).collect()
        });
        chosen.into_iter().map(|chosen| Found::of(items, chosen)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

        /// The limits are those of one of all choices, or a little less: what is kept is found, and what is refused is not there.
        #[test]
        fn a_split_that_keeps_the_limits_on_prompts_is_found_where_there_is_one(
            items in prop::collection::vec(layer(), 1..5),
            (place, less, second) in (any::<prop::sample::Index>(), prop::array::uniform3(0..2i64), any::<bool>()),
            (rows, tables) in (0..6 * PAGE, 0..PAGE),
        ) {
            let all = all(&items);
            let one = &all[place.index(all.len())];
            let prompts = one.prompts(&items);
            let room = Room { bytes: 0, rows, tables };
            let room = Room { bytes: room.taken(one.need) - less[2], ..room };
            let second = if second { prompts[1] - less[1] } else { NEVER };
            let budget = Budget { room, prompts: [prompts[0] - less[0], second] };
            let kept: Vec<&Found> = all.iter().filter(|found| found.keeps(&items, &budget)).collect();
            match soonest(&items, &budget) {
                None => prop_assert!(kept.is_empty(), "refused, but {kept:?}"),
                Some(found) => {
                    let found = found.expect("so few choices are decided");
                    prop_assert!(found.keeps(&items, &budget), "{found:?}");
                }
            }
            for split in [split(&items, &budget, None), quick_split(&items, &budget, None, [0.0; LIMITS])] {
                let found = split.as_ref().and_then(|split| split.found.as_ref());
                prop_assert_eq!(found.is_some(), !kept.is_empty());
                let least = split.as_ref().map_or(NEVER, |split| split.least);
                prop_assert!(kept.iter().all(|kept| kept.ticks >= least), "{kept:?} below {least}");
            }
        }
    }
}
