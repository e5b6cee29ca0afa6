//! A flag that lets one thread stop the work of another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops an engine's work from any thread: for all sequences, or for the handle's sequence.
///
/// The current call returns [`Error::Stopped`](crate::Error::Stopped), as does every later one until
/// [`StopHandle::resume`]. Finished work stays: the stopped token can be decoded again. A recurrent state
/// goes back to the end of the last prompt.
#[derive(Debug, Clone, Default)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// Requests a stop.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Allows work again.
    pub fn resume(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether a stop is requested and not resumed.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// All requests that can stop the engine's thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stops {
    /// The embedder's handle of the engine.
    pub engine: StopHandle,
    /// The handle of the sequence that the current call works on.
    pub call: Option<StopHandle>,
    /// Set while the rest of a prompt is unwanted, because a callback has panicked.
    pub abandon: StopHandle,
}

impl Stops {
    /// Whether any of them requests a stop.
    pub(crate) fn is_stopped(&self) -> bool {
        let call = self.call.as_ref().is_some_and(StopHandle::is_stopped);
        self.engine.is_stopped() || call || self.abandon.is_stopped()
    }
}
