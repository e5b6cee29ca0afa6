//! The context of both measurements: where to write, how to show progress, whether to stop.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

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
    visible: bool,
    /// Time that may still be spent on repeating disturbed measurements, in milliseconds.
    patience_ms: Arc<AtomicU64>,
}

impl Context {
    /// Progress is shown only if standard error is a terminal.
    pub fn new(out: PathBuf, storage: PathBuf, quick: bool) -> Self {
        let patience_ms = Arc::new(AtomicU64::new(if quick { 6_000 } else { 40_000 }));
        Self {
            out,
            storage,
            quick,
            stop: Arc::default(),
            visible: std::io::stderr().is_terminal(),
            patience_ms,
        }
    }

    /// Whether there is time to repeat something that takes so long; it is taken then.
    pub fn has_patience(&self, time: Duration) -> bool {
        let ms = time.as_millis() as u64;
        let take = |left: u64| left.checked_sub(ms);
        self.patience_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Set it to true to end the measurement; for a signal handler.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Checked in every long loop; the error is handed up with `?`.
    ///
    /// # Errors
    /// [`Stopped`] once the user has requested to end.
    pub fn stopped(&self) -> Result<(), Stopped> {
        if self.stop.load(Ordering::Relaxed) { Err(Stopped) } else { Ok(()) }
    }

    /// A progress bar of `len` steps; it draws nothing where standard error is not a terminal.
    pub fn bar(&self, len: u64, message: &str) -> ProgressBar {
        self.styled(len, message, "{msg:28} [{bar:32}] {pos}/{len} {elapsed} left {eta}")
    }

    /// A progress bar of `len` bytes.
    pub fn bytes_bar(&self, len: u64, message: &str) -> ProgressBar {
        self.styled(len, message, "{msg:28} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} left {eta}")
    }

    fn styled(&self, len: u64, message: &str, template: &str) -> ProgressBar {
        let target = if self.visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(len), target).with_message(message.to_owned());
        match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style.progress_chars("=> ")),
            Err(_) => bar,
        }
    }
}
