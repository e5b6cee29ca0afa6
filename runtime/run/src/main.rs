//! The program `run`: a plan, a container and a prompt in; text and what happened beside what was predicted out.
//!
//! In reading order: the command line (`cli`), whether the plan is for this machine and container (`fit`), one token
//! after another with a clock (`session`), what is done with them (`generate`, `score`, `logits`, `bench`), and the
//! figures at the end (`report`), with what they could be at best (`floor`) and a `picture`.

mod bench;
mod cli;
mod floor;
mod generate;
mod logits;
mod picture;
mod report;
mod score;
mod session;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use flashplan::{Error, StopHandle};

use cli::Cli;

/// Why a run ends without having done everything.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The engine's; a plan for another machine, model, container or schema has exit code 2.
    #[error(transparent)]
    Engine(Error),
    /// Ctrl-C.
    #[error("stopped on request; no file was left unfinished")]
    Stopped,
    /// Anything else, as a sentence.
    #[error("{0}")]
    Error(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if matches!(error, Error::Stopped) { Self::Stopped } else { Self::Engine(error) }
    }
}

impl Failure {
    /// 2: the plan does not fit this machine or model; 1: any other error, or wrong usage.
    fn exit_code(&self) -> u8 {
        if matches!(self, Self::Engine(Error::DoesNotFit(_))) { 2 } else { 1 }
    }
}

/// Anything that says in a sentence what is wrong.
pub(crate) fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::Error(error.to_string())
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
    let stop = StopHandle::default();
    let handle = stop.clone();
    let handled = ctrlc::set_handler(move || handle.stop()).map_err(failure);
    match handled.and_then(|()| cli.run(&stop)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
