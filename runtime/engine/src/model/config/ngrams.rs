//! Hashed n-grams as data: rows of a large table for the last tokens.

use serde::{Deserialize, Serialize};

/// A block's n-grams: each token adds to all residual streams what rows of a table say of the n-grams that end
/// with it. The table stays in the file until its rows are used.
///
/// ```text
/// t[0], t[1], ... = the token, the one before, ...; `end` from the last end of a text on
/// row of head h = offset[h] + (t[0] m[0] xor t[1] m[1] xor ... of its n-gram) mod rows[h]
/// e = rows of all heads;   k[i] = key[i] e;   v = value e                                   for each stream s[i]
/// a = norm(k[i]) . norm(s[i]) / sqrt(width);   y[i] = sigmoid(sign(a) sqrt(|a|)) v
/// s[i] += y[i] + silu(convolved(norm(y[i])))
/// ```
///
/// The convolution is over every `n`-th position, `n` the tokens of the longest n-gram.
///
/// *Source*: the model's implementation in transformers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NGrams {
    /// The block, before whose mixer they are added.
    pub block: usize,
    /// A multiplier for each token of the longest n-gram, the last token's first.
    pub multipliers: Vec<u64>,
    /// The heads of pairs, then of triples and so on, equally many.
    pub heads: Vec<NGramHead>,
    /// The token that ends a text.
    pub end: u32,
    /// Rows of the table.
    pub rows: usize,
    /// Values of a row.
    pub row_width: usize,
    /// Positions of the convolution.
    pub taps: usize,
}

/// The part of an n-gram table that a head reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NGramHead {
    /// The first row.
    pub offset: u64,
    /// Number of rows.
    pub rows: u64,
}

impl NGrams {
    /// The least size of a product of keys and queries.
    pub const LEAST: f32 = 1e-6;
    /// The most tokens of an n-gram.
    pub const TOKENS_MAX: usize = 8;
    /// The most heads.
    pub const HEADS_MAX: usize = 64;

    /// Tokens of the longest n-gram.
    pub fn tokens(&self) -> usize {
        self.multipliers.len()
    }

    /// Values of all rows of a token.
    pub fn values(&self) -> usize {
        self.heads.len() * self.row_width
    }

    /// Positions of the convolution's state.
    pub fn state_positions(&self) -> usize {
        (self.taps - 1) * self.tokens()
    }

    /// Values of a sequence's state: the tokens before, and the convolution's inputs, `[positions, streams, width]`.
    pub fn state_values(&self, streams_width: usize) -> usize {
        self.tokens() - 1 + self.state_positions() * streams_width
    }

    /// The row of each head, for the last tokens: the token itself first. Tokens before an end count as ends.
    pub fn rows_of<'a>(&'a self, last: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let of_each = self.heads.len() / (self.tokens() - 1);
        let mut mixed = [0_u64; Self::TOKENS_MAX];
        let (mut all, mut ended) = (0, false);
        for (at, (&multiplier, mixed)) in self.multipliers.iter().zip(&mut mixed).enumerate() {
            let token = if ended { self.end } else { last[at] };
            ended |= at > 0 && token == self.end;
            all ^= u64::from(token).wrapping_mul(multiplier);
            *mixed = all;
        }
        let head = move |(at, head): (usize, &NGramHead)| {
            // within 32 bits by `Config::problems`
            (head.offset + mixed[at / of_each + 1] % head.rows) as u32
        };
        self.heads.iter().enumerate().map(head)
    }
}
