//! All formats, shapes and sizes of subgroups.

use compare::largest_difference;

use super::*;

/// Roundings of a term in a sum of [`Unit::dots`]: by the additions of its thread, of the lanes and of the
/// subgroups.
fn roundings_of_few(columns: usize) -> usize {
    8 * columns.div_ceil(8 * 64) + 64 + 16
}

/// Columns around blocks, groups of eight, and what a workgroup takes at once.
fn columns_of(format: Format) -> Vec<usize> {
    let block = format.block_values();
    if format.has_blocks() { vec![block, 3 * block, 1536, 1536 + block] } else { vec![1, 7, 8, 9, 100, 1037] }
}

#[test]
fn every_value_of_every_format_is_exact() {
    let Some(mut unit) = unit(LIMITS, Choices::default()) else { return };
    let noise = &mut Noise(1);
    const COLUMNS: usize = 256;
    // the product with a unit vector is a weight: its other terms are zeros
    let mut vectors = vec![0.0; COLUMNS * COLUMNS];
    (0..COLUMNS).for_each(|i| vectors[i * COLUMNS + i] = 1.0);
    for format in Format::ALL {
        let weights = Weights::random(noise, format, 24, COLUMNS, |_| true);
        let (resident, values) = (unit.load(&weights.matrix()).expect("resident"), weights.values());
        let mut found = vec![f32::NAN; 24 * COLUMNS];
        unit.reference(&resident, &vectors, &mut found).expect("products");
        for (at, expected) in values.iter().enumerate() {
            let found = found[at % COLUMNS * 24 + at / COLUMNS];
            // a device may read subnormal numbers as zero
            let zeroed = expected.abs() < f32::MIN_POSITIVE && found == 0.0;
            assert!(found == *expected || zeroed, "{format}: value {at} is {found}, not {expected}");
        }
    }
}

/// Calls `check` for every format and every ragged number of columns, with weights of some rows and 65 vectors.
fn for_shapes(seed: u64, mut check: impl FnMut(&Weights, &[f32])) {
    let noise = &mut Noise(seed);
    for format in Format::ALL {
        for (at, columns) in columns_of(format).into_iter().enumerate() {
            let weights = Weights::moderate(noise, format, [1, 5, 64, 67, 130, 3][at % 6], columns);
            check(&weights, &noise.vectors(65 * columns));
        }
    }
}

#[test]
fn few_vectors_agree_with_the_scalar_kernels() {
    let Some(mut unit) = unit(LIMITS, Choices::default()) else { return };
    for_shapes(2, |weights, x| {
        let (rows, columns) = (weights.rows, weights.columns);
        let resident = unit.load(&weights.matrix()).expect("resident");
        for count in 1..=8 {
            let (x, mut found) = (&x[..count * columns], vec![f32::NAN; count * rows]);
            unit.dots(&resident, x, &mut found).expect("products");
            assert_products(weights, x, &found, roundings_of_few(columns), "times few");
        }
    });
}

#[test]
fn many_vectors_agree_with_the_scalar_kernels() {
    let Some(mut unit) = unit(LIMITS, Choices::default()) else { return };
    for_shapes(3, |weights, x| {
        let (rows, columns) = (weights.rows, weights.columns);
        let resident = unit.load(&weights.matrix()).expect("resident");
        let mut all = vec![f32::NAN; 65 * rows];
        unit.products(&resident, x, &mut all).expect("products");
        assert_products(weights, x, &all, columns, "times 65 vectors");
        for count in [1, 33] {
            let mut found = vec![f32::NAN; count * rows];
            unit.products(&resident, &x[..count * columns], &mut found).expect("products");
            assert_eq!(found, all[..count * rows], "{}: the bits of 65 vectors", weights.format);
        }
    });
}

#[test]
fn a_vector_has_the_same_bits_beside_any_others() {
    let Some(mut unit) = unit(LIMITS, Choices::default()) else { return };
    let noise = &mut Noise(6);
    for format in [Format::Q4K, Format::F16, Format::Iq2S] {
        let weights = Weights::moderate(noise, format, 37, 2048);
        let resident = unit.load(&weights.matrix()).expect("resident");
        let x = noise.vectors(11 * 2048);
        let mut all = vec![f32::NAN; 11 * 37];
        unit.dots(&resident, &x, &mut all).expect("products");
        for count in 1..=11 {
            let (x, from) = (&x[(11 - count) * 2048..], (11 - count) * 37);
            let mut found = vec![f32::NAN; count * 37];
            unit.dots(&resident, x, &mut found).expect("products");
            assert_eq!(found, all[from..], "{format}: the last {count} of eleven vectors");
        }
    }
}

#[test]
fn lanes_are_added_up_in_groups_of_any_size() {
    let noise = &mut Noise(4);
    let weights = Weights::moderate(noise, Format::Q6K, 9, 2304);
    let x = noise.vectors(8 * 2304);
    let mut before: Vec<f32> = Vec::new();
    for lanes in [1, 2, 4, 8, 16, 32, 64] {
        let choices = Choices { lanes: Some(lanes), ..Choices::default() };
        let Some(mut unit) = unit(LIMITS, choices) else { return };
        let resident = unit.load(&weights.matrix()).expect("resident");
        for count in [1, 3, 8] {
            let mut found = vec![f32::NAN; count * 9];
            unit.dots(&resident, &x[..count * 2304], &mut found).expect("products");
            assert_products(&weights, &x[..count * 2304], &found, roundings_of_few(2304), "in groups");
            if count == 8 {
                let apart = if before.is_empty() { 1.0 } else { largest_difference(&found, &before) };
                assert!(apart > 0.0, "groups of {lanes} lanes add in an order of their own");
                before = found;
            }
        }
    }
}

#[test]
fn a_matrix_of_many_bindings_has_the_bits_of_one() {
    let noise = &mut Noise(5);
    let weights = Weights::moderate(noise, Format::Q5_0, 300, 2048);
    let x = noise.vectors(9 * 2048);
    let mut products: Vec<Vec<f32>> = Vec::new();
    // the second binds 46 rows, and its outputs come back in pieces
    let small = Limits { transfer_bytes: 1, ..LIMITS };
    for (limits, binding_bytes, parts) in [(LIMITS, None, 1), (small, Some(65536), 7)] {
        let Some(mut unit) = unit(limits, Choices { binding_bytes, ..Choices::default() }) else { return };
        let resident = unit.load(&weights.matrix()).expect("resident");
        assert_eq!(resident.parts(), parts, "bindings");
        let mut found = [vec![f32::NAN; 9 * 300], vec![f32::NAN; 9 * 300]];
        unit.dots(&resident, &x, &mut found[0]).expect("products");
        unit.products(&resident, &x, &mut found[1]).expect("products");
        assert_products(&weights, &x, &found[0], roundings_of_few(2048), "in parts");
        assert_products(&weights, &x, &found[1], 2048, "in parts");
        products.push(found.concat());
    }
    assert_eq!(products[0], products[1], "bit for bit");
}

#[test]
fn a_row_is_not_touched_by_its_neighbours() {
    let Some(mut unit) = unit(LIMITS, Choices::default()) else { return };
    for columns in [5, 9] {
        // a group of eight values reaches into the next row
        let rows = [1.0, f32::NAN, 2.0, f32::INFINITY].map(|value| vec![value; columns]).concat();
        let bytes = bytemuck::cast_slice(&rows);
        let resident = unit.load(&Matrix { format: Format::F32, rows: 4, columns, bytes }).expect("resident");
        let (x, sum) = (vec![1.0; columns], columns as f32);
        let mut found = [[0.0; 4]; 3];
        unit.dots(&resident, &x, &mut found[0]).expect("products");
        unit.products(&resident, &x, &mut found[1]).expect("products");
        unit.reference(&resident, &x, &mut found[2]).expect("products");
        for [first, nan, third, infinite] in found {
            assert_eq!([first, third], [sum, 2.0 * sum], "{columns} columns: numbers");
            assert!(!nan.is_finite() && !infinite.is_finite(), "{columns} columns: {nan} and {infinite}");
        }
    }
}
