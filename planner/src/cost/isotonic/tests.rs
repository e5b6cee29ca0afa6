//! Tests of `isotonic.rs`.

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
