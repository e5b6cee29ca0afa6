//! Threads that each keep one read in flight.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use runtime::arena::{Align, Arena, Slab};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::super::measure::Timing;
use crate::ProfileError;

/// The order of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Every block once, in an order without a pattern.
    Random,
    /// In order.
    Sequential,
}

impl Pattern {
    /// Its name in the files.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
        }
    }

    /// The block to read after `done` others; each of `blocks`, a power of two, comes once a round.
    fn block(self, done: u64, blocks: u64) -> u64 {
        let mask = blocks - 1;
        if self == Self::Sequential || blocks < 4 {
            return done & mask;
        }
        // two rounds of steps that each map the numbers below a power of two onto themselves
        let half = blocks.ilog2().div_ceil(2);
        let mut block = done & mask;
        for factor in [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93_u64] {
            block = block.wrapping_mul(factor) & mask;
            block ^= block >> half;
        }
        block
    }
}

/// A place on the read surface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) pattern: Pattern,
    /// A power of two.
    pub(super) block_bytes: u64,
    /// Threads.
    pub(super) depth: u32,
    /// A power of two, from the start of the file on.
    pub(super) span_bytes: u64,
}

/// What a point gave.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Reads per second, window by window.
    pub(super) rates: Vec<f64>,
    /// CPU time of the reading threads by the read, if the kernel counts it. Interrupts are not in it.
    pub(super) cpu_seconds_per_read: Option<f64>,
}

/// Who reads what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Readers<'a> {
    pub(super) file: &'a File,
    /// The cores on which the threads may run.
    pub(super) cores: &'a [u32],
    /// For messages.
    pub(super) path: &'a Path,
}

impl Readers<'_> {
    /// Reads for the windows of `timing`.
    pub(super) fn run(self, point: Point, timing: Timing) -> Result<Outcome, ProfileError> {
        let never = AtomicBool::new(false);
        let done = self.read(point, &never, timing.window, timing.repeats)?;
        let rates = done.windows.iter().map(|&reads| reads / timing.window.as_secs_f64()).collect();
        let cpu = done.cpu.filter(|_| done.reads > 0);
        Ok(Outcome { rates, cpu_seconds_per_read: cpu.map(|cpu| cpu.as_secs_f64() / done.reads as f64) })
    }

    /// Reads until `done`; returns how many.
    pub(super) fn run_until(self, point: Point, done: &AtomicBool) -> Result<u64, ProfileError> {
        const AN_HOUR: Duration = Duration::from_secs(3600);
        Ok(self.read(point, done, AN_HOUR, 1)?.reads)
    }

    /// Reads until `done` or the last window is over.
    fn read(
        self,
        point: Point,
        done: &AtomicBool,
        window: Duration,
        windows: usize,
    ) -> Result<Done, ProfileError> {
        let block = point.block_bytes as usize;
        let mut arena = Arena::new(point.block_bytes * u64::from(point.depth))?;
        let slabs = (0..point.depth)
            .map(|_| arena.take::<u8>(block, Align::Page))
            .collect::<Result<Vec<Slab<u8>>, _>>()?;
        let next = AtomicU64::new(0);
        let barrier = Barrier::new(slabs.len());
        let mut set = CpuSet::new();
        for &core in self.cores {
            set.set(core as usize);
        }
        let one = |mut slab: Slab<u8>| -> io::Result<Done> {
            // all threads meet before any can fail
            let pinned = sched_setaffinity(None, &set);
            barrier.wait();
            pinned?;
            let mut own = Done { windows: vec![0.0; windows], reads: 0, cpu: None };
            let cpu_before = cpu_time();
            let start = Instant::now();
            let mut begun = 0.0;
            while begun < windows as f64 && !done.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let offset =
                    point.pattern.block(number, point.span_bytes / point.block_bytes) * point.block_bytes;
                self.file.read_exact_at(&mut slab, offset)?;
                let ended = start.elapsed().as_secs_f64() / window.as_secs_f64();
                share(&mut own.windows, begun, ended);
                own.reads += 1;
                begun = ended;
            }
            own.cpu = cpu_time().zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
            Ok(own)
        };
        let parts = thread::scope(|scope| {
            let threads: Vec<_> = slabs.into_iter().map(|slab| scope.spawn(|| one(slab))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect::<io::Result<Vec<Done>>>()
        });
        let parts = parts.map_err(|source| ProfileError::Io {
            action: "read the scratch file in",
            path: self.path.to_owned(),
            source,
        })?;
        let mut all = Done { windows: vec![0.0; windows], reads: 0, cpu: Some(Duration::ZERO) };
        for own in parts {
            all.windows.iter_mut().zip(own.windows).for_each(|(all, own)| *all += own);
            all.reads += own.reads;
            all.cpu = all.cpu.zip(own.cpu).map(|(sum, own)| sum + own);
        }
        Ok(all)
    }
}

/// What threads have read.
#[derive(Debug)]
struct Done {
    /// Reads in each window; one that reaches over the end of a window counts in both, in proportion, so that
    /// few and long reads are not counted in whole numbers.
    windows: Vec<f64>,
    reads: u64,
    cpu: Option<Duration>,
}

/// Counts one read from `begun` to `ended`, both in windows.
fn share(windows: &mut [f64], begun: f64, ended: f64) {
    let length = (ended - begun).max(f64::MIN_POSITIVE);
    for (index, window) in windows.iter_mut().enumerate().skip(begun as usize) {
        let inside = ended.min((index + 1) as f64) - begun.max(index as f64);
        if inside <= 0.0 {
            break;
        }
        *window += inside / length;
    }
}

/// The CPU time of this thread so far, as the scheduler counts it: up to its last pause, which a reading
/// thread makes with every read.
fn cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn every_block_comes_once_a_round_in_either_order() {
        for blocks in [1_u64, 2, 4, 8, 64, 1024, 4096] {
            for pattern in [Pattern::Random, Pattern::Sequential] {
                let mut seen: Vec<u64> = (0..blocks).map(|done| pattern.block(done, blocks)).collect();
                if blocks >= 64 {
                    let neighbours = seen.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count() as u64;
                    let expected =
                        if pattern == Pattern::Random { 0..blocks / 8 } else { blocks - 1..blocks };
                    assert!(expected.contains(&neighbours), "{blocks} {neighbours}");
                }
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..blocks), "{pattern:?} of {blocks}");
            }
        }
    }

    #[test]
    fn a_read_over_the_end_of_a_window_counts_in_both() {
        let mut windows = vec![0.0; 3];
        share(&mut windows, 0.0, 0.5);
        share(&mut windows, 0.5, 1.5);
        share(&mut windows, 1.5, 5.5);
        assert_eq!(windows, [1.5, 0.5 + 0.125, 0.25]);
    }

    #[test]
    fn reads_are_counted_and_a_file_that_is_too_short_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        let point = Point { pattern: Pattern::Random, block_bytes: 4096, depth: 3, span_bytes: 1 << 20 };
        let readers = Readers { file: &file, cores: &allowed(), path: Path::new("there") };
        let timing = Timing { window: Duration::from_millis(60), repeats: 2 };
        let outcome = readers.run(point, timing).unwrap();
        assert_eq!(outcome.rates.len(), 2);
        assert!(outcome.rates.iter().all(|&rate| rate > 0.0));
        let refused = readers.run(Point { span_bytes: 1 << 30, ..point }, timing).unwrap_err();
        assert!(refused.to_string().contains("in there"), "{refused}");
    }

    fn allowed() -> Vec<u32> {
        let set = rustix::thread::sched_getaffinity(None).unwrap();
        (0..1024).filter(|&core| set.is_set(core as usize)).collect()
    }
}
