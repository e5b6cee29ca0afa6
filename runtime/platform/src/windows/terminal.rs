//! The mode of the console at standard input.
#![expect(unsafe_code, reason = "system calls on a handle and a number")]

use std::os::windows::io::AsRawHandle as _;

use windows_sys::Win32::System::Console::{CONSOLE_MODE, GetConsoleMode, SetConsoleMode};

/// Settings of a console.
#[derive(Debug)]
pub struct Settings(CONSOLE_MODE);

impl Settings {
    /// The settings of the console at standard input; `None` if there is no console.
    pub fn of_standard_input() -> Option<Self> {
        let mut mode = 0;
        // SAFETY: the handle is the process's own, and the number is filled.
        let answer = unsafe { GetConsoleMode(std::io::stdin().as_raw_handle(), &raw mut mode) };
        (answer != 0).then_some(Self(mode))
    }

    /// Restores them. A console that has gone needs them no more.
    pub fn restore(&self) {
        // SAFETY: the handle is the process's own.
        let _gone = unsafe { SetConsoleMode(std::io::stdin().as_raw_handle(), self.0) };
    }
}
