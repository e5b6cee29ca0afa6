//! The exact split: a group's cached neurons over its layers.
//!
//! The solver decides what each layer of a group gets on average; here each layer is priced by its own
//! curve. The curves are convex, so that giving every next portion to the layer that gains most is
//! optimal (the marginal gains of a layer only fall).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A layer's next portion and what it gains.
struct Gain {
    seconds: f64,
    layer: usize,
}

impl PartialEq for Gain {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Gain {}
impl PartialOrd for Gain {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Gain {
    /// The greater gain first; of equals, the earlier layer.
    fn cmp(&self, other: &Self) -> Ordering {
        self.seconds.total_cmp(&other.seconds).then(other.layer.cmp(&self.layer))
    }
}

/// Portions of `step` for `layers` layers, each from `low` to `high`, together at most `total`.
///
/// `seconds(layer, cached)` is convex in `cached`. What gains nothing is not handed out.
pub fn split(
    layers: usize,
    total: i64,
    (low, high): (i64, i64),
    step: i64,
    seconds: impl Fn(usize, i64) -> f64,
) -> Vec<i64> {
    let mut cached = vec![low; layers];
    let mut left = total - low * layers as i64;
    let gain =
        |layer: usize, from: i64| Gain { seconds: seconds(layer, from) - seconds(layer, from + step), layer };
    let mut heap: BinaryHeap<Gain> =
        (0..layers).filter(|_| low + step <= high).map(|layer| gain(layer, low)).collect();
    while left >= step
        && let Some(next) = heap.pop()
        && next.seconds > 0.0
    {
        let layer = next.layer;
        cached[layer] += step;
        left -= step;
        if cached[layer] + step <= high {
            heap.push(gain(layer, cached[layer]));
        }
    }
    cached
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every split, tried out.
    fn brute_force(layers: usize, total: i64, high: i64, seconds: &dyn Fn(usize, i64) -> f64) -> f64 {
        fn go(layer: usize, left: i64, high: i64, seconds: &dyn Fn(usize, i64) -> f64) -> f64 {
            if layer == 0 {
                return 0.0;
            }
            (0..=left.min(high))
                .map(|n| seconds(layer - 1, n) + go(layer - 1, left - n, high, seconds))
                .fold(f64::MAX, f64::min)
        }
        go(layers, total, high, seconds)
    }

    proptest! {
        #[test]
        fn no_split_is_better(
            total in 0i64..20,
            curves in prop::collection::vec((1.0f64..50.0, 0.1f64..3.0, 0.0f64..20.0), 1..4),
        ) {
            // Convex and falling down to a floor, as a layer is: reading, until computing hides it.
            let seconds = |layer: usize, n: i64| {
                let (height, rate, floor) = curves[layer];
                (height * (-rate * n as f64 / 4.0).exp()).max(floor)
            };
            let ours = split(curves.len(), total, (0, 8), 1, seconds);
            let cost: f64 = ours.iter().enumerate().map(|(layer, &n)| seconds(layer, n)).sum();
            let best = brute_force(curves.len(), total, 8, &seconds);
            prop_assert!((cost - best).abs() < 1e-9, "{ours:?}: {cost} against {best}");
            prop_assert!(ours.iter().sum::<i64>() <= total);
        }
    }
}
