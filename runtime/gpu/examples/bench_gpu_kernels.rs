//! Speed of the kernels on this machine's GPUs: a table, and the same as JSON.
//!
//! ```text
//! transfers: 32 MiB up and down, with the copies between host and device; a round trip without work
//! products:  every format, 1, 8 and 512 vectors; repeated in one submission, less the time of one
//! ```
//!
//! A product is checked against the reference shader before it is timed. Rates are medians of five samples.
//!
//! Usage: `bench_gpu_kernels [file of JSON] [rows and columns]`. Defaults: no file, and 4096. A software adapter
//! is measured only if there is no other one, with 512 rows and columns; its speed means nothing.
#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::time::Duration;

use gpu::{Adapter, GpuError, Kind, Limits, Resident, Unit, adapters};
use kernels::{Format, Matrix, first_not_finite};
use serde_json::{Value, json};

/// Samples of each time.
const SAMPLES: usize = 5;
/// Vectors of a product: a token, a few sequences, a prompt.
const VECTORS: [usize; 3] = [1, 8, 512];
/// Time that a sample of products should take.
const SAMPLE: Duration = Duration::from_millis(40);
/// The most products of a sample.
const REPEATS_MAX: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (file, size) = (arguments.next(), arguments.next());
    let found = adapters();
    let best = found.first().ok_or("no GPU: no Vulkan driver answers on this machine")?.kind;
    let usual = if best == Kind::Software { 512 } else { 4096 };
    let size: usize = size.map_or(Ok(usual), |size| size.parse())?;
    if size == 0 || !size.is_multiple_of(256) || size > 16_384 {
        return Err("rows and columns are a multiple of 256, up to 16384".into());
    }
    let measured = found.iter().filter(|adapter| adapter.kind < Kind::Software || best == Kind::Software);
    let results: Vec<Value> = measured.map(|adapter| measure(adapter, size)).collect::<Result<_, _>>()?;
    if let Some(file) = file {
        std::fs::write(&file, serde_json::to_string_pretty(&json!({ "size": size, "adapters": results }))?)?;
    }
    Ok(())
}

/// Measures an adapter, and prints its table.
fn measure(adapter: &Adapter, size: usize) -> Result<Value, Box<dyn Error>> {
    println!("{adapter}");
    let limits =
        Limits { memory_bytes: 2 << 30, transfer_bytes: 32 << 20, patience: Duration::from_secs(60) };
    let mut unit = Unit::open(adapter, limits)?;
    let mut bytes = Vec::new();
    let round_trip = median(|| unit.time_round_trip())?;
    let [up, down] = [median(|| unit.time_up(&mut bytes))?, median(|| unit.time_down(&mut bytes))?];
    let [up, down] = [up, down].map(|seconds| unit.transfer_bytes() as f64 / seconds);
    println!("  round trip {:.1} us, up {:.2} GB/s, down {:.2} GB/s", round_trip * 1e6, up / 1e9, down / 1e9);
    println!("  {:8} {:>9} {:>12} {:>12} {:>12}   GB/s of weights, GFLOP/s", "", "load", "1", "8", "512");
    let mut formats = Vec::new();
    for format in Format::ALL {
        let weights = weights(format, size);
        let matrix = Matrix { format, rows: size, columns: size, bytes: &weights };
        let start = std::time::Instant::now();
        let resident = unit.load(&matrix)?;
        let load = weights.len() as f64 / start.elapsed().as_secs_f64();
        check(&mut unit, &resident)?;
        let (mut cells, mut products) = (String::new(), Vec::new());
        for count in VECTORS {
            let seconds = seconds(&mut unit, &resident, count)?;
            let flops = 2.0 * (size * size * count) as f64 / seconds;
            let rate = weights.len() as f64 / seconds;
            cells += &format!(" {:>5.1} {:>6.0}", rate / 1e9, flops / 1e9);
            products.push(json!({ "vectors": count, "seconds": seconds, "flops_per_second": flops }));
        }
        println!("  {:8} {:>9.2}{cells}", format.name(), load / 1e9);
        let load = json!(load);
        formats.push(json!({ "format": format.name(), "load_bytes_per_second": load, "products": products }));
    }
    Ok(json!({
        "name": adapter.name, "kind": adapter.kind.name(), "driver": adapter.driver,
        "subgroup_lanes": adapter.subgroup_lanes, "binding_bytes": adapter.binding_bytes,
        "round_trip_seconds": round_trip, "up_bytes_per_second": up, "down_bytes_per_second": down,
        "memory_peak_bytes": unit.peak_bytes(), "formats": formats,
    }))
}

/// Seconds of a product: the difference of many and one in a submission, over their number.
fn seconds(unit: &mut Unit, w: &Resident, count: usize) -> Result<f64, GpuError> {
    let first = unit.time_products(w, count, 1)?.min(unit.time_products(w, count, 1)?);
    let repeats = (SAMPLE.as_secs_f64() / first.as_secs_f64()).ceil().clamp(2.0, REPEATS_MAX as f64) as usize;
    let [many, one] = [repeats, 1].map(|repeats| median(|| unit.time_products(w, count, repeats)));
    let (many, one) = (many?, one?);
    // a clock too coarse for the difference leaves the mean
    Ok(if many > one { (many - one) / (repeats - 1) as f64 } else { many / repeats as f64 })
}

/// Compares the fast kernels with the reference shader.
fn check(unit: &mut Unit, w: &Resident) -> Result<(), Box<dyn Error>> {
    const COUNT: usize = 9;
    let x: Vec<f32> = (0..COUNT * w.columns()).map(|i| (i * 7919 % 1024) as f32 / 512.0 - 1.0).collect();
    let mut found = [const { Vec::new() }; 3].map(|mut out: Vec<f32>| {
        out.resize(COUNT * w.rows(), 0.0);
        out
    });
    unit.reference(w, &x, &mut found[0])?;
    unit.dots(w, &x, &mut found[1])?;
    unit.products(w, &x, &mut found[2])?;
    let [expected, dots, products] = &found;
    let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    // far above the roundings of a sum, far below a wrong value; a NaN is neither
    let agrees = |a: &f32, b: &f32| (a - b).abs() <= 1e-3 * largest;
    for (what, found) in [("dots", dots), ("products", products)] {
        let wrong = expected.iter().zip(found).find(|(a, b)| !agrees(a, b));
        if let Some((expected, found)) = wrong {
            return Err(format!("{what} differ from the reference: {found}, not {expected}").into());
        }
    }
    Ok(())
}

/// The median of some samples, in seconds.
fn median(mut sample: impl FnMut() -> Result<Duration, GpuError>) -> Result<f64, GpuError> {
    let mut samples: Vec<Duration> = (0..SAMPLES).map(|_| sample()).collect::<Result<_, _>>()?;
    samples.sort_unstable();
    Ok(samples[SAMPLES / 2].as_secs_f64())
}

/// Random blocks of finite values below 64.
fn weights(format: Format, size: usize) -> Vec<u8> {
    let (mut state, mut values) = (1_u64, vec![0.0; format.block_values()]);
    let mut block = || loop {
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let block: Vec<u8> = std::iter::repeat_with(next).take(format.block_bytes()).collect();
        if first_not_finite(format, &block).is_some() {
            continue;
        }
        kernels::dequantise(format, &block, &mut values);
        if values.iter().all(|value| value.abs() < 64.0) {
            return block;
        }
    };
    // a pool of blocks, repeated: the speed does not depend on the values
    let pool: Vec<u8> = (0..256).flat_map(|_| block()).collect();
    let bytes = size * format.row_bytes(size);
    pool.iter().copied().cycle().take(bytes).collect()
}
