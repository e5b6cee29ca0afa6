//! Adds rows of nibbles with rounded factors to a vector. The bytes of four rows are interleaved, so that
//! `dpbusd` adds the four products of a column.
//!
//! ```text
//! for 16 blocks:       round the factors: four rows' bytes are a word of each block
//!   for each 4:        whole[128] = -8 * sum of q                      8 registers, of a lane for each block
//!     for 4 rows:      whole += dpbusd(interleaved low nibbles, q);  then the high nibbles
//!                      y += s * whole                                  lanes first brought to their blocks
//! ```

#[allow(clippy::wildcard_imports, reason = "every intrinsic has its prefix")]
use std::arch::x86_64::*;

use super::super::interleaved::{BLOCKS, Interleaved, VALUES, early};
use super::super::packed::LEAST;
use super::super::prefetch::prefetch;
use super::super::{ADDED, Row};
use super::interleaved::{lanes_of_four, scales_of};
use super::{load, load_64, store};

/// Interleaved groups whose factors are rounded together.
const GROUPS: usize = 4;
/// Rows whose bytes are interleaved.
const QUAD: usize = 4;

/// [`super::super::Kernels::add_rounded`]. If the number of rows is no multiple of four, the last row is
/// repeated with a factor of zero.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) fn add_rounded(a: [f32; ADDED], rows: &[Row<'_>], y: &mut [f32]) {
    let Some(last) = rows.last() else { return };
    let (quads, length) = (rows.len().div_ceil(QUAD), y.len() / VALUES);
    let (mut w, mut aheads): ([&[Interleaved]; ADDED], _) = ([&[]; ADDED], [0; ADDED]);
    for k in 0..QUAD * quads {
        let row = rows.get(k).unwrap_or(last);
        (w[k], aheads[k]) = (&row.bytes.as_chunks().0[..length], row.ahead());
    }
    let (w, aheads) = (&w.as_chunks::<QUAD>().0[..quads], aheads.as_chunks::<QUAD>().0);
    for (at, y) in (0..).step_by(GROUPS).zip(y.chunks_mut(GROUPS * VALUES)) {
        let factors = Factors::rounded(&a, w, at);
        let mut lanes = lanes_of_four();
        for (at, y) in (at..).zip(y.as_chunks_mut::<VALUES>().0) {
            let mut whole = [_mm512_permutexvar_epi32(lanes, factors.offsets); 8];
            for ((w, aheads), words) in w.iter().zip(aheads).zip(factors.words) {
                for k in 0..QUAD {
                    prefetch(&w[k][at], early(at, length, aheads[k]));
                }
                let q = _mm512_permutexvar_epi32(lanes, words);
                let transposed = interleave([&w[0][at], &w[1][at], &w[2][at], &w[3][at]]);
                let low_bits = _mm512_set1_epi8(0xf);
                for k in 0..4 {
                    let low = _mm512_and_si512(transposed[k], low_bits);
                    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(transposed[k]), low_bits);
                    whole[k] = _mm512_dpbusd_epi32(whole[k], low, q);
                    whole[4 + k] = _mm512_dpbusd_epi32(whole[4 + k], high, q);
                }
            }
            let [w0, w1, w2, w3, w4, w5, w6, w7] = whole;
            let (low, high) = (by_block([w0, w1, w2, w3]), by_block([w4, w5, w6, w7]));
            let scales = _mm512_permutexvar_ps(lanes, factors.scales);
            for (block, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
                let lane = _mm512_set1_epi32((BLOCKS * block) as i32);
                let (scale, [y0, y1]) = (_mm512_permutexvar_ps(lane, scales), load(y));
                let (low, high) = (_mm512_cvtepi32_ps(low[block]), _mm512_cvtepi32_ps(high[block]));
                store(y, [_mm512_fmadd_ps(low, scale, y0), _mm512_fmadd_ps(high, scale, y1)]);
            }
            lanes = _mm512_add_epi32(lanes, _mm512_set1_epi32(BLOCKS as i32));
        }
    }
}

/// The rounded factors of some rows for sixteen blocks.
struct Factors {
    /// The scale of each block.
    scales: __m512,
    /// The sum of the nibble offsets of eight, for each block.
    offsets: __m512i,
    /// Four 8-bit factors for each quad of rows and each block.
    words: [__m512i; ADDED / QUAD],
}

impl Factors {
    /// Rounds the factors for groups `at` and the following; past the end, the last group is repeated.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
    fn rounded(a: &[f32; ADDED], w: &[[&[Interleaved]; QUAD]], at: usize) -> Self {
        let mut factors = [[_mm512_setzero_ps(); QUAD]; ADDED / QUAD];
        let mut largest = _mm512_setzero_ps();
        for ((w, a), factors) in w.iter().zip(a.as_chunks::<QUAD>().0).zip(&mut factors) {
            for k in 0..QUAD {
                let front = |i: usize| scales_of(&w[k][(at + i).min(w[k].len() - 1)]);
                let d = _mm512_cvtph_ps(_mm256_setr_epi64x(front(0), front(1), front(2), front(3)));
                factors[k] = _mm512_mul_ps(d, _mm512_set1_ps(a[k]));
                largest = _mm512_max_ps(largest, _mm512_abs_ps(factors[k]));
            }
        }
        let counts = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(largest, _mm512_set1_ps(LEAST));
        let most = _mm512_set1_ps(127.0);
        let scales = _mm512_maskz_div_ps(counts, largest, most);
        let inverse = _mm512_maskz_div_ps(counts, most, largest);
        let (mut words, mut offsets) = ([_mm512_setzero_si512(); ADDED / QUAD], _mm512_setzero_si512());
        for (word, factors) in words.iter_mut().zip(&factors).take(w.len()) {
            for k in 0..QUAD {
                let q = _mm512_cvtps_epi32(_mm512_mul_ps(factors[k], inverse));
                let byte = _mm512_and_si512(q, _mm512_set1_epi32(0xff));
                *word = _mm512_or_si512(*word, _mm512_sllv_epi32(byte, _mm512_set1_epi32(8 * k as i32)));
            }
            // minus eight times the sum of four factors
            offsets = _mm512_dpbusd_epi32(offsets, _mm512_set1_epi8(8), *word);
        }
        Self { scales, offsets: _mm512_sub_epi32(_mm512_setzero_si512(), offsets), words }
    }
}

/// Bytes `4 k..4 k + 4` of each block of four rows: lane `block` of `[k]` holds `[column][row]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn interleave(groups: [&Interleaved; QUAD]) -> [__m512i; 4] {
    let mut rows = [_mm512_setzero_si512(); QUAD];
    for k in 0..QUAD {
        rows[k] = load_64(&groups[k][2 * BLOCKS..].as_chunks().0[0]);
    }
    let (low, high) = (_mm512_unpacklo_epi8(rows[0], rows[1]), _mm512_unpackhi_epi8(rows[0], rows[1]));
    let (low2, high2) = (_mm512_unpacklo_epi8(rows[2], rows[3]), _mm512_unpackhi_epi8(rows[2], rows[3]));
    [
        _mm512_unpacklo_epi16(low, low2),
        _mm512_unpackhi_epi16(low, low2),
        _mm512_unpacklo_epi16(high, high2),
        _mm512_unpackhi_epi16(high, high2),
    ]
}

/// Reorders lanes from `[part][block][4]` to `[block][part][4]`.
#[inline]
#[target_feature(enable = "avx512f")]
fn by_block([p0, p1, p2, p3]: [__m512i; 4]) -> [__m512i; BLOCKS] {
    let (first01, last01) = (_mm512_shuffle_i32x4::<0x44>(p0, p1), _mm512_shuffle_i32x4::<0xee>(p0, p1));
    let (first23, last23) = (_mm512_shuffle_i32x4::<0x44>(p2, p3), _mm512_shuffle_i32x4::<0xee>(p2, p3));
    [
        _mm512_shuffle_i32x4::<0x88>(first01, first23),
        _mm512_shuffle_i32x4::<0xdd>(first01, first23),
        _mm512_shuffle_i32x4::<0x88>(last01, last23),
        _mm512_shuffle_i32x4::<0xdd>(last01, last23),
    ]
}
