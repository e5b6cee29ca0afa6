//! The dense model on many tokens at once, one layer at a time.
//!
//! [`flashplan::internals::reference`] describes the model. This module gives it products that unpack a layer's weights once for a
//! thousand tokens, on every thread (`Fast`), and computes experts itself, because it observes and changes their neurons.
//! A token's state between layers is its row of the residual stream `[tokens, width]`.
//! A block's state of a window lives as long as the block, because windows begin at position 0 and go through a block whole.

mod products;
mod shared;

use std::ops::Range;

use flashplan::internals::model::config::{Config, Role};
use flashplan::internals::model::source::{Down, SourceModel};
use flashplan::internals::reference::{
    Block, Past, Routed, Rows, Visit, Window, entering, hidden, logits, negative_log_likelihood,
};
use kernels::{Activation, Format, Matrix, dequantise};
use rayon::prelude::*;

use super::matrix::Use;
use products::{Fast, transposed};
pub use products::{row_sizes, times, times_down, times_rounded};
use shared::shared_width;

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
    /// The tokens.
    pub tokens: Vec<u32>,
    /// `[tokens, streams, width]`, where there are several residual streams; mostly none.
    pub streams: Vec<f32>,
    /// Keys and values that later blocks read: see `shared`; mostly none.
    pub shared: Vec<f32>,
    /// Each token's experts in the current layer, with their weights, if they are chosen before its attention; else empty.
    routed: Vec<Routed>,
}

impl Stream {
    /// The embeddings of the tokens.
    pub fn new(source: &SourceModel<'_>, windows: &[&[u32]]) -> Self {
        let tokens: Vec<u32> = windows.iter().flat_map(|window| window.iter().copied()).collect();
        let (x, streams) = entering(source, Fast::default(), &tokens);
        let shared = vec![0.0; tokens.len() * shared_width(source.config())];
        let windows = windows.iter().map(|window| window.len()).collect();
        Self { x, windows, tokens, streams, shared, routed: Vec::new() }
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
            streams: part(&self.streams, at, parts),
            shared: part(&self.shared, at, parts),
            routed: Vec::new(),
        }
    }

    /// Puts back a part from [`Stream::part`].
    pub fn put(&mut self, at: usize, part: &Self) {
        for (all, part) in self.values().into_iter().zip([&part.x, &part.streams, &part.shared]) {
            all[at * part.len()..][..part.len()].copy_from_slice(part);
        }
    }

    /// The last `count` windows after all layers.
    pub fn last(&self, count: usize, width: usize) -> Self {
        let windows = self.windows[self.windows.len() - count..].to_vec();
        let tokens = windows.iter().sum::<usize>();
        let x = self.x[self.x.len() - tokens * width..].to_vec();
        let tokens = self.tokens[self.tokens.len() - tokens..].to_vec();
        Self { x, windows, tokens, streams: Vec::new(), shared: Vec::new(), routed: Vec::new() }
    }

    /// All that the next layer reads.
    pub fn values(&mut self) -> [&mut Vec<f32>; 3] {
        [&mut self.x, &mut self.streams, &mut self.shared]
    }

    /// The rows of some tokens.
    fn rows(&mut self, c: &Config, tokens: Range<usize>) -> Rows<'_> {
        let part = |width: usize| tokens.start * width..tokens.end * width;
        let (x, streams) = (part(c.width), part(streams_width(c)));
        Rows { x: &mut self.x[x], streams: &mut self.streams[streams], tokens: &self.tokens[tokens] }
    }
}

/// Values of a token's residual streams, where there are several; else 0.
fn streams_width(c: &Config) -> usize {
    c.streams.map_or(0, |streams| streams.count * c.width)
}

/// Values of a token between two layers.
pub fn values_of_token(c: &Config) -> usize {
    c.width + streams_width(c) + shared_width(c)
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

    /// A block on windows of at most `longest` tokens.
    fn block(&self, at: usize, longest: usize) -> Block<'a, Fast> {
        let (products, kv_format) = (Fast { rounds: self.rounds }, self.kv.unwrap_or(Format::F32));
        Block { model: self.source, at, products, context: longest, kv_format }
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
        let windows = stream.windows.clone();
        let first = self.layer.checked_sub(1).map_or(0, |before| self.source.config().block_of(before) + 1);
        for at in first..=self.block {
            let mut start = 0;
            for windows in batches(&windows) {
                go_on()?;
                self.mix(at, stream, start, windows);
                start += windows.iter().sum::<usize>();
            }
        }
        Ok(())
    }

    /// [`Self::attention`] of one block, for whole windows whose first token is `start`.
    fn mix(&self, at: usize, stream: &mut Stream, start: usize, windows: &[usize]) {
        let c = self.source.config();
        let block = self.block(at, windows.iter().copied().max().unwrap_or(0));
        let owners = shared::of_owner(c, at, &stream.shared, start, windows);
        let mut pasts = vec![Past::default(); windows.len()];
        let window = |(number, (&tokens, past))| Window { tokens, past, owner: owners.get(number) };
        let mut new: Vec<Window<'_>> = windows.iter().zip(&mut pasts).enumerate().map(window).collect();
        let mut rows = stream.rows(c, start..start + windows.iter().sum::<usize>());
        let routed = block.mix(&mut rows, &mut new);
        if at < self.block {
            block.resident(&mut rows);
        }
        stream.routed.extend(routed.into_iter().flatten());
        shared::share(c, at, &pasts, &mut stream.shared, start);
    }

    /// Input of the feed-forward network, or of its experts, of rows of the stream: `[rows, width]`.
    pub fn normed(&self, x: &[f32]) -> Vec<f32> {
        self.block(self.block, 0).normed(self.source.config().network().input_norm(), x.to_vec())
    }

    /// The experts of each row, with their weights. The stream is the router's input, or an approximation of it.
    pub fn routed(&self, stream: &[f32]) -> Vec<Routed> {
        self.block(self.block, 0).routed(stream)
    }

    /// A matrix of an expert times rows, in the order of its neurons: `[neurons, rows]`.
    fn times(&self, w: Matrix<'_>, expert: usize, x: &[f32]) -> Vec<f32> {
        let times = if self.rounds { times_rounded } else { times };
        times(w, self.neurons.map(|neurons| &*neurons[expert]), x, Use::Transposed)
    }

    /// Adds to each neuron of an expert, `[neurons, rows]`, its bias.
    fn add_bias_of_neurons(&self, role: Role, expert: usize, values: &mut [f32]) {
        let Some(w) = self.source.part(self.block, role) else { return };
        let mut bias = vec![0.0; w.rows * w.columns];
        dequantise(w.format, w.bytes, &mut bias);
        let count = self.source.config().ffn_width();
        let (bias, rows) = (&bias[expert * count..][..count], values.len() / count);
        let source = |i: usize| self.neurons.map_or(i, |neurons| neurons[expert][i] as usize);
        values.par_chunks_mut(rows.max(1)).enumerate().for_each(|(i, values)| {
            values.iter_mut().for_each(|value| *value += bias[source(i)]);
        });
    }

    /// The gates of an expert for some rows, in the order of its neurons: `[neurons, rows]`.
    pub fn gates(&self, expert: usize, normed: &[f32]) -> Vec<f32> {
        let mut gates = self.times(self.source.ffn_gate(self.layer, expert), expert, normed);
        self.add_bias_of_neurons(Role::GateBias, expert, &mut gates);
        gates
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
    /// `go_on` is called between experts.
    ///
    /// # Errors
    /// As `go_on`.
    pub fn feed_forward<E>(
        &self,
        stream: &mut Stream,
        each: &mut dyn FnMut(Expert<'_>),
        go_on: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let (c, early) = (self.source.config(), std::mem::take(&mut stream.routed));
        let (batch, all) = (batch_tokens(c), stream.tokens.len());
        for first in (0..all).step_by(batch) {
            let tokens = first..all.min(first + batch);
            let routed = early.get(tokens.clone()).map(<[_]>::to_vec);
            let mut expert = |visit: Visit<'_>| {
                go_on()?;
                Ok(self.expert(visit, first, each))
            };
            self.block(self.block, 0).experts(&mut stream.rows(c, tokens), routed, &mut expert)?;
        }
        Ok(())
    }

    /// The output of an expert times its weights, without a bias: `[rows, width]`. Rows are counted from `first` on.
    fn expert(&self, visit: Visit<'_>, first: usize, each: &mut dyn FnMut(Expert<'_>)) -> Vec<f32> {
        let (c, Visit { expert, next, rows, weights, input }) = (self.source.config(), visit);
        // the next expert is read while this one is computed
        [Some(expert), next].into_iter().flatten().for_each(|expert| self.read_ahead(expert));
        let mut gate = self.times(self.source.ffn_gate(self.layer, expert), expert, input);
        let mut up = match c.activation().is_gated() {
            true => self.times(self.source.ffn_up(self.layer, expert), expert, input),
            false => gate.clone(),
        };
        self.add_bias_of_neurons(Role::GateBias, expert, &mut gate);
        self.add_bias_of_neurons(Role::UpBias, expert, &mut up);
        let in_stream: Vec<usize> = rows.iter().map(|row| first + row).collect();
        each(Expert { expert, rows: &in_stream, input, gate: &mut gate, up: &up });
        drop(up);
        let down = match self.down {
            None => self.source.ffn_down(self.layer, expert),
            Some((format, bytes)) => {
                let (rows, columns) = (c.ffn_width(), c.width);
                Down::Rows(Matrix { format, rows, columns, bytes: &bytes[expert] })
            }
        };
        let out = match down {
            Down::Columns(w) if self.rounds_down => times_rounded(w, None, &gate, Use::Plain),
            _ => times_down(down, self.neurons.map(|neurons| &*neurons[expert]), &gate),
        };
        let mut out = transposed(&out, rows.len());
        let weighted = out.par_chunks_mut(c.width).zip(weights);
        weighted.for_each(|(out, weight)| out.iter_mut().for_each(|out| *out *= weight));
        out
    }
}

/// Windows in batches of at most [`BATCH_TOKENS`], or of one window.
fn batches(mut windows: &[usize]) -> Vec<&[usize]> {
    let mut batches = Vec::new();
    while !windows.is_empty() {
        let mut tokens = 0;
        let fits = windows.iter().take_while(|&&window| {
            tokens += window;
            tokens <= BATCH_TOKENS
        });
        let (batch, rest) = windows.split_at(fits.count().max(1));
        batches.push(batch);
        windows = rest;
    }
    batches
}

/// Tokens of a batch of the feed-forward network, with `BATCH_TOKENS` for each expert on average.
fn batch_tokens(c: &Config) -> usize {
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
    let products = Fast { rounds };
    let mut next = Vec::new();
    for (i, window) in windows.iter().enumerate() {
        next.extend(window[1..].iter().map(|&token| Some((i, token))).chain([None]));
    }
    let mut said = Said { losses: vec![0.0; windows.len()], chosen: Vec::with_capacity(next.len()) };
    for (x, next) in stream.x.chunks(HEAD_TOKENS * c.width).zip(next.chunks(HEAD_TOKENS)) {
        go_on()?;
        let logits = logits(source, products, &hidden(source, products, x.to_vec()));
        let of_token: Vec<(u32, Option<(usize, f64)>)> = (logits.par_chunks(c.vocabulary).zip(next))
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
