//! Attention of a list of rows over everything their sequence has seen.
//!
//! One pass over keys and values: the running maximum `m` and sum `s` of the softmax are kept, and what has been
//! added up is rescaled when the maximum grows (Milakov and Gimelshein, "Online normalizer calculation for softmax",
//! 2018). Pseudo-code for one head:
//!
//! ```text
//! for each position p:   score = q . k[p] / sqrt(head_width)
//!                        if score > m: out, s *= exp(m - score); m = score
//!                        w = exp(score - m);  s += w;  out += w v[p]
//! out /= s
//! ```

use crate::kernels::Kernels;
use crate::kv::{Half, KeyValues};
use crate::model::config::Config;
use crate::pool::Pool;

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
    attended: &mut [f32],
) {
    let (width, query) = (config.head_width, config.query_width());
    let stride = query + 2 * config.kv_width();
    let scale = 1.0 / (width as f32).sqrt();
    pool.split_rows(attended, width, |first, heads| {
        for (i, out) in heads.chunks_exact_mut(width).enumerate() {
            let (row, head) = ((first + i) / config.heads, (first + i) % config.heads);
            let q = &projections[row * stride + head * width..][..width];
            let kv_head = head / (config.heads / config.kv_heads);
            let seen = positions[row] + 1;
            let keys = kv.head(layer, Half::Key, kv_head, seen);
            let values = kv.head(layer, Half::Value, kv_head, seen);
            out.fill(0.0);
            let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
            for (key, value) in keys.zip(values) {
                let score = kernels.dot(key, q) * scale;
                if score > max {
                    let shrink = (max - score).exp();
                    out.iter_mut().for_each(|o| *o *= shrink);
                    sum *= shrink;
                    max = score;
                }
                let weight = (score - max).exp();
                sum += weight;
                kernels.axpy(weight, value, out);
            }
            out.iter_mut().for_each(|o| *o /= sum);
        }
    });
}
