//! The command line.

use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Parser, ValueEnum, ValueHint};
use flashplan::internals::container;
use huggingface::Quantisation;
use kernels::{Activation, Format};

use crate::model::{Source, Weights};
use crate::{ProfileError, outputs};

const EXAMPLES: &str = "\
Examples:
  profile --out devices/my-phone --storage /data/local/tmp
      measures this machine and the disk under /data/local/tmp; writes device.toml
  profile --check
      lists what slows this machine down, with the command that mends each
  profile --model mistral-7b-relu.gguf --out mistral
      measures the machine, unless mistral/device.toml exists, and then the model
  profile --model Qwen3-4B --quantize q8_0 --out qwen
      converts the folder to qwen/Qwen3-4B-q8_0.gguf, prints the loss of quantising, and measures the file
  profile --instant --model Qwen3-30B-A3B-Q4_K_M.gguf --out qwen
      reads the file once and calibrates nothing; plans from it have wider errors
  profile --model hf:Qwen/Qwen3-4B-GGUF:Q4_K_M --out qwen
      downloads the file from Hugging Face's hub, unless the cache has it, and measures it

Then: plan --device device.toml --model model.toml --mem 12G
Exit codes: 0 done, 1 error or wrong usage.";

/// Measure this machine and a model, for `plan`
///
/// Writes device.toml, storage.csv, cores.csv and memory.csv. With --model it also writes model.toml, neurons.csv and reuse.csv, and
/// the container MODEL.bundle or the index MODEL.index. Files appear when they are complete. Finished parts of a model are kept, so the
/// same command resumes after a kill.
#[derive(Debug, Clone, Parser)]
#[command(name = "profile", version, after_help = EXAMPLES, max_term_width = 110)]
pub struct Arguments {
    /// Model to measure: a GGUF file, a folder with one, a folder from Hugging Face's hub, or a model on the hub
    ///
    /// A folder from the hub (config.json, safetensors, tokenizer) is first converted to a GGUF file in the folder of --storage, quantised
    /// with --quantize. The file stays, and the same command finds it again.
    ///
    /// hf:OWNER/REPO:QUANT is downloaded first. Without :QUANT the repository must have a single quantisation; one without GGUF files is
    /// downloaded as a folder. Downloads lie in the cache of Hugging Face's own programs and resume. `HF_TOKEN`, `HF_HOME` and
    /// `HF_ENDPOINT` work as there.
    #[arg(long, value_name = "FILE|DIR|hf:OWNER/REPO[:QUANT]", help_heading = "Model", value_hint = ValueHint::AnyPath)]
    #[arg(value_parser = OsStringValueParser::new().try_map(Source::read), group = "named")]
    pub model: Option<Source>,
    /// A model, as --model names it
    #[arg(value_name = "MODEL", conflicts_with = "model", help_heading = "Model", value_hint = ValueHint::AnyPath, group = "named")]
    #[arg(value_parser = OsStringValueParser::new().try_map(Source::read))]
    file: Option<Source>,
    /// Quantise the weights of a folder from Hugging Face's hub to this format [default: none]
    ///
    /// Prints the measured change of perplexity. Embedding and head of a 4-bit model have 8 bits.
    #[arg(long, value_name = "FORMAT", requires = "named", help_heading = "Model")]
    pub quantize: Option<QuantisedFormat>,
    /// Calibration text, instead of the built-in one
    #[arg(long, value_name = "FILE", requires = "named", help_heading = "Model")]
    pub text: Option<PathBuf>,
    /// Format of the down rows of a quantised model, which are quantised again to read single neurons [default: the model's; the finest
    /// where layers differ]
    ///
    /// `Q8_0` loses least, and takes more memory and reads. The loss is measured with the levels. Where all neurons fire (`SiLU`, GELU),
    /// down stays bit for bit as in the file without this option.
    #[arg(long, value_name = "FORMAT", requires = "named", help_heading = "Model")]
    pub down: Option<DownFormat>,
    /// Add levels that skip neurons with a small gate, for a model whose neurons all fire (`SiLU`, GELU)
    ///
    /// A container then stores single neurons, and all gates stay in memory. Up and down are read and computed only where the gate reaches
    /// a threshold. Each level's loss is measured; `--max-loss` of `plan` limits it.
    #[arg(long, requires = "named", conflicts_with = "routes", help_heading = "Model")]
    pub gate_levels: bool,
    /// Activation function, where the file does not name it or names a wrong one
    ///
    /// Files of ReLU models from llama.cpp's converter need `--activation relu`: they look like SiLU models.
    #[expect(clippy::doc_markdown, reason = "help is no Markdown")]
    #[arg(long, value_name = "NAME", requires = "named", help_heading = "Model")]
    pub activation: Option<ActivationName>,
    /// Write an index of the model's own file instead of a container [default for mixtures read by whole experts]
    ///
    /// `run` then reads the weights from the model's file, which must stay. The index has a few megabytes. Each matrix of an expert is a
    /// read of its own. A mixture with exact zeros has only the level `dense` then.
    #[arg(long, requires = "named", help_heading = "Model")]
    pub index: bool,
    /// Write a container with all weights, after which the model's file is not needed
    ///
    /// The default for models read by single neurons or whole layers, where --storage is on another disk than the model, and with
    /// --consume-model.
    #[arg(long, requires = "named", conflicts_with = "index", help_heading = "Model")]
    pub pack: bool,
    /// Recorded expert routing of a real model, for a mixture with random weights
    ///
    /// Misses are measured with the recorded experts, and look-ahead knows only recorded predictions. Run the plan with
    /// `run --bench --routes` and the same file; `run --help` describes its form.
    #[arg(long, value_name = "FILE.csv", requires = "named", help_heading = "Model")]
    pub routes: Option<PathBuf>,
    /// Delete the model's file while the container is written
    ///
    /// For a disk that cannot hold the model twice. Each layer's bytes go as soon as the container has them. After a kill only the same
    /// command with this option can resume.
    #[arg(long, requires = "named", help_heading = "Model")]
    pub consume_model: bool,

    /// Folder of all files but the container or index
    #[arg(short, long, value_name = "DIR", default_value = ".", help_heading = "Files")]
    pub out: PathBuf,
    /// Folder of the container or index; its disk is measured [default: --out]
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    pub storage: Option<PathBuf>,
    /// Replace another model's profile in these folders
    ///
    /// Without this option it is an error. A profile of the same model always replaces its own files.
    #[arg(long, requires = "named", help_heading = "Files")]
    pub replace: bool,
    /// Short name of the device or, with --model, of the model [default: from its description]
    #[arg(long, help_heading = "Files")]
    pub name: Option<String>,

    /// Take a sixth of the time: fewer points, shorter windows, fewer tokens
    #[arg(long)]
    pub quick: bool,
    /// Read the model once and calibrate nothing: seconds instead of minutes
    ///
    /// Cache misses come from recorded routes of other models, and model.toml says so. A `ReLU` model runs dense until it is profiled
    /// without this option.
    #[arg(long, requires = "named", conflicts_with_all = ["quick", "text", "routes", "down", "gate_levels", "consume_model"])]
    pub instant: bool,
    /// Read only the model's header, and write model.toml for `plan`: what a model would do, before its download
    ///
    /// Fetches a few megabytes of a model on the hub. `run` needs an index or a container, which this does not write.
    #[arg(long, requires = "named", conflicts_with_all = ["instant", "quick", "text", "routes", "down", "gate_levels", "consume_model",
        "quantize", "pack", "storage"])]
    pub header: bool,
    /// List what slows this machine down, with the command that mends each; measures nothing
    #[arg(long, conflicts_with_all = ["named", "name", "quick", "instant", "header", "json"])]
    pub check: bool,
    /// Print one JSON object on standard output instead of tables
    #[arg(long, help_heading = "Report")]
    pub json: bool,
    /// Log to standard error, and print all rates and levels; twice: every step
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = "Report")]
    pub verbose: u8,
}

impl Arguments {
    /// These arguments, with the model under its option's name.
    #[must_use]
    pub fn named(mut self) -> Self {
        self.model = self.model.or(self.file.take());
        self
    }

    /// The requested place of the weights; `None`: the default.
    pub fn weights(&self) -> Option<Weights> {
        match (self.index, self.pack) {
            (true, _) => Some(Weights::OwnFile),
            (_, true) => Some(Weights::Container),
            _ => None,
        }
    }

    /// The folder whose disk is measured.
    pub fn storage(&self) -> &Path {
        self.storage.as_deref().unwrap_or(&self.out)
    }

    /// Checks all paths before the measurement.
    ///
    /// # Errors
    /// [`ProfileError::Path`] with the option and its fault; [`ProfileError::Contract`] if a folder cannot be written to.
    pub fn check(&self) -> Result<(), ProfileError> {
        if self.check {
            let flag = if self.storage.is_some() { "--storage" } else { "--out" };
            return require(flag, self.storage(), self.storage().is_dir(), "is not a folder");
        }
        for (flag, folder) in [("--out", &*self.out), ("--storage", self.storage())] {
            if flag == "--out" && !folder.exists() {
                std::fs::create_dir_all(folder).map_err(|source| ProfileError::Io {
                    action: "create",
                    path: folder.to_owned(),
                    source,
                })?;
            }
            require(flag, folder, folder.is_dir(), "is not a folder")?;
        }
        self.check_outputs()?;
        if let Some(Source::Path(model)) = &self.model {
            require("--model", model, model.exists(), "does not exist")?;
        }
        if let Some(text) = &self.text {
            require("--text", text, text.is_file(), "is not a file")?;
        }
        if let Some(routes) = &self.routes {
            require("--routes", routes, routes.is_file(), "is not a file")?;
        }
        if let Some(name) = &self.name {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || !name.chars().all(plain) {
                return Err(ProfileError::Name { name: name.clone() });
            }
        }
        Ok(())
    }
}

impl Arguments {
    /// Checks that the folders take files, and that no output replaces another file.
    fn check_outputs(&self) -> Result<(), ProfileError> {
        let (mut inputs, mut files): (Vec<(&str, &Path)>, _) = (Vec::new(), Vec::new());
        if let Some(Source::Path(model)) = &self.model {
            inputs.push(("the model", model));
        }
        inputs.extend(self.text.iter().map(|text| ("the file of --text", &**text)));
        inputs.extend(self.routes.iter().map(|routes| ("the file of --routes", &**routes)));
        // an existing device stays
        if self.model.is_none() || !self.out.join("device.toml").exists() {
            files.extend(outputs::of_device());
        }
        if self.model.is_some() {
            files.extend(outputs::of_model());
        }
        outputs::writable(&self.out, &files, &inputs)?;
        outputs::writable(self.storage(), &[("a container", container::OUTPUT)], &[])?;
        Ok(())
    }
}

/// A format of quantised down rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DownFormat {
    /// 4.5 bits a weight.
    #[value(name = "Q4_0", alias = "q4_0")]
    Q4,
    /// 4.5 bits a weight, with a minimum for each 32; the width must be a multiple of 256.
    #[value(name = "Q4_K", alias = "q4_k")]
    Q4K,
    /// 5.5 bits a weight, with a minimum for each 32; the width must be a multiple of 256.
    #[value(name = "Q5_K", alias = "q5_k")]
    Q5K,
    /// 6.6 bits a weight; the width must be a multiple of 256.
    #[value(name = "Q6_K", alias = "q6_k")]
    Q6K,
    /// 8.5 bits a weight.
    #[value(name = "Q8_0", alias = "q8_0")]
    Q8,
}

impl From<DownFormat> for Format {
    fn from(down: DownFormat) -> Self {
        match down {
            DownFormat::Q4 => Self::Q4_0,
            DownFormat::Q4K => Self::Q4K,
            DownFormat::Q5K => Self::Q5K,
            DownFormat::Q6K => Self::Q6K,
            DownFormat::Q8 => Self::Q8_0,
        }
    }
}

/// A format of a folder's quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum QuantisedFormat {
    /// 8.5 bits a weight.
    #[value(name = "q8_0", alias = "Q8_0")]
    Q8,
    /// 4.5 bits a weight.
    #[value(name = "q4_0", alias = "Q4_0")]
    Q4,
    /// 4.5 bits a weight, with a minimum for each 32; rows that are no multiple of 256 become `q8_0`.
    #[value(name = "q4_k", alias = "Q4_K")]
    Q4K,
    /// Half precision.
    #[value(name = "f16", alias = "F16")]
    F16,
}

impl From<QuantisedFormat> for Quantisation {
    fn from(format: QuantisedFormat) -> Self {
        match format {
            QuantisedFormat::Q8 => Self::Q8_0,
            QuantisedFormat::Q4 => Self::Q4_0,
            QuantisedFormat::Q4K => Self::Q4K,
            QuantisedFormat::F16 => Self::F16,
        }
    }
}

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ActivationName {
    /// `relu(gate x) * up x`: most neurons are zero.
    Relu,
    /// `relu(gate x) * relu(up x)`: more neurons are zero.
    Drelu,
    /// `silu(gate x) * up x`: no neuron is exactly zero.
    Silu,
}

impl From<ActivationName> for Activation {
    fn from(name: ActivationName) -> Self {
        match name {
            ActivationName::Relu => Self::Relu,
            ActivationName::Drelu => Self::Drelu,
            ActivationName::Silu => Self::Silu,
        }
    }
}

fn require(flag: &'static str, path: &Path, fulfilled: bool, otherwise: &str) -> Result<(), ProfileError> {
    if fulfilled {
        return Ok(());
    }
    let why = if path.exists() { otherwise } else { "does not exist" };
    Err(ProfileError::Path { flag, path: path.to_owned(), why: why.to_owned() })
}
