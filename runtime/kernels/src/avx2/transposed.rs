//! Transposed rows times many vectors of bytes: the down projection of a prompt, summed over neurons.
//!
//! ```text
//! for 96 columns, for 128 rows: transpose into a panel       32 rows at a time, under a scale for each column
//!     for each group of 16 vectors, for 3 columns:           six registers of whole numbers
//! ```
//!
//! An offset of 32 makes a six-bit weight unsigned. Four products with a byte fit 16 bits: `4 * 63 * 127 =
//! 32004`. So two registers of pairs are added before they are widened.

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;
use std::hint::black_box;

use bytemuck::cast;

use super::super::interleaved::BLOCKS as GROUPS;
use super::super::packed::{BLOCK, BLOCK_WORDS, Form, LANES, LEAST, Packed};
use super::super::tiles::{Lined, copy};
use super::super::{Row, TRANSPOSED_COLUMNS, TRANSPOSED_MOST};
use super::interleaved::weights;
use super::products::{load_sixteen, load_whole, store_sixteen};
use super::{load, store};

/// Columns of a panel: whole blocks and whole tiles.
const COLUMNS: usize = TRANSPOSED_COLUMNS;
/// Columns of a tile.
const TILE: usize = 3;
/// Blocks of rows of a panel: 12 KiB.
const BLOCKS: usize = 4;
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
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn add_transposed(w: &[Row<'_>], start: usize, x: Packed<'_>, out: &mut [f32]) {
    let mut panel =
        Lined(Panel { groups: [[[0; COLUMNS]; BLOCK / 4]; BLOCKS], scales: [[0.0; COLUMNS]; BLOCKS] });
    let panel = &mut panel.0;
    let mut filled = Lined([[0.0; LANES]; BLOCKS * BLOCK_WORDS]);
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
            let words = words..words + Form::Q8.vector_words(blocks * BLOCK);
            for (group, (g, words)) in x.whole_groups(words, &mut filled.0).enumerate() {
                for column in (0..columns).step_by(TILE) {
                    let mut sums = Lined([[0.0; LANES]; TILE]);
                    let place = |c: usize| (column + c) * x.count + group * LANES;
                    let here = TILE.min(columns - column);
                    for c in 0..here {
                        copy::<LANES>(&out[place(c)..][..g], &mut sums.0[c]);
                    }
                    multiply(panel, column, words, &mut sums.0);
                    for c in 0..here {
                        copy::<LANES>(&sums.0[c], &mut out[place(c)..][..g]);
                    }
                }
            }
        }
    }
}

/// Block `at` of the columns of up to 32 rows; missing rows are zero.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn turn(
    w: &[Row<'_>],
    at: usize,
    groups: &mut [[i32; COLUMNS]; BLOCK / 4],
    scales: &mut [f32; COLUMNS],
    column: usize,
) {
    let mut values = Lined([[0.0; BLOCK]; BLOCK]);
    let (sign, mut largest) = (_mm256_set1_ps(-0.0), [_mm256_setzero_ps(); 4]);
    for (row, values) in w.iter().zip(&mut values.0) {
        let w = weights(&row.bytes.as_chunks().0[at / GROUPS], at % GROUPS);
        for j in 0..4 {
            largest[j] = _mm256_max_ps(largest[j], _mm256_andnot_ps(sign, w[j]));
        }
        let [w0, w1, w2, w3] = w;
        store(values, [w0, w1], [w2, w3]);
    }
    let (most, mut inverse) = (_mm256_set1_ps(TRANSPOSED_MOST), [_mm256_setzero_ps(); 4]);
    for j in 0..4 {
        let counts = _mm256_cmp_ps::<_CMP_GE_OQ>(largest[j], _mm256_set1_ps(LEAST));
        inverse[j] = _mm256_and_ps(counts, _mm256_div_ps(most, largest[j]));
        let scale: [f32; 8] = cast(_mm256_and_ps(counts, _mm256_div_ps(largest[j], most)));
        scales[column + 8 * j..][..8].copy_from_slice(&scale);
    }
    for (four, rows) in groups.iter_mut().zip(values.0.as_chunks::<4>().0) {
        let mut bytes = [_mm256_set1_epi32(0x0101_0101 * OFFSET); 4];
        for (i, row) in (0..).zip(rows) {
            let (w, place) = (load(row), _mm_cvtsi32_si128(8 * i));
            for j in 0..4 {
                let whole = _mm256_cvtps_epi32(_mm256_mul_ps(w[j], inverse[j]));
                bytes[j] = _mm256_add_epi32(bytes[j], _mm256_sll_epi32(whole, place));
            }
        }
        for j in 0..4 {
            let bytes: [i32; 8] = cast(bytes[j]);
            four[column + 8 * j..][..8].copy_from_slice(&bytes);
        }
    }
}

/// Three columns times a group of vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply(panel: &Panel, column: usize, words: &[[f32; LANES]], out: &mut [[f32; LANES]; TILE]) {
    let blocks = words.as_chunks::<BLOCK_WORDS>().0.iter().zip(&panel.groups).zip(&panel.scales);
    for ((block, groups), scales) in blocks {
        let [scale, sum, x @ ..] = block;
        let offset = load_whole(sum).map(|sum| _mm256_mullo_epi32(sum, _mm256_set1_epi32(-OFFSET)));
        let mut whole = [offset; TILE];
        // without the black box the loop is unrolled and spills its registers
        let (x, groups): (&[_], &[_]) = black_box((x.as_chunks::<2>().0, groups.as_chunks::<2>().0));
        for (x, groups) in x.iter().zip(groups) {
            let (x0, x1) = (load_whole(&x[0]), load_whole(&x[1]));
            for c in 0..TILE {
                let w0 = _mm256_set1_epi32(groups[0][column + c]);
                let w1 = _mm256_set1_epi32(groups[1][column + c]);
                for i in 0..2 {
                    let four =
                        _mm256_add_epi16(_mm256_maddubs_epi16(w0, x0[i]), _mm256_maddubs_epi16(w1, x1[i]));
                    let both = _mm256_madd_epi16(four, _mm256_set1_epi16(1));
                    whole[c][i] = _mm256_add_epi32(whole[c][i], both);
                }
            }
        }
        let scale = load_sixteen(scale);
        for c in 0..TILE {
            let (d, mut sums) = (_mm256_set1_ps(scales[column + c]), load_sixteen(&out[c]));
            for i in 0..2 {
                let whole = _mm256_cvtepi32_ps(whole[c][i]);
                sums[i] = _mm256_fmadd_ps(whole, _mm256_mul_ps(d, scale[i]), sums[i]);
            }
            store_sixteen(&mut out[c], sums);
        }
    }
}
