//! Tests of `curve.rs`.

use proptest::prelude::*;

use super::*;

fn options() -> impl Strategy<Value = Vec<(i64, i64)>> {
    prop::collection::vec((1i64..50, 0i64..1000), 1..12).prop_map(|steps| {
        let mut x = 0;
        steps
            .into_iter()
            .map(|(dx, y)| {
                x += dx;
                (x, y)
            })
            .collect()
    })
}

fn curve(options: &[(i64, i64)]) -> Curve {
    Curve { corners: Curve::hull(options).into_iter().map(|i| options[i]).collect() }
}

proptest! {
    #[test]
    fn a_hull_is_convex_and_never_above_its_options(options in options()) {
        let curve = curve(&options);
        for &(x, y) in &options {
            // Rounded up to whole ticks, so that a corner's own value is exact.
            prop_assert!(curve.at(x).expect("within") <= y);
        }
        let slopes: Vec<f64> = curve.corners.windows(2).map(|w| Curve::slope((w[1].0 - w[0].0, w[1].1 - w[0].1))).collect();
        prop_assert!(slopes.windows(2).all(|w| w[0] <= w[1]) && slopes.iter().all(|s| *s < 0.0));
    }

    #[test]
    fn a_sum_is_below_every_split(a in options(), b in options()) {
        let sum = Curve::sum([(&curve(&a), 2), (&curve(&b), 1)].into_iter());
        for (&(xa, ya), &(xc, yc)) in a.iter().flat_map(|first| a.iter().map(move |second| (first, second))) {
            for &(xb, yb) in &b {
                prop_assert!(sum.at(xa + xc + xb).expect("within") <= ya + yc + yb);
            }
        }
    }

    #[test]
    fn the_memory_that_reaches_a_time_reaches_it(options in options(), y in 0i64..1000) {
        let curve = curve(&options);
        match curve.reaching(y) {
            Some(x) => prop_assert!(curve.at(x).expect("within") <= y + 1),
            None => prop_assert!(curve.corners.last().expect("a corner").1 > y),
        }
    }

    #[test]
    fn lines_are_close_below_the_curve(options in options(), tolerance in 0i64..50) {
        let curve = curve(&options);
        let lines = curve.lines(tolerance);
        for &(x, y) in &curve.corners {
            let on = |&[(x0, y0), (x1, y1)]: &[(i64, i64); 2]| y0 as f64 + (y1 - y0) as f64 * (x - x0) as f64 / (x1 - x0) as f64;
            let highest = lines.iter().map(on).fold(f64::MIN, f64::max);
            prop_assert!(lines.is_empty() || highest <= y as f64 + 1e-6);
        }
    }
}
