//! Text for people and programs.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Prints a line or several on standard output. A reader that closes the pipe, as `head` does, is no error, and gets no more.
///
/// # Errors
/// The system's, for any other reason.
pub fn tell(line: impl Display) -> io::Result<()> {
    quiet(tell_to(&mut io::stdout().lock(), line))
}

/// Prints a line or several on standard error, and ignores a closed one.
pub fn say(line: impl Display) {
    let _nobody_reads = tell_to(&mut io::stderr().lock(), line);
}

/// Prints an error in the form of all programs: a fact, and the remedy after a semicolon.
pub fn say_error(error: impl Display) {
    say(format_args!("error: {error}"));
}

/// Whether a write failed because the reader is gone.
pub fn reader_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::BrokenPipe
}

/// The result of a write, where a reader that is gone is no error.
///
/// # Errors
/// All others.
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
