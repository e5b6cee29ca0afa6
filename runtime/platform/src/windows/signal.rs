//! Windows has Ctrl-C and closed consoles, which reach every program of a console, and no other signals.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Hears nothing: Ctrl-C, a closed console and a shutdown come together, to one handler.
///
/// # Errors
/// None here.
pub fn flag_termination(_: &Arc<AtomicBool>) -> io::Result<()> {
    Ok(())
}

/// Changes nothing: no limit on the size of files ends a process.
pub fn survive_the_file_size_limit() {}

/// Changes nothing: Windows shortens no file that is mapped.
///
/// # Errors
/// None here.
pub fn end_at_bus_error(_sentence: &'static str) -> io::Result<()> {
    Ok(())
}

/// Requests to end that this process passes on to a child: none, since the console tells the child, too.
#[derive(Debug)]
pub struct PassedOn;

impl PassedOn {
    /// Begins to listen.
    ///
    /// # Errors
    /// None here.
    pub fn listen() -> io::Result<Self> {
        Ok(Self)
    }

    /// Passes on what was heard since the last call.
    pub fn pass_to(&self, _: &Child) {}
}

/// No signal ends programs.
pub fn of_exit(_: ExitStatus) -> Option<i32> {
    None
}

/// Runs another program in place of this one: waits for its end, and gives its exit code.
///
/// # Errors
/// The system's, if the program cannot be started.
pub fn become_program(command: &mut Command) -> io::Result<u8> {
    let status = command.status()?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
