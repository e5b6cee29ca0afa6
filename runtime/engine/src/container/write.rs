//! Writes containers and indexes from a source model.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use plans::PAGE_BYTES;
use plans::model::LevelKind;
use plans::output_file::{OutputKind, deliver};
use rayon::prelude::*;

use super::{
    BYTE_ORDER, Checksums, Directory, HEADER_CHECKED, LevelEntry, MAGIC, Section, SetEntry, Source, Stored,
    TABLE_WORDS, TENSOR_ALIGN, TensorEntry, VERSION, bundle_checksums, index, read, slice_checksums,
};
use crate::flash::DirectWriter;
use crate::model::config::{Config, TensorShape};
use crate::model::source::{Down, SourceModel};
use crate::model::tokenizer::TokenizerData;
use crate::predictor::Hidden;
use kernels::Format;
use kernels::{self, Matrix, dequantise, quantise, repack};

/// The matrices of a predictor for one expert of one layer; neurons in order of rank.
#[derive(Debug, Clone)]
pub enum PredictorSource {
    /// Sign bits of the gate rows, `[neurons, words]`.
    Sign(Vec<u64>),
    /// `fc1: [rank, width]`, `fc2: [neurons, rank]`, row-major, in the set's format.
    LowRank {
        /// Hidden size.
        rank: usize,
        /// First matrix.
        fc1: Vec<u8>,
        /// Second matrix.
        fc2: Vec<u8>,
    },
}

/// A source of predictors, read one at a time: all predictors of a large model would not fit in memory.
pub trait PredictorSources: std::fmt::Debug {
    /// The predictor of an expert of a layer.
    ///
    /// # Errors
    /// If it cannot be read.
    fn predictor(&self, layer: usize, expert: usize) -> io::Result<PredictorSource>;
}

/// `[layer][expert]`.
impl PredictorSources for Vec<Vec<PredictorSource>> {
    fn predictor(&self, layer: usize, expert: usize) -> io::Result<PredictorSource> {
        Ok(self[layer][expert].clone())
    }
}

/// A predictor set to be stored.
#[derive(Debug, Clone, Copy)]
pub struct SetSource<'a> {
    /// Unique name.
    pub name: &'a str,
    /// Sign or low rank.
    pub kind: LevelKind,
    /// Storage of the low-rank matrices.
    pub format: Format,
    /// Activation between the low-rank matrices.
    pub hidden: Hidden,
    /// One for every expert of every layer.
    pub predictors: &'a dyn PredictorSources,
}

/// A quality level to be stored.
#[derive(Debug, Clone)]
pub struct LevelSource {
    /// Unique name.
    pub name: String,
    /// How the level selects neurons.
    pub kind: LevelKind,
    /// Index of the level's predictor set.
    pub set: Option<usize>,
    /// Low rank: `[layer][expert][neuron]` logit thresholds. Gate threshold: thresholds of the activated
    /// gate's size. Sign: the greatest number of differing bits, a whole number.
    pub thresholds: Option<Vec<Vec<Vec<f32>>>>,
    /// By layer: this many first ranks are always computed.
    pub always_on: Vec<u32>,
}

/// A container that was written.
#[derive(Debug, Clone)]
pub struct Written {
    /// The directory as written.
    pub directory: Directory,
    /// BLAKE3 of the directory, 32 hexadecimal digits.
    pub fingerprint: String,
    /// Bytes of the file.
    pub bytes: u64,
}

/// The layers that a partial container holds, so that a resumed run does not write them again.
pub trait WrittenLayers {
    /// The checksums of a layer's bundles, if it was written before.
    ///
    /// # Errors
    /// If they cannot be read.
    fn load(&self, layer: usize) -> io::Result<Option<Vec<Checksums>>>;

    /// Records a written layer.
    ///
    /// # Errors
    /// If it cannot be recorded.
    fn save(&mut self, layer: usize, checksums: &[Checksums]) -> io::Result<()>;

    /// Whether the source frees a layer that is saved; the written layer is then read and verified first.
    fn gives_back(&self) -> bool {
        false
    }

    /// Whether the source has freed this layer, so that only the partial container may have it.
    fn given_back(&self, _layer: usize) -> bool {
        false
    }
}

/// Records nothing.
impl WrittenLayers for () {
    fn load(&self, _: usize) -> io::Result<Option<Vec<Checksums>>> {
        Ok(None)
    }

    fn save(&mut self, _: usize, _: &[Checksums]) -> io::Result<()> {
        Ok(())
    }
}

/// A container or an index as output. The caller decides which files it may replace.
pub const OUTPUT: OutputKind = OutputKind { name: "a container", is_one: |_| true };

/// All parts of a container.
#[derive(Debug)]
pub struct Contents<'a> {
    /// The model's name.
    pub name: &'a str,
    /// The model file's fingerprint.
    pub source_fingerprint: &'a str,
    /// The model.
    pub source: &'a SourceModel<'a>,
    /// Tokenizer of the model.
    pub tokenizer: TokenizerData,
    /// Format of down rows that have blocks; formats without blocks are kept. `None`: no down rows; slices
    /// hold pieces of the source's down.
    pub down_format: Option<Format>,
    /// Neurons of one expert that are read and evicted together; 1 for single neurons.
    pub slice_neurons: usize,
    /// Per layer, for each rank the source index `expert * ffn_width + neuron`: a permutation.
    pub orders: &'a [Vec<u32>],
    /// Predictor sets.
    pub sets: &'a [SetSource<'a>],
    /// Quality levels.
    pub levels: &'a [LevelSource],
}

/// Writes a container to `part`, and renames it to `path` in the same folder when it is complete.
///
/// A layer recorded in `layers` is used after every bundle in `part` was verified. `progress` gets the bytes
/// written so far and returns whether to continue.
///
/// # Errors
/// * `Interrupted` if `progress` returned false; `part` is kept for resuming.
/// * `InvalidInput` if the contents do not fit the model.
/// * `InvalidData` if a layer is in neither the source nor `part`.
/// * Otherwise the system's error, for example a full disk. `part` is removed, unless it holds layers that
///   the source has freed.
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
        // report the first error; a second about a missing file would add nothing
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
            "down rows of {kept} keep their format, and are not stored as {down_format}"
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
                "the model has its down matrices by neurons, and no pieces of them".to_owned(),
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
    let sets = sets.iter().map(|set| write_set(&mut out, config, set)).collect::<io::Result<Vec<_>>>()?;
    let levels = levels.iter().map(|level| write_level(&mut out, level)).collect::<io::Result<Vec<_>>>()?;

    // The checksums are known only after the bundles, so the tables' pages are skipped and written later.
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
        sets,
        levels,
        tables: Section { offset: tables_offset, bytes: tables_bytes, hash: String::new() },
        layer_offsets,
        source: None,
    };
    // the source may free a written layer: first check that everything else will be accepted
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
                    return Err(invalid(format!("layer {layer} was written and is not read again")));
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

/// Writes the directory at the end, the tables into their place, and the header.
fn finish(file: &File, mut out: Sections<'_>, directory: Directory, tables: &[u8]) -> io::Result<Written> {
    let json = serde_json::to_vec(&directory)?;
    let directory_offset = out.position;
    out.write(&json)?;
    out.pad()?;
    let file_bytes = out.position;
    out.flush()?;
    file.set_len(file_bytes)?;
    file.write_all_at(tables, directory.tables.offset)?;
    file.write_all_at(&header(directory_offset, &json, file_bytes), 0)?;
    file.sync_all()?;
    Ok(Written { directory, fingerprint: fingerprint(&json), bytes: file_bytes })
}

/// Writes an index to `part`, and renames it to `path` when it is complete: a container that leaves the
/// weights in the source's own files. Reads everything once, layer after layer; `progress` gets the source
/// bytes read so far and returns whether to continue.
///
/// # Errors
/// As [`write`](fn@write); also if slices are not whole experts with pieces of down, or if there are
/// predictors.
pub fn write_index(
    path: &Path,
    part: &Path,
    contents: Contents<'_>,
    progress: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Written> {
    check_orders(contents.source, contents.orders)?;
    let written = write_index_part(part, contents, progress)
        .and_then(|written| deliver(part, path, OUTPUT).map(|()| written));
    if written.is_err() {
        // report the first error; a second about a missing file would add nothing
        let _gone = fs::remove_file(part);
    }
    written
}

fn write_index_part(
    part: &Path,
    contents: Contents<'_>,
    progress: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Written> {
    let Contents { name, source_fingerprint, source, tokenizer, slice_neurons, orders, sets, levels, .. } =
        contents;
    let (config, gguf) = (source.config(), source.gguf());
    let whole = contents.down_format.is_none() && slice_neurons == config.ffn_width();
    if !whole || has_down_rows(source) || !sets.is_empty() {
        return Err(invalid("an index is of whole experts, with down as the source has it".to_owned()));
    }
    check_slices(config, orders, slice_neurons)?;
    let of_layer = |layer| {
        let Converted { stored, .. } = Converted::new(source, layer, None, slice_neurons)?;
        Ok(stored.apart())
    };
    let stored = (0..config.layers()).map(of_layer).collect::<io::Result<Vec<_>>>()?;
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

    // the fixed part as it will be assembled; tensors that the source does not have in this form follow here
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
        see(bytes)?;
    }
    let bytes = end.next_multiple_of(PAGE_BYTES);
    hasher.update(&[0; PAGE_BYTES as usize][..(bytes - end) as usize]);
    let fixed = Section { offset: own_offset, bytes, hash: hex(hasher.finalize()) };
    out.pad()?;

    let mut tables: Vec<u32> = Vec::new();
    for (layer, order) in orders.iter().enumerate() {
        let experts: Vec<usize> =
            order.iter().step_by(slice_neurons).map(|&i| i as usize / slice_neurons).collect();
        let sums = index::sums(source, layer, &experts);
        let mut places = Vec::with_capacity(experts.len());
        let mut bytes = 0;
        for &expert in &experts {
            let parts = index::parts(source, layer, expert).unwrap_or_default();
            bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
            // an empty part gets the gate's place
            let [gate, down] = [place(parts[0])?, place(parts[2])?];
            places.push([gate, if parts[1].is_empty() { gate } else { place(parts[1])? }, down]);
        }
        found.slices.push(places);
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
        sets: Vec::new(),
        levels,
        tables: tables_section,
        layer_offsets: Vec::new(),
        source: Some(found),
    };
    finish(&file, out, directory, &tables)
}

/// BLAKE3 of a directory's bytes, 32 digits; plans name a container by it.
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

/// Writes the fixed part, each tensor on a cache line.
fn write_fixed(
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

/// A tensor of the fixed part, stored unchanged, or if plain as `F32` values, permuted by `order` if there is
/// one.
struct Fixed<'a> {
    name: String,
    matrix: Matrix<'a>,
    is_plain: bool,
    order: Option<&'a [u32]>,
}

/// The tensors of the fixed part in the order of use: the embedding, each layer's shared tensors, the head.
fn fixed_tensors<'a>(source: &'a SourceModel<'_>, orders: &'a [Vec<u32>]) -> Vec<Fixed<'a>> {
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

/// The values of a plain tensor, permuted by `order` if there is one.
fn plain_values(w: Matrix<'_>, order: Option<&[u32]>) -> Vec<f32> {
    let mut values = vec![0.0; w.rows * w.columns];
    dequantise(w.format, w.bytes, &mut values);
    match order {
        Some(order) => order.iter().map(|&index| values[index as usize]).collect(),
        None => values,
    }
}

fn write_set(out: &mut Sections<'_>, config: &Config, set: &SetSource<'_>) -> io::Result<SetEntry> {
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
                            "the predictor of layer {layer} has not the model's shape"
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

fn write_level(out: &mut Sections<'_>, level: &LevelSource) -> io::Result<LevelEntry> {
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

/// Formats of a layer's rows, as read and as stored.
struct Converted {
    /// Formats of gate, up and down rows before they are rearranged for the kernels.
    from: [Format; 3],
    stored: Stored,
    /// Whether there are down rows, not pieces.
    transposed: bool,
}

impl Converted {
    fn new(
        source: &SourceModel<'_>,
        layer: usize,
        down_rows: Option<Format>,
        slice_neurons: usize,
    ) -> io::Result<Self> {
        let formats = |expert| {
            let (Down::Columns(down) | Down::Rows(down)) = source.ffn_down(layer, expert);
            let [gate, up] = [source.ffn_gate(layer, expert), source.ffn_up(layer, expert)];
            [gate.format, up.format, down_rows.unwrap_or(down.format)]
        };
        let (config, from) = (source.config(), formats(0));
        if (1..config.experts()).any(|expert| formats(expert) != from) {
            return Err(invalid(format!("the experts of layer {layer} have matrices of several formats")));
        }
        let (width, transposed) = (config.width, down_rows.is_some());
        let columns = [width, width, if transposed { width } else { slice_neurons }];
        let best = kernels::best();
        let stored = std::array::from_fn(|i| best.stored(from[i], columns[i]));
        let wrong =
            from.into_iter().zip(columns).find(|(format, n)| !n.is_multiple_of(format.block_values()));
        match (Stored::new(stored, config, slice_neurons, transposed), wrong) {
            (Some(stored), None) => Ok(Self { from, stored, transposed }),
            (_, Some((format, width))) if width == config.width => {
                Err(invalid(format!("a width of {width} is not whole blocks of {format}")))
            }
            _ => {
                Err(invalid(format!("slices of {slice_neurons} neurons are not whole blocks of {}", from[2])))
            }
        }
    }
}

/// Bundles that all threads assemble together before they are written.
const BUNDLES_AT_ONCE: usize = 1024;

/// Writes one layer's bundles by rank; returns their checksums.
fn write_layer(
    out: &mut Sections<'_>,
    source: &SourceModel<'_>,
    layer: usize,
    order: &[u32],
    converted: &Converted,
) -> io::Result<Vec<Checksums>> {
    let config = source.config();
    let Converted { from, stored, transposed: true } = converted else {
        return write_slices(out, source, layer, order, converted);
    };
    let (bundle, formats) = (&stored.bundle, [stored.gate_format, stored.up_format, stored.down_format]);
    let downs: Vec<Vec<u8>> =
        (0..config.experts()).map(|expert| transposed(source.ffn_down(layer, expert), from[2])).collect();
    let (stride, row) = (bundle.stride_bytes as usize, bundle.down_bytes as usize);
    let mut checksums = Vec::with_capacity(order.len());
    let mut bytes = vec![0; BUNDLES_AT_ONCE.min(order.len()) * stride];
    for (first, order) in order.chunks(BUNDLES_AT_ONCE).enumerate() {
        let bytes = &mut bytes[..order.len() * stride];
        let part: Vec<Checksums> = (bytes.par_chunks_mut(stride).zip(order).enumerate())
            .map(|(i, (bytes, &index))| {
                let (expert, neuron) =
                    (index as usize / config.ffn_width(), index as usize % config.ffn_width());
                let (gate, rest) = bytes.split_at_mut(bundle.gate_bytes as usize);
                let (up, rest) = rest.split_at_mut(bundle.up_bytes as usize);
                let down = &mut rest[..row];
                gate.copy_from_slice(source.ffn_gate(layer, expert).row(neuron).bytes);
                if bundle.up_bytes > 0 {
                    up.copy_from_slice(source.ffn_up(layer, expert).row(neuron).bytes);
                }
                down.copy_from_slice(&downs[expert][neuron * row..][..row]);
                for (part, rows) in [gate, up, down].into_iter().enumerate() {
                    repack(from[part], formats[part], rows);
                }
                let rank = first * BUNDLES_AT_ONCE + i;
                let bundle_bytes = bundle.bundle_bytes() as usize;
                bundle_checksums(layer, rank, &bytes[..bundle_bytes], bundle.gate_bytes as usize)
            })
            .collect();
        checksums.extend(part);
        out.write_unhashed(bytes)?;
    }
    out.pad()?;
    Ok(checksums)
}

/// Writes a layer slice by slice, with pieces of down; returns checksums.
fn write_slices(
    out: &mut Sections<'_>,
    source: &SourceModel<'_>,
    layer: usize,
    order: &[u32],
    Converted { from, stored, .. }: &Converted,
) -> io::Result<Vec<Checksums>> {
    let (config, bundle) = (source.config(), &stored.bundle);
    let slice = bundle.slice_neurons as usize;
    let (slice_bytes, gate_bytes) = (slice * bundle.bundle_bytes() as usize, bundle.gate_bytes as usize);
    let inputs_bytes = gate_bytes + bundle.up_bytes as usize;
    let at_once = slices_at_once(slice);
    let mut checksums = Vec::with_capacity(order.len());
    let mut bytes = vec![0; (at_once * slice_bytes).min(order.len() / slice * slice_bytes)];
    for (first, order) in order.chunks(at_once * slice).enumerate() {
        let bytes = &mut bytes[..order.len() / slice * slice_bytes];
        let part: Vec<Vec<Checksums>> = (bytes.par_chunks_mut(slice_bytes).enumerate())
            .map(|(i, bytes)| {
                let index = order[i * slice] as usize;
                let (expert, neuron) = (index / config.ffn_width(), index % config.ffn_width());
                let (gates, ups) = (source.ffn_gate(layer, expert), source.ffn_up(layer, expert));
                let (inputs, piece) = bytes.split_at_mut(slice * inputs_bytes);
                for (neuron, inputs) in (neuron..).zip(inputs.chunks_exact_mut(inputs_bytes)) {
                    let (gate, up) = inputs.split_at_mut(gate_bytes);
                    gate.copy_from_slice(gates.row(neuron).bytes);
                    repack(from[0], stored.gate_format, gate);
                    if bundle.up_bytes > 0 {
                        up.copy_from_slice(ups.row(neuron).bytes);
                        repack(from[1], stored.up_format, up);
                    }
                }
                let (Down::Columns(down) | Down::Rows(down)) = source.ffn_down(layer, expert);
                take_piece(down, neuron, slice, stored.down_format, piece);
                slice_checksums(layer, (first * at_once + i) * slice, bytes, bundle)
            })
            .collect();
        checksums.extend(part.into_iter().flatten());
        out.write_unhashed(bytes)?;
    }
    out.pad()?;
    Ok(checksums)
}

/// Slices that are assembled together.
fn slices_at_once(slice: usize) -> usize {
    (BUNDLES_AT_ONCE / slice).max(1)
}

/// Fills `piece` with columns `first..first + count` of each row of down, then zeros.
fn take_piece(down: Matrix<'_>, first: usize, count: usize, stored: Format, piece: &mut [u8]) {
    piece.fill(0);
    let (from, to) = (down.format.row_bytes(first), down.format.row_bytes(first + count));
    for (row, piece) in (0..down.rows).zip(piece.chunks_exact_mut(to - from)) {
        piece.copy_from_slice(&down.row(row).bytes[from..to]);
        repack(down.format, stored, piece);
    }
}

/// Whether the file holds all bundles of a layer that was written before, each with its checksum.
fn holds_layer(
    file: &File,
    offset: u64,
    layer: usize,
    converted: &Converted,
    checksums: &[Checksums],
) -> bool {
    let bundle = &converted.stored.bundle;
    // the unit of checks: a slice where it holds a piece, else a neuron
    let (slice, stride) = (bundle.slice_neurons as usize, bundle.stride_bytes as usize);
    let unit = if converted.transposed { 1 } else { slice };
    let of_unit = |rank: usize, bytes: &[u8], sums: &[Checksums]| {
        if !converted.transposed {
            return slice_checksums(layer, rank, bytes, bundle) == sums;
        }
        let (bytes, zeros) = bytes.split_at(bundle.bundle_bytes() as usize);
        [bundle_checksums(layer, rank, bytes, bundle.gate_bytes as usize)] == sums
            && zeros.iter().all(|&byte| byte == 0)
    };
    let at_once = slices_at_once(unit) * unit;
    let mut bytes = vec![0; at_once.min(checksums.len()) * stride];
    checksums.chunks(at_once).enumerate().all(|(first, checksums)| {
        let first = first * at_once;
        let bytes = &mut bytes[..checksums.len() * stride];
        file.read_exact_at(bytes, offset + (first * stride) as u64).is_ok()
            && bytes
                .par_chunks(unit * stride)
                .zip(checksums.par_chunks(unit))
                .enumerate()
                .all(|(i, (bytes, sums))| of_unit(first + i * unit, bytes, sums))
    })
}

/// An expert's `down^T` `[neurons, width]` in `format`, as a container with down rows holds it. `None` where
/// it equals the source's, bit for bit.
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
fn transposed(down: Down<'_>, format: Format) -> Vec<u8> {
    let (width, neurons) = match down {
        Down::Columns(w) => (w.rows, w.columns),
        Down::Rows(w) if w.format == format => return w.bytes.to_vec(),
        Down::Rows(w) => (w.columns, w.rows),
    };
    // A strip of neurons at a time, whole blocks of them, so that the single-precision copy stays small.
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

/// The format of a model's stored down rows. Formats without blocks keep every bit, whatever is wanted.
///
/// A block of a quantised down matrix spans neurons, so a neuron's row cannot be cut out unchanged: it is
/// quantised again along the width. The target is `wanted`, or else the source's own format, the finest where
/// layers differ (`Q4_K_M` files). `Q4_K` replaces formats that cannot be written, and `Q8_0` formats whose
/// blocks do not divide the width.
pub fn stored_down_format(source: &SourceModel<'_>, wanted: Option<Format>) -> Format {
    let fineness = |format: &Format| Format::ALL.iter().position(|other| other == format);
    let own = down_formats(source).min_by_key(fineness).unwrap_or(Format::F32);
    if !own.has_blocks() {
        return own;
    }
    // four-bit floats can be written, but lose more than `Q4_K` when rounded a second time
    let own = if own.is_written() && own != Format::Mxfp4 { own } else { Format::Q4K };
    let suits = |format: &Format| source.config().width.is_multiple_of(format.block_values());
    [wanted.unwrap_or(own), Format::Q8_0].into_iter().find(suits).unwrap_or(Format::F16)
}

/// Whether the source stores a down matrix by neurons, one row each.
pub fn has_down_rows(source: &SourceModel<'_>) -> bool {
    downs(source).any(|down| matches!(down, Down::Rows(_)))
}

/// The formats of the source's down matrices, by layer.
pub fn down_formats(source: &SourceModel<'_>) -> impl Iterator<Item = Format> {
    downs(source).map(|(Down::Columns(w) | Down::Rows(w))| w.format)
}

/// The source's down matrices, by layer.
fn downs<'a>(source: &'a SourceModel<'_>) -> impl Iterator<Item = Down<'a>> {
    let config = source.config();
    let experts = move |layer| (0..config.experts()).map(move |expert| source.ffn_down(layer, expert));
    (0..config.layers()).flat_map(experts)
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
            "the orders are not of slices of {slice} neurons as the source has them"
        )));
    }
    Ok(())
}

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

pub(super) fn hex(hash: blake3::Hash) -> String {
    hash.to_hex().to_string()
}

/// A file written section by section, each on a page and hashed.
struct Sections<'a> {
    file: DirectWriter<'a>,
    position: u64,
    start: u64,
    hasher: blake3::Hasher,
    progress: &'a mut dyn FnMut(u64) -> bool,
}

impl<'a> Sections<'a> {
    fn new(file: &'a File, progress: &'a mut dyn FnMut(u64) -> bool) -> io::Result<Self> {
        let file = DirectWriter::new(file)?;
        Ok(Self { file, position: 0, start: 0, hasher: blake3::Hasher::new(), progress })
    }

    fn begin(&mut self) {
        self.start = self.position;
        self.hasher.reset();
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.write_unhashed(bytes)
    }

    /// Writes bytes outside any section's hash; bundles have their own checksums.
    fn write_unhashed(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.position += bytes.len() as u64;
        if (self.progress)(self.position) { Ok(()) } else { Err(io::Error::from(io::ErrorKind::Interrupted)) }
    }

    fn align_to(&mut self, align: u64) -> io::Result<()> {
        let zeros = [0; PAGE_BYTES as usize];
        self.write(&zeros[..(self.position.next_multiple_of(align) - self.position) as usize])
    }

    /// Pads to the next cache line; returns its offset in the section.
    fn align(&mut self) -> io::Result<u64> {
        self.align_to(TENSOR_ALIGN)?;
        Ok(self.position - self.start)
    }

    fn pad(&mut self) -> io::Result<()> {
        self.align_to(PAGE_BYTES)
    }

    fn end(&mut self) -> io::Result<Section> {
        self.pad()?;
        let hash = hex(self.hasher.finalize());
        Ok(Section { offset: self.start, bytes: self.position - self.start, hash })
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.position += bytes;
        self.file.go_to(self.position)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
