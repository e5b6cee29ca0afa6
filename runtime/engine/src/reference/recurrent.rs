//! Mixers that keep a state: short convolutions, delta nets and state spaces.

use super::block::{Block, Past, Window, beside, columns, keep, places};
use super::products::Products;
use super::{product, sigmoid};
use crate::model::config::{DeltaNet, Role, StateSpace, softplus};

impl<P: Products> Block<'_, P> {
    /// Computes `out (c * convolved(b * x))`, where `[b | c | x]` is the projected input.
    pub(super) fn convolution(&self, x: &[f32], windows: &mut [Window<'_>]) -> Vec<f32> {
        let width = self.config().width;
        let projected = self.times(Role::ConvolutionInput, x);
        let [b, c, x] = [0, 1, 2].map(|part| columns(&projected, 3 * width, part * width, width));
        let gated: Vec<f32> = b.iter().zip(x).map(|(b, x)| b * x).collect();
        keep(windows, &gated, |past| &mut past.convolved);
        let mut mixed =
            self.convolved(&self.values(Role::ConvolutionTaps), (width, 1), windows, |past| &past.convolved);
        mixed.iter_mut().zip(c).for_each(|(mixed, c)| *mixed *= c);
        self.times(Role::ConvolutionOutput, &mixed)
    }

    /// Each channel's sum over its last positions, `step` apart: `[tokens, channels]`.
    ///
    /// *Shapes*: `taps: [channels, taps]`, the last one of the token itself; `inputs`: `[positions, channels]`.
    pub(super) fn convolved(
        &self,
        taps: &[f32],
        (channels, step): (usize, usize),
        windows: &[Window<'_>],
        inputs: impl Fn(&Past) -> &Vec<f32> + Sync,
    ) -> Vec<f32> {
        let (places, count) = (places(windows), taps.len() / channels);
        let mut out = vec![0.0; places.len() * channels];
        self.products.each_row(&mut out, channels, |row, out| {
            let (window, position) = places[row];
            let (inputs, seen) = (inputs(windows[window].past), count.min(position / step + 1));
            for (channel, out) in out.iter_mut().enumerate() {
                let taps = &taps[channel * count..][..count];
                let term = |back: usize| {
                    taps[count - 1 - back] * inputs[(position - back * step) * channels + channel]
                };
                *out = (0..seen).rev().map(term).sum();
            }
        });
        out
    }

    /// Computes `out (norm(y) silu(gate x))`, or with a sigmoid. Each head's matrix is written by its key and
    /// value, then read by its query to give `y`.
    pub(super) fn delta_net(&self, net: DeltaNet, x: &[f32], windows: &mut [Window<'_>]) -> Vec<f32> {
        let (width, channels, values) = (net.head_width, net.channels(), net.value_width());
        let parts: Vec<Vec<f32>> = net.input_roles().iter().map(|&role| self.times(role, x)).collect();
        let tokens = x.len() / self.config().width;
        let projected = beside(&parts, tokens);
        let of_part = |first, count| columns(&projected, projected.len() / tokens, first, count);
        let (mixed, of_heads) = (of_part(0, channels), of_part(channels, net.head_values()));
        let wide = channels + net.head_values();
        let [gate, alphas] = match net.channel_decay {
            None => [of_part(wide, values), Vec::new()],
            Some(decay) => match decay.rank {
                None => [0, values].map(|first| of_part(wide + first, values)),
                Some(rank) => [(Role::DeltaGate, 0), (Role::DeltaAlpha, rank)]
                    .map(|(role, first)| self.times(role, &of_part(wide + first, rank))),
            },
        };
        let taps: Vec<f32> = net.taps_roles().iter().flat_map(|&role| self.values(role)).collect();
        let [bias, decay] = [Role::StateBias, Role::StateDecay].map(|role| self.values(role));
        keep(windows, &mixed, |past| &mut past.convolved);
        let mut mixed = self.convolved(&taps, (channels, 1), windows, |past| &past.convolved);
        self.products.each_row(&mut mixed, channels, |_, mixed| mixed.iter_mut().for_each(silu));
        let unit = |of: &[f32]| -> Vec<f32> {
            let length = (product(of, of) + DeltaNet::EPSILON).sqrt();
            of.iter().map(|value| value / length).collect()
        };
        let (read, states) = self.by_head(windows, net.value_heads, |window, first_row, head| {
            // of each value its row, as long as a key
            let mut matrix =
                window.past.states.get(head).cloned().unwrap_or_else(|| vec![0.0; width * width]);
            let mut read = Vec::with_capacity(window.tokens * width);
            for row in first_row..first_row + window.tokens {
                let part =
                    |first: usize, head: usize| &mixed[row * channels + first + head * width..][..width];
                let [q, k] = [0, net.key_width()].map(|first| unit(part(first, net.key_head(head))));
                let new = part(2 * net.key_width(), head);
                let (alpha, beta) = net.alpha_and_beta(head);
                let of_heads = &of_heads[row * net.head_values()..];
                let rate = sigmoid(of_heads[beta]);
                let stays: Vec<f32> = (head * width..(head + 1) * width)
                    .map(|channel| match net.channel_decay {
                        None => net.decay(decay[head], of_heads[alpha] + bias[head]),
                        Some(_) => net.decay(decay[head], alphas[row * values + channel] + bias[channel]),
                    })
                    .collect();
                for (row, new) in matrix.chunks_mut(width).zip(new) {
                    row.iter_mut().zip(&stays).for_each(|(value, stays)| *value *= stays);
                    let change = rate * (new - product(row, &k));
                    row.iter_mut().zip(&k).for_each(|(value, k)| *value += change * k);
                    read.push(product(row, &q) / (width as f32).sqrt());
                }
            }
            (read, matrix)
        });
        keep_states(windows, states);
        let mut read = self.normed(Role::StateNorm, read);
        let open = |gate: f32| if net.has_sigmoid_gate() { 1.0 } else { gate };
        read.iter_mut().zip(gate).for_each(|(read, gate)| *read *= open(gate) * sigmoid(gate));
        self.times(Role::StateOutput, &read)
    }

    /// Computes `out (norm(y silu(z)))`. Each value's state is written along `B`, then read along `C` to give
    /// `y`.
    pub(super) fn state_space(&self, space: StateSpace, x: &[f32], windows: &mut [Window<'_>]) -> Vec<f32> {
        let (inner, channels, heads) = (space.inner_width(), space.channels(), space.heads);
        let (states, width) = (space.state, space.head_width);
        let projected = self.times(Role::StateInput, x);
        let of_part = |first, count| columns(&projected, inner + channels + heads, first, count);
        let (gate, mixed, steps) =
            (of_part(0, inner), of_part(inner, channels), of_part(inner + channels, heads));
        let [taps, bias, decay, skip] = [Role::StateTaps, Role::StateBias, Role::StateDecay, Role::StateSkip]
            .map(|role| self.values(role));
        keep(windows, &mixed, |past| &mut past.convolved);
        let mixed = self.convolved(&taps, (channels, 1), windows, |past| &past.convolved);
        let mut mixed = self.biased(Role::StateTapsBias, mixed);
        self.products.each_row(&mut mixed, channels, |_, mixed| mixed.iter_mut().for_each(silu));
        let (mut read, kept) = self.by_head(windows, heads, |window, first_row, head| {
            let group = head / (heads / space.groups);
            let mut state =
                window.past.states.get(head).cloned().unwrap_or_else(|| vec![0.0; width * states]);
            let mut read = Vec::with_capacity(window.tokens * width);
            for row in first_row..first_row + window.tokens {
                let (x, directions) = mixed[row * channels..][..channels].split_at(inner);
                let along = |at: usize| &directions[(at * space.groups + group) * states..][..states];
                let step = softplus(steps[row * heads + head] + bias[head]);
                let stays = (step * decay[head]).exp();
                for (state, x) in state.chunks_mut(states).zip(&x[head * width..]) {
                    state.iter_mut().zip(along(0)).for_each(|(s, b)| *s = stays * *s + step * x * b);
                    read.push(product(state, along(1)) + skip[head] * x);
                }
            }
            (read, state)
        });
        keep_states(windows, kept);
        read.iter_mut().zip(gate).for_each(|(read, gate)| *read = *read * gate * sigmoid(gate));
        let read = self.normed_by(self.part(Role::StateNorm), inner / space.groups, read);
        self.times(Role::StateOutput, &read)
    }
}

/// Keeps the states of all heads, window after window.
fn keep_states(windows: &mut [Window<'_>], states: Vec<Vec<f32>>) {
    let heads = states.len() / windows.len();
    let mut states = states.into_iter();
    for window in windows {
        window.past.states = states.by_ref().take(heads).collect();
    }
}

fn silu(x: &mut f32) {
    *x *= sigmoid(*x);
}
