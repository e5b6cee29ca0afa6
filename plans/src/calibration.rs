//! `calibration.toml`: how far a machine was from its profile at a later date, thing by thing.
//!
//! It holds physical factors alone: what each kernel and each kind of read gave over what the profile says. Nothing in it comes from
//! the speed of a model, so that no prediction of a model is fitted to that model.

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
    /// When it was measured, and where.
    pub measured: MeasuredAt,
    /// Current rates over the profile's.
    pub factors: Factors,
}

/// When and where a calibration was measured.
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
    /// Share of the processors' time that others took meanwhile; absent: the system does not say.
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
