//! A model whose file gets shorter while it is measured.
//!
//! The file is mapped, and a page that it no longer has is a bus error. The process cannot go on then, since what it was
//! computing needs the bytes; but it can say why it ends. What was finished of the profile is on the disk already.

use std::io;

use signal_hook::consts::SIGBUS;
use signal_hook::low_level::{exit, register};

const SENTENCE: &str = "\nerror: the model's file got shorter, or its disk failed, while it was being read: fetch it again, and the \
    same command goes on\n";
const FAILED: i32 = 1;

/// From here on, a bus error ends the process with a sentence and status 1.
///
/// # Errors
/// If the system refuses.
#[expect(unsafe_code, reason = "what a signal handler does is limited")]
pub fn explain() -> io::Result<()> {
    let end = || {
        // there is nothing to be done about a standard error that takes nothing
        let _ = rustix::io::write(rustix::stdio::stderr(), SENTENCE.as_bytes());
        exit(FAILED)
    };
    // SAFETY: a handler may call only what is safe in a signal: `write` and `_exit` are (signal-safety(7)), and the sentence is
    // a constant. It neither allocates, nor locks, nor returns.
    unsafe { register(SIGBUS, end) }.map(drop)
}
