//! The program `run`: a plan, a container and a prompt in; text and what happened beside what was predicted out.
//!
//! In reading order: the command line (`cli`), whether the plan is for this machine and container (`fit`), one token
//! after another with a clock (`session`), what is done with them (`generate`, `score`, `logits`, `bench`), and the
//! figures at the end (`report`), with what they could be at best (`floor`) and a `picture`.

mod bench;
mod cli;
mod fit;
mod floor;
mod generate;
mod logits;
mod picture;
mod report;
mod sampler;
mod score;
mod session;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser as _;
use clap::error::ErrorKind;

use flashplan::engine::EngineError;

use cli::Cli;

/// Why a run ends without having done everything.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The plan is for another machine, model, container or version: exit code 2.
    #[error("the plan does not fit: {0}")]
    DoesNotFit(String),
    /// Anything else: exit code 1.
    #[error("{0}")]
    Error(String),
    /// Ctrl-C: exit code 1.
    #[error("stopped on request; no file was left unfinished")]
    Stopped,
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Plan { .. }
            | EngineError::Pool(_)
            | EngineError::Open { .. }
            | EngineError::Refused { .. }
            | EngineError::Arena(_) => Self::DoesNotFit(error.to_string()),
            error => Self::Error(error.to_string()),
        }
    }
}

/// Anything that says in a sentence what is wrong.
pub(crate) fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::Error(error.to_string())
}

/// Set by Ctrl-C; looked at between tokens.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.0.load(Ordering::Relaxed) { Err(Failure::Stopped) } else { Ok(()) }
    }
}

/// The whole program: exit code 0 done, 1 error or wrong usage, 2 the plan does not fit this machine or model.
#[expect(clippy::print_stderr, reason = "the one place that talks of failure")]
fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let requested = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            if requested {
                // a reader that has gone has read enough
                let _ = write!(std::io::stdout(), "{}", error.render());
                return ExitCode::SUCCESS;
            }
            eprint!("{}", error.render());
            return ExitCode::from(1);
        }
    };
    let stop = Stop::default();
    let flag = Arc::clone(&stop.0);
    let handled = ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).map_err(failure);
    match handled.and_then(|()| cli.run(&stop)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(if matches!(failure, Failure::DoesNotFit(_)) { 2 } else { 1 })
        }
    }
}
