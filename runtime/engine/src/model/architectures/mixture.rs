//! Mixtures in the form of `DeepSeek` V3: dense networks in the first layers, then experts, possibly in
//! groups, and shared experts that every token uses.

use kernels::Activation;

use super::super::config::{Block, ExpertGroups, FeedForward, Gating, Mixer, Router};
use super::Keys;
use super::shapes::Shapes;

/// Defaults of an architecture for missing keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usual {
    pub(super) gating: Gating,
    /// Whether the chosen weights are divided by their sum.
    pub(super) renormalise: bool,
}

impl Usual {
    pub(super) const SIGMOID: Self = Self { gating: Gating::Sigmoid, renormalise: false };
    pub(super) const SOFTMAX: Self = Self { gating: Gating::Softmax, renormalise: false };

    pub(super) const fn renormalised(self) -> Self {
        Self { renormalise: true, ..self }
    }
}

/// The networks of a mixture's layers.
#[derive(Debug)]
pub(super) struct Mixture {
    /// The network of layers with experts; without experts, of every layer.
    pub(super) network: FeedForward,
    /// Number of dense layers before those with experts.
    leading: usize,
    /// Neurons of the dense layers.
    dense: usize,
}

impl Mixture {
    pub(super) fn read(k: &Keys<'_>, shapes: &Shapes, usual: Usual) -> Self {
        let network = shapes.feed_forward(k, k.activation(Activation::Silu));
        let has_router = |&layer: &usize| k.has_tensor(&format!("blk.{layer}.ffn_gate_inp.weight"));
        let leading = k.whole("leading_dense_block_count");
        let leading = leading.or_else(|| (0..shapes.layers).find(has_router)).unwrap_or(0);
        let dense = if leading > 0 { k.size("feed_forward_length") } else { 1 };
        let shared = shared_neurons(k, network.neurons, leading);
        let network = match network.router {
            None => {
                [
                    "expert_group_count",
                    "expert_group_used_count",
                    "expert_weights_scale",
                    "expert_weights_norm",
                ]
                .into_iter()
                .for_each(|key| k.ignore(key));
                k.ignore("expert_gating_func");
                network
            }
            Some(router) => FeedForward {
                shared_neurons: shared,
                router: Some(described(k, router, usual, leading)),
                ..network
            },
        };
        Self { network, leading, dense }
    }

    /// The blocks; the first have dense networks that are always in memory.
    pub(super) fn blocks<M: Into<Mixer>>(&self, shapes: &Shapes, mixer: impl Fn(usize) -> M) -> Vec<Block> {
        let mut blocks = shapes.blocks(&self.network, mixer);
        if self.network.router.is_none() {
            return blocks;
        }
        for network in blocks.iter_mut().take(self.leading).filter_map(|block| block.feed_forward.as_mut()) {
            let (router, shared_neurons) = (None, None);
            *network = FeedForward {
                neurons: self.dense,
                resident: true,
                router,
                shared_neurons,
                shared_gate: false,
                ..network.clone()
            };
        }
        blocks
    }
}

/// Neurons of all shared experts together. `layer` is the first layer with any.
fn shared_neurons(k: &Keys<'_>, of_expert: usize, layer: usize) -> Option<usize> {
    let count = k.whole("expert_shared_count");
    let together = k.whole("expert_shared_feed_forward_length").filter(|&neurons| neurons > 0);
    let neurons = match together {
        // some files count one expert's neurons, others all: the matrix decides
        Some(neurons) if k.architecture == "bailingmoe2" => {
            let rows = k.rows(&format!("blk.{layer}.ffn_up_shexp.weight"));
            rows.unwrap_or_else(|| neurons.saturating_mul(count.unwrap_or(1)))
        }
        Some(neurons) => neurons,
        None => of_expert.saturating_mul(count.unwrap_or(0)),
    };
    Some(neurons).filter(|&neurons| neurons > 0)
}

/// A router as the keys describe it.
fn described(k: &Keys<'_>, router: Router, usual: Usual, leading: usize) -> Router {
    let gating = match k.whole("expert_gating_func").unwrap_or(0) {
        0 => usual.gating,
        1 => Gating::Softmax,
        2 => Gating::Sigmoid,
        _ => {
            k.refuse_value("expert_gating_func", "1 or 2");
            usual.gating
        }
    };
    let has = |name: &str| k.has_tensor(&format!("blk.{leading}.{name}"));
    Router {
        gating,
        groups: groups(k, gating),
        renormalise: k.flag("expert_weights_norm").unwrap_or(usual.renormalise),
        selection_bias: has("exp_probs_b.bias") || has("exp_probs_b"),
        ..router
    }
}

/// The groups that experts are chosen from. `DeepSeek` V2, with its softmax, compares groups by their best
/// expert, all others by the best two.
fn groups(k: &Keys<'_>, gating: Gating) -> Option<ExpertGroups> {
    let count = k.whole("expert_group_count").unwrap_or(0);
    let used = k.whole("expert_group_used_count").unwrap_or(0);
    let best = if k.architecture == "deepseek2" && gating == Gating::Softmax { 1 } else { 2 };
    Some(ExpertGroups { count, used, best }).filter(|groups| groups.count > 1 && groups.used != groups.count)
}
