//! A server for other programs: it answers requests of `OpenAI`'s, Anthropic's and Ollama's clients under the plan.
//!
//! One thread speaks HTTP (`http`, over `connections`) and never computes. The main thread has the engine (`desk`) and a `seat` for each of
//! the plan's sequences. A sequence keeps its tokens between requests, so a common prefix is prefilled once. Active answers decode as one
//! batch: a token each, plus the accepted part of a draft. Answers begin and end between tokens, and have their `share` of the time while a
//! prompt is prefilled. A `queue` of bounded length connects both threads. Every interface makes a `request`: `openai`, `responses`,
//! `anthropic`, `ollama` and `embeddings` read requests and write answers. An `answer` goes out whole or as a stream, with the `likelihood`
//! of its tokens on request. A `grammar`, made of a `schema`, constrains the answer. The model may have `tools`: a `teller` separates their
//! `calls` from text, and `enforced` constrains them. `stops` has the texts that end an answer. `metrics` and `log` serve the operator.

mod answer;
mod anthropic;
mod budget;
mod calls;
mod connections;
mod desk;
mod embeddings;
mod enforced;
mod grammar;
mod http;
mod keys;
mod likelihood;
mod literal;
mod log;
mod mailbox;
mod metrics;
mod ollama;
mod openai;
mod prepared;
mod questions;
mod queue;
mod request;
mod responses;
mod schema;
mod seat;
mod share;
mod stops;
mod store;
mod teller;
mod tools;
mod typed;
mod weight;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flashplan::StopHandle;
use flashplan::internals::machine::footprint;

use self::budget::{Charge, Shares};
use self::calls::Format;
use self::desk::Desk;
use self::http::{About, Door, Limits, Site};
use self::likelihood::Likelihood;
use self::log::Log;
use self::mailbox::Speaker;
use self::metrics::Metrics;
use self::queue::{Bounds, Queue};
use self::request::{AnswerRequest, Refusal};
use self::seat::Seat;
use super::chat::conversation::Call;
use super::chat::{Template, TemplateError};
use super::cli::Cli;
use super::reasoning::Channel;
use super::session::RunningPlan;
use super::sessions::Sessions;
use super::turn::Answered;
use super::{Failure, failure};

/// The address by default.
pub(super) const ADDRESS: &str = "127.0.0.1:8080";
/// The part of the bytes for requests that waiting requests may take; bodies on their way have the rest. And their waiting time, at most.
const QUEUE_PART: (usize, usize) = (3, 4);
const QUEUE_TIME: Duration = Duration::from_secs(300);
/// Bytes of a request for each token of the context, and besides: more cannot fit into it.
const BODY_BYTES: (usize, usize) = (8, 64 << 10);
/// Bytes of the plan's limit for memory that belongs neither to the plan nor to a client. They cover code that runs for the first time, the
/// HTTP thread, kernel records, and allocator fragmentation. A build with assertions has more code.
const UNPLANNED_BYTES: u64 = if cfg!(debug_assertions) { 4 << 18 } else { 3 << 18 };
/// The last message to clients.
const STOPPING: &str = "the server is stopping";
/// The longest key.
const KEY_BYTES_MAX: u64 = 4096;

/// A request in the queue. A client that hangs up drops the other end of `told`.
#[derive(Debug)]
struct Job {
    request: AnswerRequest,
    told: Speaker,
    /// The charge for the request.
    held: Charge,
}

/// Messages about an answer as it comes.
#[derive(Debug)]
enum Told {
    /// The answer begins: the tokens of its prompts, and options without effect.
    Begins { prompt: usize, ignored: Vec<String> },
    /// More of a choice, and the likelihoods of the tokens that made it.
    Text { choice: usize, part: Channel, text: String, likelihoods: Vec<Likelihood> },
    /// The next text's embedding.
    Vector(Vec<f32>),
    /// The reply to a question, as JSON.
    Said(String),
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
    /// Prompt tokens that the context held already.
    cached: usize,
    answer: usize,
    /// Answer tokens of reasoning, with its marks.
    reasoning: usize,
}

impl Usage {
    /// Adds the tokens of a choice.
    fn add(&mut self, answered: Answered) {
        self.answer += answered.tokens;
        self.reasoning += answered.reasoning;
    }
}

/// Answers until it is stopped.
pub(super) fn serve(
    session: &mut RunningPlan<'_>,
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
    match &template {
        Err(why) => terminal::say(format_args!("note: /v1/chat/completions is refused: {why}")),
        Ok(template) if Format::of(template.source()).is_none() && template.source().contains("tool") => {
            terminal::say(
                "note: tools are refused: the calls that this chat template teaches are not understood",
            );
        }
        Ok(_) => {}
    }
    let shares = Arc::new(Shares::of(left_for_clients(session)?).map_err(failure)?);
    let metrics = Arc::new(Metrics::new(session.plan));
    let bytes = shares.requests.bytes() / QUEUE_PART.1 * QUEUE_PART.0;
    let queue = Arc::new(Queue::new(Bounds { bytes, time: QUEUE_TIME }, Arc::clone(&metrics)));
    let log = if cli.json { Log::Json } else { Log::Text };
    let site = Site {
        model: session.model.name().to_owned(),
        is_strict: cli.strict_model,
        about: about(session, &template),
        key,
        asked: Arc::clone(&queue),
        context: session.context(),
        body_bytes_max: session.context() * BODY_BYTES.0 + BODY_BYTES.1,
        shares: Arc::clone(&shares),
        metrics: Arc::clone(&metrics),
        log,
    };
    let door = Door::open(address, site, Limits::default()).map_err(failure)?;
    log.listens(session, door.address());
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let seats = (0..session.sequences()).map(|_| Seat::new(session.context())).collect();
    let sampling = cli.served_sampling(session.tokenizer());
    let mut desk = Desk {
        session,
        template,
        sampling,
        sessions,
        seats,
        room: Arc::clone(&shares.answers),
        metrics,
        log,
        answers: 0,
        draws: 0,
        began,
    };
    desk.metrics.done(desk.session)?;
    let ended = desk.work(&queue, stop);
    queue.close();
    door.close();
    if ended.is_ok() {
        // the next start is what this is for
        (0..desk.seats.len()).for_each(|at| desk.keep(at));
    }
    log.stopped(desk.answers);
    match ended {
        Ok(()) => session.warn_of_memory(),
        failed => failed,
    }
}

/// Bytes that the plan's limit leaves for clients: what the process does not hold now, but for what is unplanned.
fn left_for_clients(session: &RunningPlan<'_>) -> Result<u64, Failure> {
    let held = footprint(None).map_err(failure)?;
    let held = held.resident_bytes + held.page_table_bytes + UNPLANNED_BYTES;
    Ok(session.plan.memory.limit_bytes.saturating_sub(held))
}

/// Facts about the model for clients.
fn about(session: &RunningPlan<'_>, template: &Result<Template, TemplateError>) -> About {
    let tokenizer = session.tokenizer();
    let name = |token: Option<u32>| token.and_then(|token| tokenizer.special(token)).map(str::to_owned);
    About {
        context: session.context(),
        sequences: session.sequences(),
        template: template.as_ref().ok().map(|template| template.source().to_owned()),
        beginning: name(tokenizer.bos()),
        end: name(tokenizer.eos()),
    }
}

/// The key of a file's first line.
fn read_key(path: &Path) -> Result<String, Failure> {
    let wrong = |what: &str| failure(format!("--api-key-file {}: {what}", path.display()));
    let unreadable = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => wrong("there is no such file; make one with the key in its first line"),
        _ => wrong(&format!("it cannot be read ({error}); name a file that you may read")),
    };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() || metadata.len() > KEY_BYTES_MAX {
        return Err(wrong("it is no regular file of at most 4096 bytes; put the key into its first line"));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let key = text.lines().next().unwrap_or_default().trim();
    if key.len() < 8 || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong("its first line is no key of 8 or more printable characters without spaces"));
    }
    Ok(key.to_owned())
}
