//! Attention, and latent attention in the form that [`Latent`] has.

use super::block::{Block, Window, beside, columns, keep, positions};
use super::products::{Products, Strided};
use super::{bounded, rounded, sigmoid, values};
use crate::model::config::{Attention, Latent, Role};
use crate::rotary::Rotary;
use kernels::{Format, Matrix, Rotation, rms_norm_in_place, softmax};

impl<P: Products> Block<'_, P> {
    /// Computes `out softmax(scale q k^T) v`, over the positions that each token sees.
    pub(super) fn attention(&self, a: &Attention, x: &[f32], windows: &mut [Window<'_>]) -> Vec<f32> {
        let [query, key, value, output] = self.model.projections(self.at);
        let positions = positions(windows);
        let mut query = self.biased(Role::QueryBias, self.products.times(query, x));
        let mut gate = Vec::new();
        if a.gate {
            // each head's query, then its gate
            let of = |first| columns(&query, 2 * a.head_width, first, a.head_width);
            (query, gate) = (of(0), of(a.head_width));
        }
        query = self.normed(Role::QueryNorm, query);
        self.rotate(a, &positions, &mut query, (a.head_width, 0));
        if let Some(temperature) = a.temperature {
            self.products.each_row(&mut query, a.query_width(), |at, query| {
                query.iter_mut().for_each(|query| *query *= temperature.factor(positions[at]));
            });
        }
        if a.shares.is_none() {
            let value = if a.values_are_keys { key } else { value };
            let mut key = self.normed(Role::KeyNorm, self.biased(Role::KeyBias, self.products.times(key, x)));
            let mut value = self.biased(Role::ValueBias, self.products.times(value, x));
            if a.value_norm {
                let epsilon = self.config().norm_epsilon;
                self.products.each_row(&mut value, a.head_width, |_, head| rms_norm_in_place(head, epsilon));
            }
            self.rotate(a, &positions, &mut key, (a.head_width, 0));
            for rows in [&mut key, &mut value] {
                self.round(rows, a.head_width);
            }
            keep(windows, &key, |past| &mut past.keys);
            keep(windows, &value, |past| &mut past.values);
        }
        let seen = a.indexer.map(|indexer| self.seen(a, indexer, x, windows));
        let mut attended = self.attended(a, &query, windows, seen.as_deref());
        attended.iter_mut().zip(gate).for_each(|(attended, gate)| *attended *= sigmoid(gate));
        self.biased(Role::AttentionOutputBias, self.products.times(output, &attended))
    }

    /// Computes [`Latent`]'s output. All heads share the stored vector as their key, and its front as their value.
    pub(super) fn latent_attention(
        &self,
        a: &Attention,
        latent: Latent,
        x: &[f32],
        windows: &mut [Window<'_>],
    ) -> Vec<f32> {
        let (positions, width, stored) = (positions(windows), latent.query_width(), a.head_width);
        let query = match latent.query_rank {
            None => self.times(Role::Query, x),
            Some(_) => {
                let low = self.normed(Role::QueryDownNorm, self.times(Role::QueryDown, x));
                self.times(Role::QueryUp, &low)
            }
        };
        let mut vectors = self.times(Role::LatentDown, x);
        let fronts = self.normed(Role::LatentNorm, columns(&vectors, stored, 0, latent.rank));
        for (vector, front) in vectors.chunks_mut(stored).zip(fronts.chunks(latent.rank)) {
            vector[..latent.rank].copy_from_slice(front);
        }
        self.rotate(a, &positions, &mut vectors, (stored, latent.rank));
        self.round(&mut vectors, stored);
        keep(windows, &vectors, |past| &mut past.keys);

        let plain = self.times_by_head(Role::KeyUp, a.heads, &query, width);
        let rotated = columns(&query, width, latent.plain, latent.rotated);
        let heads = plain.chunks(latent.rank).zip(rotated.chunks(latent.rotated));
        let mut query: Vec<f32> = heads.flat_map(|(plain, rotated)| [plain, rotated].concat()).collect();
        self.rotate(a, &positions, &mut query, (stored, latent.rank));
        let read = self.attended(a, &query, windows, None);
        let mut attended = self.times_by_head(Role::ValueUp, a.heads, &read, stored);
        if latent.gate {
            let heads = attended.chunks_mut(latent.value).zip(self.times(Role::HeadGates, x));
            heads.for_each(|(head, gate)| head.iter_mut().for_each(|value| *value *= sigmoid(gate)));
        }
        self.times(Role::AttentionOutput, &attended)
    }

    /// Computes `softmax(scale q k^T) v` of each head: `[tokens, query_width]`.
    ///
    /// `seen` has whether a token sees each position up to its own; without, it sees all.
    ///
    /// *Shapes*: `query: [tokens, query_width]`.
    fn attended(
        &self,
        a: &Attention,
        query: &[f32],
        windows: &[Window<'_>],
        seen: Option<&[Vec<bool>]>,
    ) -> Vec<f32> {
        let (width, query_width, kv_width) = (a.head_width, a.query_width(), a.kv_width());
        let sinks = self.model.part(self.at, Role::Sinks).map(values);
        let of_head = |window: &Window<'_>, first_row: usize, head: usize| {
            let past = window.owner.unwrap_or(&*window.past);
            let (keys, values) = (&past.keys, if a.latent.is_some() { &past.keys } else { &past.values });
            let (new, all) = (window.tokens, window.first() + window.tokens);
            let at = head / (a.heads / a.kv_heads) * width;
            let query = &query[first_row * query_width + head * width..];
            let q = Strided { values: query, row: query_width, column: 1 };
            let k = Strided { values: &keys[at..], row: 1, column: kv_width };
            let v = Strided { values: &values[at..], row: kv_width, column: 1 };
            let mut scores = self.products.product((new, width, all), q, k);
            for (i, scores) in scores.chunks_mut(all).enumerate() {
                let position = window.first() + i;
                let (scores, later) = scores.split_at_mut(position + 1);
                let first = a.first_seen(position);
                let (before, scores) = scores.split_at_mut(first);
                for hidden in [before, later] {
                    hidden.fill(0.0);
                }
                scores.iter_mut().for_each(|score| *score = bounded(*score * a.scale, a.softcap));
                if let Some(seen) = seen {
                    let hidden =
                        scores.iter_mut().zip(&seen[first_row + i][first..]).filter(|(_, seen)| !**seen);
                    hidden.for_each(|(score, _)| *score = f32::NEG_INFINITY);
                }
                match &sinks {
                    None => softmax(scores),
                    // a sink adds to the sum and has no value
                    Some(sinks) => {
                        let mut all = [&*scores, &[sinks[head]]].concat();
                        softmax(&mut all);
                        scores.copy_from_slice(&all[..scores.len()]);
                    }
                }
            }
            let scores = Strided { values: &scores, row: all, column: 1 };
            (self.products.product((new, all, width), scores, v), ())
        };
        self.by_head(windows, a.heads, of_head).0
    }

    /// Rotates each vector of `width` values from value `first` on, by its token's position.
    pub(super) fn rotate(
        &self,
        a: &Attention,
        positions: &[usize],
        vectors: &mut [f32],
        (width, first): (usize, usize),
    ) {
        let Some(rope) = a.rope else { return };
        let rotary = Rotary::new(&self.config().ropes[rope], self.context);
        let of_token = vectors.len() / positions.len();
        self.products.each_row(vectors, of_token, |at, vectors| {
            let mut rotations = vec![Rotation::default(); rotary.pairs()];
            rotary.fill(positions[at], &mut rotations);
            let vectors = vectors.chunks_mut(width);
            vectors.for_each(|vector| rotary.rotate(&mut vector[first..], width - first, &rotations));
        });
    }

    /// Rounds vectors of `width` values to the format of keys and values.
    pub(super) fn round(&self, vectors: &mut [f32], width: usize) {
        if self.kv_format != Format::F32 {
            self.products.each_row(vectors, width, |_, vector| {
                vector.copy_from_slice(&rounded(self.kv_format, vector));
            });
        }
    }

    /// Each head's own matrix times the front of its vectors of `width` values: `[tokens, heads, rows]`.
    fn times_by_head(&self, role: Role, heads: usize, x: &[f32], width: usize) -> Vec<f32> {
        let all = self.part(role);
        let (rows, bytes) = (all.rows / heads, all.bytes.len() / heads);
        let of_head = |head: usize| {
            let w = Matrix { rows, bytes: &all.bytes[head * bytes..][..bytes], ..all };
            self.products.times(w, &columns(x, heads * width, head * width, w.columns))
        };
        let of_heads: Vec<Vec<f32>> = (0..heads).map(of_head).collect();
        beside(&of_heads, x.len() / (heads * width))
    }
}
