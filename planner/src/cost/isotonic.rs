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
mod tests;
