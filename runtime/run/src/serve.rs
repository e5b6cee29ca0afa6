//! An endpoint for other programs: what `OpenAI`'s and Anthropic's clients ask is answered under the plan.
//!
//! One thread speaks HTTP (`http`) and never computes; the main thread owns the engine and answers one request after another in
//! one context, which keeps what two requests have in common. Between them is a queue of bounded length. What is asked is a
//! `request`, whatever words it came in; how these are read and answers written in them is in `openai`, `responses` and `anthropic`. An `answer` goes
//! out whole or as it comes, with the `likelihood` of its tokens where that is asked for, and what it must be is a `grammar`, made
//! of a `schema`. The model may have `tools`, whose `calls` a `teller` tells from text. The texts that end it are in `stops`,
//! what the operator sees in `metrics`.

mod answer;
mod anthropic;
mod calls;
mod grammar;
mod http;
mod likelihood;
mod metrics;
mod openai;
mod request;
mod responses;
mod schema;
mod stops;
mod teller;
mod tools;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flashplan::internals::machine::footprint;
use flashplan::{Sampler, Sampling, StageTimes, StopHandle};
use plans::size::show;
use tokio::sync::mpsc::UnboundedSender;

use self::calls::{Calls, Format};
use self::grammar::Grammar;
use self::http::{Door, Site};
use self::likelihood::Likelihood;
use self::metrics::Metrics;
use self::request::{Ask, Options, Refusal, Request};
use self::stops::Stops;
use self::teller::Teller;
use self::tools::Tools;
use super::chat::conversation::{Call, Message, Role};
use super::chat::{Prompt, Template, TemplateError};
use super::cli::Cli;
use super::context::Context;
use super::ended::Ended;
use super::figures::sums;
use super::reasoning::{Part, Parts};
use super::session::Session;
use super::sessions::Sessions;
use super::turn::{self, Answered, Turn};
use super::{Failure, failure};

/// Where it listens if nobody says.
pub(super) const ADDRESS: &str = "127.0.0.1:8080";
/// Requests that wait for their answer; more are told to come again.
const QUEUE: usize = 8;
/// Bytes of a request for each token of the context, and besides: more cannot fit into it, and all that wait must fit into what the
/// plan leaves the process.
const BODY_BYTES: (usize, usize) = (8, 64 << 10);
/// How soon an interrupt is heeded while nobody asks.
const SOON: Duration = Duration::from_millis(100);
/// Likelihoods of tokens in an answer, at most: what is told of it must fit into what the plan leaves the process.
const LIKELIHOODS: usize = 4 << 10;
/// What clients are told in the end.
const STOPPING: &str = "the server is stopping";
/// The longest key.
const KEY_BYTES_MAX: u64 = 4096;

/// A request in the queue. Who hangs up drops the other end of `told`.
#[derive(Debug)]
struct Job {
    request: Request,
    told: UnboundedSender<Told>,
}

/// What is told of an answer as it comes. No more than a bound for each token of the context, so that a slow client needs no more
/// memory.
#[derive(Debug)]
enum Told {
    /// It begins, after so many tokens.
    Begins { prompt: usize },
    /// More of a choice, and the likelihoods of the tokens that made it.
    Text { choice: usize, part: Part, text: String, likelihoods: Vec<Likelihood> },
    /// A tool is called.
    Call { choice: usize, call: Call },
    /// A choice is over; it may have been cut off, or ended by a text.
    Choice { choice: usize, cut: bool, stop: Option<String> },
    /// All are.
    Ended(Usage),
    /// There is none, or it broke off.
    Failed(Refusal),
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    prompt: usize,
    /// Of the prompt, those that the context held already.
    cached: usize,
    answer: usize,
}

/// Answers until it is stopped.
pub(super) fn serve(
    session: &mut Session<'_>,
    template: Result<Template, TemplateError>,
    sessions: Option<Sessions>,
    cli: &Cli,
    stop: &StopHandle,
) -> Result<(), Failure> {
    let address = cli.serve.as_deref().unwrap_or(ADDRESS);
    let address: SocketAddr = address.parse().map_err(|_| {
        failure(format!("--serve {address} is no address; give one such as {ADDRESS} or 0.0.0.0:8080"))
    })?;
    let key = cli.api_key_file.as_deref().map(read_key).transpose()?;
    if !address.ip().is_loopback() && key.is_none() {
        return Err(failure(format!(
            "--serve {address} lets everyone in who can reach this machine: give --api-key-file FILE, or listen on 127.0.0.1"
        )));
    }
    if let Err(why) = &template {
        terminal::say(format_args!("note: /v1/chat/completions is refused: {why}"));
    }
    let (asked, jobs) = sync_channel(QUEUE);
    let metrics = Arc::new(Metrics::new(session.plan));
    let site = Site {
        model: session.model.name().to_owned(),
        key,
        asked,
        body_bytes_max: session.context() * BODY_BYTES.0 + BODY_BYTES.1,
        metrics: Arc::clone(&metrics),
    };
    let door = Door::open(address, site).map_err(failure)?;
    terminal::say(format_args!(
        "{} on http://{}/v1: level `{}`, a context of {} tokens, {:.1} tok/s planned; Ctrl-C ends",
        session.model.name(),
        door.address(),
        session.plan.quality.level,
        session.context(),
        session.plan.expected.decode_tokens_per_second,
    ));
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let context = Context::new(session, sessions);
    let mut desk =
        Desk { session, template, sampling: cli.sampling(), context, metrics, answers: 0, draws: 0, began };
    let ended = desk.work(&jobs, stop);
    door.close();
    match ended {
        Ok(()) => session.warn_of_memory(),
        failed => failed,
    }
}

/// The key of a file's first line.
fn read_key(path: &Path) -> Result<String, Failure> {
    let wrong = |what: &str| failure(format!("--api-key-file {}: {what}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|error| wrong(&error.to_string()))?;
    if !metadata.is_file() || metadata.len() > KEY_BYTES_MAX {
        return Err(wrong("it is no regular file of at most 4096 bytes; put the key into its first line"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
    let key = text.lines().next().unwrap_or_default().trim();
    if key.len() < 8 || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong("its first line is no key of 8 or more printable characters without spaces"));
    }
    Ok(key.to_owned())
}

/// Who answers.
struct Desk<'d, 'engine> {
    session: &'d mut Session<'engine>,
    template: Result<Template, TemplateError>,
    sampling: Sampling,
    context: Context,
    metrics: Arc<Metrics>,
    answers: u64,
    /// Choices so far: each draws by another seed.
    draws: u64,
    /// Nanoseconds since 1970 at the start, from which numbers of calls are made.
    began: u64,
}

/// What is known of a request before the engine works on it.
struct Prepared {
    prompt: Vec<u32>,
    turn: Turn,
    /// Of the first choice; each one after it has the next seed.
    sampling: Sampling,
    /// What each choice must be.
    grammar: Option<Grammar>,
    /// What tells calls of tools from text, where there are any.
    calls: Option<Calls>,
}

/// How an answer calls tools.
#[derive(Default)]
struct Calling {
    /// Of the call that must be.
    grammar: Option<Grammar>,
    calls: Option<Calls>,
    marks: Option<&'static [&'static str]>,
}

/// What an answer came to.
#[derive(Default)]
struct Work {
    usage: Usage,
    /// Until the first token.
    first: Duration,
    /// Tokens that were decoded, and their time.
    decoded: (usize, Duration),
    stages: StageTimes,
    /// Whether it was given to its end, or why it broke off.
    done: bool,
    broken: Option<String>,
}

impl Desk<'_, '_> {
    fn work(&mut self, jobs: &Receiver<Job>, stop: &StopHandle) -> Result<(), Failure> {
        loop {
            match jobs.recv_timeout(SOON) {
                Ok(job) => {
                    self.metrics.taken();
                    self.answer(&job, stop)?;
                    // when it is told to end, too: the next start is what this is for
                    self.context.keep(self.session);
                    self.metrics.done(self.session, footprint(None).map_err(failure)?.peak_bytes());
                }
                Err(RecvTimeoutError::Timeout) if !stop.is_stopped() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// Answers one request; a failure of the engine is the end of them all.
    fn answer(&mut self, job: &Job, stop: &StopHandle) -> Result<(), Failure> {
        // who is no longer there gets no answer, and that is no failure
        let tell = |told: Told| drop(job.told.send(told));
        let prepared = match self.prepare(&job.request) {
            Ok(prepared) => prepared,
            Err(refusal) => {
                tell(Told::Failed(refusal));
                return Ok(());
            }
        };
        self.answers += 1;
        self.draws += job.request.options.choices as u64;
        tell(Told::Begins { prompt: prepared.prompt.len() });
        let wanted = || !job.told.is_closed() && !stop.is_stopped();
        let work = match self.choices(job, &prepared, &wanted) {
            Ok(work) => work,
            Err(failure) => {
                tell(Told::Failed(Refusal::broken(failure.to_string())));
                return Err(failure);
            }
        };
        self.metrics.answered(work.usage, work.first, work.decoded, &work.stages);
        let gone = job.told.is_closed();
        tell(match (work.done, work.broken) {
            (true, _) => Told::Ended(work.usage),
            (false, why) => Told::Failed(Refusal::broken(why.unwrap_or_else(|| STOPPING.to_owned()))),
        });
        let speed = match work.decoded {
            (0, _) => String::new(),
            (steps, time) => format!(" at {:.1} tok/s", steps as f64 / time.as_secs_f64()),
        };
        terminal::say(format_args!(
            "[{}: {} in, {} of them held; {} out{speed}; {:.2} s to the first{}]",
            self.answers,
            work.usage.prompt,
            work.usage.cached,
            work.usage.answer,
            work.first.as_secs_f64(),
            if gone { "; the client hung up" } else { "" },
        ));
        Ok(())
    }

    /// Reads the prompt once and gives all choices one after another, as long as they are wanted.
    fn choices(
        &mut self,
        job: &Job,
        prepared: &Prepared,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Work, Failure> {
        let (Prepared { prompt, .. }, options) = (prepared, &job.request.options);
        let clock = Instant::now();
        let mut work = Work { usage: Usage { prompt: prompt.len(), ..Usage::default() }, ..Work::default() };
        let Some(cached) = turn::read(self.session, &mut self.context, prompt, wanted)? else {
            return Ok(work);
        };
        (work.usage.cached, work.first) = (cached, clock.elapsed());
        // others begin where the first one does
        let after = (options.choices > 1).then(|| self.session.last_logits().to_vec());
        for choice in 0..options.choices {
            self.session.rewind(prompt.len());
            self.context.held.truncate(prompt.len());
            let seed = prepared.sampling.seed.wrapping_add(choice as u64);
            let mut sampler = Sampler::new(Sampling { seed, ..prepared.sampling.clone() })?;
            prompt.iter().for_each(|&token| sampler.saw(token));
            let answered = match self.choice(job, prepared, choice, &mut sampler, after.as_deref(), wanted) {
                // the grammar's limits are one client's affair
                Err(Failure::Error(why)) => return Ok(Work { broken: Some(why), ..work }),
                answered => answered?,
            };
            let (answered, stop) = answered;
            work.usage.answer += answered.tokens;
            let (time, counters) = sums(&self.session.steps);
            work.stages.add(&counters.times);
            work.decoded = (work.decoded.0 + self.session.steps.len(), work.decoded.1 + time);
            if answered.ended == Ended::Interrupt {
                return Ok(work);
            }
            job.told.send(Told::Choice { choice, cut: answered.ended != Ended::EndOfText, stop }).ok();
        }
        Ok(Work { done: true, ..work })
    }

    /// One of them, after a prompt with such logits, or those of the session. One that a text has stopped is at its end; which.
    fn choice(
        &mut self,
        job: &Job,
        prepared: &Prepared,
        choice: usize,
        sampler: &mut Sampler,
        after: Option<&[f32]>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(Answered, Option<String>), Failure> {
        let (tokenizer, options) = (self.session.tokenizer(), &job.request.options);
        let chosen = RefCell::new(Vec::new());
        let mut grammar = prepared.grammar.as_ref().map(Grammar::anew);
        let mut choose = |parts: Option<&Parts>, logits: &[f32]| {
            let token = match &mut grammar {
                Some(grammar) => grammar.choose(sampler, logits, tokenizer, parts).map_err(failure)?,
                None => Some(sampler.sample(logits)),
            };
            let Some(token) = token else { return Ok(None) };
            let is_text = !tokenizer.is_end(token) && tokenizer.special(token).is_none();
            if let Some(top) = options.likelihoods.filter(|_| is_text) {
                chosen.borrow_mut().push(Likelihood::of(logits, token, top, tokenizer));
            }
            Ok(Some(token))
        };
        let mut teller = Teller {
            told: &job.told,
            choice,
            chosen: &chosen,
            stops: Stops::new(options.stop.clone()),
            calls: prepared.calls.clone(),
            parallel: job.request.tools.as_ref().is_none_or(|tools| tools.parallel),
            number: self.began.wrapping_add(self.answers),
            called: 0,
            stopped: false,
        };
        let (session, context) = (&mut *self.session, &mut self.context);
        let mut show = |part: Part, text: &str| teller.show(part, text);
        let answered = turn::write(session, context, prepared.turn, after, &mut choose, wanted, &mut show)?;
        if !teller.stopped {
            teller.finish();
        }
        let ended = if teller.stopped { Ended::EndOfText } else { answered.ended };
        Ok((Answered { ended, ..answered }, teller.stops.found().map(str::to_owned)))
    }

    /// The prompt's tokens, and how the answer's are drawn; everything that can be known before is checked.
    fn prepare(&self, request: &Request) -> Result<Prepared, Refusal> {
        let tokenizer = self.session.tokenizer();
        let mut calling = Calling::default();
        let (tokens, reasons) = match &request.ask {
            Ask::Conversation(messages) => {
                let prompt = self.conversation(messages, request.tools.as_ref(), &mut calling)?;
                (prompt.tokens, Some(prompt.reasons).filter(|_| calling.grammar.is_none()))
            }
            Ask::Text(text) => (tokenizer.encode(text, tokenizer.adds_bos()), None),
            Ask::Tokens(tokens) => (tokens.clone(), None),
        };
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.session.vocabulary()) {
            let most = self.session.vocabulary() - 1;
            return Err(Refusal::invalid(
                Some("prompt"),
                format!("there is no token {token}; they go to {most}"),
            ));
        }
        if tokens.is_empty() {
            return Err(Refusal::invalid(Some("prompt"), "the prompt has no tokens; say something"));
        }
        let context = self.session.context();
        if tokens.len() >= context {
            let message = format!(
                "the prompt has {} tokens, and the plan's context has room for {context} with the answer; say it shorter, or plan with a larger --context",
                tokens.len()
            );
            return Err(Refusal::invalid(None, message));
        }
        let options = &request.options;
        let most = options.max_tokens.unwrap_or(usize::MAX);
        let told = options.likelihoods.map_or(0, |top| 1 + top);
        let room = most.min(context - tokens.len() + 1);
        if options.choices * room * told > LIKELIHOODS {
            let message = format!(
                "{} answers of up to {room} tokens with {told} likelihoods each are more than the {LIKELIHOODS} that are kept at once; set a smaller `max_tokens`, or ask for fewer",
                options.choices
            );
            return Err(Refusal::invalid(Some("logprobs"), message));
        }
        let vocabulary = self.session.vocabulary();
        if let Some((token, _)) = options.logit_bias.iter().find(|(token, _)| *token as usize >= vocabulary) {
            let message = format!("there is no token {token}; they go to {}", vocabulary - 1);
            return Err(Refusal::invalid(Some("logit_bias"), message));
        }
        let sampling = self.sampling(options);
        Sampler::new(sampling.clone()).map_err(|error| Refusal::invalid(None, error.to_string()))?;
        let refused = |error: String| Refusal::invalid(Some("response_format"), error);
        let grammar = match &options.schema {
            None => calling.grammar,
            Some(schema) => {
                let json = schema::grammar(schema).map_err(refused)?;
                Some(self.grammar(format!("start: {json}")).map_err(refused)?)
            }
        };
        let turn = Turn { reasons, most, marks: calling.marks };
        Ok(Prepared { prompt: tokens, turn, sampling, grammar, calls: calling.calls })
    }

    /// A conversation in the model's template, and how tools are called in the answer. Where a call must be, the answer is that,
    /// and the prompt has what stands before it.
    fn conversation(
        &self,
        messages: &[Message],
        tools: Option<&Tools>,
        calling: &mut Calling,
    ) -> Result<Prompt, Refusal> {
        let tokenizer = self.session.tokenizer();
        let refused = |error: &TemplateError| Refusal::invalid(Some("messages"), error.to_string());
        let template = self.template.as_ref().map_err(refused)?;
        let format = Format::of(template.source());
        let used = tools.is_some() || messages.iter().any(|m| m.role == Role::Tool || !m.calls.is_empty());
        if used && format.is_none() {
            let message = "tools are not implemented for this model: its chat template has none, or a format of calls that is not known here";
            return Err(Refusal::invalid(Some("tools"), message));
        }
        let described = tools.map(Tools::described).unwrap_or_default();
        let prompt = template.prompt_with(tokenizer, messages, &described, true);
        let mut prompt = prompt.map_err(|error| refused(&error))?;
        let (Some(tools), Some(format)) = (tools, format) else { return Ok(prompt) };
        let refused = |error: String| Refusal::invalid(Some("tools"), error);
        let forced = tools.forced(format).map_err(refused)?;
        let name = forced.as_ref().map(|(name, _)| name.clone().unwrap_or_default());
        if let (Some((_, lark)), Some(name)) = (forced, &name) {
            let thought = match (prompt.reasons, format) {
                (false, _) => "",
                (true, Format::Mistral) => "[/THINK]",
                (true, _) => "\n</think>\n\n",
            };
            let prefix = format!("{thought}{}", format.prefix(name));
            prompt.tokens.extend(tokenizer.encode_parse_special(&prefix, false));
            calling.grammar = Some(self.grammar(lark).map_err(refused)?);
        }
        calling.marks = Some(format.marks());
        calling.calls = Some(Calls::new(format, tools.names(), name));
        Ok(prompt)
    }

    /// A grammar, if there is room for it.
    fn grammar(&self, lark: String) -> Result<Grammar, String> {
        self.has_room(grammar::bytes_max(&lark))?;
        Grammar::new(lark)
    }

    /// Whether the plan's limit has room for so much more than the process holds now.
    fn has_room(&self, bytes: u64) -> Result<(), String> {
        let held = footprint(None).map_err(|error| error.to_string())?.resident_bytes;
        let room = self.session.plan.memory.limit_bytes.saturating_sub(held);
        if bytes <= room {
            return Ok(());
        }
        Err(format!(
            "its grammar may take {}, and the plan's limit has {} left; plan again with --reserve {}M",
            show(bytes),
            show(room),
            bytes.div_ceil(1 << 20)
        ))
    }

    /// What the request does not say is as the command line has it.
    fn sampling(&self, options: &Options) -> Sampling {
        let own = &self.sampling;
        Sampling {
            temperature: options.temperature.unwrap_or(own.temperature),
            top_k: options.top_k.unwrap_or(own.top_k),
            top_p: options.top_p.unwrap_or(own.top_p),
            min_p: options.min_p.unwrap_or(own.min_p),
            repeat_penalty: options.repeat_penalty.unwrap_or(own.repeat_penalty),
            presence_penalty: options.presence_penalty.unwrap_or(own.presence_penalty),
            frequency_penalty: options.frequency_penalty.unwrap_or(own.frequency_penalty),
            logit_bias: options.logit_bias.clone(),
            // another draw for each, and the same ones after every start
            seed: options.seed.unwrap_or_else(|| own.seed.wrapping_add(self.draws)),
        }
    }
}
