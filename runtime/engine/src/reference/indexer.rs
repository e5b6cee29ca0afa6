//! The choice of positions that attention sees: see [`Indexer`](crate::model::config::Indexer).

use super::{Reference, norm, product, rounded, values};
use crate::model::config::{Attention, Role};
use crate::rotary::Rotary;
use kernels::Rotation;

impl Reference<'_> {
    /// Whether the token sees each position up to its own; `None` if it sees all. Keeps the indexer's key.
    pub(super) fn chosen(&mut self, block: usize, a: &Attention, x: &[f32]) -> Option<Vec<bool>> {
        let indexer = a.indexer?;
        let (epsilon, position) = (self.model.config().norm_epsilon, self.position);
        let key = self.times(self.part(block, Role::IndexerKey), x);
        self.indexed[block].extend(rounded(self.kv_format, &key));
        let whole = indexer.whole_blocks(position);
        if !indexer.chooses(position) {
            return None;
        }
        let rotated = |mut values: Vec<f32>, position: usize| {
            let Some(rope) = a.rope else { return values };
            let rotary = Rotary::new(&self.model.config().ropes[rope], self.context);
            let mut rotations = vec![Rotation::default(); rotary.pairs()];
            rotary.fill(position, &mut rotations);
            rotary.rotate(&mut values, indexer.width, &rotations);
            values
        };
        let [query_norm, key_norm] =
            [Role::IndexerQueryNorm, Role::IndexerKeyNorm].map(|role| values(self.part(block, role)));
        let queries = self.times(self.part(block, Role::IndexerQuery), x);
        let queries = queries.chunks(indexer.width).flat_map(|query| norm(query, &query_norm, epsilon));
        let queries = rotated(queries.collect(), position);
        let score = |at: usize| -> f32 {
            let first = at * indexer.positions;
            let keys = &self.indexed[block][first * indexer.width..][..indexer.positions * indexer.width];
            let mut mean = vec![0.0; indexer.width];
            for key in keys.chunks(indexer.width) {
                mean.iter_mut().zip(key).for_each(|(mean, key)| *mean += key / indexer.positions as f32);
            }
            let key = rounded(self.kv_format, &rotated(norm(&mean, &key_norm, epsilon), first));
            queries.chunks(indexer.width).map(|query| product(query, &key).max(0.0)).sum()
        };
        let scores: Vec<f32> = (0..whole).map(score).collect();
        let mut order: Vec<usize> = (0..whole).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let mut seen = vec![false; position + 1];
        seen[whole * indexer.positions..].fill(true);
        for &at in &order[..indexer.blocks] {
            seen[at * indexer.positions..][..indexer.positions].fill(true);
        }
        Some(seen)
    }
}
