//! A plan in execution on threads of its own, behind cloneable handles.
//!
//! ```text
//! caller's thread                         the engine's thread, on the plan's first core
//! Engine::start      -- spawn -->         the transformer takes the plan's memory and fills it
//! Session::decode    -- Command -->       one token through all layers, with the compute threads
//!                    <-- Reply --         logits, in the vector of the command
//! ```
//!
//! The engine's own threads occupy the plan's cores; the caller's thread keeps its core. A command and its
//! reply carry the same vector back and forth, so decoding allocates nothing. Sessions and batches own a
//! handle of the engine and the sequences they claimed. Their calls take turns at `link`.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::error::Error;
use crate::fit;
use crate::open::Model;
use crate::plan::{Plan, contract};
use crate::pooling::Pooling;
use crate::probe::Points;
use crate::routes::Routing;
use crate::session::{Batch, Session};
use crate::stop::StopHandle;
use crate::transformer::{Aside, Counters, Transformer};

mod internals;
mod link;

pub use internals::{EngineExt, Visited, start_beside};
pub(crate) use link::{Command, Failure, Link, Outputs, Reply, StepRows};

/// A plan in execution: all memory of the plan, its threads and its reads.
///
/// An engine is a handle: clones share one engine and work from any thread. [`Engine::session`] claims one of
/// the plan's sequences, [`Engine::batch`] claims all. Sessions and batches own a handle. Calls take turns.
/// The threads end and the memory is freed when the last handle is dropped.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// The state that all handles of an engine share.
struct Shared {
    link: Mutex<Link>,
    /// The thread that runs a callback. It would wait for itself at `link`.
    hearing: Mutex<Option<ThreadId>>,
    /// Totals after the last call.
    counters: Mutex<Counters>,
    /// Sequences claimed by a session or a batch.
    claimed: Mutex<Box<[bool]>>,
    stop: StopHandle,
    facts: Facts,
    /// Points at which to measure the plan's rates again, if the plan has rates.
    points: Option<Points>,
}

/// Constants of a running engine.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) context: usize,
    pub(crate) sequences: usize,
    pub(crate) step_rows: usize,
    pub(crate) vocabulary: usize,
    pub(crate) width: usize,
    pub(crate) pooling: Pooling,
    pub(crate) kv_bytes_per_token: usize,
    /// Bytes of a sequence's recurrent state; 0 without one.
    pub(crate) state_bytes: usize,
    pub(crate) recurrent: bool,
    pub(crate) routing: Option<Routing>,
    pub(crate) reads: String,
    pub(crate) unlocked: Option<String>,
}

impl Facts {
    /// The facts of a started transformer.
    fn of(transformer: &Transformer) -> Self {
        let config = transformer.config();
        Self {
            context: transformer.context(),
            sequences: transformer.sequences(),
            step_rows: transformer.step_rows(),
            vocabulary: config.vocabulary,
            width: config.width,
            pooling: config.pooling.unwrap_or_default(),
            kv_bytes_per_token: transformer.kv_bytes_per_token() as usize,
            state_bytes: transformer.state_bytes(),
            recurrent: transformer.is_recurrent(),
            routing: Routing::of(config),
            reads: transformer.flash(),
            unlocked: transformer.lock().as_ref().err().map(ToString::to_string),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("facts", &self.shared.facts).finish_non_exhaustive()
    }
}

impl Engine {
    /// Checks that the plan is for this model and machine, then maps all of the plan's memory and fills it.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] if the plan is for another model, container or machine, or if the system refuses
    /// memory, cores or reads. [`Error::Model`] if the container is damaged.
    pub fn start(model: &Model, plan: &Plan) -> Result<Self, Error> {
        Self::start_with(model, plan, StopHandle::default())
    }

    /// [`Engine::start`] with a stop handle that also ends the start.
    ///
    /// # Errors
    /// As [`Engine::start`], and [`Error::Stopped`].
    pub fn start_with(model: &Model, plan: &Plan, stop: StopHandle) -> Result<Self, Error> {
        Self::start_beside(model, plan, Aside::default(), stop)
    }

    /// [`Engine::start_with`] on the cores and a unit beside them.
    pub(crate) fn start_beside(
        model: &Model,
        plan: &Plan,
        aside: Aside,
        stop: StopHandle,
    ) -> Result<Self, Error> {
        let keys = contract(plan);
        fit::check(keys, &model.container, &aside)?;
        let points = Points::of(keys, model.container.weights());
        let (link, facts) = Link::start(Arc::clone(&model.container), keys.clone(), aside, stop.clone())?;
        let claimed = vec![false; facts.sequences].into_boxed_slice().into();
        let (link, hearing) = (link.into(), Mutex::default());
        let shared = Shared { link, hearing, counters: Mutex::default(), claimed, stop, facts, points };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Claims a free sequence, at position 0. Keeps the neuron cache.
    ///
    /// # Errors
    /// [`Error::Sequences`] if all of the plan's sequences are claimed.
    pub fn session(&self) -> Result<Session, Error> {
        let mut claimed = unpoisoned(&self.shared.claimed);
        let free = claimed.iter().position(|&claimed| !claimed);
        let sequence = free.ok_or_else(|| self.in_use())?;
        claimed[sequence] = true;
        Ok(Session::new(Claim { engine: self.clone(), sequences: sequence..sequence + 1 }))
    }

    /// Claims all of the plan's sequences as a batch, each at position 0. Keeps the neuron cache.
    ///
    /// # Errors
    /// [`Error::Sequences`] if any sequence is claimed.
    pub fn batch(&self) -> Result<Batch, Error> {
        let mut claimed = unpoisoned(&self.shared.claimed);
        if claimed.contains(&true) {
            return Err(self.in_use());
        }
        claimed.fill(true);
        Ok(Batch::new(Claim { engine: self.clone(), sequences: 0..claimed.len() }))
    }

    fn in_use(&self) -> Error {
        let problem = "sessions or a batch have the sequences, which are free when these are dropped";
        Error::Sequences { problem: problem.to_owned(), sequences: self.facts().sequences }
    }

    /// A handle that stops the engine's work, for all sequences.
    pub fn stop_handle(&self) -> StopHandle {
        self.shared.stop.clone()
    }

    /// Totals since start.
    pub fn counters(&self) -> Counters {
        *unpoisoned(&self.shared.counters)
    }

    /// The most tokens of one [`Session::decode_each`] or [`Batch::decode`]: one for each sequence, plus the
    /// plan's drafts.
    pub fn step_rows(&self) -> usize {
        self.facts().step_rows
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.facts().vocabulary
    }

    /// Whether the model has layers with a recurrent state instead of keys and values. Such a sequence can
    /// only be cut back to the end of its last prompt, or to its start.
    pub fn is_recurrent(&self) -> bool {
        self.facts().recurrent
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.shared.facts
    }

    /// The channel to the engine's thread, locked for one call.
    ///
    /// # Panics
    /// In a callback of a call to the same engine.
    pub(crate) fn link(&self) -> MutexGuard<'_, Link> {
        let hears = *unpoisoned(&self.shared.hearing) == Some(thread::current().id());
        assert!(
            !hears,
            "a callback called the engine that it was called by: call it when the callback has returned"
        );
        unpoisoned(&self.shared.link)
    }

    /// Sends work with the vector for its logits; calls `each` for every row until the work is done.
    pub(crate) fn work(
        &self,
        logits: &mut Vec<f32>,
        command: impl FnOnce(Vec<f32>) -> Command,
        each: impl FnMut(&[f32]),
    ) -> Result<(), Failure> {
        let mut link = self.link();
        let hearing = Hearing::new(&self.shared.hearing);
        let (counters, done) = link.work(logits, command, each);
        drop(hearing);
        *unpoisoned(&self.shared.counters) = counters;
        done
    }
}

/// Marks the current thread as running a callback, until dropped.
struct Hearing<'a>(&'a Mutex<Option<ThreadId>>);

impl<'a> Hearing<'a> {
    fn new(hearing: &'a Mutex<Option<ThreadId>>) -> Self {
        *unpoisoned(hearing) = Some(thread::current().id());
        Self(hearing)
    }
}

impl Drop for Hearing<'_> {
    fn drop(&mut self) {
        *unpoisoned(self.0) = None;
    }
}

/// Locks, ignoring poison: a panic leaves nothing half done, see [`Link::work`].
fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sequences claimed by a session or a batch until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) engine: Engine,
    pub(crate) sequences: Range<usize>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        unpoisoned(&self.engine.shared.claimed)[self.sequences.clone()].fill(false);
    }
}
