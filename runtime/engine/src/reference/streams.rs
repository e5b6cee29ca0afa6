//! Alternating residual streams, and the branch beside a mixer: see [`Mixing`](crate::model::config::Mixing).

use super::block::{Block, Rows, beside, columns};
use super::products::Products;
use super::{add, values};
use crate::model::config::{Role, Streams, as_long, mean_square};
use crate::model::source::SourceModel;
use kernels::Matrix;

/// The streams of tokens whose scaled embeddings are `x`: `[tokens, streams, width]`.
pub(super) fn opened(
    model: &SourceModel<'_>,
    products: impl Products,
    streams: Streams,
    x: &[f32],
) -> Vec<f32> {
    let mut all = vec![x.to_vec()];
    match model.part(0, Role::StreamsOpen) {
        // gated streams begin equal
        None => all.resize(streams.count, x.to_vec()),
        Some(matrices) => {
            all.extend(streams_of(matrices).map(|matrix| times_as_long(products, matrix, x, x)));
        }
    }
    assert_eq!(all.len(), streams.count, "a matrix for each stream but the first");
    beside(&all, x.len() / model.config().width)
}

impl<P: Products> Block<'_, P> {
    /// The streams, if they alternate.
    fn alternating(&self) -> Option<Streams> {
        self.config().streams.filter(|streams| !streams.are_gated())
    }

    /// Replaces the streams by their predictions; the block computes with the first.
    pub(super) fn predict(&self, rows: &mut Rows<'_>) {
        let Some(Streams { count, .. }) = self.alternating() else { return };
        let (width, all) = (self.config().width, self.config().streams_width());
        let first = columns(rows.streams, all, 0, width);
        let coefficients = self.coefficients(Role::StreamsPredict, first);
        self.products.each_row(rows.streams, all, |row, streams| {
            let before = streams.to_vec();
            let coefficients = coefficients[row * count * count..].chunks(count);
            for (stream, coefficients) in streams.chunks_mut(width).zip(coefficients) {
                for (&coefficient, other) in coefficients.iter().zip(before.chunks(width)) {
                    add(stream, coefficient, other);
                }
            }
        });
        rows.x.copy_from_slice(&columns(rows.streams, all, 0, width));
    }

    /// Corrects the streams by what the block has computed. Leaves in `rows.x` what the block's own input reads.
    pub(super) fn correct(&self, rows: &mut Rows<'_>) {
        let Some(Streams { count, .. }) = self.alternating() else { return };
        let (width, all) = (self.config().width, self.config().streams_width());
        let coefficients = self.coefficients(Role::StreamsCorrect, rows.x.to_vec());
        let predicted = columns(rows.streams, all, 0, width);
        let change: Vec<f32> = rows.x.iter().zip(predicted).map(|(x, predicted)| x - predicted).collect();
        self.products.each_row(rows.streams, all, |row, streams| {
            let (change, coefficients) = (&change[row * width..], &coefficients[row * count..]);
            for (stream, coefficient) in streams.chunks_mut(width).zip(coefficients) {
                add(stream, 1.0 + coefficient, change);
            }
        });
        rows.x.copy_from_slice(&columns(rows.streams, all, 0, width));
        if let Some(scale) = self.model.part(self.at, Role::StreamsScale).map(values) {
            rows.x
                .chunks_mut(width)
                .for_each(|x| x.iter_mut().zip(&scale).for_each(|(x, scale)| *x *= scale));
        }
    }

    /// Replaces `rows.x` by the mean of all streams after the last block.
    pub(super) fn join(&self, rows: &mut Rows<'_>) {
        let Some(Streams { count, .. }) = self.alternating() else { return };
        let (width, all) = (self.config().width, self.config().streams_width());
        let first = columns(rows.streams, all, 0, width);
        rows.x.copy_from_slice(&first);
        for (matrix, stream) in streams_of(self.part(Role::StreamsJoin)).zip(1..) {
            let stream = columns(rows.streams, all, stream * width, width);
            add(rows.x, 1.0, &times_as_long(self.products, matrix, &stream, &first));
        }
        rows.x.iter_mut().for_each(|x| *x /= count as f32);
    }

    /// Adds the branch beside the mixer to the stream `x`. `normed` is the mixer's input.
    pub(super) fn add_branch(&self, normed: &[f32], x: &mut [f32]) {
        let branch = self.times(Role::BranchUp, &self.times(Role::BranchDown, normed));
        add(x, 1.0, normed);
        add(x, 1.0, &self.normed(Role::BranchNorm, branch));
        x.iter_mut().for_each(|x| *x /= 2_f32.sqrt());
    }

    /// Coefficients of streams by what a row has at `x`: `[tokens, rows of the role's tensor]`.
    fn coefficients(&self, role: Role, x: Vec<f32>) -> Vec<f32> {
        let width = self.config().width as f32;
        let normed = self.normed(Role::StreamsRouterNorm, x);
        let mut route = self.products.times_unrounded(self.part(Role::StreamsRouter), &normed);
        route.iter_mut().for_each(|value| *value = (*value / width).tanh());
        self.products.times_unrounded(self.part(role), &route)
    }
}

/// A matrix times each vector of `x`, made as long as the vector of `others` in the same row.
fn times_as_long(products: impl Products, matrix: Matrix<'_>, x: &[f32], others: &[f32]) -> Vec<f32> {
    let mut made = products.times_unrounded(matrix, x);
    products.each_row(&mut made, matrix.rows, |row, made| {
        let factor = as_long(mean_square(made), mean_square(&others[row * made.len()..][..made.len()]));
        made.iter_mut().for_each(|value| *value *= factor);
    });
    made
}

/// Square matrices, one for each stream but the first.
fn streams_of(all: Matrix<'_>) -> impl Iterator<Item = Matrix<'_>> {
    let rows = all.columns;
    let bytes = all.bytes.chunks(rows * all.format.row_bytes(all.columns));
    bytes.map(move |bytes| Matrix { rows, bytes, ..all })
}
