//! Counters of an engine's work since start.

use std::time::Duration;

use super::Transformer;
use super::unit::{Beside, UnitWork};
use crate::engine::Visited;
use crate::neurons::{Activity, LayerNeurons};
use crate::stage::{StageTimes, Traffic};
use crate::visits::Visits;

/// Totals since start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Neurons looked up while decoding.
    pub looked_up: u64,
    /// Neurons looked up that were pinned.
    pub hot_hits: u64,
    /// Neurons looked up that were in a slot.
    pub cold_hits: u64,
    /// Neurons looked up that were in neither, and were read.
    pub missing: u64,
    /// Reads of decode and prefill.
    pub reads: u64,
    /// Bytes of the reads of decode and prefill.
    pub read_bytes: u64,
    /// Prefetch reads: reads of the next layer's neurons before it requested them.
    pub prefetch_reads: u64,
    /// Bytes of prefetch reads.
    pub prefetch_bytes: u64,
    /// Prefetch reads whose neurons the next layer requested.
    pub prefetch_reads_used: u64,
    /// Bytes read between two neurons that were requested or prefetched.
    pub gap_bytes: u64,
    /// Reads that were short or interrupted, and were resumed.
    pub resumed: u64,
    /// Time without compute because no read had completed.
    pub waited: Duration,
    /// Details for the programs' reports.
    pub(crate) detail: Detail,
}

/// Totals by neuron, byte and stage, for the programs' reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Detail {
    /// Neurons requested and computed by decode.
    pub activity: Activity,
    /// Bytes that decode moved through memory.
    pub traffic: Traffic,
    /// Time of decode by stage.
    pub times: StageTimes,
    /// Work of a unit beside the cores.
    pub unit: UnitWork,
}

/// The detailed totals of counters.
pub fn detail(counters: &Counters) -> &Detail {
    &counters.detail
}

/// The detailed totals of counters, mutable.
pub fn detail_mut(counters: &mut Counters) -> &mut Detail {
    &mut counters.detail
}

/// Adds `other` to `total`.
pub fn accumulate(total: &mut Counters, other: &Counters) {
    let mut sum = total.with(other, |one, other| one + other);
    sum.waited += other.waited;
    sum.detail.times.add(&other.detail.times);
    sum.detail.unit =
        total.detail.unit.with(&other.detail.unit, |one, other| one + other, |one, other| one + other);
    *total = sum;
}

impl Counters {
    /// The work done since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = self.with(earlier, |now, then| now - then);
        since.waited = self.waited.saturating_sub(earlier.waited);
        since.detail.times = self.detail.times.since(&earlier.detail.times);
        let times = |now: Duration, then| now.saturating_sub(then);
        since.detail.unit = self.detail.unit.with(&earlier.detail.unit, |now, then| now - then, times);
        since
    }

    /// Combines every number with the other's; times are `self`'s.
    fn with(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        let Detail { activity, traffic, times, unit } = &self.detail;
        let detail = Detail {
            activity: activity.with(&other.detail.activity, of),
            traffic: traffic.with(&other.detail.traffic, of),
            times: *times,
            unit: *unit,
        };
        Self {
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
            detail,
        }
    }

    /// Fraction of looked-up neurons that were in memory; 1 if none was looked up.
    pub fn hit_fraction(&self) -> f64 {
        if self.looked_up == 0 {
            return 1.0;
        }
        (self.hot_hits + self.cold_hits) as f64 / self.looked_up as f64
    }
}

impl Transformer {
    /// Visits of experts since start; `None` where they are not counted.
    pub(crate) fn visits(&self) -> Option<Visited> {
        let layers = || self.layers.neurons.iter().map(LayerNeurons::visits);
        let tokens = layers().next()??.tokens();
        let layers = layers().map(|of| of.map(Visits::counts)).collect::<Option<_>>()?;
        Some(Visited { tokens, layers })
    }

    /// Totals since start.
    pub(crate) fn counters(&self) -> Counters {
        let activity = self.layers.feed_forward.activity;
        let feed_forward = &self.layers.feed_forward;
        let traffic = Traffic {
            selection: feed_forward.selection_bytes,
            rows: feed_forward.rows_bytes,
            ..self.traffic
        };
        let times = self.layers.feed_forward.clock.times();
        let unit = self.compute.unit.as_ref().map(Beside::work).unwrap_or_default();
        let mut c = Counters { detail: Detail { activity, traffic, times, unit }, ..Counters::default() };
        for layer in &self.layers.neurons {
            let (cache, neurons) = (layer.cache.counters(), layer.slice() as u64);
            c.looked_up += cache.requested * neurons;
            c.hot_hits += cache.hot_hits * neurons;
            c.cold_hits += cache.cold_hits * neurons;
            c.missing += cache.missing * neurons;
        }
        let fetched = self.fetcher.counters();
        let rows = self.weights.embedding_reads();
        (c.reads, c.read_bytes) = (fetched.flash.reads + rows.reads, fetched.flash.bytes + rows.bytes);
        (c.prefetch_reads, c.prefetch_reads_used) = (fetched.prefetch_reads, fetched.prefetch_reads_used);
        (c.prefetch_bytes, c.gap_bytes) = (fetched.prefetch_bytes, fetched.gap_bytes);
        (c.resumed, c.waited) = (fetched.flash.resumed, fetched.waited);
        c
    }
}
