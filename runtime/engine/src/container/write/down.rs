//! Down matrices as a container stores them: transposed, and quantised again where the source blocks them along the neurons.

use rayon::prelude::*;

use crate::model::source::{Down, SourceModel};
use kernels::{Format, dequantise, quantise};

/// An expert's `down^T`, `[neurons, width]`, as a container with down rows in `format` has it; `None` where no bit changes.
pub fn requantised_down(
    source: &SourceModel<'_>,
    layer: usize,
    expert: usize,
    format: Format,
) -> Option<Vec<u8>> {
    let down = source.ffn_down(layer, expert);
    let (Down::Columns(w) | Down::Rows(w)) = down;
    let changes = format != w.format || format.has_blocks() && matches!(down, Down::Columns(_));
    changes.then(|| transposed(down, format))
}

/// `down^T`, `[neurons, width]`, in `format`.
pub(super) fn transposed(down: Down<'_>, format: Format) -> Vec<u8> {
    let (width, neurons) = match down {
        Down::Columns(w) => (w.rows, w.columns),
        Down::Rows(w) if w.format == format => return w.bytes.to_vec(),
        Down::Rows(w) => (w.columns, w.rows),
    };
    // a strip of whole blocks of neurons at a time keeps the single-precision copy small
    let (Down::Columns(w) | Down::Rows(w)) = down;
    let strip_neurons = w.format.block_values().max(64);
    let row_bytes = format.row_bytes(width);
    let mut out = vec![0; neurons * row_bytes];
    out.par_chunks_mut(strip_neurons * row_bytes).enumerate().for_each_init(
        || (vec![0.0; strip_neurons * width], vec![0.0; strip_neurons]),
        |(strip, values), (i, out)| {
            let (first, count) = (i * strip_neurons, out.len() / row_bytes);
            match down {
                Down::Rows(w) => {
                    for (i, strip) in strip.chunks_mut(width).take(count).enumerate() {
                        dequantise(w.format, w.row(first + i).bytes, strip);
                    }
                }
                Down::Columns(w) => {
                    let (from, to) = (w.format.row_bytes(first), w.format.row_bytes(first + count));
                    for j in 0..width {
                        dequantise(w.format, &w.row(j).bytes[from..to], &mut values[..count]);
                        for (i, &value) in values[..count].iter().enumerate() {
                            strip[i * width + j] = value;
                        }
                    }
                }
            }
            for (strip, out) in strip.chunks(width).zip(out.chunks_mut(row_bytes)) {
                quantise(format, strip, out);
            }
        },
    );
    out
}

/// The storage format of a model's down rows.
///
/// A block of a quantised down matrix spans neurons, so a neuron's row cannot be cut out of it. The row is quantised again along the
/// width, in the `wanted` format or the source's own. Where layers differ (`Q4_K_M` files) the finest counts, and `Q4_K` where the engine
/// has no writer. `Q8_0` stands in where the width has no whole blocks. Formats without blocks keep every bit, whatever is wanted.
pub fn stored_down_format(source: &SourceModel<'_>, wanted: Option<Format>) -> Format {
    let fineness = |format: &Format| Format::ALL.iter().position(|other| other == format);
    let own = down_formats(source).min_by_key(fineness).unwrap_or(Format::F32);
    if !own.has_blocks() {
        return own;
    }
    // there is a writer of MXFP4, but a second rounding to it loses more than Q4_K
    let own = if own.is_written() && own != Format::Mxfp4 { own } else { Format::Q4K };
    let suits = |format: &Format| source.config().width.is_multiple_of(format.block_values());
    [wanted.unwrap_or(own), Format::Q8_0].into_iter().find(suits).unwrap_or(Format::F16)
}

/// Whether the source has a down matrix with a row for each neuron.
pub fn has_down_rows(source: &SourceModel<'_>) -> bool {
    downs(source).any(|down| matches!(down, Down::Rows(_)))
}

/// The formats of the source's down matrices, layer after layer.
pub fn down_formats(source: &SourceModel<'_>) -> impl Iterator<Item = Format> {
    downs(source).map(|(Down::Columns(w) | Down::Rows(w))| w.format)
}

/// The source's down matrices, layer after layer.
fn downs<'a>(source: &'a SourceModel<'_>) -> impl Iterator<Item = Down<'a>> {
    let config = source.config();
    let experts = move |layer| (0..config.experts()).map(move |expert| source.ffn_down(layer, expert));
    (0..config.layers()).flat_map(experts)
}
