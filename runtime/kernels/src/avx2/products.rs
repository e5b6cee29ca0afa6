//! Many vectors at once, in sixteen registers. Float tiles have 6 rows and 16 vectors, with twelve registers
//! of sums. Byte tiles have 3 rows, with six registers of pairs and six of sums.
//!
//! Byte products are exact without VNNI. `vpmaddubsw` multiplies unsigned by signed bytes and adds two
//! products in 16 bits, where full bytes may saturate. Four-bit values cannot: the eight sums of two products
//! in a block stay below `8 * 2 * 15 * 127 = 30480`. So an offset makes weights unsigned, as in `avx512`, and
//! they are cut into *planes* of four bits: one plane for `Q4_0` and `Q4_K`, two for `Q8_0` and `Q6_K`:
//!
//! ```text
//! w + 8   = low                     Q4_0
//! w + 128 = low + 16 * high         Q8_0, and others of which some steps are below zero
//! q       = low                     Q4_K, Q4_1, Q2_K
//! q       = low + 16 * high         Q5_K, Q5_1; Q6_K, whose offset of 32 is taken from each sixteen
//! whole   = sum of low * x + 16 * sum of high * x - offset * sum of x
//! ```
//!
//! The pair sums of the last plane start at minus its share of the offset, at most eight times the sum of
//! `x`.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;
use std::hint::black_box;

use bytemuck::{cast, cast_mut, cast_ref, cast_slice};

use super::super::interleaved::{self as format, part};
use super::super::k_block::{PARTS, Q4K, Q6K};
use super::super::packed::{BLOCK, BLOCK_WORDS, LANES, Packed};
use super::super::parts::{self, Stored, Traits};
use super::super::tiles::{self, COLUMNS, PANEL, rows_of};
use super::super::{Row, padded};
use super::registers::Registers;
use super::{
    bf16_weights, f16_weights, f32_weights, half_to_single, interleaved, k_block, load, load_32, prefetch,
    q4_0_weights, q8_0_weights, steps_of_nibbles, store, store_32,
};
use crate::format::Format;

/// Rows of a tile.
const ROWS: usize = 6;
/// Tiles of a panel: 24 rows.
const TILES: usize = 4;

/// Sixteen floats or sixteen integers.
pub(super) type Sixteen = [__m256; 2];
pub(super) type Whole = [__m256i; 2];

/// [`super::Kernels::products`] for [`super::super::Form::F32`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn products(w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]) {
    let empty = [[0.0; COLUMNS]; ROWS];
    tiles::products::<_, ROWS, TILES>(
        w,
        x,
        out,
        COLUMNS,
        empty,
        |rows, columns, tile| {
            for (row, values) in rows.iter().zip(tile) {
                unpack(row, columns.start, &mut values[..columns.len()]);
                prefetch_piece(row, columns.end, COLUMNS);
            }
        },
        |tile, words, sums| multiply(tile, words, sums),
    );
}

/// Prefetches the next piece of a row. The piece is short and far from the next row's, so hardware
/// prefetching misses it.
#[inline]
#[target_feature(enable = "sse")]
fn prefetch_piece(row: &Row<'_>, start: usize, columns: usize) {
    let (start, bytes) = (row.place(start), row.place(columns));
    for line in (0..bytes).step_by(64) {
        _mm_prefetch::<_MM_HINT_T1>(row.bytes.as_ptr().wrapping_add(start + line).cast());
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply(tile: &[[f32; COLUMNS]; ROWS], words: &[[f32; LANES]], out: &mut [[f32; LANES]; ROWS]) {
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    for row in 0..ROWS {
        sums[row] = load_sixteen(&out[row]);
    }
    for (column, x) in words.iter().enumerate().take(COLUMNS) {
        let x = load_sixteen(x);
        for row in 0..ROWS {
            sums[row] = add_scaled(sums[row], x, tile[row][column]);
        }
    }
    for (out, sums) in out.iter_mut().zip(sums) {
        store_sixteen(out, sums);
    }
}

/// Values `start..start + out.len()` of a row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack(row: &Row<'_>, start: usize, out: &mut [f32]) {
    let bytes = &row.bytes[row.place(start)..row.place(start + out.len())];
    match row.format {
        Format::F32 => unpack_with(bytes, out, |w| f32_weights(w)),
        Format::F16 => unpack_with(bytes, out, |w| f16_weights(w)),
        Format::BF16 => unpack_with(bytes, out, |w| bf16_weights(w)),
        Format::Q8_0 => unpack_with(bytes, out, |w| q8_0_weights(w)),
        Format::Q4_0 => unpack_with(bytes, out, |w| q4_0_weights(w)),
        Format::Q4_0X4 => interleaved::unpack(row, start, out),
        Format::Q6K | Format::Q4K => k_block::unpack(row, start, out),
        _ => parts::unpack(Registers::<false>::here(), row, start, out),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_with<const BYTES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    weights: impl Fn(&[u8; BYTES]) -> [__m256; 4],
) {
    let (w, w_rest) = bytes.as_chunks::<BYTES>();
    let (out, out_rest) = out.as_chunks_mut::<32>();
    for (w, out) in w.iter().zip(out) {
        let [w0, w1, w2, w3] = weights(w);
        store(out, [w0, w1], [w2, w3]);
    }
    if !out_rest.is_empty() {
        let mut all = [0.0; 32];
        let [w0, w1, w2, w3] = weights(&padded(w_rest));
        store(&mut all, [w0, w1], [w2, w3]);
        out_rest.copy_from_slice(&all[..out_rest.len()]);
    }
}

/// [`super::Kernels::add_products`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_products(
    a: &[f32],
    count: usize,
    first: usize,
    w: &[Row<'_>],
    y: &mut [f32],
    columns: usize,
) {
    tiles::add_products(
        a,
        count,
        first,
        w,
        y,
        columns,
        |row, start, values| unpack(row, start, values),
        |panel, mark, factors, sums| {
            prefetch(sums, columns * size_of::<f32>()); // those of the next vector
            add(panel, mark, factors, sums);
        },
        |panel, factors, sums| {
            prefetch(sums[0], 3 * columns * size_of::<f32>());
            prefetch(sums[1], 3 * columns * size_of::<f32>());
            prefetch(sums[2], 3 * columns * size_of::<f32>());
            add_three(panel, factors, sums);
        },
    );
}

/// One vector: its 64 columns stay in registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add(panel: &[[f32; PANEL]; PANEL], mark: u64, factors: &[f32; PANEL], out: &mut [f32; PANEL]) {
    let out: &mut [[f32; LANES]; PANEL / LANES] = cast_mut(out);
    let mut sums = [[_mm256_setzero_ps(); 2]; PANEL / LANES];
    for part in 0..PANEL / LANES {
        sums[part] = load_sixteen(&out[part]);
    }
    for row in rows_of(mark) {
        let w: &[[f32; LANES]; PANEL / LANES] = cast_ref(&panel[row]);
        for part in 0..PANEL / LANES {
            sums[part] = add_scaled(sums[part], load_sixteen(&w[part]), factors[row]);
        }
    }
    for (out, sums) in out.iter_mut().zip(sums) {
        store_sixteen(out, sums);
    }
}

/// Three vectors, each half of the columns in turn: twelve sums in flight hide the latency, and each weight
/// is loaded once.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_three(
    panel: &[[f32; PANEL]],
    factors: [&[f32; PANEL]; 3],
    [out0, out1, out2]: [&mut [f32; PANEL]; 3],
) {
    let [factors0, factors1, factors2] = factors;
    for half in 0..2 {
        let place = |out: &[f32; PANEL]| load(&out.as_chunks().0[half]);
        let mut sums = [place(out0), place(out1), place(out2)];
        for (row, w) in panel.iter().enumerate() {
            let (w, _) = w.as_chunks::<8>();
            let a = [factors0[row], factors1[row], factors2[row]];
            let a = [_mm256_set1_ps(a[0]), _mm256_set1_ps(a[1]), _mm256_set1_ps(a[2])];
            // the sums, three factors and one weight fill sixteen registers; three weights and one factor
            // would spill
            for i in 0..4 {
                let w = load_32(cast_ref(&w[4 * half + i]));
                for t in 0..3 {
                    sums[t][i] = _mm256_fmadd_ps(a[t], w, sums[t][i]);
                }
            }
        }
        let [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3]] = sums;
        store(&mut out0.as_chunks_mut().0[half], [a0, a1], [a2, a3]);
        store(&mut out1.as_chunks_mut().0[half], [b0, b1], [b2, b3]);
        store(&mut out2.as_chunks_mut().0[half], [c0, c1], [c2, c3]);
    }
}

// ---- bytes ----

/// Rows of a byte tile: six registers of pair sums, six of sums, and their operands.
const BYTE_ROWS: usize = 3;
/// Tiles of a panel: also 24 rows.
const BYTE_TILES: usize = 8;
/// Blocks of a tile: 3 KiB in two planes.
const BLOCKS: usize = 16;

/// One plane of a block: four columns of each row, then the next four columns.
type Plane = [[[u8; 4]; BYTE_ROWS]; BLOCK / 4];

/// A piece of some rows: planes of four bits, with scales and minima.
#[derive(Clone, Copy)]
struct Tile<const PLANES: usize> {
    planes: [[Plane; PLANES]; BLOCKS],
    /// The scale of each half of each block.
    scales: [[[f32; BYTE_ROWS]; 2]; BLOCKS],
    /// The minimum of each half of each block, for formats with minima.
    minima: [[[f32; BYTE_ROWS]; 2]; BLOCKS],
}

/// A row's block in the layout of a tile.
struct Block<const PLANES: usize> {
    planes: [[u8; BLOCK]; PLANES],
    scales: [f32; 2],
    minima: [f32; 2],
}

/// [`super::Kernels::products`] for [`super::super::Form::Q8`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn byte_products(w: &[Row<'_>], x: Packed<'_>, out: &mut [f32]) {
    const ALL: usize = BLOCK / 4;
    let scale = |d0, d1| [half_to_single([d0, d1]); 2];
    match w.first().map(|row| row.format) {
        Some(Format::Q4_0) => byte_products_of::<1, ALL, 8, false>(w, x, out, |row, at| {
            let [d0, d1, q @ ..] = &row.as_chunks::<18>().0[at];
            Block { planes: [nibbles(q)], scales: scale(*d0, *d1), minima: [0.0; 2] }
        }),
        Some(Format::Q4_0X4) => byte_products_of::<1, ALL, 8, false>(w, x, out, |row, at| {
            let ([d0, d1], q) = part(&row.as_chunks().0[at / format::BLOCKS], at % format::BLOCKS);
            Block { planes: [nibbles(q)], scales: scale(d0, d1), minima: [0.0; 2] }
        }),
        Some(Format::Q4K) => byte_products_of::<1, ALL, 0, true>(w, x, out, |row, at| {
            let (block, k) = (&cast_slice::<_, Q4K>(row)[at / PARTS], at % PARTS);
            let [scales, minima] = k_block::q4_k_scales(block);
            Block { planes: [block.steps(k)], scales: [scales[k]; 2], minima: [minima[k]; 2] }
        }),
        Some(Format::Q6K) => byte_products_of::<2, { ALL / 2 }, 2, false>(w, x, out, |row, at| {
            let (block, k) = (&cast_slice::<_, Q6K>(row)[at / PARTS], at % PARTS);
            let (steps, scales) = (block.steps(k), k_block::q6_k_scales(block));
            let planes = [steps.map(|q| q & 0xf), steps.map(|q| q >> 4)];
            Block { planes, scales: [scales[2 * k], scales[2 * k + 1]], minima: [0.0; 2] }
        }),
        Some(format) if format.has_blocks() && format != Format::Q8_0 => match parts::traits(format) {
            Traits { signed: true, halves: false, .. } => {
                byte_products_of_parts::<2, ALL, 8, false>(w, x, out, |part| both(part, 0x80));
            }
            Traits { signed: true, halves: true, .. } => {
                byte_products_of_parts::<2, { ALL / 2 }, 8, false>(w, x, out, |part| both(part, 0x80));
            }
            Traits { halves: true, .. } => {
                byte_products_of_parts::<1, { ALL / 2 }, 0, true>(w, x, out, low);
            }
            Traits { bits: ..=4, .. } => {
                byte_products_of_parts::<1, ALL, 0, true>(w, x, out, low);
            }
            Traits { .. } => byte_products_of_parts::<2, ALL, 0, true>(w, x, out, |part| both(part, 0)),
        },
        _ => byte_products_of::<2, ALL, 8, false>(w, x, out, |row, at| {
            let [d0, d1, q @ ..] = &row.as_chunks::<34>().0[at];
            let offset = q.map(|q| q ^ 0x80);
            let planes = [offset.map(|q| q & 0xf), offset.map(|q| q >> 4)];
            Block { planes, scales: scale(*d0, *d1), minima: [0.0; 2] }
        }),
    }
}

/// 32 nibbles as bytes, in the order of their values.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(q: &[u8; 16]) -> [u8; BLOCK] {
    cast(steps_of_nibbles(q))
}

/// Steps of at most four bits: one plane.
#[inline]
fn low(Stored { steps, scales, minima }: Stored) -> Block<1> {
    Block { planes: [steps.map(i8::cast_unsigned)], scales, minima }
}

/// Steps of more than four bits: two planes. `sign` adds the last plane's offset by flipping the sign bit.
#[inline]
fn both(Stored { steps, scales, minima }: Stored, sign: u8) -> Block<2> {
    let steps = steps.map(|step| step.cast_unsigned() ^ sign);
    Block { planes: [steps.map(|q| q & 0xf), steps.map(|q| q >> 4)], scales, minima }
}

/// Products with rows of blocks. `OFFSET` makes the last plane unsigned. `GROUPS` groups of four values share
/// a scale and, with `MINIMA`, a minimum.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn byte_products_of<const PLANES: usize, const GROUPS: usize, const OFFSET: i32, const MINIMA: bool>(
    w: &[Row<'_>],
    x: Packed<'_>,
    out: &mut [f32],
    block: impl Fn(&[u8], usize) -> Block<PLANES>,
) {
    tiles::products::<_, BYTE_ROWS, BYTE_TILES>(
        w,
        x,
        out,
        BLOCKS * BLOCK,
        Tile::EMPTY,
        |rows, columns, tile| {
            for (at, row) in rows.iter().enumerate() {
                for (to, from) in (columns.start / BLOCK..columns.end / BLOCK).enumerate() {
                    tile.put(to, at, block(row.bytes, from));
                }
                prefetch_piece(row, columns.end, BLOCKS * BLOCK);
            }
        },
        |tile, words, sums| multiply_bytes::<PLANES, GROUPS, OFFSET, MINIMA>(tile, words, sums),
    );
}

/// [`byte_products_of`] for the formats of [`parts`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn byte_products_of_parts<const PLANES: usize, const GROUPS: usize, const OFFSET: i32, const MINIMA: bool>(
    w: &[Row<'_>],
    x: Packed<'_>,
    out: &mut [f32],
    block: impl Fn(Stored) -> Block<PLANES>,
) {
    let u = Registers::<false>::here();
    tiles::products::<_, BYTE_ROWS, BYTE_TILES>(
        w,
        x,
        out,
        BLOCKS * BLOCK,
        Tile::EMPTY,
        |rows, columns, tile| {
            for (at, row) in rows.iter().enumerate() {
                let of_row = columns.start / BLOCK..columns.end / BLOCK;
                parts::for_parts(u, row.format, row.bytes, of_row, |to, part| {
                    tile.put(to, at, block(part.stored(u)));
                });
                prefetch_piece(row, columns.end, BLOCKS * BLOCK);
            }
        },
        |tile, words, sums| multiply_bytes::<PLANES, GROUPS, OFFSET, MINIMA>(tile, words, sums),
    );
}

impl<const PLANES: usize> Tile<PLANES> {
    const EMPTY: Self = Self {
        planes: [[[[[0; 4]; BYTE_ROWS]; BLOCK / 4]; PLANES]; BLOCKS],
        scales: [[[0.0; BYTE_ROWS]; 2]; BLOCKS],
        minima: [[[0.0; BYTE_ROWS]; 2]; BLOCKS],
    };

    /// Block `to` of row `at`.
    #[inline(always)]
    fn put(&mut self, to: usize, at: usize, Block { planes, scales, minima }: Block<PLANES>) {
        for (to, plane) in self.planes[to].iter_mut().zip(planes) {
            for (to, four) in to.iter_mut().zip(plane.as_chunks().0) {
                to[at] = *four;
            }
        }
        for half in 0..2 {
            (self.scales[to][half][at], self.minima[to][half][at]) = (scales[half], minima[half]);
        }
    }
}

/// [`multiply`] with integers under each scale; the sums stay in registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_bytes<const PLANES: usize, const GROUPS: usize, const OFFSET: i32, const MINIMA: bool>(
    tile: &Tile<PLANES>,
    words: &[[f32; LANES]],
    out: &mut [[f32; LANES]; BYTE_ROWS],
) {
    let mut sums = [[_mm256_setzero_ps(); 2]; BYTE_ROWS];
    for row in 0..BYTE_ROWS {
        sums[row] = load_sixteen(&out[row]);
    }
    let groups = black_box(GROUPS);
    let (blocks, _) = words.as_chunks::<BLOCK_WORDS>();
    let stored = tile.planes.iter().zip(&tile.scales).zip(&tile.minima);
    for (block, ((planes, scales), minima)) in blocks.iter().zip(stored) {
        let [scale, sum, x @ ..] = block;
        let scale = load_sixteen(scale);
        for (part, x) in x.as_chunks::<GROUPS>().0.iter().enumerate() {
            // the scale covers the whole block, and so does its sum
            let offset = if GROUPS < BLOCK / 4 { offset_of::<OFFSET>(x) } else { offset_in::<OFFSET>(sum) };
            let mut whole = [[_mm256_setzero_si256(); 2]; BYTE_ROWS];
            for (at, plane) in planes.iter().enumerate() {
                let begin = if at + 1 == PLANES { offset } else { [_mm256_setzero_si256(); 2] };
                let pairs =
                    multiply_plane(&plane.as_chunks::<GROUPS>().0[part][..groups], &x[..groups], begin);
                let worth = _mm256_set1_epi16(1 << (4 * at));
                for row in 0..BYTE_ROWS {
                    for i in 0..2 {
                        let four = _mm256_madd_epi16(pairs[row][i], worth);
                        whole[row][i] = if at == 0 { four } else { _mm256_add_epi32(whole[row][i], four) };
                    }
                }
            }
            for row in 0..BYTE_ROWS {
                let d = _mm256_set1_ps(scales[part][row]);
                for i in 0..2 {
                    let whole = _mm256_cvtepi32_ps(whole[row][i]);
                    sums[row][i] = _mm256_fmadd_ps(whole, _mm256_mul_ps(d, scale[i]), sums[row][i]);
                }
            }
            if MINIMA {
                let all = if GROUPS < BLOCK / 4 { sum_of(x) } else { load_whole(sum) };
                for i in 0..2 {
                    let all = _mm256_mul_ps(scale[i], _mm256_cvtepi32_ps(all[i]));
                    for row in 0..BYTE_ROWS {
                        let minimum = _mm256_set1_ps(minima[part][row]);
                        sums[row][i] = _mm256_fnmadd_ps(minimum, all, sums[row][i]);
                    }
                }
            }
        }
    }
    for row in 0..BYTE_ROWS {
        store_sixteen(&mut out[row], sums[row]);
    }
}

/// The share of an offset of at most 8 in the pair sums of a block. All of it is subtracted from one of the
/// two sums. That sum stays above `-8 * 32 * 127 = -32512`, since a weight less its offset is at most 8.
#[inline]
#[target_feature(enable = "avx2")]
fn offset_in<const OFFSET: i32>(sum: &[f32; LANES]) -> Whole {
    let [low, high] = load_whole(sum);
    let factors = _mm256_set1_epi32(-OFFSET & 0xffff); // for the lower half, which holds all of a sum
    [_mm256_mullo_epi16(low, factors), _mm256_mullo_epi16(high, factors)]
}

/// The share of the offset in some columns of a block.
#[inline]
#[target_feature(enable = "avx2")]
fn offset_of<const OFFSET: i32>(x: &[[f32; LANES]]) -> Whole {
    let mut pairs = [_mm256_setzero_si256(); 2];
    for x in x {
        let x = load_whole(x);
        for i in 0..2 {
            let products = _mm256_maddubs_epi16(_mm256_set1_epi8(OFFSET as i8), x[i]);
            pairs[i] = _mm256_sub_epi16(pairs[i], products);
        }
    }
    pairs
}

/// The sum of some columns of a block.
#[inline]
#[target_feature(enable = "avx2")]
fn sum_of(x: &[[f32; LANES]]) -> Whole {
    offset_of::<1>(x).map(|pairs| _mm256_madd_epi16(pairs, _mm256_set1_epi16(-1)))
}

/// A plane, or half of it, times a block of vectors: pair sums that start at `begin`. Intermediate overflow
/// wraps around and cancels.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_plane(plane: &[[[u8; 4]; BYTE_ROWS]], x: &[[f32; LANES]], begin: Whole) -> [Whole; BYTE_ROWS] {
    let mut pairs = [begin; BYTE_ROWS];
    for (x, four) in x.iter().zip(plane) {
        let x = load_whole(x);
        for row in 0..BYTE_ROWS {
            let w = _mm256_set1_epi32(i32::from_le_bytes(four[row]));
            for i in 0..2 {
                pairs[row][i] = _mm256_add_epi16(pairs[row][i], _mm256_maddubs_epi16(w, x[i]));
            }
        }
    }
    pairs
}

// ---- 16 values ----

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_scaled([low, high]: Sixteen, x: Sixteen, a: f32) -> Sixteen {
    let a = _mm256_set1_ps(a);
    [_mm256_fmadd_ps(a, x[0], low), _mm256_fmadd_ps(a, x[1], high)]
}

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn load_sixteen(values: &[f32; LANES]) -> Sixteen {
    let [low, high] = cast_ref::<_, [[u8; 32]; 2]>(values);
    [load_32(low), load_32(high)]
}

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn load_whole(words: &[f32; LANES]) -> Whole {
    let [low, high] = load_sixteen(words);
    [_mm256_castps_si256(low), _mm256_castps_si256(high)]
}

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn store_sixteen(values: &mut [f32; LANES], new: Sixteen) {
    for (values, new) in values.as_chunks_mut().0.iter_mut().zip(new) {
        store_32(values, new);
    }
}
