//! A model as data: its blocks in order, and every constant that its mathematics needs.
//!
//! Whoever reads a model of some architecture (see `architectures`) makes one of these. The slow reference, the profiler, the
//! container, the engine and the memory arithmetic know nothing else: none of them asks for an architecture's name.
//!
//! ```text
//! x = embedding_scale * embedding[token]
//! for each block:   x += residual_scale * post_norm( mixer( norm(x) ) )
//!                   x += residual_scale * post_norm( feed_forward( norm(x) ) )
//!                   x *= output_scale
//! hidden = norm(x)
//! logits = softcap( logit_scale * head( hidden ) )
//! ```

use kernels::Activation;
use plans::model::Recurrent;
use serde::{Deserialize, Serialize};

use crate::pooling::Pooling;

mod check;
mod error;
mod roles;

pub(crate) use check::{EXPERTS_USED_MAX, GROUPS_MAX};
pub use error::ConfigError;
pub use roles::{Role, TensorShape};

/// The description of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The architecture's name in GGUF, for people.
    pub architecture: String,
    /// Tokens that exist; rows of the token embedding.
    pub vocabulary: usize,
    /// Values of the residual stream (`d_model`).
    pub width: usize,
    /// Tokens of context the model was trained for.
    pub context: usize,
    /// The number that `RMSNorm` adds to the mean square.
    pub norm_epsilon: f32,
    /// The factor of a token's embedding.
    pub embedding_scale: f32,
    /// The factor of the logits.
    pub logit_scale: f32,
    /// The bound `c` of the logits, `c tanh(logit / c)`.
    pub logit_softcap: Option<f32>,
    /// How hidden states become a text's embedding, where the file says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pooling: Option<Pooling>,
    /// The rotary embeddings that the blocks choose from.
    pub ropes: Vec<Rope>,
    /// The blocks, first to last.
    pub blocks: Vec<Block>,
}

/// A block of the model: a token mixer, a feed-forward network, or both, each added to the residual stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// The part that looks at other tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixer: Option<Mixer>,
    /// The part that looks at one token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed_forward: Option<FeedForward>,
    /// The places of the norms around both.
    pub norms: Norms,
    /// The factor of what both add to the residual stream.
    pub residual_scale: f32,
    /// Whether the residual stream is multiplied by a number of the block, behind both.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_scale: bool,
}

impl Block {
    /// The attention, if the mixer is that.
    pub fn attention(&self) -> Option<&Attention> {
        self.mixer.as_ref().and_then(Mixer::attention)
    }

    /// The mixer, if it keeps a state in place of keys and values.
    pub fn recurrent(&self) -> Option<&Mixer> {
        self.mixer.as_ref().filter(|mixer| mixer.attention().is_none())
    }

    /// The network, if its neurons are read.
    pub fn network(&self) -> Option<&FeedForward> {
        self.feed_forward.as_ref().filter(|network| !network.resident)
    }

    /// The network, if all of it is always in memory.
    pub fn resident(&self) -> Option<&FeedForward> {
        self.feed_forward.as_ref().filter(|network| network.resident)
    }
}

/// The places of the norms around a mixer or a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norms {
    /// The block's input is normalised.
    Before,
    /// The block's output is normalised.
    After,
    /// The block's input and its output are normalised.
    Both,
}

impl Norms {
    /// Whether the input is normalised.
    pub fn before(self) -> bool {
        self != Self::After
    }

    /// Whether the output is normalised.
    pub fn after(self) -> bool {
        self != Self::Before
    }
}

/// The part of a block that looks at other tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mixer {
    /// Attention over keys and values that are kept.
    Attention(Attention),
    /// A short convolution over a state that is kept.
    Convolution(Convolution),
    /// A matrix for each head that is kept, and written to by the delta rule.
    DeltaNet(DeltaNet),
    /// A state for each value of each head that is kept: Mamba-2.
    StateSpace(StateSpace),
}

/// A short convolution of each channel, between two gates: `out (c * convolved(b * x))` with `[b | c | x] = in(input)`.
///
/// `convolved(v)[t] = sum over i of taps[i] v[t - (count - 1) + i]`, where values before the beginning are 0. The state are the
/// last `count - 1` of them.
///
/// *Source*: Liquid AI, "LFM2 Technical Report", 2025.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Convolution {
    /// Positions that a value is summed over, its own among them.
    pub taps: usize,
}

/// A gated delta net: each value head keeps a matrix `S`, `[head_width, head_width]`, of which it reads by its query and to which it
/// writes by its key.
///
/// ```text
/// q, k, v = silu(convolved(input x));   q, k = q / |q|, k / |k|     of each head; value head h has query and key h mod key_heads
/// S = decay S;   S += k (rate (v - S^T k))^T;   y = S^T q / sqrt(head_width)
/// decay = exp(a softplus(alpha x + bias));   rate = sigmoid(beta x)
/// out (norm(y) silu(gate x))
/// ```
///
/// *Source*: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024, Eq. 10.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaNet {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple.
    pub value_heads: usize,
    /// Values of one head, equal for queries, keys and values.
    pub head_width: usize,
    /// Positions that queries, keys and values are convolved over, as by [`Convolution`].
    pub taps: usize,
    /// Whether the value heads of one key head are side by side, so that value head `h` has key `h / (value_heads / key_heads)`. One
    /// matrix makes beta and alpha then: of each key head the betas of its value heads, then their alphas.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub grouped: bool,
}

impl DeltaNet {
    /// The number that is added to the square of a query's or key's length.
    pub const EPSILON: f32 = 1e-6;
    /// Values of a head, at most.
    pub const HEAD_WIDTH_MAX: usize = 512;

    /// Values of all keys of a token, and of all its queries.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.head_width
    }

    /// Values of all value heads of a token.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.head_width
    }

    /// Queries, keys and values, which are convolved.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Of the state, the values before of each channel; the heads' matrices follow.
    pub fn convolved_values(&self) -> usize {
        (self.taps - 1) * self.channels()
    }

    /// The head of queries and keys that a value head has.
    pub fn key_head(&self, head: usize) -> usize {
        if self.grouped { head / (self.value_heads / self.key_heads) } else { head % self.key_heads }
    }

    /// The places of a value head's alpha and beta in the projection of both.
    pub fn alpha_and_beta(&self, head: usize) -> (usize, usize) {
        if !self.grouped {
            return (head, self.value_heads + head);
        }
        let of_key = self.value_heads / self.key_heads;
        let beta = head / of_key * 2 * of_key + head % of_key;
        (beta + of_key, beta)
    }
}

/// A state space: each value of each head keeps a state `s`, `[state]`, to which it is written along `B` and of which it is read along
/// `C`, both of its head's group.
///
/// ```text
/// z, x, B, C, dt = input x;   x, B, C = silu(convolved(x, B, C) + bias);   dt = softplus(dt + bias)
/// s = exp(dt a) s;   s += dt x B;   y = s . C + d x
/// out (norm(y silu(z)))     of each group by itself
/// ```
///
/// *Source*: Dao and Gu, "Transformers are SSMs", 2024, Listing 1, and its gated norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateSpace {
    /// Heads.
    pub heads: usize,
    /// Values of one head.
    pub head_width: usize,
    /// Groups of heads that have `B` and `C` in common.
    pub groups: usize,
    /// Values of a state.
    pub state: usize,
    /// Positions that `x`, `B` and `C` are convolved over, as by [`Convolution`].
    pub taps: usize,
    /// Whether a vector is added to what is convolved.
    pub bias: bool,
}

impl StateSpace {
    /// Values of a group, at most.
    pub const GROUP_WIDTH_MAX: usize = 4096;

    /// Values of all heads of a token.
    pub fn inner_width(&self) -> usize {
        self.heads.saturating_mul(self.head_width)
    }

    /// `x`, `B` and `C`, which are convolved.
    pub fn channels(&self) -> usize {
        self.inner_width() + 2 * self.groups * self.state
    }

    /// Of the state, the values before of each channel; the heads' states follow.
    pub fn convolved_values(&self) -> usize {
        (self.taps - 1) * self.channels()
    }
}

impl From<Attention> for Mixer {
    fn from(attention: Attention) -> Self {
        Self::Attention(attention)
    }
}

impl Mixer {
    /// The attention, if it is that.
    pub fn attention(&self) -> Option<&Attention> {
        match self {
            Self::Attention(attention) => Some(attention),
            Self::Convolution(_) | Self::DeltaNet(_) | Self::StateSpace(_) => None,
        }
    }

    /// Values of a sequence's state in a model of some width; 0 where keys and values are kept.
    pub fn state_values(&self, width: usize) -> usize {
        match self {
            Self::Attention(_) => 0,
            Self::Convolution(convolution) => (convolution.taps - 1) * width,
            Self::DeltaNet(net) => net.convolved_values() + net.value_width() * net.head_width,
            Self::StateSpace(space) => space.convolved_values() + space.inner_width() * space.state,
        }
    }

    /// Values that a token's input is projected to.
    pub fn projected_values(&self, width: usize) -> usize {
        match self {
            Self::Attention(attention) => attention.projected_width(),
            Self::Convolution(_) => 3 * width,
            Self::DeltaNet(net) => net.channels() + net.value_width() + 2 * net.value_heads,
            Self::StateSpace(space) => space.inner_width() + space.channels() + space.heads,
        }
    }

    /// Values that the output matrix meets.
    pub fn mixed_values(&self, width: usize) -> usize {
        match self {
            Self::Attention(attention) => attention.mixed_width(),
            Self::Convolution(_) => width,
            Self::DeltaNet(net) => net.value_width(),
            Self::StateSpace(space) => space.inner_width(),
        }
    }
}

/// Grouped-query attention: `softmax(scale q k^T) v` for each head, over the positions that a token sees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads / kv_heads` query heads share one.
    pub kv_heads: usize,
    /// Values of one head, equal for queries, keys and values.
    pub head_width: usize,
    /// The factor of the scores.
    pub scale: f32,
    /// The projections that a vector is added to.
    pub biases: AttentionBiases,
    /// The norm of queries and keys, before they are rotated.
    pub norm: Option<HeadNorm>,
    /// The rotary embedding, an index of [`Config::ropes`]; none where positions are not told.
    pub rope: Option<usize>,
    /// The factor of queries that grows with their position.
    pub temperature: Option<Temperature>,
    /// The bound `c` of the scores, `c tanh(score / c)`.
    pub softcap: Option<f32>,
    /// The positions that a token sees: so many of the last, its own among them; all where there is none.
    pub window: Option<usize>,
    /// Whether each head has a score of its own in the softmax's sum, which no value belongs to.
    pub sinks: bool,
    /// Whether values are the keys as the key matrix makes them, so that there is no value matrix.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub values_are_keys: bool,
    /// Whether each head of values is normalised, without weights.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub value_norm: bool,
    /// Whether what a head gives is multiplied by the sigmoid of a gate, whose rows follow those of the head's query in one matrix.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gate: bool,
    /// Keys and values of all heads are made of one short vector, which alone is kept; none where they are projected each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<Latent>,
}

/// Multi-head latent attention, with what makes keys and values of what is kept taken to the queries and the result ("absorbed"), so that
/// all heads share one key, whose front is the value, too.
///
/// ```text
/// [c | r] = kv_down x;   c = norm(c);   r rotated           kept: [c | r] of every position, one row for all heads
/// [n | p] = query x, or query_up norm(query_down x)          of each head; p rotated
/// q = [key_up n | p]                                         for (key_up^T c) . n = c . (key_up n)
/// out = output [ value_up (softmax(scale q [c | r]^T) c) ]   of each head its own key_up, [rank, plain], and value_up, [value, rank]
/// ```
///
/// [`Attention::head_width`] is that of `[c | r]`, `rank + rotated`, and [`Attention::kv_heads`] is 1.
///
/// *Source*: `DeepSeek`-AI, "`DeepSeek`-V2", 2024, Eq. 9 to 19, and its appendix C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latent {
    /// Values that queries are made of, normalised; none where a token's input is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_rank: Option<usize>,
    /// Values that keys and values are made of, normalised: `c`.
    pub rank: usize,
    /// Values of a head's query and key that are not rotated: `n`.
    pub plain: usize,
    /// Values of a head's query that are rotated, `p`, and of the key that all heads share, `r`.
    pub rotated: usize,
    /// Values of a head's value.
    pub value: usize,
}

/// The projections of attention that a vector is added to.
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

/// The values of queries and of keys that are normalised together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadNorm {
    /// Those of each head, with one vector of weights for all heads.
    Head,
    /// Those of all heads.
    Width,
}

/// The factor of a query at position `p`: `1 + slope ln(1 + floor(p / original_context))`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Temperature {
    /// The growth with the logarithm of the position.
    pub slope: f32,
    /// Positions of which the factor is 1.
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
    /// The values that form a pair.
    pub pairing: Pairing,
    /// Values of each head that are rotated; even, and the first ones of the head.
    pub width: usize,
    /// The base of the frequencies.
    pub base: f32,
    /// The scaling of the frequencies for a longer context.
    pub scaling: RopeScaling,
    /// The factor of cosines and sines.
    pub magnitude: f32,
    /// A divisor of each pair's frequency; none where all are 1.
    pub divisors: Vec<f32>,
    /// Other divisors where the context is long.
    pub long: Option<LongContext>,
}

/// The divisors of rotary frequencies for a long context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongContext {
    /// Tokens of context up to which the usual divisors hold.
    pub original_context: usize,
    /// A divisor of each pair's frequency.
    pub divisors: Vec<f32>,
}

/// The values of a head that are rotated together.
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
        /// Tokens of context before the scaling.
        original_context: usize,
        /// Turns within that context from which on a frequency stays.
        beta_fast: f32,
        /// Turns below which a frequency is divided by the whole factor.
        beta_slow: f32,
        /// Whether both limits are taken as they are, and not rounded outwards to whole pairs.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        exact: bool,
    },
}

/// A feed-forward network, `down (f(gate x) * up x)` or without gates `down f(up x)`, or several of them, of which a router chooses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedForward {
    /// Neurons of the network, or of one expert.
    pub neurons: usize,
    /// The function between gate and up, or of up alone: it says which of the two.
    pub activation: Activation,
    /// Whether vectors are added to gate, up and down.
    pub biases: bool,
    /// Whether all of it is always in memory, such as the dense networks before a mixture's: it has no router, and is in no layer's
    /// order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resident: bool,
    /// The experts' router; none where there is one network.
    pub router: Option<Router>,
    /// Neurons of a network beside the experts, which every token visits; none where there is none.
    pub shared_neurons: Option<usize>,
    /// Whether what that network gives is multiplied by the sigmoid of a number that a row of weights makes of its input.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared_gate: bool,
    /// Whether the experts have a norm of their input that is not that network's, and the outputs of both norms of their own, before
    /// they are added.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared_norms: bool,
}

/// The choice of a token's experts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// The vector that it reads.
    #[serde(default, skip_serializing_if = "RouterInput::is_usual")]
    pub input: RouterInput,
    /// Experts.
    pub experts: usize,
    /// Experts that a token is routed to.
    pub experts_used: usize,
    /// The groups that a token's experts are chosen from; none where they are chosen from all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<ExpertGroups>,
    /// The experts' probabilities, which are their weights.
    pub gating: Gating,
    /// Whether the weights of the chosen are divided by their sum.
    pub renormalise: bool,
    /// The factor of the weights.
    pub scale: f32,
    /// Whether each expert's weight has a factor of its own besides.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expert_scales: bool,
    /// Whether a vector is added to the logits.
    pub bias: bool,
    /// Whether a vector is added to the probabilities where experts are chosen, and not where they are weighed.
    pub selection_bias: bool,
}

/// Groups of neighbouring experts. A token's experts are of the groups whose best experts have the highest sum.
///
/// *Source*: `DeepSeek`-AI, "`DeepSeek`-V3", 2024, section 2.1.2; its V2 compares the groups' best expert alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertGroups {
    /// Groups.
    pub count: usize,
    /// Groups that a token's experts are of.
    pub used: usize,
    /// Experts of each group that it is compared by.
    pub best: usize,
}

/// The vector that a router reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouterInput {
    /// The experts' own input.
    #[default]
    Experts,
    /// The residual stream that the network adds to, by a norm of the router's own, over the root of the width.
    Normed,
    /// The residual stream that the block's mixer adds to, as it is.
    BeforeMixer,
}

impl RouterInput {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// The probabilities of experts, by their logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gating {
    /// The softmax over all of them.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
    /// The softmax over the chosen, which are those of the highest logits.
    SelectedSoftmax,
}

impl Config {
    /// Layers whose networks have neurons that are read: what is planned, and what neurons and experts are numbered in.
    pub fn layers(&self) -> usize {
        self.blocks.iter().filter(|block| block.network().is_some()).count()
    }

    /// The block with a layer's network.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn block_of(&self, layer: usize) -> usize {
        let all = self.blocks.iter().enumerate().filter(|(_, block)| block.network().is_some());
        let found = all.map(|(at, _)| at).nth(layer);
        found.unwrap_or_else(|| panic!("layer {layer} of {}", self.layers()))
    }

    /// The layer whose network a block has; none where it has none, or one that is always in memory.
    pub fn layer_of(&self, block: usize) -> Option<usize> {
        self.blocks[block].network()?;
        Some(self.blocks[..block].iter().filter(|block| block.network().is_some()).count())
    }

    /// A block's attention.
    ///
    /// # Panics
    /// If there is no such block, or it has another mixer.
    pub fn attention(&self, block: usize) -> &Attention {
        let attention = self.blocks[block].attention();
        attention.unwrap_or_else(|| panic!("block {block} has no attention"))
    }

    /// The attention of each block that has it; there is one at least, which [`Config::check`] sees to.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> + Clone {
        self.blocks.iter().filter_map(Block::attention)
    }

    /// Values of the widest head.
    pub fn head_width(&self) -> usize {
        self.attentions().map(|attention| attention.head_width).max().unwrap_or(0)
    }

    /// Blocks before one that keep what it keeps: keys and values, or a state.
    pub fn alike_before(&self, block: usize) -> usize {
        let before = &self.blocks[..block];
        match self.blocks[block].attention() {
            Some(_) => before.iter().filter_map(Block::attention).count(),
            None => before.iter().filter_map(Block::recurrent).count(),
        }
    }

    /// Blocks that keep keys and values.
    pub fn kv_layers(&self) -> usize {
        self.attentions().count()
    }

    /// Sizes of the layers with a recurrent state; none where all keep keys and values.
    pub fn recurrent(&self) -> Option<Recurrent> {
        let recurrent = || self.blocks.iter().filter_map(Block::recurrent);
        let all = || self.blocks.iter().filter_map(|block| block.mixer.as_ref());
        let most = |of: &dyn Fn(&Mixer) -> usize| all().map(of).max().unwrap_or(0) as u32;
        recurrent().next().map(|_| Recurrent {
            state_values: recurrent().map(|mixer| mixer.state_values(self.width) as u64).sum(),
            projected_values: most(&|mixer| mixer.projected_values(self.width)),
            mixed_values: most(&|mixer| mixer.mixed_values(self.width)),
        })
    }

    /// Sizes of attention whose keys and values are made of one latent vector; none where they are projected.
    pub fn latent(&self) -> Option<plans::model::Latent> {
        let a = self.blocks.iter().find_map(Block::attention)?;
        let latent = a.latent?;
        let queries = a.heads * latent.query_width();
        let most = a.query_width().max(queries).max(a.mixed_width());
        let values = |values: usize| u32::try_from(values).unwrap_or(u32::MAX);
        Some(plans::model::Latent {
            projected_values: values(most.max(a.projected_width())),
            mixed_values: values(most),
        })
    }

    /// The feed-forward network that all layers have, weights apart: [`Config::check`] refuses others.
    ///
    /// # Panics
    /// If there are no layers.
    pub fn network(&self) -> &FeedForward {
        let mut all = self.blocks.iter().filter_map(Block::network);
        all.next().unwrap_or_else(|| panic!("a model has a feed-forward network"))
    }

    /// Every block's network, to change it.
    pub(super) fn networks_mut(&mut self) -> impl Iterator<Item = &mut FeedForward> {
        self.blocks.iter_mut().filter_map(|block| block.feed_forward.as_mut())
    }

    /// Neurons of the widest network that is always in memory, beside experts or in their place; 0 where there is none.
    pub fn resident_neurons(&self) -> usize {
        let resident = self.blocks.iter().filter_map(Block::resident).map(|network| network.neurons);
        resident.max().unwrap_or(0).max(self.shared_neurons())
    }

    /// Neurons of a layer's network, or of one expert.
    pub fn ffn_width(&self) -> usize {
        self.network().neurons
    }

    /// Experts of a layer; 1 for a dense model.
    pub fn experts(&self) -> usize {
        self.network().router.as_ref().map_or(1, |router| router.experts)
    }

    /// Experts that a token is routed to; 1 for a dense model.
    pub fn experts_used(&self) -> usize {
        self.network().router.as_ref().map_or(1, |router| router.experts_used)
    }

    /// The function between gate and up, or of up alone.
    pub fn activation(&self) -> Activation {
        self.network().activation
    }

    /// Neurons of the network beside the experts; 0 where there is none.
    pub fn shared_neurons(&self) -> usize {
        self.network().shared_neurons.unwrap_or(0)
    }
}

impl FeedForward {
    /// The norm of what its neurons, or experts, read.
    pub fn input_norm(&self) -> Role {
        if self.shared_norms { Role::ExpertsNorm } else { Role::FfnNorm }
    }
}

impl Attention {
    /// Plain attention: no bias, norm, rotation, window or bound, and scores divided by the root of a head's width.
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
            values_are_keys: false,
            value_norm: false,
            gate: false,
            latent: None,
        }
    }

    /// Values of all key heads of a token, and of all its value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_width
    }

    /// Values of all query heads of a token.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Rows of the matrix of queries, and of their gates.
    pub fn query_rows(&self) -> usize {
        if self.gate { 2 * self.query_width() } else { self.query_width() }
    }

    /// Values that a token is projected to: queries, gates where there are some, keys and values; what they are made of where that is
    /// latent.
    pub fn projected_width(&self) -> usize {
        match &self.latent {
            None => self.query_rows() + 2 * self.kv_width(),
            Some(latent) => latent.query_rank.unwrap_or(self.heads * latent.query_width()) + self.head_width,
        }
    }

    /// Values that the output matrix meets.
    pub fn mixed_width(&self) -> usize {
        self.heads * self.latent.map_or(self.head_width, |latent| latent.value)
    }

    /// The first position that a token at `position` sees.
    pub fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

impl Latent {
    /// Values of a head's query before what makes its key is taken to it.
    pub fn query_width(&self) -> usize {
        self.plain + self.rotated
    }
}

impl Rope {
    /// Rotations by `base` alone.
    pub fn plain(pairing: Pairing, width: usize, base: f32) -> Self {
        let (scaling, magnitude) = (RopeScaling::None, 1.0);
        Self { pairing, width, base, scaling, magnitude, divisors: Vec::new(), long: None }
    }
}
