//! What a program tells on standard output.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// A line, or several. Who has read enough, as `head` does, closes the pipe: that is no error, and the rest is not told.
///
/// # Errors
/// The system's, if the line cannot be written for another reason.
pub fn tell(line: impl Display) -> io::Result<()> {
    tell_to(&mut io::stdout().lock(), line)
}

fn tell_to(out: &mut impl Write, line: impl Display) -> io::Result<()> {
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        told => told,
    }
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
        tell_to(&mut Refusing(ErrorKind::BrokenPipe), "a").unwrap();
        let error = tell_to(&mut Refusing(ErrorKind::StorageFull), "a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }
}
