//! The channel between callers and the engine's thread, and the loop of that thread.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use plans::engine::ROWS_MAX;

use super::{Facts, Visited};
use crate::container::Container;
use crate::error::Error;
use crate::fetch::Replay;
use crate::kv::At;
use crate::probe::{Points, Probe};
use crate::routes::Routes;
use crate::stop::StopHandle;
use crate::transformer::{Aside, Counters, Token, Transformer, TransformerError};

/// Work for the engine's thread.
pub(crate) enum Command {
    /// Prefill tokens of one sequence from a position, dense.
    Prefill { tokens: Vec<u32>, at: At, rows: Outputs, stop: StopHandle, logits: Vec<f32> },
    /// Decode one token of each of some sequences, or several of one, sparse.
    Decode { rows: StepRows, stop: Option<StopHandle>, logits: Vec<f32> },
    /// Copy bytes from `at` of the keys, values and state of some positions into `bytes`.
    KeysAndValues { sequence: usize, positions: Range<usize>, at: usize, bytes: Vec<u8> },
    /// Restore these bytes.
    Restore { sequence: usize, positions: Range<usize>, at: usize, bytes: Vec<u8> },
    /// Share a sequence's first positions with another sequence.
    Share { from: usize, to: usize, positions: usize },
    /// Free all cold slots.
    ClearCache,
    /// Replay recorded experts from now on.
    Routes(Option<Routes>),
    /// Record reads from now on.
    RecordReads,
    /// Repeat the recorded reads without compute.
    ReplayReads { depth: usize },
    /// Report the visits of experts.
    Visits,
    /// Measure current rates.
    Probe { points: Box<Points> },
}

/// Rows of a prompt that are sent back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outputs {
    /// The logits of the last token.
    Last,
    /// The logits of each token.
    Logits,
    /// The hidden state of each token, without logits.
    Hidden,
}

/// Tokens of a step, in a list that never allocates.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepRows {
    rows: [Token; ROWS_MAX],
    count: usize,
}

impl StepRows {
    pub(crate) fn push(&mut self, row: Token) {
        self.rows[self.count] = row;
        self.count += 1;
    }
}

/// Replies of the engine's thread. They pass through a channel of capacity one, made at start: their size
/// costs nothing, while a box would be an allocation per token.
#[expect(clippy::large_enum_variant, reason = "a token allocates nothing")]
pub(crate) enum Reply {
    Started(Result<Facts, Error>),
    /// The logits or hidden state of one token of a prompt; more follow.
    Row(Vec<f32>),
    Done {
        result: Result<(), Error>,
        counters: Counters,
        logits: Vec<f32>,
    },
    Copied(Vec<u8>),
    /// Done, without a result.
    Acknowledged,
    Replayed(Result<Option<Replay>, Error>),
    Probed(Box<Probe>),
    Visited(Option<Box<Visited>>),
}

/// Why work was not done.
pub(crate) enum Failure {
    Error(Error),
    /// The caller's callback panicked; the work may have been done.
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
    /// The error; resumes a panic.
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
    /// Stops a prompt after a callback's panic.
    abandon: StopHandle,
}

impl Link {
    /// Starts the engine's thread, which starts the transformer.
    pub(super) fn start(
        container: Arc<Container>,
        plan: plans::Plan,
        aside: Aside,
        stop: StopHandle,
    ) -> Result<(Self, Facts), Error> {
        let (commands, received) = sync_channel(1);
        let (answers, replies) = sync_channel(1);
        let abandon = StopHandle::default();
        let abandoned = abandon.clone();
        let work = move || {
            let started = Transformer::start(&container, &plan, stop).and_then(|mut transformer| {
                transformer.work_beside(aside, plan.quality.units.first())?;
                Ok(transformer)
            });
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
        // a panicked thread takes no command; the panic resumes when the reply is awaited
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
        }
    }

    /// Waits for the next reply; resumes a panic of the engine's thread.
    pub(crate) fn reply(&mut self) -> Reply {
        self.replies.recv().unwrap_or_else(|_| {
            let panic = self.thread.take().and_then(|thread| thread.join().err());
            resume_unwind(panic.unwrap_or_else(|| Box::new("the engine's thread has ended")))
        })
    }

    /// Sends work with the vector for its logits, and calls `each` for every row until it is done. Returns
    /// the totals since start.
    ///
    /// If `each` panics, the work is stopped and awaited, so that the next command finds no stale replies.
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
                    // resume the panic in the caller after the engine has finished
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
                | Reply::Visited(_)
                | Reply::Probed(_) => {}
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.commands = None;
        // unblock a thread that waits to send a reply
        self.replies = sync_channel(1).1;
        if let Some(thread) = self.thread.take() {
            // a panic was already resumed where the reply was awaited
            let _ = thread.join();
        }
    }
}

/// Executes commands until the channel closes.
fn serve(mut transformer: Transformer, commands: &Receiver<Command>, replies: &SyncSender<Reply>) {
    // the caller may have gone
    let _ = replies.send(Reply::Started(Ok(Facts::of(&transformer))));
    let vocabulary = transformer.config().vocabulary;
    let done = |transformer: &Transformer,
                result: Result<(), TransformerError>,
                rows: usize,
                mut logits: Vec<f32>| {
        if result.is_ok() {
            logits[..rows * vocabulary].copy_from_slice(&transformer.logits()[..rows * vocabulary]);
        }
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
                let (result, filled) = match heard {
                    Outputs::Last => (transformer.prefill(&rows, None).map(drop), 1),
                    Outputs::Logits => (transformer.prefill(&rows, Some(&mut send)).map(drop), 1),
                    Outputs::Hidden => (transformer.prefill_hidden(&rows, &mut send), 0),
                };
                done(&transformer, result, filled, logits);
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
            Command::Visits => {
                let _ = replies.send(Reply::Visited(transformer.visits().map(Box::new)));
            }
            Command::Probe { points } => {
                let _ = replies.send(Reply::Probed(Box::new(transformer.probe(&points))));
            }
        }
    }
}
