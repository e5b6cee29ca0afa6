//! JSON schemas: the keywords that are enforced, and the grammar of a schema.
//!
//! `llguidance` compiles a schema to a grammar. Before, `rewrite` makes it a schema that `llguidance` takes. `merge` makes schemas that
//! hold together one. `disjoint` shows that schemas exclude each other, which `oneOf` needs. `finite` removes values that never end.
//! `values` has bounds, formats and lists without repetition, `texts` exact patterns, and `objects` the names of properties.

mod disjoint;
mod finite;
mod merge;
mod objects;
mod rewrite;
mod texts;
mod values;

use serde_json::{Map, Value, json};

/// The longest schema.
const BYTES_MAX: usize = 16 << 10;
/// Keywords that are alone in rewritten schemas: each says all of a value by itself.
pub(super) const ALONE: [&str; 4] = ["anyOf", "oneOf", "allOf", "$ref"];
/// Keywords that say nothing of a value.
pub(super) const NOTES: [&str; 11] = [
    "title",
    "description",
    "default",
    "examples",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "$comment",
    "deprecated",
    "discriminator",
];

/// A schema as `%json` of a Lark grammar takes it. Its values are on one line, with the spaces of Python's JSON.
///
/// # Errors
/// A sentence, if the schema is too large or has a keyword that is not enforced.
pub(super) fn grammar(schema: &Value) -> Result<String, String> {
    let mut schema = Value::Object(rewritten(schema)?);
    texts::exact(&mut schema)?;
    let Value::Object(mut keys) = schema else { unreachable!("an object stays one") };
    let written = json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
    keys.insert("x-guidance".to_owned(), written);
    Ok(format!("%json {}", Value::Object(keys)))
}

/// A schema of the keywords that are enforced. Each of [`ALONE`] stands alone in it, and its references name its own `$defs`.
///
/// # Errors
/// A sentence, if the schema is too large or has a keyword that is not enforced.
pub(super) fn rewritten(schema: &Value) -> Result<Map<String, Value>, String> {
    if !schema.is_object() {
        return Err("the schema is no object".to_owned());
    }
    let bytes = schema.to_string().len();
    if bytes > BYTES_MAX {
        return Err(format!("the schema has {bytes} bytes, and {BYTES_MAX} is the most"));
    }
    rewrite::rewritten(schema)
}

/// The grammar of any object.
pub(super) fn any_object() -> Value {
    json!({ "type": "object" })
}

#[cfg(test)]
mod tests;
