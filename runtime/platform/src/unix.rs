//! POSIX calls that Linux, macOS and other Unix systems share.

use std::fs::{self, DirBuilder, File, FileType, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
    PermissionsExt as _,
};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, OFlags, Timespec, Timestamps, utimensat};
use rustix::time::{ClockId, clock_gettime};

use crate::types::FileId;

pub(crate) mod file {
    pub use super::{
        change_stamp, create_private_folder, free_bytes, id, is_pipe, is_socket, link, name_count,
        new_file_permissions, open_shared, open_unfollowed, path_id, read_at, set_used, standard_error,
        standard_output, write_at,
    };
}

/// Reads at a place of a file, once.
///
/// # Errors
/// The system's.
#[inline]
pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    file.read_at(buffer, offset)
}

/// Writes at a place of a file, once.
///
/// # Errors
/// The system's.
#[inline]
pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.write_at(bytes, offset)
}

/// Identity of an open file.
///
/// # Errors
/// The system's.
pub fn id(file: &File) -> io::Result<FileId> {
    file.metadata().map(|metadata| id_of(&metadata))
}

/// Identity of the file or folder at a path, links followed.
///
/// # Errors
/// The system's.
pub fn path_id(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(|metadata| id_of(&metadata))
}

fn id_of(metadata: &Metadata) -> FileId {
    FileId { disk: metadata.dev(), number: metadata.ino() }
}

/// Names (hard links) of the file at a path, a link not followed.
///
/// # Errors
/// The system's.
pub fn name_count(path: &Path) -> io::Result<u64> {
    fs::symlink_metadata(path).map(|metadata| metadata.nlink())
}

/// State of a file on the disk, in a line: length, times of the last changes, and number. Every write changes it.
///
/// # Errors
/// The system's.
pub fn change_stamp(path: &Path) -> io::Result<String> {
    let file = fs::metadata(path)?;
    let (modified, changed) = ((file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec()));
    Ok(format!(
        "{} {}.{:09} {}.{:09} {}",
        file.len(),
        modified.0,
        modified.1,
        changed.0,
        changed.1,
        file.ino()
    ))
}

/// Whether it is a pipe with a name.
pub fn is_pipe(kind: FileType) -> bool {
    kind.is_fifo()
}

/// Whether it is a socket.
pub fn is_socket(kind: FileType) -> bool {
    kind.is_socket()
}

/// Permissions of a new file for others, before the user's mask; `None` where folders decide them.
pub fn new_file_permissions() -> Option<Permissions> {
    Some(Permissions::from_mode(0o666))
}

/// Creates a folder and those above it, for their owner alone.
///
/// # Errors
/// The system's.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Links a name to a path.
///
/// # Errors
/// The system's.
pub fn link(target: &Path, name: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, name)
}

/// Opens a file for reading. Nothing is waited for, and no link is followed.
///
/// # Errors
/// The system's.
pub fn open_unfollowed(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    File::options().read(true).custom_flags(flags).open(path)
}

/// Opens or creates a file that all users may write to, and follows no link. Where it may not be written, it is opened for reading.
///
/// # Errors
/// The system's.
pub fn open_shared(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    // in shared folders some systems refuse to create over another user's file: so open it first
    match options.clone().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match options.clone().write(true).create_new(true).mode(SHARED).open(path) {
                Ok(file) => {
                    // despite the umask
                    file.set_permissions(Permissions::from_mode(SHARED))?;
                    Ok(file)
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.write(true).open(path),
                Err(error) => Err(error),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => options.open(path),
        opened => opened,
    }
}

/// Permissions of a file that all users may write to.
const SHARED: u32 = 0o666;

/// Standard output as a file of its own.
///
/// # Errors
/// The system's.
pub fn standard_output() -> io::Result<File> {
    Ok(io::stdout().as_fd().try_clone_to_owned()?.into())
}

/// Standard error as a file of its own.
///
/// # Errors
/// The system's.
pub fn standard_error() -> io::Result<File> {
    Ok(io::stderr().as_fd().try_clone_to_owned()?.into())
}

/// Free bytes for an ordinary user on the disk of a folder.
///
/// # Errors
/// The system's.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(path)?;
    Ok(space.f_bavail * space.f_frsize)
}

/// Sets both times of a file, without opening it or following a link.
///
/// # Errors
/// The system's.
pub fn set_used(path: &Path, used: SystemTime) -> io::Result<()> {
    let since = used.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// A pipe into which nothing more can be written until somebody reads.
///
/// # Errors
/// The system's.
pub fn full_pipe() -> io::Result<(io::PipeReader, io::PipeWriter)> {
    let (reader, mut writer) = io::pipe()?;
    let flags = rustix::fs::fcntl_getfl(&writer)?;
    rustix::fs::fcntl_setfl(&writer, flags | OFlags::NONBLOCK)?;
    while io::Write::write(&mut writer, &[0; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags)?;
    Ok((reader, writer))
}

/// Processor time of this process so far, all threads.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Bytes that this process may lock in memory; `None` means no limit.
pub fn lockable_bytes() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// Asks the system to read a part of a mapped file soon, without waiting for it; a wish, which it may refuse.
pub fn read_ahead(map: &memmap2::Mmap, offset: usize, bytes: usize) {
    let _refused = map.advise_range(memmap2::Advice::WillNeed, offset, bytes);
}

/// Whether this user may create files in a folder.
pub fn is_writable(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
}

pub(crate) mod terminal {
    //! Settings of the terminal at standard input.

    use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

    /// Settings of a terminal.
    #[derive(Debug)]
    pub struct Settings(Termios);

    impl Settings {
        /// The settings of the terminal at standard input; `None` if there is no terminal.
        pub fn of_standard_input() -> Option<Self> {
            tcgetattr(std::io::stdin()).ok().map(Self)
        }

        /// Restores them. A terminal that has gone needs them no more.
        pub fn restore(&self) {
            let _gone = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
        }
    }
}

pub(crate) mod signal {
    //! The signals that end a program.

    use std::io;
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::{Child, Command, ExitStatus};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::process::{Pid, Signal, kill_process};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

    /// Sets `flag` at each request to end but Ctrl-C: termination and hang-up.
    ///
    /// # Errors
    /// The system's.
    pub fn flag_termination(flag: &Arc<AtomicBool>) -> io::Result<()> {
        for signal in [SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(flag))?;
        }
        Ok(())
    }

    /// Turns the signal of a file above `ulimit -f` into an error of the write. It still ends the process where the system refuses the
    /// handler.
    pub fn survive_the_file_size_limit() {
        let _heard = signal_hook::flag::register(SIGXFSZ, Arc::default());
    }

    /// Requests to end that this process passes on to a child. Ctrl-C reaches the child from the terminal, and ends this process no more.
    #[derive(Debug)]
    pub struct PassedOn([(Arc<AtomicBool>, Signal); 2]);

    impl PassedOn {
        /// Begins to listen.
        ///
        /// # Errors
        /// The system's.
        pub fn listen() -> io::Result<Self> {
            let flag = |signal| -> io::Result<Arc<AtomicBool>> {
                let heard = Arc::<AtomicBool>::default();
                signal_hook::flag::register(signal, Arc::clone(&heard))?;
                Ok(heard)
            };
            let _interrupted = flag(SIGINT)?;
            Ok(Self([(flag(SIGTERM)?, Signal::TERM), (flag(SIGHUP)?, Signal::HUP)]))
        }

        /// Passes on what was heard since the last call.
        pub fn pass_to(&self, child: &Child) {
            for (heard, signal) in &self.0 {
                if heard.swap(false, Ordering::Relaxed)
                    && let Some(id) = Pid::from_raw(child.id().cast_signed())
                {
                    // a program that has just ended needs no signal
                    let _sent = kill_process(id, *signal);
                }
            }
        }
    }

    /// The signal that ended a program, if one did.
    pub fn of_exit(status: ExitStatus) -> Option<i32> {
        status.signal()
    }

    /// Becomes another program.
    ///
    /// # Errors
    /// The system's, if the program cannot be started.
    pub fn become_program(command: &mut Command) -> io::Result<u8> {
        Err(command.exec())
    }
}

pub(crate) mod bus_error {
    //! A mapped file that gets shorter: access to a missing page is a signal.
    #![expect(unsafe_code, reason = "what a signal handler does is limited")]

    use std::ffi::c_int;
    use std::sync::OnceLock;
    use std::{io, mem, ptr};

    /// The last words of the process.
    static SENTENCE: OnceLock<&'static str> = OnceLock::new();
    const FAILED: i32 = 1;

    /// Makes a bus error end the process with a sentence on standard error and status 1.
    ///
    /// The handler calls no earlier one. The standard library's would restore the signal's default, and another thread at the missing
    /// page would die without a message.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn end_with(sentence: &'static str) -> io::Result<()> {
        extern "C" fn end(_: c_int) {
            let sentence = SENTENCE.get().copied().unwrap_or_default();
            // a closed standard error cannot be helped
            let _ = rustix::io::write(rustix::stdio::stderr(), sentence.as_bytes());
            // SAFETY: it ends the process and does not return.
            unsafe { libc::_exit(FAILED) }
        }
        let _earlier = SENTENCE.set(sentence);
        // SAFETY: all fields are integers, masks of them or optional functions, for which zero is a value.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = end as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that goes without SA_SIGINFO, and calls only what is safe in a signal: `write` and
        // `_exit` are (signal-safety(7)), and the sentence is read with an atomic load. It neither allocates, nor locks, nor returns.
        match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
