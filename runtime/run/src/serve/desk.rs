//! The engine's thread: it takes requests from the queue, gives each a sequence slot, and decodes all answers as one batch.
//!
//! A round answers a question, begins a request, reads a piece of a prompt, and decodes a token of each answer. In reading order: a request
//! is made ready (`preparing`) with its `conversation`, its prompt is prefilled (`reading`), and its answer is decoded (`writing`).
//! Questions about the model get `replies` without a slot.

mod conversation;
mod preparing;
mod reading;
mod replies;
mod writing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use flashplan::{Sampling, StopHandle};

use super::super::Failure;
use super::super::chat::{Template, TemplateError};
use super::super::ended::Ended;
use super::super::session::RunningPlan;
use super::super::sessions::{Keeping, Sessions};
use super::budget::Budget;
use super::embeddings::Embedding;
use super::log::{End, Log};
use super::metrics::Metrics;
use super::queue::Queue;
use super::request::{Ask, Refusal};
use super::seat::{AnswerFigures, Answering, Seat};
use super::{Job, STOPPING, Told, Usage, share};

/// How soon an interrupt is heeded while the queue is empty.
const SOON: Duration = Duration::from_millis(100);

/// The engine with a slot for each of the plan's sequences.
pub(super) struct Desk<'d, 'engine> {
    pub(super) session: &'d mut RunningPlan<'engine>,
    pub(super) template: Result<Template, TemplateError>,
    pub(super) sampling: Sampling,
    /// Prompts on disk.
    pub(super) sessions: Option<Sessions>,
    /// For each of the plan's sequences.
    pub(super) seats: Vec<Seat<'engine>>,
    /// Memory for prompts as they are made ready, and for answers.
    pub(super) room: Arc<Budget>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) log: Log,
    pub(super) answers: u64,
    /// Choices so far: each draws by another seed.
    pub(super) draws: u64,
    /// Nanoseconds since 1970 at the start; ids of calls derive from it.
    pub(super) began: u64,
}

impl<'engine> Desk<'_, 'engine> {
    /// Answers requests of a queue until the server is stopped.
    pub(super) fn work(&mut self, queue: &Queue, stop: &StopHandle) -> Result<(), Failure> {
        loop {
            self.free()?;
            queue.sweep();
            if stop.is_stopped() && self.is_idle() {
                return Ok(());
            }
            let answers = self.seats.iter().any(Seat::writes);
            let clock = Instant::now();
            // no more than the first question, so that a flood of them leaves time for answers
            if let Some(job) = queue.take_question() {
                self.reply(&job);
            }
            if let Some(job) = self.next(queue, stop) {
                // a prefix of the prompt may be copied, or read from disk
                self.begin(job, stop)?;
            }
            let mut read = if answers { clock.elapsed() } else { Duration::ZERO };
            read += self.read_some(stop)?;
            let (owed, clock) = (share::owed(read), Instant::now());
            while self.write_some()? && clock.elapsed() < owed {}
            if answers && !read.is_zero() {
                self.metrics.shared(read, clock.elapsed());
            }
        }
    }

    /// The next request, if a slot is free. An idle server waits for one, and writes prompts to disk meanwhile.
    fn next(&mut self, queue: &Queue, stop: &StopHandle) -> Option<Job> {
        if self.is_idle() {
            let writes = !stop.is_stopped() && self.keep_some();
            return queue.take(if writes { Duration::ZERO } else { SOON });
        }
        let is_free = self.seats.iter().any(|seat| seat.answering.is_none());
        is_free.then(|| queue.take(Duration::ZERO)).flatten()
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
                let (answered, _) = choice.end(Ended::Interrupt);
                answering.work.usage.add(answered);
            }
            self.end(at)?;
        }
        Ok(())
    }

    /// Gives a request a free sequence slot, with the cached part of its prompt.
    fn begin(&mut self, job: Job, stop: &StopHandle) -> Result<(), Failure> {
        if let Ask::Question(_) = &job.request.ask {
            self.reply(&job);
            return Ok(());
        }
        let mut prepared = match self.prepare(&job) {
            Ok(prepared) => prepared,
            Err(refusal) => {
                // a client that hung up gets no answer, which is no failure
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
        let usage = Usage { prompt: prompt + texts, cached, ..Usage::default() };
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

    /// Ends an answer that was given, broken off, or left by its client. Frees its sequence slot and keeps its prompt.
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
    pub(super) fn keep(&mut self, at: usize) {
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
}
