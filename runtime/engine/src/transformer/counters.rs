//! Counters of an engine's work since it was started.

use std::time::Duration;

use crate::neurons::Activity;
use crate::stage::{StageTimes, Traffic};

/// Totals since start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Neurons requested and computed while decoding.
    pub activity: Activity,
    /// Bytes that decoding took through memory.
    pub traffic: Traffic,
    /// Neurons looked up while decoding.
    pub looked_up: u64,
    /// Neurons looked up and pinned.
    pub hot_hits: u64,
    /// Neurons looked up and in a slot.
    pub cold_hits: u64,
    /// Neurons looked up and in neither, which were read.
    pub missing: u64,
    /// Reads of decode and prefill.
    pub reads: u64,
    /// Bytes of the reads of decode and prefill.
    pub read_bytes: u64,
    /// Reads of the next layer's neurons, started before it requested them.
    pub prefetch_reads: u64,
    /// Bytes of prefetch reads.
    pub prefetch_bytes: u64,
    /// Prefetch reads whose neurons the next layer then requested.
    pub prefetch_reads_used: u64,
    /// Bytes read that lie between two neurons that were wanted or prefetched.
    pub gap_bytes: u64,
    /// Reads that came back short or interrupted, and went on.
    pub resumed: u64,
    /// Time in which nothing was computed because nothing had completed.
    pub waited: Duration,
    /// Time of decoding by stage.
    pub times: StageTimes,
}

impl Counters {
    /// The work done since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            waited: self.waited.saturating_sub(earlier.waited),
            times: self.times.since(&earlier.times),
            ..self.with(earlier, |now, then| now - then)
        }
    }

    /// Counts what `other` has counted, too.
    pub fn add(&mut self, other: &Self) {
        let (waited, mut times) = (self.waited + other.waited, self.times);
        times.add(&other.times);
        *self = Self { waited, times, ..self.with(other, |one, other| one + other) };
    }

    /// Every number of both; the times are `self`'s.
    fn with(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        let (a, b) = (&self.activity, &other.activity);
        let (t, u) = (&self.traffic, &other.traffic);
        Self {
            activity: a.with(b, of),
            traffic: Traffic {
                weights: of(t.weights, u.weights),
                selection: of(t.selection, u.selection),
                kv: of(t.kv, u.kv),
                rows: of(t.rows, u.rows),
            },
            looked_up: of(self.looked_up, other.looked_up),
            hot_hits: of(self.hot_hits, other.hot_hits),
            cold_hits: of(self.cold_hits, other.cold_hits),
            missing: of(self.missing, other.missing),
            reads: of(self.reads, other.reads),
            read_bytes: of(self.read_bytes, other.read_bytes),
            prefetch_reads: of(self.prefetch_reads, other.prefetch_reads),
            prefetch_bytes: of(self.prefetch_bytes, other.prefetch_bytes),
            prefetch_reads_used: of(self.prefetch_reads_used, other.prefetch_reads_used),
            gap_bytes: of(self.gap_bytes, other.gap_bytes),
            resumed: of(self.resumed, other.resumed),
            waited: self.waited,
            times: self.times,
        }
    }

    /// Of the prefetched reads, those that the next layer requested; `None` if none was prefetched.
    pub fn look_ahead_precision_fraction(&self) -> Option<f64> {
        (self.prefetch_reads > 0).then(|| self.prefetch_reads_used as f64 / self.prefetch_reads as f64)
    }

    /// Of the reads that were requested, those that had been prefetched; `None` if none was requested. Nothing prefetches
    /// the first layer's reads, nor a prompt's; they count as requested, too.
    pub fn look_ahead_recall_fraction(&self) -> Option<f64> {
        let requested = self.reads - self.prefetch_reads + self.prefetch_reads_used;
        (requested > 0).then(|| self.prefetch_reads_used as f64 / requested as f64)
    }

    /// Share of the neurons looked up that were in memory; 1 if none was.
    pub fn hit_fraction(&self) -> f64 {
        if self.looked_up == 0 {
            return 1.0;
        }
        (self.hot_hits + self.cold_hits) as f64 / self.looked_up as f64
    }
}
