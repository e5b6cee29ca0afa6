//! Command lines: the options that every program has.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::builder::EnumValueParser;
use clap::{Arg, ArgAction, Command, Parser};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::output::{quiet, say, say_error};

/// Exit code of wrong usage, and of every error without a code of its own.
const FAILED: u8 = 1;
const COMPLETIONS: &str = "completions";
const MAN: &str = "man";

/// Parses the command line. Prints help, version, completions, the man page and errors of usage.
///
/// # Errors
/// The exit code after a message: 1 for wrong usage, else 0.
pub fn parse<C: Parser>() -> Result<C, ExitCode> {
    let mut command = with_own_options(C::command());
    let mut matches = match command.try_get_matches_from_mut(std::env::args_os()) {
        Ok(matches) => matches,
        Err(message) => return Err(told(&message)),
    };
    if let Some(&shell) = matches.get_one::<Shell>(COMPLETIONS) {
        return Err(written(&completions(&mut command, shell)));
    }
    if matches.get_flag(MAN) {
        return Err(man_page(command).map_or_else(|error| failed(&error), |page| written(&page)));
    }
    C::from_arg_matches_mut(&mut matches).map_err(|message| told(&message.format(&mut command)))
}

/// The command with the options that every program has.
fn with_own_options(command: Command) -> Command {
    // these options need no subcommand; `from_arg_matches_mut` misses one for the rest
    command
        .subcommand_required(false)
        .arg(
            Arg::new(COMPLETIONS)
                .long(COMPLETIONS)
                .value_name("SHELL")
                .value_parser(EnumValueParser::<Shell>::new())
                .exclusive(true)
                .help_heading("Program")
                .help("Print what the shell needs to complete this command, e.g. `--completions bash`"),
        )
        .arg(
            Arg::new(MAN)
                .long(MAN)
                .action(ArgAction::SetTrue)
                .exclusive(true)
                .hide(true)
                .help("Print the man page"),
        )
}

fn completions(command: &mut Command, shell: Shell) -> Vec<u8> {
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    clap_complete::generate(shell, command, name, &mut script);
    script
}

fn man_page(command: Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}

/// Prints clap's message: help and version on standard output, the rest on standard error.
fn told(message: &clap::Error) -> ExitCode {
    if message.use_stderr() {
        say(message.render().to_string().trim_end());
        return ExitCode::from(FAILED);
    }
    // clap draws it in colours where there are any
    match quiet(message.print()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn written(text: &[u8]) -> ExitCode {
    let mut out = io::stdout().lock();
    match quiet(out.write_all(text).and_then(|()| out.flush())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &io::Error) -> ExitCode {
    say_error(format_args!("cannot write to standard output: {error}"));
    ExitCode::from(FAILED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[derive(Debug, Parser)]
    #[command(name = "example", about = "An example")]
    struct Example {
        #[arg(long)]
        needed: String,
    }

    #[test]
    fn every_shell_and_the_man_page_know_an_option() {
        let mut command = with_own_options(Example::command());
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let script = String::from_utf8(completions(&mut command, shell)).unwrap();
            assert!(script.contains("needed"), "{shell}: {script}");
        }
        let page = String::from_utf8(man_page(command).unwrap()).unwrap();
        assert!(page.contains("needed") && page.contains(".SH NAME"), "{page}");
    }

    #[test]
    fn what_is_told_of_the_program_needs_none_of_its_options() {
        let matches = |arguments: &[&str]| {
            with_own_options(Example::command())
                .try_get_matches_from([&["example"], arguments].concat())
                .map_err(|error| error.kind())
        };
        assert!(matches(&["--completions", "zsh"]).is_ok());
        assert!(matches(&["--man"]).is_ok());
        assert_eq!(matches(&["--man", "--needed", "x"]), Err(clap::error::ErrorKind::ArgumentConflict));
        assert_eq!(matches(&[]), Err(clap::error::ErrorKind::MissingRequiredArgument));
    }

    #[test]
    fn nor_a_subcommand() {
        use clap::FromArgMatches as _;

        #[derive(Debug, Parser)]
        #[command(name = "several")]
        enum Several {
            One,
        }
        let matches =
            |arguments: &[&str]| with_own_options(Several::command()).try_get_matches_from(arguments);
        assert!(matches(&["several", "--completions", "zsh"]).is_ok());
        let none = Several::from_arg_matches_mut(&mut matches(&["several", "one"]).unwrap());
        assert!(matches!(none, Ok(Several::One)));
    }
}
