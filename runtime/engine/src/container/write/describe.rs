//! The directory of an index that is not written, from a model's shapes alone.
//!
//! Planning needs bytes and shapes. This reads no weight, so the model may be a header without its weights.

use std::io;

use plans::PAGE_BYTES;

use super::contents::{Contents, LevelSource, Written};
use super::fixed::{Fixed, fixed_tensors, per_layer_table};
use super::index::{apart, places, whole_experts};
use super::{fingerprint, invalid};
use crate::container::{
    Directory, LevelEntry, RowsEntry, SLICE_WORDS, Section, Source, TENSOR_ALIGN, TensorEntry,
};
use kernels::Format;

/// Describes the index that [`super::write_index`] would write, without checksums.
///
/// # Errors
/// As `write_index`, of kind `InvalidInput`.
pub fn describe_index(contents: Contents<'_>) -> io::Result<Written> {
    whole_experts(&contents)?;
    let Contents { name, source_fingerprint, source, tokenizer, slice_neurons, orders, levels, .. } =
        contents;
    let stored = apart(source, slice_neurons)?;
    let first = *stored.first().ok_or_else(|| invalid("a model without layers".to_owned()))?;
    let mut found = Source::of(source.gguf())?;
    let (mut end, mut own_bytes, mut tensors) = (0, 0, Vec::new());
    for Fixed { name, matrix, is_plain, .. } in fixed_tensors(source, orders) {
        let (rows, columns) = (matrix.rows, matrix.columns);
        let offset = u64::next_multiple_of(end, TENSOR_ALIGN);
        let (format, bytes) = if is_plain {
            (Format::F32, (4 * rows * columns) as u64)
        } else {
            (matrix.format, matrix.bytes.len() as u64)
        };
        end = offset + bytes;
        own_bytes += if is_plain { bytes.next_multiple_of(TENSOR_ALIGN) } else { 0 };
        found.tensors.push(if is_plain { None } else { source.gguf().place_of_bytes(matrix.bytes) });
        tensors.push(TensorEntry { name, format, rows, columns, offset });
    }
    let unhashed = |offset, bytes| Section { offset, bytes, hash: "0".repeat(64) };
    let per_layer_rows = source.row_table().map(|rows| {
        let in_file = source.gguf().place_of_bytes(rows.bytes).unwrap_or(0);
        let checksums = (rows.rows as u64 * 4).next_multiple_of(PAGE_BYTES);
        let offset = PAGE_BYTES + own_bytes.next_multiple_of(PAGE_BYTES);
        RowsEntry { table: per_layer_table(rows, in_file), checksums: unhashed(offset, checksums) }
    });
    let checksums_bytes = per_layer_rows.as_ref().map_or(0, |rows| rows.checksums.bytes);
    let mut tables_bytes = 0;
    for (layer, order) in orders.iter().enumerate() {
        let places = places(source, layer, order, slice_neurons)?;
        tables_bytes += (places.len() * SLICE_WORDS * size_of::<u32>()) as u64;
        found.slices.push(places);
    }
    let tables_bytes = tables_bytes.next_multiple_of(PAGE_BYTES);
    let tables_offset = PAGE_BYTES + own_bytes.next_multiple_of(PAGE_BYTES) + checksums_bytes;
    let of_level = |level: &LevelSource| LevelEntry {
        name: level.name.clone(),
        kind: level.kind,
        set: None,
        thresholds: None,
        always_on: level.always_on.clone(),
    };
    let directory = Directory {
        name: name.to_owned(),
        source_fingerprint: source_fingerprint.to_owned(),
        config: source.config().clone(),
        tokenizer,
        gate_format: first.gate_format,
        up_format: first.up_format,
        down_format: first.down_format,
        bundle: first.bundle,
        down_transposed: false,
        layers: if stored.iter().all(|other| *other == first) { Vec::new() } else { stored },
        fixed: unhashed(PAGE_BYTES, end.next_multiple_of(PAGE_BYTES)),
        tensors,
        per_layer_rows,
        sets: Vec::new(),
        levels: levels.iter().map(of_level).collect(),
        tables: unhashed(tables_offset, tables_bytes),
        layer_offsets: Vec::new(),
        source: Some(found),
    };
    let json = serde_json::to_vec(&directory)?;
    let bytes = tables_offset + tables_bytes + (json.len() as u64).next_multiple_of(PAGE_BYTES);
    Ok(Written { fingerprint: fingerprint(&json), directory, bytes })
}
