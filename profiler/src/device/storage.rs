//! Flash: reads per second by block, depth, pattern and span.
//!
//! A nameless scratch file is filled with noise and read through each back end that this machine allows. It goes with the process,
//! whatever ends it. Direct reads count as direct only if they are *seen* to bypass the page cache (see `scratch`). Otherwise all reads
//! are buffered, with the cache emptied before every point and no page read twice.

mod readers;
mod scratch;
mod together;
mod wake;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flashplan::internals::flash::open_backend;
use flashplan::internals::machine::Machine;
use flashplan::internals::pool::Pool;
use kernels;
use kernels::Format;
use plans::Backend;
use plans::device::{INTERFERENCE_BLOCK_BYTES, INTERFERENCE_DEPTH, ReadCost, ReadSpeed, Storage};
use plans::file::significant;

use self::readers::{Pattern, Point, Readers};
use self::scratch::Scratch;
use super::kernels::{COLUMNS, DenseWalk, finish, write_row};
use super::load;
use super::measure::{Budget, Timing, median, rates, spread_fraction};
use crate::{Context, ProfileError};

/// Space left free beside the scratch file.
const SPACE_MARGIN_BYTES: u64 = 64 << 20;
/// Space for the outputs in `--out`.
const OUTPUT_BYTES: u64 = 4 << 20;
/// A typical read of a run, where one kind stands for all.
const TYPICAL: Point = Point {
    pattern: Pattern::Random,
    block_bytes: INTERFERENCE_BLOCK_BYTES,
    depth: INTERFERENCE_DEPTH,
    span_bytes: 0,
};
/// Speed over the first core's above which another core is called the best.
const BETTER: f64 = 1.05;
/// Issuing cores that are tried in each class.
const ISSUERS_PER_CLASS: usize = 2;
/// Windows of each core, alternating, so that other work disturbs all equally.
const ISSUER_ROUNDS: usize = 5;
/// Windows that measure a core's time.
const COST_WINDOWS: u32 = 5;

/// The storage of `device.toml`, the rows of `storage.csv`, and warnings.
#[derive(Debug)]
pub(super) struct Measured {
    /// The storage, without `file_system`.
    pub(super) summary: Storage,
    pub(super) csv: String,
    pub(super) notes: Vec<String>,
}

/// Time of all windows.
pub(super) fn budget(quick: bool) -> Duration {
    if quick { Duration::from_millis(8_500) } else { Duration::from_secs(34) }
}

/// Bytes of the scratch file: a power of two, so that every block is read once before any is read again.
pub(super) fn scratch_bytes(quick: bool) -> u64 {
    if quick { 256 << 20 } else { 1 << 30 }
}

/// Checks the free space before the first byte is written.
pub(super) fn check_space(context: &Context) -> Result<(), ProfileError> {
    let scratch = scratch_bytes(context.quick) + SPACE_MARGIN_BYTES;
    for (path, needed) in [(&context.storage, scratch), (&context.out, OUTPUT_BYTES)] {
        let free = free_bytes(path)?;
        if free < needed {
            return Err(ProfileError::Space {
                path: path.clone(),
                free: plans::size::show(free),
                needed: plans::size::show(needed),
                remedy: if context.quick { "or " } else { "use --quick, or " },
            });
        }
    }
    Ok(())
}

/// Writes the scratch file, early, to find a disk that refuses it before anything takes time.
pub(super) fn prepare(context: &Context) -> Result<Scratch, ProfileError> {
    Scratch::write(context, &context.storage, scratch_bytes(context.quick))
}

/// Free bytes of a folder for an ordinary user.
pub fn free_bytes(path: &Path) -> Result<u64, ProfileError> {
    platform::file::free_bytes(path).map_err(|source| ProfileError::Io {
        action: "ask the free space of",
        path: path.to_owned(),
        source,
    })
}

/// The read surface, the CPU time of reads, the best core and the interference.
pub(super) fn measure(
    context: &Context,
    machine: &Machine,
    cores: &[u32],
    buffer: &[u8],
    scratch: &Scratch,
) -> Result<Measured, ProfileError> {
    let size = scratch_bytes(context.quick);
    let (direct, mut notes) = scratch.prove_direct()?;
    let direct_file = direct.as_ref();
    let buffered = scratch.buffered()?;
    let main_file = direct_file.unwrap_or(&buffered);
    let is_direct = direct_file.is_some();

    let readers = |backend, direct| Readers {
        backend,
        file: if direct { main_file } else { &buffered },
        direct,
        cores,
        path: &context.storage,
        from: 0.0,
    };
    let mut backends = vec![Backend::Pread];
    match refused(readers(Backend::IoUring, is_direct)) {
        Some(why) => notes.push(format!("io_uring is refused here: {why}; only pread was measured")),
        None => backends.push(Backend::IoUring),
    }

    let mut plan: Vec<(Backend, bool, Point)> = Vec::new();
    for point in grid(context.quick, size) {
        // alternating, so that other work disturbs both equally
        plan.extend(backends.iter().map(|&backend| (backend, is_direct, point)));
    }
    if is_direct {
        plan.extend(
            buffered_grid(context.quick, size).into_iter().map(|point| (Backend::Pread, false, point)),
        );
    }
    // the best core once, the CPU time and the interference of each back end
    let extra = budget(context.quick) / 10;
    let extras = 1 + 2 * backends.len() as u32;
    // in rounds, so that a slow minute of the disk disturbs all points equally
    let rounds = if context.quick { 3 } else { 5 };
    let mut budget = Budget::start(budget(context.quick) - extras * extra, plan.len() * rounds, 1);
    let bar = context.bar((plan.len() * rounds) as u64 + u64::from(extras), "storage");
    let mut table = Table::new()?;
    let mut rates_of = vec![Vec::new(); plan.len()];
    let mut cpu_seconds = vec![Vec::new(); backends.len()];
    for round in 0..rounds {
        for (&(backend, direct, point), rates) in plan.iter().zip(&mut rates_of) {
            context.stopped()?;
            if !direct {
                scratch.drop_cache(point.pattern)?;
            }
            let from = round as f64 / rounds as f64;
            let (timing, readers) = (budget.next_point(), Readers { from, ..readers(backend, direct) });
            let outcome = load::unstolen(context, || readers.run(point, timing))?;
            table.add(backend, direct, point, None, &outcome)?;
            rates.extend(outcome.rates);
            if direct == is_direct && point.pattern == Pattern::Random && point.block_bytes <= 16 << 10 {
                let of_backend = backends.iter().zip(&mut cpu_seconds).filter(|(b, _)| **b == backend);
                of_backend.for_each(|(_, all)| all.extend(outcome.cpu_seconds_per_read));
            }
            bar.inc(1);
        }
    }
    let summary = plan.iter().zip(&rates_of).map(|(&(backend, direct, point), rates)| {
        (direct == is_direct && in_summary(point, size), read_speed(backend, direct, point, rates))
    });
    let reads =
        summary.filter(|(kept, read)| *kept && read.reads_per_second > 0.0).map(|(_, read)| read).collect();

    let typical = Point { span_bytes: size, ..TYPICAL };
    let by_threads = readers(Backend::Pread, is_direct);
    let best_core = best_core(context, machine, scratch, by_threads, typical, extra, &mut table)?;
    bar.inc(1);
    let (mut costs, mut check_bytes_per_second) = (Vec::new(), None);
    for (&backend, of_processes) in backends.iter().zip(&cpu_seconds) {
        let readers = readers(backend, is_direct);
        let of_core = cpu_cost(context, scratch, readers, best_core, extra, size)?;
        bar.inc(1);
        let interference = interference(context, buffer, scratch, readers, typical, extra)?;
        bar.inc(1);
        if !readers.direct {
            scratch.drop_cache(Pattern::Random)?;
        }
        let batches = together::measure(context, readers, size)?;
        // the last back end is the fastest
        check_bytes_per_second = Some(batches.check_bytes_per_second);
        costs.push(ReadCost {
            cpu_seconds_per_read: significant(of_core.unwrap_or_else(|| median(of_processes))),
            interference_fraction: significant(interference),
            completed_together_fraction: Some(batches.together_fraction),
        });
    }
    let wake_seconds = wake::measure(context, cores)?;
    drop(bar);
    notes.push(format!(
        "reads are spread over a scratch file of {}; a cache of the disk or of a host below a virtual machine may hold \
         it",
        plans::size::show(size)
    ));
    notes.push(
        "interference_fraction: share of the speed of dense F16 products on all cores that is lost while a thread \
         more keeps 8 reads of 16 KiB in flight as fast as it can"
            .to_owned(),
    );
    Ok(Measured {
        summary: Storage {
            file_system: String::new(),
            direct: is_direct,
            cpu_seconds_per_read: costs[0].cpu_seconds_per_read,
            best_core,
            interference_fraction: costs[0].interference_fraction,
            wake_seconds: Some(wake_seconds),
            completed_together_fraction: costs[0].completed_together_fraction,
            check_bytes_per_second,
            io_uring: costs.get(1).copied(),
            reads,
        },
        csv: finish(table.csv)?,
        notes,
    })
}

/// The system's error for a back end that it refuses.
fn refused(readers: Readers<'_>) -> Option<std::io::Error> {
    let file = readers.file.try_clone();
    file.and_then(|file| open_backend(readers.backend, file, readers.direct, 1, 1, readers.cores)).err()
}

fn kib(sizes: &[u64]) -> Vec<u64> {
    sizes.iter().map(|size| size << 10).collect()
}

/// The points that are measured with the reads of a run.
fn grid(quick: bool, size: u64) -> Vec<Point> {
    let mut points = Vec::new();
    let mut add = |pattern, blocks: &[u64], depths: &[u32], span_bytes| {
        for block_bytes in kib(blocks) {
            points.extend(depths.iter().map(|&depth| Point { pattern, block_bytes, depth, span_bytes }));
        }
    };
    if quick {
        add(Pattern::Random, &[4, 8, 16, 64, 256, 1024], &[1, 8, 32], size);
    } else {
        add(Pattern::Random, &[4, 8, 16, 32, 64, 128, 256, 512, 1024], &[1, 2, 4, 8, 16, 32], size);
        add(Pattern::Random, &[4, 16, 64], &[1, 8, 32], size / 8);
        add(Pattern::Random, &[4, 8, 16, 64], &[64], size);
    }
    // a prompt's reads, of whole buffers, and a start's, one at a time
    add(Pattern::Sequential, &[8, 16, 64, 256, 1024], &[8, 32], size);
    add(Pattern::Sequential, &[256, 1024], &[1], size);
    points
}

/// The points that are also measured through the page cache, where direct reads work.
fn buffered_grid(quick: bool, size: u64) -> Vec<Point> {
    let depths: &[u32] = if quick { &[8] } else { &[1, 8, 32] };
    let blocks: &[u64] = if quick { &[4, 64] } else { &[4, 16, 64, 1024] };
    let mut points = Vec::new();
    for block_bytes in kib(blocks) {
        let pattern = Pattern::Random;
        points.extend(depths.iter().map(|&depth| Point { pattern, block_bytes, depth, span_bytes: size }));
    }
    points.push(Point { pattern: Pattern::Sequential, block_bytes: 1 << 20, depth: 1, span_bytes: size });
    points
}

/// Whether `device.toml` has a point, too: enough for a plan, few enough to read.
fn in_summary(point: Point, size: u64) -> bool {
    point.span_bytes == size
        && [4, 8, 16, 64, 256, 1024].contains(&(point.block_bytes >> 10))
        && [1, 4, 8, 16, 32, 64].contains(&point.depth)
}

fn read_speed(backend: Backend, direct: bool, point: Point, rates: &[f64]) -> ReadSpeed {
    ReadSpeed {
        backend,
        direct,
        pattern: point.pattern.name().to_owned(),
        block_bytes: point.block_bytes,
        depth: point.depth,
        span_bytes: point.span_bytes,
        reads_per_second: significant(median(rates)),
        spread_fraction: Some(significant(spread_fraction(rates))),
    }
}

/// The core that issues the fastest reads: the first of the fastest class, unless another is clearly faster.
fn best_core(
    context: &Context,
    machine: &Machine,
    scratch: &Scratch,
    readers: Readers<'_>,
    typical: Point,
    budget: Duration,
    table: &mut Table,
) -> Result<u32, ProfileError> {
    let candidates: Vec<u32> = machine
        .allowed_classes()
        .iter()
        .flat_map(|class| class.cores.iter().take(ISSUERS_PER_CLASS).map(|core| core.id))
        .collect();
    let timing = Timing { repeats: 1, ..Timing::share(budget, candidates.len(), ISSUER_ROUNDS) };
    let mut rates = vec![Vec::new(); candidates.len()];
    for _round in 0..ISSUER_ROUNDS {
        for (core, rates) in candidates.iter().zip(&mut rates) {
            context.stopped()?;
            if !readers.direct {
                scratch.drop_cache(typical.pattern)?;
            }
            let outcome = Readers { cores: &[*core], ..readers }.run(typical, timing)?;
            table.add(readers.backend, readers.direct, typical, Some(*core), &outcome)?;
            rates.extend(outcome.rates);
        }
    }
    let mut best = (0, 0.0);
    for (core, rates) in candidates.into_iter().zip(&rates) {
        let rate = median(rates);
        if rate > best.1 * BETTER {
            best = (core, rate);
        }
    }
    Ok(best.0)
}

/// The time of the issuing core for a read; `None` where the kernel does not count single cores.
///
/// It is the core's time that is not idle, interrupts and kernel work included: a thread's own CPU time is only a third of it. The
/// smallest of some windows counts, because the core's time includes other programs'.
fn cpu_cost(
    context: &Context,
    scratch: &Scratch,
    readers: Readers<'_>,
    core: u32,
    budget: Duration,
    size: u64,
) -> Result<Option<f64>, ProfileError> {
    let point = Point { pattern: Pattern::Random, block_bytes: 8 << 10, depth: 8, span_bytes: size };
    let mut least: Option<f64> = None;
    for _ in 0..COST_WINDOWS {
        context.stopped()?;
        if !readers.direct {
            scratch.drop_cache(point.pattern)?;
        }
        let timing = Timing { window: budget / COST_WINDOWS, repeats: 1 };
        let before = platform::machine::core_times(core);
        let outcome = Readers { cores: &[core], ..readers }.run(point, timing)?;
        let busy =
            before.zip(platform::machine::core_times(core)).map(|(before, after)| after.share_since(&before));
        let cost = busy.map(|busy| busy / median(&outcome.rates)).filter(|cost| cost.is_finite());
        least = [least, cost].into_iter().flatten().reduce(f64::min);
    }
    Ok(least)
}

/// The share of compute speed lost while reads are in flight, from alternating windows with and without reads.
fn interference(
    context: &Context,
    buffer: &[u8],
    scratch: &Scratch,
    readers: Readers<'_>,
    typical: Point,
    budget: Duration,
) -> Result<f64, ProfileError> {
    let pairs = if context.quick { 3 } else { 9 };
    let timing = Timing { repeats: 1, ..Timing::share(budget, 2, pairs) };
    let pool = Pool::new(readers.cores)?;
    let mut walk = DenseWalk::new(kernels::best(), Format::F16, COLUMNS, buffer);
    let mut losses = Vec::new();
    for _ in 0..pairs {
        if !readers.direct {
            scratch.drop_cache(typical.pattern)?;
        }
        let quiet = median(&rates(context, timing, || walk.step(&pool))?);
        let done = AtomicBool::new(false);
        let busy = std::thread::scope(|scope| {
            let background = scope.spawn(|| readers.run_until(typical, &done));
            let busy = rates(context, timing, || walk.step(&pool));
            done.store(true, Ordering::Relaxed);
            let read = background.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            read.map(|_reads| busy)
        })?;
        losses.push(1.0 - median(&busy?) / quiet);
    }
    Ok(median(&losses).clamp(0.0, 1.0))
}

/// `storage.csv`.
struct Table {
    csv: csv::Writer<Vec<u8>>,
}

impl Table {
    fn new() -> Result<Self, ProfileError> {
        let mut csv = csv::Writer::from_writer(Vec::new());
        let header = [
            "backend",
            "direct",
            "pattern",
            "block_bytes",
            "depth",
            "span_bytes",
            "core",
            "window",
            "reads_per_second",
            "bytes_per_second",
            "cpu_seconds_per_read",
        ];
        write_row(&mut csv, &header.map(str::to_owned))?;
        Ok(Self { csv })
    }

    /// Adds a row for each window; `core` is empty where threads may run on any.
    fn add(
        &mut self,
        backend: Backend,
        direct: bool,
        point: Point,
        core: Option<u32>,
        outcome: &readers::Outcome,
    ) -> Result<(), ProfileError> {
        for (window, &rate) in outcome.rates.iter().enumerate() {
            let row = [
                backend.name().to_owned(),
                direct.to_string(),
                point.pattern.name().to_owned(),
                point.block_bytes.to_string(),
                point.depth.to_string(),
                point.span_bytes.to_string(),
                core.map_or_else(String::new, |core| core.to_string()),
                window.to_string(),
                significant(rate).to_string(),
                significant(rate * point.block_bytes as f64).to_string(),
                outcome.cpu_seconds_per_read.map_or_else(String::new, |cpu| significant(cpu).to_string()),
            ];
            write_row(&mut self.csv, &row)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_a_readable_size_and_a_full_grid_for_every_depth() {
        for quick in [false, true] {
            let size = scratch_bytes(quick);
            let summary: Vec<Point> =
                grid(quick, size).into_iter().filter(|&point| in_summary(point, size)).collect();
            assert!(summary.len() <= 46, "{}", summary.len());
            let random = || summary.iter().filter(|point| point.pattern == Pattern::Random);
            for depth in [1, 8, 32] {
                assert_eq!(random().filter(|point| point.depth == depth).count(), 6);
            }
            assert!(summary.iter().any(|point| point.pattern == Pattern::Sequential));
            assert!(size.is_power_of_two());
        }
    }
}
