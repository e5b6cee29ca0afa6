//! Errors of a measurement, each a sentence with the fact and the remedy.

use std::io;
use std::path::PathBuf;

use plans::ContractError;

/// The user has requested the program to end (Ctrl-C, or a termination signal).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped on request; nothing unfinished is left behind, start it again when it suits")]
pub struct Stopped;

/// The remedy for a refusal of the system; empty where the cause names it.
fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        _ if source.raw_os_error().is_none() => "",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; name a place that you may use"
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "; name a place that is there",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room, or name another disk",
        io::ErrorKind::FileTooLarge => "; raise the limit on the size of files (`ulimit -f`)",
        _ => "; start it again, which goes on where it was, or name another place",
    }
}

/// A failed profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Ended by the user.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// A path on the command line is missing or of the wrong kind.
    #[error("{flag} {path} {why}; name one that exists")]
    Path {
        /// The option.
        flag: &'static str,
        /// The option's value.
        path: PathBuf,
        /// The problem, e.g. "does not exist".
        why: String,
    },
    /// A name that cannot be part of a file name.
    #[error("--name {name:?} is not a short name; use letters, digits, `-`, `_` and `.`")]
    Name {
        /// The name.
        name: String,
    },
    /// Too little free space, found before the first byte is written.
    #[error(
        "{path} has {free} free and the measurement writes {needed}; make room, {remedy}name another folder with --storage"
    )]
    Space {
        /// The folder.
        path: PathBuf,
        /// The folder's free space, for people.
        free: String,
        /// The space needed, for people.
        needed: String,
        /// The words before the last remedy: "or ", or another remedy.
        remedy: &'static str,
    },
    /// The scratch file cannot be written.
    #[error(
        "cannot write the scratch file in {path}: {source}; make room, or name another folder with --storage"
    )]
    Scratch {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The operating system refused something on a path.
    #[error("cannot {action} {path}: {source}{}", remedy(source))]
    Io {
        /// A verb, e.g. "write".
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The machine cannot be identified.
    #[error(transparent)]
    Machine(#[from] flashplan::internals::machine::MachineError),
    /// Cores that the process may not use.
    #[error(transparent)]
    Pool(#[from] flashplan::internals::pool::PoolError),
    /// Memory for a measurement was refused.
    #[error(transparent)]
    Memory(#[from] flashplan::internals::arena::ArenaError),
    /// An output file.
    #[error(transparent)]
    Contract(#[from] ContractError),
}
