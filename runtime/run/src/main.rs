//! The program `run`: a plan, a container and a prompt in; text and what happened beside what was predicted out.
//!
//! In reading order: the command line (`cli`), what is read before anything starts (`input`), one token after another with
//! a clock (`session`), what this `hour` gives, what is done with them (`generate`, whose `output` is the text and which says why it `ended`; `chat`; `serve`, whose answers are each a `turn` of a sequence that has `held` something before, and whose prompts may last as `sessions` on disk, both of which tell `reasoning` from answer; `score`, `logits`, `bench`, which may follow recorded routes and write a `calibration`, and `tokenize`, which needs no engine), the
//! `figures` at the end with the `floor`, the `report` of them, and that on all `tokens` with
//! its `picture`.

mod bench;
mod calibration;
mod chat;
mod cli;
mod ended;
mod figures;
mod floor;
mod generate;
mod held;
mod hour;
mod input;
mod logits;
mod output;
mod picture;
mod reasoning;
mod report;
mod score;
mod serve;
mod session;
mod sessions;
mod tokenize;
mod tokens;
mod turn;

use std::process::ExitCode;

use flashplan::internals::machine::keep_small;
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
        match error {
            Error::Stopped => Self::Stopped,
            // the engine's names of these are those of the options
            Error::Sampling { name, value, range } => {
                Self::Error(format!("--{name} is {value}; it is {range}"))
            }
            error => Self::Engine(error),
        }
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
fn main() -> ExitCode {
    keep_small();
    let cli = match terminal::command::parse::<Cli>() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let stop = StopHandle::default();
    let handle = stop.clone();
    let stopping = move || {
        let again = handle.is_stopped();
        handle.stop();
        again
    };
    let heard = terminal::interrupt::on_interrupt(stopping).map_err(Failure::Error);
    match heard.and_then(|()| cli.run(&stop)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::output::say_error(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}
