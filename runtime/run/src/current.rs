//! Current rates: computing, memory and reads as the engine's probe finds them, over the rates that the plan assumes.
//!
//! A run is probed once, before it starts. A benchmark is probed before, every few seconds and after, because the host of a
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
pub(super) struct CurrentRates {
    /// Number of probes; rates are their mean.
    pub(super) probes: usize,
    /// Time of all probes together.
    pub(super) probe_seconds: f64,
    /// Products with weights in cache; the cost of starting threads is scaled by the same factor.
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

impl CurrentRates {
    /// The rates of a probe, divided by the plan's rates.
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

    /// Mean of probes at equal distances in time; `None` for an empty list.
    fn mean(probed: &[Self]) -> Option<Self> {
        let mean = |of: fn(&Self) -> Option<f64>| {
            let found: Vec<f64> = probed.iter().filter_map(of).collect();
            (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
        };
        Some(Self {
            probes: probed.iter().map(|current| current.probes).sum(),
            probe_seconds: probed.iter().map(|current| current.probe_seconds).sum(),
            probe_compute_over_planned: mean(|current| current.probe_compute_over_planned),
            probe_stream_over_planned: mean(|current| current.probe_stream_over_planned),
            probe_gather_over_planned: mean(|current| current.probe_gather_over_planned),
            probe_random_reads_over_planned: mean(|current| current.probe_random_reads_over_planned),
            probe_ordered_reads_over_planned: mean(|current| current.probe_ordered_reads_over_planned),
            probe_others_cpu_fraction: mean(|current| current.probe_others_cpu_fraction),
            ..probed.last()?.clone()
        })
    }

    /// Factors for the terms of the plan, 1 for a rate that was not measured; `None` if no rate was.
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

    /// Each rate by name, in the order of [`Factors`].
    pub(super) fn found(&self) -> [(&'static str, Option<f64>); 5] {
        [
            ("compute", self.probe_compute_over_planned),
            ("sequential memory", self.probe_stream_over_planned),
            ("scattered memory", self.probe_gather_over_planned),
            ("random reads", self.probe_random_reads_over_planned),
            ("sequential reads", self.probe_ordered_reads_over_planned),
        ]
    }

    /// Current rates in a sentence.
    pub(super) fn sentence(&self) -> String {
        let found = self.found();
        let rates: Vec<String> = (found.iter())
            .filter_map(|(name, factor)| Some(format!("{name} {:+.0} %", ((*factor)? - 1.0) * 100.0)))
            .collect();
        if rates.is_empty() {
            return format!("Current rates are not known: {}.", self.probe_unmeasured.join("; "));
        }
        let probes =
            if self.probes == 1 { String::new() } else { format!(", mean of {} probes", self.probes) };
        format!("Current rates against the profile{probes}: {}.", rates.join(", "))
    }
}

/// The probes of a benchmark.
#[derive(Debug)]
pub(super) struct Probes {
    found: Vec<CurrentRates>,
    last: Instant,
}

impl Probes {
    /// Goes on from the probe before the start; `None` where that was left out.
    pub(super) fn after(first: Option<CurrentRates>) -> Option<Self> {
        Some(Self { found: vec![first?], last: Instant::now() })
    }

    /// Whether it is time for another.
    pub(super) fn due(&self) -> bool {
        self.last.elapsed() >= BETWEEN_PROBES
    }

    pub(super) fn push(&mut self, current: CurrentRates) {
        self.found.push(current);
        self.last = Instant::now();
    }

    pub(super) fn mean(&self) -> Option<CurrentRates> {
        CurrentRates::mean(&self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_probes_give_the_mean_of_measured_rates() {
        let mut probes = Probes::after(Some(current())).expect("a first probe");
        assert!(!probes.due() && Probes::after(None).is_none());
        probes.push(CurrentRates {
            probe_random_reads_over_planned: Some(1.5),
            probe_compute_over_planned: None,
            ..current()
        });
        let mean = probes.mean().expect("two probes");
        assert_eq!((mean.probes, mean.probe_seconds), (2, 1.0));
        assert_eq!(mean.probe_random_reads_over_planned, Some(1.0));
        assert_eq!((mean.probe_compute_over_planned, mean.probe_stream_over_planned), (Some(0.9), None));
        assert_eq!(Probes { found: Vec::new(), ..probes }.mean(), None);
    }

    fn current() -> CurrentRates {
        CurrentRates {
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
    fn unmeasured_rates_are_taken_as_planned() {
        let mut current = current();
        let expected = Factors { compute: 0.9, random_reads: 0.5, ..Factors::NONE };
        assert_eq!(current.factors(), Some(expected));
        assert_eq!(
            current.sentence(),
            "Current rates against the profile: compute -10 %, random reads -50 %."
        );
        (current.probe_compute_over_planned, current.probe_random_reads_over_planned) = (None, None);
        assert_eq!(current.factors(), None);
        assert_eq!(current.sentence(), "Current rates are not known: memory is small.");
    }
}
