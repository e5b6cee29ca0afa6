//! Completion of reads in flight, one after another or all at once, and the speed of checking their bytes.
//!
//! Disks of virtual machines may report a batch of reads only when all of it is done; computing then waits for the last read. Bytes just
//! read are in no cache of the core that checks them, so a check is far slower than reading memory in order.

use std::collections::VecDeque;
use std::hint::black_box;
use std::io;
use std::time::Instant;

use flashplan::internals::arena::{Align, Arena, HUGE_PAGE_BYTES};
use flashplan::internals::container::up_down_checksum;
use flashplan::internals::flash::{Buffer, ReadRequest, open_backend};
use plans::file::significant;

use super::readers::{Pattern, Readers};
use crate::device::measure::median;
use crate::{Context, ProfileError};

/// Reads of a batch.
const DEPTH: u32 = 8;
/// Bytes of a read, whose transfer takes many times as long as its completion.
const BLOCK_BYTES: u64 = 256 << 10;
const BATCHES: u64 = 64;
/// Buffers that are filled in turn. They have the bytes of a run's buffers, so that no cache still has their contents.
const BUFFERS: u32 = 128;
/// Bytes with a checksum of their own: about a neuron.
const NEURON_BYTES: usize = 4 << 10;

/// The median of some batches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batches {
    /// Share of the reads in flight, without the last, that complete together with the last.
    pub(super) together_fraction: f64,
    /// Bytes just read that one thread verifies per second, while other reads are in flight.
    pub(super) check_bytes_per_second: f64,
}

/// Reads some batches of the scratch file.
pub(super) fn measure(
    context: &Context,
    readers: Readers<'_>,
    span_bytes: u64,
) -> Result<Batches, ProfileError> {
    context.stopped()?;
    let mut arena = Arena::new((BLOCK_BYTES * u64::from(BUFFERS)).next_multiple_of(HUGE_PAGE_BYTES as u64))?;
    let slabs = (0..BUFFERS).map(|_| arena.take::<u8>(BLOCK_BYTES as usize, Align::Page));
    let mut slabs = slabs.collect::<Result<Vec<_>, _>>()?;
    let mut read = || -> io::Result<[Vec<f64>; 2]> {
        let (file, depth, buffers) = (readers.file.try_clone()?, DEPTH as usize, BUFFERS as usize);
        let mut flash = open_backend(readers.backend, file, readers.direct, depth, buffers, readers.cores)?;
        flash.adopt(&mut slabs);
        let mut free: VecDeque<_> = (0..).zip(slabs.drain(..)).collect();
        let blocks = span_bytes / BLOCK_BYTES;
        let [mut fractions, mut checks] = [Vec::new(), Vec::new()];
        for batch in 0..2 * BATCHES {
            let request = |(at, (tag, buffer)): (u64, (u32, Buffer))| {
                let offset = Pattern::Random.block(batch * u64::from(DEPTH) + at, blocks) * BLOCK_BYTES;
                ReadRequest { tag, offset, bytes: buffer.len(), buffer, at: 0 }
            };
            let mut requests: Vec<_> = (0..).zip(free.drain(..depth)).map(request).collect();
            let submitted = Instant::now();
            flash.submit(&mut requests);
            let start = Instant::now();
            // the first batches are not checked; later ones while the next is in flight
            if batch > BATCHES {
                let brought = free.range(free.len() - depth..);
                for neuron in brought.flat_map(|(_, buffer)| buffer.chunks(NEURON_BYTES)) {
                    black_box(up_down_checksum(0, 0, neuron));
                }
                checks.push((BLOCK_BYTES * u64::from(DEPTH)) as f64 / start.elapsed().as_secs_f64());
            }
            let mut times = Vec::with_capacity(depth);
            while let Some(done) = flash.reap(true) {
                done.result?;
                times.push(submitted.elapsed().as_secs_f64());
                free.push_back((done.tag, done.buffer));
            }
            if batch < BATCHES {
                fractions.extend(fraction(&times));
            }
        }
        Ok([fractions, checks])
    };
    let [fractions, checks] = read().map_err(|source| ProfileError::Io {
        action: "read the scratch file in",
        path: readers.path.to_owned(),
        source,
    })?;
    Ok(Batches {
        together_fraction: significant(median(&fractions)),
        check_bytes_per_second: significant(median(&checks)),
    })
}

/// The share of a batch that completed with its last read, from ascending times.
///
/// It is 0 where the first of `n` reads took an `n`th of the batch's time, and 1 where it took all; linear between.
fn fraction(times: &[f64]) -> Option<f64> {
    let (first, last) = (times.first()?, times.last()?);
    let evenly = last / times.len() as f64;
    Some(((first - evenly) / (last - evenly)).clamp(0.0, 1.0)).filter(|fraction| fraction.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_completes_evenly_is_none_together_and_one_at_once_is_all() {
        assert_eq!(fraction(&[1.0, 2.0, 3.0, 4.0]), Some(0.0));
        assert_eq!(fraction(&[4.0, 4.0, 4.0, 4.0]), Some(1.0));
        assert_eq!(fraction(&[2.5, 2.5, 4.0, 4.0]), Some(0.5));
        // faster than evenly: the disk had it in a cache
        assert_eq!(fraction(&[0.5, 2.0, 3.0, 4.0]), Some(0.0));
        assert_eq!((fraction(&[]), fraction(&[1.0])), (None, None), "one read completes with itself");
    }
}
