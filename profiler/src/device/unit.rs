//! The GPU beside the cores: its products, transfers and round trips, by the loops of the crate `gpu`.
//!
//! A GPU that fails here is left out of `device.toml`, with the reason in the notes: a plan for the cores serves everybody.

use std::time::Duration;

use flashplan::internals::machine::footprint;
use gpu::{Adapter, GpuError, Kind, Limits};
use kernels::{Format, Matrix};
use plans::check::{FORMATS, GPU};
use plans::device::{OwnMemory, Unit, UnitRates};
use plans::file::significant;

use crate::{Context, ProfileError};

/// Formats whose products are timed; the slowest stands for all.
const TIMED: [Format; 4] = [Format::F16, Format::Q8_0, Format::Q6K, Format::Q4K];
/// Vectors that pass a matrix together.
const TOKENS: [usize; 4] = [1, 8, 64, 512];
/// Rows and columns of the matrix, and of one for a GPU that is the processor.
const SIZES: [usize; 2] = [4096, 1024];
/// Samples of each time; the median is kept.
const SAMPLES: [usize; 2] = [5, 3];
/// Bytes of each buffer for transfers.
const TRANSFER_BYTES: u64 = 8 << 20;
/// Time that the GPU has for a sample.
const PATIENCE: Duration = Duration::from_secs(30);

/// The GPU's rates, if there is one, and a note for `device.toml`.
///
/// # Errors
/// [`ProfileError`] if the profile is stopped.
pub fn measure(context: &Context) -> Result<(Option<Unit>, Option<String>), ProfileError> {
    let before = process_bytes();
    let Some(adapter) = gpu::adapters().into_iter().next() else { return Ok((None, None)) };
    context.stopped()?;
    Ok(match rates(&adapter, context.quick, before) {
        Ok(rates) => (Some(Unit { name: GPU.to_owned(), rates: Some(rates) }), Some(note(&adapter))),
        Err(error) => (None, Some(format!("the GPU {} is left out: {error}", adapter.name))),
    })
}

fn note(adapter: &Adapter) -> String {
    let formats = TIMED.map(Format::name).join(", ");
    format!(
        "units.rates of the {} GPU are those of the slowest of {formats}; own_memory.bytes is its largest buffer, since the driver \
         tells no size of its memory",
        adapter.kind
    )
}

/// The rates of a GPU; `before`: bytes of the process before it knew of its driver.
fn rates(adapter: &Adapter, quick: bool, before: u64) -> Result<UnitRates, GpuError> {
    let software = adapter.kind == Kind::Software;
    let (size, samples) = (SIZES[usize::from(software)], SAMPLES[usize::from(quick || software)]);
    let limits = Limits { memory_bytes: 256 << 20, transfer_bytes: TRANSFER_BYTES, patience: PATIENCE };
    let mut unit = gpu::Unit::open(adapter, limits)?;
    let mut seconds = vec![0.0_f64; TOKENS.len()];
    let mut stream = f64::INFINITY;
    for format in TIMED {
        // 1.06 in half precision, and small numbers in every other format
        let bytes = vec![0x3c; size * format.row_bytes(size)];
        let w = unit.load(&Matrix { format, rows: size, columns: size, bytes: &bytes })?;
        for (tokens, seconds) in TOKENS.into_iter().zip(&mut seconds) {
            unit.time_products(&w, tokens, 1)?; // compiles the kernel
            let time = median(samples, || unit.time_products(&w, tokens, 1))?;
            *seconds = seconds.max(time);
            if tokens == 1 {
                stream = stream.min(bytes.len() as f64 / time);
            }
        }
    }
    let dispatch = median(samples, || unit.time_round_trip())?;
    let mut bytes = Vec::new();
    let up = median(samples, || unit.time_up(&mut bytes))?;
    let down = median(samples, || unit.time_down(&mut bytes))?;
    let copy = unit.transfer_bytes() as f64 / up.max(down);
    drop(bytes);
    let taken = process_bytes().saturating_sub(before);
    let shares = matches!(adapter.kind, Kind::Software | Kind::Integrated);
    let driver = if shares { taken.saturating_sub(unit.held_bytes()) } else { taken };
    let flops = TOKENS.iter().zip(&seconds).map(|(&tokens, time)| 2.0 * (size * size * tokens) as f64 / time);
    let rising = flops.scan(0.0, |most: &mut f64, rate| {
        *most = most.max(rate);
        Some(significant(*most))
    });
    Ok(UnitRates {
        adapter: Some(adapter.identity()),
        formats: FORMATS.map(str::to_owned).to_vec(),
        tokens: TOKENS.map(|tokens| tokens as u32).to_vec(),
        flops_per_second: rising.collect(),
        stream_bytes_per_second: significant(stream),
        shared_stream_bytes_per_second: shares.then(|| significant(stream)),
        dispatch_seconds: significant(dispatch),
        // what drivers compile and keep differs from run to run
        process_bytes: driver + driver / 4,
        own_memory: (!shares).then(|| OwnMemory {
            bytes: adapter.buffer_bytes.min(1 << 50),
            copy_bytes_per_second: significant(copy),
        }),
    })
}

/// Bytes that this process holds now.
fn process_bytes() -> u64 {
    footprint(None).map_or(0, |now| now.resident_bytes + now.page_table_bytes)
}

/// The median of some samples, in seconds.
fn median(count: usize, mut sample: impl FnMut() -> Result<Duration, GpuError>) -> Result<f64, GpuError> {
    let mut samples = (0..count).map(|_| sample()).collect::<Result<Vec<_>, _>>()?;
    samples.sort_unstable();
    // clocks may not tell the shortest times apart
    Ok(samples[count / 2].as_secs_f64().max(1e-9))
}
