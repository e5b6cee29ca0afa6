//! One suite over every instruction set; formats are compared with values from ggml.

use proptest::prelude::*;

use super::*;

/// The unit roundoff of `f32`: one rounding changes a number by at most this share of it.
const ROUNDOFF: f64 = f32::EPSILON as f64 / 2.0;

/// Roundings that a term of a vector kernel's sum passes through, beyond one for every 32 values. Vector
/// kernels hold at least 32 partial sums, so a term passes `n / 32` additions. At most 6 more join the lanes,
/// one adds a remainder, and one rounds the product.
const ROUNDINGS_MAX: f64 = 8.0;

/// Rows of tests start at this byte, so loads are unaligned.
const MISALIGNMENT: usize = 1;

/// Stored weights with their values by definition.
#[derive(Debug)]
struct Weights {
    format: Format,
    misaligned: Vec<u8>,
    values: Vec<f32>,
}

impl Weights {
    /// `values` in `format`. For a read-only format, as many other values in -1..1, derived from `values`.
    fn new(format: Format, values: &[f32]) -> Self {
        if !format.is_written() {
            let seed = values.iter().fold(1_u64, |seed, v| seed.rotate_left(5) ^ u64::from(v.to_bits()));
            let blocks = values.len() / format.block_values();
            return Self::from_bytes(
                format,
                &noise_bytes_of(format, blocks, seed, Some(largest_scale(format))),
            );
        }
        let mut bytes = vec![0; format.row_bytes(values.len())];
        quantise(format, values, &mut bytes);
        Self::from_bytes(format, &bytes)
    }

    fn from_bytes(format: Format, bytes: &[u8]) -> Self {
        let misaligned = [&[0xff; MISALIGNMENT], bytes].concat();
        let mut values = vec![0.0; Row::new(format, bytes).values()];
        dequantise(format, bytes, &mut values);
        Self { format, misaligned, values }
    }

    fn row(&self) -> Row<'_> {
        Row::new(self.format, &self.misaligned[MISALIGNMENT..])
    }

    /// Values `range` of the row, in whole blocks.
    fn part(&self, range: Range<usize>) -> Row<'_> {
        let bytes = self.format.row_bytes(range.start)..self.format.row_bytes(range.end);
        Row::new(self.format, &self.row().bytes[bytes])
    }
}

/// Numbers in -1..1, the same for the same seed.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (0..count).map(|_| ((next() >> 40) as f32 / (1 << 23) as f32) - 1.0).collect()
}

/// Lengths around every unrolling, in whole blocks.
fn ragged_lengths(format: Format) -> Vec<usize> {
    match format.block_values() {
        1 => (0..=130).chain([255, 256, 257, 1000, 4096, 4097]).collect(),
        32 => (0..=17).chain([28, 30, 31, 128, 129]).map(|blocks| blocks * 32).collect(),
        block => (0..=9).chain([16, 17]).map(|blocks| blocks * block).collect(),
    }
}

/// About `columns`: whole blocks, or a ragged length for formats without blocks.
fn columns_of(format: Format, columns: usize) -> usize {
    if format.has_blocks() { columns.next_multiple_of(format.block_values()) } else { columns - 3 }
}

/// A scale under which no value of a read-only format exceeds one.
fn largest_scale(format: Format) -> f32 {
    1.0 / match format {
        Format::Iq4Nl => 127.0,
        Format::Mxfp4 => 12.0,
        Format::Iq4Xs => 32.0 * 127.0,
        Format::Q3K => 32.0 * 4.0,
        Format::Q2K => 15.0 * 3.0,
        Format::Iq3S => 31.0 * 15.0,
        Format::Iq3Xxs => 15.5 / 2.0 * 62.0,
        Format::Nvfp4 => 12.0,
        Format::Q2_0 | Format::Tq2_0 | Format::Tq1_0 | Format::Q1_0 => 2.0,
        Format::Iq1M | Format::Iq1S => 15.0 / 8.0 * 9.0,
        _ => 15.5 / 4.0 * 43.0,
    }
}

/// Largest size of the two terms of a weight (the integer's, and the offset's or minimum's) for each value of
/// a row of blocks.
fn reach(weights: &Weights) -> Vec<f64> {
    let half = |bytes: [u8; 2]| half::f16::from_le_bytes(bytes).to_f32();
    let row = weights.row().bytes;
    let wide = |reach: f32| f64::from(reach.abs());
    let mut all = Vec::new();
    match weights.format {
        Format::Q4K => bytemuck::cast_slice::<_, k_block::Q4K>(row).iter().for_each(|block| {
            let [_, minima] = block.scales();
            all.extend((0..256).map(|i| wide(2.0 * minima[i / 32])));
        }),
        Format::Q6K => bytemuck::cast_slice::<_, k_block::Q6K>(row).iter().for_each(|block| {
            let scales = block.scales();
            all.extend((0..256).map(|i| wide(64.0 * scales[i / 16])));
        }),
        Format::Q4_0X4 => row.as_chunks::<72>().0.iter().for_each(|four| {
            let scales = four.as_chunks::<2>().0[..4].iter();
            all.extend(scales.flat_map(|&d| [wide(16.0 * half(d)); 32]));
        }),
        Format::Q8_0 | Format::Q4_0 => row
            .chunks(weights.format.block_bytes())
            .for_each(|block| all.extend([wide(128.0 * half([block[0], block[1]])); 32])),
        format => (0..weights.values.len() / 32).for_each(|at| {
            let part = parts::stored(parts::Plain, format, row, at);
            all.extend((0..32).map(|j| wide(2.0 * part.minima[j / 16]) + wide(16.0 * part.scales[j / 16])));
        }),
    }
    all.iter().zip(&weights.values).map(|(reach, w)| reach + wide(*w)).collect()
}

/// Compares `kernels.dot` with the sum in double precision, within the roundings of [`ROUNDINGS_MAX`].
fn check_dot(kernels: &dyn Kernels, weights: &Weights, x: &[f32]) {
    let terms = || weights.values.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
    let exact: f64 = terms().sum();
    let magnitude: f64 = terms().map(f64::abs).sum();
    let n = x.len() as f64;
    let roundings = match kernels.instruction_set() {
        InstructionSet::Scalar => n + 1.0, // one sum, in order
        _ => n / 32.0 + ROUNDINGS_MAX,
    };
    // below the normal range a rounding errs by half the smallest subnormal
    let tolerance = magnitude * roundings * ROUNDOFF + n * f64::from(f32::from_bits(1));
    let dot = f64::from(kernels.dot(weights.row(), x));
    assert!(
        (dot - exact).abs() <= tolerance,
        "{} {} of {n}: {dot} should be {exact} within {tolerance}",
        kernels.instruction_set(),
        weights.format
    );
}

/// `kernels.axpy` on a copy of `y`.
fn axpy(kernels: &dyn Kernels, a: f32, row: Row<'_>, y: &[f32]) -> Vec<f32> {
    let mut y = y.to_vec();
    kernels.axpy(a, row, &mut y);
    y
}

/// Compares `kernels.axpy` with double precision: at most two roundings, of the product and of the sum.
fn check_axpy(kernels: &dyn Kernels, a: f32, weights: &Weights, y: &[f32]) {
    let actual = axpy(kernels, a, weights.row(), y);
    for i in 0..y.len() {
        let product = f64::from(a) * f64::from(weights.values[i]);
        let exact = f64::from(y[i]) + product;
        let tolerance = 1.01 * ROUNDOFF * (product.abs() + exact.abs()) + f64::from(f32::from_bits(1));
        assert!(
            (f64::from(actual[i]) - exact).abs() <= tolerance,
            "{} {} {i} of {}: {} should be {exact}",
            kernels.instruction_set(),
            weights.format,
            y.len(),
            actual[i]
        );
    }
}

/// Every kernel set that this processor supports, the reference first. The test is skipped for the other
/// sets.
fn available() -> Vec<&'static dyn Kernels> {
    let available = super::available();
    skipped::absent_instruction_sets(available.iter().map(|kernels| kernels.instruction_set().name()));
    available
}

/// Every instruction set of this processor with every format.
fn pairs() -> impl Iterator<Item = (&'static dyn Kernels, Format)> {
    available().into_iter().flat_map(|kernels| Format::ALL.map(|format| (kernels, format)))
}

#[test]
fn dot_and_axpy_agree_with_double_precision_at_ragged_lengths() {
    for (kernels, format) in pairs() {
        for n in ragged_lengths(format) {
            let (weights, x) = (Weights::new(format, &noise(1, n)), noise(2, n));
            check_dot(kernels, &weights, &x);
            check_axpy(kernels, 0.7, &weights, &x);
        }
    }
}

/// Compares `kernels.dot_rounded` with the sum in double precision over the rounded values. Integers under
/// one scale are summed exactly; only the offsets and minima, subtracted at the end, enlarge the rounding
/// error.
fn check_dot_rounded(kernels: &dyn Kernels, weights: &Weights, x: &[f32]) {
    let mut words = vec![0.0; Rounded::words(x.len())];
    let rounded = Rounded::new(x, &mut words);
    let (mut exact, mut magnitude) = (0.0, 0.0);
    for (i, (w, reach)) in weights.values.iter().zip(reach(weights)).enumerate() {
        let x = f64::from(rounded.values[i]) * f64::from(rounded.scales[i / 32]);
        exact += f64::from(*w) * x;
        magnitude += reach * x.abs();
    }
    let n = x.len() as f64;
    let tolerance = magnitude * (n / 32.0 + ROUNDINGS_MAX) * ROUNDOFF + n * f64::from(f32::MIN_POSITIVE);
    let dot = f64::from(kernels.dot_rounded(weights.row(), rounded));
    let (set, format) = (kernels.instruction_set(), weights.format);
    assert!(
        (dot - exact).abs() <= tolerance,
        "{set} {format} of {n}: {dot} is not {exact} within {tolerance}"
    );
}

#[test]
fn rounded_vectors_agree_with_double_precision_and_are_near_the_originals() {
    for (kernels, format) in pairs().filter(|(_, format)| format.has_blocks()) {
        for n in ragged_lengths(format) {
            let (weights, x) = (Weights::new(format, &noise(1, n)), noise(2, n));
            check_dot_rounded(kernels, &weights, &x);
            let mut words = vec![f32::NAN; Rounded::words(n)];
            let input = Input::new(&x, true, &mut words);
            let (near, exact) = (input.dot(kernels, weights.row()), kernels.dot(weights.row(), &x));
            assert!((near - exact).abs() < 0.01 * (n as f32).sqrt() + 1e-6, "{near} {exact}");
        }
        for seed in 0..20 {
            let bytes = noise_bytes(format, 40 + seed);
            let weights = Weights::from_bytes(format, &bytes);
            if weights.values.iter().all(|w| w.is_finite()) {
                check_dot_rounded(kernels, &weights, &noise(3, weights.values.len()));
            }
        }
        let weights = Weights::new(format, &noise(1, 256));
        check_dot_rounded(kernels, &weights, &[0.0; 256]);
    }
}

#[test]
fn rows_stored_for_kernels_hold_the_same_values() {
    for kernels in available() {
        for (format, columns) in Format::ALL.into_iter().flat_map(|f| [256, 768].map(|columns| (f, columns)))
        {
            let weights = Weights::new(format, &noise(11, 3 * columns));
            let (stored, mut bytes) = (kernels.stored(format, columns), weights.row().bytes.to_vec());
            repack(format, stored, &mut bytes);
            assert_eq!(Weights::from_bytes(stored, &bytes).values, weights.values, "{format} as {stored}");
        }
        assert_eq!(kernels.stored(Format::Q4_0, 96), Format::Q4_0, "not whole groups");
    }
}

#[test]
fn reading_takes_every_word_once() {
    for kernels in available() {
        for len in [0, 1, 7, 8, 127, 128, 129, 255, 256, 257, 1000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 37 % 251) as u8).collect();
            let expected = bytes.chunks(8).fold(0, |all, word| all ^ u64::from_le_bytes(padded(word)));
            let read = kernels.read(Row::new(Format::F32, &bytes));
            assert_eq!(read, expected, "{} {len}", kernels.instruction_set());
        }
    }
}

#[test]
fn four_rows_at_once_are_four_axpys_to_the_bit() {
    // except sets with a private layout of sums, whose values the next test compares
    let own = |kernels: &dyn Kernels, format| {
        kernels.instruction_set() == InstructionSet::Avx2 && format == Format::Q4_0X4
    };
    for (kernels, format) in pairs().filter(|&(kernels, format)| !own(kernels, format)) {
        for n in ragged_lengths(format) {
            let weights = [1, 2, 3, 4].map(|seed| Weights::new(format, &noise(seed, n)));
            let rows = [0, 1, 2, 3].map(|k: usize| weights[k].row());
            let (a, start) = ([0.3, -0.7, 1e-3, 5.0], noise(9, n));
            let mut together = [&start[..], &vec![0.0; sum_words(n) - n]].concat();
            kernels.down().add_four(a, rows, &mut together);
            let together = settled(kernels, format, n, &together);
            let mut apart = start;
            a.into_iter().zip(rows).for_each(|(a, row)| kernels.axpy(a, row, &mut apart));
            assert_eq!(together, apart, "{} {format} {n}", kernels.instruction_set());
        }
    }
}

#[test]
fn a_settled_sum_is_the_rows_times_their_factors() {
    const ROWS: usize = 13;
    for (kernels, format) in pairs() {
        for n in ragged_lengths(format) {
            let weights: Vec<_> =
                (0..ROWS).map(|seed| Weights::new(format, &noise(seed as u64, n))).collect();
            let a = noise(99, ROWS);
            let sum = settled(kernels, format, n, &summed(kernels, &a, &weights, 4));
            // a kernel may sum bytes of two nibbles: 255 steps of a scale, where a value of the row has eight
            let largest = |w: &Weights| compare::largest(&w.values);
            let most: f32 = a.iter().zip(&weights).map(|(a, w)| a.abs() * largest(w) * 32.0).sum();
            let bound = f64::from(most) * f64::from(f32::EPSILON) * 2.0;
            for i in 0..n {
                let terms = a.iter().zip(&weights).map(|(a, w)| f64::from(*a) * f64::from(w.values[i]));
                let error = (f64::from(sum[i]) - terms.sum::<f64>()).abs();
                assert!(error <= bound, "{} {format} {n}: {error} of {bound}", kernels.instruction_set());
            }
        }
    }
}

#[test]
fn rows_are_added_to_a_sum_as_if_alone() {
    for (kernels, format) in pairs() {
        for n in ragged_lengths(format) {
            let weights: Vec<_> = (0..7).map(|seed| Weights::new(format, &noise(seed, n))).collect();
            let a = noise(99, weights.len());
            let of_one = summed(kernels, &a, &weights, 1);
            for together in [2, 3, 4] {
                let sum = summed(kernels, &a, &weights, together);
                assert_eq!(sum, of_one, "{} {format} {n}", kernels.instruction_set());
            }
        }
    }
}

#[test]
fn rounded_sums_are_the_definition_for_any_number_of_rows() {
    let format = Format::Q4_0X4;
    for kernels in available() {
        for n in ragged_lengths(format) {
            for rows in 0..=ADDED {
                let weights: Vec<_> =
                    (0..rows).map(|seed| Weights::new(format, &noise(seed as u64, n))).collect();
                let rows: Vec<Row<'_>> = weights.iter().map(Weights::row).collect();
                let largest = |w: &Weights| compare::largest(&w.values);
                let largest: Vec<f32> = weights.iter().map(largest).collect();
                for scale in [0.0, 1e-38, 1e-20, 1.0, 1e20] {
                    let a: Vec<f32> = noise(99, rows.len()).iter().map(|a| a * scale).collect();
                    let start: Vec<f32> = noise(9, n).iter().map(|y| y * scale).collect();
                    let [mut by_definition, mut y] = [start.clone(), start.clone()];
                    plain::add_rounded(&a, &rows, &mut by_definition);
                    kernels.down().add_rounded(&a, &rows, &mut y);
                    let name = format!("{} {n} {} {scale}", kernels.instruction_set(), rows.len());
                    // half a step of each factor, times eight of the rows' steps
                    let products: Vec<f32> = a.iter().zip(&largest).map(|(a, w)| a * w).collect();
                    let most = compare::largest(&products);
                    let rounding = rows.len() as f32 * most / 127.0 + 1e-30;
                    for (i, (y, expected)) in y.iter().zip(&by_definition).enumerate() {
                        // one product and one sum, fused or not
                        let bound = (y.abs() + start[i].abs()) * 4.0 * f32::EPSILON;
                        assert!((y - expected).abs() <= bound, "{name}: {y} instead of {expected}");
                        let exact: f32 = a.iter().zip(&weights).map(|(a, w)| a * w.values[i]).sum();
                        let off = (y - start[i] - exact).abs();
                        assert!(off <= bound + rounding, "{name}: {y}, not near {exact}");
                    }
                }
            }
        }
    }
}

#[test]
fn vectors_side_by_side_are_packed_as_vectors_one_behind_the_other() {
    for (columns, count) in [(32, 1), (64, 16), (96, 21), (256, 40)] {
        let side_by_side = noise(9, columns * count);
        let rows: Vec<f32> = (0..count)
            .flat_map(|t| (0..columns).map(move |k| (k, t)))
            .map(|(k, t)| side_by_side[k * count + t])
            .collect();
        for form in [Form::F32, Form::Q8] {
            let [mut expected, mut found] = [0; 2].map(|_| vec![0.0; count * form.vector_words(columns)]);
            pack(form, columns, &rows, &mut expected);
            pack_transposed(form, &side_by_side, count, 0, &mut found);
            let bits = |words: &[f32]| words.iter().map(|word| word.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(&expected), "{columns} {count} {form:?}");
        }
    }
}

#[test]
fn transposed_rows_are_the_definition_and_go_on_from_call_to_call() {
    const COLUMNS: usize = 256;
    let format = Format::Q4_0X4;
    for (rows, count) in [(1, 1), (32, 16), (45, 5), (128, 17), (200, 33), (300, 48)] {
        let scales = noise(77, rows);
        let weights: Vec<_> = (0..rows)
            .map(|k| {
                let values = noise(k as u64, COLUMNS).iter().map(|w| w * scales[k]).collect::<Vec<_>>();
                Weights::new(format, &values)
            })
            .collect();
        let w: Vec<Row<'_>> = weights.iter().map(Weights::row).collect();
        let values = noise(5, rows * count);
        let packed_of = |rows: Range<usize>| {
            let mut words =
                vec![0.0; count * Form::Q8.vector_words(rows.len().next_multiple_of(packed::BLOCK))];
            let values = &values[rows.start * count..rows.end * count];
            pack_transposed(Form::Q8, values, count, 0, &mut words);
            // in groups, as threads do
            let mut by_groups = vec![0.0; words.len()];
            let group = LANES * (words.len() / count);
            for (at, words) in by_groups.chunks_mut(group).enumerate() {
                pack_transposed(Form::Q8, values, count, at * LANES, words);
            }
            let bits = |words: &[f32]| words.iter().map(|word| word.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&by_groups), bits(&words));
            words
        };
        let add = |kernels: &dyn Kernels, start: usize, columns: usize, cut: usize, out: &mut [f32]| {
            for rows in [0..cut, cut..rows].into_iter().filter(|rows| !rows.is_empty()) {
                let words = packed_of(rows.clone());
                let columns_of = rows.len().next_multiple_of(packed::BLOCK);
                let x = Packed::new(Form::Q8, columns_of, count, &words);
                kernels.down().add_transposed(&w[rows], start, x, out);
            }
            assert_eq!(out.len(), columns * count);
        };
        let begin = noise(3, COLUMNS * count);
        let mut by_definition = begin.clone();
        add(by_name(InstructionSet::Scalar).unwrap(), 0, COLUMNS, rows, &mut by_definition);
        for kernels in available().into_iter().filter(|kernels| kernels.down().transposes(format)) {
            let name = format!("{} {rows} {count}", kernels.instruction_set());
            let mut whole = begin.clone();
            add(kernels, 0, COLUMNS, rows, &mut whole);
            for (i, (out, expected)) in whole.iter().zip(&by_definition).enumerate() {
                // integers are exact: one rounding for each 32 rows, fused or not
                let bound = rows.div_ceil(32) as f32 * 4.0 * f32::EPSILON * (out.abs() + 8.0);
                assert!((out - expected).abs() <= bound, "{name}: {out} instead of {expected}");
                let (column, t) = (i / count, i % count);
                let products = (0..rows).map(|k| weights[k].values[column] * values[k * count + t]);
                let exact = begin[i] + products.sum::<f32>();
                // half a step of 31 and half a step of 127, for the largest of each
                let rounding = rows as f32 * (1.0 / 62.0 + 1.0 / 254.0);
                assert!((out - exact).abs() <= bound + rounding, "{name}: {out}, not near {exact}");
            }
            // in two calls, and by column ranges
            let mut parts = begin.clone();
            let cut = rows / 64 * 32;
            for (at, out) in parts.chunks_mut(64 * count).enumerate() {
                add(kernels, at * 64, 64, cut, out);
            }
            assert_eq!(parts, whole, "{name}");
        }
    }
}

/// A sum of rows, `together` per call; missing rows of a group of four have a factor of zero.
fn summed(kernels: &dyn Kernels, a: &[f32], weights: &[Weights], together: usize) -> Vec<f32> {
    let mut sum = vec![0.0; sum_words(weights[0].values.len())];
    for (a, weights) in a.chunks(together).zip(weights.chunks(together)) {
        let factors = [0, 1, 2, 3].map(|k| a.get(k).copied().unwrap_or(0.0));
        kernels.down().add_four(
            factors,
            [0, 1, 2, 3].map(|k| weights[k.min(weights.len() - 1)].row()),
            &mut sum,
        );
    }
    sum
}

/// The values of a sum.
fn settled(kernels: &dyn Kernels, format: Format, n: usize, sum: &[f32]) -> Vec<f32> {
    let (values, shared) = sum.split_at(n);
    let mut values = values.to_vec();
    kernels.down().settle(format, shared, &mut values);
    values
}

#[test]
fn every_value_is_unpacked_to_the_bit_of_its_definition() {
    // every exponent of a format without mantissa; the first two are subnormal
    let exponents: Vec<u8> = (0..=255).flat_map(|e| noise_bytes_of(Format::Mxfp4, 1, e, Some(1.0))).collect();
    let exponents: Vec<u8> = exponents
        .chunks(Format::Mxfp4.block_bytes())
        .enumerate()
        .flat_map(|(e, block)| [&[e as u8], &block[1..]].concat())
        .collect();
    // axpy with factor one, added to zero, returns the weight
    for (kernels, format) in pairs() {
        let third =
            if format == Format::Mxfp4 { exponents.clone() } else { noise_bytes_of(format, 40, 5, None) };
        for bytes in [noise_bytes(format, 40), every_scale(format), third] {
            let weights = Weights::from_bytes(format, &bytes);
            let unpacked = axpy(kernels, 1.0, weights.row(), &vec![0.0; weights.values.len()]);
            assert_eq!(unpacked, weights.values, "{} {format}", kernels.instruction_set());
        }
    }
}

/// Arbitrary blocks with finite scales.
fn noise_bytes(format: Format, blocks: usize) -> Vec<u8> {
    noise_bytes_of(format, blocks, 3, None)
}

/// Arbitrary blocks with finite scales, or with the given scale.
fn noise_bytes_of(format: Format, blocks: usize, seed: u64, scale: Option<f32>) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        noise(seed, blocks * format.block_bytes()).iter().map(|v| (v * 128.0) as i8 as u8).collect();
    for block in bytes.chunks_mut(format.block_bytes()) {
        for &place in scale_places(format) {
            block[place + 1] &= 0xbf; // not the upper half of exponents, hence no infinity or NaN
            if let Some(scale) = scale {
                block[place..][..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
            }
        }
        if format == Format::Mxfp4 {
            // a power of two in the middle of the range
            block[0] = scale.map_or(96 | (block[0] & 0x3f), |scale| (128.0 + scale.log2().floor()) as u8);
        }
        if let (Format::Nvfp4, Some(scale)) = (format, scale) {
            block[..4].fill(((8.0 + scale.log2().floor()).max(0.0) as u8) << 3);
        }
        if format == Format::Iq1M {
            set_scale_of_iq1_m(
                block,
                scale
                    .map_or(u16::from(block[55]) << 7 & 0xbfff, |scale| half::f16::from_f32(scale).to_bits()),
            );
        }
    }
    bytes
}

/// Writes a scale into its four places in an `IQ1_M` block.
fn set_scale_of_iq1_m(block: &mut [u8], scale: u16) {
    for quarter in 0..4 {
        let byte = &mut block[49 + 2 * quarter];
        *byte = *byte & 0xf | (((scale >> (4 * quarter)) & 0xf) as u8) << 4;
    }
}

/// Offsets of the parts of a block that can be infinite: its scales or, without blocks, the upper half of a
/// value.
fn scale_places(format: Format) -> &'static [usize] {
    match format {
        Format::F32 => &[2],
        Format::F16 | Format::BF16 => &[0],
        _ => finite::scale_places(format),
    }
}

/// Blocks (or values) over the range of the scale: subnormal, smallest, largest, both signs.
fn every_scale(format: Format) -> Vec<u8> {
    let mut bytes = Vec::new();
    let scales = [0x0000_u16, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff];
    for (i, scale) in scales.into_iter().enumerate() {
        for low in [0x00, 0x7f, 0x80, 0xff, 0x08] {
            let mut block = vec![low; format.block_bytes()];
            for (second, &place) in scale_places(format).iter().enumerate() {
                let scale = if second == 0 { scale } else { scales[(i + low as usize) % scales.len()] };
                block[place..][..2].copy_from_slice(&scale.to_le_bytes());
            }
            if format == Format::Mxfp4 {
                block[0] = [80, 100, 112, 120, 127, 128, 129, 140, 150][i];
            }
            if format == Format::Nvfp4 {
                block[..4].copy_from_slice(&[scale as u8, (scale >> 8) as u8, i as u8, 0x7f]);
            }
            if format == Format::Iq1M {
                set_scale_of_iq1_m(&mut block, scale);
            }
            bytes.extend(block);
        }
    }
    bytes
}

#[test]
fn extreme_scales_keep_their_precision() {
    for (kernels, format) in pairs() {
        let weights = Weights::from_bytes(format, &every_scale(format));
        let x: Vec<f32> = noise(4, weights.values.len()).iter().map(|x| x * 1e-3).collect();
        check_dot(kernels, &weights, &x);
        check_axpy(kernels, 1e-3, &weights, &x);
    }
}

#[test]
fn denormal_vectors_are_not_flushed_to_zero() {
    let denormal = f32::from_bits(3);
    for (kernels, format) in pairs().filter(|(_, format)| format.is_written()) {
        // every written format can store 127, and four-bit floats 96,
        let held: u16 = if format == Format::Mxfp4 { 96 } else { 127 };
        let mut weights = Weights::new(format, &[f32::from(held); 256]);
        if matches!(format, Format::Q4K | Format::Q5K) {
            // different from the quantiser's scales: 9 * 15 - 8
            let six_bits = [9, 9, 9, 9, 8, 8, 8, 8, 0x89, 0x89, 0x89, 0x89];
            let fifth: &[u8] = if format == Format::Q5K { &[0; 32] } else { &[] };
            let bytes = [&[0, 0x3c, 0, 0x3c], &six_bits[..], fifth, &[0xff; 128]].concat();
            weights = Weights::from_bytes(format, &bytes);
        }
        let held = u32::from(held);
        assert_eq!(weights.values, [held as f32; 256], "{format}");
        let dot = kernels.dot(weights.row(), &[denormal; 256]);
        assert_eq!(dot, f32::from_bits(3 * held * 256), "{} {format}", kernels.instruction_set());
        let sums = axpy(kernels, denormal, weights.row(), &[denormal; 256]);
        assert_eq!(sums, [f32::from_bits(3 * held + 3); 256], "{} {format}", kernels.instruction_set());
    }
}

#[test]
fn one_infinite_or_undefined_value_is_not_hidden() {
    for (kernels, format) in pairs().filter(|(_, format)| format.is_written()) {
        let weights = Weights::new(format, &[1.0; 256]);
        let mut x = [0.5; 256];
        x[70] = f32::INFINITY;
        assert_eq!(kernels.dot(weights.row(), &x), f32::INFINITY, "{} {format}", kernels.instruction_set());
        x[3] = f32::NAN;
        assert!(kernels.dot(weights.row(), &x).is_nan(), "{} {format}", kernels.instruction_set());
    }
}

#[test]
fn vector_instruction_sets_agree_on_axpy_to_the_bit() {
    let vectors: Vec<_> = available().into_iter().skip(1).collect();
    for format in Format::ALL {
        let columns = columns_of(format, 288);
        let (weights, y) = (Weights::new(format, &noise(5, columns)), noise(6, columns));
        for pair in vectors.windows(2) {
            let [first, second] = [0, 1].map(|i| axpy(pair[i], 0.3, weights.row(), &y));
            assert_eq!(first, second, "{format}: both round once");
        }
    }
}

#[test]
#[should_panic(expected = "are not a row of 64 values")]
fn a_row_of_another_length_is_refused() {
    best().dot(Weights::new(Format::F16, &[0.0; 32]).row(), &[0.0; 64]);
}

#[test]
#[should_panic(expected = "a row is whole blocks")]
fn a_vector_of_part_of_a_block_is_refused() {
    best().dot(Weights::new(Format::Q4_0, &[0.0; 32]).row(), &[0.0; 31]);
}

#[test]
fn a_matrix_times_a_vector_is_a_dot_for_each_row() {
    let (values, x) = (noise(7, 5 * 256), noise(8, 256));
    for (kernels, format) in pairs() {
        let weights = Weights::new(format, &values);
        let matrix = Matrix { format, rows: 5, columns: 256, bytes: weights.row().bytes };
        let mut out = [0.0; 3];
        kernels.rows(matrix, 1, &x, &mut out);
        let expected = [1, 2, 3].map(|row| kernels.dot(weights.part(256 * row..256 * (row + 1)), &x));
        assert_eq!(out, expected, "{} {format}", kernels.instruction_set());
        assert_eq!(matrix.row(4).values(), 256);
    }
}

#[test]
fn many_activations_have_the_bits_of_one() {
    use Activation::{Drelu, Gelu, Relu, ReluSquared, Silu, SwigluOai};
    let mut gates = noise(41, 1003);
    gates.iter_mut().enumerate().for_each(|(i, gate)| *gate *= [1.0, 10.0, 100.0, 1e-3, 1e30][i % 5]);
    gates.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 87.0, -87.5]);
    let ups = noise(42, gates.len());
    for kernels in available() {
        for activation in [Drelu, Gelu, Relu, ReluSquared, Silu, SwigluOai] {
            let mut values = vec![f32::NAN; gates.len()];
            kernels.activate(activation, &gates, &ups, &mut values);
            for ((gate, up), value) in gates.iter().zip(&ups).zip(values) {
                let expected = activation.apply(*gate, *up);
                assert_eq!(value.to_bits(), expected.to_bits(), "{kernels:?} {activation:?} {gate} {up}");
            }
        }
    }
}

#[test]
fn rows_in_order_have_the_bits_of_one_after_another() {
    for (kernels, format) in pairs() {
        for columns in [32, 256, 512, 544, 960, 1056] {
            let columns = columns_of(format, columns);
            let weights = Weights::new(format, &noise(9, 6 * columns));
            let matrix = Matrix { format, rows: 6, columns, bytes: weights.row().bytes };
            let (x, mut words) = (noise(10, columns), vec![f32::NAN; Rounded::words(columns)]);
            for round in [false, true] {
                let x = Input::new(&x, round, &mut words);
                let mut out = [f32::NAN; 5];
                x.rows(kernels, matrix, 1, &mut out);
                let expected = [1, 2, 3, 4, 5].map(|row| x.dot(kernels, matrix.row(row)));
                assert_eq!(out, expected, "{} {format} {columns}", kernels.instruction_set());
                x.rows(kernels, matrix, 6, &mut []);
            }
        }
    }
}

#[test]
fn dots_and_sums_of_few_vectors_are_those_of_one_and_know_no_neighbours() {
    const ROWS: usize = 69;
    for (kernels, format) in pairs() {
        for columns in [32, 37, 40, 96, 128, 320] {
            let columns = if format.has_blocks() { columns_of(format, columns) } else { columns };
            let weights = Weights::new(format, &noise(31, ROWS * columns));
            let w = Matrix { format, rows: ROWS, columns, bytes: weights.row().bytes };
            let x = noise(32, 17 * columns);
            // vector kernels sum in a tree
            let in_a_tree = kernels.instruction_set() != InstructionSet::Scalar
                && matches!(format, Format::F16 | Format::F32 | Format::Q8_0 | Format::Q4_0);
            // words beyond the last row's place are unchanged
            for (rows, count, beyond) in [0..0, 0..1, 3..5, 1..4, 2..6, 5..10, 0..7, 4..12, 3..ROWS]
                .into_iter()
                .flat_map(|rows| (0..10).chain([17]).map(move |count| (rows.clone(), count, count % 3)))
            {
                let name = format!("{} {format} {columns} {rows:?} {count}", kernels.instruction_set());
                let (x, places) = (&x[..count * columns], rows.len() + beyond);
                let mut out = vec![7.0; count * places];
                kernels.dots(w, rows.clone(), x, &mut out);
                for (t, out) in out.chunks_exact(places.max(1)).enumerate() {
                    let (out, beyond) = out.split_at(rows.len());
                    assert!(beyond.iter().all(|&out| out == 7.0), "{name}");
                    for (at, &out) in rows.clone().zip(out) {
                        let (row, x) = (w.row(at), &x[t * columns..][..columns]);
                        let mut alone = [f32::NAN];
                        kernels.dots(w, at..at + 1, x, &mut alone);
                        assert_eq!(out, alone[0], "{name}");
                        if !in_a_tree {
                            assert_eq!(out, kernels.dot(row, x), "{name}");
                        }
                        let expected = by_name(InstructionSet::Scalar).unwrap().dot(row, x);
                        assert!(
                            (out - expected).abs() <= 1e-4 * (1.0 + expected.abs()),
                            "{name}: {out} {expected}"
                        );
                    }
                }
                let (factors, begin) = (noise(33, count * places), noise(34, count * columns));
                let (mut found, mut expected) = (begin.clone(), begin);
                kernels.add_few(&factors, w, rows.clone(), &mut found);
                let by_row: Vec<f32> = (0..rows.len())
                    .flat_map(|k| (0..count).map(move |t| (k, t)))
                    .map(|(k, t)| factors[t * places + k])
                    .collect();
                let listed: Vec<Row<'_>> = rows.map(|at| w.row(at)).collect();
                if count > 0 {
                    kernels.add_products(&by_row, count, 0..count, &listed, &mut expected);
                }
                assert_eq!(found, expected, "{name}");
            }
        }
    }
}

/// Numbers of vectors around every group and pair of groups.
const COUNTS: [usize; 9] = [1, 2, 15, 16, 17, 31, 33, 48, 70];

/// Every form of vectors that a format supports.
fn forms(format: Format) -> &'static [Form] {
    if format.has_blocks() { &[Form::F32, Form::Q8] } else { &[Form::F32] }
}

/// `vectors`, packed, and their values by definition.
fn packed(form: Form, columns: usize, vectors: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let count = vectors.len() / columns;
    let mut words = vec![0.0; count * form.vector_words(columns)];
    pack(form, columns, vectors, &mut words);
    let x = Packed::new(form, columns, count, &words);
    let values = (0..vectors.len()).map(|i| x.value(i / columns, i % columns)).collect();
    (words, values)
}

/// Compares `kernels.products` with double precision over the packed vectors' values.
///
/// A sum passes one rounding per column or, in integers, three per block (its conversion is exact, below
/// 2^24).
fn check_products(kernels: &dyn Kernels, form: Form, weights: &Weights, rows: usize, vectors: &[f32]) {
    let columns = weights.values.len() / rows;
    let count = vectors.len() / columns;
    let (words, values) = packed(form, columns, vectors);
    let w: Vec<Row<'_>> = (0..rows).map(|row| weights.part(row * columns..(row + 1) * columns)).collect();
    let mut out = vec![f32::NAN; rows * count];
    kernels.products(&w, Packed::new(form, columns, count, &words), &mut out);
    // floats are multiplied with the weights themselves
    let magnitudes = match form {
        Form::Q8 => reach(weights),
        Form::F32 => weights.values.iter().map(|w| f64::from(w.abs())).collect(),
    };
    for row in 0..rows {
        for vector in 0..count {
            let (w, x) =
                (&weights.values[row * columns..][..columns], &values[vector * columns..][..columns]);
            let exact: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let magnitudes = magnitudes[row * columns..].iter().zip(x);
            let magnitude: f64 = magnitudes.map(|(w, x)| w * f64::from(x.abs())).sum();
            let tolerance = magnitude * (2.0 * columns as f64 + 3.0) * ROUNDOFF
                + columns as f64 * f64::from(f32::from_bits(1));
            let got = f64::from(out[row * count + vector]);
            assert!(
                (got - exact).abs() <= tolerance,
                "{} {} {form:?} row {row}/{rows}, vector {vector}/{count}, {columns} columns: {got}, not {exact}",
                kernels.instruction_set(),
                weights.format
            );
        }
    }
}

#[test]
fn products_with_many_vectors_agree_with_double_precision() {
    for (kernels, format) in pairs() {
        for &form in forms(format) {
            for (at, count) in COUNTS.into_iter().enumerate() {
                let rows = [1, 5, 6, 7, 12, 13, 25][at % 7];
                let columns = [32, 128, 160, 256, 544, 1056][at % 6];
                let columns = if format.has_blocks() { columns_of(format, columns) } else { columns - at };
                let weights = Weights::new(format, &noise(20, rows * columns));
                check_products(kernels, form, &weights, rows, &noise(21, count * columns));
            }
        }
    }
}

#[test]
fn products_keep_their_precision_at_extreme_scales() {
    for (kernels, format) in pairs() {
        let weights = Weights::from_bytes(format, &every_scale(format));
        let columns = weights.values.len();
        for &form in forms(format) {
            for exponent in [-120, -20, 0] {
                let scale = f64::from(exponent).exp2() as f32;
                let vectors: Vec<f32> = noise(22, 3 * columns).iter().map(|x| x * scale * 1e-3).collect();
                if form == Form::F32 || exponent > -100 {
                    check_products(kernels, form, &weights, 1, &vectors);
                }
            }
        }
    }
}

#[test]
fn a_sum_has_the_same_bits_whatever_is_computed_beside_it() {
    let (rows, count) = (14, 37);
    for (kernels, format) in pairs() {
        let columns = columns_of(format, 320);
        let weights = Weights::new(format, &noise(23, rows * columns));
        let w: Vec<Row<'_>> = (0..rows).map(|row| weights.part(row * columns..(row + 1) * columns)).collect();
        let vectors = noise(24, count * columns);
        for &form in forms(format) {
            let (words, _) = packed(form, columns, &vectors);
            let mut all = vec![0.0; rows * count];
            kernels.products(&w, Packed::new(form, columns, count, &words), &mut all);
            for (row, vector) in [(0, 0), (13, 36), (6, 16), (3, 31)] {
                let (words, _) = packed(form, columns, &vectors[vector * columns..][..columns]);
                let mut one = [0.0];
                kernels.products(&w[row..=row], Packed::new(form, columns, 1, &words), &mut one);
                assert_eq!(
                    one[0],
                    all[row * count + vector],
                    "{} {format} {form:?}",
                    kernels.instruction_set()
                );
            }
            let part = Packed::new(form, columns, count, &words).part(16, count - 16);
            let mut some = vec![0.0; 3 * (count - 16)];
            kernels.products(&w[4..7], part, &mut some);
            assert_eq!(some[..count - 16], all[4 * count + 16..5 * count]);
        }
    }
}

#[test]
fn a_packed_vector_of_8_bits_is_within_half_a_step_of_its_values() {
    let vectors: Vec<f32> = noise(25, 19 * 96).iter().enumerate().map(|(i, v)| v * (i % 7) as f32).collect();
    let (_, values) = packed(Form::Q8, 96, &vectors);
    for (block, rounded) in vectors.chunks(32).zip(values.chunks(32)) {
        let step = block.iter().fold(0.0_f32, |largest, v| largest.max(v.abs())) / 127.0;
        for (value, rounded) in block.iter().zip(rounded) {
            assert!(
                (value - rounded).abs() <= 0.5001 * step,
                "{value} became {rounded}, a step being {step}"
            );
        }
    }
    assert_eq!(packed(Form::Q8, 32, &[0.0; 32]).1, [0.0; 32]);
    assert_eq!(packed(Form::F32, 96, &vectors).1, vectors);
}

#[test]
fn vector_instruction_sets_agree_on_products_to_the_bit() {
    let vectors: Vec<_> = available().into_iter().skip(1).collect();
    for format in Format::ALL {
        let columns = columns_of(format, 288);
        let weights = Weights::new(format, &noise(26, 7 * columns));
        let w: Vec<Row<'_>> = (0..7).map(|row| weights.part(row * columns..(row + 1) * columns)).collect();
        for &form in forms(format) {
            let (words, _) = packed(form, columns, &noise(27, 21 * columns));
            let outs: Vec<Vec<f32>> = vectors
                .iter()
                .map(|kernels| {
                    let mut out = vec![0.0; 7 * 21];
                    kernels.products(&w, Packed::new(form, columns, 21, &words), &mut out);
                    out
                })
                .collect();
            assert!(outs.windows(2).all(|pair| pair[0] == pair[1]), "{format} {form:?}: both round alike");
        }
    }
}

#[test]
fn added_products_have_the_bits_of_axpy_one_after_another() {
    for (kernels, format) in pairs() {
        for (rows, columns, count, vectors) in [
            (1, 32, 1, 0..1),
            (5, 64, 6, 0..6),
            (70, 96, 9, 1..9),
            (130, 160, 20, 3..20),
            (300, 32, 210, 4..209),
        ] {
            let columns = columns_of(format, columns);
            let weights = Weights::new(format, &noise(28, rows * columns));
            let w: Vec<Row<'_>> =
                (0..rows).map(|row| weights.part(row * columns..(row + 1) * columns)).collect();
            let before = noise(30, vectors.len() * columns);
            // every factor, half of them, few
            for above in [f32::NEG_INFINITY, 0.0, 0.8] {
                let a = noise(29, rows * count);
                let a: Vec<f32> = a.iter().map(|&a| if a > above { a } else { 0.0 }).collect();
                let mut y = before.clone();
                kernels.add_products(&a, count, vectors.clone(), &w, &mut y);
                for (t, (y, before)) in vectors.clone().zip(y.chunks(columns).zip(before.chunks(columns))) {
                    let mut expected = before.to_vec();
                    (0..rows).for_each(|k| kernels.axpy(a[k * count + t], w[k], &mut expected));
                    assert_eq!(
                        y,
                        expected,
                        "{} {format} {rows} {columns} {above}",
                        kernels.instruction_set()
                    );
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "F16 meets vectors of 8 bits")]
fn vectors_of_8_bits_meet_blocks_only() {
    let (words, _) = packed(Form::Q8, 32, &[1.0; 32]);
    let weights = Weights::new(Format::F16, &[0.0; 32]);
    best().products(&[weights.row()], Packed::new(Form::Q8, 32, 1, &words), &mut [0.0]);
}

#[test]
#[should_panic(expected = "row 2 of 2")]
fn a_row_beyond_a_matrix_is_refused() {
    let weights = Weights::new(Format::F32, &[0.0; 8]);
    Matrix { format: Format::F32, rows: 2, columns: 2, bytes: weights.row().bytes }.row(2);
}

#[test]
fn any_bytes_are_weights_of_some_kind() {
    // scales that are infinite or NaN propagate to the sums without a panic
    for (kernels, format) in pairs() {
        let columns = 2 * columns_of(format, 64);
        for seed in 0..40 {
            let bytes: Vec<u8> = noise(seed, 3 * format.row_bytes(columns))
                .iter()
                .map(|v| if v.abs() < 0.2 { 0xff } else { (v * 128.0) as i8 as u8 })
                .collect();
            let matrix = Matrix { format, rows: 3, columns, bytes: &bytes };
            let (x, mut words) = (noise(!seed, columns), vec![0.0; Rounded::words(columns)]);
            let (row, mut values) = (matrix.row(1), vec![0.0; columns]);
            dequantise(format, row.bytes, &mut values);
            assert_eq!(
                values.iter().map(|v| v.is_finite()).collect::<Vec<_>>(),
                axpy(kernels, 1.0, row, &vec![0.0; columns])
                    .iter()
                    .map(|v| v.is_finite())
                    .collect::<Vec<_>>(),
                "{} {format}",
                kernels.instruction_set()
            );
            let dot = kernels.dot(row, &x);
            assert!(!dot.is_finite() || values.iter().all(|v| v.is_finite()), "{format}: {dot}");
            if format.has_blocks() && columns.is_multiple_of(32) {
                kernels.dot_rounded(row, Rounded::new(&x, &mut words));
            }
            for &form in forms(format) {
                let (words, _) = packed(form, columns, &x);
                kernels.products(&[row, matrix.row(2)], Packed::new(form, columns, 1, &words), &mut [0.0; 2]);
            }
        }
    }
}

#[test]
fn formats_have_the_names_that_plans_know_and_numbers_of_their_own() {
    assert_eq!(Format::ALL.map(Format::name), plans::check::FORMATS);
    for format in Format::ALL {
        let json = serde_json::to_string(&format).expect("a format is a word");
        assert_eq!(json, format!("\"{format}\""));
        if let Some(number) = format.ggml_type() {
            assert_eq!(Format::of_ggml_type(number), Some(format));
        }
    }
    let bits = Format::ALL.map(|format| 8.0 * format.block_bytes() as f64 / format.block_values() as f64);
    assert!(bits.is_sorted_by(|a, b| a >= b), "in the order of decreasing size: {bits:?}");
}

#[test]
fn the_reference_comes_first_and_the_best_last() {
    let sets: Vec<_> = available().iter().map(|kernels| kernels.instruction_set()).collect();
    assert_eq!(sets.first(), Some(&InstructionSet::Scalar));
    assert_eq!(sets.last(), Some(&best().instruction_set()));
    for set in sets {
        assert_eq!(by_name(set).map(|kernels| kernels.instruction_set()), Some(set));
    }
}

#[test]
fn instruction_sets_are_read_as_they_are_written() {
    for set in InstructionSet::ALL {
        assert_eq!(set.to_string().parse(), Ok(set));
    }
    let error = "sse9".parse::<InstructionSet>().expect_err("there is no such set");
    expect_test::expect![
        "there are no kernels for the instruction set `sse9`: choose one of scalar, avx2, avx512, neon, dotprod, i8mm"
    ]
    .assert_eq(&error.to_string());
}

proptest! {
    #[test]
    fn any_rows_and_vectors_agree_with_double_precision(seed: u64, blocks in 0..70_usize, exponent in -30..30_i32) {
        for (kernels, format) in pairs() {
            let n = columns_of(format, 3 + 32 * blocks);
            // an occasional weight exceeds the others a hundredfold
            let outgrow = |(i, w): (usize, f32)| if i % 37 == 5 { w * 100.0 } else { w };
            let values: Vec<f32> = noise(seed, n).into_iter().enumerate().map(outgrow).collect();
            let x: Vec<f32> = noise(!seed, n).iter().map(|x| x * (f64::from(exponent).exp2() as f32)).collect();
            let weights = Weights::new(format, &values);
            check_dot(kernels, &weights, &x);
            check_axpy(kernels, x.first().copied().unwrap_or(1.0), &weights, &x);
        }
    }

    #[test]
    fn columns_split_anywhere_give_the_same_bits(seed: u64, blocks in 1..200_usize, first in 0..200_usize, a in -2.0..2.0_f32) {
        for (kernels, format) in pairs() {
            let blocks = if format.is_k() { blocks.div_ceil(8) } else { blocks };
            let n = blocks * format.block_values();
            let split = first % (blocks + 1) * format.block_values();
            let (weights, y) = (Weights::new(format, &noise(seed, n)), noise(!seed, n));
            let whole = axpy(kernels, a, weights.row(), &y);
            let left = axpy(kernels, a, weights.part(0..split), &y[..split]);
            let right = axpy(kernels, a, weights.part(split..n), &y[split..]);
            prop_assert_eq!(whole, [left, right].concat());
        }
    }

    #[test]
    fn mismatches_are_the_bits_that_differ(signs in prop::collection::vec(any::<(u64, u64)>(), 0..40)) {
        let (a, b): (Vec<u64>, Vec<u64>) = signs.into_iter().unzip();
        let bit = |words: &[u64], i: usize| words[i / 64] >> (i % 64) & 1;
        let naive = (0..64 * a.len()).filter(|&i| bit(&a, i) != bit(&b, i)).count();
        for kernels in available() {
            prop_assert_eq!(kernels.sign_mismatch(&a, &b) as usize, naive);
        }
    }

    #[test]
    fn stored_values_are_stored_again_unchanged(seed: u64, blocks in 0..9_usize) {
        // the scales of groups are quantised as well, and rewriting does not reproduce them
        for format in Format::ALL.into_iter().filter(|format| format.is_written() && !format.is_k()) {
            let stored = Weights::new(format, &noise(seed, blocks * format.block_values()));
            let mut again = vec![0; stored.row().bytes.len()];
            quantise(format, &stored.values, &mut again);
            let again = Weights::from_bytes(format, &again);
            // the scale of a block may move by one rounding, and its values by no more
            for (a, b) in stored.values.iter().zip(&again.values) {
                prop_assert!((a - b).abs() <= a.abs() * 2.0_f32.powi(-10), "{format}: {a} became {b}");
            }
        }
    }
}

#[test]
fn fewer_bits_hold_values_worse_and_groups_hold_them_better() {
    // sums of uniform numbers are nearly normally distributed
    let values: Vec<f32> =
        noise(33, 12 * 4096).chunks(12).map(|some| some.iter().sum::<f32>() / 2.0).collect();
    let error = |format: Format| {
        let stored = Weights::new(format, &values).values;
        (stored.iter().zip(&values).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / 4096.0).sqrt()
    };
    // relative to a standard deviation of one; ggml's own search reaches 0.0705 with Q4_K
    for (format, most) in
        [(Format::Q8_0, 0.006), (Format::Q6K, 0.019), (Format::Q4K, 0.074), (Format::Q4_0, 0.09)]
    {
        let error = error(format);
        assert!((0.8 * most..most).contains(&error), "{format}: {error}");
    }
    for format in [Format::Q6K, Format::Q4K] {
        for constant in [0.0, 3.0, -3.0, 1e-30, -1e-30] {
            let stored = Weights::new(format, &[constant; 256]).values;
            assert!(stored.iter().all(|v| (v - constant).abs() <= 0.002 * constant.abs() + 1e-6), "{format}");
        }
    }
}

mod golden {
    //! `fixtures/golden/formats.json`, made by ggml's Python package.

    use super::*;

    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/formats.json");

    #[derive(serde::Deserialize)]
    struct File {
        formats: std::collections::BTreeMap<String, Vec<Case>>,
    }

    /// Hexadecimal, little-endian; without `values`, only decoding is checked.
    #[derive(serde::Deserialize)]
    struct Case {
        name: String,
        values: Option<String>,
        bytes: String,
        decoded: String,
    }

    fn bytes(hexadecimal: &str) -> Vec<u8> {
        let digits = |i| &hexadecimal[i..i + 2];
        (0..hexadecimal.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(digits(i), 16).expect("hexadecimal"))
            .collect()
    }

    fn floats(hexadecimal: &str) -> Vec<f32> {
        bytes(hexadecimal).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    fn cases() -> Vec<(Format, Case)> {
        let text = std::fs::read_to_string(PATH).expect("the fixture is in the repository");
        let file: File = serde_json::from_str(&text).expect("the fixture is as described");
        let format =
            |name: &str| *Format::ALL.iter().find(|f| f.to_string() == name).expect("a format of ours");
        file.formats
            .into_iter()
            .flat_map(|(name, cases)| cases.into_iter().map(move |c| (format(&name), c)))
            .collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn rows_decode_to_the_bit() {
        for (format, case) in cases() {
            let decoded = Weights::from_bytes(format, &bytes(&case.bytes)).values;
            assert_eq!(bits(&decoded), bits(&floats(&case.decoded)), "{format}, {}", case.name);
        }
    }

    #[test]
    fn rows_encode_to_the_byte() {
        for (format, case) in cases() {
            let Some(values) = &case.values else { continue };
            let stored = Weights::new(format, &floats(values));
            assert_eq!(stored.row().bytes, bytes(&case.bytes), "{format}, {}", case.name);
        }
    }
}
