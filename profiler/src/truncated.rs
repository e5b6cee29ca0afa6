//! A model file that gets shorter while it is measured.
//!
//! The file is mapped, and access to a missing page is a bus error. The process cannot go on, but it can say why it ends. Finished parts
//! of the profile are on the disk already.

use std::ffi::c_int;
use std::{io, mem, ptr};

const SENTENCE: &str = "\nerror: the model's file got shorter, or its disk failed, while it was being read: fetch it again, and the \
    same command goes on\n";
const FAILED: i32 = 1;

/// Makes a bus error end the process with a message and status 1.
///
/// The handler calls no earlier one. The standard library's would restore the signal's default, and another thread at the missing page
/// would die without a message.
///
/// # Errors
/// If the system refuses.
#[expect(unsafe_code, reason = "what a signal handler does is limited")]
pub fn explain() -> io::Result<()> {
    extern "C" fn end(_: c_int) {
        // a closed standard error cannot be helped
        let _ = rustix::io::write(rustix::stdio::stderr(), SENTENCE.as_bytes());
        // SAFETY: it ends the process and does not return.
        unsafe { libc::_exit(FAILED) }
    }
    // SAFETY: all fields are integers, masks of them or optional functions, for which zero is a value.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = end as extern "C" fn(c_int) as usize;
    action.sa_flags = libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that goes without SA_SIGINFO, and calls only what is safe in a signal: `write` and `_exit`
    // are (signal-safety(7)), and the sentence is a constant. It neither allocates, nor locks, nor returns.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
