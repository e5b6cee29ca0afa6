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
      says what this machine lacks, and the command that mends it
  profile --model mistral-7b-relu.gguf --out mistral
      measures the machine, unless mistral/device.toml is there, and the model
  profile --model Qwen3-4B --quantize q8_0 --out qwen
      makes qwen/Qwen3-4B-q8_0.gguf of the folder, says what that loses, and measures it
  profile --model hf:Qwen/Qwen3-4B-GGUF:Q4_K_M --out qwen
      fetches that file from Hugging Face's hub, unless it is there, and measures it

Then: plan --device device.toml --model model.toml --mem 12G
Exit codes: 0 done, 1 error or wrong usage.";

/// Measure this machine and a model, for `plan` to plan with
///
/// Writes device.toml, storage.csv, cores.csv and memory.csv; with --model also model.toml, neurons.csv,
/// reuse.csv and the flash container MODEL.bundle, or MODEL.index where weights are read from the model's own file.
/// Files appear when they are complete; what is finished of a model is kept beside them until then, so that the same
/// command goes on where it was stopped or killed.
#[derive(Debug, Clone, Parser)]
#[command(name = "profile", version, after_help = EXAMPLES, max_term_width = 110)]
pub struct Arguments {
    /// A model to measure too: a GGUF file, a folder with one, a folder from Hugging Face's hub, or a model there
    ///
    /// A folder from the hub (config.json, safetensors, tokenizer) is first written as a GGUF file into the folder of --storage, with its
    /// weights as they are or as --quantize has them. The file stays, and the same command finds it again.
    ///
    /// hf:OWNER/REPO:QUANT is fetched first: the GGUF files of that quantisation, the only one's where :QUANT is left out, or a folder
    /// with safetensors where there are no GGUF files. They lie in the cache of Hugging Face's own programs; a fetch that was stopped
    /// goes on. `HF_TOKEN`, `HF_HOME` and `HF_ENDPOINT` are heeded.
    #[arg(long, value_name = "FILE|DIR|hf:OWNER/REPO[:QUANT]", help_heading = "Model", value_hint = ValueHint::AnyPath)]
    #[arg(value_parser = OsStringValueParser::new().try_map(Source::read))]
    pub model: Option<Source>,
    /// The format that the weights of a folder from Hugging Face's hub are quantised to [default: none, as they are]
    ///
    /// The change of perplexity is measured and told. The embedding and the head of models in four bits have eight.
    #[arg(long, value_name = "FORMAT", requires = "model", help_heading = "Model")]
    pub quantize: Option<QuantisedFormat>,
    /// A calibration text instead of the one built in
    #[arg(long, value_name = "FILE", requires = "model", help_heading = "Model")]
    pub text: Option<PathBuf>,
    /// How a quantised model's down rows are stored, which must be quantised again [default: as in the model, the
    /// finest where layers differ; not at all where all neurons fire]
    ///
    /// Where all neurons fire, as those of `SiLU` do, down stays bit for bit as it is in the file unless this asks for rows.
    /// `Q8_0` keeps nearly every bit and takes more memory and reads; the loss of either is measured with the levels.
    #[arg(long, value_name = "FORMAT", requires = "model", help_heading = "Model")]
    pub down: Option<DownFormat>,
    /// Offer levels that leave out neurons whose gate is small, of a model whose neurons all fire (`SiLU`, GELU)
    ///
    /// Neurons are stored one by one then, in a container, with all gates always in memory; up and down are read and computed of
    /// those alone whose gate reaches a threshold. Each level's loss is measured; `--max-loss` of `plan` chooses among them.
    #[arg(long, requires = "model", conflicts_with = "routes", help_heading = "Model")]
    pub gate_levels: bool,
    /// The function between gate and up, where the file does not say it or is wrong: files of `relu` models that came from llama.cpp's
    /// converter are taken for `silu`
    #[arg(long, value_name = "NAME", requires = "model", help_heading = "Model")]
    pub activation: Option<ActivationName>,
    /// Leave the weights in the model's own file, and write an index of it instead of a container [default where whole experts
    /// are read]
    ///
    /// For models of which every level needs whole experts or layers: `run` reads them from the model's file, which must stay, and
    /// an index of a few megabytes says where they are. Reads are larger than a container's, one for each matrix of an expert. A mixture
    /// with exact zeros has the level `dense` alone then.
    #[arg(long, requires = "model", help_heading = "Model")]
    pub index: bool,
    /// Write all weights into a container, after which the model's file is not needed [default where single neurons or whole layers
    /// are read, where --storage is on another disk than the model, and with --consume-model]
    #[arg(long, requires = "model", conflicts_with = "index", help_heading = "Model")]
    pub pack: bool,
    /// A recording of a real model's routing, for a mixture of generated weights that is read expert by expert
    ///
    /// Misses are then measured of the recorded experts, not of the model's own, and nothing is known ahead but what was recorded: a plan is
    /// for `run --bench --routes` with the same file, which has the form that is described there.
    #[arg(long, value_name = "FILE.csv", requires = "model", help_heading = "Model")]
    pub routes: Option<PathBuf>,
    /// Give the model's file back to the disk while the container is written, and remove it at the end
    ///
    /// For a disk that cannot hold a model twice. Only what the container holds already goes; a start after a kill goes
    /// on, with this same option.
    #[arg(long, requires = "model", help_heading = "Model")]
    pub consume_model: bool,

    /// The folder for all files but the container or index
    #[arg(short, long, value_name = "DIR", default_value = ".", help_heading = "Files")]
    pub out: PathBuf,
    /// The folder for the container or index: its disk is measured [default: that of --out]
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    pub storage: Option<PathBuf>,
    /// Replace the files of another model in these folders
    ///
    /// Without it they are refused. A profile of the same model replaces its own files.
    #[arg(long, requires = "model", help_heading = "Files")]
    pub replace: bool,
    /// The short name of the device or, with --model, of the model [default: made from its description]
    #[arg(long, help_heading = "Files")]
    pub name: Option<String>,

    /// A sixth of the time: fewer points, shorter windows, fewer tokens
    #[arg(long)]
    pub quick: bool,
    /// Only say what this machine lacks for plans to run at full speed, and the command that mends each; nothing is measured
    #[arg(long, conflicts_with_all = ["model", "name", "quick", "json"])]
    pub check: bool,
    /// Print one JSON object on standard output instead of tables
    #[arg(long, help_heading = "Report")]
    pub json: bool,
    /// Say on standard error what is done; twice: each step of it, too
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = "Report")]
    pub verbose: u8,
}

impl Arguments {
    /// Where weights are to be read from, if that is asked for.
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

    /// Finds paths that cannot be, before anything is measured.
    ///
    /// # Errors
    /// [`ProfileError::Path`] with the option and what is wrong with it; [`ProfileError::Contract`] if a
    /// folder cannot be written to.
    pub fn check(&self) -> Result<(), ProfileError> {
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
    /// Whether the folders take files, and no output replaces another file.
    fn check_outputs(&self) -> Result<(), ProfileError> {
        let (mut inputs, mut files): (Vec<(&str, &Path)>, _) = (Vec::new(), Vec::new());
        if let Some(Source::Path(model)) = &self.model {
            inputs.push(("the model", model));
        }
        inputs.extend(self.text.iter().map(|text| ("the file of --text", &**text)));
        inputs.extend(self.routes.iter().map(|routes| ("the file of --routes", &**routes)));
        // a device that is measured already stays
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

/// A format that down rows can be quantised to.
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

/// A format that a folder's weights can be quantised to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum QuantisedFormat {
    /// 8.5 bits a weight.
    #[value(name = "q8_0", alias = "Q8_0")]
    Q8,
    /// 4.5 bits a weight.
    #[value(name = "q4_0", alias = "Q4_0")]
    Q4,
    /// 4.5 bits a weight, with a minimum for each 32; rows that are no multiple of 256 have `q8_0`.
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

/// An activation that a model can be said to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ActivationName {
    /// `relu(gate x) * up x`, as in models made sparse with it.
    Relu,
    /// `relu(gate x) * relu(up x)`, both sides sparse.
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
