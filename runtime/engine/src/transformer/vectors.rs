//! Steps between matrices: norms, sums and scales of rows.

use crate::model::config::Config;
use kernels::{Rotation, rms_norm};

/// Normalises rows of the residual stream, or copies them if there is no norm.
pub(super) fn norm_rows(c: &Config, weight: Option<&[f32]>, x: &[f32], rows: usize, out: &mut [f32]) {
    let Some(weight) = weight else {
        return out[..rows * c.width].copy_from_slice(&x[..rows * c.width]);
    };
    for (x, out) in x.chunks_exact(c.width).zip(out.chunks_exact_mut(c.width)).take(rows) {
        rms_norm(x, weight, c.norm_epsilon, out);
    }
}

/// A part's output, normalised into `spare` if there is a norm.
pub(super) fn post_normed<'a>(
    c: &Config,
    weight: Option<&[f32]>,
    out: &'a [f32],
    spare: &'a mut [f32],
) -> &'a [f32] {
    if weight.is_none() {
        return out;
    }
    norm_rows(c, weight, out, out.len() / c.width, spare);
    &spare[..out.len()]
}

/// Computes `x += factor * y`.
pub(super) fn add(x: &mut [f32], y: &[f32], factor: f32) {
    if factor == 1.0 {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    } else {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
    }
}

/// Computes `x *= factor`.
pub(super) fn scale(x: &mut [f32], factor: f32) {
    if factor != 1.0 {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

/// Views pairs of numbers as rotations.
pub(super) fn as_rotations(values: &mut [f32]) -> &mut [Rotation] {
    bytemuck::cast_slice_mut(values)
}
