//! The program `run`: executes a plan, prints text, and reports planned and measured figures.
//!
//! In reading order:
//!
//! * `cli` reads the command line, `input` the plan, the container and the prompt.
//! * `unit` opens the GPU of a plan that has one.
//! * `session` decodes tokens and measures each; `current` holds the rates that the probe found.
//! * `generate` continues a prompt: `output` is its text, `ended` why it stopped.
//! * `chat` and `serve` hold conversations. A `turn` is one answer, `held` the tokens that a sequence already has,
//!   `sessions` their keys and values on disk; `reasoning` separates thinking from the answer, `steering`
//!   says how much of it there is.
//! * `learn` adds the experts that were visited to `learned.toml`, for the next plan.
//! * `score`, `logits`, `bench` (with `calibration`) and `tokenize` do other things than generate.
//! * `figures` sums up a run, with the lower bound in `floor`; `report` prints it, `tokens` and `picture` write it as CSV and SVG.

mod bench;
mod calibration;
mod chat;
mod cli;
mod current;
mod ended;
mod figures;
mod floor;
mod generate;
mod held;
mod input;
mod learn;
mod logits;
mod output;
mod picture;
mod reasoning;
mod report;
mod score;
mod serve;
mod session;
mod sessions;
mod steering;
mod tokenize;
mod tokens;
mod turn;
mod unit;

use std::process::ExitCode;

use flashplan::internals::machine::keep_small;
use flashplan::{Error, StopHandle};

use cli::Cli;
use terminal::interrupt::Left;

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

impl From<Left> for Failure {
    fn from(left: Left) -> Self {
        match left {
            Left::Stopped => Self::Stopped,
            no_thread @ Left::NoThread(_) => failure(no_thread),
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
    terminal::interrupt::survive_the_file_size_limit();
    let cli = match terminal::command::parse::<Cli>() {
        Ok(cli) => cli.completed(),
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
