//! Arguments that a model has written as bare text: what they are is said by the tool's schema.

use serde_json::{Map, Value};

use super::literal::Reader;

/// Kinds of values, as bits.
const TEXT: u8 = 1;
const WHOLE: u8 = 2;
const NUMBER: u8 = 4;
const TRUTH: u8 = 8;
const NOTHING: u8 = 16;
const LIST: u8 = 32;
const OBJECT: u8 = 64;
const ANY: u8 = 127;

/// How far references are followed.
const DEPTH_MAX: usize = 8;

/// The value of a text that was written for a parameter of a tool; `parameters` is the tool's schema. A text stays text if the schema
/// demands it. If the schema allows other kinds, a text that looks like one becomes that value.
pub(super) fn value(text: &str, name: &str, parameters: &Map<String, Value>) -> Value {
    let schema = parameters.get("properties").and_then(|properties| properties.get(name));
    let schema = schema.or_else(|| parameters.get("additionalProperties"));
    let kinds = schema.map_or(ANY, |schema| kinds(schema, parameters, 0));
    let read = || Reader::new(text).whole().filter(|value| kind(value) & kinds & !TEXT != 0);
    let parsed = if kinds == TEXT { None } else { serde_json::from_str(text).ok() };
    let parsed = parsed.filter(|value| kind(value) & kinds & !TEXT != 0);
    // Python's words and lists, which templates show where they write a value as text
    parsed.or_else(|| if kinds == TEXT { None } else { read() }).unwrap_or_else(|| Value::from(text))
}

/// Whether an argument may be a list or an object, which some formats write as tags.
pub(super) fn takes_tags(name: &str, parameters: &Map<String, Value>) -> bool {
    let schema = parameters.get("properties").and_then(|properties| properties.get(name));
    let kinds = schema.map_or(ANY, |schema| kinds(schema, parameters, 0));
    kinds & (LIST | OBJECT) != 0 && (kinds & TEXT == 0 || kinds == ANY)
}

/// A value by what it looks like.
pub(super) fn guessed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

/// Which kind a value is of; a whole number is a number, too.
fn kind(value: &Value) -> u8 {
    match value {
        Value::String(_) => TEXT,
        Value::Number(number) if number.is_f64() => NUMBER,
        Value::Number(_) => NUMBER | WHOLE,
        Value::Bool(_) => TRUTH,
        Value::Null => NOTHING,
        Value::Array(_) => LIST,
        Value::Object(_) => OBJECT,
    }
}

/// The kinds that a schema allows.
fn kinds(schema: &Value, root: &Map<String, Value>, depth: usize) -> u8 {
    let Value::Object(keys) = schema else { return ANY };
    if depth > DEPTH_MAX {
        return ANY;
    }
    let inner = |schema: &Value| kinds(schema, root, depth + 1);
    let mut all = ANY;
    let named = |name: &Value| match name.as_str() {
        Some("string") => TEXT,
        Some("integer") => WHOLE,
        Some("number") => NUMBER,
        Some("boolean") => TRUTH,
        Some("null") => NOTHING,
        Some("array") => LIST,
        Some("object") => OBJECT,
        _ => ANY,
    };
    for (key, value) in keys {
        all &= match (key.as_str(), value) {
            ("type", Value::Array(names)) => names.iter().map(named).fold(0, |all, kind| all | kind),
            ("type", name) => named(name),
            ("const", value) => kind(value),
            ("enum", Value::Array(values)) => values.iter().map(kind).fold(0, |all, kind| all | kind),
            ("anyOf" | "oneOf", Value::Array(schemas)) => {
                schemas.iter().map(inner).fold(0, |all, kind| all | kind)
            }
            ("allOf", Value::Array(schemas)) => schemas.iter().map(inner).fold(ANY, |all, kind| all & kind),
            ("$ref", Value::String(to)) => referred(to, root).map_or(ANY, inner),
            _ => ANY,
        };
    }
    all
}

/// The part of a tool's schema that a reference names.
pub(super) fn referred<'r>(to: &str, root: &'r Map<String, Value>) -> Option<&'r Value> {
    let mut parts = to.strip_prefix("#/")?.split('/');
    let first = root.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part.replace("~1", "/").replace("~0", "~")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_is_what_its_schema_says() {
        let parameters = json!({
            "$defs": { "unit": { "enum": ["C", "F"] }, "loop": { "$ref": "#/$defs/loop" } },
            "properties": {
                "text": { "type": "string" },
                "whole": { "type": "integer" },
                "number": { "type": "number" },
                "truth": { "type": "boolean" },
                "list": { "type": "array" },
                "object": { "type": "object" },
                "perhaps": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                "either": { "type": ["integer", "string"] },
                "unit": { "$ref": "#/$defs/unit" },
                "loop": { "$ref": "#/$defs/loop" },
                "any": {},
            },
        });
        let parameters = parameters.as_object().unwrap();
        for (name, text, expected) in [
            ("text", "3", json!("3")),
            ("text", "true", json!("true")),
            ("text", " \"a\"\n", json!(" \"a\"\n")),
            ("whole", "3", json!(3)),
            ("whole", "3.5", json!("3.5")),
            ("whole", "three", json!("three")),
            ("number", "3", json!(3)),
            ("number", "-2.5e3", json!(-2500.0)),
            ("truth", "True", json!(true)),
            ("truth", "false", json!(false)),
            ("list", "[1, \"a\"]", json!([1, "a"])),
            ("list", "[True, 'a']", json!([true, "a"])),
            ("object", "{\"a\": {\"b\": 1}}", json!({ "a": { "b": 1 } })),
            ("object", "[1]", json!("[1]")),
            ("perhaps", "null", json!(null)),
            ("perhaps", "None", json!(null)),
            ("perhaps", "3", json!("3")),
            ("either", "3", json!(3)),
            ("either", "x", json!("x")),
            ("unit", "C", json!("C")),
            ("loop", "3", json!(3)),
            ("any", "{\"a\": 1}", json!({ "a": 1 })),
            ("any", "words", json!("words")),
            ("unknown", "7", json!(7)),
        ] {
            assert_eq!(value(text, name, parameters), expected, "{name}: {text}");
        }
    }
}
