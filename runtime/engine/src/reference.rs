//! The model as mathematics, straight from the source file.
//!
//! It is the definition that all fast code is tested against; *dense* always means its result. It has no plan, cache
//! or container. Each part of a model is written here once, for two users:
//!
//! * [`Reference`] takes one token after another on one thread, with [`Plain`] products. An [`Observer`] gets every
//!   feed-forward network's input, gates and ups. A [`Selector`] chooses the neurons that count, as a predictor does
//!   at run time.
//! * `profile` takes whole windows of text through one block after another, with products on every thread.
//!
//! A [`Block`] computes [`Rows`]: the new tokens of some windows of text.
//!
//! * [`Block::mix`] adds the mixer. Its state of a window is a [`Past`].
//! * [`Block::resident`] or [`Block::experts`] adds the network. The caller of `experts` computes each expert itself, to
//!   observe or change its neurons.
//! * [`Products`] has matrix products, and loops over pieces that do not depend on each other. A recurrence is one
//!   piece for each head of a window.

use crate::model::config::Role;
use crate::model::source::{Down, SourceModel};
use kernels::{Format, Kernels, Matrix, dequantise, quantise};
use std::convert::Infallible;

mod attention;
mod block;
mod ends;
mod gated;
mod indexer;
mod network;
mod products;
mod recurrent;
mod streams;
#[cfg(test)]
mod tests;

pub use block::{Block, Past, Routed, Rows, Window};
pub use ends::{entering, hidden, logits};
pub use network::Visit;
pub use products::{Plain, Products, Strided};

/// Observes each feed-forward network.
pub trait Observer {
    /// Called for one token, one layer and one expert (0 in a dense model).
    ///
    /// *Shapes*: `input: [width]`, normalised; `gate`, `up`: `[ffn_width]`, before the activation.
    fn feed_forward(&mut self, layer: usize, expert: usize, input: &[f32], gate: &[f32], up: &[f32]);
}

impl Observer for () {
    fn feed_forward(&mut self, _: usize, _: usize, _: &[f32], _: &[f32], _: &[f32]) {}
}

/// Selects the neurons that are computed; all others count as zero.
pub trait Selector: Observer {
    /// Called before [`Observer::feed_forward`] for the same token, layer and expert, with `selected` all true.
    ///
    /// *Shapes*: `input: [width]`, normalised; `gate: [ffn_width]`, before the activation; `selected: [ffn_width]`.
    fn select(&mut self, layer: usize, expert: usize, input: &[f32], gate: &[f32], selected: &mut [bool]);
}

/// The dense model: selects every neuron.
struct Every<'o>(&'o mut dyn Observer);

impl Observer for Every<'_> {
    fn feed_forward(&mut self, layer: usize, expert: usize, input: &[f32], gate: &[f32], up: &[f32]) {
        self.0.feed_forward(layer, expert, input, gate, up);
    }
}

impl Selector for Every<'_> {
    fn select(&mut self, _: usize, _: usize, _: &[f32], _: &[f32], _: &mut [bool]) {}
}

/// A source model with the stored state of the tokens seen.
#[derive(Debug)]
pub struct Reference<'a> {
    model: &'a SourceModel<'a>,
    kernels: &'a dyn Kernels,
    /// The tokens' state in each block.
    pasts: Vec<Past>,
    /// Context in tokens.
    context: usize,
    /// The format of keys and values.
    kv_format: Format,
}

impl<'a> Reference<'a> {
    /// A reference over `model`, with no tokens seen, for the model's whole context.
    pub fn new(model: &'a SourceModel<'a>, kernels: &'a dyn Kernels) -> Self {
        let pasts = vec![Past::default(); model.config().blocks.len()];
        Self { model, kernels, pasts, context: model.config().context, kv_format: Format::F32 }
    }

    /// Sets the context; some models have other rotary frequencies for a long one.
    #[must_use]
    pub fn with_context(self, context: usize) -> Self {
        Self { context, ..self }
    }

    /// Rounds keys and values to a format, each head by itself.
    #[must_use]
    pub fn with_kv_format(self, kv_format: Format) -> Self {
        Self { kv_format, ..self }
    }

    /// Computes the logits `[vocabulary]` after one more token.
    ///
    /// # Panics
    /// If the token is not in the vocabulary, or a head is not whole blocks of the format of keys and values.
    pub fn step(&mut self, token: u32, observer: &mut dyn Observer) -> Vec<f32> {
        self.step_selected(token, &mut Every(observer))
    }

    /// [`Reference::step`] with only the neurons that `selector` selects.
    ///
    /// # Panics
    /// If the token is not in the vocabulary.
    pub fn step_selected(&mut self, token: u32, selector: &mut dyn Selector) -> Vec<f32> {
        let hidden = self.hidden_of(&[token], selector);
        logits(self.model, Plain(self.kernels), &hidden)
    }

    /// Computes the hidden state `[width]` after one more token: the head's input.
    ///
    /// # Panics
    /// If the token is not in the vocabulary.
    pub fn hidden(&mut self, token: u32) -> Vec<f32> {
        self.hidden_of(&[token], &mut Every(&mut ()))
    }

    /// The hidden states after some more tokens: `[tokens, width]`.
    fn hidden_of(&mut self, tokens: &[u32], selector: &mut dyn Selector) -> Vec<f32> {
        let Self { model, kernels, context, kv_format, .. } = *self;
        let (c, products) = (model.config(), Plain(kernels));
        let (mut x, mut streams) = entering(model, products, tokens);
        for at in 0..c.blocks.len() {
            let block = Block { model, at, products, context, kv_format };
            let (earlier, own) = self.pasts.split_at_mut(at);
            let owner = c.blocks[at].attention().and_then(|attention| attention.shares);
            let owner = owner.map(|owner| &earlier[owner]);
            let mut rows = Rows { x: &mut x, streams: &mut streams, tokens };
            let mut window = Window { tokens: tokens.len(), past: &mut own[0], owner };
            let routed = block.mix(&mut rows, std::slice::from_mut(&mut window));
            match c.layer_of(at) {
                None => block.resident(&mut rows),
                Some(layer) => {
                    let mut compute = |visit: Visit<'_>| {
                        let tokens = visit.input.chunks(c.width).zip(visit.weights);
                        let of_token =
                            |(x, &weight)| expert(&block, (layer, visit.expert), weight, x, selector);
                        Ok::<_, Infallible>(tokens.flat_map(of_token).collect())
                    };
                    let Ok(()) = block.experts(&mut rows, routed, &mut compute);
                }
            }
        }
        hidden(model, products, x)
    }
}

/// Computes `weight * down (f(gate x) * up x)` of an expert over the selected neurons. Without gates, the gates
/// are the ups, computed twice here.
fn expert(
    block: &Block<'_, Plain<'_>>,
    (layer, expert): (usize, usize),
    weight: f32,
    x: &[f32],
    selector: &mut dyn Selector,
) -> Vec<f32> {
    let (model, network, Plain(kernels)) = (block.model, block.network(), block.products);
    let times = |w, role, expert: usize| {
        let mut out = block.products.times(w, x);
        if let Some(bias) = model.part(block.at, role).map(values) {
            add(&mut out, 1.0, &bias[expert * network.neurons..]);
        }
        out
    };
    let gate = times(model.ffn_gate(layer, expert), Role::GateBias, expert);
    let up = times(model.ffn_up(layer, expert), Role::UpBias, expert);
    let mut selected = vec![true; gate.len()];
    selector.select(layer, expert, x, &gate, &mut selected);
    selector.feed_forward(layer, expert, x, &gate, &up);
    let value = |((&gate, &up), &selected): ((&f32, &f32), &bool)| {
        if selected { weight * network.activation.apply(gate, up) } else { 0.0 }
    };
    let neurons: Vec<f32> = gate.iter().zip(&up).zip(&selected).map(value).collect();
    match model.ffn_down(layer, expert) {
        Down::Columns(down) => block.products.times(down, &neurons),
        Down::Rows(down) => {
            let mut sum = vec![0.0; down.columns];
            for (neuron, &value) in neurons.iter().enumerate() {
                kernels.axpy(value, down.row(neuron), &mut sum);
            }
            sum
        }
    }
}

/// Values rounded to a format.
pub fn rounded(format: Format, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; format.row_bytes(values.len())];
    quantise(format, values, &mut bytes);
    let mut out = vec![0.0; values.len()];
    dequantise(format, &bytes, &mut out);
    out
}

/// The values of a matrix, row after row.
fn values(w: Matrix<'_>) -> Vec<f32> {
    let mut out = vec![0.0; w.rows * w.columns];
    dequantise(w.format, w.bytes, &mut out);
    out
}

/// `c tanh(value / c)`, or the value if there is no bound.
fn bounded(value: f32, bound: Option<f32>) -> f32 {
    bound.map_or(value, |c| c * (value / c).tanh())
}

/// `x += factor * y`.
fn add(x: &mut [f32], factor: f32, y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += factor * y;
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn product(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `-ln p(token)` under `logits`, in double precision.
pub fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    sum.ln() - f64::from(logits[token as usize] - max)
}
