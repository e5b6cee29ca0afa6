//! The device's rate of reads alone: reads of one size, kept in flight for a while.

use std::time::{Duration, Instant};

use super::{FetchError, Fetcher};
use crate::flash::ReadRequest;

/// The most reads queued beyond those in flight: nothing waits for the issuing thread.
const SPARE_MAX: usize = 16;

impl Fetcher {
    /// Measures reads a second, from the first request to the last completion: reads of `bytes` at the places
    /// of `next`, `depth` in flight for `window`. Devices complete reads in groups, so times between
    /// completions would mislead. `None` if no read completes. Cancels all other reads.
    ///
    /// # Errors
    /// The first failed read.
    pub fn sustained(
        &mut self,
        bytes: usize,
        depth: usize,
        window: Duration,
        mut next: impl FnMut() -> u64,
    ) -> Result<Option<f64>, FetchError> {
        self.abandon();
        let before = self.flash.counters();
        let queued = (depth + depth.min(SPARE_MAX)).min(self.buffers.len());
        let mut places = vec![0; queued];
        let (start, mut last, mut reads) = (Instant::now(), None, 0_u32);
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
                (last, reads) = (Some(Instant::now()), reads + 1);
                self.buffers[done.tag as usize] = Some(done.buffer);
                if let Err(source) = done.result {
                    failed.get_or_insert(FetchError { offset: places[done.tag as usize], bytes, source });
                }
                over = self.flash.reap(false);
            }
        }
        self.measured += self.flash.counters().since(before);
        match failed {
            Some(failed) => Err(failed),
            None => Ok(last.map(|last| f64::from(reads) / (last - start).as_secs_f64())),
        }
    }
}
