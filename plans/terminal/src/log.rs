//! `--verbose`: the steps of a job, on standard error.
//!
//! Programs and libraries log with [`tracing`]'s macros, which are ignored without `--verbose`. The engine does not log, because a token
//! has no time for it.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::time::uptime;

/// Starts the log: nothing at 0, steps at 1, their decisions at 2 and above.
pub fn listen(verbosity: u8) {
    let level = match verbosity {
        0 => return,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_timer(uptime())
        .with_target(false)
        .with_ansi(false)
        .log_internal_errors(false)
        .finish();
    // there is one in a process already where tests share it
    let _set = tracing::subscriber::set_global_default(subscriber);
}
