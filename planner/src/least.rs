//! The least that reading can take, whatever is cached: it bounds a way of reading before its layers are priced one by
//! one.
//!
//! A missing neuron is the cheaper to read the more of its neighbours are missing too, so that its price follows what
//! is cached. All layers' ways of caching are sorted by their bytes and cut into bands; in each band the fewest that any
//! layer misses are read at the least price, and the lower hull of the bands bounds any layer. Layers together take least
//! where memory is shared evenly. Where layers differ, all that they can miss together at the least price anywhere says
//! more: the higher of both holds.

use crate::curve::{Curve, div_up};
use crate::layers::Cached;
use crate::reads::ReadPrice;
use crate::surface::Chances;

/// Bands that the ways of caching are cut into.
const BANDS: usize = 64;
/// Parts of a missing neuron, and of a second, where they are counted whole.
const MISSING: f64 = 65_536.0;
const SECOND: f64 = 1e12;

/// Ways of caching a layer that take about as many bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Band {
    /// The fewest bytes.
    bytes: i64,
    /// The fewest missing neurons.
    missing: f64,
    /// [`Chances::alone`], least and most.
    alone: [f64; 2],
    /// [`Chances::begins`], least and most.
    begins: [f64; 2],
}

/// What layers may cache and miss.
#[derive(Debug)]
pub struct Least {
    layers: i64,
    bands: Vec<Band>,
    /// The fewest neurons that all layers together can miss, in [`MISSING`]ths, against bytes.
    missing: Curve,
}

/// The least time that reads can take.
#[derive(Debug, Clone)]
pub struct LeastReads {
    /// Seconds of one missing neuron.
    neuron: f64,
    /// Time of one layer, in parts of a second, against bytes.
    layer: Curve,
}

impl Least {
    /// Of layers with these ways of caching each.
    pub fn new(cached: &[Vec<Cached>]) -> Self {
        let mut ways: Vec<Band> = cached.iter().flatten().map(Band::of).collect();
        ways.sort_by_key(|way| way.bytes);
        let bands = ways.chunks(ways.len().div_ceil(BANDS).max(1));
        let bands = bands.filter_map(|band| band.iter().copied().reduce(Band::with)).collect();
        let whole = |way: &Cached| (way.bytes, (way.missing.neurons * MISSING) as i64);
        let curve = |ways: &Vec<Cached>| Curve::over(&ways.iter().map(whole).collect::<Vec<_>>());
        let curves: Vec<Curve> = cached.iter().map(curve).collect();
        Self { layers: cached.len() as i64, bands, missing: Curve::sum(curves.iter()) }
    }

    /// What reads of this price take at least.
    pub fn reads(&self, price: &ReadPrice<'_>) -> LeastReads {
        let least = |band: &Band| {
            let at = |alone| band.begins.map(|begins| price.least_seconds(Chances { alone, begins }));
            band.alone.into_iter().flat_map(at).fold(f64::MAX, f64::min)
        };
        let prices: Vec<f64> = self.bands.iter().map(least).collect();
        let point = |(band, price): (&Band, &f64)| (band.bytes, (band.missing * price * SECOND) as i64);
        let points: Vec<(i64, i64)> = self.bands.iter().zip(&prices).map(point).collect();
        LeastReads { neuron: prices.into_iter().fold(f64::MAX, f64::min), layer: Curve::over(&points) }
    }

    /// The fewest bytes that any way of caching takes.
    pub fn bytes(&self) -> i64 {
        self.missing.corners[0].0
    }

    /// Seconds of a token's reads with so many bytes for neurons; `None` where those are too few.
    pub fn seconds(&self, reads: &LeastReads, bytes: i64) -> Option<f64> {
        let alike = reads.layer.at(div_up(bytes, self.layers))? as f64 / SECOND * self.layers as f64;
        Some(alike.max(self.missing.at(bytes)? as f64 / MISSING * reads.neuron))
    }

    /// The fewest bytes with which a token's reads take no more than so many seconds; `None` if they always take more.
    pub fn bytes_within(&self, reads: &LeastReads, seconds: f64) -> Option<i64> {
        let each = (seconds / self.layers as f64 * SECOND) as i64;
        let alike = (reads.layer.reaching(each)? - 1) * self.layers;
        let missing = (seconds / reads.neuron * MISSING).min(i64::MAX as f64 / 4.0);
        Some(alike.max(self.missing.reaching(missing as i64)?))
    }
}

impl Band {
    fn of(way: &Cached) -> Self {
        let Chances { alone, begins } = way.missing.chances;
        Self { bytes: way.bytes, missing: way.missing.neurons, alone: [alone; 2], begins: [begins; 2] }
    }

    fn with(self, other: Self) -> Self {
        let both = |a: [f64; 2], b: [f64; 2]| [a[0].min(b[0]), a[1].max(b[1])];
        Self {
            bytes: self.bytes.min(other.bytes),
            missing: self.missing.min(other.missing),
            alone: both(self.alone, other.alone),
            begins: both(self.begins, other.begins),
        }
    }
}
