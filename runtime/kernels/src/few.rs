//! Rows in order times few vectors of floats: the queries of one token meet keys, and values are summed. An
//! instruction set supplies the operations on a register of `LANES` floats. It also unpacks `BYTES` of a row
//! to `N` registers: one register for plain formats, a whole block for the others.
//!
//! ```text
//! dots      for 4 rows, for some vectors, for a register of columns:     sums[vector][row] += x * w
//!           the lanes of 4 sums are added in a tree, alike for every row and vector
//! add       for some registers of columns and vectors, for each row:     sums[vector][column] += a * w
//! ```
//!
//! A row is unpacked once for up to `VECTORS` vectors. That many sums keep two multiplications per cycle in
//! flight, yet stay in registers.

use std::ops::Range;

use super::Matrix;
use super::prefetch::{LINE, prefetch};
use crate::format::Format;

/// Rows multiplied together.
pub(super) const ROWS: usize = 4;
/// Whether these kernels take such rows, with this many lanes to a register.
pub(super) fn takes(w: Matrix<'_>, lanes: usize) -> bool {
    match w.format {
        Format::F16 | Format::F32 => w.columns.is_multiple_of(lanes),
        Format::Q8_0 | Format::Q4_0 => true,
        _ => false,
    }
}

/// [`super::Kernels::dots`], with `places` outputs for each vector.
///
/// `multiply(a, b, c)` is `a * b + c`; `add_up` sums the lanes of each register.
#[inline(always)]
pub(super) fn dots<V: Copy, const BYTES: usize, const N: usize, const LANES: usize, const VECTORS: usize>(
    w: Matrix<'_>,
    rows: Range<usize>,
    x: &[f32],
    out: &mut [f32],
    places: usize,
    unpack: impl Fn(&[u8; BYTES]) -> [V; N],
    load: impl Fn(&[f32; LANES]) -> V,
    multiply: impl Fn(V, V, V) -> V,
    add_up: impl Fn([V; ROWS]) -> [f32; ROWS],
) {
    let count = x.len() / w.columns;
    for at in (0..rows.len()).step_by(ROWS) {
        let some = ROWS.min(rows.len() - at);
        let mut four = RowTile { rows: [&[]; ROWS], some, columns: w.columns, places };
        for r in 0..ROWS {
            let row = w.row(rows.start + at + r.min(some - 1));
            four.rows[r] = row.bytes.as_chunks().0;
            for line in row.bytes.chunks(LINE) {
                prefetch(&line[0], row.ahead());
            }
        }
        let mut t = 0;
        while t < count {
            let (x, out) = (&x[t * w.columns..], &mut out[t * places + at..]);
            t += match count - t {
                4.. if VECTORS >= 4 => four.meet::<V, N, _, 4>(x, out, &unpack, &load, &multiply, &add_up),
                2.. => four.meet::<V, N, _, 2>(x, out, &unpack, &load, &multiply, &add_up),
                _ => four.meet::<V, N, _, 1>(x, out, &unpack, &load, &multiply, &add_up),
            };
        }
    }
}

/// `some` rows multiplied together; the last one fills the remaining places.
struct RowTile<'a, const BYTES: usize> {
    rows: [&'a [[u8; BYTES]]; ROWS],
    some: usize,
    columns: usize,
    places: usize,
}

impl<const BYTES: usize> RowTile<'_, BYTES> {
    /// Multiplies `T` vectors; returns their number.
    #[inline(always)]
    fn meet<V: Copy, const N: usize, const LANES: usize, const T: usize>(
        &self,
        x: &[f32],
        out: &mut [f32],
        unpack: &impl Fn(&[u8; BYTES]) -> [V; N],
        load: &impl Fn(&[f32; LANES]) -> V,
        multiply: &impl Fn(V, V, V) -> V,
        add_up: &impl Fn([V; ROWS]) -> [f32; ROWS],
    ) -> usize {
        let length = self.rows[0].len();
        let [r0, r1, r2, r3] = self.rows;
        let rows = [&r0[..length], &r1[..length], &r2[..length], &r3[..length]];
        let mut vectors: [&[[[f32; LANES]; N]]; T] = [&[]; T];
        for t in 0..T {
            let x = x[t * self.columns..][..self.columns].as_chunks().0;
            vectors[t] = &x.as_chunks().0[..length];
        }
        let mut sums = [[load(&[0.0; LANES]); ROWS]; T];
        for i in 0..length {
            for n in 0..N {
                let mut w = [load(&[0.0; LANES]); ROWS];
                for r in 0..ROWS {
                    w[r] = unpack(&rows[r][i])[n];
                }
                for t in 0..T {
                    let x = load(&vectors[t][i][n]);
                    for r in 0..ROWS {
                        sums[t][r] = multiply(w[r], x, sums[t][r]);
                    }
                }
            }
        }
        for t in 0..T {
            out[t * self.places..][..self.some].copy_from_slice(&add_up(sums[t])[..self.some]);
        }
        T
    }
}

/// [`super::Kernels::add_few`], with `places` factors for each vector; `UNITS` times `N` registers of columns
/// together.
///
/// `spread` fills a register with a number; `multiply(a, b, c)` is `a * b + c`.
#[inline(always)]
pub(super) fn add<
    V: Copy,
    const BYTES: usize,
    const N: usize,
    const LANES: usize,
    const VECTORS: usize,
    const UNITS: usize,
>(
    a: &[f32],
    places: usize,
    w: Matrix<'_>,
    rows: Range<usize>,
    y: &mut [f32],
    unpack: impl Fn(&[u8; BYTES]) -> [V; N],
    load: impl Fn(&[f32; LANES]) -> V,
    store: impl Fn(&mut [f32; LANES], V),
    spread: impl Fn(f32) -> V,
    multiply: impl Fn(V, V, V) -> V,
) {
    let (units, count) = (w.columns / (LANES * N), y.len() / w.columns);
    let mut first = 0;
    while first < units {
        let whole = units - first >= UNITS;
        let mut t = 0;
        while t < count {
            let (a, y) = (&a[t * places..], &mut y[t * w.columns + first * N * LANES..]);
            let piece = Piece { a, places, w, rows: rows.clone(), first, asks: t == 0 };
            t += match (whole, count - t) {
                (true, 4..) if VECTORS >= 4 => {
                    piece.add::<V, _, N, _, 4, UNITS>(y, &unpack, &load, &store, &spread, &multiply)
                }
                (true, 2..) => {
                    piece.add::<V, _, N, _, 2, UNITS>(y, &unpack, &load, &store, &spread, &multiply)
                }
                (true, _) => piece.add::<V, _, N, _, 1, UNITS>(y, &unpack, &load, &store, &spread, &multiply),
                (false, _) => piece.add::<V, _, N, _, 1, 1>(y, &unpack, &load, &store, &spread, &multiply),
            };
        }
        first += if whole { UNITS } else { 1 };
    }
}

/// A piece of the work: some units of columns for some vectors.
struct Piece<'a> {
    a: &'a [f32],
    places: usize,
    w: Matrix<'a>,
    rows: Range<usize>,
    first: usize,
    /// Whether to prefetch the values of the next step.
    asks: bool,
}

impl Piece<'_> {
    /// Sums `T` vectors and `U` units of `N` registers; returns the number of vectors.
    #[inline(always)]
    fn add<
        V: Copy,
        const BYTES: usize,
        const N: usize,
        const LANES: usize,
        const T: usize,
        const U: usize,
    >(
        &self,
        y: &mut [f32],
        unpack: &impl Fn(&[u8; BYTES]) -> [V; N],
        load: &impl Fn(&[f32; LANES]) -> V,
        store: &impl Fn(&mut [f32; LANES], V),
        spread: &impl Fn(f32) -> V,
        multiply: &impl Fn(V, V, V) -> V,
    ) -> usize {
        let columns = self.w.columns;
        let mut sums = [[[spread(0.0); N]; U]; T];
        for t in 0..T {
            let y = y[t * columns..][..U * N * LANES].as_chunks().0;
            for u in 0..U {
                for n in 0..N {
                    sums[t][u][n] = load(&y[u * N + n]);
                }
            }
        }
        let mut factors: [&[f32]; T] = [&[]; T];
        for t in 0..T {
            factors[t] = &self.a[t * self.places..][..self.rows.len()];
        }
        for (k, at) in self.rows.clone().enumerate() {
            let row = self.w.row(at);
            let piece = row.bytes[self.first * BYTES..][..U * BYTES].as_chunks::<BYTES>().0;
            if self.asks {
                for line in piece.as_flattened().chunks(LINE) {
                    prefetch(&line[0], row.ahead());
                }
            }
            let mut values = [[spread(0.0); N]; U];
            for u in 0..U {
                values[u] = unpack(&piece[u]);
            }
            for t in 0..T {
                let a = spread(factors[t][k]);
                for u in 0..U {
                    for n in 0..N {
                        sums[t][u][n] = multiply(a, values[u][n], sums[t][u][n]);
                    }
                }
            }
        }
        for t in 0..T {
            let y = y[t * columns..][..U * N * LANES].as_chunks_mut().0;
            for u in 0..U {
                for n in 0..N {
                    store(&mut y[u * N + n], sums[t][u][n]);
                }
            }
        }
        T
    }
}
