//! Current rates: the plan's rates, measured again on this machine before a run.
//!
//! The host of a virtual machine, other users of the disk or heat change rates after profiling. The probe
//! uses the plan's threads and reads in flight. It measures products with cached weights, matrices and rows
//! in the engine's own memory, and reads of the container. It reports the median of five rounds, so a
//! disturbance of a tenth of a second affects only one.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use kernels::{Format, Kernels};
use plans::PAGE_BYTES;
use plans::layout::Span;
use plans::plan::Plan;
use plans::size::show;
use plans::terms::Rates;

use crate::fetch::{FetchError, Fetcher};
use crate::machine::CpuTimes;
use crate::pool::Pool;
use crate::stop::StopHandle;
use crate::walks::{COLUMNS, DenseWalk, Random, SparseWalk, dots_in_cache};

/// Time of the whole probe.
const TIME: Duration = Duration::from_millis(500);
/// Windows for each rate.
const ROUNDS: u32 = 5;
/// Assumed largest cache if the system does not say.
const CACHE_BYTES: u64 = 32 << 20;
/// The most memory that is measured, besides twice the largest cache.
const MEMORY_BYTES_MAX: u64 = 256 << 20;

/// Current rates; absent if they could not be measured or the plan does not need them.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Probe {
    /// Products with cached weights, by all decode threads.
    pub flops_per_second: Option<f64>,
    /// Weights in long rows, streamed from memory.
    pub dense_bytes_per_second: Option<f64>,
    /// Weights of scattered neurons from memory.
    pub sparse_bytes_per_second: Option<f64>,
    /// Scattered reads of the plan's mean size.
    pub random_reads_per_second: Option<f64>,
    /// Sequential reads of whole buffers.
    pub ordered_reads_per_second: Option<f64>,
    /// CPU fraction taken by others meanwhile, the host of a virtual machine included.
    pub others_cpu_fraction: Option<f64>,
    /// Duration of the probe.
    pub time: Duration,
    /// Why rates of the plan are absent, in sentences.
    pub unmeasured: Vec<String>,
}

impl Probe {
    /// A probe without results, with the reason.
    pub(crate) fn nothing(why: String) -> Self {
        Self { unmeasured: vec![why], ..Self::default() }
    }
}

/// The measuring points of a plan's rates.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Points {
    rates: Rates,
    depth: usize,
    buffer_bytes: u64,
    file: Span,
}

impl Points {
    /// The points of a plan whose weights are in `file`; `None` if the plan has no rates.
    pub(crate) fn of(plan: &Plan, file: Span) -> Option<Self> {
        let rates = plan.rates.clone()?;
        let (depth, buffer_bytes) = (plan.read.depth as usize, plan.read.buffer_bytes);
        Some(Self { rates, depth, buffer_bytes, file })
    }
}

/// Measures the rates at these points, over `memory` and through `fetcher`.
pub(crate) fn measure(
    points: &Points,
    kernels: &dyn Kernels,
    pool: &Pool,
    memory: &[u8],
    fetcher: &mut Fetcher,
    stop: &StopHandle,
) -> Probe {
    let (start, others) = (Instant::now(), CpuTimes::now());
    let mut probe = Probe::default();
    let Points { rates, depth, buffer_bytes, file } = points;
    let named =
        |format: &Format| rates.weight_format.as_ref().is_some_and(|name| *name == format.to_string());
    let format = Format::ALL.into_iter().find(named);
    let cached = match platform::machine::largest_cache_bytes() {
        0 => CACHE_BYTES,
        bytes => bytes,
    };
    let beyond_cache = memory.len() as u64 >= 2 * cached;
    let memory = &memory[..memory.len().min(MEMORY_BYTES_MAX.max(2 * cached) as usize)];
    if format.is_none() {
        probe.unmeasured.push("the plan assumes no rate of computing that was measured".to_owned());
    } else if !beyond_cache {
        probe.unmeasured.push(format!(
            "the plan's largest region of {} tells nothing of memory beside a cache of {}",
            show(memory.len() as u64),
            show(cached)
        ));
    }
    let over_memory = format.filter(|_| beyond_cache);
    let over_rows = over_memory.filter(|_| rates.sparse_bytes_per_second.is_some());
    if over_memory.is_some() && over_rows.is_none() {
        probe.unmeasured.push(
            "the device profile is from before rows of gate and up were timed separately from rows of down; profile the device again"
                .to_owned(),
        );
    }
    let mut random = Random::new(seed());
    let at_random = rates.random_read_bytes.filter(|bytes| *bytes <= file.bytes);
    let in_order = rates.ordered_reads_per_second.map(|_| *buffer_bytes).filter(|bytes| *bytes <= file.bytes);
    let mut dense = over_memory.map(|format| DenseWalk::new(kernels, format, COLUMNS, memory));
    let mut sparse = over_rows
        .map(|format| (SparseWalk::new(kernels, format, COLUMNS, memory), format.row_bytes(COLUMNS) as f64));
    let wanted = usize::from(format.is_some())
        + usize::from(dense.is_some())
        + usize::from(sparse.is_some())
        + usize::from(at_random.is_some())
        + usize::from(in_order.is_some());
    if wanted == 0 {
        return probe;
    }
    let window = TIME / (ROUNDS * wanted as u32);
    let mut samples: [Vec<f64>; 5] = Default::default();
    let mut failed: Option<FetchError> = None;
    let place = |bytes: u64, random: &mut Random| {
        file.offset + random.below((file.bytes - bytes) / PAGE_BYTES + 1) * PAGE_BYTES
    };
    for _ in 0..ROUNDS {
        if stop.is_stopped() {
            break;
        }
        if let Some(format) = format {
            samples[0].push(dots_in_cache(kernels, format, |step| by_all(pool, window, step)));
        }
        if let Some(walk) = &mut dense {
            samples[1].push(again(window, || walk.step(pool)));
        }
        if let Some((walk, row_bytes)) = &mut sparse {
            samples[2].push(again(window, || {
                walk.go_on();
                walk.gate_up(pool) * *row_bytes
            }));
        }
        if let Some(bytes) = at_random {
            let read = fetcher.sustained(bytes as usize, *depth, window, || place(bytes, &mut random));
            match read {
                Ok(rate) => samples[3].extend(rate),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(bytes) = in_order {
            let mut next = place(bytes, &mut random);
            let read = fetcher.sustained(bytes as usize, *depth, window, || {
                let here = next;
                next = if here + 2 * bytes <= file.end() { here + bytes } else { file.offset };
                here
            });
            match read {
                Ok(rate) => samples[4].extend(rate),
                Err(error) => failed = Some(error),
            }
        }
    }
    probe.unmeasured.extend(failed.map(|error| error.to_string()));
    let [flops, dense, sparse, random_reads, ordered_reads] = samples.map(median);
    probe.flops_per_second = flops;
    probe.dense_bytes_per_second = dense;
    probe.sparse_bytes_per_second = sparse;
    probe.random_reads_per_second = random_reads;
    probe.ordered_reads_per_second = ordered_reads;
    probe.others_cpu_fraction = others.and_then(CpuTimes::others);
    probe.time = start.elapsed();
    probe
}

/// A seed that differs in every run: pages read a minute ago may still be in a cache of the disk or host.
fn seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}

/// The median; `None` without values or if it is not a positive number.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().filter(|rate| rate.is_finite() && *rate > 0.0)
}

/// Repeats `step` until the window is over; returns its work per second. The first step is not counted.
fn again(window: Duration, mut step: impl FnMut() -> f64) -> f64 {
    step();
    let (start, mut work) = (Instant::now(), 0.0);
    loop {
        work += std::hint::black_box(step());
        let elapsed = start.elapsed();
        if elapsed >= window {
            return work / elapsed.as_secs_f64();
        }
    }
}

/// [`again`] on every thread by itself; returns the sum of their rates.
fn by_all(pool: &Pool, window: Duration, step: &(dyn Fn() -> f64 + Sync)) -> f64 {
    let sum = Mutex::new(0.0);
    pool.run(|_| {
        let rate = again(window, step);
        *sum.lock().unwrap_or_else(PoisonError::into_inner) += rate;
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}
