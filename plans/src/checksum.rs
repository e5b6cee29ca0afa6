//! A checksum of a file's figures, which exposes a changed digit.
//!
//! ```toml
//! [integrity]
//! checksum = "64 hexadecimal digits"    # "void" after a change by hand
//! ```
//!
//! It covers keys and values, but not comments, white space or the order of keys. Files of older versions have none.

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use crate::check::Wrong;

/// Name of the table.
pub(crate) const TABLE: &str = "integrity";
/// Name of its key.
const KEY: &str = "checksum";
/// The value of a file that was changed by hand.
const VOID: &str = "void";
/// Comment above the table.
const COMMENT: &str = "# A hash of all keys and values: one that has changed is refused. After a change by hand: checksum = \"void\".";

/// The checksum of a file, compared with its figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integrity {
    /// The checksum fits the figures.
    Right,
    /// The file says that it was changed by hand.
    Void,
    /// The file has no checksum: an older version wrote it, or its kind has none.
    Absent,
}

impl Integrity {
    /// A note for people on a file that was changed by hand.
    pub fn note(self) -> Option<&'static str> {
        match self {
            Self::Void => Some("its checksum is void: it was changed by hand"),
            Self::Right | Self::Absent => None,
        }
    }
}

/// A checksum as a file states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stated {
    Void,
    Of(String),
}

/// Takes the checksum out of a parsed file; nothing if there is none.
///
/// # Errors
/// A table without a valid checksum.
pub(crate) fn take(file: &mut Spanned<DeTable<'_>>) -> Result<Option<Stated>, Wrong> {
    let Some((_, table)) = file.get_mut().remove_entry(TABLE) else { return Ok(None) };
    let wrong = |key: String| Wrong {
        key,
        problem: format!(
            "is not a checksum; the table [{TABLE}] has one key, `{KEY}`: 64 hexadecimal digits, or \"{VOID}\" after a change \
             by hand"
        ),
    };
    let DeValue::Table(table) = table.into_inner() else { return Err(wrong(TABLE.to_owned())) };
    if let Some(other) = table.keys().find(|key| key.get_ref() != KEY) {
        return Err(wrong(format!("{TABLE}.{}", other.get_ref())));
    }
    let value = table.get(KEY).and_then(|value| value.get_ref().as_str());
    match value {
        Some(VOID) => Ok(Some(Stated::Void)),
        Some(hex) if hex.len() == 64 && hex.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
            Ok(Some(Stated::Of(hex.to_ascii_lowercase())))
        }
        _ => Err(wrong(format!("{TABLE}.{KEY}"))),
    }
}

/// The table with the checksum of a text that has none yet.
///
/// # Errors
/// The text is no TOML.
pub(crate) fn table_of(text: &str) -> Result<String, toml::de::Error> {
    Ok(format!("\n{COMMENT}\n[{TABLE}]\n{KEY} = \"{}\"\n", of(text)?))
}

/// BLAKE3 of all keys and values but the checksum, in hexadecimal.
///
/// # Errors
/// The text is no TOML.
pub(crate) fn of(text: &str) -> Result<String, toml::de::Error> {
    let mut table: Table = text.parse()?;
    table.remove(TABLE);
    let mut hasher = blake3::Hasher::new();
    feed(&mut hasher, &Value::Table(table));
    Ok(hasher.finalize().to_hex().to_string())
}

/// Hashes a value without ambiguity: a letter for its kind, and lengths before contents.
fn feed(hasher: &mut blake3::Hasher, value: &Value) {
    let text = |hasher: &mut blake3::Hasher, kind: u8, text: &str| {
        hasher.update(&[kind]).update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    };
    match value {
        Value::String(value) => text(hasher, b's', value),
        Value::Datetime(value) => text(hasher, b'd', &value.to_string()),
        Value::Integer(value) => {
            hasher.update(b"i").update(&value.to_le_bytes());
        }
        Value::Float(value) => {
            hasher.update(b"f").update(&value.to_bits().to_le_bytes());
        }
        Value::Boolean(value) => {
            hasher.update(&[b'b', u8::from(*value)]);
        }
        Value::Array(values) => {
            hasher.update(b"a").update(&(values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| feed(hasher, value));
        }
        Value::Table(table) => {
            hasher.update(b"t").update(&(table.len() as u64).to_le_bytes());
            let mut entries: Vec<_> = table.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| key.as_str());
            for (key, value) in entries {
                text(hasher, b'k', key);
                feed(hasher, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_order_do_not_count_and_every_value_does() {
        let same = of("a = 1\nb = [1.5, 2.5]\n[c]\nd = \"x\"\n").unwrap();
        for text in [
            "# a comment\nb = [ 1.50, 2.5 ]\na = 1\n\n[c]\nd = 'x'\n",
            "a = 1\nb = [1.5, 2.5]\n[c]\nd = \"x\"\n[integrity]\nchecksum = \"void\"\n",
        ] {
            assert_eq!(of(text).unwrap(), same, "{text}");
        }
        for text in [
            "a = 2\nb = [1.5, 2.5]\n[c]\nd = \"x\"\n",
            "a = 1.0\nb = [1.5, 2.5]\n[c]\nd = \"x\"\n",
            "a = 1\nb = [2.5, 1.5]\n[c]\nd = \"x\"\n",
            "a = 1\nb = [1.5, 2.5]\n[c]\ne = \"x\"\n",
            "a = 1\nb = [1.5, 2.5]\nd = \"x\"\n",
            "a = 1\nb = [1.5]\n[c]\nd = \"x\"\n",
        ] {
            assert_ne!(of(text).unwrap(), same, "{text}");
        }
    }
}
