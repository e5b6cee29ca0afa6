//! Several residual streams of windows of text, `[tokens, streams, width]`, at the front of a token's row of [`super::Stream::shared`].
//! Here alternating ones, and the low-rank branch beside a mixer; [`super::gated`] has gated ones.

use flashplan::internals::model::config::{Config, Role, Streams};
use flashplan::internals::model::source::SourceModel;
use kernels::Matrix;
use rayon::prelude::*;

use super::super::matrix::Use;
use super::products::{times, transposed};
use super::shared::shared_width;
use super::{Layer, Stream};

/// Values of a token's residual streams; 0 where there is one, which is the stream's own row.
pub(super) fn streams_width(c: &Config) -> usize {
    c.streams.map_or(0, |streams| streams.count * c.width)
}

/// Makes the streams of embeddings, if there are several.
pub(super) fn open(source: &SourceModel<'_>, x: &[f32], shared: &mut [f32]) {
    let c = source.config();
    let Some(streams) = c.streams else { return };
    let (width, stride) = (c.width, shared_width(c));
    put(shared, stride, 0, x, width);
    let Some(all) = source.part(0, Role::StreamsOpen) else {
        // gated streams begin equal
        (1..streams.count).for_each(|stream| put(shared, stride, stream * width, x, width));
        return;
    };
    for stream in 1..streams.count {
        let mut made = product(of_stream(all, stream), x);
        as_long(&mut made, x, width);
        put(shared, stride, stream * width, &made, width);
    }
}

impl Layer<'_> {
    /// Replaces the streams by their predictions. The first becomes the stream that the block computes with.
    pub(super) fn predict(&self, stream: &mut Stream) {
        let c = self.source.config();
        let Some(streams) = c.streams.filter(|streams| !streams.are_gated()) else { return };
        let (width, stride, count) = (c.width, shared_width(c), streams.count);
        let first = taken(&stream.shared, stride, 0, width);
        let coefficients = self.coefficients(Role::StreamsPredict, &first);
        let rows = stream.shared.par_chunks_mut(stride).zip(coefficients.par_chunks(count * count));
        rows.for_each(|(row, coefficients)| {
            let before = row[..count * width].to_vec();
            for (out, by) in row.chunks_mut(width).zip(coefficients.chunks(count)) {
                for (by, other) in by.iter().zip(before.chunks(width)) {
                    out.iter_mut().zip(other).for_each(|(out, other)| *out += by * other);
                }
            }
        });
        stream.x = taken(&stream.shared, stride, 0, width);
    }

    /// Corrects the streams by what the block has computed, `x`, which becomes what the gate of the tokens' own inputs reads.
    pub(super) fn correct(&self, streams: Streams, x: &mut [f32], shared: &mut [f32]) {
        let c = self.source.config();
        let (width, stride) = (c.width, shared_width(c));
        let coefficients = self.coefficients(Role::StreamsCorrect, x);
        let factors = self.source.part(self.block, Role::StreamsScale).map(super::products::values_of);
        let rows = x.par_chunks_mut(width).zip(shared.par_chunks_mut(stride));
        rows.zip(coefficients.par_chunks(streams.count)).for_each(|((x, row), coefficients)| {
            x.iter_mut().zip(&*row).for_each(|(x, predicted)| *x -= predicted);
            for (out, by) in row.chunks_mut(width).zip(coefficients) {
                out.iter_mut().zip(&*x).for_each(|(out, change)| *out += (1.0 + by) * change);
            }
            x.copy_from_slice(&row[..width]);
            x.iter_mut().zip(factors.iter().flatten()).for_each(|(x, factor)| *x *= factor);
        });
    }

    /// Adds rows of the model's width to all streams but the first.
    pub(super) fn add_to_others(&self, streams: Streams, added: &[f32], shared: &mut [f32]) {
        let c = self.source.config();
        let width = c.width;
        for (row, added) in shared.chunks_mut(shared_width(c)).zip(added.chunks(width)) {
            for out in row[width..streams.count * width].chunks_mut(width) {
                out.iter_mut().zip(added).for_each(|(out, added)| *out += added);
            }
        }
    }

    /// Replaces `x` by what the last block makes of all streams.
    pub(super) fn join(&self, streams: Streams, x: &mut [f32], shared: &[f32]) {
        let c = self.source.config();
        let (width, stride) = (c.width, shared_width(c));
        let (first, all) = (taken(shared, stride, 0, width), self.part(Role::StreamsJoin));
        x.copy_from_slice(&first);
        for stream in 1..streams.count {
            let mut made = product(of_stream(all, stream), &taken(shared, stride, stream * width, width));
            as_long(&mut made, &first, width);
            x.iter_mut().zip(made).for_each(|(x, made)| *x += made);
        }
        x.iter_mut().for_each(|x| *x /= streams.count as f32);
    }

    /// Adds the branch beside the mixer to the stream. `normed` is the mixer's input.
    pub(super) fn branch(&self, x: &mut [f32], normed: &[f32]) {
        let tokens = normed.len() / self.source.config().width;
        let rows = |role, x: &[f32]| transposed(&self.times(self.part(role), None, x), tokens);
        let branch = rows(Role::BranchUp, &rows(Role::BranchDown, normed));
        let branch = self.normed_by(Role::BranchNorm, &branch);
        for ((x, normed), branch) in x.iter_mut().zip(normed).zip(branch) {
            *x = (*x + normed + branch) / 2_f32.sqrt();
        }
    }

    /// Coefficients of each row: `[tokens, rows of the role's tensor]`.
    fn coefficients(&self, role: Role, x: &[f32]) -> Vec<f32> {
        let normed = self.normed_by(Role::StreamsRouterNorm, x);
        let mut route = product(self.part(Role::StreamsRouter), &normed);
        let width = self.source.config().width as f32;
        route.iter_mut().for_each(|value| *value = (*value / width).tanh());
        product(self.part(role), &route)
    }
}

/// A matrix times rows: `[rows of x, rows of w]`.
pub(super) fn product(w: Matrix<'_>, x: &[f32]) -> Vec<f32> {
    transposed(&times(w, None, x, Use::Transposed), x.len() / w.columns)
}

/// The matrix of a stream after the first.
fn of_stream(all: Matrix<'_>, stream: usize) -> Matrix<'_> {
    let rows = all.columns;
    let bytes = rows * all.format.row_bytes(all.columns);
    Matrix { rows, bytes: &all.bytes[(stream - 1) * bytes..][..bytes], ..all }
}

/// Makes rows as long as others, by their root mean squares.
fn as_long(rows: &mut [f32], others: &[f32], width: usize) {
    let square = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>() / width as f32;
    rows.par_chunks_mut(width).zip(others.par_chunks(width)).for_each(|(row, other)| {
        let factor = (square(other) / square(row).max(Streams::LEAST_SQUARE)).sqrt();
        row.iter_mut().for_each(|value| *value *= factor);
    });
}

/// Values `at..at + width` of rows of `stride`.
pub(super) fn taken(rows: &[f32], stride: usize, at: usize, width: usize) -> Vec<f32> {
    rows.chunks(stride).flat_map(|row| &row[at..][..width]).copied().collect()
}

/// Puts rows of `width` at a place of rows of `stride`.
fn put(rows: &mut [f32], stride: usize, at: usize, values: &[f32], width: usize) {
    for (row, values) in rows.chunks_mut(stride).zip(values.chunks(width)) {
        row[at..][..width].copy_from_slice(values);
    }
}
