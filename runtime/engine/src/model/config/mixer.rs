//! The parts of a block that combine tokens, other than attention: convolutions and recurrent states.

use serde::{Deserialize, Serialize};

use super::Attention;

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
/// q, k, v = silu(convolved(input x));   q, k = q / |q|, k / |k|     per head; value head h uses query and key h mod key_heads
/// S = decay S;   S += k (rate (v - S^T k))^T;   y = S^T q / sqrt(head_width)
/// decay = exp(a softplus(alpha x + bias));   rate = sigmoid(beta x)
/// out (norm(y) silu(gate x))
/// ```
///
/// Kimi delta attention has a decay for each value of a key, the rows of `S`, and gates with a sigmoid.
///
/// *Source*: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024, Eq. 10; Kimi Team, "Kimi Linear", 2025,
/// Eq. 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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
    /// Whether the output's gates are sigmoids instead of `SiLU`, as always with `channel_decay`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sigmoid_gate: bool,
    /// Kimi delta attention; absent if a head has one decay. As many key heads as value heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_decay: Option<ChannelDecay>,
}

/// The decays and gates of Kimi delta attention.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelDecay {
    /// Rank of decays and gates, which two matrices each make one after the other. Absent if one matrix makes
    /// each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// The size of the lower bound of a decay's logarithm: `decay = exp(-bound sigmoid(a (alpha x + bias)))`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<f32>,
}

impl DeltaNet {
    /// Added to the squared length of queries and keys.
    pub const EPSILON: f32 = 1e-6;
    /// The largest width of a head.
    pub const HEAD_WIDTH_MAX: usize = 512;

    /// Whether the output's gates are sigmoids instead of `SiLU`.
    pub fn has_sigmoid_gate(&self) -> bool {
        self.sigmoid_gate || self.channel_decay.is_some()
    }

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

    /// Values of a token with one or two for each head: alphas and betas, or betas alone.
    pub fn head_values(&self) -> usize {
        if self.channel_decay.is_some() { self.value_heads } else { 2 * self.value_heads }
    }

    /// The indices of a value head's alpha and beta among [`DeltaNet::head_values`].
    ///
    /// Alpha has no meaning with [`DeltaNet::channel_decay`].
    pub fn alpha_and_beta(&self, head: usize) -> (usize, usize) {
        if self.channel_decay.is_some() {
            return (head, head);
        }
        if !self.grouped {
            return (head, self.value_heads + head);
        }
        let of_key = self.value_heads / self.key_heads;
        let beta = head / of_key * 2 * of_key + head % of_key;
        (beta + of_key, beta)
    }

    /// Width of the low-rank vectors of gates and decays together; 0 if there are none.
    pub fn low_values(&self) -> usize {
        2 * self.channel_decay.and_then(|decay| decay.rank).unwrap_or(0)
    }

    /// Width of a token's gates, and of its decays if they are of channels.
    pub fn wide_values(&self) -> usize {
        if self.channel_decay.is_some() { 2 * self.value_width() } else { self.value_width() }
    }

    /// Width of a token's projections, in this order.
    ///
    /// ```text
    /// [ channels: q, k, v | head values: alpha and beta, or beta | low values | wide values: gate, alpha of channels ]
    /// ```
    pub fn projected_values(&self) -> usize {
        self.channels() + self.head_values() + self.low_values() + self.wide_values()
    }

    /// The factor of a head's state, from the head's `a` and `alpha x + bias`.
    pub fn decay(&self, a: f32, x: f32) -> f32 {
        match self.channel_decay.and_then(|decay| decay.bound) {
            Some(bound) => (-bound / (1.0 + (-a * x).exp())).exp(),
            None => (a * softplus(x)).exp(),
        }
    }
}

/// A state space. Each value of each head has a state `s`, `[state]`, written along `B` and read along `C`,
/// both shared by the head's group.
///
/// ```text
/// z, x, B, C, dt = input x;   x, B, C = silu(convolved(x, B, C) + bias);   dt = softplus(dt + bias)
/// s = exp(dt a) s;   s += dt x B;   y = s . C + d x
/// out (norm(y silu(z)))     per group
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
            Self::DeltaNet(net) => net.projected_values(),
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

/// `ln(1 + e^x)`.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
