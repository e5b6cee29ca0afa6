//! The least time of all layers against memory, as exact as it is asked for.
//!
//! A band stands for its ways of caching with one bound. Where that could be part of the curve at the bytes that are asked
//! for, the band is *opened*: each of its ways of caching is priced by itself. So at those bytes the curve is the one of
//! all ways of caching, elsewhere it is nowhere above that, and most ways of caching are never priced.

use crate::bands::{self, Priced};
use crate::curve::Curve;

/// What is rounded of a priced tick.
const ROUNDED: f64 = 1.0;

/// Bounds of bands, some of them opened.
#[derive(Debug, Clone)]
pub struct Opened {
    layers: Vec<Layer>,
    curve: Curve,
    /// Bytes from and up to which it is exact.
    exact: Vec<(i64, i64)>,
}

#[derive(Debug, Clone)]
struct Layer {
    /// Per band: fewest bytes and ticks.
    bounds: Vec<(i64, i64)>,
    /// The same of each way of caching, where a band is opened.
    each: Vec<Option<Box<[(i64, i64)]>>>,
    curve: Curve,
}

impl Layer {
    fn new(bounds: Vec<(i64, i64)>) -> Self {
        Self { each: vec![None; bounds.len()], curve: bands::curve_of_layer(bounds.clone()), bounds }
    }

    /// The curve again, with what is opened now.
    fn bend(&mut self) {
        let mut points = Vec::with_capacity(self.bounds.len());
        for (bound, each) in self.bounds.iter().zip(&self.each) {
            match each {
                Some(each) => points.extend_from_slice(each),
                None => points.push(*bound),
            }
        }
        self.curve = bands::curve_of_layer(points);
    }
}

impl Opened {
    /// With no band opened.
    pub fn new(bounds: Priced) -> Self {
        Self::of(bounds.into_iter().map(Layer::new).collect())
    }

    fn of(layers: Vec<Layer>) -> Self {
        let curve = Curve::sum(layers.iter().map(|layer| &layer.curve));
        Self { layers, curve, exact: Vec::new() }
    }

    /// The same bounds and the same bands opened, at other prices.
    #[must_use]
    pub fn priced(&self, mut price: impl FnMut(usize, usize) -> Vec<(i64, i64)>) -> Self {
        let layer = |(at, layer): (usize, &Layer)| {
            let mut band = |band: usize| layer.each[band].is_some().then(|| price(at, band).into());
            let each = (0..layer.each.len()).map(&mut band).collect();
            let mut layer = Layer { bounds: layer.bounds.clone(), each, curve: layer.curve.clone() };
            layer.bend();
            layer
        };
        Self::of(self.layers.iter().enumerate().map(layer).collect())
    }

    /// The curve as far as bands are opened.
    pub fn curve(&self) -> &Curve {
        &self.curve
    }

    /// Per band of a layer: bytes and ticks of its ways of caching, where it is opened.
    pub fn layer(&self, layer: usize) -> &[Option<Box<[(i64, i64)]>>] {
        &self.layers[layer].each
    }

    /// Opens what matters for the curve at so many bytes; `price` is of a layer's band. Whether something was opened.
    pub fn around(&mut self, bytes: i64, mut price: impl FnMut(usize, usize) -> Vec<(i64, i64)>) -> bool {
        let known = |&(from, to): &(i64, i64)| from <= bytes && bytes <= to;
        if bytes < self.curve.corners[0].0 || self.exact.iter().any(known) {
            return false;
        }
        let mut any = false;
        while self.within(self.curve.price(bytes), 0.0, &mut price) {
            any = true;
        }
        // what is opened at both of its ends is exact all along
        self.exact.push(self.curve.segment(bytes));
        any
    }

    /// Opens every band that can hold a way of caching whose *reduced cost*, what its ticks and priced bytes are above the
    /// least of its layer, is at most `gap`. Whether there was one.
    pub fn within(
        &mut self,
        bytes_price: f64,
        gap: f64,
        mut price: impl FnMut(usize, usize) -> Vec<(i64, i64)>,
    ) -> bool {
        let cost = |&(bytes, ticks): &(i64, i64)| ticks as f64 + bytes_price * bytes as f64;
        let least_of = |each: &[(i64, i64)]| each.iter().map(cost).fold(f64::INFINITY, f64::min);
        let mut any = false;
        for (at, layer) in self.layers.iter_mut().enumerate() {
            let opened = layer.each.iter().flatten();
            let mut least = opened.map(|each| least_of(each)).fold(f64::INFINITY, f64::min);
            let closed = (0..layer.bounds.len()).filter(|&band| layer.each[band].is_none());
            let mut closed: Vec<(f64, usize)> =
                closed.map(|band| (cost(&layer.bounds[band]), band)).collect();
            closed.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut bent = false;
            for (bound, band) in closed {
                if bound > least + gap + ROUNDED {
                    break;
                }
                let priced = price(at, band);
                least = least.min(least_of(&priced));
                layer.each[band] = Some(priced.into());
                bent = true;
            }
            if bent {
                layer.bend();
                any = true;
            }
        }
        if any {
            self.curve = Curve::sum(self.layers.iter().map(|layer| &layer.curve));
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Layers of bands of ways of caching, bytes rising.
    fn layers() -> impl Strategy<Value = Vec<Vec<Vec<(i64, i64)>>>> {
        let band = prop::collection::vec((0i64..40, 0i64..1000), 1..6);
        let layer = prop::collection::vec(band, 1..6).prop_map(|bands| {
            let mut bytes = 0;
            let mut way = |(more, ticks): (i64, i64)| {
                bytes += more;
                (bytes, ticks)
            };
            bands.into_iter().map(|band| band.into_iter().map(&mut way).collect()).collect::<Vec<Vec<_>>>()
        });
        prop::collection::vec(layer, 1..4)
    }

    proptest! {
        /// Where it is asked for the curve is that of everything opened, whatever was asked before; elsewhere it is nowhere above.
        #[test]
        fn the_curve_is_exact_where_it_is_asked_for(
            layers in layers(), less in 0i64..100, asked in prop::collection::vec(0i64..600, 1..4),
        ) {
            let bound = |band: &Vec<(i64, i64)>| {
                (band[0].0, (band.iter().map(|way| way.1).min().unwrap_or(0) - less).max(0))
            };
            let bounds: Priced = layers.iter().map(|bands| bands.iter().map(bound).collect()).collect();
            let all: Priced = layers.iter().map(|bands| bands.concat()).collect();
            let all = bands::curve(&all);
            let mut opened = Opened::new(bounds);
            let mut priced = 0;
            for &bytes in &asked {
                opened.around(bytes, |layer, band| {
                    priced += 1;
                    layers[layer][band].clone()
                });
                prop_assert_eq!(opened.curve().at(bytes), all.at(bytes));
                for other in 0..600 {
                    // both are rounded up to whole ticks
                    prop_assert!(opened.curve().at(other) <= all.at(other), "{other}");
                }
            }
            prop_assert!(priced <= layers.iter().map(Vec::len).sum::<usize>());
        }
    }
}
