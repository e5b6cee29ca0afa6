//! Products of matrices with the rows of a step or prompt; threads share the matrices' rows.

use std::ops::Range;

use super::{Compute, Phase};
use crate::fetch::Fetcher;
use crate::pool::Pool;
use crate::products::{self, Inputs, form_for, pack_in_place, write_products};
use kernels::{Input, Kernels, Matrix, Packed};

/// Rows of matrices that are multiplied by all vectors while cached.
const TOGETHER: usize = 16;

/// Multiplies several matrices by the rows of the current phase: [`times`], or [`times_prompt`], which leaves the
/// vectors packed. `spare` is as long as they are; `words` has room for rounded vectors.
pub(super) fn multiply(
    compute: &Compute,
    fetcher: &mut Fetcher,
    words: &mut [f32],
    parts: &[Matrix<'_>],
    x: &mut [f32],
    spare: &mut [f32],
    out: (&mut [f32], usize),
) {
    match compute.phase {
        Phase::Decode => {
            let x = Inputs::new(x, parts[0].columns, compute.form, words);
            times(&compute.pool, fetcher, compute.kernels, parts, x, out);
        }
        Phase::Prefill => times_prompt(compute, parts, x, spare, out),
    }
}

/// Multiplies several matrices by each of a few vectors: `out[row][first..] = [parts[0] x[row] | parts[1]
/// x[row] | ...]`. Threads share the matrices' rows, and poll prefetch reads meanwhile.
pub(super) fn times(
    pool: &Pool,
    fetcher: &mut Fetcher,
    kernels: &dyn Kernels,
    parts: &[Matrix<'_>],
    x: Inputs<'_>,
    (out, first): (&mut [f32], usize),
) {
    let count = parts.iter().map(|part| part.rows).sum::<usize>();
    let product = |x: Input<'_>, mut start: usize, mut out: &mut [f32]| {
        for part in parts {
            let here = part.rows.saturating_sub(start).min(out.len());
            let (rows, rest) = out.split_at_mut(here);
            if here > 0 {
                x.rows(kernels, *part, start, rows);
            }
            (start, out) = (start.saturating_sub(part.rows), rest);
        }
    };
    if x.count() == 1 {
        let out = &mut out[first..first + count];
        return pool.share_rows(out, || fetcher.poll(), |start, out| product(x.row(0), start, out));
    }
    fetcher.poll();
    // a few rows of the matrices, once cached, are used for all vectors
    let stride = out.len() / x.count();
    let nothing: &mut [u8] = &mut [];
    pool.share_columns_with(out, stride, first..first + count, nothing, TOGETHER, |out, _| {
        let range = out.range();
        for start in range.clone().step_by(TOGETHER) {
            let end = range.end.min(start + TOGETHER);
            for row in 0..x.count() {
                let out = &mut out.row(row)[start - range.start..end - range.start];
                product(x.row(row), start - first, out);
            }
        }
    });
}

/// Multiplies several matrices by many vectors: `out[row][first..] = [parts[0] x[row] | parts[1] x[row] |
/// ...]`. Leaves the vectors packed; `spare` is as long as they are. A unit computes its rows meanwhile, of the
/// vectors before they are rounded.
pub(super) fn times_prompt(
    compute: &Compute,
    parts: &[Matrix<'_>],
    x: &mut [f32],
    spare: &mut [f32],
    (out, first): (&mut [f32], usize),
) {
    let Compute { pool, kernels, form, unit, .. } = compute;
    let columns = parts[0].columns;
    let stride = out.len() / (x.len() / columns);
    let unit = unit.as_ref().filter(|unit| unit.begin(parts, x));
    let form = form_for(*form, parts.iter().map(|part| part.format));
    let x: Packed<'_> = pack_in_place(pool, form, columns, x, spare);
    let here = |out: &mut [f32], range: Range<usize>| {
        let nothing: &mut [u8] = &mut [];
        pool.share_columns_with(out, stride, range, nothing, products::ROWS, |out, _| {
            write_products(*kernels, |at| row_of(parts, at - first), x, out);
        });
    };
    let Some(unit) = unit else {
        return here(out, first..first + parts.iter().map(|part| part.rows).sum::<usize>());
    };
    // the first rows of each matrix, or the unit's
    let of_each = |out: &mut [f32], theirs: bool| {
        let mut at = first;
        for part in parts {
            let (cut, end) = (at + unit.rows_left(*part), at + part.rows);
            let range = if theirs { cut..end } else { at..cut };
            if !range.is_empty() {
                here(out, range);
            }
            at = end;
        }
    };
    of_each(out, false);
    if !unit.finish(out, stride, first) {
        of_each(out, true);
    }
}

/// Row `at` of stacked matrices.
fn row_of<'a>(parts: &[Matrix<'a>], mut at: usize) -> kernels::Row<'a> {
    for part in parts {
        if at < part.rows {
            return part.row(at);
        }
        at -= part.rows;
    }
    panic!("row {at} below the last matrix");
}
