//! Tests of `read_curves.rs`.

use super::*;

#[test]
fn the_faster_of_two_is_neither_below_nor_above_both() {
    let curves = |depths: Vec<(f64, Vec<(f64, f64)>)>| ReadCurves::of(depths.into_iter());
    let shallow = curves(vec![(1.0, vec![(65536.0, 8_000.0), (1048576.0, 1_000.0)])]);
    let deep = curves(vec![
        (1.0, vec![(4096.0, 10_000.0), (65536.0, 7_000.0)]),
        (32.0, vec![(4096.0, 90_000.0), (65536.0, 25_000.0)]),
    ]);
    let both = shallow.or_faster(&deep);
    for (block, in_flight) in [(4096.0, 1.0), (65536.0, 1.0), (65536.0, 32.0), (1048576.0, 1.0), (2e6, 64.0)]
    {
        let (a, b) = (shallow.reads_per_second(block, in_flight), deep.reads_per_second(block, in_flight));
        let c = both.reads_per_second(block, in_flight);
        assert!((c - a.max(b)).abs() < 1e-6 * c, "{block} {in_flight}: {c} of {a} and {b}");
    }
}

#[test]
fn a_curve_passes_through_its_points_and_is_monotone_between_them() {
    let points = [(4096.0, 60_000.0), (8192.0, 50_000.0), (65536.0, 20_000.0)];
    let curve = ReadCurves::of([(1.0, points.to_vec())].into_iter());
    let at = |block| curve.reads_per_second(block, 1.0);
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    for (x, y) in points {
        assert!(close(at(x), y), "at {x}");
    }
    assert!(at(16384.0) < 50_000.0 && at(16384.0) > 20_000.0);
    assert!(close(at(512.0), 60_000.0));
    assert!(close(at(131_072.0), 10_000.0), "bandwidth is constant beyond");
}

#[test]
fn what_was_fitted_once_is_what_fitting_again_gives() {
    let measured =
        |rate: f64| vec![(0.0, vec![(9.0, 8.0), (10.0, rate)]), (1.0, vec![(9.0, 7.0), (10.0, 5.0)])];
    let fitted = Fitted::default();
    for rate in [8.5, 6.0, 8.5] {
        let mut curves = measured(rate);
        monotone(&mut curves);
        assert_eq!(fitted.of(measured(rate)), curves);
        assert_ne!(fitted.of(measured(rate)), measured(rate), "the fit has nothing to do");
    }
}

#[test]
fn what_every_committed_device_measured_is_made_monotone_and_moves_little() {
    let machines = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../plans");
    let folders = |path: &std::path::Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let models = folders(&machines).into_iter().flat_map(|machine| folders(&machine));
    let devices = models.map(|model| model.join("device.toml"));
    let (mut found, mut broken) = (0, 0);
    for path in devices.filter(|path| path.exists()) {
        let device: Device = plans::file::read(&path).unwrap().value;
        found += 1;
        for (backend, pattern) in
            Backend::ALL.into_iter().flat_map(|backend| ["random", "sequential"].map(|p| (backend, p)))
        {
            let (device, fitted) = (&device, &Fitted::default());
            let new =
                |depth| ReadCurves::new(Flash { device, fitted }, backend, true, pattern, depth, u64::MAX);
            let Some(curves) = new(u32::MAX) else { continue };
            let points: Vec<(f64, f64, f64)> = curves
                .0
                .iter()
                .flat_map(|(depth, curve)| curve.iter().map(move |&(block, rate)| (*depth, block, rate)))
                .collect();
            for &(depth, block, rate) in &points {
                for &(deeper, larger, other) in &points {
                    // where only one of both is greater
                    let more_in_flight = block == larger && depth < deeper;
                    let more_bytes = depth == deeper && block < larger;
                    assert!(!more_in_flight || rate <= other + 1e-6, "{}: {block} {depth}", path.display());
                    assert!(!more_bytes || other <= rate + 1e-6, "{}: {block} {depth}", path.display());
                    let [here, there] = [rate + block, other + larger];
                    assert!(!more_bytes || here <= there + 1e-6, "{}: {block} {depth}", path.display());
                }
            }
            let measured = device
                .storage
                .reads
                .iter()
                .filter(|read| read.backend == backend && read.direct && read.pattern == pattern);
            for read in measured {
                let fitted = curves.reads_per_second(read.block_bytes as f64, f64::from(read.depth));
                broken += usize::from((fitted / read.reads_per_second - 1.0).abs() > 1e-6);
            }
            // a curve of few in flight is the same whether more were measured or not
            let shallow = new(1).unwrap();
            let [all, few] = [&curves, &shallow].map(|curves| curves.reads_per_second(65536.0, 1.0));
            assert_eq!(all, few);
        }
    }
    assert!(found >= 5, "{found} devices");
    assert!(broken > 0, "nothing was noisy: the fit has nothing to do");
}
