//! Errors of contract files, each a sentence with the fact and the remedy.

use std::path::PathBuf;

/// A contract file that cannot be read, trusted or written.
#[derive(Debug, thiserror::Error)]
pub enum ContractError {
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// "read" or "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// There is no such file.
    #[error("cannot read {path}: there is no such file; name your {kind}, or make one with `{command}`")]
    Missing {
        /// The file.
        path: PathBuf,
        /// `device.toml`, `model.toml` or `plan.toml`.
        kind: &'static str,
        /// The command that makes it.
        command: &'static str,
    },
    /// A contract file of another kind.
    #[error("{path} is a {found}, and a {kind} is needed; name your {kind}, or make one with `{command}`")]
    OtherKind {
        /// The file.
        path: PathBuf,
        /// The kind of file that it is.
        found: &'static str,
        /// The kind of file that it should be.
        kind: &'static str,
        /// The command that makes it.
        command: &'static str,
    },
    /// The path is a folder.
    #[error("{path} is a folder; name the file inside it, for example {path}/{example}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// A file name of the kind expected.
        example: &'static str,
    },
    /// Larger than any file of this kind can be.
    #[error("{path} has more than {limit} bytes, the most that a {kind} may have; is it the right file?")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// `device.toml`, `model.toml` or `plan.toml`.
        kind: &'static str,
        /// The limit.
        limit: u64,
    },
    /// A device, pipe or socket, which may never end.
    #[error("{path} is {found}, and a {kind} is a file; name the file, or save what comes from there to one")]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The kind of file that it is, with an article.
        found: &'static str,
        /// `device.toml`, `model.toml` or `plan.toml`.
        kind: &'static str,
    },
    /// Written under another schema.
    #[error(
        "{path}: schema is {found}, this version reads {expected}; make the file again with this version's `{command}`"
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// The file's schema number, or the text found for it.
        found: String,
        /// Ours.
        expected: u32,
        /// The command that makes it.
        command: &'static str,
    },
    /// An unknown key.
    #[error("{path}, line {line}: unknown key `{key}`{hint}")]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Where, counted from 1.
        line: usize,
        /// The key.
        key: String,
        /// The nearest known name.
        hint: String,
    },
    /// Invalid TOML, or a value of another type.
    #[error("{path}, line {line}: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where, counted from 1.
        line: usize,
        /// The parser's message.
        message: String,
    },
    /// A well-formed but invalid value.
    #[error("{path}{}: `{key}` {problem}", line.map_or_else(String::new, |line| format!(", line {line}")))]
    Value {
        /// The file.
        path: PathBuf,
        /// Where, counted from 1; none for a value that was to be written.
        line: Option<usize>,
        /// The key, dotted.
        key: String,
        /// The fault, and the valid values.
        problem: String,
    },
    /// Figures that differ from their checksum.
    #[error(
        "{path}: its figures are not those that `{command}` wrote, for their checksum is another: make the {kind} again, or, if they \
         were changed by hand, write checksum = \"void\" below [integrity]"
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// `device.toml`, `model.toml` or `calibration.toml`.
        kind: &'static str,
        /// The command that makes it.
        command: &'static str,
    },
    /// A value that has no TOML form, which is a bug.
    #[error("cannot write {path}: {message}")]
    Encode {
        /// The file.
        path: PathBuf,
        /// The encoder's message.
        message: String,
    },
}
