//! The least that a layer can take, band by band: it bounds a way before its layers are priced one by one.
//!
//! A layer's ways of caching that pin the same share are sorted by their bytes and cut into bands. In each band the fewest bytes, the fewest missing
//! neurons and the best way in which they can stand are taken together: no way of caching in it costs less.

use std::ops::Range;

use crate::curve::Curve;
use crate::layers::Cached;
use crate::surface::Chances;

/// Bands that all layers' ways of caching are cut into, and the fewest and most of one layer.
const BANDS: usize = 768;
const LAYER_BANDS: [usize; 2] = [24, 48];

/// Ways of caching a layer that take about as many bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    /// Indices of the ways of caching, in the layer's list.
    pub cached: Range<usize>,
    /// The fewest bytes.
    pub bytes: i64,
    /// The fewest bytes beside the slots.
    pub beside: i64,
    /// The fewest slots.
    pub cold: u32,
    /// Slots that a run fills, fewest and most.
    pub filled: [f64; 2],
    /// Missing neurons, fewest and most.
    pub missing: [f64; 2],
    /// [`Chances::alone`], least and most.
    alone: [f64; 2],
    /// [`Chances::begins`], least and most of each.
    begins: [[f64; 2]; 2],
}

impl Band {
    /// The bands of one layer, whose ways of caching rise in bytes share by share; with rising bytes.
    pub fn of_layer(cached: &[Cached], layers: usize) -> Vec<Self> {
        let bands = (BANDS / layers.max(1)).clamp(LAYER_BANDS[0], LAYER_BANDS[1]);
        let size = cached.len().div_ceil(bands).max(1);
        let (mut all, mut start) = (Vec::new(), 0);
        for alike in cached.chunk_by(|a, b| a.share == b.share) {
            let end = start + alike.len();
            all.extend(Self::cut(cached, start..end, alike.len().div_ceil(size)));
            start = end;
        }
        all.sort_by_key(|band| band.bytes);
        all
    }

    fn cut(all: &[Cached], cached: Range<usize>, parts: usize) -> Vec<Self> {
        let size = cached.len().div_ceil(parts).max(1);
        let starts = cached.clone().step_by(size);
        starts.map(|start| Self::of(all, start..(start + size).min(cached.end))).collect()
    }

    fn of(all: &[Cached], cached: Range<usize>) -> Self {
        let range = |of: fn(&Cached) -> f64| {
            let values = all[cached.clone()].iter().map(of);
            values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], x| [low.min(x), high.max(x)])
        };
        Self {
            bytes: all[cached.start].need.bytes(),
            beside: all[cached.clone()].iter().map(|way| way.need.beside()).min().unwrap_or(0),
            cold: all[cached.clone()].iter().map(|way| way.cold).min().unwrap_or(0),
            filled: range(|way| way.filled),
            missing: range(|way| way.missing.neurons),
            alone: range(|way| way.missing.chances.alone),
            begins: [range(|way| way.missing.chances.begins[0]), range(|way| way.missing.chances.begins[1])],
            cached,
        }
    }

    /// Whether a way of caching of the band can miss all neurons.
    pub fn holds_all(&self) -> bool {
        self.alone[0] <= 0.0 && self.begins[0][1] >= 1.0
    }

    /// The corners of how the band's missing neurons can stand.
    pub fn chances(&self) -> [Chances; 8] {
        std::array::from_fn(|corner| Chances {
            alone: self.alone[corner & 1],
            begins: [self.begins[0][corner >> 1 & 1], self.begins[1][corner >> 2]],
        })
    }
}

/// Per layer, or kind of layer, and band: fewest bytes and fewest ticks.
pub type Priced = Vec<Vec<(i64, i64)>>;

/// The least ticks of all layers together against bytes, of options in any order, each of which so many layers have.
pub fn curve(priced: &Priced, counts: &[i64]) -> Curve {
    let sorted = |bands: &Vec<(i64, i64)>| {
        let mut bands = bands.clone();
        // stable: they rise share by share
        bands.sort();
        bands
    };
    curve_of_rising(&priced.iter().map(sorted).collect(), counts)
}

/// [`curve`] of options that rise in bytes; those of equal bytes may stand in any order.
pub fn curve_of_rising(priced: &Priced, counts: &[i64]) -> Curve {
    let curves: Vec<Curve> = priced.iter().map(|options| Curve::over(options)).collect();
    Curve::sum_of(curves.iter().zip(counts.iter().copied()))
}

/// Which bands, or ways of caching, a split can use that takes at most `gap` ticks more than the least with `bytes`: those whose reduced cost
/// is no greater.
pub fn within(priced: &Priced, curve: &Curve, bytes: i64, gap: i64) -> Vec<Vec<bool>> {
    let price = curve.price(bytes);
    let layer = |bands: &Vec<(i64, i64)>| {
        let cost = |&(bytes, ticks): &(i64, i64)| ticks as f64 + price * bytes as f64;
        let floor = bands.iter().map(cost).fold(f64::INFINITY, f64::min);
        // a tick more, since curves are rounded
        bands.iter().map(|band| cost(band) - floor <= gap as f64 + 1.0).collect()
    };
    priced.iter().map(layer).collect()
}
