//! Latent attention over rows: projections, the stored latent vector, and the matrices absorbed into queries
//! and results.
//!
//! ```text
//! buffer   projections                              attended
//! 1        [low, or queries | gates | c | r]                                  c = norm(c), r rotated: stored
//! 2        [queries: n | p] of each head                                      low = norm(low): query_up low
//! 3        [n] of each head                         [key_up n | p]            p rotated
//! 4        [sums over positions, c first]                                     softmax(scale q [c | r]^T) [c | r]
//! 5        [c] of each head                         [value_up c] of each head, times sigmoid(gate)
//! ```
//!
//! All heads share one stored row for each position, whose front is also the value; its end is ignored in
//! results. Low-rank vectors use the buffers of a block's input and output, and are not longer. Gates wait behind
//! all steps' values in `projections`.

use std::ops::Range;

use super::matrices::multiply;
use super::vectors::as_rotations;
use super::{Phase, Transformer};
use crate::attention::{Tiling, attend};
use crate::kv::{At, Half};
use crate::model::config::{Latent, Role};
use crate::products::{Inputs, ROWS, form_for, pack_in_place, write_products};
use crate::rotary::Rotary;
use kernels::{Rotation, rms_norm};

impl Transformer {
    /// Computes `value_up (softmax(scale q [c | r]^T) c)` for the rows' heads, from their normalised input:
    /// `attended: [rows, mixed_values]`.
    pub(super) fn latent_attention(&mut self, block: usize, latent: Latent, rows: usize) {
        let first = if latent.query_rank.is_some() { Role::QueryDown } else { Role::Query };
        if latent.gate {
            self.project(block, &[first, Role::HeadGates, Role::LatentDown], rows);
            self.keep_gates(block, latent, rows);
        } else {
            self.project(block, &[first, Role::LatentDown], rows);
        }
        self.keep(block, latent, rows);
        self.make_queries(block, latent, rows);
        self.take_apart(block, latent, rows);
        self.of_heads(block, Role::KeyUp, rows, self.config.attention(block).head_width);
        let (a, place) = (self.config.attention(block), self.kept.at[block]);
        let width = rows * a.query_width();
        let (queries, read) = (&self.buffers.attended[..width], &mut self.buffers.projections[..width]);
        let order = if self.compute.phase == Phase::Decode { Tiling::OneByOne } else { Tiling::Tiles };
        attend(
            &self.compute.pool,
            self.compute.kernels,
            a,
            None,
            &self.kept.kv,
            place,
            &self.kept.rows,
            queries,
            order,
            read,
        );
        for (at, from) in (0..width).step_by(a.head_width).enumerate() {
            read.copy_within(from..from + latent.rank, at * latent.rank);
        }
        self.of_heads(block, Role::ValueUp, rows, latent.value);
        if latent.gate {
            let gates = self.gates(block, latent, rows);
            let heads = self.buffers.attended.chunks_exact_mut(latent.value);
            for (head, gate) in heads.zip(&self.buffers.projections[gates]) {
                let gate = 1.0 / (1.0 + (-gate).exp());
                head.iter_mut().for_each(|value| *value *= gate);
            }
        }
    }

    /// The place of the rows' gates in `projections`, `[rows, heads]`, behind what the steps use.
    fn gates(&self, block: usize, latent: Latent, rows: usize) -> Range<usize> {
        let count = latent.gates(self.config.attention(block).heads);
        let all = self.config.latent().map_or(0, |latent| latent.projected_values as usize);
        rows * (all - count)..rows * all
    }

    /// Copies each row's gates to their place.
    fn keep_gates(&mut self, block: usize, latent: Latent, rows: usize) {
        let a = self.config.attention(block);
        let (stride, count, kept) = (a.projected_width(), latent.gates(a.heads), a.head_width);
        let place = self.gates(block, latent, rows).start;
        for row in 0..rows {
            let from = (row + 1) * stride - kept - count;
            self.buffers.projections.copy_within(from..from + count, place + row * count);
        }
    }

    /// Stores `[c | r]` of each row, normalised and rotated.
    fn keep(&mut self, block: usize, latent: Latent, rows: usize) {
        let (c, w) = (&self.config, &self.weights);
        let (a, place) = (c.attention(block), self.kept.at[block]);
        let stride = a.projected_width();
        let norm = w.values(block, Role::LatentNorm).unwrap_or_default();
        let spare = &mut self.buffers.attended[..latent.rank];
        let turns =
            Rotations::new(a.rope, &self.turns.rotaries, &mut self.buffers.rotations, self.turns.pairs, rows);
        for (row, values) in self.buffers.projections[..rows * stride].chunks_exact_mut(stride).enumerate() {
            let At { sequence, position } = self.kept.rows[row];
            let kept = &mut values[stride - a.head_width..];
            let (vector, shared) = kept.split_at_mut(latent.rank);
            rms_norm(vector, norm, c.norm_epsilon, spare);
            vector.copy_from_slice(spare);
            turns.rotate(row, shared);
            self.kept.kv.store(sequence, place, Half::Key, position, kept);
        }
    }

    /// Writes the rows' queries, `[rows, heads, plain + rotated]`, to the front of `projections`.
    fn make_queries(&mut self, block: usize, latent: Latent, rows: usize) {
        let (c, w) = (&self.config, &self.weights);
        let a = c.attention(block);
        let (stride, queries) = (a.projected_width(), a.heads * latent.query_width());
        let Some(rank) = latent.query_rank else {
            for row in 0..rows {
                self.buffers.projections.copy_within(row * stride..row * stride + queries, row * queries);
            }
            return;
        };
        let norm = w.values(block, Role::QueryDownNorm).unwrap_or_default();
        let low = &mut self.buffers.normed[..rows * rank];
        for (row, low) in self.buffers.projections.chunks_exact(stride).zip(low.chunks_exact_mut(rank)) {
            rms_norm(&row[..rank], norm, c.norm_epsilon, low);
        }
        let (parts, out) =
            ([w.matrix(block, Role::QueryUp)], &mut self.buffers.projections[..rows * queries]);
        let words = &mut self.layers.feed_forward.rounded[0];
        let spare = &mut self.buffers.block_output;
        multiply(&self.compute, &mut self.fetcher, words, &parts, low, spare, (out, 0));
    }

    /// Rotates the end of each query and moves it to its place in `attended`; packs the unrotated fronts:
    /// `[rows, heads, plain]`.
    fn take_apart(&mut self, block: usize, latent: Latent, rows: usize) {
        let a = self.config.attention(block);
        let (pairs, width) = (self.turns.pairs, latent.query_width());
        let turns = Rotations::new(a.rope, &self.turns.rotaries, &mut self.buffers.rotations, pairs, rows);
        for at in 0..rows * a.heads {
            let end = (at + 1) * a.head_width;
            let rotated = &mut self.buffers.attended[end - latent.rotated..end];
            rotated.copy_from_slice(&self.buffers.projections[at * width + latent.plain..][..latent.rotated]);
            turns.rotate(at / a.heads, rotated);
            self.buffers.projections.copy_within(at * width..at * width + latent.plain, at * latent.plain);
        }
    }

    /// Multiplies each head's matrix by its vectors, `projections: [rows, heads, columns]`, into the front of
    /// each head's values in `attended: [rows, heads, stride]`.
    fn of_heads(&mut self, block: usize, role: Role, rows: usize, stride: usize) {
        let (pool, kernels, w) = (&self.compute.pool, self.compute.kernels, self.weights.matrix(block, role));
        let heads = self.config.attention(block).heads;
        let (count, columns) = (w.rows / heads, w.columns);
        let x = &self.buffers.projections[..rows * heads * columns];
        let out = &mut self.buffers.attended[..rows * heads * stride];
        if self.compute.phase == Phase::Decode {
            let x = Inputs::new(x, columns, self.compute.form, &mut self.layers.feed_forward.rounded[0]);
            return pool.share_columns(
                out,
                heads * stride,
                stride,
                || (),
                |out| {
                    let range = out.range();
                    for head in range.start / stride..range.end / stride {
                        // a head's matrix, once cached, is used for all rows
                        for row in 0..rows {
                            let out = &mut out.row(row)[head * stride - range.start..][..count];
                            x.row(row * heads + head).rows(kernels, w, head * count, out);
                        }
                    }
                },
            );
        }
        let form = form_for(self.compute.form, [w.format]);
        for head in 0..heads {
            let vectors = &mut self.buffers.normed[..rows * columns];
            let of_head = x.chunks_exact(columns).skip(head).step_by(heads);
            vectors.chunks_exact_mut(columns).zip(of_head).for_each(|(to, from)| to.copy_from_slice(from));
            let x = pack_in_place(pool, form, columns, vectors, &mut self.buffers.block_output);
            let first = head * stride;
            let nothing: &mut [u8] = &mut [];
            pool.share_columns_with(out, heads * stride, first..first + count, nothing, ROWS, |out, _| {
                write_products(kernels, |at| w.row(head * count + at - first), x, out);
            });
        }
    }
}

/// The rotations of rows by one rotary embedding.
struct Rotations<'a> {
    rotary: Option<&'a Rotary>,
    /// `[rows, pairs]`; this embedding's pairs come first in each row.
    rotations: &'a [Rotation],
    pairs: usize,
}

impl<'a> Rotations<'a> {
    /// The rotations of a block, selected from all embeddings' for `rows` rows.
    fn new(
        rope: Option<usize>,
        rotaries: &'a [Rotary],
        rotations: &'a mut [f32],
        pairs: usize,
        rows: usize,
    ) -> Self {
        let rotations: &[Rotation] = as_rotations(rotations);
        let rotations = &rotations[rope.unwrap_or(0) * rows * pairs..];
        Self { rotary: rope.map(|rope| &rotaries[rope]), rotations, pairs }
    }

    /// Rotates a whole vector of a row.
    fn rotate(&self, row: usize, values: &mut [f32]) {
        if let Some(rotary) = self.rotary {
            let rotations = &self.rotations[row * self.pairs..][..rotary.pairs()];
            rotary.rotate(values, values.len(), rotations);
        }
    }
}
