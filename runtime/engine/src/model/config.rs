//! A model as data: its blocks in order, and all constants of its mathematics.
//!
//! Each architecture has a reader that makes a `Config` (see `architectures`). The slow reference, the
//! profiler, the container, the engine and the memory arithmetic use only this description, never an
//! architecture's name.
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
    /// Tokens of the vocabulary; rows of the token embedding.
    pub vocabulary: usize,
    /// Values of the residual stream (`d_model`).
    pub width: usize,
    /// Context that the model was trained for, in tokens.
    pub context: usize,
    /// Added to the mean square by `RMSNorm`.
    pub norm_epsilon: f32,
    /// The factor of a token's embedding.
    pub embedding_scale: f32,
    /// The factor of the logits.
    pub logit_scale: f32,
    /// The bound `c` of the logits, `c tanh(logit / c)`.
    pub logit_softcap: Option<f32>,
    /// How hidden states become a text's embedding, if the file says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pooling: Option<Pooling>,
    /// Rotary embeddings; attention refers to them by index.
    pub ropes: Vec<Rope>,
    /// The blocks, first to last.
    pub blocks: Vec<Block>,
}

/// A block of the model: a token mixer, a feed-forward network, or both, each added to the residual stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// The token mixer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixer: Option<Mixer>,
    /// The feed-forward network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed_forward: Option<FeedForward>,
    /// The norms around both.
    pub norms: Norms,
    /// The factor of both outputs, before they are added to the residual stream.
    pub residual_scale: f32,
    /// Whether the residual stream is multiplied by a stored factor at the end of the block.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_scale: bool,
}

impl Block {
    /// The attention, if the mixer is one.
    pub fn attention(&self) -> Option<&Attention> {
        self.mixer.as_ref().and_then(Mixer::attention)
    }

    /// The mixer, if it has a recurrent state instead of keys and values.
    pub fn recurrent(&self) -> Option<&Mixer> {
        self.mixer.as_ref().filter(|mixer| mixer.attention().is_none())
    }

    /// The network, if its neurons are read from flash.
    pub fn network(&self) -> Option<&FeedForward> {
        self.feed_forward.as_ref().filter(|network| !network.resident)
    }

    /// The network, if it is always in memory.
    pub fn resident(&self) -> Option<&FeedForward> {
        self.feed_forward.as_ref().filter(|network| network.resident)
    }
}

/// The places of the norms around a mixer or a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norms {
    /// Normalises the input.
    Before,
    /// Normalises the output.
    After,
    /// Normalises input and output.
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

/// The part of a block that combines tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mixer {
    /// Attention over stored keys and values.
    Attention(Attention),
    /// A short convolution over a stored state.
    Convolution(Convolution),
    /// A stored matrix for each head, updated by the delta rule.
    DeltaNet(DeltaNet),
    /// A stored state for each value of each head: Mamba-2.
    StateSpace(StateSpace),
}

/// A short convolution of each channel, between two gates: `out (c * convolved(b * x))` with `[b | c | x] =
/// in(input)`.
///
/// `convolved(v)[t] = sum over i of taps[i] v[t - (count - 1) + i]`; values before the first position are 0.
/// The state holds the last `count - 1` values.
///
/// *Source*: Liquid AI, "LFM2 Technical Report", 2025.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Convolution {
    /// Positions in the sum, including the current one.
    pub taps: usize,
}

/// A gated delta net. Each value head has a matrix `S`, `[head_width, head_width]`, read by its query and
/// written by its key.
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
    /// Heads of values, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a head, equal for queries, keys and values.
    pub head_width: usize,
    /// Positions of the convolution of queries, keys and values, as in [`Convolution`].
    pub taps: usize,
    /// Whether the value heads of one key head are adjacent: value head `h` then has key `h / (value_heads /
    /// key_heads)`. One matrix then makes beta and alpha: for each key head the betas of its value heads,
    /// then their alphas.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub grouped: bool,
}

impl DeltaNet {
    /// Added to the squared length of queries and keys.
    pub const EPSILON: f32 = 1e-6;
    /// The largest width of a head.
    pub const HEAD_WIDTH_MAX: usize = 512;

    /// Width of all keys of a token; also of all queries.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.head_width
    }

    /// Width of all values of a token.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.head_width
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Convolution values of the state, all channels; the heads' matrices follow.
    pub fn convolved_values(&self) -> usize {
        (self.taps - 1) * self.channels()
    }

    /// The key head of a value head.
    pub fn key_head(&self, head: usize) -> usize {
        if self.grouped { head / (self.value_heads / self.key_heads) } else { head % self.key_heads }
    }

    /// The indices of a value head's alpha and beta in their projection.
    pub fn alpha_and_beta(&self, head: usize) -> (usize, usize) {
        if !self.grouped {
            return (head, self.value_heads + head);
        }
        let of_key = self.value_heads / self.key_heads;
        let beta = head / of_key * 2 * of_key + head % of_key;
        (beta + of_key, beta)
    }
}

/// A state space. Each value of each head has a state `s`, `[state]`, written along `B` and read along `C`,
/// both shared by the head's group.
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
    /// Width of a head.
    pub head_width: usize,
    /// Groups of heads that share `B` and `C`.
    pub groups: usize,
    /// Values of a state.
    pub state: usize,
    /// Positions of the convolution of `x`, `B` and `C`, as in [`Convolution`].
    pub taps: usize,
    /// Whether the convolution has a bias.
    pub bias: bool,
}

impl StateSpace {
    /// The largest width of a group.
    pub const GROUP_WIDTH_MAX: usize = 4096;

    /// Width of all heads of a token.
    pub fn inner_width(&self) -> usize {
        self.heads.saturating_mul(self.head_width)
    }

    /// Channels of the convolution: `x`, `B` and `C`.
    pub fn channels(&self) -> usize {
        self.inner_width() + 2 * self.groups * self.state
    }

    /// Convolution values of the state, all channels; the heads' states follow.
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
    /// The attention, if the mixer is one.
    pub fn attention(&self) -> Option<&Attention> {
        match self {
            Self::Attention(attention) => Some(attention),
            Self::Convolution(_) | Self::DeltaNet(_) | Self::StateSpace(_) => None,
        }
    }

    /// Values of a sequence's recurrent state in a model of this width; 0 for attention.
    pub fn state_values(&self, width: usize) -> usize {
        match self {
            Self::Attention(_) => 0,
            Self::Convolution(convolution) => (convolution.taps - 1) * width,
            Self::DeltaNet(net) => net.convolved_values() + net.value_width() * net.head_width,
            Self::StateSpace(space) => space.convolved_values() + space.inner_width() * space.state,
        }
    }

    /// Width of a token's projections.
    pub fn projected_values(&self, width: usize) -> usize {
        match self {
            Self::Attention(attention) => attention.projected_width(),
            Self::Convolution(_) => 3 * width,
            Self::DeltaNet(net) => net.channels() + net.value_width() + 2 * net.value_heads,
            Self::StateSpace(space) => space.inner_width() + space.channels() + space.heads,
        }
    }

    /// Width of the output matrix's input.
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
    /// Width of a head, equal for queries, keys and values.
    pub head_width: usize,
    /// The factor of the scores.
    pub scale: f32,
    /// The projections with a bias.
    pub biases: AttentionBiases,
    /// The norm of queries and keys, before rotation.
    pub norm: Option<HeadNorm>,
    /// The rotary embedding, an index of [`Config::ropes`]; none if positions are not encoded.
    pub rope: Option<usize>,
    /// The factor of queries, which grows with their position.
    pub temperature: Option<Temperature>,
    /// The bound `c` of the scores, `c tanh(score / c)`.
    pub softcap: Option<f32>,
    /// Number of last positions that a token sees, its own included; all if absent.
    pub window: Option<usize>,
    /// Whether each head adds a learned score without a value to its softmax (an attention sink).
    pub sinks: bool,
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
/// [n | p] = query x, or query_up norm(query_down x)          of each head; p rotated
/// q = [key_up n | p]                                         for (key_up^T c) . n = c . (key_up n)
/// out = output [ value_up (softmax(scale q [c | r]^T) c) ]   of each head its own key_up, [rank, plain], and value_up, [value, rank]
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

/// A feed-forward network: `down (f(gate x) * up x)`, or `down f(up x)` without gates. With a router: several
/// of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedForward {
    /// Neurons of the network, or of one expert.
    pub neurons: usize,
    /// The activation; it decides whether there are gates.
    pub activation: Activation,
    /// Whether gate, up and down have biases.
    pub biases: bool,
    /// Whether the network is always in memory, such as the dense networks of a mixture's first blocks. It
    /// has no router and does not count as a layer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resident: bool,
    /// The router of experts; absent for a single network.
    pub router: Option<Router>,
    /// Neurons of the shared expert, which every token uses, if there is one.
    pub shared_neurons: Option<usize>,
    /// Whether the shared expert's output is multiplied by the sigmoid of a learned projection of its input.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared_gate: bool,
    /// Whether the routed experts have their own input norm, and both outputs are normalised before they are
    /// added.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared_norms: bool,
}

/// How a token's experts are chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// The router's input.
    #[serde(default, skip_serializing_if = "RouterInput::is_usual")]
    pub input: RouterInput,
    /// Number of experts.
    pub experts: usize,
    /// Experts of a token.
    pub experts_used: usize,
    /// Groups that experts are chosen from; absent if they are chosen from all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<ExpertGroups>,
    /// How logits become the experts' weights.
    pub gating: Gating,
    /// Whether the chosen weights are divided by their sum.
    pub renormalise: bool,
    /// The factor of the weights.
    pub scale: f32,
    /// Whether each expert also has a factor of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expert_scales: bool,
    /// Whether the logits have a bias.
    pub bias: bool,
    /// Whether probabilities have a bias that affects the choice of experts but not their weights.
    pub selection_bias: bool,
}

/// Groups of neighbouring experts. A token uses experts of the groups with the highest sums of their best
/// experts.
///
/// *Source*: `DeepSeek`-AI, "`DeepSeek`-V3", 2024, section 2.1.2; V2 compares only each group's best expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Groups that a token uses.
    pub used: usize,
    /// Best experts in a group's sum.
    pub best: usize,
}

/// The input of a router.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouterInput {
    /// The experts' own input.
    #[default]
    Experts,
    /// The residual stream before the network, by the router's own norm, divided by the root of the width.
    Normed,
    /// The residual stream before the block's mixer, unnormalised.
    BeforeMixer,
}

impl RouterInput {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// How logits become probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gating {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
    /// The softmax over the chosen experts, those with the highest logits.
    SelectedSoftmax,
}

impl Config {
    /// Number of layers: blocks whose neurons are read from flash. Plans, neurons and experts are numbered by
    /// layer.
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

    /// The layer of a block; `None` if its network is absent or always in memory.
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

    /// The attention of each block that has one; at least one by [`Config::check`].
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> + Clone {
        self.blocks.iter().filter_map(Block::attention)
    }

    /// Width of the widest head.
    pub fn head_width(&self) -> usize {
        self.attentions().map(|attention| attention.head_width).max().unwrap_or(0)
    }

    /// Number of earlier blocks of the same kind: with keys and values, or with a recurrent state.
    pub fn alike_before(&self, block: usize) -> usize {
        let before = &self.blocks[..block];
        match self.blocks[block].attention() {
            Some(_) => before.iter().filter_map(Block::attention).count(),
            None => before.iter().filter_map(Block::recurrent).count(),
        }
    }

    /// Number of blocks with keys and values.
    pub fn kv_layers(&self) -> usize {
        self.attentions().count()
    }

    /// Sizes of the recurrent layers; `None` if there are none.
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

    /// Sizes of latent attention; `None` if keys and values are projected.
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

    /// The feed-forward network of all layers, without weights; [`Config::check`] refuses models whose layers
    /// differ.
    ///
    /// # Panics
    /// If there are no layers.
    pub fn network(&self) -> &FeedForward {
        let mut all = self.blocks.iter().filter_map(Block::network);
        all.next().unwrap_or_else(|| panic!("a model has a feed-forward network"))
    }

    /// Every block's network, to be changed.
    pub(super) fn networks_mut(&mut self) -> impl Iterator<Item = &mut FeedForward> {
        self.blocks.iter_mut().filter_map(|block| block.feed_forward.as_mut())
    }

    /// Neurons of the widest network that is always in memory, shared experts included; 0 if there is none.
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

    /// The activation of the layers' networks.
    pub fn activation(&self) -> Activation {
        self.network().activation
    }

    /// Neurons of the shared expert; 0 if there is none.
    pub fn shared_neurons(&self) -> usize {
        self.network().shared_neurons.unwrap_or(0)
    }
}

impl FeedForward {
    /// The norm of the input of neurons, or of experts.
    pub fn input_norm(&self) -> Role {
        if self.shared_norms { Role::ExpertsNorm } else { Role::FfnNorm }
    }
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
            values_are_keys: false,
            value_norm: false,
            gate: false,
            latent: None,
        }
    }

    /// Width of all key heads of a token; also of all value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_width
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
            None => self.query_rows() + 2 * self.kv_width(),
            Some(latent) => latent.query_rank.unwrap_or(self.heads * latent.query_width()) + self.head_width,
        }
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
}

impl Rope {
    /// A rotary embedding without scaling.
    pub fn plain(pairing: Pairing, width: usize, base: f32) -> Self {
        let (scaling, magnitude) = (RopeScaling::None, 1.0);
        Self { pairing, width, base, scaling, magnitude, divisors: Vec::new(), long: None }
    }
}
