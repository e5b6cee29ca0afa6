//! JSON schemas: which are enforced, and the grammar of one.
//!
//! A schema is a stranger's program: `allOf` of alternatives multiplies them, and so do keys beside `anyOf` or `$ref`. Where
//! nothing is multiplied, a grammar is as long as its schema, which is bounded.

use serde_json::{Map, Value, json};

/// The longest schema, and how deep it may be.
const BYTES_MAX: usize = 16 << 10;
const DEPTH_MAX: usize = 32;
/// Keys that are alone: each says all of a value by itself.
const ALONE: [&str; 4] = ["anyOf", "oneOf", "allOf", "$ref"];
/// Keys that say nothing of a value.
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

/// A schema as `%json` of a Lark grammar takes it: one line, written as Python writes JSON.
///
/// # Errors
/// A sentence, if it is too large or has what is not enforced.
pub(super) fn grammar(schema: &Value) -> Result<String, String> {
    let Value::Object(keys) = schema else { return Err("the schema is no object".to_owned()) };
    let bytes = schema.to_string().len();
    if bytes > BYTES_MAX {
        return Err(format!("the schema has {bytes} bytes, and {BYTES_MAX} is the most"));
    }
    check(schema, 0)?;
    let mut keys = keys.clone();
    let written = json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
    keys.insert("x-guidance".to_owned(), written);
    Ok(format!("%json {}", Value::Object(keys)))
}

/// The grammar of any object.
pub(super) fn any_object() -> Value {
    json!({ "type": "object" })
}

/// Whether nothing in it multiplies.
fn check(schema: &Value, depth: usize) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("the schema is deeper than {DEPTH_MAX} levels"));
    }
    let Value::Object(keys) = schema else { return Ok(()) };
    if keys.contains_key("x-guidance") {
        return Err("`x-guidance` in a schema is not implemented here".to_owned());
    }
    let said: Vec<&str> = keys
        .keys()
        .map(String::as_str)
        .filter(|key| !NOTES.contains(key) && !key.starts_with("x-"))
        .collect();
    if let Some(alone) = said.iter().find(|key| ALONE.contains(key))
        && said.len() > 1
    {
        let other = said.iter().find(|key| *key != alone).unwrap_or(alone);
        return Err(format!(
            "`{other}` beside `{alone}` in a schema is not implemented here; put it into each"
        ));
    }
    if let Some(Value::Array(all)) = keys.get("allOf")
        && all.len() > 1
    {
        return Err(
            "`allOf` of several schemas is not implemented here; write what they say as one".to_owned()
        );
    }
    let each =
        |schemas: &Map<String, Value>| schemas.values().try_for_each(|schema| check(schema, depth + 1));
    for (key, value) in keys {
        match (key.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(schemas)) => {
                each(schemas)?;
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(schemas)) => {
                schemas.iter().try_for_each(|schema| check(schema, depth + 1))?;
            }
            ("items" | "additionalProperties" | "not" | "if" | "then" | "else", Value::Object(_)) => {
                check(value, depth + 1)?;
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_multiply_is_refused_by_name() {
        let any = json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] });
        for (schema, words) in [
            (json!([]), "no object"),
            (json!({ "allOf": [any, any] }), "`allOf` of several"),
            (json!({ "items": { "type": "object", "$ref": "#/$defs/a" } }), "`type` beside `$ref`"),
            (json!({ "properties": { "a": { "anyOf": [], "oneOf": [] } } }), "beside `anyOf`"),
            (json!({ "$defs": { "a": { "x-guidance": {} } } }), "`x-guidance`"),
            (json!({ "enum": ["a".repeat(20_000)] }), "16384 is the most"),
        ] {
            let error = grammar(&schema).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let mut deep = json!({ "type": "string" });
        for _ in 0..40 {
            deep = json!({ "type": "array", "items": deep });
        }
        assert!(grammar(&deep).unwrap_err().contains("deeper than 32"));
        let fine = json!({ "$defs": { "a": any }, "properties": { "b": { "$ref": "#/$defs/a", "description": "x" } } });
        assert!(grammar(&fine).unwrap().contains("%json"));
    }
}
