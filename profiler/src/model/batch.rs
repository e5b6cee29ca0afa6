//! The dense model on many tokens at once, one layer at a time.
//!
//! [`flashplan::internals::reference`] is the definition. This module adds in another order, and unpacks a layer's weights once for a
//! thousand tokens. A token's state between layers is its row of the residual stream `[tokens, width]`.
//! Keys and values live as long as their layer, because windows begin at position 0 and go through a layer whole.
//!
//! A step with weights `[rows, columns]` gives `[rows, tokens]`. A block of weight rows gives a block of the result, and threads share the
//! blocks.

mod gated;
mod indexer;
mod mixers;
mod products;
mod shared;
mod streams;

use flashplan::internals::model::config::{FeedForward, Mixer, Role, RouterInput, Streams};
use flashplan::internals::model::source::{Down, SourceModel};
use flashplan::internals::moe;
use flashplan::internals::reference::negative_log_likelihood;
use kernels::{Activation, Format, Matrix, rms_norm};
use rayon::prelude::*;

use super::matrix::Use;
use gated::Place;
use mixers::sigmoid;
pub use products::{row_sizes, times, times_down, times_rounded};
use products::{transposed, values_of};
use shared::embedded;
pub use shared::shared_width;

/// Tokens that go through a layer together. Unpacking weights is then a small part, and a layer of 14,336 neurons makes 60 MB of values.
const BATCH_TOKENS: usize = 1024;
/// Tokens whose logits are computed together.
const HEAD_TOKENS: usize = 256;

/// The residual stream of some windows of tokens: `x: [tokens, width]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stream {
    /// One row a token, window after window.
    pub x: Vec<f32>,
    /// Tokens of each window.
    pub windows: Vec<usize>,
    /// The tokens, for their own inputs of each block.
    pub tokens: Vec<u32>,
    /// Residual streams, where there are several, and keys and values that later blocks read, `[tokens, shared_width]`; mostly none.
    pub shared: Vec<f32>,
    /// Each token's experts in the current layer, with their weights, if they are chosen before its attention; else empty.
    routed: Vec<Routed>,
}

/// The experts of a token, with their weights.
type Routed = Vec<(usize, f32)>;

impl Stream {
    /// The embeddings of the tokens.
    pub fn new(source: &SourceModel<'_>, windows: &[&[u32]]) -> Self {
        let tokens: Vec<u32> = windows.iter().flat_map(|window| window.iter().copied()).collect();
        let x = embedded(source, &tokens);
        let mut shared = vec![0.0; tokens.len() * shared_width(source.config())];
        streams::open(source, &x, &mut shared);
        let windows = windows.iter().map(|window| window.len()).collect();
        Self { x, windows, tokens, shared, routed: Vec::new() }
    }

    /// The windows of part `at` of `parts` equal ones.
    #[must_use]
    pub fn part(&self, at: usize, parts: usize) -> Self {
        fn part<T: Copy>(all: &[T], at: usize, parts: usize) -> Vec<T> {
            let count = all.len() / parts;
            all[at * count..][..count].to_vec()
        }
        Self {
            x: part(&self.x, at, parts),
            windows: part(&self.windows, at, parts),
            tokens: part(&self.tokens, at, parts),
            shared: part(&self.shared, at, parts),
            routed: Vec::new(),
        }
    }

    /// Puts back a part from [`Stream::part`].
    pub fn put(&mut self, at: usize, part: &Self) {
        for (all, part) in [(&mut self.x, &part.x), (&mut self.shared, &part.shared)] {
            all[at * part.len()..][..part.len()].copy_from_slice(part);
        }
    }

    /// The last `count` windows after all layers.
    pub fn last(&self, count: usize, width: usize) -> Self {
        let windows = self.windows[self.windows.len() - count..].to_vec();
        let tokens = windows.iter().sum::<usize>();
        let x = self.x[self.x.len() - tokens * width..].to_vec();
        let tokens = self.tokens[self.tokens.len() - tokens..].to_vec();
        Self { x, windows, tokens, shared: Vec::new(), routed: Vec::new() }
    }
}

/// One expert on the tokens that are routed to it: input, gates, values.
#[derive(Debug)]
pub struct Expert<'a> {
    /// The expert's number; 0 in a dense model.
    pub expert: usize,
    /// The tokens' rows in the stream, ascending.
    pub rows: &'a [usize],
    /// `[rows, width]`, normalised.
    pub input: &'a [f32],
    /// `[neurons, rows]`: gates before the activation, or ups without gates. The listener leaves the input of down here.
    pub gate: &'a mut [f32],
    /// `[neurons, rows]`.
    pub up: &'a [f32],
}

impl Expert<'_> {
    /// Leaves every neuron's value, as in the dense model.
    pub fn activate(self, activation: Activation) {
        self.gate.par_iter_mut().zip(self.up).for_each(|(gate, &up)| *gate = activation.apply(*gate, up));
    }
}

/// One layer's weights.
#[derive(Debug)]
pub struct Layer<'a> {
    source: &'a SourceModel<'a>,
    layer: usize,
    /// The block with its network, or one before it.
    block: usize,
    /// The neurons of each expert, in the order of gates and ups.
    pub neurons: Option<&'a [Vec<u32>]>,
    /// Down of each expert as stored in the container, instead of the source's: `[neurons, width]`.
    pub down: Option<(Format, &'a [Vec<u8>])>,
    /// Whether vectors are rounded where they meet blocks of weights.
    pub rounds: bool,
    /// Whether inputs of down are rounded, too, in whole blocks of neurons in the source's order.
    pub rounds_down: bool,
    /// The format that keys and values are rounded to, head by head.
    pub kv: Option<Format>,
}

impl<'a> Layer<'a> {
    /// A layer of the source model, neurons in the source's order.
    pub fn new(source: &'a SourceModel<'a>, layer: usize) -> Self {
        let block = source.config().block_of(layer);
        let (neurons, down) = (None, None);
        Self { source, layer, block, neurons, down, rounds: false, rounds_down: false, kv: None }
    }

    fn times(&self, w: Matrix<'_>, rows: Option<&[u32]>, x: &[f32]) -> Vec<f32> {
        let times = if self.rounds { times_rounded } else { times };
        times(w, rows, x, Use::Transposed)
    }

    /// Adds everything before the layer's network to the stream: its attention or other token mixer, and earlier blocks outside of layers.
    ///
    /// `go_on` is called between batches.
    ///
    /// # Errors
    /// As `go_on`.
    pub fn attention<E>(
        &self,
        stream: &mut Stream,
        go_on: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let c = self.source.config();
        let first = self.layer.checked_sub(1).map_or(0, |before| c.block_of(before) + 1);
        for block in first..=self.block {
            let block = Self { block, ..*self };
            block.add_ngrams(stream);
            block.predict(stream);
            block.mix(Place::Mixer, stream);
            if block.block == self.block && self.router_input() == RouterInput::BeforeMixer {
                let batches = stream.x.chunks(BATCH_TOKENS * c.width);
                stream.routed = batches.flat_map(|x| self.routed(x)).collect();
            }
            block.mixer(stream, go_on)?;
            block.mix(Place::Network, stream);
            if block.block < self.block {
                block.resident(stream, go_on)?;
                block.end_all(stream, go_on)?;
            }
        }
        Ok(())
    }

    /// Adds a network that is always in memory to the stream.
    fn resident<E>(&self, stream: &mut Stream, go_on: &mut dyn FnMut() -> Result<(), E>) -> Result<(), E> {
        let c = self.source.config();
        let Some(network) = c.blocks[self.block].resident() else { return Ok(()) };
        let shared_width = shared_width(c);
        for (at, x) in stream.x.chunks_mut(BATCH_TOKENS * c.width).enumerate() {
            go_on()?;
            let roles = [Role::ResidentGate, Role::ResidentUp, Role::ResidentDown];
            let out = self.always(roles, network, &self.normed(x));
            let shared = &mut stream.shared[at * BATCH_TOKENS * shared_width..];
            self.add_output(Place::Network, self.normed_by(Role::FfnPostNorm, &out), x, shared);
        }
        Ok(())
    }

    /// [`Self::end`] of a whole stream, in batches.
    fn end_all<E>(&self, stream: &mut Stream, go_on: &mut dyn FnMut() -> Result<(), E>) -> Result<(), E> {
        let (width, batch) = (self.source.config().width, BATCH_TOKENS);
        for first in (0..stream.tokens.len()).step_by(batch) {
            go_on()?;
            let tokens = first..stream.tokens.len().min(first + batch);
            let shared = shared_width(self.source.config());
            self.end(
                &mut stream.x[tokens.start * width..tokens.end * width],
                &mut stream.shared[tokens.start * shared..tokens.end * shared],
                &stream.tokens[tokens],
            );
        }
        Ok(())
    }

    /// Ends a block, after its network: several residual streams are corrected, the tokens' own inputs added, and all is scaled.
    fn end(&self, x: &mut [f32], shared: &mut [f32], tokens: &[u32]) {
        let streams = self.source.config().streams.filter(|streams| !streams.are_gated());
        if let Some(streams) = streams {
            self.correct(streams, x, shared);
        }
        if let Some(out) = self.own_inputs(x, tokens) {
            match streams {
                None => x.iter_mut().zip(out).for_each(|(x, out)| *x += out),
                Some(streams) => self.add_to_others(streams, &out, shared),
            }
        }
        if let Some(scale) = self.source.part(self.block, Role::OutputScale).map(values_of) {
            x.iter_mut().for_each(|x| *x *= scale[0]);
        }
        if self.block + 1 == self.source.config().blocks.len() {
            match streams {
                Some(streams) => self.join(streams, x, shared),
                None => self.mix_rows(Place::Head, x, shared),
            }
        }
    }

    /// Adds the output of a mixer or network to the stream, or to all gated streams.
    fn add_output(&self, place: Place, out: Vec<f32>, x: &mut [f32], shared: &mut [f32]) {
        let c = self.source.config();
        if c.streams.is_some_and(Streams::are_gated) {
            return self.inject(place, &out, shared);
        }
        let scale = c.blocks[self.block].residual_scale;
        x.iter_mut().zip(out).for_each(|(x, out)| *x += scale * out);
    }

    /// The input of the layer's router, or of its network without experts.
    fn router_input(&self) -> RouterInput {
        let router = self.source.config().network().router.as_ref();
        router.map_or(RouterInput::Experts, |router| router.input)
    }

    /// `down (f(gate x) * up x)` of a network that every token visits, or without gates `down f(up x)`: `[tokens, width]`.
    fn always(&self, roles: [Role; 3], network: &FeedForward, normed: &[f32]) -> Vec<f32> {
        let ([gate, up, down], activation) = (roles, network.activation);
        let tokens = normed.len() / self.source.config().width;
        let up = self.times(self.part(up), None, normed);
        let mut gate =
            if activation.is_gated() { self.times(self.part(gate), None, normed) } else { up.clone() };
        if let Some(cutoff) = network.gate_cutoff {
            cut_off(&mut gate, tokens, cutoff);
        }
        let values: Vec<f32> = gate.iter().zip(&up).map(|(&gate, &up)| activation.apply(gate, up)).collect();
        transposed(&self.times(self.part(down), None, &transposed(&values, tokens)), tokens)
    }

    fn mixer<E>(&self, stream: &mut Stream, go_on: &mut dyn FnMut() -> Result<(), E>) -> Result<(), E> {
        if self.source.config().blocks[self.block].mixer.is_none() {
            return Ok(());
        }
        let (width, shared_width) = (self.source.config().width, shared_width(self.source.config()));
        let (mut x, mut shared) = (&mut *stream.x, &mut *stream.shared);
        let mut windows = &*stream.windows;
        while !windows.is_empty() {
            go_on()?;
            let mut tokens = 0;
            let whole = windows
                .iter()
                .take_while(|&&window| {
                    tokens += window;
                    tokens <= BATCH_TOKENS
                })
                .count()
                .max(1);
            let (batch, rest) = windows.split_at(whole);
            let tokens = batch.iter().sum::<usize>();
            let (rows, later) = x.split_at_mut(tokens * width);
            let (shared_rows, shared_later) = shared.split_at_mut(tokens * shared_width);
            self.mixer_batch(rows, batch, shared_rows);
            (x, shared, windows) = (later, shared_later, rest);
        }
        Ok(())
    }

    fn mixer_batch(&self, x: &mut [f32], windows: &[usize], shared: &mut [f32]) {
        let block = &self.source.config().blocks[self.block];
        let normed = self.normed_by(Role::AttentionNorm, x);
        let out = match &block.mixer {
            None => return,
            Some(Mixer::Attention(attention)) => match attention.latent {
                None => self.attended(attention, &normed, windows, shared),
                Some(latent) => self.latent(attention, latent, &normed, windows),
            },
            Some(Mixer::Convolution(convolution)) => self.convolved(*convolution, &normed, windows),
            Some(Mixer::DeltaNet(net)) => self.delta_net(*net, &normed, windows),
            Some(Mixer::StateSpace(space)) => self.state_space(*space, &normed, windows),
        };
        self.add_output(Place::Mixer, self.normed_by(Role::AttentionPostNorm, &out), x, shared);
        if block.branch_rank.is_some() {
            self.branch(x, &normed);
        }
    }

    /// A tensor that the description has.
    fn part(&self, role: Role) -> Matrix<'a> {
        let part = self.source.part(self.block, role);
        part.unwrap_or_else(|| panic!("block {} has no {role:?}", self.block))
    }

    /// Input of the feed-forward network, or of its experts, of rows of the stream: `[rows, width]`.
    pub fn normed(&self, x: &[f32]) -> Vec<f32> {
        self.normed_by(self.source.config().network().input_norm(), x)
    }

    /// Rows of the model's width, normalised where the description has that norm.
    fn normed_by(&self, role: Role, x: &[f32]) -> Vec<f32> {
        let c = self.source.config();
        match self.source.part(self.block, role) {
            Some(weight) => normed_rows(x, weight, c.width, c.norm_epsilon),
            None => x.to_vec(),
        }
    }

    /// Adds a bias to each row, where the description has it.
    fn add_bias(&self, role: Role, rows: &mut [f32]) {
        let Some(bias) = self.source.part(self.block, role).map(values_of) else { return };
        rows.par_chunks_mut(bias.len()).for_each(|row| {
            row.iter_mut().zip(&bias).for_each(|(value, bias)| *value += bias);
        });
    }

    /// Adds to each neuron of an expert, `[neurons, rows]`, its bias.
    fn add_bias_of_neurons(&self, role: Role, expert: usize, values: &mut [f32]) {
        let Some(bias) = self.source.part(self.block, role).map(values_of) else { return };
        let count = self.source.config().ffn_width();
        let (bias, rows) = (&bias[expert * count..][..count], values.len() / count);
        let source = |i: usize| self.neurons.map_or(i, |neurons| neurons[expert][i] as usize);
        values.par_chunks_mut(rows.max(1)).enumerate().for_each(|(i, values)| {
            values.iter_mut().for_each(|value| *value += bias[source(i)]);
        });
    }

    /// The gates of an expert for some rows, in the order of its neurons: `[neurons, rows]`.
    pub fn gates(&self, expert: usize, normed: &[f32]) -> Vec<f32> {
        let neurons = self.neurons.map(|neurons| &*neurons[expert]);
        let mut gates = self.times(self.source.ffn_gate(self.layer, expert), neurons, normed);
        self.add_bias_of_neurons(Role::GateBias, expert, &mut gates);
        gates
    }

    /// The experts of each row, with their weights. The stream is the router's input, or an approximation of it.
    pub fn routed(&self, stream: &[f32]) -> Vec<Routed> {
        let c = self.source.config();
        let rows = stream.len() / c.width;
        let described = c.network().router.as_ref();
        let (Some(matrix), Some(router)) = (self.source.router(self.layer), described) else {
            return vec![vec![(0, 1.0)]; rows];
        };
        if rows == 0 {
            return Vec::new();
        }
        let (read, scale) = match router.input {
            RouterInput::Experts => (self.normed(stream), 1.0),
            RouterInput::BeforeMixer => (stream.to_vec(), 1.0),
            RouterInput::Normed => (self.normed_by(Role::RouterNorm, stream), 1.0 / (c.width as f32).sqrt()),
        };
        let mut logits = transposed(&times(matrix, None, &read, Use::Transposed), rows);
        logits.iter_mut().for_each(|logit| *logit *= scale);
        self.add_bias(Role::RouterBias, &mut logits);
        let [bias, scales] = [Role::SelectionBias, Role::ExpertScales]
            .map(|role| self.source.part(self.block, role).map(values_of));
        let route = |logits| {
            let mut routed = moe::route(logits, router, bias.as_deref());
            moe::scale(&mut routed, scales.as_deref());
            routed
        };
        logits.chunks_mut(c.experts()).map(route).collect()
    }

    /// Has an expert's matrices read from the disk soon, and nothing around them: a mapping by itself reads megabytes on both sides.
    fn read_ahead(&self, expert: usize) {
        let (source, layer) = (self.source, self.layer);
        let (Down::Columns(down) | Down::Rows(down)) = source.ffn_down(layer, expert);
        for part in [source.ffn_gate(layer, expert), source.ffn_up(layer, expert), down] {
            source.gguf().read_ahead(part.bytes);
        }
    }

    /// Adds the feed-forward network to the stream.
    ///
    /// `each` gets every expert's gates and ups, batch after batch, experts in ascending order. It leaves the input of down in `gate`.
    /// `go_on` is called between batches.
    ///
    /// # Errors
    /// As `go_on`.
    pub fn feed_forward<E>(
        &self,
        stream: &mut Stream,
        each: &mut dyn FnMut(Expert<'_>),
        go_on: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let c = self.source.config();
        let (batch, early) = (batch_tokens(c), std::mem::take(&mut stream.routed));
        for (first, x) in stream.x.chunks_mut(batch * c.width).enumerate() {
            let (first, tokens) = (first * batch, x.len() / c.width);
            let normed = self.normed(x);
            let routed = early.get(first..first + tokens).map_or_else(|| self.routed(x), <[_]>::to_vec);
            let down_bias = self.source.part(self.block, Role::DownBias).map(values_of);
            let mut sums = vec![0.0; x.len()];
            let visits = visits(&routed, c.experts());
            visits.first().into_iter().for_each(|visit| self.read_ahead(visit.expert));
            for (number, Visit { expert, rows, weights }) in visits.iter().enumerate() {
                go_on()?;
                let expert = *expert;
                // the next expert is read while this one is computed
                visits.get(number + 1).into_iter().for_each(|next| self.read_ahead(next.expert));
                let gathered: Vec<f32>;
                let input = if rows.len() == tokens {
                    &*normed
                } else {
                    gathered =
                        rows.iter().flat_map(|row| &normed[row * c.width..][..c.width]).copied().collect();
                    &*gathered
                };
                let neurons = self.neurons.map(|neurons| &*neurons[expert]);
                let gate = self.source.ffn_gate(self.layer, expert);
                let mut gate = self.times(gate, neurons, input);
                let mut up = if c.activation().is_gated() {
                    self.times(self.source.ffn_up(self.layer, expert), neurons, input)
                } else {
                    gate.clone()
                };
                self.add_bias_of_neurons(Role::GateBias, expert, &mut gate);
                self.add_bias_of_neurons(Role::UpBias, expert, &mut up);
                let in_stream: Vec<usize> = rows.iter().map(|row| first + row).collect();
                each(Expert { expert, rows: &in_stream, input, gate: &mut gate, up: &up });
                drop(up);
                let down = match self.down {
                    None => self.source.ffn_down(self.layer, expert),
                    Some((format, bytes)) => Down::Rows(Matrix {
                        format,
                        rows: c.ffn_width(),
                        columns: c.width,
                        bytes: &bytes[expert],
                    }),
                };
                let added = match down {
                    Down::Columns(w) if self.rounds_down => times_rounded(w, None, &gate, Use::Plain),
                    _ => times_down(down, neurons, &gate),
                };
                add(&mut sums, c.width, &added, rows, weights);
                if let Some(bias) = &down_bias {
                    let bias = &bias[expert * c.width..][..c.width];
                    for (row, weight) in rows.iter().zip(weights) {
                        let sums = &mut sums[row * c.width..][..c.width];
                        sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += weight * bias);
                    }
                }
            }
            let mut sums = self.normed_by(Role::ExpertsPostNorm, &sums);
            if c.network().shared_neurons.is_some() {
                let roles = [Role::SharedGate, Role::SharedUp, Role::SharedDown];
                let normed = self.normed_by(Role::FfnNorm, x);
                let out = self.always(roles, c.network(), &normed);
                let out = self.normed_by(Role::SharedPostNorm, &out);
                let gate = self.source.part(self.block, Role::SharedOutputGate).map(values_of);
                let rows = sums.chunks_mut(c.width).zip(out.chunks(c.width)).zip(normed.chunks(c.width));
                for ((sum, out), x) in rows {
                    let dot = |gate: &Vec<f32>| gate.iter().zip(x).map(|(gate, x)| gate * x).sum();
                    let gate = gate.as_ref().map_or(1.0, |gate| sigmoid(dot(gate)));
                    sum.iter_mut().zip(out).for_each(|(sum, out)| *sum += gate * out);
                }
            }
            let width = shared_width(c);
            let shared = &mut stream.shared[first * width..][..tokens * width];
            self.add_output(Place::Network, self.normed_by(Role::FfnPostNorm, &sums), x, shared);
            self.end(x, shared, &stream.tokens[first..first + tokens]);
        }
        Ok(())
    }
}

/// An expert with the rows of the tokens that visit it, and its weight in each.
struct Visit {
    expert: usize,
    rows: Vec<usize>,
    weights: Vec<f32>,
}

/// The visited experts, ascending.
fn visits(routed: &[Routed], experts: usize) -> Vec<Visit> {
    let mut visits: Vec<Visit> =
        (0..experts).map(|expert| Visit { expert, rows: Vec::new(), weights: Vec::new() }).collect();
    for (row, routed) in routed.iter().enumerate() {
        for &(expert, weight) in routed {
            visits[expert].rows.push(row);
            visits[expert].weights.push(weight);
        }
    }
    visits.retain(|visit| !visit.rows.is_empty());
    visits
}

/// Tokens of a batch of the feed-forward network, with `BATCH_TOKENS` for each expert on average.
pub fn batch_tokens(c: &flashplan::internals::model::config::Config) -> usize {
    BATCH_TOKENS * c.experts() / c.experts_used()
}

/// A model's reading of windows of text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Said {
    /// The sum of `-ln p` of each window's tokens after the first.
    pub losses: Vec<f64>,
    /// The likeliest next token after each, `[tokens]`; the lowest number of equal ones.
    pub chosen: Vec<u32>,
}

/// The likelihood of windows and the model's choices, from the last layer's output; `rounds` rounds it for the head.
///
/// # Errors
/// As `go_on`.
pub fn said<E>(
    source: &SourceModel<'_>,
    stream: &Stream,
    windows: &[&[u32]],
    rounds: bool,
    go_on: &mut dyn FnMut() -> Result<(), E>,
) -> Result<Said, E> {
    let c = source.config();
    let times = if rounds { times_rounded } else { times };
    let head = source.output().unwrap_or_else(|| source.token_embedding());
    let mut next = Vec::new();
    for (i, window) in windows.iter().enumerate() {
        next.extend(window[1..].iter().map(|&token| Some((i, token))).chain([None]));
    }
    let mut said = Said { losses: vec![0.0; windows.len()], chosen: Vec::with_capacity(next.len()) };
    for (x, next) in stream.x.chunks(HEAD_TOKENS * c.width).zip(next.chunks(HEAD_TOKENS)) {
        go_on()?;
        // gated streams have been normalised before they were mixed
        let normed = match c.streams {
            Some(streams) if streams.are_gated() => x.to_vec(),
            _ => normed_rows(x, source.output_norm(), c.width, c.norm_epsilon),
        };
        let mut logits = transposed(&times(head, None, &normed, Use::Transposed), next.len());
        logits.par_iter_mut().for_each(|logit| {
            *logit *= c.logit_scale;
            *logit = c.logit_softcap.map_or(*logit, |bound| bound * (*logit / bound).tanh());
        });
        let of_token: Vec<(u32, Option<(usize, f64)>)> = (logits.par_chunks(head.rows).zip(next))
            .map(|(logits, next)| {
                let loss = next.map(|(i, token)| (i, negative_log_likelihood(logits, token)));
                (likeliest(logits), loss)
            })
            .collect();
        for (chosen, loss) in of_token {
            said.chosen.push(chosen);
            if let Some((i, loss)) = loss {
                said.losses[i] += loss;
            }
        }
    }
    Ok(said)
}

/// The token with the highest logit; the lowest number of equal ones.
fn likeliest(logits: &[f32]) -> u32 {
    let better = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (0..logits.len()).reduce(better).unwrap_or(0) as u32
}

/// Replaces gates, `[neurons, tokens]`, by what they exceed `cutoff` standard deviations above their token's mean by, or zero.
fn cut_off(gates: &mut [f32], tokens: usize, cutoff: f32) {
    let count = (gates.len() / tokens) as f32;
    let sums = |of: &dyn Fn(usize, f32) -> f32| {
        let mut sums = vec![0.0; tokens];
        for gates in gates.chunks(tokens) {
            gates.iter().enumerate().for_each(|(token, &gate)| sums[token] += of(token, gate) / count);
        }
        sums
    };
    let means = sums(&|_, gate| gate);
    let variances = sums(&|token, gate| (gate - means[token]) * (gate - means[token]));
    let least: Vec<f32> =
        means.iter().zip(&variances).map(|(mean, variance)| mean + cutoff * variance.sqrt()).collect();
    for gates in gates.chunks_mut(tokens) {
        gates.iter_mut().zip(&least).for_each(|(gate, least)| *gate = (*gate - least).max(0.0));
    }
}

/// Rows of `width` values, each normalised.
fn normed_rows(x: &[f32], weight: Matrix<'_>, width: usize, epsilon: f32) -> Vec<f32> {
    let weight = values_of(weight);
    let mut out = vec![0.0; x.len()];
    (x.par_chunks(width).zip(out.par_chunks_mut(width)))
        .for_each(|(x, out)| rms_norm(x, &weight, epsilon, out));
    out
}

/// `x[rows[i]] += weights[i] * out[.., i]`, where `out: [width, rows]`.
fn add(x: &mut [f32], width: usize, out: &[f32], rows: &[usize], weights: &[f32]) {
    let transposed = transposed(out, rows.len());
    for (&weight, (&row, out)) in weights.iter().zip(rows.iter().zip(transposed.chunks(width))) {
        for (x, out) in x[row * width..][..width].iter_mut().zip(out) {
            *x += weight * out;
        }
    }
}

#[cfg(test)]
mod tests {
    use flashplan::internals::model::gguf::Gguf;
    use flashplan::internals::reference::Reference;
    use kernels::best;

    use super::*;

    /// Compares the loss with the reference's: windows of different lengths, both fixtures, a model of every architecture.
    #[test]
    fn a_batch_is_the_reference_token_by_token() {
        let fixtures = ["oxide-dense", "oxide-moe"].map(|name| format!("models/{name}"));
        let architectures = [
            "bailingmoe3",
            "deepseek2",
            "gemma3",
            "gemma3n",
            "gemma4",
            "gemma4-e2b",
            "gemma4-e4b",
            "gemma4moe",
            "gpt-oss",
            "granite",
            "granitemoe-shared",
            "kimi-linear",
            "lfm2",
            "lfm2moe",
            "llama3",
            "llama-linear",
            "llama-yarn",
            "ministral3",
            "nemotron_h_moe",
            "olmoe",
            "phi4",
            "qwen2",
            "qwen3",
            "qwen3moe",
            "qwen35",
            "qwen35moe",
            "qwen4exp",
            "qwen4exp-sparse",
            "smallthinker",
        ];
        let architectures = architectures.map(|name| format!("golden/architectures/{name}"));
        let formats = [None, Some(Format::Q8_0), Some(Format::Q4_0)];
        // the fixtures' heads are whole blocks
        let in_formats = fixtures.iter().flat_map(|model| formats.map(|format| (model, format)));
        for (model, format) in in_formats.chain(architectures.iter().map(|model| (model, None))) {
            let path = format!("{}/../fixtures/{model}.gguf", env!("CARGO_MANIFEST_DIR"));
            let source = SourceModel::from_gguf(Gguf::open(&path).unwrap()).unwrap();
            let vocabulary = source.config().vocabulary as u32;
            let tokens: Vec<u32> = (0..60).map(|i| 5 + i * 37 % (vocabulary - 5)).collect();
            let windows = [&tokens[..7], &tokens[7..8], &tokens[8..50]];
            let mut stream = Stream::new(&source, &windows);
            let mut go_on = || Ok::<(), ()>(());
            let activation = source.config().activation();
            for layer in 0..source.config().layers() {
                let layer = Layer { kv: format, ..Layer::new(&source, layer) };
                layer.attention(&mut stream, &mut go_on).unwrap();
                layer
                    .feed_forward(&mut stream, &mut |expert| expert.activate(activation), &mut go_on)
                    .unwrap();
            }
            let Said { losses: found, chosen } = said(&source, &stream, &windows, false, &mut go_on).unwrap();
            let mut chosen = chosen.into_iter();
            for (window, found) in windows.iter().zip(found) {
                let kv_format = format.unwrap_or(Format::F32);
                let mut reference = Reference::new(&source, best()).with_kv_format(kv_format);
                let mut loss = 0.0;
                for (i, &token) in window.iter().enumerate() {
                    let logits = reference.step(token, &mut ());
                    loss += window.get(i + 1).map_or(0.0, |&next| negative_log_likelihood(&logits, next));
                    let chosen = chosen.next().unwrap();
                    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    // sums in another order may swap nearly equal logits
                    assert!(logits[chosen as usize] >= best - 1e-3, "{model}: {chosen} after token {i}");
                }
                // a value that lies between two steps goes to either
                let near = if format.is_some() { 1e-3 } else { 1e-4 };
                assert!((found - loss).abs() <= near * loss, "{model} {format:?}: {found} and {loss}");
            }
        }
    }
}
