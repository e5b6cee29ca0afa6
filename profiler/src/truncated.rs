//! A model file that gets shorter while it is measured.
//!
//! The file is mapped, and access to a missing page is a bus error. The process cannot go on, but it can say why it ends. Finished parts
//! of the profile are on the disk already.

use std::io;

const SENTENCE: &str = "\nerror: the model's file got shorter, or its disk failed, while it was being read: fetch it again, and the \
    same command goes on\n";

/// Makes a bus error end the process with a message and status 1.
///
/// # Errors
/// If the system refuses.
pub fn explain() -> io::Result<()> {
    platform::signal::end_at_bus_error(SENTENCE)
}
