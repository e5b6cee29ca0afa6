//! How many reads a second the device gives while nothing else is read: reads of one size, kept in flight for a while.

use std::time::{Duration, Instant};

use super::{FetchError, Fetcher};
use crate::flash::ReadRequest;

/// Reads beyond those in flight, at most: nobody waits for who issues them.
const SPARE_MAX: usize = 16;

impl Fetcher {
    /// Reads of `bytes` at the places that `next` says, `depth` of them in flight, until `window` is over; reads a second,
    /// between the first that completes and the last. `None` if fewer than two complete. What is in flight or has completed is
    /// given up.
    ///
    /// # Errors
    /// The first read that failed.
    pub fn sustained(
        &mut self,
        bytes: usize,
        depth: usize,
        window: Duration,
        mut next: impl FnMut() -> u64,
    ) -> Result<Option<f64>, FetchError> {
        self.abandon();
        let queued = (depth + depth.min(SPARE_MAX)).min(self.buffers.len());
        let mut places = vec![0; queued];
        let (start, mut first, mut last, mut more) = (Instant::now(), None, None, 0_u32);
        let mut failed = None;
        loop {
            if failed.is_none() && start.elapsed() < window {
                let free = self.buffers.iter_mut().zip(&mut places).enumerate();
                for (number, (buffer, place)) in free.filter(|(_, (buffer, _))| buffer.is_some()) {
                    let (tag, offset) = (number as u32, next());
                    *place = offset;
                    let request = |buffer| ReadRequest { tag, offset, bytes, buffer, at: 0 };
                    self.batch.extend(buffer.take().map(request));
                }
                self.flash.submit(&mut self.batch);
            }
            let Some(done) = self.flash.reap(true) else { break };
            let mut over = Some(done);
            while let Some(done) = over {
                let now = Instant::now();
                match first {
                    None => first = Some(now),
                    Some(_) => (last, more) = (Some(now), more + 1),
                }
                self.buffers[done.tag as usize] = Some(done.buffer);
                if let Err(source) = done.result {
                    failed.get_or_insert(FetchError { offset: places[done.tag as usize], bytes, source });
                }
                over = self.flash.reap(false);
            }
        }
        match failed {
            Some(failed) => Err(failed),
            None => Ok(first.zip(last).map(|(first, last)| f64::from(more) / (last - first).as_secs_f64())),
        }
    }
}
