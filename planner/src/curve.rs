//! Time against memory: convex, falling curves in whole numbers.
//!
//! What a layer costs depends on what of it is in memory. The lower hull of its options says the least time that any
//! mixture of them could take, and hulls of several layers add up by taking the steepest step first (the infimal
//! convolution). So a curve bounds every split of memory from below, and the solver needs nothing finer.

/// Corners `(bytes or pages, ticks)`: the first rising, the second falling, slopes flattening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Curve {
    /// At least one.
    pub corners: Vec<(i64, i64)>,
}

impl Curve {
    /// The lower hull of some options, which rise in memory and are not empty.
    pub fn over(options: &[(i64, i64)]) -> Self {
        Self { corners: Self::hull(options).into_iter().map(|i| options[i]).collect() }
    }

    /// The lower hull of some options up to where it stops falling, as indices into `options`.
    ///
    /// `options` rise in memory and are not empty.
    pub fn hull(options: &[(i64, i64)]) -> Vec<usize> {
        let mut hull: Vec<usize> = Vec::new();
        for (i, &(x, y)) in options.iter().enumerate() {
            while let Some(&last) = hull.last() {
                let (bx, by) = options[last];
                let above = match hull.len().checked_sub(2).map(|at| options[hull[at]]) {
                    // last lies above the line from the one before it to this one
                    Some((ax, ay)) => times(by - ay, x - ax) > times(y - ay, bx - ax),
                    None => bx == x && by >= y,
                };
                if !above {
                    break;
                }
                hull.pop();
            }
            if hull.last().is_none_or(|&last| y < options[last].1) {
                hull.push(i);
            }
        }
        hull
    }

    /// The sum of curves, each so many times, with memory shared among them at its best.
    pub fn sum<'a>(curves: impl Iterator<Item = (&'a Self, i64)>) -> Self {
        let (mut x, mut y) = (0, 0);
        let mut steps: Vec<(f64, (i64, i64))> = Vec::new();
        for (curve, count) in curves {
            x += count * curve.corners[0].0;
            y += count * curve.corners[0].1;
            let differences = curve.corners.windows(2);
            let differences = differences.map(|w| (count * (w[1].0 - w[0].0), count * (w[1].1 - w[0].1)));
            steps.extend(differences.map(|step| (Self::slope(step), step)));
        }
        steps.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut corners = Vec::with_capacity(1 + steps.len());
        corners.push((x, y));
        for (_, (dx, dy)) in steps {
            x += dx;
            y += dy;
            corners.push((x, y));
        }
        Self { corners }
    }

    /// Time over memory of a step; memory of none is taken for the least.
    pub fn slope((dx, dy): (i64, i64)) -> f64 {
        dy as f64 / dx.max(1) as f64
    }

    /// The least time with so much memory; `None` below the first corner.
    pub fn at(&self, x: i64) -> Option<i64> {
        let i = self.corners.partition_point(|corner| corner.0 <= x);
        let &(x0, y0) = self.corners.get(i.checked_sub(1)?)?;
        Some(self.corners.get(i).map_or(y0, |&(x1, y1)| y0 + scaled(y1 - y0, x - x0, x1 - x0)))
    }

    /// Time that one more unit of memory saves where there is so much; 0 where more saves nothing.
    pub fn price(&self, x: i64) -> f64 {
        let i = self.corners.partition_point(|corner| corner.0 <= x).max(1);
        self.corners.get(i).map_or(0.0, |&to| -slope_of([self.corners[i - 1], to]))
    }

    /// The least memory that takes at most so long; `None` if no memory does.
    pub fn reaching(&self, y: i64) -> Option<i64> {
        let i = self.corners.partition_point(|corner| corner.1 > y);
        let &(x1, y1) = self.corners.get(i)?;
        Some(match i.checked_sub(1).map(|before| self.corners[before]) {
            Some((x0, y0)) => x0 + scaled(y0 - y, x1 - x0, y0 - y1),
            None => x1,
        })
    }

    /// The curve in units of `unit`, rounded down, and so still a lower bound.
    pub fn in_units(&self, unit: i64) -> Self {
        let mut corners: Vec<(i64, i64)> = Vec::new();
        for &(x, y) in &self.corners {
            let x = x.div_euclid(unit);
            match corners.last_mut() {
                Some(last) if last.0 == x => last.1 = y,
                _ => corners.push((x, y)),
            }
        }
        let kept = Self::hull(&corners);
        Self { corners: kept.into_iter().map(|i| corners[i]).collect() }
    }

    /// Lines, as pairs of corners, whose maximum lies nowhere above the curve and at most `tolerance` below it.
    ///
    /// A line is left out where its neighbours, drawn out to where they meet, stay that close.
    pub fn lines(&self, tolerance: i64) -> Vec<[(i64, i64); 2]> {
        let corners = &self.corners;
        let line = |i: usize| [corners[i], corners[i + 1]];
        let mut lines = Vec::new();
        let mut i = 0;
        while i + 1 < corners.len() {
            if lines.last().is_none_or(|&last| slope_of(last) < slope_of(line(i))) {
                lines.push(line(i));
            }
            let close = |&j: &usize| self.depth_below(line(i), line(j)) <= tolerance as f64;
            let next = (i + 1..corners.len() - 1).take_while(close).last();
            i = next.unwrap_or(i + 1);
        }
        lines
    }

    /// How far below the curve two of its lines meet.
    fn depth_below(&self, a: [(i64, i64); 2], b: [(i64, i64); 2]) -> f64 {
        let Some((x, y)) = meeting(a, b) else { return 0.0 };
        self.at(x.floor() as i64).map_or(0.0, |above| above as f64 - y)
    }
}

/// Where two lines meet; `None` if they are parallel.
pub fn meeting(a: [(i64, i64); 2], b: [(i64, i64); 2]) -> Option<(f64, f64)> {
    let of = |points: [(i64, i64); 2]| {
        let k = slope_of(points);
        (k, points[0].1 as f64 - k * points[0].0 as f64)
    };
    let ((ka, ca), (kb, cb)) = (of(a), of(b));
    let x = (cb - ca) / (ka - kb);
    (ka != kb).then_some((x, ka * x + ca))
}

fn slope_of([(x0, y0), (x1, y1)]: [(i64, i64); 2]) -> f64 {
    Curve::slope((x1 - x0, y1 - y0))
}

/// A product of two differences: bytes of a layer times ticks need not fit in 64 bits.
fn times(a: i64, b: i64) -> i128 {
    i128::from(a) * i128::from(b)
}

/// `a * b / c` rounded up; `c` is above zero, and `b` at most `c`.
fn scaled(a: i64, b: i64, c: i64) -> i64 {
    let (product, c) = (times(a, b), i128::from(c));
    (product.div_euclid(c) + i128::from(product.rem_euclid(c) != 0)) as i64
}

/// Quotient rounded up; the divisor is above zero.
pub fn div_up(a: i64, b: i64) -> i64 {
    a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0)
}

#[cfg(test)]
mod tests;
