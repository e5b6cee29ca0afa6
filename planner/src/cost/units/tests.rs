//! Tests of `units.rs`.

use super::*;
use plans::device::OwnMemory;
use proptest::prelude::*;

/// A device of which nothing matters but its units.
fn device(rates: UnitRates) -> Device {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../plans/oneplus-12/turbosparse-mixtral-47b/device.toml");
    let mut device = plans::file::read::<Device>(std::path::Path::new(path)).expect("a device").value;
    device.units =
        vec![plans::device::Unit::cpu(), plans::device::Unit { name: "npu".to_owned(), rates: Some(rates) }];
    device
}

fn rates(flops: f64, stream: f64, dispatch: f64, own: Option<u64>) -> UnitRates {
    UnitRates {
        adapter: None,
        process_bytes: 0,
        formats: vec!["Q4_0".to_owned()],
        tokens: vec![1, 64],
        flops_per_second: vec![flops, 8.0 * flops],
        stream_bytes_per_second: stream,
        shared_stream_bytes_per_second: own.is_none().then_some(1.2 * stream),
        dispatch_seconds: dispatch,
        own_memory: own.map(|bytes| OwnMemory { bytes, copy_bytes_per_second: stream / 4.0 }),
    }
}

const PRODUCTS: Products<'_> = Products {
    format: "Q4_0",
    tokens: 8.0,
    flops: 1e9,
    bytes: 3e7,
    matrices: 4.0,
    vector_bytes: 1e6,
    held_bytes: 6e7,
    copied: true,
    seconds: 2e-3,
};

proptest! {
    #[test]
    fn no_other_share_is_sooner(
        flops in 1e10..1e13_f64, stream in 1e9..1e11_f64, dispatch in 1e-6..1e-3_f64,
        own in prop::option::of(1_u64 << 20..1 << 28), tokens in 1.0..200.0_f64,
    ) {
        let rates = rates(flops, stream, dispatch, own);
        let products = Products { tokens, ..PRODUCTS };
        let device = device(rates.clone());
        let found = Shared::soonest(&device, &products);
        let seconds = |share: f64| {
            Shared { unit: 1, share, bytes_per_second: rates.shared_stream_bytes_per_second.unwrap_or(f64::INFINITY) }
                .seconds(&rates, &products)
        };
        let held = own.map_or(1.0, |bytes| bytes as f64 / products.held_bytes);
        let best = (0..=64).map(|k| f64::from(k) / 64.0).filter(|&s| s <= held).map(seconds).fold(f64::INFINITY, f64::min);
        // the balance is rounded down to a whole part
        let mine = found.seconds(&rates, &products);
        prop_assert!(mine <= best + products.seconds / PARTS, "{found:?}: {mine}, {best}");
        prop_assert!(mine <= products.seconds);
        let shares = found.shares(&device);
        prop_assert_eq!(shares.iter().map(|share| share.share_fraction).sum::<f64>(), 1.0);
    }
}

#[test]
fn what_is_slow_to_hand_over_too_large_or_of_another_format_is_left_to_the_cpu() {
    let alone = |rates, products: &Products<'_>| Shared::soonest(&device(rates), products) == Shared::CPU;
    assert!(!alone(rates(1e12, 5e10, 1e-5, None), &PRODUCTS));
    assert!(alone(rates(1e12, 5e10, 1e-2, None), &PRODUCTS), "handing over takes longer than all of it");
    assert!(alone(rates(1e12, 5e10, 1e-5, Some(1 << 16)), &PRODUCTS), "it holds nothing of a layer");
    assert!(alone(rates(1e12, 5e10, 1e-5, None), &Products { format: "Q6_K", ..PRODUCTS }));
    let rates = rates(1e12, 5e10, 1e-5, None);
    assert_eq!([1.0, 64.0, 999.0].map(|tokens| flops_per_second(&rates, tokens)), [1e12, 8e12, 8e12]);
    let between = flops_per_second(&rates, 8.0);
    assert!((between / (8_f64.sqrt() * 1e12) - 1.0).abs() < 1e-9, "half of the way in logarithms: {between}");
}
