//! A server for other programs: it answers requests of `OpenAI`'s, Anthropic's and Ollama's clients under the plan.
//!
//! One thread speaks HTTP (`http`, over `connections`) and never computes. The main thread owns the engine and has a `seat` for each of the
//! plan's sequences. A sequence keeps its tokens between requests, so a common prefix is prefilled once. Active answers decode as one
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
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::vec::IntoIter;

use flashplan::internals::counters::detail;
use flashplan::internals::draft::draft;
use flashplan::internals::machine::footprint;
use flashplan::{Sampler, Sampling, StopHandle};
use plans::size::show;
use serde_json::{Value, json};

use self::budget::{Budget, Charge, RESERVED, Shares, TEXT_COPIES};
use self::calls::grammar as call_grammar;
use self::calls::{Calls, Format};
use self::embeddings::Embedding;
use self::enforced::Enforced;
use self::grammar::Grammar;
use self::http::{About, Door, Limits, Site};
use self::likelihood::Likelihood;
use self::log::{End, Log};
use self::mailbox::Speaker;
use self::metrics::Metrics;
use self::questions::Question;
use self::queue::Queue;
use self::request::{AnswerRequest, Ask, Input, Options, Refusal};
use self::seat::{AnswerFigures, Answering, Found, Seat};
use self::tools::Tools;
use super::chat::conversation::{Call, Message, Role};
use super::chat::{Prompt, Scene, Template, TemplateError};
use super::cli::Cli;
use super::ended::Ended;
use super::reasoning::Channel;
use super::session::RunningPlan;
use super::sessions::{Keeping, Sessions};
use super::turn::{self, Turn};
use super::{Failure, failure};

/// Where it listens if nobody says.
pub(super) const ADDRESS: &str = "127.0.0.1:8080";
/// Requests that may wait for their answer; further ones are refused for now.
const QUEUE: usize = 8;
/// Bytes of a request for each token of the context, and besides: more cannot fit into it.
const BODY_BYTES: (usize, usize) = (8, 64 << 10);
/// Bytes of the plan's limit for memory that belongs neither to the plan nor to a client. They cover code that runs for the first time, the
/// HTTP thread, kernel records, and allocator fragmentation. A build with assertions has more code.
const UNPLANNED_BYTES: u64 = if cfg!(debug_assertions) { 4 << 18 } else { 3 << 18 };
/// Bytes of the text of a token in an answer, as is usual, and of a choice besides.
const TEXT_BYTES: (usize, usize) = (8, 2 << 10);
/// Bytes of a likelihood until its client has it, and of a token's value in the arguments of a call.
const LIKELIHOOD_BYTES: usize = 400;
const ARGUMENT_BYTES: usize = 96;
/// Copies of a request while its prompt is made ready. Tools are held in several forms.
const PROMPT_COPIES: usize = 6;
const TOOLS_COPIES: usize = 16;
/// How soon an interrupt is heeded while nobody asks.
const SOON: Duration = Duration::from_millis(100);
/// Likelihoods of tokens in an answer, at most: they must fit into the memory that the plan leaves.
const LIKELIHOODS: usize = 4 << 10;
/// The last message to clients.
const STOPPING: &str = "the server is stopping";
/// The longest key.
const KEY_BYTES_MAX: u64 = 4096;

/// A request in the queue. Who hangs up drops the other end of `told`.
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
    /// The reply to a question.
    Said(Value),
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
    let queue = Arc::new(Queue::new(QUEUE, Arc::clone(&metrics)));
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
    let mut desk = Desk {
        session,
        template,
        sampling: cli.sampling(),
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

/// Who answers.
struct Desk<'d, 'engine> {
    session: &'d mut RunningPlan<'engine>,
    template: Result<Template, TemplateError>,
    sampling: Sampling,
    /// Where prompts last.
    sessions: Option<Sessions>,
    /// For each of the plan's sequences.
    seats: Vec<Seat<'engine>>,
    /// Memory for prompts as they are made ready, and for answers.
    room: Arc<Budget>,
    metrics: Arc<Metrics>,
    log: Log,
    answers: u64,
    /// Choices so far: each draws by another seed.
    draws: u64,
    /// Nanoseconds since 1970 at the start; ids of calls derive from it.
    began: u64,
}

/// A request made ready for the engine.
struct Prepared {
    /// The prompt at hand, and those after it.
    prompt: Vec<u32>,
    rest: IntoIter<Vec<u32>>,
    /// Whether the answer repeats the prompt.
    echo: bool,
    /// Prompt tokens to prefill: all, or none if the likelihood of each is reported. In that case they are decoded, so likelihoods equal
    /// `--score`'s to the bit.
    read: usize,
    tells_prompt: bool,
    /// Options without effect.
    ignored: Vec<String>,
    turn: Turn,
    /// Sampling of the first choice; each one after it has the next seed.
    sampling: Sampling,
    /// The constraint on each choice, and the charge for its memory.
    enforced: Option<(Enforced, Charge)>,
    /// Bytes of text that the answer's charge has room for, in each choice.
    text_room: usize,
    /// The reader that tells calls of tools from text, where there are any tools.
    calls: Option<Calls>,
    /// Embeddings after the prompt's own, where the request wants vectors instead of text.
    embedding: Option<Embedding>,
}

impl Prepared {
    /// Tokens of all prompts.
    fn tokens(&self) -> usize {
        self.prompt.len() + self.rest.as_slice().iter().map(Vec::len).sum::<usize>()
    }

    /// Goes on with the next prompt, if there is one.
    fn next(&mut self) -> bool {
        let Some(prompt) = self.rest.next() else { return false };
        self.read = if self.tells_prompt { 0 } else { prompt.len() };
        self.prompt = prompt;
        true
    }
}

/// How an answer calls tools.
#[derive(Default)]
struct Calling {
    enforced: Option<(Enforced, Charge)>,
    calls: Option<Calls>,
    marks: Option<&'static [&'static str]>,
    /// Whether the prompt has begun a call.
    is_forced: bool,
}

impl<'engine> Desk<'_, 'engine> {
    fn work(&mut self, queue: &Queue, stop: &StopHandle) -> Result<(), Failure> {
        loop {
            self.free()?;
            queue.sweep();
            while let Some(job) = queue.take_question() {
                self.say(&job);
            }
            let answers = self.seats.iter().any(Seat::writes);
            let mut read = Duration::ZERO;
            while self.seats.iter().any(|seat| seat.answering.is_none()) {
                let job = if self.is_idle() {
                    // who asks does not wait until all is on disk
                    let wait = if !stop.is_stopped() && self.keep_some() { Duration::ZERO } else { SOON };
                    match queue.take(wait) {
                        Some(job) => job,
                        None if !stop.is_stopped() => continue,
                        None => return Ok(()),
                    }
                } else {
                    let Some(job) = queue.take(Duration::ZERO) else { break };
                    job
                };
                let clock = Instant::now();
                self.begin(job, stop)?;
                // what there is of a prompt may be copied, or read from disk
                read += if answers { clock.elapsed() } else { Duration::ZERO };
                // requests come one at a time between the tokens of others
                if self.seats.iter().any(Seat::writes) {
                    break;
                }
            }
            read += self.read_some(stop)?;
            let (owed, clock) = (share::owed(read), Instant::now());
            while self.write_some()? && clock.elapsed() < owed {}
            if answers && !read.is_zero() {
                self.metrics.shared(read, clock.elapsed());
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.seats.iter().all(|seat| seat.answering.is_none())
    }

    /// Frees the sequence slots of clients that hung up.
    fn free(&mut self) -> Result<(), Failure> {
        for at in 0..self.seats.len() {
            let Some(answering) =
                self.seats[at].answering.as_mut().filter(|answering| !answering.is_wanted())
            else {
                continue;
            };
            if let Some(choice) = answering.choice.take() {
                let (tokens, _) = choice.end(Ended::Interrupt);
                answering.work.usage.answer += tokens;
            }
            self.end(at)?;
        }
        Ok(())
    }

    /// Answers a question that needs no sequence slot.
    fn say(&self, job: &Job) {
        let Ask::Question(question) = &job.request.ask else { return };
        let making = self.room.take(self.prompt_bytes(job)).map_err(|short| short.refusal("the prompt"));
        let told = making.and_then(|_making| self.said(question)).map_or_else(Told::Failed, Told::Said);
        // who is no longer there is told nothing
        job.told.send(told).ok();
    }

    /// The reply to a question.
    fn said(&self, question: &Question) -> Result<Value, Refusal> {
        let (tokenizer, context) = (self.session.tokenizer(), self.session.context());
        Ok(match question {
            Question::Tokens { text, with_beginning, with_special, with_pieces } => {
                let mut tokens = if *with_special {
                    tokenizer.encode_rendered(text, &[])
                } else {
                    tokenizer.encode(text, false)
                };
                if *with_beginning && tokenizer.adds_bos() {
                    tokens.splice(0..0, tokenizer.bos());
                }
                let piece = |&token: &u32| tokenizer.piece(token).unwrap_or_default();
                let pieces = with_pieces.then(|| tokens.iter().map(piece).collect());
                questions::told(&tokens, pieces, context)
            }
            Question::Text(tokens) => {
                if let Some(token) = tokens.iter().find(|&&token| token as usize >= tokenizer.vocabulary()) {
                    let most = tokenizer.vocabulary() - 1;
                    return Err(Refusal::invalid(
                        Some("tokens"),
                        format!("there is no token {token}; they go to {most}"),
                    ));
                }
                let bytes: Vec<u8> =
                    tokens.iter().flat_map(|&token| tokenizer.piece(token).unwrap_or_default()).collect();
                let text = String::from_utf8_lossy(&bytes);
                json!({ "content": text, "prompt": text })
            }
            Question::Prompt(request) | Question::Count(request) => {
                let Ask::Conversation(messages) = &request.ask else { return Ok(Value::Null) };
                let prompt = self.conversation(messages, request, &mut Calling::default())?;
                if let Question::Count(_) = question {
                    json!({ "input_tokens": prompt.tokens.len() })
                } else {
                    let piece = |&token: &u32| tokenizer.piece(token).unwrap_or_default();
                    let bytes: Vec<u8> = prompt.tokens.iter().flat_map(piece).collect();
                    json!({ "prompt": String::from_utf8_lossy(&bytes) })
                }
            }
        })
    }

    /// Gives a request a free sequence slot, with the cached part of its prompt.
    fn begin(&mut self, job: Job, stop: &StopHandle) -> Result<(), Failure> {
        if let Ask::Question(_) = &job.request.ask {
            self.say(&job);
            return Ok(());
        }
        let mut prepared = match self.prepare(&job) {
            Ok(prepared) => prepared,
            Err(refusal) => {
                // who is no longer there gets no answer, and that is no failure
                job.told.send(Told::Failed(refusal)).ok();
                return self.metrics.done(self.session);
            }
        };
        self.answers += 1;
        self.draws += job.request.options.choices as u64;
        let (prompt, ignored) = (prepared.tokens(), std::mem::take(&mut prepared.ignored));
        job.told.send(Told::Begins { prompt, ignored }).ok();
        let began = Instant::now();
        let embedding = prepared.embedding.take();
        let wanted = || !job.told.is_closed() && !stop.is_stopped();
        let (at, cached) = match self.place(&prepared.prompt[..prepared.read], embedding.is_some(), &wanted) {
            Ok(placed) => placed,
            Err(failure) => {
                job.told.send(Told::Failed(Refusal::broken(failure.to_string()))).ok();
                return Err(self.fail(failure));
            }
        };
        let seat = &mut self.seats[at];
        let texts = embedding.as_ref().map_or(0, Embedding::tokens);
        let usage = Usage { prompt: prompt + texts, cached, answer: 0 };
        let work = AnswerFigures { usage, ..AnswerFigures::default() };
        let (number, after) = (self.answers, Vec::new());
        seat.taken = number;
        seat.answering = Some(Answering {
            job,
            prepared,
            number,
            began,
            work,
            embedding,
            after,
            answered: 0,
            choice: None,
        });
        Ok(())
    }

    /// Finds a free sequence slot for a prompt, and how many of its tokens the slot holds. An embedding depends on its text alone, so it
    /// shares nothing.
    fn place(
        &mut self,
        prompt: &[u32],
        embeds: bool,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(usize, usize), Failure> {
        if embeds {
            let at = self.seat_for(&[])?;
            self.keep(at);
            self.empty(at)?;
            return Ok((at, 0));
        }
        let at = self.seat_for(prompt)?;
        let held = &self.seats[at].held;
        if held.same(prompt) < held.prefilled().len() {
            self.keep(at);
        }
        let (seat, sessions) = (&mut self.seats[at], self.sessions.as_mut());
        Ok((at, turn::open(self.session, at, &mut seat.held, sessions, prompt, wanted)?))
    }

    /// Empties a sequence slot.
    fn empty(&mut self, at: usize) -> Result<(), Failure> {
        self.session.forget(at, 0)?;
        self.seats[at].held.truncate(0);
        Ok(())
    }

    /// Finds a free sequence slot; there must be one. The slot with the longest common prefix is reused if the prompt continues all of its
    /// tokens, or if no other is free. Otherwise the least recently used free slot is taken, and the longest common prefix is copied into
    /// it.
    fn seat_for(&mut self, prompt: &[u32]) -> Result<usize, Failure> {
        let found =
            |(at, seat): (usize, &Seat<'_>)| seat.found(prompt, |same| self.session.kept_of(at, same));
        let seats: Vec<Found> = self.seats.iter().enumerate().map(found).collect();
        let (at, from) = seat::choose(&seats);
        if let Some(from) = from {
            self.keep(at);
            let shared = self.session.share(from, at, seats[from].same)?;
            let [from, to] =
                self.seats.get_disjoint_mut([from, at]).unwrap_or_else(|_| unreachable!("two seats"));
            to.held.share(&from.held, shared);
        }
        Ok(at)
    }

    /// Reads some of the prompt that waits for longest, and begins its answer if that was all of it; the time that reading took.
    /// Who has vectors already lets others go first.
    fn read_some(&mut self, stop: &StopHandle) -> Result<Duration, Failure> {
        let reads = |seat: &Seat<'_>| {
            let reading = seat.answering.as_ref().filter(|a| a.choice.is_none())?;
            Some((reading.embedding.as_ref().map_or(0, |embedding| embedding.done), reading.number))
        };
        let waiting = (0..self.seats.len()).filter_map(|at| Some((reads(&self.seats[at])?, at)));
        let Some((_, at)) = waiting.min() else { return Ok(Duration::ZERO) };
        let others_wait =
            self.seats.iter().filter_map(|seat| seat.answering.as_ref()).any(|a| a.choice.is_some());
        let seat = &mut self.seats[at];
        let Some(answering) = &mut seat.answering else { return Ok(Duration::ZERO) };
        if stop.is_stopped() {
            return self.end(at).map(|()| Duration::ZERO);
        }
        let prompt = &answering.prepared.prompt[..answering.prepared.read];
        let mut add =
            answering.embedding.as_mut().map(|embedding| move |hidden: &[f32]| embedding.add(hidden));
        let hidden = add.as_mut().map(|add| add as &mut turn::Hear<'_>);
        let read = if prompt.is_empty() {
            Ok(Duration::ZERO)
        } else {
            turn::read_some(self.session, at, &mut seat.held, prompt, others_wait, hidden)
        };
        let time = match read {
            Ok(time) => time,
            Err(Failure::Stopped) => return self.end(at).map(|()| Duration::ZERO),
            Err(failure) => return Err(self.fail(failure)),
        };
        if seat.held.len() == prompt.len() {
            if answering.work.first.is_zero() {
                answering.work.first = answering.began.elapsed();
            }
            if answering.embedding.is_some() {
                return self.tell_vector(at).map(|()| time);
            }
            if answering.job.request.options.choices > 1 {
                answering.after = self.session.last_logits().to_vec();
            }
            let index = answering.answered;
            self.choose(at, index)?;
        }
        Ok(time)
    }

    /// Sends the vector of a text that has been read, and goes on with the next text or ends the answer.
    fn tell_vector(&mut self, at: usize) -> Result<(), Failure> {
        self.empty(at)?;
        let Some(answering) = &mut self.seats[at].answering else { return Ok(()) };
        let Some(embedding) = &mut answering.embedding else { return Ok(()) };
        let (vector, next) = embedding.next();
        // who is no longer there is told nothing
        answering.job.told.send(Told::Vector(vector)).ok();
        match next {
            Some(tokens) => {
                (answering.prepared.read, answering.prepared.prompt) = (tokens.len(), tokens);
            }
            None => {
                answering.work.done = true;
                return self.end(at);
            }
        }
        Ok(())
    }

    /// Begins a choice after the prompt, whose logits the first has just been given by the engine.
    fn choose(&mut self, at: usize, index: usize) -> Result<(), Failure> {
        let seat = &mut self.seats[at];
        let Some(answering) = &mut seat.answering else { return Ok(()) };
        // all begin where the first one does
        let prompt = answering.prepared.read;
        let kept = self.session.forget(at, prompt)?;
        debug_assert_eq!(kept, prompt, "where a prompt ended, its sequence can go back to");
        seat.held.truncate(kept);
        answering.choice = Some(answering.begin(index, self.session.tokenizer(), self.began, &self.room)?);
        // where nothing was read, the first token is repeated, whatever the logits
        let first = index.is_multiple_of(answering.job.request.options.choices) && prompt > 0;
        self.go_on(at, first.then_some(0))
    }

    /// Chooses the next token of an answer by a row of the engine's logits, or by the logits after its prompt. At the end of a choice, the
    /// next choice begins or the answer ends.
    fn go_on(&mut self, at: usize, row: Option<usize>) -> Result<(), Failure> {
        let (seat, tokenizer) = (&mut self.seats[at], self.session.tokenizer());
        let room = seat.held.len() < self.session.context();
        let Some(answering) = &mut seat.answering else { return Ok(()) };
        let Some(choice) = &mut answering.choice else { return Ok(()) };
        let top = answering.job.request.options.likelihoods;
        let logits = row.map_or(&answering.after[..], |row| self.session.row(row));
        match choice.go_on(logits, top, room, tokenizer) {
            Ok(None) => Ok(()),
            Ok(Some(ended)) => self.end_choice(at, ended),
            Err(why) => {
                answering.work.broken = Some(why.to_string());
                self.end(at)
            }
        }
    }

    /// Ends the choice that is being written.
    fn end_choice(&mut self, at: usize, ended: Ended) -> Result<(), Failure> {
        let Some(answering) = &mut self.seats[at].answering else { return Ok(()) };
        let Some(choice) = answering.choice.take() else { return Ok(()) };
        let index = choice.index;
        let (tokens, whole) = choice.end(ended);
        answering.work.usage.answer += tokens;
        let of_each = answering.job.request.options.choices;
        if whole && !(index + 1).is_multiple_of(of_each) {
            return self.choose(at, index + 1);
        }
        if whole && answering.prepared.next() {
            answering.answered = index + 1;
            let Seat { held, answering: Some(Answering { prepared, job, .. }), .. } = &mut self.seats[at]
            else {
                return Ok(());
            };
            let wanted = || !job.told.is_closed();
            let prompt = &prepared.prompt[..prepared.read];
            turn::open(self.session, at, held, self.sessions.as_mut(), prompt, &wanted)?;
            return Ok(());
        }
        answering.work.done = whole;
        self.end(at)
    }

    /// Decodes a token of every answer that is being written, and drafts while rows are left. Returns whether there are any answers.
    fn write_some(&mut self) -> Result<bool, Failure> {
        self.free()?;
        let writing: Vec<usize> = (0..self.seats.len()).filter(|&at| self.seats[at].writes()).collect();
        if writing.is_empty() {
            return Ok(false);
        }
        let (most, mut left) =
            (self.session.draft_tokens(), self.session.step_rows().saturating_sub(writing.len()));
        let (mut rows, mut of_seats) = (Vec::with_capacity(self.session.step_rows()), Vec::new());
        for &at in &writing {
            let seat = &mut self.seats[at];
            let Some(next) = seat.next() else { continue };
            seat.held.decoded(next);
            let first = rows.len();
            let room = self.session.context() - seat.held.len();
            rows.push((at, next));
            rows.extend(draft(seat.held.tokens(), most.min(left).min(room)).map(|token| (at, token)));
            left -= rows.len() - first - 1;
            of_seats.push((at, first..rows.len()));
        }
        match self.session.decode_each(&rows) {
            Ok((time, counters)) => {
                self.metrics.decoded(of_seats.len(), time, &detail(&counters).times);
                let mut kept = 0;
                for (at, of_seat) in &of_seats {
                    kept += self.take(*at, &rows, of_seat.clone(), time)?;
                }
                self.metrics.drafted(rows.len() - of_seats.len(), kept);
            }
            Err(Failure::Stopped) => {
                for (at, _) in of_seats {
                    self.seats[at].held.truncate(self.session.position(at));
                    self.end_choice(at, Ended::Interrupt)?;
                }
            }
            Err(failure) => return Err(self.fail(failure)),
        }
        Ok(true)
    }

    /// Goes on with an answer by its rows of a step that took `time`. The first row's logits choose the token after the known one. Each
    /// drafted token that equals the chosen token is kept, and its row chooses the next. The engine forgets the rest. Returns the number of
    /// drafted tokens kept.
    fn take(
        &mut self,
        at: usize,
        rows: &[(usize, u32)],
        of_seat: Range<usize>,
        time: Duration,
    ) -> Result<usize, Failure> {
        let writes = |seat: &Seat<'_>| {
            let answering = seat.answering.as_ref()?;
            Some((answering.number, answering.choice.as_ref()?.index))
        };
        let answer = writes(&self.seats[at]);
        let (mut kept, mut took) = (0, time);
        for row in of_seat.clone() {
            let seat = &mut self.seats[at];
            if row > of_seat.start {
                // the answer may be over, and another one of the seat's begun
                if writes(seat) != answer || seat.next() != Some(rows[row].1) {
                    break;
                }
                seat.held.decoded(rows[row].1);
                kept += 1;
            }
            if let Some(answering) = &mut seat.answering {
                let (tokens, all) = answering.work.decoded;
                answering.work.decoded = (tokens + 1, all + std::mem::take(&mut took));
            }
            self.go_on(at, Some(row))?;
        }
        self.session.forget(at, self.seats[at].held.len())?;
        Ok(kept)
    }

    /// The engine's failure is the end of all answers.
    fn fail(&mut self, failure: Failure) -> Failure {
        for (at, seat) in self.seats.iter_mut().enumerate() {
            let Some(Answering { job, number, began, mut work, .. }) = seat.answering.take() else {
                continue;
            };
            work.broken = Some(failure.to_string());
            job.told.send(Told::Failed(Refusal::broken(failure.to_string()))).ok();
            self.log.answered(number, at, &work, began.elapsed(), End::Broken);
        }
        failure
    }

    /// An answer is over: given, broken off, or wanted by nobody any more. Its sequence slot is free, and its prompt is kept.
    fn end(&mut self, at: usize) -> Result<(), Failure> {
        let Some(Answering { job, number, began, work, embedding, .. }) = self.seats[at].answering.take()
        else {
            return Ok(());
        };
        let first = if embedding.is_some() { Duration::ZERO } else { work.first };
        self.metrics.answered(work.usage, first);
        let (end, told) = match (work.done, &work.broken) {
            (true, _) => (End::Given, Told::Ended(work.usage)),
            (false, None) => (End::Stopped, Told::Failed(Refusal::broken(STOPPING.to_owned()))),
            (false, Some(why)) => (End::Broken, Told::Failed(Refusal::broken(why.clone()))),
        };
        let end = if job.told.is_closed() { End::Gone } else { end };
        // before the client hears of it, and asks for more
        self.log.answered(number, at, &work, began.elapsed(), end);
        job.told.send(told).ok();
        self.seats[at].keeping = self.sessions.is_some().then(Keeping::begin);
        self.metrics.done(self.session)
    }

    /// Writes a block of some sequence slot to disk; returns whether that slot may have more.
    fn keep_some(&mut self) -> bool {
        (0..self.seats.len()).any(|at| self.keep_next(at))
    }

    /// Writes to disk all tokens that a sequence slot is about to lose.
    fn keep(&mut self, at: usize) {
        while self.keep_next(at) {}
    }

    /// Writes a block of a sequence slot to disk; returns whether there may be more to write.
    fn keep_next(&mut self, at: usize) -> bool {
        let Seat { held, keeping, .. } = &mut self.seats[at];
        let (Some(sessions), Some(kept)) = (&mut self.sessions, &mut *keeping) else { return false };
        let more = sessions.keep_next(self.session, at, held, kept);
        if !more {
            *keeping = None;
        }
        more
    }

    /// Bytes of memory for making a request's prompt ready, at most.
    fn prompt_bytes(&self, job: &Job) -> usize {
        let encoded = |text: &str| self.session.tokenizer().encode_bytes(text);
        let of_inputs = |inputs: &[Input]| -> usize {
            let of_input = |input: &Input| match input {
                Input::Text(text) => encoded(text),
                Input::Tokens(_) => 0,
            };
            inputs.iter().map(of_input).sum()
        };
        let of_conversation = |messages: &[Message]| -> usize {
            let of_message = |message: &Message| {
                encoded(&message.content) + message.reasoning.as_deref().map_or(0, encoded)
            };
            messages.iter().map(of_message).sum()
        };
        let of_texts: usize = match &job.request.ask {
            Ask::Conversation(messages) => of_conversation(messages),
            Ask::Prompts(inputs) | Ask::Embeddings { inputs, .. } => of_inputs(inputs),
            Ask::Question(Question::Prompt(request) | Question::Count(request)) => match &request.ask {
                Ask::Conversation(messages) => of_conversation(messages),
                _ => 0,
            },
            Ask::Question(Question::Tokens { text, .. }) => encoded(text),
            Ask::Question(Question::Text(_)) => 0,
        };
        let copies = if job.request.tools.is_some() { TOOLS_COPIES } else { PROMPT_COPIES };
        of_texts + copies * job.held.bytes()
    }

    /// The prompt's tokens, and how the answer's are drawn; everything that can be known before is checked. The listener is given the
    /// memory that its answer may take.
    fn prepare(&self, job: &Job) -> Result<Prepared, Refusal> {
        let request = &job.request;
        let tokenizer = self.session.tokenizer();
        let making = self.room.take(self.prompt_bytes(job)).map_err(|short| short.refusal("the prompt"))?;
        if let Ask::Embeddings { inputs, dimensions } = &request.ask {
            return self.prepare_embeddings(job, inputs, *dimensions, making);
        }
        let mut calling = Calling::default();
        let mut turn = Turn {
            reasons: None,
            named: false,
            tags: None,
            reasoning_most: request.steering.budget,
            most: request.options.max_tokens.unwrap_or(usize::MAX),
            marks: None,
        };
        let (prompts, ignored, param) = match &request.ask {
            Ask::Conversation(messages) => {
                let prompt = self.conversation(messages, request, &mut calling)?;
                (turn.reasons, turn.named, turn.tags) = (Some(prompt.reasons), prompt.named, prompt.tags);
                turn.reasons = turn.reasons.filter(|_| !calling.is_forced);
                (vec![prompt.tokens], prompt.unread, "messages")
            }
            Ask::Prompts(inputs) => {
                let tokens = |input: &Input| match input {
                    Input::Text(text) => tokenizer.encode(text, tokenizer.adds_bos()),
                    Input::Tokens(tokens) => tokens.clone(),
                };
                (inputs.iter().map(tokens).collect(), Vec::new(), "prompt")
            }
            Ask::Embeddings { .. } | Ask::Question(_) => unreachable!("they were prepared or answered"),
        };
        turn.marks = calling.marks;
        drop(making);
        let context = self.session.context();
        for tokens in &prompts {
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.session.vocabulary()) {
                let most = self.session.vocabulary() - 1;
                return Err(Refusal::invalid(
                    Some(param),
                    format!("there is no token {token}; they go to {most}"),
                ));
            }
            if tokens.is_empty() {
                return Err(Refusal::invalid(Some(param), "the prompt has no tokens; say something"));
            }
            if tokens.len() >= context {
                return Err(Refusal::too_long(param, tokens.len(), context));
            }
        }
        let options = &request.options;
        let told = options.likelihoods.map_or(0, |top| 1 + top);
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let echoed = if options.echo { longest } else { 0 };
        let room = echoed + turn.most.min(context - longest + 1);
        // who answers beside it may ask for as many
        let likelihoods = LIKELIHOODS / self.seats.len().max(1);
        if prompts.len() * options.choices * room * told > likelihoods {
            let message = format!(
                "{} answers of up to {room} tokens with {told} likelihoods each are more than the {likelihoods} that are kept at once; set a smaller `max_tokens`, or ask for fewer",
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
        let enforced = match &options.schema {
            // beside tools it has been enforced with them
            Some(schema) if calling.calls.is_none() => {
                let json = schema::grammar(schema).map_err(refused)?;
                let (grammar, charge) = self.grammar(format!("start: {json}"), &[]).map_err(refused)?;
                Some((Enforced::Answer(grammar), charge))
            }
            _ => calling.enforced,
        };
        let text_room = TEXT_BYTES.0 * room + TEXT_BYTES.1;
        let arguments = if request.tools.is_some() { ARGUMENT_BYTES * room } else { 0 };
        let choice = TEXT_COPIES * text_room + LIKELIHOOD_BYTES * told * room + arguments;
        let choices = prompts.len() * options.choices;
        let tokens: usize = prompts.iter().map(Vec::len).sum();
        let bytes = choices * choice + 3 * (job.held.bytes() + tokens * size_of::<u32>());
        let what = || format!("`n` {choices} of an answer of up to {room} tokens");
        job.told.charge(self.room.take(bytes).map_err(|short| short.refusal(&what()))?);
        let mut prompts = prompts.into_iter();
        let prompt = prompts.next().unwrap_or_default();
        let tells_prompt = options.echo && options.likelihoods.is_some();
        Ok(Prepared {
            read: if tells_prompt { 0 } else { prompt.len() },
            prompt,
            rest: prompts,
            echo: options.echo,
            tells_prompt,
            ignored,
            turn,
            sampling,
            enforced,
            text_room,
            calls: calling.calls,
            embedding: None,
        })
    }

    /// The tokens of texts that become a vector each.
    fn prepare_embeddings(
        &self,
        job: &Job,
        inputs: &[Input],
        dimensions: Option<usize>,
        making: Charge,
    ) -> Result<Prepared, Refusal> {
        let refused = |message: String| Refusal::invalid(Some("input"), message);
        let (pooling, width) = self.session.pooling();
        if let Some(dimensions) = dimensions.filter(|&dimensions| dimensions != width) {
            let message = format!(
                "`dimensions` is {dimensions}, and other than the model's {width} are not implemented here; leave it away"
            );
            return Err(Refusal::invalid(Some("dimensions"), message));
        }
        let (context, vocabulary) = (self.session.context(), self.session.vocabulary());
        let mut texts = Vec::with_capacity(inputs.len());
        for (index, input) in inputs.iter().enumerate() {
            let tokens = self.tokens_of(input);
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
                return Err(refused(format!("there is no token {token}; they go to {}", vocabulary - 1)));
            }
            if tokens.is_empty() {
                return Err(refused(format!("text {index} has no tokens; say something")));
            }
            if tokens.len() > context {
                let count = tokens.len();
                return Err(refused(format!(
                    "text {index} has {count} tokens, and the plan's context has room for {context}; cut it, or plan with a larger --context"
                )));
            }
            texts.push(tokens);
        }
        let rest = texts.split_off(1);
        let embedding = Embedding::new(pooling, width, rest);
        // their tokens are there until the last text is read
        let tokens = embedding.tokens() + texts.first().map_or(0, Vec::len);
        drop(making);
        let bytes = embedding.bytes_max + (3 * size_of::<u32>() * tokens) as u64;
        job.told.charge(self.charged("the vectors", bytes).map_err(refused)?);
        Ok(Prepared {
            read: texts.last().map_or(0, Vec::len),
            prompt: texts.pop().unwrap_or_default(),
            rest: Vec::new().into_iter(),
            echo: false,
            tells_prompt: false,
            ignored: Vec::new(),
            turn: Turn {
                reasons: None,
                named: false,
                tags: None,
                reasoning_most: None,
                most: 0,
                marks: None,
            },
            sampling: self.sampling.clone(),
            enforced: None,
            text_room: 0,
            calls: None,
            embedding: Some(embedding),
        })
    }

    /// The tokens of a text in the model's form: with beginning and end tokens, if it has them. Tokens are taken as they are.
    fn tokens_of(&self, input: &Input) -> Vec<u32> {
        let tokenizer = self.session.tokenizer();
        match input {
            Input::Tokens(tokens) => tokens.clone(),
            Input::Text(text) => {
                let mut tokens = tokenizer.encode(text, tokenizer.adds_bos());
                tokens.extend(tokenizer.eos().filter(|_| tokenizer.adds_eos()));
                tokens
            }
        }
    }

    /// A conversation in the model's template, and how tools are called in the answer. Where a call must be, the answer is that,
    /// and the prompt has what stands before it.
    fn conversation(
        &self,
        messages: &[Message],
        request: &AnswerRequest,
        calling: &mut Calling,
    ) -> Result<Prompt, Refusal> {
        let tools = request.tools.as_ref();
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
        let written = |calls: &[Call]| format.and_then(|format| format.written(calls));
        let numbered = format.map(|format| calls::numbered(format, messages));
        let messages = numbered.as_deref().unwrap_or(messages);
        let steering = Some(&request.steering);
        let scene = Scene { messages, tools: &described, written: &written, steering, answer: true };
        let mut prompt = template.prompt(tokenizer, scene).map_err(|error| refused(&error))?;
        if let Some(prefill) = &request.prefill {
            // an answer that has begun is behind its reasoning
            let close = prompt.tags.filter(|_| prompt.reasons);
            let close = close.map_or_else(String::new, |(_, close)| format!("\n{close}\n\n"));
            let text = format!("{close}{prefill}");
            let plain = std::iter::once(close.len()..text.len()).collect::<Vec<_>>();
            prompt.tokens.extend(tokenizer.encode_rendered(&text, &plain));
            prompt.reasons = false;
        }
        let (Some(tools), Some(format)) = (tools, format) else { return Ok(prompt) };
        calling.is_forced = tools.must_call();
        calling.enforced =
            self.enforced(tools, format, request.options.schema.as_ref(), calling.is_forced)?;
        if calling.is_forced {
            let thought = prompt.tags.filter(|_| prompt.reasons).map(|(_, close)| format!("\n{close}\n\n"));
            let prefix = thought.unwrap_or_default() + format.open();
            prompt.tokens.extend(tokenizer.encode_rendered(&prefix, &[]));
        }
        calling.marks = Some(format.marks);
        calling.calls = Some(Calls::new(format, Arc::clone(&tools.callable), calling.is_forced));
        Ok(prompt)
    }

    /// The constraint on an answer with tools: a call where one is required, and the schema or a call where there is a schema. Otherwise
    /// calls are constrained from their opening on. If no tool is strict, calls that cannot be constrained are free.
    fn enforced(
        &self,
        tools: &Tools,
        format: &'static Format,
        schema: Option<&Value>,
        is_forced: bool,
    ) -> Result<Option<(Enforced, Charge)>, Refusal> {
        let (callable, several) = (&tools.callable[..], tools.parallel && !is_forced);
        if let Some(schema) = schema.filter(|_| !is_forced) {
            let refused = |error: String| Refusal::invalid(Some("response_format"), error);
            let lark =
                call_grammar::of_schema_or_calls(schema, format, callable, several).map_err(refused)?;
            let (grammar, charge) = self.grammar(lark, format.marks).map_err(refused)?;
            return Ok(Some((Enforced::Answer(grammar), charge)));
        }
        let is_strict = is_forced || callable.iter().any(|tool| tool.strict);
        let lark = call_grammar::of_calls(format, callable, several, is_forced);
        match lark.and_then(|lark| self.grammar(lark, format.marks)) {
            Ok((grammar, charge)) => Ok(Some((Enforced::calls(grammar, is_strict), charge))),
            Err(_) if !is_strict => Ok(None),
            Err(error) => Err(Refusal::invalid(Some("tools"), error)),
        }
    }

    /// A grammar, if there is room for it, with the charge for it. Some tokens that steer the model may be part of its text.
    fn grammar(&self, lark: String, marks: &'static [&'static str]) -> Result<(Grammar, Charge), String> {
        // the one that begins anew for each choice or call, and the one that goes on
        let charge = self.charged("its grammar", grammar::bytes_max(&lark))?;
        Ok((Grammar::new(lark, marks)?, charge))
    }

    /// Takes memory that a request may do without by asking for less.
    fn charged(&self, what: &str, bytes: u64) -> Result<Charge, String> {
        let taken = self.room.take(usize::try_from(bytes).unwrap_or(usize::MAX));
        taken.map_err(|_| {
            format!(
                "{what} may take {}, and the plan's limit has {} left; plan again with --reserve {}M",
                show(bytes),
                show(self.room.free() as u64),
                (RESERVED as u64 * bytes / 2).div_ceil(1 << 20)
            )
        })
    }

    /// Sampling of a request; values that it leaves out are the command line's.
    fn sampling(&self, options: &Options) -> Sampling {
        let mut sampling = self.sampling.clone();
        let set = |value: &mut f32, asked: Option<f32>| *value = asked.unwrap_or(*value);
        set(&mut sampling.temperature, options.temperature);
        set(&mut sampling.top_p, options.top_p);
        set(&mut sampling.min_p, options.min_p);
        set(&mut sampling.repeat_penalty, options.repeat_penalty);
        set(&mut sampling.presence_penalty, options.presence_penalty);
        set(&mut sampling.frequency_penalty, options.frequency_penalty);
        sampling.top_k = options.top_k.unwrap_or(sampling.top_k);
        sampling.logit_bias = options.logit_bias.clone();
        // another draw for each, and the same ones after every start
        sampling.seed = options.seed.unwrap_or_else(|| sampling.seed.wrapping_add(self.draws));
        sampling
    }
}
