//! The exact split: memory over layers, each with its own options.
//!
//! The steepest step of any layer's hull comes first, as in [`Curve::sum`], so that the time stays on the lower bound
//! as long as whole steps fit. What is left then goes to whichever single layer gains most from it, option by option.
//! For convex layers that is optimal. A dent in a layer's options can cost up to one step of its hull: with few layers
//! that is much, and [`Exact`] closes the gap by dynamic programming.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::curve::{Curve, div_up};

/// A layer's next step along its hull.
#[derive(PartialEq)]
struct Step {
    ticks_per_byte: f64,
    layer: usize,
}

impl Eq for Step {}
impl PartialOrd for Step {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Step {
    /// The greater gain first; of equals, the earlier layer.
    fn cmp(&self, other: &Self) -> Ordering {
        self.ticks_per_byte.total_cmp(&other.ticks_per_byte).then(other.layer.cmp(&self.layer))
    }
}

/// One option for each layer, together at most `bytes`; `None` where not even the smallest fit.
///
/// *Shape*: `options[layer]` are `(bytes, ticks)`, rising in bytes.
pub fn split(options: &[Vec<(i64, i64)>], bytes: i64) -> Option<Vec<usize>> {
    let hulls: Vec<Vec<usize>> = options.iter().map(|options| Curve::hull(options)).collect();
    let mut at = vec![0; options.len()];
    let mut left = bytes - options.iter().zip(&hulls).map(|(o, hull)| o[hull[0]].0).sum::<i64>();
    if left < 0 {
        return None;
    }
    let step = |layer: usize, at: usize| {
        let (from, to) = (options[layer][hulls[layer][at]], options[layer][*hulls[layer].get(at + 1)?]);
        Some((to.0 - from.0, Step { ticks_per_byte: (from.1 - to.1) as f64 / (to.0 - from.0) as f64, layer }))
    };
    let mut heap: BinaryHeap<Step> = (0..options.len()).filter_map(|l| Some(step(l, 0)?.1)).collect();
    while let Some(Step { layer, .. }) = heap.pop() {
        // A step that does not fit ends its layer's hull; smaller ones of others may still fit.
        let Some((bytes, _)) = step(layer, at[layer]).filter(|(bytes, _)| *bytes <= left) else { continue };
        left -= bytes;
        at[layer] += 1;
        heap.extend(step(layer, at[layer]).map(|(_, step)| step));
    }
    let mut chosen: Vec<usize> = at.iter().zip(&hulls).map(|(&at, hull)| hull[at]).collect();
    fill(options, &mut chosen, left);
    Some(chosen)
}

/// Spends `left` bytes on one layer after another, the greatest gain first.
pub fn fill(options: &[Vec<(i64, i64)>], chosen: &mut [usize], mut left: i64) {
    while let Some((layer, option)) = best_move(options, chosen, left) {
        left -= options[layer][option].0 - options[layer][chosen[layer]].0;
        chosen[layer] = option;
    }
}

/// The change of one layer's option that gains most with what is left; of equals, the smallest.
fn best_move(options: &[Vec<(i64, i64)>], chosen: &[usize], left: i64) -> Option<(usize, usize)> {
    let mut best: Option<(i64, i64, usize, usize)> = None;
    for (layer, (options, &now)) in options.iter().zip(chosen).enumerate() {
        let (bytes, ticks) = options[now];
        let end = options.partition_point(|option| option.0 <= bytes + left);
        for (i, option) in options[..end].iter().enumerate() {
            let (gain, more) = (ticks - option.1, option.0 - bytes);
            if gain > 0 && best.is_none_or(|(g, m, ..)| gain > g || gain == g && more < m) {
                best = Some((gain, more, layer, i));
            }
        }
    }
    best.map(|(_, _, layer, option)| (layer, option))
}

/// Units of memory in which the dynamic programme counts.
const UNITS: i64 = 2048;

/// The best split for every amount of memory up to some bytes, to a 2048th of them.
#[derive(Debug)]
pub struct Exact {
    unit: i64,
    /// Fewest ticks by units of memory, options taking their bytes rounded down: no split is faster.
    least: Vec<i64>,
    /// The same with bytes rounded up: these are reached.
    reached: Vec<i64>,
    /// `[layer][units]`: the option that is taken for `reached`.
    taken: Vec<Vec<u16>>,
}

impl Exact {
    /// Over all splits; `None` where not even the smallest options fit.
    pub fn new(options: &[Vec<(i64, i64)>], bytes: i64) -> Option<Self> {
        let unit = div_up(bytes.max(1), UNITS);
        let units = (bytes / unit) as usize;
        let (least, _) = programme(options, units, |bytes| bytes / unit);
        let (reached, taken) = programme(options, units, |bytes| div_up(bytes, unit));
        (reached[units] < NEVER).then_some(Self { unit, least, reached, taken })
    }

    /// Ticks that no split can be below, with all the memory.
    pub fn least(&self) -> i64 {
        self.least[self.least.len() - 1]
    }

    /// Bytes that no split that takes at most `ticks` can be below.
    pub fn bytes_least(&self, ticks: i64) -> i64 {
        self.least.partition_point(|&least| least > ticks) as i64 * self.unit
    }

    /// Ticks and bytes of the best split found: with all the memory, or with the least that takes at most `ticks`.
    pub fn found(&self, ticks: Option<i64>) -> (i64, i64) {
        let fewest = self.reached[self.reached.len() - 1];
        let most = ticks.unwrap_or(fewest).max(fewest);
        let units = self.reached.partition_point(|&reached| reached > most);
        (self.reached[units], units as i64 * self.unit)
    }

    /// The option of each layer in the best split with all the memory.
    pub fn chosen(&self, options: &[Vec<(i64, i64)>]) -> Vec<usize> {
        let mut units = self.reached.len() - 1;
        let mut chosen = vec![0; options.len()];
        for layer in (0..options.len()).rev() {
            chosen[layer] = usize::from(self.taken[layer][units]);
            units -= div_up(options[layer][chosen[layer]].0, self.unit) as usize;
        }
        chosen
    }
}

/// Longer than anything takes.
pub const NEVER: i64 = i64::MAX / 4;

/// Fewest ticks of all layers by units of memory, and each layer's option.
fn programme(
    options: &[Vec<(i64, i64)>],
    most: usize,
    units_of: impl Fn(i64) -> i64,
) -> (Vec<i64>, Vec<Vec<u16>>) {
    let mut best = vec![0; most + 1];
    let mut taken = Vec::with_capacity(options.len());
    for options in options {
        let mut next = vec![NEVER; most + 1];
        let mut choice = vec![0; most + 1];
        let mut fastest = i64::MAX;
        for (i, &(bytes, ticks)) in options.iter().enumerate() {
            let units = units_of(bytes);
            if ticks >= fastest || units > most as i64 {
                continue;
            }
            fastest = ticks;
            let units = units as usize;
            for at in units..=most {
                let sum = best[at - units] + ticks;
                if sum < next[at] {
                    (next[at], choice[at]) = (sum, i as u16);
                }
            }
        }
        best = next.into_iter().map(|ticks: i64| ticks.min(NEVER)).collect();
        taken.push(choice);
    }
    (best, taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every split, tried out.
    fn brute_force(options: &[Vec<(i64, i64)>], bytes: i64) -> Option<i64> {
        let Some((first, rest)) = options.split_first() else { return Some(0) };
        let with = |&(x, y): &(i64, i64)| {
            (x <= bytes).then(|| brute_force(rest, bytes - x)).flatten().map(|t| t + y)
        };
        first.iter().filter_map(with).min()
    }

    fn ticks(options: &[Vec<(i64, i64)>], chosen: &[usize]) -> i64 {
        chosen.iter().zip(options).map(|(&i, o)| o[i].1).sum()
    }

    proptest! {
        #[test]
        fn no_split_of_convex_layers_is_better(
            bytes in 0i64..24,
            falls in prop::collection::vec(prop::collection::vec(0i64..100, 1..8), 1..4),
        ) {
            let layer = |mut falls: Vec<i64>| {
                falls.sort_unstable_by(|a, b| b.cmp(a));
                let mut y = falls.iter().sum::<i64>() + 7;
                let mut options = vec![(0, y)];
                for (i, fall) in falls.into_iter().enumerate() {
                    y -= fall;
                    options.push((i as i64 + 1, y));
                }
                options
            };
            let options: Vec<_> = falls.into_iter().map(layer).collect();
            let chosen = split(&options, bytes).expect("nothing takes nothing");
            prop_assert!(chosen.iter().zip(&options).map(|(&i, o)| o[i].0).sum::<i64>() <= bytes);
            prop_assert_eq!(Some(ticks(&options, &chosen)), brute_force(&options, bytes));
        }

        #[test]
        fn any_split_is_within_a_step_of_the_best(
            bytes in 0i64..60,
            layers in prop::collection::vec(prop::collection::vec((1i64..9, 0i64..100), 1..6), 1..4),
        ) {
            let layer = |steps: Vec<(i64, i64)>| {
                let mut x = 0;
                let after = steps.into_iter().map(move |(dx, y)| { x += dx; (x, y) });
                std::iter::once((0, 100)).chain(after).collect::<Vec<_>>()
            };
            let options: Vec<_> = layers.into_iter().map(layer).collect();
            let chosen = split(&options, bytes).expect("nothing takes nothing");
            prop_assert!(chosen.iter().zip(&options).map(|(&i, o)| o[i].0).sum::<i64>() <= bytes);
            let curves: Vec<Curve> = options
                .iter()
                .map(|o| Curve { corners: Curve::hull(o).into_iter().map(|i| o[i]).collect() })
                .collect();
            let longest = curves.iter().flat_map(|c| c.corners.windows(2).map(|w| w[0].1 - w[1].1)).max().unwrap_or(0);
            let best = brute_force(&options, bytes).expect("nothing takes nothing");
            let bound = Curve::sum(curves.iter()).at(bytes).expect("within");
            prop_assert!(bound <= best);
            prop_assert!(ticks(&options, &chosen) <= bound + longest + 1);
            // bytes are so few here that a unit is one of them, and the programme is exact
            let exact = Exact::new(&options, bytes.max(1)).expect("nothing takes nothing");
            if bytes > 0 {
                prop_assert_eq!((exact.least(), exact.found(None).0), (best, best));
                prop_assert_eq!(ticks(&options, &exact.chosen(&options)), best);
                let (reached, needed) = exact.found(Some(best + 10));
                prop_assert!(reached <= best + 10 && brute_force(&options, needed) == Some(reached));
                prop_assert_eq!(exact.bytes_least(best + 10), needed);
            }
        }
    }
}
