//! The command line of `run`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Parser, ValueHint};

use flashplan::internals::engine::{EngineExt as _, container, contract, start_beside};
use flashplan::internals::machine::forget_read_ahead;
use flashplan::internals::recording::{Recording, Routing};
use flashplan::{Engine, Model, Plan, Sampler, Sampling, StopHandle, Tokenizer};
use plans::output_file::OutputKind;
use plans::{Calibration, size};

use super::chat::{TEMPLATE_BYTES_MAX, Template, TemplateError};
use super::current::CurrentRates;
use super::input::{self, Inputs, Source};
use super::session::RunningPlan;
use super::sessions::Sessions;
use super::tokenize::{self, TokenizeRequest};
use super::{
    Failure, bench, calibration, chat, failure, generate, learn, logits, score, serve, tokens, unit,
};

/// The plan that is executed where none is named.
pub(super) const PLAN: &str = "plan.toml";
/// Temperature of a chat whose model recommends none: the likeliest token, always, makes many models repeat themselves.
const CHAT_TEMPERATURE: f32 = 0.7;

const EXAMPLES: &str = "\
Examples:
  run --plan plan.toml --prompt \"fn main() {\" -n 64
      continues a text
  git diff | run --plan plan.toml --prompt - -n 200
      continues standard input
  run --chat
      talks with the model of plan.toml
  run --plan plan.toml --serve
      a page to chat on http://127.0.0.1:8080, and OpenAI's API under /v1
  run --plan plan.toml --bench --json
      measures speed, reads and memory, and compares them with the plan
  run --model model.gguf --tokenize \"Hello, world!\"
      prints the tokens of a text

Text goes to standard output, the report to standard error. With --json one object goes to standard output,
with --serve one for each answer.
Exit codes: 0 done, 1 error or wrong usage, 2 the plan does not fit this machine or model.";

/// Execute a plan: continue a text, chat, or serve; then compare the measured speed with the plan
#[derive(Debug, Parser)]
#[command(name = "run", version, after_help = EXAMPLES, max_term_width = 110, allow_negative_numbers = true)]
pub(crate) struct Cli {
    /// The plan to execute, written by `plan` [default: plan.toml]
    #[arg(long, value_name = "FILE")]
    pub(super) plan: Option<PathBuf>,
    /// The container, the index, or the GGUF file of the index [default: the file that the plan names, beside the plan, in the
    /// current folder, or where it was profiled]
    #[arg(long, value_name = "FILE")]
    pub(super) model: Option<PathBuf>,
    /// A model, as --model names it
    #[arg(value_name = "MODEL", conflicts_with = "model", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,

    /// The text to continue; - reads standard input
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompt_file", "tokens"], help_heading = "Prompt")]
    pub(super) prompt: Option<String>,
    /// A file with the text to continue; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "tokens", help_heading = "Prompt")]
    pub(super) prompt_file: Option<PathBuf>,
    /// The prompt as token numbers, e.g. "1 2 3"; no beginning token is added
    #[arg(long, value_name = "\"1 2 3\"", help_heading = "Prompt")]
    pub(super) tokens: Option<String>,
    /// Read special tokens that the prompt spells out, such as `<|im_start|>`, as tokens and not as text
    #[arg(long, help_heading = "Prompt", conflicts_with_all = ["tokens", "score"])]
    pub(super) special: bool,

    /// Maximum number of tokens to generate [default: 128; in a chat, up to the end of the context]
    #[arg(short = 'n', value_name = "N", help_heading = "Generation")]
    pub(super) count: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArgs,

    /// Chat with the model in its own template; /help lists commands
    #[arg(long, help_heading = "Chat", group = "talks", conflicts_with_all = ["prompt", "prompt_file", "tokens", "special", "score", "logits",
        "logits_prefill", "bench", "tokenize", "report", "json"])]
    pub(super) chat: bool,
    /// System message: instructions for the model
    #[arg(long, value_name = "TEXT", requires = "chat", help_heading = "Chat")]
    pub(super) system: Option<String>,
    /// A Jinja template instead of the model's own
    #[arg(long, value_name = "FILE", requires = "talks", help_heading = "Chat")]
    pub(super) template: Option<PathBuf>,

    /// Keep prompts in this folder, so that a restart or a conversation with the same beginning need not read them again
    #[arg(long, value_name = "DIR", requires = "talks", help_heading = "Sessions")]
    pub(super) sessions: Option<PathBuf>,
    /// Maximum size of that folder; the least recently used prompts are removed
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "4GiB", requires = "sessions", help_heading = "Sessions")]
    sessions_size: u64,

    /// Serve a page to chat, and OpenAI's and Anthropic's APIs: /v1/chat/completions, /v1/completions, /v1/responses,
    /// /v1/embeddings, /v1/messages, /v1/models, /health and /metrics
    /// [default ADDRESS: 127.0.0.1:8080]
    #[expect(clippy::doc_markdown, reason = "help is no Markdown")]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = serve::ADDRESS, help_heading = "Server", group = "talks",
        conflicts_with_all = ["chat", "prompt", "prompt_file", "tokens", "special", "score", "logits", "logits_prefill", "bench",
        "tokenize", "report", "count"])]
    pub(super) serve: Option<String>,
    /// A file whose first line is the key that clients must send; required for addresses that others can reach
    #[arg(long, value_name = "FILE", requires = "serve", help_heading = "Server")]
    pub(super) api_key_file: Option<PathBuf>,
    /// Refuse requests that name another model; without this any name means the one that is served
    #[arg(long, requires = "serve", help_heading = "Server")]
    pub(super) strict_model: bool,

    /// Let the cores compute the part of a GPU that is absent or fails, instead of ending; the logits then differ in their last bits
    #[arg(long, conflicts_with_all = ["tokenize", "sessions"], help_heading = "Unit")]
    fallback: bool,

    /// Do not count how a mixture's experts are used, in learned.toml beside model.toml, for the next plan. The file has counts, and
    /// nothing of a prompt
    #[arg(long, help_heading = "Report")]
    pub(super) no_learn: bool,

    /// Print the perplexity of a text, under the plan and dense; - reads standard input
    #[arg(long, value_name = "FILE", help_heading = "Instead of generating",
        conflicts_with_all = ["prompt", "prompt_file", "tokens", "bench", "report", "count", "SamplingArgs"])]
    pub(super) score: Option<PathBuf>,
    /// The model's GGUF file, to compare the perplexity with (slow, and outside the plan's memory) [default: the loss in the
    /// profile]
    #[arg(long, value_name = "FILE.gguf", requires = "score", help_heading = "Instead of generating")]
    pub(super) source: Option<PathBuf>,
    /// Write the logits after each prompt token through decode, as f32 [tokens, vocabulary]
    #[arg(long, value_name = "FILE.npy", help_heading = "Instead of generating",
        conflicts_with_all = ["score", "bench", "report", "count", "SamplingArgs"])]
    pub(super) logits: Option<PathBuf>,
    /// Write the logits after each prompt token through prefill
    #[arg(long, value_name = "FILE.npy", help_heading = "Instead of generating",
        conflicts_with_all = ["score", "bench", "report", "count", "SamplingArgs"])]
    pub(super) logits_prefill: Option<PathBuf>,
    /// Time a built-in text (or a prompt) three times: 64 tokens in, up to 1024 out
    #[arg(long, help_heading = "Instead of generating", conflicts_with_all = ["count", "SamplingArgs"])]
    pub(super) bench: bool,
    /// Replay the recorded routing of a real model: a table with the columns phase, step or token, layer, and expert or experts.
    /// Prefetching follows its column ahead, if it has one
    #[arg(long, value_name = "FILE.csv", requires = "bench", help_heading = "Instead of generating",
        conflicts_with_all = ["prompt", "prompt_file", "tokens"])]
    pub(super) routes: Option<PathBuf>,

    /// Print the tokens of a text and their pieces; - reads standard input. Needs no plan with --model, which may be a GGUF file
    #[arg(long, value_name = "TEXT", help_heading = "Instead of generating", conflicts_with_all = ["prompt", "prompt_file",
        "tokens", "score", "logits", "logits_prefill", "bench", "report", "count", "SamplingArgs"])]
    pub(super) tokenize: Option<String>,

    /// Write one line per token (seconds of each stage, neurons, reads, bytes) and a chart beside it as .svg; the report then
    /// has more details
    #[arg(long, value_name = "FILE.csv", help_heading = "Report")]
    pub(super) report: Option<PathBuf>,
    /// Write current rates over the profile's, measured before, during and after the benchmark, for `plan --calibration`
    #[arg(
        long,
        value_name = "FILE",
        requires = "bench",
        conflicts_with = "no_probe",
        help_heading = "Report"
    )]
    pub(super) calibration_out: Option<PathBuf>,
    /// Do not measure current rates for half a second before the start; the report then has no column `now`
    #[arg(long, help_heading = "Report")]
    pub(super) no_probe: bool,
    /// Print one JSON object instead of text and report; with --serve, one line of JSON for each answer and refusal
    #[arg(long, help_heading = "Report")]
    pub(super) json: bool,
}

/// Sampling options.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Generation")]
struct SamplingArgs {
    /// Temperature: 0 takes the most likely token, 1 samples as the model predicts [default: 0; in a chat the model's, or 0.7]
    #[arg(long, value_name = "T")]
    temp: Option<f32>,
    /// Sample from the K most likely tokens; 0: all [default: 40; in a chat the model's]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Sample from the most likely tokens that together have this probability [default: 0.95; in a chat the model's]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Skip tokens less likely than this fraction of the most likely one [default: 0.05; in a chat the model's]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Divide the scores of the last 64 tokens by this; 1: off [default: 1; in a chat the model's]
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,
    /// Seed of sampling
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl Cli {
    /// The sampling options, over the engine's defaults: the most likely token.
    pub(super) fn sampling(&self) -> Sampling {
        self.sampling_over(Sampling::default())
    }

    /// The sampling options of a chat: over what the model's maker recommends, or else a temperature that does not repeat itself.
    pub(super) fn chat_sampling(&self, tokenizer: &Tokenizer) -> Sampling {
        self.sampling_over(tokenizer.recommended_sampling().unwrap_or_else(|| {
            let mut usual = Sampling::default();
            usual.temperature = CHAT_TEMPERATURE;
            usual
        }))
    }

    /// The sampling options of a server, for requests that name none: over what the model's maker recommends, or else the defaults.
    pub(super) fn served_sampling(&self, tokenizer: &Tokenizer) -> Sampling {
        self.sampling_over(tokenizer.recommended_sampling().unwrap_or_default())
    }

    fn sampling_over(&self, mut sampling: Sampling) -> Sampling {
        let &SamplingArgs { temp, top_k, top_p, min_p, repeat_penalty, seed } = &self.sampling;
        sampling.temperature = temp.unwrap_or(sampling.temperature);
        sampling.top_k = top_k.unwrap_or(sampling.top_k);
        sampling.top_p = top_p.unwrap_or(sampling.top_p);
        sampling.min_p = min_p.unwrap_or(sampling.min_p);
        sampling.repeat_penalty = repeat_penalty.unwrap_or(sampling.repeat_penalty);
        sampling.seed = seed;
        sampling
    }

    /// This command line, with the model under its option's name and the default plan.
    #[must_use]
    pub(super) fn completed(mut self) -> Self {
        self.model = self.model.or(self.file.take());
        if self.plan.is_none() && (self.tokenize.is_none() || self.model.is_none()) {
            self.plan = Some(PLAN.into());
        }
        self
    }

    /// Does what the command line says.
    pub(super) fn run(&self, stop: &StopHandle) -> Result<(), Failure> {
        if let Some(text) = &self.tokenize {
            let (plan, model) = (self.plan.clone(), self.model.clone());
            let request = TokenizeRequest { text: Source::text(text), plan, model, special: self.special };
            return tokenize::tokenize(request, self.json, stop);
        }
        let sampler = Sampler::new(self.sampling())?;
        self.check_outputs()?;
        let plan = self.plan.as_deref().unwrap_or(Path::new(PLAN));
        let scored = self.score.as_deref().map(Source::file);
        let Inputs { plan, model, text, scored } =
            input::read(plan, self.model.as_deref(), self.text(), self.bench, scored, stop)?;
        let (plan, model) = (&plan, &model);
        // known before the engine takes its memory
        let template = if self.chat { Some(self.template(model)?) } else { None };
        let answers = self.serve.as_ref().map(|_| self.served_template(model)).transpose()?;
        let routing = || Routing::of(&container(model).directory.config);
        let recording = self.routes.as_deref().map(|path| Recording::read(path, routing()));
        let recording = recording.transpose().map_err(failure)?;
        let given = text.is_some() || self.tokens.is_some();
        // before the engine's memory is taken: a text takes more while its tokens are found than they do
        let has_prompt = !self.chat && self.serve.is_none() && self.score.is_none();
        let tokens = if has_prompt { self.prompt_tokens(plan, model, text)? } else { Vec::new() };
        forget_read_ahead();
        let clock = Instant::now();
        let aside = unit::aside(contract(plan), self.fallback)?;
        let engine = start_beside(model, plan, aside, stop.clone())?;
        let start_time = clock.elapsed();
        if let Some(recording) = &recording {
            engine.replay_routes(Some(recording.routes.clone())).map_err(failure)?;
        }
        // neither scores nor logits are compared with a speed
        let timed = self.score.is_none() && self.logits.is_none() && self.logits_prefill.is_none();
        let current = (timed && !self.no_probe).then(|| CurrentRates::new(engine.probe(), contract(plan)));
        let mut session = RunningPlan::new(&engine, contract(plan), model, start_time, current)?;

        let open = |folder: &PathBuf| Sessions::open(folder, self.sessions_size, &session);
        let sessions = self.sessions.as_ref().map(open).transpose()?;
        if let Some(template) = template {
            let done = chat::chat(&mut session, &template, sessions, self, stop);
            return self.learn(done, engine, session, contract(plan));
        }
        if let Some(template) = answers {
            let done = serve::serve(&mut session, template, sessions, self, stop);
            return self.learn(done, engine, session, contract(plan));
        }
        if let Some(text) = scored {
            return score::score(&mut session, text, self.source.as_deref(), self.json, stop);
        }
        if self.logits.is_some() || self.logits_prefill.is_some() {
            let (decode, prefill) = (self.logits.as_deref(), self.logits_prefill.as_deref());
            return logits::write(&mut session, &tokens, decode, prefill, self.json);
        }
        if self.bench {
            let tokens = given.then_some(tokens);
            bench::bench(&mut session, tokens, recording.as_ref(), self.report.as_deref(), self.json)?;
            return match (&self.calibration_out, &session.current) {
                (Some(path), Some(current)) => calibration::write(path, contract(plan), current),
                _ => Ok(()),
            };
        }
        let done = generate::generate(&mut session, &tokens, sampler, self);
        self.learn(done, engine, session, contract(plan))
    }

    /// Keeps the counts of a run that ended or was stopped. The engine's memory is freed first, so the plan's limit holds.
    fn learn(
        &self,
        done: Result<(), Failure>,
        engine: Engine,
        session: RunningPlan<'_>,
        plan: &plans::Plan,
    ) -> Result<(), Failure> {
        if !self.no_learn && matches!(done, Ok(()) | Err(Failure::Stopped)) {
            let visited = engine.visits();
            drop((session, engine));
            let path = self.plan.as_deref().unwrap_or(Path::new(PLAN));
            visited.into_iter().for_each(|visited| learn::add(visited, plan, path));
        }
        done
    }

    /// The template of a chat.
    fn template(&self, model: &Model) -> Result<Template, Failure> {
        self.served_template(model)?.map_err(failure)
    }

    /// The template, where a model may have none.
    fn served_template(&self, model: &Model) -> Result<Result<Template, TemplateError>, Failure> {
        const LARGER: &str = "no model's chat template has so many; name another";
        let read = |path: &PathBuf| Source::file(path).read(TEMPLATE_BYTES_MAX, LARGER);
        let source = self.template.as_ref().map(read).transpose()?;
        let source = source.as_deref().or(model.tokenizer().chat_template());
        let none = || TemplateError::None { model: model.name().to_owned() };
        let template = source.ok_or_else(none).and_then(|source| Template::new(source, model.tokenizer()));
        if self.template.is_some() { template.map(Ok).map_err(failure) } else { Ok(template) }
    }

    /// The text to begin with.
    fn text(&self) -> Option<Source> {
        let file = self.prompt_file.as_deref().map(Source::file);
        file.or(self.prompt.as_deref().map(Source::text))
    }

    /// Whether every file that is to be written can be, without an input or another output in its place: known before the work.
    fn check_outputs(&self) -> Result<(), Failure> {
        let picture = self.report.as_deref().and_then(tokens::picture_path);
        if picture.is_some() && picture == self.report {
            let report = picture.unwrap_or_default();
            return Err(failure(format!(
                "{} is where the picture goes; name the report .csv",
                report.display()
            )));
        }
        let inputs = [
            ("the plan of this run", &self.plan),
            ("the model of this run", &self.model),
            ("the file of --prompt-file", &self.prompt_file),
            ("the file of --score", &self.score),
            ("the file of --source", &self.source),
            ("the file of --template", &self.template),
            ("the file of --api-key-file", &self.api_key_file),
            ("the file of --routes", &self.routes),
        ];
        let mut taken: Vec<(&str, &Path)> = Vec::new();
        taken.extend(inputs.iter().filter_map(|&(name, path)| Some((name, path.as_deref()?))));
        let outputs = [
            ("where --report goes", &self.report, tokens::TABLE),
            ("where the picture of --report goes", &picture, OutputKind::PICTURE),
            ("where --logits goes", &self.logits, logits::ARRAY),
            ("where --logits-prefill goes", &self.logits_prefill, logits::ARRAY),
            ("where --calibration-out goes", &self.calibration_out, plans::file::kind::<Calibration>()),
        ];
        for (name, path, kind) in &outputs {
            let Some(path) = path else { continue };
            plans::file::writable(path, *kind, &taken).map_err(failure)?;
            taken.push((name, path));
        }
        Ok(())
    }

    /// The prompt in tokens; without any, the token that begins a text.
    fn prompt_tokens(&self, plan: &Plan, model: &Model, text: Option<String>) -> Result<Vec<u32>, Failure> {
        let tokenizer = model.tokenizer();
        let text = text.unwrap_or_default();
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
            let needed = (text.len() + tokenizer.encode_bytes(&text)) as u64;
            let memory = &contract(plan).memory;
            let room = memory.limit_bytes.saturating_sub(memory.process_bytes);
            if needed > room {
                return Err(failure(format!(
                    "the prompt takes {} while its tokens are found, and the plan's limit has {} for that; shorten it, or plan with a larger --mem",
                    size::show(needed),
                    size::show(room)
                )));
            }
            tokenize::encode(tokenizer, &text, self.special)
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
