//! A flag by which one thread ends the work of another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends what an engine is doing, from any thread: for all sequences, or for the one that the handle is of.
///
/// The call that is under way returns [`Error::Stopped`](crate::Error::Stopped), and so does every later one until
/// [`StopHandle::resume`]. What a session has finished stays: the token that was stopped can be decoded again. A recurrent state
/// goes back to the end of the last prompt.
#[derive(Debug, Clone, Default)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// Asks the engine to stop.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Lets the engine work again.
    pub fn resume(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether [`StopHandle::stop`] has been called, and [`StopHandle::resume`] not since.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// All that can end what an engine's thread is doing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stops {
    /// The embedder's handle of the engine.
    pub engine: StopHandle,
    /// The handle of the sequence that the current call works on.
    pub call: Option<StopHandle>,
    /// Set while nobody wants the rest of a prompt's rows: a callback has panicked.
    pub abandon: StopHandle,
}

impl Stops {
    /// Whether any of them has been used.
    pub(crate) fn is_stopped(&self) -> bool {
        let call = self.call.as_ref().is_some_and(StopHandle::is_stopped);
        self.engine.is_stopped() || call || self.abandon.is_stopped()
    }
}
