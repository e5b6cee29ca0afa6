//! Tensors of a block that every token uses, by role; reader, container and engine iterate over them.
//!
//! Gate, up and down matrices are not included, because they are cut into neurons.

use super::{
    Attention, ChannelDecay, Config, Convolution, DeltaNet, FeedForward, HeadNorm, Latent, Mixer, Mixing,
    NGrams, Norms, Router, RouterInput, StateSpace, Streams,
};

/// The role of a tensor that every token uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Residual streams after the first, from the embedding: one matrix for each. In the first block.
    StreamsOpen,
    /// The norm of the router of streams.
    StreamsRouterNorm,
    /// The router of streams.
    StreamsRouter,
    /// The coefficients of predictions, a row for each pair of streams.
    StreamsPredict,
    /// Keys of n-grams, from their rows: one matrix for each stream.
    NGramKey,
    /// The value of n-grams, from their rows.
    NGramValue,
    /// The norms of those keys, for each stream.
    NGramKeyNorm,
    /// The norms of streams as queries, for each stream.
    NGramQueryNorm,
    /// The norms of what n-grams add, before its convolution, for each stream.
    NGramConvolutionNorm,
    /// The taps of each value of each stream.
    NGramTaps,
    /// The norms of streams before the mixer, for each stream.
    MixerGateNorm,
    /// The low-rank vector of the streams' gates before the mixer.
    MixerGateDown,
    /// The streams' gates before the mixer.
    MixerGateUp,
    /// The weight of the mixer's output in each stream.
    MixerInject,
    /// The norm of the mixer's input.
    AttentionNorm,
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// The bias of queries.
    QueryBias,
    /// The bias of keys.
    KeyBias,
    /// The bias of values.
    ValueBias,
    /// The norm of queries.
    QueryNorm,
    /// The norm of keys.
    KeyNorm,
    /// Each head's sink score.
    Sinks,
    /// Queries of an indexer.
    IndexerQuery,
    /// The key of an indexer.
    IndexerKey,
    /// The norm of an indexer's queries.
    IndexerQueryNorm,
    /// The norm of the means of an indexer's keys.
    IndexerKeyNorm,
    /// The output projection of attention.
    AttentionOutput,
    /// The bias of attention's output.
    AttentionOutputBias,
    /// Projection of the input to the latent vector of queries.
    QueryDown,
    /// The norm of the latent vector of queries.
    QueryDownNorm,
    /// Queries from their latent vector.
    QueryUp,
    /// Projection of the input to the latent vector of keys and values, then to the shared rotated key.
    LatentDown,
    /// The norm of the latent vector of keys and values.
    LatentNorm,
    /// The absorbed key matrices, from queries to the latent vector, head after head.
    KeyUp,
    /// Values from the latent vector, head after head.
    ValueUp,
    /// The gate of each head's result.
    HeadGates,
    /// Gates and values of a convolution, stacked.
    ConvolutionInput,
    /// Each channel's taps.
    ConvolutionTaps,
    /// The output projection of a convolution.
    ConvolutionOutput,
    /// Queries, keys and values of a delta net, stacked.
    DeltaInput,
    /// The gate of a delta net's output.
    DeltaGate,
    /// The decay of each head's state, per token.
    DeltaAlpha,
    /// The write strength of each head's state, per token.
    DeltaBeta,
    /// Write strength and decay of each head's state, by key head.
    DeltaBetaAlpha,
    /// Projection of the input to the low-rank vector of a delta net's gates.
    DeltaGateDown,
    /// Projection of the input to the low-rank vector of a delta net's decays.
    DeltaAlphaDown,
    /// Gate, values, directions and steps of a state space, stacked.
    StateInput,
    /// The taps of each convolved channel.
    StateTaps,
    /// The taps of each channel of queries, where keys and values have tensors of their own.
    QueryTaps,
    /// The taps of each channel of keys.
    KeyTaps,
    /// The taps of each channel of values.
    ValueTaps,
    /// The bias of each convolved channel.
    StateTapsBias,
    /// The bias of each head's step.
    StateBias,
    /// The decay rate of each head's state.
    StateDecay,
    /// Each head's skip factor, past its state.
    StateSkip,
    /// The norm of the states' output.
    StateNorm,
    /// The output projection of a recurrent mixer.
    StateOutput,
    /// The norm of attention's output.
    AttentionPostNorm,
    /// Projection of the mixer's input to the low-rank vector of the branch beside the mixer.
    BranchDown,
    /// The branch's output from its low-rank vector.
    BranchUp,
    /// The norm of the branch's output.
    BranchNorm,
    /// The norms of streams before the network, for each stream.
    NetworkGateNorm,
    /// The low-rank vector of the streams' gates before the network.
    NetworkGateDown,
    /// The streams' gates before the network.
    NetworkGateUp,
    /// The weight of the network's output in each stream.
    NetworkInject,
    /// The norm of the feed-forward network's input.
    FfnNorm,
    /// The norm of the routed experts' input, if it differs from the shared expert's.
    ExpertsNorm,
    /// The norm of the router's input.
    RouterNorm,
    /// The router of experts.
    Router,
    /// The bias of the router's logits.
    RouterBias,
    /// The bias of the experts' probabilities in the choice of experts.
    SelectionBias,
    /// The factor of each expert's weight.
    ExpertScales,
    /// Gate of a network that is always in memory.
    ResidentGate,
    /// Up of a network that is always in memory.
    ResidentUp,
    /// Down of a network that is always in memory.
    ResidentDown,
    /// Gate of the shared expert.
    SharedGate,
    /// Up of the shared expert.
    SharedUp,
    /// Down of the shared expert.
    SharedDown,
    /// The gate of the shared expert's output.
    SharedOutputGate,
    /// Biases of gates, by neuron.
    GateBias,
    /// Biases of ups, by neuron.
    UpBias,
    /// Biases of outputs, by expert.
    DownBias,
    /// The norm of the routed experts' output, before the shared expert's is added.
    ExpertsPostNorm,
    /// The norm of the shared expert's output, before the routed experts' is added.
    SharedPostNorm,
    /// The norm of the feed-forward network's output.
    FfnPostNorm,
    /// The coefficients of corrections, a row for each stream.
    StreamsCorrect,
    /// The projection of a token's embedding to the block's own input: the block's rows of one matrix.
    PerLayerProjection,
    /// The norm of that projection, the same for all blocks.
    PerLayerNorm,
    /// The factor of each value of the first stream, as the gate of the block's own input reads it.
    StreamsScale,
    /// The gate of the block's own input.
    PerLayerGate,
    /// The output projection of the gated input.
    PerLayerOutput,
    /// The norm of that output.
    PerLayerPostNorm,
    /// The factor of the residual stream at the end of the block.
    OutputScale,
    /// The share of streams after the first in the output: one matrix for each. In the last block.
    StreamsJoin,
    /// The low-rank vector of the streams' gates before the head. In the last block.
    OutputGateDown,
    /// The streams' gates before the head. In the last block.
    OutputGateUp,
}

/// A tensor of a block: `rows` of `columns` values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorShape {
    /// The tensor's role.
    pub role: Role,
    /// Rows; 1 for a vector.
    pub rows: usize,
    /// Values of a row.
    pub columns: usize,
}

impl Role {
    /// Number of roles.
    pub const COUNT: usize = Self::OutputGateUp as usize + 1;

    /// The name in a container, and in most GGUF files, after `blk.N.`.
    pub fn name(self) -> &'static str {
        match self {
            Self::StreamsOpen => "altup_proj.weight",
            Self::StreamsRouterNorm => "altup_router_norm.weight",
            Self::StreamsRouter => "altup_router.weight",
            Self::StreamsPredict => "altup_predict_coef.weight",
            Self::NGramKey => "ple_key.weight",
            Self::NGramValue => "ple_value.weight",
            Self::NGramKeyNorm => "ple_norm_key.weight",
            Self::NGramQueryNorm => "ple_norm_query.weight",
            Self::NGramConvolutionNorm => "ple_norm_conv.weight",
            Self::NGramTaps => "ple_conv1d.weight",
            Self::MixerGateNorm => "hc_attn_norm.weight",
            Self::MixerGateDown => "hc_attn_down.weight",
            Self::MixerGateUp => "hc_attn_up.weight",
            Self::MixerInject => "hc_attn_inject.weight",
            Self::AttentionNorm => "attn_norm.weight",
            Self::Query => "attn_q.weight",
            Self::Key => "attn_k.weight",
            Self::Value => "attn_v.weight",
            Self::QueryBias => "attn_q.bias",
            Self::KeyBias => "attn_k.bias",
            Self::ValueBias => "attn_v.bias",
            Self::QueryNorm => "attn_q_norm.weight",
            Self::KeyNorm => "attn_k_norm.weight",
            Self::Sinks => "attn_sinks.weight",
            Self::IndexerQuery => "indexer.q_proj.weight",
            Self::IndexerKey => "indexer.k_proj.weight",
            Self::IndexerQueryNorm => "indexer.q_norm.weight",
            Self::IndexerKeyNorm => "indexer.k_norm.weight",
            Self::AttentionOutput => "attn_output.weight",
            Self::AttentionOutputBias => "attn_output.bias",
            Self::QueryDown => "attn_q_a.weight",
            Self::QueryDownNorm => "attn_q_a_norm.weight",
            Self::QueryUp => "attn_q_b.weight",
            Self::LatentDown => "attn_kv_a_mqa.weight",
            Self::LatentNorm => "attn_kv_a_norm.weight",
            Self::KeyUp => "attn_k_b.weight",
            Self::ValueUp => "attn_v_b.weight",
            Self::HeadGates => "attn_gate.weight",
            Self::ConvolutionInput => "shortconv.in_proj.weight",
            Self::ConvolutionTaps => "shortconv.conv.weight",
            Self::ConvolutionOutput => "shortconv.out_proj.weight",
            Self::DeltaInput => "attn_qkv.weight",
            Self::DeltaGate => "attn_gate.weight",
            Self::DeltaAlpha => "ssm_alpha.weight",
            Self::DeltaBeta => "ssm_beta.weight",
            Self::DeltaBetaAlpha => "ssm_ba.weight",
            Self::DeltaGateDown => "ssm_g_a.weight",
            Self::DeltaAlphaDown => "ssm_f_a.weight",
            Self::StateInput => "ssm_in.weight",
            Self::StateTaps => "ssm_conv1d.weight",
            Self::QueryTaps => "ssm_conv1d_q.weight",
            Self::KeyTaps => "ssm_conv1d_k.weight",
            Self::ValueTaps => "ssm_conv1d_v.weight",
            Self::StateTapsBias => "ssm_conv1d.bias",
            Self::StateBias => "ssm_dt.bias",
            Self::StateDecay => "ssm_a",
            Self::StateSkip => "ssm_d",
            Self::StateNorm => "ssm_norm.weight",
            Self::StateOutput => "ssm_out.weight",
            Self::AttentionPostNorm => "post_attention_norm.weight",
            Self::BranchDown => "laurel_l.weight",
            Self::BranchUp => "laurel_r.weight",
            Self::BranchNorm => "laurel_post_norm.weight",
            Self::NetworkGateNorm => "hc_ffn_norm.weight",
            Self::NetworkGateDown => "hc_ffn_down.weight",
            Self::NetworkGateUp => "hc_ffn_up.weight",
            Self::NetworkInject => "hc_ffn_inject.weight",
            Self::FfnNorm => "ffn_norm.weight",
            Self::ExpertsNorm => "pre_ffw_norm_2.weight",
            Self::RouterNorm => "ffn_gate_inp.scale",
            Self::Router => "ffn_gate_inp.weight",
            Self::RouterBias => "ffn_gate_inp.bias",
            Self::SelectionBias => "exp_probs_b.bias",
            Self::ExpertScales => "ffn_down_exps.scale",
            Self::ResidentGate => "ffn_gate.weight",
            Self::ResidentUp => "ffn_up.weight",
            Self::ResidentDown => "ffn_down.weight",
            Self::SharedGate => "ffn_gate_shexp.weight",
            Self::SharedUp => "ffn_up_shexp.weight",
            Self::SharedDown => "ffn_down_shexp.weight",
            Self::SharedOutputGate => "ffn_gate_inp_shexp.weight",
            Self::GateBias => "ffn_gate.bias",
            Self::UpBias => "ffn_up.bias",
            Self::DownBias => "ffn_down.bias",
            Self::ExpertsPostNorm => "post_ffw_norm_2.weight",
            Self::SharedPostNorm => "post_ffw_norm_1.weight",
            Self::FfnPostNorm => "post_ffw_norm.weight",
            Self::StreamsCorrect => "altup_correct_coef.weight",
            Self::PerLayerProjection => "per_layer_model_proj.weight",
            Self::PerLayerNorm => "per_layer_proj_norm.weight",
            Self::StreamsScale => "altup_correct_scale.weight",
            Self::PerLayerGate => "inp_gate.weight",
            Self::PerLayerOutput => "proj.weight",
            Self::PerLayerPostNorm => "post_norm.weight",
            Self::OutputScale => "layer_output_scale.weight",
            Self::StreamsJoin => "altup_unembd_proj.weight",
            Self::OutputGateDown => "output_hc_down.weight",
            Self::OutputGateUp => "output_hc_up.weight",
        }
    }

    /// Whether it is stored as `F32`: all tensors that are no matrix of a product.
    pub fn is_plain(self) -> bool {
        let is_matrix = matches!(
            self,
            Self::Query
                | Self::QueryDown
                | Self::QueryUp
                | Self::LatentDown
                | Self::KeyUp
                | Self::ValueUp
                | Self::HeadGates
                | Self::Key
                | Self::Value
                | Self::IndexerQuery
                | Self::IndexerKey
                | Self::AttentionOutput
                | Self::ConvolutionInput
                | Self::ConvolutionOutput
                | Self::DeltaInput
                | Self::DeltaGate
                | Self::DeltaAlpha
                | Self::DeltaBeta
                | Self::DeltaBetaAlpha
                | Self::DeltaGateDown
                | Self::DeltaAlphaDown
                | Self::StateInput
                | Self::StateOutput
                | Self::Router
                | Self::ResidentGate
                | Self::ResidentUp
                | Self::ResidentDown
                | Self::SharedGate
                | Self::SharedUp
                | Self::SharedDown
                | Self::PerLayerProjection
                | Self::PerLayerGate
                | Self::PerLayerOutput
                | Self::BranchDown
                | Self::BranchUp
                | Self::StreamsOpen
                | Self::StreamsJoin
                | Self::NGramKey
                | Self::NGramValue
                | Self::MixerGateDown
                | Self::MixerGateUp
                | Self::NetworkGateDown
                | Self::NetworkGateUp
                | Self::OutputGateDown
                | Self::OutputGateUp
        );
        !is_matrix
    }

    /// Whether it is a matrix that a chunk's vectors meet as a whole, in one product: of no head, stream or expert, and no router.
    pub fn meets_chunks(self) -> bool {
        let in_pieces = matches!(self, Self::KeyUp | Self::ValueUp | Self::StreamsJoin | Self::Router);
        !self.is_plain() && !in_pieces
    }

    /// Whether it has one value for each neuron, in the neurons' order.
    pub fn is_of_neurons(self) -> bool {
        matches!(self, Self::GateBias | Self::UpBias)
    }
}

impl Config {
    /// The tensors of a block, in order of use.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn parts(&self, block: usize) -> Vec<TensorShape> {
        let (at, width) = (block, self.width);
        let block = &self.blocks[block];
        let (before, after) = (block.norms.before(), block.norms.after());
        let mixer = match &block.mixer {
            None => Vec::new(),
            Some(Mixer::Attention(attention)) => match &attention.latent {
                None => of_attention(attention, width),
                Some(latent) => of_latent(attention, *latent, width),
            },
            Some(Mixer::Convolution(convolution)) => of_convolution(*convolution, width),
            Some(Mixer::DeltaNet(net)) => of_delta_net(net, width),
            Some(Mixer::StateSpace(space)) => of_state_space(space, width),
        };
        let mixes = block.mixer.is_some();
        let first = [(before && mixes, Role::AttentionNorm, 1, width)];
        let last = [(after && mixes, Role::AttentionPostNorm, 1, width)];
        let network = block.feed_forward.iter().flat_map(|network| of_network(network, block.norms, width));
        let branch = block.branch_rank.into_iter().flat_map(|rank| of_branch(rank, width));
        let own_input = self.per_layer_width.into_iter().flat_map(|own| of_own_input(own, width));
        let scale = [(block.output_scale, Role::OutputScale, 1, 1)];
        let streams = self.streams.into_iter().flat_map(|streams| self.of_streams(streams, at));
        let ngrams = self.ngrams_of(at).into_iter().flat_map(|ngrams| self.of_ngrams(ngrams));
        let mixers = ngrams.chain(first).chain(mixer).chain(last).chain(branch);
        let all = mixers.chain(network).chain(own_input).chain(scale).chain(streams);
        let there = all.filter(|&(there, ..)| there);
        there.map(|(_, role, rows, columns)| TensorShape { role, rows, columns }).collect()
    }

    fn of_streams(&self, streams: Streams, block: usize) -> Vec<Possible> {
        let (count, width, last) = (streams.count, self.width, block == self.blocks.len() - 1);
        match streams.mixing {
            Mixing::Alternating => {
                let others = count.saturating_sub(1) * width;
                vec![
                    (block == 0, Role::StreamsOpen, others, width),
                    (true, Role::StreamsRouterNorm, 1, width),
                    (true, Role::StreamsRouter, count, width),
                    (true, Role::StreamsPredict, count * count, count),
                    (true, Role::StreamsCorrect, count, count),
                    (self.per_layer_width.is_some(), Role::StreamsScale, 1, width),
                    (last, Role::StreamsJoin, others, width),
                ]
            }
            Mixing::Gated { rank } => {
                let all = self.streams_width();
                vec![
                    (true, Role::MixerGateNorm, 1, all),
                    (true, Role::MixerGateDown, rank, all),
                    (true, Role::MixerGateUp, all, rank),
                    (true, Role::MixerInject, count, all),
                    (true, Role::NetworkGateNorm, 1, all),
                    (true, Role::NetworkGateDown, rank, all),
                    (true, Role::NetworkGateUp, all, rank),
                    (true, Role::NetworkInject, count, all),
                    (last, Role::OutputGateDown, rank, all),
                    (last, Role::OutputGateUp, all, rank),
                ]
            }
        }
    }

    fn of_ngrams(&self, ngrams: &NGrams) -> [Possible; 6] {
        let (all, values) = (self.streams_width(), ngrams.values());
        [
            (true, Role::NGramKey, all, values),
            (true, Role::NGramValue, self.width, values),
            (true, Role::NGramKeyNorm, 1, all),
            (true, Role::NGramQueryNorm, 1, all),
            (true, Role::NGramConvolutionNorm, 1, all),
            (true, Role::NGramTaps, all, ngrams.taps),
        ]
    }
}

impl DeltaNet {
    /// The matrices of a token's input, in the order of their outputs: queries, keys and values,
    /// [`DeltaNet::head_values`], then the low-rank vectors of gates and decays, or both themselves.
    pub fn input_roles(&self) -> &'static [Role] {
        match self.channel_decay {
            None if self.grouped => &[Role::DeltaInput, Role::DeltaBetaAlpha, Role::DeltaGate],
            None => &[Role::DeltaInput, Role::DeltaAlpha, Role::DeltaBeta, Role::DeltaGate],
            Some(ChannelDecay { rank: None, .. }) => {
                &[Role::Query, Role::Key, Role::Value, Role::DeltaBeta, Role::DeltaGate, Role::DeltaAlpha]
            }
            Some(ChannelDecay { rank: Some(_), .. }) => &[
                Role::Query,
                Role::Key,
                Role::Value,
                Role::DeltaBeta,
                Role::DeltaGateDown,
                Role::DeltaAlphaDown,
            ],
        }
    }

    /// The taps of the convolved channels, in the channels' order.
    pub fn taps_roles(&self) -> &'static [Role] {
        match self.channel_decay {
            None => &[Role::StateTaps],
            Some(_) => &[Role::QueryTaps, Role::KeyTaps, Role::ValueTaps],
        }
    }
}

/// A possible tensor of a block: whether the block has it, its role, rows and columns.
type Possible = (bool, Role, usize, usize);

fn of_network(network: &FeedForward, norms: Norms, width: usize) -> Vec<Possible> {
    let experts = network.router.as_ref().map_or(1, |router| router.experts);
    let (shared, neurons) = (network.shared_neurons.unwrap_or(0), network.neurons);
    let (gated, has_shared) = (network.activation.is_gated(), network.shared_neurons.is_some());
    let router = |of: fn(&Router) -> bool| network.router.as_ref().is_some_and(of);
    vec![
        (norms.before(), Role::FfnNorm, 1, width),
        (network.resident && gated, Role::ResidentGate, neurons, width),
        (network.resident, Role::ResidentUp, neurons, width),
        (network.resident, Role::ResidentDown, width, neurons),
        (network.shared_norms, Role::ExpertsNorm, 1, width),
        (router(|router| router.input == RouterInput::Normed), Role::RouterNorm, 1, width),
        (network.router.is_some(), Role::Router, experts, width),
        (router(|router| router.bias), Role::RouterBias, 1, experts),
        (router(|router| router.selection_bias), Role::SelectionBias, 1, experts),
        (router(|router| router.expert_scales), Role::ExpertScales, 1, experts),
        (has_shared && gated, Role::SharedGate, shared, width),
        (has_shared, Role::SharedUp, shared, width),
        (has_shared, Role::SharedDown, width, shared),
        (network.shared_gate, Role::SharedOutputGate, 1, width),
        (network.biases, Role::GateBias, experts, network.neurons),
        (network.biases, Role::UpBias, experts, network.neurons),
        (network.biases, Role::DownBias, experts, width),
        (network.shared_norms, Role::ExpertsPostNorm, 1, width),
        (network.shared_norms, Role::SharedPostNorm, 1, width),
        (norms.after(), Role::FfnPostNorm, 1, width),
    ]
}

fn of_branch(rank: usize, width: usize) -> [Possible; 3] {
    [
        (true, Role::BranchDown, rank, width),
        (true, Role::BranchUp, width, rank),
        (true, Role::BranchNorm, 1, width),
    ]
}

fn of_own_input(own: usize, width: usize) -> [Possible; 5] {
    [
        (true, Role::PerLayerProjection, own, width),
        (true, Role::PerLayerNorm, 1, own),
        (true, Role::PerLayerGate, own, width),
        (true, Role::PerLayerOutput, width, own),
        (true, Role::PerLayerPostNorm, 1, width),
    ]
}

fn of_attention(a: &Attention, width: usize) -> Vec<Possible> {
    let (query, rows, kv, stores) = (a.query_width(), a.query_rows(), a.kv_width(), a.shares.is_none());
    let (heads, indexer) = a.indexer.map_or((0, 0), |indexer| (indexer.heads, indexer.width));
    let norm_of = |of_all: usize| if a.norm == Some(HeadNorm::Head) { a.head_width } else { of_all };
    vec![
        (true, Role::Query, rows, width),
        (stores, Role::Key, kv, width),
        (stores && !a.values_are_keys, Role::Value, kv, width),
        (a.biases.query, Role::QueryBias, 1, rows),
        (a.biases.key, Role::KeyBias, 1, kv),
        (a.biases.value, Role::ValueBias, 1, kv),
        (a.norm.is_some(), Role::QueryNorm, 1, norm_of(query)),
        (stores && a.norm.is_some(), Role::KeyNorm, 1, norm_of(kv)),
        (a.sinks, Role::Sinks, 1, a.heads),
        (a.indexer.is_some(), Role::IndexerQuery, heads * indexer, width),
        (a.indexer.is_some(), Role::IndexerKey, indexer, width),
        (a.indexer.is_some(), Role::IndexerQueryNorm, 1, indexer),
        (a.indexer.is_some(), Role::IndexerKeyNorm, 1, indexer),
        (true, Role::AttentionOutput, width, query),
        (a.biases.output, Role::AttentionOutputBias, 1, width),
    ]
}

fn of_latent(a: &Attention, latent: Latent, width: usize) -> Vec<Possible> {
    let Latent { query_rank, rank, plain, value, .. } = latent;
    let (queries, low) = (a.heads * latent.query_width(), query_rank.unwrap_or(0));
    vec![
        (query_rank.is_none(), Role::Query, queries, width),
        (query_rank.is_some(), Role::QueryDown, low, width),
        (query_rank.is_some(), Role::QueryDownNorm, 1, low),
        (query_rank.is_some(), Role::QueryUp, queries, low),
        (latent.gate, Role::HeadGates, a.heads, width),
        (true, Role::LatentDown, a.head_width, width),
        (true, Role::LatentNorm, 1, rank),
        (true, Role::KeyUp, a.heads * rank, plain),
        (true, Role::ValueUp, a.heads * value, rank),
        (true, Role::AttentionOutput, width, a.mixed_width()),
    ]
}

fn of_convolution(convolution: Convolution, width: usize) -> Vec<Possible> {
    vec![
        (true, Role::ConvolutionInput, 3 * width, width),
        (true, Role::ConvolutionTaps, width, convolution.taps),
        (true, Role::ConvolutionOutput, width, width),
    ]
}

fn of_delta_net(net: &DeltaNet, width: usize) -> Vec<Possible> {
    let (channels, values, heads) = (net.channels(), net.value_width(), net.value_heads);
    let (keys, by_channel) = (net.key_width(), net.channel_decay.is_some());
    let rank = net.channel_decay.and_then(|decay| decay.rank);
    let decays = if by_channel { values } else { heads };
    vec![
        (!by_channel, Role::DeltaInput, channels, width),
        (by_channel, Role::Query, keys, width),
        (by_channel, Role::Key, keys, width),
        (by_channel, Role::Value, values, width),
        (rank.is_some(), Role::DeltaGateDown, rank.unwrap_or(0), width),
        (true, Role::DeltaGate, values, rank.unwrap_or(width)),
        (rank.is_some(), Role::DeltaAlphaDown, rank.unwrap_or(0), width),
        (!net.grouped, Role::DeltaAlpha, decays, rank.unwrap_or(width)),
        (!net.grouped, Role::DeltaBeta, heads, width),
        (net.grouped, Role::DeltaBetaAlpha, 2 * heads, width),
        (!by_channel, Role::StateTaps, channels, net.taps),
        (by_channel, Role::QueryTaps, keys, net.taps),
        (by_channel, Role::KeyTaps, keys, net.taps),
        (by_channel, Role::ValueTaps, values, net.taps),
        (true, Role::StateBias, 1, decays),
        (!by_channel, Role::StateDecay, 1, heads),
        (by_channel, Role::StateDecay, heads, 1),
        (true, Role::StateNorm, 1, net.head_width),
        (true, Role::StateOutput, width, values),
    ]
}

fn of_state_space(space: &StateSpace, width: usize) -> Vec<Possible> {
    let (inner, channels, heads) = (space.inner_width(), space.channels(), space.heads);
    vec![
        (true, Role::StateInput, inner + channels + heads, width),
        (true, Role::StateTaps, channels, space.taps),
        (space.bias, Role::StateTapsBias, 1, channels),
        (true, Role::StateBias, 1, heads),
        (true, Role::StateDecay, heads, 1),
        (true, Role::StateSkip, heads, 1),
        (true, Role::StateNorm, space.groups, inner / space.groups),
        (true, Role::StateOutput, width, inner),
    ]
}
