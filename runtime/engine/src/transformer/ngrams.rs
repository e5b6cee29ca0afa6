//! N-grams of each row: see [`NGrams`].
//!
//! ```text
//! state of a sequence   [token + 1 of each position before | inputs of the convolution by position mod positions]
//! ```
//!
//! The state is behind the mixer's. A token of 0 there is none: before the beginning.

use super::kept::Kept;
use super::matrices::multiply;
use super::vectors::add;
use super::{Token, Transformer};
use crate::delta_net::{as_row, sigmoid};
use crate::model::config::{Config, NGrams, Role};
use kernels::{Activation, rms_norm};

/// The last tokens of a row, its own first. `before` has those before the step, by how many positions back from
/// its first row.
pub(super) fn last_tokens(
    ngrams: &NGrams,
    rows: &[Token],
    row: usize,
    before: impl Fn(usize) -> Option<u32>,
) -> [u32; NGrams::TOKENS_MAX] {
    let mut last = [ngrams.end; NGrams::TOKENS_MAX];
    let own = rows[..=row].iter().rev().take_while(|other| other.sequence == rows[row].sequence);
    let tokens = own.map(|row| row.token).chain((0..ngrams.tokens()).map_while(before));
    last.iter_mut().zip(tokens).for_each(|(last, token)| *last = token);
    last
}

impl Kept {
    /// The token that a sequence had `back` positions before the last one of its state; `None` before its beginning.
    pub(super) fn token_before(&self, c: &Config, row: &Token, back: usize) -> Option<u32> {
        let ngrams = c.ngrams.as_ref()?;
        let state = self.states.as_ref()?.read(row.sequence as usize, self.at[ngrams.block]);
        let own = &state[state.len() - ngrams.state_values(c.streams_width())..];
        let stored = *own[..ngrams.tokens() - 1].get(back)? as u32;
        stored.checked_sub(1)
    }
}

impl Transformer {
    /// Adds what n-grams say to all streams of the rows, one after another.
    pub(super) fn ngram_block(&mut self, block: usize, rows: &[Token]) {
        let (c, w, kernels) = (&self.config, &self.weights, self.compute.kernels);
        let (Some(ngrams), Some(states)) = (&c.ngrams, &mut self.kept.states) else { return };
        let (count, width, all) = (rows.len(), c.width, c.streams_width());
        let parts = [w.matrix(block, Role::NGramKey), w.matrix(block, Role::NGramValue)];
        let x = &mut self.buffers.own_inputs[count * width..][..count * ngrams.values()];
        let (made, spare) = self.buffers.projections.split_at_mut(count * (all + width));
        let words = &mut self.layers.feed_forward.rounded[0];
        multiply(&self.compute, &mut self.fetcher, words, &parts, x, spare, (&mut *made, 0));

        let values = |role| w.values(block, role).unwrap_or_default();
        let [key_norm, query_norm, norm, taps] =
            [Role::NGramKeyNorm, Role::NGramQueryNorm, Role::NGramConvolutionNorm, Role::NGramTaps]
                .map(values);
        let (a, b) = (&mut self.buffers.normed[..width], &mut self.buffers.block_output[..width]);
        let of_rows = made.chunks_exact(all + width).zip(self.buffers.streams.chunks_exact_mut(all));
        for (token, (made, streams)) in rows.iter().zip(of_rows) {
            let state = states.of(token.sequence as usize, self.kept.at[block]);
            let start = state.len() - ngrams.state_values(all);
            let (tokens, inputs) = state[start..].split_at_mut(ngrams.tokens() - 1);
            let (keys, value) = made.split_at(all);
            for (at, (stream, key)) in
                streams.chunks_exact_mut(width).zip(keys.chunks_exact(width)).enumerate()
            {
                let of_stream = at * width..(at + 1) * width;
                rms_norm(key, &key_norm[of_stream.clone()], c.norm_epsilon, a);
                rms_norm(stream, &query_norm[of_stream.clone()], c.norm_epsilon, b);
                let alike = kernels.dot(as_row(a), b) / (width as f32).sqrt();
                let gate = sigmoid(alike.abs().max(NGrams::LEAST).sqrt() * alike.signum());
                a.iter_mut().zip(value).for_each(|(added, value)| *added = gate * value);
                rms_norm(a, &norm[of_stream.clone()], c.norm_epsilon, b);
                add(stream, a, 1.0);
                let taps = &taps[of_stream.start * ngrams.taps..of_stream.end * ngrams.taps];
                convolve(ngrams, taps, inputs, (all, of_stream.start), token.position, b);
                add(stream, b, 1.0);
            }
            tokens.copy_within(..ngrams.tokens() - 2, 1);
            tokens[0] = (token.token + 1) as f32; // exact: a vocabulary has fewer than 2^24 tokens
        }
    }
}

/// Replaces a stream's inputs by `silu` of their convolution over every `n`-th position, and keeps them.
///
/// *Shapes*: `taps: [width, taps]`, `inputs: [positions, stride]`, where the stream begins at `first`.
fn convolve(
    ngrams: &NGrams,
    taps: &[f32],
    inputs: &mut [f32],
    (stride, first): (usize, usize),
    position: usize,
    values: &mut [f32],
) {
    let (positions, count) = (ngrams.state_positions(), ngrams.taps);
    let now = position % positions;
    for (at, (value, taps)) in values.iter_mut().zip(taps.chunks_exact(count)).enumerate() {
        // before the beginning all are zero
        let place =
            |back: usize| (now + positions - back * ngrams.tokens()) % positions * stride + first + at;
        let before = (1..count).rev().map(|back| taps[count - 1 - back] * inputs[place(back)]).sum::<f32>();
        let sum = before + taps[count - 1] * *value;
        inputs[now * stride + first + at] = *value;
        *value = Activation::Silu.of_gate(sum);
    }
}
