//! Data of a stream beside its rows: tokens' own inputs of each block, and keys and values that later blocks read. Residual streams, if
//! there are several, come before those: see [`super::streams`].

use flashplan::internals::model::config::{Config, Role};
use flashplan::internals::model::source::SourceModel;
use kernels::{Activation, dequantise};
use rayon::prelude::*;

use super::products::transposed;
use super::streams::streams_width;
use super::{Layer, normed_rows};

/// The blocks whose keys and values later ones read, and the keys' place in a row of [`super::Stream::shared`]; values follow.
fn owners(c: &Config) -> Vec<(usize, usize)> {
    let mut owners: Vec<usize> = c.attentions().filter_map(|attention| attention.shares).collect();
    owners.sort_unstable();
    owners.dedup();
    let mut end = streams_width(c);
    let place = |owner| {
        let at = end;
        end += 2 * c.attention(owner).kv_width();
        (owner, at)
    };
    owners.into_iter().map(place).collect()
}

/// Values of a token's residual streams, if there are several, and of its shared keys and values.
pub fn shared_width(c: &Config) -> usize {
    owners(c).last().map_or(streams_width(c), |&(owner, at)| at + 2 * c.attention(owner).kv_width())
}

/// The embeddings of tokens: `[tokens, width]`.
pub(super) fn embedded(source: &SourceModel<'_>, tokens: &[u32]) -> Vec<f32> {
    let embedding = source.token_embedding();
    let (width, scale) = (source.config().width, source.config().embedding_scale);
    let mut x = vec![0.0; tokens.len() * width];
    x.par_chunks_mut(width).zip(tokens).for_each(|(x, &token)| {
        dequantise(embedding.format, embedding.row(token as usize).bytes, x);
        x.iter_mut().for_each(|x| *x *= scale);
    });
    x
}

impl Layer<'_> {
    /// The place of a block's keys in a row of shared values, if later blocks read them, and the keys' width.
    fn shared_place(&self, owner: usize) -> Option<(usize, usize)> {
        let c = self.source.config();
        let places = owners(c);
        let (_, at) = places.into_iter().find(|&(block, _)| block == owner)?;
        Some((at, c.attention(owner).kv_width()))
    }

    /// Keeps the block's keys and values, `[tokens, kv_width]`, if later blocks read them.
    pub(super) fn share(&self, key: &[f32], value: &[f32], shared: &mut [f32]) {
        let Some((at, width)) = self.shared_place(self.block) else { return };
        let rows = shared.chunks_mut(shared_width(self.source.config()));
        for ((row, key), value) in rows.zip(key.chunks(width)).zip(value.chunks(width)) {
            row[at..][..width].copy_from_slice(key);
            row[at + width..][..width].copy_from_slice(value);
        }
    }

    /// The keys and values of an earlier block.
    pub(super) fn of_owner(&self, owner: usize, shared: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let Some((at, width)) = self.shared_place(owner) else { return Default::default() };
        let stride = shared_width(self.source.config());
        let half = |at: usize| shared.chunks(stride).flat_map(|row| &row[at..][..width]).copied().collect();
        (half(at), half(at + width))
    }

    /// The output of the block's own input of each token, and of the stream that its gate reads; `None` without per-layer embeddings.
    pub(super) fn own_inputs(&self, x: &[f32], tokens: &[u32]) -> Option<Vec<f32>> {
        let c = self.source.config();
        let (own, table) = (c.per_layer_width?, self.source.row_table()?);
        let times = |role: Role, x: &[f32]| transposed(&self.times(self.part(role), None, x), tokens.len());
        let mut projected = times(Role::PerLayerProjection, &embedded(self.source, tokens));
        projected.iter_mut().for_each(|value| *value /= (c.width as f32).sqrt());
        let mut values = normed_rows(&projected, self.part(Role::PerLayerNorm), own, c.norm_epsilon);
        let gates = times(Role::PerLayerGate, x);
        let rows = values.par_chunks_mut(own).zip(gates.par_chunks(own)).zip(tokens);
        rows.for_each(|((values, gates), &token)| {
            let mut row = vec![0.0; table.columns];
            dequantise(table.format, table.row(token as usize).bytes, &mut row);
            for ((value, gate), embedding) in values.iter_mut().zip(gates).zip(&row[self.block * own..]) {
                let input = (*value + (own as f32).sqrt() * embedding) / 2_f32.sqrt();
                *value = Activation::Gelu.apply(*gate, input);
            }
        });
        Some(self.normed_by(Role::PerLayerPostNorm, &times(Role::PerLayerOutput, &values)))
    }
}
