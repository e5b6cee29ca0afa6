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
//!                   x += post_norm( output( gelu(gate x) * input[token, block] ) )     with per-layer embeddings
//!                   x *= output_scale
//! hidden = norm(x)
//! logits = softcap( logit_scale * head( hidden ) )
//! ```
//!
//! A model with several residual streams, [`Streams`], changes them around each block. A block may add what
//! hashed [`NGrams`] say of a token.

use kernels::Activation;
use plans::model::Recurrent;
use serde::{Deserialize, Serialize};

use crate::pooling::Pooling;

mod attention;
mod check;
mod error;
mod mixer;
mod ngrams;
mod roles;
mod streams;

pub use attention::{
    Attention, AttentionBiases, HeadNorm, Indexer, Latent, LongContext, Pairing, Rope, RopeScaling,
    Temperature,
};
pub(crate) use check::{EXPERTS_USED_MAX, GROUPS_MAX};
pub use error::ConfigError;
pub(crate) use mixer::softplus;
pub use mixer::{ChannelDecay, Convolution, DeltaNet, Mixer, StateSpace};
pub use ngrams::{NGramHead, NGrams};
pub use roles::{Role, TensorShape};
pub use streams::{Mixing, Streams};
pub(crate) use streams::{as_long, mean_square};

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
    /// Width of a block's own input of each token, if the model has per-layer embeddings.
    ///
    /// ```text
    /// input[token, block] = (norm(projection[block] x / sqrt(width)) + sqrt(own) * embedding[token, block]) / sqrt(2)
    /// ```
    ///
    /// `x` is the token's scaled embedding, `own` this width. A row of the per-layer embedding has the values
    /// of all blocks, and stays in the file until its token comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_layer_width: Option<usize>,
    /// The residual streams, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<Streams>,
    /// Hashed n-grams, if a block has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ngrams: Option<NGrams>,
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
    /// Rank of a linear branch beside the mixer (Laurel), if there is one. `x` is the stream that the mixer
    /// reads:
    ///
    /// ```text
    /// x = (x + post_norm(mixer(norm(x))) + norm(x) + branch_norm(up (down norm(x)))) / sqrt(2)
    /// ```
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch_rank: Option<usize>,
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
    /// A block whose inputs are normalised, without anything else.
    pub(super) fn plain(mixer: Option<Mixer>, feed_forward: Option<FeedForward>) -> Self {
        Self {
            mixer,
            branch_rank: None,
            feed_forward,
            norms: Norms::Before,
            residual_scale: 1.0,
            output_scale: false,
        }
    }

    /// The attention, if the mixer is one.
    pub fn attention(&self) -> Option<&Attention> {
        self.mixer.as_ref().and_then(Mixer::attention)
    }

    /// Whether the block stores keys and values of its own.
    fn stores_keys(&self) -> bool {
        self.attention().is_some_and(|attention| attention.shares.is_none())
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
    /// Normalises neither; gated streams are normalised themselves.
    Neither,
}

impl Norms {
    /// Whether the input is normalised.
    pub fn before(self) -> bool {
        matches!(self, Self::Before | Self::Both)
    }

    /// Whether the output is normalised.
    pub fn after(self) -> bool {
        matches!(self, Self::After | Self::Both)
    }
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
    /// The cutoff of gates, if only the highest count, in standard deviations above the mean of a token's gates. A
    /// gate `g` becomes `max(g - mean - cutoff * deviation, 0)` before the activation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate_cutoff: Option<f32>,
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

    /// The index of the block's keys and values among all stored ones, or of its state among all recurrent states.
    pub fn state_place(&self, block: usize) -> usize {
        match self.blocks[block].attention() {
            Some(attention) => {
                let owner = attention.shares.unwrap_or(block);
                self.blocks[..owner].iter().filter(|block| block.stores_keys()).count()
            }
            None => self.blocks[..block].iter().filter_map(Block::recurrent).count(),
        }
    }

    /// The attention of each block that stores keys and values of its own.
    pub fn storing(&self) -> impl Iterator<Item = &Attention> + Clone {
        self.attentions().filter(|attention| attention.shares.is_none())
    }

    /// Sizes of the residual streams and of projections between them; `None` if there is one stream.
    pub fn stream_sizes(&self) -> Option<plans::model::Streams> {
        let streams = self.streams?;
        let rank = self.blocks.iter().filter_map(|block| block.branch_rank).max().unwrap_or(0);
        let projected = match streams.mixing {
            // a branch's vector and its packed copy, or the packed copy of a stream
            Mixing::Alternating => (2 * rank).max(self.width),
            // normalised streams, and gates or keys as long; the gates' low-rank vector, or a value
            Mixing::Gated { rank } => 2 * self.streams_width() + rank.max(self.width),
        };
        let ngrams = self.ngrams.as_ref().map_or(0, NGrams::values);
        // an indexer's queries and key are behind those of attention
        let choosing = self.attentions().filter(|attention| attention.indexer.is_some());
        let attended = choosing.map(Attention::projected_width).max().unwrap_or(0);
        let projected_values = projected.max(ngrams).max(attended) as u32;
        Some(plans::model::Streams { count: streams.count as u32, projected_values })
    }

    /// Values of all residual streams of a token.
    pub fn streams_width(&self) -> usize {
        self.streams.map_or(1, |streams| streams.count) * self.width
    }

    /// Values of the norm before the head.
    pub fn output_norm_values(&self) -> usize {
        if self.streams.is_some_and(Streams::are_gated) { self.streams_width() } else { self.width }
    }

    /// The n-grams of a block.
    pub fn ngrams_of(&self, block: usize) -> Option<&NGrams> {
        self.ngrams.as_ref().filter(|ngrams| ngrams.block == block)
    }

    /// Values of a sequence's recurrent state in a block: the mixer's, then the n-grams'.
    pub fn state_values(&self, block: usize) -> usize {
        let mixer = self.blocks[block].recurrent().map_or(0, |mixer| mixer.state_values(self.width));
        let ngrams = self.ngrams_of(block).map_or(0, |ngrams| ngrams.state_values(self.streams_width()));
        mixer + ngrams
    }

    /// Rows and columns of the table that stays in the file until its rows are used, and the rows of a token;
    /// `None` without one.
    pub fn row_table(&self) -> Option<(usize, usize, usize)> {
        let per_layer = self.per_layer_width.map(|_| (self.vocabulary, self.per_layer_values(), 1));
        per_layer.or_else(|| {
            let ngrams = self.ngrams.as_ref()?;
            Some((ngrams.rows, ngrams.row_width, ngrams.heads.len()))
        })
    }

    /// The indexer of each block that has one, with the block.
    pub fn indexers(&self) -> impl Iterator<Item = (usize, Indexer)> + Clone + '_ {
        let all = self.blocks.iter().enumerate();
        all.filter_map(|(at, block)| Some((at, block.attention()?.indexer?)))
    }

    /// Heads and their width of all that is kept of a token. First come keys and values of each block that stores
    /// them. Then come the key of each indexer and, as its value, a block's mean.
    pub fn kept_heads(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let of_attention = self.storing().map(|attention| (attention.kv_heads, attention.head_width));
        of_attention.chain(self.indexers().map(|(_, indexer)| (1, indexer.width)))
    }

    /// The place of a block's indexer among [`Config::kept_heads`].
    pub fn indexer_place(&self, block: usize) -> usize {
        self.storing().count() + self.indexers().take_while(|&(at, _)| at < block).count()
    }

    /// Values of a token's per-layer embedding, all blocks together; 0 without one.
    pub fn per_layer_values(&self) -> usize {
        self.per_layer_width.map_or(0, |width| width * self.blocks.len())
    }

    /// Sizes of the recurrent layers; `None` if there are none.
    pub fn recurrent(&self) -> Option<Recurrent> {
        let recurrent = || self.blocks.iter().filter_map(Block::recurrent);
        let all = || self.blocks.iter().filter_map(|block| block.mixer.as_ref());
        let most = |of: &dyn Fn(&Mixer) -> usize| all().map(of).max().unwrap_or(0) as u32;
        recurrent().next().map(|_| Recurrent {
            state_values: (0..self.blocks.len()).map(|block| self.state_values(block) as u64).sum(),
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
        // gates are kept behind the steps of a token's rows
        Some(plans::model::Latent {
            projected_values: values(most.max(a.projected_width()) + latent.gates(a.heads)),
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
