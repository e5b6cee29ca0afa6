//! Writing a container from a source model.

mod contents;
mod describe;
mod down;
mod fixed;
mod index;
mod layers;
mod sections;

use std::fs::{self, File};
use std::io;
use std::path::Path;

use plans::PAGE_BYTES;
use plans::output_file::{OutputKind, deliver};
use platform::file::write_all_at;

use super::{BYTE_ORDER, Directory, HEADER_CHECKED, MAGIC, Section, Stored, TABLE_WORDS, VERSION, read};
use crate::model::config::Config;
use crate::model::source::SourceModel;
use kernels::Format;

pub use contents::{
    Contents, LevelSource, PredictorSource, PredictorSources, SetSource, Written, WrittenLayers,
};
pub use describe::describe_index;
pub use down::{down_formats, has_down_rows, requantised_down, stored_down_format};
use fixed::{write_fixed, write_level, write_per_layer, write_set};
pub use index::write_index;
use layers::{Converted, holds_layer, write_layer};
use sections::Sections;
pub(super) use sections::hex;

/// A container or an index as an output file. It replaces only another one; the caller decides whether of another model, too.
pub const OUTPUT: OutputKind = OutputKind { name: "a container", is_one: |head| head.starts_with(&MAGIC) };

/// Writes a container to `part`, and renames it to `path` in the same folder when it is complete.
///
/// A recorded layer of `layers` is kept after every bundle in `part` has been checked. `progress` gets the bytes written so far, and
/// answers whether to go on.
///
/// # Errors
/// An [`io::Error`] of kind `Interrupted` when `progress` says stop, which keeps `part`. Kind `InvalidInput` when the parts do not fit
/// the model, and `InvalidData` when a layer is in neither the source nor `part`. Otherwise the system's, such as a full disk. They
/// remove `part`, unless it has layers that the source no longer has.
pub fn write(
    path: &Path,
    part: &Path,
    contents: Contents<'_>,
    layers: &mut dyn WrittenLayers,
    progress: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Written> {
    check_orders(contents.source, contents.orders)?;
    let count = contents.orders.len();
    let written = write_part(part, contents, layers, progress)
        .and_then(|written| deliver(part, path, OUTPUT).map(|()| written));
    let needed = (0..count).any(|layer| layers.given_back(layer));
    if !needed && written.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted) {
        // the first error is reported; a second one about a missing file would add nothing
        let _gone = fs::remove_file(part);
    }
    written
}

fn write_part(
    part: &Path,
    contents: Contents<'_>,
    written: &mut dyn WrittenLayers,
    progress: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Written> {
    let Contents {
        name,
        source_fingerprint,
        source,
        tokenizer,
        down_format,
        slice_neurons,
        orders,
        sets,
        levels,
    } = contents;
    let config = source.config();
    let kept = |format: &Format| down_format.is_some_and(|down| down != *format && !format.has_blocks());
    if let Some((kept, down_format)) = down_formats(source).find(kept).zip(down_format) {
        return Err(invalid(format!(
            "down rows of {kept} keep their format; they cannot be stored as {down_format}"
        )));
    }
    if slice_neurons == 0 || !config.ffn_width().is_multiple_of(slice_neurons) {
        return Err(invalid(format!(
            "experts of {} neurons have no slices of {slice_neurons}",
            config.ffn_width()
        )));
    }
    if down_format.is_none() {
        check_slices(config, orders, slice_neurons)?;
        if has_down_rows(source) {
            return Err(invalid(
                "the model stores its down matrices by neurons, so slices cannot hold pieces of them"
                    .to_owned(),
            ));
        }
    }
    let of_layer = |layer| Converted::new(source, layer, down_format, slice_neurons);
    let layers = (0..config.layers()).map(of_layer).collect::<io::Result<Vec<_>>>()?;

    let file = File::options().read(true).write(true).create(true).truncate(false).open(part)?;
    let old_bytes = file.metadata()?.len();
    let mut out = Sections::new(&file, progress)?;
    out.write(&[0; PAGE_BYTES as usize])?;

    let (fixed, tensors) = write_fixed(&mut out, source, orders)?;
    let per_layer_rows = write_per_layer(&mut out, source, None)?;
    let sets = sets.iter().map(|set| write_set(&mut out, config, set)).collect::<io::Result<Vec<_>>>()?;
    let levels = levels.iter().map(|level| write_level(&mut out, level)).collect::<io::Result<Vec<_>>>()?;

    // the tables have the bundles' checksums: their pages are left out and written later
    let neurons = config.experts() * config.ffn_width();
    let tables_offset = out.position;
    let tables_words = (config.layers() * neurons * TABLE_WORDS) as u64;
    let tables_bytes = (tables_words * size_of::<u32>() as u64).next_multiple_of(PAGE_BYTES);
    out.skip(tables_bytes)?;
    let mut tables = Vec::with_capacity(tables_bytes as usize);
    let layer_bytes =
        |layer: &Converted| (neurons as u64 * layer.stored.bundle.stride_bytes).next_multiple_of(PAGE_BYTES);
    let layer_offsets: Vec<u64> = layers
        .iter()
        .scan(out.position, |position, layer| {
            let offset = *position;
            *position += layer_bytes(layer);
            Some(offset)
        })
        .collect();
    let stored: Vec<Stored> = layers.iter().map(|layer| layer.stored).collect();
    let first = *stored.first().ok_or_else(|| invalid("a model without layers".to_owned()))?;
    let mut directory = Directory {
        name: name.to_owned(),
        source_fingerprint: source_fingerprint.to_owned(),
        config: config.clone(),
        tokenizer,
        gate_format: first.gate_format,
        up_format: first.up_format,
        down_format: first.down_format,
        bundle: first.bundle,
        down_transposed: down_format.is_some(),
        layers: if stored.iter().all(|other| *other == first) { Vec::new() } else { stored },
        fixed,
        tensors,
        per_layer_rows,
        sets,
        levels,
        tables: Section { offset: tables_offset, bytes: tables_bytes, hash: String::new() },
        layer_offsets,
        source: None,
    };
    // the source may delete a written layer: before, everything else must be valid
    let end = out.position + layers.iter().map(layer_bytes).sum::<u64>();
    read::believed(part, &directory, end)?;
    for (layer, (order, converted)) in orders.iter().zip(&layers).enumerate() {
        let bundle = &converted.stored.bundle;
        let offset = directory.layer_offsets[layer];
        if out.position != offset {
            return Err(invalid(format!("layer {layer} begins at {} and not at {offset}", out.position)));
        }
        let known = written.load(layer)?.filter(|known| {
            out.position + order.len() as u64 * bundle.stride_bytes <= old_bytes
                && known.len() == order.len()
                && holds_layer(&file, out.position, layer, converted, known)
        });
        let checksums = match known {
            Some(known) => {
                out.skip((order.len() as u64 * bundle.stride_bytes).next_multiple_of(PAGE_BYTES))?;
                known
            }
            None if written.given_back(layer) => {
                let part = part.display();
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!(
                        "layer {layer} is damaged in {part}, and the model no longer has it: get the model again"
                    ),
                ));
            }
            None => {
                let checksums = write_layer(&mut out, source, layer, order, converted)?;
                out.flush()?;
                if written.gives_back() && !holds_layer(&file, offset, layer, converted, &checksums) {
                    return Err(invalid(format!("layer {layer} was written but does not read back equal")));
                }
                checksums
            }
        };
        written.save(layer, &checksums)?;
        tables.extend(order.iter().flat_map(|index| index.to_le_bytes()));
        tables.extend(checksums.iter().flatten().flat_map(|sum| sum.to_le_bytes()));
    }
    tables.resize(tables_bytes as usize, 0);
    directory.tables.hash = hex(blake3::hash(&tables));
    finish(&file, out, directory, &tables)
}

/// Writes the directory at the end, the tables to their place, and the header.
fn finish(file: &File, mut out: Sections<'_>, directory: Directory, tables: &[u8]) -> io::Result<Written> {
    let json = serde_json::to_vec(&directory)?;
    let directory_offset = out.position;
    out.write(&json)?;
    out.pad()?;
    let file_bytes = out.position;
    out.flush()?;
    file.set_len(file_bytes)?;
    write_all_at(file, tables, directory.tables.offset)?;
    write_all_at(file, &header(directory_offset, &json, file_bytes), 0)?;
    file.sync_all()?;
    Ok(Written { directory, fingerprint: fingerprint(&json), bytes: file_bytes })
}

/// BLAKE3 of a directory's bytes, 32 digits; a plan names its container so.
pub(super) fn fingerprint(json: &[u8]) -> String {
    hex(blake3::hash(json))[..32].to_owned()
}

fn header(directory_offset: u64, json: &[u8], file_bytes: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(80);
    header.extend(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend(BYTE_ORDER.to_le_bytes());
    header.extend(directory_offset.to_le_bytes());
    header.extend((json.len() as u64).to_le_bytes());
    header.extend(file_bytes.to_le_bytes());
    header.extend(blake3::hash(json).as_bytes());
    assert_eq!(header.len(), HEADER_CHECKED, "the byte ruler");
    header.extend(xxhash_rust::xxh3::xxh3_64(&header).to_le_bytes());
    header
}

/// Checks that slices with pieces of down are neighbours of one expert, in the source's order.
fn check_slices(config: &Config, orders: &[Vec<u32>], slice: usize) -> io::Result<()> {
    let of_one = |neurons: &[u32]| {
        let first = neurons[0] as usize;
        (first..).zip(neurons).all(|(index, &other)| index == other as usize) && first.is_multiple_of(slice)
    };
    if !config.ffn_width().is_multiple_of(slice)
        || !orders.iter().all(|order| order.chunks(slice).all(of_one))
    {
        return Err(invalid(format!(
            "the orders do not keep slices of {slice} neurons in the source's order"
        )));
    }
    Ok(())
}

/// Checks that the orders are a permutation of each layer's neurons.
fn check_orders(source: &SourceModel<'_>, orders: &[Vec<u32>]) -> io::Result<()> {
    let config = source.config();
    let neurons = config.experts() * config.ffn_width();
    for order in orders {
        let mut seen = vec![false; neurons];
        for &index in order {
            match seen.get_mut(index as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(invalid("an order is not a permutation of its layer's neurons".to_owned())),
            }
        }
        if order.len() != neurons {
            return Err(invalid(format!("an order names {} of {neurons} neurons", order.len())));
        }
    }
    if orders.len() != config.layers() {
        return Err(invalid(format!("{} orders for {} layers", orders.len(), config.layers())));
    }
    Ok(())
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
