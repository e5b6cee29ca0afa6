//! Errors, each a sentence with the fact and the remedy.

use std::io;
use std::path::{Path, PathBuf};

/// A failed download.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Ended by the user.
    #[error("stopped on request; what was fetched is kept, and the same command goes on from there")]
    Stopped,
    /// A variable of the environment that cannot be used.
    #[error("{variable} {why}")]
    Environment {
        /// Its name.
        variable: &'static str,
        /// The fault, and the remedy.
        why: String,
    },
    /// The hub did not answer.
    #[error("cannot reach {url}: {cause}; look whether the network or HF_ENDPOINT is right{}", or_name(fetched.as_deref()))]
    Unreachable {
        /// The address.
        url: String,
        /// The fault.
        cause: String,
        /// The folder of an earlier download, if there is one.
        fetched: Option<PathBuf>,
    },
    /// The hub refused.
    #[error("{url} answers {status}: {remedy}")]
    Refused {
        /// The address.
        url: String,
        /// HTTP's status.
        status: u16,
        /// Its meaning, and the remedy.
        remedy: String,
    },
    /// An invalid answer.
    #[error("the answer of {url} cannot be used: {what}; look whether HF_ENDPOINT names a hub")]
    Answer {
        /// The address.
        url: String,
        /// The fault of the answer.
        what: String,
    },
    /// Several models match; one must be named.
    #[error("{why}; name one of{list}")]
    Choose {
        /// The wish, and why it names no one model.
        why: String,
        /// A line for each.
        list: String,
    },
    /// A repository without a model that could be used.
    #[error("{name} has no model to fetch: {why}")]
    Nothing {
        /// The repository.
        name: String,
        /// The lack.
        why: String,
    },
    /// A file of another length than was announced.
    #[error(
        "{file} should have {expected} bytes and comes with {found}; look whether a proxy or HF_ENDPOINT gives another file"
    )]
    Length {
        /// The file's path in the repository.
        file: String,
        /// The bytes that were announced.
        expected: u64,
        /// The bytes that are sent.
        found: String,
    },
    /// A checksum is wrong.
    #[error(
        "{file} has the checksum {found} and should have {expected}; what was fetched is removed, and the same command fetches it again: \
         if that ends so, too, look at the disk and at HF_ENDPOINT"
    )]
    Checksum {
        /// The file's path in the repository.
        file: String,
        /// The checksum that the hub says.
        expected: String,
        /// The checksum of what came.
        found: String,
    },
    /// The disk.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// A verb.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl HubError {
    /// An error of the disk.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// Whether a retry may succeed.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 429 | 500..=599),
            _ => false,
        }
    }
}

/// The remedy if an earlier download exists.
fn or_name(fetched: Option<&Path>) -> String {
    fetched.map_or_else(String::new, |path| {
        format!(", or name what was fetched before: --model {}", path.display())
    })
}
