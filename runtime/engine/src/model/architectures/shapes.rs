//! Keys common to most architectures: shapes, rotary embedding and experts.

use kernels::Activation;

use super::super::config::{
    Attention, AttentionBiases, Block, Config, ConfigError, FeedForward, Gating, LongContext, Mixer, Pairing,
    Rope, RopeScaling, Router, RouterInput, StateSpace,
};
use super::Keys;
use crate::pooling::Pooling;

/// The shapes of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shapes {
    pub(super) vocabulary: usize,
    pub(super) width: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_width: usize,
    pub(super) context: usize,
    pub(super) norm_epsilon: f32,
}

/// The most layers of a model.
pub(super) const LAYERS_MAX: usize = 1 << 12;

impl Shapes {
    pub(super) fn read(k: &Keys<'_>) -> Self {
        let kv_heads = k.whole("attention.head_count_kv").unwrap_or_else(|| k.size("attention.head_count"));
        Self::with_kv_heads(k, kv_heads, "attention.layer_norm_rms_epsilon")
    }

    /// [`Shapes::read`] with known key and value heads, and the key of the norms' epsilon.
    pub(super) fn with_kv_heads(k: &Keys<'_>, kv_heads: usize, epsilon: &str) -> Self {
        let (width, heads) = (k.size("embedding_length"), k.size("attention.head_count"));
        let of_heads = width.checked_div(heads).unwrap_or(0);
        let head_width = k.whole("attention.key_length").unwrap_or(of_heads);
        if k.whole("attention.value_length").is_some_and(|width| width != head_width) {
            k.refuse_value("attention.value_length", &format!("{head_width}, as for keys,"));
        }
        Self::with_heads(k, kv_heads, head_width, epsilon)
    }

    /// [`Shapes::with_kv_heads`] with a known head width.
    pub(super) fn with_heads(k: &Keys<'_>, kv_heads: usize, head_width: usize, epsilon: &str) -> Self {
        let (width, heads) = (k.size("embedding_length"), k.size("attention.head_count"));
        let layers = k.size("block_count");
        let most = k.tensors().clamp(1, LAYERS_MAX);
        if layers > LAYERS_MAX {
            let (what, found, max) = ("the number of layers", layers as u64, LAYERS_MAX as u64);
            k.refuse(ConfigError::Size { what, found, max });
        } else if layers > most {
            // refused, because each layer would take time and memory
            let rule = format!("the file has {} tensors", k.tensors());
            k.refuse(ConfigError::Contradiction { what: "the number of layers", found: layers as u64, rule });
        }
        Self {
            vocabulary: k.vocabulary(),
            width,
            layers: layers.min(most),
            heads,
            kv_heads,
            head_width,
            context: k.size("context_length"),
            norm_epsilon: k.required_number(epsilon),
        }
    }

    /// Removes the last layers, which predict tokens after the next one and do not affect the logits; returns
    /// their number.
    pub(super) fn leave_out_guesses(&mut self, k: &Keys<'_>) -> usize {
        let left_out = k.whole("nextn_predict_layers").unwrap_or(0);
        if left_out > 0 && left_out >= self.layers {
            k.refuse_value("nextn_predict_layers", "fewer than there are layers");
        }
        let left_out = left_out.min(self.layers.saturating_sub(1));
        self.layers -= left_out;
        left_out
    }

    /// Plain attention of a layer, with the first rotary embedding and the biases in the file.
    pub(super) fn attention(&self, k: &Keys<'_>, layer: usize) -> Attention {
        let has = |name: &str| k.has_tensor(&format!("blk.{layer}.{name}.bias"));
        let fused = has("attn_qkv");
        let biases = AttentionBiases {
            query: fused || has("attn_q"),
            key: fused || has("attn_k"),
            value: fused || has("attn_v"),
            output: has("attn_output"),
        };
        Attention { biases, rope: Some(0), ..Attention::plain(self.heads, self.kv_heads, self.head_width) }
    }

    /// The window of each layer; by default every `period`th layer has none. A file without a window has the `usual` one.
    pub(super) fn windows(&self, k: &Keys<'_>, period: usize, usual: Option<usize>) -> Vec<Option<usize>> {
        let window = k.whole("attention.sliding_window").or(usual).filter(|&window| window > 0);
        let windowed = k.pattern("attention.sliding_window_pattern", self.layers, period);
        windowed.into_iter().map(|windowed| window.filter(|_| windowed)).collect()
    }

    /// A model of these blocks, without scales.
    pub(super) fn config(&self, k: &Keys<'_>, ropes: Vec<Rope>, blocks: Vec<Block>) -> Config {
        Config {
            architecture: k.architecture.to_owned(),
            vocabulary: self.vocabulary,
            width: self.width,
            context: self.context,
            norm_epsilon: self.norm_epsilon,
            embedding_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: None,
            pooling: pooling(k),
            per_layer_width: None,
            streams: None,
            ngrams: None,
            ropes,
            blocks,
        }
    }

    /// The blocks of a model whose layers differ only in their mixer.
    pub(super) fn blocks<M: Into<Mixer>>(
        &self,
        feed_forward: &FeedForward,
        mixer: impl Fn(usize) -> M,
    ) -> Vec<Block> {
        let block = |layer| Block::plain(Some(mixer(layer).into()), Some(feed_forward.clone()));
        (0..self.layers).map(block).collect()
    }

    /// The rotary embedding described by the keys.
    pub(super) fn rope(&self, k: &Keys<'_>, pairing: Pairing) -> Rope {
        let (scaling, growth) = self.rope_scaling(k);
        let original_context = k.whole("rope.scaling.original_context_length").unwrap_or(self.context);
        let long =
            k.vector("rope_factors_long.weight").map(|divisors| LongContext { original_context, divisors });
        let short = || k.vector("rope_factors_short.weight").filter(|_| long.is_some());
        Rope {
            pairing,
            width: k.whole("rope.dimension_count").unwrap_or(self.head_width),
            base: k.number("rope.freq_base").unwrap_or(10_000.0),
            scaling,
            magnitude: growth * k.number("rope.scaling.attn_factor").unwrap_or(1.0),
            divisors: k.vector("rope_freqs.weight").or_else(short).unwrap_or_default(),
            long,
        }
    }

    /// The scaling of rotary frequencies, and the growth of cosines and sines that comes with it. A factor
    /// without a type means linear scaling.
    fn rope_scaling(&self, k: &Keys<'_>) -> (RopeScaling, f32) {
        let factor = k.number_or_none("rope.scaling.factor").or(k.number_or_none("rope.scale_linear"));
        match (k.text("rope.scaling.type"), factor) {
            (Some("none" | "longrope"), _) | (None | Some("linear"), None | Some(1.0)) => {
                (RopeScaling::None, 1.0)
            }
            (None | Some("linear"), Some(factor)) => (RopeScaling::Linear { factor }, 1.0),
            (Some("yarn"), Some(factor)) if factor >= 1.0 => self.yarn(k, factor),
            (Some("yarn"), _) => {
                k.refuse_value("rope.scaling.factor", "1 or more");
                (RopeScaling::None, 1.0)
            }
            (Some(_), _) => {
                k.refuse_value("rope.scaling.type", "none, linear, yarn or longrope");
                (RopeScaling::None, 1.0)
            }
        }
    }

    fn yarn(&self, k: &Keys<'_>, factor: f32) -> (RopeScaling, f32) {
        let growth = |slope: f32| 1.0 + 0.1 * slope * factor.ln();
        let own = k.number_or_none("rope.scaling.yarn_log_multiplier");
        let magnitude = own.map_or(growth(1.0), |slope| growth(1.0) / growth(slope));
        let known = |found: f32, expected: f32| (found - expected).abs() <= 1e-4 * expected;
        if k.number("rope.scaling.yarn_ext_factor").is_some_and(|found| !known(found, 1.0)) {
            k.refuse_value("rope.scaling.yarn_ext_factor", "1");
        }
        let said = k.number("rope.scaling.yarn_attn_factor");
        if said.is_some_and(|found| !known(found, 1.0) && !known(found, magnitude)) {
            k.refuse_value("rope.scaling.yarn_attn_factor", &format!("1 or {magnitude}"));
        }
        let scaling = RopeScaling::Yarn {
            factor,
            original_context: k.whole("rope.scaling.original_context_length").unwrap_or(self.context),
            beta_fast: k.number("rope.scaling.yarn_beta_fast").unwrap_or(32.0),
            beta_slow: k.number("rope.scaling.yarn_beta_slow").unwrap_or(1.0),
            // OpenAI's models use exact limits (`truncate: false`), which GGUF has no key for
            exact: k.own_flag("rope_exact").unwrap_or(k.architecture == "gpt-oss"),
        };
        (scaling, magnitude)
    }

    /// The gated network of every layer, or experts with a softmax router.
    pub(super) fn feed_forward(&self, k: &Keys<'_>, activation: Activation) -> FeedForward {
        self.feed_forward_of(k, activation, k.whole("feed_forward_length").unwrap_or(0))
    }

    /// [`Shapes::feed_forward`] with known neurons of a layer without experts.
    pub(super) fn feed_forward_of(&self, k: &Keys<'_>, activation: Activation, dense: usize) -> FeedForward {
        let experts = k.whole("expert_count").unwrap_or(0);
        let of_expert = k.whole("expert_feed_forward_length").filter(|_| experts > 1);
        let neurons = match of_expert.unwrap_or(dense) {
            0 => k.size("feed_forward_length"), // missing, unless it is zero
            neurons => neurons,
        };
        if experts <= 1 {
            k.ignore("expert_used_count");
        }
        let has = |name: &str| k.has_tensor(&format!("blk.0.{name}.bias"));
        FeedForward {
            neurons,
            activation,
            gate_cutoff: None,
            biases: has("ffn_gate") || has("ffn_gate_exps"),
            router: if experts > 1 { Some(router(k, experts)) } else { None },
            resident: false,
            shared_neurons: None,
            shared_gate: false,
            shared_norms: false,
        }
    }
}

/// A state space without biases.
pub(super) fn state_space(k: &Keys<'_>) -> StateSpace {
    let (heads, inner) = (k.size("ssm.time_step_rank"), k.size("ssm.inner_size"));
    if heads == 0 || !inner.is_multiple_of(heads) {
        k.refuse_value("ssm.inner_size", "a multiple of `ssm.time_step_rank`");
    }
    StateSpace {
        heads,
        head_width: inner.checked_div(heads).unwrap_or(0),
        groups: k.size("ssm.group_count"),
        state: k.size("ssm.state_size"),
        taps: k.size("ssm.conv_kernel"),
        bias: false,
    }
}

/// A softmax router over all experts; the chosen weights are divided by their sum.
pub(super) fn router(k: &Keys<'_>, experts: usize) -> Router {
    Router {
        input: RouterInput::Experts,
        experts,
        experts_used: k.size("expert_used_count"),
        groups: None,
        gating: Gating::Softmax,
        renormalise: true,
        scale: k.number_or_none("expert_weights_scale").unwrap_or(1.0),
        expert_scales: false,
        bias: k.has_tensor("blk.0.ffn_gate_inp.bias"),
        selection_bias: k.has_tensor("blk.0.exp_probs_b.bias"),
    }
}

/// The file's pooling of hidden states; `None` for 0, a vector for each token.
fn pooling(k: &Keys<'_>) -> Option<Pooling> {
    match k.whole("pooling_type")? {
        0 => None,
        1 => Some(Pooling::Mean),
        2 => Some(Pooling::First),
        3 => Some(Pooling::Last),
        _ => {
            k.refuse_value("pooling_type", "0 to 3, the embedding ones,");
            None
        }
    }
}
