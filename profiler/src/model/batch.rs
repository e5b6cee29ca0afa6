//! The dense model on many tokens at once, one layer at a time.
//!
//! [`flashplan::internals::reference`] is the definition; this computes its sums in another order, so that a layer's
//! weights are unpacked once for a thousand tokens instead of once for each. A token's state between layers is its
//! row of the residual stream, `[tokens, width]`; keys and values live as long as their layer, since windows of text
//! begin at position 0 and go through a layer whole.
//!
//! The result of a step with weights `[rows, columns]` is `[rows, tokens]`: a block of weight rows gives a block of the
//! result, and threads share blocks.

use flashplan::internals::model::config::{
    Attention, Convolution, DeltaNet, HeadNorm, Latent, Mixer, Role, RouterInput, StateSpace,
};
use flashplan::internals::model::source::{Down, SourceModel};
use flashplan::internals::moe;
use flashplan::internals::reference::{negative_log_likelihood, rounded};
use flashplan::internals::rotary::Rotary;
use kernels::Format;
use kernels::{
    Activation, Matrix, Rotation, dequantise, rms_norm, rms_norm_in_place, round_in_place, softmax,
};
use rayon::prelude::*;

use super::matrix::{Strided, Use, product_strided};

/// Rows of weights that a thread unpacks at a time.
const BLOCK_ROWS: usize = 256;
/// Tokens that go through a layer together: enough that unpacking weights is a small part, few enough that what a
/// layer of 14,336 neurons makes of them is 60 MB.
const BATCH_TOKENS: usize = 1024;
/// Tokens whose logits are held together.
const HEAD_TOKENS: usize = 256;

/// `w x`: `[w.rows, tokens]`; `rows` names the rows in the order wanted, all of them in order if there is none.
///
/// *Shapes*: `x: [tokens, w.columns]`, or `[w.columns, tokens]` if it is used [`Use::Plain`].
pub fn times(w: Matrix<'_>, rows: Option<&[u32]>, x: &[f32], x_use: Use) -> Vec<f32> {
    let tokens = x.len() / w.columns;
    let count = rows.map_or(w.rows, <[u32]>::len);
    let mut out = vec![0.0; count * tokens];
    if tokens == 0 {
        return out;
    }
    out.par_chunks_mut(BLOCK_ROWS * tokens).enumerate().for_each_init(Vec::new, |values, (block, out)| {
        let first = block * BLOCK_ROWS;
        values.resize(out.len() / tokens * w.columns, 0.0);
        for (i, values) in values.chunks_mut(w.columns).enumerate() {
            let row = rows.map_or(first + i, |rows| rows[first + i] as usize);
            dequantise(w.format, w.row(row).bytes, values);
        }
        let a = Strided { values, row: w.columns, column: 1 };
        let b = match x_use {
            Use::Plain => Strided { values: x, row: tokens, column: 1 },
            Use::Transposed => Strided { values: x, row: 1, column: w.columns },
        };
        product_strided((out.len() / tokens, w.columns, tokens), a, b, out);
    });
    out
}

/// [`times`], where weights in blocks meet `x` rounded to 8 bits, as the engine has it with activations `q8`.
pub fn times_rounded(w: Matrix<'_>, rows: Option<&[u32]>, x: &[f32], x_use: Use) -> Vec<f32> {
    if !w.format.has_blocks() {
        return times(w, rows, x, x_use);
    }
    let mut x = match x_use {
        Use::Transposed => x.to_vec(),
        Use::Plain => transposed(x, x.len() / w.columns),
    };
    x.par_chunks_mut(w.columns).for_each(round_in_place);
    times(w, rows, &x, Use::Transposed)
}

/// `down h`: `[width, tokens]`, where `h: [neurons, tokens]` holds the neurons in the order of `neurons`.
pub fn times_down(down: Down<'_>, neurons: Option<&[u32]>, h: &[f32]) -> Vec<f32> {
    let (width, count) = match down {
        Down::Columns(w) => (w.rows, w.columns),
        Down::Rows(w) => (w.columns, w.rows),
    };
    let tokens = h.len() / count;
    let mut out = vec![0.0; width * tokens];
    if tokens == 0 {
        return out;
    }
    let source = |i: usize| neurons.map_or(i, |neurons| neurons[i] as usize);
    let b = Strided { values: h, row: tokens, column: 1 };
    out.par_chunks_mut(BLOCK_ROWS * tokens).enumerate().for_each_init(
        || (Vec::new(), Vec::new()),
        |(values, row), (block, out)| {
            let (first, outputs) = (block * BLOCK_ROWS, out.len() / tokens);
            values.resize(outputs * count, 0.0);
            let a = match down {
                Down::Columns(w) => {
                    row.resize(count, 0.0);
                    for (i, values) in values.chunks_mut(count).enumerate() {
                        dequantise(w.format, w.row(first + i).bytes, row);
                        values.iter_mut().enumerate().for_each(|(i, value)| *value = row[source(i)]);
                    }
                    Strided { values, row: count, column: 1 }
                }
                Down::Rows(w) => {
                    let (from, to) = (w.format.row_bytes(first), w.format.row_bytes(first + outputs));
                    for (i, values) in values.chunks_mut(outputs).enumerate() {
                        dequantise(w.format, &w.row(source(i)).bytes[from..to], values);
                    }
                    Strided { values, row: 1, column: outputs }
                }
            };
            product_strided((outputs, count, tokens), a, b, out);
        },
    );
    out
}

/// The Euclidean length of each neuron's row of down.
pub fn row_sizes(down: Down<'_>) -> Vec<f32> {
    let (Down::Columns(w) | Down::Rows(w)) = down;
    let mut squares = vec![0.0; if matches!(down, Down::Rows(_)) { w.rows } else { w.columns }];
    let mut values = vec![0.0; w.columns];
    for row in 0..w.rows {
        dequantise(w.format, w.row(row).bytes, &mut values);
        match down {
            Down::Rows(_) => squares[row] = values.iter().map(|v| v * v).sum(),
            Down::Columns(_) => squares.iter_mut().zip(&values).for_each(|(sum, v)| *sum += v * v),
        }
    }
    squares.into_iter().map(f32::sqrt).collect()
}

/// The residual stream of some windows of tokens: `x: [tokens, width]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stream {
    /// One row a token, window after window.
    pub x: Vec<f32>,
    /// Tokens of each window.
    pub windows: Vec<usize>,
    /// Each token's experts in the layer at hand, with their weights, where they are chosen before its attention; else nothing.
    routed: Vec<Routed>,
}

/// The experts of a token, with their weights.
type Routed = Vec<(usize, f32)>;

impl Stream {
    /// The embeddings of the tokens.
    pub fn new(source: &SourceModel<'_>, windows: &[&[u32]]) -> Self {
        let embedding = source.token_embedding();
        let (width, scale) = (source.config().width, source.config().embedding_scale);
        let tokens: Vec<u32> = windows.iter().flat_map(|window| window.iter().copied()).collect();
        let mut x = vec![0.0; tokens.len() * width];
        x.par_chunks_mut(width).zip(&tokens).for_each(|(x, &token)| {
            dequantise(embedding.format, embedding.row(token as usize).bytes, x);
            x.iter_mut().for_each(|x| *x *= scale);
        });
        Self { x, windows: windows.iter().map(|window| window.len()).collect(), routed: Vec::new() }
    }

    /// The windows of one of so many equal parts.
    #[must_use]
    pub fn part(&self, at: usize, parts: usize) -> Self {
        let (values, windows) = (self.x.len() / parts, self.windows.len() / parts);
        Self {
            x: self.x[at * values..][..values].to_vec(),
            windows: self.windows[at * windows..][..windows].to_vec(),
            routed: Vec::new(),
        }
    }

    /// Puts back what [`Stream::part`] gave.
    pub fn put(&mut self, at: usize, part: &Self) {
        let values = part.x.len();
        self.x[at * values..][..values].copy_from_slice(&part.x);
    }

    /// The last `count` windows.
    pub fn last(&self, count: usize, width: usize) -> Self {
        let windows = self.windows[self.windows.len() - count..].to_vec();
        let values = windows.iter().sum::<usize>() * width;
        Self { x: self.x[self.x.len() - values..].to_vec(), windows, routed: Vec::new() }
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
    /// `[neurons, rows]` before the activation, without gates the ups; what is to be multiplied by down is left here.
    pub gate: &'a mut [f32],
    /// `[neurons, rows]`.
    pub up: &'a [f32],
}

impl Expert<'_> {
    /// Leaves every neuron's value, as the dense model has it.
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
    /// The neurons of each expert in the order in which gates and ups are wanted.
    pub neurons: Option<&'a [Vec<u32>]>,
    /// Down of each expert as the container will store it, instead of the source's: `[neurons, width]`.
    pub down: Option<(Format, &'a [Vec<u8>])>,
    /// Whether vectors are rounded where they meet blocks of weights.
    pub rounds: bool,
    /// Whether down's are, too, in whole blocks of neurons of the source's order.
    pub rounds_down: bool,
    /// The format that keys and values are rounded to, each head's by itself.
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

    /// Adds to the stream all that stands before the layer's network: its attention or other token mixer, and blocks before it that
    /// are of no layer. `go_on` is requested between batches.
    ///
    /// # Errors
    /// Those of `go_on`.
    pub fn attention<E>(
        &self,
        stream: &mut Stream,
        go_on: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let c = self.source.config();
        let first = self.layer.checked_sub(1).map_or(0, |before| c.block_of(before) + 1);
        for block in first..=self.block {
            let block = Self { block, ..*self };
            if block.block == self.block && self.router_input() == RouterInput::BeforeMixer {
                let batches = stream.x.chunks(BATCH_TOKENS * c.width);
                stream.routed = batches.flat_map(|x| self.routed(x)).collect();
            }
            block.mixer(stream, go_on)?;
            if block.block < self.block {
                block.resident(stream, go_on)?;
                block.scale(&mut stream.x);
            }
        }
        Ok(())
    }

    /// A network that is always in memory, added to the stream.
    fn resident<E>(&self, stream: &mut Stream, go_on: &mut dyn FnMut() -> Result<(), E>) -> Result<(), E> {
        let c = self.source.config();
        let block = &c.blocks[self.block];
        let Some(network) = block.resident() else { return Ok(()) };
        for x in stream.x.chunks_mut(BATCH_TOKENS * c.width) {
            go_on()?;
            let roles = [Role::ResidentGate, Role::ResidentUp, Role::ResidentDown];
            let out = self.always(roles, network.activation, &self.normed(x));
            let out = self.normed_by(Role::FfnPostNorm, &out);
            x.iter_mut().zip(out).for_each(|(x, out)| *x += block.residual_scale * out);
        }
        Ok(())
    }

    /// The stream times the number that the block has behind it, where the description says so.
    fn scale(&self, x: &mut [f32]) {
        if let Some(scale) = self.source.part(self.block, Role::OutputScale).map(values_of) {
            x.iter_mut().for_each(|x| *x *= scale[0]);
        }
    }

    /// What the layer's router reads; without experts, what the network does.
    fn router_input(&self) -> RouterInput {
        let router = self.source.config().network().router.as_ref();
        router.map_or(RouterInput::Experts, |router| router.input)
    }

    /// `down (f(gate x) * up x)` of a network that every token visits, or without gates `down f(up x)`: `[tokens, width]`.
    fn always(&self, roles: [Role; 3], activation: Activation, normed: &[f32]) -> Vec<f32> {
        let [gate, up, down] = roles;
        let tokens = normed.len() / self.source.config().width;
        let up = self.times(self.part(up), None, normed);
        let gate = if activation.is_gated() { &*self.times(self.part(gate), None, normed) } else { &*up };
        let values: Vec<f32> = gate.iter().zip(&up).map(|(&gate, &up)| activation.apply(gate, up)).collect();
        transposed(&self.times(self.part(down), None, &transposed(&values, tokens)), tokens)
    }

    fn mixer<E>(&self, stream: &mut Stream, go_on: &mut dyn FnMut() -> Result<(), E>) -> Result<(), E> {
        if self.source.config().blocks[self.block].mixer.is_none() {
            return Ok(());
        }
        let width = self.source.config().width;
        let mut x = &mut *stream.x;
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
            let (rows, later) = x.split_at_mut(batch.iter().sum::<usize>() * width);
            self.mixer_batch(rows, batch);
            (x, windows) = (later, rest);
        }
        Ok(())
    }

    fn mixer_batch(&self, x: &mut [f32], windows: &[usize]) {
        let block = &self.source.config().blocks[self.block];
        let normed = self.normed_by(Role::AttentionNorm, x);
        let out = match &block.mixer {
            None => return,
            Some(Mixer::Attention(attention)) => match attention.latent {
                None => self.attended(attention, &normed, windows),
                Some(latent) => self.latent(attention, latent, &normed, windows),
            },
            Some(Mixer::Convolution(convolution)) => self.convolved(*convolution, &normed, windows),
            Some(Mixer::DeltaNet(net)) => self.delta_net(*net, &normed, windows),
            Some(Mixer::StateSpace(space)) => self.state_space(*space, &normed, windows),
        };
        let out = self.normed_by(Role::AttentionPostNorm, &out);
        x.iter_mut().zip(out).for_each(|(x, out)| *x += block.residual_scale * out);
    }

    /// Output of a short convolution, window after window: `[tokens, width]`.
    fn convolved(&self, convolution: Convolution, normed: &[f32], windows: &[usize]) -> Vec<f32> {
        let width = self.source.config().width;
        let tokens = normed.len() / width;
        let projected = transposed(&self.times(self.part(Role::ConvolutionInput), None, normed), tokens);
        let rows = projected.chunks(3 * width);
        let gated = rows.flat_map(|row| row[..width].iter().zip(&row[2 * width..]).map(|(b, x)| b * x));
        let taps = values_of(self.part(Role::ConvolutionTaps));
        let mut mixed = causal(&taps, convolution.taps, &gated.collect::<Vec<f32>>(), windows);
        mixed.chunks_mut(width).zip(projected.chunks(3 * width)).for_each(|(mixed, row)| {
            mixed.iter_mut().zip(&row[width..]).for_each(|(mixed, c)| *mixed *= c);
        });
        transposed(&self.times(self.part(Role::ConvolutionOutput), None, &mixed), tokens)
    }

    /// Output of a gated delta net, window after window, each head by itself: `[tokens, width]`.
    fn delta_net(&self, net: DeltaNet, normed: &[f32], windows: &[usize]) -> Vec<f32> {
        let c = self.source.config();
        let (tokens, width) = (normed.len() / c.width, net.head_width);
        let rows = |role: Role| transposed(&self.times(self.part(role), None, normed), tokens);
        let (of_tokens, of_heads) = net.input_roles().split_at(2);
        let (mixed, gate) = (rows(of_tokens[0]), rows(of_tokens[1]));
        let parts: Vec<Vec<f32>> = of_heads.iter().map(|&role| rows(role)).collect();
        let of_token = |t: usize| {
            parts.iter().flat_map(move |part| part.chunks(part.len() / tokens).nth(t).unwrap_or_default())
        };
        let alphas_and_betas: Vec<f32> = (0..tokens).flat_map(of_token).copied().collect();
        let [taps, bias, decay, weight] =
            [Role::StateTaps, Role::StateBias, Role::StateDecay, Role::StateNorm]
                .map(|role| values_of(self.part(role)));
        let mut mixed = causal(&taps, net.taps, &mixed, windows);
        mixed.par_iter_mut().for_each(|value| *value *= sigmoid(*value));
        let (channels, heads) = (net.channels(), net.value_heads);
        let unit = |t: usize, first: usize, head: usize| -> Vec<f32> {
            let of = &mixed[t * channels + first + head * width..][..width];
            let length = (of.iter().map(|value| value * value).sum::<f32>() + DeltaNet::EPSILON).sqrt();
            of.iter().map(|value| value / length).collect()
        };
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let read: Vec<Vec<f32>> = (0..windows.len() * heads)
            .into_par_iter()
            .map(|at| {
                let (window, head) = (at / heads, at % heads);
                let start: usize = windows[..window].iter().sum();
                // of each value its row, as long as a key
                let mut matrix = vec![0.0; width * width];
                let mut read = Vec::with_capacity(windows[window] * width);
                for t in start..start + windows[window] {
                    let [q, k] = [0, net.key_width()].map(|first| unit(t, first, net.key_head(head)));
                    let new = &mixed[t * channels + 2 * net.key_width() + head * width..][..width];
                    let (alpha, beta) = net.alpha_and_beta(head);
                    let of_token = &alphas_and_betas[2 * t * heads..];
                    let step = of_token[alpha] + bias[head];
                    let softplus = if step > 20.0 { step } else { step.exp().ln_1p() };
                    let (stays, rate) = ((decay[head] * softplus).exp(), sigmoid(of_token[beta]));
                    for (row, new) in matrix.chunks_mut(width).zip(new) {
                        row.iter_mut().for_each(|value| *value *= stays);
                        let change = rate * (new - dot(row, &k));
                        row.iter_mut().zip(&k).for_each(|(value, k)| *value += change * k);
                        read.push(dot(row, &q) / (width as f32).sqrt());
                    }
                }
                read
            })
            .collect();
        let mut out = vec![0.0; gate.len()];
        for (at, read) in read.iter().enumerate() {
            let (window, head) = (at / heads, at % heads);
            let start: usize = windows[..window].iter().sum();
            for (t, read) in (start..).zip(read.chunks(width)) {
                let place = (t * heads + head) * width;
                let out = &mut out[place..][..width];
                rms_norm(read, &weight, c.norm_epsilon, out);
                out.iter_mut().zip(&gate[place..]).for_each(|(out, gate)| *out *= gate * sigmoid(*gate));
            }
        }
        transposed(&self.times(self.part(Role::StateOutput), None, &out), tokens)
    }

    /// Output of a state space, window after window, each head by itself: `[tokens, width]`.
    fn state_space(&self, space: StateSpace, normed: &[f32], windows: &[usize]) -> Vec<f32> {
        let c = self.source.config();
        let (inner, channels, heads) = (space.inner_width(), space.channels(), space.heads);
        let (tokens, states, width) = (normed.len() / c.width, space.state, space.head_width);
        let projected = transposed(&self.times(self.part(Role::StateInput), None, normed), tokens);
        let rows = projected.chunks(inner + channels + heads);
        let mixed: Vec<f32> = rows.clone().flat_map(|row| &row[inner..inner + channels]).copied().collect();
        let [taps, bias, decay, skip, weight] =
            [Role::StateTaps, Role::StateBias, Role::StateDecay, Role::StateSkip, Role::StateNorm]
                .map(|role| values_of(self.part(role)));
        let mut mixed = causal(&taps, space.taps, &mixed, windows);
        self.add_bias(Role::StateTapsBias, &mut mixed);
        mixed.par_iter_mut().for_each(|value| *value *= sigmoid(*value));
        let steps: Vec<f32> = rows.clone().flat_map(|row| &row[inner + channels..]).copied().collect();
        let read: Vec<Vec<f32>> = (0..windows.len() * heads)
            .into_par_iter()
            .map(|at| {
                let (window, head) = (at / heads, at % heads);
                let start: usize = windows[..window].iter().sum();
                let group = head / (heads / space.groups);
                let mut state = vec![0.0; width * states];
                let mut read = Vec::with_capacity(windows[window] * width);
                for t in start..start + windows[window] {
                    let (x, directions) = mixed[t * channels..][..channels].split_at(inner);
                    let along = |at: usize| &directions[(at * space.groups + group) * states..][..states];
                    let step = steps[t * heads + head] + bias[head];
                    let step = if step > 20.0 { step } else { step.exp().ln_1p() };
                    let stays = (step * decay[head]).exp();
                    for (state, x) in state.chunks_mut(states).zip(&x[head * width..]) {
                        state.iter_mut().zip(along(0)).for_each(|(s, b)| *s = stays * *s + step * x * b);
                        let y: f32 = state.iter().zip(along(1)).map(|(s, c)| s * c).sum();
                        read.push(y + skip[head] * x);
                    }
                }
                read
            })
            .collect();
        let mut gated = vec![0.0; tokens * inner];
        for (at, read) in read.iter().enumerate() {
            let (window, head) = (at / heads, at % heads);
            let start: usize = windows[..window].iter().sum();
            for (t, read) in (start..).zip(read.chunks(width)) {
                let gate = &projected[t * (inner + channels + heads) + head * width..];
                let gated = &mut gated[t * inner + head * width..][..width];
                let values = gated.iter_mut().zip(read).zip(gate);
                values.for_each(|((gated, y), gate)| *gated = y * gate * sigmoid(*gate));
            }
        }
        let of_group = inner / space.groups;
        let mut normed = vec![0.0; gated.len()];
        let groups = gated.chunks(of_group).zip(normed.chunks_mut(of_group)).enumerate();
        for (at, (gated, normed)) in groups {
            let weight = &weight[at % space.groups * of_group..][..of_group];
            rms_norm(gated, weight, c.norm_epsilon, normed);
        }
        transposed(&self.times(self.part(Role::StateOutput), None, &normed), tokens)
    }

    /// A tensor that the description has.
    fn part(&self, role: Role) -> Matrix<'a> {
        let part = self.source.part(self.block, role);
        part.unwrap_or_else(|| panic!("block {} has no {role:?}", self.block))
    }

    /// Output of attention, window after window: `[tokens, width]`.
    fn attended(&self, a: &Attention, normed: &[f32], windows: &[usize]) -> Vec<f32> {
        let (c, head_width) = (self.source.config(), a.head_width);
        let tokens = normed.len() / c.width;
        let [query, key, value, output] = self.source.projections(self.block);
        let value = if a.values_are_keys { key } else { value };
        let rows = |w: Matrix<'_>, bias: Role| {
            let mut rows = transposed(&self.times(w, None, normed), tokens);
            self.add_bias(bias, &mut rows);
            rows
        };
        let mut query = rows(query, Role::QueryBias);
        let mut gate = Vec::new();
        if a.gate {
            // each head's query, and then its gate
            let both = query.chunks(2 * head_width).map(|both| both.split_at(head_width));
            let (queries, gates): (Vec<&[f32]>, Vec<&[f32]>) = both.unzip();
            (query, gate) = (queries.concat(), gates.concat());
        }
        let mut key = rows(key, Role::KeyBias);
        let mut value = rows(value, Role::ValueBias);
        let (q_width, kv_width) = (a.query_width(), a.kv_width());
        if let Some(norm) = a.norm {
            let head = norm == HeadNorm::Head;
            for (role, rows, width) in
                [(Role::QueryNorm, &mut query, q_width), (Role::KeyNorm, &mut key, kv_width)]
            {
                if let Some(weight) = self.source.part(self.block, role) {
                    *rows = normed_rows(rows, weight, if head { head_width } else { width }, c.norm_epsilon);
                }
            }
        }
        if a.value_norm {
            value.par_chunks_mut(head_width).for_each(|head| rms_norm_in_place(head, c.norm_epsilon));
        }
        let positions: Vec<usize> = windows.iter().flat_map(|&window| 0..window).collect();
        let longest = windows.iter().copied().max().unwrap_or(0);
        let rotary = a.rope.map(|rope| Rotary::new(&c.ropes[rope], longest));
        (query.par_chunks_mut(q_width).zip(key.par_chunks_mut(kv_width)).zip(&positions)).for_each(
            |((query, key), &position)| {
                if let Some(rotary) = &rotary {
                    let mut rotations = vec![Rotation::default(); rotary.pairs()];
                    rotary.fill(position, &mut rotations);
                    rotary.rotate(query, head_width, &rotations);
                    rotary.rotate(key, head_width, &rotations);
                }
                let factor = a.temperature.map_or(1.0, |temperature| temperature.factor(position));
                query.iter_mut().for_each(|query| *query *= factor);
            },
        );
        if let Some(format) = self.kv {
            for rows in [&mut key, &mut value] {
                let heads = rows.par_chunks_mut(head_width);
                heads.for_each(|head| head.copy_from_slice(&rounded(format, head)));
            }
        }
        let mut query = self.softmaxed(a, query, &key, &value, windows);
        query.iter_mut().zip(gate).for_each(|(value, gate)| *value *= sigmoid(gate));
        let mut out = transposed(&self.times(output, None, &query), tokens);
        self.add_bias(Role::AttentionOutputBias, &mut out);
        out
    }

    /// `softmax(scale q k^T) v` of each head, window after window, over what each token sees: `[tokens, query_width]`.
    ///
    /// *Shapes*: `query: [tokens, query_width]`, `key`, `value: [tokens, kv_width]`.
    fn softmaxed(
        &self,
        a: &Attention,
        mut query: Vec<f32>,
        key: &[f32],
        value: &[f32],
        windows: &[usize],
    ) -> Vec<f32> {
        let (head_width, q_width, kv_width) = (a.head_width, a.query_width(), a.kv_width());
        let sinks = self.source.part(self.block, Role::Sinks).map(values_of);
        let mut starts = Vec::with_capacity(windows.len());
        let mut start = 0;
        for &window in windows {
            starts.push((start, window));
            start += window;
        }
        let heads: Vec<(usize, usize, usize)> = starts
            .iter()
            .flat_map(|&(start, window)| (0..a.heads).map(move |head| (start, window, head)))
            .collect();
        let attended: Vec<Vec<f32>> = heads
            .par_iter()
            .map(|&(start, window, head)| {
                let at = head / (a.heads / a.kv_heads) * head_width;
                let part = |x: &[f32], row: usize, column: usize| start * row + column..x.len();
                let q = Strided {
                    values: &query[part(&query, q_width, head * head_width)],
                    row: q_width,
                    column: 1,
                };
                let k = Strided { values: &key[part(key, kv_width, at)], row: 1, column: kv_width };
                let v = Strided { values: &value[part(value, kv_width, at)], row: kv_width, column: 1 };
                let mut scores = vec![0.0; window * window];
                product_strided((window, head_width, window), q, k, &mut scores);
                for (position, scores) in scores.chunks_mut(window).enumerate() {
                    let (seen, later) = scores.split_at_mut(position + 1);
                    later.fill(0.0);
                    let (before, seen) = seen.split_at_mut(a.first_seen(position));
                    before.fill(0.0);
                    seen.iter_mut().for_each(|score| *score *= a.scale);
                    if let Some(bound) = a.softcap {
                        seen.iter_mut().for_each(|score| *score = bound * (*score / bound).tanh());
                    }
                    match &sinks {
                        None => softmax(seen),
                        Some(sinks) => {
                            let mut all = [&*seen, &[sinks[head]]].concat();
                            softmax(&mut all);
                            seen.copy_from_slice(&all[..seen.len()]);
                        }
                    }
                }
                let mut out = vec![0.0; window * head_width];
                let scores = Strided { values: &scores, row: window, column: 1 };
                product_strided((window, window, head_width), scores, v, &mut out);
                out
            })
            .collect();
        // `query` is done with: the heads' results take its place.
        for (&(start, _, head), attended) in heads.iter().zip(&attended) {
            for (i, attended) in attended.chunks(head_width).enumerate() {
                query[(start + i) * q_width + head * head_width..][..head_width].copy_from_slice(attended);
            }
        }
        query
    }

    /// Output of latent attention, window after window: `[tokens, width]`. As in the engine, what makes keys and values of what is kept
    /// is taken to queries and results.
    fn latent(&self, a: &Attention, latent: Latent, normed: &[f32], windows: &[usize]) -> Vec<f32> {
        let Latent { query_rank, rank, plain, rotated, value } = latent;
        let (c, kept, width) = (self.source.config(), a.head_width, latent.query_width());
        let tokens = normed.len() / c.width;
        let rows = |role: Role, x: &[f32]| transposed(&self.times(self.part(role), None, x), tokens);
        let queries = match query_rank {
            None => rows(Role::Query, normed),
            Some(rank) => {
                let (low, weight) = (rows(Role::QueryDown, normed), self.part(Role::QueryDownNorm));
                rows(Role::QueryUp, &normed_rows(&low, weight, rank, c.norm_epsilon))
            }
        };
        let mut vectors = rows(Role::LatentDown, normed);
        let positions: Vec<usize> = windows.iter().flat_map(|&window| 0..window).collect();
        let longest = windows.iter().copied().max().unwrap_or(0);
        let rotary = a.rope.map(|rope| Rotary::new(&c.ropes[rope], longest));
        let rotate = |values: &mut [f32], position: usize| {
            let Some(rotary) = &rotary else { return };
            let mut rotations = vec![Rotation::default(); rotary.pairs()];
            rotary.fill(position, &mut rotations);
            rotary.rotate(values, rotated, &rotations);
        };
        let weight = values_of(self.part(Role::LatentNorm));
        vectors.par_chunks_mut(kept).zip(&positions).for_each(|(vector, &position)| {
            let (front, shared) = vector.split_at_mut(rank);
            let before = front.to_vec();
            rms_norm(&before, &weight, c.norm_epsilon, front);
            rotate(shared, position);
            if let Some(format) = self.kv {
                vector.copy_from_slice(&rounded(format, vector));
            }
        });
        let mut taken = vec![0.0; tokens * a.heads * kept];
        taken.par_chunks_mut(kept).enumerate().for_each(|(at, taken)| {
            let rotated = &mut taken[rank..];
            rotated.copy_from_slice(&queries[at * width + plain..][..rotated.len()]);
            rotate(rotated, positions[at / a.heads]);
        });
        self.of_heads(Role::KeyUp, a.heads, (&queries, width), (&mut taken, kept));
        let read = self.softmaxed(a, taken, &vectors, &vectors, windows);
        let mut mixed = vec![0.0; tokens * a.heads * value];
        self.of_heads(Role::ValueUp, a.heads, (&read, kept), (&mut mixed, value));
        transposed(&self.times(self.part(Role::AttentionOutput), None, &mixed), tokens)
    }

    /// Each head's own matrix times the fronts of its vectors, into the fronts of others.
    ///
    /// *Shapes*: `x: [tokens, heads, x_stride]`, `out: [tokens, heads, out_stride]`.
    fn of_heads(
        &self,
        role: Role,
        heads: usize,
        (x, x_stride): (&[f32], usize),
        (out, out_stride): (&mut [f32], usize),
    ) {
        let all = self.part(role);
        let (count, bytes) = (all.rows / heads, all.bytes.len() / heads);
        for head in 0..heads {
            let w = Matrix { rows: count, bytes: &all.bytes[head * bytes..][..bytes], ..all };
            let of_head = x.chunks(x_stride).skip(head).step_by(heads);
            let fronts: Vec<f32> = of_head.flat_map(|x| &x[..w.columns]).copied().collect();
            let products = transposed(&self.times(w, None, &fronts), fronts.len() / w.columns);
            let places = out.chunks_mut(out_stride).skip(head).step_by(heads);
            places.zip(products.chunks(count)).for_each(|(out, new)| out[..count].copy_from_slice(new));
        }
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

    /// The gates of one expert for some rows, neurons in the order in which they are wanted: `[neurons, rows]`.
    pub fn gates(&self, expert: usize, normed: &[f32]) -> Vec<f32> {
        let neurons = self.neurons.map(|neurons| &*neurons[expert]);
        let mut gates = self.times(self.source.ffn_gate(self.layer, expert), neurons, normed);
        self.add_bias_of_neurons(Role::GateBias, expert, &mut gates);
        gates
    }

    /// The experts of each row of the stream, with their weights: of the stream that the router reads, or of one that is taken to be
    /// like it.
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

    /// The feed-forward network, added to the stream.
    ///
    /// `each` is given what every expert makes of its tokens, batch after batch, experts in ascending order, and leaves
    /// in `gate` what goes on to down. `go_on` is requested between batches.
    ///
    /// # Errors
    /// Those of `go_on`.
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
            for expert in 0..c.experts() {
                go_on()?;
                let (rows, weights): (Vec<usize>, Vec<f32>) = (routed.iter().enumerate())
                    .flat_map(|(row, routed)| routed.iter().map(move |&(e, weight)| (e, row, weight)))
                    .filter(|&(e, ..)| e == expert)
                    .map(|(_, row, weight)| (row, weight))
                    .unzip();
                if rows.is_empty() {
                    continue;
                }
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
                add(&mut sums, c.width, &added, &rows, &weights);
                if let Some(bias) = &down_bias {
                    let bias = &bias[expert * c.width..][..c.width];
                    for (row, weight) in rows.iter().zip(&weights) {
                        let sums = &mut sums[row * c.width..][..c.width];
                        sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += weight * bias);
                    }
                }
            }
            let mut sums = self.normed_by(Role::ExpertsPostNorm, &sums);
            if c.network().shared_neurons.is_some() {
                let roles = [Role::SharedGate, Role::SharedUp, Role::SharedDown];
                let normed = self.normed_by(Role::FfnNorm, x);
                let out = self.always(roles, c.activation(), &normed);
                let out = self.normed_by(Role::SharedPostNorm, &out);
                let gate = self.source.part(self.block, Role::SharedOutputGate).map(values_of);
                let rows = sums.chunks_mut(c.width).zip(out.chunks(c.width)).zip(normed.chunks(c.width));
                for ((sum, out), x) in rows {
                    let dot = |gate: &Vec<f32>| gate.iter().zip(x).map(|(gate, x)| gate * x).sum();
                    let gate = gate.as_ref().map_or(1.0, |gate| sigmoid(dot(gate)));
                    sum.iter_mut().zip(out).for_each(|(sum, out)| *sum += gate * out);
                }
            }
            let (out, scale) =
                (self.normed_by(Role::FfnPostNorm, &sums), c.blocks[self.block].residual_scale);
            x.iter_mut().zip(out).for_each(|(x, out)| *x += scale * out);
            self.scale(x);
        }
        Ok(())
    }
}

/// Tokens of a batch of the feed-forward network, so many that an expert has `BATCH_TOKENS` of them on average.
pub fn batch_tokens(c: &flashplan::internals::model::config::Config) -> usize {
    BATCH_TOKENS * c.experts() / c.experts_used()
}

/// A model's reading of windows of text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Said {
    /// The sum of `-ln p` of each window's tokens after the first.
    pub losses: Vec<f64>,
    /// After each token the likeliest next one, `[tokens]`; of equal ones the lowest number.
    pub chosen: Vec<u32>,
}

/// The likelihood of windows, and the model's own choices, given the last layer's output; it meets the head rounded if `rounds`.
///
/// # Errors
/// Those of `go_on`.
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
        let normed = normed_rows(x, source.output_norm(), c.width, c.norm_epsilon);
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

/// The token with the highest logit, of equal ones the lowest number.
fn likeliest(logits: &[f32]) -> u32 {
    let better = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (0..logits.len()).reduce(better).unwrap_or(0) as u32
}

/// Each channel's sum over its last `count` positions, window after window: `[tokens, channels]`.
///
/// *Shapes*: `taps: [channels, count]`, `values: [tokens, channels]`.
fn causal(taps: &[f32], count: usize, values: &[f32], windows: &[usize]) -> Vec<f32> {
    let channels = taps.len() / count;
    let positions: Vec<usize> = windows.iter().flat_map(|&window| 0..window).collect();
    let mut out = vec![0.0; values.len()];
    out.par_chunks_mut(channels).enumerate().for_each(|(t, out)| {
        let seen = count.min(positions[t] + 1);
        for (channel, out) in out.iter_mut().enumerate() {
            let taps = &taps[channel * count..][..count];
            let term = |back: usize| taps[count - 1 - back] * values[(t - back) * channels + channel];
            *out = (0..seen).rev().map(term).sum();
        }
    });
    out
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Rows of `width` values, each normalised.
fn normed_rows(x: &[f32], weight: Matrix<'_>, width: usize, epsilon: f32) -> Vec<f32> {
    let weight = values_of(weight);
    let mut out = vec![0.0; x.len()];
    (x.par_chunks(width).zip(out.par_chunks_mut(width)))
        .for_each(|(x, out)| rms_norm(x, &weight, epsilon, out));
    out
}

/// The values of a matrix, row after row.
fn values_of(w: Matrix<'_>) -> Vec<f32> {
    let mut values = vec![0.0; w.rows * w.columns];
    dequantise(w.format, w.bytes, &mut values);
    values
}

/// `[values, tokens]` as `[tokens, values]`.
fn transposed(x: &[f32], tokens: usize) -> Vec<f32> {
    let values = x.len() / tokens;
    let mut out = vec![0.0; x.len()];
    out.par_chunks_mut(values * TILE).enumerate().for_each(|(tile, out)| {
        for (value, x) in x.chunks(tokens).enumerate() {
            let x = &x[tile * TILE..];
            for (out, &x) in out.chunks_mut(values).zip(x) {
                out[value] = x;
            }
        }
    });
    out
}

/// Tokens that are transposed together: a cache line of them.
const TILE: usize = 16;

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

    /// Largest difference from the reference's logits, as a loss; windows of different lengths, both fixtures and a model of
    /// every architecture.
    #[test]
    fn a_batch_is_the_reference_token_by_token() {
        let fixtures = ["oxide-dense", "oxide-moe"].map(|name| format!("models/{name}"));
        let architectures = [
            "deepseek2",
            "gemma3",
            "gemma4",
            "gemma4moe",
            "gpt-oss",
            "granite",
            "granitemoe-shared",
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
                    // sums in another order may swap what is nearly alike
                    assert!(logits[chosen as usize] >= best - 1e-3, "{model}: {chosen} after token {i}");
                }
                // a value that lies between two steps goes to either
                let near = if format.is_some() { 1e-3 } else { 1e-4 };
                assert!((found - loss).abs() <= near * loss, "{model} {format:?}: {found} and {loss}");
            }
        }
    }
}
