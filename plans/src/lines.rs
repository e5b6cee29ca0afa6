//! The line of a key in a contract file's text.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The line of a byte, counted from 1.
pub(crate) fn line_at(text: &str, byte: usize) -> usize {
    1 + text.as_bytes()[..byte.min(text.len())].iter().filter(|&&b| b == b'\n').count()
}

/// The line of a key such as `storage.reads[3].depth`; for an absent key, the line of its table.
pub(crate) fn line_of(text: &str, file: &Spanned<DeTable<'_>>, key: &str) -> usize {
    let mut found = None;
    let mut table = Some(file.get_ref());
    for step in key.split('.') {
        let mut parts = step.split(['[', ']']).filter(|part| !part.is_empty());
        let Some((name, value)) = parts.next().and_then(|name| table.take()?.get_key_value(name)) else {
            break;
        };
        // a table's own span may be of its first key; its name stands in the heading
        found = Some(name.span().start);
        let mut value: &Spanned<DeValue<'_>> = value;
        for index in parts {
            let Some(entry) =
                index.parse().ok().and_then(|index: usize| value.get_ref().as_array()?.get(index))
            else {
                break;
            };
            value = entry;
            found = Some(entry.span().start);
        }
        table = value.get_ref().as_table();
    }
    line_at(text, found.unwrap_or(0))
}
