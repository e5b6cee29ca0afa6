//! The three programs: where they are, and how they are called.
//!
//! Programs beside this one come first, then `../libexec/flashplan`, then `PATH`. All must have this program's version: their files
//! must fit together.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use platform::signal::{self, PassedOn};
use terminal::say;

/// How soon a signal is passed on.
const SOON: Duration = Duration::from_millis(100);

/// A program has failed, and has said why on standard error; its exit code.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) u8);

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a stage ended with the exit code {}", self.0)
    }
}

impl std::error::Error for Ended {}

/// A program of flashplan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// Measures a machine and a model.
    Profile,
    /// Finds the fastest plan.
    Plan,
    /// Executes a plan.
    Run,
}

impl Program {
    /// All programs, in calling order.
    pub(crate) const ALL: [Self; 3] = [Self::Profile, Self::Plan, Self::Run];

    /// Name of the file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Profile => "profile",
            Self::Plan => "plan",
            Self::Run => "run",
        }
    }
}

/// Where the three programs are.
#[derive(Debug)]
pub(crate) struct Programs {
    paths: [PathBuf; 3],
}

impl Programs {
    /// Finds all three, and compares their versions with this program's.
    ///
    /// # Errors
    /// A program that is missing, does not start, or has another version.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("cannot find the folder of flashplan")?;
        let own = own.parent().unwrap_or(Path::new("")).to_owned();
        let mut folders = vec![own.clone(), own.join("../libexec/flashplan")];
        folders.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
        let mut paths = Vec::new();
        for program in Program::ALL {
            let name = program.name();
            let found = folders.iter().map(|folder| folder.join(file_name(name))).find(|path| path.is_file());
            let path = found.ok_or_else(|| {
                anyhow!(
                    "the program `{name}` is missing: it is neither in {} nor in a folder of PATH; install flashplan again, or build it \
                     with `make build`",
                    own.display()
                )
            })?;
            check_version(name, &path)?;
            paths.push(path.canonicalize().unwrap_or(path));
        }
        let paths = paths.try_into().map_err(|_| anyhow!("three programs were looked for"))?;
        Ok(Self { paths })
    }

    /// Path of a program.
    pub(crate) fn path(&self, program: Program) -> &Path {
        &self.paths[program as usize]
    }

    /// Becomes another program.
    ///
    /// # Errors
    /// The system's, if the program cannot be started.
    pub(crate) fn replace_this(&self, program: Program, arguments: &[OsString]) -> anyhow::Result<u8> {
        signal::become_program(Command::new(self.path(program)).args(arguments))
            .with_context(|| format!("cannot start {}", self.path(program).display()))
    }

    /// Prints a command, runs it, and gives its exit code. With `quiet` its standard output is dropped.
    ///
    /// # Errors
    /// If it cannot be started, or a signal ended it.
    pub(crate) fn stage(&self, program: Program, arguments: &[OsString], quiet: bool) -> anyhow::Result<u8> {
        let mut command = self.told(program, arguments);
        // results go to standard output, and those of a stage are none
        let stderr = platform::file::standard_error().context("cannot use standard error")?;
        command.stdout(if quiet { Stdio::null() } else { stderr.into() }).stdin(Stdio::null());
        code(program, wait(command.spawn(), program)?)
    }

    /// Prints a command, and runs it with this program's input and output.
    ///
    /// # Errors
    /// As [`Programs::stage`].
    pub(crate) fn start(&self, program: Program, arguments: &[OsString]) -> anyhow::Result<u8> {
        code(program, wait(self.told(program, arguments).spawn(), program)?)
    }

    /// The output of a command that is not printed.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn output(&self, program: Program, arguments: &[OsString]) -> anyhow::Result<Output> {
        let mut command = Command::new(self.path(program));
        command.args(arguments).stdin(Stdio::null());
        command.output().with_context(|| format!("cannot start {}", self.path(program).display()))
    }

    /// A command as a shell reads it: `plan ...` or `flashplan plan ...` where `PATH` leads there, else with the program's folder.
    pub(crate) fn line(&self, program: Program, arguments: &[OsString]) -> String {
        let path = self.path(program);
        let own = std::env::current_exe().unwrap_or_default();
        let name: Vec<&OsStr> = if is_on_path(program.name(), path) {
            vec![OsStr::new(program.name())]
        } else if is_on_path("flashplan", &own) {
            vec![OsStr::new("flashplan"), OsStr::new(program.name())]
        } else {
            vec![path.as_os_str()]
        };
        let words = name.into_iter().chain(arguments.iter().map(OsString::as_os_str));
        words.map(quoted).collect::<Vec<_>>().join(" ")
    }

    fn told(&self, program: Program, arguments: &[OsString]) -> Command {
        say(format_args!("$ {}", self.line(program, arguments)));
        let mut command = Command::new(self.path(program));
        command.args(arguments);
        command
    }
}

/// Name of a program's file: with `.exe` where the platform has that.
fn file_name(name: &str) -> String {
    format!("{name}{}", std::env::consts::EXE_SUFFIX)
}

/// Whether a shell finds this program under this name.
fn is_on_path(name: &str, program: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    std::env::var_os("PATH").is_some_and(|folders| {
        let found = std::env::split_paths(&folders)
            .map(|folder| folder.join(file_name(name)))
            .find(|path| path.is_file());
        found.is_some_and(|found| real(&found).is_some() && real(&found) == real(program))
    })
}

/// A word as a shell reads it.
fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%~".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn check_version(name: &str, path: &Path) -> anyhow::Result<()> {
    let wanted = format!("{name} {}", env!("CARGO_PKG_VERSION"));
    let output = Command::new(path).arg("--version").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {}", path.display()))?;
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if found != wanted {
        let found = if found.is_empty() {
            String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("nothing").to_owned()
        } else {
            found
        };
        bail!(
            "{} says `{found}`, and this flashplan needs `{wanted}`: install all four programs together",
            path.display()
        );
    }
    Ok(())
}

/// Waits for a program. Ctrl-C reaches it from the terminal; termination and hang-up are passed on.
fn wait(child: io::Result<Child>, program: Program) -> anyhow::Result<ExitStatus> {
    let mut child = child.with_context(|| format!("cannot start `{}`", program.name()))?;
    let asked = PassedOn::listen().context("cannot listen to signals")?;
    loop {
        if let Some(status) =
            child.try_wait().with_context(|| format!("cannot wait for `{}`", program.name()))?
        {
            return Ok(status);
        }
        asked.pass_to(&child);
        std::thread::sleep(SOON);
    }
}

/// The exit code of a program.
fn code(program: Program, status: ExitStatus) -> anyhow::Result<u8> {
    match (status.code(), signal::of_exit(status)) {
        (Some(code), _) => Ok(u8::try_from(code).unwrap_or(1)),
        (None, Some(9)) => bail!(
            "`{}` was killed: often by the system, for want of memory; give a smaller --mem, and start the same command again, which \
             goes on where this one was",
            program.name()
        ),
        (None, signal) => bail!(
            "signal {} ended `{}`; the same command goes on where this one was",
            signal.unwrap_or_default(),
            program.name()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_command_can_be_copied() {
        for (word, shown) in [
            ("--mem", "--mem"),
            ("hf:a/b:Q4_K_M", "hf:a/b:Q4_K_M"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
            ("$HOME", "'$HOME'"),
        ] {
            assert_eq!(quoted(OsStr::new(word)), shown);
        }
    }
}
