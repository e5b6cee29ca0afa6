//! Reads a second that flash gives, over block sizes and reads in flight, from what was measured.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use plans::Backend;
use plans::device::{Device, ReadSpeed};

use crate::cost::isotonic::{self, Order};

/// For each depth, rising, reads a second over block sizes, all in logarithms.
type Curves = Vec<(f64, Vec<(f64, f64)>)>;

/// What was measured of a device's flash, with the curves that were fitted to it: all prices of a question share them.
#[derive(Debug, Clone, Copy)]
pub struct Flash<'a> {
    /// The device.
    pub device: &'a Device,
    /// Its curves.
    pub fitted: &'a Fitted,
}

/// Fitted curves by what was measured. A device has a handful, and asks for them with every price.
#[derive(Debug, Default)]
pub struct Fitted(Mutex<HashMap<Vec<u64>, Curves>>);

/// Measured reads of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadCurves(Curves);

impl ReadCurves {
    /// Depths up to `depth`, at the nearest measured span at or above `span`; `None` where nothing like it was measured.
    ///
    /// What was measured is made monotone first ([`isotonic`]): of many choices of reads the planner takes the best, which would be the
    /// one that a disturbed neighbour makes look good.
    pub fn new(
        Flash { device, fitted }: Flash<'_>,
        backend: Backend,
        direct: bool,
        pattern: &str,
        depth: u32,
        span: u64,
    ) -> Option<Self> {
        let alike = |r: &&ReadSpeed| r.backend == backend && r.direct == direct && r.pattern == pattern;
        let points: Vec<&ReadSpeed> = device.storage.reads.iter().filter(alike).collect();
        let mut depths: Vec<u32> = points.iter().map(|r| r.depth).collect();
        depths.sort_unstable();
        depths.dedup();
        let most = depths.iter().rev().find(|&&d| d <= depth).or(depths.first()).copied()?;
        let curve = |&depth: &u32| {
            let points = || points.iter().filter(move |r| r.depth == depth);
            let spans = || points().map(|r| r.span_bytes);
            let span = spans().filter(|&s| s >= span).min().or_else(|| spans().max());
            let here = points().filter(|r| Some(r.span_bytes) == span);
            let mut curve: Vec<_> = here.map(|r| (r.block_bytes as f64, r.reads_per_second)).collect();
            curve.sort_by(|a, b| a.0.total_cmp(&b.0));
            (f64::from(depth), curve)
        };
        let mut curves = fitted.of(Self::of(depths.iter().map(curve)).0);
        curves.truncate(depths.iter().take_while(|&&depth| depth <= most).count());
        Some(Self(curves))
    }

    /// Curves through a single measured point.
    pub fn of_one(read: &ReadSpeed) -> Self {
        Self::of(
            [(f64::from(read.depth), vec![(read.block_bytes as f64, read.reads_per_second)])].into_iter(),
        )
    }

    /// Reads a second over block sizes, for each depth.
    fn of(depths: impl Iterator<Item = (f64, Vec<(f64, f64)>)>) -> Self {
        let logarithms = |(depth, curve): (f64, Vec<(f64, f64)>)| {
            (depth.ln(), curve.into_iter().map(|(block, rate)| (block.ln(), rate.ln())).collect())
        };
        Self(depths.map(logarithms).collect())
    }

    /// Reads a second of `block` bytes with so many in flight.
    ///
    /// Between two measured blocks, and between two measured depths, the curve is a straight line in logarithms;
    /// below the smallest block a read costs what the smallest costs, above the largest it costs in proportion.
    pub fn reads_per_second(&self, block: f64, in_flight: f64) -> f64 {
        self.reads_per_second_of(block.ln(), in_flight)
    }

    /// [`Self::reads_per_second`] by the logarithm of a block's bytes.
    pub fn reads_per_second_of(&self, block_ln: f64, in_flight: f64) -> f64 {
        self.at(block_ln, in_flight.ln()).exp()
    }

    /// Logarithm of the reads a second, by the logarithms of a block's bytes and of the number in flight.
    fn at(&self, block: f64, in_flight: f64) -> f64 {
        // a handful of depths, and below of blocks: looked through in order, since plans are priced by millions of these
        let mut i = 1;
        while i < self.0.len() && self.0[i].0 <= in_flight {
            i += 1;
        }
        let (depth, curve) = &self.0[i - 1];
        let rate = on_curve(curve, block);
        match self.0.get(i) {
            Some((next, deeper)) if in_flight > *depth => {
                rate + (in_flight - depth) / (next - depth) * (on_curve(deeper, block) - rate)
            }
            _ => rate,
        }
    }

    /// The faster of two sets of curves everywhere.
    #[must_use]
    pub fn or_faster(&self, other: &Self) -> Self {
        let rising = |values: &mut dyn Iterator<Item = f64>| -> Vec<f64> {
            let mut values: Vec<f64> = values.collect();
            values.sort_by(f64::total_cmp);
            values.dedup();
            values
        };
        let both = || self.0.iter().chain(&other.0);
        let depths = rising(&mut both().map(|(depth, _)| *depth));
        let blocks = rising(&mut both().flat_map(|(_, curve)| curve.iter().map(|(block, _)| *block)));
        let at = |depth, block| self.at(block, depth).max(other.at(block, depth));
        let curve = |&depth: &f64| (depth, blocks.iter().map(|&block| (block, at(depth, block))).collect());
        Self(depths.iter().map(curve).collect())
    }

    /// The most reads a second of `block` bytes with any number in flight up to the deepest.
    pub fn reads_per_second_most(&self, block: f64) -> f64 {
        self.0.iter().map(|(_, curve)| on_curve(curve, block.ln())).fold(f64::NEG_INFINITY, f64::max).exp()
    }
}

impl Fitted {
    /// [`monotone`] of these curves, which is worked out once.
    fn of(&self, measured: Curves) -> Curves {
        let of_curve = |(depth, curve): &(f64, Vec<(f64, f64)>)| {
            let points = curve.iter().flat_map(|&(block, rate)| [block, rate]);
            [*depth, curve.len() as f64].into_iter().chain(points).map(f64::to_bits).collect::<Vec<_>>()
        };
        let key: Vec<u64> = measured.iter().flat_map(of_curve).collect();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fit = || {
            let mut curves = measured;
            monotone(&mut curves);
            curves
        };
        known.entry(key).or_insert_with(fit).clone()
    }
}

/// The nearest surface, by squares of logarithms, on which more reads in flight are nowhere slower, larger blocks give no more
/// reads a second, and no fewer bytes. `curves` are as in [`ReadCurves`]; not every block is measured at every depth.
fn monotone(curves: &mut [(f64, Vec<(f64, f64)>)]) {
    let mut starts = vec![0];
    for (_, curve) in &*curves {
        starts.push(starts[starts.len() - 1] + curve.len());
    }
    let points = || curves.iter().flat_map(|(_, curve)| curve.iter().copied());
    let along: Vec<Vec<usize>> = starts.windows(2).map(|ends| (ends[0]..ends[1]).collect()).collect();
    let back = along.iter().map(|line| line.iter().rev().copied().collect()).collect();
    let mut values: Vec<f64> = points().map(|(_, rate)| rate).collect();
    let offsets: Vec<f64> = points().map(|(block, _)| block).collect();
    let nothing = vec![0.0; values.len()];
    let of_block = |&block: &f64| (0..offsets.len()).filter(|&at| offsets[at] == block).collect();
    let mut blocks = offsets.clone();
    blocks.sort_by(f64::total_cmp);
    blocks.dedup();
    let depths = Order { lines: blocks.iter().map(of_block).collect(), offsets: nothing.clone() };
    let reads = Order { lines: back, offsets: nothing };
    let bytes = Order { lines: along, offsets };
    isotonic::fit(&mut values, &[depths, reads, bytes]);
    curves.iter_mut().flat_map(|(_, curve)| curve).zip(values).for_each(|(point, value)| point.1 = value);
}

/// The value at `x`, on straight lines; all in logarithms, and `curve` rises in x and is not empty.
fn on_curve(curve: &[(f64, f64)], x: f64) -> f64 {
    let (first, last) = (curve[0], curve[curve.len() - 1]);
    if x <= first.0 {
        return first.1;
    }
    if x >= last.0 {
        return last.1 + last.0 - x;
    }
    let mut i = 1;
    while curve[i].0 <= x {
        i += 1;
    }
    let ((x0, y0), (x1, y1)) = (curve[i - 1], curve[i]);
    y0 + (x - x0) / (x1 - x0) * (y1 - y0)
}

/// The depths of random reads that were measured, rising.
pub fn depths(device: &Device, backend: Backend, direct: bool) -> Vec<u32> {
    let mut depths: Vec<u32> = device
        .storage
        .reads
        .iter()
        .filter(|r| r.backend == backend && r.direct == direct && r.pattern == "random")
        .map(|r| r.depth)
        .collect();
    depths.sort_unstable();
    depths.dedup();
    depths
}

#[cfg(test)]
mod tests;
