//! Transposed rows times many vectors of bytes: the down projection of a prompt, summed over neurons.
//!
//! ```text
//! for 96 columns, for 256 rows: transpose into a panel            32 rows at a time, under a scale for each column
//!     for each pair of groups (32 vectors), for 6 columns:        12 registers of whole numbers, 12 of sums
//!         whole += dpbusd(four rows of a column, four values)
//! ```

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use bytemuck::cast_mut;

use super::super::interleaved::BLOCKS as GROUPS;
use super::super::packed::{BLOCK, BLOCK_WORDS, Form, LANES, LEAST, Packed, PackedVectors};
use super::super::prefetch::prefetch;
use super::super::tiles::Lined;
use super::super::{Row, TRANSPOSED_COLUMNS, TRANSPOSED_MOST};
use super::interleaved::weights;
use super::products::{for_pairs, load_lanes, store_lanes};
use super::{load, store};

/// Columns of a panel: whole blocks and whole tiles.
const COLUMNS: usize = TRANSPOSED_COLUMNS;
/// Columns of a tile.
const TILE: usize = 6;
/// Blocks of rows of a panel: 27 KiB.
const BLOCKS: usize = 8;
/// The offset that makes a weight unsigned.
const OFFSET: i32 = 32;

/// A panel of transposed rows.
struct Panel {
    /// Weights of each block of rows: four rows of every column, then the next four rows.
    groups: [[[i32; COLUMNS]; BLOCK / 4]; BLOCKS],
    /// The scale of each column of each block of rows.
    scales: [[f32; COLUMNS]; BLOCKS],
}

/// [`super::Kernels::add_transposed`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn add_transposed(w: &[Row<'_>], start: usize, x: Packed<'_>, out: &mut [f32]) {
    let mut panel =
        Lined(Panel { groups: [[[0; COLUMNS]; BLOCK / 4]; BLOCKS], scales: [[0.0; COLUMNS]; BLOCKS] });
    let panel = &mut panel.0;
    for (at, out) in out.chunks_mut(COLUMNS * x.count).enumerate() {
        let (first, columns) = ((start + at * COLUMNS) / BLOCK, out.len() / x.count);
        for (piece, w) in w.chunks(BLOCKS * BLOCK).enumerate() {
            let blocks = w.len().div_ceil(BLOCK);
            for (block, w) in w.chunks(BLOCK).enumerate() {
                for part in 0..columns / BLOCK {
                    turn(w, first + part, &mut panel.groups[block], &mut panel.scales[block], part * BLOCK);
                }
            }
            let words = Form::Q8.vector_words(piece * BLOCKS * BLOCK);
            for_pairs(x, words..words + Form::Q8.vector_words(blocks * BLOCK), |vector, pair| {
                for (tile, out) in out.chunks_mut(TILE * x.count).enumerate() {
                    match pair {
                        (group, Some(second)) => {
                            multiply(panel, tile * TILE, [group, second], vector, x.count, out);
                        }
                        (group, None) => multiply(panel, tile * TILE, [group], vector, x.count, out),
                    }
                }
            });
        }
    }
}

/// Block `at` of the columns of up to 32 rows; missing rows are zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn turn(
    w: &[Row<'_>],
    at: usize,
    groups: &mut [[i32; COLUMNS]; BLOCK / 4],
    scales: &mut [f32; COLUMNS],
    column: usize,
) {
    let mut values = Lined([[0.0; BLOCK]; BLOCK]);
    let mut largest = [_mm512_setzero_ps(); 2];
    for (row, values) in w.iter().zip(&mut values.0) {
        let w = weights(&row.bytes.as_chunks().0[at / GROUPS], at % GROUPS);
        for j in 0..2 {
            largest[j] = _mm512_max_ps(largest[j], _mm512_abs_ps(w[j]));
        }
        store(values, w);
    }
    let (most, mut inverse) = (_mm512_set1_ps(TRANSPOSED_MOST), [_mm512_setzero_ps(); 2]);
    let mut scale = inverse;
    for j in 0..2 {
        let counts = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(largest[j], _mm512_set1_ps(LEAST));
        inverse[j] = _mm512_maskz_div_ps(counts, most, largest[j]);
        scale[j] = _mm512_maskz_div_ps(counts, largest[j], most);
    }
    store(&mut scales[column..].as_chunks_mut().0[0], scale);
    for (four, rows) in groups.iter_mut().zip(values.0.as_chunks::<4>().0) {
        let mut bytes = [_mm512_set1_epi32(0x0101_0101 * OFFSET); 2];
        for (i, row) in (0..).zip(rows) {
            let (w, place) = (load(row), _mm_cvtsi32_si128(8 * i));
            for j in 0..2 {
                let whole = _mm512_cvtps_epi32(_mm512_mul_ps(w[j], inverse[j]));
                bytes[j] = _mm512_add_epi32(bytes[j], _mm512_sll_epi32(whole, place));
            }
        }
        let bytes = [_mm512_castsi512_ps(bytes[0]), _mm512_castsi512_ps(bytes[1])];
        store(cast_mut(&mut four[column..].as_chunks_mut::<BLOCK>().0[0]), bytes);
    }
}

/// The columns of `out`, six at most, times groups of vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn multiply<const GROUPS: usize>(
    panel: &Panel,
    column: usize,
    x: [PackedVectors<'_>; GROUPS],
    first: usize,
    count: usize,
    out: &mut [f32],
) {
    let columns = out.len() / count;
    // loops of constant length: arrays indexed by a variable do not stay in registers
    let mut sums = [[_mm512_setzero_ps(); GROUPS]; TILE];
    for c in 0..TILE {
        for group in 0..GROUPS {
            if c < columns {
                let out = &out[c * count + first + group * LANES..][..x[group].0];
                // prefetches the next tile's sums: they lie far apart, in pieces that hardware prefetching
                // misses
                prefetch(&out[0], size_of::<f32>() * TILE * count);
                sums[c][group] = load_lanes(out);
            }
        }
    }
    let blocks = x.map(|(_, words)| words.as_chunks::<BLOCK_WORDS>().0);
    for block in 0..blocks[0].len().min(BLOCKS) {
        let mut words: [&[_; BLOCK_WORDS]; GROUPS] = [&blocks[0][block]; GROUPS];
        for group in 1..GROUPS {
            words[group] = &blocks[group][block];
        }
        let word = |group: usize, at: usize| load_lanes(&words[group][at]);
        let mut whole = [[_mm512_setzero_si512(); GROUPS]; TILE];
        for group in 0..GROUPS {
            let begin = _mm512_mullo_epi32(_mm512_set1_epi32(-OFFSET), _mm512_castps_si512(word(group, 1)));
            for c in 0..TILE {
                whole[c][group] = begin;
            }
        }
        for (four, groups) in panel.groups[block].iter().enumerate() {
            let mut x = [_mm512_setzero_si512(); GROUPS];
            for group in 0..GROUPS {
                x[group] = _mm512_castps_si512(word(group, 2 + four));
            }
            let groups = &groups[column..][..TILE];
            for c in 0..TILE {
                let w = _mm512_set1_epi32(groups[c]);
                for group in 0..GROUPS {
                    whole[c][group] = _mm512_dpbusd_epi32(whole[c][group], w, x[group]);
                }
            }
        }
        let scales = &panel.scales[block][column..][..TILE];
        for group in 0..GROUPS {
            let of_vectors = word(group, 0);
            for c in 0..TILE {
                let scale = _mm512_mul_ps(_mm512_set1_ps(scales[c]), of_vectors);
                let whole = _mm512_cvtepi32_ps(whole[c][group]);
                sums[c][group] = _mm512_fmadd_ps(whole, scale, sums[c][group]);
            }
        }
    }
    for c in 0..TILE {
        for group in 0..GROUPS {
            if c < columns {
                store_lanes(&mut out[c * count + first + group * LANES..][..x[group].0], sums[c][group]);
            }
        }
    }
}
