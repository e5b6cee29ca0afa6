//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use plans::{Model, size};

use crate::programs::Program;

const EXAMPLES: &str = "\
Examples:
  flashplan chat hf:Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M --mem 8G
      fetches the model, prepares it in a minute, and talks with it in 8 GiB of memory
  flashplan serve model.gguf
      a page to chat on http://127.0.0.1:8080, and OpenAI's API under /v1
  flashplan fit hf:Qwen/Qwen3-30B-A3B-GGUF --mem 4G,8G
      which quantisations fit and how fast each would be, before the download
  flashplan run model.gguf --prompt \"Once upon a time\" -n 200 -- --temp 0.7
      continues a text; what follows -- goes to `run`
  flashplan plan --mem 12G --explain
      is `plan --mem 12G --explain`; `profile` and `run --OPTION` likewise

A model is a GGUF file, a folder from Hugging Face's hub, or hf:OWNER/REPO[:QUANT].
Each command that is called is printed first, to be copied. All files lie in $XDG_DATA_HOME/flashplan, by default
~/.local/share/flashplan.
Exit codes: 0 done, 1 error or wrong usage, 2 no plan satisfies the limits.";

/// Run a language model larger than memory: profile, plan and run in one command
#[derive(Debug, Parser)]
#[command(name = "flashplan", version, after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Arguments {
    /// The task.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// A task.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Talk with a model
    Chat(Chat),
    /// Serve a model: a page to chat, and OpenAI's and Anthropic's APIs
    #[expect(clippy::doc_markdown, reason = "help is no Markdown")]
    Serve(Serve),
    /// Continue a text
    Run(Run),
    /// Measure a plan's speed, reads and memory
    Bench(Bench),
    /// Say what a model would do in several memory sizes, before it is downloaded
    Fit(Fit),
    /// Say what this machine lacks, and what each remedy is
    Doctor,
    /// List the models that are prepared, with their plans
    List(List),
    /// Remove the files of a prepared model; the model's own file stays
    Rm(Rm),
    /// Call `profile`: measure a machine and a model
    #[command(disable_help_flag = true)]
    Profile(PassedOn),
    /// Call `plan`: find the fastest plan
    #[command(disable_help_flag = true)]
    Plan(PassedOn),
}

/// The model and the limits of its plan.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// A GGUF file, a folder from Hugging Face's hub, or hf:OWNER/REPO[:QUANT]
    #[arg(value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub(crate) model: OsString,
    /// Memory limit of the whole process, e.g. 12G [default: three quarters of what the machine can give, or what is free]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Plan")]
    pub(crate) mem: Option<u64>,
    /// Minimum decoding speed in tokens per second
    #[arg(long, value_name = "TOK_PER_S", help_heading = "Plan")]
    pub(crate) min_speed: Option<f64>,
    /// Context length: prompt and generated tokens [default: 4096, or the model's if smaller]
    #[arg(long, value_name = "N", help_heading = "Plan")]
    pub(crate) context: Option<u32>,
    /// Sequences that are answered at once, 8 at most [default: 1]
    #[arg(long, value_name = "N", help_heading = "Plan")]
    pub(crate) slots: Option<u32>,
    /// Memory kept for requests: their texts, tools, schemas and unread answers [default: with `serve` 64M, or a 16th of the limit]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Plan")]
    pub(crate) reserve: Option<u64>,
    /// Allowed rise of perplexity in percent; 0 allows lossless levels only [default: 1]
    #[arg(long, value_name = "PERCENT", help_heading = "Plan")]
    pub(crate) max_loss: Option<f64>,
    /// Neither count how a mixture's experts are used, nor plan with the counts of earlier runs
    #[arg(long, help_heading = "Plan")]
    pub(crate) no_learn: bool,
    /// How the model is profiled where it is not yet, or less thoroughly [default: instant, or as it is]
    #[arg(long, value_enum, help_heading = "Profile")]
    pub(crate) profile: Option<Thoroughness>,
    /// Measure the machine and the model again
    #[arg(long, help_heading = "Profile")]
    pub(crate) fresh: bool,
    /// Print the summary of each stage
    #[arg(short, long, help_heading = "Report")]
    pub(crate) verbose: bool,
}

/// How thoroughly a model is profiled, from the least on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Thoroughness {
    /// Seconds: the file is read once, and cache misses come from other models.
    #[default]
    Instant,
    /// A sixth of the time of `full`: fewer tokens, wider bounds of losses.
    Quick,
    /// Minutes for a small model, about 20 for a 7B model.
    Full,
}

impl Thoroughness {
    /// The thoroughness of a profile.
    pub(crate) fn of(model: &Model) -> Self {
        match model.has_priors() {
            true => Self::Instant,
            false if model.provenance.quick => Self::Quick,
            false => Self::Full,
        }
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Instant => "instant",
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }

    /// The options of `profile`.
    pub(crate) fn options(self) -> Vec<OsString> {
        match self {
            Self::Instant => vec!["--instant".into()],
            Self::Quick => vec!["--quick".into()],
            Self::Full => Vec::new(),
        }
    }
}

/// `flashplan chat`.
#[derive(Debug, Args)]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// System message: instructions for the model
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

/// `flashplan serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The address to listen at [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Option<String>,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

/// `flashplan run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The text to continue; - reads standard input
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: String,
    /// Maximum number of tokens to generate [default: 128]
    #[arg(short = 'n', value_name = "N")]
    pub(crate) count: Option<usize>,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

/// `flashplan bench`.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

/// Options that go to `run` as they are.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// More options of `run`, see `run --help`
    #[arg(last = true, value_name = "RUN_OPTIONS")]
    pub(crate) options: Vec<OsString>,
}

/// `flashplan fit`.
#[derive(Debug, Args)]
pub(crate) struct Fit {
    /// A GGUF file, or hf:OWNER/REPO[:QUANT]: all quantisations of a repository, or one; their headers alone are read
    #[arg(value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub(crate) model: OsString,
    /// Another device: one of flashplan's (a wrong name lists them), or a device.toml [default: this machine]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) device: Option<OsString>,
    /// Memory limits, e.g. 8G,16G [default: round ones up to what the device can give]
    #[arg(long, value_name = "SIZES", value_parser = size::parse, value_delimiter = ',')]
    pub(crate) mem: Vec<u64>,
    /// Minimum decoding speed in tokens per second
    #[arg(long, value_name = "TOK_PER_S")]
    pub(crate) min_speed: Option<f64>,
    /// Context length: prompt and generated tokens [default: 4096, or the model's if smaller]
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<u32>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// `flashplan list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// `flashplan rm`.
#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// The model as it was named, or its name in `flashplan list`
    #[arg(value_name = "MODEL")]
    pub(crate) model: OsString,
}

/// Arguments of another program.
#[derive(Debug, Args)]
pub(crate) struct PassedOn {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS", value_hint = ValueHint::AnyPath)]
    _arguments: Vec<PathBuf>,
}

/// The program that a command line is for, and its arguments: `profile`, `plan`, and `run` with an option first.
pub(crate) fn passed_on(arguments: &[OsString]) -> Option<(Program, &[OsString])> {
    let (first, rest) = arguments.split_first()?;
    let program = match first.to_str()? {
        "profile" => Program::Profile,
        "plan" => Program::Plan,
        // a model is no option
        "run" if rest.first().is_none_or(|next| next.as_encoded_bytes().starts_with(b"-")) => Program::Run,
        _ => return None,
    };
    Some((program, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_model_after_run_is_ours_and_an_option_is_not() {
        let passed = |line: &str| {
            let line: Vec<OsString> = line.split(' ').map(Into::into).collect();
            passed_on(&line).map(|(program, rest)| (program, rest.len()))
        };
        assert_eq!(passed("run --plan plan.toml --chat"), Some((Program::Run, 3)));
        assert_eq!(passed("run"), Some((Program::Run, 0)));
        assert_eq!(passed("run model.gguf --prompt x"), None);
        assert_eq!(passed("plan --help"), Some((Program::Plan, 1)));
        assert_eq!(passed("profile model.gguf"), Some((Program::Profile, 1)));
        assert_eq!(passed("chat model.gguf"), None);
    }
}
