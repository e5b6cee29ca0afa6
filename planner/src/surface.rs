//! Miss-rate surfaces: the measured share of missing neurons, and its convex pieces for the solver.

use plans::model::{Level, LevelKind, Model};

/// A dent of a measured curve this small, relative to the curve, is noise: the straight line is taken.
const DENT_RELATIVE: f64 = 0.03;
/// The same as a share of the neurons asked for.
const DENT_ABSOLUTE: f64 = 0.0005;

/// Share of the neurons asked for that are missing in a layer with `hot` pinned and `cold` slots.
///
/// Bilinear on the measured axes. *Dense* touches every neuron each token, so that nothing recent is
/// of use: what is not pinned is missing.
pub fn miss(model: &Model, level: &Level, layer: usize, hot: f64, cold: f64) -> f64 {
    let neurons = model.architecture.neurons() as f64;
    let total = hot + cold;
    if level.kind == LevelKind::Dense {
        return (1.0 - hot / neurons).clamp(0.0, 1.0);
    }
    if total <= 0.0 {
        return 1.0;
    }
    if total >= neurons {
        return 0.0;
    }
    let surface = &level.layers[layer].miss_fraction;
    let (s0, s1, st) = place(&model.reuse.pinned_share_fraction, hot / total);
    let (c0, c1, ct) = place(&model.reuse.cached_fraction, total / neurons);
    let row = |s: usize| surface[s][c0] + ct * (surface[s][c1] - surface[s][c0]);
    (row(s0) + st * (row(s1) - row(s0))).clamp(0.0, 1.0)
}

/// The two neighbours of `x` on a rising axis from 0 to 1, and the weight of the second.
fn place(axis: &[f64], x: f64) -> (usize, usize, f64) {
    let i = axis.partition_point(|&a| a <= x).clamp(1, axis.len() - 1);
    (i - 1, i, ((x - axis[i - 1]) / (axis[i] - axis[i - 1])).clamp(0.0, 1.0))
}

/// A convex stretch of a curve: its corners, x rising.
pub type Piece = Vec<(f64, f64)>;

/// Cuts a curve into stretches that are convex but for dents of noise; corners only.
pub fn convex_pieces(points: &[(f64, f64)], scale: f64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut first = 0;
    while first + 1 < points.len() {
        let mut end = first + 2;
        let mut best = lower_hull(&points[first..end]);
        while end < points.len() {
            let hull = lower_hull(&points[first..=end]);
            if !points[first..=end].iter().all(|&p| is_noise(p, &hull, scale)) {
                break;
            }
            best = hull;
            end += 1;
        }
        pieces.push(best);
        first = end - 1;
    }
    pieces
}

fn is_noise((x, y): (f64, f64), hull: &[(f64, f64)], scale: f64) -> bool {
    y - at(hull, x) <= (DENT_RELATIVE * y).max(DENT_ABSOLUTE * scale) + 1e-9
}

/// The lower convex hull, corners only.
pub fn lower_hull(points: &[(f64, f64)]) -> Piece {
    let mut hull: Piece = Vec::new();
    for &p in points {
        while let [.., a, b] = hull[..]
            && (b.0 - a.0) * (p.1 - a.1) <= (p.0 - a.0) * (b.1 - a.1)
        {
            hull.pop();
        }
        hull.push(p);
    }
    hull
}

/// The value of a piecewise-linear curve.
pub fn at(curve: &[(f64, f64)], x: f64) -> f64 {
    let i = curve.partition_point(|p| p.0 <= x).clamp(1, curve.len() - 1);
    let ((x0, y0), (x1, y1)) = (curve[i - 1], curve[i]);
    if x1 <= x0 { y1 } else { y0 + (y1 - y0) * (x - x0) / (x1 - x0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_convex_curve_is_one_piece_and_a_cliff_makes_two() {
        let convex: Vec<(f64, f64)> = (0..=10).map(|i| (f64::from(i), 100.0 / f64::from(1 + i))).collect();
        assert_eq!(convex_pieces(&convex, 100.0).len(), 1);
        let cliff = [(0.0, 100.0), (1.0, 99.0), (2.0, 98.0), (3.0, 20.0), (4.0, 10.0)];
        let pieces = convex_pieces(&cliff, 100.0);
        assert_eq!(pieces.len(), 2, "{pieces:?}");
        assert_eq!(pieces[0].last(), pieces[1].first());
    }

    #[test]
    fn a_hull_never_lies_above_its_points() {
        let points: Vec<(f64, f64)> =
            (0..20).map(|i| (f64::from(i), f64::from((i * 7919) % 13) - f64::from(i))).collect();
        let hull = lower_hull(&points);
        assert!(points.iter().all(|&(x, y)| at(&hull, x) <= y + 1e-9), "{hull:?}");
        assert!(
            hull.windows(3)
                .all(|w| { (w[1].1 - w[0].1) / (w[1].0 - w[0].0) < (w[2].1 - w[1].1) / (w[2].0 - w[1].0) })
        );
    }
}
