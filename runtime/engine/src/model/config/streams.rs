//! Several residual streams as data.

use serde::{Deserialize, Serialize};

/// Several residual streams, `s`. Each block reads a mixture of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Streams {
    /// Number of streams.
    pub count: usize,
    /// How blocks read and change them.
    pub mixing: Mixing,
}

/// How blocks read several residual streams and change them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Mixing {
    /// Alternating updates: a block predicts all streams, computes with the first, and corrects all by what it
    /// computed.
    ///
    /// ```text
    /// s[0] = embedding;   s[i] = open[i] s[0], as long as s[0]                     before the first block
    /// for each block:     s[i] += sum over j of P[i, j] s[j];   x = s[0]           P = predict route(s[0])
    ///                     x = the block's mixer and network
    ///                     s[i] += (1 + C[i]) (x - s[0])                            C = correct route(x)
    ///                     s[i > 0] += own input, whose gate reads scale * s[0]     with per-layer embeddings
    /// x = mean over i of: s[0]; join[i] s[i], as long as s[0]                      after the last block
    ///
    /// route(x) = tanh(router norm(x) / width)
    /// ```
    ///
    /// "As long" is the root mean square. All sums of a step are of the streams before it.
    ///
    /// *Source*: Baykal et al., "Alternating Updates for Efficient Transformers", 2023.
    Alternating,
    /// Gated hyper-connections: mixer and network each read a gated mean of all normalised streams. Their
    /// output is added to each with a weight of its own. No other norm precedes them.
    ///
    /// ```text
    /// s[i] = embedding                                                   before the first block
    /// n[i] = norm[i](s[i]);   g = sigmoid(up silu(down n / count))       before each mixer and network
    /// x = mean over i of g[i] * n[i]
    /// s[i] += 2 sigmoid(inject[i] n / count) output(x)                   after it
    /// hidden = mean over i of g[i] * n[i]                                after the last block
    /// ```
    ///
    /// `n` and `g` have the values of all streams.
    ///
    /// *Source*: Zhu et al., "Hyper-Connections", 2024, for the idea; the gates are Qwen 4's.
    Gated {
        /// Rank of the gates: rows of `down`.
        rank: usize,
    },
}

impl Streams {
    /// The least mean square that a stream is scaled from.
    pub const LEAST_SQUARE: f32 = 1e-5;

    /// The most streams; more than any model has.
    pub const COUNT_MAX: usize = 8;

    /// Whether blocks read gated means.
    pub fn are_gated(self) -> bool {
        matches!(self.mixing, Mixing::Gated { .. })
    }
}

/// The factor that makes a vector as long as another, by their mean squares.
pub(crate) fn as_long(square: f32, target: f32) -> f32 {
    (target / square.max(Streams::LEAST_SQUARE)).sqrt()
}

/// The mean of the squares of values.
pub(crate) fn mean_square(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32
}
