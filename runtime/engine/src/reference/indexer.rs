//! The choice of positions that attention sees: see [`Indexer`].

use super::block::{Block, Window, keep, places};
use super::product;
use super::products::Products;
use crate::model::config::{Attention, Indexer, Role};

impl<P: Products> Block<'_, P> {
    /// For each new token, whether it sees each position of its window up to its own. Keeps the indexer's keys.
    pub(super) fn seen(
        &self,
        a: &Attention,
        indexer: Indexer,
        x: &[f32],
        windows: &mut [Window<'_>],
    ) -> Vec<Vec<bool>> {
        let (width, places) = (indexer.width, places(windows));
        let mut keys = self.times(Role::IndexerKey, x);
        self.round(&mut keys, width);
        keep(windows, &keys, |past| &mut past.indexed);
        let mut queries = self.normed(Role::IndexerQueryNorm, self.times(Role::IndexerQuery, x));
        let positions: Vec<usize> = places.iter().map(|&(_, position)| position).collect();
        self.rotate(a, &positions, &mut queries, (width, 0));
        let blocks: Vec<Vec<f32>> = windows.iter().map(|window| self.means(a, indexer, window)).collect();
        self.products.pieces(places.len(), |row| {
            let (window, position) = places[row];
            let mut seen = vec![true; position + 1];
            if !indexer.chooses(position) {
                return seen;
            }
            let whole = indexer.whole_blocks(position);
            let queries = &queries[row * indexer.heads * width..][..indexer.heads * width];
            let score = |block: &[f32]| -> f32 {
                queries.chunks(width).map(|query| product(query, block).max(0.0)).sum()
            };
            let scores: Vec<f32> = blocks[window].chunks(width).take(whole).map(score).collect();
            let mut order: Vec<usize> = (0..whole).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            for &block in &order[indexer.blocks..] {
                seen[block * indexer.positions..][..indexer.positions].fill(false);
            }
            seen
        })
    }

    /// The mean key of each whole block of a window, normalised and rotated: `[blocks, width]`.
    fn means(&self, a: &Attention, indexer: Indexer, window: &Window<'_>) -> Vec<f32> {
        let (width, count) = (indexer.width, indexer.positions);
        let of_block = |keys: &[f32]| -> Vec<f32> {
            let sum = |at: usize| keys.iter().skip(at).step_by(width).sum::<f32>();
            (0..width).map(|at| sum(at) / count as f32).collect()
        };
        let means: Vec<f32> = window.past.indexed.chunks_exact(count * width).flat_map(of_block).collect();
        if means.is_empty() {
            return means;
        }
        let positions: Vec<usize> = (0..means.len() / width).map(|block| block * count).collect();
        let mut means = self.normed(Role::IndexerKeyNorm, means);
        self.rotate(a, &positions, &mut means, (width, 0));
        self.round(&mut means, width);
        means
    }
}
