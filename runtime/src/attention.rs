//! Attention of a list of rows over everything their sequence has seen.
//!
//! One pass over keys and values: the running maximum `m` and sum `s` of the softmax are kept, and what has been
//! added up is rescaled when the maximum grows (Milakov and Gimelshein, "Online normalizer calculation for softmax",
//! 2018; in tiles as in Dao et al., "Flash attention", 2022). Queries that meet the same keys, those of several rows and of
//! the heads that share them, pass together over a block of positions after another:
//!
//! ```text
//! for each block of positions:    scores = keys q / sqrt(head_width);  -inf where the row is before the position
//!     for each query:             m' = max(m, scores);  out, s *= exp(m - m');  w = exp(scores - m');  s += w
//!                                 out += w values
//! out /= s
//! ```
//!
//! Blocks begin at the same positions for every row and a query's sums do not depend on those beside it, so that chunks
//! and threads change no bit of the result. A token that is decoded has few queries for a key, and takes them position by
//! position, which is faster then.

use crate::kernels::{Form, Kernels, LANES, Packed, Row, pack};
use crate::kv::{Half, KeyValues};
use crate::model::config::Config;
use crate::pool::{Columns, Pool};

/// Positions whose scores are taken together.
const BLOCK: usize = 32;
/// Queries that pass together.
const QUERIES: usize = 2 * LANES;

/// What a layer's rows attend to, and with what.
struct Attention<'a> {
    kernels: &'a dyn Kernels,
    config: &'a Config,
    kv: &'a KeyValues,
    layer: usize,
    positions: &'a [usize],
    projections: &'a [f32],
}

/// How queries meet keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// In tiles: for many rows.
    Tiles,
    /// Position by position: for one row.
    OneByOne,
}

/// `attended[row] = softmax(q k^T / sqrt(head_width)) v` for each head, over positions up to and with the row's own.
///
/// *Shapes*: `projections: [rows, query_width + 2 kv_width]`, of which the queries are read, rotated already;
/// `attended: [rows, query_width]`; `positions: [rows]`.
pub fn attend(
    pool: &Pool,
    kernels: &dyn Kernels,
    config: &Config,
    kv: &KeyValues,
    layer: usize,
    positions: &[usize],
    projections: &[f32],
    order: Order,
    attended: &mut [f32],
) {
    let a = Attention { kernels, config, kv, layer, positions, projections };
    pool.split_columns(attended, config.query_width(), config.head_width, |out| {
        match (order, config.head_width) {
            (Order::Tiles, 32) => a.in_tiles::<32>(out),
            (Order::Tiles, 64) => a.in_tiles::<64>(out),
            (Order::Tiles, 96) => a.in_tiles::<96>(out),
            (Order::Tiles, 128) => a.in_tiles::<128>(out),
            (Order::Tiles, 256) => a.in_tiles::<256>(out),
            _ => a.one_by_one(out),
        }
    });
}

impl<'a> Attention<'a> {
    /// A head's query.
    fn query(&self, row: usize, head: usize) -> &'a [f32] {
        let stride = self.config.query_width() + 2 * self.config.kv_width();
        &self.projections[row * stride + head * self.config.head_width..][..self.config.head_width]
    }

    fn scale(&self) -> f32 {
        1.0 / (self.config.head_width as f32).sqrt()
    }

    /// A thread's heads, in tiles of queries that share keys; `W` is the width of a head.
    fn in_tiles<const W: usize>(&self, out: &mut Columns<'_, f32>) {
        let group = self.config.heads / self.config.kv_heads;
        let (first, end) = (out.range().start / W, out.range().end / W);
        let mut head = first;
        while head < end {
            let heads = ((head / group + 1) * group).min(end).min(head + QUERIES) - head;
            let rows = QUERIES / heads;
            for row in (0..self.positions.len()).step_by(rows) {
                let rows = rows.min(self.positions.len() - row);
                let tile = self.tile::<W>(row..row + rows, head..head + heads);
                for (at, values) in tile[..rows * heads].iter().enumerate() {
                    let place = (head - first + at % heads) * W;
                    out.row(row + at / heads)[place..][..W].copy_from_slice(values);
                }
            }
            head += heads;
        }
    }

    /// One tile: `[rows, heads]`, which share keys and values.
    fn tile<const W: usize>(
        &self,
        rows: std::ops::Range<usize>,
        heads: std::ops::Range<usize>,
    ) -> [[f32; W]; QUERIES] {
        let count = rows.len() * heads.len();
        let row_of = |query: usize| rows.start + query / heads.len();
        let (mut queries, mut packed) = ([[0.0; W]; QUERIES], [[0.0; W]; QUERIES]);
        for (query, values) in queries[..count].iter_mut().enumerate() {
            values.copy_from_slice(self.query(row_of(query), heads.start + query % heads.len()));
        }
        let packed = packed[..count].as_flattened_mut();
        pack(Form::F32, W, queries[..count].as_flattened(), packed);
        let packed = Packed::new(Form::F32, W, count, packed);

        let seen = rows.clone().map(|row| self.positions[row] + 1).max().unwrap_or(0);
        let kv_head = heads.start / (self.config.heads / self.config.kv_heads);
        let half = |half| self.kv.head(self.layer, half, kv_head, seen);
        let (mut keys, mut values) = (half(Half::Key), half(Half::Value));
        let (mut out, scale) = ([[0.0; W]; QUERIES], self.scale());
        let (mut max, mut sum) = ([f32::NEG_INFINITY; QUERIES], [0.0; QUERIES]);
        for start in (0..seen).step_by(BLOCK) {
            let (Some(some_keys), Some(some_values)) = (block(&mut keys), block(&mut values)) else { break };
            let length = BLOCK.min(seen - start);
            let mut scores = [0.0; BLOCK * QUERIES];
            let scores = &mut scores[..length * count];
            self.kernels.products(&some_keys[..length], packed, scores);
            for query in 0..count {
                let visible = (self.positions[row_of(query)] + 1).saturating_sub(start).min(length);
                let of_query = |at: usize| at * count + query;
                let largest =
                    (0..visible).fold(max[query], |largest, at| largest.max(scores[of_query(at)] * scale));
                if largest > max[query] {
                    let shrink = (max[query] - largest).exp();
                    out[query].iter_mut().for_each(|value| *value *= shrink);
                    sum[query] *= shrink;
                    max[query] = largest;
                }
                for at in 0..length {
                    let score = &mut scores[of_query(at)];
                    *score = if at < visible { (*score * scale - max[query]).exp() } else { 0.0 };
                    sum[query] += *score;
                }
            }
            let out = out[..count].as_flattened_mut();
            self.kernels.add_products(scores, count, 0..count, &some_values[..length], out);
        }
        for (values, sum) in out[..count].iter_mut().zip(sum) {
            values.iter_mut().for_each(|value| *value /= sum);
        }
        out
    }

    /// The same by definition, for heads of any width.
    fn one_by_one(&self, out: &mut Columns<'_, f32>) {
        let (width, group) = (self.config.head_width, self.config.heads / self.config.kv_heads);
        let (first, scale) = (out.range().start / width, self.scale());
        for (row, &position) in self.positions.iter().enumerate() {
            for (head, out) in (first..).zip(out.row(row).chunks_exact_mut(width)) {
                let query = self.query(row, head);
                let half = |half| self.kv.head(self.layer, half, head / group, position + 1);
                out.fill(0.0);
                let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
                for (key, value) in half(Half::Key).zip(half(Half::Value)) {
                    let score = self.kernels.dot(key, query) * scale;
                    if score > max {
                        let shrink = (max - score).exp();
                        out.iter_mut().for_each(|value| *value *= shrink);
                        sum *= shrink;
                        max = score;
                    }
                    let weight = (score - max).exp();
                    sum += weight;
                    self.kernels.axpy(weight, value, out);
                }
                out.iter_mut().for_each(|value| *value /= sum);
            }
        }
    }
}

/// The next rows, at most [`BLOCK`]; what is beyond the last repeats the first.
fn block<'a>(rows: &mut impl Iterator<Item = Row<'a>>) -> Option<[Row<'a>; BLOCK]> {
    let mut block = [rows.next()?; BLOCK];
    for (at, row) in block[1..].iter_mut().zip(rows) {
        *at = row;
    }
    Some(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Align, Arena};
    use crate::format::Format;
    use crate::kernels::{Activation, available};

    /// Shapes of attention, nothing else.
    fn config(heads: usize, kv_heads: usize, head_width: usize) -> Config {
        Config {
            architecture: "llama".to_owned(),
            vocabulary: 1,
            width: heads * head_width,
            layers: 1,
            heads,
            kv_heads,
            head_width,
            ffn_width: 1,
            experts: 1,
            experts_used: 1,
            context: 128,
            rope_base: 1e4,
            rope_width: head_width,
            norm_epsilon: 1e-5,
            activation: Activation::Silu,
        }
    }

    #[test]
    fn tiles_are_what_one_by_one_is_and_neighbours_and_threads_change_no_bit() {
        const CONTEXT: usize = 80;
        for (heads, kv_heads, width) in [(4, 2, 32), (8, 1, 64), (6, 6, 128), (64, 1, 32)] {
            let config = config(heads, kv_heads, width);
            let format = Format::F16;
            let mut arena = Arena::new(1 << 21).expect("memory");
            let bytes = 2 * kv_heads * CONTEXT * format.row_bytes(width);
            let region = arena.take(bytes, Align::Page).expect("room");
            let mut kv = KeyValues::new(region, format, kv_heads, width, CONTEXT);
            let mut state = 1_u32;
            let mut number = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            for position in 0..CONTEXT {
                for half in [Half::Key, Half::Value] {
                    let values: Vec<f32> = (0..kv_heads * width).map(|_| 2.0 * number()).collect();
                    kv.store(0, half, position, &values);
                }
            }
            let positions: Vec<usize> = (0..CONTEXT).collect();
            let stride = config.query_width() + 2 * config.kv_width();
            let projections: Vec<f32> = (0..CONTEXT * stride).map(|_| 2.0 * number()).collect();
            for kernels in available() {
                let run = |threads: usize, rows: std::ops::Range<usize>, order: Order| {
                    let pool = Pool::new(&vec![0; threads]).expect("threads");
                    let mut out = vec![f32::NAN; rows.len() * config.query_width()];
                    let (positions, projections) =
                        (&positions[rows.clone()], &projections[rows.start * stride..]);
                    attend(&pool, kernels, &config, &kv, 0, positions, projections, order, &mut out);
                    out
                };
                let (all, plain) = (run(1, 0..CONTEXT, Order::Tiles), run(1, 0..CONTEXT, Order::OneByOne));
                let off = all.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off < 2e-5, "{heads} {kv_heads} {width} {kernels:?}: {off}");
                for (threads, rows) in [(2, 0..CONTEXT), (1, 33..34), (2, 79..80), (1, 10..51)] {
                    let part = &all[rows.start * config.query_width()..rows.end * config.query_width()];
                    assert!(
                        run(threads, rows.clone(), Order::Tiles) == part,
                        "{heads} {kv_heads} {width} {rows:?}"
                    );
                }
            }
        }
    }
}
