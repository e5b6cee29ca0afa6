//! Measurements and facts of an engine that the programs of flashplan need besides. The trait stands in [`crate::internals`];
//! embedders have no use for it.

use super::{Command, Engine, Reply};
use crate::error::Error;
use crate::fetch::Replay;
use crate::pooling::Pooling;
use crate::probe::Probe;
use crate::routes::{Routes, RoutesError};

/// An engine measured, and the facts that a report or a server needs of it.
pub trait EngineExt {
    /// Measures for half a second what this machine gives in this hour: the rates that the plan assumes, over the engine's own
    /// memory and the very container, with the plan's threads and reads in flight. It takes no memory beyond the plan's and
    /// changes no result; what cannot be measured is absent, with a reason.
    fn probe(&self) -> Probe;

    /// Empties the cache of neurons that come and go, as at start. Pinned neurons stay.
    fn clear_cache(&self);

    /// Writes down the last reads from now on, for [`EngineExt::replay_reads`].
    fn record_reads(&self);

    /// Does the recorded reads once more, `depth` at a time and with nothing beside them: the time that the device needs for them
    /// in this hour. `None` if none were recorded.
    ///
    /// # Errors
    /// [`Error::Read`] if one fails.
    fn replay_reads(&self, depth: usize) -> Result<Option<Replay>, Error>;

    /// Lets the tokens of every sequence visit the experts that were recorded at their positions, in place of those that the
    /// router chooses; it weighs them. Behind the last recorded token it chooses again. Nothing is prefetched meanwhile: what
    /// the next layer's router says of this layer's stream has nothing to do with the recording. `None` ends it.
    ///
    /// A generated model's caches and reads meet a real model's routing so.
    ///
    /// # Errors
    /// When they are routes of a model that routes otherwise.
    fn replay_routes(&self, routes: Option<Routes>) -> Result<(), RoutesError>;

    /// How flash is read, for people.
    fn reads(&self) -> &str;

    /// Why the engine's memory may be paged out; `None`: it is locked.
    fn unlocked(&self) -> Option<&str>;

    /// Bytes of the keys and values of one token.
    fn kv_bytes_per_token(&self) -> usize;

    /// Bytes of the recurrent state of a sequence; 0 where there is none.
    fn state_bytes(&self) -> usize;

    /// How the hidden states of a text become its embedding: as the model's file says, otherwise that of the last token.
    fn pooling(&self) -> Pooling;

    /// Values of a hidden state, and so of an embedding.
    fn width(&self) -> usize;
}

#[cfg_attr(public_api, doc(hidden))]
impl EngineExt for Engine {
    fn probe(&self) -> Probe {
        let Some(points) = self.shared.points.clone() else {
            return Probe::nothing("the plan does not say which rates it assumes; plan again".to_owned());
        };
        match self.ask(Command::Probe { points: Box::new(points) }) {
            Reply::Probed(probe) => *probe,
            _ => panic!("the engine probes when it is told to"),
        }
    }

    fn clear_cache(&self) {
        self.ask(Command::ClearCache);
    }

    fn record_reads(&self) {
        self.ask(Command::RecordReads);
    }

    fn replay_reads(&self, depth: usize) -> Result<Option<Replay>, Error> {
        match self.ask(Command::ReplayReads { depth }) {
            Reply::Replayed(replay) => replay,
            _ => panic!("the engine reads again when it is told to"),
        }
    }

    fn replay_routes(&self, routes: Option<Routes>) -> Result<(), RoutesError> {
        let routing = &self.facts().routing;
        if let Some(routes) = &routes
            && Some(routes.routing()) != *routing
        {
            let problem = format!("they are made for {:?}, and it has {routing:?}", routes.routing());
            return Err(RoutesError(problem));
        }
        self.ask(Command::Routes(routes));
        Ok(())
    }

    fn reads(&self) -> &str {
        &self.facts().reads
    }

    fn unlocked(&self) -> Option<&str> {
        self.facts().unlocked.as_deref()
    }

    fn kv_bytes_per_token(&self) -> usize {
        self.facts().kv_bytes_per_token
    }

    fn state_bytes(&self) -> usize {
        self.facts().state_bytes
    }

    fn pooling(&self) -> Pooling {
        self.facts().pooling
    }

    fn width(&self) -> usize {
        self.facts().width
    }
}

impl Engine {
    /// Sends a command that has one reply, and waits for it.
    pub(crate) fn ask(&self, command: Command) -> Reply {
        let mut link = self.link();
        link.order(command);
        link.reply()
    }
}
