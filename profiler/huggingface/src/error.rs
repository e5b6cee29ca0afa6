//! Why a folder cannot be made into a GGUF file.

use std::fmt::{self, Display};
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
        /// The action that was tried: a verb.
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
        /// Length of the file, in bytes.
        found: u64,
        /// The most that are read.
        max: u64,
    },
    /// A file that is not the JSON that it should be.
    #[error("{}: {error}: download it again", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The fault, and its place.
        error: serde_json::Error,
    },
    /// A file whose parts do not fit together.
    #[error("{}: {fact}: download it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        fact: String,
    },
    /// A thing that is not implemented.
    #[error("{}: {what} is not implemented: {remedy}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The thing, by name.
        what: String,
        /// A remedy.
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
    /// More than one of these.
    #[error("{0}")]
    Several(Several),
    /// A file that came into the place of the one being written.
    #[error("{} came into being while it was written: name the model otherwise with --name, or replace it with --replace", path.display())]
    Taken {
        /// The file.
        path: PathBuf,
    },
    /// The user wants no more.
    #[error("stopped on request; nothing of the file is kept")]
    Stopped,
}

/// Several reasons why a folder cannot be used.
#[derive(Debug)]
pub struct Several {
    told: Vec<FolderError>,
    more: usize,
}

/// Maximum problems in a message.
const TOLD: usize = 12;

impl Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} things keep this folder from being used", self.told.len() + self.more)?;
        self.told
            .iter()
            .try_for_each(|problem| write!(f, "\n  {}", problem.to_string().replace('\n', "\n  ")))?;
        if self.more > 0 { write!(f, "\n  and {} more", self.more) } else { Ok(()) }
    }
}

/// Problems of a folder, collected until all are known.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    /// The first, with what they say.
    told: Vec<(String, FolderError)>,
    more: usize,
}

impl Problems {
    /// Adds a problem, unless it is a repetition.
    pub(crate) fn push(&mut self, problem: FolderError) {
        let text = problem.to_string();
        if self.told.iter().any(|(told, _)| *told == text) {
            return;
        }
        if self.told.len() < TOLD {
            self.told.push((text, problem));
        } else {
            self.more += 1;
        }
    }

    /// The value, or a problem more.
    pub(crate) fn note<T>(&mut self, result: Result<T, FolderError>) -> Option<T> {
        result.map_err(|problem| self.push(problem)).ok()
    }

    /// How many there are so far.
    pub(crate) fn count(&self) -> usize {
        self.told.len() + self.more
    }

    /// One problem by itself, several together.
    pub(crate) fn finish(self) -> Result<(), FolderError> {
        let mut told: Vec<FolderError> = self.told.into_iter().map(|(_, problem)| problem).collect();
        match told.len() {
            0 => Ok(()),
            1 => Err(told.remove(0)),
            _ => Err(FolderError::Several(Several { told, more: self.more })),
        }
    }
}

impl FolderError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn damaged(path: &Path, fact: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), fact: fact.into() }
    }

    /// A property of the model, which llama.cpp's converter may leave out without a word.
    pub(crate) fn unsupported(path: &Path, what: impl Into<String>) -> Self {
        Self::with_remedy(
            path,
            what,
            "give a model without it (other converters may drop it without a word, and their file is then another model)",
        )
    }

    /// A thing that other converters read, or refuse.
    pub(crate) fn convertible(path: &Path, what: impl Into<String>) -> Self {
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
