//! Patterns of texts that hold to the letter, where the grammar's own reading of a schema is wider.

use serde_json::{Map, Value, json};

/// Days of the months, with 29 February in leap years alone.
const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
);
/// Times without leap seconds, which few minutes have.
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// Labels of up to 63 characters without two hyphens side by side, since such labels are encoded ones.
const HOSTNAME: &str = "[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,31}(?:\\.[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,31})*";
const HOSTNAME_MAX: u64 = 253;

/// Replaces formats and patterns in a rewritten schema.
///
/// # Errors
/// A sentence, where such a format stands beside a pattern.
pub(super) fn exact(schema: &mut Value) -> Result<(), String> {
    match schema {
        Value::Object(keys) => {
            of_text(keys)?;
            // values, and no schemas
            let schemas = keys.iter_mut().filter(|(key, _)| !matches!(key.as_str(), "enum" | "const"));
            schemas.into_iter().try_for_each(|(_, schema)| exact(schema))
        }
        Value::Array(schemas) => schemas.iter_mut().try_for_each(exact),
        _ => Ok(()),
    }
}

fn of_text(keys: &mut Map<String, Value>) -> Result<(), String> {
    if let Some(Value::String(pattern)) = keys.get_mut("pattern") {
        *pattern = without_byte_order_mark(pattern);
    }
    let format = keys.get("format").and_then(Value::as_str);
    let pattern = match format {
        Some("date") => DATE.to_owned(),
        Some("time") => TIME.to_owned(),
        Some("date-time") => format!("{DATE}[tT]{TIME}"),
        Some("hostname") => HOSTNAME.to_owned(),
        _ => return Ok(()),
    };
    if keys.contains_key("pattern") {
        return Err(
            "`format` beside `pattern` in the schema is not implemented here; leave one away".to_owned()
        );
    }
    if format == Some("hostname") {
        let most = keys.get("maxLength").and_then(Value::as_u64).unwrap_or(HOSTNAME_MAX);
        keys.insert("maxLength".to_owned(), json!(most.min(HOSTNAME_MAX)));
    }
    keys.remove("format");
    keys.insert("pattern".to_owned(), Value::from(format!("^(?:{pattern})$")));
    Ok(())
}

/// A pattern whose `\S` does not take the byte order mark, which is a space to JavaScript.
fn without_byte_order_mark(pattern: &str) -> String {
    let (mut text, mut in_class) = (String::with_capacity(pattern.len()), false);
    let mut characters = pattern.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some('S') if !in_class => text.push_str("[^\\s\\x{feff}]"),
                next => text.extend(std::iter::once('\\').chain(next)),
            },
            c => {
                in_class = (in_class || c == '[') && c != ']';
                text.push(c);
            }
        }
    }
    text
}
