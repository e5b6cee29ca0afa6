//! Gated residual streams, and n-grams: see [`Mixing`](crate::model::config::Mixing) and [`NGrams`].

use super::block::{Block, Rows, Window, keep, places};
use super::products::Products;
use super::{add, product, sigmoid, values};
use crate::model::config::{NGrams, Role, Streams};
use kernels::dequantise;

/// Who reads gated streams.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// The block's mixer.
    Mixer,
    /// The block's network.
    Network,
    /// The head.
    Head,
}

impl<P: Products> Block<'_, P> {
    /// Makes `rows.x` what is read of gated streams at a place: the mean of the normalised streams, each value times
    /// its gate.
    pub(super) fn read_streams(&self, place: Place, rows: &mut Rows<'_>) {
        let c = self.config();
        let Some(Streams { count, .. }) = c.streams.filter(|streams| streams.are_gated()) else { return };
        let (norm, down, up) = match place {
            Place::Mixer => (self.part(Role::MixerGateNorm), Role::MixerGateDown, Role::MixerGateUp),
            Place::Network => (self.part(Role::NetworkGateNorm), Role::NetworkGateDown, Role::NetworkGateUp),
            Place::Head => (self.model.output_norm(), Role::OutputGateDown, Role::OutputGateUp),
        };
        let (count, all) = (count as f32, c.streams_width());
        let normed = self.normed_by(norm, c.width, rows.streams.to_vec());
        let mut low = self.times(down, &normed);
        low.iter_mut().for_each(|value| *value = *value / count * sigmoid(*value / count));
        let gates = self.times(up, &low);
        self.products.each_row(rows.x, c.width, |row, x| {
            x.fill(0.0);
            let values = normed[row * all..][..all].iter().zip(&gates[row * all..]);
            for (at, (value, gate)) in values.enumerate() {
                x[at % c.width] += sigmoid(*gate) * value / count;
            }
        });
    }

    /// Adds the output of a mixer or network to all streams, each with its weight.
    pub(super) fn inject(&self, place: Place, out: &[f32], streams: &mut [f32]) {
        let (norm, inject) = match place {
            Place::Mixer => (Role::MixerGateNorm, Role::MixerInject),
            Place::Network | Place::Head => (Role::NetworkGateNorm, Role::NetworkInject),
        };
        let (width, all) = (self.config().width, self.config().streams_width());
        let normed = self.normed_by(self.part(norm), width, streams.to_vec());
        let weights = self.products.times_unrounded(self.part(inject), &normed);
        let count = all / width;
        self.products.each_row(streams, all, |row, streams| {
            for (stream, weight) in streams.chunks_mut(width).zip(&weights[row * count..]) {
                add(stream, 2.0 * sigmoid(weight / count as f32), &out[row * width..]);
            }
        });
    }

    /// Adds what the n-grams that end with each token say to all streams, if the block has them.
    pub(super) fn add_ngrams(&self, rows: &mut Rows<'_>, windows: &mut [Window<'_>]) {
        let c = self.config();
        let (Some(ngrams), Some(table)) = (c.ngrams_of(self.at), self.model.row_table()) else { return };
        let (width, all, places) = (c.width, c.streams_width(), places(windows));
        let mut read = vec![0.0; places.len() * ngrams.values()];
        self.products.each_row(&mut read, ngrams.values(), |row, read| {
            let (window, position) = places[row];
            let seen = windows[window].past.tokens[..=position].iter().rev();
            let mut last: Vec<u32> = seen.take(ngrams.tokens()).copied().collect();
            last.resize(ngrams.tokens(), ngrams.end);
            for (row, values) in ngrams.rows_of(&last).zip(read.chunks_mut(ngrams.row_width)) {
                dequantise(table.format, table.row(row as usize).bytes, values);
            }
        });
        let (keys, said) = (self.times(Role::NGramKey, &read), self.times(Role::NGramValue, &read));
        let keys = self.normed_by(self.part(Role::NGramKeyNorm), width, keys);
        let queries = self.normed_by(self.part(Role::NGramQueryNorm), width, rows.streams.to_vec());
        let mut added = vec![0.0; keys.len()];
        self.products.each_row(&mut added, width, |at, added| {
            let [key, query] = [&keys, &queries].map(|all| &all[at * width..][..width]);
            let alike = product(key, query) / (width as f32).sqrt();
            let gate = sigmoid(alike.abs().max(NGrams::LEAST).sqrt() * alike.signum());
            add(added, gate, &said[at * width / all * width..]);
        });
        let inputs = self.normed_by(self.part(Role::NGramConvolutionNorm), width, added.clone());
        keep(windows, &inputs, |past| &mut past.ngrams);
        let taps = values(self.part(Role::NGramTaps));
        let sums = self.convolved(&taps, (all, ngrams.tokens()), windows, |past| &past.ngrams);
        for ((stream, added), sum) in rows.streams.iter_mut().zip(added).zip(sums) {
            *stream += added + sum * sigmoid(sum);
        }
    }
}
