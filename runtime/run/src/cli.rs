//! The command line of `run`.

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;

use flashplan::{Engine, Model, Plan, Sampler, Sampling, StopHandle};

use super::session::Session;
use super::{Failure, bench, failure, generate, logits, report, score};

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
    sampling: SamplingArgs,

    /// Write one line per token: the seconds of each stage, neurons by where they were found, reads and bytes by kind,
    /// bytes through memory; and beside it, as .svg, a picture of where the time went, with the floor
    #[arg(long, value_name = "FILE.csv")]
    pub(super) report: Option<PathBuf>,
    /// Instead of generating: perplexity of a text, every token through decode, beside the dense one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "prompt_file", "tokens", "bench", "report", "count", "SamplingArgs"])]
    pub(super) score: Option<PathBuf>,
    /// Instead of generating: logits after each token of the prompt, through decode, f32 [tokens, vocabulary]
    #[arg(long, value_name = "FILE.npy", conflicts_with_all = ["score", "bench", "report", "count", "SamplingArgs"])]
    pub(super) logits: Option<PathBuf>,
    /// The same through prefill
    #[arg(long, value_name = "FILE.npy", conflicts_with_all = ["score", "bench", "report", "count", "SamplingArgs"])]
    pub(super) logits_prefill: Option<PathBuf>,
    /// Instead of generating: time a fixed stream of tokens, 64 in and up to 1024 out (or those of a prompt), thrice, and then
    /// its last reads by themselves
    #[arg(long, conflicts_with_all = ["count", "SamplingArgs"])]
    pub(super) bench: bool,

    /// One JSON object on standard output instead of text and report
    #[arg(long)]
    pub(super) json: bool,
}

/// How tokens are chosen, as options.
#[derive(Debug, clap::Args)]
struct SamplingArgs {
    /// Randomness: 0 takes the most likely token, 1 draws as the model says
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temp: f32,
    /// Draw among the K most likely tokens; 0: all
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: usize,
    /// Draw among the most likely tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f32,
    /// Leave out tokens less likely than this share of the most likely one
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    min_p: f32,
    /// Divide the scores of the last 64 tokens by this; 1: off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repeat_penalty: f32,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl Cli {
    /// The sampling options as the engine takes them.
    pub(super) fn sampling(&self) -> Sampling {
        let &SamplingArgs { temp, top_k, top_p, min_p, repeat_penalty, seed } = &self.sampling;
        Sampling { temperature: temp, top_k, top_p, min_p, repeat_penalty, seed }
    }

    /// Does what the command line says.
    pub(super) fn run(&self, stop: &StopHandle) -> Result<(), Failure> {
        let sampler = Sampler::new(self.sampling())?;
        self.check_outputs()?;
        let plan = Plan::read(&self.plan)?;
        let model = match &self.model {
            Some(path) => Model::open(path)?,
            None => Model::open_for(&plan)?,
        };
        let clock = Instant::now();
        let mut engine = Engine::start_with(&model, &plan, stop.clone())?;
        let mut session = Session::new(&mut engine, plan.contract(), &model, clock.elapsed());

        if let Some(text) = &self.score {
            return score::score(&mut session, text, self.json);
        }
        if self.logits.is_some() || self.logits_prefill.is_some() {
            let tokens = self.prompt_tokens(&session)?;
            let (decode, prefill) = (self.logits.as_deref(), self.logits_prefill.as_deref());
            return logits::write(&mut session, &tokens, decode, prefill, self.json);
        }
        if self.bench {
            let tokens = if self.has_prompt() { Some(self.prompt_tokens(&session)?) } else { None };
            return bench::bench(&mut session, tokens, self.report.as_deref(), self.json);
        }
        let tokens = self.prompt_tokens(&session)?;
        generate::generate(&mut session, &tokens, sampler, self)
    }

    /// Whether every file that is to be written can be: known before the work, not after it.
    fn check_outputs(&self) -> Result<(), Failure> {
        for file in [&self.report, &self.logits, &self.logits_prefill].into_iter().flatten() {
            writable(file)?;
        }
        if let Some(report) = &self.report
            && let Some(picture) = report::picture_path(report)
        {
            if picture == *report {
                return Err(failure(format!(
                    "{} is where the picture goes; name the report .csv",
                    report.display()
                )));
            }
            writable(&picture)?;
        }
        Ok(())
    }

    fn has_prompt(&self) -> bool {
        self.prompt.is_some() || self.prompt_file.is_some() || self.tokens.is_some()
    }

    /// The prompt in tokens; without any, the token that begins a text.
    fn prompt_tokens(&self, session: &Session<'_>) -> Result<Vec<u32>, Failure> {
        let tokenizer = session.tokenizer();
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

/// Whether a file can be made there.
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
