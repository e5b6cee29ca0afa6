//! Text embeddings: one vector from the hidden states of a text's tokens.
//!
//! ```text
//! hidden[i] = norm(x[i])                        after the last block: the head's input
//! pooled    = hidden[last] | hidden[first] | mean of hidden
//! embedding = pooled / |pooled|
//! ```

use serde::{Deserialize, Serialize};

/// How hidden states become one vector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The last token's state, which has seen all others; the default of models that name no pooling.
    #[default]
    Last,
    /// The first token's state.
    First,
    /// The mean of all states.
    Mean,
}

/// A text's embedding, built token by token.
#[derive(Debug, Clone)]
pub struct Pooled {
    pooling: Pooling,
    /// The selected state, or the sum of all.
    values: Vec<f64>,
    tokens: usize,
}

impl Pooled {
    /// An embedding of no tokens yet.
    pub fn new(pooling: Pooling) -> Self {
        Self { pooling, values: Vec::new(), tokens: 0 }
    }

    /// Adds the next token's hidden state `[width]`.
    pub fn add(&mut self, hidden: &[f32]) {
        self.tokens += 1;
        let values = hidden.iter().copied().map(f64::from);
        match self.pooling {
            Pooling::Mean if self.tokens > 1 => {
                self.values.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            Pooling::First if self.tokens > 1 => {}
            Pooling::Last | Pooling::First | Pooling::Mean => {
                self.values.clear();
                self.values.extend(values);
            }
        }
    }

    /// The embedding `[width]`, of length 1. Empty without tokens; zero if all states are zero.
    pub fn finish(self) -> Vec<f32> {
        // dividing by the number of tokens is not needed: the length becomes 1
        let length = self.values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
        self.values.iter().map(|value| (value * factor) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_the_first_or_the_mean_has_length_one() {
        let pooled = |pooling| {
            let mut pooled = Pooled::new(pooling);
            for hidden in [[3.0, 4.0], [0.0, 5.0], [-8.0, 6.0]] {
                pooled.add(&hidden);
            }
            pooled.finish()
        };
        assert_eq!(pooled(Pooling::Last), [-0.8, 0.6]);
        assert_eq!(pooled(Pooling::First), [0.6, 0.8]);
        let (x, y) = (-5.0_f64 / 3.0, 5.0);
        let length = (x * x + y * y).sqrt();
        for (found, expected) in pooled(Pooling::Mean).into_iter().zip([x / length, y / length]) {
            assert!((f64::from(found) - expected).abs() < 1e-7, "{found} for {expected}");
        }
        let mut nothing = Pooled::new(Pooling::Mean);
        nothing.add(&[0.0; 2]);
        assert_eq!(nothing.finish(), [0.0; 2]);
    }
}
