//! Attention of a list of rows over all positions that their sequence has seen.
//!
//! One pass over keys and values keeps the running maximum `m` and sum `s` of the softmax. When the maximum
//! grows, the pass rescales the sums so far. (Milakov and Gimelshein, "Online normalizer calculation for
//! softmax", 2018; in tiles as in Dao et al., "Flash attention", 2022.) Queries of several rows, and of heads
//! that share keys, form a tile and meet one block of positions after another:
//!
//! ```text
//! for each block of positions:    scores = scale keys q, bounded;  -inf where the row does not see the position
//!     for each query:             m' = max(m, scores);  out, s *= exp(m - m');  w = exp(scores - m');  s += w
//!                                 out += w values
//! out /= s + exp(sink - m)
//! ```
//!
//! Blocks start at the same positions for every row, and a query's sums do not depend on the queries beside
//! it. Chunks and threads therefore change no bit of the result. A single row, when decoding, has too few
//! queries for a key to fill packed vectors, so it uses [`Kernels::dots`] and [`Kernels::add_few`].

use std::ops::Range;

use crate::kv::{At, Half, KeyValues};
use crate::model::config;
use crate::pool::{ALONE, Columns, Pool};
use kernels::{Form, Kernels, LANES, Matrix, Packed, Row, pack};

/// Positions in a block of a tile.
const BLOCK: usize = 32;
/// Positions in a block of a single row.
const BLOCK_OF_ONE: usize = 64;
/// Queries in a tile.
const QUERIES: usize = 2 * LANES;

/// The attention of a layer's rows: kernels, shapes, queries, keys and values.
struct Attention<'a> {
    kernels: &'a dyn Kernels,
    config: &'a config::Attention,
    sinks: Option<&'a [f32]>,
    kv: &'a KeyValues,
    layer: usize,
    rows: &'a [At],
    projections: &'a [f32],
    /// The blocks of positions that rows see, if not all.
    chosen: Option<Chosen<'a>>,
}

/// Blocks of neighbouring positions that rows see, besides the positions behind the last whole block.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'a> {
    /// The blocks of each row, ascending, or [`Chosen::ALL`]: `[rows, count]`.
    pub blocks: &'a [u32],
    /// Blocks of a row.
    pub count: usize,
    /// Positions of a block.
    pub positions: usize,
}

impl Chosen<'_> {
    /// Replaces a row's first block if the row sees all positions.
    pub const ALL: u32 = u32::MAX;
}

/// The order of queries and keys in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tiling {
    /// Tiles of queries and positions, for many rows.
    Tiles,
    /// One row at a time, for few rows.
    OneByOne,
}

/// Computes `attended[row] = softmax(scale q k^T) v` for each head, over the positions up to the row's own
/// that it sees.
///
/// *Shapes*: `projections: [rows, projected_width]` with the rotated queries in front, or `[rows,
/// query_width]` for latent attention; `sinks: [heads]`; `attended: [rows, query_width]`; `at: [rows]`. In
/// tiles all rows are of one sequence.
pub fn attend(
    pool: &Pool,
    kernels: &dyn Kernels,
    config: &config::Attention,
    sinks: Option<&[f32]>,
    kv: &KeyValues,
    layer: usize,
    at: &[At],
    projections: &[f32],
    tiling: Tiling,
    attended: &mut [f32],
) {
    let a = Attention { kernels, config, sinks, kv, layer, rows: at, projections, chosen: None };
    a.attend(pool, tiling, attended);
}

/// [`attend`] without sinks over the positions that were chosen for each row, one row at a time. A row that sees all
/// has the bits of [`attend`] one by one.
pub fn attend_chosen(
    pool: &Pool,
    kernels: &dyn Kernels,
    config: &config::Attention,
    kv: &KeyValues,
    layer: usize,
    at: &[At],
    projections: &[f32],
    chosen: Chosen<'_>,
    attended: &mut [f32],
) {
    let chosen = Some(chosen);
    let a = Attention { kernels, config, sinks: None, kv, layer, rows: at, projections, chosen };
    a.attend(pool, Tiling::OneByOne, attended);
}

impl<'a> Attention<'a> {
    fn attend(&self, pool: &Pool, tiling: Tiling, attended: &mut [f32]) {
        let (a, config, at) = (self, self.config, self.rows);
        let width = config.query_width();
        let seen = |at: &At| at.position + 1 - config.first_seen(at.position);
        let products = width * at.iter().map(seen).sum::<usize>();
        // heads that share keys stay together, unless that leaves threads idle
        let together = match tiling {
            Tiling::Tiles => a.heads_of_tile(),
            Tiling::OneByOne => config.heads / config.kv_heads,
        };
        let together = together.min(config.heads.div_ceil(pool.threads()));
        let grain = if products < ALONE { width } else { together * config.head_width };
        pool.share_columns(
            attended,
            width,
            grain,
            || (),
            |out| match (tiling, config.head_width) {
                (Tiling::Tiles, 32) => a.in_tiles::<32>(out),
                (Tiling::Tiles, 64) => a.in_tiles::<64>(out),
                (Tiling::Tiles, 96) => a.in_tiles::<96>(out),
                (Tiling::Tiles, 128) => a.in_tiles::<128>(out),
                (Tiling::Tiles, 256) => a.in_tiles::<256>(out),
                _ => a.one_by_one(out),
            },
        );
    }

    /// A row's queries, `[heads, head_width]`.
    fn queries(&self, row: usize) -> &'a [f32] {
        // latent attention has its queries in a buffer of their own
        let latent = self.config.latent.is_some();
        let stride = if latent { self.config.query_width() } else { self.config.projected_width() };
        &self.projections[row * stride..][..self.config.query_width()]
    }

    /// The heads sharing keys that form a tile: all, unless one head's rows fill a tile alone.
    fn heads_of_tile(&self) -> usize {
        if self.rows.len() < QUERIES { self.config.heads / self.config.kv_heads } else { 1 }
    }

    /// Computes a thread's heads in tiles of queries that share keys; `W` is the width of a head.
    fn in_tiles<const W: usize>(&self, out: &mut Columns<'_, f32>) {
        let group = self.heads_of_tile();
        let (first, end) = (out.range().start / W, out.range().end / W);
        let mut head = first;
        while head < end {
            let heads = ((head / group + 1) * group).min(end).min(head + QUERIES) - head;
            let rows = QUERIES / heads;
            for row in (0..self.rows.len()).step_by(rows) {
                let rows = rows.min(self.rows.len() - row);
                let tile = self.tile::<W>(row..row + rows, head..head + heads);
                for (at, values) in tile[..rows * heads].iter().enumerate() {
                    let place = (head - first + at % heads) * W;
                    out.row(row + at / heads)[place..][..W].copy_from_slice(values);
                }
            }
            head += heads;
        }
    }

    /// One tile: `[rows, heads]`, all sharing keys and values.
    fn tile<const W: usize>(&self, rows: Range<usize>, heads: Range<usize>) -> [[f32; W]; QUERIES] {
        let count = rows.len() * heads.len();
        let row_of = |query: usize| rows.start + query / heads.len();
        let (mut queries, mut packed) = ([[0.0; W]; QUERIES], [[0.0; W]; QUERIES]);
        for (query, values) in queries[..count].iter_mut().enumerate() {
            let head = heads.start + query % heads.len();
            values.copy_from_slice(&self.queries(row_of(query))[head * W..][..W]);
        }
        let packed = packed[..count].as_flattened_mut();
        pack(Form::F32, W, queries[..count].as_flattened(), packed);
        let packed = Packed::new(Form::F32, W, count, packed);

        let seen = rows.clone().map(|row| self.rows[row].position + 1).max().unwrap_or(0);
        let first =
            rows.clone().map(|row| self.config.first_seen(self.rows[row].position)).min().unwrap_or(0);
        let (keys, values) = self.halves(rows.start, heads.start, seen);
        let (mut out, mut so_far) = ([[0.0; W]; QUERIES], SoFar::default());
        for start in (first / BLOCK * BLOCK..seen).step_by(BLOCK) {
            let length = BLOCK.min(seen - start);
            let mut scores = [0.0; BLOCK * QUERIES];
            let scores = &mut scores[..length * count];
            self.kernels.products(&block(keys, start)[..length], packed, scores);
            let hidden = |query: usize| {
                let visible = self.visible(row_of(query), start, length);
                (0..visible.start).chain(visible.end..length)
            };
            so_far.weigh_tile(self.kernels, self.config, scores, hidden, &mut out[..count]);
            let out = out[..count].as_flattened_mut();
            self.kernels.add_products(scores, count, 0..count, &block(values, start)[..length], out);
        }
        so_far.finish(out[..count].as_flattened_mut(), W, |query| {
            Some(self.sinks?[heads.start + query % heads.len()])
        });
        out
    }

    /// The positions that a row sees in the block of `length` from `start`, relative to `start`.
    fn visible(&self, row: usize, start: usize, length: usize) -> Range<usize> {
        let position = self.rows[row].position;
        let within = |position: usize| position.saturating_sub(start).min(length);
        within(self.config.first_seen(position))..within(position + 1)
    }

    /// Computes a thread's heads one row after another, at any width.
    fn one_by_one(&self, out: &mut Columns<'_, f32>) {
        let (width, group) = (self.config.head_width, self.config.heads / self.config.kv_heads);
        let (first, end) = (out.range().start / width, out.range().end / width);
        for row in 0..self.rows.len() {
            let mut head = first;
            while head < end {
                let heads = ((head / group + 1) * group).min(end).min(head + QUERIES) - head;
                let out = &mut out.row(row)[(head - first) * width..][..heads * width];
                self.one_row(row, head, heads, out);
                head += heads;
            }
        }
    }

    /// One row: `[heads]`, all sharing keys and values.
    fn one_row(&self, row: usize, head: usize, heads: usize, out: &mut [f32]) {
        let (width, position) = (self.config.head_width, self.rows[row].position);
        let seen = position + 1;
        let first = self.config.first_seen(position) / BLOCK_OF_ONE * BLOCK_OF_ONE;
        let queries = &self.queries(row)[head * width..][..heads * width];
        let (keys, values) = self.halves(row, head, seen);
        let (mut so_far, mut scores) = (SoFar::default(), [[0.0; BLOCK_OF_ONE]; QUERIES]);
        let scores = &mut scores[..heads];
        out.fill(0.0);
        let mut meet = |block: Range<usize>, visible: Range<usize>| {
            self.kernels.dots(keys, block.clone(), queries, scores.as_flattened_mut());
            for (query, (weights, out)) in scores.iter_mut().zip(out.chunks_exact_mut(width)).enumerate() {
                so_far.weigh(self.kernels, self.config, query, weights, visible.clone(), out);
            }
            self.kernels.add_few(scores.as_flattened(), values, block, out);
        };
        let pieces = |range: Range<usize>| {
            let end = range.end;
            range.step_by(BLOCK_OF_ONE).map(move |start| start..end.min(start + BLOCK_OF_ONE))
        };
        let blocks = self.chosen.map(|chosen| {
            let blocks = &chosen.blocks[row * chosen.count..][..chosen.count];
            (blocks, chosen.positions)
        });
        match blocks.filter(|(blocks, _)| blocks[0] != Chosen::ALL) {
            None => pieces(first..seen).for_each(|block| {
                let visible = self.visible(row, block.start, block.len());
                meet(block, visible);
            }),
            Some((blocks, positions)) => {
                let chosen = blocks.iter().map(|&block| block as usize * positions);
                let behind = seen / positions * positions..seen;
                let all = chosen.map(|start| start..start + positions).chain([behind]);
                for block in all.flat_map(pieces) {
                    let visible = 0..block.len();
                    meet(block, visible);
                }
            }
        }
        so_far.finish(out, width, |query| Some(self.sinks?[head + query]));
    }

    /// The keys and values of the first `seen` positions of a row's sequence, for a head's queries.
    fn halves(&self, row: usize, head: usize, seen: usize) -> (Matrix<'a>, Matrix<'a>) {
        let kv_head = head / (self.config.heads / self.config.kv_heads);
        let half = |half| self.kv.head(self.rows[row].sequence, self.layer, half, kv_head, seen);
        (half(Half::Key), half(Half::Value))
    }
}

/// The running maximum and sum of each query's softmax.
struct SoFar {
    max: [f32; QUERIES],
    sum: [f32; QUERIES],
}

impl Default for SoFar {
    fn default() -> Self {
        Self { max: [f32::NEG_INFINITY; QUERIES], sum: [0.0; QUERIES] }
    }
}

impl SoFar {
    /// Turns a query's scores of a block into weights; only scores of `visible` count. Rescales `out` where
    /// the maximum grows.
    ///
    /// *Shapes*: `scores: [positions]`, whole lanes, `out: [head_width]`.
    fn weigh(
        &mut self,
        kernels: &dyn Kernels,
        config: &config::Attention,
        query: usize,
        scores: &mut [f32],
        visible: Range<usize>,
        out: &mut [f32],
    ) {
        if visible.is_empty() {
            scores.fill(0.0);
            return;
        }
        let (max, sum) = (&mut self.max[query], &mut self.sum[query]);
        soften(config, &mut scores[visible.clone()]);
        scores[..visible.start].fill(f32::NEG_INFINITY);
        scores[visible.end..].fill(f32::NEG_INFINITY);
        let lanes = &mut scores.as_chunks_mut::<LANES>().0[..visible.end.div_ceil(LANES)];
        let mut largest = [*max; LANES];
        for scores in &mut *lanes {
            for (largest, score) in largest.iter_mut().zip(scores) {
                *score *= config.scale;
                *largest = if *score > *largest { *score } else { *largest };
            }
        }
        let largest = largest.into_iter().fold(*max, f32::max);
        if largest > *max {
            let shrink = (*max - largest).exp();
            out.iter_mut().for_each(|value| *value *= shrink);
            *sum *= shrink;
            *max = largest;
        }
        kernels.exponentials(lanes.as_flattened_mut(), largest);
        scores[..visible.start].fill(0.0);
        scores[visible.end..].fill(0.0);
        let mut sums = [0.0; LANES];
        for weights in scores.as_chunks::<LANES>().0 {
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
        }
        *sum += sums.iter().sum::<f32>();
    }

    /// [`SoFar::weigh`] for all queries of a tile, side by side; `hidden` gives the block's positions that a
    /// query does not see.
    ///
    /// *Shapes*: `scores: [positions, queries]`, `out: [queries, head_width]`.
    fn weigh_tile<const W: usize, I: Iterator<Item = usize>>(
        &mut self,
        kernels: &dyn Kernels,
        config: &config::Attention,
        scores: &mut [f32],
        hidden: impl Fn(usize) -> I,
        out: &mut [[f32; W]],
    ) {
        let count = out.len();
        let hide = |scores: &mut [f32], with: f32| {
            for query in 0..count {
                hidden(query).for_each(|position| scores[position * count + query] = with);
            }
        };
        soften(config, scores);
        hide(scores, f32::NEG_INFINITY);
        let mut largest = self.max;
        for scores in scores.chunks_exact_mut(count) {
            for (largest, score) in largest.iter_mut().zip(scores) {
                *score *= config.scale;
                *largest = if *score > *largest { *score } else { *largest };
            }
        }
        for (query, out) in out.iter_mut().enumerate() {
            if largest[query] > self.max[query] {
                let shrink = (self.max[query] - largest[query]).exp();
                out.iter_mut().for_each(|value| *value *= shrink);
                self.sum[query] *= shrink;
            }
        }
        self.max = largest;
        for scores in scores.chunks_exact_mut(count) {
            scores.iter_mut().zip(&largest).for_each(|(score, largest)| *score -= largest);
        }
        kernels.exponentials(scores, 0.0);
        hide(scores, 0.0);
        for weights in scores.chunks_exact(count) {
            self.sum.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
        }
    }

    /// Computes `out /= sum`, with each query's sink added to its sum.
    fn finish(&self, out: &mut [f32], width: usize, sink: impl Fn(usize) -> Option<f32>) {
        for (query, out) in out.chunks_exact_mut(width).enumerate() {
            let (max, sum) = (self.max[query], self.sum[query]);
            let Some(sink) = sink(query) else {
                out.iter_mut().for_each(|value| *value /= sum);
                continue;
            };
            // relative to the larger of the two, so that neither overflows
            let largest = max.max(sink);
            let shrink = (max - largest).exp();
            let factor = shrink / (sum * shrink + (sink - largest).exp());
            out.iter_mut().for_each(|value| *value *= factor);
        }
    }
}

/// Bounds unscaled scores by the model's soft cap, if it has one.
fn soften(config: &config::Attention, scores: &mut [f32]) {
    if let Some(bound) = config.softcap {
        let bounded =
            |score: &mut f32| *score = bound / config.scale * (*score * config.scale / bound).tanh();
        scores.iter_mut().for_each(bounded);
    }
}

/// The rows of a block; positions beyond the end repeat the last row.
fn block(rows: Matrix<'_>, start: usize) -> [Row<'_>; BLOCK] {
    std::array::from_fn(|at| rows.row((start + at).min(rows.rows - 1)))
}

#[cfg(test)]
mod tests {
    use compare::largest_difference;

    use super::*;
    use crate::arena::{Align, Arena};
    use crate::transformer::tests::kernels_of_all_sets;
    use kernels::Format;
    use kernels::dequantise;

    /// Attention of one head of one row, by definition.
    fn by_definition(
        c: &config::Attention,
        sinks: Option<&[f32]>,
        kv: &KeyValues,
        position: usize,
        query: &[f32],
        head: usize,
    ) -> Vec<f32> {
        let half = |half| -> Vec<Vec<f32>> {
            let rows = kv.head(0, 0, half, head / (c.heads / c.kv_heads), position + 1);
            (0..rows.rows)
                .map(|at| {
                    let row = rows.row(at);
                    let mut values = vec![0.0; c.head_width];
                    dequantise(row.format, row.bytes, &mut values);
                    values
                })
                .collect()
        };
        let dot = |key: &Vec<f32>| key.iter().zip(query).map(|(k, q)| f64::from(k * q)).sum::<f64>();
        let score = |(at, key): (usize, &Vec<f32>)| {
            let score = dot(key) * f64::from(c.scale);
            let bounded = c.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
            if c.window.is_some_and(|window| at + window <= position) { f64::NEG_INFINITY } else { bounded }
        };
        let weights: Vec<f64> = half(Half::Key).iter().enumerate().map(score).map(f64::exp).collect();
        let sum = weights.iter().sum::<f64>() + sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
        let mut out = vec![0.0; c.head_width];
        for (weight, value) in weights.iter().zip(half(Half::Value)) {
            out.iter_mut().zip(value).for_each(|(out, value)| *out += (weight / sum) as f32 * value);
        }
        out
    }

    /// Attention of every kind, in a shape.
    fn kinds(heads: usize, kv_heads: usize, head_width: usize) -> Vec<(config::Attention, Option<Vec<f32>>)> {
        let plain = config::Attention::plain(heads, kv_heads, head_width);
        let sinks: Vec<f32> = (0..heads).map(|head| head as f32 - 2.0).collect();
        vec![
            (plain.clone(), None),
            (config::Attention { window: Some(1), ..plain.clone() }, None),
            (config::Attention { window: Some(37), scale: 0.3, ..plain.clone() }, None),
            (config::Attention { window: Some(64), sinks: true, ..plain.clone() }, Some(sinks.clone())),
            (config::Attention { softcap: Some(1.5), sinks: true, ..plain.clone() }, Some(sinks)),
            (config::Attention { softcap: Some(2.0), window: Some(33), ..plain }, None),
        ]
    }

    #[test]
    fn both_orders_are_the_definition_and_neighbours_and_threads_change_no_bit() {
        const CONTEXT: usize = 160;
        let shapes = [(4, 2, 32), (8, 1, 64), (6, 6, 128), (64, 1, 32), (7, 1, 40)];
        let in_blocks = [
            (Format::Q8_0, (3, 1, 64)),
            (Format::Q8_0, (1, 1, 160)),
            (Format::Q4_0, (4, 2, 32)),
            (Format::Q4_0, (1, 1, 128)),
        ];
        let plain = shapes.map(|shape| (Format::F16, shape)).into_iter();
        for (format, (heads_count, kv_heads, width)) in plain.chain(in_blocks) {
            let mut arena = Arena::new(1 << 21).expect("memory");
            let bytes = 2 * kv_heads * CONTEXT * format.row_bytes(width);
            let region = arena.take(bytes, Align::Page).expect("room");
            let mut kv = KeyValues::new(region, format, [(kv_heads, width)], CONTEXT);
            let mut state = 1_u32;
            let mut number = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            for position in 0..CONTEXT {
                for half in [Half::Key, Half::Value] {
                    let values: Vec<f32> = (0..kv_heads * width).map(|_| 2.0 * number()).collect();
                    kv.store(0, 0, half, position, &values);
                }
            }
            let places: Vec<At> = (0..CONTEXT).map(|position| At { sequence: 0, position }).collect();
            let stride = (heads_count + 2 * kv_heads) * width;
            let projections: Vec<f32> = (0..CONTEXT * stride).map(|_| 2.0 * number()).collect();
            for (config, sinks) in kinds(heads_count, kv_heads, width) {
                let sinks = sinks.as_deref();
                for kernels in kernels_of_all_sets() {
                    let run = |threads: usize, rows: Range<usize>, tiling: Tiling| {
                        let pool = Pool::new(&vec![0; threads]).expect("threads");
                        let mut out = vec![f32::NAN; rows.len() * config.query_width()];
                        let (at, projections) = (&places[rows.clone()], &projections[rows.start * stride..]);
                        attend(&pool, kernels, &config, sinks, &kv, 0, at, projections, tiling, &mut out);
                        out
                    };
                    for order in [Tiling::Tiles, Tiling::OneByOne] {
                        let all = run(1, 0..CONTEXT, order);
                        let heads = all.chunks_exact(width).enumerate();
                        let off = heads.fold(0.0_f32, |off, (at, found)| {
                            let (row, head) = (at / heads_count, at % heads_count);
                            let query = &projections[row * stride + head * width..][..width];
                            let expected = by_definition(&config, sinks, &kv, row, query, head);
                            off.max(largest_difference(found, &expected))
                        });
                        assert!(off < 2e-5, "{order:?} {config:?} {kernels:?}: {off}");
                        for (threads, rows) in [(2, 0..CONTEXT), (3, 33..34), (2, 79..80), (1, 10..51)] {
                            let part =
                                &all[rows.start * config.query_width()..rows.end * config.query_width()];
                            let found = run(threads, rows.clone(), order);
                            assert!(found == part, "{order:?} {config:?} {rows:?}");
                        }
                    }
                }
            }
        }
    }
}
