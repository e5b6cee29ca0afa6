//! Ctrl-C and the signals that end a program.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use crate::output::say_error;

/// Maximum delay of an interrupt during a wait.
const SOON: Duration = Duration::from_millis(20);
/// Exit code of a program that ended at once.
const ENDED: i32 = 1;

/// Whether a signal other than Ctrl-C requested the end.
static TERMINATED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Whether termination or hang-up was requested, which also ends a program that Ctrl-C only interrupts.
#[must_use]
pub fn is_terminated() -> bool {
    TERMINATED.load(Ordering::Relaxed)
}

/// Calls `stop` at Ctrl-C, termination or hang-up.
///
/// `stop` returns whether an earlier call is still in progress; the process then ends at once.
///
/// # Errors
/// A sentence, if signal handlers cannot be installed.
pub fn on_interrupt(stop: impl Fn() -> bool + Send + 'static) -> Result<(), String> {
    let heard = move || {
        if stop() {
            end_at_once();
        }
    };
    ctrlc::set_handler(heard).map_err(|error| format!("cannot listen to Ctrl-C: {error}"))?;
    // `ctrlc` does not say which signal it was, and goes on to hear it
    platform::signal::flag_termination(&TERMINATED)
        .map_err(|error| format!("cannot listen to termination: {error}"))
}

#[expect(clippy::exit, reason = "whoever asks twice does not want to wait for an orderly end")]
fn end_at_once() {
    say_error("ended at once; an output file that was being written may remain under a temporary name");
    std::process::exit(ENDED);
}

/// Turns the signal of a file above `ulimit -f` into an error of the write.
///
/// The signal would end the process and leave half a file. It still does where the system refuses the handler.
pub fn survive_the_file_size_limit() {
    platform::signal::survive_the_file_size_limit();
}

/// Why work was abandoned.
#[derive(Debug)]
pub enum Left {
    /// The user stopped it.
    Stopped,
    /// The system refused a thread for it.
    NoThread(io::Error),
}

/// A sentence.
impl Display for Left {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped on request"),
            Self::NoThread(why) => write!(
                f,
                "cannot start a thread: {why}; raise the limit on address space (`ulimit -v`) or on processes (`ulimit -u`)"
            ),
        }
    }
}

/// Runs work that may wait for ever, such as reading a pipe, and abandons it when it is `stopped`.
///
/// Abandoned work goes on, on a thread of its own.
///
/// # Errors
/// [`Left`].
pub fn heeding<T: Send + 'static>(
    stopped: impl Fn() -> bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Left> {
    let (sender, done) = channel();
    let worker = thread::Builder::new().name("waits".to_owned()).spawn(move || {
        // whoever has stopped wants it no more
        let _ = sender.send(work());
    });
    let worker = worker.map_err(Left::NoThread)?;
    loop {
        match done.recv_timeout(SOON) {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) if stopped() => return Err(Left::Stopped),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match worker.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => return Err(Left::Stopped),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    #[test]
    fn what_waits_for_ever_is_left_when_stopped() {
        assert!(matches!(heeding(|| false, || 7), Ok(7)));
        let stop = Arc::new(AtomicBool::new(false));
        let (clock, later) = (Instant::now(), Arc::clone(&stop));
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            later.store(true, Ordering::Relaxed);
        });
        let waited = heeding(|| stop.load(Ordering::Relaxed), || thread::sleep(Duration::from_secs(100)));
        assert!(matches!(waited, Err(Left::Stopped)), "{waited:?}");
        assert!(clock.elapsed() < Duration::from_secs(50));
    }
}
