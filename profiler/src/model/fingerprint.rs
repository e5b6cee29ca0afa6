//! A model's fingerprint, and a check that its weights are finite: one pass over its files before any measurement.
//!
//! The checksums of an index come of the same pass, if its slices are the experts as stored.

use std::ops::Range;
use std::path::Path;

use anyhow::{bail, ensure};
use flashplan::internals::container::{Part, PartSum, SliceSums, parts_in_files};
use flashplan::internals::model::gguf::TensorInfo;
use flashplan::internals::model::source::SourceModel;
use kernels::{Format, first_not_finite};

use super::pass::{self, PIECE_BYTES};
use crate::Context;

/// BLAKE3 of the whole file, or of all files in order.
///
/// # Errors
/// [`crate::Stopped`], a weight that is not finite, by name, and a file that cannot be read or has changed since it was opened.
pub(super) fn of(context: &Context, source: &SourceModel<'_>) -> anyhow::Result<String> {
    pass_over(context, source, &[], &mut |_, _| {})
}

/// BLAKE3 as by [`of`], and by layer the checksums of the experts as stored. `None`: an expert has no place of its own in the files.
///
/// # Errors
/// As [`of`].
pub(super) fn with_sums(
    context: &Context,
    source: &SourceModel<'_>,
) -> anyhow::Result<(String, Option<Vec<Vec<SliceSums>>>)> {
    let Some(parts) = parts_in_files(source) else { return Ok((of(context, source)?, None)) };
    let config = source.config();
    let empty = |layer, slice, part| PartSum::new(&Part { layer, slice, part, range: 0..0 }).finish();
    let mut sums: Vec<Vec<SliceSums>> = (0..config.layers())
        .map(|layer| {
            let of_slice = |slice| std::array::from_fn(|part| empty(layer, slice, part));
            (0..config.experts()).map(of_slice).collect()
        })
        .collect();
    let mut keep = |part: &Part, sum| sums[part.layer][part.slice][part.part] = sum;
    let fingerprint = pass_over(context, source, &parts, &mut keep)?;
    Ok((fingerprint, Some(sums)))
}

/// Bytes of a file that lie in one tensor and one part, or in none.
struct Piece<'a> {
    tensor: Option<(&'a TensorInfo, Format)>,
    part: Option<&'a Part>,
    /// Place over all files.
    range: Range<u64>,
}

fn pass_over(
    context: &Context,
    source: &SourceModel<'_>,
    parts: &[Part],
    keep: &mut dyn FnMut(&Part, u32),
) -> anyhow::Result<String> {
    let gguf = source.gguf();
    let mut tensors: Vec<&TensorInfo> = gguf.tensors().iter().collect();
    tensors.sort_by_key(|tensor| tensor.offset);
    let bar = context.bytes_bar(gguf.file_bytes() as u64, "checking the model's file");
    let mut hasher = blake3::Hasher::new();
    let mut sum: Option<PartSum> = None;
    for (path, start, mapped) in gguf.files() {
        let file = start as u64..(start + mapped.len()) as u64;
        let pieces = pieces(&file, &tensors, parts);
        let head = tensors.iter().map(|tensor| tensor.offset).find(|offset| file.contains(offset));
        let of_file: Vec<_> =
            pieces.iter().map(|piece| piece.range.start - file.start..piece.range.end - file.start).collect();
        pass::each(path, &of_file, &mut |number, bytes| {
            context.stopped()?;
            let Piece { tensor, part, range } = &pieces[number];
            if head.is_none_or(|head| range.end <= head) {
                let at = (range.start - file.start) as usize;
                ensure!(
                    mapped[at..][..bytes.len()] == *bytes,
                    "{} changed while it was read",
                    path.display()
                );
            }
            if let Some((tensor, format)) = tensor {
                check_finite(path, tensor, *format, range.start, bytes)?;
            }
            hasher.update(bytes);
            if let Some(part) = part {
                let sum_so_far = sum.get_or_insert_with(|| PartSum::new(part));
                sum_so_far.update(bytes);
                if range.end == part.range.end {
                    keep(part, sum_so_far.finish());
                    sum = None;
                }
            }
            bar.inc(bytes.len() as u64);
            Ok(())
        })?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// A file in pieces, in order. Each is whole blocks of its tensor's format.
fn pieces<'a>(file: &Range<u64>, tensors: &[&'a TensorInfo], parts: &'a [Part]) -> Vec<Piece<'a>> {
    let ends = |start, end| [start, end].into_iter().filter(|&place| file.contains(&place));
    let mut cuts: Vec<u64> = vec![file.start, file.end];
    cuts.extend(tensors.iter().flat_map(|tensor| ends(tensor.offset, tensor.offset + tensor.bytes)));
    cuts.extend(parts.iter().flat_map(|part| ends(part.range.start, part.range.end)));
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces = Vec::new();
    for cut in cuts.windows(2) {
        let (start, end) = (cut[0], cut[1]);
        let tensor = tensors[..tensors.partition_point(|tensor| tensor.offset <= start)].last();
        let tensor = tensor.filter(|tensor| start < tensor.offset + tensor.bytes);
        let tensor = tensor.and_then(|&tensor| Some((tensor, tensor.format().ok()?)));
        let part = parts[..parts.partition_point(|part| part.range.start <= start)].last();
        let part = part.filter(|part| part.range.contains(&start));
        let block = tensor.map_or(1, |(_, format)| format.block_bytes());
        let at_once = PIECE_BYTES / block * block;
        let starts = (start..end).step_by(at_once);
        pieces.extend(starts.map(|start| Piece {
            tensor,
            part,
            range: start..end.min(start + at_once as u64),
        }));
    }
    pieces
}

/// Refuses bytes of a tensor from `place` on that have a weight which is not finite.
fn check_finite(
    path: &Path,
    tensor: &TensorInfo,
    format: Format,
    place: u64,
    bytes: &[u8],
) -> anyhow::Result<()> {
    let Some(block) = first_not_finite(format, bytes) else { return Ok(()) };
    let before = (place - tensor.offset) as usize / format.block_bytes();
    bail!(
        "{}: weight {} of the tensor {} is infinite or not a number: the file is damaged, or was converted so; fetch or convert it \
         again",
        path.display(),
        (before + block) * format.block_values(),
        tensor.name
    );
}
