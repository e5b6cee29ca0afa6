//! Measurements and facts of an engine for flashplan's own programs, exported through [`crate::internals`].

use plans::learned::LayerVisits;

use super::{Command, Engine, Reply};
use crate::error::Error;
use crate::fetch::Replay;
use crate::open::Model;
use crate::plan::Plan;
use crate::pooling::Pooling;
use crate::probe::Probe;
use crate::routes::{Routes, RoutesError};
use crate::stop::StopHandle;
use crate::transformer::Aside;

/// Visits of experts since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visited {
    /// Counted tokens.
    pub tokens: u64,
    /// Counts of each layer.
    pub layers: Vec<LayerVisits>,
}

/// [`Engine::start_with`] on the cores and a unit beside them, which the plan's quality names.
///
/// # Errors
/// As [`Engine::start_with`]; [`Error::Unit`] if the unit has no memory for its share, or fails.
pub fn start_beside(model: &Model, plan: &Plan, aside: Aside, stop: StopHandle) -> Result<Engine, Error> {
    Engine::start_beside(model, plan, aside, stop)
}

/// Measurements of an engine, and facts for reports and servers.
pub trait EngineExt {
    /// Measures the plan's rates again, within half a second: over the engine's memory and container, with
    /// the plan's threads and reads in flight. Needs no memory beyond the plan's and changes no result. A
    /// rate that cannot be measured is absent, with a reason.
    fn probe(&self) -> Probe;

    /// Frees all cold slots of the neuron cache, as at start. Pinned neurons stay.
    fn clear_cache(&self);

    /// Records reads from now on, for [`EngineExt::replay_reads`].
    fn record_reads(&self);

    /// Repeats the recorded reads, `depth` at a time and without compute, to time the device alone. `None` if
    /// none were recorded.
    ///
    /// # Errors
    /// [`Error::Read`] if a read fails.
    fn replay_reads(&self, depth: usize) -> Result<Option<Replay>, Error>;

    /// Replays recorded routes: tokens of every sequence use the experts recorded at their positions,
    /// weighted by the model's router. After the last recorded token the router chooses again. `None` ends
    /// the replay.
    ///
    /// Prefetching is off meanwhile, because the router's guess for the next layer would ignore the
    /// recording. A generated model thus exercises caches and reads with a real model's routing.
    ///
    /// # Errors
    /// If the routes are of a model with other experts.
    fn replay_routes(&self, routes: Option<Routes>) -> Result<(), RoutesError>;

    /// Visits of experts by all tokens that were decoded one at a time. `None` for models without experts, and for containers: only
    /// mixtures that are read from their own file are counted.
    fn visits(&self) -> Option<Visited>;

    /// The read method, for people.
    fn reads(&self) -> &str;

    /// Why the engine's memory may be swapped out; `None` if it is locked.
    fn unlocked(&self) -> Option<&str>;

    /// Bytes of the keys and values of one token.
    fn kv_bytes_per_token(&self) -> usize;

    /// Bytes of the recurrent state of a sequence; 0 without one.
    fn state_bytes(&self) -> usize;

    /// How hidden states become a text's embedding: as the model's file says, otherwise the last token's.
    fn pooling(&self) -> Pooling;

    /// Values of a hidden state and of an embedding.
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

    fn visits(&self) -> Option<Visited> {
        match self.ask(Command::Visits) {
            Reply::Visited(visited) => visited.map(|visited| *visited),
            _ => panic!("the engine reports visits when it is told to"),
        }
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
