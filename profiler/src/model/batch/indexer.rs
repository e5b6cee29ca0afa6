//! The positions that tokens of windows of text see, where an indexer chooses them.

use flashplan::internals::model::config::{Attention, Indexer, Role};
use flashplan::internals::reference::rounded;
use flashplan::internals::rotary::Rotary;
use kernels::Rotation;
use rayon::prelude::*;

use super::products::transposed;
use super::{Layer, normed_rows};

impl Layer<'_> {
    /// For each token whether it sees each position of its window up to its own.
    pub(super) fn chosen(
        &self,
        a: &Attention,
        indexer: Indexer,
        normed: &[f32],
        windows: &[usize],
    ) -> Vec<Vec<bool>> {
        let c = self.source.config();
        let (tokens, width) = (normed.len() / c.width, indexer.width);
        let rows = |role| transposed(&self.times(self.part(role), None, normed), tokens);
        let queries =
            normed_rows(&rows(Role::IndexerQuery), self.part(Role::IndexerQueryNorm), width, c.norm_epsilon);
        let longest = windows.iter().copied().max().unwrap_or(0);
        let rotary = a.rope.map(|rope| Rotary::new(&c.ropes[rope], longest));
        let rotate = |values: &mut [f32], position: usize| {
            let Some(rotary) = &rotary else { return };
            let mut rotations = vec![Rotation::default(); rotary.pairs()];
            rotary.fill(position, &mut rotations);
            rotary.rotate(values, width, &rotations);
        };
        let kept = |values: &[f32]| self.kv.map_or_else(|| values.to_vec(), |format| rounded(format, values));
        let keys: Vec<f32> = rows(Role::IndexerKey).chunks(width).flat_map(kept).collect();
        let (mut start, mut all) = (0, Vec::with_capacity(tokens));
        for &window in windows {
            let keys = &keys[start * width..][..window * width];
            let means: Vec<f32> = (keys.chunks_exact(indexer.positions * width))
                .flat_map(|keys| {
                    let sum = |at: usize| keys.iter().skip(at).step_by(width).sum::<f32>();
                    (0..width).map(move |at| sum(at) / indexer.positions as f32)
                })
                .collect();
            let means = normed_rows(&means, self.part(Role::IndexerKeyNorm), width, c.norm_epsilon);
            let means: Vec<Vec<f32>> = (means.chunks(width).enumerate())
                .map(|(at, mean)| {
                    let mut mean = mean.to_vec();
                    rotate(&mut mean, at * indexer.positions);
                    kept(&mean)
                })
                .collect();
            let of_window = (0..window).into_par_iter().map(|position| {
                let whole = indexer.whole_blocks(position);
                if !indexer.chooses(position) {
                    return vec![true; position + 1];
                }
                let queries = &queries[(start + position) * indexer.heads * width..][..indexer.heads * width];
                let mut queries = queries.to_vec();
                rotate(&mut queries, position);
                let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
                let score =
                    |at: usize| queries.chunks(width).map(|query| dot(query, &means[at]).max(0.0)).sum();
                let scores: Vec<f32> = (0..whole).map(score).collect();
                let mut order: Vec<usize> = (0..whole).collect();
                order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
                let mut seen = vec![false; position + 1];
                seen[whole * indexer.positions..].fill(true);
                for &at in &order[..indexer.blocks] {
                    seen[at * indexer.positions..][..indexer.positions].fill(true);
                }
                seen
            });
            all.extend(of_window.collect::<Vec<_>>());
            start += window;
        }
        all
    }
}
