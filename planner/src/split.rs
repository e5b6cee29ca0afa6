//! The exact split: memory over layers, each with its own caching.
//!
//! A multiple-choice knapsack: one item of each layer, the fewest ticks within up to four limits (all bytes; the bytes
//! beside the slots, because of a prompt's rows; the time of one or two prompts). Three steps, as long as the gap is open:
//!
//! 1. *The lower bound* (`dual.rs`). Lagrange's dual: every limit but the first has a price. Under given prices the layers' lower hulls
//!    add up, steepest step first, which is the linear relaxation of the first limit.
//! 2. *The first split* (`items.rs`). The hulls' own choice, repaired where it breaks a limit on prompts, and filled up item by item.
//! 3. *A dynamic programme* over the layers (`programme.rs`), with a proof unless it takes too much work.

mod dual;
mod items;
mod programme;
#[cfg(test)]
mod tests;

pub use self::items::{Budget, CHOICES_MAX, CLOSE, Found, Item, LIMITS, NEVER};

use self::dual::{Dual, enough};
use self::programme::Row;
use crate::room::{Need, Room};

/// A split, and a lower bound on all splits.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// The item of each layer; `None` where none was found.
    pub found: Option<Found>,
    /// Ticks of the fastest that was found: one nearly as fast is taken if it pins more, so that prompts are faster.
    pub fastest: i64,
    /// Ticks that no split can be below.
    pub least: i64,
}

/// How much is wanted of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The lower bound, and the first split.
    Bound,
    /// Any split.
    Any,
    /// A split within one part in [`CLOSE`] of the lower bound.
    Best,
}

/// A split of `items[layer]`, which rise in bytes; `None` where the limits leave none.
///
/// With `to_beat` no split is sought that takes as many ticks.
pub fn split(items: &[Vec<Item>], budget: &Budget, to_beat: Option<i64>, wanted: Wanted) -> Option<Split> {
    let enough = enough(to_beat);
    let of_memory = Dual { items, limits: budget.of_memory(items), enough }.best()?;
    if of_memory.value >= enough {
        return Some(Split { found: None, fastest: NEVER, least: of_memory.least() });
    }
    let (prompts, soonest) = of_prompts(items, budget)?;
    // where a step of any size breaks a limit there may be no prices that keep all of them
    let point = Dual { items, limits: budget.limits(items), enough }.best().unwrap_or(of_memory);
    if point.value >= enough {
        return Some(Split { found: None, fastest: NEVER, least: point.least() });
    }
    let repaired = |chosen: Vec<usize>| Found::of(items, chosen).repaired(items, budget);
    let first = repaired(point.chosen.clone()).or_else(|| repaired(vec![0; items.len()]));
    let found = first.into_iter().chain(soonest).map(|found| found.filled(items, budget));
    let found = found.min_by_key(|found| (found.ticks, found.need.bytes()));
    let least = point.least();
    let to_beat = to_beat.unwrap_or(NEVER);
    let ticks = found.as_ref().map_or(NEVER, |found| found.ticks);
    let done = match wanted {
        Wanted::Bound => true,
        Wanted::Any => ticks < to_beat,
        Wanted::Best => ticks.min(to_beat) <= least + least / CLOSE,
    };
    if done {
        return Some(Split { found, fastest: ticks, least });
    }
    let known = ticks.min(to_beat);
    let mut surrogates = vec![Row::of_token(known, point.prices, budget.limits(items))];
    surrogates.extend(prompts);
    let better = programme::best(items, budget, known, &surrogates, budget.choices_max);
    let least = better.least.max(least);
    let found = better.found.map(|found| found.filled(items, budget)).or(found);
    // nothing below what is to be beaten, and nothing at all where anything would do
    (found.is_some() || least < NEVER).then_some(Split { found, fastest: better.fastest.min(ticks), least })
}

/// For each limit on a prompt, a constraint that adds up its ticks and bytes at prices; and a split that keeps the limits, if the bounds
/// suggest one. `None` where a bound refuses a limit.
///
/// A prompt in place of a token: the fewest ticks of the prompt within the bytes beside the slots, as if slots took none.
fn of_prompts(items: &[Vec<Item>], budget: &Budget) -> Option<(Vec<Row>, Option<Found>)> {
    let (mut rows, mut kept) = (Vec::new(), None);
    let [_, beside] = budget.room.budgets();
    for prompt in (0..2).filter(|&prompt| budget.prompts[prompt] < NEVER) {
        let item = |(place, item): (usize, &Item)| {
            let need = Need { cold: 0, ..item.need };
            Item { need, ticks: item.prompts[prompt], prompts: [0, 0], cached: place }
        };
        let mut of_prompt: Vec<Vec<Item>> =
            items.iter().map(|items| items.iter().enumerate().map(item).collect()).collect();
        of_prompt.iter_mut().for_each(|items| items.sort_by_key(|item| (item.need.bytes(), item.ticks)));
        let room = Room { bytes: beside + budget.room.tables, rows: 0, ..budget.room };
        let alone = Budget { room, prompts: [NEVER; 2], ..*budget };
        let most = budget.prompts[prompt];
        let dual = Dual { items: &of_prompt, limits: alone.of_memory(&of_prompt), enough: f64::INFINITY };
        let point = dual.best()?;
        if point.least() > most {
            return None;
        }
        let found = Found::of(&of_prompt, point.chosen.clone()).filled(&of_prompt, &alone);
        let places = found.chosen.iter().zip(&of_prompt).map(|(&chosen, items)| items[chosen].cached);
        let found = Found::of(items, places.collect());
        kept = kept.or((found.keeps(items, budget)).then_some(found));
        rows.push(Row::of_prompt(prompt, point.prices[0] + point.prices[1], budget));
    }
    Some((rows, kept))
}
