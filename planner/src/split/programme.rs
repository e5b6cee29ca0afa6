//! A dynamic programme over the layers: all partial choices after one layer, after two, and so on.
//!
//! Every limit is a row: a sum over the layers that is at most so much in every split within the limits. So are Lagrange's dual at its
//! best prices, and each prompt's. A partial choice is pruned where a row's sum, with the least of the layers that follow, is too much;
//! where there are many, those that another one dominates, but for a few ticks, are pruned as well; beyond a width, only the most promising
//! are kept.

use std::cmp::Reverse;

use super::items::{Budget, Found, Item, LIMITS, NEVER};

/// Rounding of sums at prices, as a share.
const ROUNDING: f64 = 1e-9;
/// Rows at most: ticks of a token, the limits, the dual of a token, and those of two prompts.
const ROWS: usize = 4 + LIMITS;
/// The row of all bytes.
const BYTES: usize = 1;
/// Partial choices up to which none is pruned as dominated: what is found among so few is exact to the page.
const FEW: usize = 1 << 14;
/// The part of what the dual leaves open that pruning may lose, as one part in so many.
const PARTS: usize = 128;
/// Splits within one part in so many of the fastest's ticks tie. Most pinned neurons decide, because they make prompts fastest.
const ALIKE: i64 = 256;
/// The row of the dual of a token.
const DUAL: usize = 1 + LIMITS;
/// Partial choices with which one is compared.
const COMPARED: usize = 32;

/// A linear constraint on a split.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Prices of a tick of a token, and of each limit's unit.
    prices: [f64; 1 + LIMITS],
    most: f64,
}

impl Row {
    /// A row that nothing breaks.
    const NONE: Self = Self { prices: [0.0; 1 + LIMITS], most: f64::INFINITY };

    /// Ticks below `known` of a token, with what counts against the limits at these prices.
    pub(super) fn of_token(known: i64, prices: [f64; LIMITS], limits: [i64; LIMITS]) -> Self {
        let priced: f64 = prices.iter().zip(limits).map(|(price, limit)| price * limit as f64).sum();
        let [any, beside, first, second] = prices;
        let most = ((known - 1) as f64 + priced) * (1.0 + ROUNDING);
        Self { prices: [1.0, any, beside, first, second], most }
    }

    /// A prompt, with a byte beside the slots at a price.
    pub(super) fn of_prompt(prompt: usize, price: f64, budget: &Budget) -> Self {
        let [_, beside] = budget.room.budgets();
        let mut prices = [0.0, 0.0, price, 0.0, 0.0];
        prices[3 + prompt] = 1.0;
        Self { prices, most: (budget.prompts[prompt] as f64 + price * beside as f64) * (1.0 + ROUNDING) }
    }

    /// A limit by itself, or none where no split breaks it.
    fn of_limit(items: &[Vec<Item>], limit: usize, most: i64) -> Self {
        let largest = |items: &Vec<Item>| items.iter().map(|item| item.weights()[limit]).max().unwrap_or(0);
        if items.iter().map(largest).fold(0, i64::saturating_add) <= most {
            return Self::NONE;
        }
        let mut prices = [0.0; 1 + LIMITS];
        prices[1 + limit] = 1.0;
        Self { prices, most: most as f64 }
    }

    fn of(&self, item: &Item) -> f64 {
        let weights = item.weights().map(|weight| weight as f64);
        self.prices[0] * item.ticks as f64
            + self.prices[1..].iter().zip(weights).map(|(price, weight)| price * weight).sum::<f64>()
    }
}

/// An item of each of some layers: sums of the rows, the last item, and the place of the others among the partial choices before.
#[derive(Debug, Clone, Copy)]
struct Partial {
    rows: [f64; ROWS],
    item: usize,
    before: usize,
}

impl Partial {
    /// Whether it takes no more of any limit, and but for so many no more ticks.
    fn dominates(&self, other: &Self, tolerance: f64) -> bool {
        self.rows[0] <= other.rows[0] + tolerance && (1..=LIMITS).all(|r| self.rows[r] <= other.rows[r])
    }
}

/// The result of a programme.
pub(super) struct Outcome {
    /// The split with most pinned neurons of the fastest ones that were found.
    pub(super) found: Option<Found>,
    /// Ticks of the fastest.
    pub(super) fastest: i64,
    /// Ticks that no split is below, at most `known`.
    pub(super) least: i64,
}

/// The best split within a budget below `known` ticks, from about `choices_max` partial choices at most.
///
/// Pruning may lose one part in [`PARTS`] of the open gap, shared among the layers; the bound counts the loss.
pub(super) fn best(
    items: &[Vec<Item>],
    budget: &Budget,
    known: i64,
    surrogates: &[Row],
    choices_max: usize,
) -> Outcome {
    let limits = budget.limits(items);
    let mut rows = [Row::NONE; ROWS];
    rows[0] = Row { prices: [1.0, 0.0, 0.0, 0.0, 0.0], most: (known - 1) as f64 };
    (0..LIMITS).for_each(|k| rows[1 + k] = Row::of_limit(items, k, limits[k]));
    rows[DUAL..].iter_mut().zip(surrogates).for_each(|(row, of)| *row = *of);
    let mut most = rows.map(|row| row.most);
    let part = |(item, of): (usize, &Item)| Partial { rows: rows.map(|row| row.of(of)), item, before: 0 };
    let of_layer = |items: &Vec<Item>| items.iter().enumerate().map(part).collect();
    let mut layers: Vec<(usize, Vec<Partial>)> = items.iter().map(of_layer).enumerate().collect();
    let lowest = layers.iter().fold([0.0; ROWS], |all, (_, items)| sum(&all, &least(items)));
    // where tokens may take any time no tick is lost that matters
    let (open, loss) =
        if known < NEVER { ((most[DUAL] - lowest[DUAL]).max(1.0), 1.0) } else { (lowest[DUAL], 0.0) };
    let tolerance = open / (PARTS * 2 * layers.len()) as f64;
    // what is pruned in favour of a split of `known` ticks is not lost
    [0, DUAL].into_iter().for_each(|row| most[row] += loss * open / PARTS as f64);
    for (_, items) in &mut layers {
        let least = least(items);
        items.retain(|item| (0..ROWS).all(|r| lowest[r] - least[r] + item.rows[r] <= most[r]));
    }
    let (mut exact, mut lost) = (true, 0.0);
    if layers.iter().map(|(_, items)| items.len() as f64).product::<f64>() > (64 * FEW) as f64 {
        exact = false;
        lost += loss * tolerance * layers.len() as f64;
        layers.iter_mut().for_each(|(_, items)| *items = undominated(std::mem::take(items), tolerance));
    }
    // layers with many items first, while there are few partial choices; where prompts are limited what is kept does not gain by that
    if surrogates.len() == 1 {
        layers.sort_by_key(|(layer, items)| (Reverse(items.len()), *layer));
    }
    let width = choices_max / layers.iter().map(|(_, items)| items.len()).sum::<usize>().max(1);
    // the least of the layers that follow, after so many
    let mut left = vec![[0.0; ROWS]];
    for (_, items) in layers.iter().rev() {
        left.push(sum(&left[left.len() - 1], &least(items)));
    }
    left.reverse();
    // how much the rows leave open
    let slack: [f64; ROWS] = std::array::from_fn(|r| (most[r] - left[0][r]).max(1.0));
    let taken = |partial: &Partial, left: &[f64; ROWS]| -> f64 {
        (0..ROWS).map(|r| (partial.rows[r] + left[r]) / slack[r]).sum()
    };
    // the least of the dual's row of what was left out
    let mut left_out = f64::INFINITY;
    let mut now = vec![Partial { rows: [0.0; ROWS], item: 0, before: 0 }];
    let mut chains: Vec<Vec<(usize, usize)>> = Vec::new();
    for ((_, items), left) in layers.iter().zip(&left[1..]) {
        let mut next = Vec::new();
        for (before, partial) in now.iter().enumerate() {
            for item in items {
                let rows = sum(&partial.rows, &item.rows);
                if (0..ROWS).all(|r| rows[r] + left[r] <= most[r]) {
                    next.push(Partial { rows, item: item.item, before });
                }
            }
        }
        if next.len() > FEW.min(width) {
            exact = false;
            lost += loss * tolerance;
            next = undominated(next, tolerance);
        }
        if next.len() > width {
            next.sort_by(|a, b| taken(a, left).total_cmp(&taken(b, left)));
            exact = false;
            let of_dual = next.drain(width..).map(|partial| partial.rows[DUAL] + left[DUAL]);
            left_out = of_dual.fold(left_out, f64::min);
        }
        chains.push(next.iter().map(|partial| (partial.item, partial.before)).collect());
        now = next;
    }
    let split = |place: usize| {
        let (mut chosen, mut at) = (vec![0; items.len()], place);
        for (&(layer, _), chain) in layers.iter().zip(&chains).rev() {
            (chosen[layer], at) = chain[at];
        }
        Found::of(items, chosen)
    };
    let within_rows: Vec<Found> = (0..now.len()).map(split).collect();
    // the rows do not round to pages
    let bound = within_rows.iter().map(|found| found.ticks as f64 - lost).fold(known as f64, f64::min);
    let kept = within_rows.into_iter().filter(|found| found.ticks < known && found.keeps(items, budget));
    let mut kept: Vec<Found> = kept.collect();
    let fastest = kept.iter().map(|found| found.ticks).min().unwrap_or(known);
    kept.retain(|found| found.ticks <= fastest + fastest / ALIKE);
    let found = kept.into_iter().min_by_key(|found| (-found.need.hot, found.ticks));
    let of_left_out = (known - 1) as f64 + left_out - rows[DUAL].most - lost;
    let least = if exact { fastest } else { bound.min(of_left_out) as i64 };
    Outcome { found, fastest, least }
}

/// Partial choices with rising bytes, without those that one of the last before them dominates, but for so many ticks.
fn undominated(mut all: Vec<Partial>, tolerance: f64) -> Vec<Partial> {
    all.sort_by(|a, b| a.rows[BYTES].total_cmp(&b.rows[BYTES]).then(a.rows[0].total_cmp(&b.rows[0])));
    let mut kept: Vec<Partial> = Vec::new();
    for one in all {
        if !kept.iter().rev().take(COMPARED).any(|other| other.dominates(&one, tolerance)) {
            kept.push(one);
        }
    }
    kept
}

/// The least of some partial choices in each row.
fn least(of: &[Partial]) -> [f64; ROWS] {
    of.iter().fold([f64::INFINITY; ROWS], |least, one| std::array::from_fn(|r| least[r].min(one.rows[r])))
}

fn sum(a: &[f64; ROWS], b: &[f64; ROWS]) -> [f64; ROWS] {
    std::array::from_fn(|r| a[r] + b[r])
}
