//! Gated residual streams, and n-grams: see [`Mixing`](crate::model::config::Mixing) and [`NGrams`].

use super::{Reference, add, norm, product, sigmoid, values};
use crate::model::config::{NGrams, Role};
use kernels::{Matrix, dequantise};

/// The roles around a mixer or a network: norm, gates and weights of streams.
type Roles = [Role; 4];
pub(super) const MIXER: Roles =
    [Role::MixerGateNorm, Role::MixerGateDown, Role::MixerGateUp, Role::MixerInject];
pub(super) const NETWORK: Roles =
    [Role::NetworkGateNorm, Role::NetworkGateDown, Role::NetworkGateUp, Role::NetworkInject];

impl Reference<'_> {
    /// The input of a block's mixer or network.
    pub(super) fn mixed(&self, block: usize, roles: Roles, streams: &[Vec<f32>]) -> Vec<f32> {
        let [norm, down, up, _] = roles.map(|role| self.part(block, role));
        self.gated_mean(norm, [down, up], streams)
    }

    /// The input of the head.
    pub(super) fn mixed_for_head(&self, streams: &[Vec<f32>]) -> Vec<f32> {
        let last = self.model.config().blocks.len() - 1;
        let gates = [Role::OutputGateDown, Role::OutputGateUp].map(|role| self.part(last, role));
        self.gated_mean(self.model.output_norm(), gates, streams)
    }

    /// Adds the output of a mixer or network to all streams, each with its weight.
    pub(super) fn inject(&self, block: usize, roles: Roles, streams: &mut [Vec<f32>], out: &[f32]) {
        let [norm, .., inject] = roles.map(|role| self.part(block, role));
        let count = streams.len() as f32;
        let weights = self.times(inject, &self.normed_streams(norm, streams));
        for (stream, weight) in streams.iter_mut().zip(weights) {
            add(stream, 2.0 * sigmoid(weight / count), out);
        }
    }

    /// Adds what the n-grams that end with a token say to all streams.
    pub(super) fn add_ngrams(&mut self, block: usize, ngrams: &NGrams, token: u32, streams: &mut [Vec<f32>]) {
        let mut last = vec![token];
        last.extend(&self.last);
        last.resize(ngrams.tokens(), ngrams.end);
        let rows: Vec<f32> = ngrams.rows_of(&last).flat_map(|row| self.table_row(row)).collect();
        last.truncate(ngrams.tokens() - 1);
        self.last = last;
        let keys = self.times(self.part(block, Role::NGramKey), &rows);
        let value = self.times(self.part(block, Role::NGramValue), &rows);
        let width = value.len();
        let keys: Vec<Vec<f32>> = keys.chunks(width).map(<[f32]>::to_vec).collect();
        let keys = self.normed_streams(self.part(block, Role::NGramKeyNorm), &keys);
        let queries = self.normed_streams(self.part(block, Role::NGramQueryNorm), streams);
        let added: Vec<Vec<f32>> = (keys.chunks(width).zip(queries.chunks(width)))
            .map(|(key, query)| {
                let alike = product(key, query) / (width as f32).sqrt();
                let gate = sigmoid(alike.abs().max(NGrams::LEAST).sqrt() * alike.signum());
                value.iter().map(|value| gate * value).collect()
            })
            .collect();
        let inputs = self.normed_streams(self.part(block, Role::NGramConvolutionNorm), &added);
        let taps = values(self.part(block, Role::NGramTaps));
        let before = self.ngram_inputs.clone();
        let step = ngrams.tokens();
        for (at, (stream, added)) in streams.iter_mut().zip(&added).enumerate() {
            for (value, (stream, added)) in stream.iter_mut().zip(added).enumerate() {
                let channel = at * width + value;
                let taps = &taps[channel * ngrams.taps..][..ngrams.taps];
                let of = |back: usize| match back {
                    0 => inputs[channel],
                    _ => before
                        .len()
                        .checked_sub(back * step)
                        .map_or(0.0, |position| before[position][channel]),
                };
                let sum: f32 = (0..ngrams.taps).map(|tap| taps[tap] * of(ngrams.taps - 1 - tap)).sum();
                *stream += added + sum * sigmoid(sum);
            }
        }
        self.ngram_inputs.push(inputs);
    }

    /// A row of the table.
    fn table_row(&self, row: u32) -> Vec<f32> {
        let Some(table) = self.model.row_table() else { return Vec::new() };
        let mut out = vec![0.0; table.columns];
        dequantise(table.format, table.row(row as usize).bytes, &mut out);
        out
    }

    /// The mean of the normalised streams, each value times its gate.
    fn gated_mean(&self, norm: Matrix<'_>, [down, up]: [Matrix<'_>; 2], streams: &[Vec<f32>]) -> Vec<f32> {
        let normed = self.normed_streams(norm, streams);
        let (count, width) = (streams.len() as f32, streams[0].len());
        let silu = |value: f32| value / count * sigmoid(value / count);
        let low: Vec<f32> = self.times(down, &normed).into_iter().map(silu).collect();
        let mut mean = vec![0.0; width];
        for (at, (gate, normed)) in self.times(up, &low).into_iter().zip(normed).enumerate() {
            mean[at % width] += sigmoid(gate) * normed / count;
        }
        mean
    }

    /// The streams one after another, each normalised with its weights.
    fn normed_streams(&self, weight: Matrix<'_>, streams: &[Vec<f32>]) -> Vec<f32> {
        let (weight, epsilon) = (values(weight), self.model.config().norm_epsilon);
        let each = streams.iter().zip(weight.chunks(streams[0].len()));
        each.flat_map(|(stream, weight)| norm(stream, weight, epsilon)).collect()
    }
}
