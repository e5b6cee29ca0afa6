//! Whether any split keeps the limits on prompts, however slow a token is.
//!
//! What is pinned makes prompts faster and takes memory beside the slots: a knapsack of its own.
//!
//! 1. *The bound* of each prompt by itself refuses most of what cannot be kept, and the split that it suggests keeps most of
//!    what can.
//! 2. *The programme* over the layers (`meeting.rs`) decides what is between both.

use super::dual::{enough, of_memory};
use super::items::{Budget, Found, Item, NEVER};
use super::meeting::{Meeting, Surrogate, Verdict};
use crate::room::{Need, Room};

/// A split that keeps the limits on prompts, however slow a token is; `None` if there is none, and in that `None` in the rare case that
/// not even the smallest places decide.
pub fn soonest(items: &[Vec<Item>], budget: &Budget) -> Option<Option<Found>> {
    with_work(items, budget, budget.choices_max)
}

/// [`soonest`] with so much work for each size of places; after that nothing is decided.
pub(super) fn with_work(items: &[Vec<Item>], budget: &Budget, work_max: usize) -> Option<Option<Found>> {
    let (surrogates, found) = of_prompts(items, budget)?;
    if found.is_some() {
        return Some(found);
    }
    match Meeting::new(items, budget, NEVER, &surrogates).decide(work_max) {
        Verdict::Found(found) => Some(Some(found)),
        Verdict::Never => None,
        Verdict::Open => Some(None),
    }
}

/// What limits on prompts say of each prompt by itself, and a split that keeps all of them where one of the bounds suggests it;
/// `None` where a bound refuses them.
pub(super) fn of_prompts(items: &[Vec<Item>], budget: &Budget) -> Option<(Vec<Surrogate>, Option<Found>)> {
    let mut surrogates = Vec::new();
    let mut kept = None;
    let limited = (0..2).filter(|&prompt| budget.prompts[prompt] < NEVER);
    for (prompt, slots) in limited.flat_map(|prompt| [(prompt, false), (prompt, true)]) {
        let (prices, found) = alone(items, budget, prompt, slots)?;
        kept = kept.or(found.filter(|found| found.keeps(items, budget)));
        surrogates.push(Surrogate::of_prompt(prompt, prices, budget));
    }
    Some((surrogates, kept))
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
    let alone = Budget { room, prompts: [NEVER; 2], ..*budget };
    let (point, found) = of_memory(&of_prompt, &alone, enough(Some(most + 1)))?;
    if point.least() > most {
        return None;
    }
    let found = found.map(|found| {
        let places = found.chosen.iter().zip(&of_prompt).map(|(&chosen, items)| items[chosen].cached);
        Found::of(items, places.collect())
    });
    let [any, beside, ..] = point.prices;
    Some((if slots { [any, beside] } else { [0.0, any + beside] }, found))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{CHOICES_MAX, CLOSE, LIMITS, Split, any_split, quick_split, split};
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
            let budget = Budget { room, prompts: [prompts[0] - less[0], second], choices_max: CHOICES_MAX };
            let kept: Vec<&Found> = all.iter().filter(|found| found.keeps(&items, &budget)).collect();
            match soonest(&items, &budget) {
                None => prop_assert!(kept.is_empty(), "refused, but {kept:?}"),
                Some(found) => {
                    let found = found.expect("so few choices are decided");
                    prop_assert!(found.keeps(&items, &budget), "{found:?}");
                }
            }
            // one that gives up at once refuses nothing that is there, and bounds what it did not find
            let soon = Budget { choices_max: 0, ..budget };
            prop_assert!(soonest(&items, &soon).is_some() || kept.is_empty());
            match any_split(&items, &soon, NEVER) {
                None => prop_assert!(kept.is_empty()),
                Some(Split { found: None, least, .. }) => {
                    prop_assert!(kept.is_empty() || least < NEVER, "proven that there is none of {kept:?}");
                }
                Some(_) => {}
            }
            for split in [split(&items, &budget, None), quick_split(&items, &budget, None, [0.0; LIMITS])] {
                let found = split.as_ref().and_then(|split| split.found.as_ref());
                prop_assert_eq!(found.is_some(), !kept.is_empty());
                let least = split.as_ref().map_or(NEVER, |split| split.least);
                prop_assert!(kept.iter().all(|kept| kept.ticks >= least), "{kept:?} below {least}");
            }
            // and with a token in mind none is faster, but for what is left open
            let split_of = |to_beat| split(&items, &budget, to_beat);
            let split = split_of(None);
            if let (Some(fastest), Some(Split { found: Some(found), least, .. })) =
                (kept.iter().map(|kept| kept.ticks).min(), &split)
            {
                prop_assert!(found.keeps(&items, &budget), "{found:?}");
                prop_assert!(found.ticks <= fastest + fastest / CLOSE + 1, "{found:?}, and {fastest}");
                prop_assert!(found.ticks <= least + least / CLOSE + 1, "{split:?}");
                // what is to be beaten is beaten where it can be
                let asked = split_of(Some(fastest + fastest / 64));
                let least = asked.as_ref().map_or(NEVER, |split| split.least);
                prop_assert!(least <= fastest, "{asked:?}, and {fastest}");
                let found = asked.and_then(|split| split.found).map_or(NEVER, |found| found.ticks);
                prop_assert!(found <= fastest + fastest / CLOSE + 1, "{found}, and {fastest}");
            }
        }
    }
}
