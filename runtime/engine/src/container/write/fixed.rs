//! The fixed part, predictor sets and levels: everything of a container but the neurons.

use std::io;

use plans::model::LevelKind;

use super::contents::{LevelSource, PredictorSource, SetSource};
use super::invalid;
use super::sections::Sections;
use crate::container::{LevelEntry, RowsEntry, Section, SetEntry, TensorEntry};
use crate::embedding::row_checksum;
use crate::model::config::{Config, TensorShape};
use crate::model::source::SourceModel;
use kernels::{Format, Matrix, dequantise};

/// Bytes of the per-layer embedding that are written together.
const PIECE_BYTES: usize = 1 << 22;

/// Writes the fixed part, each tensor on a cache line.
pub(super) fn write_fixed(
    out: &mut Sections<'_>,
    source: &SourceModel<'_>,
    orders: &[Vec<u32>],
) -> io::Result<(Section, Vec<TensorEntry>)> {
    out.begin();
    let mut entries = Vec::new();
    for Fixed { name, matrix, is_plain, order } in fixed_tensors(source, orders) {
        let (offset, rows, columns) = (out.align()?, matrix.rows, matrix.columns);
        if is_plain {
            entries.push(TensorEntry { name, format: Format::F32, rows, columns, offset });
            out.write(bytemuck::cast_slice(&plain_values(matrix, order)))?;
        } else {
            entries.push(TensorEntry { name, format: matrix.format, rows, columns, offset });
            out.write(matrix.bytes)?;
        }
    }
    Ok((out.end()?, entries))
}

/// A tensor of the fixed part.
pub(super) struct Fixed<'a> {
    pub(super) name: String,
    pub(super) matrix: Matrix<'a>,
    /// Whether it is stored as `F32` values.
    pub(super) is_plain: bool,
    /// The order of its values, where that is the neurons'.
    pub(super) order: Option<&'a [u32]>,
}

/// The tensors that every token uses, in that order: the embedding, each layer's, the head.
pub(super) fn fixed_tensors<'a>(source: &'a SourceModel<'_>, orders: &'a [Vec<u32>]) -> Vec<Fixed<'a>> {
    let of = |name: &str, matrix, is_plain| Fixed { name: name.to_owned(), matrix, is_plain, order: None };
    let mut tensors = vec![of("token_embd.weight", source.token_embedding(), false)];
    let config = source.config();
    for block in 0..config.blocks.len() {
        let order = config.layer_of(block).map(|layer| &*orders[layer]);
        for TensorShape { role, .. } in config.parts(block) {
            let Some(matrix) = source.part(block, role) else { continue };
            let order = order.filter(|_| role.is_of_neurons());
            tensors.push(Fixed {
                order,
                ..of(&format!("blk.{block}.{}", role.name()), matrix, role.is_plain())
            });
        }
    }
    tensors.push(of("output_norm.weight", source.output_norm(), true));
    tensors.extend(source.output().map(|output| of("output.weight", output, false)));
    tensors
}

/// Writes the per-layer embedding, if the model has one: its rows, then their checksums.
///
/// The rows are outside any section's hash. With `in_file`, they stay at this place of the source's files.
pub(super) fn write_per_layer(
    out: &mut Sections<'_>,
    source: &SourceModel<'_>,
    in_file: Option<u64>,
) -> io::Result<Option<RowsEntry>> {
    let Some(matrix) = source.row_table() else { return Ok(None) };
    let table = per_layer_table(matrix, in_file.unwrap_or(out.position));
    if in_file.is_none() {
        for rows in matrix.bytes.chunks(PIECE_BYTES) {
            out.write_unhashed(rows)?;
        }
        out.pad()?;
    }
    out.begin();
    for row in matrix.bytes.chunks_exact(matrix.format.row_bytes(matrix.columns)) {
        out.write(&row_checksum(row).to_le_bytes())?;
    }
    Ok(Some(RowsEntry { table, checksums: out.end()? }))
}

/// The entry of the per-layer embedding.
pub(super) fn per_layer_table(matrix: Matrix<'_>, offset: u64) -> TensorEntry {
    let Matrix { format, rows, columns, .. } = matrix;
    TensorEntry { name: "per_layer_token_embd.weight".to_owned(), format, rows, columns, offset }
}

/// The values of a tensor, in `order` where there is one.
pub(super) fn plain_values(w: Matrix<'_>, order: Option<&[u32]>) -> Vec<f32> {
    let mut values = vec![0.0; w.rows * w.columns];
    dequantise(w.format, w.bytes, &mut values);
    match order {
        Some(order) => order.iter().map(|&index| values[index as usize]).collect(),
        None => values,
    }
}

/// Writes a predictor set.
///
/// # Errors
/// A predictor that cannot be read or has another shape.
pub(super) fn write_set(
    out: &mut Sections<'_>,
    config: &Config,
    set: &SetSource<'_>,
) -> io::Result<SetEntry> {
    out.begin();
    let mut ranks = Vec::new();
    let mut offsets = Vec::new();
    for layer in 0..config.layers() {
        let mut layer_ranks = Vec::new();
        let mut layer_offsets = Vec::new();
        for expert in 0..config.experts() {
            layer_offsets.push(out.align()?);
            match set.predictors.predictor(layer, expert)? {
                PredictorSource::Sign(words) => {
                    layer_ranks.push(0);
                    out.write(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())?;
                }
                PredictorSource::LowRank { rank, fc1, fc2 } => {
                    let row = |columns| set.format.row_bytes(columns);
                    if fc1.len() != rank * row(config.width) || fc2.len() != config.ffn_width() * row(rank) {
                        return Err(invalid(format!(
                            "the predictor of layer {layer} does not have the model's shape"
                        )));
                    }
                    layer_ranks.push(rank);
                    for matrix in [fc1, fc2] {
                        out.align()?;
                        out.write(&matrix)?;
                    }
                }
            }
        }
        ranks.push(layer_ranks);
        offsets.push(layer_offsets);
    }
    Ok(SetEntry {
        name: set.name.to_owned(),
        kind: set.kind,
        section: out.end()?,
        ranks,
        format: set.format,
        hidden: set.hidden,
        offsets,
    })
}

/// Writes a level's thresholds.
pub(super) fn write_level(out: &mut Sections<'_>, level: &LevelSource) -> io::Result<LevelEntry> {
    let thresholds = match &level.thresholds {
        None => None,
        Some(thresholds) => {
            out.begin();
            for &threshold in thresholds.iter().flatten().flatten() {
                match level.kind {
                    LevelKind::Sign => out.write(&(threshold as i32).to_le_bytes())?,
                    _ => out.write(&threshold.to_le_bytes())?,
                }
            }
            Some(out.end()?)
        }
    };
    Ok(LevelEntry {
        name: level.name.clone(),
        kind: level.kind,
        set: level.set,
        thresholds,
        always_on: level.always_on.clone(),
    })
}
