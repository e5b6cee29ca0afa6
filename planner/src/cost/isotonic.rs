//! Isotonic regression: the values nearest to measured ones, by squares, that rise where they must.

/// Rounds of [`fit`] at most; the surfaces of a device are settled after some ten.
const ROUNDS_MAX: usize = 1000;
/// Values that move no further are settled.
const SETTLED: f64 = 1e-12;

/// The nearest values that do not fall: neighbours that do are replaced by their mean (pool adjacent violators).
pub fn rising(values: &mut [f64]) {
    let mut pools: Vec<(f64, usize)> = Vec::with_capacity(values.len());
    for &value in &*values {
        let (mut sum, mut count) = (value, 1);
        while let Some((before, number)) =
            pools.pop_if(|(before, number)| *before / *number as f64 >= sum / count as f64)
        {
            (sum, count) = (sum + before, count + number);
        }
        pools.push((sum, count));
    }
    let pooled = pools.into_iter().flat_map(|(sum, count)| std::iter::repeat_n(sum / count as f64, count));
    values.iter_mut().zip(pooled).for_each(|(value, pooled)| *value = pooled);
}

/// An order that values must have: along each line, which names values by index, `value + offset` does not fall.
#[derive(Debug, Clone)]
pub struct Order {
    /// Indices of values along each line.
    pub lines: Vec<Vec<usize>>,
    /// What is added to a value before it is compared, by index.
    pub offsets: Vec<f64>,
}

/// The nearest values that have all of these orders (Dykstra's alternating projections).
pub fn fit(values: &mut [f64], orders: &[Order]) {
    // what each order took last time, which it gets back before it is asked again
    let mut taken = vec![vec![0.0; values.len()]; orders.len()];
    for _ in 0..ROUNDS_MAX {
        let before = values.to_vec();
        for (order, taken) in orders.iter().zip(&mut taken) {
            let asked: Vec<f64> = values.iter().zip(&*taken).map(|(value, taken)| value + taken).collect();
            for line in &order.lines {
                let mut along: Vec<f64> = line.iter().map(|&at| asked[at] + order.offsets[at]).collect();
                rising(&mut along);
                line.iter().zip(along).for_each(|(&at, along)| values[at] = along - order.offsets[at]);
            }
            taken
                .iter_mut()
                .zip(asked)
                .zip(&*values)
                .for_each(|((taken, asked), value)| *taken = asked - value);
        }
        if values.iter().zip(&before).all(|(value, before)| (value - before).abs() <= SETTLED) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn distance(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
    }

    #[test]
    fn what_falls_is_pooled_and_what_rises_stays() {
        let mut values = [1.0, 3.0, 2.0, 4.0, 0.0];
        rising(&mut values);
        assert_eq!(values, [1.0, 2.25, 2.25, 2.25, 2.25]);
        let mut rises = [1.0, 1.0, 2.0];
        rising(&mut rises);
        assert_eq!(rises, [1.0, 1.0, 2.0]);
        rising(&mut []);
    }

    /// Orders of a grid of two rows: values rise down the rows, fall along them, and no faster than by one a step.
    fn of_grid(columns: usize) -> Vec<Order> {
        let rows = |mut each: Vec<usize>, turn: bool| {
            if turn {
                each.reverse();
            }
            each
        };
        let row = |row: usize, turn| rows((row * columns..(row + 1) * columns).collect(), turn);
        let flat = vec![0.0; 2 * columns];
        let slope = (0..2 * columns).map(|at| (at % columns) as f64).collect();
        vec![
            Order { lines: (0..columns).map(|at| vec![at, at + columns]).collect(), offsets: flat.clone() },
            Order { lines: vec![row(0, true), row(1, true)], offsets: flat },
            Order { lines: vec![row(0, false), row(1, false)], offsets: slope },
        ]
    }

    fn keeps(values: &[f64], orders: &[Order], slack: f64) -> bool {
        let line = |order: &Order, line: &Vec<usize>| {
            line.windows(2).all(|pair| {
                values[pair[0]] + order.offsets[pair[0]] <= values[pair[1]] + order.offsets[pair[1]] + slack
            })
        };
        orders.iter().all(|order| order.lines.iter().all(|each| line(order, each)))
    }

    proptest! {
        #[test]
        fn what_is_fitted_keeps_all_orders_and_nothing_that_does_is_nearer(
            measured in prop::collection::vec(-3.0f64..3.0, 8),
            toward in prop::collection::vec(-3.0f64..3.0, 8),
        ) {
            let orders = of_grid(4);
            let mut fitted = measured.clone();
            fit(&mut fitted, &orders);
            prop_assert!(keeps(&fitted, &orders, 1e-6), "{fitted:?}");
            // another point that keeps them, and what lies between: all keep them, since the set is convex
            let mut other = toward;
            fit(&mut other, &orders);
            for share in [1e-3, 0.1, 1.0] {
                let between: Vec<f64> = fitted.iter().zip(&other).map(|(a, b)| a + share * (b - a)).collect();
                prop_assert!(distance(&between, &measured) >= distance(&fitted, &measured) - 1e-5);
            }
            // what keeps them already stays
            let mut again = fitted.clone();
            fit(&mut again, &orders);
            prop_assert!(distance(&again, &fitted) < 1e-9);
        }
    }
}
