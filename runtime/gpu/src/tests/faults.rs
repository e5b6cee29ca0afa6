//! Hostile shapes, limits of memory, and devices that are gone.

use super::*;

/// A matrix of zeros.
fn zeros(format: Format, rows: usize, columns: usize) -> Weights {
    Weights { format, rows, columns, bytes: vec![0; rows * format.row_bytes(columns)] }
}

#[test]
fn shapes_that_do_not_fit_are_refused_by_their_sizes() {
    let Some(mut unit) = unit(LIMITS, Choices::default()) else { return };
    let bytes = [0; 180];
    for (rows, columns) in [(usize::MAX, 32), (1 << 40, 1 << 40), (10, 33), (9, 32), (0, 32), (10, 0)] {
        let refused = unit.load(&Matrix { format: Format::Q4_0, rows, columns, bytes: &bytes });
        let expected = GpuError::Shape { format: Format::Q4_0, rows, columns, bytes: 180 };
        assert_eq!(refused.map(|_| ()), Err(expected), "{rows} rows of {columns}");
    }
    let resident = unit.load(&Matrix { format: Format::Q4_0, rows: 10, columns: 32, bytes: &bytes });
    let resident = resident.expect("resident");
    for (inputs, outputs) in [(31, 10), (33, 10), (32, 9), (64, 10), (0, 10), (32, 0)] {
        let (x, mut out) = (vec![1.0; inputs], vec![1.0; outputs]);
        let expected = Err(GpuError::Vectors { inputs, outputs, rows: 10, columns: 32 });
        assert_eq!(unit.dots(&resident, &x, &mut out), expected, "{inputs} and {outputs}");
        assert_eq!(unit.products(&resident, &x, &mut out), expected, "{inputs} and {outputs}");
    }
    assert_eq!(unit.dots(&resident, &[], &mut []), Ok(()), "no vectors, no outputs");
    let mut out = [1.0; 10];
    assert_eq!(unit.dots(&resident, &[1.0; 32], &mut out), Ok(()), "it works after every refusal");
    assert_eq!(out, [0.0; 10], "products with zeros");
}

#[test]
fn rows_and_vectors_that_no_buffer_holds_are_refused() {
    let choices = Choices { binding_bytes: Some(1 << 20), ..Choices::default() };
    let Some(mut unit) = unit(Limits { transfer_bytes: 1, ..LIMITS }, choices) else { return };
    let refused = unit.load(&zeros(Format::F32, 1, 1 << 18).matrix()).map(|_| ());
    let expected = GpuError::RowTooLong { row_bytes: (1 << 20) + 32, binding_bytes: 1 << 20 };
    assert_eq!(refused, Err(expected), "a row of a binding and its padding");
    let resident = unit.load(&zeros(Format::Q4_0, 1, 16416).matrix()).expect("resident");
    let refused = unit.dots(&resident, &vec![0.0; 16416], &mut [0.0]);
    let expected = GpuError::VectorTooLong { columns: 16416, buffer_bytes: 65536 };
    assert_eq!(refused, Err(expected), "a vector of more than 64 KiB");
}

#[test]
fn memory_stays_under_the_limit_and_comes_back() {
    let limits = Limits { memory_bytes: 64 << 20, ..LIMITS };
    let Some(mut unit) = unit(limits, Choices::default()) else { return };
    let weights = zeros(Format::Q8_0, 1024, 4096);
    for round in 0..3 {
        let mut held = Vec::new();
        let refused = loop {
            match unit.load(&weights.matrix()) {
                Ok(resident) => held.push(resident),
                Err(error) => break error,
            }
            assert!(unit.held_bytes() <= limits.memory_bytes, "round {round}: {} bytes", unit.held_bytes());
        };
        let GpuError::OverLimit { limit_bytes, held_bytes, .. } = refused else { panic!("{refused}") };
        assert_eq!(limit_bytes, limits.memory_bytes, "the limit is named");
        let used: u64 = held.iter().map(super::super::Resident::bytes).sum();
        assert!(used <= held_bytes && held_bytes <= limit_bytes, "{used} bytes of {held_bytes}");
        assert!(held.len() >= 8, "round {round}: {} matrices of 4 MiB fit 64 MiB", held.len());
    }
    assert!(unit.peak_bytes() <= limits.memory_bytes, "never over: {}", unit.peak_bytes());
    let none = Limits { memory_bytes: 1 << 20, ..LIMITS };
    let refused = Unit::open(&adapter().expect("there was one"), none).map(|_| ());
    assert!(
        matches!(refused, Err(GpuError::OverLimit { .. })),
        "the buffers for transfers count: {refused:?}"
    );
}

#[test]
fn a_lost_device_is_a_sentence_again_and_again() {
    let Some(mut unit) = unit(LIMITS, Choices::default()) else { return };
    let weights = zeros(Format::Q4_0, 10, 32);
    let resident = unit.load(&weights.matrix()).expect("resident");
    let mut out = [1.0; 10];
    unit.dots(&resident, &[1.0; 32], &mut out).expect("products");
    unit.destroy();
    for _ in 0..2 {
        let lost = unit.dots(&resident, &[1.0; 32], &mut out).expect_err("no device");
        assert!(matches!(&lost, GpuError::Lost { .. }), "{lost:?}");
        assert!(lost.to_string().starts_with("the GPU was lost ("), "{lost}");
        let loaded = unit.load(&weights.matrix()).map(|_| ());
        assert!(matches!(loaded, Err(GpuError::Lost { .. })), "{loaded:?}");
    }
    drop(resident);
}

#[test]
fn a_device_that_does_not_answer_in_time_is_given_up() {
    let limits = Limits { patience: Duration::ZERO, ..LIMITS };
    let opened = adapter().map(|adapter| Unit::open(&adapter, limits));
    let Some(opened) = opened else { return };
    // a fast device may have opened in no time, and then fails at the first product
    let error = opened.and_then(|mut unit| {
        let weights = zeros(Format::F32, 4096, 4096);
        let resident = unit.load(&weights.matrix())?;
        unit.products(&resident, &vec![1.0; 64 * 4096], &mut vec![0.0; 64 * 4096])
    });
    assert_eq!(error, Err(GpuError::Silent { patience: Duration::ZERO }), "no patience");
}

#[test]
fn products_that_were_begun_are_finished_or_dropped() {
    let Some(mut unit) = unit(LIMITS, Choices::default()) else { return };
    let noise = &mut Noise(7);
    let weights = Weights::moderate(noise, Format::Q4K, 70, 512);
    let (resident, x) = (unit.load(&weights.matrix()).expect("resident"), noise.vectors(512 * 600));
    let (mut expected, mut found) = (vec![0.0; 9 * 70], vec![f32::NAN; 9 * 70]);
    unit.products(&resident, &x[..9 * 512], &mut expected).expect("products");
    let dropped = unit.begin_products(&resident, &x[512..]).map(|_| ());
    assert_eq!(dropped, Err(GpuError::TooMany { count: 599, most: 512, rows: 70 }), "more than the buffers");
    drop(unit.begin_products(&resident, &x[..512 * 512]).expect("begun"));
    unit.begin_products(&resident, &x[..9 * 512]).and_then(|it| it.finish(&mut found)).expect("products");
    assert_eq!(found, expected, "the same bits as at once");
    for count in [0, 1, 3, 8] {
        let (x, expected, found) = (&x[..count * 512], &mut expected[..count * 70], &mut found[..count * 70]);
        unit.dots(&resident, x, expected).expect("products");
        unit.begin_dots(&resident, x).and_then(|it| it.finish(found)).expect("products");
        assert_eq!(found, expected, "{count} vectors");
    }
    let refused = unit.begin_dots(&resident, &x[..9 * 512]).map(|_| ());
    assert_eq!(refused, Err(GpuError::TooMany { count: 9, most: 8, rows: 70 }), "few are eight");
    let refused = unit.begin_dots(&resident, &x[..513]).map(|_| ());
    assert_eq!(
        refused,
        Err(GpuError::Vectors { inputs: 513, outputs: 70, rows: 70, columns: 512 }),
        "a half"
    );
    let refused = unit.begin_dots(&resident, &x[..512]).and_then(|it| it.finish(&mut found[..69]));
    assert_eq!(refused, Err(GpuError::Outputs { outputs: 69, count: 1, rows: 70 }), "an output lacks");
    let device = unit.device.handle.clone();
    let begun = unit.begin_dots(&resident, &x[..512]).expect("begun");
    device.destroy();
    let lost = begun.finish(&mut found[..70]);
    assert!(matches!(lost, Err(GpuError::Lost { .. })), "the device went meanwhile: {lost:?}");
}

#[test]
fn a_matrix_of_another_unit_is_refused() {
    let (Some(mut one), Some(mut other)) =
        (unit(LIMITS, Choices::default()), unit(LIMITS, Choices::default()))
    else {
        return;
    };
    let weights = zeros(Format::Q4_0, 10, 32);
    let resident = one.load(&weights.matrix()).expect("resident");
    let mut out = [1.0; 10];
    assert_eq!(other.dots(&resident, &[1.0; 32], &mut out), Err(GpuError::Foreign), "not its own");
    assert_eq!(out, [1.0; 10], "nothing is written");
    assert_eq!(one.dots(&resident, &[1.0; 32], &mut out), Ok(()), "its own");
}

#[test]
fn times_are_told_and_wrong_sizes_are_refused() {
    let (Some(mut unit), Some(mut other)) =
        (unit(LIMITS, Choices::default()), unit(LIMITS, Choices::default()))
    else {
        return;
    };
    let (mut bytes, weights) = (Vec::new(), zeros(Format::Q4_0, 100, 512));
    assert!(unit.time_round_trip().is_ok_and(|time| time > Duration::ZERO), "a round trip");
    assert!(unit.time_up(&mut bytes).is_ok_and(|time| time > Duration::ZERO), "up");
    bytes.fill(7);
    assert!(unit.time_down(&mut bytes).is_ok_and(|time| time > Duration::ZERO), "down");
    assert_eq!(bytes.len() as u64, unit.transfer_bytes(), "a whole buffer");
    assert!(bytes.iter().all(|byte| *byte == 0), "it came from the device");
    let resident = unit.load(&weights.matrix()).expect("resident");
    for count in [1, 8, 9] {
        assert!(unit.time_products(&resident, count, 3).is_ok_and(|time| time > Duration::ZERO), "{count}");
    }
    let most = unit.transfer_bytes() as usize / 4 / 512;
    let refused = GpuError::VectorTooLong { columns: 512, buffer_bytes: unit.transfer_bytes() };
    assert!(unit.time_products(&resident, most, 1).is_ok(), "as many as the buffers hold");
    for count in [0, most + 1, usize::MAX] {
        assert_eq!(unit.time_products(&resident, count, 1), Err(refused.clone()), "{count} vectors");
    }
    assert_eq!(other.time_products(&resident, 1, 1), Err(GpuError::Foreign), "of another unit");
}
