//! The command line of `run`.

use std::path::PathBuf;

use clap::Parser;

use super::sampler::Sampling;
use super::session::Session;
use super::{Failure, Stop, bench, failure, fit, generate, logits, report, score};

const EXAMPLE: &str = "Example:
  run --plan plan.toml --prompt \"fn main() {\" -n 64

Text goes to standard output, the report to standard error; with --json one object goes to standard output.
Exit codes: 0 done, 1 error or wrong usage, 2 the plan does not fit this machine or model.";

/// Execute a plan exactly and report what was predicted beside what happened.
#[derive(Debug, Parser)]
#[command(name = "run", version, after_help = EXAMPLE, max_term_width = 110, allow_negative_numbers = true)]
pub(crate) struct Cli {
    /// The plan, as `plan` wrote it
    #[arg(long, value_name = "FILE")]
    pub(super) plan: PathBuf,
    /// The container; default: the file the plan names, beside the plan or in the current folder
    #[arg(long, value_name = "FILE.bundle")]
    pub(super) model: Option<PathBuf>,

    /// What the text begins with
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompt_file", "tokens"])]
    pub(super) prompt: Option<String>,
    /// A file that holds it
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    pub(super) prompt_file: Option<PathBuf>,
    /// Its tokens as numbers, e.g. "1 2 3"; nothing is put before them
    #[arg(long, value_name = "\"1 2 3\"")]
    pub(super) tokens: Option<String>,

    /// Tokens to generate at most; the model may end earlier
    #[arg(short = 'n', value_name = "N", default_value_t = 128)]
    pub(super) count: usize,
    #[command(flatten)]
    pub(super) sampling: Sampling,

    /// Write one line per token: the seconds of each stage, neurons by where they were found, reads and bytes by kind,
    /// bytes through memory; and beside it, as .svg, a picture of where the time went, with the floor
    #[arg(long, value_name = "FILE.csv")]
    pub(super) report: Option<PathBuf>,
    /// Instead of generating: perplexity of a text, every token through decode, beside the dense one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "prompt_file", "tokens", "bench", "report", "count", "Sampling"])]
    pub(super) score: Option<PathBuf>,
    /// Instead of generating: logits after each token of the prompt, through decode, f32 [tokens, vocabulary]
    #[arg(long, value_name = "FILE.npy", conflicts_with_all = ["score", "bench", "report", "count", "Sampling"])]
    pub(super) logits: Option<PathBuf>,
    /// The same through prefill
    #[arg(long, value_name = "FILE.npy", conflicts_with_all = ["score", "bench", "report", "count", "Sampling"])]
    pub(super) logits_prefill: Option<PathBuf>,
    /// Instead of generating: time a fixed stream of tokens, 64 in and up to 1024 out (or those of a prompt), thrice, and then
    /// its last reads by themselves
    #[arg(long, conflicts_with_all = ["count", "Sampling"])]
    pub(super) bench: bool,

    /// One JSON object on standard output instead of text and report
    #[arg(long)]
    pub(super) json: bool,
}

impl Cli {
    /// Does what the command line says.
    pub(super) fn run(&self, stop: &Stop) -> Result<(), Failure> {
        self.sampling.check()?;
        for file in [&self.report, &self.logits, &self.logits_prefill].into_iter().flatten() {
            writable(file)?;
        }
        if let Some(report) = &self.report {
            let picture = report::picture_path(report);
            if picture == *report {
                return Err(failure(format!(
                    "{} is where the picture goes; name the report .csv",
                    report.display()
                )));
            }
            writable(&picture)?;
        }
        let session = || {
            let fitting = fit::open(&self.plan, self.model.as_deref())?;
            Session::start(fitting, stop.clone())
        };
        if let Some(text) = &self.score {
            return score::score(&mut session()?, text, self.json);
        }
        if self.logits.is_some() || self.logits_prefill.is_some() {
            let mut session = session()?;
            let tokens = self.prompt_tokens(&session)?;
            return logits::write(
                &mut session,
                &tokens,
                self.logits.as_deref(),
                self.logits_prefill.as_deref(),
                self.json,
            );
        }
        if self.bench {
            let mut session = session()?;
            let tokens = match self.has_prompt() {
                true => Some(self.prompt_tokens(&session)?),
                false => None,
            };
            return bench::bench(&mut session, tokens, self.report.as_deref(), self.json);
        }
        let mut session = session()?;
        let tokens = self.prompt_tokens(&session)?;
        generate::generate(&mut session, &tokens, self)
    }

    fn has_prompt(&self) -> bool {
        self.prompt.is_some() || self.prompt_file.is_some() || self.tokens.is_some()
    }

    /// The prompt in tokens; without any, the token that begins a text.
    fn prompt_tokens(&self, session: &Session) -> Result<Vec<u32>, Failure> {
        let tokenizer = &session.tokenizer;
        let tokens = if let Some(numbers) = &self.tokens {
            numbers
                .split([' ', ',', '\n', '\t'])
                .filter(|number| !number.is_empty())
                .map(|number| {
                    number.parse().map_err(|_| {
                        Failure::Error(format!(
                            "--tokens: `{number}` is no token number; give whole numbers with spaces between"
                        ))
                    })
                })
                .collect::<Result<Vec<u32>, _>>()?
        } else {
            let text = match (&self.prompt, &self.prompt_file) {
                (Some(text), _) => text.clone(),
                (None, Some(path)) => read_text(path)?,
                (None, None) => String::new(),
            };
            tokenizer.encode(&text, tokenizer.adds_bos())
        };
        if !tokens.is_empty() {
            return Ok(tokens);
        }
        match tokenizer.bos().or(tokenizer.eos()) {
            Some(first) => Ok(vec![first]),
            None => Err(failure("the prompt has no tokens; give one with --prompt")),
        }
    }
}

/// Whether a file can be made there: requested before the work, not after it.
fn writable(file: &std::path::Path) -> Result<(), Failure> {
    if file.is_dir() {
        return Err(failure(format!("{} is a folder; name a file inside it", file.display())));
    }
    plans::output_file::writable(file)
        .map_err(|error| failure(format!("cannot write {}: {error}", file.display())))
}

/// A text file, with a sentence about what is wrong with it.
pub(super) fn read_text(path: &std::path::Path) -> Result<String, Failure> {
    if path.is_dir() {
        return Err(failure(format!("{} is a folder; name a text file inside it", path.display())));
    }
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => {
            failure(format!("{} is not UTF-8 text; convert it or name another file", path.display()))
        }
        _ => failure(format!("cannot read {}: {error}", path.display())),
    })
}
