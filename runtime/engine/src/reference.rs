//! The model as mathematics: one token, one thread, straight from the source file.
//!
//! It is the definition that all fast code is tested against; *dense* always means its result. The profiler
//! uses it to observe and to select. An [`Observer`] gets every feed-forward network's input, gates and ups.
//! A [`Selector`] chooses the neurons that count, as a predictor does at run time. The reference has no plan,
//! cache or container.

use crate::model::config::{
    Attention, Convolution, DeltaNet, FeedForward, HeadNorm, Latent, Mixer, Role, RouterInput, StateSpace,
    Streams, softplus,
};
use crate::model::source::{Down, SourceModel};
use crate::moe;
use crate::rotary::Rotary;
use kernels::{Activation, Format, Kernels, Matrix, Rotation, dequantise, quantise, rms_norm, softmax};

mod gated;
mod indexer;
mod streams;

use gated::{MIXER, NETWORK};
use streams::scaled;

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

/// The matrices of networks that every token uses.
const RESIDENT: [Role; 3] = [Role::ResidentGate, Role::ResidentUp, Role::ResidentDown];
const SHARED: [Role; 3] = [Role::SharedGate, Role::SharedUp, Role::SharedDown];

/// A source model with the stored state of the tokens seen.
#[derive(Debug)]
pub struct Reference<'a> {
    model: &'a SourceModel<'a>,
    kernels: &'a dyn Kernels,
    /// By block: `[positions, kv_width]`; for latent attention all heads' keys, `[positions, heads, width]`.
    keys: Vec<Vec<f32>>,
    /// By block: values, likewise.
    values: Vec<Vec<f32>>,
    /// By block with an indexer: its keys, `[positions, width]`.
    indexed: Vec<Vec<f32>>,
    /// By block with a convolution: its inputs, `[positions, channels]`.
    convolved: Vec<Vec<f32>>,
    /// By block with a delta net: `S` of each value head, `[heads, head_width, head_width]`. With a state
    /// space: each value's state, `[heads, head_width, state]`.
    matrices: Vec<Vec<f32>>,
    /// The tokens before, the last one first, as far as n-grams reach.
    last: Vec<u32>,
    /// Inputs of the convolution of n-grams: `[positions, streams * width]`.
    ngram_inputs: Vec<Vec<f32>>,
    position: usize,
    /// Context in tokens.
    context: usize,
    /// The format of keys and values.
    kv_format: Format,
}

impl<'a> Reference<'a> {
    /// A reference over `model`, with no tokens seen, for the model's whole context.
    pub fn new(model: &'a SourceModel<'a>, kernels: &'a dyn Kernels) -> Self {
        let (blocks, context) = (model.config().blocks.len(), model.config().context);
        let [keys, values, indexed, convolved, matrices] = [0; 5].map(|_| vec![Vec::new(); blocks]);
        let kv_format = Format::F32;
        Self {
            model,
            kernels,
            keys,
            values,
            indexed,
            convolved,
            matrices,
            last: Vec::new(),
            ngram_inputs: Vec::new(),
            position: 0,
            context,
            kv_format,
        }
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
        let hidden = self.hidden_selected(token, selector);
        let c = self.model.config();
        let mut logits = self.times(self.model.output().unwrap_or(self.model.token_embedding()), &hidden);
        logits.iter_mut().for_each(|logit| *logit = bounded(*logit * c.logit_scale, c.logit_softcap));
        logits
    }

    /// Computes the hidden state `[width]` after one more token: the head's input.
    ///
    /// # Panics
    /// If the token is not in the vocabulary.
    pub fn hidden(&mut self, token: u32) -> Vec<f32> {
        self.hidden_selected(token, &mut Every(&mut ()))
    }

    fn hidden_selected(&mut self, token: u32, selector: &mut dyn Selector) -> Vec<f32> {
        let c = self.model.config();
        let mut x = vec![0.0; c.width];
        let embedding = self.model.token_embedding();
        dequantise(embedding.format, embedding.row(token as usize).bytes, &mut x);
        x.iter_mut().for_each(|x| *x *= c.embedding_scale);
        let own_inputs = self.own_inputs(token, &x);
        let mut streams = c.streams.map(|streams| self.open(streams, &x));
        let is_gated = c.streams.is_some_and(Streams::are_gated);
        for (at, block) in c.blocks.iter().enumerate() {
            if let (Some(ngrams), Some(streams)) = (c.ngrams_of(at), &mut streams) {
                self.add_ngrams(at, ngrams, token, streams);
            }
            if let Some(streams) = streams.as_mut().filter(|_| !is_gated) {
                x = self.predict(at, streams);
            }
            let entering = x.clone();
            if let Some(streams) = streams.as_ref().filter(|_| is_gated) {
                x = self.mixed(at, MIXER, streams);
            }
            if let Some(mixer) = &block.mixer {
                let normed = self.normed(at, Role::AttentionNorm, x.clone());
                let mixed = match mixer {
                    Mixer::Attention(attention) => match attention.latent {
                        None => self.attention(at, attention, &normed),
                        Some(latent) => self.latent_attention(at, attention, latent, &normed),
                    },
                    Mixer::Convolution(convolution) => self.convolution(at, *convolution, &normed),
                    Mixer::DeltaNet(net) => self.delta_net(at, *net, &normed),
                    Mixer::StateSpace(space) => self.state_space(at, *space, &normed),
                };
                let out = self.normed(at, Role::AttentionPostNorm, mixed);
                if let Some(streams) = streams.as_mut().filter(|_| is_gated) {
                    self.inject(at, MIXER, streams, &out);
                    x = self.mixed(at, NETWORK, streams);
                } else {
                    add(&mut x, block.residual_scale, &out);
                }
                if block.branch_rank.is_some() {
                    self.add_branch(at, &normed, &mut x);
                }
            }
            if let Some(network) = &block.feed_forward {
                let mixed = match c.layer_of(at) {
                    Some(layer) => {
                        let routed = self.routed(at, layer, network, &entering, &x);
                        self.feed_forward(at, layer, network, routed, &x, selector)
                    }
                    None => self.resident(at, RESIDENT, network, &self.normed(at, Role::FfnNorm, x.clone())),
                };
                let out = self.normed(at, Role::FfnPostNorm, mixed);
                if let Some(streams) = streams.as_mut().filter(|_| is_gated) {
                    self.inject(at, NETWORK, streams, &out);
                } else {
                    add(&mut x, block.residual_scale, &out);
                }
            }
            if let Some(streams) = streams.as_mut().filter(|_| !is_gated) {
                self.correct(at, streams, &x);
                if let Some(input) = own_inputs.get(at) {
                    let read = scaled(&streams[0], self.part(at, Role::StreamsScale));
                    let out = self.own_input(at, input, &read);
                    streams[1..].iter_mut().for_each(|stream| add(stream, 1.0, &out));
                }
            } else if let Some(input) = own_inputs.get(at) {
                let out = self.own_input(at, input, &x);
                add(&mut x, 1.0, &out);
            }
            if let Some(scale) = self.model.part(at, Role::OutputScale).map(values) {
                x.iter_mut().for_each(|x| *x *= scale[0]);
            }
        }
        self.position += 1;
        if let Some(streams) = &streams {
            if is_gated {
                return self.mixed_for_head(streams);
            }
            x = self.join(streams);
        }
        norm(&x, &values(self.model.output_norm()), c.norm_epsilon)
    }

    /// Each block's own input of a token whose scaled embedding is `x`, as
    /// [`Config::per_layer_width`](crate::model::config::Config::per_layer_width) has it; none without them.
    fn own_inputs(&self, token: u32, x: &[f32]) -> Vec<Vec<f32>> {
        let Some(own) = self.model.config().per_layer_width else { return Vec::new() };
        let Some(embedding) = self.model.row_table() else { return Vec::new() };
        let mut embedded = vec![0.0; embedding.columns];
        dequantise(embedding.format, embedding.row(token as usize).bytes, &mut embedded);
        let of_block = |(block, embedded): (usize, &[f32])| {
            let mut projected = self.times(self.part(block, Role::PerLayerProjection), x);
            projected.iter_mut().for_each(|value| *value /= (x.len() as f32).sqrt());
            let projected = self.normed(block, Role::PerLayerNorm, projected);
            let both = projected.iter().zip(embedded);
            both.map(|(value, embedded)| (value + (own as f32).sqrt() * embedded) / 2_f32.sqrt()).collect()
        };
        embedded.chunks(own).enumerate().map(of_block).collect()
    }

    /// The output of a block's own input, and of the residual stream that its gate reads.
    fn own_input(&self, block: usize, input: &[f32], x: &[f32]) -> Vec<f32> {
        let gates = self.times(self.part(block, Role::PerLayerGate), x).into_iter().zip(input);
        let gated: Vec<f32> = gates.map(|(gate, &input)| Activation::Gelu.apply(gate, input)).collect();
        let out = self.times(self.part(block, Role::PerLayerOutput), &gated);
        self.normed(block, Role::PerLayerPostNorm, out)
    }

    /// Computes `softmax(scale q k^T) v` for each head, over the positions that this token sees.
    fn attention(&mut self, block: usize, a: &Attention, x: &[f32]) -> Vec<f32> {
        let c = self.model.config();
        let [query, key, value, output] = self.model.projections(block);
        let value = if a.values_are_keys { key } else { value };
        let project = |w, bias| self.biased(block, bias, self.times(w, x));
        let mut query = project(query, Role::QueryBias);
        let mut gate = Vec::new();
        if a.gate {
            // each head's query, then its gate
            let both = query.chunks(2 * a.head_width).map(|both| both.split_at(a.head_width));
            let (queries, gates): (Vec<&[f32]>, Vec<&[f32]>) = both.unzip();
            (query, gate) = (queries.concat(), gates.concat());
        }
        let mut key = project(key, Role::KeyBias);
        let mut value = project(value, Role::ValueBias);
        if a.value_norm {
            let ones = vec![1.0; a.head_width];
            let normed = value.chunks(a.head_width).flat_map(|head| norm(head, &ones, c.norm_epsilon));
            value = normed.collect();
        }
        self.norm_heads(a, block, Role::QueryNorm, &mut query);
        self.norm_heads(a, block, Role::KeyNorm, &mut key);
        if let Some(rope) = a.rope {
            let rotary = Rotary::new(&c.ropes[rope], self.context);
            let mut rotations = vec![Rotation::default(); rotary.pairs()];
            rotary.fill(self.position, &mut rotations);
            rotary.rotate(&mut query, a.head_width, &rotations);
            rotary.rotate(&mut key, a.head_width, &rotations);
        }
        if let Some(temperature) = a.temperature {
            let factor = temperature.factor(self.position);
            query.iter_mut().for_each(|query| *query *= factor);
        }
        for (all, new) in [(&mut self.keys[block], key), (&mut self.values[block], value)] {
            all.extend(new.chunks(a.head_width).flat_map(|head| rounded(self.kv_format, head)));
        }

        let seen = self.chosen(block, a, x);
        let sinks = self.model.part(block, Role::Sinks).map(values);
        let (first, owner) = (a.first_seen(self.position), a.shares.unwrap_or(block));
        let mut attended = vec![0.0; a.query_width()];
        for head in 0..a.heads {
            let q = &query[head * a.head_width..][..a.head_width];
            let at = head / (a.heads / a.kv_heads) * a.head_width;
            let of = |all: &[f32], p: usize| all[p * a.kv_width() + at..][..a.head_width].to_vec();
            let score = |p: usize| match seen.as_ref().is_none_or(|seen| seen[p]) {
                true => bounded(product(q, &of(&self.keys[owner], p)) * a.scale, a.softcap),
                false => f32::NEG_INFINITY,
            };
            let mut scores: Vec<f32> = (first..=self.position).map(score).collect();
            // a sink adds to the sum and has no value
            scores.extend(sinks.as_ref().map(|sinks| sinks[head]));
            softmax(&mut scores);
            let out = &mut attended[head * a.head_width..][..a.head_width];
            for (p, score) in (first..=self.position).zip(scores) {
                add(out, score, &of(&self.values[owner], p));
            }
        }
        attended.iter_mut().zip(gate).for_each(|(attended, gate)| *attended *= sigmoid(gate));
        self.biased(block, Role::AttentionOutputBias, self.times(output, &attended))
    }

    /// Computes `softmax(scale q k^T) v` for each head in the unabsorbed form: keys and values are made from
    /// the latent vector.
    fn latent_attention(&mut self, block: usize, a: &Attention, latent: Latent, x: &[f32]) -> Vec<f32> {
        let Latent { query_rank, rank, plain, rotated, value, gate } = latent;
        let width = latent.query_width();
        let part = |role| self.part(block, role);
        let mut query = match query_rank {
            None => self.times(part(Role::Query), x),
            Some(_) => {
                let low = self.normed(block, Role::QueryDownNorm, self.times(part(Role::QueryDown), x));
                self.times(part(Role::QueryUp), &low)
            }
        };
        let down = self.times(part(Role::LatentDown), x);
        let (vector, shared) = down.split_at(rank);
        let (vector, mut shared) = (self.normed(block, Role::LatentNorm, vector.to_vec()), shared.to_vec());
        if let Some(rope) = a.rope {
            let rotary = Rotary::new(&self.model.config().ropes[rope], self.context);
            let mut rotations = vec![Rotation::default(); rotary.pairs()];
            rotary.fill(self.position, &mut rotations);
            rotary.rotate(&mut shared, rotated, &rotations);
            query.chunks_mut(width).for_each(|query| rotary.rotate(&mut query[plain..], rotated, &rotations));
        }
        let kept = rounded(self.kv_format, &[vector, shared].concat());
        let (vector, shared) = kept.split_at(rank);

        // `key_up^T c` of each head, then the key shared by all
        let key_up = values(part(Role::KeyUp));
        let of_head = |up: &[f32]| -> Vec<f32> {
            let of = |column| (0..rank).map(|row| up[row * plain + column] * vector[row]).sum();
            (0..plain).map(of).chain(shared.iter().copied()).collect()
        };
        let new_keys: Vec<f32> = key_up.chunks(rank * plain).flat_map(of_head).collect();
        let new_values = self.times(part(Role::ValueUp), vector);
        let output = part(Role::AttentionOutput);
        self.keys[block].extend(new_keys);
        self.values[block].extend(new_values);

        let mut attended = vec![0.0; a.heads * value];
        for (head, out) in attended.chunks_mut(value).enumerate() {
            let of =
                |all: &[f32], p: usize, width: usize| all[(p * a.heads + head) * width..][..width].to_vec();
            let q = &query[head * width..][..width];
            let score = |p| product(q, &of(&self.keys[block], p, width)) * a.scale;
            let mut scores: Vec<f32> = (0..=self.position).map(score).collect();
            softmax(&mut scores);
            for (p, score) in scores.into_iter().enumerate() {
                add(out, score, &of(&self.values[block], p, value));
            }
        }
        if gate {
            let gates = self.times(self.part(block, Role::HeadGates), x);
            for (out, gate) in attended.chunks_mut(value).zip(gates) {
                out.iter_mut().for_each(|out| *out *= sigmoid(gate));
            }
        }
        self.times(output, &attended)
    }

    /// Computes `out (c * convolved(b * x))`, where `[b | c | x]` is the projected input.
    fn convolution(&mut self, block: usize, convolution: Convolution, x: &[f32]) -> Vec<f32> {
        let width = self.model.config().width;
        let [input, taps, output] = [Role::ConvolutionInput, Role::ConvolutionTaps, Role::ConvolutionOutput]
            .map(|role| self.part(block, role));
        let projected = self.times(input, x);
        let [b, c, x] = [0, 1, 2].map(|part| &projected[part * width..][..width]);
        let gated: Vec<f32> = b.iter().zip(x).map(|(b, x)| b * x).collect();
        let convolved = self.convolved(block, &values(taps), convolution.taps, &gated);
        let mixed: Vec<f32> = convolved.iter().zip(c).map(|(convolved, c)| c * convolved).collect();
        self.times(output, &mixed)
    }

    /// Computes each channel's sum over the last `count` positions; `values` belong to the last.
    fn convolved(&mut self, block: usize, taps: &[f32], count: usize, values: &[f32]) -> Vec<f32> {
        self.convolved[block].extend_from_slice(values);
        let (all, channels, position) = (&self.convolved[block], values.len(), self.position);
        let of_channel = |channel: usize| {
            let at = |tap: usize| (position + tap + 1).checked_sub(count);
            let term = |tap: usize| {
                at(tap).map_or(0.0, |p| taps[channel * count + tap] * all[p * channels + channel])
            };
            (0..count).map(term).sum()
        };
        (0..channels).map(of_channel).collect()
    }

    /// Computes `out (norm(y) silu(gate x))`, or with a sigmoid. Each head's matrix is written by its key and
    /// value, then read by its query to give `y`.
    fn delta_net(&mut self, block: usize, net: DeltaNet, x: &[f32]) -> Vec<f32> {
        let (width, epsilon) = (net.head_width, self.model.config().norm_epsilon);
        let projected: Vec<f32> =
            net.input_roles().iter().flat_map(|role| self.times(self.part(block, *role), x)).collect();
        let (input, rest) = projected.split_at(net.channels());
        let (of_heads, rest) = rest.split_at(net.head_values());
        let wide = match net.channel_decay.and_then(|decay| decay.rank) {
            None => rest.to_vec(),
            Some(rank) => {
                let up = |role, low| self.times(self.part(block, role), low);
                [up(Role::DeltaGate, &rest[..rank]), up(Role::DeltaAlpha, &rest[rank..])].concat()
            }
        };
        let (gate, alphas) = wide.split_at(net.value_width());
        let taps: Vec<f32> =
            net.taps_roles().iter().flat_map(|role| values(self.part(block, *role))).collect();
        let [bias, decay, weight] =
            [Role::StateBias, Role::StateDecay, Role::StateNorm].map(|role| values(self.part(block, role)));
        let mut mixed = self.convolved(block, &taps, net.taps, input);
        mixed.iter_mut().for_each(|value| *value *= sigmoid(*value));
        let (queries, rest) = mixed.split_at(net.key_width());
        let (keys, new) = rest.split_at(net.key_width());
        let unit = |of: &[f32], head: usize| -> Vec<f32> {
            let of = &of[head * width..][..width];
            let length = (product(of, of) + DeltaNet::EPSILON).sqrt();
            of.iter().map(|value| value / length).collect()
        };
        // `S[row][column]`: rows of keys, columns of values
        let read_by = |s: &[f32], by: &[f32]| -> Vec<f32> {
            let of_column = |column| (0..width).map(|row| s[row * width + column] * by[row]).sum();
            (0..width).map(of_column).collect()
        };
        self.matrices[block].resize(net.value_heads * width * width, 0.0);
        let mut read = Vec::new();
        for (head, s) in self.matrices[block].chunks_mut(width * width).enumerate() {
            let of_keys = net.key_head(head);
            let (alpha, beta) = net.alpha_and_beta(head);
            let (alpha, beta) = (of_heads[alpha], of_heads[beta]);
            let (q, k, v) = (unit(queries, of_keys), unit(keys, of_keys), &new[head * width..][..width]);
            for (row, s) in s.chunks_mut(width).enumerate() {
                let channel = head * width + row;
                let x = match net.channel_decay {
                    None => alpha + bias[head],
                    Some(_) => alphas[channel] + bias[channel],
                };
                let stays = net.decay(decay[head], x);
                s.iter_mut().for_each(|s| *s *= stays);
            }
            let known = read_by(s, &k);
            for (row, column) in (0..width).flat_map(|row| (0..width).map(move |column| (row, column))) {
                s[row * width + column] += k[row] * sigmoid(beta) * (v[column] - known[column]);
            }
            let y: Vec<f32> = read_by(s, &q).into_iter().map(|y| y / (width as f32).sqrt()).collect();
            read.extend(norm(&y, &weight, epsilon));
        }
        let open = |gate: f32| if net.has_sigmoid_gate() { 1.0 } else { gate };
        read.iter_mut().zip(gate).for_each(|(read, &gate)| *read *= open(gate) * sigmoid(gate));
        self.times(self.part(block, Role::StateOutput), &read)
    }

    /// Computes `out (norm(y silu(z)))`. Each value's state is written along `B`, then read along `C` to give
    /// `y`.
    fn state_space(&mut self, block: usize, space: StateSpace, x: &[f32]) -> Vec<f32> {
        let (inner, width, states) = (space.inner_width(), space.head_width, space.state);
        let projected = self.times(self.part(block, Role::StateInput), x);
        let [taps, bias, decay, skip, weight] =
            [Role::StateTaps, Role::StateBias, Role::StateDecay, Role::StateSkip, Role::StateNorm]
                .map(|role| values(self.part(block, role)));
        let (gate, rest) = projected.split_at(inner);
        let (mixed, steps) = rest.split_at(space.channels());
        let mixed = self.convolved(block, &taps, space.taps, mixed);
        let mut mixed = self.biased(block, Role::StateTapsBias, mixed);
        mixed.iter_mut().for_each(|value| *value *= sigmoid(*value));
        let (x, directions) = mixed.split_at(inner);
        let along = |at: usize, group: usize| &directions[(at * space.groups + group) * states..][..states];
        self.matrices[block].resize(inner * states, 0.0);
        let mut read = Vec::new();
        for (at, s) in self.matrices[block].chunks_mut(states).enumerate() {
            let head = at / width;
            let group = head / (space.heads / space.groups);
            let step = softplus(steps[head] + bias[head]);
            let stays = (step * decay[head]).exp();
            for (s, b) in s.iter_mut().zip(along(0, group)) {
                *s = stays * *s + step * x[at] * b;
            }
            let y = product(s, along(1, group)) + skip[head] * x[at];
            read.push(y * gate[at] * sigmoid(gate[at]));
        }
        let epsilon = self.model.config().norm_epsilon;
        let of_group = inner / space.groups;
        let groups = read.chunks(of_group).zip(weight.chunks(of_group));
        let normed: Vec<f32> = groups.flat_map(|(read, weight)| norm(read, weight, epsilon)).collect();
        self.times(self.part(block, Role::StateOutput), &normed)
    }

    /// The experts and their weights. `entering` is the block's input, `x` the network's residual stream.
    /// Without experts, one of weight 1.
    fn routed(
        &self,
        block: usize,
        layer: usize,
        network: &FeedForward,
        entering: &[f32],
        x: &[f32],
    ) -> Vec<(usize, f32)> {
        let (Some(router), Some(matrix)) = (&network.router, self.model.router(layer)) else {
            return vec![(0, 1.0)];
        };
        let read = match router.input {
            RouterInput::Experts => self.normed(block, network.input_norm(), x.to_vec()),
            RouterInput::BeforeMixer => entering.to_vec(),
            RouterInput::Normed => {
                let root = (x.len() as f32).sqrt();
                let normed = self.normed(block, Role::RouterNorm, x.to_vec());
                normed.into_iter().map(|x| x / root).collect()
            }
        };
        let mut logits = self.biased(block, Role::RouterBias, self.times(matrix, &read));
        let bias = self.model.part(block, Role::SelectionBias).map(values);
        let mut routed = moe::route(&mut logits, router, bias.as_deref());
        moe::scale(&mut routed, self.model.part(block, Role::ExpertScales).map(values).as_deref());
        routed
    }

    /// Computes `sum over the routed experts of weight * down (f(gate norm(x)) * up norm(x))` over the
    /// selected neurons, plus the shared expert. Without gates, the gates are the ups, computed twice here.
    fn feed_forward(
        &self,
        block: usize,
        layer: usize,
        network: &FeedForward,
        routed: Vec<(usize, f32)>,
        stream: &[f32],
        selector: &mut dyn Selector,
    ) -> Vec<f32> {
        let c = self.model.config();
        let x = &self.normed(block, network.input_norm(), stream.to_vec());
        let bias_of = |role: Role, expert: usize, width: usize| {
            let all = self.model.part(block, role).map(values);
            all.map_or_else(|| vec![0.0; width], |all| all[expert * width..][..width].to_vec())
        };
        let mut sum = vec![0.0; c.width];
        for (expert, weight) in routed {
            let mut gate = self.times(self.model.ffn_gate(layer, expert), x);
            let mut up = self.times(self.model.ffn_up(layer, expert), x);
            add(&mut gate, 1.0, &bias_of(Role::GateBias, expert, network.neurons));
            add(&mut up, 1.0, &bias_of(Role::UpBias, expert, network.neurons));
            let mut selected = vec![true; gate.len()];
            selector.select(layer, expert, x, &gate, &mut selected);
            selector.feed_forward(layer, expert, x, &gate, &up);
            let neurons: Vec<f32> = (gate.iter().zip(&up).zip(&selected))
                .map(
                    |((&g, &u), &selected)| {
                        if selected { weight * network.activation.apply(g, u) } else { 0.0 }
                    },
                )
                .collect();
            match self.model.ffn_down(layer, expert) {
                Down::Columns(down) => add(&mut sum, 1.0, &self.times(down, &neurons)),
                Down::Rows(down) => {
                    for (neuron, &h) in neurons.iter().enumerate() {
                        self.kernels.axpy(h, down.row(neuron), &mut sum);
                    }
                }
            }
            add(&mut sum, weight, &bias_of(Role::DownBias, expert, c.width));
        }
        sum = self.normed(block, Role::ExpertsPostNorm, sum);
        if network.shared_neurons.is_some() {
            let x = &self.normed(block, Role::FfnNorm, stream.to_vec());
            let gate = self.model.part(block, Role::SharedOutputGate);
            let gate = gate.map_or(1.0, |gate| sigmoid(product(&values(gate), x)));
            let out = self.resident(block, SHARED, network, x);
            add(&mut sum, gate, &self.normed(block, Role::SharedPostNorm, out));
        }
        sum
    }

    /// Computes `down (f(gate x) * up x)` for a network that every token uses. Without gates, the gates are
    /// the ups.
    fn resident(&self, block: usize, roles: [Role; 3], network: &FeedForward, x: &[f32]) -> Vec<f32> {
        let [gate, up, down] = roles;
        let [up, down] = [up, down].map(|role| self.part(block, role));
        let gate = self.model.part(block, gate).unwrap_or(up);
        let mut gates = self.times(gate, x);
        if let Some(cutoff) = network.gate_cutoff {
            let count = gates.len() as f32;
            let mean = gates.iter().sum::<f32>() / count;
            let variance = gates.iter().map(|gate| (gate - mean) * (gate - mean)).sum::<f32>() / count;
            let least = mean + cutoff * variance.sqrt();
            gates.iter_mut().for_each(|gate| *gate = (*gate - least).max(0.0));
        }
        let pairs = gates.into_iter().zip(self.times(up, x));
        let neurons: Vec<f32> = pairs.map(|(g, u)| network.activation.apply(g, u)).collect();
        self.times(down, &neurons)
    }

    /// `x` by the norm of this role, if the model has it.
    fn normed(&self, block: usize, role: Role, x: Vec<f32>) -> Vec<f32> {
        match self.model.part(block, role) {
            Some(weight) => norm(&x, &values(weight), self.model.config().norm_epsilon),
            None => x,
        }
    }

    /// Applies the norm of queries or keys, for each head or over all, if the model has it.
    fn norm_heads(&self, a: &Attention, block: usize, role: Role, heads: &mut [f32]) {
        let Some(weight) = self.model.part(block, role).map(values) else { return };
        let together = if a.norm == Some(HeadNorm::Head) { a.head_width } else { heads.len() };
        for heads in heads.chunks_mut(together) {
            heads.copy_from_slice(&norm(heads, &weight, self.model.config().norm_epsilon));
        }
    }

    /// `x` with the bias of this role, if the model has it.
    fn biased(&self, block: usize, role: Role, mut x: Vec<f32>) -> Vec<f32> {
        if let Some(bias) = self.model.part(block, role) {
            add(&mut x, 1.0, &values(bias));
        }
        x
    }

    /// A tensor that the model has.
    fn part(&self, block: usize, role: Role) -> Matrix<'a> {
        self.model.part(block, role).unwrap_or_else(|| panic!("block {block} has no {role:?}"))
    }

    fn times(&self, w: Matrix<'_>, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; w.rows];
        self.kernels.rows(w, 0, x, &mut out);
        out
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

fn norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    rms_norm(x, weight, epsilon, &mut out);
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
