//! An endpoint for other programs: what `OpenAI`'s clients ask is answered under the plan.
//!
//! One thread speaks HTTP (`http`) and never computes; the main thread owns the engine and answers one request after another in
//! one context, which keeps what two requests have in common. Between them is a queue of bounded length. What clients may
//! send is in `protocol`, the texts that end an answer in `stops`, what the operator sees in `metrics`.

mod http;
mod metrics;
mod protocol;
mod stops;

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use flashplan::internals::machine::footprint;
use flashplan::{Sampler, Sampling, StopHandle};
use tokio::sync::mpsc::UnboundedSender;

use self::http::{Door, Site};
use self::metrics::Metrics;
use self::protocol::{Ask, Options, Refusal, Request};
use self::stops::Stops;
use super::chat::reasoning::Part;
use super::chat::{Template, TemplateError};
use super::cli::Cli;
use super::ended::Ended;
use super::figures::sums;
use super::session::Session;
use super::turn::{self, Turn};
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

/// What is told of an answer as it comes. No more than the context has tokens, so that a slow client needs no more memory.
#[derive(Debug)]
enum Told {
    /// There is none.
    Refused(Refusal),
    /// It begins.
    Begins,
    /// More of it.
    Text(Part, String),
    /// It is over.
    Ended { cut: bool, usage: Usage },
    /// It broke off.
    Failed(String),
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
    let mut desk =
        Desk { session, template, sampling: cli.sampling(), held: Vec::new(), metrics, answers: 0 };
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
    /// The tokens whose keys and values the context holds.
    held: Vec<u32>,
    metrics: Arc<Metrics>,
    answers: u64,
}

impl Desk<'_, '_> {
    fn work(&mut self, jobs: &Receiver<Job>, stop: &StopHandle) -> Result<(), Failure> {
        loop {
            match jobs.recv_timeout(SOON) {
                Ok(job) => {
                    self.metrics.taken();
                    self.answer(&job, stop)?;
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
        let prepared = self.prepare(&job.request);
        let (tokens, reasons, mut sampler, most) = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => {
                tell(Told::Refused(refusal));
                return Ok(());
            }
        };
        self.answers += 1;
        tell(Told::Begins);
        let turn = Turn { prompt: &tokens, reasons, most };
        let mut stops = Stops::new(job.request.options.stop.clone());
        let mut stopped = false;
        let mut show = |part: Part, text: &str| {
            let (text, ends) = match part {
                Part::Reasoning => (text.to_owned(), false),
                Part::Answer => stops.push(text),
            };
            stopped |= ends;
            let gone = !text.is_empty() && job.told.send(Told::Text(part, text)).is_err();
            if ends || gone { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let wanted = || !job.told.is_closed() && !stop.is_stopped();
        let answered = turn::answer(self.session, &mut self.held, &mut sampler, &turn, &wanted, &mut show);
        let answered = match answered {
            Ok(answered) => answered,
            Err(failure) => {
                tell(Told::Failed(failure.to_string()));
                return Err(failure);
            }
        };
        if !stopped {
            let rest = stops.finish();
            if !rest.is_empty() {
                tell(Told::Text(Part::Answer, rest));
            }
        }
        let usage = Usage { prompt: tokens.len(), cached: answered.kept, answer: answered.tokens };
        let (steps, (time, _)) = (self.session.steps.len(), sums(&self.session.steps));
        self.metrics.answered(&usage, &answered, (steps, time));
        let gone = job.told.is_closed();
        match answered.ended {
            Ended::Interrupt if stop.is_stopped() => tell(Told::Failed(STOPPING.to_owned())),
            ended => tell(Told::Ended {
                cut: !stopped && matches!(ended, Ended::Length | Ended::ContextFull),
                usage,
            }),
        }
        let speed = match steps {
            0 => String::new(),
            steps => format!(" at {:.1} tok/s", steps as f64 / time.as_secs_f64()),
        };
        terminal::say(format_args!(
            "[{}: {} in, {} of them held; {} out{speed}; {:.2} s to the first{}]",
            self.answers,
            usage.prompt,
            usage.cached,
            usage.answer,
            answered.first.as_secs_f64(),
            if gone { "; the client hung up" } else { "" },
        ));
        Ok(())
    }

    /// The prompt's tokens, whether it ends in reasoning, how tokens are drawn, and how many there may be.
    fn prepare(&self, request: &Request) -> Result<(Vec<u32>, Option<bool>, Sampler, usize), Refusal> {
        let tokenizer = self.session.tokenizer();
        let (tokens, reasons) = match &request.ask {
            Ask::Conversation(messages) => {
                let refused = |error: &TemplateError| Refusal::invalid(Some("messages"), error.to_string());
                let template = self.template.as_ref().map_err(refused)?;
                let prompt = template.prompt(tokenizer, messages, true).map_err(|error| refused(&error))?;
                (prompt.tokens, Some(prompt.reasons))
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
        let Options { temperature, top_p, top_k, min_p, repeat_penalty, seed, max_tokens, .. } =
            request.options;
        let own = &self.sampling;
        let sampling = Sampling {
            temperature: temperature.unwrap_or(own.temperature),
            top_k: top_k.unwrap_or(own.top_k),
            top_p: top_p.unwrap_or(own.top_p),
            min_p: min_p.unwrap_or(own.min_p),
            repeat_penalty: repeat_penalty.unwrap_or(own.repeat_penalty),
            // another draw for each, and the same ones after every start
            seed: seed.unwrap_or_else(|| own.seed.wrapping_add(self.answers)),
        };
        let sampler = Sampler::new(sampling).map_err(|error| Refusal::invalid(None, error.to_string()))?;
        Ok((tokens, reasons, sampler, max_tokens.unwrap_or(usize::MAX)))
    }
}
