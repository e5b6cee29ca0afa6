//! Attention as data: heads, biases, norms, rotary positions.

use serde::{Deserialize, Serialize};

/// Grouped-query attention: `softmax(scale q k^T) v` for each head, over the positions that a token sees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads / kv_heads` query heads share one.
    pub kv_heads: usize,
    /// Width of a head, equal for queries, keys and values.
    pub head_width: usize,
    /// The factor of the scores.
    pub scale: f32,
    /// The projections with a bias.
    pub biases: AttentionBiases,
    /// The norm of queries and keys, before rotation.
    pub norm: Option<HeadNorm>,
    /// The rotary embedding, an index of `Config::ropes`; none if positions are not encoded.
    pub rope: Option<usize>,
    /// The factor of queries, which grows with their position.
    pub temperature: Option<Temperature>,
    /// The bound `c` of the scores, `c tanh(score / c)`.
    pub softcap: Option<f32>,
    /// Number of last positions that a token sees, its own included; all if absent.
    pub window: Option<usize>,
    /// Whether each head adds a learned score without a value to its softmax (an attention sink).
    pub sinks: bool,
    /// The earlier block whose keys and values the heads read; absent if the block stores its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<usize>,
    /// Whether values are the unrotated keys, without a value matrix of their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub values_are_keys: bool,
    /// Whether each head of values is normalised, without weights.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub value_norm: bool,
    /// Whether a head's output is multiplied by the sigmoid of a gate. The gate's rows follow the head's
    /// query rows in one matrix.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gate: bool,
    /// The choice of positions that attention sees; absent if it sees all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indexer: Option<Indexer>,
    /// Latent attention: all heads share one short stored vector. Absent if keys and values are projected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<Latent>,
}

/// Multi-head latent attention in its absorbed form. The matrices that make keys and values of the stored
/// vector are applied to the query and to the result instead. All heads then share one key, whose front is
/// also the value.
///
/// ```text
/// [c | r] = kv_down x;   c = norm(c);   r rotated           kept: [c | r] of every position, one row for all heads
/// [n | p] = query x, or query_up norm(query_down x)          per head; p rotated
/// q = [key_up n | p]                                         for (key_up^T c) . n = c . (key_up n)
/// out = output [ value_up (softmax(scale q [c | r]^T) c) ]   per head: key_up [rank, plain], value_up [value, rank]
/// ```
///
/// [`Attention::head_width`] is the width of `[c | r]`, `rank + rotated`, and [`Attention::kv_heads`] is 1.
///
/// *Source*: `DeepSeek`-AI, "`DeepSeek`-V2", 2024, Eq. 9 to 19, and its appendix C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latent {
    /// Rank of queries; absent if they are made of the token's input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_rank: Option<usize>,
    /// Rank of keys and values: the width of `c`.
    pub rank: usize,
    /// Width of a head's query and key that is not rotated: `n`.
    pub plain: usize,
    /// Width of a head's rotated query, `p`, and of the shared rotated key, `r`.
    pub rotated: usize,
    /// Width of a head's value.
    pub value: usize,
    /// Whether each head's result is multiplied by the sigmoid of a gate, made of the token's input.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gate: bool,
}

/// An indexer: chooses the blocks of neighbouring positions that a token's heads see. They also see the positions
/// behind the last whole block.
///
/// ```text
/// q = norm(query x), of each head, rotated;   k = key x                      kept: k of each position
/// b = norm(mean of a block's k), rotated as the block's first position       kept at the block's last position
/// chosen: the blocks with the highest sums over heads of max(q . b, 0)
/// ```
///
/// The rotary embedding is the attention's.
///
/// *Source*: `DeepSeek`-AI, "`DeepSeek`-V3.2", 2025, for the idea; blocks and their mean are Qwen 4's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Indexer {
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Positions of a block.
    pub positions: usize,
    /// Blocks that a token chooses at most.
    pub blocks: usize,
}

impl Indexer {
    /// Whole blocks that a token at `position` sees.
    pub fn whole_blocks(&self, position: usize) -> usize {
        (position + 1) / self.positions
    }

    /// Whether a token at `position` sees only a part of the positions before it.
    pub fn chooses(&self, position: usize) -> bool {
        self.whole_blocks(position) > self.blocks
    }

    /// Width of a token's projections: queries, then the key.
    pub fn projected_width(&self) -> usize {
        (self.heads + 1) * self.width
    }
}

/// The projections of attention with a bias.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionBiases {
    /// Queries.
    pub query: bool,
    /// Keys.
    pub key: bool,
    /// Values.
    pub value: bool,
    /// The output.
    pub output: bool,
}

/// The values that a norm of queries or keys covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadNorm {
    /// Each head by itself, with the same weights for all heads.
    Head,
    /// All heads together.
    Width,
}

/// The factor of a query at position `p`: `1 + slope ln(1 + floor(p / original_context))`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Temperature {
    /// The growth with the logarithm of the position.
    pub slope: f32,
    /// Positions with a factor of 1.
    pub original_context: usize,
}

impl Temperature {
    /// The factor of a query.
    pub fn factor(self, position: usize) -> f32 {
        1.0 + self.slope * ((position / self.original_context) as f32).ln_1p()
    }
}

/// A rotary embedding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// How values are paired.
    pub pairing: Pairing,
    /// Rotated values of each head: even, at the head's front.
    pub width: usize,
    /// The base of the frequencies.
    pub base: f32,
    /// The scaling of the frequencies for a longer context.
    pub scaling: RopeScaling,
    /// The factor of cosines and sines.
    pub magnitude: f32,
    /// A divisor for each pair's frequency; empty if all are 1.
    pub divisors: Vec<f32>,
    /// Divisors for a long context.
    pub long: Option<LongContext>,
}

/// Divisors of rotary frequencies for a long context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongContext {
    /// The longest context with the usual divisors, in tokens.
    pub original_context: usize,
    /// A divisor for each pair's frequency.
    pub divisors: Vec<f32>,
}

/// The values of a head that form a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pairing {
    /// `2 i` and `2 i + 1`: ggml's `NORM`.
    Adjacent,
    /// `i` and `i` + half of the rotated width: ggml's `NEOX`.
    Halves,
}

/// The scaling of rotary frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeScaling {
    /// None.
    None,
    /// All frequencies are divided by a factor.
    Linear {
        /// The factor.
        factor: f32,
    },
    /// Low frequencies are divided by a factor, high ones are not.
    ///
    /// *Source*: Peng et al., "`YaRN`", 2023, Eq. 22 to 25.
    Yarn {
        /// The factor.
        factor: f32,
        /// Context before the scaling, in tokens.
        original_context: usize,
        /// Turns within that context above which a frequency stays.
        beta_fast: f32,
        /// Turns below which a frequency is divided by the whole factor.
        beta_slow: f32,
        /// Whether both limits are used exactly, instead of rounded outwards to whole pairs.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        exact: bool,
    },
}

impl Attention {
    /// Plain attention: no bias, norm, rotation, window or bound; scores are divided by the root of a head's
    /// width.
    pub fn plain(heads: usize, kv_heads: usize, head_width: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_width,
            scale: 1.0 / (head_width as f32).sqrt(),
            biases: AttentionBiases::default(),
            norm: None,
            rope: None,
            temperature: None,
            softcap: None,
            window: None,
            sinks: false,
            shares: None,
            values_are_keys: false,
            value_norm: false,
            gate: false,
            indexer: None,
            latent: None,
        }
    }

    /// Width of all key heads of a token; also of all value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_width
    }

    /// Width of the keys that the block makes of a token: none where it reads another block's.
    pub fn own_kv_width(&self) -> usize {
        if self.shares.is_some() { 0 } else { self.kv_width() }
    }

    /// Width of all query heads of a token.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Rows of the query matrix, gates included.
    pub fn query_rows(&self) -> usize {
        if self.gate { 2 * self.query_width() } else { self.query_width() }
    }

    /// Width of a token's projections: queries, gates, keys and values; for latent attention, their latent
    /// vectors.
    pub fn projected_width(&self) -> usize {
        match &self.latent {
            None => self.own_projected_width() + self.indexer.map_or(0, |indexer| indexer.projected_width()),
            Some(latent) => {
                let queries = latent.query_rank.unwrap_or(self.heads * latent.query_width());
                queries + latent.gates(self.heads) + self.head_width
            }
        }
    }

    /// Width of a token's queries, gates, keys and values, without an indexer's.
    pub fn own_projected_width(&self) -> usize {
        self.query_rows() + 2 * self.own_kv_width()
    }

    /// Width of the output matrix's input.
    pub fn mixed_width(&self) -> usize {
        self.heads * self.latent.map_or(self.head_width, |latent| latent.value)
    }

    /// The first position that a token at `position` sees.
    pub fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

impl Latent {
    /// Width of a head's query before the key matrix is absorbed.
    pub fn query_width(&self) -> usize {
        self.plain + self.rotated
    }

    /// Gates of a token.
    pub fn gates(&self, heads: usize) -> usize {
        if self.gate { heads } else { 0 }
    }
}

impl Rope {
    /// A rotary embedding without scaling.
    pub fn plain(pairing: Pairing, width: usize, base: f32) -> Self {
        let (scaling, magnitude) = (RopeScaling::None, 1.0);
        Self { pairing, width, base, scaling, magnitude, divisors: Vec::new(), long: None }
    }
}
