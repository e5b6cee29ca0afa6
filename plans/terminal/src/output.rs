//! Text for people and programs.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// A line, or several, on standard output. Who has read enough, as `head` does, closes the pipe: that is no error, and the
/// rest is not told.
///
/// # Errors
/// The system's, if the line cannot be written for another reason.
pub fn tell(line: impl Display) -> io::Result<()> {
    quiet(tell_to(&mut io::stdout().lock(), line))
}

/// A line, or several, on standard error. Where nobody can read it, nothing is said.
pub fn say(line: impl Display) {
    let _nobody_reads = tell_to(&mut io::stderr().lock(), line);
}

/// An error in the one shape that all programs have: a fact, and the remedy after a semicolon.
pub fn say_error(error: impl Display) {
    say(format_args!("error: {error}"));
}

/// Whether writing failed because the reader has gone.
pub fn reader_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::BrokenPipe
}

/// The result of writing, where a reader that has gone is no error.
///
/// # Errors
/// Every other.
pub fn quiet(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if reader_gone(&error) => Ok(()),
        written => written,
    }
}

fn tell_to(out: &mut impl Write, line: impl Display) -> io::Result<()> {
    // one piece, so that the lines of two threads do not mix
    out.write_all(format!("{line}\n").as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Refusing(ErrorKind);

    impl Write for Refusing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_the_end_of_it_and_a_full_disk_an_error() {
        let mut out = Vec::new();
        tell_to(&mut out, "a\nb").unwrap();
        assert_eq!(out, b"a\nb\n");
        quiet(tell_to(&mut Refusing(ErrorKind::BrokenPipe), "a")).unwrap();
        let error = quiet(tell_to(&mut Refusing(ErrorKind::StorageFull), "a")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }
}
