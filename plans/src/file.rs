//! Reading and writing contract files: schema, unknown keys, invalid values, canonical bytes, hashes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::DeTable;

use crate::check::{At, Checked, Wrong};
use crate::checksum::{self, Integrity, Stated};
use crate::output_file::{self, InputFiles, OutputKind};
use crate::{Calibration, ContractError, Device, Learned, Model, Plan, SCHEMA, lines};

/// Maximum bytes of a contract file. A larger file is something else, and is not read to its end.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// Characters of a long message that are shown from its beginning, and from its end.
const SAID_MAX: usize = 160;

/// A kind of contract file.
pub trait Contract: Serialize + DeserializeOwned {
    /// `device.toml`, `model.toml` or `plan.toml`.
    const KIND: &'static str;
    /// The command that writes it.
    const COMMAND: &'static str;
    /// A table that only this kind of file has.
    const MARK: &'static str;
    /// Comments: a table's heading, and the sentence above it.
    const COMMENTS: &'static [(&'static str, &'static str)];
    /// Whether a file of this kind has a checksum of its figures.
    const HAS_CHECKSUM: bool;
    /// Checks every value, alone and against other keys; `at` is the file.
    ///
    /// # Errors
    /// The first key with an invalid value, and the valid ones.
    fn check_at(&self, at: &At<'_>) -> Checked;

    /// Whether a file that begins with `head` is of this kind, even if it cannot be read any more.
    fn is_one(head: &[u8]) -> bool {
        let has =
            |start: &str| head.split(|&byte| byte == b'\n').any(|line| line.starts_with(start.as_bytes()));
        has("schema") && has(&format!("[{}]", Self::MARK))
    }

    /// The value of a parsed file. Each kind implements it, so that its code is generated once and not in every crate.
    ///
    /// # Errors
    /// Keys that are unknown, missing, or of another type.
    fn decode(file: toml::Deserializer<'_>) -> Result<Self, toml::de::Error>;

    /// The value as TOML, without comments.
    ///
    /// # Errors
    /// Values that TOML cannot represent.
    fn encode(&self) -> Result<String, toml::ser::Error>;

    /// [`Contract::check_at`] with keys as in a file.
    ///
    /// # Errors
    /// The first key with an invalid value, and the valid ones.
    fn check(&self) -> Checked {
        self.check_at(&At::file(None))
    }

    /// The valid range of every checked key, in words; list entries are `[]`.
    ///
    /// # Errors
    /// As [`Contract::check`].
    fn ranges(&self) -> Result<BTreeMap<String, String>, Wrong> {
        let ranges = std::cell::RefCell::default();
        self.check_at(&At::file(Some(&ranges)))?;
        Ok(ranges.into_inner())
    }
}

/// Each kind's table and name.
const KINDS: [(&str, &str); 5] = [
    (Device::MARK, Device::KIND),
    (Model::MARK, Model::KIND),
    (Plan::MARK, Plan::KIND),
    (Calibration::MARK, Calibration::KIND),
    (Learned::MARK, Learned::KIND),
];

/// A parsed file.
#[derive(Debug, Clone)]
pub struct Loaded<T> {
    /// The contents.
    pub value: T,
    /// BLAKE3 of the file's bytes in hexadecimal, for other files' provenance.
    pub hash: String,
    /// The state of its checksum.
    pub integrity: Integrity,
}

/// Reads and checks a contract file.
///
/// # Errors
/// Any [`ContractError`] but `Encode`.
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
    if !metadata.is_file() {
        let kind = metadata.file_type();
        let found = match () {
            () if platform::file::is_pipe(kind) => "a pipe",
            () if platform::file::is_socket(kind) => "a socket",
            () => "a device",
        };
        return Err(ContractError::NotAFile { path: path.to_owned(), found, kind: T::KIND });
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ContractError::TooLarge { path: path.to_owned(), kind: T::KIND, limit: FILE_BYTES_MAX });
    }
    let hash = blake3::hash(&bytes).to_hex().to_string();
    let text = String::from_utf8(bytes).map_err(|error| {
        let upto = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        ContractError::Syntax {
            path: path.to_owned(),
            line: 1 + upto.iter().filter(|&&b| b == b'\n').count(),
            message: format!("not UTF-8 text; is this a {}?", T::KIND),
        }
    })?;
    let (value, integrity) = parse_whole(&text, path)?;
    Ok(Loaded { value, hash, integrity })
}

/// Parses and checks the text of a contract file; `path` is for messages.
///
/// # Errors
/// As [`read`], without the operating system's.
pub fn parse<T: Contract>(text: &str, path: &Path) -> Result<T, ContractError> {
    parse_whole(text, path).map(|(value, _)| value)
}

fn parse_whole<T: Contract>(text: &str, path: &Path) -> Result<(T, Integrity), ContractError> {
    let syntax = |error: toml::de::Error| toml_error(text, path, &error);
    let wrong = |Wrong { key, problem }: Wrong| {
        let line = DeTable::parse(text).ok().map(|table| lines::line_of(text, &table, &key));
        ContractError::Value { path: path.to_owned(), line, key, problem: bounded(&problem) }
    };
    let mut table = DeTable::parse(text).map_err(syntax)?;
    if !table.get_ref().contains_key(T::MARK)
        && let Some((_, found)) = KINDS.iter().find(|(mark, _)| table.get_ref().contains_key(*mark))
    {
        return Err(ContractError::OtherKind {
            path: path.to_owned(),
            found,
            kind: T::KIND,
            command: T::COMMAND,
        });
    }
    let found = match table.get_ref().get("schema") {
        Some(value) if value.get_ref().as_integer().is_some_and(|n| n.as_str() == SCHEMA.to_string()) => None,
        Some(value) => Some(text.get(value.span()).unwrap_or_default().to_owned()),
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
    let stated = if T::HAS_CHECKSUM { checksum::take(&mut table).map_err(wrong)? } else { None };
    let value = T::decode(toml::Deserializer::from(table)).map_err(syntax)?;
    value.check().map_err(wrong)?;
    let integrity = match stated {
        None => Integrity::Absent,
        Some(Stated::Void) => Integrity::Void,
        Some(Stated::Of(checksum)) if checksum::of(text).map_err(syntax)? == checksum => Integrity::Right,
        Some(Stated::Of(_)) => {
            return Err(ContractError::Checksum {
                path: path.to_owned(),
                kind: T::KIND,
                command: T::COMMAND,
            });
        }
    };
    Ok((value, integrity))
}

/// The canonical text of a contract: the same value always gives the same bytes.
///
/// # Errors
/// [`ContractError::Encode`], and [`ContractError::Value`]: an invalid value is never written.
pub fn render<T: Contract>(value: &T, path: &Path) -> Result<String, ContractError> {
    value.check().map_err(|Wrong { key, problem }| ContractError::Value {
        path: path.to_owned(),
        line: None,
        key,
        problem,
    })?;
    let encode = |message: String| ContractError::Encode { path: path.to_owned(), message };
    let body = value.encode().map_err(|error| encode(error.to_string()))?;
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
    if T::HAS_CHECKSUM {
        text.push_str(&checksum::table_of(&text).map_err(|error| encode(error.to_string()))?);
    }
    Ok(text)
}

/// Writes a contract file as [`output_file::write`] does, and returns the hash of its bytes.
///
/// # Errors
/// [`ContractError::Io`], and as [`render`].
pub fn write<T: Contract>(value: &T, path: &Path) -> Result<String, ContractError> {
    let text = render(value, path)?;
    write_bytes(path, kind::<T>(), text.as_bytes())?;
    Ok(blake3::hash(text.as_bytes()).to_hex().to_string())
}

/// A contract file as a kind of output file.
pub fn kind<T: Contract>() -> OutputKind {
    OutputKind { name: T::KIND, is_one: T::is_one }
}

/// Writes any output file, as [`output_file::write`] does.
///
/// # Errors
/// [`ContractError::Io`]; no half file is left then.
pub fn write_bytes(path: &Path, kind: OutputKind, bytes: &[u8]) -> Result<(), ContractError> {
    output_file::write(path, kind, bytes).map_err(|source| ContractError::Io {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

/// Checks that an output file can be written, as [`output_file::writable`] does.
///
/// # Errors
/// [`ContractError::Io`], with the sentence of [`write_bytes`].
pub fn writable(path: &Path, kind: OutputKind, inputs: InputFiles<'_>) -> Result<(), ContractError> {
    output_file::writable(path, kind, inputs).map_err(|source| ContractError::Io {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

/// BLAKE3 of a file's bytes, in hexadecimal.
///
/// # Errors
/// [`ContractError::Io`].
pub fn hash_file(path: &Path) -> Result<String, ContractError> {
    let io = |source| ContractError::Io { action: "read", path: path.to_owned(), source };
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path).map_err(io)?).map_err(io)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// A measured value with six significant digits, which have a short and stable text.
pub fn significant(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// The parser's error as [`ContractError`]; an unknown key gets the nearest known name.
fn toml_error(text: &str, path: &Path, error: &toml::de::Error) -> ContractError {
    let line = lines::line_at(text, error.span().map_or(0, |span| span.start));
    let message = error.message().trim();
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let mut names = rest.split('`');
        let key = bounded(names.next().unwrap_or_default());
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
    ContractError::Syntax { path: path.to_owned(), line, message: bounded(message) }
}

/// A message of any length, cut to its beginning and its end.
fn bounded(said: &str) -> String {
    let count = said.chars().count();
    if count <= 2 * SAID_MAX {
        return said.to_owned();
    }
    let start: String = said.chars().take(SAID_MAX).collect();
    let end: String = said.chars().skip(count - SAID_MAX).collect();
    format!("{start} ... {end}")
}
