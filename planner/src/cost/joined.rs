//! Which missing neurons share a read: neighbours on flash, and those across a gap.

use plans::PAGE_BYTES;
use plans::layout::{BundleLayout, Part};
use plans::model::GAP_RANKS;

use super::misses::Chances;

/// Neurons that share a read, as the mean over the place in a page where a run of neurons begins. Reads cover whole pages.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Joined {
    /// By how many positions lie between two neurons: the share of the places at which a read holds both, and the bytes that the
    /// second adds there.
    of: Vec<(f64, f64)>,
    /// Positions that a read holds at most.
    most: f64,
    /// Bytes from one position to the next.
    stride_bytes: f64,
}

impl Joined {
    /// The sharing of one part of the bundles: reads bridge gaps of at most `gap_bytes`, and end at `buffer_bytes`.
    pub(super) fn new(bundle: &BundleLayout, part: Part, gap_bytes: u64, buffer_bytes: u64) -> Self {
        let stride = bundle.stride_bytes;
        let places = PAGE_BYTES / gcd(stride, PAGE_BYTES);
        // the bytes that the neuron after so many others adds to a read that begins with this one, if that holds both
        let added = |place: u64, between: u64| {
            let [first, second] = [place, place + between + 1].map(|at| bundle.slice_span(at, part).pages());
            let gap = second.offset.saturating_sub(first.offset + first.bytes);
            let whole = (second.offset + second.bytes).saturating_sub(first.offset);
            (gap <= gap_bytes && whole <= buffer_bytes).then(|| whole.saturating_sub(first.bytes) as f64)
        };
        let over = |between: u64| {
            let bytes: Vec<f64> = (0..places).filter_map(|place| added(place, between)).collect();
            let mean = bytes.iter().sum::<f64>() / bytes.len() as f64;
            (!bytes.is_empty()).then(|| (bytes.len() as f64 / places as f64, mean))
        };
        let step = PAGE_BYTES / places;
        let held = |place: u64| (buffer_bytes.saturating_sub(place * step) / stride).max(1);
        let most = (0..places).map(held).sum::<u64>() as f64 / places as f64;
        let of = (0..POSITIONS_MAX).map_while(over).collect();
        Self { of, most, stride_bytes: stride as f64 }
    }
}

/// Positions between two neurons over which it is looked whether a read holds both.
const POSITIONS_MAX: u64 = 4096;

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A mean run of missing neurons that one read covers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Run {
    /// Missing neurons in it.
    pub(super) neurons: f64,
    /// Bytes that those after the first add to the read.
    pub(super) more_bytes: f64,
}

impl Run {
    /// A run goes on while a read holds the next miss, too.
    pub(super) fn new(Chances { alone, begins }: Chances, joined: &Joined) -> Self {
        let all = Self { neurons: joined.most, more_bytes: (joined.most - 1.0) * joined.stride_bytes };
        if alone <= 0.0 {
            return all;
        }
        let [near, further] = begins;
        // of the neurons after a run's first the share that it holds, their distance and what they add; `none` have none behind them as far as
        // has been looked
        let (mut held, mut step, mut bytes, mut none) = (0.0, 0.0, 0.0, 1.0);
        for (d, &(share, more)) in joined.of.iter().enumerate() {
            let chance = match d as u64 {
                0 => 1.0 - alone,
                d if d <= u64::from(GAP_RANKS) => near,
                _ => further,
            };
            let here = none * chance * share;
            held += here;
            step += (d + 1) as f64 * here;
            bytes += more * here;
            none *= 1.0 - chance;
        }
        if held <= 0.0 {
            return Self { neurons: 1.0, more_bytes: 0.0 };
        }
        (step, bytes) = (step / held, bytes / held);
        // a run ends by chance, or since so many neurons fill it
        let full = 1.0 + (joined.most - 1.0) / step;
        let ends = 1.0 - held;
        let neurons = if ends > 1e-9 { (1.0 - held.powf(full)) / ends } else { full };
        Self { neurons, more_bytes: (neurons - 1.0) * bytes }
    }
}

#[cfg(test)]
mod tests;
