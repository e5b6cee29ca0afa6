//! The command line of `plan`, and what it requests.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use plans::check::UNITS;
use plans::file::Loaded;
use plans::plan::{Feature, Objective, Plan, Request, UnitQuality};
use plans::{Calibration, Device, KvFormat, file, size};

use crate::error::PlanError;
use crate::question::Inputs;

const EXAMPLES: &str = "\
Examples:
  plan --device device.toml --model model.toml --mem 12G --min-speed 8
      writes plan.toml, the fastest plan under 12 GiB, if it reaches 8 tokens per second
  plan --mem 12G --explain -o plan-12G.toml
      also prints where time and memory go, and what decided it
  plan --check plans/*.toml
      solves committed plans again and compares, for CI

Then: run --plan plan.toml --prompt \"Once upon a time\"
Exit codes: 0 done, 1 error or wrong usage, 2 no plan satisfies the limits.";

/// Options that `--check` has no use for: each plan holds its own request.
const OF_ONE_PLAN: [&str; 26] = [
    "device",
    "model",
    "output",
    "mem",
    "min_speed",
    "min_prefill",
    "max_ttft",
    "prompt",
    "cores",
    "context",
    "slots",
    "speculate",
    "reserve",
    "gpu_mem",
    "gpu_share",
    "max_loss",
    "objective",
    "quality",
    "level",
    "kv_format",
    "calibration",
    "no_learn",
    "without",
    "baseline",
    "explain",
    "smt",
];

/// Find the fastest plan for a model on a device under a memory limit, and write plan.toml
#[derive(Debug, Parser)]
#[command(name = "plan", version, after_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    /// The device, as measured by `profile`
    #[arg(long, value_name = "FILE", default_value = "device.toml")]
    pub device: PathBuf,
    /// The model, as measured by `profile`
    #[arg(long, value_name = "FILE", default_value = "model.toml")]
    pub model: PathBuf,
    /// The plan to write
    #[arg(short, long, value_name = "FILE", default_value = "plan.toml")]
    pub output: PathBuf,

    /// Memory limit of the whole process, e.g. 12G (2^30) or 12GB (10^9) [default: what the machine can give]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Limits")]
    pub mem: Option<u64>,
    /// Minimum decoding speed in tokens per second: mean of up to 1024 tokens after a 64-token prompt
    #[arg(long, value_name = "TOK_PER_S", help_heading = "Limits")]
    pub min_speed: Option<f64>,
    /// Minimum prefill speed in tokens per second, for that 64-token prompt
    #[arg(long, value_name = "TOK_PER_S", help_heading = "Limits")]
    pub min_prefill: Option<f64>,
    /// Maximum seconds to the first token after a prompt of --prompt tokens
    #[arg(long, value_name = "SECONDS", requires = "prompt", help_heading = "Limits")]
    pub max_ttft: Option<f64>,
    /// Tokens of the prompt that --max-ttft limits
    #[arg(long, value_name = "N", requires = "max_ttft", help_heading = "Limits")]
    pub prompt: Option<u32>,
    /// Cores to use, by id, e.g. 0-3,6 [default: all]
    #[arg(long, value_name = "LIST", value_parser = cores, help_heading = "Limits")]
    pub cores: Option<Cores>,
    /// Context length: prompt and generated tokens [default: 4096, or the model's if smaller]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub context: Option<u32>,
    /// Sequences that `run --serve` answers at once, each with its own context, 8 at most [default: 1]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub slots: Option<u32>,
    /// Draft up to K tokens (1 to 7) from earlier text and verify them in one step; the text stays the same. `auto` drafts only where
    /// the planned speed rises by more than a fifth [default: off]
    #[arg(long, value_name = "auto|off|K", value_parser = drafts, help_heading = "Choices")]
    pub speculate: Option<Drafting>,
    /// Memory kept free inside the limit for `run --serve`: grammars of JSON schemas, embeddings; e.g. 4M [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Limits")]
    pub reserve: Option<u64>,
    /// Memory limit of the GPU, e.g. 6G [default: what its part takes]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Limits")]
    pub gpu_mem: Option<u64>,
    /// Allowed rise of perplexity in percent; 0 allows lossless levels only
    ///
    /// Compared with the upper bound (95 % confidence) that `profile` gives each level, or with the measured rise in a profile
    /// without bounds.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, help_heading = "Limits")]
    pub max_loss: f64,
    /// Optimise for speed or for memory
    #[arg(long, value_enum, default_value_t = Goal::Speed, help_heading = "Limits")]
    pub objective: Goal,

    /// Take the quality keys of another plan: both then give the same tokens
    #[arg(long, value_name = "PLAN", conflicts_with = "level", help_heading = "Choices")]
    pub quality: Option<PathBuf>,
    /// Use this quality level of model.toml
    #[arg(long, value_name = "NAME", help_heading = "Choices")]
    pub level: Option<String>,
    /// Format of keys and values; `q8_0` and `q4_0` hold two to four times the context of `f16` in the same memory [default: f16]
    ///
    /// `profile` measured the loss of either; it counts against --max-loss on top of the level's. Never chosen automatically.
    #[arg(long, value_name = "FORMAT", value_parser = kv_format(), conflicts_with = "quality", help_heading = "Choices")]
    pub kv_format: Option<KvFormat>,
    /// Plan at the rates of this file, which `run --bench --calibration-out FILE` wrote on the device; the speed at the rates of
    /// device.toml is printed too
    #[arg(long, value_name = "FILE", help_heading = "Choices")]
    pub calibration: Option<PathBuf>,
    /// Percent of a prompt's fixed matrices that the GPU multiplies [default: the fastest; none where the cores alone are as fast]
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with = "quality", help_heading = "Choices")]
    pub gpu_share: Option<u32>,
    /// Do not use learned.toml beside the model's profile, where `run` counts how a mixture's experts are used
    #[arg(long, help_heading = "Choices")]
    pub no_learn: bool,
    /// Do not use a mechanism, to see what it gives; may be repeated
    #[arg(long, value_name = "FEATURE", value_parser = feature(), help_heading = "Choices")]
    pub without: Vec<Feature>,
    /// Plan as another system would, without the mechanisms that it lacks
    #[arg(long, value_enum, value_name = "SYSTEM", help_heading = "Choices")]
    pub baseline: Option<Baseline>,

    /// Plan at twelve memory limits: prints a table, writes frontier.csv and frontier.svg, and no plan
    #[arg(long, conflicts_with_all = ["check", "explain", "smt"], help_heading = "Instead of planning")]
    pub frontier: bool,
    /// Solve these plans again from the profiles beside them, by the request that each holds, and compare
    #[arg(long, value_name = "PLAN", num_args = 1.., conflicts_with_all = OF_ONE_PLAN, help_heading = "Instead of planning")]
    pub check: Vec<PathBuf>,

    /// Print time and memory term by term, and what decided each choice
    #[arg(long, help_heading = "Report")]
    pub explain: bool,
    /// Write the problem as SMT-LIB 2
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub smt: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long, help_heading = "Report")]
    pub json: bool,
    /// Log to standard error; twice: every decision
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = "Report")]
    pub verbose: u8,
}

/// Value of `--speculate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drafting {
    /// Drafts where they pay.
    Auto,
    /// None.
    Off,
    /// So many tokens.
    Tokens(u32),
}

fn drafts(text: &str) -> Result<Drafting, String> {
    match text {
        "auto" => Ok(Drafting::Auto),
        "off" => Ok(Drafting::Off),
        _ => text
            .parse()
            .ok()
            .filter(|&tokens| tokens > 0)
            .map(Drafting::Tokens)
            .ok_or_else(|| "it is `auto`, `off`, or the most tokens of a draft, such as 3".to_owned()),
    }
}

/// Objective of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Goal {
    /// The highest decoding speed.
    Speed,
    /// The least memory, at --min-speed if that is given.
    Memory,
}

/// A system to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Baseline {
    /// LLM in a flash: predictor, bundles of up and down, an LRU cache; no pinned neurons, no overlap, no prefetch, CPU only.
    LlmInAFlash,
    /// The simple rule: pin the same number of neurons in every layer, use all cores, read one neuron at a time.
    SimpleRule,
}

impl Baseline {
    /// Mechanisms that the system has not.
    fn without(self) -> &'static [Feature] {
        match self {
            Self::SimpleRule => &[],
            Self::LlmInAFlash => &[
                Feature::HotRegion,
                Feature::WholeRead,
                Feature::Pipeline,
                Feature::LookAhead,
                Feature::Policy,
                Feature::Units,
            ],
        }
    }
}

/// A share in sixty-fourths.
fn percent(text: &str) -> Result<u32, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    let parts = percent.map(|percent: f64| (percent / 100.0 * f64::from(UnitQuality::PARTS)).round() as u32);
    parts.filter(|&parts| parts > 0).ok_or_else(|| "it is a number from 1 to 100".to_owned())
}

/// A mechanism by its name; `gpu` is another name of `units`.
fn feature() -> impl TypedValueParser<Value = Feature> {
    let named = |name: String| match &*name {
        "gpu" => Some(Feature::Units),
        _ => Feature::ALL.into_iter().find(|feature| feature.name() == name),
    };
    let value = |feature: Feature| match feature {
        Feature::Units => PossibleValue::new(feature.name()).alias(UNITS[2]),
        _ => PossibleValue::new(feature.name()),
    };
    PossibleValuesParser::new(Feature::ALL.map(value)).try_map(move |name| named(name).ok_or("unknown"))
}

/// A format of keys and values by its name.
fn kv_format() -> impl TypedValueParser<Value = KvFormat> {
    PossibleValuesParser::new(["f16", "f32", "q8_0", "q4_0"])
        .map(|name: String| KvFormat::named(&name.to_uppercase()))
}

/// Core ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores(pub Vec<u32>);

/// A list such as `0-3,6`.
fn cores(text: &str) -> Result<Cores, String> {
    let wrong = || format!("`{text}` is not a list of core ids; write for example 0-3,6");
    let mut ids = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|&id| id < 1 << 16);
        let (first, last) = number(first).zip(number(last)).ok_or_else(wrong)?;
        if first > last {
            return Err(wrong());
        }
        ids.extend(first..=last);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(Cores(ids))
}

impl Cli {
    /// All that is to be left out, in order.
    fn without(&self) -> Vec<Feature> {
        let baseline = self.baseline.map_or(&[][..], Baseline::without);
        let mut without: Vec<Feature> = self.without.iter().chain(baseline).copied().collect();
        without.sort_unstable();
        without.dedup();
        without
    }

    /// Whether the plan of the simple rule is requested.
    pub fn simple_rule(&self) -> bool {
        matches!(self.baseline, Some(Baseline::SimpleRule))
    }

    /// The file given to `--calibration`.
    ///
    /// # Errors
    /// It cannot be read or is another device's.
    pub fn calibration(&self, device: &Device) -> Result<Option<Loaded<Calibration>>, PlanError> {
        let Some(path) = &self.calibration else { return Ok(None) };
        let loaded = file::read::<Calibration>(path)?;
        let measured = &loaded.value.measured;
        if measured.device_fingerprint != device.fingerprint {
            return Err(PlanError::Request(format!(
                "--calibration {} was measured on {}, and this is {}; take one of the same device, or plan without --calibration",
                path.display(),
                measured.device,
                device.name
            )));
        }
        Ok(Some(loaded))
    }

    /// The request that the options make, at the rates of the file that [`Self::calibration`] has read.
    ///
    /// # Errors
    /// A plan given to `--quality` that cannot be read or is another model's.
    pub fn request(
        &self,
        Inputs { device, model, .. }: &Inputs,
        calibration: Option<&Loaded<Calibration>>,
    ) -> Result<Request, PlanError> {
        let held = match &self.quality {
            None => None,
            Some(path) => {
                let plan = file::read::<Plan>(path)?.value;
                if plan.target.model_fingerprint != model.fingerprint {
                    return Err(PlanError::Request(format!(
                        "--quality {} is a plan for {}, and this is {}; take a plan of the same model, or plan without --quality",
                        path.display(),
                        plan.target.model,
                        model.name
                    )));
                }
                Some(plan.quality)
            }
        };
        let adapters = || device.units.iter().filter_map(|unit| unit.rates.as_ref()?.adapter.as_ref());
        let mut without = self.without();
        match held.as_ref().map(|quality| quality.units.first()) {
            Some(Some(unit)) if !adapters().any(|adapter| *adapter == unit.adapter) => {
                return Err(PlanError::Request(format!(
                    "the quality keys hold the GPU `{}`, which this device has not; profile on the machine that has it, or plan without --quality",
                    unit.adapter
                )));
            }
            // the cores alone
            Some(None) if adapters().next().is_some() && !without.contains(&Feature::Units) => {
                without.push(Feature::Units);
            }
            _ => {}
        }
        let of = |key: &dyn Fn(&plans::plan::Quality) -> String| held.as_ref().map(key);
        let own_kv = || Some(self.kv_format?.name().to_owned());
        Ok(Request {
            objective: match self.objective {
                Goal::Speed => Objective::Speed,
                Goal::Memory => Objective::Memory,
            },
            memory_limit_bytes: self.mem,
            decode_tokens_per_second_min: self.min_speed,
            prefill_tokens_per_second_min: self.min_prefill,
            first_token_seconds_max: self.max_ttft,
            prompt_tokens: self.prompt,
            cores: self.cores.as_ref().map(|cores| cores.0.clone()),
            context_tokens: self.context,
            sequences: self.slots,
            draft_tokens: match self.speculate {
                Some(Drafting::Tokens(tokens)) => Some(tokens),
                _ => None,
            },
            draft_tokens_auto: self.speculate == Some(Drafting::Auto),
            gpu_limit_bytes: self.gpu_mem,
            gpu_parts: held
                .as_ref()
                .and_then(|quality| quality.units.first())
                .map(|unit| unit.prefill_parts)
                .or(self.gpu_share),
            reserve_bytes: self.reserve.filter(|&bytes| bytes > 0),
            perplexity_change_fraction_max: file::significant(self.max_loss / 100.0),
            level: of(&|q| q.level.clone()).or_else(|| self.level.clone()),
            instruction_set: of(&|q| q.instruction_set.clone()),
            kv_format: of(&|q| q.kv_format.clone()).or_else(own_kv),
            activations: of(&|q| q.activations.clone()),
            calibration: calibration.map(|loaded| loaded.value.factors),
            simple_rule: self.simple_rule(),
            without,
        })
    }
}

#[cfg(test)]
mod tests;
