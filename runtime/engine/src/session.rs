//! The engine as others hold it: a plan in execution on threads of its own, and the sequence of tokens that it works on, or
//! several of them (`batch`).
//!
//! ```text
//! caller's thread                         the engine's thread, on the plan's first core
//! Engine::start      -- spawn -->         the transformer takes the plan's memory and fills it
//! Session::decode    -- Command -->       one token through all layers, with the compute threads
//!                    <-- Reply --         logits, in the vector that came with the command
//! ```
//!
//! The plan's cores are taken by threads that the engine makes: the caller's thread keeps its own. A command and its
//! reply carry one vector to and fro, so that a token allocates nothing.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use plans::engine::ROWS_MAX;

use crate::error::Error;
use crate::fetch::Replay;
use crate::fit;
use crate::kv::At;
use crate::open::Model;
use crate::plan::{Plan, contract};
use crate::pooling::{Pooled, Pooling};
use crate::probe::{Points, Probe};
use crate::routes::{Routes, Routing};
use crate::stop::StopHandle;
use crate::transformer::{Counters, Token, Transformer, TransformerError};

mod batch;
mod internals;

pub use batch::Batch;
pub use internals::{BatchExt, EngineExt};

/// A plan in execution: all memory of the plan, its threads and its reads.
///
/// An engine can be moved to another thread; it works on one sequence at a time, through [`Engine::session`], or, where the plan
/// has room for them, on several together, through [`Engine::batch`].
pub struct Engine {
    commands: Option<SyncSender<Command>>,
    replies: Receiver<Reply>,
    thread: Option<JoinHandle<()>>,
    stop: StopHandle,
    /// Ends a prompt whose rows nobody hears any more.
    abandon: StopHandle,
    facts: Facts,
    /// Where the plan's rates are measured again, if it says so.
    points: Option<Points>,
    counters: Counters,
    /// `[rows of a step, vocabulary]`; empty while a command is under way.
    logits: Vec<f32>,
}

/// Facts of an engine that no step changes.
#[derive(Debug, Clone)]
struct Facts {
    context: usize,
    sequences: usize,
    step_rows: usize,
    vocabulary: usize,
    width: usize,
    pooling: Pooling,
    kv_bytes_per_token: usize,
    /// Bytes of a sequence's recurrent state; 0 where there is none.
    state_bytes: usize,
    recurrent: bool,
    routing: Option<Routing>,
    reads: String,
    unlocked: Option<String>,
}

/// Tokens that a sequence has, and to which it can go back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Standing {
    position: usize,
    /// Of a model with recurrent state: the tokens at the end of the last prompt, whose state is kept. The beginning needs none.
    kept: usize,
}

impl Standing {
    /// After a prompt that ends here.
    fn prefilled(position: usize) -> Self {
        Self { position, kept: position }
    }

    /// Where a sequence stands that forgets what comes after `position`: there, or before it where the state is kept.
    fn back(self, position: usize, recurrent: bool) -> Self {
        match self {
            _ if position >= self.position => self,
            _ if !recurrent => Self { position, ..self },
            Self { kept, .. } if kept <= position => Self { position: kept, ..self },
            _ => Self::default(),
        }
    }

    /// After work that failed with an error: where it was, or, if the work may have changed the state, where that is kept.
    fn failed(self, error: &Error, recurrent: bool) -> Self {
        let refused = matches!(error, Error::EmptyPrompt | Error::Token { .. } | Error::Context { .. });
        if recurrent && !refused { Self { position: self.kept, ..self } } else { self }
    }
}

/// Work for the engine's thread.
enum Command {
    /// Tokens of one sequence from a position on, dense.
    Prefill { tokens: Vec<u32>, at: At, rows: Heard, logits: Vec<f32> },
    /// One token of each of some sequences, or several that follow each other, sparse.
    Decode { rows: Few, logits: Vec<f32> },
    /// Bytes from `at` on of the keys and values of some positions, and of the state behind them, into these.
    KeysAndValues { sequence: usize, positions: Range<usize>, at: usize, bytes: Vec<u8> },
    /// These bytes back to where they were.
    Restore { sequence: usize, positions: Range<usize>, at: usize, bytes: Vec<u8> },
    /// What a sequence keeps of its first positions to another one.
    Share { from: usize, to: usize, positions: usize },
    /// The cache as at start.
    ClearCache,
    /// Experts as recorded from now on.
    Routes(Option<Routes>),
    /// Reads are written down from now on.
    RecordReads,
    /// Those reads once more, and nothing else.
    ReplayReads { depth: usize },
    /// The rates of this hour.
    Probe { points: Box<Points> },
}

/// What is heard of a prompt's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// The logits after the last.
    Last,
    /// The logits after each.
    Logits,
    /// The hidden state of each, and no logits.
    Hidden,
}

/// Tokens of some sequences; a list that needs no allocation.
#[derive(Debug, Clone, Copy, Default)]
struct Few {
    rows: [Token; ROWS_MAX],
    count: usize,
}

impl Few {
    fn push(&mut self, row: Token) {
        self.rows[self.count] = row;
        self.count += 1;
    }
}

/// Answers of the engine's thread. They pass through a channel that holds one, made at start: size costs nothing there,
/// and a box would be an allocation a token.
#[expect(clippy::large_enum_variant, reason = "a token allocates nothing")]
enum Reply {
    Started(Result<Facts, Error>),
    /// The logits after one token of a prompt, or its hidden state; more follow.
    Row(Vec<f32>),
    Done {
        result: Result<(), Error>,
        counters: Counters,
        logits: Vec<f32>,
    },
    Copied(Vec<u8>),
    /// Done, with nothing to tell.
    Acknowledged,
    Replayed(Result<Option<Replay>, Error>),
    Probed(Box<Probe>),
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Engine {
    /// Checks that the plan is for this model and this machine, takes all of the plan's memory and fills it.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] if the plan is for another model, container or machine, or the system refuses memory, cores or
    /// reads; [`Error::Model`] if the container is damaged.
    pub fn start(model: &Model, plan: &Plan) -> Result<Self, Error> {
        Self::start_with(model, plan, StopHandle::default())
    }

    /// [`Engine::start`] with a handle that can end the start, too.
    ///
    /// # Errors
    /// Those of [`Engine::start`], and [`Error::Stopped`].
    pub fn start_with(model: &Model, plan: &Plan, stop: StopHandle) -> Result<Self, Error> {
        let keys = contract(plan);
        fit::check(keys, &model.container)?;
        let (commands, received) = sync_channel(1);
        let (answers, replies) = sync_channel(1);
        let points = Points::of(keys, model.container.weights());
        let (container, plan, handle) = (Arc::clone(&model.container), keys.clone(), stop.clone());
        let abandon = StopHandle::default();
        let abandoned = abandon.clone();
        let work = move || {
            let started = Transformer::start(&container, &plan, handle);
            drop((container, plan));
            match started {
                Ok(mut transformer) => {
                    transformer.stop.abandon = abandoned;
                    serve(transformer, &received, &answers);
                }
                Err(error) => drop(answers.send(Reply::Started(Err(error.into())))),
            }
        };
        let thread = thread::Builder::new()
            .name("engine".to_owned())
            .spawn(work)
            .map_err(|source| Error::Machine { source: Box::new(source) })?;
        let nothing = Facts {
            context: 0,
            sequences: 0,
            step_rows: 0,
            vocabulary: 0,
            width: 0,
            pooling: Pooling::default(),
            kv_bytes_per_token: 0,
            state_bytes: 0,
            recurrent: false,
            routing: None,
            reads: String::new(),
            unlocked: None,
        };
        let mut engine = Self {
            commands: Some(commands),
            replies,
            thread: Some(thread),
            stop,
            abandon,
            facts: nothing,
            points,
            counters: Counters::default(),
            logits: Vec::new(),
        };
        if let Reply::Started(facts) = engine.reply() {
            engine.facts = facts?;
        }
        engine.logits = vec![0.0; engine.facts.step_rows * engine.facts.vocabulary];
        Ok(engine)
    }

    /// A new sequence, at position 0. The cache of neurons stays as it is.
    pub fn session(&mut self) -> Session<'_> {
        Session { engine: self, standing: Standing::default() }
    }

    /// New sequences, each at position 0. The cache of neurons stays as it is.
    pub fn batch(&mut self) -> Batch<'_> {
        Batch::new(self)
    }

    /// A handle that ends what the engine is doing.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Totals since start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Tokens that [`Session::decode_each`] and [`Batch::decode`] take together, at most: one of each sequence, and those of the plan's
    /// drafts.
    pub fn step_rows(&self) -> usize {
        self.facts.step_rows
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.facts.vocabulary
    }

    /// Whether layers of the model keep a recurrent state of a sequence in place of keys and values. Such a sequence goes back only
    /// to where its last prompt ended, or to its beginning.
    pub fn is_recurrent(&self) -> bool {
        self.facts.recurrent
    }

    /// Sequences that there is room for.
    fn sequences(&self) -> usize {
        self.facts.sequences
    }

    /// Tokens that fit a sequence.
    fn context(&self) -> usize {
        self.facts.context
    }

    fn order(&self, command: Command) {
        // a thread that has panicked takes no command; whoever waits for the reply is told
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
        }
    }

    /// The next reply; a panic of the engine's thread goes on here.
    fn reply(&mut self) -> Reply {
        self.replies.recv().unwrap_or_else(|_| {
            let panic = self.thread.take().and_then(|thread| thread.join().err());
            resume_unwind(panic.unwrap_or_else(|| Box::new("the engine's thread has ended")))
        })
    }

    /// Sends work with the vector for its logits and hears of every row until it is done.
    ///
    /// Where `each` panics, the work is ended and waited for: the next command meets an engine that owes no replies.
    fn work(
        &mut self,
        command: impl FnOnce(Vec<f32>) -> Command,
        mut each: impl FnMut(&[f32]),
    ) -> Result<(), Failure> {
        let logits = std::mem::take(&mut self.logits);
        self.order(command(logits));
        let mut panic = None;
        loop {
            match self.reply() {
                Reply::Row(logits) if panic.is_none() => {
                    // the panic goes on in the caller, once the engine is in order
                    panic = catch_unwind(AssertUnwindSafe(|| each(&logits))).err();
                    if panic.is_some() {
                        self.abandon.stop();
                    }
                }
                Reply::Done { result, counters, logits } => {
                    (self.counters, self.logits) = (counters, logits);
                    self.abandon.resume();
                    return match panic {
                        Some(panic) => Err(Failure::Panic { panic, done: result.is_ok() }),
                        None => Ok(result?),
                    };
                }
                Reply::Row(_)
                | Reply::Started(_)
                | Reply::Acknowledged
                | Reply::Copied(_)
                | Reply::Replayed(_)
                | Reply::Probed(_) => {}
            }
        }
    }
}

/// Why work was not done.
enum Failure {
    Error(Error),
    /// The callback that heard of rows has panicked; the work may be done all the same.
    Panic {
        panic: Box<dyn Any + Send>,
        done: bool,
    },
}

impl Engine {
    /// Takes tokens of a prompt into a sequence; `standing` is where it stands before and after. Where `heard` panics, the sequence
    /// goes back to where it was, or before that where a recurrent state asks for it.
    fn prompt(
        &mut self,
        sequence: usize,
        standing: &mut Standing,
        tokens: &[u32],
        rows: Heard,
        heard: impl FnMut(&[f32]),
    ) -> Result<(), Failure> {
        let (vocabulary, at) = (self.vocabulary(), At { sequence, position: standing.position });
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt.into());
        }
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::Token { token, vocabulary }.into());
        }
        let count = self.fitting(at, tokens.len())?;
        let tokens = tokens.to_vec();
        let done = self.work(|logits| Command::Prefill { tokens, at, rows, logits }, heard);
        *standing = match &done {
            Ok(()) => Standing::prefilled(count),
            Err(Failure::Error(error)) => standing.failed(error, self.is_recurrent()),
            Err(Failure::Panic { done: true, .. }) => {
                Standing::prefilled(count).back(standing.position, self.is_recurrent())
            }
            Err(Failure::Panic { done: false, .. }) => standing.failed(&Error::Stopped, self.is_recurrent()),
        };
        done
    }

    /// The position after so many tokens more, if there is room for them.
    fn fitting(&self, at: At, tokens: usize) -> Result<usize, Error> {
        let (tokens, context) = (at.position.saturating_add(tokens), self.context());
        if tokens > context { Err(Error::Context { tokens, context }) } else { Ok(tokens) }
    }

    /// Refuses more tokens than pass together.
    fn step(&self, rows: usize) -> Result<(), Error> {
        let most = self.step_rows();
        match rows {
            0 => Err(Error::EmptyPrompt),
            _ if rows > most => Err(Error::Rows { rows, most }),
            _ => Ok(()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Failure {
    /// The error; a panic goes on.
    fn into_error(self) -> Error {
        match self {
            Self::Error(error) => error,
            Self::Panic { panic, .. } => resume_unwind(panic),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.commands = None;
        // a thread that has a reply to hand over does not wait for anybody to take it
        self.replies = sync_channel(1).1;
        if let Some(thread) = self.thread.take() {
            // a panic of the thread was told to whoever waited for it
            let _ = thread.join();
        }
    }
}

/// Does what comes until nobody can send any more.
fn serve(mut transformer: Transformer, commands: &Receiver<Command>, replies: &SyncSender<Reply>) {
    let facts = Facts {
        context: transformer.context(),
        sequences: transformer.sequences(),
        step_rows: transformer.step_rows(),
        vocabulary: transformer.config().vocabulary,
        width: transformer.config().width,
        pooling: transformer.config().pooling.unwrap_or_default(),
        kv_bytes_per_token: transformer.kv_bytes_per_token() as usize,
        state_bytes: transformer.state_bytes(),
        recurrent: transformer.is_recurrent(),
        routing: Routing::of(transformer.config()),
        reads: transformer.flash(),
        unlocked: transformer.lock().as_ref().err().map(ToString::to_string),
    };
    // whoever has gone wants no reply
    let _ = replies.send(Reply::Started(Ok(facts)));
    let vocabulary = transformer.config().vocabulary;
    let done = |transformer: &Transformer, result, rows: usize, mut logits: Vec<f32>| {
        logits[..rows * vocabulary].copy_from_slice(&transformer.logits()[..rows * vocabulary]);
        let result: Result<(), TransformerError> = result;
        let _ = replies.send(Reply::Done {
            result: result.map_err(Error::from),
            counters: transformer.counters(),
            logits,
        });
    };
    let mut rows = Vec::with_capacity(transformer.context());
    for command in commands {
        match command {
            Command::Prefill { tokens, at: At { sequence, position }, rows: heard, logits } => {
                rows.clear();
                let row = |(position, token)| Token { token, sequence: sequence as u32, position };
                rows.extend((position..).zip(tokens).map(row));
                let mut send = |_: usize, row: &[f32]| drop(replies.send(Reply::Row(row.to_vec())));
                let result = match heard {
                    Heard::Last => transformer.prefill(&rows, None).map(drop),
                    Heard::Logits => transformer.prefill(&rows, Some(&mut send)).map(drop),
                    Heard::Hidden => transformer.prefill_hidden(&rows, &mut send),
                };
                done(&transformer, result, 1, logits);
            }
            Command::Decode { rows: few, logits } => {
                let result = transformer.decode(&few.rows[..few.count]).map(drop);
                done(&transformer, result, few.count, logits);
            }
            Command::KeysAndValues { sequence, positions, at, mut bytes } => {
                transformer.copy_out(sequence, positions, at, &mut bytes);
                let _ = replies.send(Reply::Copied(bytes));
            }
            Command::Restore { sequence, positions, at, bytes } => {
                transformer.copy_in(sequence, positions, at, &bytes);
                let _ = replies.send(Reply::Copied(bytes));
            }
            Command::Share { from, to, positions } => {
                transformer.share(from, to, positions);
                let _ = replies.send(Reply::Acknowledged);
            }
            Command::ClearCache => {
                transformer.clear_cache();
                let _ = replies.send(Reply::Acknowledged);
            }
            Command::Routes(routes) => {
                transformer.replay_routes(routes);
                let _ = replies.send(Reply::Acknowledged);
            }
            Command::RecordReads => {
                transformer.record_reads();
                let _ = replies.send(Reply::Acknowledged);
            }
            Command::ReplayReads { depth } => {
                let replay = transformer.replay_reads(depth).map_err(Error::from);
                let _ = replies.send(Reply::Replayed(replay));
            }
            Command::Probe { points } => {
                let _ = replies.send(Reply::Probed(Box::new(transformer.probe(&points))));
            }
        }
    }
}

/// One sequence of tokens, and the engine while it works on it.
#[derive(Debug)]
pub struct Session<'engine> {
    engine: &'engine mut Engine,
    standing: Standing,
}

impl Session<'_> {
    /// Takes tokens of a prompt through the model together, dense. The logits `[vocabulary]` after the last.
    ///
    /// Tokens go on where the sequence stands: a second prompt follows the first, and what was decoded between them.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::Token`] and [`Error::Context`] before anything is done; [`Error::Read`] and
    /// [`Error::Stopped`] on the way. The sequence stays where it was; of a model with recurrent state
    /// ([`Engine::is_recurrent`]) it goes back to where its last prompt ended.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.prompt(tokens, Heard::Last, |_| ())
    }

    /// [`Session::prefill`] with the logits after every token, in order.
    ///
    /// # Errors
    /// Those of [`Session::prefill`].
    pub fn prefill_each(&mut self, tokens: &[u32], mut each: impl FnMut(usize, &[f32])) -> Result<(), Error> {
        let mut index = 0..;
        self.prompt(tokens, Heard::Logits, |logits| each(index.next().unwrap_or(0), logits)).map(drop)
    }

    /// The embedding `[width]` of a text's tokens, of length 1: made of their hidden states as the model's file says, dense, whatever
    /// the plan's level. It is that of the text alone: the session forgets what it had and has these tokens afterwards, without
    /// logits.
    ///
    /// # Errors
    /// Those of [`Session::prefill`].
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.reset();
        let mut pooled = Pooled::new(self.engine.facts.pooling);
        self.prompt(tokens, Heard::Hidden, |hidden| pooled.add(hidden))?;
        Ok(pooled.finish())
    }

    /// Takes one token through the model, sparse. The logits `[vocabulary]` after it.
    ///
    /// # Errors
    /// Those of [`Session::prefill`].
    pub fn decode(&mut self, token: u32) -> Result<&[f32], Error> {
        self.decode_each(&[token])
    }

    /// Takes a few tokens that follow each other through the model together, sparse: the logits `[tokens, vocabulary]` after each,
    /// which are to the bit those of [`Session::decode`] one after another. Neurons that several of them need are read once, and
    /// weights pass through memory once.
    ///
    /// With it a draft of what comes next is verified in one step: decode the token that is known with the draft behind it, compare
    /// what each row's logits choose with the draft, and [`Session::rewind`] to behind the last token that was right.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] without tokens, [`Error::Rows`] for more than [`Engine::step_rows`], [`Error::Sequences`] for more than
    /// one of a model with recurrent state, before anything is done; those of [`Session::prefill`].
    pub fn decode_each(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.engine.step(tokens.len())?;
        if tokens.len() > 1 && self.engine.is_recurrent() {
            return Err(Error::several_of_recurrent(0, self.engine.sequences()));
        }
        let mut rows = Few::default();
        for (position, &token) in (self.standing.position..).zip(tokens) {
            rows.push(Token { token, sequence: 0, position });
        }
        let done = self.engine.work(|logits| Command::Decode { rows, logits }, |_| ());
        done.map_err(Failure::into_error).map_err(|error| self.failed(error))?;
        self.standing.position += tokens.len();
        Ok(&self.engine.logits[..tokens.len() * self.engine.facts.vocabulary])
    }

    /// The logits `[vocabulary]` of the last [`Session::prefill`] or [`Session::decode`] that was done, or those after the first token
    /// of a [`Session::decode_each`].
    pub fn logits(&self) -> &[f32] {
        &self.engine.logits[..self.engine.facts.vocabulary]
    }

    /// Forgets the sequence: the next token stands at position 0. The cache of neurons stays.
    pub fn reset(&mut self) {
        self.standing = Standing::default();
    }

    /// Forgets the sequence from `position` on: the next token stands there, and sees what was before it as if nothing had ever
    /// come after. A position that the sequence has not reached yet leaves it as it is. The cache of neurons stays, and so do
    /// [`Session::logits`], which are those of a token that may have been forgotten.
    ///
    /// With it a conversation whose beginning stays pays for its new part only: rewind to where it differs, then
    /// [`Session::prefill`] the rest. A recurrent state ([`Engine::is_recurrent`]) cannot be cut: the sequence goes further back
    /// then, to where its last prompt ended or to its beginning, and [`Session::position`] says from where on to prefill.
    pub fn rewind(&mut self, position: usize) {
        self.standing = self.standing.back(position, self.engine.is_recurrent());
    }

    /// Tokens of the sequence so far.
    pub fn position(&self) -> usize {
        self.standing.position
    }

    /// Totals of the engine since its start.
    pub fn counters(&self) -> &Counters {
        self.engine.counters()
    }

    /// The engine that the session works with.
    pub fn engine(&self) -> &Engine {
        self.engine
    }

    fn prompt(&mut self, tokens: &[u32], rows: Heard, heard: impl FnMut(&[f32])) -> Result<&[f32], Error> {
        let done = self.engine.prompt(0, &mut self.standing, tokens, rows, heard);
        done.map_err(Failure::into_error)?;
        Ok(self.logits())
    }

    /// The sequence stands where an error has left it.
    fn failed(&mut self, error: Error) -> Error {
        self.standing = self.standing.failed(&error, self.engine.is_recurrent());
        error
    }
}

#[cfg(test)]
mod tests;
