//! Token mixers on windows of text: attention, latent attention, convolutions, delta nets and state spaces.

use flashplan::internals::model::config::{
    Attention, ChannelDecay, Convolution, DeltaNet, HeadNorm, Latent, Role, StateSpace,
};
use flashplan::internals::reference::rounded;
use flashplan::internals::rotary::Rotary;
use kernels::{Matrix, Rotation, rms_norm, rms_norm_in_place, softmax};
use rayon::prelude::*;

use super::super::matrix::{Strided, product_strided};
use super::products::{transposed, values_of};
use super::{Layer, normed_rows};

impl Layer<'_> {
    /// Output of a short convolution, window after window: `[tokens, width]`.
    pub(super) fn convolved(&self, convolution: Convolution, normed: &[f32], windows: &[usize]) -> Vec<f32> {
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
    pub(super) fn delta_net(&self, net: DeltaNet, normed: &[f32], windows: &[usize]) -> Vec<f32> {
        let c = self.source.config();
        let (tokens, width) = (normed.len() / c.width, net.head_width);
        let rows = |role: Role, x: &[f32]| transposed(&self.times(self.part(role), None, x), tokens);
        let parts: Vec<Vec<f32>> = net.input_roles().iter().map(|&role| rows(role, normed)).collect();
        let of_token = |t: usize| {
            parts.iter().flat_map(move |part| part.chunks(part.len() / tokens).nth(t).unwrap_or_default())
        };
        let projected: Vec<f32> = (0..tokens).flat_map(of_token).copied().collect();
        let columns = |first: usize, count: usize| -> Vec<f32> {
            let rows = projected.chunks(projected.len() / tokens);
            rows.flat_map(|row| &row[first..first + count]).copied().collect()
        };
        let (channels, heads, values) = (net.channels(), net.value_heads, net.value_width());
        let mixed = columns(0, channels);
        let of_heads = columns(channels, net.head_values());
        let wide = channels + net.head_values();
        let (gate, alphas) = match net.channel_decay {
            None => (columns(wide, values), Vec::new()),
            Some(ChannelDecay { rank: None, .. }) => (columns(wide, values), columns(wide + values, values)),
            Some(ChannelDecay { rank: Some(rank), .. }) => {
                let [gate, alpha] = [wide, wide + rank].map(|first| columns(first, rank));
                (rows(Role::DeltaGate, &gate), rows(Role::DeltaAlpha, &alpha))
            }
        };
        let taps: Vec<f32> = net.taps_roles().iter().flat_map(|&role| values_of(self.part(role))).collect();
        let [bias, decay, weight] =
            [Role::StateBias, Role::StateDecay, Role::StateNorm].map(|role| values_of(self.part(role)));
        let mut mixed = causal(&taps, net.taps, &mixed, windows);
        mixed.par_iter_mut().for_each(|value| *value *= sigmoid(*value));
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
                    let of_heads = &of_heads[t * net.head_values()..];
                    let rate = sigmoid(of_heads[beta]);
                    let stays = match net.channel_decay {
                        None => vec![net.decay(decay[head], of_heads[alpha] + bias[head]); width],
                        Some(_) => (head * width..(head + 1) * width)
                            .map(|channel| {
                                net.decay(decay[head], alphas[t * values + channel] + bias[channel])
                            })
                            .collect(),
                    };
                    for (row, new) in matrix.chunks_mut(width).zip(new) {
                        row.iter_mut().zip(&stays).for_each(|(value, stays)| *value *= stays);
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
                let open = |gate: f32| if net.has_sigmoid_gate() { 1.0 } else { gate };
                let gated = out.iter_mut().zip(&gate[place..]);
                gated.for_each(|(out, &gate)| *out *= open(gate) * sigmoid(gate));
            }
        }
        transposed(&self.times(self.part(Role::StateOutput), None, &out), tokens)
    }

    /// Output of a state space, window after window, each head by itself: `[tokens, width]`.
    pub(super) fn state_space(&self, space: StateSpace, normed: &[f32], windows: &[usize]) -> Vec<f32> {
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

    /// Output of attention, window after window: `[tokens, width]`. Keys and values that other blocks read are in `shared`.
    pub(super) fn attended(
        &self,
        a: &Attention,
        normed: &[f32],
        windows: &[usize],
        shared: &mut [f32],
    ) -> Vec<f32> {
        let head_width = a.head_width;
        let tokens = normed.len() / self.source.config().width;
        let [query, .., output] = self.source.projections(self.block);
        let mut query = self.projected(query, Role::QueryBias, normed);
        let mut gate = Vec::new();
        if a.gate {
            // each head's query, and then its gate
            let both = query.chunks(2 * head_width).map(|both| both.split_at(head_width));
            let (queries, gates): (Vec<&[f32]>, Vec<&[f32]>) = both.unzip();
            (query, gate) = (queries.concat(), gates.concat());
        }
        self.norm_heads(a, Role::QueryNorm, a.query_width(), &mut query);
        self.rotate(a, windows, a.query_width(), &mut query);
        if let Some(temperature) = a.temperature {
            let positions = windows.iter().flat_map(|&window| 0..window);
            for (query, position) in query.chunks_mut(a.query_width()).zip(positions) {
                query.iter_mut().for_each(|query| *query *= temperature.factor(position));
            }
        }
        let (key, value) = match a.shares {
            Some(owner) => self.of_owner(owner, shared),
            None => self.keys_and_values(a, normed, windows),
        };
        self.share(&key, &value, shared);
        let chosen = a.indexer.map(|indexer| self.chosen(a, indexer, normed, windows));
        let mut query = self.softmaxed(a, query, &key, &value, windows, chosen.as_deref());
        query.iter_mut().zip(gate).for_each(|(value, gate)| *value *= sigmoid(gate));
        let mut out = transposed(&self.times(output, None, &query), tokens);
        self.add_bias(Role::AttentionOutputBias, &mut out);
        out
    }

    /// The block's own keys and values, `[tokens, kv_width]`, rounded to their format.
    fn keys_and_values(&self, a: &Attention, normed: &[f32], windows: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let [_, key, value, _] = self.source.projections(self.block);
        let value = if a.values_are_keys { key } else { value };
        let mut key = self.projected(key, Role::KeyBias, normed);
        let mut value = self.projected(value, Role::ValueBias, normed);
        self.norm_heads(a, Role::KeyNorm, a.kv_width(), &mut key);
        if a.value_norm {
            let epsilon = self.source.config().norm_epsilon;
            value.par_chunks_mut(a.head_width).for_each(|head| rms_norm_in_place(head, epsilon));
        }
        self.rotate(a, windows, a.kv_width(), &mut key);
        if let Some(format) = self.kv {
            for rows in [&mut key, &mut value] {
                let heads = rows.par_chunks_mut(a.head_width);
                heads.for_each(|head| head.copy_from_slice(&rounded(format, head)));
            }
        }
        (key, value)
    }

    /// Rows of queries, keys or values, with their bias.
    fn projected(&self, w: Matrix<'_>, bias: Role, normed: &[f32]) -> Vec<f32> {
        let tokens = normed.len() / self.source.config().width;
        let mut rows = transposed(&self.times(w, None, normed), tokens);
        self.add_bias(bias, &mut rows);
        rows
    }

    /// Applies the norm of queries or keys, rows of `width`, if the model has it.
    fn norm_heads(&self, a: &Attention, role: Role, width: usize, rows: &mut Vec<f32>) {
        if let Some((norm, weight)) = a.norm.zip(self.source.part(self.block, role)) {
            let together = if norm == HeadNorm::Head { a.head_width } else { width };
            *rows = normed_rows(rows, weight, together, self.source.config().norm_epsilon);
        }
    }

    /// Rotates heads by their positions, rows of `width`.
    fn rotate(&self, a: &Attention, windows: &[usize], width: usize, rows: &mut [f32]) {
        let Some(rope) = a.rope else { return };
        let longest = windows.iter().copied().max().unwrap_or(0);
        let rotary = Rotary::new(&self.source.config().ropes[rope], longest);
        let positions: Vec<usize> = windows.iter().flat_map(|&window| 0..window).collect();
        rows.par_chunks_mut(width).zip(&positions).for_each(|(row, &position)| {
            let mut rotations = vec![Rotation::default(); rotary.pairs()];
            rotary.fill(position, &mut rotations);
            rotary.rotate(row, a.head_width, &rotations);
        });
    }

    /// `softmax(scale q k^T) v` of each head, window after window, over what each token sees.
    ///
    /// Where an indexer chooses, `chosen` has the visible ones of the positions up to each token's own.
    ///
    /// *Shapes*: `query` and the result: `[tokens, query_width]`, `key`, `value: [tokens, kv_width]`.
    fn softmaxed(
        &self,
        a: &Attention,
        mut query: Vec<f32>,
        key: &[f32],
        value: &[f32],
        windows: &[usize],
        chosen: Option<&[Vec<bool>]>,
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
                    if let Some(chosen) = chosen {
                        let hidden =
                            seen.iter_mut().zip(&chosen[start + position]).filter(|(_, chosen)| !**chosen);
                        hidden.for_each(|(score, _)| *score = f32::NEG_INFINITY);
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

    /// Output of latent attention, window after window: `[tokens, width]`.
    ///
    /// As in the engine, queries and results are multiplied by the matrices that would make keys and values from the stored vectors.
    pub(super) fn latent(
        &self,
        a: &Attention,
        latent: Latent,
        normed: &[f32],
        windows: &[usize],
    ) -> Vec<f32> {
        let Latent { query_rank, rank, plain, rotated, value, gate } = latent;
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
        let read = self.softmaxed(a, taken, &vectors, &vectors, windows, None);
        let mut mixed = vec![0.0; tokens * a.heads * value];
        self.of_heads(Role::ValueUp, a.heads, (&read, kept), (&mut mixed, value));
        if gate {
            for (mixed, gate) in mixed.chunks_mut(value).zip(rows(Role::HeadGates, normed)) {
                mixed.iter_mut().for_each(|mixed| *mixed *= sigmoid(gate));
            }
        }
        transposed(&self.times(self.part(Role::AttentionOutput), None, &mixed), tokens)
    }

    /// Each head's own matrix times the first values of its vectors, into the first values of others.
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

/// `1 / (1 + e^-x)`.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
