//! A curve of ticks against bytes that is exact where somebody asked, and elsewhere a bound.
//!
//! A layer's bands stand for their ways of caching until the curve's value depends on them: only then are they opened, and each of
//! their ways of caching is priced. Where no closed band has a part in it the value is that of all ways of caching.

use std::rc::Rc;

use crate::curve::Curve;

/// Bytes and ticks, and the closed band that they stand for; `None` of a way of caching.
type Point = (i64, i64, Option<u32>);

/// The curve of some kinds of layers.
#[derive(Debug)]
pub struct Refined {
    layers: Vec<Layer>,
    /// How many layers are of each kind.
    counts: Vec<i64>,
    curve: Rc<Curve>,
}

/// What a layer of some kind may be, with rising bytes, and which of it are the corners of its hull.
#[derive(Debug)]
struct Layer {
    points: Vec<Point>,
    hull: Vec<usize>,
    curve: Curve,
}

impl Layer {
    fn new(points: Vec<Point>) -> Self {
        let mut layer = Self { points, hull: Vec::new(), curve: Curve { corners: Vec::new() } };
        layer.renew();
        layer
    }

    fn renew(&mut self) {
        self.points.sort_unstable();
        let place = |i: usize| (self.points[i].0, self.points[i].1);
        self.hull = Curve::hull_of(self.points.len(), place);
        self.curve.corners = self.hull.iter().map(|&i| place(i)).collect();
    }

    /// Opens what stands lowest where bytes have a price, until that is no band, and then the bands at the ends of a step of such a
    /// slope. Whether there were any.
    fn refine(&mut self, slope: f64, mut ways: impl FnMut(usize) -> Vec<(i64, i64)>) -> bool {
        let cost = |point: &Point| point.1 as f64 - slope * point.0 as f64;
        let mut opened = false;
        loop {
            let lowest = self.points.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
            let Some(band) = lowest.and_then(|point| point.2) else { break };
            self.open(band, ways(band as usize));
            opened = true;
        }
        if !opened {
            for band in self.closed_at(slope) {
                self.open(band, ways(band as usize));
                opened = true;
            }
        }
        if opened {
            self.renew();
        }
        opened
    }

    /// Closed bands at the corners where a step of such a slope begins or ends, or would.
    fn closed_at(&self, slope: f64) -> Vec<u32> {
        let steps = self.curve.corners.windows(2);
        let steps = steps.map(|step| Curve::slope((step[1].0 - step[0].0, step[1].1 - step[0].1)));
        let steeper = steps.clone().take_while(|&of_step| of_step < slope).count();
        let as_steep = steps.take_while(|&of_step| of_step <= slope).count();
        self.hull[steeper..=as_steep].iter().filter_map(|&i| self.points[i].2).collect()
    }

    /// Puts ways of caching in the place of their band.
    fn open(&mut self, band: u32, ways: Vec<(i64, i64)>) {
        if let Some(place) = self.points.iter().position(|point| point.2 == Some(band)) {
            let (_, least, _) = self.points.swap_remove(place);
            self.put(least, ways);
        }
    }

    /// Adds ways of caching of a band. None of them takes less than was said of it.
    fn put(&mut self, least: i64, mut ways: Vec<(i64, i64)>) {
        ways.iter_mut().for_each(|(_, ticks)| *ticks = least.max(*ticks));
        // no others are ever corners
        self.points.extend(Curve::hull(&ways).into_iter().map(|i| (ways[i].0, ways[i].1, None)));
    }
}

impl Refined {
    /// With all bands closed: per kind of layer their bytes and ticks, and how many layers are of that kind.
    pub fn new(bands: &[Vec<(i64, i64)>], counts: &[i64]) -> Self {
        let layer = |bands: &Vec<(i64, i64)>| {
            let closed = bands.iter().zip(0..).map(|(&(bytes, ticks), band)| (bytes, ticks, Some(band)));
            Layer::new(closed.collect())
        };
        let layers: Vec<Layer> = bands.iter().map(layer).collect();
        let mut refined =
            Self { layers, counts: counts.to_vec(), curve: Rc::new(Curve { corners: Vec::new() }) };
        refined.renew();
        refined
    }

    fn renew(&mut self) {
        let curves = self.layers.iter().map(|layer| &layer.curve);
        self.curve = Rc::new(Curve::sum_of(curves.zip(self.counts.iter().copied())));
    }

    /// The curve as far as it is known.
    pub fn curve(&self) -> &Rc<Curve> {
        &self.curve
    }

    /// Opens all bands: `ways` as for [`Self::refine`].
    pub fn open_all(&mut self, mut ways: impl FnMut(usize, usize) -> Vec<(i64, i64)>) {
        for (place, layer) in self.layers.iter_mut().enumerate() {
            for point in std::mem::take(&mut layer.points) {
                match point.2 {
                    Some(band) => layer.put(point.1, ways(place, band as usize)),
                    None => layer.points.push(point),
                }
            }
            layer.renew();
        }
        self.renew();
    }

    /// Opens the bands on which the value at so many bytes depends, each by its kind of layer and place: `ways` are the bytes, rising, and
    /// ticks of its ways of caching. Whether there were any; where not, the value is exact.
    pub fn refine(&mut self, bytes: i64, mut ways: impl FnMut(usize, usize) -> Vec<(i64, i64)>) -> bool {
        if bytes < self.curve.corners[0].0 {
            return false;
        }
        let slope = -self.curve.price(bytes);
        let mut opened = false;
        for (place, layer) in self.layers.iter_mut().enumerate() {
            opened |= layer.refine(slope, |band| ways(place, band));
        }
        if opened {
            self.renew();
        }
        opened
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bands of some ways of caching, whose bytes rise, each with ticks by which the band is said to take less.
    fn bands() -> impl Strategy<Value = Vec<(Vec<(i64, i64)>, i64)>> {
        let way = (0..500i64, 0..10_000i64);
        let band = prop::collection::vec(way, 1..8).prop_map(|mut ways| {
            ways.sort_unstable();
            ways
        });
        prop::collection::vec((band, 0..3000i64), 1..8)
    }

    proptest! {
        /// What was asked for is the value of all ways of caching; elsewhere the curve is nowhere above it.
        #[test]
        fn a_refined_curve_is_exact_where_it_was_asked_for(
            layers in prop::collection::vec(bands(), 1..5),
            asked in prop::collection::vec(0..2500i64, 1..5),
        ) {
            let all = |bands: &Vec<(Vec<(i64, i64)>, i64)>| {
                let mut ways: Vec<(i64, i64)> = bands.iter().flat_map(|(ways, _)| ways.clone()).collect();
                ways.sort_unstable();
                Curve::over(&ways)
            };
            // the first kind is that of two layers
            let counts: Vec<i64> = (0..layers.len()).map(|kind| if kind == 0 { 2 } else { 1 }).collect();
            let exact: Vec<Curve> = layers[..1].iter().chain(&layers).map(all).collect();
            let exact = Curve::sum(exact.iter());
            let closed = |(ways, less): &(Vec<(i64, i64)>, i64)| {
                (ways[0].0, ways.iter().map(|way| way.1).min().unwrap_or(0) - less)
            };
            let closed: Vec<Vec<(i64, i64)>> =
                layers.iter().map(|bands| bands.iter().map(closed).collect()).collect();
            let mut refined = Refined::new(&closed, &counts);
            let mut opened = std::collections::HashSet::new();
            for bytes in asked {
                while refined.refine(bytes, |layer, band| {
                    assert!(opened.insert((layer, band)), "opened twice");
                    layers[layer][band].0.clone()
                }) {}
                prop_assert_eq!(refined.curve().at(bytes), exact.at(bytes));
                for bytes in (0..2500).step_by(50) {
                    prop_assert!(refined.curve().at(bytes) <= exact.at(bytes));
                }
            }
        }
    }
}
