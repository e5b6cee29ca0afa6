//! Text as it comes, on standard output.

use std::io::Write as _;

use terminal::output::reader_gone;

use super::{Failure, failure};

/// The text as it comes; silent where the end has all of it.
#[derive(Debug)]
pub(super) struct Text {
    silent: bool,
    /// Whether its reader has closed it.
    gone: bool,
}

impl Text {
    pub(super) fn new() -> Self {
        Self { silent: false, gone: false }
    }

    pub(super) fn silent() -> Self {
        Self { silent: true, gone: false }
    }

    /// Whether the reader has closed it, which is no error.
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    pub(super) fn say(&mut self, text: &str) -> Result<(), Failure> {
        if self.silent || self.gone || text.is_empty() {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if reader_gone(&error) => {
                self.gone = true;
                Ok(())
            }
            said => said.map_err(|error| failure(format!("cannot write to standard output: {error}"))),
        }
    }
}
