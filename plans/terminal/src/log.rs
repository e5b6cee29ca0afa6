//! `--verbose`: the steps of a job, on standard error.
//!
//! Programs and their libraries say what they do with [`tracing`]'s macros; without `--verbose` nobody listens. The
//! engine says nothing this way: a token has no time for it.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::time::uptime;

/// Begins to listen: to nothing at 0, to steps at 1, to what is decided in them at 2 and above.
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
