//! The exact split: memory over layers, each with its own cachings.
//!
//! A multiple-choice knapsack: one item of each layer, the fewest ticks within up to four limits (all bytes; the bytes
//! beside the slots, because of a prompt's rows; the time of one or two prompts). It is solved in two steps.
//!
//! 1. *The bound* (`dual.rs`). Lagrange's dual: every limit but the first has a price, found by bisection, or where supporting lines
//!    meet. Under given prices the layers' lower hulls add up, steepest step first, which is the linear relaxation of the first limit.
//!    The result is below every split.
//! 2. *The split.* The hull's own choice, filled up item by item (`items.rs`). Where this is above the bound, a dynamic programme over
//!    the layers with all limits (`meeting.rs`) decides whether there is a split of so many ticks, until the gap is small. It sees only
//!    choices whose *reduced cost*, the ticks by which they lie above the dual, leaves room below the limit.

mod dual;
mod items;
mod meeting;
mod soonest;

pub use self::items::{Budget, CHOICES_MAX, CLOSE, Found, Item, LIMITS, NEVER};
pub use self::soonest::soonest;

use self::dual::{Dual, Point, enough, of_memory};
use self::meeting::{Meeting, Surrogate, Verdict};

/// A split, and what no split can be below.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// The item of each layer; `None` where none was found.
    pub found: Option<Found>,
    /// Ticks that no split can be below.
    pub least: i64,
    /// Prices of the limits that are good for the bound.
    pub prices: [f64; LIMITS],
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
    let (point, quick) = relaxed(items, budget, to_beat, [0.0; LIMITS])?;
    let to_beat = to_beat.unwrap_or(NEVER);
    let known = quick.found.as_ref().map_or(NEVER, |found| found.ticks).min(to_beat);
    // where any will do nobody knows that there is one of so many ticks
    let close = if any { known < to_beat } else { known <= quick.least + quick.least / CLOSE };
    if close || quick.least >= to_beat {
        return Some(quick);
    }
    let (better, least) = decided(items, budget, &point, (quick.least, known), any);
    let least = least.max(quick.least).min(better.as_ref().map_or(known, |found| found.ticks));
    Some(Split { found: better.or(quick.found), least, ..quick })
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
    let enough = enough(to_beat);
    let of = |point: Point, found: Option<Found>| {
        let split = Split { found, least: point.least(), prices: point.prices };
        Some((point, split))
    };
    if budget.prompts.iter().all(|&most| most >= NEVER) {
        let (point, found) = of_memory(items, budget, enough)?;
        return of(point, found);
    }
    let dual = Dual { items, limits: budget.limits(items), enough };
    let [all, beside, ..] = dual.limits;
    let of_memory = Dual { items, limits: [all, beside, NEVER, NEVER], enough }.best()?;
    if of_memory.value >= enough {
        return of(of_memory, None);
    }
    if to_beat.is_some() {
        let tried = dual.steepest(prices)?;
        if tried.value >= enough {
            return of(tried, None);
        }
    }
    // most of what cannot be kept is refused by its bounds
    let mut sooner = soonest::of_prompts(items, budget)?.1;
    // where a step of any size breaks a limit there may be no prices that keep all of them
    let point = dual.best().unwrap_or(of_memory);
    if point.value >= enough {
        return of(point, None);
    }
    let repaired = |chosen: Vec<usize>| Found::of(items, chosen).repaired(items, budget);
    let smallest = || repaired(vec![0; items.len()]);
    let found = repaired(point.chosen.clone()).or_else(|| repaired(dual.most_pinned()?)).or_else(smallest);
    if found.is_none() && sooner.is_none() {
        sooner = soonest::with_work(items, budget, budget.choices_max / 128)?;
    }
    let found = found.into_iter().chain(sooner).map(|found| found.filled(items, budget));
    let found = found.min_by_key(|found| (found.ticks, found.need.bytes()));
    of(point, found)
}

/// A split below `known` ticks, if one is found, and ticks that no split can be below. Numbers of ticks between both are decided, a
/// little above the bound first, until both are close; with `any` until there is a split.
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
