//! The engine as others hold it: a plan in execution on threads of its own.
//!
//! ```text
//! caller's thread                         the engine's thread, on the plan's first core
//! Engine::start      -- spawn -->         the transformer takes the plan's memory and fills it
//! Session::decode    -- Command -->       one token through all layers, with the compute threads
//!                    <-- Reply --         logits, in the vector that came with the command
//! ```
//!
//! The plan's cores are taken by threads that the engine makes: the caller's thread keeps its own. A command and its
//! reply carry one vector to and fro, so that a token allocates nothing. Sessions and batches own a handle of the engine and
//! the sequences that they have claimed; their calls take turns at `link`.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::fit;
use crate::open::Model;
use crate::plan::{Plan, contract};
use crate::pooling::Pooling;
use crate::probe::Points;
use crate::routes::Routing;
use crate::session::{Batch, Session};
use crate::stop::StopHandle;
use crate::transformer::{Counters, Transformer};

mod internals;
mod link;

pub use internals::EngineExt;
pub(crate) use link::{Command, Failure, Few, Heard, Link, Reply};

/// A plan in execution: all memory of the plan, its threads and its reads.
///
/// An engine is a handle: a clone is the same engine, and can be used from any thread. [`Engine::session`] claims one of the plan's
/// sequences, [`Engine::batch`] all of them; both own a handle, so that they live beside the engine. Calls take turns. The threads
/// end and the memory is given back with the last handle.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// What the handles of an engine share.
struct Shared {
    link: Mutex<Link>,
    /// Totals after the last call.
    counters: Mutex<Counters>,
    /// Which sequences a session or a batch has.
    claimed: Mutex<Box<[bool]>>,
    stop: StopHandle,
    facts: Facts,
    /// Where the plan's rates are measured again, if it says so.
    points: Option<Points>,
}

/// Facts of an engine that no step changes.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) context: usize,
    pub(crate) sequences: usize,
    pub(crate) step_rows: usize,
    pub(crate) vocabulary: usize,
    pub(crate) width: usize,
    pub(crate) pooling: Pooling,
    pub(crate) kv_bytes_per_token: usize,
    /// Bytes of a sequence's recurrent state; 0 where there is none.
    pub(crate) state_bytes: usize,
    pub(crate) recurrent: bool,
    pub(crate) routing: Option<Routing>,
    pub(crate) reads: String,
    pub(crate) unlocked: Option<String>,
}

impl Facts {
    /// The facts of a transformer that has started.
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
        let points = Points::of(keys, model.container.weights());
        let (link, facts) = Link::start(Arc::clone(&model.container), keys.clone(), stop.clone())?;
        let claimed = vec![false; facts.sequences].into_boxed_slice().into();
        let shared = Shared { link: link.into(), counters: Mutex::default(), claimed, stop, facts, points };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A new sequence, at position 0: one that no other session has. The cache of neurons stays as it is.
    ///
    /// # Errors
    /// [`Error::Sequences`] if sessions or a batch have all of the plan's sequences.
    pub fn session(&self) -> Result<Session, Error> {
        let mut claimed = unpoisoned(&self.shared.claimed);
        let free = claimed.iter().position(|&claimed| !claimed);
        let sequence = free.ok_or_else(|| self.in_use())?;
        claimed[sequence] = true;
        Ok(Session::new(Claim { engine: self.clone(), sequences: sequence..sequence + 1 }))
    }

    /// All of the plan's sequences, each at position 0, to go on together. The cache of neurons stays as it is.
    ///
    /// # Errors
    /// [`Error::Sequences`] if a session or another batch has one of them.
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

    /// A handle that ends what the engine is doing, for all sequences.
    pub fn stop_handle(&self) -> StopHandle {
        self.shared.stop.clone()
    }

    /// Totals since start.
    pub fn counters(&self) -> Counters {
        *unpoisoned(&self.shared.counters)
    }

    /// Tokens that [`Session::decode_each`] and [`Batch::decode`] take together, at most: one of each sequence, and those of the plan's
    /// drafts.
    pub fn step_rows(&self) -> usize {
        self.facts().step_rows
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.facts().vocabulary
    }

    /// Whether layers of the model keep a recurrent state of a sequence in place of keys and values. Such a sequence goes back only
    /// to where its last prompt ended, or to its beginning.
    pub fn is_recurrent(&self) -> bool {
        self.facts().recurrent
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.shared.facts
    }

    /// The way to the engine's thread, for one call.
    pub(crate) fn link(&self) -> MutexGuard<'_, Link> {
        unpoisoned(&self.shared.link)
    }

    /// Sends work with the vector for its logits and hears of every row until it is done.
    pub(crate) fn work(
        &self,
        logits: &mut Vec<f32>,
        command: impl FnOnce(Vec<f32>) -> Command,
        each: impl FnMut(&[f32]),
    ) -> Result<(), Failure> {
        let mut link = self.link();
        let (counters, done) = link.work(logits, command, each);
        *unpoisoned(&self.shared.counters) = counters;
        done
    }
}

/// A panic of another call has left nothing half done: see [`Link::work`].
fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sequences that belong to a session or a batch until it is dropped.
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
