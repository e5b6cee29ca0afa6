//! Reading and writing contract files: schema, unknown keys, canonical bytes, hashes, atomic rename.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use tempfile::NamedTempFile;

use crate::{ContractError, Device, Model, Plan, SCHEMA};

/// No contract file comes near this size; a larger one is another file.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A kind of contract file.
pub trait Contract: Serialize + DeserializeOwned {
    /// `device.toml`, `model.toml` or `plan.toml`.
    const KIND: &'static str;
    /// The command that makes it.
    const COMMAND: &'static str;
    /// The table by which it is known.
    const MARK: &'static str;
    /// Comment lines: each table's heading and the sentence that is written above it.
    const COMMENTS: &'static [(&'static str, &'static str)];
    /// Everything that the types cannot say; the error is the key and what is wrong with it.
    ///
    /// # Errors
    /// The first key whose value is impossible.
    fn check(&self) -> Result<(), (String, String)>;
}

/// Each kind's table and name.
const KINDS: [(&str, &str); 3] =
    [(Device::MARK, Device::KIND), (Model::MARK, Model::KIND), (Plan::MARK, Plan::KIND)];

/// A parsed file and the BLAKE3 hash of its bytes, in hexadecimal.
#[derive(Debug, Clone)]
pub struct Loaded<T> {
    /// The contents.
    pub value: T,
    /// Hash of the file's bytes, for other files' provenance.
    pub hash: String,
}

/// Reads and checks a contract file.
///
/// # Errors
/// Every [`ContractError`] but `Encode`.
pub fn read<T: Contract>(path: &Path) -> Result<Loaded<T>, ContractError> {
    let io = |source| ContractError::Io { action: "read", path: path.to_owned(), source };
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            ContractError::Missing { path: path.to_owned(), kind: T::KIND, command: T::COMMAND }
        }
        _ => io(error),
    })?;
    if metadata.is_dir() {
        return Err(ContractError::Folder { path: path.to_owned(), example: T::KIND });
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(ContractError::TooLarge {
            path: path.to_owned(),
            kind: T::KIND,
            bytes: metadata.len(),
            limit: FILE_BYTES_MAX,
        });
    }
    let bytes = fs::read(path).map_err(io)?;
    let hash = blake3::hash(&bytes).to_hex().to_string();
    let text = String::from_utf8(bytes).map_err(|error| {
        let upto = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        ContractError::Syntax {
            path: path.to_owned(),
            line: 1 + upto.iter().filter(|&&b| b == b'\n').count(),
            message: format!("not UTF-8 text; is this a {}?", T::KIND),
        }
    })?;
    parse(&text, path).map(|value| Loaded { value, hash })
}

/// Parses and checks the text of a contract file; `path` is for messages.
///
/// # Errors
/// As [`read`], but for the operating system's.
pub fn parse<T: Contract>(text: &str, path: &Path) -> Result<T, ContractError> {
    let syntax = |error: toml::de::Error| toml_error(text, path, &error);
    let table: toml::Table = toml::from_str(text).map_err(syntax)?;
    if !table.contains_key(T::MARK)
        && let Some((_, found)) = KINDS.iter().find(|(mark, _)| table.contains_key(*mark))
    {
        return Err(ContractError::OtherKind {
            path: path.to_owned(),
            found,
            kind: T::KIND,
            command: T::COMMAND,
        });
    }
    let found = match table.get("schema") {
        Some(toml::Value::Integer(n)) if *n == i64::from(SCHEMA) => None,
        Some(other) => Some(other.to_string()),
        None => Some("missing".to_owned()),
    };
    if let Some(found) = found {
        return Err(ContractError::Schema {
            path: path.to_owned(),
            found,
            expected: SCHEMA,
            command: T::COMMAND,
        });
    }
    let value: T = toml::from_str(text).map_err(syntax)?;
    value.check().map_err(|(key, problem)| ContractError::Value { path: path.to_owned(), key, problem })?;
    Ok(value)
}

/// The canonical text of a contract: the same value always gives the same bytes.
///
/// # Errors
/// [`ContractError::Encode`] and [`ContractError::Value`]: an impossible value is never written.
pub fn render<T: Contract>(value: &T, path: &Path) -> Result<String, ContractError> {
    value.check().map_err(|(key, problem)| ContractError::Value { path: path.to_owned(), key, problem })?;
    let body = toml::to_string(value)
        .map_err(|error| ContractError::Encode { path: path.to_owned(), message: error.to_string() })?;
    let mut text = String::with_capacity(body.len() + 4096);
    let mut commented = Vec::new();
    for line in body.lines() {
        if let Some((heading, comment)) = T::COMMENTS.iter().find(|(heading, _)| *heading == line)
            && !commented.contains(heading)
        {
            commented.push(*heading);
            for sentence in comment.lines() {
                if !sentence.is_empty() {
                    text.push_str("# ");
                    text.push_str(sentence);
                }
                text.push('\n');
            }
        }
        text.push_str(line);
        text.push('\n');
    }
    Ok(text)
}

/// Writes a contract file under a temporary name and renames it, so that no half file is ever seen.
///
/// Returns the hash of what was written.
///
/// # Errors
/// [`ContractError::Io`], and those of [`render`].
pub fn write<T: Contract>(value: &T, path: &Path) -> Result<String, ContractError> {
    let text = render(value, path)?;
    write_bytes(path, text.as_bytes())?;
    Ok(blake3::hash(text.as_bytes()).to_hex().to_string())
}

/// Writes any output file under a temporary name and renames it.
///
/// # Errors
/// [`ContractError::Io`]; the temporary file is gone then.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), ContractError> {
    let io = |source| ContractError::Io { action: "write", path: path.to_owned(), source };
    let mut file = temporary(path).map_err(io)?;
    file.as_file_mut().write_all(bytes).map_err(io)?;
    file.as_file().sync_all().map_err(io)?;
    file.persist(path).map_err(|error| io(error.error))?;
    Ok(())
}

/// A new file beside `path` under a temporary name, to be renamed when it is complete; dropped, it is gone. Its
/// permissions are those of any new file.
///
/// # Errors
/// The operating system's, without the temporary name.
pub fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix(".flashplan-")
        .suffix(".tmp")
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(|error| {
            let said = error.to_string();
            let fact = said.split_once(" at path ").map_or(&*said, |(fact, _)| fact);
            io::Error::new(error.kind(), fact)
        })
}

/// BLAKE3 of a file's bytes, in hexadecimal.
///
/// # Errors
/// [`ContractError::Io`].
pub fn hash_file(path: &Path) -> Result<String, ContractError> {
    let io = |source| ContractError::Io { action: "read", path: path.to_owned(), source };
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(fs::File::open(path).map_err(io)?).map_err(io)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// A measured value with six significant digits: what a measurement is worth, and a stable text.
pub fn significant(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Turns the parser's error into ours; unknown keys get the nearest known name.
fn toml_error(text: &str, path: &Path, error: &toml::de::Error) -> ContractError {
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    let line = 1 + text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count();
    let message = error.message().trim();
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let mut names = rest.split('`');
        let key = names.next().unwrap_or_default().to_owned();
        let known: Vec<&str> = names.skip(1).step_by(2).collect();
        let nearest = known
            .iter()
            .max_by(|a, b| strsim::jaro_winkler(a, &key).total_cmp(&strsim::jaro_winkler(b, &key)));
        let hint = nearest.map_or_else(
            || "; no keys are known here".to_owned(),
            |nearest| format!("; the nearest known name is `{nearest}`"),
        );
        return ContractError::UnknownKey { path: path.to_owned(), line, key, hint };
    }
    ContractError::Syntax { path: path.to_owned(), line, message: message.to_owned() }
}
