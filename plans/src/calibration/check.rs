//! The ranges of the values of a `calibration.toml`.

use super::{Calibration, MeasuredAt};
use crate::SCHEMA;
use crate::check::{At, Checked};
use crate::terms::check::factors;

/// The whole file.
pub(super) fn check(calibration: &Calibration, at: &At<'_>) -> Checked {
    let Calibration { schema, measured, factors: of_factors } = calibration;
    at.key("schema").count(*schema, SCHEMA.into(), SCHEMA.into())?;
    let MeasuredAt { tool, date, device, device_fingerprint, model, others_cpu_fraction } = measured;
    let of_measured = at.key("measured");
    of_measured.key("tool").text(tool)?;
    day(date, &of_measured.key("date"))?;
    of_measured.key("device").text(device)?;
    of_measured.key("device_fingerprint").plain(device_fingerprint)?;
    of_measured.key("model").text(model)?;
    if let Some(others) = others_cpu_fraction {
        of_measured.key("others_cpu_fraction").fraction(*others)?;
    }
    factors(of_factors, &at.key("factors"))
}

fn day(date: &str, at: &At<'_>) -> Checked {
    at.note("year, month and day: `2026-11-24`");
    let parts: Vec<Option<u32>> = date.split('-').map(|part| part.parse().ok()).collect();
    let fits = matches!(parts[..], [Some(_), Some(1..=12), Some(1..=31)])
        && date.len() == "2026-11-24".len()
        && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    at.holds(fits, || format!("is `{date}`; a day such as 2026-11-24 belongs there"))
}
