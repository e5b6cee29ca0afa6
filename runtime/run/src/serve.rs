//! An endpoint for other programs: what `OpenAI`'s and Anthropic's clients ask is answered under the plan.
//!
//! One thread speaks HTTP (`http`, over `connections`) and never computes; the main thread owns the engine and has a `seat` for each of the plan's
//! sequences, which keeps what two requests have in common. Those who sit answer together, a token each, and what is kept of a draft; they come and go between
//! tokens, and while a prompt is read the others have their `share` of the time. Between both threads is a `queue` of bounded length. What is asked is a
//! `request`, whatever words it came in; how these are read and answers written in them is in `openai`, `responses`, `anthropic` and
//! `embeddings`. An `answer` goes
//! out whole or as it comes, with the `likelihood` of its tokens where that is asked for, and what it must be is a `grammar`, made
//! of a `schema`. The model may have `tools`, whose `calls` a `teller` tells from text, and a call that must be is `forced`. The texts that end it are in `stops`,
//! what the operator sees in `metrics` and `log`.

mod answer;
mod anthropic;
mod budget;
mod calls;
mod connections;
mod embeddings;
mod forced;
mod grammar;
mod http;
mod likelihood;
mod literal;
mod log;
mod mailbox;
mod metrics;
mod openai;
mod queue;
mod request;
mod responses;
mod schema;
mod seat;
mod share;
mod stops;
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

use flashplan::internals::counters::detail;
use flashplan::internals::draft::draft;
use flashplan::internals::machine::footprint;
use flashplan::{Sampler, Sampling, StopHandle};
use plans::size::show;

use self::budget::{Budget, Charge, RESERVED, Shares, TEXT_COPIES};
use self::calls::{Calls, Format};
use self::embeddings::Embedding;
use self::grammar::Grammar;
use self::http::{Door, Limits, Site};
use self::likelihood::Likelihood;
use self::log::{End, Log};
use self::mailbox::Speaker;
use self::metrics::Metrics;
use self::queue::Queue;
use self::request::{AnswerRequest, Ask, Input, Options, Refusal};
use self::seat::{AnswerFigures, Answering, Found, Seat};
use self::tools::Tools;
use super::chat::conversation::{Call, Message, Role};
use super::chat::{Prompt, Template, TemplateError};
use super::cli::Cli;
use super::ended::Ended;
use super::reasoning::Channel;
use super::session::RunningPlan;
use super::sessions::{Keeping, Sessions};
use super::turn::{self, Turn};
use super::{Failure, failure};

/// Where it listens if nobody says.
pub(super) const ADDRESS: &str = "127.0.0.1:8080";
/// Requests that wait for their answer; more are told to come again.
const QUEUE: usize = 8;
/// Bytes of a request for each token of the context, and besides: more cannot fit into it.
const BODY_BYTES: (usize, usize) = (8, 64 << 10);
/// Bytes of the plan's limit that are left for what is neither planned nor any client's: code that runs for the first time, a thread that
/// speaks HTTP, the system's records, and what the allocator loses between blocks. A build with assertions has more code.
const UNPLANNED_BYTES: u64 = if cfg!(debug_assertions) { 4 << 18 } else { 3 << 18 };
/// Bytes of the text of a token in an answer, as is usual, and of a choice besides.
const TEXT_BYTES: (usize, usize) = (8, 2 << 10);
/// Bytes of a likelihood until its client has it, and of a token's value in the arguments of a call.
const LIKELIHOOD_BYTES: usize = 400;
const ARGUMENT_BYTES: usize = 96;
/// Copies of a request while its prompt is made ready; one with tools is told of them in several forms.
const PROMPT_COPIES: usize = 6;
const TOOLS_COPIES: usize = 16;
/// How soon an interrupt is heeded while nobody asks.
const SOON: Duration = Duration::from_millis(100);
/// Likelihoods of tokens in an answer, at most: what is told of it must fit into what the plan leaves the process.
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
    /// It begins, after so many tokens.
    Begins { prompt: usize },
    /// More of a choice, and the likelihoods of the tokens that made it.
    Text { choice: usize, part: Channel, text: String, likelihoods: Vec<Likelihood> },
    /// The next text's embedding.
    Vector(Vec<f32>),
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
    if let Err(why) = &template {
        terminal::say(format_args!("note: /v1/chat/completions is refused: {why}"));
    }
    let shares = Arc::new(Shares::of(left_for_clients(session)?).map_err(failure)?);
    let metrics = Arc::new(Metrics::new(session.plan));
    let queue = Arc::new(Queue::new(QUEUE, Arc::clone(&metrics)));
    let log = if cli.json { Log::Json } else { Log::Text };
    let site = Site {
        model: session.model.name().to_owned(),
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
    /// Nanoseconds since 1970 at the start, from which numbers of calls are made.
    began: u64,
}

/// A request made ready for the engine.
struct Prepared {
    prompt: Vec<u32>,
    turn: Turn,
    /// Of the first choice; each one after it has the next seed.
    sampling: Sampling,
    /// Grammar that each choice is held to, and the charge for it.
    grammar: Option<(Grammar, Charge)>,
    /// Bytes of text that the answer's charge has room for, in each choice.
    text_room: usize,
    /// The reader that tells calls of tools from text, where there are any tools.
    calls: Option<Calls>,
    /// Where vectors are wanted and no text: those that follow the prompt's.
    embedding: Option<Embedding>,
}

/// How an answer calls tools.
#[derive(Default)]
struct Calling {
    /// Of the call that must be.
    grammar: Option<(Grammar, Charge)>,
    calls: Option<Calls>,
    marks: Option<&'static [&'static str]>,
}

impl<'engine> Desk<'_, 'engine> {
    fn work(&mut self, queue: &Queue, stop: &StopHandle) -> Result<(), Failure> {
        loop {
            self.free()?;
            queue.sweep();
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

    /// Frees the seats of those who have hung up.
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

    /// Gives a request a free seat, with what is there of its prompt.
    fn begin(&mut self, job: Job, stop: &StopHandle) -> Result<(), Failure> {
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
        job.told.send(Told::Begins { prompt: prepared.prompt.len() }).ok();
        let began = Instant::now();
        let embedding = prepared.embedding.take();
        let wanted = || !job.told.is_closed() && !stop.is_stopped();
        let (at, cached) = match self.place(&prepared.prompt, embedding.is_some(), &wanted) {
            Ok(placed) => placed,
            Err(failure) => {
                job.told.send(Told::Failed(Refusal::broken(failure.to_string()))).ok();
                return Err(self.fail(failure));
            }
        };
        let seat = &mut self.seats[at];
        let texts = embedding.as_ref().map_or(0, Embedding::tokens);
        let usage = Usage { prompt: prepared.prompt.len() + texts, cached, answer: 0 };
        let work = AnswerFigures { usage, ..AnswerFigures::default() };
        let (number, after) = (self.answers, Vec::new());
        seat.taken = number;
        seat.answering =
            Some(Answering { job, prepared, number, began, work, embedding, after, choice: None });
        Ok(())
    }

    /// A free seat for a prompt, and how much it holds of it. A vector is that of the text alone: where one is wanted, nothing is shared.
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

    /// Lets a seat hold nothing.
    fn empty(&mut self, at: usize) -> Result<(), Failure> {
        self.session.forget(at, 0)?;
        self.seats[at].held.truncate(0);
        Ok(())
    }

    /// A free seat, of which there is one: the one that has most of a prompt, if that goes on with all that is there or no other is
    /// free. Otherwise the one that was not taken for longest, which is given what any of them has of it.
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
        let prompt = &answering.prepared.prompt;
        let mut add =
            answering.embedding.as_mut().map(|embedding| move |hidden: &[f32]| embedding.add(hidden));
        let hidden = add.as_mut().map(|add| add as &mut turn::Hear<'_>);
        let time = match turn::read_some(self.session, at, &mut seat.held, prompt, others_wait, hidden) {
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
            self.choose(at, 0)?;
        }
        Ok(time)
    }

    /// Tells the vector of a text that has been read, and goes on with the next one, or all is told.
    fn tell_vector(&mut self, at: usize) -> Result<(), Failure> {
        self.empty(at)?;
        let Some(answering) = &mut self.seats[at].answering else { return Ok(()) };
        let Some(embedding) = &mut answering.embedding else { return Ok(()) };
        let (vector, next) = embedding.next();
        // who is no longer there is told nothing
        answering.job.told.send(Told::Vector(vector)).ok();
        match next {
            Some(tokens) => answering.prepared.prompt = tokens,
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
        let prompt = answering.prepared.prompt.len();
        let kept = self.session.forget(at, prompt)?;
        debug_assert_eq!(kept, prompt, "where a prompt ended, its sequence can go back to");
        seat.held.truncate(kept);
        answering.choice = Some(answering.begin(index, self.session.tokenizer(), self.began, &self.room)?);
        self.go_on(at, (index == 0).then_some(0))
    }

    /// Chooses the next token of an answer by a row of the engine's logits, or by those after its prompt; where that is its end,
    /// the next choice begins, or all is told.
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
        if whole && index + 1 < answering.job.request.options.choices {
            return self.choose(at, index + 1);
        }
        answering.work.done = whole;
        self.end(at)
    }

    /// Decodes a token of every answer that is being written, and drafts of what follows as far as there is room for rows; whether
    /// there are any.
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

    /// Goes on with an answer by its rows of a step, which took such a time: by the logits after the token that was known, and then by
    /// those after each token of the draft that is the one chosen before it. The engine forgets the rest; how many were kept.
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

    /// An answer is over: it was given, it broke off, or nobody wants it any more. Its seat is free, and its prompt is kept.
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

    /// Puts a block of what some seat holds on disk, if that is still to be done of any; whether it is.
    fn keep_some(&mut self) -> bool {
        (0..self.seats.len()).any(|at| self.keep_next(at))
    }

    /// Puts on disk what a seat holds and is about to lose.
    fn keep(&mut self, at: usize) {
        while self.keep_next(at) {}
    }

    /// Puts a block of what a seat holds on disk; whether there may be more to be put there.
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
        let of_texts: usize = match &job.request.ask {
            Ask::Conversation(messages) => messages
                .iter()
                .map(|message| encoded(&message.content) + message.reasoning.as_deref().map_or(0, encoded))
                .sum(),
            Ask::Text(text) => encoded(text),
            Ask::Tokens(_) => 0,
            Ask::Embeddings { inputs, .. } => {
                let of_input = |input: &Input| match input {
                    Input::Text(text) => encoded(text),
                    Input::Tokens(_) => 0,
                };
                inputs.iter().map(of_input).sum()
            }
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
        let (tokens, reasons) = match &request.ask {
            Ask::Conversation(messages) => {
                let prompt = self.conversation(messages, request.tools.as_ref(), &mut calling)?;
                (prompt.tokens, Some(prompt.reasons).filter(|_| calling.grammar.is_none()))
            }
            Ask::Text(text) => (tokenizer.encode(text, tokenizer.adds_bos()), None),
            Ask::Tokens(tokens) => (tokens.clone(), None),
            Ask::Embeddings { .. } => unreachable!("they were prepared"),
        };
        drop(making);
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
        // who answers beside it may ask for as many
        let likelihoods = LIKELIHOODS / self.seats.len().max(1);
        if options.choices * room * told > likelihoods {
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
        let grammar = match &options.schema {
            None => calling.grammar,
            Some(schema) => {
                let json = schema::grammar(schema).map_err(refused)?;
                Some(self.grammar(format!("start: {json}"), &[]).map_err(refused)?)
            }
        };
        let text_room = TEXT_BYTES.0 * room + TEXT_BYTES.1;
        let arguments = if request.tools.is_some() { ARGUMENT_BYTES * room } else { 0 };
        let choice = TEXT_COPIES * text_room + LIKELIHOOD_BYTES * told * room + arguments;
        let bytes = options.choices * choice + 3 * (job.held.bytes() + size_of_val(&tokens[..]));
        let what = || format!("`n` {} of an answer of up to {room} tokens", options.choices);
        job.told.charge(self.room.take(bytes).map_err(|short| short.refusal(&what()))?);
        let turn = Turn { reasons, most, marks: calling.marks };
        let calls = calling.calls;
        Ok(Prepared { prompt: tokens, turn, sampling, grammar, text_room, calls, embedding: None })
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
            prompt: texts.pop().unwrap_or_default(),
            turn: Turn { reasons: None, most: 0, marks: None },
            sampling: self.sampling.clone(),
            grammar: None,
            text_room: 0,
            calls: None,
            embedding: Some(embedding),
        })
    }

    /// The tokens of a text as the model expects one: with those of its beginning and its end, if it has them. Tokens are taken as they
    /// are.
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
        let written = |calls: &[Call]| format.and_then(|format| format.written(calls));
        let numbered = format.map(|format| calls::numbered(format, messages));
        let messages = numbered.as_deref().unwrap_or(messages);
        let prompt = template.prompt_with(tokenizer, messages, &described, &written, true);
        let mut prompt = prompt.map_err(|error| refused(&error))?;
        let (Some(tools), Some(format)) = (tools, format) else { return Ok(prompt) };
        let refused = |error: String| Refusal::invalid(Some("tools"), error);
        let forced = tools.forced(format).map_err(refused)?;
        let name = forced.as_ref().map(|(name, _)| name.clone().unwrap_or_default());
        if let (Some((_, lark)), Some(name)) = (forced, &name) {
            let thought = if prompt.reasons { format.after_reasoning() } else { "" };
            let prefix = format!("{thought}{}", format.prefix(name));
            prompt.tokens.extend(tokenizer.encode_rendered(&prefix, &[]));
            calling.grammar = Some(self.grammar(lark, format.inner_marks()).map_err(refused)?);
        }
        calling.marks = Some(format.marks());
        calling.calls = Some(Calls::new(format, Arc::clone(&tools.all), name));
        Ok(prompt)
    }

    /// A grammar, if there is room for it, with the charge for it. Some tokens that steer the model may be part of its text.
    fn grammar(&self, lark: String, marks: &'static [&'static str]) -> Result<(Grammar, Charge), String> {
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
