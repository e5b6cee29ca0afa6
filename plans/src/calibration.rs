//! `calibration.toml`: a machine's rates at a later date, relative to its profile.
//!
//! It has physical factors only: the measured rate of each kernel and each kind of read, over the profile's. Nothing in it comes from the
//! speed of a model, so no prediction of a model is fitted to that model.

mod check;

use serde::{Deserialize, Serialize};

use crate::check::{At, Checked};
use crate::file::Contract;
use crate::terms::Factors;

/// Rates of a machine on one date, over the profile's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Date and place of the measurement.
    pub measured: MeasuredAt,
    /// Current rates over the profile's.
    pub factors: Factors,
}

/// Date and place of a calibration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredAt {
    /// Name and version of the program that wrote the file.
    pub tool: String,
    /// The day, in universal time: `2026-11-24`.
    pub date: String,
    /// The device's name, for people.
    pub device: String,
    /// The device's fingerprint; `plan` refuses another device's.
    pub device_fingerprint: String,
    /// The model whose container was read, for people.
    pub model: String,
    /// Share of processor time that other processes took during the measurement; absent: the system does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others_cpu_fraction: Option<f64>,
}

impl Contract for Calibration {
    const KIND: &'static str = "calibration.toml";
    const COMMAND: &'static str = "run --bench --calibration-out";
    const MARK: &'static str = "measured";
    const COMMENTS: &'static [(&'static str, &'static str)] = &[
        ("[measured]", "When and where."),
        ("[factors]", "How many times as fast as in the profile; 1: as there, or not measured."),
    ];
    const HAS_CHECKSUM: bool = true;

    fn check_at(&self, at: &At<'_>) -> Checked {
        check::check(self, at)
    }

    fn decode(file: toml::Deserializer<'_>) -> Result<Self, toml::de::Error> {
        Self::deserialize(file)
    }

    fn encode(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}
