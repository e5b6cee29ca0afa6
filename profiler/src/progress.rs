//! The context of both measurements: where to write, how to show progress, when to stop.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use terminal::progress::Unit;
use terminal::{Bar, Progress};

use crate::Stopped;

/// The circumstances of a measurement.
#[derive(Debug, Clone)]
pub struct Context {
    /// The folder of the TOML and CSV files.
    pub out: PathBuf,
    /// The folder of the container: its disk is measured.
    pub storage: PathBuf,
    /// A sixth of the time, with fewer repeats or tokens.
    pub quick: bool,
    stop: Arc<AtomicBool>,
    progress: Progress,
    /// Milliseconds left for repeating disturbed measurements.
    patience_ms: Arc<AtomicU64>,
}

impl Context {
    /// A context that shows its progress on standard error.
    pub fn new(out: PathBuf, storage: PathBuf, quick: bool) -> Self {
        let patience_ms = Arc::new(AtomicU64::new(if quick { 6_000 } else { 40_000 }));
        Self { out, storage, quick, stop: Arc::default(), progress: Progress::on_stderr(false), patience_ms }
    }

    /// The context with another way to show progress.
    #[must_use]
    pub fn with_progress(self, progress: Progress) -> Self {
        Self { progress, ..self }
    }

    /// Takes `time` from the budget of repeats, and returns whether it was there.
    pub fn has_patience(&self, time: Duration) -> bool {
        let ms = time.as_millis() as u64;
        let take = |left: u64| left.checked_sub(ms);
        let taken = self.patience_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        tracing::debug!(ms, taken, "others disturbed a measurement: time to repeat it");
        taken
    }

    /// A flag for a signal handler, which ends the measurement.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Checks whether to stop; every long loop calls it.
    ///
    /// # Errors
    /// [`Stopped`] once the user has requested the end.
    pub fn stopped(&self) -> Result<(), Stopped> {
        if self.stop.load(Ordering::Relaxed) { Err(Stopped) } else { Ok(()) }
    }

    /// A part of the measurement, of `len` steps.
    pub fn bar(&self, len: u64, message: &str) -> Bar {
        self.progress.bar(len, message, Unit::Steps)
    }

    /// A part of the measurement, of `len` bytes.
    pub fn bytes_bar(&self, len: u64, message: &str) -> Bar {
        self.progress.bar(len, message, Unit::Bytes)
    }
}
