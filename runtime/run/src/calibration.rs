//! Current rates over the profile's, as a file for `plan --calibration`.
//!
//! Only what the probe measures goes into it, never the speed of a token.

use std::path::Path;

use plans::calibration::MeasuredAt;
use plans::file::significant;
use plans::terms::Factors;
use plans::{Calibration, Plan, SCHEMA};

use super::current::CurrentRates;
use super::{Failure, failure};

/// Writes what was found.
///
/// # Errors
/// Nothing was measured, it is too far from the profile to be the same machine, or the file cannot be written.
pub(super) fn write(path: &Path, plan: &Plan, current: &CurrentRates) -> Result<(), Failure> {
    let Some(factors) = factors(plan, current) else {
        return Err(failure(format!(
            "nothing was measured that a calibration could hold ({}); {} is not written",
            current.probe_unmeasured.first().map_or("no rate of the plan", String::as_str),
            path.display()
        )));
    };
    let calibration = Calibration {
        schema: SCHEMA,
        measured: MeasuredAt {
            tool: format!("run {}", env!("CARGO_PKG_VERSION")),
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
            device: plan.target.device.clone(),
            device_fingerprint: plan.target.device_fingerprint.clone(),
            model: plan.target.model.clone(),
            others_cpu_fraction: current.probe_others_cpu_fraction.map(significant),
        },
        factors,
    };
    plans::file::write(&calibration, path).map(drop).map_err(failure)
}

/// The measured factors times the factors of the plan's calibration: together they hold over the profile. `None` without measured factors.
fn factors(plan: &Plan, current: &CurrentRates) -> Option<Factors> {
    let found = current.factors()?;
    let assumed = plan.request.calibration.unwrap_or(Factors::NONE);
    Some(Factors {
        compute: significant(assumed.compute * found.compute),
        stream: significant(assumed.stream * found.stream),
        gather: significant(assumed.gather * found.gather),
        random_reads: significant(assumed.random_reads * found.random_reads),
        ordered_reads: significant(assumed.ordered_reads * found.ordered_reads),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current(reads: Option<f64>) -> CurrentRates {
        CurrentRates {
            probes: 1,
            probe_seconds: 0.5,
            probe_compute_over_planned: None,
            probe_stream_over_planned: None,
            probe_gather_over_planned: None,
            probe_random_reads_over_planned: reads,
            probe_ordered_reads_over_planned: None,
            probe_others_cpu_fraction: Some(0.1),
            probe_unmeasured: Vec::new(),
            in_plan: true,
        }
    }

    fn plan() -> Plan {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../plans/amd-epyc-2c-24g/oxide-dense/plan-20M.toml");
        plans::file::read::<Plan>(&path).expect("a committed plan").value
    }

    #[test]
    fn factors_are_over_the_profile_and_what_was_not_measured_is_as_there() {
        let mut plan = plan();
        let found = factors(&plan, &current(Some(2.0))).expect("factors");
        assert_eq!(found, Factors { random_reads: 2.0, ..Factors::NONE });
        plan.request.calibration = Some(Factors { random_reads: 0.8, compute: 0.9, ..Factors::NONE });
        let found = factors(&plan, &current(Some(0.5))).expect("factors");
        assert_eq!(found, Factors { random_reads: 0.4, compute: 0.9, ..Factors::NONE });
        assert_eq!(factors(&plan, &current(None)), None);
    }

    #[test]
    fn what_was_written_can_be_read_and_nothing_is_written_of_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calibration.toml");
        assert!(write(&path, &plan(), &current(None)).is_err() && !path.exists());
        write(&path, &plan(), &current(Some(0.5))).expect("it is written");
        let read = plans::file::read::<Calibration>(&path).expect("it can be read").value;
        assert_eq!(read.factors.random_reads, 0.5);
        // a hundredth of the profile's speed is another machine
        assert!(write(&path, &plan(), &current(Some(0.01))).is_err());
    }
}
