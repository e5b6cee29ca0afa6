//! A thread that keeps reads in flight through one of the runtime's back ends.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flashplan::internals::arena::{Align, Arena, HUGE_PAGE_BYTES};
use flashplan::internals::flash::{Buffer, Completion, ReadRequest, open_backend};
use plans::Backend;
use platform::affinity::CoreSet;
use platform::process::cpu_time;

use super::super::measure::Timing;
use crate::ProfileError;

/// Buffers beyond the reads in flight, at most.
const SPARE_MAX: u32 = 16;

/// The order of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Every block once, in pseudo-random order.
    Random,
    /// Reads in order.
    Sequential,
}

impl Pattern {
    /// The name in the files.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
        }
    }

    /// The block to read after `done` others. Each of `blocks`, a power of two, comes once in a round.
    pub(super) fn block(self, done: u64, blocks: u64) -> u64 {
        let mask = blocks - 1;
        if self == Self::Sequential || blocks < 4 {
            return done & mask;
        }
        // two rounds of steps, each a permutation of the numbers below a power of two
        let half = blocks.ilog2().div_ceil(2);
        let mut block = done & mask;
        for factor in [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93_u64] {
            block = block.wrapping_mul(factor) & mask;
            block ^= block >> half;
        }
        block
    }
}

/// A point of the read surface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) pattern: Pattern,
    /// Bytes of a read, a power of two.
    pub(super) block_bytes: u64,
    /// Reads in flight.
    pub(super) depth: u32,
    /// Bytes of the file, from its start, that are read; a power of two.
    pub(super) span_bytes: u64,
}

/// The measurement of a point.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Reads per second, window by window.
    pub(super) rates: Vec<f64>,
    /// CPU time of this process for a read: of the issuing and the reading threads, without interrupts.
    pub(super) cpu_seconds_per_read: Option<f64>,
}

/// The reads of a measurement: back end, file, cores and pattern.
#[derive(Debug, Clone, Copy)]
pub(super) struct Readers<'a> {
    pub(super) backend: Backend,
    pub(super) file: &'a File,
    pub(super) direct: bool,
    /// The cores for the issuing thread and the threads of `pread`.
    pub(super) cores: &'a [u32],
    /// The file's path, for messages.
    pub(super) path: &'a Path,
    /// The share of the pattern's order to skip: a round that begins elsewhere finds nothing that the round before cached.
    pub(super) from: f64,
}

impl Readers<'_> {
    /// Reads for the windows of `timing`.
    pub(super) fn run(self, point: Point, timing: Timing) -> Result<Outcome, ProfileError> {
        let never = AtomicBool::new(false);
        let done = self.read(point, &never, timing.window, timing.repeats)?;
        let rates = done.windows.iter().map(|&reads| reads / timing.window.as_secs_f64()).collect();
        let cpu = done.cpu.as_secs_f64();
        Ok(Outcome { rates, cpu_seconds_per_read: (done.reads > 0).then(|| cpu / done.reads as f64) })
    }

    /// Reads until `done`, and returns the number of reads.
    pub(super) fn run_until(self, point: Point, done: &AtomicBool) -> Result<u64, ProfileError> {
        const AN_HOUR: Duration = Duration::from_secs(3600);
        Ok(self.read(point, done, AN_HOUR, 1)?.reads)
    }

    /// Reads until `done` or the last window is over, from a thread of its own.
    fn read(
        self,
        point: Point,
        done: &AtomicBool,
        window: Duration,
        windows: usize,
    ) -> Result<Done, ProfileError> {
        // more than the reads in flight, as in a run: no read waits for the issuing thread
        let buffers = (point.depth + point.depth.min(SPARE_MAX)) as usize;
        // huge pages, as in a run
        let bytes = (point.block_bytes * buffers as u64).next_multiple_of(HUGE_PAGE_BYTES as u64);
        let mut arena = Arena::new(bytes)?;
        let slabs = (0..buffers)
            .map(|_| arena.take::<u8>(point.block_bytes as usize, Align::Page))
            .collect::<Result<Vec<_>, _>>()?;
        let read = thread::scope(|scope| {
            let issuer = scope.spawn(|| self.issue(point, slabs, done, window, windows));
            issuer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        read.map_err(|source| ProfileError::Io {
            action: "read the scratch file in",
            path: self.path.to_owned(),
            source,
        })
    }

    /// Keeps a read in flight in every buffer.
    fn issue(
        self,
        point: Point,
        mut slabs: Vec<Buffer>,
        done: &AtomicBool,
        window: Duration,
        windows: usize,
    ) -> io::Result<Done> {
        let missing = |core| io::Error::other(format!("there is no core {core}"));
        CoreSet::of(self.cores).map_err(missing)?.restrict_this_thread()?;
        let (file, depth) = (self.file.try_clone()?, point.depth as usize);
        let mut flash = open_backend(self.backend, file, self.direct, depth, slabs.len(), self.cores)?;
        flash.adopt(&mut slabs);
        let blocks = point.span_bytes / point.block_bytes;
        let mut own = Done { windows: vec![0.0; windows], reads: 0, cpu: Duration::ZERO };
        // start of each tag's read, in windows
        let mut requested = vec![0.0; slabs.len()];
        let mut free: Vec<(u32, Buffer)> = (0..).zip(slabs).collect();
        let mut batch = Vec::with_capacity(free.len());
        let mut next = (self.from * blocks as f64) as u64;
        let (start, cpu_before) = (Instant::now(), cpu_time());
        let mut now = 0.0;
        while now < windows as f64 && !done.load(Ordering::Relaxed) {
            for (tag, buffer) in free.drain(..) {
                let offset = point.pattern.block(next, blocks) * point.block_bytes;
                next += 1;
                requested[tag as usize] = now;
                batch.push(ReadRequest { tag, offset, bytes: buffer.len(), buffer, at: 0 });
            }
            flash.submit(&mut batch);
            let mut over = flash.reap(true);
            now = start.elapsed().as_secs_f64() / window.as_secs_f64();
            while let Some(Completion { tag, buffer, result, .. }) = over {
                result?;
                share(&mut own.windows, requested[tag as usize], now);
                own.reads += 1;
                free.push((tag, buffer));
                over = flash.reap(false);
            }
        }
        own.cpu = cpu_time().saturating_sub(cpu_before);
        Ok(own)
    }
}

/// Reads completed by a thread.
#[derive(Debug)]
struct Done {
    /// Reads in each window. A read across the end of a window counts in both, in proportion: long reads are few.
    windows: Vec<f64>,
    reads: u64,
    cpu: Duration,
}

/// Counts a read from `begun` to `ended`, both in windows.
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
        let timing = Timing { window: Duration::from_millis(60), repeats: 2 };
        for backend in Backend::ALL {
            let cores = allowed();
            let readers = Readers {
                backend,
                file: &file,
                direct: false,
                cores: &cores,
                path: Path::new("there"),
                from: 0.3,
            };
            if let Some(why) = super::super::refused(readers) {
                assert_eq!(backend, Backend::IoUring, "{why}");
                skipped::skipped("io_uring", format_args!("refused here: {why}"));
                continue;
            }
            let outcome = readers.run(point, timing).unwrap();
            assert_eq!(outcome.rates.len(), 2);
            assert!(outcome.rates.iter().all(|&rate| rate > 0.0));
            assert!(outcome.cpu_seconds_per_read.unwrap() > 0.0);
            let refused = readers.run(Point { span_bytes: 1 << 30, ..point }, timing).unwrap_err();
            assert!(refused.to_string().contains("in there"), "{refused}");
        }
    }

    fn allowed() -> Vec<u32> {
        CoreSet::current().unwrap().cores()
    }
}
