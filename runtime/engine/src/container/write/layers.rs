//! The neurons of a layer: bundles or slices, in order of rank.

use std::fs::File;
use std::io;

use rayon::prelude::*;

use super::down::transposed;
use super::invalid;
use super::sections::Sections;
use crate::container::{Checksums, Stored, bundle_checksums, slice_checksums};
use crate::model::source::{Down, SourceModel};
use kernels::{self, Format, Matrix, repack};

/// Formats of a layer's rows, in the source and in the container.
pub(super) struct Converted {
    /// Formats of gate, up and down rows before they are repacked for kernels.
    from: [Format; 3],
    /// The formats as stored, and the shape of a bundle.
    pub(super) stored: Stored,
    /// Whether down has a row for each neuron, and not pieces.
    transposed: bool,
}

impl Converted {
    pub(super) fn new(
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

/// Bundles that all threads assemble before a write.
const BUNDLES_AT_ONCE: usize = 1024;

/// Writes a layer's bundles in order of rank, and returns their checksums.
pub(super) fn write_layer(
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

/// Writes a layer's slices, with pieces of down, and returns the checksums of their neurons.
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

/// Slices that are assembled before a write.
fn slices_at_once(slice: usize) -> usize {
    (BUNDLES_AT_ONCE / slice).max(1)
}

/// Copies columns `first..first + count` of each row of down to `piece`, and clears the rest.
fn take_piece(down: Matrix<'_>, first: usize, count: usize, stored: Format, piece: &mut [u8]) {
    piece.fill(0);
    let (from, to) = (down.format.row_bytes(first), down.format.row_bytes(first + count));
    for (row, piece) in (0..down.rows).zip(piece.chunks_exact_mut(to - from)) {
        piece.copy_from_slice(&down.row(row).bytes[from..to]);
        repack(down.format, stored, piece);
    }
}

/// Whether a file has the bundles of a layer at `offset`, each with its checksum.
pub(super) fn holds_layer(
    file: &File,
    offset: u64,
    layer: usize,
    converted: &Converted,
    checksums: &[Checksums],
) -> bool {
    let bundle = &converted.stored.bundle;
    // the unit of a checksum is a slice where it has a piece, else a neuron
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
        platform::file::read_exact_at(file, bytes, offset + (first * stride) as u64).is_ok()
            && bytes
                .par_chunks(unit * stride)
                .zip(checksums.par_chunks(unit))
                .enumerate()
                .all(|(i, (bytes, sums))| of_unit(first + i * unit, bytes, sums))
    })
}
