//! Lagrange's dual of a split: a bound below every split, and the choice that it suggests.

use super::items::{CLOSE, Item, LIMITS, ROUNDING, SURE, priced};

/// A price at which a limit that is not kept cannot be.
const DEAREST: f64 = 1e18;
/// Steps in which a price is found, at most.
const STEPS_MAX: usize = 24;
/// A dual known to within such a part is not made higher.
const NEAR: f64 = 16.0 * CLOSE as f64;

/// The value of a bound with which no split takes fewer than so many ticks.
pub(super) fn enough(to_beat: Option<i64>) -> f64 {
    to_beat.map_or(f64::INFINITY, |ticks| ticks as f64 * (1.0 + 4.0 * SURE) + 1.0)
}

/// Lagrange's dual of a split.
pub(super) struct Dual<'a> {
    pub(super) items: &'a [Vec<Item>],
    pub(super) limits: [i64; LIMITS],
    /// A value with which no better point is sought.
    pub(super) enough: f64,
}

/// The dual at given prices.
#[derive(Clone)]
pub(super) struct Point {
    /// Ticks for each unit of what counts against a limit.
    pub(super) prices: [f64; LIMITS],
    /// Below every split.
    pub(super) value: f64,
    /// How much of each limit the relaxed choice takes.
    taken: [f64; LIMITS],
    /// The relaxed choice, a broken layer rounded down.
    pub(super) chosen: Vec<usize>,
}

impl Point {
    /// Ticks that no split can be below.
    pub(super) fn least(&self) -> i64 {
        (self.value - SURE * self.value.abs()).ceil() as i64
    }
}

impl Dual<'_> {
    /// The highest point that was found, or the first that is enough; `None` where no prices keep the limits.
    pub(super) fn best(&self) -> Option<Point> {
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
        if below.value > best.value {
            best = below.clone();
        }
        for step in 0..STEPS_MAX {
            if enough(&above) {
                return Some(above);
            }
            let most_seen = best.value.max(above.value);
            // the dual is concave, so that it lies nowhere above the lines through both points
            let [rise, fall] = [&below, &above].map(|point| point.taken[limit] - most);
            let meet = (above.value - below.value + rise * low - fall * high) / (rise - fall);
            let top = below.value + rise * (meet - low);
            if top <= most_seen + most_seen.abs() / NEAR {
                break;
            }
            // what a limit of its own made the best of is not quite on its line
            let inside = (meet - low).min(high - meet) > SURE * (high - low);
            let price = if inside && step % 4 < 3 { meet } else { 0.5 * (low + high) };
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

    /// The linear relaxation of the first limit under the prices of the others: the steepest step of any layer's hull
    /// comes first.
    pub(super) fn steepest(&self, mut prices: [f64; LIMITS]) -> Option<Point> {
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
