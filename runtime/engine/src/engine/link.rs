//! The two ends of an engine's channel: what callers send and hear, and the loop of the engine's thread.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use plans::engine::ROWS_MAX;

use super::Facts;
use crate::container::Container;
use crate::error::Error;
use crate::fetch::Replay;
use crate::kv::At;
use crate::probe::{Points, Probe};
use crate::routes::Routes;
use crate::stop::StopHandle;
use crate::transformer::{Counters, Token, Transformer, TransformerError};

/// Work for the engine's thread.
pub(crate) enum Command {
    /// Tokens of one sequence from a position on, dense.
    Prefill { tokens: Vec<u32>, at: At, rows: Heard, stop: StopHandle, logits: Vec<f32> },
    /// One token of each of some sequences, or several that follow each other, sparse.
    Decode { rows: Few, stop: Option<StopHandle>, logits: Vec<f32> },
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
    /// The current rates.
    Probe { points: Box<Points> },
}

/// What is heard of a prompt's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The logits after the last.
    Last,
    /// The logits after each.
    Logits,
    /// The hidden state of each, and no logits.
    Hidden,
}

/// Tokens of some sequences; a list that needs no allocation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Few {
    rows: [Token; ROWS_MAX],
    count: usize,
}

impl Few {
    pub(crate) fn push(&mut self, row: Token) {
        self.rows[self.count] = row;
        self.count += 1;
    }
}

/// Answers of the engine's thread. They pass through a channel that holds one, made at start: size costs nothing there,
/// and a box would be an allocation a token.
#[expect(clippy::large_enum_variant, reason = "a token allocates nothing")]
pub(crate) enum Reply {
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

/// Why work was not done.
pub(crate) enum Failure {
    Error(Error),
    /// The callback that heard of rows has panicked; the work may be done all the same.
    Panic {
        panic: Box<dyn Any + Send>,
        done: bool,
    },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Failure {
    /// The error; a panic goes on.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Error(error) => error,
            Self::Panic { panic, .. } => resume_unwind(panic),
        }
    }
}

/// The callers' end.
pub(crate) struct Link {
    commands: Option<SyncSender<Command>>,
    replies: Receiver<Reply>,
    thread: Option<JoinHandle<()>>,
    /// Ends a prompt whose rows nobody hears any more.
    abandon: StopHandle,
}

impl Link {
    /// Starts the engine's thread, which starts a transformer.
    pub(super) fn start(
        container: Arc<Container>,
        plan: plans::Plan,
        stop: StopHandle,
    ) -> Result<(Self, Facts), Error> {
        let (commands, received) = sync_channel(1);
        let (answers, replies) = sync_channel(1);
        let abandon = StopHandle::default();
        let abandoned = abandon.clone();
        let work = move || {
            let started = Transformer::start(&container, &plan, stop);
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
            .map_err(|why| Error::Machine {
                source: format!(
                    "cannot start the engine's thread: {why}; raise the limit on address space (`ulimit -v`) or on processes (`ulimit -u`)"
                )
                .into(),
            })?;
        let mut link = Self { commands: Some(commands), replies, thread: Some(thread), abandon };
        match link.reply() {
            Reply::Started(facts) => Ok((link, facts?)),
            _ => panic!("the engine says first that it has started"),
        }
    }

    pub(crate) fn order(&self, command: Command) {
        // a thread that has panicked takes no command; whoever waits for the reply hears of it
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
        }
    }

    /// The next reply; a panic of the engine's thread goes on here.
    pub(crate) fn reply(&mut self) -> Reply {
        self.replies.recv().unwrap_or_else(|_| {
            let panic = self.thread.take().and_then(|thread| thread.join().err());
            resume_unwind(panic.unwrap_or_else(|| Box::new("the engine's thread has ended")))
        })
    }

    /// Sends work with the vector for its logits and hears of every row until it is done; the totals since start after it.
    ///
    /// Where `each` panics, the work is ended and waited for: the next command meets an engine that owes no replies.
    pub(super) fn work(
        &mut self,
        logits: &mut Vec<f32>,
        command: impl FnOnce(Vec<f32>) -> Command,
        mut each: impl FnMut(&[f32]),
    ) -> (Counters, Result<(), Failure>) {
        self.order(command(std::mem::take(logits)));
        let mut panic = None;
        loop {
            match self.reply() {
                Reply::Row(row) if panic.is_none() => {
                    // the panic goes on in the caller, once the engine is in order
                    panic = catch_unwind(AssertUnwindSafe(|| each(&row))).err();
                    if panic.is_some() {
                        self.abandon.stop();
                    }
                }
                Reply::Done { result, counters, logits: filled } => {
                    *logits = filled;
                    self.abandon.resume();
                    let done = match panic {
                        Some(panic) => Err(Failure::Panic { panic, done: result.is_ok() }),
                        None => result.map_err(Failure::Error),
                    };
                    return (counters, done);
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

impl Drop for Link {
    fn drop(&mut self) {
        self.commands = None;
        // a thread that has a reply to hand over does not wait for anybody to take it
        self.replies = sync_channel(1).1;
        if let Some(thread) = self.thread.take() {
            // whoever waited for the thread has heard of its panic
            let _ = thread.join();
        }
    }
}

/// Does what comes until nobody can send any more.
fn serve(mut transformer: Transformer, commands: &Receiver<Command>, replies: &SyncSender<Reply>) {
    // whoever has gone wants no reply
    let _ = replies.send(Reply::Started(Ok(Facts::of(&transformer))));
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
            Command::Prefill { tokens, at: At { sequence, position }, rows: heard, stop, logits } => {
                transformer.stop.call = Some(stop);
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
            Command::Decode { rows: few, stop, logits } => {
                transformer.stop.call = stop;
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
