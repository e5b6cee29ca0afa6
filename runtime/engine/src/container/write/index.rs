//! Writing an index: a container that leaves the weights in the model's own files.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use plans::PAGE_BYTES;
use plans::layout::PARTS;
use plans::output_file::deliver;

use super::contents::{Contents, Written};
use super::down::has_down_rows;
use super::fixed::{Fixed, fixed_tensors, plain_values, write_level, write_per_layer};
use super::layers::Converted;
use super::sections::{Sections, hex};
use super::{OUTPUT, check_orders, check_slices, finish, invalid};
use crate::container::{Directory, Section, SliceSums, Source, Stored, TENSOR_ALIGN, TensorEntry, index};
use crate::model::source::SourceModel;
use kernels::Format;

/// Writes an index to `part`, and renames it to `path` when it is complete.
///
/// `sums` are the checksums of each layer's slices in their order, if the files were read before. Without them every byte of the source
/// is read once, layer after layer. `progress` gets the bytes read so far, and answers whether to go on.
///
/// # Errors
/// As [`write`](fn@super::write); also if slices are not whole experts with pieces of down, or there are predictors.
pub fn write_index(
    path: &Path,
    part: &Path,
    contents: Contents<'_>,
    sums: Option<&[Vec<SliceSums>]>,
    progress: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Written> {
    check_orders(contents.source, contents.orders)?;
    let written = write_index_part(part, contents, sums, progress)
        .and_then(|written| deliver(part, path, OUTPUT).map(|()| written));
    if written.is_err() {
        // the first error is reported; a second one about a missing file would add nothing
        let _gone = fs::remove_file(part);
    }
    written
}

fn write_index_part(
    part: &Path,
    contents: Contents<'_>,
    known: Option<&[Vec<SliceSums>]>,
    progress: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Written> {
    whole_experts(&contents)?;
    let Contents { name, source_fingerprint, source, tokenizer, slice_neurons, orders, levels, .. } =
        contents;
    let (config, gguf) = (source.config(), source.gguf());
    let stored = apart(source, slice_neurons)?;
    let first = *stored.first().ok_or_else(|| invalid("a model without layers".to_owned()))?;
    let mut found = Source::of(gguf)?;
    let place =
        |bytes: &[u8]| gguf.place_of_bytes(bytes).ok_or_else(|| invalid("a tensor is in no file".to_owned()));

    let file = File::options().read(true).write(true).create(true).truncate(true).open(part)?;
    let mut seen = 0;
    let mut see = |bytes: u64| {
        seen += bytes;
        if progress(seen) { Ok(()) } else { Err(io::Error::from(io::ErrorKind::Interrupted)) }
    };
    let quiet = &mut |_| true;
    let mut out = Sections::new(&file, quiet)?;
    out.write(&[0; PAGE_BYTES as usize])?;

    // the fixed part as `run` will assemble it: tensors that differ from the source are written here
    let (mut hasher, mut end, mut tensors) = (blake3::Hasher::new(), 0, Vec::new());
    let own_offset = out.position;
    for tensor in fixed_tensors(source, orders) {
        let Fixed { name, matrix, is_plain, order } = tensor;
        let offset = u64::next_multiple_of(end, TENSOR_ALIGN);
        hasher.update(&[0; TENSOR_ALIGN as usize][..(offset - end) as usize]);
        let (rows, columns) = (matrix.rows, matrix.columns);
        let (format, bytes) = if is_plain {
            let values = plain_values(matrix, order);
            let bytes: &[u8] = bytemuck::cast_slice(&values);
            out.align_to(TENSOR_ALIGN)?;
            out.write(bytes)?;
            hasher.update(bytes);
            found.tensors.push(None);
            (Format::F32, bytes.len() as u64)
        } else {
            hasher.update(matrix.bytes);
            found.tensors.push(Some(place(matrix.bytes)?));
            (matrix.format, matrix.bytes.len() as u64)
        };
        end = offset + bytes;
        tensors.push(TensorEntry { name, format, rows, columns, offset });
        see(matrix.bytes.len() as u64)?;
    }
    let bytes = end.next_multiple_of(PAGE_BYTES);
    hasher.update(&[0; PAGE_BYTES as usize][..(bytes - end) as usize]);
    let fixed = Section { offset: own_offset, bytes, hash: hex(hasher.finalize()) };
    out.pad()?;
    let in_file = source.row_table().map(|rows| place(rows.bytes)).transpose()?;
    let per_layer_rows = write_per_layer(&mut out, source, in_file)?;
    see(source.row_table().map_or(0, |rows| rows.bytes.len() as u64))?;

    let mut tables: Vec<u32> = Vec::new();
    for (layer, order) in orders.iter().enumerate() {
        let experts: Vec<usize> =
            order.iter().step_by(slice_neurons).map(|&i| i as usize / slice_neurons).collect();
        let sums = match known.map(|known| known.get(layer)) {
            Some(Some(known)) if known.len() == experts.len() => known.clone(),
            Some(_) => return Err(invalid("checksums of other layers than the model has".to_owned())),
            None => index::sums(source, layer, &experts),
        };
        let of_expert = |&expert: &usize| index::parts(source, layer, expert).unwrap_or_default();
        let bytes = experts.iter().flat_map(of_expert).map(|part| part.len() as u64).sum();
        found.slices.push(places(source, layer, order, slice_neurons)?);
        for (&expert, sums) in experts.iter().zip(&sums) {
            tables.push(expert as u32);
            tables.extend(sums);
        }
        see(bytes)?;
    }
    let mut tables: Vec<u8> = tables.iter().flat_map(|word| word.to_le_bytes()).collect();
    tables.resize(tables.len().next_multiple_of(PAGE_BYTES as usize), 0);
    let tables_section =
        Section { offset: out.position, bytes: tables.len() as u64, hash: hex(blake3::hash(&tables)) };
    out.skip(tables_section.bytes)?;
    let levels = levels.iter().map(|level| write_level(&mut out, level)).collect::<io::Result<Vec<_>>>()?;
    let directory = Directory {
        name: name.to_owned(),
        source_fingerprint: source_fingerprint.to_owned(),
        config: config.clone(),
        tokenizer,
        gate_format: first.gate_format,
        up_format: first.up_format,
        down_format: first.down_format,
        bundle: first.bundle,
        down_transposed: false,
        layers: if stored.iter().all(|other| *other == first) { Vec::new() } else { stored },
        fixed,
        tensors,
        per_layer_rows,
        sets: Vec::new(),
        levels,
        tables: tables_section,
        layer_offsets: Vec::new(),
        source: Some(found),
    };
    finish(&file, out, directory, &tables)
}

/// Refuses contents that an index cannot have: it is of whole experts, with down as the source has it.
pub(super) fn whole_experts(contents: &Contents<'_>) -> io::Result<()> {
    let (config, slice_neurons) = (contents.source.config(), contents.slice_neurons);
    let whole = contents.down_format.is_none() && slice_neurons == config.ffn_width();
    if !whole || has_down_rows(contents.source) || !contents.sets.is_empty() {
        return Err(invalid("an index needs whole experts, with down matrices as in the source".to_owned()));
    }
    check_slices(config, contents.orders, slice_neurons)
}

/// Each layer's formats and bytes where experts stay in the source's file.
pub(super) fn apart(source: &SourceModel<'_>, slice_neurons: usize) -> io::Result<Vec<Stored>> {
    let of_layer = |layer| {
        let Converted { stored, .. } = Converted::new(source, layer, None, slice_neurons)?;
        Ok(stored.apart())
    };
    (0..source.config().layers()).map(of_layer).collect()
}

/// The places of gate, up and down of each of a layer's slices, in order, in the source's files.
pub(super) fn places(
    source: &SourceModel<'_>,
    layer: usize,
    order: &[u32],
    slice_neurons: usize,
) -> io::Result<Vec<[u64; PARTS]>> {
    let place = |bytes: &[u8]| {
        source.gguf().place_of_bytes(bytes).ok_or_else(|| invalid("a tensor is in no file".to_owned()))
    };
    let of_slice = |&first: &u32| {
        let parts = index::parts(source, layer, first as usize / slice_neurons).unwrap_or_default();
        // an absent up has the place of the gate
        let [gate, down] = [place(parts[0])?, place(parts[2])?];
        Ok([gate, if parts[1].is_empty() { gate } else { place(parts[1])? }, down])
    };
    order.iter().step_by(slice_neurons).map(of_slice).collect()
}
