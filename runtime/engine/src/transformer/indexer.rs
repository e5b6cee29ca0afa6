//! The blocks of positions that rows' attention sees: see [`Indexer`](crate::model::config::Indexer).
//!
//! ```text
//! projections of a row   [ ... | queries of the indexer | key ]
//! kept                   key of each position; at a block's last position its rotated, normalised mean, as the value
//! ```

use super::vectors::as_rotations;
use super::{Phase, Transformer};
use crate::attention::Chosen;
use crate::kv::{At, Half};
use crate::model::config::{Indexer, Role};
use crate::rotary::Rotary;
use kernels::{Kernels, Matrix, Rotation, dequantise, rms_norm};

impl Transformer {
    /// Keeps the rows' keys of a block's indexer, and chooses blocks for rows that do not see all: `chosen: [rows,
    /// blocks]`. Returns the number of rows, from the first on, that see all: in a prompt those before any choice,
    /// when decoding all or none.
    pub(super) fn choose(&mut self, block: usize, rows: usize) -> usize {
        let (c, w, kernels) = (&self.config, &self.weights, self.compute.kernels);
        let a = c.attention(block);
        let Some(indexer) = a.indexer else { return rows };
        let (stride, place, width) = (a.projected_width(), c.indexer_place(block), indexer.width);
        let weight = |role| w.values(block, role).unwrap_or_default();
        let (query_norm, key_norm) = (weight(Role::IndexerQueryNorm), weight(Role::IndexerKeyNorm));
        let (rotary, pairs) = (a.rope.map(|rope| &self.turns.rotaries[rope]), self.turns.pairs);
        let rotations: &[Rotation] = as_rotations(&mut self.buffers.rotations);
        let first = a.rope.unwrap_or(0) * rows;
        // heads have been prepared, and their results come later
        let spare = &mut self.buffers.attended[..4 * width];
        let (blocks, scores) = self.buffers.chosen.split_at_mut(rows * indexer.blocks);
        let blocks: &mut [u32] = bytemuck::cast_slice_mut(blocks);
        let of_rows = self.buffers.projections[..rows * stride].chunks_exact_mut(stride);
        let mut chooses = 0;
        for (row, (values, blocks)) in of_rows.zip(blocks.chunks_exact_mut(indexer.blocks)).enumerate() {
            let At { sequence, position } = self.kept.rows[row];
            let own = &mut values[stride - indexer.projected_width()..];
            let (queries, key) = own.split_at_mut(indexer.heads * width);
            self.kept.kv.store(sequence, place, Half::Key, position, key);
            if (position + 1).is_multiple_of(indexer.positions) {
                let keys = self.kept.kv.head(sequence, place, Half::Key, 0, position + 1);
                let mean = mean_key(indexer, keys, key_norm, c.norm_epsilon, rotary, spare);
                self.kept.kv.store(sequence, place, Half::Value, position, mean);
            }
            blocks.fill(Chosen::ALL);
            if !indexer.chooses(position) {
                continue;
            }
            chooses += 1;
            for query in queries.chunks_exact_mut(width) {
                rms_norm(query, query_norm, c.norm_epsilon, &mut spare[..width]);
                query.copy_from_slice(&spare[..width]);
            }
            if let Some(rotary) = rotary {
                rotary.rotate(queries, width, &rotations[(first + row) * pairs..][..rotary.pairs()]);
            }
            let means = self.kept.kv.head(sequence, place, Half::Value, 0, position + 1);
            best(indexer, kernels, means, queries, blocks, &mut scores[..indexer.blocks]);
        }
        match self.compute.phase {
            Phase::Decode if chooses > 0 => 0,
            Phase::Decode => rows,
            // positions of a prompt ascend
            Phase::Prefill => rows - chooses,
        }
    }
}

/// The rotated norm of the mean of the last block's keys, at the front of `spare`: `[4, width]`.
fn mean_key<'a>(
    indexer: Indexer,
    keys: Matrix<'_>,
    norm: &[f32],
    epsilon: f32,
    rotary: Option<&Rotary>,
    spare: &'a mut [f32],
) -> &'a [f32] {
    let (out, rest) = spare.split_at_mut(indexer.width);
    let (mean, rest) = rest.split_at_mut(indexer.width);
    let first = keys.rows - indexer.positions;
    mean.fill(0.0);
    for row in first..keys.rows {
        let row = keys.row(row);
        dequantise(row.format, row.bytes, out);
        mean.iter_mut().zip(&*out).for_each(|(mean, key)| *mean += key / indexer.positions as f32);
    }
    rms_norm(mean, norm, epsilon, out);
    if let Some(rotary) = rotary {
        let rotations = &mut as_rotations(&mut rest[..2 * rotary.pairs()])[..];
        rotary.fill(first, rotations);
        rotary.rotate(out, indexer.width, rotations);
    }
    out
}

/// Puts the blocks with the highest scores into `blocks`, ascending; the first of equal ones. `scores` is as long.
fn best(
    indexer: Indexer,
    kernels: &dyn Kernels,
    means: Matrix<'_>,
    queries: &[f32],
    blocks: &mut [u32],
    scores: &mut [f32],
) {
    let mut least = 0;
    for block in 0..means.rows / indexer.positions {
        let mean = means.row((block + 1) * indexer.positions - 1);
        let score = queries.chunks_exact(indexer.width).map(|query| kernels.dot(mean, query).max(0.0)).sum();
        let place = match scores.get(block) {
            Some(_) => block,
            None if score > scores[least] => least,
            None => continue,
        };
        (blocks[place], scores[place]) = (block as u32, score);
        if block + 1 >= blocks.len() {
            // the last of the lowest
            let lower = |a: usize, b: usize| (scores[a], !blocks[a]) < (scores[b], !blocks[b]);
            least = (1..blocks.len()).fold(0, |least, at| if lower(at, least) { at } else { least });
        }
    }
    blocks.sort_unstable();
}
