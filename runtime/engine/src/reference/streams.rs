//! Alternating residual streams, and the branch beside a mixer: see [`Mixing`](crate::model::config::Mixing).

use super::{Reference, add, values};
use crate::model::config::{Role, Streams, as_long, mean_square};
use kernels::Matrix;

impl Reference<'_> {
    /// The streams of a token whose scaled embedding is `x`.
    pub(super) fn open(&self, streams: Streams, x: &[f32]) -> Vec<Vec<f32>> {
        if streams.are_gated() {
            return vec![x.to_vec(); streams.count];
        }
        let first = std::iter::once(x.to_vec());
        let matrices = streams_of(self.part(0, Role::StreamsOpen));
        let others = matrices.map(|matrix| self.as_long(matrix, x, mean_square(x)));
        let all: Vec<Vec<f32>> = first.chain(others).collect();
        assert_eq!(all.len(), streams.count, "a matrix for each stream but the first");
        all
    }

    /// Replaces the streams by their predictions; returns the first, which the block computes with.
    pub(super) fn predict(&self, block: usize, streams: &mut [Vec<f32>]) -> Vec<f32> {
        let route = self.route_streams(block, &streams[0]);
        let coefficients = self.times(self.part(block, Role::StreamsPredict), &route);
        let before = streams.to_vec();
        for (stream, row) in streams.iter_mut().zip(coefficients.chunks(before.len())) {
            for (&coefficient, other) in row.iter().zip(&before) {
                add(stream, coefficient, other);
            }
        }
        streams[0].clone()
    }

    /// Corrects the streams by what the block has computed, `x`.
    pub(super) fn correct(&self, block: usize, streams: &mut [Vec<f32>], x: &[f32]) {
        let route = self.route_streams(block, x);
        let coefficients = self.times(self.part(block, Role::StreamsCorrect), &route);
        let change: Vec<f32> = x.iter().zip(&streams[0]).map(|(x, predicted)| x - predicted).collect();
        for (stream, coefficient) in streams.iter_mut().zip(coefficients) {
            add(stream, 1.0 + coefficient, &change);
        }
    }

    /// The output of the last block.
    pub(super) fn join(&self, streams: &[Vec<f32>]) -> Vec<f32> {
        let (mut x, last) = (streams[0].clone(), self.model.config().blocks.len() - 1);
        let square = mean_square(&x);
        let matrices = streams_of(self.part(last, Role::StreamsJoin));
        for (matrix, stream) in matrices.zip(&streams[1..]) {
            add(&mut x, 1.0, &self.as_long(matrix, stream, square));
        }
        x.iter_mut().for_each(|x| *x /= streams.len() as f32);
        x
    }

    /// Adds the branch beside the mixer to the stream `x`. `normed` is the mixer's input.
    pub(super) fn add_branch(&self, block: usize, normed: &[f32], x: &mut [f32]) {
        let low = self.times(self.part(block, Role::BranchDown), normed);
        let branch = self.times(self.part(block, Role::BranchUp), &low);
        add(x, 1.0, normed);
        add(x, 1.0, &self.normed(block, Role::BranchNorm, branch));
        x.iter_mut().for_each(|x| *x /= 2_f32.sqrt());
    }

    fn route_streams(&self, block: usize, x: &[f32]) -> Vec<f32> {
        let normed = self.normed(block, Role::StreamsRouterNorm, x.to_vec());
        let routed = self.times(self.part(block, Role::StreamsRouter), &normed);
        routed.into_iter().map(|value| (value / x.len() as f32).tanh()).collect()
    }

    /// A matrix times `x`, of a mean square of `square`.
    fn as_long(&self, matrix: Matrix<'_>, x: &[f32], square: f32) -> Vec<f32> {
        let product = self.times(matrix, x);
        let factor = as_long(mean_square(&product), square);
        product.into_iter().map(|value| factor * value).collect()
    }
}

/// Square matrices, one for each stream but the first.
fn streams_of(all: Matrix<'_>) -> impl Iterator<Item = Matrix<'_>> {
    let rows = all.columns;
    let bytes = all.bytes.chunks(rows * all.format.row_bytes(all.columns));
    bytes.map(move |bytes| Matrix { rows, bytes, ..all })
}

/// The factors of the first stream, as the gate of a block's own input reads it.
pub(super) fn scaled(stream: &[f32], scale: Matrix<'_>) -> Vec<f32> {
    stream.iter().zip(values(scale)).map(|(value, scale)| scale * value).collect()
}
