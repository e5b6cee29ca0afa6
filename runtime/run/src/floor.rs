//! The floor: the hardware's lower bound for the time of a run.
//!
//! Bytes over what memory gives, in order and in rows; reads over what flash gives; whichever is longer, since they
//! overlap. The rates are the device's own, which the plan carries; bytes and reads are those that the run counted. A
//! token that takes less says that the device was profiled in a slower moment.

use plans::plan::Floor as Rates;
use serde::Serialize;

use flashplan::Counters;
use flashplan::internals::counters::detail;

/// The floor of a mean token, beside what it took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Floor {
    /// Through memory in order: weights that every token needs, predictors, keys and values.
    pub(super) floor_streamed_bytes: f64,
    /// Through memory in rows: gate, up and down of neurons.
    pub(super) floor_rows_bytes: f64,
    pub(super) floor_memory_seconds: f64,
    /// Absent: the device was not measured as the plan reads.
    pub(super) floor_reads_seconds: Option<f64>,
    /// The longer of the two.
    pub(super) floor_seconds: f64,
    pub(super) measured_over_floor: f64,
}

impl Floor {
    /// The floor of `tokens` that took `seconds` together and counted `counters`.
    pub(super) fn new(rates: &Rates, counters: &Counters, tokens: f64, seconds: f64) -> Self {
        let (memory, reads) = (memory_seconds(rates, counters), reads_seconds(rates, counters));
        let floor = memory.max(reads.unwrap_or(0.0));
        Self {
            floor_streamed_bytes: detail(counters).traffic.in_order() as f64 / tokens,
            floor_rows_bytes: detail(counters).traffic.rows as f64 / tokens,
            floor_memory_seconds: memory / tokens,
            floor_reads_seconds: reads.map(|seconds| seconds / tokens),
            floor_seconds: floor / tokens,
            measured_over_floor: seconds / floor,
        }
    }
}

fn memory_seconds(rates: &Rates, counters: &Counters) -> f64 {
    let traffic = &detail(counters).traffic;
    traffic.in_order() as f64 / rates.stream_bytes_per_second
        + traffic.rows as f64 / rates.gather_bytes_per_second
}

fn reads_seconds(rates: &Rates, counters: &Counters) -> Option<f64> {
    rates.reads_per_second.map(|per_second| counters.reads as f64 / per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashplan::internals::counters::detail_mut;

    #[test]
    fn the_longer_of_memory_and_reads_is_the_floor() {
        let mut counters = Counters::default();
        let t = &mut detail_mut(&mut counters).traffic;
        (t.weights, t.selection, t.kv, t.rows) = (600, 300, 100, 400);
        counters.reads = 30;
        let mut rates = Rates {
            stream_bytes_per_second: 1000.0,
            gather_bytes_per_second: 200.0,
            reads_per_second: Some(5.0),
            read_bytes: 8192,
        };
        // two tokens: 1 s in order and 2 s in rows, beside 6 s of reads
        let floor = Floor::new(&rates, &counters, 2.0, 9.0);
        assert_eq!((floor.floor_streamed_bytes, floor.floor_rows_bytes), (500.0, 200.0));
        assert_eq!((floor.floor_memory_seconds, floor.floor_reads_seconds), (1.5, Some(3.0)));
        assert_eq!((floor.floor_seconds, floor.measured_over_floor), (3.0, 1.5));
        rates.reads_per_second = None;
        let floor = Floor::new(&rates, &counters, 2.0, 9.0);
        assert_eq!((floor.floor_reads_seconds, floor.floor_seconds), (None, 1.5));
        assert_eq!(floor.measured_over_floor, 3.0);
    }
}
