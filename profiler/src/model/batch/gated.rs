//! Gated residual streams of windows of text, in the place that [`super::streams`] has, and n-grams.

use flashplan::internals::model::config::{NGrams, Role};
use kernels::{Matrix, dequantise, rms_norm};
use rayon::prelude::*;

use super::mixers::sigmoid;
use super::products::{transposed, values_of};
use super::shared::shared_width;
use super::streams::{product, taken};
use super::{BATCH_TOKENS, Layer, Stream};

/// Who reads gated streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Place {
    /// The block's mixer.
    Mixer,
    /// The block's network.
    Network,
    /// The head.
    Head,
}

impl Layer<'_> {
    /// Makes the stream of what is read of gated streams at a place; without those, leaves it as it is.
    pub(super) fn mix(&self, place: Place, stream: &mut Stream) {
        let c = self.source.config();
        let shared = stream.shared.chunks(BATCH_TOKENS * shared_width(c).max(1));
        stream
            .x
            .chunks_mut(BATCH_TOKENS * c.width)
            .zip(shared)
            .for_each(|(x, shared)| self.mix_rows(place, x, shared));
    }

    /// [`Self::mix`] for some tokens.
    pub(super) fn mix_rows(&self, place: Place, x: &mut [f32], shared: &[f32]) {
        let c = self.source.config();
        let Some(streams) = c.streams.filter(|streams| streams.are_gated()) else { return };
        let (count, width, tokens) = (streams.count as f32, c.width, x.len() / c.width);
        let part = |role| self.part(role);
        let (norm, down, up) = match place {
            Place::Mixer => (part(Role::MixerGateNorm), Role::MixerGateDown, Role::MixerGateUp),
            Place::Network => (part(Role::NetworkGateNorm), Role::NetworkGateDown, Role::NetworkGateUp),
            Place::Head => (self.source.output_norm(), Role::OutputGateDown, Role::OutputGateUp),
        };
        let rows = |role, x: &[f32]| transposed(&self.times(part(role), None, x), tokens);
        let normed = self.normed_streams(norm, shared);
        let mut low = rows(down, &normed);
        low.iter_mut().for_each(|value| *value = *value / count * sigmoid(*value / count));
        let gates = rows(up, &low);
        let all = c.streams_width();
        let of_rows = x.par_chunks_mut(width).zip(normed.par_chunks(all)).zip(gates.par_chunks(all));
        of_rows.for_each(|((x, normed), gates)| {
            x.fill(0.0);
            for (at, (value, gate)) in normed.iter().zip(gates).enumerate() {
                x[at % width] += sigmoid(*gate) * value / count;
            }
        });
    }

    /// Adds the output of a mixer or network to all streams, each with its weight.
    pub(super) fn inject(&self, place: Place, out: &[f32], shared: &mut [f32]) {
        let c = self.source.config();
        let (norm, inject) = match place {
            Place::Mixer => (Role::MixerGateNorm, Role::MixerInject),
            Place::Network | Place::Head => (Role::NetworkGateNorm, Role::NetworkInject),
        };
        let (width, stride, count) = (c.width, shared_width(c), c.streams_width() / c.width);
        let shared = &mut shared[..out.len() / width * stride];
        let weights = product(self.part(inject), &self.normed_streams(self.part(norm), shared));
        let rows = shared.par_chunks_mut(stride).zip(out.par_chunks(width)).zip(weights.par_chunks(count));
        rows.for_each(|((row, out), weights)| {
            for (stream, weight) in row.chunks_mut(width).zip(weights) {
                let by = 2.0 * sigmoid(weight / count as f32);
                stream.iter_mut().zip(out).for_each(|(stream, out)| *stream += by * out);
            }
        });
    }

    /// Adds what the block's n-grams say to all streams, window after window.
    pub(super) fn add_ngrams(&self, stream: &mut Stream) {
        let c = self.source.config();
        let Some(ngrams) = c.ngrams_of(self.block) else { return };
        let mut start = 0;
        for &window in &stream.windows {
            let (tokens, stride) = (&stream.tokens[start..start + window], shared_width(c));
            self.add_ngrams_to(ngrams, tokens, &mut stream.shared[start * stride..][..window * stride]);
            start += window;
        }
    }

    fn add_ngrams_to(&self, ngrams: &NGrams, tokens: &[u32], shared: &mut [f32]) {
        let c = self.source.config();
        let (width, all, stride) = (c.width, c.streams_width(), shared_width(c));
        let Some(table) = self.source.row_table() else { return };
        let mut rows = vec![0.0; tokens.len() * ngrams.values()];
        rows.par_chunks_mut(ngrams.values()).enumerate().for_each(|(at, rows)| {
            let mut last: Vec<u32> = tokens[..=at].iter().rev().take(ngrams.tokens()).copied().collect();
            last.resize(ngrams.tokens(), ngrams.end);
            for (row, values) in ngrams.rows_of(&last).zip(rows.chunks_mut(ngrams.row_width)) {
                dequantise(table.format, table.row(row as usize).bytes, values);
            }
        });
        let times = |role| transposed(&self.times(self.part(role), None, &rows), tokens.len());
        let (keys, values) = (times(Role::NGramKey), times(Role::NGramValue));
        let keys = self.normed_rows_of_streams(self.part(Role::NGramKeyNorm), &keys);
        let queries = self.normed_streams(self.part(Role::NGramQueryNorm), shared);
        let mut added = vec![0.0; keys.len()];
        added.par_chunks_mut(width).enumerate().for_each(|(at, added)| {
            let [key, query] = [&keys, &queries].map(|all| &all[at * width..][..width]);
            let alike: f32 = key.iter().zip(query).map(|(key, query)| key * query).sum();
            let alike = alike / (width as f32).sqrt();
            let gate = sigmoid(alike.abs().max(NGrams::LEAST).sqrt() * alike.signum());
            let value = &values[at * width / all * width..][..width];
            added.iter_mut().zip(value).for_each(|(added, value)| *added = gate * value);
        });
        let inputs = self.normed_rows_of_streams(self.part(Role::NGramConvolutionNorm), &added);
        let taps = values_of(self.part(Role::NGramTaps));
        shared.par_chunks_mut(stride).enumerate().for_each(|(position, row)| {
            for (channel, value) in row[..all].iter_mut().enumerate() {
                let taps = &taps[channel * ngrams.taps..][..ngrams.taps];
                let term = |back: usize| {
                    let at = position.checked_sub(back * ngrams.tokens());
                    at.map_or(0.0, |at| taps[ngrams.taps - 1 - back] * inputs[at * all + channel])
                };
                let sum: f32 = (0..ngrams.taps).map(term).sum();
                *value += added[position * all + channel] + sum * sigmoid(sum);
            }
        });
    }

    /// The streams of tokens, each normalised: `[tokens, streams, width]`.
    fn normed_streams(&self, weight: Matrix<'_>, shared: &[f32]) -> Vec<f32> {
        let c = self.source.config();
        self.normed_rows_of_streams(weight, &taken(shared, shared_width(c), 0, c.streams_width()))
    }

    /// Rows of all streams, each stream normalised with its own weights.
    fn normed_rows_of_streams(&self, weight: Matrix<'_>, rows: &[f32]) -> Vec<f32> {
        let (width, epsilon) = (self.source.config().width, self.source.config().norm_epsilon);
        let weight = values_of(weight);
        let mut normed = vec![0.0; rows.len()];
        normed.par_chunks_mut(width).zip(rows.par_chunks(width)).enumerate().for_each(
            |(at, (normed, row))| {
                rms_norm(row, &weight[at * width % weight.len()..][..width], epsilon, normed);
            },
        );
        normed
    }
}
