//! The model as its mathematics: one token, one thread, straight from the source file.
//!
//! This is the definition that everything fast is tested against, and what *dense* means wherever a loss is stated.
//! It also lets the profiler listen, an [`Observer`] hears what every feed-forward network was given and how its gates
//! and ups came out, and choose: a [`Selector`] names the neurons that count, as a predictor does in the runtime. It
//! plans nothing, caches nothing and reads no container.

use crate::model::source::{Down, SourceModel};
use crate::moe;
use kernels::{Kernels, Rotation, dequantise, fill_rotations, matrix_vector, rms_norm, rope, softmax};

/// Hears each feed-forward network as it runs.
pub trait Observer {
    /// One token has passed one expert (0 in a dense model) of one layer.
    ///
    /// *Shapes*: `input: [width]`, normalised; `gate`, `up`: `[ffn_width]`, before the activation.
    fn feed_forward(&mut self, layer: usize, expert: usize, input: &[f32], gate: &[f32], up: &[f32]);
}

impl Observer for () {
    fn feed_forward(&mut self, _: usize, _: usize, _: &[f32], _: &[f32], _: &[f32]) {}
}

/// Names the neurons that are computed; the others are left out, whatever they would have given.
pub trait Selector: Observer {
    /// Called before [`Observer::feed_forward`] for the same token, layer and expert, with `selected` all true.
    ///
    /// *Shapes*: `input: [width]`, normalised; `gate: [ffn_width]`, before the activation; `selected: [ffn_width]`.
    fn select(&mut self, layer: usize, expert: usize, input: &[f32], gate: &[f32], selected: &mut [bool]);
}

/// The dense model: every neuron counts.
struct Every<'o>(&'o mut dyn Observer);

impl Observer for Every<'_> {
    fn feed_forward(&mut self, layer: usize, expert: usize, input: &[f32], gate: &[f32], up: &[f32]) {
        self.0.feed_forward(layer, expert, input, gate, up);
    }
}

impl Selector for Every<'_> {
    fn select(&mut self, _: usize, _: usize, _: &[f32], _: &[f32], _: &mut [bool]) {}
}

/// A source model with the keys and values of the tokens it has seen.
#[derive(Debug)]
pub struct Reference<'a> {
    model: &'a SourceModel<'a>,
    kernels: &'a dyn Kernels,
    /// Per layer, `[positions, kv_width]`.
    keys: Vec<Vec<f32>>,
    /// Per layer, `[positions, kv_width]`.
    values: Vec<Vec<f32>>,
    position: usize,
}

impl<'a> Reference<'a> {
    /// A reference over `model`, with nothing seen yet.
    pub fn new(model: &'a SourceModel<'a>, kernels: &'a dyn Kernels) -> Self {
        let layers = model.config().layers;
        Self { model, kernels, keys: vec![Vec::new(); layers], values: vec![Vec::new(); layers], position: 0 }
    }

    /// The logits `[vocabulary]` after one more token.
    ///
    /// # Panics
    /// If the token is not in the vocabulary.
    pub fn step(&mut self, token: u32, observer: &mut dyn Observer) -> Vec<f32> {
        self.step_selected(token, &mut Every(observer))
    }

    /// [`Reference::step`] with only the neurons that `selector` names.
    ///
    /// # Panics
    /// If the token is not in the vocabulary.
    pub fn step_selected(&mut self, token: u32, selector: &mut dyn Selector) -> Vec<f32> {
        let c = self.model.config();
        let mut x = vec![0.0; c.width];
        let embedding = self.model.token_embedding();
        dequantise(embedding.format, embedding.row(token as usize).bytes, &mut x);
        for layer in 0..c.layers {
            let normed = self.norm(&x, self.model.attention_norm(layer).bytes);
            add(&mut x, &self.attention(layer, &normed));
            let normed = self.norm(&x, self.model.ffn_norm(layer).bytes);
            add(&mut x, &self.feed_forward(layer, &normed, selector));
        }
        self.position += 1;
        let normed = self.norm(&x, self.model.output_norm().bytes);
        self.times(self.model.output().unwrap_or(embedding), &normed)
    }

    /// `softmax(q k^T / sqrt(head_width)) v` for each head, over all tokens so far.
    fn attention(&mut self, layer: usize, x: &[f32]) -> Vec<f32> {
        let c = self.model.config();
        let mut rotation = vec![Rotation::default(); c.rope_width / 2];
        fill_rotations(c.rope_base, self.position, &mut rotation);

        let mut query = self.times(self.model.query(layer), x);
        let mut key = self.times(self.model.key(layer), x);
        let value = self.times(self.model.value(layer), x);
        rope(&mut query, c.head_width, &rotation);
        rope(&mut key, c.head_width, &rotation);
        self.keys[layer].extend_from_slice(&key);
        self.values[layer].extend_from_slice(&value);

        let kv_width = c.kv_heads * c.head_width;
        let mut attended = vec![0.0; c.heads * c.head_width];
        for head in 0..c.heads {
            let q = &query[head * c.head_width..][..c.head_width];
            let at = head / (c.heads / c.kv_heads) * c.head_width;
            let mut scores: Vec<f32> = (0..=self.position)
                .map(|p| product(q, &self.keys[layer][p * kv_width + at..]) / (c.head_width as f32).sqrt())
                .collect();
            softmax(&mut scores);
            let out = &mut attended[head * c.head_width..][..c.head_width];
            for (p, score) in scores.iter().enumerate() {
                for (o, v) in out.iter_mut().zip(&self.values[layer][p * kv_width + at..]) {
                    *o += score * v;
                }
            }
        }
        self.times(self.model.attention_output(layer), &attended)
    }

    /// `sum over the routed experts of weight * down (f(gate x) * up x)`, over the selected neurons.
    fn feed_forward(&self, layer: usize, x: &[f32], selector: &mut dyn Selector) -> Vec<f32> {
        let c = self.model.config();
        let routed = match self.model.router(layer) {
            None => vec![(0, 1.0)],
            Some(router) => moe::route(&mut self.times(router, x), c.experts_used),
        };
        let mut sum = vec![0.0; c.width];
        for (expert, weight) in routed {
            let gate = self.times(self.model.ffn_gate(layer, expert), x);
            let up = self.times(self.model.ffn_up(layer, expert), x);
            let mut selected = vec![true; gate.len()];
            selector.select(layer, expert, x, &gate, &mut selected);
            selector.feed_forward(layer, expert, x, &gate, &up);
            let neurons: Vec<f32> = (gate.iter().zip(&up).zip(&selected))
                .map(|((&g, &u), &selected)| if selected { weight * c.activation.apply(g, u) } else { 0.0 })
                .collect();
            match self.model.ffn_down(layer, expert) {
                Down::Columns(down) => add(&mut sum, &self.times(down, &neurons)),
                Down::Rows(down) => {
                    for (neuron, &h) in neurons.iter().enumerate() {
                        self.kernels.axpy(h, down.row(neuron), &mut sum);
                    }
                }
            }
        }
        sum
    }

    fn norm(&self, x: &[f32], weight: &[u8]) -> Vec<f32> {
        let mut w = vec![0.0; x.len()];
        dequantise(kernels::Format::F32, weight, &mut w);
        let mut out = vec![0.0; x.len()];
        rms_norm(x, &w, self.model.config().norm_epsilon, &mut out);
        out
    }

    fn times(&self, w: kernels::Matrix<'_>, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; w.rows];
        matrix_vector(self.kernels, w, 0..w.rows, x, &mut out);
        out
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
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
