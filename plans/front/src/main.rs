//! `flashplan`: from a model to a chat in one command.
//!
//! It calls `profile`, `plan` and `run`, prints each command so that it can be copied, and keeps their files. It links neither the
//! solver nor the engine.
//!
//! | module | what it does |
//! |---|---|
//! | `cli` | reads the command line |
//! | `programs` | finds the three programs, and runs them |
//! | `model` | the model that the user names, and whether its file has changed |
//! | `home` | the folder of all files: one folder a device and model |
//! | `machine` | the name of this machine and of a disk, and its free memory |
//! | `stages` | makes the device profile, the model profile and the plan, where one is missing or stale |
//! | `learned` | whether to plan again with the counts of earlier runs |
//! | `fit` | plans a model that is not downloaded, by its header |
//! | `devices` | devices that were measured elsewhere |
//! | `keep` | lists and removes models |
//! | `doctor` | says what is missing |

mod cli;
mod devices;
mod doctor;
mod fit;
mod home;
mod keep;
mod learned;
mod machine;
mod model;
mod programs;
mod stages;

use std::ffi::OsString;
use std::process::ExitCode;

use cli::{Arguments, ModelArgs, RunOptions, Verb};
use programs::{Ended, Programs};
use terminal::output::say_error;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((program, rest)) = cli::passed_on(&arguments) {
        return ended(Programs::find().and_then(|programs| programs.replace_this(program, rest)));
    }
    match terminal::command::parse::<Arguments>() {
        Ok(arguments) => ended(done(&arguments)),
        Err(code) => code,
    }
}

/// Does what the command line says; the exit code is the last program's.
fn done(arguments: &Arguments) -> anyhow::Result<u8> {
    match &arguments.verb {
        Verb::Chat(chat) => {
            let system = chat.system.iter().flat_map(|text| ["--system", text]);
            start(&chat.model, false, std::iter::once("--chat").chain(system), &chat.run)
        }
        Verb::Serve(serve) => {
            let options = std::iter::once("--serve").chain(serve.address.as_deref());
            start(&serve.model, true, options, &serve.run)
        }
        Verb::Run(run) => {
            let count = run.count.map(|count| count.to_string());
            let count = count.iter().flat_map(|count| ["-n", count]);
            start(&run.model, false, ["--prompt", &run.prompt].into_iter().chain(count), &run.run)
        }
        Verb::Bench(bench) => start(&bench.model, false, std::iter::once("--bench"), &bench.run),
        Verb::Fit(arguments) => fit::fit(arguments),
        Verb::Doctor => doctor::doctor(),
        Verb::List(list) => keep::list(list.json),
        Verb::Rm(rm) => keep::remove(&rm.model),
        Verb::Profile(_) | Verb::Plan(_) => {
            anyhow::bail!("name the program first: flashplan profile, or flashplan plan")
        }
    }
}

/// Prepares a model and starts `run`, with these options and those after `--`.
fn start<'a>(
    model: &ModelArgs,
    serves: bool,
    options: impl Iterator<Item = &'a str>,
    more: &RunOptions,
) -> anyhow::Result<u8> {
    let options: Vec<OsString> = options.map(Into::into).chain(more.options.iter().cloned()).collect();
    stages::start(model, serves, &options)
}

fn ended(result: anyhow::Result<u8>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => match error.downcast_ref() {
            Some(&Ended(code)) => ExitCode::from(code),
            None => {
                say_error(format_args!("{error:#}"));
                ExitCode::FAILURE
            }
        },
    }
}
