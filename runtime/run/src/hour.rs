//! This hour: the rates that the engine's probe found, over those that the plan assumes.
//!
//! A run is probed once, before it starts. A benchmark is probed before, every few seconds of it, and after: a neighbour of a
//! virtual machine may be busy for a part of it.

use std::time::{Duration, Instant};

use flashplan::internals::engine::Probe;
use plans::Plan;
use plans::terms::Factors;
use serde::Serialize;

/// Between two probes of a benchmark: one takes half a second.
const BETWEEN_PROBES: Duration = Duration::from_secs(4);

/// Rates that probes found, each over the planned one; absent where it was not measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Hour {
    /// Probes that these are the mean of.
    pub(super) probes: usize,
    /// All of them.
    pub(super) probe_seconds: f64,
    /// Products with weights in cache; steps of threads are taken to change alike.
    pub(super) probe_compute_over_planned: Option<f64>,
    /// Weights in order from memory.
    pub(super) probe_stream_over_planned: Option<f64>,
    /// Rows here and there from memory.
    pub(super) probe_gather_over_planned: Option<f64>,
    /// Reads of flash here and there, and in order.
    pub(super) probe_random_reads_over_planned: Option<f64>,
    pub(super) probe_ordered_reads_over_planned: Option<f64>,
    /// Share of the processors' time that others took meanwhile, the host of a virtual machine included.
    pub(super) probe_others_cpu_fraction: Option<f64>,
    /// Why a rate is absent.
    pub(super) probe_unmeasured: Vec<String>,
    /// Whether the plan says what its times are made of.
    #[serde(skip)]
    pub(super) in_plan: bool,
}

impl Hour {
    /// The rates of a probe, over those that the plan assumes.
    pub(super) fn new(probe: Probe, plan: &Plan) -> Self {
        let over = |found: Option<f64>, planned: Option<f64>| Some(found? / planned?);
        let rates = plan.rates.as_ref();
        let planned = |rate: fn(&plans::terms::Rates) -> Option<f64>| rates.and_then(rate);
        Self {
            probes: 1,
            probe_seconds: probe.time.as_secs_f64(),
            probe_compute_over_planned: over(probe.flops_per_second, planned(|r| r.flops_per_second)),
            probe_stream_over_planned: over(
                probe.dense_bytes_per_second,
                planned(|r| r.dense_bytes_per_second),
            ),
            probe_gather_over_planned: over(
                probe.sparse_bytes_per_second,
                planned(|r| r.sparse_bytes_per_second),
            ),
            probe_random_reads_over_planned: over(
                probe.random_reads_per_second,
                planned(|r| r.random_reads_per_second),
            ),
            probe_ordered_reads_over_planned: over(
                probe.ordered_reads_per_second,
                planned(|r| r.ordered_reads_per_second),
            ),
            probe_others_cpu_fraction: probe.others_cpu_fraction,
            probe_unmeasured: probe.unmeasured,
            in_plan: plan.terms.is_some(),
        }
    }

    /// What several probes found at equal distances in time: the mean, which is the rate of the whole time. `None` of none.
    fn mean(hours: &[Self]) -> Option<Self> {
        let mean = |of: fn(&Self) -> Option<f64>| {
            let found: Vec<f64> = hours.iter().filter_map(of).collect();
            (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
        };
        Some(Self {
            probes: hours.iter().map(|hour| hour.probes).sum(),
            probe_seconds: hours.iter().map(|hour| hour.probe_seconds).sum(),
            probe_compute_over_planned: mean(|hour| hour.probe_compute_over_planned),
            probe_stream_over_planned: mean(|hour| hour.probe_stream_over_planned),
            probe_gather_over_planned: mean(|hour| hour.probe_gather_over_planned),
            probe_random_reads_over_planned: mean(|hour| hour.probe_random_reads_over_planned),
            probe_ordered_reads_over_planned: mean(|hour| hour.probe_ordered_reads_over_planned),
            probe_others_cpu_fraction: mean(|hour| hour.probe_others_cpu_fraction),
            ..hours.last()?.clone()
        })
    }

    /// By which the plan's parts are scaled: 1 where nothing was measured. `None` where no rate was.
    pub(super) fn factors(&self) -> Option<Factors> {
        let found = self.found();
        let factor = |at: usize| found[at].1.unwrap_or(1.0);
        found.iter().any(|(_, factor)| factor.is_some()).then(|| Factors {
            compute: factor(0),
            stream: factor(1),
            gather: factor(2),
            random_reads: factor(3),
            ordered_reads: factor(4),
        })
    }

    /// Each rate in words, in the order of [`Factors`].
    pub(super) fn found(&self) -> [(&'static str, Option<f64>); 5] {
        [
            ("computing", self.probe_compute_over_planned),
            ("memory in order", self.probe_stream_over_planned),
            ("memory in rows", self.probe_gather_over_planned),
            ("reads here and there", self.probe_random_reads_over_planned),
            ("reads in order", self.probe_ordered_reads_over_planned),
        ]
    }

    /// A sentence of what was found.
    pub(super) fn sentence(&self) -> String {
        let found = self.found();
        let rates: Vec<String> =
            found.iter().filter_map(|(what, factor)| Some(format!("{what} {:.2}", (*factor)?))).collect();
        if rates.is_empty() {
            return format!("This hour's rates are not known: {}.", self.probe_unmeasured.join("; "));
        }
        let times =
            if self.probes == 1 { String::new() } else { format!(", a mean of {} times", self.probes) };
        format!("This hour's rates over those that the plan assumes{times}: {}.", rates.join(", "))
    }
}

/// The hour of a benchmark, in probes.
#[derive(Debug)]
pub(super) struct Probes {
    found: Vec<Hour>,
    last: Instant,
}

impl Probes {
    /// Goes on from the probe before the start; `None` where that was left out.
    pub(super) fn after(first: Option<Hour>) -> Option<Self> {
        Some(Self { found: vec![first?], last: Instant::now() })
    }

    /// Whether it is time for another.
    pub(super) fn due(&self) -> bool {
        self.last.elapsed() >= BETWEEN_PROBES
    }

    pub(super) fn push(&mut self, hour: Hour) {
        self.found.push(hour);
        self.last = Instant::now();
    }

    pub(super) fn mean(&self) -> Option<Hour> {
        Hour::mean(&self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_probes_are_one_mean_of_those_that_measured() {
        let mut probes = Probes::after(Some(hour())).expect("a first probe");
        assert!(!probes.due() && Probes::after(None).is_none());
        probes.push(Hour {
            probe_random_reads_over_planned: Some(1.5),
            probe_compute_over_planned: None,
            ..hour()
        });
        let mean = probes.mean().expect("two probes");
        assert_eq!((mean.probes, mean.probe_seconds), (2, 1.0));
        assert_eq!(mean.probe_random_reads_over_planned, Some(1.0));
        assert_eq!((mean.probe_compute_over_planned, mean.probe_stream_over_planned), (Some(0.9), None));
        assert_eq!(Probes { found: Vec::new(), ..probes }.mean(), None);
    }

    fn hour() -> Hour {
        Hour {
            probes: 1,
            probe_seconds: 0.5,
            probe_compute_over_planned: Some(0.9),
            probe_stream_over_planned: None,
            probe_gather_over_planned: None,
            probe_random_reads_over_planned: Some(0.5),
            probe_ordered_reads_over_planned: None,
            probe_others_cpu_fraction: None,
            probe_unmeasured: vec!["memory is small".to_owned()],
            in_plan: true,
        }
    }

    #[test]
    fn what_was_not_measured_is_taken_as_planned_and_nothing_is_told_of_nothing() {
        let mut hour = hour();
        let expected = Factors { compute: 0.9, random_reads: 0.5, ..Factors::NONE };
        assert_eq!(hour.factors(), Some(expected));
        assert_eq!(
            hour.sentence(),
            "This hour's rates over those that the plan assumes: computing 0.90, reads here and there 0.50."
        );
        (hour.probe_compute_over_planned, hour.probe_random_reads_over_planned) = (None, None);
        assert_eq!(hour.factors(), None);
        assert_eq!(hour.sentence(), "This hour's rates are not known: memory is small.");
    }
}
