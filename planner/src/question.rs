//! The question that the planner answers: a device, a model, and limits with every default filled in.

use std::sync::Arc;

use plans::plan::{Feature, Objective, Request};
use plans::{Device, KvFormat, Model};

use crate::cost::Gpu;
use crate::cost::read_curves::{Fitted, Flash};

/// The two profiles, as the planner receives them.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// `device.toml`.
    pub device: Device,
    /// Hash of the bytes of `device.toml`.
    pub device_hash: String,
    /// `model.toml`.
    pub model: Model,
    /// Hash of the bytes of `model.toml`.
    pub model_hash: String,
    /// Sentences on figures of the two files that nothing vouches for.
    pub notes: Vec<String>,
}

/// A question to the planner: a device, a model, and the limits within which the best plan is sought.
#[derive(Debug, Clone)]
pub struct Question<'a> {
    /// The device, at the rates of the request's calibration.
    pub device: &'a Device,
    /// The model.
    pub model: &'a Model,
    /// The limits.
    pub limits: Limits,
    /// The request and the hashes of its inputs, which the plan repeats.
    pub origin: Origin<'a>,
    /// Share of a layer's experts that 1, 2, 4, ... tokens of a prompt visit: [`crate::cost::visited`] of the model.
    pub visited: Arc<[f64]>,
    /// Curves that were fitted to what was measured of flash, of this device and of others that are asked about on the way.
    pub fitted: Arc<Fitted>,
}

/// Where a question comes from.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The request, as it was made.
    pub request: &'a Request,
    /// The hash of `device.toml`.
    pub device_hash: &'a str,
    /// The hash of `model.toml`.
    pub model_hash: &'a str,
}

impl<'a> Question<'a> {
    /// The question within other limits.
    #[must_use]
    pub fn within(&self, limits: Limits) -> Self {
        Question { limits, visited: Arc::clone(&self.visited), fitted: Arc::clone(&self.fitted), ..*self }
    }

    /// What was measured of the device's flash.
    pub fn flash(&self) -> Flash<'_> {
        Flash { device: self.device, fitted: &self.fitted }
    }
}

/// A request with every default filled in.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The most that the process may take: the user's limit or the machine's, the smaller.
    pub memory_bytes: u64,
    /// Bytes that the machine can give to the process.
    pub machine_bytes: u64,
    /// The user's limit, if there is one.
    pub user_memory_bytes: Option<u64>,
    /// Least decoding speed.
    pub speed_min: Option<f64>,
    /// Prompts that must not take longer: tokens and seconds.
    pub prompts_max: Vec<PromptLimit>,
    /// Cores that may be used, fastest first.
    pub cores: Vec<u32>,
    /// Whether the user chose the cores.
    pub cores_chosen: bool,
    /// Context length.
    pub context: u32,
    /// Sequences in memory at a time.
    pub sequences: u32,
    /// Tokens of a draft, at most; 0: none are drafted.
    pub draft_tokens: u32,
    /// Kept free for a server, whole pages.
    pub reserve_bytes: u64,
    /// Allowed rise of perplexity, as a fraction.
    pub loss_max: f64,
    /// A held quality level.
    pub level: Option<String>,
    /// Instruction set.
    pub isa: String,
    /// How keys and values are stored.
    pub kv: KvFormat,
    /// The figure that is made best: speed or memory.
    pub objective: Objective,
    /// Mechanisms that must not be used.
    pub without: Vec<Feature>,
    /// The GPU's part of prompts.
    pub gpu: Option<Gpu>,
}

/// More memory than anything needs.
pub const UNLIMITED_BYTES: u64 = 1 << 50;

/// The limit on prompts that is a rate.
pub const MIN_PREFILL: &str = "user.min_prefill";

/// The most that a prompt may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PromptLimit {
    /// Name of the limit: [`MIN_PREFILL`] or `user.max_ttft`.
    pub name: &'static str,
    /// The prompt.
    pub tokens: u32,
    /// Most seconds that the prompt may take.
    pub seconds_max: f64,
}

/// Limits are compared in the six digits that a plan prints.
pub const DIGITS: f64 = 1.0 + 5e-6;

impl PromptLimit {
    /// Seconds of a prompt that keep the limit. Where that is a rate, the plan's prints as no less.
    pub fn seconds_allowed(&self) -> f64 {
        let (most, tokens) = (self.seconds_max * DIGITS, f64::from(self.tokens));
        match self.name {
            MIN_PREFILL => most.min(tokens / least_printed_as(tokens / self.seconds_max)),
            _ => most,
        }
    }
}

/// The least speed that six digits print as this one.
pub fn least_printed_as(speed: f64) -> f64 {
    speed - 0.5 * 10f64.powf(speed.log10().floor() - 5.0)
}

impl Limits {
    /// Whether a mechanism may be used.
    pub fn with(&self, feature: Feature) -> bool {
        !self.without.contains(&feature)
    }

    /// The same with tokens and prompts that may take any time.
    #[must_use]
    pub fn without_times(&self) -> Self {
        Self { speed_min: None, ..self.without_prompts() }
    }

    /// The same with prompts that may take any time.
    #[must_use]
    pub fn without_prompts(&self) -> Self {
        Self { prompts_max: Vec::new(), ..self.clone() }
    }

    /// Whether any limit is on time.
    pub fn on_time(&self) -> bool {
        self.speed_min.is_some() || !self.prompts_max.is_empty()
    }
}
