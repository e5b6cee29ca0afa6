//! A container's down rows, compared value by value with the source's columns.
//!
//! A source blocks down along the neurons, so a neuron's row is quantised again along the width. The error is
//! at most half a step of its block, plus the rounding of its scale to `F16`, `2^-11` of each step:
//!
//! * `Q8_0`: 127 steps up to the largest value, `(0.5 + 127 / 2048)` of a step;
//! * `Q4_0`: eight steps below zero and seven above, the largest value at -8; a value beyond 7.5 becomes 7, and
//!   `(0.5 + 8 / 2048)` of a step elsewhere.
//!
//! Formats without blocks, and rows that the source also has as rows, are stored exactly.

use super::*;
use crate::model::source::Down;

/// The source's values of each neuron's down row, and the container's, by layer, then rank.
fn down_rows(source: &SourceModel<'_>, container: &Container) -> Vec<[Vec<f32>; 2]> {
    let (d, bytes) = (&container.directory, std::fs::read(&container.path).unwrap());
    let (c, count) = (&d.config, container.neurons());
    let row = |layer: usize, rank: usize| {
        let at = d.tables.offset as usize + 4 * (3 * layer * count + rank);
        let index = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let (expert, neuron) = (index / c.ffn_width(), index % c.ffn_width());
        let of_source = match source.ffn_down(layer, expert) {
            Down::Rows(w) => values(w.format, w.row(neuron).bytes),
            Down::Columns(w) => {
                (0..c.width).map(|column| values(w.format, w.row(column).bytes)[neuron]).collect()
            }
        };
        let span = d.bundle.span(rank as u64, Part::Whole);
        let end = (d.layer_offsets[layer] + span.offset + span.bytes) as usize;
        let down = &bytes[end - d.bundle.down_bytes as usize..end];
        [of_source, values(d.down_format, down)]
    };
    (0..c.layers())
        .flat_map(|layer| (0..count).map(move |rank| (layer, rank)))
        .map(|(l, r)| row(l, r))
        .collect()
}

fn values(format: Format, row: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; row.len() / format.block_bytes() * format.block_values()];
    dequantise(format, row, &mut values);
    values
}

/// The largest possible error of a value in its block.
fn bound(format: Format, block: &[f32], value: f32) -> f32 {
    let extreme = block.iter().fold(0.0_f32, |extreme, v| if v.abs() > extreme.abs() { *v } else { extreme });
    match format {
        Format::Q8_0 => (0.5 + 127.0 / 2048.0) * extreme.abs() / 127.0,
        Format::Q4_0 | Format::Q4_0X4 => {
            let step = extreme / -8.0;
            let half = if value / step > 7.5 { value / step - 7.0 } else { 0.5 };
            (half + 8.0 / 2048.0) * step.abs()
        }
        _ => 0.0,
    }
}

#[test]
fn down_rows_are_the_sources_columns_within_half_a_step() {
    let [f32, f16, q8, q4, k6] = [Format::F32, Format::F16, Format::Q8_0, Format::Q4_0, Format::Q6K];
    for (experts, of_source, width, wanted, stored) in [
        (1, f32, 64, None, [f32; 2]),
        (4, f16, 64, None, [f16; 2]),
        (1, q8, 64, None, [q8; 2]),
        (4, q4, 64, None, [q4; 2]),
        (1, q4, 128, None, [q4, Format::Q4_0X4]),
        (4, q8, 128, Some(q4), [q4, Format::Q4_0X4]),
        (1, q4, 64, Some(q8), [q8; 2]),
        (1, k6, 256, None, [k6; 2]),
    ] {
        let bytes = model_of("bamboo", experts, of_source, width);
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container_with(folder.path(), &source, wanted);
        let format = container.directory.down_format;
        assert!(stored.contains(&format), "{of_source} as {wanted:?} became {format}");
        let (mut far, mut changed) = (0.0_f32, false);
        for [expected, found] in down_rows(&source, &container) {
            assert_eq!(expected.len(), found.len(), "{format}: a row is as wide as the model");
            for (block, found) in expected.chunks(32).zip(found.chunks(32)) {
                for (&value, &found) in block.iter().zip(found) {
                    let bound = bound(format, block, value);
                    let off = (value - found).abs();
                    assert!(off <= bound * (1.0 + 1e-5), "{of_source} as {format}: {value} became {found}");
                    (far, changed) = (far.max(off / bound.max(f32::MIN_POSITIVE)), changed || off > 0.0);
                }
            }
        }
        // the bound is tight, and nothing is equal by chance
        let requantised = format.has_blocks() && format != k6;
        assert_eq!((changed, far > 0.8), (requantised, requantised), "{of_source} as {format}: {far}");
    }
}
