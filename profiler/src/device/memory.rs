//! Memory bandwidth by thread count: in order, and in rows at random places.

use std::time::{Duration, Instant};

use flashplan::internals::arena::Arena;
use flashplan::internals::machine::Machine;
use flashplan::internals::pool::{Pool, part};
use kernels::Format;
use kernels::{self, Kernels, Row};
use plans::file::significant;
use platform::machine::largest_cache_bytes;

use super::kernels::{finish, write_row};
use super::measure::{Budget, Random, fill_between, median, rates, spread_fraction, thread_counts};
use crate::{Context, ProfileError};

/// Bytes of the rows: a neuron's bundle of a 7B model in `Q4_0`.
pub(super) const GATHER_ROW_BYTES: u64 = 6912;
/// Minimum bytes of the buffer: a smaller one measures caches.
pub(super) const BUFFER_BYTES_MIN: u64 = 256 << 20;
/// Maximum bytes of the buffer: a larger one changes nothing.
const BUFFER_BYTES_MAX: u64 = 2 << 30;
/// Bytes of a step, after which all threads join.
const STEP_BYTES: usize = 32 << 20;

/// Bytes that are allocated to measure the system's rate.
const FRESH_BYTES: u64 = 256 << 20;

/// Access patterns, and the bytes of a row.
const PATTERNS: [(&str, u64); 2] = [("stream", 0), ("gather", GATHER_ROW_BYTES)];

/// Bandwidths by thread count, and the rows of `memory.csv`.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) stream: Vec<f64>,
    pub(super) gather: Vec<f64>,
    pub(super) fresh: f64,
    pub(super) spread_fraction: f64,
    pub(super) csv: String,
}

/// Time of all windows.
pub(super) fn budget(quick: bool) -> Duration {
    if quick { Duration::from_millis(500) } else { Duration::from_secs(3) }
}

/// Bytes of the buffer that stands for the weights: twice the largest cache, within limits and an eighth of the available memory.
pub(super) fn buffer_bytes(machine: &Machine, quick: bool) -> u64 {
    let wished = (2 * largest_cache_bytes()).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
    let wished = if quick { wished.min(2 * BUFFER_BYTES_MIN) } else { wished };
    let limit = machine.memory_group.as_ref().and_then(|group| {
        let free = group.limit_bytes?.saturating_sub(group.usage_bytes().unwrap_or(0));
        Some(free)
    });
    let available = machine.available_bytes.min(limit.unwrap_or(u64::MAX));
    // never less than the steps need
    wished.min(available / 8).max(2 * STEP_BYTES as u64) / 4096 * 4096
}

/// Measures both bandwidths over `cores`, fastest first.
pub(super) fn measure(context: &Context, cores: &[u32], buffer: &[u8]) -> Result<Measured, ProfileError> {
    let counts = thread_counts(cores.len());
    let repeats = if context.quick { 3 } else { 7 };
    // in rounds, so that a busy moment disturbs all equally
    let mut budget = Budget::start(budget(context.quick), counts.len() * 2 * repeats, 1);
    let bar = context.bar((counts.len() * repeats) as u64, "memory");
    let kernels = kernels::best();
    let mut csv = csv::Writer::from_writer(Vec::new());
    write_row(
        &mut csv,
        &["pattern", "row_bytes", "buffer_bytes", "threads", "repeat", "bytes_per_second"].map(str::to_owned),
    )?;
    let mut windows = [vec![Vec::new(); counts.len()], vec![Vec::new(); counts.len()]];
    let mut step = 0;
    for repeat in 0..repeats {
        for (at, &threads) in counts.iter().enumerate() {
            let pool = Pool::new(&cores[..threads])?;
            let mut next = |step_of: fn(&dyn Kernels, &Pool, &[u8], usize) -> f64| {
                rates(context, budget.next_point(), || {
                    step += 1;
                    step_of(kernels, &pool, buffer, step)
                })
            };
            let measured = [next(stream_step)?, next(gather_step)?];
            for (((pattern, row_bytes), values), windows) in PATTERNS.iter().zip(&measured).zip(&mut windows)
            {
                for &value in values {
                    write_row(
                        &mut csv,
                        &[
                            (*pattern).to_owned(),
                            row_bytes.to_string(),
                            buffer.len().to_string(),
                            threads.to_string(),
                            repeat.to_string(),
                            significant(value).to_string(),
                        ],
                    )?;
                }
                windows[at].extend(values);
            }
            bar.inc(1);
        }
    }
    let [stream, gather] = windows
        .each_ref()
        .map(|of_counts| -> Vec<f64> { of_counts.iter().map(|windows| median(windows)).collect() });
    let spread = windows.iter().flatten().map(|windows| spread_fraction(windows)).fold(0.0, f64::max);
    drop(bar);
    let mut fresh = Vec::new();
    for repeat in 0..repeats {
        let start = Instant::now();
        let arena = Arena::new(FRESH_BYTES.min(buffer.len() as u64))?;
        let rate = arena.bytes() as f64 / start.elapsed().as_secs_f64();
        write_row(
            &mut csv,
            &[
                "fresh".to_owned(),
                "0".to_owned(),
                arena.bytes().to_string(),
                "1".to_owned(),
                repeat.to_string(),
                significant(rate).to_string(),
            ],
        )?;
        fresh.push(rate);
    }
    Ok(Measured {
        fresh: significant(median(&fresh)),
        spread_fraction: significant(spread),
        stream: fill_between(&counts, &stream),
        gather: fill_between(&counts, &gather),
        csv: finish(csv)?,
    })
}

/// Reads the next piece of the buffer, a part by each thread, and returns its bytes.
fn stream_step(kernels: &dyn Kernels, pool: &Pool, buffer: &[u8], step: usize) -> f64 {
    let piece = STEP_BYTES.min(buffer.len());
    let start = (step * piece) % (buffer.len() - piece + 1) / 64 * 64;
    let bytes = &buffer[start..][..piece];
    let threads = pool.threads();
    pool.run(|worker| {
        let own = part(piece, 4096, worker, threads);
        std::hint::black_box(kernels.read(Row::in_order(Format::F32, bytes, own.start, own.len())));
    });
    piece as f64
}

/// Reads rows at random places of the whole buffer by all threads, and returns the bytes.
///
/// Each row is prefetched during the row before, as kernels do with a list of neurons.
fn gather_step(kernels: &dyn Kernels, pool: &Pool, buffer: &[u8], step: usize) -> f64 {
    let row = GATHER_ROW_BYTES as usize;
    let rows = STEP_BYTES / row;
    let places = ((buffer.len() - row) / 64) as u64;
    let threads = pool.threads();
    pool.run(|worker| {
        let mut random = Random::new((step * 1024 + worker) as u64);
        let mut place = || &buffer[random.below(places) as usize * 64..][..row];
        let mut bytes = place();
        for _ in part(rows, 1, worker, threads) {
            let next = place();
            std::hint::black_box(kernels.read(Row::new(Format::F32, bytes).before(next)));
            bytes = next;
        }
    });
    (rows * row) as f64
}
