//! Why a fact about the machine is unknown.

use std::io;
use std::path::PathBuf;

/// Why the machine cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A file or folder could not be read.
    #[error("cannot read {path}: {source}; flashplan needs it to identify the machine")]
    Read {
        /// The file's path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file of the system lacks an expected fact.
    #[error("{path} does not say {what}; flashplan needs it to identify the machine")]
    Meaningless {
        /// The file's path.
        path: PathBuf,
        /// The expected fact.
        what: &'static str,
    },
    /// The system does not answer.
    #[error("the system does not say {what}: {source}; flashplan needs it to identify the machine")]
    Refused {
        /// The expected fact.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The system does not name the cores of this process.
    #[error("the cores of this process are unknown: {source}")]
    Affinity {
        /// The cause.
        source: io::Error,
    },
}
