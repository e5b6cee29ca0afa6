//! Why a folder cannot be made into a GGUF file.

use std::io;
use std::path::{Path, PathBuf};

use flashplan::internals::model::source::SourceError;
use thiserror::Error;

/// Why a folder cannot be used.
#[derive(Debug, Error)]
pub enum FolderError {
    /// The system refused something.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file that is needed is not there.
    #[error("{} has no {what}: download the whole model", path.display())]
    Lacks {
        /// The folder.
        path: PathBuf,
        /// The file.
        what: &'static str,
    },
    /// A file that is larger than any of its kind.
    #[error("{} has {found} bytes, and at most {max} are read of such a file: download it again", path.display())]
    Large {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// The most that are read.
        max: u64,
    },
    /// A file that is not the JSON that it should be.
    #[error("{}: {error}: download it again", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        error: serde_json::Error,
    },
    /// A file whose parts do not fit together.
    #[error("{}: {fact}: download it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fact: String,
    },
    /// What is not implemented.
    #[error("{}: {what} is not implemented: {remedy}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The thing, by name.
        what: String,
        /// What can be done.
        remedy: &'static str,
    },
    /// The GGUF file that would be written is refused by its reader.
    #[error("{} cannot be made into a GGUF file: {error}", path.display())]
    Refused {
        /// The folder.
        path: PathBuf,
        /// Everything that is wrong.
        error: Box<SourceError>,
    },
    /// The user wants no more.
    #[error("stopped on request; nothing of the file is kept")]
    Stopped,
}

impl FolderError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn damaged(path: &Path, fact: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), fact: fact.into() }
    }

    pub(crate) fn unsupported(path: &Path, what: impl Into<String>) -> Self {
        Self::with_remedy(path, what, "give a model without it, or convert it to GGUF with llama.cpp")
    }

    pub(crate) fn with_remedy(path: &Path, what: impl Into<String>, remedy: &'static str) -> Self {
        Self::Unsupported { path: path.to_owned(), what: what.into(), remedy }
    }
}

/// A name from a file, cut short and without control characters, for a message.
pub(crate) fn quote(name: &str) -> String {
    const SHOWN_MAX: usize = 80;
    let shown: String = name.chars().take(SHOWN_MAX).collect();
    let more = if name.chars().nth(SHOWN_MAX).is_some() { "..." } else { "" };
    format!("`{}{more}`", shown.escape_debug())
}
